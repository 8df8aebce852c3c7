package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
	"tendril/store/segment"
)

// maxInFlight is how many chunks one move has, so that two go on side by side.
const maxInFlight = 4

// pinStaging has the driver pin the staging memory with a transfer of nothing that matters.
func (b *Buffer) pinStaging(q *Queue) api.Status {
	pool := &b.ctx.staging
	if q.w.addSegment(pool.Segment) != nil {
		return cl.OUT_OF_RESOURCES
	}
	m := &mover{b: b, w: q.w, q: q, pool: pool, direction: clwire.FromBuffer}
	m.start(b.onePiece())
	for len(m.flying) > 0 {
		m.finishOldest()
	}
	return m.status
}

// onePiece is the least that can be moved, and goes nowhere.
func (b *Buffer) onePiece() transfer.Piece {
	if b.image != nil {
		px := b.image.elementBytes
		return transfer.Piece{Bytes: px, Transfer: clwire.Transfer{Rect: true, Region: [3]uint64{px, 1, 1}}}
	}
	return transfer.Piece{Bytes: 1, Transfer: clwire.Transfer{Size: 1}}
}

// store puts data into the buffer at off, load takes it out: by this thread, now. The caller has seen to the order.
func (b *Buffer) store(off uint64, data []byte) api.Status {
	n := uint64(len(data))
	return b.moveNow(true, clwire.Shape{Offset: off, Size: n}, linear(api.HostBytes(data), n))
}

func (b *Buffer) load(off uint64, data []byte) api.Status {
	n := uint64(len(data))
	return b.moveNow(false, clwire.Shape{Offset: off, Size: n}, linear(api.HostBytes(data), n))
}

// overHost is a buffer or an image over the program's own memory, as its mirror moves it.
type overHost struct{ b *Buffer }

func (x overHost) Push() api.Status  { return x.move(true) }
func (x overHost) Fetch() api.Status { return x.move(false) }

func (x overHost) move(write bool) api.Status {
	b := x.b
	if b.image != nil {
		return b.whole(write, b.host)
	}
	return b.moveNow(write, clwire.Shape{Size: b.size}, linear(b.host, b.size))
}

type inFlight struct {
	event *Event
	chunk int
	piece transfer.Piece
}

// mover runs one move through the staging chunks, several in flight.
type mover struct {
	b         *Buffer
	w         *worker
	q         *Queue
	pool      *memory.Staging
	direction uint8
	program   api.HostPtr // the program's side
	flying    []inFlight
	status    api.Status
}

// moveQueue is the context's own queue for moves; the buffer is known to its worker.
func (b *Buffer) moveQueue() (*Queue, api.Status) {
	q, status := b.ctx.moveQueue(b.ctx.devices[0])
	if status == cl.SUCCESS {
		status = b.ensureRemote(q.w)
	}
	return q, status
}

// prepare is moveQueue, with the staging pool open.
func (b *Buffer) prepare() (*Queue, api.Status) {
	q, status := b.moveQueue()
	if status == cl.SUCCESS {
		status = b.ctx.staging.Open(b.d.slabs, func() api.Status { return b.pinStaging(q) })
	}
	return q, status
}

// move moves pieces between the buffer and the program's memory, now.
func (b *Buffer) move(direction uint8, program api.HostPtr, pieces func(yield func(transfer.Piece) bool)) api.Status {
	q, status := b.prepare()
	if status != cl.SUCCESS {
		return status
	}
	m := &mover{b: b, w: q.w, q: q, pool: &b.ctx.staging, direction: direction, program: program}
	for p := range pieces {
		if m.status != cl.SUCCESS {
			break
		}
		m.start(p)
	}
	for len(m.flying) > 0 {
		m.finishOldest()
	}
	return m.status
}

// chunk takes a free chunk; with some of its own in flight a move never waits for another's.
func (m *mover) chunk() int {
	for len(m.flying) > 0 {
		if len(m.flying) < maxInFlight {
			if i, ok := m.pool.Take(); ok {
				return i
			}
		}
		m.finishOldest()
	}
	return m.pool.Wait()
}

func (m *mover) start(p transfer.Piece) {
	i := m.chunk()
	if m.direction == clwire.ToBuffer {
		chunk := m.pool.Chunk(i)
		p.Runs(func(from, at, n uint64) { segment.Copy(chunk[from:], m.program.Bytes(at, n)) })
	}
	e, t := m.q.waitedEvent(), &p.Transfer
	t.Direction, t.Buffer = m.direction, m.b.id.Load()
	t.Segment, t.SegmentOffset = m.pool.Segment.ID, m.pool.Offset(i)
	if _, status := m.q.submit(t, &t.Cmd, e, nil, 0); status != cl.SUCCESS {
		m.status = status
		m.pool.Put(i)
		return
	}
	m.flying = append(m.flying, inFlight{e, i, p})
}

func (m *mover) finishOldest() {
	f := m.flying[0]
	m.flying = m.flying[1:]
	if f.event.status.Load() > 0 {
		m.w.waitEvents(trace.CauseWait, f.event.id)
	}
	end := f.event.status.Load()
	switch {
	case end == 0 && m.direction == clwire.FromBuffer:
		chunk := m.pool.Chunk(f.chunk)
		f.piece.Runs(func(from, at, n uint64) { segment.Copy(m.program.Bytes(at, n), chunk[from:]) })
	case end != 0 && m.status == cl.SUCCESS:
		m.status = cl.OUT_OF_RESOURCES
		if end < 0 {
			m.status = api.Status(end)
		}
	}
	m.w.SendOneWay(&clwire.Release{ID: f.event.id})
	m.pool.Put(f.chunk)
}
