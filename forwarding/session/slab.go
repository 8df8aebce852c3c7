package session

import (
	"errors"
	"fmt"
	"sync"

	"tendril/forwarding/trace"
	"tendril/store/alloc"
	"tendril/store/object"
)

// Sizes of the memory that buffers in place come from, in bytes.
const (
	ownSegmentBytes = 1 << 20  // buffers from here on have their own segment
	firstSlabBytes  = 16 << 20 // slabs double up to lastSlabBytes
	lastSlabBytes   = 64 << 20
	keptBytes       = 512 << 20 // of empty segments kept for reuse: touching fresh memory is slow
	limboBytes      = 4 << 20   // of released memory in use after which the queues are asked for their progress
)

// slab is one segment that small buffers share.
type slab struct {
	seg    *Segment
	ranges *alloc.Ranges
}

// place is where a buffer's bytes lie.
type place struct {
	seg   *Segment
	off   uint64
	size  uint64 // bytes taken
	small *slab  // nil: the segment is the buffer's own
}

func (p *place) bytes(size uint64) []byte { return p.seg.Bytes[p.off : p.off+size : p.off+size] }

// limbo is released memory that commands sent before may still use: free once every queue has passed its mark.
type limbo struct {
	place
	marks []mark
}

type mark struct {
	q   *Queue
	seq uint64
}

func (m *mark) passed() bool { return m.q.doneSeq.Load() >= m.seq || m.q.w.dead.Load() }

// slabs owns the memory of buffers in place: session-private segments of the daemon, shared by all contexts.
type slabs struct {
	d *Driver

	mu         sync.Mutex            // leaf
	all        map[*Segment]struct{} // what the daemon gave and has not got back
	list       []*slab
	kept       []*Segment // empty, whole
	old        []*Segment // to be given back by whoever let go of the lock
	keptBytes  uint64
	limbo      []limbo
	limboBytes uint64 // since the queues were last asked
	looked     int    // entries of limbo after the last look at all
}

func newSlabs(d *Driver) *slabs { return &slabs{d: d, all: map[*Segment]struct{}{}} }

// alloc returns memory for size bytes, aligned; own forces a segment of its own. Its contents are undefined.
func (s *slabs) alloc(size, align uint64, own bool) (*place, Status) {
	if own || size >= ownSegmentBytes {
		return s.allocOwn(size)
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
		return p, Success
	}
	bytes := uint64(firstSlabBytes) << min(len(s.list), 2)
	s.mu.Unlock()
	// Two callers may each add a slab: memory for a moment, never a fault.
	whole, status := s.allocOwn(bytes)
	if status != Success {
		return nil, status
	}
	small := &slab{seg: whole.seg, ranges: alloc.NewSized(whole.size)}
	off, ok := small.ranges.Alloc(size, align)
	if !ok {
		return nil, OutOfHostMemory
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, small)
	return &place{seg: small.seg, off: off, size: size, small: small}, Success
}

// smallLocked takes a part of a slab, nil where none has room.
func (s *slabs) smallLocked(size, align uint64) *place {
	for _, small := range s.list {
		if p := small.part(size, align); p != nil {
			return p
		}
	}
	return nil
}

// part takes a part of this slab, nil where there is no room now. s.mu is held.
func (small *slab) part(size, align uint64) *place {
	if off, ok := small.ranges.Alloc(size, align); ok {
		return &place{seg: small.seg, off: off, size: size, small: small}
	}
	return nil
}

// part takes a part of a slab that is not for buffers, nil where that has no room now, or is nil itself.
func (s *slabs) part(of *slab, size, align uint64) *place {
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
func (s *slabs) holds(of *slab, most uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapAllLocked()
	return of != nil && of.ranges.Used() > most
}

// wholeLocked takes a kept segment that is hardly larger than size, nil where there is none.
func (s *slabs) wholeLocked(size uint64) *place {
	for i, seg := range s.kept {
		have := uint64(len(seg.Bytes))
		if have >= size && have-size <= size/4 {
			s.kept = append(s.kept[:i], s.kept[i+1:]...)
			s.keptBytes -= have
			return &place{seg: seg, size: have}
		}
	}
	return nil
}

func (s *slabs) allocOwn(size uint64) (*place, Status) {
	s.mu.Lock()
	s.reapAllLocked()
	p := s.wholeLocked(size)
	s.mu.Unlock()
	if p != nil {
		return p, Success
	}
	s.giveOld()
	began := s.d.began()
	seg, err := s.d.control.AllocSegment(size)
	s.d.tripped(began, trace.CauseSegment, nil, "")
	if errors.Is(err, object.ErrFull) || errors.Is(err, object.ErrQuota) {
		if s.trim() {
			seg, err = s.d.control.AllocSegment(size)
		}
	}
	if err != nil {
		if !errors.Is(err, object.ErrFull) && !errors.Is(err, object.ErrQuota) {
			s.d.cfg.Log(fmt.Sprintf("tendril: no memory for a buffer of %d bytes: %v", size, err))
		}
		return nil, MemObjectAllocationFailure
	}
	if uint64(len(seg.Bytes)) < size {
		s.d.control.FreeSegment(seg)
		return nil, MemObjectAllocationFailure
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[seg] = struct{}{}
	return &place{seg: seg, size: uint64(len(seg.Bytes))}, Success
}

// disown notes that a segment is an object of the store now.
func (s *slabs) disown(seg *Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, seg)
}

// free gives a buffer's memory back once the commands sent so far cannot use it any more.
func (s *slabs) free(p *place, w *worker) { s.freeBehind(p, w.busyQueues()) }

// freeBehind gives memory back once queues have passed their marks.
func (s *slabs) freeBehind(p *place, marks []mark) {
	s.mu.Lock()
	if len(marks) == 0 {
		s.releaseLocked(p)
		old := len(s.old) > 0
		s.mu.Unlock()
		if old {
			s.giveOld()
		}
		return
	}
	s.limbo = append(s.limbo, limbo{*p, marks})
	s.limboBytes += p.size
	ask := s.limboBytes > limboBytes
	if ask {
		s.limboBytes = 0
	}
	s.mu.Unlock()
	if ask {
		for _, m := range marks {
			m.q.finishLater()
		}
	}
}

// put gives a buffer's memory back that nobody uses any more. It asks nobody for anything.
func (s *slabs) put(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked(p) // what that lets go is given back by the next to ask
}

// busyQueues returns the queues with commands under way and how far each was filled. A nil worker has none.
func (w *worker) busyQueues() (marks []mark) {
	if w == nil || w.dead.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.inARow) - 1; i >= 0; i-- {
		q := w.inARow[i]
		if seq := q.sentSeq.Load(); q.doneSeq.Load() < seq {
			marks = append(marks, mark{q, seq})
		} else if q.released.Load() {
			w.dropQueueLocked(q)
		}
	}
	return marks
}

// reapLocked takes back what is free, oldest first. It looks at all only when there are twice as many as the last time: the
// oldest may be a queue's that stands still.
func (s *slabs) reapLocked() {
	free := 0
	for free < len(s.limbo) && s.limbo[free].passed() {
		s.releaseLocked(&s.limbo[free].place)
		free++
	}
	if s.limbo = s.limbo[free:]; len(s.limbo) > 2*s.looked+manyLimbo {
		s.reapAllLocked()
	}
}

// manyLimbo is how many entries of limbo are never too many.
const manyLimbo = 64

func (s *slabs) reapAllLocked() {
	kept := s.limbo[:0]
	for _, l := range s.limbo {
		if l.passed() {
			s.releaseLocked(&l.place)
		} else {
			kept = append(kept, l)
		}
	}
	clear(s.limbo[len(kept):])
	s.limbo, s.looked = kept, len(kept)
}

func (l *limbo) passed() bool {
	for _, m := range l.marks {
		if !m.passed() {
			return false
		}
	}
	return true
}

func (s *slabs) releaseLocked(p *place) {
	if p.small == nil {
		s.keepLocked(p.seg)
		return
	}
	if err := p.small.ranges.FreeSized(p.off, p.size); err != nil {
		s.d.cfg.Log(fmt.Sprintf("tendril: slab: %v", err))
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
func (s *slabs) keepLocked(seg *Segment) {
	s.kept = append(s.kept, seg)
	s.keptBytes += uint64(len(seg.Bytes))
	for s.keptBytes > keptBytes && len(s.kept) > 0 {
		oldest := s.kept[0]
		s.kept = s.kept[1:]
		s.keptBytes -= uint64(len(oldest.Bytes))
		s.old = append(s.old, oldest)
	}
}

// trim gives everything kept back to the daemon: false when there was nothing.
func (s *slabs) trim() bool {
	s.mu.Lock()
	s.reapAllLocked()
	kept := s.kept
	s.kept, s.keptBytes = nil, 0
	s.mu.Unlock()
	for _, seg := range kept {
		s.giveBack(seg)
	}
	return len(kept) > 0
}

// giveOld gives back what keepLocked let go: a call of the daemon's is not made under the lock.
func (s *slabs) giveOld() {
	s.mu.Lock()
	old := s.old
	s.old = nil
	s.mu.Unlock()
	for _, seg := range old {
		s.giveBack(seg)
	}
}

func (s *slabs) giveBack(seg *Segment) {
	s.dropFromWorkers(seg)
	s.disown(seg)
	s.d.control.FreeSegment(seg)
}

func (s *slabs) dropFromWorkers(seg *Segment) {
	for _, w := range s.d.workers() {
		w.dropSegment(seg.ID)
	}
}

// workersOf gives the workers that serve the driver now.
func (d *Driver) workers() (all []*worker) {
	d.mu.Lock()
	shown := d.shown
	d.mu.Unlock()
	for _, p := range shown {
		p.mu.Lock()
		if p.current != nil {
			all = append(all, p.current)
		}
		p.mu.Unlock()
	}
	return all
}

// close gives all memory back. No buffer may be used afterwards.
func (s *slabs) close() {
	s.mu.Lock()
	all := s.all
	s.all, s.kept, s.list, s.limbo = map[*Segment]struct{}{}, nil, nil, nil
	s.mu.Unlock()
	for seg := range all {
		s.d.control.FreeSegment(seg)
	}
}
