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
	t.Setenv("FAKE_CUDA_BYTES", fmt.Sprint(4<<20))
	whole := newFullGPU(t)
	if failed := whole.run(); failed > 0 {
		t.Errorf("%d calls failed without a fault", failed)
	}
	whole.end(true)
	for variable, stride := range map[string]int{"FAKE_CUDA_FAIL": 41, "FAKE_CUDA_DIE": 67} {
		for call := 25; call < 900; call += stride { // the first ones find the devices
			t.Setenv("FAKE_CUDA_FAIL", "")
			t.Setenv("FAKE_CUDA_DIE", "")
			value := fmt.Sprint(call)
			if variable == "FAKE_CUDA_FAIL" {
				value += ":1"
			}
			once := filepath.Join(t.TempDir(), "once")
			t.Setenv(variable, value)
			t.Setenv("FAKE_CUDA_ONCE", once)
			g := newFullGPU(t)
			failed := g.run()
			if failed > 1 || failed > 0 && variable == "FAKE_CUDA_DIE" {
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
