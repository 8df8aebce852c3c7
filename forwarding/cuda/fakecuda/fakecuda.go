// Package fakecuda is a CUDA driver for tests: a shared object with the entry points that package cuda calls, whose
// devices' memory is memfds. What it does on demand stands at the top of its source, testdata/fakecuda.c: fail, hang or
// end the process at the i-th call, and count what was not given back.
//
// It trusts its caller, a test. No state, no locks.
package fakecuda

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/fakecuda.c
var source []byte

// Build compiles the driver, and gives its path. It lasts as long as the test.
func Build(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "fakecuda.c"), filepath.Join(dir, "libfakecuda.so")
	if err := os.WriteFile(in, source, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out, in, "-lpthread")
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("compile the fake driver: %v\n%s", err, said)
	}
	return out
}
