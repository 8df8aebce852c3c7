package keeper

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// Host memory that is not pinned goes through memory of the keeper's own that is: threads copy to or from it while the
// device copies from or to other parts of it. The driver's own way is one thread: 6 GB/s to an H200 and 3.5 GB/s back.

const (
	slotBytes  = 4 << 20
	mostLanes  = 8
	laneSlots  = 2
	stageBytes = 2 << 20 // the least copy that is staged: below it the driver's own way is as fast
)

// staging is the memory, and each device's queues for it.
type staging struct {
	memory []byte
	pin    *cuda.Pinned
	slots  []slot
	queues map[*cuda.Context][]*cuda.Stream // a slot each
	fault  error                            // why there is none
}

type slot struct{ bytes []byte }

// lane is what one thread of a copy has.
type lane struct {
	slots  [laneSlots]slot
	queues [laneSlots]*cuda.Stream
	next   *atomic.Uint64 // of the copy: where the next part begins
}

// lanes is how many threads copy.
func lanes() int { return max(1, min(mostLanes, runtime.NumCPU()/2)) }

// open makes the memory, and a device's queues.
func (s *staging) open(c *cuda.Context) error {
	if s.memory == nil && s.fault == nil {
		s.fault = s.make(c)
	}
	if s.fault != nil || s.queues[c] != nil {
		return s.fault
	}
	var queues []*cuda.Stream
	for range s.slots {
		q, err := c.Stream()
		if err != nil {
			for _, q := range queues {
				err = errors.Join(err, q.Close())
			}
			return err
		}
		queues = append(queues, q)
	}
	if s.queues == nil {
		s.queues = map[*cuda.Context][]*cuda.Stream{}
	}
	s.queues[c] = queues
	return nil
}

func (s *staging) make(c *cuda.Context) error {
	n := lanes() * laneSlots
	memory, err := unix.Mmap(-1, 0, n*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("memory for copies: %w", err)
	}
	pin, err := c.Pin(memory, false)
	if err != nil {
		return errors.Join(err, unix.Munmap(memory))
	}
	s.memory, s.pin = memory, pin
	for i := range n {
		s.slots = append(s.slots, slot{memory[i*slotBytes : (i+1)*slotBytes]})
	}
	return nil
}

// staged runs a copy of n bytes on every lane, or plain where it is too small, or no memory is pinned.
func (k *keeper) staged(c *cuda.Context, n uint64, plain func() error, f func(*lane) error) (clwire.KeeperWay, error) {
	if n < stageBytes {
		return clwire.KeeperPlain, plain()
	}
	if err := k.staging.open(c); err != nil {
		if drivers := (*cuda.Error)(nil); errors.As(err, &drivers) && drivers.Lasts() {
			return "", err
		}
		return clwire.KeeperPlain, plain()
	}
	var next atomic.Uint64
	count := min(lanes(), int((n+slotBytes-1)/slotBytes))
	faults := make([]error, count)
	var running sync.WaitGroup
	for i := range count {
		l := &lane{next: &next}
		copy(l.slots[:], k.staging.slots[i*laneSlots:])
		copy(l.queues[:], k.staging.queues[c][i*laneSlots:])
		running.Go(func() {
			if faults[i] = guarded(func() error { return f(l) }); faults[i] != nil {
				next.Store(n) // the others end
			}
			for _, q := range l.queues { // nothing of it is under way any more
				faults[i] = errors.Join(faults[i], q.Wait())
			}
		})
	}
	running.Wait()
	return clwire.KeeperStaged, errors.Join(faults...)
}

// write copies host memory to a device's, part by part: while the device copies one slot, the other is filled.
func (l *lane) write(to *cuda.Mapping, offset uint64, host []byte) error {
	for turn := 0; ; turn++ {
		at, part, more := l.part(host)
		if !more {
			return nil
		}
		touch(host, at, unix.MADV_POPULATE_READ)
		s, q := l.slots[turn%laneSlots], l.queues[turn%laneSlots]
		if err := q.Wait(); err != nil { // what the slot held before is copied
			return err
		}
		if err := to.WriteLater(q, offset+at, s.bytes[:copy(s.bytes, part)]); err != nil {
			return err
		}
	}
}

// read copies a device's memory to host memory: while the device fills one slot, the other is emptied.
func (l *lane) read(host []byte, from *cuda.Mapping, offset uint64) error {
	var filling [laneSlots][]byte // what each slot is for
	empty := func(i int) error {
		err := l.queues[i].Wait()
		if err == nil {
			copy(filling[i], l.slots[i].bytes)
		}
		filling[i] = nil
		return err
	}
	turn := 0
	for ; ; turn++ {
		i := turn % laneSlots
		if err := empty(i); err != nil {
			return err
		}
		at, part, more := l.part(host)
		if !more {
			break
		}
		if err := from.ReadLater(l.queues[i], l.slots[i].bytes[:len(part)], offset+at); err != nil {
			return err
		}
		filling[i] = part
		touch(host, at, unix.MADV_POPULATE_WRITE) // while the device copies
	}
	for i := range laneSlots {
		if err := empty(i); err != nil {
			return err
		}
	}
	return nil
}

// touch has a part's pages mapped at once: a fault for each takes as long as the copy. host begins anywhere in a page;
// what the kernel does not do for it happens at the copy.
func touch(host []byte, at uint64, how int) {
	const page = 4096
	end := min(at+slotBytes, uint64(len(host))) &^ (page - 1)
	if begin := at &^ (page - 1); begin < end {
		_ = unix.Madvise(host[begin:end], how)
	}
}

// part takes the next part of a copy.
func (l *lane) part(host []byte) (at uint64, part []byte, more bool) {
	end := l.next.Add(slotBytes)
	if at = end - slotBytes; at >= uint64(len(host)) {
		return 0, nil, false
	}
	return at, host[at:min(end, uint64(len(host)))], true
}
