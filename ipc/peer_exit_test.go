package ipc

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that exits counts as ended before the kernel has closed all that it had.
func TestIsExiting(t *testing.T) {
	if isExiting(os.Getpid()) || isExiting(1<<30) {
		t.Error("this process, or none, is on its way out")
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !isExiting(cmd.Process.Pid) || !HasEnded(cmd.Process.Pid) {
		t.Error("a process that has exited, and that nobody has waited for, is not on its way out")
	}
}
