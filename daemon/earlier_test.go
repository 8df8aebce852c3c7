package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/cluster"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/store"
	"tendril/store/object"
)

// runOnce starts what makes the parts of the state directory, and ends it.
func runOnce(t *testing.T, c Config, prepare func(*Daemon)) (node fsm.UUID, err error) {
	t.Helper()
	err = runTo(t, c, "first start", prepare, func(d *Daemon) { node = d.meta.node })
	return node, err
}

// runTo starts a node up to a step, looks at it, and ends it.
func runTo(t *testing.T, c Config, last string, prepare, look func(*Daemon)) error {
	t.Helper()
	d := newDaemon(t, c)
	prepare(d)
	var started []step
	defer func() {
		d.cancel()
		if err := d.unwind(started); err != nil {
			t.Error(err)
		}
	}()
	for _, s := range d.steps() {
		if err := s.start(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if started = append(started, s); s.name == last {
			look(d)
			return nil
		}
	}
	t.Fatal("no step ", last)
	return nil
}

// Each combination of what a state directory can lack: a start goes on only where nothing is missing that was there, or
// everything is.
func TestAStateDirectoryThatIsNotWhole(t *testing.T) {
	whole := t.TempDir()
	c := aConfig(t)
	c.StateDir = filepath.Join(whole, "state")
	node, err := runOnce(t, c, func(*Daemon) {})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.StateDir, firstStartFile)); left != nil {
		t.Error("after the first start: ", left)
	}
	parts := []string{cluster.IdentityFile, pki.AuthorityFile, pki.NodeFile, raftFolder}
	for lost := range 1 << len(parts) {
		var names []string
		for i, p := range parts {
			if lost&(1<<i) != 0 {
				names = append(names, p)
			}
		}
		t.Run("without="+strings.Join(names, "+"), func(t *testing.T) {
			c := c
			c.StateDir = filepath.Join(t.TempDir(), "state")
			if out, err := exec.Command("cp", "-a", filepath.Join(whole, "state"),
				c.StateDir).CombinedOutput(); err != nil {
				t.Fatal(string(out))
			}
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(c.StateDir, name)); err != nil {
					t.Fatal(err)
				}
			}
			before := listed(t, c.StateDir)
			got, err := runOnce(t, c, func(*Daemon) {})
			switch fresh, fine := len(names) == len(parts), lost == 0 || lost == 1<<2; { // the certificate alone may go
			case fresh && (err != nil || got == node):
				t.Errorf("an empty directory is a new node's: %v, %v", got, err)
			case fine && (err != nil || got != node):
				t.Errorf("it is the node that it was: %v, %v", got, err)
			case !fresh && !fine && !errors.Is(err, ErrIncomplete):
				t.Errorf("it started, or failed for another reason: %v", err)
			case !fresh && !fine && !strings.Contains(err.Error(), "--bootstrap-anyway"):
				t.Errorf("it does not say what to do: %v", err)
			case !fresh && !fine && before != listed(t, c.StateDir):
				t.Errorf("something was made before it was refused: %s", listed(t, c.StateDir))
			}
		})
	}
}

// The objects' folder alone, which persisted objects are in, lost or another one; a node that never persisted any has
// nothing to miss.
func TestObjectsThatAreGone(t *testing.T) {
	c := aConfig(t)
	folder := filepath.Join(c.StateDir, "objects")
	fine := func(when string, c Config, prepare, look func(*Daemon)) {
		t.Helper()
		if err := runTo(t, c, "store", prepare, look); err != nil {
			t.Fatal(when, ": ", err)
		}
	}
	none := func(*Daemon) {}
	has := func(want int) func(*Daemon) {
		return func(d *Daemon) {
			if n := d.store.Status().Objects; n != want {
				t.Errorf("%d objects, want %d", n, want)
			}
		}
	}
	refused := func(when string, c Config) {
		t.Helper()
		before := listed(t, c.StateDir)
		err := runTo(t, c, "store", none, none)
		if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "objects") ||
			!strings.Contains(err.Error(), "--bootstrap-anyway") {
			t.Errorf("%s: %v", when, err)
		}
		if after := listed(t, c.StateDir); after != before {
			t.Errorf("%s: something was made before it was refused: %s", when, after)
		}
	}
	lose := func() { must(t, os.RemoveAll(folder)) }
	fine("the first start", c, none, none)
	lose()
	fine("without objects that had to last", c, none, persistOne(t))
	fine("as it was", c, none, has(1))
	aside := folder + "-aside"
	must(t, os.Rename(folder, aside))
	refused("without the folder", c)
	must(t, os.Mkdir(folder, 0o700))
	refused("with an empty one, where a volume is not mounted", c)
	unused := c
	unused.SpillBytes = -1
	fine("where nothing goes to disk", unused, none, has(0))
	must(t, errors.Join(os.Remove(folder), os.Rename(aside, folder)))
	fine("with the folder again", c, none, has(1))
	lose()
	fine("with --bootstrap-anyway", c, (*Daemon).BootstrapAnyway, has(0))
	fine("the start after that", c, none, persistOne(t))
	must(t, errors.Join(os.Remove(filepath.Join(folder, "kept")), os.Remove(folder+".kept")))
	fine("as an earlier release left it", c, none, has(1))
	lose()
	refused("after that", c)
}

// persistOne puts an object on disk, to stay there.
func persistOne(t *testing.T) func(*Daemon) {
	return func(d *Daemon) {
		conn, err := d.store.Connect(store.Owner{Tenant: "t"})
		must(t, err)
		defer conn.Close()
		h, err := conn.Create(store.Spec{SizeBytes: 10, Name: "lasts", Class: object.Persisted})
		must(t, err)
		must(t, errors.Join(unix.Close(h.FD), conn.Seal(h.ID, false)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(entries)
}

// The log's folder with nothing of the log in it, and with a part of it alone.
func TestALogThatIsGone(t *testing.T) {
	c := aConfig(t)
	if _, err := runOnce(t, c, func(*Daemon) {}); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(c.StateDir, raftFolder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries[1:] {
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := runOnce(t, c, func(*Daemon) {}); !errors.Is(err, raftnode.ErrDamaged) {
		t.Errorf("with %s alone: %v", entries[0].Name(), err)
	}
	if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700),
		os.Mkdir(filepath.Join(folder, "snapshots"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := runOnce(t, c, func(*Daemon) {}); !errors.Is(err, raftnode.ErrDamaged) ||
		!strings.Contains(err.Error(), "--bootstrap-anyway") {
		t.Errorf("with an empty folder: %v", err)
	}
	if _, err := runOnce(t, c, (*Daemon).BootstrapAnyway); err != nil {
		t.Errorf("with --bootstrap-anyway: %v", err)
	}
	if _, err := runOnce(t, c, func(*Daemon) {}); err != nil {
		t.Errorf("the start after that: %v", err)
	}
}

// A first start that was cut short at any step goes on at the next.
func TestAFirstStartThatWasCutShort(t *testing.T) {
	for steps := 3; steps <= 8; steps++ {
		c := aConfig(t)
		d := newDaemon(t, c)
		all := d.steps()[:steps]
		for _, s := range all {
			if err := s.start(); err != nil {
				t.Fatal(s.name, ": ", err)
			}
		}
		d.cancel()
		if err := d.unwind(all); err != nil {
			t.Fatal(err)
		}
		if _, err := runOnce(t, c, func(*Daemon) {}); err != nil {
			t.Errorf("after %s: %v", all[steps-1].name, err)
		}
	}
}
