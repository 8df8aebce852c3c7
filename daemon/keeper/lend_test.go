package keeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cuda/fakecuda"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// opened is the memory behind a handle of the fake driver's, which names its maker's process and descriptor, as another
// process opens it.
func opened(t *testing.T, handle [object.IPCHandleBytes]byte) (*os.File, int) {
	t.Helper()
	pid, fd := binary.LittleEndian.Uint32(handle[:]), binary.LittleEndian.Uint32(handle[4:])
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, int(binary.LittleEndian.Uint64(handle[8:]))
}

// What is lent is a copy: it has the object's bytes, zeros behind them, and is no part of the object.
func TestLend(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	const size = 2<<20 + 77
	from, data := onDevice(t, k, 1, size), pattern(size)
	if _, err := unix.Pwrite(from.FD, append(data, "what is behind the object"...), 0); err != nil {
		t.Fatal(err)
	}
	n, handle, real, err := k.LendIPC(nobody, from, size)
	if err != nil || real != 4<<20 || !k.HasIPC(n) || k.HasIPC(n+1) {
		t.Fatalf("%d bytes as %d, %v", real, n, err)
	}
	f, whole := opened(t, handle)
	got := contents(t, int(f.Fd()), whole)
	if whole != 4<<20 || !bytes.Equal(got[:size], data) || !bytes.Equal(got[size:], make([]byte, whole-size)) {
		t.Errorf("%d bytes, or they differ", whole)
	}
	if _, err := unix.Pwrite(int(f.Fd()), []byte("written by a reader"), 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents(t, from.FD, size), data) {
		t.Error("the object was written through the handle")
	}
	pid := k.Status().PID
	k.rest() // as when nobody has asked for a while
	if k.Status().PID != pid || !k.HasIPC(n) {
		t.Error("the keeper rests, though it has lent memory")
	}
	k.FreeIPC(n)
	k.FreeIPC(n)
	if k.HasIPC(n) {
		t.Error("it is there still")
	}
	if _, err := k.All(); err != nil { // what was given back is before it
		t.Fatal(err)
	}
	if n := left(t, log); n != 1 { // the context
		t.Errorf("the keeper has %d things of the driver's", n)
	}
	await.Until(t, "keeper at rest", func() bool { k.rest(); return k.Status().PID == 0 })
}

// The keeper is killed: the handle is dead, and said to be, and the next one is good.
func TestLentMemoryEndsWithItsKeeper(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	from := onDevice(t, k, 0, 1)
	n, _, _, err := k.LendIPC(nobody, from, 1)
	if err != nil {
		t.Fatal(err)
	}
	killKeeper(t, k)
	await.Until(t, "end of what was lent", func() bool { return !k.HasIPC(n) })
	if ended := k.EndedIPC(); !slices.Equal(ended, []uint64{n}) || len(k.EndedIPC()) != 0 {
		t.Errorf("%d has ended, and %v is said", n, ended)
	}
	again, _, _, err := k.LendIPC(nobody, from, 1)
	if err != nil || again == n || !k.HasIPC(again) || k.HasIPC(n) {
		t.Errorf("%d after %d, %v", again, n, err)
	}
	k.FreeIPC(n)
	if !k.HasIPC(again) || len(k.EndedIPC()) != 0 {
		t.Error("what ended took another with it")
	}
}

// keeperThatFails gives a keeper whose driver fails once, at a call (0: none) with a code, memory of a device, and what
// the driver logs.
func keeperThatFails(t *testing.T, driver string, call, code int) (k *Keeper, from store.Place, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	t.Setenv("CUDA_FAKE_FAIL", fmt.Sprintf("%d:%d", call, code))
	t.Setenv("CUDA_FAKE_ONCE", filepath.Join(t.TempDir(), "once"))
	k = newKeeper(t, Options{Driver: driver})
	return k, onDevice(t, k, 0, 1), log
}

// A driver that gives no handles has not failed: that is said, and nothing stays.
func TestADriverWithoutHandles(t *testing.T) {
	driver := fakecuda.Build(t)
	k, from, log := keeperThatFails(t, driver, 0, 0)
	first := called(t, log)
	if _, _, _, err := k.LendIPC(nobody, from, 1); err != nil {
		t.Fatal(err)
	}
	last, without := called(t, log), 0
	for call := first + 1; call <= last; call++ {
		k, from, log := keeperThatFails(t, driver, call, 801)
		if _, _, _, err := k.LendIPC(nobody, from, 1); errors.Is(err, object.ErrUnsupported) {
			without++
			if n := left(t, log); n != 1 { // the context
				t.Errorf("the keeper has %d things of the driver's", n)
			}
		}
		k.Close()
	}
	if without != 2 { // cuCtxSetCurrent is before each call
		t.Errorf("%d of the calls say that there are no handles", without)
	}
}

// Each call of the driver fails in turn while memory is lent and given back: that is an error or none, nothing is left
// of it, and the next one is good.
func TestCallsOfALoanThatFail(t *testing.T) {
	driver := fakecuda.Build(t)
	loan := func(k *Keeper, from store.Place) error {
		n, _, _, err := k.LendIPC(nobody, from, 1)
		if err == nil {
			k.FreeIPC(n)
		}
		return err
	}
	k, from, log := keeperThatFails(t, driver, 0, 1)
	first := called(t, log)
	if err := loan(k, from); err != nil {
		t.Fatal(err)
	}
	if _, err := k.All(); err != nil { // what was given back is before it
		t.Fatal(err)
	}
	last := called(t, log)
	failed := 0
	for call := first + 1; call <= last; call++ {
		k, from, log := keeperThatFails(t, driver, call, 1)
		err := loan(k, from)
		if err != nil {
			failed++
			if !errors.Is(err, object.ErrNoDevice) {
				t.Errorf("call %d: %v", call, err)
			}
		}
		if err := loan(k, from); err != nil {
			t.Errorf("call %d: afterwards: %v", call, err)
		}
		if _, err := k.All(); err != nil {
			t.Errorf("call %d: afterwards: %v", call, err)
		}
		if n := left(t, log); k.Status().Starts == 1 && n != 1 { // the context
			t.Errorf("call %d: the keeper has %d things of the driver's", call, n)
		}
		k.Close()
	}
	t.Logf("%d of the calls %d to %d fail a loan", failed, first+1, last)
	if failed < (last-first)/2 {
		t.Errorf("%d of %d calls fail a loan", failed, last-first)
	}
}

// What the store asks under its lock is answered while a keeper starts.
func TestAStartHoldsUpNobody(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), Env: func() []string {
		close(begun)
		<-goOn
		return os.Environ()
	}})
	started := make(chan error, 1)
	go func() {
		_, err := k.All()
		started <- err
	}()
	<-begun
	var answered atomic.Bool
	go func() {
		k.FreeIPC(1)
		answered.Store(!k.HasIPC(1) && k.EndedIPC() == nil)
	}()
	defer func() {
		close(goOn)
		if err := <-started; err != nil {
			t.Error(err)
		}
	}()
	await.Until(t, "an answer", answered.Load)
}
