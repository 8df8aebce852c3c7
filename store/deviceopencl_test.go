package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

var openCLDevice = object.Device{0x0c}

// kinds: openCLDevice is an OpenCL driver's.
func kinds(device object.Device, _ bool) object.Kind {
	if device == openCLDevice {
		return object.OpenCL
	}
	return object.CUDA
}

// An object in the memory of an OpenCL device is charged to its tenant and device, and as much in host memory for its
// twin. Nothing is charged when it is gone, and keepers have let go of it.
func TestObjectsInTheMemoryOfAnOpenCLDevice(t *testing.T) {
	f := &fakeDevices{}
	s, err := New(Options{Devices: f, DeviceKind: kinds, CapacityBytes: 16 << 20, SegmentBytes: 1 << 20,
		IdleDeviceBytes: 1 << 30, SpillDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.Connect(Owner{Tenant: "x", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	what := text(1, 3<<20)
	h, err := c.CreateDevice(Spec{SizeBytes: uint64(len(what)), Name: "n", Class: object.Named}, openCLDevice)
	if err != nil || h.Kind != object.OpenCL {
		t.Fatalf("%+v, %v", h, err)
	}
	if got, err := unix.Pwrite(h.FD, what, 0); err != nil || got != len(what) { // as its keeper does
		t.Fatal(err)
	}
	if err := errors.Join(unix.Close(h.FD), c.Seal(h.ID, false), c.Release(h.ID)); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); len(st.Devices) != 1 || st.Devices[0].Bytes != 3<<20 || st.ChargedBytes < 3<<20 ||
		st.ChargedBytes > 4<<20 {
		t.Errorf("%+v, %d bytes of host memory are charged", st.Devices, st.ChargedBytes)
	}
	info, err := c.Stat(h.ID, "")
	if err != nil || info.Kind != object.OpenCL || info.Device != openCLDevice {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Get(h.ID); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("get: %v", err)
	}
	// It makes way, and comes back.
	if n := s.LeaveOnDevice("x", openCLDevice, 0); n != 0 {
		t.Errorf("%d bytes stay", n)
	}
	if info, _ := c.Stat(h.ID, ""); info.Kind != object.OpenCL || info.State != object.Spilled {
		t.Errorf("away: %+v", info)
	}
	got, have, err := bring(c, object.ID{}, "n")
	if err != nil || got.Kind != object.OpenCL || !bytes.Equal(have, what) {
		t.Errorf("%+v, %v", got, err)
	}
	forgot := f.forgot
	if err := errors.Join(c.Release(got.ID), c.Delete(got.ID, "")); err != nil {
		t.Error(err)
	}
	if st := s.Status(); len(st.Devices) != 0 || f.forgot == forgot {
		t.Errorf("left: %+v; %d forgotten before and %d now", st.Devices, forgot, f.forgot)
	}
	c.Close()
	if s.charged != 0 {
		t.Errorf("%d bytes are charged", s.charged)
	}
	// What does not fit into host memory beside it is refused, and charged nowhere.
	if c, err = s.Connect(Owner{Tenant: "x", PID: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateDevice(Spec{SizeBytes: 17 << 20}, openCLDevice); !errors.Is(err, object.ErrFull) {
		t.Errorf("more than the capacity: %v", err)
	}
	f.fail = object.ErrNoDevice
	if _, err := c.CreateDevice(Spec{SizeBytes: 1}, openCLDevice); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("the driver fails: %v", err)
	}
	c.Close()
	if st := s.Status(); s.charged != 0 || len(st.Devices) != 0 {
		t.Errorf("%d bytes are charged, %+v", s.charged, st.Devices)
	}
}

// The next daemon has such objects of their kind, charged as before, here or away; also one that was on disk.
func TestHandoffOpenCLMemory(t *testing.T) {
	f := &fakeDevices{limit: 2 * deviceGranule}
	opts := Options{Devices: f, DeviceKind: kinds, Segments: 64, CapacityBytes: 12 << 20, SegmentBytes: 1 << 20,
		SpillDir: t.TempDir()}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	const size = 2<<20 - 77
	for i := range 6 {
		idleOnGPU(t, c, fmt.Sprint(i), openCLDevice, text(i, size))
	}
	mustAgree(t, s, true)
	before := s.Status()
	if len(before.Devices) != 1 || before.Devices[0].Objects != 2 || before.Devices[0].AwayObjects != 4 {
		t.Errorf("%+v", before.Devices)
	}
	s.Leave()
	next := handOver(t, s, opts)
	d := connect(t, next, "x")
	mustAgree(t, next, true)
	for _, o := range d.List("", false) {
		if o.Kind != object.OpenCL || o.Device != openCLDevice {
			t.Errorf("%+v", o)
		}
	}
	for i := range 6 {
		brought(t, d, fmt.Sprint(i), text(i, size))
		mustAgree(t, next, true)
	}
	for i := range 6 {
		if err := d.Delete(object.ID{}, fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	if st := next.Status(); len(st.Devices) != 0 {
		t.Errorf("left: %+v", st.Devices)
	}
	d.Close()
	mustAgree(t, next, true)
}

// Small objects are charged what they take, a page each, and not the granule of another kind's.
func TestSmallObjectsOfAnOpenCLDevice(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, DeviceKind: kinds, CapacityBytes: 4 << 20, SegmentBytes: 1 << 20})
	c := connect(t, s, "x")
	for i := range 256 {
		h, err := c.CreateDevice(Spec{SizeBytes: 1 + uint64(i)}, openCLDevice)
		if err != nil {
			t.Fatalf("object %d of 256: %v", i, err)
		}
		unix.Close(h.FD)
	}
	st := s.Status()
	if st.Devices[0].Bytes != 256*twinGranule || st.ChargedBytes < 256*twinGranule || st.ChargedBytes > 2<<20 {
		t.Errorf("%+v, %d bytes of host memory are charged", st.Devices, st.ChargedBytes)
	}
	c.Close()
	if st = s.Status(); len(st.Devices) != 0 || s.charged != 0 {
		t.Errorf("afterwards: %+v, %d", st.Devices, s.charged)
	}
	// What a keeper says that it made is what was asked for, or is nothing.
	c, f.real = connect(t, s, "x"), 1<<24
	if _, err := c.CreateDevice(Spec{SizeBytes: 1}, openCLDevice); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("a keeper made 16 MiB: %v", err)
	}
	if st = s.Status(); len(st.Devices) != 0 {
		t.Errorf("afterwards: %+v", st.Devices)
	}
}

// Where host memory is full of the twins of what nobody uses, those make way, to disk, whether the device is full, too,
// or not; and come back with their bytes.
func TestTwinsMakeWay(t *testing.T) {
	const size = 3<<20 - 77
	for what, limit := range map[string]uint64{"the device is full, too": 9 << 20, "it has room": 0} {
		t.Run(what, func(t *testing.T) {
			f := &fakeDevices{limit: limit}
			s := newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 64, CapacityBytes: 14 << 20,
				SegmentBytes: 1 << 20, SpillDir: t.TempDir()})
			c := connect(t, s, "x")
			for i := range 9 {
				idleOnGPU(t, c, fmt.Sprint(i), openCLDevice, text(i, size))
				mustAgree(t, s, true)
			}
			if st := s.Status(); st.SpilledObjects < 5 || st.Devices[0].Objects < 2 {
				t.Errorf("%d are on disk, %+v", st.SpilledObjects, st.Devices)
			}
			for i := range 9 {
				brought(t, c, fmt.Sprint(i), text(i, size))
				mustAgree(t, s, true)
			}
			// Host memory is for others, too.
			other := connect(t, s, "x")
			sealedObject(t, other, Spec{SizeBytes: 13 << 20, Own: true})
			if here, away := awayNow(s, openCLDevice); here != 0 || away != 9 {
				t.Errorf("%d objects there, %d away", here, away)
			}
			other.Close()
			for i := range 9 {
				brought(t, c, fmt.Sprint(i), text(i, size))
				if err := c.Delete(object.ID{}, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
				mustAgree(t, s, true)
			}
			waitFor(t, func() bool { return openFiles(t) == 0 }) // the janitor closes what it has sent to disk
			if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 {
				t.Errorf("left: %+v, %d segments", st.Devices, st.OpenSegments)
			}
		})
	}
}

// Without a disk a twin takes the place of what leaves a full device: no more host memory is needed for it. One that
// could not come back stays, and so does all where it would not be enough.
func TestTwinsWithoutADisk(t *testing.T) {
	f := &fakeDevices{limit: 9 << 20}
	s := newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 64, CapacityBytes: 13 << 20,
		SegmentBytes: 1 << 20})
	c := connect(t, s, "x")
	for i := range 4 {
		idleOnGPU(t, c, fmt.Sprint(i), openCLDevice, text(i, 3<<20))
		mustAgree(t, s, true)
	}
	if here, away := awayNow(s, openCLDevice); here != 3 || away != 1 || len(f.places) != 0 {
		t.Errorf("%d objects there, %d away, after %d places of copies", here, away, len(f.places))
	}
	_, err := putOnGPU(c, "4", openCLDevice, text(4, 3<<20))
	wantErr(t, err, object.ErrFull)
	if here, away := awayNow(s, openCLDevice); here != 3 || away != 1 {
		t.Errorf("%d objects there, %d away", here, away)
	}
	back, err := c.Create(Spec{SizeBytes: 100, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	memory := mapHandle(t, back, true)
	if err := c.CopyAway(back.ID, 0, object.ID{}, "0", 50, 100); err != nil ||
		!bytes.Equal(memory.Bytes()[:100], text(0, 3<<20)[50:150]) {
		t.Errorf("a copy of what is away: %v", err)
	}
	if err := errors.Join(c.Abort(back.ID), c.Delete(object.ID{}, "3")); err != nil {
		t.Fatal(err)
	}
	brought(t, c, "0", text(0, 3<<20))
	for i := range 3 {
		if err := c.Delete(object.ID{}, fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	mustAgree(t, s, true)
	idleOnGPU(t, c, "large", openCLDevice, text(5, 8<<20))
	_, err = putOnGPU(c, "other", openCLDevice, text(6, 3<<20))
	wantErr(t, err, object.ErrFull)
	brought(t, c, "large", text(5, 8<<20))
	mustAgree(t, s, true)
}

// Members of one composite are in host memory, in a GPU's and in an OpenCL device's. They make way and come back as
// others do, and go with the composite, of whatever kind they are.
func TestACompositeOfEveryKind(t *testing.T) {
	f := &fakeDevices{limit: 3 * deviceGranule}
	s := newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 64, SpillDir: t.TempDir()})
	c := connect(t, s, "x")
	const size = 2<<20 - 77
	members := []object.Member{{Name: "host", ID: sealedObject(t, c, Spec{SizeBytes: size})}}
	for i, device := range []object.Device{gpuA, openCLDevice} {
		id := idleOnGPU(t, c, fmt.Sprint(i), device, text(i, size))
		members = append(members, object.Member{Name: fmt.Sprint(i), ID: id})
	}
	inner, err := c.Compose(Spec{}, members[:2])
	if err != nil {
		t.Fatal(err)
	}
	whole, err := c.Compose(Spec{Name: "whole", Class: object.Named},
		append(members[2:], object.Member{Name: "inner", ID: inner}))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range members[1:] { // their composites have them alone
		if err := c.Delete(x.ID, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.Release(inner), c.Release(whole), c.Release(members[0].ID)); err != nil {
		t.Fatal(err)
	}
	for i := 10; i < 13; i++ { // each of the devices is full of other objects then
		idleOnGPU(t, c, fmt.Sprint(i), gpuA, text(i, size))
		idleOnGPU(t, c, fmt.Sprint(i, "b"), openCLDevice, text(i, size))
	}
	for i, device := range []object.Device{gpuA, openCLDevice} {
		if _, away := awayNow(s, device); away == 0 {
			t.Errorf("nothing of %s made way", device)
		}
		h, what, err := bring(c, members[1+i].ID, "")
		if err != nil || !bytes.Equal(what, text(i, size)) {
			t.Fatalf("member %d: %v, or other bytes", i, err)
		}
		release(t, c, h.ID)
		mustAgree(t, s, true)
	}
	if err := c.Delete(whole, ""); err != nil {
		t.Fatal(err)
	}
	for _, x := range members {
		if _, err := c.Stat(x.ID, ""); !errors.Is(err, object.ErrNotFound) {
			t.Errorf("member %q: %v", x.Name, err)
		}
	}
	for i := 10; i < 13; i++ {
		for _, name := range []string{fmt.Sprint(i), fmt.Sprint(i, "b")} {
			if err := c.Delete(object.ID{}, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustAgree(t, s, true)
	if st := s.Status(); len(st.Devices) != 0 || st.Objects != 0 || f.where == nil {
		t.Errorf("%+v, %d objects", st.Devices, st.Objects)
	}
}
