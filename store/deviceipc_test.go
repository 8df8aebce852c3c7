package store

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// lendingDevices lends memory that is only counted.
type lendingDevices struct {
	fakeDevices
	last  uint64
	has   map[uint64]uint64 // bytes by number
	ended []uint64          // for EndedIPC
	noMem int               // so many loans more find no memory
	short bool              // its process ends after the next loan
}

// dies ends the process that has what is lent.
func (f *lendingDevices) dies() {
	f.ended = slices.AppendSeq(f.ended, maps.Keys(f.has))
	clear(f.has)
}

func (f *lendingDevices) LendIPC(_ Asker, from Place, n uint64) (number uint64, handle [64]byte, real uint64,
	err error) {
	if err := f.called(); err != nil {
		return 0, handle, 0, err
	}
	if f.noMem > 0 {
		f.noMem--
		return 0, handle, 0, object.ErrFull
	}
	if _, err := unix.Pread(from.FD, handle[:], int64(from.Offset)); err != nil {
		return 0, handle, 0, err
	}
	f.last++
	f.has[f.last] = roundDevice(n)
	if f.short {
		f.short = false
		f.dies()
	}
	return f.last, handle, roundDevice(n), nil
}

func (f *lendingDevices) HasIPC(n uint64) bool { return f.has[n] > 0 }
func (f *lendingDevices) FreeIPC(n uint64)     { delete(f.has, n) }

func (f *lendingDevices) EndedIPC() (numbers []uint64) {
	numbers, f.ended = f.ended, nil
	return numbers
}

func TestIPCHandle(t *testing.T) {
	f := &lendingDevices{has: map[uint64]uint64{}}
	s := newStore(t, Options{Devices: f, TenantDeviceBytes: 16 << 20})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	e := onGPU(t, c, Spec{SizeBytes: 3 << 20, Name: "n", Class: object.Named}, gpuA)
	charged := func() uint64 { return s.devices[gpuA].bytes }
	if _, err := other.IPCHandle(e, ""); !errors.Is(err, object.ErrNotFound) && !errors.Is(err, object.ErrPermission) {
		t.Errorf("another tenant's: %v", err)
	}
	h, err := c.IPCHandle(object.ID{}, "n")
	if err != nil || h.Size != 3<<20 || h.Bytes != 4<<20 || h.Device != gpuA || charged() != 8<<20 || len(f.has) != 1 {
		t.Fatalf("%+v, %v, %d charged", h, err, charged())
	}
	again, err := c.IPCHandle(e, "")
	if err != nil || again.Number == h.Number || charged() != 12<<20 {
		t.Errorf("%+v, %v, %d charged", again, err, charged())
	}
	if err := c.CloseIPC(h.Number + 100); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("one that never was: %v", err)
	}
	if err := other.CloseIPC(h.Number); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another connection's: %v", err)
	}
	// The object goes, and what is lent stays.
	if err := errors.Join(c.Release(e), c.Delete(e, "")); err != nil {
		t.Fatal(err)
	}
	if charged() != 8<<20 || len(f.has) != 2 {
		t.Errorf("%d charged for %d", charged(), len(f.has))
	}
	if err := c.CloseIPC(h.Number); err != nil || charged() != 4<<20 {
		t.Errorf("%v, %d charged", err, charged())
	}
	if err := c.CloseIPC(h.Number); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a second time: %v", err)
	}
	f.dies()
	if err := c.CloseIPC(again.Number); !errors.Is(err, object.ErrNoDevice) || charged() != 0 {
		t.Errorf("what had ended: %v, %d charged", err, charged())
	}
	// A connection that ends gives back what it has.
	e = onGPU(t, c, Spec{SizeBytes: 1, Name: "m", Class: object.Named}, gpuA)
	third := connect(t, s, "x")
	if _, err := third.IPCHandle(e, ""); err != nil || third.ClosesAtOnce() || charged() != 4<<20 {
		t.Fatalf("%v, %d charged", err, charged())
	}
	if third.Close(); len(f.has) != 0 || charged() != 2<<20 {
		t.Errorf("%d are left, %d charged", len(f.has), charged())
	}
}

// What ended with its process is charged to nobody, whether it is given back or not.
func TestIPCHandlesThatEnded(t *testing.T) {
	f := &lendingDevices{has: map[uint64]uint64{}}
	s := newStore(t, Options{Devices: f, TenantDeviceBytes: 6 << 20})
	c, other := connect(t, s, "x"), connect(t, s, "x")
	e := onGPU(t, c, Spec{SizeBytes: 1, Name: "n", Class: object.Named}, gpuA)
	lend := func(c *Conn) IPCHandle {
		t.Helper()
		h, err := c.IPCHandle(e, "")
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	charged := func(want uint64) {
		t.Helper()
		if got := s.devices[gpuA].bytes; got != want {
			t.Errorf("%d charged, not %d", got, want)
		}
	}
	first := lend(c)
	lend(other)
	f.dies()
	next, err := c.CreateDevice(Spec{SizeBytes: 4 << 20}, gpuA) // the whole of the quota that is left
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next.FD)
	charged(6 << 20)
	if err := c.CloseIPC(first.Number); !errors.Is(err, object.ErrNoDevice) {
		t.Error(err)
	}
	if err := c.CloseIPC(first.Number); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a second time: %v", err)
	}
	other.Close()
	charged(6 << 20)
	if err := c.Abort(next.ID); err != nil {
		t.Fatal(err)
	}
	lend(c)
	f.dies()
	if st := s.Status().Devices; len(st) != 1 || st[0].Bytes != 2<<20 {
		t.Errorf("%+v", st)
	}
	lend(c)
	f.dies()
	if has := s.LeaveOnDevice("y", gpuA, 2<<20); has != 2<<20 {
		t.Errorf("%d bytes are taken", has)
	}
	if len(s.ipc) != 0 || len(c.ipc) != 2 {
		t.Errorf("%d are there of %d", len(s.ipc), len(c.ipc))
	}
	c.Close()
	charged(2 << 20)
}

func TestIPCHandlesThatCannotBe(t *testing.T) {
	f := &lendingDevices{has: map[uint64]uint64{}}
	s := newStore(t, Options{Devices: f, TenantDeviceBytes: 6 << 20})
	c := connect(t, s, "x")
	e := onGPU(t, c, Spec{SizeBytes: 1, Name: "n", Class: object.Named}, gpuA)
	failing := func(what string, want error, says string) {
		t.Helper()
		before := s.devices[gpuA].bytes
		if _, err := c.IPCHandle(e, ""); !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
		if s.devices[gpuA].bytes != before || c.lending != 0 {
			t.Errorf("%s: %d charged, not %d", what, s.devices[gpuA].bytes, before)
		}
	}
	f.fail = object.ErrNoDevice
	failing("a driver that fails", object.ErrNoDevice, "")
	f.fail, f.noMem = nil, 1
	failing("no memory", object.ErrFull, "1 objects of x have 2097152,") // and what was asked for is not among it
	f.short = true
	failing("a process that ends at once", object.ErrNoDevice, "ended")
	for range 2 {
		if _, err := c.IPCHandle(e, ""); err != nil {
			t.Fatal(err)
		}
	}
	failing("the quota", object.ErrQuota, "")
	if _, err := c.IPCHandle(object.ID{}, "none"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("no object: %v", err)
	}
	open, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuB)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(open.FD)
	if _, err := c.IPCHandle(open.ID, ""); !errors.Is(err, object.ErrNotSealed) {
		t.Errorf("not sealed: %v", err)
	}
	// Its connection ends while the driver copies.
	d := connect(t, s, "x2")
	id := onGPU(t, d, Spec{SizeBytes: 1}, gpuA)
	had := len(f.has)
	f.during = func() {
		f.during = nil
		d.Close()
	}
	if _, err := d.IPCHandle(id, ""); err == nil || len(f.has) != had {
		t.Errorf("%v, %d are left", err, len(f.has)-had)
	}
}
