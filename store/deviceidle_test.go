package store

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// write creates an object on a GPU with a text in its memory, and gives what was in it before.
func (f *fakeDevices) write(t *testing.T, c *Conn, n uint64, gpu object.Device, text string) (object.ID, string) {
	t.Helper()
	h, err := c.CreateDevice(Spec{SizeBytes: n}, gpu)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(h.FD)
	before := make([]byte, len(text))
	if _, err := unix.Pread(h.FD, before, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(h.FD, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	return h.ID, string(before)
}

const zeros = "\x00\x00\x00\x00\x00"

// What a connection made and nobody else had is the connection's next object's of that size on that GPU, and nobody
// else's.
func TestMemoryOfAGPUIsKeptForItsMaker(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, IdleDeviceBytes: 16 << 20})
	a, b, other := connect(t, s, "x"), connect(t, s, "x"), connect(t, s, "y")
	abort := func(c *Conn, id object.ID) {
		t.Helper()
		if err := c.Abort(id); err != nil {
			t.Fatal(err)
		}
		mustAgree(t, s, true)
	}
	id, before := f.write(t, a, 5000, gpuA, "first")
	if before != zeros {
		t.Errorf("the first memory holds %q", before)
	}
	abort(a, id)
	if st := s.Status(); len(st.Devices) != 1 || st.Devices[0] != (DeviceStatus{Device: gpuA, Bytes: deviceGranule}) ||
		st.OpenSegments != 1 {
		t.Errorf("what is kept is charged: %+v", st)
	}
	for what, x := range map[string]struct {
		c   *Conn
		n   uint64
		gpu object.Device
	}{
		"another connection": {b, 5000, gpuA}, "another tenant": {other, 5000, gpuA},
		"another GPU": {a, 5000, gpuB}, "another size": {a, 3 << 20, gpuA},
	} {
		if _, before := f.write(t, x.c, x.n, x.gpu, "other"); before != zeros {
			t.Errorf("%s has memory that holds %q", what, before)
		}
	}
	id, before = f.write(t, a, 6000, gpuA, "again")
	if before != "first" {
		t.Errorf("its maker has memory that holds %q", before)
	}
	if f.made != 5 {
		t.Errorf("%d allocations", f.made)
	}
	mustAgree(t, s, true)
	abort(a, id)
	id, before = f.write(t, a, 1, gpuA, "third")
	if before != "again" {
		t.Errorf("and once more %q", before)
	}
	abort(a, id)
	a.Close()
	b.Close()
	other.Close()
	mustAgree(t, s, true)
	if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 || openFiles(t) != 0 {
		t.Errorf("after the connections' ends: %+v, %d descriptors", st, openFiles(t))
	}
}

// What another connection had, also for a moment, and what a copy failed at is not used again.
func TestMemoryThatOthersHadIsNotUsedAgain(t *testing.T) {
	for what, had := range map[string]func(t *testing.T, f *fakeDevices, s *Store, a *Conn, id object.ID){
		"another connection of the tenant": func(t *testing.T, _ *fakeDevices, s *Store, a *Conn, id object.ID) {
			if err := a.Seal(id, false); err != nil {
				t.Fatal(err)
			}
			b := connect(t, s, "x")
			h, err := b.GetDevice(id, "")
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(h.FD)
			b.Close() // what its process still has mapped nobody knows
			if err := a.Release(id); err != nil {
				t.Fatal(err)
			}
		},
		"a worker": func(t *testing.T, _ *fakeDevices, _ *Store, a *Conn, id object.ID) {
			if err := a.Seal(id, false); err != nil {
				t.Fatal(err)
			}
			h, err := a.LendDevice(id, "") // for its own maker's session: another process all the same
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(h.FD)
			if err := errors.Join(a.Release(id), a.Release(id)); err != nil {
				t.Fatal(err)
			}
		},
		"a copy that failed": func(t *testing.T, f *fakeDevices, _ *Store, a *Conn, id object.ID) {
			from := sealedObject(t, a, Spec{SizeBytes: 10})
			f.fail = object.ErrNoDevice
			wantErr(t, a.Copy(id, 0, from, "", 0, 10), object.ErrNoDevice)
			f.fail = nil
			if err := a.Abort(id); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f := &fakeDevices{}
		s := newStore(t, Options{Devices: f, IdleDeviceBytes: 16 << 20})
		a := connect(t, s, "x")
		id, _ := f.write(t, a, 5000, gpuA, "first")
		had(t, f, s, a, id)
		mustAgree(t, s, true)
		if st := s.Status(); len(st.Devices) != 0 {
			t.Errorf("%s: %+v is kept", what, st.Devices)
		}
		if _, before := f.write(t, a, 5000, gpuA, "again"); before != zeros {
			t.Errorf("%s: the next object's memory holds %q", what, before)
		}
	}
}

// Its maker gets it again where it alone had it: sealed, got by itself, copied from.
func TestMemoryThatItsMakerAloneHadIsUsedAgain(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, IdleDeviceBytes: 16 << 20})
	a := connect(t, s, "x")
	id, _ := f.write(t, a, 5000, gpuA, "first")
	if err := a.Seal(id, false); err != nil {
		t.Fatal(err)
	}
	h, err := a.GetDevice(id, "")
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(h.FD)
	back, err := a.Create(Spec{SizeBytes: 10, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(back)
	if err := errors.Join(a.Copy(back.ID, 0, id, "", 0, 10), a.Release(id), a.Release(id)); err != nil {
		t.Fatal(err)
	}
	if _, before := f.write(t, a, 5000, gpuA, "again"); before != "first" {
		t.Errorf("the next object's memory holds %q", before)
	}
}

// What is kept gives way: to the tenant's quota, to the bound, to others when the device is full, to who needs a
// descriptor, and to time.
func TestKeptMemoryOfGPUsGivesWay(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, IdleDeviceBytes: 8 << 20, TenantDeviceBytes: 12 << 20, Segments: 64,
		TenantSegments: 5})
	a := connect(t, s, "x")
	keep := func(sizes ...uint64) {
		t.Helper()
		var ids []object.ID
		for _, n := range sizes {
			id, _ := f.write(t, a, n, gpuA, "x")
			ids = append(ids, id)
		}
		for _, id := range ids {
			if err := a.Abort(id); err != nil {
				t.Fatal(err)
			}
		}
		mustAgree(t, s, true)
	}
	kept := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if on := a.tenant.idleDevices[gpuA]; on != nil {
			return on.bytes
		}
		return 0
	}
	keep(4<<20, 6<<20) // the first makes way for the second
	if kept() != 6<<20 {
		t.Errorf("%d bytes are kept of at most 8 MiB", kept())
	}
	keep(10 << 20) // more than the bound; and 6 and 10 MiB are above the quota
	if kept() != 0 {
		t.Errorf("%d bytes are kept beside 10 MiB of a quota of 12", kept())
	}
	keep(2<<20, 2<<20)
	f.full = 1
	if id, _ := f.write(t, a, 4<<20, gpuA, "x"); kept() != 0 || f.full != 0 {
		t.Errorf("%d bytes are kept on a device that is full", kept())
	} else if err := a.Abort(id); err != nil {
		t.Fatal(err)
	}
	keep(2<<20, 2<<20)
	for range 5 { // the tenant has as many segments as it may
		if _, err := a.Create(Spec{SizeBytes: 100, Own: true}); err != nil {
			t.Fatal(err)
		}
	}
	if kept() != 0 {
		t.Errorf("%d bytes are kept where descriptors are short", kept())
	}
	a.Close()
	a = connect(t, s, "x")
	keep(2 << 20)
	s.mu.Lock()
	left := s.dropIdleSince(time.Now())
	if left <= 0 || left > idleDeviceTime || a.tenant.idleDevices[gpuA] == nil {
		t.Errorf("after a moment: %v", left)
	}
	s.dropIdleSince(time.Now().Add(idleDeviceTime))
	s.unlock()
	if kept() != 0 || openFiles(t) != 0 {
		t.Errorf("after its time %d bytes are kept, %d descriptors", kept(), openFiles(t))
	}
	mustAgree(t, s, true)
}

// A takeover leaves what is kept behind, and a store without a bound keeps nothing.
func TestNoMemoryOfGPUsIsKept(t *testing.T) {
	f := &fakeDevices{}
	opts := Options{Devices: f, IdleDeviceBytes: 8 << 20}
	s := newStore(t, opts)
	a := connect(t, s, "x")
	id, _ := f.write(t, a, 1, gpuA, "x")
	if err := a.Abort(id); err != nil {
		t.Fatal(err)
	}
	s.Leave()
	next := handOver(t, s, opts)
	if st := next.Status(); len(st.Devices) != 0 || openFiles(t) != 0 {
		t.Errorf("%+v, %d descriptors", st.Devices, openFiles(t))
	}
	none := newStore(t, Options{Devices: f})
	b := connect(t, none, "x")
	id, _ = f.write(t, b, 1, gpuA, "x")
	if err := b.Abort(id); err != nil {
		t.Fatal(err)
	}
	if st := none.Status(); len(st.Devices) != 0 || openFiles(t) != 0 {
		t.Errorf("%+v, %d descriptors", st.Devices, openFiles(t))
	}
}

func BenchmarkMemoryOfAGPU(b *testing.B) {
	f := &fakeDevices{}
	s := newStore(b, Options{Devices: f, IdleDeviceBytes: 1 << 30})
	c := connect(b, s, "x")
	for b.Loop() {
		h, err := c.CreateDevice(Spec{SizeBytes: 1 << 20}, gpuA)
		if err != nil {
			b.Fatal(err)
		}
		unix.Close(h.FD)
		if err := c.Abort(h.ID); err != nil {
			b.Fatal(err)
		}
	}
	if f.made != 1 {
		b.Errorf("%d allocations", f.made)
	}
}

// An unsealed object is lent by its id to a worker of the tenant's alone. If it is aborted meanwhile, the borrower
// keeps the memory, which stays charged, until it releases it; and it is not used again.
func TestADraftThatIsLent(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		f := &fakeDevices{}
		s := newStore(t, Options{Devices: f, IdleDeviceBytes: 16 << 20})
		a, b, stranger := connect(t, s, "x"), connect(t, s, "x"), connect(t, s, "y")
		h, err := a.CreateDevice(Spec{SizeBytes: 5000, Name: "n", Class: object.Named}, gpuA)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(h.FD)
		_, err = b.LendDevice(object.ID{}, "n")
		wantErr(t, err, object.ErrNotFound) // it has no name yet
		_, err = stranger.LendDevice(h.ID, "")
		wantErr(t, err, object.ErrPermission)
		lent, err := b.LendDevice(h.ID, "")
		if err != nil || lent.Device != gpuA || lent.Bytes != deviceGranule {
			t.Fatalf("%+v, %v", lent, err)
		}
		unix.Close(lent.FD)
		if sealed {
			err = errors.Join(a.Seal(h.ID, false), a.Delete(h.ID, ""), a.Release(h.ID))
		} else {
			err = a.Abort(h.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		mustAgree(t, s, true)
		if st := s.Status(); len(st.Devices) != 1 || st.Devices[0].Bytes != deviceGranule {
			t.Errorf("sealed %v: %+v is charged while it is lent", sealed, st.Devices)
		}
		if err := b.Release(h.ID); err != nil {
			t.Fatal(err)
		}
		if st := s.Status(); len(st.Devices) != 0 {
			t.Errorf("sealed %v: %+v is kept", sealed, st.Devices)
		}
	}
}
