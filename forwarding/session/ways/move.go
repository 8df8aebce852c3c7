package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
	"tendril/store/segment"
)

// maxInFlight is how many chunks one move has, so that two go on side by side.
const maxInFlight = 4

// MoveNow moves bytes between a buffer, or an image, and memory of this process, by this thread. The caller has seen to
// the order.
func (c *Context) MoveNow(b Buffer, write bool, device clwire.Shape, host Host) api.Status {
	t := Transfer{Purpose: transfer.Own, Buffer: b, Write: write, Blocking: true, Device: device, Host: host}
	r := transfer.Request{Purpose: transfer.Own, Write: write, Size: host.Size, Layout: t.layout(),
		Blocking: true, Idle: true}
	own, in := Command{Context: c}, b.Mapped()
	switch {
	case in != nil:
		r.Memory = transfer.Shared
	case !c.Remote:
		r.Memory = transfer.Device
	default:
		r.Memory = transfer.Remote
		if status := own.ownQueue(&t, &r); status != cl.SUCCESS {
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
		return c.moveChunks(&t)
	default:
		return own.bulk(&t, way == transfer.Stream, !r.Settled)
	}
}

// ownQueue gives a transfer to or from another machine the context's queue for moves, and looks at what its choice
// there needs.
func (c *Command) ownQueue(t *Transfer, r *transfer.Request) (status api.Status) {
	if r.Size == 0 {
		return cl.SUCCESS
	}
	if c.Queue, status = c.MoveQueue(); status == cl.SUCCESS {
		r.FitsInline = c.Queue.Worker().FitsInline(r.Size)
		r.Settled = t.Write && c.settled(t)
	}
	return status
}

// moveQueue is the context's own queue for moves; the buffer is known to its worker.
func (c *Context) moveQueue(b Buffer) (Queue, api.Status) {
	q, status := c.MoveQueue()
	if status == cl.SUCCESS {
		status = b.Reach(q)
	}
	return q, status
}

// prepare is moveQueue, with the staging pool open.
func (c *Context) prepare(b Buffer) (Queue, api.Status) {
	q, status := c.moveQueue(b)
	if status == cl.SUCCESS {
		status = c.Staging.Open(c.Slabs, func() api.Status { return c.pinStaging(b, q) })
	}
	return q, status
}

// pinStaging has the driver pin the staging memory with a transfer of nothing that matters.
func (c *Context) pinStaging(b Buffer, q Queue) api.Status {
	if q.Worker().Share(c.Staging.Segment) != nil {
		return cl.OUT_OF_RESOURCES
	}
	m := &mover{c: c, b: b, q: q, direction: clwire.FromBuffer}
	m.start(onePiece(b))
	return m.finish()
}

// onePiece is the least that can be moved, and goes nowhere.
func onePiece(b Buffer) transfer.Piece {
	if px := b.ElementBytes(); px != 0 {
		return transfer.Piece{Bytes: px, Transfer: clwire.Transfer{Rect: true, Region: [3]uint64{px, 1, 1}}}
	}
	return transfer.Piece{Bytes: 1, Transfer: clwire.Transfer{Size: 1}}
}

// moveChunks moves the bytes through the staging pool. The pieces keep a copy, so that a transfer that goes another way
// is not allocated.
func (c *Context) moveChunks(t *Transfer) api.Status {
	own := *t
	done, status := own.Buffer.Keep() // it may be released by another thread while this one waits
	if status != cl.SUCCESS {
		return status
	}
	defer done()
	q, status := c.prepare(own.Buffer)
	if status != cl.SUCCESS {
		return status
	}
	m := &mover{c: c, b: own.Buffer, q: q, direction: own.direction(), program: own.Host.Ptr}
	for p := range transfer.Pieces(&own.Device, own.isImage(), &own.Host.Side) {
		if m.status != cl.SUCCESS {
			break
		}
		m.start(p)
	}
	return m.finish()
}

type inFlight struct {
	event Event
	chunk int
	piece transfer.Piece
}

// mover runs one move through the staging chunks, several in flight.
type mover struct {
	c         *Context
	b         Buffer
	q         Queue
	direction uint8
	program   api.HostPtr // the program's side
	flying    []inFlight
	status    api.Status
}

// chunk takes a free chunk; with some of its own in flight a move never waits for another's.
func (m *mover) chunk() int {
	pool := &m.c.Staging
	for len(m.flying) > 0 {
		if len(m.flying) < maxInFlight {
			if i, ok := pool.Take(); ok {
				return i
			}
		}
		m.finishOldest()
	}
	return pool.Wait()
}

func (m *mover) start(p transfer.Piece) {
	pool, i := &m.c.Staging, m.chunk()
	if m.direction == clwire.ToBuffer {
		chunk := pool.Chunk(i)
		p.Runs(func(from, at, n uint64) { segment.CopyChunk(chunk[from:], m.program.Bytes(at, n)) })
	}
	e, t := m.q.NewEvent(cl.COMMAND_MARKER), &p.Transfer
	t.Direction, t.Buffer = m.direction, m.b.Number()
	t.Segment, t.SegmentOffset = pool.Segment.ID, pool.Offset(i)
	if _, status := m.q.Submit(t, &t.Cmd, e, nil, nil); status != cl.SUCCESS {
		m.status = status
		pool.Put(i)
		return
	}
	m.flying = append(m.flying, inFlight{e, i, p})
}

// finish waits for all that is in flight, and says how the move went.
func (m *mover) finish() api.Status {
	for len(m.flying) > 0 {
		m.finishOldest()
	}
	return m.status
}

func (m *mover) finishOldest() {
	f := m.flying[0]
	m.flying = m.flying[1:]
	pool, w := &m.c.Staging, m.q.Worker()
	if f.event.Status() > 0 {
		w.WaitEvents(trace.CauseWait, f.event.Number())
	}
	end := f.event.Status()
	switch {
	case end == 0 && m.direction == clwire.FromBuffer:
		chunk := pool.Chunk(f.chunk)
		f.piece.Runs(func(from, at, n uint64) { segment.CopyChunk(m.program.Bytes(at, n), chunk[from:]) })
	case end != 0 && m.status == cl.SUCCESS:
		m.status = cl.OUT_OF_RESOURCES
		if end < 0 {
			m.status = api.Status(end)
		}
	}
	w.SendOneWay(&clwire.Release{ID: f.event.Number()})
	pool.Put(f.chunk)
}
