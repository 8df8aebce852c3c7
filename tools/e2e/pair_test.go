package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// TestOneContextOverTwoPlatformsOfANode gives a node its driver twice, under two names, and a program on another
// machine a context over both: the same bytes come as natively, and what goes between the two workers takes the pair of
// sockets that the daemon made them.
func TestOneContextOverTwoPlatformsOfANode(t *testing.T) {
	t.Parallel()
	program := spanProgram(t)
	need(t, "driver", hasDriver())
	found, err := filepath.Glob("/etc/OpenCL/vendors/pocl.icd")
	if err != nil || len(found) == 0 {
		t.Skip("skipped: PoCL is not where Debian installs it")
	}
	driver, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(driver)) == "libpocl.so.2" {
		t.Skip("skipped: the library has one name alone")
	}
	vendors, err := os.MkdirTemp("", "tendril-vendors-") // workers, which have other uids, read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(vendors) })
	if err := os.Chmod(vendors, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, library := range map[string]string{"one.icd": strings.TrimSpace(string(driver)),
		"two.icd": "libpocl.so.2"} {
		if err := os.WriteFile(filepath.Join(vendors, name), []byte(library), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n, config := node(t, "TENDRIL_LISTEN=127.0.0.1:0", "TENDRIL_VENDORS="+vendors), t.TempDir()
	address := logIn(t, n, config, "")
	over := func(seed int, from ...string) {
		t.Helper()
		want := natively(t, program, seed)
		args := append(append([]string{"run", "--platforms", "node"}, from...), "--", program, fmt.Sprint(seed), "120")
		cmd := n.Command(t.Context(), args...)
		cmd.Env = append(n.Env(), "XDG_CONFIG_HOME="+config)
		got, said, err := rig.Said(cmd, limit)
		if err != nil || got != want {
			t.Fatalf("seed %d from %q: %v: %q, natively %q\n%s", seed, from, err, got, want, said)
		}
		if !strings.Contains(said, "2 devices") {
			t.Errorf("not two devices: %s", said)
		}
	}
	over(3)
	over(4, "--server", address)
	logged(t, n, 2, "two workers are linked")
	if log := n.Log(); strings.Contains(log, "no link between two workers") {
		t.Errorf("the workers of the node were not linked:\n%s", log)
	}
}
