package store

import "tendril/store/object"

// Reclaim takes a reference again that the peer had held over a connection before this one. again says whether c has it
// now: not where the object is not there (any more), not sealed, or not for c. Release gives it back. here: the object
// lies in the segment that the peer says it has mapped, and from now on that counts as known to c, without a
// descriptor. A peer that lies about what it has mapped harms itself alone. An object on disk is held there: nothing
// brings it back for this. If an orphan of the same process (Orphans) holds the reference, it moves to c.
func (c *Conn) Reclaim(id object.ID, mapped uint64) (again, here bool) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.readable(id, "")
	if err != nil || id.IsZero() || c.closed || e.state != object.Sealed && e.state != object.Spilled {
		return false, false
	}
	c.fromOrphan(e)
	c.refer(e)
	g := e.seg
	// it was copied when it was shared, and the peer has the old place
	if e.shadow != nil && e.shadow.seg.id == mapped {
		g = e.shadow.seg
	}
	if g == nil || g.id != mapped || g.mem == nil {
		return true, false
	}
	g.shown = true
	if c.tenant != g.tenant {
		g.showForeign(c)
	}
	g.seen[c] = struct{}{}
	c.seen[g.id] = g
	return true, true
}
