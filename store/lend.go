package store

import (
	"fmt"

	"tendril/store/object"
)

// Lend is GetEither for somebody whom c answers for, such as a worker of its session: the descriptor is a duplicate for
// that process alone (−1 for an empty object), and c's own client is not taken to have the segment. c holds the
// reference.
func (c *Conn) Lend(id object.ID, name string) (Handle, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := c.readable(id, name)
	switch {
	case err != nil:
		return Handle{}, err
	case c.closed:
		return Handle{}, errConnClosed
	case e.state == object.Spilled && e.gpu == nil:
		return Handle{}, fmt.Errorf("%w: object %s is on disk", ErrAway, e.id)
	case e.state != object.Sealed && !e.offDevice():
		return Handle{}, e.notSealed()
	}
	if err := e.isDamaged(); err != nil {
		return Handle{}, err
	}
	if err := e.inHostMemory("attach"); err != nil {
		return Handle{}, err
	}
	fd := -1
	if e.seg != nil {
		if fd, err = e.seg.mem.Dup(); err != nil {
			return Handle{}, err
		}
		e.seg.shown = true
		if c.tenant != e.tenant {
			e.seg.showForeign(c)
		}
	}
	c.refer(e)
	return Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd}, nil
}

// LendDevice is GetDevice for such a process: the memory is its maker's alone no more, whoever that is. It lends an
// unsealed object, too, by its id: the process writes it, and its maker seals it. If that aborts it, it is the
// borrower's until Release.
func (c *Conn) LendDevice(id object.ID, name string) (DeviceHandle, error) {
	return c.getDevice(id, name, nil)
}
