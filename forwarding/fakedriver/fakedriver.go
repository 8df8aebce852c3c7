// Package fakedriver compiles drivers for tests: shared objects that are loaded as a vendor's is.
//
// It trusts its caller, a test. No state, no locks.
package fakedriver

import (
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed trouble.h
var trouble []byte

// Build compiles a driver from C, which lies in forwarding/KIND/NAME/testdata and may include trouble.h, and gives the
// path of lib<name>.so. It lasts as long as the test.
func Build(t testing.TB, name string, source []byte, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "kind", name, "testdata", name+".c"), filepath.Join(dir, "lib"+name+".so")
	for path, text := range map[string][]byte{in: source, filepath.Join(dir, "fakedriver", "trouble.h"): trouble} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out, in}, flags...)
	if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("compile the driver %s: %v\n%s", name, err, said)
	}
	return out
}
