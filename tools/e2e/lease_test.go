package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if list := leasesOf(t, n); len(list) != 1 || list[0].Count < 1 || list[0].Sessions != 1 {
		t.Errorf("leases: %+v", list)
	}
	for _, args := range [][]string{{"run", "--"}, {"run", "--lease", "1", "--"}} {
		said, complained, err := rig.Said(n.Command(t.Context(), append(args, "clinfo", "--list")...), limit)
		if strings.Contains(said, "Device #") || !strings.Contains(complained, "no OpenCL platform") {
			t.Errorf("%v: %v, said %q, complained %q", args, err, said, complained)
		}
	}
	waiter := n.Command(t.Context(), "run", "--lease", "1", "--wait", "--", "clinfo", "--list")
	out := make(chan string, 1)
	go func() {
		said, complained, err := rig.Said(waiter, limit)
		if err != nil || !strings.Contains(complained, "waiting for a lease") {
			t.Errorf("the one that waits: %v, complained %q", err, complained)
		}
		out <- said
	}()
	eventually(t, func() error {
		if list := leasesOf(t, n); len(list) != 2 || list[1].Place != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-held
	if said := <-out; !strings.Contains(said, "Device #0") {
		t.Errorf("the one that waited saw %q", said)
	}
	eventually(t, func() error {
		said, _, err := rig.Said(n.Command(t.Context(), "run", "--", "clinfo", "--list"), limit)
		if !strings.Contains(said, "Device #0") {
			return errors.New("not yet")
		}
		return err
	})
	if list := leasesOf(t, n); len(list) > 0 {
		t.Errorf("leases that are left: %+v", list)
	}
	eventually(t, idle(t.Context(), n))
}
