package daemon

import (
	"context"
	"sync"
)

// shares lets so many work at a time for each key, and so many in all. The lock is a leaf.
type shares[K comparable] struct {
	each, most int // immutable: for one key, and in all

	mu     sync.Mutex
	of     map[K]int // that work
	taken  int       // in all
	change chan struct{}
}

func newShares[K comparable](each, most int) *shares[K] {
	return &shares[K]{each: each, most: most, of: map[K]int{}, change: make(chan struct{})}
}

// take waits until one more may work for key. The caller calls end, once. The error is why ctx ended before.
func (s *shares[K]) take(ctx context.Context, key K) (end func(), err error) {
	for {
		s.mu.Lock()
		if s.taken < s.most && s.of[key] < s.each {
			s.taken++
			s.of[key]++
			s.mu.Unlock()
			return func() { s.end(key) }, nil
		}
		change := s.change // closed when one ends
		s.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *shares[K]) end(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.of[key]--; s.of[key] == 0 {
		delete(s.of, key)
	}
	close(s.change)
	s.change = make(chan struct{})
}
