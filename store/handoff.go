package store

import (
	"maps"
	"slices"
	"time"

	"tendril/store/handoff"
	"tendril/store/object"
)

// A store can hand its objects to a successor, which may be another process. Handoff ends the store as Close does, but
// keeps the memory as descriptors and describes the objects in a Catalog. Options.Handoff makes a store of them: the
// same objects in the same segments under the same numbers. It has an orphan for each connection of the previous store:
// a Conn with the same references, so that no object goes before its holder has come back. Unsealed objects end; a
// stream stays and loses its users.

// Leave prepares for Handoff: from here on a connection that ends keeps its references, for its orphan.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.departing = true
}

// Handoff ends the store after Leave, and returns what the next store begins with. Close need not follow.
func (s *Store) Handoff() *handoff.State {
	s.end()
	s.mu.Lock()
	defer s.unlock()
	h := &handoff.State{Catalog: handoff.Catalog{
		NextSegment: s.nextID, Conns: s.left, Undead: slices.Collect(maps.Keys(s.undead))}}
	h.Catalog.Objects = make([]byte, 0, len(s.objects)*3/2*handoff.ObjectBytes)
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
			h.Catalog.Objects = o.AppendTo(h.Catalog.Objects)
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
			handoff.Segment{ID: g.id, Bytes: g.bytes, Tenant: g.tenant.name, Alone: g.once,
				Foreign: g.foreign})
		h.Memory = append(h.Memory, g.mem)
		g.mem = nil
	}
	s.dropDevices() // of those that are deleted or unsealed
	s.handOffRemnants(h)
	s.doomed = append(s.doomed, s.warm...)
	s.warm = nil
	return h
}

func (e *entry) handoff() handoff.Object {
	o := handoff.Object{Record: *e.record(), Spilled: e.state == object.Spilled, Strict: e.strict,
		Damaged: e.damage != nil, Kept: e.kept}
	o.Record.Sums = e.sums
	if e.offDevice() {
		o.Device = e.gpu.device
	}
	if e.seg != nil {
		o.Segment, o.Offset = e.seg.id, e.off
	}
	if !e.expires.IsZero() {
		o.Left = max(time.Until(e.expires), 1)
	}
	return o
}

func (st *stream) handoff() handoff.Stream {
	h := handoff.Stream{
		Tenant: st.tenant.name, Name: st.name, Created: st.created.UTC(), Limit: st.limit, LimitBytes: st.limitBytes,
		DropOldest: st.dropOldest, Keep: st.keep, Ended: st.ended, Pushed: st.pushed, Popped: st.popped,
		Dropped: st.dropped,
	}
	if st.broken != nil {
		h.Broken = st.broken.Error()
	}
	for _, f := range st.frames {
		h.Frames = append(h.Frames, handoff.Frame{ID: f.e.id, Number: f.number})
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
	h := handoff.Conn{Tenant: c.tenant.name, Name: c.owner.Name, PID: c.owner.PID, Refs: handoff.MakeRefs(len(c.refs))}
	for id, r := range c.refs {
		if r.e.state == object.Sealed || r.e.state == object.Spilled {
			h.Refs = handoff.Ref{ID: id, Count: r.count, Since: r.since}.AppendTo(h.Refs)
			for u := r.unacked; u != nil; u = u.next {
				if !u.st.gone { // another may be called so now
					h.Unacked = append(h.Unacked, handoff.Popped{Stream: u.st.name,
						Frame: handoff.Frame{ID: id, Number: u.number}})
				}
			}
		}
	}
	if len(h.Refs) > 0 {
		c.s.left = append(c.s.left, h)
	}
}
