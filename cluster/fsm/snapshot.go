package fsm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"tendril/store/object"
)

// A snapshot (cluster/PROTOCOL.md):
//
//	0          8         16                32
//	| "TDRLFSM1" | version | body bytes      | body … | SHA-256 of all before
//	| 8 bytes    | u64 = 5 | u64             |        | 32 bytes
//
// Older versions are read as well: 4 has tenants as in PutTenant, 3 has certificates without Node, 2 has no leases
// either, and 1 has objects without Wanted and Deleted, too.
const (
	snapshotMagic   = "TDRLFSM1"
	snapshotVersion = 5
	leastSnapshot   = 3 // that is written
	oldestSnapshot  = 1 // that is read
	snapshotHeader  = 24
	// MaxSnapshotBytes bounds what Restore reads.
	MaxSnapshotBytes = 4 << 30
)

// snapshotBody is the state as sorted lists: equal states give equal bytes.
type snapshotBody struct {
	version      uint64
	now          int64
	nodes        []Node
	devices      []Device
	tenants      []Tenant
	tokens       []Token
	certificates []Certificate
	objects      []*Object
	policies     []Policy
	requests     []request
	leases       []Lease
}

func (b *snapshotBody) walk(c *codec) {
	c.i64(&b.now)
	list(c, &b.nodes, MaxNodes, (*Node).walk)
	list(c, &b.devices, MaxDevices, (*Device).walk)
	list(c, &b.tenants, MaxTenants, since(b.version, 5, (*Tenant).walk, (*Tenant).walkWhole))
	list(c, &b.tokens, MaxTokens, (*Token).walk)
	list(c, &b.certificates, MaxCertificates, since(b.version, 4, (*Certificate).walk, (*Certificate).walkWhole))
	list(c, &b.objects, MaxObjects, func(o **Object, c *codec) {
		if c.reading {
			*o = new(Object)
		}
		if b.version < 2 {
			(*o).walk(c)
		} else {
			(*o).walkWhole(c)
		}
	})
	list(c, &b.policies, MaxPolicies, (*Policy).walk)
	list(c, &b.requests, MaxRequests, (*request).walk)
	if b.version >= 3 {
		list(c, &b.leases, MaxLeases, (*Lease).walk)
	}
}

// since is whole in snapshots of the version at and later ones, and before in older ones.
func since[T any](version, at uint64, before, whole func(*T, *codec)) func(*T, *codec) {
	if version < at {
		return before
	}
	return whole
}

// Frozen is a state as it was at a moment. Commands may go on meanwhile.
type Frozen struct {
	body    snapshotBody // but its objects
	objects *objectTable
}

// Freeze gives the state as it is now. It costs the same however many objects there are. It is a change, as far as
// concurrent use goes.
func (s *State) Freeze() *Frozen { return s.frozen(s.objects.freeze()) }

func (s *State) frozen(objects *objectTable) *Frozen {
	f := &Frozen{body: snapshotBody{version: s.needs(), now: s.now, nodes: s.Nodes(), devices: s.Devices(),
		tenants: s.Tenants(), tokens: s.Tokens(), certificates: s.Certificates(), policies: s.Policies(),
		leases: sorted(s.leases, compareUUID)},
		objects: objects}
	for _, r := range s.order {
		f.body.requests = append(f.body.requests, *r)
	}
	return f
}

// needs is the oldest version of the snapshot, from leastSnapshot on, that has all of the state: nodes of earlier
// releases, of which some still run while a cluster is upgraded, can read it.
func (s *State) needs() uint64 {
	for _, t := range s.tenants {
		if t.whole() {
			return snapshotVersion
		}
	}
	for _, c := range s.certificates {
		if !c.Node.IsZero() {
			return 4
		}
	}
	return leastSnapshot
}

// Snapshot encodes the whole state; the caller owns the bytes.
func (s *State) Snapshot() ([]byte, error) { return s.frozen(&s.objects).Encode() }

// snapshotObjectBytes is about what an object takes in a snapshot.
const snapshotObjectBytes = 192

// Encode gives the state as a snapshot; the caller owns the bytes. It may be called once.
func (f *Frozen) Encode() ([]byte, error) {
	b, n := &f.body, f.objects.size()
	b.objects = slices.AppendSeq(make([]*Object, 0, n), f.objects.all())
	slices.SortFunc(b.objects, func(x, y *Object) int { return compareUUID(x.ID, y.ID) })
	c := &codec{buf: make([]byte, snapshotHeader, 1<<12+n*snapshotObjectBytes)}
	b.walk(c)
	if c.err != nil {
		return nil, c.err
	}
	copy(c.buf, snapshotMagic)
	binary.LittleEndian.PutUint64(c.buf[8:], b.version)
	binary.LittleEndian.PutUint64(c.buf[16:], uint64(len(c.buf)-snapshotHeader))
	sum := sha256.Sum256(c.buf)
	return append(c.buf, sum[:]...), nil
}

// Restore reads a snapshot from r, to its end, into a fresh state. Errors: ErrVersion for a layout from a newer
// version, ErrProtocol when the bytes are not a whole snapshot; what r says.
func Restore(r io.Reader) (*State, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxSnapshotBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	body, version, err := openSnapshot(raw)
	if err != nil {
		return nil, err
	}
	c := &codec{reading: true, buf: body}
	b := snapshotBody{version: version}
	b.walk(c)
	if err := c.end(); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return b.state()
}

func openSnapshot(raw []byte) (body []byte, version uint64, err error) {
	bad := func(format string, args ...any) ([]byte, uint64, error) {
		return nil, 0, fmt.Errorf("%w: snapshot of %d bytes: %s", object.ErrProtocol, len(raw),
			fmt.Sprintf(format, args...))
	}
	if len(raw) < snapshotHeader+sha256.Size || len(raw) > MaxSnapshotBytes {
		return bad("a snapshot has %d to %d bytes", snapshotHeader+sha256.Size, int64(MaxSnapshotBytes))
	}
	if !bytes.HasPrefix(raw, []byte(snapshotMagic)) {
		return bad("it begins with %q, not %q", raw[:8], snapshotMagic)
	}
	version = binary.LittleEndian.Uint64(raw[8:])
	if version < oldestSnapshot || version > snapshotVersion {
		return nil, 0, fmt.Errorf("%w: snapshot version %d, this version reads %d to %d: upgrade this node",
			object.ErrVersion, version, oldestSnapshot, snapshotVersion)
	}
	end := len(raw) - sha256.Size
	if n := binary.LittleEndian.Uint64(raw[16:]); n != uint64(end-snapshotHeader) {
		return bad("it says that its body has %d bytes", n)
	}
	if sum := sha256.Sum256(raw[:end]); !bytes.Equal(sum[:], raw[end:]) {
		return bad("its checksum is wrong")
	}
	return raw[snapshotHeader:end], version, nil
}

// state builds the maps and refuses lists with a key twice or out of order: Snapshot never writes such.
func (b *snapshotBody) state() (*State, error) {
	s := New()
	s.now = b.now
	ok := fill(s.nodes, b.nodes, func(n *Node) UUID { return n.ID }, compareUUID) &&
		fill(s.devices, b.devices, func(d *Device) DeviceKey { return d.Key }, compareKey) &&
		fill(s.tenants, b.tenants, func(t *Tenant) string { return t.Name }, cmp.Compare[string]) &&
		fill(s.tokens, b.tokens, func(t *Token) UUID { return t.ID }, compareUUID) &&
		fill(s.certificates, b.certificates, func(c *Certificate) UUID { return c.Serial }, compareUUID) &&
		fill(s.policies, b.policies, func(p *Policy) string { return p.Key }, cmp.Compare[string]) &&
		fill(s.leases, b.leases, func(l *Lease) UUID { return l.ID }, compareUUID)
	for i := range b.requests {
		r := &b.requests[i]
		ok = ok && !r.id.IsZero() && s.requests[r.id] == nil
		s.remember(r)
	}
	for i, o := range b.objects {
		ok = ok && (i == 0 || compareUUID(b.objects[i-1].ID, o.ID) < 0)
		s.enter(o)
		if o.Deleted {
			s.deleted++
			continue
		}
		s.names.bind(o.Tenant, o.Name, o.ID)
		s.noteWanted(o)
	}
	if !ok || s.names.count+s.deleted != s.objects.size() {
		return nil, fmt.Errorf("%w: snapshot: a key or name stands in it twice, or out of order", object.ErrProtocol)
	}
	return s, nil
}

func fill[K comparable, T any](m map[K]*T, from []T, key func(*T) K, compare func(a, b K) int) bool {
	for i := range from {
		if i > 0 && compare(key(&from[i-1]), key(&from[i])) >= 0 {
			return false
		}
		m[key(&from[i])] = &from[i]
	}
	return true
}

func compareUUID(a, b UUID) int { return bytes.Compare(a[:], b[:]) }

func compareKey(a, b DeviceKey) int {
	return cmp.Or(compareUUID(a.UUID, b.UUID), cmp.Compare(a.Driver, b.Driver))
}

// sorted copies a map's values in the order of their keys.
func sorted[K comparable, T any](m map[K]*T, compare func(a, b K) int) []T {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	out := make([]T, len(keys))
	for i, k := range keys {
		out[i] = *m[k]
	}
	return out
}
