package trace

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Cause says why a call waited for an answer: one round trip each.
type Cause uint16

// Causes. Numbers are for ever: files of counters and traces hold them.
const (
	CauseOther Cause = iota
	CauseConnect
	CauseStartWorker
	CauseHello
	CauseBuild
	CauseFirstLaunch
	CauseArgument
	CauseQuery
	CauseFinish
	CauseWait
	CauseRead
	CauseWrite
	CauseMap
	CauseSegment
	CausePublish
	CauseClock // the trace's own
	CauseFlush // likewise
	CauseObject
	CausePeer
	CauseCreate // what only the driver can judge is made: images, binaries, sub-devices
	CauseFiles  // that sources include
	numCauses
)

// Own says that a cause is the trace's, not the program's.
func (c Cause) Own() bool { return c == CauseClock || c == CauseFlush }

var causeNames = [numCauses]string{
	"other", "connect", "start a worker", "greet a worker", "build", "first launch verdict",
	"argument verdict", "query",
	"clFinish", "wait for events", "blocking read", "blocking write", "map", "memory from the daemon", "publish",
	"compare clocks", "fetch the trace", "object of the store", "link two workers", "driver's own object",
	"included files",
}

func (c Cause) String() string {
	if c < numCauses {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint16(c))
}

// Layout of a file of counters: u64 magic, u64 number of counters, one u64 a cause.
const (
	countersMagic = 0x3130544e43445454 // "TTDCNT01"
	countersHead  = 16
	countersBytes = 4096
)

// Counters counts round trips by cause. The zero value counts; OpenCounters' also shows in a file.
type Counters struct {
	own    [numCauses]atomic.Uint64
	shared []byte // nil, or the file's
}

// OpenCounters makes counters that live in the file at path, so that another process can read them at any time
// (ReadCounters). The file is made again.
func OpenCounters(path string) (*Counters, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(countersBytes); err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, countersBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the counters: %w", err)
	}
	le.PutUint64(b[8:], uint64(numCauses))
	cell(b, 0).Store(countersMagic)
	return &Counters{shared: b}, nil
}

// Add counts one round trip.
func (c *Counters) Add(cause Cause) {
	if cause >= numCauses {
		cause = CauseOther
	}
	if c.shared != nil {
		cell(c.shared, countersHead+8*int(cause)).Add(1)
		return
	}
	c.own[cause].Add(1)
}

// Counts returns the counters that are not zero.
func (c *Counters) Counts() map[Cause]uint64 {
	counts := map[Cause]uint64{}
	for cause := range numCauses {
		n := c.own[cause].Load()
		if c.shared != nil {
			n = cell(c.shared, countersHead+8*int(cause)).Load()
		}
		if n != 0 {
			counts[cause] = n
		}
	}
	return counts
}

// Close unmaps the file. Nothing may be counted meanwhile or later.
func (c *Counters) Close() error {
	if c.shared == nil {
		return nil
	}
	return unix.Munmap(c.shared)
}

// ReadCounters reads what a running program has counted so far, and those of one that ended.
func ReadCounters(path string) (map[Cause]uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	if len(b) < countersHead || le.Uint64(b) != countersMagic {
		return nil, fmt.Errorf("%s holds no counters (%d bytes)", path, len(b))
	}
	n := min(le.Uint64(b[8:]), uint64(len(b)-countersHead)/8, 1<<16)
	counts := map[Cause]uint64{}
	for i := range n {
		if v := le.Uint64(b[countersHead+8*i:]); v != 0 {
			counts[Cause(i)] = v
		}
	}
	return counts, nil
}

// Total is the program's own round trips.
func Total(counts map[Cause]uint64) (n uint64) {
	for c, v := range counts {
		if !c.Own() {
			n += v
		}
	}
	return n
}
