package link

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// bulkSlice is the slice of time that a thread which moves bulk data asks for, the longest there is (sched_setattr(2),
// from Linux 6.12): a thread that wakes and asks for less, as all others do, takes the core at once instead of at the
// next tick.
const bulkSlice = 100 * time.Millisecond

// GiveWay runs f, which moves bulk data, on a thread that makes room for whatever else wants its core, so that no
// command waits behind a transfer for a core: with two cores the last percent of empty kernels beside a transfer took 5
// ms, a tick, and takes a tenth of that so. Where the kernel does not let us, f runs as it is.
func GiveWay(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil || was.Policy != unix.SCHED_NORMAL {
		f()
		return
	}
	ask := *was
	ask.Policy, ask.Runtime = unix.SCHED_BATCH, uint64(bulkSlice)
	if unix.SchedSetAttr(0, &ask, 0) == nil {
		defer func() { _ = unix.SchedSetAttr(0, was, 0) }() // we had it before
	}
	f()
}
