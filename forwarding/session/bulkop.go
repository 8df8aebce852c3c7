package session

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
)

// hostShape is the program's side of a bulk operation. Its bytes are dense on the wire.
type hostShape struct {
	ptr    HostPtr
	size   uint64
	rect   bool
	box    box
	region [3]uint64
	unit   uint64 // of an image: bytes that no cut divides
}

func linear(ptr HostPtr, size uint64) hostShape { return hostShape{ptr: ptr, size: size} }

// runs calls f with each contiguous part of the program's memory that the dense range covers, in order.
func (s *hostShape) runs(from, n uint64, f func(part []byte)) {
	if !s.rect {
		f(s.ptr.bytes(from, n))
		return
	}
	for width := s.region[0]; n > 0; {
		row := from / width
		x, y, z := from%width, row%s.region[1], row/s.region[1]
		part := min(n, width-x)
		f(s.ptr.bytes(s.box.offset(y, z)+x, part))
		from, n = from+part, n-part
	}
}

// piece returns the length of the chunk that begins at a place in the dense range: of a rectangle a part of one row, or
// whole rows of one slice; of an image whole pixels.
func (s *hostShape) piece(at uint64) uint64 {
	switch width := s.region[0]; {
	case !s.rect:
		return min(clwire.MaxChunk, s.size-at)
	case width <= clwire.MaxChunk:
		return min(clwire.MaxChunk/width, s.region[1]-at/width%s.region[1]) * width
	default:
		n := min(clwire.MaxChunk, s.size-at, width-at%width)
		if s.unit != 0 && n == clwire.MaxChunk {
			n -= n % s.unit
		}
		return n
	}
}

// bulkOp is one bulk command under way.
type bulkOp struct {
	completion            // it is over: the program's memory is its own again
	turn       completion // HostReady came

	b      *bulk
	id     uint64
	write  bool
	inline bool // its bytes go on the control stream, or may
	host   hostShape
	q      *Queue
	seq    uint64 // position in q
	event  *Event // nil: nobody looks
	pinned *Buffer
	lands  *landing // of a read that nobody waits for

	status Status // once done
	ended  atomic.Bool
	short  bool         // a read that is over before its end; under the reader's lock
	left   atomic.Int64 // bytes of a read that have not come, and one by lanes for HostReady

	// Of a write; guarded by bulk.mu.
	at     uint64     // where the next chunk begins
	ahead  uint64     // its part of bulk.ahead
	shared bool       // the lanes' senders take part
	after  []*landing // of a held one: reads that may still be on their way; immutable
	held   bool       // nothing of it goes before its turn: its bytes may change until then
	queued bool       // is in bulk.runnable

	memory sync.RWMutex
	gone   bool // guarded by memory: the program's memory must not be touched any more
}

// giveUp returns when nobody touches the program's memory any more, nor will.
func (o *bulkOp) giveUp() {
	o.memory.Lock()
	o.gone = true
	o.memory.Unlock()
}

// finish ends the operation once.
func (o *bulkOp) finish(status Status) {
	if o.ended.Swap(true) {
		return
	}
	o.b.forget(o)
	o.q.d.landings.end(o.lands)
	if o.pinned != nil {
		o.pinned.unpin()
	}
	o.status = status
	if status == Success && !o.b.w.dead.Load() {
		o.q.ended(o.seq)
	}
	if o.event != nil {
		o.event.advance(int32(status))
	}
	o.done.Store(true)
	o.b.w.reader.wakeOthers()
}

// receive takes a chunk of a read off a lane, straight into the program's memory where it is in one piece.
func (o *bulkOp) receive(l *link.Lane, h clwire.LaneHeader) error {
	n, size := uint64(h.Length), o.host.size
	if o.write || h.Skipped || h.Offset > size || n > size-h.Offset {
		return fmt.Errorf("%w: a chunk of %d bytes at %d of a read of %d", clwire.ErrRecord, n, h.Offset, size)
	}
	var dense []byte
	if o.host.rect {
		dense = make([]byte, n)
		if err := l.Read(dense); err != nil {
			return err
		}
	}
	o.memory.RLock()
	gone := o.gone
	var err error
	switch {
	case gone:
	case o.host.rect:
		o.scatter(h.Offset, dense)
	default:
		err = l.Read(o.host.ptr.bytes(h.Offset, n))
	}
	o.memory.RUnlock()
	if gone && !o.host.rect {
		return l.Discard(int(n))
	}
	if err == nil && o.left.Add(-int64(n)) <= 0 && !gone {
		o.arrived()
	}
	return err
}

// turned takes HostReady of a read by lanes. It may run under the reader's lock.
func (o *bulkOp) turned() {
	if o.left.Add(-1) <= 0 {
		o.arrived()
	}
}

// arrived ends a read by lanes whose bytes are all there, and whose turn has come.
func (o *bulkOp) arrived() {
	o.b.w.copied.Add(1) // before whoever waits for what the worker says next
	o.b.w.tell(&clwire.HostDone{Op: o.id})
	o.b.w.link.Kick()
	o.finish(Success)
}

// shorten takes the bytes of a read off that will not come.
func (o *bulkOp) shorten(to uint64) error {
	if o.write || o.short || o.host.rect || to >= o.host.size {
		return fmt.Errorf("%w: an operation of %d bytes is over with %d", clwire.ErrRecord, o.host.size, to)
	}
	o.short = true
	if left := o.left.Add(-int64(o.host.size - to)); left <= 0 && !o.inline {
		o.arrived()
	}
	return nil
}

// take copies a chunk of an inline read. It runs under the reader's lock.
func (o *bulkOp) take(at uint64, data []byte) error {
	n := uint64(len(data))
	if o.write || at > o.host.size || n > o.host.size-at {
		return fmt.Errorf("%w: %d bytes at %d of a read of %d", clwire.ErrRecord, n, at, o.host.size)
	}
	o.memory.RLock()
	defer o.memory.RUnlock()
	if !o.gone {
		o.scatter(at, data)
		o.left.Add(-int64(n))
	}
	return nil
}

func (o *bulkOp) scatter(at uint64, data []byte) {
	o.host.runs(at, uint64(len(data)), func(part []byte) { data = data[copy(part, data):] })
}

// bulk sends a command whose bytes travel on their own, and carries it out: for a blocking call until it is over.
func (c *command) bulk(b *Buffer, write, blocking bool, shape clwire.Shape, host hostShape, pinned *Buffer) Status {
	w := c.q.w
	if status := b.ensureRemote(w); status != Success {
		return status
	}
	if blocking && c.e == nil {
		c.e = c.q.waitedEvent()
		defer c.e.letGo(w)
	}
	o := &bulkOp{b: w.bulk, id: c.d.newID(), write: write, inline: w.carries(host.size), host: host, q: c.q, event: c.e, pinned: pinned}
	if o.left.Store(int64(host.size)); !write && !o.inline {
		// HostReady is the last of what the control stream said before the bytes: the ends of the commands before this one, and the bytes of
		// small reads. Lanes may be quicker than that stream, and the program must not see this read end before those.
		o.left.Add(1)
	}
	if write {
		o.after = c.d.landings.meeting(&host)
		o.held = !c.settled(&host)
	} else if !blocking {
		o.lands = c.d.landings.add(&host, w)
	}
	if pinned != nil {
		pinned.pin()
	}
	if status := c.announce(o, b, shape); status != Success {
		o.finish(status)
		return status
	}
	if write {
		o.send(blocking, w.spin)
	}
	if !blocking {
		return Success
	}
	w.link.Kick()
	began := c.d.began()
	arrived := w.reader.wait(&o.completion, w.spin)
	c.d.tripped(began, causeOfTransfer(c.kind, write), w, "")
	if !arrived {
		return OutOfResources
	}
	if o.status == Success && c.want && c.q.props&queueProfiling != 0 {
		return w.waitEvents(trace.CauseWait, c.e.id)
	}
	return o.status
}

// announce sends the operation's record.
func (c *command) announce(o *bulkOp, b *Buffer, shape clwire.Shape) Status {
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	o.seq = q.sentSeq.Load() + 1
	o.b.mu.Lock()
	if o.b.closed {
		o.b.mu.Unlock()
		return OutOfResources
	}
	o.b.ops[o.id] = o
	o.b.mu.Unlock()
	var status Status
	if o.write {
		m := &clwire.BulkWrite{Op: o.id, Buffer: b.id.Load(), Shape: shape}
		_, status = q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	} else {
		m := &clwire.BulkRead{Op: o.id, Inline: o.inline, Buffer: b.id.Load(), Shape: shape}
		_, status = q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	}
	return status
}

// carry moves bytes between a buffer and the program's memory by a queue of our own, now. The caller has seen to the order.
func (b *Buffer) carry(write bool, shape clwire.Shape, host hostShape) Status {
	if host.size == 0 {
		return Success
	}
	q, status := b.ctx.moveQueue(b.ctx.devices[0])
	if status != Success {
		return status
	}
	c := command{d: b.d, q: q}
	return c.bulk(b, write, true, shape, host, nil)
}

// pin keeps what maps show until unpin, also after the buffer's release: a write of it may be under way.
func (b *Buffer) pin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pins++
}

func (b *Buffer) unpin() {
	b.mu.Lock()
	b.pins--
	last := b.pins == 0 && b.released
	b.mu.Unlock()
	if last {
		b.dropShadow()
	}
}
