package fsm

import (
	"encoding/hex"
	"strings"

	"tendril/store/object"
)

// Limits of the metadata. What would go beyond is refused with ErrFull; a snapshot that holds more is refused whole.
const (
	MaxNodes             = 1024
	MaxDevices           = 1 << 14 // in the cluster
	MaxNodeDevices       = 256     // of one node
	MaxTenants           = 4096
	MaxTokens            = 4096
	MaxCertificates      = 1 << 16
	MaxTokenCertificates = 1024 // of one token, or of a tenant without one, renewed ones too: nobody fills the table
	MaxObjects           = 1 << 20
	MaxReplicas          = 64 // of one object
	MaxPolicies          = 1024
	MaxAddresses         = 16   // of one node, each kind
	MaxMembers           = 1024 // of one tenant, each kind
	MaxTextBytes         = 253  // names of nodes, tenants, drivers, addresses
	MaxProfileBytes      = 4096 // a device's measured profile
	MaxPolicyBytes       = 4096
	MaxRequests          = 4096 // request ids remembered
	MaxResultTextSize    = 1024
)

// UUID names a node, an incarnation, an object, a token or a request: 128 bits. The zero UUID names nothing.
type UUID [16]byte

// IsZero reports whether u names nothing.
func (u UUID) IsZero() bool { return u == UUID{} }

// String gives 32 hexadecimal digits.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

func (u *UUID) walk(c *codec) { c.fixed(u[:]) }

func walkText(s *string, c *codec) { c.str(s, MaxTextBytes) }
func walkU32(v *uint32, c *codec)  { c.u32(v) }

// Node is one member of the cluster. Epoch rises with each change; 0 = not in the state yet.
type Node struct {
	ID          UUID
	Name        string
	Incarnation UUID     // of the daemon that runs now, as far as the cluster knows
	Client      []string // host:port, where clients dial, best first
	Peer        []string // host:port, where the other nodes dial, best first
	Version     string   // the daemon's
	Epoch       uint64
	Joined      int64 // Unix ns, by the leader's clock
}

func (n *Node) walk(c *codec) {
	n.ID.walk(c)
	c.str(&n.Name, MaxTextBytes)
	n.Incarnation.walk(c)
	list(c, &n.Client, MaxAddresses, walkText)
	list(c, &n.Peer, MaxAddresses, walkText)
	c.str(&n.Version, MaxTextBytes)
	c.u64(&n.Epoch)
	c.i64(&n.Joined)
}

// DeviceKey names a device for ever: the device's own UUID and the driver that shows it. One GPU under two drivers is
// two devices.
type DeviceKey struct {
	UUID   UUID
	Driver string // the platform's name and version
}

func (k *DeviceKey) walk(c *codec) {
	k.UUID.walk(c)
	c.str(&k.Driver, MaxTextBytes)
}

// Device is the summary that the cluster keeps of a node's device; the whole snapshot stays at its node.
type Device struct {
	Key         DeviceKey
	Node        UUID
	Name        string
	Vendor      string
	Version     string
	Type        uint64 // CL_DEVICE_TYPE, OpenCL 3.0 §4.2
	MemoryBytes uint64 // CL_DEVICE_GLOBAL_MEM_SIZE
	Units       uint32 // CL_DEVICE_MAX_COMPUTE_UNITS
	ClockMHz    uint32
	Profile     []byte // what was measured of it, opaque here; may be empty
}

func (d *Device) walk(c *codec) {
	d.Key.walk(c)
	d.Node.walk(c)
	c.str(&d.Name, MaxTextBytes)
	c.str(&d.Vendor, MaxTextBytes)
	c.str(&d.Version, MaxTextBytes)
	c.u64(&d.Type)
	c.u64(&d.MemoryBytes)
	c.u32(&d.Units)
	c.u32(&d.ClockMHz)
	c.bytes(&d.Profile, MaxProfileBytes)
}

// Tenant is a set of users, groups and certificate names that share objects and limits.
type Tenant struct {
	Name         string
	Users        []uint32 // uids
	Groups       []uint32 // gids
	Certificates []string // names in client certificates
	QuotaBytes   uint64   // of no use: see Quotas
	Epoch        uint64

	// What SetTenant has beyond PutTenant.

	Managed  bool           // made by SetTenant: no node's configuration changes it or takes it out
	Disabled int64          // Unix ns: its programs are let in nowhere since then; 0 = they are
	Members  []TenantMember // of a node alone, or by name
	Quotas   []TenantQuota  // on each node (Node zero), or on one
	Whole    ClusterQuota   // in the whole cluster
}

func (t *Tenant) walk(c *codec) {
	c.str(&t.Name, MaxTextBytes)
	list(c, &t.Users, MaxMembers, walkU32)
	list(c, &t.Groups, MaxMembers, walkU32)
	list(c, &t.Certificates, MaxMembers, walkText)
	c.u64(&t.QuotaBytes)
	c.u64(&t.Epoch)
}

// walkWhole is walk with the fields of SetTenant, which version 5 of the snapshot has, too.
func (t *Tenant) walkWhole(c *codec) {
	t.walk(c)
	c.flag(&t.Managed)
	c.i64(&t.Disabled)
	list(c, &t.Members, MaxMembers, (*TenantMember).walk)
	list(c, &t.Quotas, MaxNodes+1, (*TenantQuota).walk)
	c.u32(&t.Whole.Objects)
	c.u64(&t.Whole.Bytes)
	c.u32(&t.Whole.Devices)
}

// whole reports whether t has something that walk leaves out.
func (t *Tenant) whole() bool {
	return t.Managed || t.Disabled != 0 || len(t.Members) > 0 || len(t.Quotas) > 0 || t.Whole != ClusterQuota{}
}

// MemberKind says what a TenantMember is.
type MemberKind uint8

// The kinds.
const (
	MemberUser        MemberKind = 1 // a user of a node
	MemberGroup       MemberKind = 2 // the primary group of a node's user
	MemberCertificate MemberKind = 3 // the name in a certificate of a client; of no node
)

func (k *MemberKind) walk(c *codec) {
	c.u8((*uint8)(k))
	if c.err == nil && (*k < MemberUser || *k > MemberCertificate) {
		c.fail("member kind %d is none of 1 (user), 2 (group), 3 (certificate)", *k)
	}
}

// TenantMember is somebody who is a tenant.
type TenantMember struct {
	Kind MemberKind
	Node UUID   // where; zero = at every node
	Name string // a name, which each node looks up, or a number
}

func (m *TenantMember) walk(c *codec) {
	m.Kind.walk(c)
	m.Node.walk(c)
	c.str(&m.Name, MaxTextBytes)
}

// TenantQuota bounds what a tenant has on a node; 0 = the node's own default.
type TenantQuota struct {
	Node        UUID // zero = on each node that has no other
	MemoryBytes uint64
	DiskBytes   uint64
	GPUBytes    uint64 // of each GPU's memory
	Devices     uint32 // leased by this node's programs
}

func (q *TenantQuota) walk(c *codec) {
	q.Node.walk(c)
	c.u64(&q.MemoryBytes)
	c.u64(&q.DiskBytes)
	c.u64(&q.GPUBytes)
	c.u32(&q.Devices)
}

// ClusterQuota bounds what a tenant has in the whole cluster; 0 = no bound.
type ClusterQuota struct {
	Objects uint32 // published
	Bytes   uint64 // of published objects, each counted once
	Devices uint32 // leased over nodes
}

// Role is what a certificate or token allows. The numbers are those of cluster/pki.
type Role uint8

// The roles.
const (
	RoleUser     Role = 1
	RoleReadOnly Role = 2
	RoleNode     Role = 3
	RoleMetrics  Role = 4
)

func (r *Role) walk(c *codec) {
	c.u8((*uint8)(r))
	if c.err == nil && (*r < RoleUser || *r > RoleMetrics) {
		c.fail("role %d is none of 1 (user), 2 (read-only), 3 (node), 4 (metrics)", *r)
	}
}

// Token is what is kept of a token: never its secret, only the SHA-256 of it.
type Token struct {
	ID         UUID
	SecretHash [32]byte
	Role       Role
	Tenant     string // for whom certificates are issued; "" = the subject's own
	Created    int64  // Unix ns
	Expires    int64  // Unix ns; 0 = never
	Once       bool
	Uses       uint32
	Revoked    int64 // Unix ns; 0 = not revoked
}

func (t *Token) walk(c *codec) {
	t.ID.walk(c)
	c.fixed(t.SecretHash[:])
	t.Role.walk(c)
	c.str(&t.Tenant, MaxTextBytes)
	c.i64(&t.Created)
	c.i64(&t.Expires)
	c.flag(&t.Once)
	c.u32(&t.Uses)
	c.i64(&t.Revoked)
}

// NodeTenant is the tenant in the records of a node's certificates: it says whose they are.
func NodeTenant(node UUID) string { return nodeTenant + node.String() }

// NodeOfTenant gives the node whose NodeTenant that is.
func NodeOfTenant(tenant string) (node string, is bool) { return strings.CutPrefix(tenant, nodeTenant) }

const nodeTenant = "node:"

// Certificate is what is kept of a certificate that this cluster's authority issued.
type Certificate struct {
	Serial  UUID // the serial number, big-endian, 128 bits
	Subject string
	Role    Role
	Tenant  string // of a node's: NodeTenant
	Token   UUID   // that paid for it, or for the one that it renews; zero = a node's own, or RecordAccess
	Expires int64  // Unix ns; it is forgotten some time after
	Revoked int64  // Unix ns; 0 = good
	Reason  string
	Node    UUID // whose local programs have it: see RecordAccess; else zero
}

func (x *Certificate) walk(c *codec) {
	x.Serial.walk(c)
	c.str(&x.Subject, MaxTextBytes)
	x.Role.walk(c)
	c.str(&x.Tenant, MaxTextBytes)
	x.Token.walk(c)
	c.i64(&x.Expires)
	c.i64(&x.Revoked)
	c.str(&x.Reason, MaxTextBytes)
}

// walkWhole is walk with the field that version 4 of the snapshot added.
func (x *Certificate) walkWhole(c *codec) {
	x.walk(c)
	x.Node.walk(c)
}

// Replica is one copy of a published object. It counts as long as its node still runs the incarnation that made it.
type Replica struct {
	Node        UUID
	Incarnation UUID
}

func (r *Replica) walk(c *codec) {
	r.Node.walk(c)
	r.Incarnation.walk(c)
}

// Object is a published object: sealed, so its bytes are the same at every replica. Epoch rises with each change of its
// name, its replicas or their wanted number.
type Object struct {
	ID        UUID
	Tenant    string
	Name      string // unique within the tenant
	SizeBytes uint64
	Meta      []byte
	Created   int64 // Unix ns
	Epoch     uint64
	Replicas  []Replica // oldest first
	Wanted    uint16    // replicas; 0: nobody asked for a number
	Kind      uint8     // object.Kind; the small fields stand together, which is 128 bytes in place of 144
	Class     uint8     // object.Class
	// Deleted: the object has no name and is found no more. It stays until no node has a replica, so that a node that
	// was away learns of it.
	Deleted bool
}

func (o *Object) walk(c *codec) {
	o.ID.walk(c)
	c.str(&o.Tenant, MaxTextBytes)
	c.str(&o.Name, object.MaxNameBytes)
	c.u8(&o.Kind)
	c.u8(&o.Class)
	c.u64(&o.SizeBytes)
	c.bytes(&o.Meta, object.MaxMetaBytes)
	c.i64(&o.Created)
	c.u64(&o.Epoch)
	list(c, &o.Replicas, MaxReplicas, (*Replica).walk)
}

// walkWhole is walk with the fields that version 2 of the snapshot added. Command Publish has those of walk alone.
func (o *Object) walkWhole(c *codec) {
	o.walk(c)
	c.u16(&o.Wanted)
	c.flag(&o.Deleted)
	if c.err == nil && o.Wanted > MaxReplicas {
		c.fail("object %s: %d replicas are wanted, more than %d", o.ID, o.Wanted, MaxReplicas)
	}
}

// Policy is one setting that holds for the whole cluster.
type Policy struct {
	Key   string
	Value []byte
	Epoch uint64
}

func (p *Policy) walk(c *codec) {
	c.str(&p.Key, MaxTextBytes)
	c.bytes(&p.Value, MaxPolicyBytes)
	c.u64(&p.Epoch)
}
