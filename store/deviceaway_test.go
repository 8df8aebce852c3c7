package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// text is what an object of a test has in it, by a number.
func text(n, size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b) // byte by byte the race detector takes ten times as long
	return b
}

// idleOnGPU makes a named object in the memory of a GPU that nobody uses.
func idleOnGPU(t testing.TB, c *Conn, name string, gpu object.Device, what []byte) object.ID {
	t.Helper()
	id, err := putOnGPU(c, name, gpu, what)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func putOnGPU(c *Conn, name string, gpu object.Device, what []byte) (object.ID, error) {
	h, err := c.CreateDevice(Spec{SizeBytes: uint64(len(what)), Name: name, Class: object.Named}, gpu)
	if err != nil {
		return h.ID, err
	}
	_, err = unix.Pwrite(h.FD, what, 0)
	return h.ID, errors.Join(err, unix.Close(h.FD), c.Seal(h.ID, false), c.Release(h.ID))
}

// bring gets an object in the memory of a GPU as the daemon does, and reads it.
func bring(c *Conn, id object.ID, name string) (h DeviceHandle, what []byte, err error) {
	for {
		if h, err = c.GetDevice(id, name); !errors.Is(err, ErrAway) {
			break
		}
		if err := c.BringBack(context.Background(), id, name); err != nil {
			return h, nil, err
		}
	}
	if err != nil {
		return h, nil, err
	}
	defer unix.Close(h.FD)
	what = make([]byte, h.Size)
	n, err := unix.Pread(h.FD, what, 0)
	if n != len(what) && err == nil {
		err = fmt.Errorf("%d of %d bytes", n, len(what))
	}
	return h, what, err
}

// brought is bring, and gives the reference back.
func brought(t *testing.T, c *Conn, name string, want []byte) {
	t.Helper()
	h, what, err := bring(c, object.ID{}, name)
	if err != nil || !bytes.Equal(what, want) {
		t.Fatalf("%s: %v, or other bytes", name, err)
	}
	release(t, c, h.ID)
}

// awayNow gives what a GPU has in its memory, and what is away.
func awayNow(s *Store, gpu object.Device) (here, away int) {
	for _, d := range s.Status().Devices {
		if d.Device == gpu {
			return d.Objects, d.AwayObjects
		}
	}
	return 0, 0
}

// Objects that nobody uses make way, the one longest without use first, and come back with their bytes.
func TestObjectsOfAGPUMakeWay(t *testing.T) {
	f := &fakeDevices{limit: 3 * deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	var texts [][]byte
	for i := range 3 {
		texts = append(texts, text(i, 1<<20+i))
		idleOnGPU(t, c, fmt.Sprint(i), gpuA, texts[i])
	}
	brought(t, c, "0", texts[0]) // the one last used
	idleOnGPU(t, other, "o", gpuA, text(9, 5000))
	mustAgree(t, s, true)
	list := c.List("1", false)
	if len(list) != 1 || list[0].State != object.Spilled || list[0].Kind != object.CUDA || list[0].Device != gpuA {
		t.Errorf("what made way: %+v", list)
	}
	st := s.Status()
	if d := st.Devices[0]; d.Objects != 3 || d.Bytes != 3*deviceGranule ||
		d.AwayObjects != 1 || d.AwayBytes != 1<<20+1 {
		t.Errorf("%+v", d)
	}
	_, err := c.GetDevice(object.ID{}, "1")
	wantErr(t, err, ErrAway)
	_, err = c.Get(list[0].ID)
	wantErr(t, err, object.ErrUnsupported)
	for i := range 3 {
		brought(t, c, fmt.Sprint(i), texts[i])
		mustAgree(t, s, true)
	}
	brought(t, other, "o", text(9, 5000))
	// what was away and is copied comes back first, too
	for i := range 3 {
		idleOnGPU(t, other, fmt.Sprint("more", i), gpuA, []byte("x"))
	}
	back, err := c.Create(Spec{SizeBytes: 100, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	memory := mapHandle(t, back, true)
	err = c.Copy(back.ID, 0, object.ID{}, "2", 50, 100)
	wantErr(t, err, ErrAway)
	if err := errors.Join(c.BringBack(context.Background(), object.ID{}, "2"),
		c.Copy(back.ID, 0, object.ID{}, "2", 50, 100)); err != nil ||
		!bytes.Equal(memory.Bytes()[:100], texts[2][50:150]) {
		t.Errorf("a copy of what was away: %v", err)
	}
	if err := c.Delete(object.ID{}, "1"); err != nil { // away
		t.Fatal(err)
	}
	mustAgree(t, s, true)
	for _, o := range append(c.List("", false), other.List("", false)...) {
		who := c
		if o.Tenant == "y" {
			who = other
		}
		if o.State != object.Open {
			if err := who.Delete(o.ID, ""); err != nil {
				t.Error(err)
			}
		}
	}
	if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 1 { // back
		t.Errorf("after all are deleted: %+v, %d segments", st.Devices, st.OpenSegments)
	}
	if n := openFiles(t); n != 0 {
		t.Errorf("%d descriptors of a GPU's memory are left", n)
	}
}

// Room for what is no object: what is kept for new objects goes, then what nobody uses makes way, if that is enough.
func TestRoomBesideObjectsOfAGPU(t *testing.T) {
	f := &fakeDevices{limit: 8 * deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64, IdleDeviceBytes: 1 << 30})
	c := connect(t, s, "x")
	idleOnGPU(t, c, "0", gpuA, text(1, 100))
	idleOnGPU(t, c, "1", gpuA, text(2, 100))
	held := onGPU(t, c, Spec{SizeBytes: 1, Name: "held", Class: object.Named}, gpuA)
	kept, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuA)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Close(kept.FD), c.Abort(kept.ID)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ most, want uint64 }{
		{4, 4}, // as it is
		{3, 3}, // what is kept
		{2, 2}, // the one longest without use
		{0, 2}, // the other one is not enough, so it stays
		{1, 1},
	} {
		if got := s.LeaveOnDevice("y", gpuA, x.most*deviceGranule); got != x.want*deviceGranule {
			t.Errorf("at most %d: %d bytes", x.most, got)
		}
		mustAgree(t, s, true)
	}
	if here, away := awayNow(s, gpuA); here != 1 || away != 2 {
		t.Errorf("%d objects there, %d away", here, away)
	}
	brought(t, c, "0", text(1, 100))
	release(t, c, held)
}

// Who waits for room on a GPU is told when there may be some, and not by what was tried in vain to make some.
func TestRoomOnAGPUIsTold(t *testing.T) {
	told := 0
	f := &fakeDevices{limit: 8 * deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64, IdleDeviceBytes: 1 << 30, OnDeviceRoom: func() { told++ }})
	c := connect(t, s, "x")
	tells := func(want bool, what string, do func()) {
		t.Helper()
		told = 0
		if do(); told > 0 != want {
			t.Errorf("%s: told %d times", what, told)
		}
		mustAgree(t, s, true)
	}
	var held, kept object.ID
	tells(false, "what is made", func() {
		held = onGPU(t, c, Spec{SizeBytes: 1, Name: "held", Class: object.Named}, gpuA)
		h, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuA)
		if kept = h.ID; errors.Join(err, unix.Close(h.FD)) != nil {
			t.Fatal(err)
		}
	})
	tells(true, "an object that nobody uses", func() { release(t, c, held) })
	tells(true, "memory that is kept", func() {
		if err := c.Abort(kept); err != nil {
			t.Fatal(err)
		}
	})
	f.fail = errors.New("the driver")
	s.LeaveOnDevice("y", gpuA, deviceGranule) // what is kept goes
	tells(false, "an object that cannot leave", func() { s.LeaveOnDevice("y", gpuA, 0) })
	f.fail = nil
	tells(true, "one that can", func() { s.LeaveOnDevice("y", gpuA, 0) })
	brought(t, c, "held", make([]byte, 1))
	tells(true, "one that is deleted", func() {
		if err := c.Delete(object.ID{}, "held"); err != nil {
			t.Fatal(err)
		}
	})
}

// A full device whose objects are in use says so, of whatever kind it is; before, what nobody uses made way.
func TestAFullDeviceSaysWhatItHas(t *testing.T) {
	for _, device := range []object.Device{gpuA, openCLDevice} {
		f := &fakeDevices{limit: 3 * deviceGranule}
		s := newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 64})
		c := connect(t, s, "x")
		idleOnGPU(t, c, "idle", device, text(1, deviceGranule))
		for range 3 { // the third has idle make way
			onGPU(t, c, Spec{SizeBytes: deviceGranule}, device)
		}
		if here, away := awayNow(s, device); here != 3 || away != 1 {
			t.Errorf("%d objects, and %d away", here, away)
		}
		_, err := c.CreateDevice(Spec{SizeBytes: deviceGranule}, device)
		wantErr(t, err, object.ErrFull)
		for _, want := range []string{device.String(), "2097152 bytes are needed", "3 objects of x have 6291456",
			"of which 6291456 are in use", "release or delete"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: no %q", err, want)
			}
		}
		mustAgree(t, s, true)
	}
}

// What somebody uses stays, and nothing leaves where that would not be enough, or where there is no room for it.
func TestWhatStaysOnAGPU(t *testing.T) {
	f := &fakeDevices{limit: 3 * deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 4 << 20, SegmentBytes: 1 << 20})
	c := connect(t, s, "x")
	held := onGPU(t, c, Spec{SizeBytes: 1, Name: "held", Class: object.Named}, gpuA)
	pinned := idleOnGPU(t, c, "pinned", gpuA, []byte("p"))
	if err := c.Update(pinned, "", Change{Pinned: new(true)}); err != nil {
		t.Fatal(err)
	}
	idleOnGPU(t, c, "idle", gpuA, text(1, deviceGranule))
	idleOnGPU(t, c, "elsewhere", gpuB, []byte("b"))
	_, err := putOnGPU(c, "new", gpuA, text(1, 2*deviceGranule))
	wantErr(t, err, object.ErrFull)
	if here, away := awayNow(s, gpuA); here != 3 || away != 0 || len(f.places) != 0 {
		t.Errorf("%d objects, %d away, after what would not fit anyway", here, away)
	}
	mustAgree(t, s, true)
	d := connect(t, s, "x")
	sealedObject(t, d, Spec{SizeBytes: 3 << 20, Own: true})
	_, err = putOnGPU(c, "new", gpuA, []byte("x")) // there is no room in host memory for idle
	wantErr(t, err, object.ErrFull)
	if _, away := awayNow(s, gpuA); away != 0 || len(f.places) != 0 {
		t.Errorf("%d objects are away", away)
	}
	mustAgree(t, s, true)
	d.Close()
	if _, err := putOnGPU(c, "fits", gpuA, []byte("x")); err != nil {
		t.Error(err)
	}
	mustAgree(t, s, true)
	if here, away := awayNow(s, gpuA); here != 3 || away != 1 {
		t.Errorf("%d objects, %d away", here, away)
	}
	h, err := c.GetDevice(held, "")
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(h.FD)
}

// A tenant's own objects make way for its quota, and nobody else's.
func TestTheQuotaOfAGPUMakesWay(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, Segments: 64, TenantDeviceBytes: 2 * deviceGranule})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	idleOnGPU(t, other, "o", gpuA, []byte("o"))
	for i := range 4 {
		idleOnGPU(t, c, fmt.Sprint(i), gpuA, text(i, 5000))
	}
	idleOnGPU(t, c, "b", gpuB, []byte("b"))
	mustAgree(t, s, true)
	st := s.Status()
	if d := st.Tenants[0].Devices[0]; d.Objects != 2 || d.AwayObjects != 2 {
		t.Errorf("%+v", st.Tenants)
	}
	if d := st.Tenants[1].Devices[0]; d.Objects != 1 || d.AwayObjects != 0 {
		t.Errorf("another tenant's: %+v", st.Tenants)
	}
	_, err := putOnGPU(c, "new", gpuA, text(1, 3*deviceGranule))
	wantErr(t, err, object.ErrQuota)
	if here, _ := awayNow(s, gpuA); here != 3 {
		t.Error("objects left for what can never fit")
	}
	for i := range 4 {
		brought(t, c, fmt.Sprint(i), text(i, 5000))
	}
	mustAgree(t, s, true)
}

// What left a GPU goes on to disk where memory is short, and comes back from there; also to the next daemon.
func TestFromAGPUToDisk(t *testing.T) {
	f := &fakeDevices{limit: 2 * deviceGranule}
	opts := Options{Devices: f, Segments: 64, CapacityBytes: 8 << 20, SegmentBytes: 1 << 20, SpillDir: t.TempDir()}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	const size = 2<<20 - 77
	for i := range 8 {
		idleOnGPU(t, c, fmt.Sprint(i), gpuA, text(i, size))
	}
	mustAgree(t, s, true)
	st := s.Status()
	if st.SpilledObjects < 2 || st.Devices[0].AwayObjects != 6 {
		t.Errorf("%d are on disk, %+v", st.SpilledObjects, st.Devices)
	}
	for i := range 8 {
		brought(t, c, fmt.Sprint(i), text(i, size))
		mustAgree(t, s, true)
	}
	away := []string{}
	for _, o := range c.List("", false) {
		if o.State == object.Spilled {
			away = append(away, o.Name)
		}
	}
	if len(away) != 6 {
		t.Errorf("%v are away", away)
	}
	held, _, err := bring(c, object.ID{}, "3") // goes on with who holds it
	if err != nil {
		t.Fatal(err)
	}
	s.Leave()
	next := handOver(t, s, opts)
	d := connect(t, next, "x")
	mustAgree(t, next, true)
	if here, away := awayNow(next, gpuA); here != 2 || away != 6 {
		t.Errorf("the next daemon has %d, and %d away", here, away)
	}
	for i := range 8 {
		brought(t, d, fmt.Sprint(i), text(i, size))
		mustAgree(t, next, true)
	}
	if o := d.List("3", false); len(o) != 1 || o[0].State != object.Sealed || o[0].ID != held.ID {
		t.Errorf("what a process of the daemon before holds: %+v", o)
	}
	next.Close()
	last := newStore(t, opts) // has what was on disk, and knows whose it is
	e := connect(t, last, "x")
	mustAgree(t, last, true)
	list := e.List("", false)
	if len(list) == 0 {
		t.Error("nothing was on disk")
	}
	for _, o := range list {
		if o.Kind != object.CUDA || o.Device != gpuA {
			t.Errorf("%+v", o)
		}
		var n int
		if _, err := fmt.Sscan(o.Name, &n); err != nil {
			t.Fatal(err)
		}
		brought(t, e, o.Name, text(n, size))
	}
}

// Whatever happens while an object is on its way, its bytes are whole, nothing is taken twice, and nothing is left.
func TestOnTheWayFromAGPU(t *testing.T) {
	idle := text(1, 5000)
	for what, meanwhile := range map[string]func(t *testing.T, s *Store, c *Conn, id object.ID) (stays bool){
		"somebody gets it": func(t *testing.T, s *Store, c *Conn, id object.ID) bool {
			h, err := c.GetDevice(id, "")
			if errors.Is(err, ErrAway) { // it is on its way back
				return false
			}
			unix.Close(h.FD)
			return err == nil
		},
		"it is deleted": func(t *testing.T, s *Store, c *Conn, id object.ID) bool { return c.Delete(id, "") != nil },
		"it is renamed": func(t *testing.T, s *Store, c *Conn, id object.ID) bool {
			return c.Rename("idle", "idle2", false) != nil
		},
		"it is pinned": func(t *testing.T, s *Store, c *Conn, id object.ID) bool {
			return c.Update(id, "", Change{Pinned: new(true)}) == nil
		},
		"its maker ends": func(t *testing.T, s *Store, c *Conn, id object.ID) bool { c.Close(); return false },
		"all is listed":  func(t *testing.T, s *Store, c *Conn, id object.ID) bool { return len(c.List("", true)) == 0 },
		"it is looked at": func(t *testing.T, s *Store, c *Conn, id object.ID) bool {
			r, err := c.Scrub(context.Background(), false, "")
			return err != nil || len(r.Damaged) > 0
		},
	} {
		for _, way := range []string{"out", "in"} {
			t.Run(what+", "+way, func(t *testing.T) {
				f := &fakeDevices{limit: deviceGranule}
				s := newStore(t, Options{Devices: f, Segments: 64, SpillDir: t.TempDir()})
				c, other := connect(t, s, "x"), connect(t, s, "x")
				id := idleOnGPU(t, c, "idle", gpuA, idle)
				agree := func() {
					if fault := s.invariants(false); fault != "" {
						t.Error(fault)
					}
				}
				hook := func() { meanwhile(t, s, c, id); agree() }
				stays := false
				if way == "out" {
					f.during = func() {
						if len(f.places) > 0 {
							f.during = nil
							stays = meanwhile(t, s, c, id)
							agree()
						}
					}
				}
				_, err := putOnGPU(other, "new", gpuA, []byte("new"))
				if stays != errors.Is(err, object.ErrFull) || err != nil && !stays {
					t.Errorf("the new one: %v; the idle one stays: %v", err, stays)
				}
				mustAgree(t, s, true)
				if way == "in" {
					if err := other.Delete(object.ID{}, "new"); err != nil {
						t.Fatal(err)
					}
					f.during = func() { f.during = nil; hook() }
				}
				h, b, err := bring(other, id, "")
				switch {
				case errors.Is(err, object.ErrNotFound) && what == "it is deleted":
				case err != nil || !bytes.Equal(b, idle):
					t.Errorf("the idle one: %v, or other bytes", err)
				default:
					release(t, other, h.ID)
				}
				mustAgree(t, s, true)
				for _, o := range other.List("", false) {
					if err := other.Delete(o.ID, ""); err != nil {
						t.Error(err)
					}
				}
				c.Close()
				other.Close()
				mustAgree(t, s, true)
				if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 ||
					st.ChargedBytes != 0 || openFiles(t) != 0 {
					t.Errorf("left: %+v, %d segments, %d bytes, %d descriptors", st.Devices, st.OpenSegments,
						st.ChargedBytes, openFiles(t))
				}
			})
		}
	}
}

// Each call of the keeper fails in turn, each third one in the same way, on the way out and back: an error where it was
// needed, and no byte is lost.
func TestCallsThatFailOnTheWay(t *testing.T) {
	const size = 400_000
	var texts [6][]byte
	for i := range texts {
		texts[i] = text(i, size)
	}
	whys := []error{object.ErrNoDevice, object.ErrFull, ErrDevicesEnded}
	for first, why := range whys {
		for fails := 1 + first; ; fails += len(whys) {
			f := &fakeDevices{limit: 2 * deviceGranule}
			s := newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 1 << 20, SegmentBytes: 128 << 10,
				SpillDir: t.TempDir()})
			c := connect(t, s, "x")
			calls, failed := 0, false
			f.during = func() { // f.fail is read before
				f.mu.Lock()
				defer f.mu.Unlock()
				f.fail = nil
				if calls++; calls == fails-1 {
					f.fail = why
				}
			}
			if fails == 1 {
				f.fail = why
			}
			there := map[int]bool{}
			for i := range 6 {
				_, err := putOnGPU(c, fmt.Sprint(i), gpuA, texts[i])
				there[i] = err == nil
				if err != nil {
					failed = true
					wantErr(t, err, why)
				}
				mustAgree(t, s, true)
			}
			for range 2 {
				for i := range 6 {
					if !there[i] {
						continue
					}
					h, b, err := bring(c, object.ID{}, fmt.Sprint(i))
					if err != nil {
						failed = true
						wantErr(t, err, why)
						mustAgree(t, s, true)
						h, b, err = bring(c, object.ID{}, fmt.Sprint(i))
					}
					if err != nil || !bytes.Equal(b, texts[i]) {
						t.Fatalf("call %d fails with %v: object %d: %v, or other bytes", fails, why, i, err)
					}
					release(t, c, h.ID)
					mustAgree(t, s, true)
				}
			}
			if fails == 1 && s.Status().SpilledObjects == 0 {
				t.Error("nothing is on disk")
			}
			s.Close()
			if n := openFiles(t); n != 0 {
				t.Fatalf("call %d fails with %v: %d descriptors are left", fails, why, n)
			}
			if !failed && calls < fails {
				break
			}
		}
	}
}

// Clients of two tenants make, get, hold, copy and delete objects at once, on two GPUs and an OpenCL device with little
// memory, over little host memory and a disk: all that anybody has is right all the time, and at the end nothing is
// left.
func TestManyOnFullGPUs(t *testing.T) {
	f := &fakeDevices{limit: 6 * deviceGranule}
	s := newStore(t, Options{Devices: f, DeviceKind: kinds, Segments: 256, CapacityBytes: 24 << 20,
		SegmentBytes: 1 << 20, SpillDir: t.TempDir(), TenantDeviceBytes: 5 * deviceGranule,
		IdleDeviceBytes: deviceGranule})
	var all sync.WaitGroup
	for n := range 4 {
		c := connect(t, s, []string{"x", "y"}[n%2])
		all.Go(func() {
			manyOnFullGPUs(t, c, fmt.Sprint(n), rand.New(rand.NewPCG(uint64(n), 7)), 120)
			c.Close() // what it keeps goes
		})
	}
	all.Wait()
	mustAgree(t, s, true)
	for n := range 2 {
		c := connect(t, s, []string{"x", "y"}[n])
		for _, o := range c.List("", false) {
			if err := c.Delete(o.ID, ""); err != nil {
				t.Error(err)
			}
		}
	}
	waitFor(t, func() bool { return openFiles(t) == 0 }) // the janitor closes what it has sent to disk
	if st := s.Status(); len(st.Devices) != 0 {
		t.Errorf("left: %+v", st.Devices)
	}
}

// manyOnFullGPUs is one client of it.
func manyOnFullGPUs(t *testing.T, c *Conn, who string, r *rand.Rand, steps int) {
	have := map[string]int{} // what each has in it
	next := 0
	pick := func() string {
		for name := range have {
			return name
		}
		return ""
	}
	size := func(n int) int { return 1000 + n*400_000%(4<<20) }
	reads := manyReads{t: t, c: c, r: r}
	defer reads.close()
	for range steps {
		switch name := pick(); {
		case name == "" || r.IntN(3) == 0:
			next++
			name = fmt.Sprint(who, "-", next)
			_, err := putOnGPU(c, name, []object.Device{gpuA, gpuB, openCLDevice}[r.IntN(3)], text(next, size(next)))
			if err == nil {
				have[name] = next
			} else if !object.IsShort(err) {
				t.Errorf("make %s: %v", name, err)
			}
		case r.IntN(5) == 0 || len(have) > 8:
			if err := c.Delete(object.ID{}, name); err != nil {
				t.Errorf("delete %s: %v", name, err)
			}
			delete(have, name)
		case r.IntN(3) == 0:
			reads.step(name, text(have[name], size(have[name])))
		default:
			h, b, err := bring(c, object.ID{}, name)
			if object.IsShort(err) {
				continue
			}
			if err != nil || !bytes.Equal(b, text(have[name], size(have[name]))) {
				t.Errorf("get %s: %v, or other bytes", name, err)
				continue
			}
			if err := c.Release(h.ID); err != nil {
				t.Error(err)
			}
		}
		if r.IntN(10) == 0 {
			mustAgree(t, c.s, false)
		}
	}
}

// manyReads are readings that a client of it has open, over many steps.
type manyReads struct {
	t    *testing.T
	c    *Conn
	r    *rand.Rand
	open []*Reading
	want [][]byte
}

// step begins to read an object, reads some of one, or ends reading one.
func (m *manyReads) step(name string, what []byte) {
	if len(m.open) < 3 {
		x, err := m.c.OpenAny(context.Background(), object.ID{}, name)
		if err != nil {
			m.t.Errorf("read %s: %v", name, err)
			return
		}
		m.open, m.want = append(m.open, x), append(m.want, what)
	}
	i := m.r.IntN(len(m.open))
	for off := m.r.Uint64N(m.open[i].Size); off < m.open[i].Size; {
		n := min(200_000, m.open[i].Size-off)
		b, err := m.open[i].Range(off, n)
		_, gone := m.c.Stat(m.open[i].ID, "")
		switch {
		case object.IsShort(err), errors.Is(err, object.ErrNotFound) && gone != nil: // it was on disk alone
		case err != nil || !bytes.Equal(b, m.want[i][off:][:n]):
			m.t.Errorf("bytes [%d, +%d) of an object of %d: %v, or others", off, n, m.open[i].Size, err)
		}
		if off += n; err != nil {
			break
		}
	}
	if m.r.IntN(3) == 0 {
		m.open[i].Close()
		last := len(m.open) - 1
		m.open[i], m.want[i] = m.open[last], m.want[last]
		m.open, m.want = m.open[:last], m.want[:last]
	}
}

func (m *manyReads) close() {
	for _, x := range m.open {
		x.Close()
	}
}

// Who has a GPU's memory can write it, also after the seal: what the disk had before is not what it is to be.
func TestWrittenAfterItCameBackToAGPU(t *testing.T) {
	f := &fakeDevices{limit: deviceGranule}
	s := newStore(t, Options{Devices: f, Segments: 64, CapacityBytes: 8 << 20, SegmentBytes: 1 << 20,
		SpillDir: t.TempDir()})
	c := connect(t, s, "x")
	const size = 1 << 20
	id := idleOnGPU(t, c, "a", gpuA, text(1, size))
	idleOnGPU(t, c, "b", gpuA, text(2, size))
	forceOut(t, s, id)
	h, _, err := bring(c, id, "")
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.GetDevice(id, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(again.FD, text(3, size), 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(again.FD)
	release(t, c, h.ID)
	release(t, c, h.ID)
	brought(t, c, "b", text(2, size))
	forceOut(t, s, id)
	brought(t, c, "a", text(3, size))
	mustAgree(t, s, true)
}

// Who got an object that is away, whose GPU is gone, keeps it in host memory. Once the GPU is there again others get it
// there, from the next daemon, too.
func TestAwayWhileTheGPUIsGone(t *testing.T) {
	f := &fakeDevices{limit: 2 * deviceGranule}
	opts := Options{Devices: f, Segments: 64, CapacityBytes: 8 << 20, SegmentBytes: 1 << 20, SpillDir: t.TempDir()}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	want := text(1, 3<<20)
	stranded := func(name string) object.ID {
		id := idleOnGPU(t, c, name, gpuA, want)
		here, err := c.GetAway(id, "")
		if err != nil || here.FD < 0 {
			t.Fatalf("one that is there: %+v, %v", here, err)
		}
		unix.Close(here.FD)
		release(t, c, id)
		s.LeaveOnDevice("x", gpuA, 0)
		forceOut(t, s, id)
		_, err = c.GetAway(id, "")
		wantErr(t, err, ErrAway) // it is on disk
		f.fail = object.ErrNoDevice
		wantErr(t, c.BringBack(context.Background(), id, ""), object.ErrNoDevice)
		f.fail = nil
		h, err := c.GetAway(id, "")
		if err != nil || h.FD >= 0 || h.Bytes != 0 || h.Device != gpuA || h.Kind != object.CUDA {
			t.Fatalf("%+v, %v", h, err)
		}
		mustAgree(t, s, true)
		_, err = c.Create(Spec{SizeBytes: 7 << 20, Own: true}) // what is held does not go to disk for it
		wantErr(t, err, object.ErrFull)
		return id
	}
	id := stranded("a")
	brought(t, connect(t, s, "x"), "a", want)
	mustAgree(t, s, true)
	release(t, c, id)
	if err := c.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	stranded("b")
	s.Leave()
	next := handOver(t, s, opts)
	mustAgree(t, next, true)
	brought(t, connect(t, next, "x"), "b", want)
	mustAgree(t, next, true)
}
