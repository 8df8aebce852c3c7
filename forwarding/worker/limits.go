//go:build cgo

package worker

import (
	"fmt"
	"time"

	"tendril/forwarding/clwire"
)

// limitError ends a session, and its process with it.
type limitError struct {
	text   string
	status int // the process's
}

func (l limitError) Error() string { return l.text }

// timeLimits bound commands and builds. Nothing can end a kernel or a compiler inside a process: a session that exceeds
// one ends, and its process with it. The reader owns it.
type timeLimits struct {
	now      clwire.TimeLimits
	over     chan struct{} // closed when the session ends
	watching bool
}

// limit is the program's own wish.
func (s *session) limit(m *clwire.TimeLimits) error {
	s.bound(*m)
	return nil
}

// bound makes the limits at least as tight as m.
func (s *session) bound(m clwire.TimeLimits) {
	s.limits.now = s.limits.now.Tighter(m)
	if s.limits.now.KernelNanos == 0 {
		return
	}
	if s.limits.watching { // by the limit before, which the new one replaces
		close(s.limits.over)
	}
	s.limits.over, s.limits.watching = make(chan struct{}), true
	s.engine.FollowAll()
	limit, over := asDuration(s.limits.now.KernelNanos), s.limits.over
	s.work.Go(func() { s.watchKernels(limit, over) })
}

func asDuration(nanos uint64) time.Duration { return time.Duration(min(nanos, uint64(1<<62))) }

// unbound ends the watch with the session.
func (s *session) unbound() {
	if s.limits.watching {
		close(s.limits.over)
		s.limits.watching = false
	}
}

// Bounds of the pause between two looks at what runs, which is an eighth of the limit.
const (
	leastLook = time.Millisecond
	mostLook  = time.Second
)

func (s *session) watchKernels(limit time.Duration, over <-chan struct{}) {
	tick := time.NewTicker(min(max(limit/8, leastLook), mostLook))
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case now := <-tick.C:
			if ran := s.engine.Longest(now); ran > limit {
				s.fail(limitError{fmt.Sprintf("a command has run for %v on its device, the limit is %v (--kernel-time)",
					ran.Round(time.Millisecond), limit), clwire.ExitKernelTime})
				return
			}
		}
	}
}

// buildLimit is what a build that begins now may take; 0: no bound.
func (s *session) buildLimit() time.Duration { return asDuration(s.limits.now.BuildNanos) }

// timed ends the session where a build is not over in time. The caller calls over when it is.
func (s *session) timed(c *construction) (over func()) {
	if c.limit == 0 {
		return func() {}
	}
	t := time.AfterFunc(c.limit, func() {
		s.fail(limitError{fmt.Sprintf("%s takes longer than %v (--build-time)", c.what, c.limit), clwire.ExitBuildTime})
	})
	return func() { t.Stop() }
}
