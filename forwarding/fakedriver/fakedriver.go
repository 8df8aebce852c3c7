// Package fakedriver compiles drivers for tests: shared objects that are loaded as a vendor's is.
//
// It trusts its caller, a test. No state, no locks.
package fakedriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build compiles a driver from C, and gives the path of lib<name>.so. It lasts as long as the test.
func Build(t testing.TB, name string, source []byte, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, name+".c"), filepath.Join(dir, "lib"+name+".so")
	if err := os.WriteFile(in, source, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out, in}, flags...)
	if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("compile the driver %s: %v\n%s", name, err, said)
	}
	return out
}
