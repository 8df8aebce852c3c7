package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/daemon/tenancy"
	"tendril/tools/e2e/rig"
)

// TestLargeSource: a source of 100 MiB builds, and the session goes on.
func TestLargeSource(t *testing.T) {
	t.Parallel()
	p := opened(t, node(t))
	p.want("large 0", "large 100")
	p.want("add 0", "add 1")
	p.want("good", "verify")
}

// compiled is what PoCL has compiled for the node's tenants: by path, when each file was written.
func compiled(t *testing.T, n *rig.Node) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(n.Dir, "state"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // what somebody wrote, and has renamed by now
			return nil
		}
		if err != nil || e.IsDir() || !strings.Contains(path, "/pocl/") || !strings.HasSuffix(path, ".so") &&
			!strings.HasSuffix(path, ".bc") {
			return err
		}
		info, err := e.Info()
		files[path] = fmt.Sprint(info.ModTime(), info.Size())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestASecondSessionCompilesNothing: the driver's own cache is the tenant's, and so a session finds what an earlier one
// compiled.
func TestASecondSessionCompilesNothing(t *testing.T) {
	t.Parallel()
	n := nodeWith(t, rig.Options{}) // it has compiled nothing
	opened(t, n).want("good", "verify")
	first := compiled(t, n)
	if len(first) == 0 {
		t.Skip("the driver is not PoCL, or keeps no cache")
	}
	opened(t, n).want("good", "verify")
	if second := compiled(t, n); !maps.Equal(first, second) {
		t.Errorf("compiled by the first session: %v\nafter the second: %v", first, second)
	}
}

// TestABuildDelaysNobody: while the compiler is at a source that it would be at for very long, the session's commands
// go on, and so do other sessions. The program's end ends the build (TestKilledClient).
func TestABuildDelaysNobody(t *testing.T) {
	t.Parallel()
	n := node(t)
	p, other := opened(t, n), opened(t, n)
	p.want("compile 0", "compile")
	for range 20 {
		p.want("add 0", "add 1")
		other.want("add 0", "add 1")
	}
	p.want("good", "verify")
	other.want("good", "verify")
}

// TestNodesBeginWithWhatAnotherCompiled: what is given to the nodes of these tests stays, for both tenants, also while
// other nodes' workers have the first numbers for users.
func TestNodesBeginWithWhatAnotherCompiled(t *testing.T) {
	t.Parallel()
	opened(t, node(t))
	given := filepath.Join(t.TempDir(), "kernels")
	if err := os.MkdirAll(filepath.Join(given, "pocl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(given, "pocl", "given"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n, config := nodeWith(t, rig.Options{Kernels: given, Env: []string{"TENDRIL_LISTEN=127.0.0.1:0"}}), t.TempDir()
	address := logIn(t, n, config, "")
	far := n.Far(t.Context(), config, "run", "--server", address, "--", session)
	begin(t, far).ready()
	opened(t, n)
	for _, tenant := range []string{fmt.Sprintf("uid:%d", os.Getuid()), "lab"} {
		if _, err := os.Stat(filepath.Join(n.Dir, "state", "cache", tenancy.CacheName(tenant), "pocl", "given")); err != nil {
			t.Error(err)
		}
	}
}
