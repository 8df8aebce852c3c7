package frontdoor

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// slowGPU is a GPU whose copies wait while they are held.
type slowGPU struct {
	oneGPU
	begun, held chan struct{}
}

func (g slowGPU) Copy(_ store.Asker, to, from store.Place, n uint64) error {
	select {
	case g.begun <- struct{}{}:
	default:
	}
	<-g.held
	b := make([]byte, n)
	if _, err := unix.Pread(from.FD, b, int64(from.Offset)); err != nil {
		return err
	}
	_, err := unix.Pwrite(to.FD, b, int64(to.Offset))
	return err
}

// deviceDoor is a front door with a slow GPU, and an object named g in its memory.
func deviceDoor(t *testing.T) (d *door, g slowGPU, id object.ID, what []byte) {
	t.Helper()
	g = slowGPU{oneGPU{object.Device{1}}, make(chan struct{}, 1), make(chan struct{})}
	s, err := store.New(store.Options{CapacityBytes: 64 << 20, Devices: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d = open(t, func(o *Options) { o.Store, o.Socket = s, filepath.Join(t.TempDir(), "gpu", "sock") })
	d.store, d.socket = s, d.Server.opts.Socket
	t.Cleanup(func() { // before the door closes
		select {
		case <-g.held:
		default:
			close(g.held)
		}
	})
	what = bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	maker := d.dial(t).hello()
	made, f := maker.createDevice(&wire.CreateDeviceRequest{SizeBytes: uint64(len(what)), Device: g.device, Name: "g",
		Class: object.Named})
	if _, err := unix.Pwrite(f.FDs[0], what, 0); err != nil {
		t.Fatal(err)
	}
	f.CloseFDs()
	if _, err := maker.ask(wire.Seal, &wire.SealRequest{ID: made.ID}); err != nil {
		t.Fatal(err)
	}
	return d, g, made.ID, what
}

// An object in the memory of a GPU is held, read and summed as any other, by copies. While the driver takes its time
// the poller and other connections go on, and the answers come in order.
func TestBytesOfAnObjectInTheMemoryOfAGPU(t *testing.T) {
	d, g, id, what := deviceDoor(t)
	p, other := d.dial(t).hello(), d.dial(t).hello()
	f, err := p.ask(wire.Hold, &wire.GetRequest{Name: "g"}) // which copies nothing
	if err != nil {
		t.Fatal(err)
	}
	var held wire.HoldReply
	if err := held.Decode(f.Payload); err != nil || held.ID != id || held.SizeBytes != uint64(len(what)) {
		t.Fatalf("%+v, %v", held, err)
	}
	p.send(wire.ReadRange, 70, &wire.ReadRangeRequest{ID: id, Offset: 5, Bytes: 100_000})
	<-g.begun
	for range 100 { // the poller answers the first, the connection's own goroutine the second
		if _, err := other.ask(wire.Stat, &wire.NameMessage{ID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := other.ask(wire.Sweep, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(g.held)
	if f, err = p.receive(); err != nil || f.Request != 70 || !bytes.Equal(f.Payload, what[5:][:100_000]) {
		t.Errorf("request %d: %d bytes, %v", f.Request, len(f.Payload), err)
	}
	for by, m := range map[string]*wire.ReadRangeRequest{
		"held":    {ID: id, Offset: uint64(len(what)) - 9, Bytes: 9},
		"by name": {Name: "g", Offset: 17, Bytes: 10},
	} {
		f, err := p.ask(wire.ReadRange, m)
		if err != nil || !bytes.Equal(f.Payload, what[m.Offset:][:m.Bytes]) {
			t.Errorf("%s: %d bytes, %v", by, len(f.Payload), err)
		}
	}
	if _, err := p.ask(wire.ReadRange, &wire.ReadRangeRequest{ID: id, Offset: uint64(len(what)), Bytes: 1}); !errors.Is(
		err, object.ErrInvalid) {
		t.Errorf("beyond its end: %v", err)
	}
	f, err = other.ask(wire.Checksum, &wire.NameMessage{Name: "g"})
	var sum wire.Number
	if err == nil {
		err = sum.Decode(f.Payload)
	}
	if err != nil || sum.N != xxhash.Sum64(what) {
		t.Errorf("the checksum is %x, %v", sum.N, err)
	}
	if used := d.store.Status().UsedBytes; used == 0 { // the Hold's
		t.Error("the copy takes no memory")
	}
	if _, err := p.ask(wire.Release, &wire.IDMessage{ID: id}); err != nil {
		t.Error(err)
	}
	if used := d.store.Status().UsedBytes; used != 0 {
		t.Errorf("%d bytes stay", used)
	}
}

// One object of those that a connection holds on devices has host memory at a time, and none when it has gone.
func TestHoldsOfManyObjectsOfAGPU(t *testing.T) {
	d, g, id, _ := deviceDoor(t)
	close(g.held)
	p := d.dial(t).hello()
	list := []object.ID{id}
	for range 5 {
		made, f := p.createDevice(&wire.CreateDeviceRequest{SizeBytes: 1 << 20, Device: g.device})
		f.CloseFDs()
		if _, err := p.ask(wire.Seal, &wire.SealRequest{ID: made.ID}); err != nil {
			t.Fatal(err)
		}
		list = append(list, made.ID)
	}
	for _, id := range list {
		if _, err := p.ask(wire.Hold, &wire.GetRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ask(wire.ReadRange, &wire.ReadRangeRequest{ID: id, Bytes: 1 << 19}); err != nil {
			t.Fatal(err)
		}
		if used := d.store.Status().UsedBytes; used != 1<<19 {
			t.Errorf("%d bytes are taken", used)
		}
	}
	p.Close()
	waitFor(t, func() bool {
		st := d.store.Status()
		return st.UsedBytes == 0 && st.Objects == 1 && st.References == 1 // the maker's
	})
}
