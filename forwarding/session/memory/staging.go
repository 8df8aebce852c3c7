package memory

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/node"
	"tendril/store/alloc"
)

// Sizes of staging memory, in bytes.
const (
	ChunkBytes = 4 << 20
	ChunkCount = 6
	LentBytes  = 24 << 20 // behind the chunks, for transfers that nobody waits for
	PoolBytes  = ChunkBytes*ChunkCount + LentBytes
	// MaxHeld chunks wait with commands for what the program may have still to do: moves, which wait for nobody, have
	// the others.
	MaxHeld = 3
)

// Staging is memory that bytes pass through on their way to and from a driver's: chunks, taken by whoever moves
// bytes, and behind them what is lent to small transfers that nobody waits for. It is one segment, and not there
// before Open. The zero value is ready for that.
type Staging struct {
	once    sync.Once
	Segment *node.Segment
	free    chan int             // chunk numbers
	held    atomic.Int32         // chunks with commands
	lent    atomic.Pointer[slab] // nil: the pool is not open yet
	status  api.Status
}

// Open makes the pool, once. prepare has the driver pin the memory, through chunk 0: the first transfer of a driver
// may write all of the segment back.
func (p *Staging) Open(s *Slabs, prepare func() api.Status) api.Status {
	p.once.Do(func() {
		place, status := s.AllocOwn(PoolBytes)
		if p.status = status; status != cl.SUCCESS {
			return
		}
		p.Segment, p.free = place.Segment, make(chan int, ChunkCount)
		p.Put(0)
		if p.status = prepare(); p.status != cl.SUCCESS {
			return
		}
		for i := 1; i < ChunkCount; i++ {
			p.Put(i)
		}
		lent := &slab{seg: p.Segment, ranges: alloc.NewSized(PoolBytes)}
		lent.ranges.Alloc(ChunkCount*ChunkBytes, ChunkBytes) // the chunks, which are never given back
		p.lent.Store(lent)
	})
	return p.status
}

// Lend takes a part of the memory behind the chunks, nil where there is no room now. It is given back as a place is.
func (p *Staging) Lend(s *Slabs, size, align uint64) *Place {
	return s.part(p.lent.Load(), size, align)
}

// Close gives the segment back, or once those have passed their marks whose commands lie in it. Nobody may move bytes
// any more.
func (p *Staging) Close(s *Slabs, users func() Marks) {
	p.once.Do(func() {})
	switch {
	case p.Segment == nil:
	case p.Lending(s):
		s.FreeAfter(&Place{Segment: p.Segment, Size: uint64(len(p.Segment.Bytes))}, users())
	default:
		s.freeSegment(p.Segment)
	}
}

// Acquire takes a free chunk for a command, which may wait for long; Release gives it back. false: there is none for
// that now.
func (p *Staging) Acquire() (int, bool) {
	if p.held.Add(1) <= MaxHeld {
		if i, ok := p.Take(); ok {
			return i, true
		}
	}
	p.held.Add(-1)
	return 0, false
}

// Release gives back what Acquire took.
func (p *Staging) Release(i int) {
	p.Put(i)
	p.held.Add(-1)
}

// Take takes a free chunk, if there is one.
func (p *Staging) Take() (int, bool) {
	select {
	case i := <-p.free:
		return i, true
	default:
		return 0, false
	}
}

// Put gives a chunk back.
func (p *Staging) Put(i int) { p.free <- i }

// Wait takes a free chunk, and waits for one.
func (p *Staging) Wait() int { return <-p.free }

// Held is how many chunks commands have.
func (p *Staging) Held() int { return int(p.held.Load()) }

// Lending says whether a part of the memory behind the chunks is in use.
func (p *Staging) Lending(s *Slabs) bool { return s.holds(p.lent.Load(), ChunkCount*ChunkBytes) }

// Offset is where a chunk begins in the segment.
func (p *Staging) Offset(i int) uint64 { return uint64(i) * ChunkBytes }

// Chunk is a chunk's memory.
func (p *Staging) Chunk(i int) []byte { return p.Segment.Bytes[i*ChunkBytes : (i+1)*ChunkBytes] }
