package frontdoor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// attachObject shows an object to a worker: also for a client on another machine, which shares no memory but may use
// what lies in this one's. mu is held.
func (c *connection) attachObject(f *ipc.Frame, m wire.AttachRequest) error {
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes, func() {
		reply, err := c.attach(m)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, &reply, err)
	})
}

func (c *connection) attachedBefore(attempt uint64) (wire.AttachReply, bool) {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.attached == nil || attempt == 0 {
		return wire.AttachReply{}, false
	}
	for i := range c.attached.answers {
		if x := &c.attached.answers[i]; x.attempt == attempt {
			return x.reply, true
		}
	}
	return wire.AttachReply{}, false
}

func (c *connection) noteAttached(attempt uint64, reply wire.AttachReply) {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.attached == nil {
		c.attached = &attached{}
	}
	x := &c.attached.answers[c.attached.next%len(c.attached.answers)]
	x.attempt, x.reply = attempt, reply
	c.attached.next++
}

func (c *connection) attach(m wire.AttachRequest) (wire.AttachReply, error) {
	if reply, done := c.attachedBefore(m.Attempt); done {
		return reply, nil
	}
	h, err := c.lend(m.ID, m.Name)
	if errors.Is(err, object.ErrUnsupported) || errors.Is(err, object.ErrNotSealed) {
		return c.attachDevice(m, err)
	}
	if err != nil {
		return wire.AttachReply{}, err
	}
	if h.FD < 0 {
		return wire.AttachReply{}, errors.Join(fmt.Errorf("%w: object %s is empty: there is nothing to compute on",
			object.ErrInvalid, h.ID), c.store.Release(h.ID))
	}
	defer unix.Close(h.FD)
	number, err := c.srv.opts.Backend.AttachSegment(c.session, m.Worker, h.Ref.SegmentBytes, object.Device{}, h.FD)
	if err != nil {
		return wire.AttachReply{}, errors.Join(err, c.store.Release(h.ID))
	}
	reply := wire.AttachReply{ID: h.ID, Segment: number, Offset: h.Ref.Offset, SizeBytes: h.Size}
	c.noteAttached(m.Attempt, reply)
	return reply, nil
}

// attachDevice shows a worker an object in the memory of a GPU, also an unsealed one of the tenant's; why says that it
// is in no host memory. The number in the answer has clwire.AttachedDevice set, but where it is a copy's.
func (c *connection) attachDevice(m wire.AttachRequest, why error) (wire.AttachReply, error) {
	h, err := c.bringDevice(m.ID, m.Name, c.store.LendDevice, c.lendAway)
	switch {
	case errors.Is(err, object.ErrUnsupported), errors.Is(err, object.ErrNotFound): // nor in a GPU's, under that name
		return wire.AttachReply{}, why
	case err != nil:
		return wire.AttachReply{}, err
	}
	if h.FD < 0 { // its GPU is gone
		return c.attachCopy(m, h)
	}
	defer unix.Close(h.FD)
	if h.Kind == object.OpenCL && c.peer.Remote != "" {
		return c.attachCopy(m, h)
	}
	if h.Kind == object.OpenCL {
		return wire.AttachReply{}, errors.Join(fmt.Errorf("%w: object %s is in the memory of an OpenCL device, which no other process has: copy it into host memory first",
			object.ErrUnsupported, h.ID), c.store.Release(h.ID))
	}
	number, err := c.srv.opts.Backend.AttachSegment(c.session, m.Worker, h.Bytes, h.Device, h.FD)
	if err != nil {
		return wire.AttachReply{}, errors.Join(err, c.store.Release(h.ID))
	}
	reply := wire.AttachReply{ID: h.ID, Segment: number, SizeBytes: h.Size}
	c.noteAttached(m.Attempt, reply)
	return reply, nil
}

// lendAway is GetAway, and LendDevice of an object that is on its GPU again: the worker is another process.
func (c *connection) lendAway(id object.ID, name string) (store.DeviceHandle, error) {
	h, err := c.store.GetAway(id, name)
	if err != nil || h.FD < 0 {
		return h, err
	}
	unix.Close(h.FD)
	defer c.store.Release(h.ID) // the connection's end may have done it
	return c.store.LendDevice(h.ID, "")
}

// attachCopy shows a worker a copy in host memory of a sealed object that is away from a GPU which is gone, or in the
// memory of an OpenCL device, for a client on another machine, which cannot make one itself. The answer names the
// copy, which lives as long as the connection has its reference; the one to the object, h, is given back.
func (c *connection) attachCopy(m wire.AttachRequest, h store.DeviceHandle) (reply wire.AttachReply, err error) {
	defer func() { err = errors.Join(err, c.store.Release(h.ID)) }()
	made, err := c.store.Create(store.Spec{SizeBytes: h.Size, Class: object.Ephemeral, Own: true})
	if err != nil {
		return reply, err
	}
	if made.FD >= 0 {
		unix.Close(made.FD)
	}
	if err = c.store.Copy(made.ID, 0, h.ID, "", 0, h.Size); err == nil {
		err = c.store.Seal(made.ID, false)
	}
	_ = c.store.Forget(made.Ref.Segment) // the client never had it: where it gets the copy it needs a descriptor
	if err != nil {
		return reply, errors.Join(err, c.store.Abort(made.ID))
	}
	defer func() { err = errors.Join(err, c.store.Release(made.ID)) }() // the maker's reference
	lent, err := c.store.Lend(made.ID, "")
	if err != nil {
		return reply, err
	}
	defer unix.Close(lent.FD)
	number, err := c.srv.opts.Backend.AttachSegment(c.session, m.Worker, lent.Ref.SegmentBytes, object.Device{},
		lent.FD)
	if err != nil {
		return reply, errors.Join(err, c.store.Release(made.ID))
	}
	reply = wire.AttachReply{ID: made.ID, Segment: number, Offset: lent.Ref.Offset, SizeBytes: h.Size}
	c.noteAttached(m.Attempt, reply)
	return reply, nil
}

// lend finds the object, among the published ones too, and waits for one that is on disk.
func (c *connection) lend(id object.ID, name string) (store.Handle, error) {
	return broughtNamed(c, id, name, func(id object.ID, name string) (store.Handle, error) {
		for {
			h, err := c.store.Lend(id, name)
			if !errors.Is(err, store.ErrAway) {
				return h, err
			}
			if err := c.store.BringBack(c.ctx, id, name); err != nil {
				return h, err
			}
		}
	})
}
