package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/daemon/leases"
	"tendril/tools/e2e/rig"
)

// leasesOf lists a node's leases, and who waits.
func leasesOf(t *testing.T, n *rig.Node) (list []leases.Status) {
	t.Helper()
	out, err := n.Run(t.Context(), "leases", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// While a program runs under tendril lease, its own OpenCL programs alone see the devices; who waits gets them when it
// is killed, and then everybody sees them again.
func TestLease(t *testing.T) {
	t.Parallel()
	need(t, "clinfo", installed("clinfo"))
	n := node(t)
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	inside := n.Tendril() + " run -- clinfo --list >" + filepath.Join(dir, "inside") + " 2>&1; touch " + began + "; exec sleep 1000"
	holder := n.Command(t.Context(), "lease", "-n", "all", "--", "sh", "-c", inside)
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() { held <- holder.Wait() }()
	eventually(t, func() error { _, err := os.Stat(began); return err })
	if text, err := os.ReadFile(filepath.Join(dir, "inside")); err != nil || !strings.Contains(string(text), "Device #0") {
		t.Errorf("inside: %q, %v", text, err)
	}
	eventually(t, func() error { // clinfo's session ends a moment after it
		if list := leasesOf(t, n); len(list) != 1 || list[0].Count < 1 || list[0].Sessions != 1 {
			return fmt.Errorf("leases: %+v", list)
		}
		return nil
	})
	for _, args := range [][]string{{"run", "--"}, {"run", "--lease", "1", "--"}} {
		said, complained, err := rig.Said(n.Command(t.Context(), append(args, "clinfo", "--list")...), limit)
		if strings.Contains(said, "Device #") || !strings.Contains(complained, "no OpenCL platform") {
			t.Errorf("%v: %v, said %q, complained %q", args, err, said, complained)
		}
	}
	waiter := n.Command(t.Context(), "run", "--lease", "1", "--wait", "--", "clinfo", "--list")
	var said, complained rig.Buffer
	waiter.Stdout, waiter.Stderr = &said, &complained
	if err := waiter.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- rig.Await(waiter, limit) }()
	eventually(t, func() error {
		if list := leasesOf(t, n); len(list) != 2 || list[1].Place != 1 {
			return errors.New("not yet")
		}
		if !strings.Contains(complained.String(), "waiting for a lease") { // the daemon keeps the question for up to 1 s
			return fmt.Errorf("the one that waits was not told: %q", complained.String())
		}
		return nil
	})
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-held
	if err := <-waited; err != nil || !strings.Contains(said.String(), "Device #0") {
		t.Errorf("the one that waited: %v, saw %q", err, said.String())
	}
	eventually(t, func() error {
		said, _, err := rig.Said(n.Command(t.Context(), "run", "--", "clinfo", "--list"), limit)
		if !strings.Contains(said, "Device #0") {
			return errors.New("not yet")
		}
		return err
	})
	noLease(t, n)
	eventually(t, idle(t.Context(), n))
}

// noLease waits until a node has none.
func noLease(t *testing.T, n *rig.Node) {
	t.Helper()
	eventually(t, func() error {
		if list := leasesOf(t, n); len(list) > 0 {
			return fmt.Errorf("leases that are left: %+v", list)
		}
		return nil
	})
}

// A program whose lease ends before it does is told to end: at the longest time of a lease, or when somebody ends the
// lease's session.
func TestLeaseEndsFirst(t *testing.T) {
	t.Parallel()
	t.Run("its longest time", func(t *testing.T) {
		for longest := time.Second; ; longest *= 4 { // where it was over before the program had begun
			if leaseEnds(t, longest, fmt.Sprintf("the longest time of a lease, %v, is over", longest)) {
				break
			}
			if longest > time.Minute {
				t.Fatalf("no program begins in a lease of %v", longest)
			}
		}
	})
	t.Run("somebody", func(t *testing.T) {
		leaseEnds(t, time.Hour, "was ended by its own user with tendril session end")
	})
}

// leaseEnds has a lease end before its program, for a reason; false: it was over before the program could be told.
func leaseEnds(t *testing.T, longest time.Duration, why string) bool {
	t.Helper()
	n, begun := node(t, "TENDRIL_LEASE_TIME="+longest.String()), filepath.Join(t.TempDir(), "begun")
	holder := n.Command(t.Context(), "lease", "--", "sh", "-c",
		"trap 'echo told; exit 3' TERM; : >"+begun+"; while :; do sleep 0.05; done")
	if longest == time.Hour {
		ctx, stop := context.WithCancel(t.Context())
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			killSession(ctx, t, n, begun)
		}()
		defer func() { stop(); <-killed }()
	}
	said, complained, err := rig.Said(holder, limit)
	noLease(t, n)
	if _, late := os.Stat(begun); late != nil && longest < time.Hour {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || said != "told\n" ||
		!strings.Contains(complained, "the lease has ended") ||
		!strings.Contains(complained, why) {
		t.Errorf("%v, said %q, complained %q", err, said, complained)
	}
	return true
}

// killSession ends the node's first session, once there is one and its program has made a file, or gives up with ctx.
func killSession(ctx context.Context, t *testing.T, n *rig.Node, begun string) {
	for {
		_, early := os.Stat(begun)
		s, err := n.Status(t.Context())
		if err == nil && early == nil && len(s.Sessions) > 0 {
			if out, err := n.Run(t.Context(), "session", "kill", fmt.Sprint(s.Sessions[0].ID)); err != nil {
				t.Errorf("%s: %v", out, err)
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // Pause: between two looks
	}
}
