package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// onFullDevices is a store with ten objects of devices: some stay there, some are in host memory, some on disk.
func onFullDevices(t *testing.T, size int) (f *fakeDevices, s *Store, c *Conn, ids map[int]object.ID) {
	t.Helper()
	f = &fakeDevices{limit: 2 * deviceGranule}
	s = newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 64, CapacityBytes: 14 << 20,
		SegmentBytes: 1 << 20, SpillDir: t.TempDir()})
	c = connect(t, s, "x")
	ids = map[int]object.ID{}
	devices := []object.Device{gpuA, openCLDevice}
	for i := range 10 {
		ids[i] = idleOnGPU(t, c, fmt.Sprint(i), devices[i%2], text(i, size))
	}
	if s.Status().SpilledObjects == 0 {
		t.Error("nothing is on disk")
	}
	return f, s, c, ids
}

// OpenPart reads objects of devices wherever their bytes are, and leaves them there; nothing stays of it, also where
// it fails, or the object goes meanwhile.
func TestAPartOfAnObjectOfADevice(t *testing.T) {
	const size = 2<<20 - 77
	f, s, c, ids := onFullDevices(t, size)
	at := func() string {
		st := s.Status()
		return fmt.Sprintf("%+v, %d objects", st.Devices, st.Objects)
	}
	before, files := at(), openFiles(t)
	read := func(i int, off, n uint64) error {
		r, err := c.OpenPart(context.Background(), ids[i], off, n)
		if err != nil {
			return err
		}
		defer r.Close()
		for _, x := range [][2]uint64{{off, n}, {off + n, 0}, {off + n/2, n - n/2}} {
			if b, err := r.Range(x[0], x[1]); err != nil || !bytes.Equal(b, text(i, size)[x[0]:][:x[1]]) {
				return fmt.Errorf("object %d, bytes %v: %d, %v", i, x, len(b), err)
			}
		}
		for _, x := range [][2]uint64{{off + n, 1}, {off, n + 1}, {off - 1, 1}, {^uint64(0), 2}} {
			if b, err := r.Range(x[0], x[1]); !errors.Is(err, object.ErrInvalid) {
				return fmt.Errorf("object %d, bytes %v of [%d, +%d): %d, %v", i, x, off, n, len(b), err)
			}
		}
		if r.Size != size || r.Sums() != nil {
			return fmt.Errorf("%d bytes, checksums %x", r.Size, r.Sums())
		}
		return nil
	}
	for i := range ids {
		if err := read(i, uint64(1+i), size/2+uint64(i)); err != nil {
			t.Error(err)
		}
		mustAgree(t, s, true)
	}
	if now := at(); now != before {
		t.Errorf("%s, and before %s", now, before)
	}
	for _, x := range [][2]uint64{{0, 0}, {size, 1}, {1, size}, {^uint64(0), 2}} {
		if _, err := c.OpenPart(context.Background(), ids[9], x[0], x[1]); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("bytes %v: %v", x, err)
		}
	}
	f.fail = object.ErrNoDevice // of the last two, which are on their devices
	for i := 8; i < 10; i++ {
		if err := read(i, 5, 100); !errors.Is(err, object.ErrNoDevice) {
			t.Errorf("with a driver that fails: %v", err)
		}
	}
	f.fail = nil
	f.during = func() { f.during = nil; c.Delete(ids[9], "") }
	if err := read(9, 5, 100); err != nil {
		t.Errorf("one that is deleted meanwhile: %v", err)
	}
	if err := read(9, 5, 100); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("one that is gone: %v", err)
	}
	if err := partForAnother(t, s, ids[8]); !errors.Is(err, object.ErrPermission) {
		t.Errorf("another tenant's: %v", err)
	}
	mustAgree(t, s, true)
	if now := openFiles(t); now > files {
		t.Errorf("%d descriptors, and before %d", now, files)
	}
}

func partForAnother(t *testing.T, s *Store, id object.ID) error {
	t.Helper()
	r, err := connect(t, s, "y").OpenPart(context.Background(), id, 0, 1)
	if err == nil {
		r.Close()
	}
	return err
}

// One in host memory is OpenPart's as it is Open's: nothing is copied.
func TestAPartOfAnObjectInHostMemory(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	h, err := c.Create(Spec{SizeBytes: 100, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(h.FD, text(1, 100), 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Close(h.FD), c.Seal(h.ID, false)); err != nil {
		t.Fatal(err)
	}
	r, err := c.OpenPart(context.Background(), h.ID, 10, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := r.Range(0, 100); err != nil || !bytes.Equal(b, text(1, 100)) || s.Status().Objects != 1 {
		t.Errorf("%v", err)
	}
}
