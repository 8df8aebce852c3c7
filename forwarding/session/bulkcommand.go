package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
)

// hostShape is the program's side of a transfer, from its address on.
type hostShape struct {
	ptr api.HostPtr
	transfer.Side
}

func linear(ptr api.HostPtr, size uint64) hostShape { return hostShape{ptr, transfer.Side{Size: size}} }

// runs calls f with each contiguous part of the program's memory that the dense range covers, in order.
func (s *hostShape) runs(from, n uint64, f func(part []byte)) {
	s.Runs(from, n, func(at, n uint64) { f(s.ptr.Bytes(at, n)) })
}

// bulkCommand is a command whose bytes travel by themselves: it implements conn.BulkOwner.
type bulkCommand struct {
	conn.BulkOp
	host   hostShape
	w      *worker
	q      *Queue
	seq    uint64 // position in q
	event  *Event // nil: nobody looks
	pinned *Buffer
	hazard *transfer.ReadHazard // of a read that nobody waits for
}

// Bytes implements conn.BulkOwner, as do those below.
func (o *bulkCommand) Bytes(off, n uint64) []byte { return o.host.ptr.Bytes(off, n) }

func (o *bulkCommand) Append(to []byte, off, n uint64) []byte {
	o.host.runs(off, n, func(part []byte) { to = append(to, part...) })
	return to
}

func (o *bulkCommand) Scatter(off uint64, data []byte) {
	o.host.runs(off, uint64(len(data)), func(part []byte) { data = data[copy(part, data):] })
}

func (o *bulkCommand) Chunk(at uint64) uint64 { return o.host.Side.Chunk(at) }

func (o *bulkCommand) Ended(status int32) {
	o.q.d.readHazards.End(o.hazard)
	if o.pinned != nil {
		o.pinned.unpin()
	}
	if api.Status(status) == cl.SUCCESS && !o.w.Dead() {
		o.q.ended(o.seq)
	}
	if o.event != nil {
		o.event.advance(status)
	}
}

// bulk sends a command whose bytes travel on their own, and carries it out: for a blocking call until it is over.
// inline: they may go on the control stream; held: a write's bytes may change until its turn.
func (c *command) bulk(t *hostTransfer, inline, held bool) api.Status {
	w := c.q.w
	if status := t.b.ensureRemote(w); status != cl.SUCCESS {
		return status
	}
	if t.blocking && c.e == nil {
		c.e = c.q.waitedEvent()
		defer c.e.letGo(w)
	}
	o := &bulkCommand{host: t.host, w: w, q: c.q, event: c.e, pinned: t.shown}
	o.BulkOp = conn.BulkOp{Size: t.host.Size, Write: t.write, Inline: inline, OnePiece: !t.host.Rect}
	w.Bulk(&o.BulkOp, o)
	if t.write {
		if reads := t.reads; len(reads) > 0 {
			o.Before = func() { transfer.AwaitOthers(reads, w) }
		}
		o.Held = held
	} else if !t.blocking {
		o.hazard = c.d.readHazards.Add(t.host.ptr.Address(), &t.host.Side, w)
	}
	if t.shown != nil {
		t.shown.pin()
	}
	if status := c.announce(o, t); status != cl.SUCCESS {
		o.Finish(int32(status))
		return status
	}
	if t.write {
		o.Send(t.blocking)
	}
	if !t.blocking {
		return cl.SUCCESS
	}
	w.Kick()
	began := c.d.began()
	arrived := w.Wait(&o.Completion)
	c.d.tripped(began, causeOfTransfer(c.kind, t.write), w, "")
	if !arrived {
		return cl.OUT_OF_RESOURCES
	}
	if api.Status(o.Status) == cl.SUCCESS && c.want && c.q.props&cl.QUEUE_PROFILING_ENABLE != 0 {
		return w.waitEvents(trace.CauseWait, c.e.id)
	}
	return api.Status(o.Status)
}

// announce sends the operation's record.
func (c *command) announce(o *bulkCommand, t *hostTransfer) api.Status {
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	o.seq = q.sentSeq.Load() + 1
	if !o.Register() {
		return cl.OUT_OF_RESOURCES
	}
	var status api.Status
	if o.Write {
		m := &clwire.BulkWrite{Op: o.ID, Buffer: t.b.id.Load(), Shape: t.device}
		_, status = q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	} else {
		m := &clwire.BulkRead{Op: o.ID, Inline: o.Inline, Buffer: t.b.id.Load(), Shape: t.device}
		_, status = q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	}
	return status
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
