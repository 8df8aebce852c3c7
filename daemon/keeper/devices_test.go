package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/forwarding/cuda/fakecuda"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// openCLDevice is PoCL's first device, by a UUID that the daemon gives it.
var openCLDevice = object.Device{0: 0x0c, 15: 1}

// newDevices is the memory of a node with a fake CUDA driver ("none": without) and PoCL's first device.
func newDevices(t *testing.T, driver string) *Devices {
	t.Helper()
	const icd = "/etc/OpenCL/vendors/pocl.icd"
	if _, err := os.Stat(icd); err != nil {
		t.Skip("no OpenCL driver: /etc/OpenCL/vendors/pocl.icd is not there (install pocl-opencl-icd)")
	}
	t.Setenv("POCL_DEVICES", "basic")
	t.Setenv("POCL_CACHE_DIR", t.TempDir())
	cuda := newKeeper(t, Options{Driver: driver})
	log := logrus.New()
	log.SetOutput(io.Discard)
	list := []OpenCL{{ICD: icd, Devices: map[string]int{openCLDevice.String(): 0}}}
	d := NewDevices(cuda, Options{Executable: "/proc/self/exe", Args: []string{keeperArgument}, Log: log},
		func(context.Context) ([]OpenCL, error) { return list, nil }, func() []OpenCL { return list })
	t.Cleanup(d.Close)
	return d
}

// pid is the process of the one keeper of OpenCL memory; 0: none runs.
func (d *Devices) pid() int {
	for _, s := range d.Status() {
		return s.PID
	}
	return 0
}

func placeOf(t *testing.T, d *Devices, device object.Device, size uint64) store.Place {
	t.Helper()
	fd, real, err := d.Allocate(nobody, device, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return store.Place{FD: fd, Device: device, Bytes: real}
}

// Memory of an OpenCL device is filled and read by copies, and what its keeper had is in the next keeper's when it was
// killed. It is of kind opencl; a GPU that the CUDA driver has is not.
func TestMemoryOfAnOpenCLDevice(t *testing.T) {
	d := newDevices(t, fakecuda.Build(t))
	if k := d.Kind(openCLDevice, false); k != object.OpenCL {
		t.Errorf("without waiting it is of kind %v", k)
	}
	if a, b := d.Kind(openCLDevice, true), d.Kind(device(0), true); a != object.OpenCL || b != object.CUDA {
		t.Errorf("kinds %v and %v", a, b)
	}
	const size = 3<<20 + 5
	from, to := inHost(t, pattern(size)), inHost(t, make([]byte, size))
	p := placeOf(t, d, openCLDevice, size)
	if err := d.Copy(nobody, to, p, size); err != nil || !bytes.Equal(contents(t, to.FD, size), make([]byte, size)) {
		t.Errorf("it is not zero at first: %v", err)
	}
	if err := d.Copy(nobody, p, from, size); err != nil {
		t.Fatal(err)
	}
	first := d.pid()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := d.Copy(nobody, to, p, size); err != nil || !bytes.Equal(contents(t, to.FD, size), pattern(size)) {
		t.Errorf("after its keeper was killed: %v", err)
	}
	if second := d.pid(); second == first || second == 0 {
		t.Errorf("process %d after %d", second, first)
	}
	from.Offset, p.Offset = 7, 9 // part of it, written after the loss
	if err := d.Copy(nobody, p, from, 100); err != nil {
		t.Error(err)
	}
	want := pattern(size)
	copy(want[9:], pattern(size)[7:107])
	p.Offset = 0
	if err := d.Copy(nobody, to, p, size); err != nil || !bytes.Equal(contents(t, to.FD, size), want) {
		t.Errorf("a part: %v", err)
	}
	if _, _, err := d.Allocate(nobody, object.Device{1}, 1); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a device that nobody has: %v", err)
	}
}

// Keepers are killed at any moment of copies into OpenCL memory and out of it: what was answered is there, and what
// failed is done again.
func TestKeepersOfOpenCLMemoryAreKilled(t *testing.T) {
	d := newDevices(t, None)
	d.opts.Driver, d.opts.StepBytes = "", 256<<10
	const size = 4<<20 + 7
	p, back := placeOf(t, d, openCLDevice, size), inHost(t, make([]byte, size))
	failed := 0
	for round := range 15 {
		what := bytes.Repeat([]byte{byte(round + 1)}, size)
		from := inHost(t, what)
		killed := make(chan struct{})
		timer := time.AfterFunc(time.Duration(round)*700*time.Microsecond, func() { // Pause: a moment of the copies
			defer close(killed)
			if pid := d.pid(); pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		for _, x := range [][2]store.Place{{p, from}, {back, p}} {
			err := d.Copy(nobody, x[0], x[1], size)
			for ; errors.Is(err, object.ErrNoDevice); err = d.Copy(nobody, x[0], x[1], size) {
				failed++
				time.Sleep(firstPause) // Pause: no keeper begins sooner
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !timer.Stop() {
			<-killed // the next round's keeper is not this one's
		}
		if !bytes.Equal(contents(t, back.FD, size), what) {
			t.Errorf("round %d: other bytes", round)
		}
	}
	if s := d.Status(); len(s) != 1 || s[0].Starts < 5 || failed > 15 {
		t.Errorf("%d copies failed; %+v", failed, s)
	}
}

// Between a GPU of CUDA's and an OpenCL device bytes go by way of the twin.
func TestBetweenCUDAAndOpenCL(t *testing.T) {
	d := newDevices(t, fakecuda.Build(t))
	const size = 1<<20 + 3
	cuda := placeOf(t, d, device(1), size)
	if s := d.cuda.Status(); s.PID == 0 || s.Starts != 1 {
		t.Errorf("the GPU's first memory: %+v", s)
	}
	opencl := placeOf(t, d, openCLDevice, size)
	from, back := inHost(t, pattern(size)), inHost(t, make([]byte, size))
	for _, x := range [][2]store.Place{{cuda, from}, {opencl, cuda}, {back, opencl}} {
		if err := d.Copy(nobody, x[0], x[1], size); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(contents(t, back.FD, size), pattern(size)) {
		t.Error("host, CUDA, OpenCL, host: the bytes differ")
	}
	cuda = placeOf(t, d, device(0), size)
	back = inHost(t, make([]byte, size))
	for _, x := range [][2]store.Place{{cuda, opencl}, {back, cuda}} {
		if err := d.Copy(nobody, x[0], x[1], size); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(contents(t, back.FD, size), pattern(size)) {
		t.Error("OpenCL, CUDA, host: the bytes differ")
	}
}

// mapsTwins counts the twins that a process has mapped.
func mapsTwins(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(raw, []byte("memfd:tendril-twin"))
}

// A keeper that has memory of objects does not rest, and one whose objects are gone has none and does.
func TestOpenCLMemoryIsForgotten(t *testing.T) {
	d := newDevices(t, None)
	d.opts.Driver = ""
	a, b := placeOf(t, d, openCLDevice, 1<<20), placeOf(t, d, openCLDevice, 1<<20)
	pid := d.pid()
	if n := mapsTwins(t, pid); n != 2 {
		t.Errorf("%d twins are mapped, want 2", n)
	}
	d.Forget(a.FD)
	await.Until(t, "the end of one", func() bool { return mapsTwins(t, pid) == 1 })
	k, err := d.find(openCLDevice)
	if err != nil {
		t.Fatal(err)
	}
	k.rest()
	if d.pid() != pid {
		t.Error("the keeper rests though it has memory of an object")
	}
	d.Forget(b.FD)
	await.Until(t, "the end of the other", func() bool { return mapsTwins(t, pid) == 0 })
	await.Until(t, "rest", func() bool { k.rest(); return d.pid() == 0 })
}

// With --cuda-driver none a node has no memory of any device.
func TestNoMemoryOfDevicesAtAll(t *testing.T) {
	d := newDevices(t, None)
	d.opts.Driver = None
	if err := d.Available(); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("available: %v", err)
	}
	if _, _, err := d.Allocate(nobody, openCLDevice, 1); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("allocate: %v", err)
	}
}
