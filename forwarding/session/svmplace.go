package session

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/session/memory"
)

// svmTries is how many addresses are tried: each is taken in either process once in a long while.
const svmTries = 16

// makeSVM makes shared virtual memory, as a buffer.
func (c *Context) makeSVM(flags, size uint64, align uint32) (*Buffer, error) {
	w, status := c.worker()
	if status != cl.SUCCESS {
		return nil, errNoWorker
	}
	if !w.SharesAddresses() {
		return nil, errOldWorker
	}
	b := c.newSVM(flags, size)
	if err := b.placeSVM(w, flags, align); err != nil {
		return nil, err
	}
	if _, status := c.d.showBuffer(b); status != cl.SUCCESS {
		b.releaseRemote()
		return nil, errNoMemory
	}
	return b, nil
}

// newSVM is the buffer of shared virtual memory that has no place yet.
func (c *Context) newSVM(flags, size uint64) *Buffer {
	b := &Buffer{d: c.d, ctx: c, flags: flags & memAccess, size: size}
	if b.flags == 0 {
		b.flags = cl.MEM_READ_WRITE
	}
	b.root = b
	b.refs.Set(1)
	return b
}

// Why there is no shared virtual memory.
var (
	errNoWorker  = errors.New("there is no worker")
	errOldWorker = errors.New("the other machine's daemon is of an older release")
	errNoMemory  = errors.New("the device has no memory left")
	errNoAddress = errors.New("no address is free in the program and in the worker")
)

// placeSVM gives a new buffer its memory, at one address in both processes. Where the device computes on memory that
// both have, or on any of the worker's, this side chooses the address; elsewhere the driver does. One that is taken in
// the other process is tried again, and held meanwhile so that it does not come again.
func (b *Buffer) placeSVM(w *worker, flags uint64, align uint32) error {
	giveBack, err := b.takeSVM(w)
	if err != nil {
		return err
	}
	if err = b.meetAt(w, flags, align); err != nil {
		giveBack()
	}
	return err
}

// takeSVM takes the memory of a new buffer, or what it counts: of the slabs where the device computes on memory that
// both processes have, of the device's elsewhere.
func (b *Buffer) takeSVM(w *worker) (giveBack func(), err error) {
	if !b.ctx.InPlace {
		if b.ctx.debit(b.size) != cl.SUCCESS {
			return nil, errNoMemory
		}
		return func() { b.ctx.credit(b.size) }, nil
	}
	p, status := b.d.slabs.AllocOwn(b.size)
	if status != cl.SUCCESS {
		return nil, errNoMemory
	}
	b.place = p
	if w.addSegment(p.Segment) != nil {
		b.d.slabs.FreeNow(p)
		return nil, errNoMemory
	}
	return func() { b.d.slabs.FreeNow(p) }, nil
}

// meetAt finds an address for both processes.
func (b *Buffer) meetAt(w *worker, flags uint64, align uint32) error {
	var refused []uint64 // objects of the worker's at addresses that are taken here
	defer func() {
		for _, id := range refused {
			w.SendOneWay(&clwire.Release{ID: id})
		}
	}()
	for range svmTries {
		view, err := fixed.Reserve(fixed.Pick(b.size), b.size)
		if errors.Is(err, fixed.ErrTaken) {
			continue
		}
		if err != nil {
			return err
		}
		id := b.d.newID()
		at, err := b.askSVM(w, &clwire.CreateSVM{ID: id, Context: b.ctx.id, Flags: flags, Size: b.size,
			Address: uint64(fixed.Address(view)), Align: align})
		if err == nil && at != 0 && at != fixed.Address(view) { // the driver chose
			fixed.Release(view)
			view, err = fixed.Reserve(at, b.size)
		}
		switch {
		case errors.Is(err, fixed.ErrTaken):
			refused = append(refused, id)
		case err != nil, at == 0:
			if view != nil {
				fixed.Release(view)
			}
			w.SendOneWay(&clwire.Release{ID: id})
			if err != nil {
				return err
			}
		default:
			b.id.Store(id)
			b.remote.Store(w)
			if err := b.show(view); err != nil {
				fixed.Release(view)
				b.releaseRemote()
				return err
			}
			return nil
		}
	}
	return errNoAddress
}

// askSVM has the worker make the memory, and answers where it lies; 0: not at that address.
func (b *Buffer) askSVM(w *worker, m *clwire.CreateSVM) (uintptr, error) {
	if b.place != nil {
		m.Segment = b.place.Segment.ID
	}
	data, status := w.ask(m)
	switch {
	case status != cl.SUCCESS:
		return 0, fmt.Errorf("%w (OpenCL error %d)", errNoMemory, status)
	case len(data) != 8:
		return 0, fmt.Errorf("an answer of %d bytes", len(data))
	}
	return uintptr(binary.LittleEndian.Uint64(data)), nil
}

// show fills the program's side of the memory. In place it is a second view of the segment. Elsewhere maps show it: it
// is shared with the worker where that spares a copy, and this process's own where not.
func (b *Buffer) show(view []byte) error {
	switch {
	case b.place != nil:
		if err := fixed.View(view, b.place.Segment.Bytes); err != nil {
			return err
		}
	case b.shareView(view):
	default:
		if err := fixed.Fresh(view); err != nil {
			return err
		}
		b.maps.ShowGiven(view, func() { fixed.Release(view) })
	}
	b.svm = view
	return nil
}

// shareView makes the program's side memory that is shared with the worker, where that is worth it and can be had.
func (b *Buffer) shareView(view []byte) bool {
	if !b.ctx.Staged() || b.size < sharedShadowBytes {
		return false
	}
	p, status := b.d.slabs.AllocOwn(b.size)
	if status != cl.SUCCESS {
		return false
	}
	if b.ctx.PinMap(b, p) != cl.SUCCESS || fixed.View(view, p.Segment.Bytes) != nil {
		b.free(p)
		return false
	}
	b.viewed = b.maps.Show(p, b.size)
	return b.viewed
}

// endView unmaps the program's side of shared virtual memory that is a second view of shared memory. The other kind
// ends with the buffer's maps. p is the place that the buffer had.
func (b *Buffer) endView(p *memory.Place) {
	if b.svm != nil && (p != nil || b.viewed) {
		fixed.Release(b.svm)
	}
}
