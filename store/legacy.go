package store

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// A store can be left to a successor, in another process as well: Bequeath ends it as Close does, but for the memory,
// which goes on as descriptors, and for what is known of the objects in it, a Catalog. Options.Legacy makes a store of
// them that has the same objects in the same segments under the same numbers, and a Conn for each one that the store
// before had (Heirs), with its references, so that nothing goes while the process that held it has not come back.
// Unsealed objects end, and what a stream loses is its users.

// Legacy is what a store leaves. It owns descriptors: who has it must Close it, or give it to New, which does so also
// when it fails.
type Legacy struct {
	Catalog Catalog
	memory  []*segment.Memory // in the order of Catalog.Segments
	devices []int             // descriptors of memory of GPUs, in the order of Catalog.DeviceMemory
	watch   *segment.Watch    // reports when Catalog.Remnants are free; nil: nothing does
}

// Catalog is a Legacy without the memory. It travels between releases as encoding/gob: fields may be added.
type Catalog struct {
	NextSegment uint64 // last segment number given
	Segments    []LegacySegment
	Objects     []byte      // a table: legacy_table.go
	Undead      []object.ID // deleted ones whose files could not be removed
	Streams     []LegacyStream
	Conns       []LegacyConn
	Remnants    []LegacyRemnant

	// Those in the memory of GPUs are apart: a release that does not know them goes on without. Those of GPUs that are
	// in host memory or on disk stand among the others, which they are for such a release.
	DeviceObjects []byte // a table as Objects
	DeviceMemory  []LegacyDevice
}

// LegacyDevice is the memory of a GPU that one of Catalog.DeviceObjects lies in, which stands at the same place there.
type LegacyDevice struct {
	Device object.Device
	Bytes  uint64 // of the allocation
}

// LegacyRemnant is memory that was given up and that somebody still has.
type LegacyRemnant struct {
	Tenant string
	Bytes  uint64
	Number int32 // under which the Legacy's watch reports that it is free
	Since  time.Time
	// users of other tenants that were shown it, and those tenants, where it is not known yet who pays
	Foreign map[uint32]string
}

// LegacySegment is one segment; its descriptor stands at the same place in Legacy's.
type LegacySegment struct {
	ID     uint64
	Bytes  uint64
	Tenant string
	Alone  bool // holds one object and never another one
	// users of other tenants that were shown it, and those tenants
	Foreign map[uint32]string
}

// LegacyStream is a stream with what waits in it.
type LegacyStream struct {
	Tenant, Name            string
	Created                 time.Time
	Limit                   int
	LimitBytes              uint64
	DropOldest, Keep, Ended bool
	Broken                  string // why no more frames come; "" = they do
	Pushed, Popped, Dropped uint64
	Frames                  []LegacyFrame
}

// LegacyFrame is a frame that waits, with the stream's reference.
type LegacyFrame struct {
	ID     object.ID
	Number uint64
}

// LegacyConn is what one connection held.
type LegacyConn struct {
	Tenant, Name string
	PID          int    // 0: not a process of this machine
	Refs         []byte // a table: legacy_table.go
}

// NewLegacy makes a Legacy of what came from another process: fds are the segments' descriptors, which it takes over in
// any case.
func NewLegacy(catalog Catalog, fds []int) (*Legacy, error) {
	l := &Legacy{Catalog: catalog}
	var fault error
	for i, fd := range fds {
		var want uint64
		if i < len(catalog.Segments) {
			want = catalog.Segments[i].Bytes
		}
		m, err := segment.Adopt(segment.Linux{}, fd, want) // closes fd where it cannot
		if err != nil {
			fault = err
			continue
		}
		l.memory = append(l.memory, m)
	}
	if fault == nil && len(fds) != len(catalog.Segments) {
		fault = fmt.Errorf("%w: %d descriptors for %d segments", object.ErrProtocol, len(fds), len(catalog.Segments))
	}
	if fault != nil {
		l.Close()
		return nil, fault
	}
	return l, nil
}

// Descriptors gives the segments' descriptors in the catalog's order; they stay the Legacy's.
func (l *Legacy) Descriptors() []int {
	fds := make([]int, len(l.memory))
	for i, m := range l.memory {
		fds[i] = m.FD()
	}
	return fds
}

// WatchDescriptor gives the descriptor of what reports when Catalog.Remnants are free, which stays the Legacy's; −1:
// there is none.
func (l *Legacy) WatchDescriptor() int {
	if l.watch == nil {
		return -1
	}
	return l.watch.FD()
}

// TakeWatch gives a Legacy that came from another process the descriptor that is WatchDescriptor there; it takes it
// over in any case. Without it the remnants are forgotten.
func (l *Legacy) TakeWatch(fd int) error {
	w, err := segment.AdoptWatch(fd)
	if err == nil {
		l.watch = w
	}
	return err
}

// DeviceDescriptors gives the descriptors of memory of GPUs in the catalog's order; they stay the Legacy's.
func (l *Legacy) DeviceDescriptors() []int { return l.devices }

// TakeDevices gives a Legacy that came from another process the descriptors that are DeviceDescriptors there, which it
// takes over in any case. Without them the objects are forgotten.
func (l *Legacy) TakeDevices(fds []int) error {
	l.devices = append(l.devices, fds...)
	if len(l.devices) != len(l.Catalog.DeviceMemory) {
		return fmt.Errorf("%w: %d descriptors for %d objects in the memory of GPUs", object.ErrProtocol, len(l.devices),
			len(l.Catalog.DeviceMemory))
	}
	return nil
}

// Close gives the memory up, as far as nobody else has it. It may be nil.
func (l *Legacy) Close() {
	if l == nil {
		return
	}
	l.watch.Close()
	l.watch = nil
	for _, m := range l.memory {
		m.Close()
	}
	for _, fd := range l.devices {
		unix.Close(fd)
	}
	l.memory, l.devices = nil, nil
}

// Leave prepares for Bequeath: from here on the references of a connection that ends stay, for its heir.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.departing = true
}

// Bequeath ends the store, after Leave: it is Close, which needs not follow, with what the next store begins with.
func (s *Store) Bequeath() *Legacy {
	s.end()
	s.mu.Lock()
	defer s.unlock()
	l := &Legacy{Catalog: Catalog{NextSegment: s.nextID, Conns: s.left, Undead: slices.Collect(maps.Keys(s.undead))}}
	l.Catalog.Objects = make([]byte, 0, len(s.objects)*3/2*legacyObjectBytes)
	for _, t := range s.tenants {
		t.entries.All(func(e *entry) { // in their order: the next store's lists then grow at their ends
			if e.isCopy() && e.refs == 0 { // the next store gets it again where it is wanted
				return
			}
			o := e.legacy()
			if e.gpu != nil && !e.offDevice() {
				s.bequeathDevice(l, e, &o)
				return
			}
			l.Catalog.Objects = o.appendTo(l.Catalog.Objects)
		})
		for _, st := range t.streams {
			l.Catalog.Streams = append(l.Catalog.Streams, st.legacy())
		}
		t.restorer.retireAll()
	}
	for _, g := range s.segments {
		s.stopWriting(g)
		if g.mem == nil {
			continue
		}
		if g.first == nil {
			s.leave(g)
			continue
		}
		l.Catalog.Segments = append(l.Catalog.Segments,
			LegacySegment{ID: g.id, Bytes: g.bytes, Tenant: g.tenant.name, Alone: g.once,
				Foreign: g.foreign})
		l.memory = append(l.memory, g.mem)
		g.mem = nil
	}
	s.dropDevices() // of those that are deleted or unsealed
	s.bequeathRemnants(l)
	s.doomed = append(s.doomed, s.warm...)
	s.warm = nil
	return l
}

func (e *entry) legacy() legacyObject {
	o := legacyObject{record: *e.record(), spilled: e.state == object.Spilled, strict: e.strict,
		damaged: e.damage != nil, kept: e.kept}
	o.record.Sums = e.sums
	if e.offDevice() {
		o.device = e.gpu.device
	}
	if e.seg != nil {
		o.segment, o.offset = e.seg.id, e.off
	}
	if !e.expires.IsZero() {
		o.left = max(time.Until(e.expires), 1)
	}
	return o
}

func (st *stream) legacy() LegacyStream {
	l := LegacyStream{
		Tenant: st.tenant.name, Name: st.name, Created: st.created.UTC(), Limit: st.limit, LimitBytes: st.limitBytes,
		DropOldest: st.dropOldest, Keep: st.keep, Ended: st.ended, Pushed: st.pushed, Popped: st.popped,
		Dropped: st.dropped,
	}
	if st.broken != nil {
		l.Broken = st.broken.Error()
	}
	for _, f := range st.frames {
		l.Frames = append(l.Frames, LegacyFrame{f.e.id, f.number})
	}
	return l
}

// keepSlots makes references of what the connection's process holds in the slots of the index. mu is held.
func (c *Conn) keepSlots() {
	if slots := c.slots(); slots != nil {
		slots.End() // what is held from here on does not count, and the client sees that
		ix := c.tenant.index
		ix.heldIn(slots, c.refer)
	}
}

// leave notes what a connection that ends held, and lets its references be. mu is held.
func (c *Conn) leave() {
	l := LegacyConn{Tenant: c.tenant.name, Name: c.owner.Name, PID: c.owner.PID,
		Refs: make([]byte, 0, len(c.refs)*legacyRefBytes)}
	for id, r := range c.refs {
		if r.e.state == object.Sealed || r.e.state == object.Spilled {
			l.Refs = appendTime(le.AppendUint32(append(l.Refs, id[:]...), uint32(r.count)), r.since)
		}
	}
	if len(l.Refs) > 0 {
		c.s.left = append(c.s.left, l)
	}
}
