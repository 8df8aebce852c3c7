package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
	"tendril/store/segment"
)

// hostTransfer is a transfer between a buffer or an image and the program's memory, which of its ways it may go.
type hostTransfer struct {
	purpose  transfer.Purpose
	b        *Buffer // a buffer, or an image that only its driver lays out; nil: there are no bytes
	write    bool    // to b
	blocking bool
	device   clwire.Shape // the bytes in b
	host     hostShape    // the bytes in the program's memory, or in the memory that a map shows

	// Of a map or an unmap.
	shown   *Buffer           // whose shadow is the program's side; nil: nobody's
	shared  *node.Segment     // under the shadow; nil: memory of this process's alone
	program bool              // the program's side is its own memory under the buffer
	fetch   func() api.Status // the transfer by this side itself, by this thread; nil: as that of any other

	reads []*transfer.ReadHazard // of a write: those under way that may still change its bytes
}

// bufferTransfer is a read or a write of one range of a buffer.
func bufferTransfer(b *Buffer, write, blocking bool, off uint64, host hostShape) hostTransfer {
	return hostTransfer{b: b, write: write, blocking: blocking,
		device: clwire.Shape{Offset: off, Size: host.Size}, host: host}
}

// carryOut chooses the way of a transfer and takes it: for a blocking one until it is complete.
func (c *command) carryOut(t *hostTransfer) api.Status {
	for r := c.request(t); ; {
		if done, status := c.take(transfer.Route(&r).Way, t, &r); done {
			return status
		}
	}
}

// request gathers what the choice of a way looks at.
func (c *command) request(t *hostTransfer) transfer.Request {
	q, ctx := c.q, c.q.ctx
	r := transfer.Request{
		Purpose: t.purpose, Write: t.write, Size: t.host.Size, Layout: t.layout(), Memory: t.memory(ctx),
		InPlace: ctx.inPlace, Special: t.b != nil && t.b.root.special.Load(), SharedMap: t.shared != nil,
		Blocking: t.blocking, Waits: len(c.wait), Idle: q.idle(), Unordered: q.outOf && !q.gated.Load(),
		Event: c.e != nil, Timed: c.timed(),
	}
	if t.write {
		r.Settled = c.settled(t)
	}
	if r.Memory != transfer.Program {
		r.FitsInline = q.w.FitsInline(r.Size)
	}
	if r.Memory == transfer.Remote && t.blocking {
		r.Visible = c.given != 0 || c.e != nil || q.outOf || ctx.asyncWrites.visible(ctx)
	}
	return r
}

func (t *hostTransfer) layout() transfer.Layout {
	switch {
	case t.b != nil && t.b.image != nil:
		return transfer.Image
	case t.host.Rect:
		return transfer.Rows
	}
	return transfer.Contiguous
}

func (t *hostTransfer) memory(ctx *Context) transfer.Memory {
	switch {
	case t.program:
		return transfer.Program
	case ctx.remote:
		return transfer.Remote
	case ctx.inPlace && (t.b == nil || t.b.image == nil):
		return transfer.Shared
	}
	return transfer.Device
}

// take takes a way. done false: it cannot be taken now, nothing was sent, and the request says why.
func (c *command) take(way transfer.Way, t *hostTransfer, r *transfer.Request) (done bool, status api.Status) {
	switch way {
	case transfer.None:
		c.endHere(cl.SUCCESS)
		return true, cl.SUCCESS
	case transfer.Marker:
		m := &clwire.Marker{}
		return true, c.send(m, &m.Cmd)
	case transfer.Inline:
		return true, c.inline(t)
	case transfer.InlineAsync:
		if done, status = c.inlineAsync(t); !done {
			r.Visible = true
		}
		return done, status
	case transfer.Stream, transfer.Lanes:
		return true, c.bulk(t, way == transfer.Stream, !r.Settled)
	case transfer.MapTransfer:
		return true, c.moveShared(t)
	case transfer.CopyNow:
		return true, c.copyNow(t)
	case transfer.CopyInTurn:
		return true, c.copyInTurn(t)
	case transfer.CopyLater:
		return true, c.copyLater(t)
	}
	if done, status = c.takeStaged(way, t); !done {
		r.NoStaging = true
	}
	return done, status
}

// takeStaged takes a way through staging memory. done false: there is none now.
func (c *command) takeStaged(way transfer.Way, t *hostTransfer) (done bool, status api.Status) {
	switch way {
	case transfer.ChunkRead:
		return c.chunkRead(t)
	case transfer.StagedRead:
		return c.stagedRead(t)
	}
	return c.stagedWrite(t)
}

// inline sends a write in its record, and waits for its end if it blocks.
func (c *command) inline(t *hostTransfer) api.Status {
	if status := t.b.ensureRemote(c.q.w); status != cl.SUCCESS {
		return status
	}
	if t.b.image != nil {
		return c.inlineImage(t)
	}
	if t.blocking && c.e == nil {
		c.e = c.q.waitedEvent()
		defer c.e.letGo(c.q.w)
	}
	status := c.sendInline(t)
	if status != cl.SUCCESS || !t.blocking {
		return status
	}
	return c.q.w.waitEvents(trace.CauseWait, c.e.id)
}

func (c *command) sendInline(t *hostTransfer) api.Status {
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.inline
	m.Buffer, m.Offset, m.Data = t.b.id.Load(), t.device.Offset, t.host.ptr.Bytes(0, t.host.Size)
	_, status := q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	m.Data = nil
	return status
}

func (c *command) inlineImage(t *hostTransfer) api.Status {
	m := &clwire.WriteImageInline{Image: t.b.id.Load(), Origin: t.device.Origin, Region: t.device.Region,
		Data: make([]byte, 0, t.host.Size)}
	t.host.runs(0, t.host.Size, func(part []byte) { m.Data = append(m.Data, part...) })
	return c.send(m, &m.Cmd)
}

// now does the transfer, by this thread. The caller has seen to the order.
func (t *hostTransfer) now() api.Status {
	switch {
	case t.b == nil:
		return cl.SUCCESS
	case t.fetch != nil:
		return t.fetch()
	}
	return t.b.moveNow(t.write, t.device, t.host)
}

// moveNow moves bytes between the buffer, or image, and memory of this process, by this thread. The caller has seen to
// the order.
func (b *Buffer) moveNow(write bool, device clwire.Shape, host hostShape) api.Status {
	t := hostTransfer{purpose: transfer.Own, b: b, write: write, blocking: true, device: device, host: host}
	r := transfer.Request{Purpose: transfer.Own, Write: write, Size: host.Size, Layout: t.layout(),
		Blocking: true, Idle: true}
	c, in := command{d: b.d}, b.bytes()
	switch {
	case in != nil:
		r.Memory = transfer.Shared
	case !b.ctx.remote:
		r.Memory = transfer.Device
	default:
		r.Memory = transfer.Remote
		if status := c.ownQueue(&t, &r); status != cl.SUCCESS {
			return status
		}
	}
	switch way := transfer.Route(&r).Way; way {
	case transfer.None:
		return cl.SUCCESS
	case transfer.CopyNow:
		t.copyMapped(in)
		return cl.SUCCESS
	case transfer.Chunks:
		return t.moveChunks()
	default:
		return c.bulk(&t, way == transfer.Stream, !r.Settled)
	}
}

// ownQueue gives a transfer to or from another machine the context's queue for moves, and looks at what its choice
// there needs.
func (c *command) ownQueue(t *hostTransfer, r *transfer.Request) (status api.Status) {
	if r.Size == 0 {
		return cl.SUCCESS
	}
	if c.q, status = t.b.ctx.moveQueue(t.b.ctx.devices[0]); status == cl.SUCCESS {
		r.FitsInline = c.q.w.FitsInline(r.Size)
		r.Settled = t.write && c.settled(t)
	}
	return status
}

// settled says whether what a write is to take is there already: no read is about to land in it, and the program holds
// back no command of the context, as it may to fill the memory first.
func (c *command) settled(t *hostTransfer) bool {
	t.reads = c.d.readHazards.Meeting(t.host.ptr.Address(), &t.host.Side)
	return t.reads == nil && c.q.ctx.asyncWrites.userEvents.Load() == 0
}

func (t *hostTransfer) direction() uint8 {
	if t.write {
		return clwire.ToBuffer
	}
	return clwire.FromBuffer
}

// moveChunks moves the bytes through the staging pool. The pieces keep a copy, so that a transfer that goes another way
// is not allocated.
func (t *hostTransfer) moveChunks() api.Status {
	own := *t
	return own.b.move(own.direction(), own.host.ptr, transfer.Pieces(&own.device, own.b.image != nil, &own.host.Side))
}

// copyMapped copies between the buffer's memory, which is mapped here, and the program's.
func (t *hostTransfer) copyMapped(in []byte) {
	if !t.host.Rect {
		mine, theirs := in[t.device.Offset:], t.host.ptr.Bytes(0, t.host.Size)
		if t.write {
			segment.Copy(mine, theirs)
		} else {
			segment.Copy(theirs, mine)
		}
		return
	}
	dev, region := transfer.BoxOf(&t.device), t.host.Region
	for z := range region[2] {
		for y := range region[1] {
			mine, theirs := in[dev.Offset(y, z):][:region[0]], t.host.ptr.Bytes(t.host.Box.Offset(y, z), region[0])
			if t.write {
				copy(mine, theirs)
			} else {
				copy(theirs, mine)
			}
		}
	}
}
