// Package nullcl is an OpenCL driver for tests: a shared object whose commands have ended when they are enqueued, so
// that what a command through it takes is what stands before the driver. On demand its devices have memory, and it
// fails, hangs or ends the process at the i-th call, and counts what was not given back: testdata/nullcl.c says how at
// its top.
//
// It trusts its caller, a test. No state, no locks.
package nullcl

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"

	"tendril/forwarding/fakedriver"
)

//go:embed testdata/nullcl.c
var source []byte

// Build compiles the driver, and gives the path of an .icd file that names it. Both last as long as the test.
func Build(t testing.TB) string {
	t.Helper()
	driver := fakedriver.Build(t, "nullcl", source, "-O2", "-lpthread")
	icd := filepath.Join(filepath.Dir(driver), "null.icd")
	if err := os.WriteFile(icd, []byte(driver+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return icd
}
