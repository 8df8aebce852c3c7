package memory

import (
	"errors"
	"fmt"
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/node"
	"tendril/store/alloc"
	"tendril/store/object"
)

// Sizes of the memory that buffers in place come from, in bytes.
const (
	ownSegmentBytes = 1 << 20  // buffers from here on have their own segment
	firstSlabBytes  = 16 << 20 // slabs double up to lastSlabBytes
	lastSlabBytes   = 64 << 20
	keptBytes       = 512 << 20 // of empty segments kept for reuse: touching fresh memory is slow
	// AskAfterBytes is how much released memory is in use before the queues are asked for their progress.
	AskAfterBytes = 4 << 20
)

// slab is one segment that small buffers share.
type slab struct {
	seg    *node.Segment
	ranges *alloc.Ranges
}

// Place is where a buffer's bytes lie.
type Place struct {
	Segment *node.Segment
	Offset  uint64
	Size    uint64 // bytes taken
	small   *slab  // nil: the segment is the place's own
}

// Bytes are the first size bytes of the place.
func (p *Place) Bytes(size uint64) []byte {
	return p.Segment.Bytes[p.Offset : p.Offset+size : p.Offset+size]
}

// Shared says that other places lie in the same segment.
func (p *Place) Shared() bool { return p.small != nil }

// deferredFree is released memory that commands sent before may still use. It is free once every queue has passed its
// mark.
type deferredFree struct {
	Place
	marks Marks
}

// Queue is a queue as memory sees it that its commands use.
type Queue interface {
	Passed(seq uint64) bool // every command up to seq has ended, or none goes on: the worker is dead
	RequestCompletionMark() // the queue hears, some time, when all that it has now has ended
}

// Mark is a place in a queue.
type Mark struct {
	Queue Queue
	Seq   uint64
}

// Marks are how far each queue has to be.
type Marks []Mark

// Passed says whether each queue has passed its mark.
func (all Marks) Passed() bool {
	for _, m := range all {
		if !m.Queue.Passed(m.Seq) {
			return false
		}
	}
	return true
}

// Request asks each queue for its progress.
func (all Marks) Request() {
	for _, m := range all {
		m.Queue.RequestCompletionMark()
	}
}

// Source is where segments come from.
type Source interface {
	// AllocSegment calls spare where memory is short, before it waits for what others let go of.
	AllocSegment(size uint64, spare func()) (*node.Segment, error)
	FreeSegment(*node.Segment)
	ForgetSegment(*node.Segment) // no worker knows it afterwards
	Log(line string)
}

// Slabs owns the memory of buffers in place: session-private segments of the daemon, shared by all contexts.
type Slabs struct {
	source Source

	mu            sync.Mutex                 // leaf
	all           map[*node.Segment]struct{} // what the daemon gave and has not got back
	list          []*slab
	kept          []*node.Segment // empty, whole
	retired       []*node.Segment // kept too long: freed once the lock is released
	keptBytes     uint64
	deferredFrees []deferredFree
	deferredBytes uint64 // since the queues were last asked
	lookedAt      int    // deferred frees after the last look at all
}

// New returns slabs that have no memory yet.
func New(source Source) *Slabs {
	return &Slabs{source: source, all: map[*node.Segment]struct{}{}}
}

// Alloc returns memory for size bytes, aligned; own forces a segment of its own. Its contents are undefined.
func (s *Slabs) Alloc(size, align uint64, own bool) (*Place, api.Status) {
	if own || size >= ownSegmentBytes {
		return s.AllocOwn(size)
	}
	s.mu.Lock()
	s.reapLocked()
	p := s.smallLocked(size, align)
	if p == nil {
		s.reapAllLocked()
		p = s.smallLocked(size, align)
	}
	if p != nil {
		s.mu.Unlock()
		return p, cl.SUCCESS
	}
	bytes := uint64(firstSlabBytes) << min(len(s.list), 2)
	s.mu.Unlock()
	// Two callers may each add a slab: memory for a moment, never a fault.
	whole, status := s.AllocOwn(bytes)
	if status != cl.SUCCESS {
		return nil, status
	}
	small := &slab{seg: whole.Segment, ranges: alloc.NewSized(whole.Size)}
	off, ok := small.ranges.Alloc(size, align)
	if !ok {
		s.FreeNow(whole)
		return nil, cl.OUT_OF_HOST_MEMORY
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, small)
	return &Place{Segment: small.seg, Offset: off, Size: size, small: small}, cl.SUCCESS
}

// smallLocked takes a part of a slab, nil where none has room.
func (s *Slabs) smallLocked(size, align uint64) *Place {
	for _, small := range s.list {
		if p := small.part(size, align); p != nil {
			return p
		}
	}
	return nil
}

// part takes a part of this slab, nil where there is no room now. s.mu is held.
func (small *slab) part(size, align uint64) *Place {
	if off, ok := small.ranges.Alloc(size, align); ok {
		return &Place{Segment: small.seg, Offset: off, Size: size, small: small}
	}
	return nil
}

// part takes a part of a slab that is not for buffers, nil where that has no room now, or is nil itself.
func (s *Slabs) part(of *slab, size, align uint64) *Place {
	if of == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapLocked()
	p := of.part(size, align)
	if p == nil {
		s.reapAllLocked()
		p = of.part(size, align)
	}
	return p
}

// holds says whether more than so many bytes of such a slab are in use.
func (s *Slabs) holds(of *slab, most uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapAllLocked()
	return of != nil && of.ranges.Used() > most
}

// wholeLocked takes a kept segment that is hardly larger than size, nil where there is none.
func (s *Slabs) wholeLocked(size uint64) *Place {
	for i, seg := range s.kept {
		have := uint64(len(seg.Bytes))
		if have >= size && have-size <= size/4 {
			s.kept = append(s.kept[:i], s.kept[i+1:]...)
			s.keptBytes -= have
			return &Place{Segment: seg, Size: have}
		}
	}
	return nil
}

// AllocOwn returns memory in a segment of its own, of size bytes at least.
func (s *Slabs) AllocOwn(size uint64) (*Place, api.Status) {
	s.mu.Lock()
	s.reapAllLocked()
	p := s.wholeLocked(size)
	s.mu.Unlock()
	if p != nil {
		return p, cl.SUCCESS
	}
	s.freeRetired()
	seg, err := s.source.AllocSegment(size, s.Spare)
	if err != nil {
		if !errors.Is(err, object.ErrFull) && !errors.Is(err, object.ErrQuota) {
			s.source.Log(fmt.Sprintf("tendril: a buffer of %d bytes was not made: %v", size, err))
		}
		return nil, cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	if uint64(len(seg.Bytes)) < size {
		s.source.FreeSegment(seg)
		return nil, cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[seg] = struct{}{}
	return &Place{Segment: seg, Size: uint64(len(seg.Bytes))}, cl.SUCCESS
}

// Forget has every worker forget a segment.
func (s *Slabs) Forget(seg *node.Segment) { s.source.ForgetSegment(seg) }

// Disown notes that a segment is an object of the store now.
func (s *Slabs) Disown(seg *node.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, seg)
}

// FreeAfter gives memory back once queues have passed their marks.
func (s *Slabs) FreeAfter(p *Place, users Marks) {
	s.mu.Lock()
	if users.Passed() {
		s.releaseLocked(p)
		retired := len(s.retired) > 0
		s.mu.Unlock()
		if retired {
			s.freeRetired()
		}
		return
	}
	s.deferredFrees = append(s.deferredFrees, deferredFree{*p, users})
	s.deferredBytes += p.Size
	ask := s.deferredBytes > AskAfterBytes
	if ask {
		s.deferredBytes = 0
	}
	s.mu.Unlock()
	if ask {
		users.Request()
	}
}

// FreeNow gives memory back that nobody uses any more. It asks nobody for anything.
func (s *Slabs) FreeNow(p *Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked(p) // what that lets go is given back by the next to ask
}

// reapLocked takes back what is free, oldest first. It looks at all only when there are twice as many as the last time:
// the oldest may be a queue's that stands still.
func (s *Slabs) reapLocked() {
	free := 0
	for free < len(s.deferredFrees) && s.deferredFrees[free].marks.Passed() {
		s.releaseLocked(&s.deferredFrees[free].Place)
		free++
	}
	if s.deferredFrees = s.deferredFrees[free:]; len(s.deferredFrees) > 2*s.lookedAt+manyDeferred {
		s.reapAllLocked()
	}
}

// manyDeferred is how many deferred frees are never too many.
const manyDeferred = 64

func (s *Slabs) reapAllLocked() {
	kept := s.deferredFrees[:0]
	for _, l := range s.deferredFrees {
		if l.marks.Passed() {
			s.releaseLocked(&l.Place)
		} else {
			kept = append(kept, l)
		}
	}
	clear(s.deferredFrees[len(kept):])
	s.deferredFrees, s.lookedAt = kept, len(kept)
}

func (s *Slabs) releaseLocked(p *Place) {
	if p.small == nil {
		s.keepLocked(p.Segment)
		return
	}
	if err := p.small.ranges.FreeSized(p.Offset, p.Size); err != nil {
		s.source.Log(fmt.Sprintf("tendril: slab: %v", err))
		return
	}
	if p.small.ranges.Used() != 0 || len(s.list) == 1 {
		return
	}
	for i, small := range s.list {
		if small == p.small {
			s.list = append(s.list[:i], s.list[i+1:]...)
			s.keepLocked(small.seg)
			return
		}
	}
}

// keepLocked keeps an empty segment for reuse, and lets the oldest go when there are too many.
func (s *Slabs) keepLocked(seg *node.Segment) {
	s.kept = append(s.kept, seg)
	s.keptBytes += uint64(len(seg.Bytes))
	for s.keptBytes > keptBytes && len(s.kept) > 0 {
		oldest := s.kept[0]
		s.kept = s.kept[1:]
		s.keptBytes -= uint64(len(oldest.Bytes))
		s.retired = append(s.retired, oldest)
	}
}

// Spare gives everything kept back to the daemon.
func (s *Slabs) Spare() {
	s.mu.Lock()
	s.reapAllLocked()
	kept := s.kept
	s.kept, s.keptBytes = nil, 0
	s.mu.Unlock()
	for _, seg := range kept {
		s.freeSegment(seg)
	}
}

// freeRetired gives back what keepLocked let go: a call of the daemon's is not made under the lock.
func (s *Slabs) freeRetired() {
	s.mu.Lock()
	old := s.retired
	s.retired = nil
	s.mu.Unlock()
	for _, seg := range old {
		s.freeSegment(seg)
	}
}

func (s *Slabs) freeSegment(seg *node.Segment) {
	s.source.ForgetSegment(seg)
	s.Disown(seg)
	s.source.FreeSegment(seg)
}

// Close gives all memory back. No buffer may be used afterwards.
func (s *Slabs) Close() {
	s.mu.Lock()
	all := s.all
	s.all, s.kept, s.list, s.deferredFrees = map[*node.Segment]struct{}{}, nil, nil, nil
	s.mu.Unlock()
	for seg := range all {
		s.source.FreeSegment(seg)
	}
}
