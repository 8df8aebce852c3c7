package frontdoor

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// oneGPU makes memory of a GPU, as memfds.
type oneGPU struct{ device object.Device }

func (oneGPU) Available() error { return nil }

func (g oneGPU) Allocate(_ store.Asker, device object.Device, _ uint64) (int, uint64, error) {
	if device != g.device {
		return -1, 0, fmt.Errorf("%w: GPU %s", object.ErrUnsupported, device)
	}
	fd, err := unix.MemfdCreate("allocation", unix.MFD_CLOEXEC)
	return fd, 2 << 20, err
}

func (oneGPU) Copy(store.Asker, store.Place, store.Place, uint64) error { return object.ErrUnsupported }

func (oneGPU) Forget(int) {}

// An object in the memory of a GPU goes to the worker as one, with a reference of the connection's. One that is not
// sealed does not, and what fails leaves no reference.
func TestAttachOfAnObjectInTheMemoryOfAGPU(t *testing.T) {
	gpu := object.Device{1}
	s, err := store.New(store.Options{CapacityBytes: 64 << 20, Devices: oneGPU{gpu}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d := open(t, func(o *Options) { o.Store, o.Socket = s, filepath.Join(t.TempDir(), "gpu", "sock") })
	d.store, d.socket = s, d.Server.opts.Socket
	p, maker := d.dial(t).hello(), d.dial(t).hello()
	f, err := maker.ask(wire.CreateDevice, &wire.CreateDeviceRequest{SizeBytes: 10, Device: gpu, Name: "g"})
	if err != nil {
		t.Fatal(err)
	}
	var made wire.DeviceReply
	if err := made.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	f.CloseFDs()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(7, made.ID, ""); !errors.Is(err, object.ErrNotSealed) {
		t.Errorf("before its seal: %v", err)
	}
	if _, err := maker.ask(wire.Seal, &wire.SealRequest{ID: made.ID}); err != nil {
		t.Fatal(err)
	}
	for _, by := range []struct {
		id   object.ID
		name string
	}{{made.ID, ""}, {object.ID{}, "g"}} {
		m, err := p.attach(7, by.id, by.name)
		if want := uint64(3<<62 | 2<<20); err != nil || m.Segment != want || m.Offset != 0 || m.SizeBytes != 10 ||
			m.ID != made.ID {
			t.Errorf("%+v, %v", m, err)
		}
	}
	if n := maker.refs(made.ID); n != 3 {
		t.Errorf("%d references, want the maker's and the session's two", n)
	}
	if _, err := p.attach(8, made.ID, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker that is not there: %v", err)
	}
	if n := maker.refs(made.ID); n != 3 {
		t.Errorf("%d references after what failed", n)
	}
	p.Close()
	waitFor(t, func() bool { return maker.refs(made.ID) == 1 })
}
