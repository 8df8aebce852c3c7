package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cuda/fakecuda"
)

// The driver's settings come from the environment and hold for a process's life: each case is a process of its own,
// this program once more.
const caseVariable = "TENDRIL_CUDA_TEST"

func TestMain(m *testing.M) {
	if name := os.Getenv(caseVariable); name != "" {
		if err := cases[name](os.Getenv("TENDRIL_CUDA_DRIVER")); err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var cases = map[string]func(driver string) error{"whole": whole, "host": host, "foreign": foreign,
	"full": full}

// run runs a case and gives what it said and what the driver counted.
func run(t *testing.T, driver, name string, env ...string) (said string, calls, left int, err error) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), append(env, caseVariable+"="+name, "TENDRIL_CUDA_DRIVER="+driver,
		"CUDA_FAKE_LOG="+log)...)
	out, err := cmd.CombinedOutput()
	text, _ := os.ReadFile(fmt.Sprintf("%s.%d", log, cmd.Process.Pid))
	if _, scanErr := fmt.Sscanf(string(text), "calls %d left %d", &calls, &left); scanErr != nil && err == nil {
		t.Fatalf("the driver's log %q: %v", text, scanErr)
	}
	return strings.TrimSpace(string(out)), calls, left, err
}

// whole is the life of an allocation: made, filled, exported, imported, read and given back. What it took it gives back
// also where a call fails.
func whole(driver string) (err error) {
	l, err := Open(driver)
	if err != nil {
		return err
	}
	list, err := l.Devices()
	if err != nil {
		return err
	}
	if len(list) != 2 || list[1].UUID[15] != 1 || !list[1].Shares || list[1].Name != "Fake GPU 1" || list[1].Bytes == 0 {
		return fmt.Errorf("devices: %+v", list)
	}
	c, err := l.Context(list[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	n, err := c.Granularity()
	if err != nil {
		return err
	}
	if _, err := c.FreeBytes(); err != nil {
		return err
	}
	fd, err := made(c, n)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return imported(c, fd, n)
}

// made makes an allocation, writes to it and gives its descriptor alone.
func made(c *Context, n uint64) (fd int, err error) {
	m, err := c.Create(n)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, m.Release()) }()
	v, err := m.Map()
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, v.Unmap()) }()
	if err = v.Fill(7, 0, n); err == nil {
		err = v.Write(100, []byte("canary"))
	}
	if err != nil {
		return -1, err
	}
	return m.Export()
}

func imported(c *Context, fd int, n uint64) (err error) {
	m, err := c.Import(fd, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Release()) }()
	v, err := m.Map()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Unmap()) }()
	if err := v.CopyFrom(0, v, 99, 8); err != nil {
		return err
	}
	got := make([]byte, 8)
	if err := v.Read(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, []byte("\x07canary\x07")) {
		return fmt.Errorf("the memory holds %q", got)
	}
	return beyond(v, n)
}

// beyond asks for bytes that the mapping does not have.
func beyond(v *Mapping, n uint64) error {
	for _, err := range []error{v.Read(make([]byte, 1), n), v.Write(n-1, make([]byte, 2)), v.Fill(0, 1, n),
		v.CopyFrom(n, v, 0, 1), v.CopyFrom(0, v, n, 1), v.Fill(0, ^uint64(0), 2)} {
		if err == nil {
			return errors.New("bytes beyond the mapping's end")
		}
	}
	return nil
}

// host is what devices copy by themselves: through queues from and to memory that is pinned, and one from the other's
// memory. What it took it gives back also where a call fails.
func host(driver string) (err error) {
	l, err := Open(driver)
	if err != nil {
		return err
	}
	list, err := l.Devices()
	if err != nil {
		return err
	}
	var places [2]*Mapping
	for i := range places {
		c, fault := l.Context(list[i])
		if fault != nil {
			return fault
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		m, fault := c.Create(2 << 20)
		if fault != nil {
			return fault
		}
		defer func() { err = errors.Join(err, m.Release()) }()
		if places[i], fault = m.Map(); fault != nil {
			return fault
		}
		defer func() { err = errors.Join(err, places[i].Unmap()) }()
	}
	return queued(places[0], places[1])
}

// queued writes to one device, copies to the other one, which lets the first one do that, and reads from there.
func queued(a, b *Mapping) (err error) {
	if can, err := a.c.Reaches(b.c); err != nil || !can {
		return fmt.Errorf("reaches: %v, %w", can, err)
	}
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	pin, err := a.c.Pin(memory, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pin.Unpin()) }()
	var already *Error
	if _, err := b.c.Pin(memory, false); !errors.As(err, &already) || already.Code != 712 {
		return fmt.Errorf("memory is pinned twice: %w", err)
	}
	copy(memory, "canary")
	to, err := a.c.Stream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	from, err := b.c.Stream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := errors.Join(a.WriteLater(to, 100, memory[:6]), to.Wait()); err != nil {
		return err
	}
	copied, err := a.c.Event()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	if err := errors.Join(b.Allow(a.c), from.Await(copied), b.CopyLater(to, 50, a, 100, 6), to.Record(copied),
		from.Await(copied)); err != nil {
		return err
	}
	if err := errors.Join(b.ReadLater(from, memory[10:16], 50), from.Wait()); err != nil {
		return err
	}
	if string(memory[:16]) != "canary\x00\x00\x00\x00canary" {
		return fmt.Errorf("the memory holds %q", memory[:16])
	}
	for _, err := range []error{a.WriteLater(to, 2<<20, memory[:1]), a.ReadLater(to, memory[:1], 2<<20),
		a.CopyLater(to, 0, b, 2<<20, 1), a.CopyLater(to, 2<<20, b, 0, 1),
		a.ReadLater(to, memory[:2], ^uint64(0))} {
		if err == nil {
			return errors.New("bytes beyond the mapping's end")
		}
	}
	if _, err := a.c.Pin(nil, false); err == nil {
		return errors.New("nothing was pinned")
	}
	// No bytes.
	return errors.Join(a.WriteLater(to, 2<<20, nil), a.ReadLater(to, nil, 2<<20), a.CopyLater(to, 0, b, 0, 0))
}

// foreign imports what is no allocation.
func foreign(driver string) error {
	l, err := Open(driver)
	if err != nil {
		return err
	}
	list, err := l.Devices()
	if err != nil {
		return err
	}
	c, err := l.Context(list[0])
	if err != nil {
		return err
	}
	var why *Error
	if _, err := c.Import(0, 4096); !errors.As(err, &why) || why.Name != "CUDA_ERROR_INVALID_VALUE" {
		return fmt.Errorf("standard input as an allocation: %v", err)
	}
	return c.Close()
}

// full asks for more than there is.
func full(driver string) error {
	l, err := Open(driver)
	if err != nil {
		return err
	}
	list, err := l.Devices()
	if err != nil {
		return err
	}
	c, err := l.Context(list[0])
	if err != nil {
		return err
	}
	var why *Error
	if _, err := c.Create(1 << 40); !errors.As(err, &why) || why.Code != OutOfMemory {
		return fmt.Errorf("1 TiB: %v", err)
	}
	return c.Close()
}

func TestAnAllocationPassesAsADescriptor(t *testing.T) {
	driver := fakecuda.Build(t)
	for name := range cases {
		said, calls, left, err := run(t, driver, name)
		if err != nil || said != "" || left != 0 || calls == 0 {
			t.Errorf("%s: %q, %d calls, %d left, %v", name, said, calls, left, err)
		}
	}
}

// Each call of the driver fails once: that is an error which names it, and nothing stays taken but what the failed call
// itself was to give back, and what that was in the way of.
func TestEveryFailedCallIsAnError(t *testing.T) {
	driver := fakecuda.Build(t)
	for _, name := range []string{"whole", "host"} {
		_, calls, _, err := run(t, driver, name)
		if err != nil || calls < 30 {
			t.Fatalf("%s: %d calls, %v", name, calls, err)
		}
		for i := 1; i <= calls; i++ {
			said, _, left, err := run(t, driver, name, "CUDA_FAKE_FAIL="+strconv.Itoa(i)+":700")
			if err == nil || !strings.Contains(said, "CUDA_ERROR_ILLEGAL_ADDRESS (700)") {
				t.Errorf("%s: call %d failed, and %q, %v", name, i, said, err)
			}
			if left != 0 && !regexp.MustCompile(
				"cuMemUnmap:|cuMemRelease:|cuMemAddressFree:|cuDevicePrimaryCtxRelease:|cuMemHostUnregister:|cuStreamDestroy:|cuEventDestroy:").
				MatchString(said) {
				t.Errorf("%s: call %d failed with %q, and %d things stayed taken", name, i, said, left)
			}
		}
	}
}

// An error lasts where the device's context is broken, and where it is not known what the device still does.
func TestErrorsThatLast(t *testing.T) {
	for _, x := range []struct {
		err   Error
		lasts bool
	}{
		{Error{Function: "cuMemCreate", Code: OutOfMemory}, false},
		{Error{Function: "cuMemHostRegister", Code: 800}, false},
		{Error{Function: "cuMemcpyHtoD", Code: 700}, true},
		{Error{Function: "cuMemCreate", Code: 999}, true},
		{Error{Function: "cuStreamSynchronize", Code: 1}, true},
		{Error{Function: "cuCtxSynchronize", Code: 800}, true},
	} {
		if x.err.Lasts() != x.lasts {
			t.Errorf("%v lasts: %v", &x.err, x.err.Lasts())
		}
	}
}

func TestADriverThatCannotBeLoaded(t *testing.T) {
	if _, err := Open("/nonexistent/libcuda.so.1"); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("%v", err)
	}
	if _, err := Open("libc.so.6"); err == nil || !strings.Contains(err.Error(), "cuInit") {
		t.Errorf("a library that is no driver: %v", err)
	}
}
