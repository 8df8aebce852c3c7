package store

import (
	"fmt"
	"time"

	"tendril/store/object"
)

// The capacity is a promise about the store; whether the machine can keep it depends on what else runs there. A page
// that is not there ends a process, and on a machine at its end the kernel chooses which: so what would take the last
// is refused here, with words.

// lookEvery is how often the machine's memory is looked at.
const lookEvery = 10 * time.Second

// machineRoom refuses n bytes that the machine does not have, after it gave back what is kept for nobody in particular.
// mu is held.
func (s *Store) machineRoom(n uint64) error {
	left, known := s.available()
	if !known || left >= n && left-n >= s.opts.LowBytes {
		s.machineLeft -= min(n, s.machineLeft)
		return nil
	}
	for len(s.warm) > 0 && left < n+s.opts.LowBytes {
		s.dropWarm()
		left += s.opts.SegmentBytes // once unlock has closed it, before anything is populated
	}
	if left >= n && left-n >= s.opts.LowBytes {
		return nil
	}
	s.retireIdle(nil, n)
	s.short = true
	s.wakeJanitor()
	return fmt.Errorf("%w: the machine has %d bytes left, %d are needed, and %d must stay free: delete objects, end other programs, or raise the limit of the daemon's cgroup",
		object.ErrFull, left, n, s.opts.LowBytes)
}

// lookAgain is how long an answer about the machine's memory is good while there is plenty: asking reads files, some of
// which the kernel sums up over every group and core for the reader. What the store takes meanwhile is taken off.
const lookAgain = 100 * time.Millisecond

// available gives what the machine can still give. mu is held.
func (s *Store) available() (left uint64, known bool) {
	if s.opts.Available == nil {
		return 0, false
	}
	if s.machineLeft > 8*s.opts.LowBytes && time.Since(s.machineAt) < lookAgain {
		return s.machineLeft - min(s.machineLeft, s.yetUnmade()), true
	}
	s.machineLeft, known = s.opts.Available()
	s.machineAt = time.Now()
	if !known {
		s.machineLeft = 0
	}
	return s.machineLeft - min(s.machineLeft, s.yetUnmade()), known
}

// yetUnmade is what the machine has still, and bare connections are about to take.
func (s *Store) yetUnmade() uint64 { return uint64(max(s.unmade.Load(), 0)) }

// dropWarm gives the last warm segment up. mu is held.
func (s *Store) dropWarm() {
	last := len(s.warm) - 1
	s.doomed = append(s.doomed, s.warm[last])
	s.warm[last] = nil
	s.warm = s.warm[:last]
}

// lookAtMachine notes whether the machine is short, which it is below twice LowBytes, and by how much. mu is held.
func (s *Store) lookAtMachine() (missing uint64) {
	left, known := s.available()
	if !known {
		return 0
	}
	if want := 2 * s.opts.LowBytes; left < want {
		missing = want - left
	}
	if was := s.short; was && missing == 0 {
		s.short = false
		s.wakeWarmPool()
	}
	s.short = missing > 0
	return missing
}
