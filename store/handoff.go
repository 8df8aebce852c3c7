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

// A store can hand its objects to a successor, which may be another process. Handoff ends the store as Close does, but
// keeps the memory as descriptors and describes the objects in a Catalog. Options.Handoff makes a store of them: the
// same objects in the same segments under the same numbers. It has an orphan for each connection of the previous store:
// a Conn with the same references, so that no object goes before its holder has come back. Unsealed objects end; a
// stream stays and loses its users.

// HandoffState is what Handoff returns. It owns descriptors: its holder must Close it or give it to New, which takes
// them over, also when it fails.
type HandoffState struct {
	Catalog Catalog
	memory  []*segment.Memory // in the order of Catalog.Segments
	devices []int             // descriptors of memory of GPUs, in the order of Catalog.DeviceMemory
	watch   *segment.Watch    // reports when Catalog.Remnants are free; nil: nothing does
}

// Catalog is a HandoffState without the memory. It travels between releases as encoding/gob: fields may be added.
type Catalog struct {
	NextSegment uint64 // last segment number given
	Segments    []HandoffSegment
	Objects     []byte      // a table: handoff_table.go
	Undead      []object.ID // deleted ones whose files could not be removed
	Streams     []HandoffStream
	Conns       []HandoffConn
	Remnants    []HandoffRemnant

	// Those in the memory of GPUs are apart: a release that does not know them goes on without. Those of GPUs that are
	// in host memory or on disk stand among the others, which they are for such a release.
	DeviceObjects []byte // a table as Objects
	DeviceMemory  []HandoffDevice
}

// HandoffDevice is the GPU memory that holds the object at the same place in Catalog.DeviceObjects.
type HandoffDevice struct {
	Device object.Device
	Bytes  uint64 // of the allocation
}

// HandoffRemnant is memory that the store gave up and that some process still has mapped.
type HandoffRemnant struct {
	Tenant string
	Bytes  uint64
	Number int32 // under which the HandoffState's watch reports that it is free
	Since  time.Time
	// users of other tenants that were shown it, and those tenants, where it is not known yet who pays
	Foreign map[uint32]string
}

// HandoffSegment is one segment. Its descriptor stands at the same place in HandoffState.Descriptors.
type HandoffSegment struct {
	ID     uint64
	Bytes  uint64
	Tenant string
	Alone  bool // holds one object and never another one
	// users of other tenants that were shown it, and those tenants
	Foreign map[uint32]string
}

// HandoffStream is a stream with what waits in it.
type HandoffStream struct {
	Tenant, Name            string
	Created                 time.Time
	Limit                   int
	LimitBytes              uint64
	DropOldest, Keep, Ended bool
	Broken                  string // why no more frames come; "" = they do
	Pushed, Popped, Dropped uint64
	Frames                  []HandoffFrame
}

// HandoffFrame is a frame that waits, with the stream's reference.
type HandoffFrame struct {
	ID     object.ID
	Number uint64
}

// HandoffConn is what one connection held.
type HandoffConn struct {
	Tenant, Name string
	PID          int    // 0: not a process of this machine
	Refs         []byte // a table: handoff_table.go
}

// NewHandoffState makes a HandoffState of what came from another process. fds are the segments' descriptors; it takes
// them over, also when it fails.
func NewHandoffState(catalog Catalog, fds []int) (*HandoffState, error) {
	h := &HandoffState{Catalog: catalog}
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
		h.memory = append(h.memory, m)
	}
	if fault == nil && len(fds) != len(catalog.Segments) {
		fault = fmt.Errorf("%w: %d descriptors for %d segments", object.ErrProtocol, len(fds), len(catalog.Segments))
	}
	if fault != nil {
		h.Close()
		return nil, fault
	}
	return h, nil
}

// Descriptors returns the segments' descriptors in the catalog's order. The HandoffState keeps owning them.
func (h *HandoffState) Descriptors() []int {
	fds := make([]int, len(h.memory))
	for i, m := range h.memory {
		fds[i] = m.FD()
	}
	return fds
}

// WatchDescriptor returns the descriptor of the watch that reports when Catalog.Remnants are free; −1: there is none.
// The HandoffState keeps owning it.
func (h *HandoffState) WatchDescriptor() int {
	if h.watch == nil {
		return -1
	}
	return h.watch.FD()
}

// TakeWatch gives a HandoffState that came from another process the descriptor that WatchDescriptor returned there. It
// takes it over, also when it fails. Without it the remnants are forgotten.
func (h *HandoffState) TakeWatch(fd int) error {
	w, err := segment.AdoptWatch(fd)
	if err == nil {
		h.watch = w
	}
	return err
}

// DeviceDescriptors returns the descriptors of GPU memory in the catalog's order. The HandoffState keeps owning them.
func (h *HandoffState) DeviceDescriptors() []int { return h.devices }

// TakeDevices gives a HandoffState that came from another process the descriptors that DeviceDescriptors returned
// there. It takes them over, also when it fails. Without them the objects are forgotten.
func (h *HandoffState) TakeDevices(fds []int) error {
	h.devices = append(h.devices, fds...)
	if len(h.devices) != len(h.Catalog.DeviceMemory) {
		return fmt.Errorf("%w: %d descriptors for %d objects in the memory of GPUs", object.ErrProtocol, len(h.devices),
			len(h.Catalog.DeviceMemory))
	}
	return nil
}

// Close closes the descriptors. The receiver may be nil.
func (h *HandoffState) Close() {
	if h == nil {
		return
	}
	h.watch.Close()
	h.watch = nil
	for _, m := range h.memory {
		m.Close()
	}
	for _, fd := range h.devices {
		unix.Close(fd)
	}
	h.memory, h.devices = nil, nil
}

// Leave prepares for Handoff: from here on a connection that ends keeps its references, for its orphan.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.departing = true
}

// Handoff ends the store after Leave, and returns what the next store begins with. Close need not follow.
func (s *Store) Handoff() *HandoffState {
	s.end()
	s.mu.Lock()
	defer s.unlock()
	h := &HandoffState{Catalog: Catalog{
		NextSegment: s.nextID, Conns: s.left, Undead: slices.Collect(maps.Keys(s.undead))}}
	h.Catalog.Objects = make([]byte, 0, len(s.objects)*3/2*handoffObjectBytes)
	for _, t := range s.tenants {
		t.entries.All(func(e *entry) { // in their order: the next store's lists then grow at their ends
			if e.isCopy() && e.refs == 0 { // the next store gets it again where it is wanted
				return
			}
			o := e.handoff()
			if e.gpu != nil && !e.offDevice() {
				s.handOffDevice(h, e, &o)
				return
			}
			h.Catalog.Objects = o.appendTo(h.Catalog.Objects)
		})
		for _, st := range t.streams {
			h.Catalog.Streams = append(h.Catalog.Streams, st.handoff())
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
		h.Catalog.Segments = append(h.Catalog.Segments,
			HandoffSegment{ID: g.id, Bytes: g.bytes, Tenant: g.tenant.name, Alone: g.once,
				Foreign: g.foreign})
		h.memory = append(h.memory, g.mem)
		g.mem = nil
	}
	s.dropDevices() // of those that are deleted or unsealed
	s.handOffRemnants(h)
	s.doomed = append(s.doomed, s.warm...)
	s.warm = nil
	return h
}

func (e *entry) handoff() handoffObject {
	o := handoffObject{record: *e.record(), spilled: e.state == object.Spilled, strict: e.strict,
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

func (st *stream) handoff() HandoffStream {
	h := HandoffStream{
		Tenant: st.tenant.name, Name: st.name, Created: st.created.UTC(), Limit: st.limit, LimitBytes: st.limitBytes,
		DropOldest: st.dropOldest, Keep: st.keep, Ended: st.ended, Pushed: st.pushed, Popped: st.popped,
		Dropped: st.dropped,
	}
	if st.broken != nil {
		h.Broken = st.broken.Error()
	}
	for _, f := range st.frames {
		h.Frames = append(h.Frames, HandoffFrame{f.e.id, f.number})
	}
	return h
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
	h := HandoffConn{Tenant: c.tenant.name, Name: c.owner.Name, PID: c.owner.PID,
		Refs: make([]byte, 0, len(c.refs)*handoffRefBytes)}
	for id, r := range c.refs {
		if r.e.state == object.Sealed || r.e.state == object.Spilled {
			h.Refs = appendTime(le.AppendUint32(append(h.Refs, id[:]...), uint32(r.count)), r.since)
		}
	}
	if len(h.Refs) > 0 {
		c.s.left = append(c.s.left, h)
	}
}
