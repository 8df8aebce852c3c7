package session

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
	"tendril/store/alloc"
	"tendril/store/segment"
)

// Staging memory for buffers out of place: chunks of one shared segment a context, taken by whoever moves bytes. Behind them lies what
// is lent to small transfers that nobody waits for (ahead.go).
const (
	chunkBytes  = 4 << 20
	chunkCount  = 6
	lentBytes   = 8 << 20
	poolBytes   = chunkBytes*chunkCount + lentBytes
	maxInFlight = 4 // chunks of one move, so that two moves go on side by side
	maxHeld     = 3 // chunks that wait with commands for what the program may have still to do: moves, which wait for nobody, have the others
)

type stagingPool struct {
	once   sync.Once
	seg    *Segment
	free   chan int             // chunk numbers
	held   atomic.Int32         // chunks with the program's commands
	lent   atomic.Pointer[slab] // nil: the pool is not open yet
	status Status
}

// open makes the pool at a context's first move, which is b's through q. The driver pins the whole segment at the first
// transfer, and may write all of it back then: that first one carries nothing and is waited for.
func (p *stagingPool) open(b *Buffer, q *Queue) Status {
	p.once.Do(func() {
		place, status := q.d.slabs.allocOwn(poolBytes)
		if p.status = status; status != Success {
			return
		}
		p.seg, p.free = place.seg, make(chan int, chunkCount)
		if q.w.addSegment(p.seg) != nil {
			p.status = OutOfResources
			return
		}
		p.put(0)
		m := &mover{b: b, w: q.w, q: q, pool: p, direction: clwire.FromBuffer}
		m.start(b.onePiece())
		for len(m.flying) > 0 {
			m.finishOldest()
		}
		p.status = m.status
		for i := 1; i < chunkCount; i++ {
			p.put(i)
		}
		p.lend()
	})
	return p.status
}

// lend makes the memory behind the chunks a slab, of which the chunks are a part that is never given back.
func (p *stagingPool) lend() {
	lent := &slab{seg: p.seg, ranges: alloc.NewSized(poolBytes)}
	lent.ranges.Alloc(chunkCount*chunkBytes, chunkBytes)
	p.lent.Store(lent)
}

// onePiece is the least that can be moved, and goes nowhere.
func (b *Buffer) onePiece() piece {
	if b.image != nil {
		px := b.image.elementBytes
		return piece{bytes: px, transfer: clwire.Transfer{Rect: true, Region: [3]uint64{px, 1, 1}}, copy: func([]byte, bool) {}}
	}
	return piece{bytes: 1, transfer: clwire.Transfer{Size: 1}, copy: func([]byte, bool) {}}
}

// close gives the segment back, or once the writes that lie in it have ended. Nobody may move bytes any more.
func (p *stagingPool) close(d *Driver, w *worker) {
	p.once.Do(func() {})
	switch {
	case p.seg == nil:
	case d.slabs.holds(p.lent.Load(), chunkCount*chunkBytes):
		d.slabs.free(&place{seg: p.seg, size: uint64(len(p.seg.Bytes))}, w)
	default:
		d.slabs.giveBack(p.seg)
	}
}

// hold takes a free chunk for a command of the program's, which may wait for long; let gives it back. false: there is none for that now.
func (p *stagingPool) hold() (int, bool) {
	if p.held.Add(1) <= maxHeld {
		if i, ok := p.take(); ok {
			return i, true
		}
	}
	p.held.Add(-1)
	return 0, false
}

func (p *stagingPool) let(i int) {
	p.put(i)
	p.held.Add(-1)
}

// take takes a free chunk, if there is one.
func (p *stagingPool) take() (int, bool) {
	select {
	case i := <-p.free:
		return i, true
	default:
		return 0, false
	}
}

func (p *stagingPool) put(i int) { p.free <- i }

func (p *stagingPool) chunk(i int) []byte { return p.seg.Bytes[i*chunkBytes : (i+1)*chunkBytes] }

// store puts data into the buffer at off, load takes it out: by this thread, now. The caller has seen to the order.
func (b *Buffer) store(off uint64, data []byte) Status {
	if in := b.bytes(); in != nil {
		segment.Copy(in[off:], data)
		return Success
	}
	if b.ctx.remote {
		return b.carry(true, clwire.Shape{Offset: off, Size: uint64(len(data))}, linear(pointerTo(data), uint64(len(data))))
	}
	return b.move(clwire.ToBuffer, wholeRange(off, data))
}

func (b *Buffer) load(off uint64, data []byte) Status {
	if in := b.bytes(); in != nil {
		segment.Copy(data, in[off:])
		return Success
	}
	if b.ctx.remote {
		return b.carry(false, clwire.Shape{Offset: off, Size: uint64(len(data))}, linear(pointerTo(data), uint64(len(data))))
	}
	return b.move(clwire.FromBuffer, wholeRange(off, data))
}

// piece is one part of a move that fits a chunk: a row range of the buffer, rows of the program's.
type piece struct {
	transfer clwire.Transfer // Cmd, Segment and SegmentOffset are filled in when it is sent
	bytes    uint64
	copy     func(chunk []byte, toChunk bool)
}

// wholeRange cuts a contiguous move.
func wholeRange(off uint64, data []byte) func(yield func(piece) bool) {
	return func(yield func(piece) bool) {
		for at := uint64(0); at < uint64(len(data)); at += chunkBytes {
			part := data[at:min(at+chunkBytes, uint64(len(data)))]
			p := piece{bytes: uint64(len(part)), transfer: clwire.Transfer{Offset: off + at, Size: uint64(len(part))}}
			p.copy = func(chunk []byte, toChunk bool) {
				if toChunk {
					segment.Copy(chunk, part)
				} else {
					segment.Copy(part, chunk)
				}
			}
			if !yield(p) {
				return
			}
		}
	}
}

type inFlight struct {
	event *Event
	chunk int
	piece piece
}

// mover runs one move through the staging chunks, several in flight.
type mover struct {
	b         *Buffer
	w         *worker
	q         *Queue
	pool      *stagingPool
	direction uint8
	flying    []inFlight
	status    Status
}

// moveQueue is the context's own queue for moves; the buffer is known to its worker.
func (b *Buffer) moveQueue() (*Queue, Status) {
	q, status := b.ctx.moveQueue(b.ctx.devices[0])
	if status == Success {
		status = b.ensureRemote(q.w)
	}
	return q, status
}

// prepare is moveQueue, with the staging pool open.
func (b *Buffer) prepare() (*Queue, Status) {
	q, status := b.moveQueue()
	if status == Success {
		status = b.ctx.staging.open(b, q)
	}
	return q, status
}

// move moves pieces between the buffer and the program's memory, now.
func (b *Buffer) move(direction uint8, pieces func(yield func(piece) bool)) Status {
	q, status := b.prepare()
	if status != Success {
		return status
	}
	m := &mover{b: b, w: q.w, q: q, pool: &b.ctx.staging, direction: direction}
	for p := range pieces {
		if m.status != Success {
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
			if i, ok := m.pool.take(); ok {
				return i
			}
		}
		m.finishOldest()
	}
	return <-m.pool.free
}

func (m *mover) start(p piece) {
	i := m.chunk()
	if m.direction == clwire.ToBuffer {
		p.copy(m.pool.chunk(i)[:p.bytes], true)
	}
	e, t := m.q.waitedEvent(), &p.transfer
	t.Direction, t.Buffer = m.direction, m.b.id.Load()
	t.Segment, t.SegmentOffset = m.pool.seg.ID, uint64(i)*chunkBytes
	if _, status := m.q.submit(t, &t.Cmd, e, nil, 0); status != Success {
		m.status = status
		m.pool.put(i)
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
		f.piece.copy(m.pool.chunk(f.chunk)[:f.piece.bytes], false)
	case end != 0 && m.status == Success:
		m.status = OutOfResources
		if end < 0 {
			m.status = Status(end)
		}
	}
	m.w.tell(&clwire.Release{ID: f.event.id})
	m.pool.put(f.chunk)
}
