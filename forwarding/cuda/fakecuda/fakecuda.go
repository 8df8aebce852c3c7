// Package fakecuda is a CUDA driver for tests: a shared object with the entry points that package cuda calls, whose
// devices' memory is memfds. What it does on demand stands at the top of its source, testdata/fakecuda.c: fail, hang or
// end the process at the i-th call, and count what was not given back.
//
// It trusts its caller, a test. No state, no locks.
package fakecuda

import (
	_ "embed"
	"testing"

	"tendril/forwarding/fakedriver"
)

//go:embed testdata/fakecuda.c
var source []byte

// Build compiles the driver, and gives its path. It lasts as long as the test.
func Build(t testing.TB) string {
	t.Helper()
	return fakedriver.Build(t, "fakecuda", source, "-O1", "-lpthread")
}
