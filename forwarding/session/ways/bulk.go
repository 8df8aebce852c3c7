package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
)

// bulkCommand is a command whose bytes travel by themselves: it implements conn.BulkOwner.
type bulkCommand struct {
	conn.BulkOp
	under  Operation
	host   Host
	reads  *transfer.ReadHazards
	w      Worker
	q      Queue
	seq    uint64 // position in q
	event  Event  // nil: nobody looks
	pinned Buffer
	hazard *transfer.ReadHazard // of a read that nobody waits for
}

// Bytes implements conn.BulkOwner, as do those below.
func (o *bulkCommand) Bytes(off, n uint64) []byte { return o.host.Ptr.Bytes(off, n) }

func (o *bulkCommand) Append(to []byte, off, n uint64) []byte {
	o.host.runs(off, n, func(part []byte) { to = append(to, part...) })
	return to
}

func (o *bulkCommand) Scatter(off uint64, data []byte) {
	o.host.runs(off, uint64(len(data)), func(part []byte) { data = data[copy(part, data):] })
}

func (o *bulkCommand) Chunk(at uint64) uint64 { return o.host.Side.Chunk(at) }

func (o *bulkCommand) Ended(status int32) {
	o.reads.End(o.hazard)
	if o.pinned != nil {
		o.pinned.Unpin()
	}
	if api.Status(status) == cl.SUCCESS && !o.w.Dead() {
		o.q.Ended(o.seq)
	}
	if o.event != nil {
		o.event.Advance(status)
	}
}

// At implements Positioned: the operation is among those under way before its record is sent.
func (o *bulkCommand) At(seq uint64) (ok bool) {
	o.seq = seq
	return o.under.Register()
}

// bulk sends a command whose bytes travel on their own, and carries it out: for a blocking call until it is over.
// inline: they may go on the control stream; held: a write's bytes may change until its turn.
func (c *Command) bulk(t *Transfer, inline, held bool) api.Status {
	w := c.Queue.Worker()
	if status := t.Buffer.Reach(c.Queue); status != cl.SUCCESS {
		return status
	}
	if t.Blocking {
		if made := c.waited(); made != nil {
			defer made.LetGo()
		}
	}
	o := &bulkCommand{host: t.Host, reads: &c.Reads, w: w, q: c.Queue, event: c.Event, pinned: t.Shown}
	o.BulkOp = conn.BulkOp{Size: t.Host.Size, Write: t.Write, Inline: inline, OnePiece: !t.Host.Rect}
	o.under = w.Operate(&o.BulkOp, o)
	if t.Write {
		if reads := t.reads; len(reads) > 0 {
			o.Before = func() { transfer.AwaitOthers(reads, w) }
		}
		o.Held = held
	} else if !t.Blocking {
		o.hazard = c.Reads.Add(t.Host.Ptr.Address(), &t.Host.Side, w)
	}
	if t.Shown != nil {
		t.Shown.Pin()
	}
	if status := c.announce(o, t); status != cl.SUCCESS {
		o.under.Finish(int32(status))
		return status
	}
	if t.Write {
		o.under.Send(t.Blocking)
	}
	if !t.Blocking {
		return cl.SUCCESS
	}
	return c.awaitBulk(o)
}

// awaitBulk waits for the end of an operation.
func (c *Command) awaitBulk(o *bulkCommand) api.Status {
	o.w.Kick()
	began := o.w.Began()
	arrived := o.w.Wait(&o.Completion)
	o.w.Tripped(began, causeOfTransfer(c.Kind, o.Write), "")
	if !arrived {
		return cl.OUT_OF_RESOURCES
	}
	if api.Status(o.Status) == cl.SUCCESS && c.Wanted && c.Queue.State().Timed {
		return api.Status(o.w.WaitEvents(trace.CauseWait, c.Event.Number()))
	}
	return api.Status(o.Status)
}

// announce sends the operation's record.
func (c *Command) announce(o *bulkCommand, t *Transfer) (status api.Status) {
	if o.Write {
		m := &clwire.BulkWrite{Op: o.ID, Buffer: t.Buffer.Number(), Shape: t.Device}
		_, status = c.Queue.Submit(m, &m.Cmd, c.Event, c.Wait, o)
	} else {
		m := &clwire.BulkRead{Op: o.ID, Inline: o.Inline, Buffer: t.Buffer.Number(), Shape: t.Device}
		_, status = c.Queue.Submit(m, &m.Cmd, c.Event, c.Wait, o)
	}
	return status
}
