package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/forwarding/opencl/nullcl"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// clDevice is the n-th device of the OpenCL driver for tests.
func clDevice(n byte) (d object.Device) {
	for i := range d {
		d[i] = 0xce
	}
	d[15] = n
	return d
}

// null is the memory of a node with the OpenCL driver for tests, which has two devices, in the order that places says.
type null struct {
	*Devices
	icd    string
	places atomic.Pointer[[]OpenCL]
}

func (n *null) shows(devices map[string]int) {
	n.places.Store(&[]OpenCL{{ICD: n.icd, Devices: devices}})
}

func newNull(t *testing.T) *null {
	t.Helper()
	t.Setenv("NULLCL_BYTES", fmt.Sprint(8<<20))
	t.Setenv("NULLCL_DEVICES", "2")
	n := &null{icd: nullcl.Build(t)}
	n.shows(map[string]int{clDevice(0).String(): 0, clDevice(1).String(): 1})
	log := logrus.New()
	log.SetOutput(io.Discard)
	cuda := newKeeper(t, Options{Driver: None})
	n.Devices = NewDevices(cuda, Options{Executable: "/proc/self/exe", Args: []string{keeperArgument}, Log: log},
		func(context.Context) ([]OpenCL, error) { return *n.places.Load(), nil },
		func() []OpenCL { return *n.places.Load() })
	t.Cleanup(n.Close)
	return n
}

// on is memory of a device, with bytes in it.
func (n *null) on(t *testing.T, device object.Device, what []byte) store.Place {
	t.Helper()
	p := placeOf(t, n.Devices, device, uint64(len(what)))
	p.Kind = object.OpenCL
	if err := n.Copy(nobody, p, inHost(t, what), uint64(len(what))); err != nil {
		t.Fatal(err)
	}
	return p
}

// has says that an object's bytes can be read.
func (n *null) has(t *testing.T, p store.Place, want []byte) {
	t.Helper()
	back := inHost(t, make([]byte, len(want)))
	if err := n.Copy(nobody, back, p, uint64(len(want))); err != nil {
		t.Error(err)
	} else if !bytes.Equal(contents(t, back.FD, len(want)), want) {
		t.Error("other bytes")
	}
}

func (n *null) kill(t *testing.T) {
	t.Helper()
	for _, s := range n.Status() {
		if s.PID != 0 {
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A device that comes back elsewhere in its platform, or on another one, is served from there: the keeper before it
// ends, and the next one has the bytes.
func TestAnOpenCLDeviceMoves(t *testing.T) {
	n := newNull(t)
	want := pattern(100_000)
	p := n.on(t, clDevice(1), want)
	before, err := n.find(clDevice(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NULLCL_ORDER", "10")
	n.shows(map[string]int{clDevice(0).String(): 1, clDevice(1).String(): 0})
	n.has(t, p, want)
	after, err := n.find(clDevice(1))
	if err != nil || after == before {
		t.Fatalf("the keeper of the place where it was serves it: %v", err)
	}
	await.Until(t, "the end of the keeper before", func() bool { return before.Status().PID == 0 })
	if n.Kind(clDevice(1), false) != object.OpenCL || n.Kind(clDevice(1), true) != object.OpenCL {
		t.Error("it is of another kind")
	}
	n.Forget(p.FD)
	await.Until(t, "the end of its memory", func() bool { return mapsTwins(t, after.Status().PID) == 0 })
}

// Memory of a device that is gone, that has no room any more, or whose driver is broken or hangs, is read from its
// twin; it is not written.
func TestAnOpenCLDeviceIsGone(t *testing.T) {
	for name, breaks := range map[string]func(*testing.T, *null){
		"the device":   func(t *testing.T, _ *null) { t.Setenv("NULLCL_DEVICES", "0") },
		"its room":     func(t *testing.T, _ *null) { t.Setenv("NULLCL_BYTES", "4096") },
		"its platform": func(_ *testing.T, n *null) { n.places.Store(&[]OpenCL{}); clear(n.found) },
		"the driver": func(t *testing.T, n *null) {
			if err := os.Remove(n.icd); err != nil {
				t.Fatal(err)
			}
		},
		"a driver that crashes": func(t *testing.T, _ *null) { t.Setenv("NULLCL_DIE", "3") },
		"a driver that hangs": func(t *testing.T, n *null) {
			t.Setenv("NULLCL_HANG", "3")
			n.found[clDevice(1)].opts.RequestTime = 200 * time.Millisecond
		},
		"another one is there": func(t *testing.T, _ *null) { t.Setenv("NULLCL_ORDER", "23") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNull(t)
			want := pattern(100_000)
			p := n.on(t, clDevice(1), want)
			n.kill(t)
			breaks(t, n)
			n.has(t, p, want)
			part := p
			part.Offset = 4097
			n.has(t, part, want[4097:5000])
			if err := n.Copy(nobody, p, inHost(t, want), 10); err == nil {
				t.Error("a device that is gone was written")
			}
			gone := store.Asker{Gone: func() bool { return true }}
			if err := n.Copy(gone, inHost(t, want), p, 10); !errors.Is(err, object.ErrTimeout) &&
				!errors.Is(err, object.ErrNoDevice) {
				t.Errorf("for who has gone: %v", err)
			}
		})
	}
}

// A copy that failed before its first step has ended leaves nothing: what the keeper made for it goes with the object.
func TestFailedCopiesLeaveNothing(t *testing.T) {
	n := newNull(t)
	p := n.on(t, clDevice(0), pattern(4096))
	k, err := n.find(clDevice(0))
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	before := k.process
	k.mu.Unlock()
	n.kill(t)
	await.Until(t, "the keeper's end", before.over)
	short := inHost(t, []byte("short"))
	short.Bytes = 1 << 20 // it has less
	if err := n.Copy(nobody, p, short, 4096); err == nil {
		t.Fatal("more than there is was copied")
	}
	pid := n.pid()
	if mapsTwins(t, pid) != 1 {
		t.Fatal("the test's copy failed too early")
	}
	n.Forget(p.FD)
	await.Until(t, "the end of its memory", func() bool { return mapsTwins(t, pid) == 0 })
}

// Thousands of small allocations leave nothing behind in daemon and keeper.
func TestManySmallOpenCLAllocations(t *testing.T) {
	n := newNull(t)
	files := func(pid string) int {
		list, err := os.ReadDir(filepath.Join("/proc", pid, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	n.on(t, clDevice(0), pattern(10))
	pid := n.pid()
	own, theirs := files("self"), files(fmt.Sprint(pid))
	for range 3 {
		var fds []int
		for i := range 1000 {
			fd, real, err := n.Allocate(nobody, clDevice(byte(i%2)), uint64(i%4096+1))
			if err != nil || real != 4096 {
				t.Fatalf("allocation %d: %d bytes, %v", i, real, err)
			}
			fds = append(fds, fd)
		}
		for _, fd := range fds {
			n.Forget(fd)
			unix.Close(fd)
		}
	}
	await.Until(t, "the end of them all", func() bool { return mapsTwins(t, pid) == 1 })
	// A keeper closes what came with a request after it has answered: so each count may have two more than stay.
	const closing = 2
	if a, b := files("self"), files(fmt.Sprint(pid)); a > own+closing || b > theirs+closing || n.pid() != pid {
		t.Errorf("%d descriptors here and %d there, before %d and %d; process %d, before %d", a, b, own, theirs, n.pid(), pid)
	}
}

// hostileKeeper names the variable that says what a keeper of OpenCL memory answers in place of what is true.
const hostileKeeper = "TEST_HOSTILE_KEEPER"

// answerGarbage is such a keeper. It does not return.
func answerGarbage(what string) {
	twin := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("twin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil || unix.Ftruncate(fd, size) != nil {
			os.Exit(3)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			os.Exit(4)
		}
		return fd
	}
	packet := make([]byte, 1<<16)
	for {
		n, err := unix.Read(3, packet)
		if n <= 0 || err != nil {
			os.Exit(0)
		}
		reply, fds := `{"bytes":4096}`, []int(nil)
		switch what {
		case "no descriptor":
		case "not json":
			reply = "\x00{{{"
		case "empty":
			reply = ""
		case "too long":
			reply = `{"bytes":4096,"why":"` + strings.Repeat("x", 60_000) + `"}`
		case "huge":
			reply, fds = `{"bytes":18446744073709551615}`, []int{twin(4096, fixedSize)}
		case "a pipe":
			var p [2]int
			if unix.Pipe(p[:]) != nil {
				os.Exit(5)
			}
			fds = p[:1]
		case "its socket":
			fds = []int{3}
		case "shrinks":
			fds = []int{twin(4096, 0)}
		case "smaller":
			fds = []int{twin(100, fixedSize)}
		case "larger":
			fds = []int{twin(1<<20, fixedSize)}
		case "three":
			a := twin(4096, fixedSize)
			fds = []int{a, a, a}
		case "an error and a descriptor":
			reply, fds = `{"error":"no","fault":"full","bytes":1}`, []int{twin(4096, fixedSize)}
		case "pins":
			reply, fds = `{"bytes":4096,"pinned":{"memory":[{"device":1,"inode":2}]}}`, []int{twin(1, fixedSize)}
		}
		var rights []byte
		if fds != nil {
			rights = unix.UnixRights(fds...)
		}
		_ = unix.Sendmsg(3, []byte(reply), rights, nil, 0)
		for _, fd := range fds {
			if fd != 3 {
				unix.Close(fd)
			}
		}
	}
}

// A keeper that answers garbage costs its requests, and nothing else: no descriptor stays, and nothing of it is taken
// for memory.
func TestAHostileKeeper(t *testing.T) {
	n := newNull(t)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for _, what := range []string{"no descriptor", "not json", "empty", "too long", "huge", "a pipe", "its socket",
		"shrinks", "smaller", "larger", "three", "an error and a descriptor", "pins"} {
		t.Setenv(hostileKeeper, what)
		n.kill(t)
		k, err := n.find(clDevice(0))
		if err != nil {
			t.Fatal(err)
		}
		k.rest()
		before := count()
		fd, _, err := n.Allocate(nobody, clDevice(0), 1)
		if what == "three" && err == nil { // the last of them is memory as asked for
			unix.Close(fd)
		} else if err == nil || fd >= 0 {
			t.Errorf("%s: descriptor %d, %v", what, fd, err)
		}
		k.mu.Lock()
		k.until = time.Time{} // the pause after two keepers
		clear(k.pinned)
		k.mu.Unlock()
		k.rest()
		await.Until(t, what+": its descriptors", func() bool { return count() <= before })
	}
	t.Setenv(hostileKeeper, "")
	n.has(t, n.on(t, clDevice(0), pattern(100)), pattern(100))
}
