package store

import (
	"time"

	"tendril/store/segment"
)

// warmRetry is the pause after the kernel refused memory for the warm pool.
const warmRetry = time.Second

// fillWarmPool keeps WarmBytes of populated memory ready while the capacity has room for it. It ends with Close.
func (s *Store) fillWarmPool() {
	defer close(s.done)
	for {
		wait := s.fillOne()
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		switch {
		case closed:
			return
		case wait == 0:
			continue
		}
		select {
		case <-s.kick:
		case <-time.After(wait):
		}
	}
}

// fillOne adds a segment to the warm pool. It gives how long to wait for a reason to add another; 0 is not at all.
func (s *Store) fillOne() (wait time.Duration) {
	const untilKicked = time.Hour
	n := s.opts.SegmentBytes
	s.mu.Lock()
	if s.closed || !s.warmShort() || !s.hasRoom(n) {
		s.mu.Unlock()
		return untilKicked
	}
	if left, known := s.available(); known && (left < n || left-n < 2*s.opts.LowBytes) { // others need it more
		s.mu.Unlock()
		return lookEvery
	}
	s.warmMaking = n
	s.mu.Unlock()

	m, err := segment.Create(s.opts.System, n)
	if err == nil {
		if err = m.Populate(0, n, s.isClosed); err != nil {
			m.Close()
		}
	}
	s.mu.Lock()
	defer s.unlock()
	s.warmMaking = 0
	if err != nil {
		return warmRetry
	}
	if s.short || s.closed { // meanwhile
		s.doomed = append(s.doomed, m)
		return untilKicked
	}
	s.warm = append(s.warm, m)
	return 0
}

// warmShort reports whether another segment belongs into the warm pool and none is being made. mu is held.
func (s *Store) warmShort() bool {
	return s.warmMaking == 0 && !s.short && uint64(len(s.warm)+1)*s.opts.SegmentBytes <= s.opts.WarmBytes
}

// isClosed may be asked with mu held or not.
func (s *Store) isClosed() bool { return s.closing.Load() }

// wakeWarmPool tells fillWarmPool to look again. It never blocks.
func (s *Store) wakeWarmPool() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// takeWarm gives a warm segment to be resized to n bytes, or nil where that would waste more than it saves. mu is held.
func (s *Store) takeWarm(n uint64) *segment.Memory {
	if len(s.warm) == 0 || n < s.opts.SegmentBytes/2 {
		return nil
	}
	m := s.warm[len(s.warm)-1]
	s.warm = s.warm[:len(s.warm)-1]
	s.wakeWarmPool()
	return m
}

// shrinkWarm gives warm segments up until n bytes fit. mu is held.
func (s *Store) shrinkWarm(n uint64) {
	for len(s.warm) > 0 && !s.hasRoom(n) {
		s.dropWarm()
	}
}
