//go:build cgo

package opencl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/forwarding/cl"
)

// These tests reach 30 % of the package. The rest is called by forwarding/worker alone, whose tests reach 82 % of it
// with a real driver ("go test -short -coverpkg=./forwarding/opencl ./forwarding/worker"); make difftest compares what
// each function answers with the driver's own answer.

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct{ icd, says string }{
		{filepath.Join(dir, "none.icd"), "no such file"},
		{write("empty.icd", "\n"), "names no library"},
		{write("missing.icd", "libtendril-is-not-there.so.9\n"), "libtendril-is-not-there.so.9"},
		{write("text.icd", write("text.so", "no library")), "text.so"},
	} {
		if _, err := Open(tc.icd); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.icd, err, tc.says)
		}
	}
}

func TestALibraryThatIsNoDriver(t *testing.T) {
	icd := filepath.Join(t.TempDir(), "libc.icd")
	if err := os.WriteFile(icd, []byte("libc.so.6"), 0o600); err != nil {
		t.Fatal(err)
	}
	lib, err := Open(icd)
	if err != nil {
		t.Skipf("libc.so.6 is not to be had: %v", err)
	}
	if p, err := lib.Platforms(); err == nil {
		t.Errorf("libc has %d platforms", len(p))
	}
}

// TestLaunchAllocatesNothing guards the hot path: one crossing, no garbage.
func TestLaunchAllocatesNothing(t *testing.T) {
	const icd = "/etc/OpenCL/vendors/pocl.icd"
	if _, err := os.Stat(icd); err != nil {
		t.Skip("no OpenCL driver: /etc/OpenCL/vendors/pocl.icd is not there (install pocl-opencl-icd)")
	}
	lib, err := Open(icd)
	if err != nil {
		t.Fatal(err)
	}
	platforms, err := lib.Platforms()
	if err != nil || len(platforms) == 0 {
		t.Fatalf("%d platforms, %v", len(platforms), err)
	}
	devices, err := platforms[0].Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("%d devices, %v", len(devices), err)
	}
	q, k := launchable(t, platforms[0], devices[0])
	r := &Range{Dims: 1, Global: [3]uintptr{1, 1, 1}}
	args, values := []Arg{{Index: 0, Size: 4}}, make([]byte, 16)
	status := make([]int32, 1)
	events := make([]Event, 1)
	n := testing.AllocsPerRun(100, func() {
		e, bad, s := q.Launch(k, r, args, values, After{Want: true})
		if s != cl.SUCCESS || bad != -1 {
			t.Fatalf("launch: %d, argument %d", s, bad)
		}
		events[0] = e
		Statuses(events, status)
		if e.Wait() != cl.SUCCESS {
			t.Fatal("wait")
		}
		ReleaseEvents(events)
	})
	if n > 0 {
		t.Errorf("%v allocations a launch", n)
	}
	if _, bad, s := q.Launch(k, r, []Arg{{Index: 0, Size: 4}, {Index: 7, Size: 4}}, values, After{}); bad != 1 ||
		s != cl.INVALID_ARG_INDEX {
		t.Errorf("argument 7 of 1: position %d, status %d", bad, s)
	}
}

func launchable(t *testing.T, p Platform, d Device) (Queue, Kernel) {
	t.Helper()
	c, s := p.CreateContext([]Device{d})
	if s != cl.SUCCESS {
		t.Fatal(s.Err("clCreateContext"))
	}
	q, s := c.CreateQueue(d, 0)
	if s != cl.SUCCESS {
		t.Fatal(s.Err("clCreateCommandQueue"))
	}
	prog, s := c.CreateProgram([]byte("kernel void k(int a) {}"))
	if s != cl.SUCCESS {
		t.Fatal(s.Err("clCreateProgramWithSource"))
	}
	if s := prog.Build([]Device{d}, ""); s != cl.SUCCESS {
		t.Fatal(s.Err("clBuildProgram"))
	}
	k, s := prog.CreateKernel("k")
	if s != cl.SUCCESS {
		t.Fatal(s.Err("clCreateKernel"))
	}
	t.Cleanup(func() {
		q.Finish()
		k.Release()
		prog.Release()
		q.Release()
		c.Release()
	})
	return q, k
}
