//go:build cgo

package worker

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
)

// policies counts a process's threads by their scheduling policy.
func policies(t *testing.T, pid int) map[uint32]int {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := map[uint32]int{}
	for _, e := range threads {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if a, err := unix.SchedGetAttr(tid, 0); err == nil { // a thread may end meanwhile
			n[a.Policy]++
		}
	}
	return n
}

func TestTheDriversThreadsDoNotTakeProcessorsAway(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil || own.Policy != unix.SCHED_NORMAL {
		t.Skipf("policy %+v, %v: that stays", own, err)
	}
	name, _ := testDriver(t).platform.Info(cl.PLATFORM_NAME)
	if answers.Text(name) != "Portable Computing Language" {
		t.Skip("not for this driver: ", answers.Text(name))
	}
	p := startProcess(t)
	found := policies(t, p.cmd.Process.Pid)
	if found[unix.SCHED_BATCH] == 0 {
		t.Errorf("no thread of the driver's is patient: %v", found)
	}
	if found[unix.SCHED_NORMAL] < 2 {
		t.Errorf("the worker's own threads are patient too: %v", found)
	}
	if a, err := unix.SchedGetAttr(p.cmd.Process.Pid, 0); err != nil || a.Policy != unix.SCHED_NORMAL {
		t.Errorf("the main thread: %+v, %v", a, err)
	}
}

func TestTheOwnPolicyComesBack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	within := before.Policy
	if err := withPatientThreads(func() error {
		a, err := unix.SchedGetAttr(0, 0)
		if err == nil {
			within = a.Policy
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if before.Policy == unix.SCHED_NORMAL && within != unix.SCHED_BATCH {
		t.Errorf("policy %d in the call", within)
	}
	if after, err := unix.SchedGetAttr(0, 0); err != nil || *after != *before {
		t.Errorf("policy %+v, %v afterwards; it was %+v", after, err, before)
	}
}
