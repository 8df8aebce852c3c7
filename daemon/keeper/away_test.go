package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cuda/fakecuda"
	"tendril/store"
	"tendril/store/object"
)

// fullGPU is a store over a keeper whose GPUs have room for two objects, and host memory for two more.
type fullGPU struct {
	t *testing.T
	s *store.Store
	c *store.Conn
	k *Keeper
}

func newFullGPU(t *testing.T) *fullGPU {
	t.Helper()
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), PinBytes: 8 << 20, StepBytes: 512 << 10})
	s, err := store.New(store.Options{Devices: k, SpillDir: t.TempDir(), CapacityBytes: 4 << 20, SegmentBytes: 1 << 20,
		TenantDeviceBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Connect(store.Owner{Tenant: "x", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	return &fullGPU{t, s, c, k}
}

const awayBytes = 1<<20 + 77

// put makes object n, which nobody uses then.
func (g *fullGPU) put(n int) error {
	h, err := g.c.CreateDevice(store.Spec{SizeBytes: awayBytes, Name: fmt.Sprint(n), Class: object.Named}, device(0))
	if err != nil {
		return err
	}
	_, err = unix.Pwrite(h.FD, text(n), 0)
	return errors.Join(err, unix.Close(h.FD), g.c.Seal(h.ID, false), g.c.Release(h.ID))
}

// get brings object n, and compares it.
func (g *fullGPU) get(n int) error {
	name := fmt.Sprint(n)
	h, err := g.c.GetDevice(object.ID{}, name)
	for errors.Is(err, store.ErrAway) {
		if err := g.c.BringBack(context.Background(), object.ID{}, name); err != nil {
			return err
		}
		h, err = g.c.GetDevice(object.ID{}, name)
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(contents(g.t, h.FD, awayBytes), text(n)) {
		g.t.Errorf("object %d has other bytes", n)
	}
	return errors.Join(unix.Close(h.FD), g.c.Release(h.ID))
}

func text(n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%07d", n)), awayBytes/7+1)[:awayBytes]
}

// An object that is away, in host memory or on disk, and whose device is gone, or its driver, is read where it is: by
// copies alone. One that comes back is in its device's memory again.
func TestAwayFromADeviceThatIsGone(t *testing.T) {
	want := pattern(awayBytes)
	for name, x := range map[string]struct {
		device object.Device
		breaks func(*testing.T, *null)
	}{
		"a GPU": {device(1), func(t *testing.T, n *null) { t.Setenv("CUDA_FAKE_DEVICES", "1") }},
		"a GPU's driver that crashes": {device(1), func(t *testing.T, n *null) {
			t.Setenv("CUDA_FAKE_DIE", "3")
		}},
		"an OpenCL device": {clDevice(1), func(t *testing.T, _ *null) { t.Setenv("NULLCL_DEVICES", "0") }},
		"its platform":     {clDevice(1), func(_ *testing.T, n *null) { n.places.Store(&[]OpenCL{}); clear(n.found) }},
		"its driver that crashes": {clDevice(1), func(t *testing.T, _ *null) {
			t.Setenv("NULLCL_DIE", "3")
		}},
	} {
		for _, onDisk := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, on disk %v", name, onDisk), func(t *testing.T) {
				n := newNull(t)
				n.cuda = newKeeper(t, Options{Driver: fakecuda.Build(t), PinBytes: 8 << 20})
				s, err := store.New(store.Options{Devices: n, DeviceKind: n.Kind, SpillDir: t.TempDir(),
					CapacityBytes: 8 << 20, SegmentBytes: 1 << 20, TenantDeviceBytes: 64 << 20})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				g := &fullGPU{t, s, nil, n.cuda}
				if g.c, err = s.Connect(store.Owner{Tenant: "x", PID: 1}); err != nil {
					t.Fatal(err)
				}
				defer g.c.Close()
				g.leaves(x.device, want, onDisk)
				if k := n.cuda.Status(); k != nil && k.PID != 0 {
					if err := unix.Kill(k.PID, unix.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				n.kill(t)
				x.breaks(t, n)
				if err := g.c.BringBack(context.Background(), object.ID{}, "a"); err == nil {
					t.Fatal("it came back")
				}
				h, err := g.c.GetAway(object.ID{}, "a")
				if err != nil || h.FD >= 0 || h.Bytes != 0 || h.Size != awayBytes || h.Device != x.device {
					t.Fatalf("%+v, %v", h, err)
				}
				g.reads(want, func(to object.ID) error { return g.c.Copy(to, 0, h.ID, "", 0, awayBytes) })
				if err := g.c.Release(h.ID); err != nil {
					t.Error(err)
				}
				g.reads(want, func(to object.ID) error { return g.c.CopyAway(to, 0, object.ID{}, "a", 0, awayBytes) })
				if err := g.c.Delete(object.ID{}, "a"); err != nil {
					t.Error(err)
				}
				if st := s.Status(); len(st.Devices) != 0 {
					t.Errorf("left: %+v", st.Devices)
				}
			})
		}
	}
}

// leaves makes object a on a device, and has it leave that.
func (g *fullGPU) leaves(device object.Device, what []byte, onDisk bool) {
	g.t.Helper()
	host, err := g.c.Create(store.Spec{SizeBytes: uint64(len(what)), Own: true})
	if err != nil {
		g.t.Fatal(err)
	}
	h, err := g.c.CreateDevice(store.Spec{SizeBytes: uint64(len(what)), Name: "a", Class: object.Named}, device)
	if err != nil {
		g.t.Fatal(err)
	}
	_, err = unix.Pwrite(host.FD, what, int64(host.Ref.Offset))
	if err := errors.Join(err, g.c.Seal(host.ID, false), g.c.Copy(h.ID, 0, host.ID, "", 0, uint64(len(what))),
		g.c.Seal(h.ID, false), unix.Close(h.FD), unix.Close(host.FD),
		g.c.Release(h.ID), g.c.Release(host.ID)); err != nil {
		g.t.Fatal(err)
	}
	if left := g.s.LeaveOnDevice("x", device, 0); left != 0 {
		g.t.Fatalf("%d bytes stay", left)
	}
	if onDisk { // it goes there for a large one, whose memory it may yet be that the keeper has mapped
		big, err := g.c.Create(store.Spec{SizeBytes: 7 << 20, Own: true})
		if err == nil {
			err = errors.Join(unix.Close(big.FD), g.c.Abort(big.ID))
		}
		if err != nil && !errors.Is(err, object.ErrFull) {
			g.t.Fatal(err)
		}
	}
	if is := g.s.Status().SpilledObjects == 1; is != onDisk {
		g.t.Fatalf("on disk: %v", is)
	}
}

// reads has an object copied into one in host memory, and compares it.
func (g *fullGPU) reads(want []byte, copies func(to object.ID) error) {
	g.t.Helper()
	back, err := g.c.Create(store.Spec{SizeBytes: uint64(len(want)), Own: true})
	if err != nil {
		g.t.Fatal(err)
	}
	defer unix.Close(back.FD)
	got := make([]byte, len(want))
	if err := copies(back.ID); err != nil {
		g.t.Error(err)
	} else if _, err := unix.Pread(back.FD, got, int64(back.Ref.Offset)); err != nil || !bytes.Equal(got, want) {
		g.t.Errorf("other bytes, %v", err)
	}
	if err := g.c.Abort(back.ID); err != nil {
		g.t.Error(err)
	}
}

// run puts and gets six objects, each again where it fails, and says how often that was.
func (g *fullGPU) run() (failed int) {
	for round := range 2 {
		for n := range 6 {
			step := g.get
			if round == 0 {
				step = g.put
			}
			err := step(n)
			if err != nil {
				failed++
				if !errors.Is(err, object.ErrNoDevice) && !errors.Is(err, object.ErrFull) {
					g.t.Errorf("object %d: %v", n, err)
				}
				err = step(n)
			}
			if err != nil {
				g.t.Errorf("object %d, again: %v", n, err)
			}
		}
	}
	return failed
}

// end deletes all, and looks whether anything is left of it. whole: one keeper did all. To the next one the fake GPU
// is empty.
func (g *fullGPU) end(whole bool) {
	g.t.Helper()
	st := g.s.Status()
	if whole && (len(st.Devices) != 1 || st.Devices[0].Objects > 2 || st.Devices[0].AwayObjects < 4 ||
		st.SpilledObjects == 0) {
		g.t.Errorf("two of six fit, and one and more are on disk: %+v, %d", st.Devices, st.SpilledObjects)
	}
	for n := range 6 {
		if err := g.c.Delete(object.ID{}, fmt.Sprint(n)); err != nil {
			g.t.Error(err)
		}
	}
	g.c.Close()
	if st := g.s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 {
		g.t.Errorf("left: %+v, %d segments", st.Devices, st.OpenSegments)
	}
	fd, _, err := g.k.Allocate(nobody, device(0), 4<<20) // all that the GPU has: nobody has memory of what was
	if errors.Is(err, object.ErrNoDevice) && !whole {    // this is the call that fails
		fd, _, err = g.k.Allocate(nobody, device(0), 4<<20)
	}
	if err != nil {
		g.t.Errorf("the whole GPU: %v", err)
	}
	closeFD(fd)
	g.s.Close()
	g.k.Close()
}

// Six objects share a GPU that has room for two. The keeper's driver fails at many of its calls in turn; the keeper is
// killed at them. Not one byte is lost, and no memory.
func TestFullGPUsWhoseKeeperFails(t *testing.T) {
	t.Setenv("CUDA_FAKE_BYTES", fmt.Sprint(4<<20))
	whole := newFullGPU(t)
	if failed := whole.run(); failed > 0 {
		t.Errorf("%d calls failed without a fault", failed)
	}
	whole.end(true)
	for variable, stride := range map[string]int{"CUDA_FAKE_FAIL": 41, "CUDA_FAKE_DIE": 67} {
		for call := 25; call < 900; call += stride { // the first ones find the devices
			t.Setenv("CUDA_FAKE_FAIL", "")
			t.Setenv("CUDA_FAKE_DIE", "")
			value := fmt.Sprint(call)
			if variable == "CUDA_FAKE_FAIL" {
				value += ":1"
			}
			once := filepath.Join(t.TempDir(), "once")
			t.Setenv(variable, value)
			t.Setenv("CUDA_FAKE_ONCE", once)
			g := newFullGPU(t)
			failed := g.run()
			if failed > 1 || failed > 0 && variable == "CUDA_FAKE_DIE" {
				t.Errorf("%s=%s: %d requests failed", variable, value, failed)
			}
			g.end(false)
			if unix.Access(once, unix.F_OK) != nil { // there were not so many calls
				break
			}
			if t.Failed() {
				t.Fatalf("%s=%s", variable, value)
			}
		}
	}
}
