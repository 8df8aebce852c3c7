package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// devices counts what the node shows.
func devices(t *testing.T, n *rig.Node) int {
	t.Helper()
	out, err := n.Run(t.Context(), "devices", "--json")
	var list []json.RawMessage
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestReloadFindsDrivers: a driver that is installed while the node runs is there after SIGHUP (systemctl reload), one
// that is removed is gone; programs that run notice neither.
func TestReloadFindsDrivers(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	icd, err := os.ReadFile("/etc/OpenCL/vendors/pocl.icd")
	need(t, "driver", err)
	vendors, err := os.MkdirTemp("", "tendril-vendors-") // probes run as other users, who cannot reach t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(vendors) })
	if err := os.Chmod(vendors, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(vendors, "late.icd")
	n := node(t, "TENDRIL_VENDORS="+vendors)
	if got := devices(t, n); got != 0 {
		t.Fatalf("%d devices without a driver", got)
	}
	reload := func(want int) {
		t.Helper()
		if err := syscall.Kill(n.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if got := devices(t, n); got != want {
				return fmt.Errorf("%d devices, want %d", got, want)
			}
			return nil
		})
	}
	if err := os.WriteFile(file, icd, 0o644); err != nil {
		t.Fatal(err)
	}
	reload(1)
	p := opened(t, n)
	p.want("add 0", "add 3")
	reload(1)
	p.want("good", "verify")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	reload(0)
	p.want("add 0", "add 4")
	p.want("good", "verify")
	if out, err := n.Run(t.Context(), "run", "--", session); err == nil {
		t.Errorf("a program starts without a device: %s", out)
	}
	if err := os.WriteFile(file, []byte("/no/such/library.so\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	reload(0)
	eventually(t, func() error {
		out, err := n.Run(t.Context(), "status")
		if err == nil && (!strings.Contains(out, "failed") || !strings.Contains(out, "/no/such/library.so")) {
			err = fmt.Errorf("status says nothing of a driver that does not load:\n%s", out)
		}
		return err
	})
}

// TestSystemdUnits: what is installed is what systemd understands.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	if err := installed("systemd-analyze"); err != nil {
		t.Skipf("skipped: %v", err)
	}
	absolute, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"system", "user"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "packaging", "systemd", kind, "tendril.service.in"))
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(t.TempDir(), "tendril.service")
		if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(raw), "@BINDIR@", absolute)), 0o644); err != nil {
			t.Fatal(err)
		}
		verify := exec.Command("systemd-analyze", "--"+kind, "--man=no", "verify", unit)
		verify.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir()) // where nobody is logged in there is none
		if out, said, err := rig.Said(verify, limit); err != nil || strings.Contains(out+said, "tendril.service") {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}
