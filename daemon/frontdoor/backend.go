package frontdoor

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Peer is who opened a connection. Of this machine: PID, UID and GID come from the kernel (SO_PEERCRED), Tenant from
// the configured tenancy. Of another: what its certificate says, and UID and GID of the user that works for the tenant.
// Name is what the peer calls itself in Hello and is for display only.
type Peer struct {
	PID    int // 0: on another machine
	UID    uint32
	GID    uint32
	Tenant string
	Name   string

	Remote  string     // address; "" = a process of this machine
	Subject string     // name in the certificate
	Serial  pki.Serial // of the certificate
	Expires time.Time  // that, too
	Leaf    *x509.Certificate
	Role    pki.Role // User for local peers
	Admin   bool     // may make and revoke tokens
}

// Waiting says that a session waits in a line for what it asked, and that its process has to ask again.
type Waiting struct {
	Err   error
	Leave func() // gives the place up, unless it was asked for again since
}

// Error implements error.
func (w *Waiting) Error() string { return w.Err.Error() }

// Unwrap gives why it has to wait.
func (w *Waiting) Unwrap() error { return w.Err }

// Worker is a worker as its client needs it. Whoever receives the struct owns both files and closes them.
type Worker struct {
	ID        uint64
	RingBytes uint64
	Socket    *os.File // the client's end of the doorbell socketpair
	Ring      *os.File // the memfd of both rings
}

// Backend is what the front door asks of the rest of the daemon. Every method may be called from many
// goroutines at once. Errors wrap a sentinel of store/object. A session belongs to the connection that opened
// it: the front door calls CloseSession exactly once when that connection ends, and never passes a session's
// number for another connection.
type Backend interface {
	// Status gives the daemon's status as one JSON value. ctx ends with the connection.
	Status(Peer) ([]byte, error)
	// Devices gives the clwire.Snapshot of all platforms as JSON.
	Devices() ([]byte, error)
	// OpenSession starts a session for p. options is the client's JSON, unchecked, valid during the call only.
	// The snapshot is what this session may see, as JSON.
	// ctx ends with the connection. The error is a *Waiting where p has a place in a line.
	OpenSession(ctx context.Context, p Peer, libraryVersion string, options []byte) (session uint64, snapshot []byte,
		err error)
	// EachSession calls f with the sessions that p may see behind a place in their order, and with the place behind
	// each, until f answers false. It answers from memory.
	EachSession(p Peer, after string, f func(item any, at string) bool) error
	// SessionAway says that a session has no client and waits for one until then, or (zero) has one again, at remote.
	SessionAway(session uint64, until time.Time, remote string)
	// ResumeWorker gives tickets for new connections to a worker, in the place of those that its client lost.
	ResumeWorker(session, worker uint64, lanes []int) ([][ipc.TicketBytes]byte, error)
	// CloseSession ends the session and its workers.
	CloseSession(session uint64)
	// OpenWorker gives a worker on the platform with that index in the session's snapshot. It may take seconds.
	// It must come back soon after CloseSession or the daemon's end.
	OpenWorker(session uint64, platform uint32) (Worker, error)
	// OpenRemoteWorker is OpenWorker for a client that cannot be given descriptors: it comes in by tickets.
	OpenRemoteWorker(session uint64, m wire.OpenRemoteWorkerRequest) (wire.OpenRemoteWorkerReply, error)
	// Lane hands the socket that a ticket came in on to its worker. The descriptor stays the caller's. ErrPermission:
	// there is no such ticket.
	Lane(ticket [ipc.TicketBytes]byte, remote string, fd int) error
	// AttachSegment gives a worker of the session a segment, which it may read, or where device is not zero memory of
	// that GPU; it answers the worker's number for it.
	// The descriptor stays the caller's.
	AttachSegment(session, worker, bytes uint64, device object.Device, fd int) (number uint64, err error)
	// CloseWorker ends one worker; an unknown one is ignored.
	CloseWorker(session, worker uint64)
	// ReserveDevice lets a worker's buffers take so many bytes of its devices' memory in all. ErrQuota: the tenant has
	// no more; what was allowed before stays.
	ReserveDevice(session, worker, bytes uint64) error
	// WorkerFate says whether the worker lives and, when not, how it ended ("killed by SIGSEGV"). It waits up
	// to 1 s for an end that is under way, or until ctx ends.
	WorkerFate(ctx context.Context, session, worker uint64) (alive bool, text string, err error)
}

// Observer is a Backend that knows what the sessions' workers do.
type Observer interface {
	// SessionCommands says as JSON what a session that p may see has in flight. It may wait for workers, for a second,
	// or until ctx ends. ErrNotFound, ErrPermission.
	SessionCommands(ctx context.Context, p Peer, session uint64) ([]byte, error)
}

// NameTeller is a Cluster that tells of published names.
type NameTeller interface {
	// TellNames has those who watch a tenant's objects told of the names that it publishes from now on, and of those
	// that are published no longer, until stop is called, once.
	TellNames() (stop func())
}

// Cluster is what the front door asks of the cluster's metadata. As Backend says.
type Cluster interface {
	Publish(p Peer, id object.ID, name string, replace bool) (epoch uint64, err error)
	Unpublish(tenant string, id object.ID, name string) error
	// EachPublished calls f with a tenant's published objects behind a place in their order, and with the place behind
	// each, until f answers false. unsure, where it is not nil, is why they may not be all: each item says it.
	EachPublished(tenant, prefix, after string, unsure error, f func(item any, at string) bool) error
	// Resolve finds an object by its published name, whichever nodes have it, as far as this node knows. It answers at
	// once.
	Resolve(tenant, name string) (object.ID, error)
	// CatchUp has this node learn what its cluster knew at the call: Resolve, Concerns, EachPublished and Elsewhere's
	// methods say it afterwards. It waits for nobody, and many who ask at a time share one question. nil: there is
	// nobody to learn from.
	CatchUp() *CatchUp
	// Entered gives a channel that is closed once the node knows what its cluster knows. Before, all that is said of
	// published objects may be from long ago.
	Entered() <-chan struct{}
	// Changed gives a channel that is closed when Resolve may answer otherwise: get it, look, then wait.
	Changed() <-chan struct{}
	// Concerns reports whether Dropped may have something to do for an object. It answers at once.
	Concerns(id object.ID) bool
	// Dropped says that an object was deleted; it is then published no longer. It reports whether it was.
	Dropped(tenant string, id object.ID) (was bool, err error)

	// CreateToken gives the token's text: a secret.
	CreateToken(p Peer, m wire.CreateTokenRequest) (string, error)
	// EachToken is EachPublished for the tokens, without secrets.
	EachToken(after string, f func(item any, at string) bool) error
	RevokeToken(p Peer, m wire.RevokeTokenRequest) error
	// EachCertificate is EachPublished for the certificates.
	EachCertificate(after string, f func(item any, at string) bool) error
	// RevokeCertificates says how many were good.
	RevokeCertificates(p Peer, m wire.RevokeCertificatesRequest) (revoked uint64, err error)
	// EachTenant is EachPublished for the tenants that the cluster keeps records of.
	EachTenant(after string, f func(item any, at string) bool) error
	ChangeTenant(p Peer, m wire.ChangeTenantRequest) error
	// OpenPage gives the address of the inspection's page with a key to it: a secret.
	OpenPage(p Peer) (string, error)
	// Enroll gives a certificate (DER) for a token. remote is for the log.
	Enroll(remote string, m wire.EnrollRequest) ([]byte, error)
	// Renew gives the holder of a certificate the next one.
	Renew(p Peer, request []byte) ([]byte, error)
}

// CatchUp is a question to the cluster that is under way. It ends soon, also without an answer: within 2 s.
type CatchUp struct {
	Done chan struct{} // closed when it is over
	Err  error         // set before: why this node may know less than its cluster, such as ErrUnanswered
}

// Nodes is what the front door asks of the daemon for the other nodes of its cluster, and for who administers it. As
// Backend says.
type Nodes interface {
	// GiveRaft takes a connection of a certified node over, in any case; where the node is no member it closes it and
	// says why.
	GiveRaft(p pki.Peer, conn net.Conn) error
	// Join gives a certificate, and what else makes a node a member, for a token of role node. remote is for the log.
	Join(remote string, m wire.JoinRequest) (wire.JoinReply, error)
	// Propose does a member's command where this node leads. It may take seconds.
	Propose(p Peer, command []byte) (wire.ProposeReply, error)
	// ReadIndex says what a member's read waits for where this node leads. It may take seconds.
	ReadIndex(p Peer) (wire.ReadIndexReply, error)
	// Pulse says how this node is. It waits for nobody.
	Pulse() wire.PulseReply

	// JoinCluster makes this node a member of another cluster. It gives what became of it, as JSON.
	JoinCluster(m wire.JoinClusterRequest) ([]byte, error)
	// LeaveCluster takes this node out of its cluster, or says what has to be done before. It gives what became of it,
	// as JSON.
	LeaveCluster(m wire.LeaveClusterRequest) ([]byte, error)
	// RemoveNode takes another node out of the cluster. It gives what became of it, as JSON.
	RemoveNode(m wire.RemoveNodeRequest) ([]byte, error)
	// LogEnd gives the last entry of this node's log.
	LogEnd() wire.LogEndReply
	// RecoverCluster makes this node a cluster of one of what it knows, or says what would be lost. It gives what
	// became of it, as JSON.
	RecoverCluster(m wire.RecoverClusterRequest) ([]byte, error)
	// RotateAuthority begins a rotation of the cluster's authority, says how far one is, or finishes it. It gives that
	// as JSON.
	RotateAuthority(p Peer, m wire.RotateAuthorityRequest) ([]byte, error)
	// BackupCluster gives the metadata and the authority with its key, as JSON.
	BackupCluster() ([]byte, error)
	// Access gives p what it needs to come in at the cluster's other nodes. It may take seconds.
	Access(p Peer) (wire.AccessReply, error)
	// Audit gives who did what as JSON: at this node where a node asks, else in the cluster.
	Audit(p Peer, m wire.AuditRequest) ([]byte, error)
	// TakeDevices gives another node's lease devices of this one, as far as they are free. It may take seconds.
	TakeDevices(m wire.TakeDevicesRequest) (wire.TakeDevicesReply, error)
	// KeepDevices takes what is not named from it again. It waits for nobody.
	KeepDevices(m wire.KeepDevicesRequest) error
	// DevicesFree says that another node has devices now for a lease that a program of this node waits for. It waits
	// for nobody.
	DevicesFree(lease object.ID)
	// Leases lists the cluster's leases as p may see them, or to another node this one's, as JSON.
	Leases(p Peer) ([]byte, error)
	// EndLease ends a lease that p may end. It may take seconds.
	EndLease(p Peer, name string) error
	// ClusterStatus describes the cluster as JSON.
	ClusterStatus() ([]byte, error)
}

// Peers is what the front door asks of the daemon for links between workers. As Backend says; the sessions' numbers are
// of the connection that asks.
type Peers interface {
	// OfferPeer gives a signed offer (pki.Offer) of tickets to a worker.
	OfferPeer(session uint64, m wire.OfferPeerRequest) ([]byte, error)
	// DialPeer connects a worker to the node that made an offer, if that is a peer of this node. It may take seconds,
	// and ends with ctx.
	DialPeer(ctx context.Context, session uint64, m wire.DialPeerRequest) error
	// PairPeers connects two workers of this node.
	PairPeers(session uint64, m wire.PairPeersRequest) error
	// TellPeer takes down what became of a link.
	TellPeer(session uint64, m wire.TellPeerRequest)
	// Peers lists this node's peers as JSON, its own authority with them.
	Peers() ([]byte, error)
	// EachPeer calls f with the peers behind a place in their order, and with the place behind each, until f answers
	// false.
	EachPeer(after string, f func(item any, at string) bool) error
	// SetPeer names a peer, or takes its name back where the authority is zero.
	SetPeer(p Peer, m wire.SetPeerRequest) error
}

// Elsewhere is what the front door asks of the cluster about them. As Backend says.
type Elsewhere interface {
	// Elsewhere reports whether an object of the tenant is published and other nodes have it. It answers at once.
	Elsewhere(tenant string, id object.ID) bool
	// Bring gets it into the store, where it stays at least until release is called. It waits, also for others that
	// want the same.
	Bring(ctx context.Context, tenant string, id object.ID) (release func(), err error)
	// Describe gives what the cluster knows of it. ErrNotFound: nothing.
	Describe(tenant string, id object.ID) (object.Info, error)
	// Published gives the name under which an object of the tenant is published, "" for none, its kind there where it
	// was made, and which nodes gave it to this one, "" where that is not known. It answers at once.
	Published(tenant string, id object.ID) (name string, kind object.Kind, from string)
	// Place says, as JSON, where a published object's next replica would go. It may wait for other nodes.
	Place(ctx context.Context, tenant string, m wire.PlaceRequest) ([]byte, error)
	// Replicate says how many nodes are to have a published object, or which, and as JSON how far that is.
	Replicate(ctx context.Context, tenant string, m wire.ReplicateRequest) ([]byte, error)
}

// Transfers answers other nodes' requests for objects, on connections whose other end has proven who it is. It returns
// when the connection ends, ctx ends, or the node does not keep to the protocol. The front door closes conn.
type Transfers func(ctx context.Context, conn net.Conn, peer pki.Peer) error
