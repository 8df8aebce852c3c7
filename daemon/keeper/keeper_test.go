package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda/fakecuda"
	host "tendril/forwarding/keeper"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// This program is the keeper, too: daemons start their own program.
const keeperArgument = "be-the-keeper"

func TestMain(m *testing.M) {
	if len(os.Args) == 7 && os.Args[1] == keeperArgument {
		pin, _ := strconv.ParseUint(os.Args[6], 10, 64)
		err := host.Main(context.Background(), host.Options{Control: os.NewFile(3, "control"), Driver: os.Args[4],
			PinBytes: pin})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 9 && os.Args[1] == keeperArgument && os.Args[3] == "--opencl" {
		if os.Getenv(hostileKeeper) != "" {
			answerGarbage(os.Getenv(hostileKeeper))
		}
		devices := map[string]int{}
		for one := range strings.SplitSeq(os.Args[8], ",") {
			uuid, place, _ := strings.Cut(one, "=")
			devices[uuid], _ = strconv.Atoi(place)
		}
		err := host.Main(context.Background(), host.Options{Control: os.NewFile(3, "control"),
			OpenCL: host.OpenCLOptions{ICD: os.Args[4], Devices: devices}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	await.Main(m)
}

// device is one that the fake driver has.
func device(n byte) (d object.Device) {
	for i := range d {
		d[i] = 0xfa
	}
	d[15] = n
	return d
}

func newKeeper(t *testing.T, o Options) *Keeper {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	o.Executable, o.Args, o.Log = "/proc/self/exe", []string{keeperArgument}, log
	k := New(o)
	t.Cleanup(k.Close)
	return k
}

// left gives what the fake driver's processes have not given back, by their number.
func left(t *testing.T, log string) int {
	t.Helper()
	_, left := logged(t, log)
	return left
}

// called gives how often the fake driver's processes have been called.
func called(t *testing.T, log string) int {
	t.Helper()
	calls, _ := logged(t, log)
	return calls
}

func logged(t *testing.T, log string) (allCalls, allLeft int) {
	t.Helper()
	files, err := filepath.Glob(log + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var calls, n int
		if _, err := fmt.Sscanf(string(text), "calls %d left %d", &calls, &n); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		allCalls += calls
		allLeft += n
	}
	return allCalls, allLeft
}

// killKeeper kills a keeper's process. PID 0, where none runs, would be this process's group.
func killKeeper(t *testing.T, k *Keeper) {
	t.Helper()
	if pid := k.Status().PID; pid == 0 {
		t.Error("no keeper runs")
	} else if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// hostMemory is a memfd with bytes in it.
func hostMemory(t *testing.T, b []byte) int {
	t.Helper()
	fd, err := unix.MemfdCreate("host", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Pwrite(fd, b, 0); err != nil {
		t.Fatal(err)
	}
	return fd
}

func contents(t *testing.T, fd, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if got, err := unix.Pread(fd, b, 0); err != nil || got != n {
		t.Fatalf("%d of %d bytes: %v", got, n, err)
	}
	return b
}

// A GPU that is not offered has no objects; the daemon itself asks about it, and has memory of it to try a driver with.
func TestASampleOfAGPUThatIsNotOffered(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), Offers: func(string) (bool, string) { return false, "chosen" }})
	all, err := k.All()
	if err != nil || len(all) == 0 {
		t.Fatalf("all GPUs: %+v, %v", all, err)
	}
	if offered, err := k.Devices(); err != nil || len(offered) != 0 {
		t.Errorf("those that are offered: %+v, %v", offered, err)
	}
	if _, _, err := k.Allocate(store.Asker{}, device(1), 2<<20); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("memory for an object: %v", err)
	}
	memory, err := k.Sample(device(1).String(), 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	if info, err := memory.Stat(); err != nil || info.Size() != 2<<20 {
		t.Errorf("a sample of %d bytes: %v", info.Size(), err)
	}
	for _, uuid := range []string{"none", device(99).String()} {
		if _, err := k.Sample(uuid, 2<<20); !errors.Is(err, object.ErrUnsupported) {
			t.Errorf("a sample of GPU %s: %v", uuid, err)
		}
	}
}

func TestMemoryOfAGPU(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	if k.Status() != nil {
		t.Errorf("before the first request: %+v", k.Status())
	}
	list, err := k.Devices()
	if err != nil || len(list) != 2 || list[1].UUID != device(1).String() || list[1].Index != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	fd, n, err := k.Allocate(nobody, device(1), 5000)
	if err != nil || n != 2<<20 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	defer unix.Close(fd)
	if zero := contents(t, fd, int(n)); !bytes.Equal(zero, make([]byte, n)) {
		t.Error("the memory is not zeroed")
	}
	text := bytes.Repeat([]byte("0123456789"), 500)
	memory := store.Place{FD: fd, Device: device(1), Bytes: n, Offset: 4096}
	from := store.Place{FD: hostMemory(t, text), Bytes: 5000, Offset: 3}
	back := store.Place{FD: hostMemory(t, make([]byte, 8192)), Bytes: 8192, Offset: 5001}
	if err := errors.Join(k.Copy(nobody, memory, from, 3000), k.Copy(nobody, back, memory, 3000)); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, back.FD, 8192)[5001:8001]; !bytes.Equal(got, text[3:3003]) {
		t.Errorf("what came back begins with %q", got[:20])
	}
	other, m, err := k.Allocate(nobody, device(0), 4<<20)
	if err != nil || m != 4<<20 {
		t.Fatalf("%d bytes, %v", m, err)
	}
	defer unix.Close(other)
	if err := k.Copy(nobody, store.Place{FD: other, Device: device(0), Bytes: m}, memory, 3000); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, other, 3000); !bytes.Equal(got, text[3:3003]) {
		t.Errorf("the other device has %q", got[:20])
	}
	// A context, a queue and two events of each GPU, and windows on the one: their addresses, mapped.
	await.Until(t, "keeper with what stays for the next request alone",
		func() bool { return left(t, log) == 2*4+2 })
}

func TestWhatCannotBeHad(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	small := store.Place{FD: hostMemory(t, []byte("1234")), Bytes: 4}
	fd, n, err := k.Allocate(nobody, device(0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	memory := store.Place{FD: fd, Device: device(0), Bytes: n}
	end := memory
	end.Offset = n - 1
	foreign := memory
	foreign.FD = small.FD
	for what, x := range map[string]struct {
		err  error
		want error
	}{
		"no such device":                      {allocate(k, device(9), 1), object.ErrUnsupported},
		"more than there is":                  {allocate(k, device(0), 1<<40), object.ErrFull},
		"no bytes":                            {allocate(k, device(0), 0), object.ErrNoDevice},
		"so many that rounding overflows":     {allocate(k, device(0), ^uint64(0)), object.ErrNoDevice},
		"beyond the host memory's end":        {k.Copy(nobody, memory, small, 5), object.ErrNoDevice},
		"beyond the device memory's end":      {k.Copy(nobody, end, small, 2), object.ErrNoDevice},
		"a foreign descriptor as allocation":  {k.Copy(nobody, foreign, small, 1), object.ErrNoDevice},
		"between two places of host memory":   {k.Copy(nobody, small, small, 1), object.ErrNoDevice},
		"an allocation of another size, less": {k.Copy(nobody, store.Place{FD: fd, Device: device(0), Bytes: 4096}, small, 1), object.ErrNoDevice},
	} {
		if !errors.Is(x.err, x.want) {
			t.Errorf("%s: %v", what, x.err)
		}
	}
	if s := k.Status(); s.Starts != 1 || s.Fault != "" {
		t.Errorf("an error is an answer: %+v", s)
	}
}

func allocate(k *Keeper, d object.Device, bytes uint64) error {
	fd, _, err := k.Allocate(nobody, d, bytes)
	closeFD(fd)
	return err
}

func TestNoKeeperWithoutADriver(t *testing.T) {
	k := newKeeper(t, Options{})
	k.nodes = func() []string { return nil }
	off := newKeeper(t, Options{Driver: None})
	for _, k := range []*Keeper{k, off} {
		if _, err := k.Devices(); !errors.Is(err, object.ErrUnsupported) {
			t.Errorf("%v", err)
		}
		if k.Status() != nil {
			t.Errorf("a keeper was started: %+v", k.Status())
		}
	}
	missing := newKeeper(t, Options{Driver: "/nonexistent/libcuda.so.1"})
	if _, err := missing.Devices(); !errors.Is(err, object.ErrUnsupported) || !strings.Contains(err.Error(), "nonexistent") {
		t.Errorf("a driver that cannot be loaded: %v", err)
	}
}

// The keeper is killed between two requests: what it made is whole, and another one makes more.
func TestAKilledKeeper(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	fd, n, err := k.Allocate(nobody, device(0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	text := store.Place{FD: hostMemory(t, []byte("canary")), Bytes: 6}
	memory := store.Place{FD: fd, Device: device(0), Bytes: n}
	if err := k.Copy(nobody, memory, text, 6); err != nil {
		t.Fatal(err)
	}
	killKeeper(t, k)
	back := store.Place{FD: hostMemory(t, make([]byte, 6)), Bytes: 6}
	if err := k.Copy(nobody, back, memory, 6); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, back.FD, 6); string(got) != "canary" {
		t.Errorf("%q", got)
	}
	if s := k.Status(); s.Starts != 2 {
		t.Errorf("%+v", s)
	}
}

// The driver's order of GPUs is another one in the next keeper: UUIDs say which is meant, and memory stays where it
// was.
func TestGPUsWhoseOrderChanges(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
	order := func() (first string) {
		list, err := k.Devices()
		if err != nil || len(list) != 2 || list[0].Index != 0 || list[1].Index != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0].UUID
	}
	if first := order(); first != device(0).String() {
		t.Fatalf("%s is first", first)
	}
	var places [2]store.Place
	for i := range places {
		places[i] = onDevice(t, k, byte(i), 4096)
		if err := k.Copy(nobody, places[i], inHost(t, bytes.Repeat([]byte{byte(i + 1)}, 4096)), 4096); err != nil {
			t.Fatal(err)
		}
	}
	killKeeper(t, k)
	t.Setenv("CUDA_VISIBLE_DEVICES", "1,0")
	if first := order(); first != device(1).String() {
		t.Fatalf("%s is first in the next keeper", first)
	}
	for i, p := range places {
		back := inHost(t, make([]byte, 4096))
		if err := k.Copy(nobody, back, p, 4096); err != nil ||
			!bytes.Equal(contents(t, back.FD, 4096), bytes.Repeat([]byte{byte(i + 1)}, 4096)) {
			t.Errorf("GPU %d: %v", i, err)
		}
	}
	other := onDevice(t, k, 0, 4096)
	if err := k.Copy(nobody, other, places[1], 4096); err != nil {
		t.Error(err)
	}
	if ways := ways(k); ways[clwire.KeeperPeer] != 4096 { // it is on the other GPU, not on the first of the order
		t.Errorf("%v", ways)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "1") // one is gone
	killKeeper(t, k)
	if err := allocate(k, device(0), 1); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a GPU that is gone: %v", err)
	}
	if err := allocate(k, device(1), 1); err != nil {
		t.Errorf("the one that is left: %v", err)
	}
}

// A keeper that ends in the middle of a request, at each of the driver's calls in turn: another one does it.
func TestAKeeperThatDiesAtARequest(t *testing.T) {
	driver, log := fakecuda.Build(t), filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	for _, call := range []string{"1", "10", "20", "25", "28"} {
		t.Setenv("CUDA_FAKE_DIE", call)
		t.Setenv("CUDA_FAKE_ONCE", filepath.Join(t.TempDir(), "once"))
		k := newKeeper(t, Options{Driver: driver})
		fd, n, err := k.Allocate(nobody, device(0), 1)
		closeFD(fd)
		if s := k.Status(); err != nil || n == 0 || s.Starts != 2 || s.Fault != "" {
			t.Errorf("at call %s: %d bytes, %v, %+v", call, n, err, s)
		}
		k.Close()
	}
}

// A driver at which every keeper dies, or hangs, is asked twice, and then not at once again.
func TestADriverThatAlwaysFails(t *testing.T) {
	driver := fakecuda.Build(t)
	for variable, says := range map[string]string{"CUDA_FAKE_DIE": "killed", "CUDA_FAKE_HANG": "did not answer"} {
		t.Setenv("CUDA_FAKE_DIE", "")
		t.Setenv("CUDA_FAKE_HANG", "")
		t.Setenv(variable, "5")
		o := Options{Driver: driver}
		if variable == "CUDA_FAKE_HANG" {
			o.RequestTime = 2 * time.Second
		}
		k := newKeeper(t, o)
		_, err := k.Devices()
		if !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", variable, err)
		}
		k.mu.Lock()
		k.until = time.Now().Add(time.Hour) // as if this had gone on for long
		k.mu.Unlock()
		if _, err := k.Devices(); !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s, again: %v", variable, err)
		}
		if s := k.Status(); s.Starts != 2 || s.PID != 0 || s.Fault == "" {
			t.Errorf("%s: %+v", variable, s)
		}
		k.Close()
	}
}

// After an error with which the driver is of no use to its process any more the next request has another keeper; after
// one of the request alone it has the same.
func TestAnErrorThatLasts(t *testing.T) {
	driver := fakecuda.Build(t)
	for code, starts := range map[string]int{"1": 1, "700": 2, "999": 2} {
		t.Setenv("CUDA_FAKE_FAIL", "20:"+code)
		t.Setenv("CUDA_FAKE_ONCE", filepath.Join(t.TempDir(), "once"))
		k := newKeeper(t, Options{Driver: driver})
		err := allocate(k, device(0), 1)
		if !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), "("+code+")") {
			t.Errorf("code %s: %v", code, err)
		}
		if err := allocate(k, device(0), 1); err != nil || k.Status().Starts != starts {
			t.Errorf("after code %s: %v, %+v", code, err, k.Status())
		}
		k.Close()
	}
}

// What waits for the keeper is not done for who has gone meanwhile: others wait behind it.
func TestNothingIsDoneForWhoHasGone(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	gone, ended := make(chan struct{}), make(chan error, 2)
	who := store.Asker{Tenant: "x", Gone: func() bool { <-gone; return true }}
	k.turns.take("", nil) // somebody is served
	go func() { _, _, err := k.Allocate(who, device(0), 1); ended <- err }()
	go func() {
		ended <- k.Copy(who, store.Place{FD: -1, Device: device(0), Bytes: 1}, store.Place{FD: -1, Bytes: 1}, 1)
	}()
	close(gone)
	k.turns.give()
	for range 2 {
		if err := <-ended; !errors.Is(err, object.ErrTimeout) {
			t.Errorf("%v", err)
		}
	}
	if s := k.Status(); s != nil {
		t.Errorf("a keeper was started: %+v", s)
	}
}

// A keeper that nobody asks ends, and comes back.
func TestAKeeperRests(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), IdleTime: time.Millisecond})
	for i := range 3 {
		if _, err := k.Devices(); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "keeper at rest", func() bool { s := k.Status(); return s.PID == 0 && s.Starts > i })
	}
}

// A keeper that only the daemon's probe of drivers has asked ends with the probe; one that others use stays.
func TestAKeeperForAProbeAlone(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	if k.ProbeOver(); k.Status() != nil {
		t.Fatalf("before any question: %+v", k.Status())
	}
	probe := func() {
		t.Helper()
		if _, err := k.All(); err != nil {
			t.Fatal(err)
		}
		memory, err := k.Sample(device(1).String(), 2<<20)
		if err != nil {
			t.Fatal(err)
		}
		memory.Close()
		k.ProbeOver()
	}
	probe()
	if s := k.Status(); s.PID != 0 || s.Starts != 1 {
		t.Errorf("after a probe: %+v", s)
	}
	for i, use := range []func() error{
		func() error { _, err := k.Devices(); return err },
		func() error { return allocate(k, device(1), 2<<20) },
	} {
		if err := use(); err != nil {
			t.Fatal(err)
		}
		probe()
		if s := k.Status(); s.PID == 0 || s.Starts != 2+2*i {
			t.Errorf("after a probe beside use %d: %+v", i, s)
		}
		k.rest()
		probe()
		if s := k.Status(); s.PID != 0 {
			t.Errorf("after a rest and a probe: %+v", s)
		}
	}
}

// Close ends a request that hangs.
func TestCloseEndsWhatHangs(t *testing.T) {
	t.Setenv("CUDA_FAKE_HANG", "1")
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	answer := make(chan error, 1)
	go func() { _, err := k.Devices(); answer <- err }()
	await.Until(t, "keeper", func() bool { s := k.Status(); return s != nil && s.PID != 0 })
	k.Close()
	if err := <-answer; !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("%v", err)
	}
	if _, err := k.Devices(); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("after Close: %v", err)
	}
}

// A keeper that does not end when it is killed, for its driver hangs in the kernel, holds up neither who asks nor
// Close, and no other one is started before it has ended.
func TestAKeeperThatDoesNotEnd(t *testing.T) {
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	control, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close() // it answers nothing
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), EndTime: time.Millisecond})
	p := &process{pid: child.Process.Pid, process: child.Process, control: control, done: make(chan struct{})}
	k.mu.Lock()
	k.process = p
	k.mu.Unlock()
	k.links.Add(1) // of who waits for it
	for range 2 {
		if _, err := k.Devices(); !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("%v", err)
		}
	}
	if s := k.Status(); s == nil || s.Starts != 0 || !strings.Contains(s.Fault, "has not ended") {
		t.Errorf("%+v", s)
	}
	other := newKeeper(t, Options{EndTime: time.Millisecond})
	other.stuck = p
	other.links.Add(1)
	other.Close()
	other.links.Done()
	k.links.Done()
	close(p.done)
	if _, err := k.Devices(); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
}
