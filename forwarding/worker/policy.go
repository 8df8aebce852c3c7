//go:build cgo

package worker

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// withPatientThreads runs f, and the threads that a driver starts in it do not take a processor from one that is at
// work when they wake (SCHED_BATCH, sched(7); a thread inherits the policy of the one that starts it). A driver that
// computes with threads of its own wakes one for each command. Where there is no idle core the woken one stops the
// thread that is about to bring the next command, finds one short kernel, and sleeps again. With two cores, PoCL 3.1: a
// chain of 100 short kernels 2.1 → 1.5 × native, one kernel and a wait for it 53 → 21 µs. Their share of the processors
// stays what it was, and an idle core is taken at once. Where the process has been given another policy, that stays.
func withPatientThreads(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil || own.Policy != unix.SCHED_NORMAL {
		return f()
	}
	patient := *own
	patient.Policy = unix.SCHED_BATCH
	if unix.SchedSetAttr(0, &patient, 0) != nil {
		return f()
	}
	defer func() {
		if unix.SchedSetAttr(0, own, 0) != nil {
			runtime.LockOSThread() // one that stays as it is is nobody else's
		}
	}()
	return f()
}
