// Package fakedriver compiles drivers for tests: shared objects that are loaded as a vendor's is.
//
// It trusts its caller, a test. What it has compiled is its only state; no lock is held when it returns.
package fakedriver

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed trouble.h
var trouble []byte

// drivers has what this process has compiled, or compiles: by name, source and flags, a function of sync.OnceValues.
var drivers sync.Map

// Build compiles a driver from C, which lies in forwarding/KIND/NAME/testdata and may include trouble.h, and gives the
// path of lib<name>.so, a file of this test's own. It lasts as long as the test. A process compiles a driver once:
// compiling it for each test was half of what a package's tests took.
func Build(t testing.TB, name string, source []byte, flags ...string) string {
	t.Helper()
	key := strings.Join(append([]string{name, string(source)}, flags...), "\x00")
	once, _ := drivers.LoadOrStore(key, sync.OnceValues(func() ([]byte, error) { return compile(name, source, flags) }))
	driver, err := once.(func() ([]byte, error))()
	if err != nil {
		t.Fatalf("compile the driver %s: %v", name, err)
	}
	out := filepath.Join(t.TempDir(), "lib"+name+".so")
	if err := os.WriteFile(out, driver, 0o700); err != nil {
		t.Fatal(err)
	}
	return out
}

// compile gives the shared object. A warning is an error.
func compile(name string, source []byte, flags []string) (driver []byte, err error) {
	dir, err := os.MkdirTemp("", "tendril-driver-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	in, out := filepath.Join(dir, "kind", name, "testdata", name+".c"), filepath.Join(dir, "lib"+name+".so")
	for path, text := range map[string][]byte{in: source, filepath.Join(dir, "fakedriver", "trouble.h"): trouble} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			return nil, err
		}
	}
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out, in}, flags...)
	if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil || len(said) > 0 {
		return nil, errors.Join(err, fmt.Errorf("it said: %s", said))
	}
	return os.ReadFile(out)
}
