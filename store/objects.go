package store

import (
	"fmt"
	"time"
	"unicode/utf8"

	"tendril/store/alloc"
	"tendril/store/object"
	"tendril/store/segment"
)

// Spec is what Create is asked for.
type Spec struct {
	SizeBytes uint64
	Class     object.Class
	TTL       time.Duration     // class TTL: how long from Seal on
	Labels    map[string]string // kept; must not be changed any more
	Own       bool              // a segment of its own, never used again: what Seal's strict needs
	Shared    bool              // others of the tenant may fill it, too; implies Own
	Name      string            // bound at Seal; "" = none
	Meta      []byte            // opaque; copied
	Checksum  bool              // checksums are made when it is sealed, and compared from then on
	ID        object.ID         // of an object of another node that this is a copy of; zero: a new one
	Cached    bool              // the copy goes when memory is short (copies.go); class Ephemeral
}

// Handle is an object as its holder needs it.
type Handle struct {
	ID    object.ID
	Ref   object.Ref
	Size  uint64
	Class object.Class
	Meta  []byte // immutable; shared with the store
	FD    int    // where the connection did not have the segment: its descriptor, owned by the caller; otherwise −1
}

// Create makes an unsealed object that c fills; c holds one reference. The memory is populated and its contents
// are undefined (zero, or what c's own dead objects left).
// Errors: ErrInvalid, ErrUnsupported (class), ErrFull, ErrQuota, ErrLimit; ErrExists (Spec.ID).
func (c *Conn) Create(spec Spec) (Handle, error) { return c.create(spec, false) }

// create is Create, of Conn or AtOnce.
func (c *Conn) create(spec Spec, atOnce bool) (Handle, error) {
	if err := c.s.checkSpec(spec); err != nil {
		return Handle{}, err
	}
	e, s := c.newEntry(spec), c.s
	s.mu.Lock()
	defer s.unlock()
	switch {
	case c.closed:
		return Handle{}, errConnClosed
	case atOnce && !c.createsAtOnce(&spec):
		return Handle{}, ErrWouldWait
	case s.objects[e.id] != nil:
		return Handle{}, errCopyThere(e.id)
	}
	if err := s.reserveObject(c.tenant, e.charge, c.isStopped); err != nil {
		return Handle{}, err
	}
	defer c.tenant.made()
	fd, err := -1, errConnClosed // where mu was let go
	if !c.closed {
		fd, err = c.place(e, spec.Own || spec.Shared)
	}
	if err == nil && s.objects[e.id] != nil { // mu was let go
		s.detach(e)
		closeFD(fd)
		err = errCopyThere(e.id)
	}
	if err != nil {
		s.uncharge(c.tenant, e.charge)
		return Handle{}, err
	}
	if e.shared && e.name != "" {
		if c.tenant.filling == nil {
			c.tenant.filling = make(map[string]*entry)
		}
		if c.tenant.filling[e.name] == nil { // of two the first is found by the name
			c.tenant.filling[e.name] = e
		}
	}
	s.insert(e)
	e.creator = c
	c.open[e] = struct{}{}
	s.openCount++
	c.referSince(e, e.created)
	return Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd}, nil
}

// newEntry makes the record of an object that nobody fills yet and no table has.
func (c *Conn) newEntry(spec Spec) *entry {
	e := &entry{
		id: spec.ID, size: spec.SizeBytes, class: spec.Class, name: spec.Name, tenant: c.tenant,
		creatorPID: c.owner.PID, creatorName: c.owner.Name, created: time.Now(),
		labels: spec.Labels, ttl: spec.TTL, expiryAt: -1, shared: spec.Shared, summed: spec.Checksum,
	}
	if e.id.IsZero() {
		e.id = object.NewID()
	}
	if spec.Cached {
		e.cached = &cachedPlace{}
	}
	e.charge = e.recordBytes(spec.Name, spec.Meta)
	if len(spec.Meta) > 0 {
		e.meta = append([]byte(nil), spec.Meta...)
	}
	return e
}

func (s *Store) checkSpec(spec Spec) error {
	switch {
	case !spec.Class.Valid():
		return fmt.Errorf("%w: class %d", object.ErrInvalid, spec.Class)
	case spec.Class == object.TTL && spec.TTL <= 0:
		return fmt.Errorf("%w: a time to live of %v: want more than 0 for class ttl", object.ErrInvalid, spec.TTL)
	case spec.Class != object.TTL && spec.TTL != 0:
		return fmt.Errorf("%w: a time to live of %v is for class ttl, not %s", object.ErrInvalid, spec.TTL, spec.Class)
	case spec.Class == object.Persisted && s.spill == nil:
		return fmt.Errorf("%w: class persisted: this node keeps no objects on disk (--spill none)",
			object.ErrUnsupported)
	case spec.Cached && spec.Class != object.Ephemeral:
		return fmt.Errorf("%w: a cached copy of class %v, want ephemeral", object.ErrInvalid, spec.Class)
	case spec.Class == object.Named && spec.Name == "":
		return fmt.Errorf("%w: an object of class named needs a name", object.ErrInvalid)
	case len(spec.Meta) > object.MaxMetaBytes:
		return fmt.Errorf("%w: %d bytes of metadata, at most %d", object.ErrInvalid, len(spec.Meta),
			object.MaxMetaBytes)
	case spec.SizeBytes > s.opts.CapacityBytes:
		return fmt.Errorf("%w: an object of %d bytes in a store of %d", object.ErrFull, spec.SizeBytes,
			s.opts.CapacityBytes)
	}
	if err := checkLabels(spec.Labels); err != nil {
		return err
	}
	return checkName(spec.Name)
}

func checkName(name string) error {
	if len(name) > object.MaxNameBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: name %.40q…: want UTF-8 of at most %d bytes", object.ErrInvalid, name,
			object.MaxNameBytes)
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%w: name %q has control characters", object.ErrInvalid, name)
		}
	}
	return nil
}

// place finds memory for e: c's own segments first, then a new one. mu is held, and let go while memory is populated.
func (c *Conn) place(e *entry, once bool) (fd int, err error) {
	switch {
	case e.size == 0:
		return -1, nil
	case once:
		return c.placeWhole(e, nil, true)
	case e.size >= c.s.opts.LargeBytes:
		return c.placeWhole(e, c.reuseWhole(e.size), false)
	}
	g, off, err := c.takeRange(extent(e.size))
	if err != nil {
		return -1, err
	}
	if fd, err = c.s.show(c, g); err != nil {
		_ = g.ranges.Free(off) // it was taken just now
		c.room.update(g)
		return -1, err
	}
	c.dropIdle(g)
	c.room.update(g)
	c.s.attach(e, g, off)
	return fd, nil
}

// takeRange takes n bytes of a segment that small objects share. mu is held, and let go where there is to be a new one.
func (c *Conn) takeRange(n, align uint64) (*segmentState, uint64, error) {
	g := c.room.findAligned(n, align)
	if g == nil {
		var err error
		if g, err = c.addRoom(n); err != nil {
			return nil, 0, err
		}
	}
	off, ok := g.ranges.Alloc(n, align)
	if !ok {
		panic("store: a segment said it had room and had not") // a fault of this package, never of a peer
	}
	return g, off, nil
}

// wholePagesBytes is the size from which an object has its pages for itself: then its creator can make them read-only
// at the seal (ipc/PROTOCOL.md), which costs an object of that size at most a tenth more memory.
const wholePagesBytes = 64 << 10

// extent says how many bytes an object takes in a segment that it shares, and to what they are aligned.
func extent(size uint64) (bytes, align uint64) {
	if size < wholePagesBytes {
		return size, alloc.Granule
	}
	return segment.RoundUp(size), segment.PageBytes
}

// addRoom makes a segment for small objects, an eighth of what the connection's others have in use: fewer and larger
// ones would save descriptors, but a segment comes back whole or not at all, so what is mapped beyond what is used
// grows with them. Where there is no room for that much, not even after objects went to disk, it makes a smaller one.
func (c *Conn) addRoom(atLeast uint64) (*segmentState, error) {
	n := max(min(max(c.room.used/roomShare, firstSegmentBytes), c.s.opts.SegmentBytes), atLeast)
	g, err := c.s.newSegment(c, n)
	for n > atLeast && object.IsShort(err) && !c.closed {
		n = max(n/2, atLeast)
		g, err = c.s.newSegment(c, n)
	}
	if err != nil {
		return nil, err
	}
	c.tenant.refused = shortage{} // a smaller one will do
	g.ranges = alloc.New(g.bytes)
	c.room.add(g)
	return g, nil
}

// roomShare: measured with random sizes, 4 leaves a third more mapped than 8, and 16 a tenth less for twice as many
// segments.
const roomShare = 8

func (c *Conn) placeWhole(e *entry, g *segmentState, once bool) (fd int, err error) {
	if g == nil {
		if g, err = c.s.newSegment(c, e.size); err != nil {
			return -1, err
		}
		g.once = once
	}
	if fd, err = c.s.show(c, g); err != nil {
		c.s.retire(g)
		return -1, err
	}
	c.s.attach(e, g, 0)
	return fd, nil
}

// refer adds one of c's references. mu is held.
func (c *Conn) refer(e *entry) { c.referSince(e, time.Now()) }

// referSince is refer; now is some time ago at most, of what takes no time. mu is held.
func (c *Conn) referSince(e *entry, now time.Time) {
	r := c.refs[e.id]
	if r.count == 0 {
		r.e, r.since = e, now
	}
	r.count++
	c.refs[e.id] = r
	e.refs++
	c.s.references++
	c.s.reconsider(e)
}

// Get takes a reference to a sealed object of the same tenant. Release gives it back.
// Errors: ErrNotFound, ErrNotSealed, ErrPermission, ErrAway.
func (c *Conn) Get(id object.ID) (Handle, error) { return c.GetEither(id, "") }

// GetName is Get by name.
func (c *Conn) GetName(name string) (Handle, error) { return c.GetEither(object.ID{}, name) }

// GetEither is Get, or GetName where id is zero.
func (c *Conn) GetEither(id object.ID, name string) (Handle, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.readable(id, name)
	if err != nil {
		return Handle{}, err
	}
	return c.take(e)
}

func (c *Conn) lookup(id object.ID) (*entry, error) {
	e := c.s.objects[id]
	switch {
	case e == nil:
		return nil, fmt.Errorf("%w: no object %s", object.ErrNotFound, id)
	case e.tenant != c.tenant:
		return nil, fmt.Errorf("%w: object %s belongs to another tenant than this connection's, %s",
			object.ErrPermission, id, c.tenant.name)
	}
	return e, nil
}

func (c *Conn) lookupName(name string) (*entry, error) {
	if e := c.tenant.names[name]; e != nil {
		return e, nil
	}
	return nil, notNamed(name)
}

// notNamed says that no object has a name, or that none can have it.
func notNamed(name string) error {
	if err := object.CheckKey(name); err != nil {
		return err
	}
	return fmt.Errorf("%w: no object is named %.300q", object.ErrNotFound, name)
}

// find is lookup by id, or by name where the id is zero: for who is to change the object.
func (c *Conn) find(id object.ID, name string) (*entry, error) {
	if id.IsZero() {
		return c.lookupName(name)
	}
	return c.lookup(id)
}

func (c *Conn) take(e *entry) (Handle, error) {
	if c.closed {
		return Handle{}, errConnClosed
	}
	switch {
	case e.state == object.Sealed, e.offDevice():
	case e.state == object.Spilled:
		return Handle{}, fmt.Errorf("%w: object %s is on disk", ErrAway, e.id)
	default:
		return Handle{}, e.notSealed()
	}
	if err := e.isDamaged(); err != nil {
		return Handle{}, err
	}
	if err := e.inHostMemory("get"); err != nil {
		return Handle{}, err
	}
	fd := -1
	if e.seg != nil {
		var err error
		if fd, err = c.s.show(c, e.seg); err != nil {
			return Handle{}, err
		}
	}
	c.refer(e)
	if e.tenant == c.tenant {
		c.s.enindex(e) // for the next ones
	}
	return Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd}, nil
}

func (e *entry) notSealed() error {
	return fmt.Errorf("%w: object %s is being filled by process %d", object.ErrNotSealed, e.id, e.creatorPID)
}

// Release gives one of c's references back. An object without references and without a name's hold is gone; an
// unsealed one is aborted by that. ErrNotFound where c holds none.
func (c *Conn) Release(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.release(id)
}

// release is Release. mu is held.
func (c *Conn) release(id object.ID) error {
	s := c.s
	r, ok := c.refs[id]
	if !ok {
		return fmt.Errorf("%w: this connection holds no reference to object %s", object.ErrNotFound, id)
	}
	s.take1(c, r.e)
	s.collect(r.e)
	return nil
}

// Abort ends an unsealed object of this connection.
func (c *Conn) Abort(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.abort(id)
}

// abort is Abort. mu is held.
func (c *Conn) abort(id object.ID) error {
	e, err := c.ownOpen(id)
	if err != nil {
		return err
	}
	c.s.forgetEntry(e)
	return nil
}

// ownOpen finds an unsealed object that c created.
func (c *Conn) ownOpen(id object.ID) (*entry, error) {
	e, err := c.lookup(id)
	switch {
	case err != nil:
		return nil, err
	case e.state != object.Open:
		return nil, fmt.Errorf("%w: object %s", object.ErrSealed, id)
	case e.creator != c:
		return nil, fmt.Errorf("%w: object %s is being filled by another connection", object.ErrPermission, id)
	case e.sealing:
		return nil, fmt.Errorf("%w: object %s is being sealed", object.ErrBusy, id)
	}
	return e, nil
}

// Delete takes a sealed object's name and its place in the table; its memory goes with the last reference. An own
// unsealed object is aborted; another connection's is ErrNotSealed.
func (c *Conn) Delete(id object.ID, name string) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.delete(id, name)
}

// delete is Delete. mu is held, and let go where a record is written.
func (c *Conn) delete(id object.ID, name string) error {
	s := c.s
	e, err := c.find(id, name)
	if err != nil {
		return err
	}
	if e.state == object.Open && (e.creator != c || e.sealing) {
		return fmt.Errorf("%w: object %s is being filled by process %d: only that process can abort it",
			object.ErrNotSealed, e.id, e.creatorPID)
	}
	if e.state == object.Open {
		s.forgetEntry(e)
		return nil
	}
	s.letGo(e)
	return s.syncRecord(e)
}

func checkLabels(labels map[string]string) error {
	if len(labels) > object.MaxLabels {
		return fmt.Errorf("%w: %d labels, at most %d", object.ErrInvalid, len(labels), object.MaxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > object.MaxLabelBytes || len(v) > object.MaxLabelBytes || !utf8.ValidString(k) ||
			!utf8.ValidString(v) {
			return fmt.Errorf("%w: label %.40q = %.40q: want UTF-8 of at most %d bytes each, the key not empty",
				object.ErrInvalid, k, v, object.MaxLabelBytes)
		}
	}
	return nil
}
