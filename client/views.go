package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// view is one segment as this process has it: mapped once however many objects lie in it.
type view struct {
	id    uint64 // immutable
	bytes uint64 // immutable
	own   bool   // immutable: this connection fills it

	refs    int  // objects and buffers; guarded by Conn.mu
	orphan  bool // another life's: it goes with its last reference; guarded by Conn.mu
	filling int  // those that are unsealed buffers; guarded by Conn.mu

	fast   atomic.Int64 // 1 while the index may give objects in it, and 1 for each of those
	memory []byte       // the mapping for reading; valid while fast > 0

	mu       sync.Mutex // guards the rest
	file     *os.File   // nil once there is nothing left to map
	writable *segment.Mapping
	readable *segment.Mapping
	table    pageTable // of writable
}

// adopt finds or makes the view that a reply names and takes a reference. An empty object has none.
func (c *Conn) adopt(f *ipc.Frame, ref object.Ref, own bool) (*view, error) {
	if ref.Segment == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.views[ref.Segment]
	switch {
	case f.NumFDs > 1:
		return nil, fmt.Errorf("%w: segment %d came with an extra descriptor", object.ErrProtocol, ref.Segment)
	case f.NumFDs == 0 && v == nil:
		return nil, fmt.Errorf("%w: segment %d came without its descriptor", object.ErrProtocol, ref.Segment)
	case v == nil:
		v = &view{id: ref.Segment, bytes: ref.SegmentBytes, own: own, file: takeFile(f, 0)}
		c.views[v.id] = v
	case v.bytes != ref.SegmentBytes:
		return nil, fmt.Errorf("%w: segment %d of %d bytes is now said to have %d", object.ErrProtocol, v.id, v.bytes,
			ref.SegmentBytes)
	case v.refs == 0:
		c.idle--
	}
	v.refs++
	return v, nil
}

// unref gives a view's reference back. The mapping stays for the next object in the segment; sweeping ends it.
func (c *Conn) unref(v *view) {
	if v == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.refs--
	if v.refs > 0 {
		return
	}
	if c.closed || v.orphan {
		c.dropIfUnused(v)
		return
	}
	c.idle++
	c.sweepPause = sweepAfter
	c.setSweep()
}

// dropIfUnused unmaps a view after Close, or one of another life, where no object refers to it any more. mu is held.
func (c *Conn) dropIfUnused(v *view) {
	if !c.closed && !v.orphan || v.used() {
		return
	}
	if c.views[v.id] == v {
		delete(c.views, v.id)
	}
	v.drop()
}

// used reports whether an object refers to the view. Conn.mu is held.
func (v *view) used() bool { return v.refs > 0 || v.fast.Load() > 0 }

// setSweep arms the sweeping timer. mu is held.
func (c *Conn) setSweep() {
	if c.sweepSet || c.closed || c.err != nil || c.idle == 0 && c.abandoned == 0 && !c.watchesIndex() {
		return
	}
	c.sweepSet = true
	c.background.Add(1)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(c.sweepPause, c.sweepTimer)
	} else {
		c.sweep.Reset(c.sweepPause)
	}
	c.sweepPause = min(2*c.sweepPause, sweepAtMost)
}

func (c *Conn) sweepTimer() {
	defer c.background.Done()
	c.mu.Lock()
	c.sweepSet = false
	gen := c.gen
	c.mu.Unlock()
	c.sweepIn(context.Background(), gen) // its error is the next call's; for this alone no connection is made
	c.mu.Lock()
	c.watchIndex()
	c.setSweep()
	c.mu.Unlock()
}

// Sweep unmaps the segments in which this process holds nothing and which the daemon has no more use for. It happens by
// itself within some seconds; a program that just dropped a lot may want it now.
func (c *Conn) Sweep(ctx context.Context) error {
	c.mu.Lock()
	gen := c.gen
	c.mu.Unlock()
	return c.sweepIn(ctx, gen)
}

func (c *Conn) sweepIn(ctx context.Context, gen uint64) error {
	k, err := c.roundTripIn(ctx, gen, wire.Sweep, nil)
	if err != nil {
		return err
	}
	defer k.recycle()
	var m wire.SweepReply
	if err := m.Decode(k.payload); err != nil {
		return err
	}
	for _, id := range m.Segments {
		if err := c.forget(ctx, gen, id); err != nil {
			return err
		}
	}
	return nil
}

// fullPauses are the waits between tries when the store is full: other clients sweep some 250 ms after they let go.
var fullPauses = [...]time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond, 300 * time.Millisecond}

// retryFull repeats a request that failed with err, if that was for want of memory: what this and other clients keep
// mapped without need may be what is missing. It gives the last error otherwise, and where ctx ends both.
//
// While the daemon has memory on its way back (objects go to disk, other clients are about to unmap them) it goes on
// for some seconds more.
func (c *Conn) retryFull(ctx context.Context, err error, kind wire.Type, p ipc.Payload) (*call, error) {
	short := err
	waiting := func(given error) error { return fmt.Errorf("waiting for memory: %w (%w)", given, short) }
	for try := range len(fullPauses) + leavingTries {
		if !object.IsShort(err) {
			break
		}
		pause, last := leavingPause, false
		if try < len(fullPauses) {
			pause = fullPauses[try]
		} else if !c.memoryLeaves(ctx, err) {
			pause, last = 0, true // what was on its way may just have arrived
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		short = err
		if given := ended(ctx); given != nil {
			return nil, waiting(given)
		}
		if fault := c.Sweep(ctx); isContext(fault) {
			return nil, waiting(fault)
		} else if fault != nil {
			break
		}
		var k *call
		if k, err = c.roundTrip(ctx, kind, p); err == nil {
			return k, nil
		}
		if isContext(err) {
			return nil, waiting(err)
		}
		if last {
			break
		}
	}
	return nil, err
}

const (
	leavingTries = 40
	leavingPause = 200 * time.Millisecond
)

// memoryLeaves asks whether the daemon waits for memory that is of no use any more and whose return may mend err: where
// the tenant's quota is used up, for the tenant's own. A daemon that does not tell it apart answers with everybody's.
func (c *Conn) memoryLeaves(ctx context.Context, err error) bool {
	var status struct {
		Store struct {
			LeavingBytes       uint64  `json:"leaving_bytes"`
			TenantLeavingBytes *uint64 `json:"tenant_leaving_bytes"`
		} `json:"store"`
	}
	if c.query(ctx, wire.Status, nil, &status) != nil {
		return false
	}
	if own := status.Store.TenantLeavingBytes; own != nil && errors.Is(err, object.ErrQuota) {
		return *own > 0
	}
	return status.Store.LeavingBytes > 0
}

// forget lets a segment go if nothing refers to it. The view stays until the daemon has answered: a reply that is under
// way may still name the segment without a descriptor, and then the view stays for good.
func (c *Conn) forget(ctx context.Context, gen, id uint64) error {
	c.mu.Lock()
	v := c.views[id]
	held := v == nil || v.refs > 0 || !c.unremember(v)
	c.mu.Unlock()
	if held {
		return nil
	}
	err := c.simpleIn(ctx, gen, wire.Forget, &wire.Number{N: id})
	if err != nil && !errors.Is(err, object.ErrNotFound) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.views[id] == v && v.refs == 0 && c.unremember(v) {
		delete(c.views, id)
		c.idle--
		v.drop()
	}
	return nil
}

// dropViews ends every unsealed buffer, and unmaps what no object refers to; the rest goes with its references.
func (c *Conn) dropViews() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIndex()
	for _, v := range c.views {
		v.endWriting() // fails only for a mapping that is none
		v.refs -= v.filling
		v.filling = 0
		c.dropIfUnused(v)
	}
}

// beginFilling notes that a reference to v is a buffer's.
func (c *Conn) beginFilling(v *view) {
	if v == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.filling++
}

// endFilling is the reverse; false where Close has ended the buffer and taken its reference already.
func (c *Conn) endFilling(v *view) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v == nil {
		return !c.closed
	}
	if v.filling == 0 {
		return false
	}
	v.filling--
	return true
}

// drop unmaps everything and closes the descriptor.
func (v *view) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range []*segment.Mapping{v.writable, v.readable} {
		if m != nil {
			m.Unmap() // fails only for a mapping that is none
		}
	}
	v.writable, v.readable = nil, nil
	if v.file != nil {
		v.file.Close()
		v.file = nil
	}
}

// populateFrom is the size from which entering all pages at once beats a fault a page.
const populateFrom = 1 << 20

// forWriting gives the memory of an unsealed buffer at [off, off+n), until shut or leave. The segment is mapped at the
// first call: it must come before the first Seal in it. A large buffer is entered into the page table when the mapping
// is new.
func (v *view) forWriting(off, n uint64) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.writable == nil {
		if err := v.mapWritable(); err != nil {
			return nil, err
		}
		if n >= populateFrom {
			v.writable.Populate(off, off+n)
		}
	}
	memory, err := slice(v.writable.Bytes(), off, n)
	if err != nil || n == 0 {
		return memory, err
	}
	return memory, v.open(off, n)
}

func (v *view) mapWritable() error {
	if v.file == nil {
		return fmt.Errorf("%w: segment %d is no longer writable", object.ErrPermission, v.id)
	}
	m, err := segment.Map(v.file, v.bytes, true)
	if err != nil {
		return err
	}
	v.writable, v.table = m, newPageTable(v.bytes)
	return nil
}

// open lets this process store to [off, off+n), which it fills. mu is held.
func (v *view) open(off, n uint64) error {
	r := v.table.begin(off, n)
	if r.empty() || v.protect(r, true) == nil {
		return nil
	}
	v.table.openAll() // the kernel has no room for one mapping more: the whole as one needs none
	if err := v.protect(pageRange{0, len(v.table.pages) - 1}, true); err != nil {
		v.table.end(off, n)
		return err
	}
	return nil
}

// leave notes that a buffer at [off, off+n) is filled no more. With shut its pages are made read-only, all but a first
// or last one that another buffer has a part of; where the kernel has no room for that they stay as they are.
func (v *view) leave(off, n uint64, shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.writable == nil || n == 0 {
		return
	}
	v.table.end(off, n)
	if !shut {
		return
	}
	if r := v.table.shut(off, n); !r.empty() {
		_ = v.protect(r, false) // a page that is said to be shut and is not does no harm
	}
}

// protect opens pages, with what else is in their huge pages, or shuts them, but for huge pages that are not theirs
// alone.
func (v *view) protect(r pageRange, stores bool) error {
	from, to := r.bytes(v.writable.PageBytes(), stores)
	return v.writable.Protect(from, to, stores)
}

// forReading gives the segment's memory, not writable. A segment of our own keeps its descriptor for this.
func (v *view) forReading() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.readable == nil {
		if v.file == nil {
			return nil, fmt.Errorf("%w: segment %d is not mapped any more", object.ErrInvalid, v.id)
		}
		m, err := segment.Map(v.file, v.bytes, false)
		if err != nil {
			return nil, err
		}
		v.readable = m
		if !v.own {
			v.file.Close()
			v.file = nil
		}
	}
	return v.readable.Bytes(), nil
}

// endWriting unmaps the writable mapping, which a strict seal needs.
func (v *view) endWriting() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.writable == nil {
		return nil
	}
	m := v.writable
	v.writable = nil
	return m.Unmap()
}

// slice gives [off, off+n) of memory, where that lies in it.
func slice(memory []byte, off, n uint64) ([]byte, error) {
	if off > uint64(len(memory)) || n > uint64(len(memory))-off {
		return nil, fmt.Errorf("%w: an object of %d bytes at %d in a segment of %d", object.ErrProtocol, n,
			off, len(memory))
	}
	return memory[off : off+n : off+n], nil
}
