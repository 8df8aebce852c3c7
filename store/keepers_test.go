package store

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// TestKeptIsTold: who has what, in this process and in a child that has it through a descriptor alone.
func TestKeptIsTold(t *testing.T) {
	s := newStore(t, Options{})
	s.search.limit = 5 * time.Minute // a busy machine has many processes
	c := connect(t, s, "x")
	mapped := keepOne(t, c, 1<<20)
	m := mapHandle(t, mapped, false)
	child := keepOne(t, c, 2<<20)
	f := os.NewFile(uintptr(child.FD), "segment")
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	givenUp := func(since time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.remnants {
			r.since = since
		}
	}
	givenUp(time.Now().Add(time.Hour)) // just now, however long the child's start took
	if list := s.Kept(); len(list) != 0 {
		t.Errorf("at once: %+v", list)
	}
	givenUp(time.Now().Add(-keptAfter))
	list := s.Kept()
	if len(list) != 1 || list[0].Tenant != "x" || list[0].Bytes != 3<<20 || list[0].Segments != 2 {
		t.Fatalf("%+v", list)
	}
	for pid, want := range map[int]string{os.Getpid(): fmt.Sprint(1<<20, 1), cmd.Process.Pid: fmt.Sprint(2<<20, 1)} {
		if !slices.ContainsFunc(list[0].Holders, func(k Keeper) bool {
			return k.PID == pid && fmt.Sprint(k.Bytes, k.Segments) == want && int(k.UID) == os.Getuid()
		}) {
			t.Errorf("process %d is to have %s: %+v", pid, want, list)
		}
	}
	m.Unmap()
	cmd.Process.Kill()
	cmd.Wait()
	waitFor(t, func() bool { return s.Status().KeptBytes == 0 }) // who looks through processes may have it for a moment
}
