package store

import (
	"container/heap"
	"time"
)

// expiryHeap has the objects that will expire, the next one first.
type expiryHeap []*entry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].expiryAt, h[j].expiryAt = i, j
}

// Push implements heap.Interface.
func (h *expiryHeap) Push(x any) {
	e := x.(*entry)
	e.expiryAt = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.expiryAt = -1
	return e
}

// schedule lets e expire at a time, another one than before perhaps. Times made by time.Now carry the monotonic clock,
// so setting the machine's clock moves nothing. mu is held.
func (s *Store) schedule(e *entry, at time.Time) {
	s.unschedule(e)
	e.expires = at
	heap.Push(&s.expiries, e)
	if e.expiryAt == 0 {
		s.wakeJanitor()
	}
}

// unschedule is the reverse. mu is held.
func (s *Store) unschedule(e *entry) {
	if !e.expires.IsZero() && e.expiryAt >= 0 {
		heap.Remove(&s.expiries, e.expiryAt)
	}
	e.expires = time.Time{}
}

// keepAtMost bounds a sleep of janitor.
const keepAtMost = time.Hour

// janitor ends objects whose time is over, gives memory back above the high-water mark, and tries again what the disk
// refused. It ends with Close.
func (s *Store) janitor() {
	defer close(s.kept)
	timer := time.NewTimer(keepAtMost)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.expire(time.Now())
		s.returnMemory()
		wait := s.lookInTime(time.Now())
		wait = min(wait, s.judgeInTime(time.Now()), s.dropIdleSince(time.Now()))
		wait = min(wait, s.diskAgain(time.Now()))
		if s.opts.Available != nil {
			wait = min(wait, lookEvery)
		}
		if s.short {
			wait = min(wait, lookEvery/10)
		}
		if len(s.expiries) > 0 {
			wait = min(wait, time.Until(s.expiries[0].expires))
		}
		closed := s.closed
		s.unlock()
		if closed {
			return
		}
		timer.Reset(max(wait, 0))
		select {
		case <-s.keep:
		case <-timer.C:
		}
	}
}

// expire takes objects whose time is over out of the table; references keep their memory. What a composite still has
// stays for it alone, and on disk, too. mu is held, and let go between some and while records are written.
func (s *Store) expire(now time.Time) {
	var stale []*entry
	steps := 0
	for len(s.expiries) > 0 && !s.closed && !now.Before(s.expiries[0].expires) {
		e := s.expiries[0]
		s.unschedule(e)
		s.letGo(e)
		if e.stale {
			stale = append(stale, e)
		}
		s.breathe(&steps)
	}
	for _, e := range stale {
		_ = s.syncRecord(e) // the object says what was wrong
	}
}

// returnMemory brings what is charged below the high-water mark, or lower while the machine is short: first what is
// kept for nobody in particular, then what can go to disk. mu is held, and let go meanwhile.
func (s *Store) returnMemory() {
	target := s.opts.HighBytes
	if missing := s.lookAtMachine(); missing > 0 {
		target = min(target, s.taken()-min(missing, s.taken()))
	}
	over := s.above(target)
	if over == 0 || s.closed {
		return
	}
	for len(s.warm) > 0 && s.above(target) > 0 {
		s.dropWarm()
	}
	for over = s.above(target); over > 0 && s.retireIdle(nil, over); over = s.above(target) {
		s.pause(nil)
	}
	for s.above(target) > 0 && s.dropCopies(nil, nil, s.above(target)) {
		s.pause(nil)
	}
	if over = s.above(target); over == 0 || s.spill == nil {
		return
	}
	s.freshenUsed(nil)
	if victims, _ := s.victims(nil, s.above(target), s.leaving()); len(victims) > 0 && !s.closed {
		// the objects say what was wrong; who needs the room meets it again
		_, _ = s.evict(victims, s.spill.For(""), s.isClosed)
	}
}

// taken is what the store has of the machine. mu is held.
func (s *Store) taken() uint64 { return s.charged + uint64(len(s.warm))*s.opts.SegmentBytes }

// above gives how many bytes are above a mark. mu is held.
func (s *Store) above(mark uint64) uint64 { return s.taken() - min(mark, s.taken()) }

// wakeJanitor tells janitor to look again. It never blocks.
func (s *Store) wakeJanitor() {
	select {
	case s.keep <- struct{}{}:
	default:
	}
}
