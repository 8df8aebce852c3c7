package link

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Yield gives the core to whoever waits for it: a poller must never keep a
// driver's thread from running. It does not tell Go's scheduler (a system call
// of under a microsecond).
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Spin polls done until it holds or d is over, and reports whether it held.
// On a single core it does not poll: nobody else could run meanwhile.
func Spin(d time.Duration, done func() bool) bool {
	if done() {
		return true
	}
	if d <= 0 || runtime.NumCPU() == 1 {
		return false
	}
	for start := time.Now(); time.Since(start) < d; {
		Yield()
		if done() {
			return true
		}
	}
	return false
}
