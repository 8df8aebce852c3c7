package frontdoor

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// createDevice makes an object in a device's memory, whose descriptor is the reply's.
func (p *peer) createDevice(m *wire.CreateDeviceRequest) (made wire.DeviceReply, f ipc.Frame) {
	p.t.Helper()
	f, err := p.ask(wire.CreateDevice, m)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := made.Decode(f.Payload); err != nil {
		p.t.Fatal(err)
	}
	return made, f
}

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
	made, f := maker.createDevice(&wire.CreateDeviceRequest{SizeBytes: 10, Device: gpu, Name: "g"})
	f.CloseFDs()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(7, object.ID{}, "g"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("by its name before its seal: %v", err)
	}
	if m, err := p.attach(7, made.ID, ""); err != nil || m.Segment != 3<<62|2<<20 {
		t.Errorf("before its seal: %+v, %v", m, err)
	}
	p.send(wire.Release, 0, &wire.IDMessage{ID: made.ID})
	waitFor(t, func() bool { return maker.refs(made.ID) == 1 })
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

// A client on another machine makes an unsealed object in the memory of a GPU, has a worker write it, seals it and
// names it; no descriptor crosses the network, and what it may not have the memory of, it does not get.
func TestDraftOfAFarClient(t *testing.T) {
	gpu := object.Device{1}
	s, err := store.New(store.Options{CapacityBytes: 64 << 20, Devices: oneGPU{gpu}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d := openFar(t, func(o *Options) { o.Store, o.Socket = s, filepath.Join(t.TempDir(), "gpu", "sock") })
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	must := func(kind wire.Type, m ipc.Payload) ipc.Frame {
		t.Helper()
		f, err := ask(link, kind, m)
		if err != nil || f.Flags&ipc.FlagFD != 0 {
			t.Fatalf("%v: %v, flags %#x", kind, err, f.Flags)
		}
		return f
	}
	var made wire.DeviceReply
	f := must(wire.CreateDevice, &wire.CreateDeviceRequest{SizeBytes: 10, Device: gpu})
	if err := made.Decode(f.Payload); err != nil || made.Device != gpu || made.SizeBytes != 10 {
		t.Fatalf("%+v, %v", made, err)
	}
	must(wire.OpenSession, &wire.OpenSessionRequest{Options: []byte("{}")})
	var shown wire.AttachReply
	f = must(wire.AttachObject, &wire.AttachRequest{Worker: 7, ID: made.ID})
	if err := shown.Decode(f.Payload); err != nil || shown.Segment != 3<<62|2<<20 {
		t.Errorf("%+v, %v", shown, err)
	}
	must(wire.Seal, &wire.SealRequest{ID: made.ID})
	must(wire.Bind, &wire.BindRequest{ID: made.ID, Name: "result", Replace: true})
	if _, err := ask(link, wire.GetDevice, &wire.NameMessage{Name: "result"}); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("the memory itself: %v", err)
	}
	if n := s.Status().Objects; n != 1 {
		t.Errorf("%d objects", n)
	}
}
