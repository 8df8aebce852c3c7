package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
)

// OpenAny reads objects of devices wherever their bytes are, and leaves them there. What it copies is bounded, and
// charged to the tenant while it is there; nothing of it stays.
func TestReadingOfObjectsOfDevices(t *testing.T) {
	const size = 2<<20 - 77
	_, s, c, ids := onFullDevices(t, size)
	at := func() string {
		st := s.Status()
		return fmt.Sprintf("%+v, %d objects, %d references, %d connections", st.Devices, st.Objects, st.References,
			st.Connections)
	}
	before, files := at(), openFiles(t)
	for i := range ids {
		r, err := c.OpenAny(context.Background(), object.ID{}, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != ids[i] || r.Size != size || r.Sums() != nil || !r.Copies() || !r.InMemory() {
			t.Errorf("object %d: %+v", i, r)
		}
		for _, x := range [][2]uint64{{size - 1, 1}, {0, 0}, {7, 100}, {107, 100_000}, {100_107, 1 << 20}, {5, 9},
			{0, size}, {size, 0}} {
			b, err := r.Range(x[0], x[1])
			if err != nil || !bytes.Equal(b, text(i, size)[x[0]:][:x[1]]) {
				t.Errorf("object %d, bytes %v: %d, %v", i, x, len(b), err)
			}
		}
		for _, x := range [][2]uint64{{size, 1}, {1, size}, {^uint64(0), 2}} {
			if b, err := r.Range(x[0], x[1]); !errors.Is(err, object.ErrInvalid) {
				t.Errorf("object %d, bytes %v: %d, %v", i, x, len(b), err)
			}
		}
		r.Rest()
		if sum, err := r.Checksum(context.Background(), func() {}); err != nil || sum != xxhash.Sum64(text(i, size)) {
			t.Errorf("object %d has the checksum %x, %v", i, sum, err)
		}
		mustAgree(t, s, true)
		r.Close()
	}
	if now := at(); now != before {
		t.Errorf("%s, and before %s", now, before)
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d descriptors, and before %d", now, files)
	}
	if _, err := connect(t, s, "y").OpenAny(context.Background(), ids[9], ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("another tenant's: %v", err)
	}
	if _, err := c.OpenAny(context.Background(), object.ID{}, "none"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	mustAgree(t, s, true)
}

// An object that is read stays readable when it is deleted: in the memory of its device, and away from it.
func TestReadingOfADeletedObjectOfADevice(t *testing.T) {
	const size = 1<<20 + 5
	f := &fakeDevices{limit: deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 32 << 20, SegmentBytes: 1 << 20})
	c := connect(t, s, "x")
	for i := range 2 { // the first makes way
		idleOnGPU(t, c, fmt.Sprint(i), gpuA, text(i, size))
	}
	if here, away := awayNow(s, gpuA); here != 1 || away != 1 {
		t.Fatalf("%d are on the GPU, %d away", here, away)
	}
	for i := range 2 {
		r, err := c.OpenAny(context.Background(), object.ID{}, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(r.ID, ""); err != nil {
			t.Fatal(err)
		}
		for _, off := range []uint64{0, 9, size - 10} {
			if b, err := r.Range(off, 10); err != nil || !bytes.Equal(b, text(i, size)[off:][:10]) {
				t.Errorf("object %d, bytes at %d: %v", i, off, err)
			}
		}
		mustAgree(t, s, true)
		r.Close()
		mustAgree(t, s, true)
	}
	if st := s.Status(); st.Objects != 0 || st.UsedBytes != 0 || len(st.Devices) != 0 {
		t.Errorf("left: %+v", st)
	}
}

// Ranges one behind the other are copied in steps that grow, up to a bound; others as they are asked for. The tenant's
// quota is asked, and where it is short for more only what is asked for is copied.
func TestWhatAReadingOfADeviceTakes(t *testing.T) {
	const size = 80 << 20
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 256 << 20, SegmentBytes: 1 << 20,
		TenantBytes: 4 << 20})
	c := connect(t, s, "x")
	small := idleOnGPU(t, c, "n", gpuA, text(1, 9<<20))
	r, err := c.OpenAny(context.Background(), small, "")
	if err != nil {
		t.Fatal(err)
	}
	for off := uint64(0); off < 9<<20; off += 512 << 10 { // 4 MiB at once are too much
		if b, err := r.Range(off, 512<<10); err != nil || !bytes.Equal(b, text(1, 9<<20)[off:][:512<<10]) {
			t.Fatalf("at %d: %v", off, err)
		}
		if st := s.Status(); st.UsedBytes == 0 || st.UsedBytes > 4<<20 {
			t.Fatalf("%d bytes are taken", st.UsedBytes)
		}
	}
	if _, err := r.Range(0, 5<<20); !errors.Is(err, object.ErrQuota) || !strings.Contains(err.Error(), "host memory") {
		t.Errorf("more than the quota: %v", err)
	}
	if b, err := r.Range(0, 1<<20); err != nil || !bytes.Equal(b, text(1, 9<<20)[:1<<20]) {
		t.Errorf("after that: %v", err)
	}
	r.Close()

	s = newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 256 << 20, SegmentBytes: 1 << 20})
	c = connect(t, s, "x")
	id := idleOnGPU(t, c, "n", gpuA, text(2, size))
	if r, err = c.OpenAny(context.Background(), id, ""); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before, most := len(f.places), uint64(0)
	for off := uint64(0); off < size; off += 512 << 10 {
		if _, err := r.Range(off, 512<<10); err != nil {
			t.Fatal(err)
		}
		most = max(most, s.Status().UsedBytes)
	}
	if n := (len(f.places) - before) / 2; most != partBytes || n < 8 || n > 12 {
		t.Errorf("%d bytes at most, %d copies", most, n)
	}
	r.Rest()
	for off := uint64(size - 4096); off > 0 && off < size; off -= 20 << 20 {
		if _, err := r.Range(off, 4096); err != nil {
			t.Fatal(err)
		}
		if got := f.copied; got != 4096 {
			t.Errorf("a range by itself took %d bytes", got)
		}
	}
	r.Rest()
	if used := s.Status().UsedBytes; used != 0 {
		t.Errorf("%d bytes are taken at rest", used)
	}
}

// A reading ends with its context, also while it waits for the driver, and a driver that fails costs this range alone.
func TestReadingOfADeviceThatFails(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, CapacityBytes: 64 << 20, SegmentBytes: 1 << 20})
	c := connect(t, s, "x")
	id := idleOnGPU(t, c, "n", gpuA, text(1, 3<<20))
	ctx, cancel := context.WithCancel(context.Background())
	r, err := c.OpenAny(ctx, id, "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f.fail = object.ErrNoDevice
	if _, err := r.Range(1, 10); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("a driver that fails: %v", err)
	}
	f.fail = nil
	if b, err := r.Range(1, 10); err != nil || !bytes.Equal(b, text(1, 3<<20)[1:11]) {
		t.Errorf("afterwards: %v", err)
	}
	cancel()
	if _, err := r.Range(1<<20, 10); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("after its context: %v", err)
	}
}
