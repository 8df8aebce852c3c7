// Package nullcl is an OpenCL driver for benchmarks: a shared object whose commands have ended when they are enqueued.
// What a command through it takes is what stands before the driver.
//
// It trusts its caller, a test. No state, no locks.
package nullcl

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/nullcl.c
var source []byte

// Build compiles the driver, and gives the path of an .icd file that names it. Both last as long as the test.
func Build(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	in, out, icd := filepath.Join(dir, "nullcl.c"), filepath.Join(dir, "libnullcl.so"), filepath.Join(dir, "null.icd")
	if err := os.WriteFile(in, source, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out, in)
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("compile the driver that does nothing: %v\n%s", err, said)
	}
	if err := os.WriteFile(icd, []byte(out+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return icd
}
