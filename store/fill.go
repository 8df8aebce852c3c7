package store

import (
	"context"
	"fmt"

	"tendril/store/object"
)

// Several processes of one tenant may fill one object: its creator says so when it makes it, the others join by its id
// or by the name that it will have, fill what they agreed on, and say that they are done. Each has the whole object's
// memory writable, so such an object has a segment of its own; whoever unmaps before it says so can write no more after
// the seal.

// maxFillers bounds who fills one object.
const maxFillers = 1024

// errFillers says who is still filling. mu is held.
func (e *entry) errFillers() error {
	for c := range e.fillers {
		return fmt.Errorf("%w: object %s is being filled by %d other connections, process %d among them",
			object.ErrBusy, e.id, len(e.fillers), c.owner.PID)
	}
	return nil
}

// Fill joins in filling an unsealed object that another connection of the tenant made with Spec.Shared, by the name
// that it is to have where id is zero. Handle's descriptor is writable; Filled ends it. Errors: ErrNotFound,
// ErrPermission, ErrSealed, ErrExists (it fills already), ErrBusy.
func (c *Conn) Fill(id object.ID, name string) (Handle, error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.fillable(id, name)
	if err != nil {
		return Handle{}, err
	}
	fd := -1
	if e.seg != nil {
		if fd, err = s.show(c, e.seg); err != nil {
			return Handle{}, err
		}
	}
	if e.fillers == nil {
		e.fillers = make(map[*Conn]struct{})
	}
	if len(e.fillers) == 0 {
		e.filled = make(chan struct{})
	}
	e.fillers[c] = struct{}{}
	if c.fills == nil {
		c.fills = make(map[object.ID]*entry)
	}
	c.fills[e.id] = e
	return Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd}, nil
}

// fillable finds what Fill may join. mu is held.
func (c *Conn) fillable(id object.ID, name string) (*entry, error) {
	var e *entry
	var err error
	if id.IsZero() {
		if e = c.tenant.filling[name]; e == nil {
			if err = object.CheckKey(name); err == nil {
				err = fmt.Errorf("%w: no object with shared filling has the name %.300q", object.ErrNotFound, name)
			}
		}
	} else {
		e, err = c.lookup(id)
	}
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		return nil, errConnClosed
	case e.state != object.Open:
		return nil, fmt.Errorf("%w: object %s", object.ErrSealed, e.id)
	case !e.shared:
		return nil, fmt.Errorf("%w: object %s may be filled only by process %d: it was not created for shared filling",
			object.ErrPermission, e.id, e.creatorPID)
	case e.creator == c || c.fills[e.id] != nil:
		return nil, fmt.Errorf("%w: this connection is filling object %s", object.ErrExists, e.id)
	case e.sealing:
		return nil, fmt.Errorf("%w: object %s is being sealed", object.ErrBusy, e.id)
	case len(e.fillers) >= maxFillers:
		return nil, fmt.Errorf("%w: %d connections are filling object %s, which is the limit", object.ErrBusy,
			maxFillers, e.id)
	}
	return e, nil
}

// Filled says that c has filled its part.
func (c *Conn) Filled(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	e := c.fills[id]
	if e == nil {
		return fmt.Errorf("%w: this connection is not filling object %s", object.ErrNotFound, id)
	}
	c.endFilling(e)
	return nil
}

// endFilling takes c off e's fillers. mu is held.
func (c *Conn) endFilling(e *entry) {
	delete(c.fills, e.id)
	delete(e.fillers, c)
	if len(e.fillers) == 0 {
		close(e.filled)
	}
}

// leaveFills is the end of a connection that was filling. mu is held, and let go after some.
func (c *Conn) leaveFills() {
	steps := 0
	for _, e := range c.fills {
		if e.fillFault == nil {
			e.fillFault = fmt.Errorf("%w: process %d ended before it had filled its part of object %s",
				object.ErrAborted, c.owner.PID, e.id)
		}
		c.endFilling(e)
		c.s.breathe(&steps)
	}
}

// Fillers reports whether others are filling an object of c's.
func (c *Conn) Fillers(id object.ID) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e := c.s.objects[id]
	return e != nil && e.creator == c && len(e.fillers) > 0
}

// AwaitFilled waits until nobody else fills an object of c's, or ctx's end: ErrTimeout.
func (c *Conn) AwaitFilled(ctx context.Context, id object.ID) error {
	c.s.mu.Lock()
	e, err := c.ownOpen(id)
	if err != nil || len(e.fillers) == 0 {
		c.s.mu.Unlock()
		return err
	}
	filled, busy := e.filled, e.errFillers()
	c.s.mu.Unlock()
	select {
	case <-filled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", object.ErrTimeout, busy)
	}
}

// Forgive lets an object be sealed although somebody ended in the middle of filling it.
func (c *Conn) Forgive(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.ownOpen(id)
	if err == nil {
		e.fillFault = nil
	}
	return err
}

// ready says why an object cannot be sealed yet. mu is held.
func (e *entry) ready() error {
	if len(e.fillers) > 0 {
		return e.errFillers()
	}
	if e.copying > 0 {
		return fmt.Errorf("%w: object %s is being copied into", object.ErrBusy, e.id)
	}
	return e.fillFault
}
