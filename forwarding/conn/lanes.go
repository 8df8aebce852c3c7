package conn

import (
	"slices"
	"sync"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
)

// bulk is a remote worker's lanes and the operations whose bytes they carry (clwire/PROTOCOL.md, Bulk).
type bulk struct {
	c    *Conn
	work sync.WaitGroup // lanes and senders

	compression link.Compression

	mu       sync.Mutex // before Lane.state; taken under the reader's lock too
	ops      map[uint64]*BulkOp
	lanes    []*link.Lane
	up       sync.Cond // the first lane is there, or closed
	runnable []*BulkOp // writes that may have a chunk for the lanes' senders
	grown    sync.Cond // runnable is not empty, or closed
	ahead    uint64    // bytes under way for writes whose turn may not have come
	closed   bool
}

func newBulk(c *Conn) *bulk {
	b := &bulk{c: c, ops: map[uint64]*BulkOp{}}
	b.up.L, b.grown.L = &b.mu, &b.mu
	return b
}

func (b *bulk) add(l *link.Lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.lanes = append(b.lanes, l)
		b.up.Broadcast()
		number := len(b.lanes) - 1
		b.work.Go(func() { link.GiveWay(func() { b.sender(l, number) }) })
	}
	return !b.closed
}

func (b *bulk) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// allowCompression lets both ends pack what goes over the lanes, where both may. The worker has been greeted.
func (b *bulk) allowCompression() {
	if b != nil && b.c.Packs() {
		b.compression.Allow(clwire.GreatestPacking)
		b.c.SendOneWay(&clwire.TakesPacked{Greatest: clwire.GreatestPacking})
	}
}

// lane returns the i-th lane, or what stands for it, waiting for the first to come up; nil when the worker is gone. n
// is how many there are.
func (b *bulk) lane(i int) (l *link.Lane, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.lanes) == 0 && !b.closed {
		b.up.Wait()
	}
	if b.closed {
		return nil, 0
	}
	return b.lanes[i%len(b.lanes)], len(b.lanes)
}

// end breaks the lanes and fails what is under way. It may run under the reader's lock.
func (b *bulk) end() {
	b.mu.Lock()
	b.closed = true
	ops := b.ops
	b.ops, b.runnable = map[uint64]*BulkOp{}, nil
	lanes := b.lanes // no more come once it is closed
	b.up.Broadcast()
	b.grown.Broadcast()
	b.mu.Unlock()
	for _, l := range lanes {
		l.Shutdown()
	}
	for _, o := range ops {
		o.giveUp()
		o.turn.Complete()
		o.Finish(cl.OUT_OF_RESOURCES)
	}
}

// forget ends the books of an operation.
func (b *bulk) forget(o *BulkOp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ops, o.ID)
	b.ahead -= o.ahead
	o.ahead = 0
}

// close joins everything after end.
func (b *bulk) close() {
	b.work.Wait()
	for _, l := range b.lanes {
		l.Close()
	}
}

func (b *bulk) find(id uint64) *BulkOp {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ops[id]
}

// read receives a lane's chunks until it ends.
func (b *bulk) read(l *link.Lane) error {
	b.mu.Lock()
	number := slices.Index(b.lanes, l)
	b.mu.Unlock()
	for {
		h, err := l.Header()
		if err != nil {
			return err
		}
		o := b.find(h.Op)
		switch {
		case o != nil:
			began := b.c.opt.Tracer.Began()
			var last bool
			last, err = o.receive(l, h)
			b.c.traceChunk(began, number, h.Op, h.Length, h.WireBytes(), trace.FlagFromWorker)
			if last { // whoever has all its bytes may end the process: the trace has them before
				o.arrived()
			}
		case !h.Skipped:
			err = l.Discard(int(h.Length)) // it failed meanwhile
		}
		if err != nil {
			return err
		}
	}
}

// onReady is HostReady for a bulk operation; false if it is none.
func (b *bulk) onReady(id uint64, status int32) bool {
	o := b.find(id)
	if o == nil {
		return false
	}
	if status < 0 {
		o.giveUp()
		if !o.Write {
			o.Finish(status)
		}
	} else if !o.Write && !o.Inline && !o.turn.Done() {
		o.turned()
	}
	if o.Before != nil && status == cl.SUCCESS { // not under the reader's lock
		go func() {
			o.Before()
			b.hasTurn(o)
			b.c.reader.wakeOthers()
		}()
		return true
	}
	b.hasTurn(o)
	return true
}

func (b *bulk) onDone(payload []byte) error {
	var m clwire.BulkDone
	if err := m.Decode(payload); err != nil {
		return err
	}
	if o := b.find(m.Op); o != nil {
		status := min(m.Status, 0)
		if !o.Write && status == cl.SUCCESS && o.left.Load() != 0 {
			status = cl.OUT_OF_RESOURCES // it promised more
		}
		if status != cl.SUCCESS {
			o.giveUp()
		}
		b.hasTurn(o)
		o.Finish(status)
	}
	return nil
}

func (b *bulk) onData(payload []byte) error {
	var m clwire.BulkData
	if err := m.Decode(payload); err != nil {
		return err
	}
	if o := b.find(m.Op); o != nil {
		return o.take(m.Offset, m.Data)
	}
	return nil
}
