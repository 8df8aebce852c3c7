package frontdoor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// TestEveryMessageIsAnswered sends every message with zeros of each length that may be its own, on a connection with a
// session, to a daemon that has nothing but a store: no cluster, no GPUs, no peers. Each is answered once, by a reply
// or by an error that says what is wrong; only what no client sends ends the connection, and says so first. No row is
// left out but those that end the daemon or the connection by what they are for.
func TestEveryMessageIsAnswered(t *testing.T) {
	d := open(t, nil)
	close(d.backend.release)
	close(d.backend.fate)
	except := []wire.Type{wire.Hello, wire.Takeover, wire.Status} // the fake's Status panics
	answered := 0
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		if slices.Contains(except, kind) {
			continue
		}
		p := d.dial(t).hello()
		inSession := func() {
			if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		inSession()
		fits := false
		for n := range min(rows[kind].maxPayload, 96) + 1 {
			p.send(kind, 77, raw(make([]byte, n)))
			f, err := p.receive()
			if err != nil {
				t.Fatalf("%v with %d bytes: %v", kind, n, err)
			}
			f.CloseFDs()
			if f.Type == wire.Error {
				err = decodeError(t, f)
			} else if f.Type != kind|wire.ReplyBit {
				t.Errorf("%v with %d bytes: answered %v", kind, n, f.Type)
			}
			switch {
			case f.Request != 77:
				t.Errorf("%v with %d bytes: answer to %d", kind, n, f.Request)
			case errors.Is(err, object.ErrInternal):
				t.Errorf("%v with %d bytes: %v", kind, n, err)
			case errors.Is(err, object.ErrProtocol):
				if _, err := p.receive(); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("%v with %d bytes: after a fault of the client: %v", kind, n, err)
				}
				p = d.dial(t).hello()
				inSession()
				continue
			}
			fits = true
		}
		if fits {
			answered++
		} else if kind != wire.ResumeWorker { // of no lanes: no client asks for that
			t.Errorf("%v: no length fits", kind)
		}
	}
	if answered < 80 {
		t.Errorf("%d messages were answered", answered)
	}
	waitFor(t, func() bool { return d.store.Status().Objects == 0 }) // a connection's end is told before it cleans up
}

// TestMemoryOfAGPU: the requests for it, from those that find no GPU to a copy, and what is not asked of one.
func TestMemoryOfAGPU(t *testing.T) {
	gpu := object.Device{1}
	var asked atomic.Int32
	d := open(t, func(o *Options) {
		o.GPUs = func() (any, error) {
			if asked.Add(1) > 1 {
				return nil, fmt.Errorf("%w: no driver", object.ErrUnsupported)
			}
			return []map[string]int{{"index": 0}}, nil
		}
		s, err := store.New(store.Options{CapacityBytes: 64 << 20, Devices: copies{oneGPU{gpu}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		o.Store = s
	})
	d.store = d.Server.opts.Store
	p := d.dial(t).hello()
	if f, err := p.ask(wire.GPUs, nil); err != nil || string(f.Payload) != `[{"index":0}]` {
		t.Errorf("%q, %v", f.Payload, err)
	}
	if _, err := p.ask(wire.GPUs, nil); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("no GPU: %v", err)
	}
	made := func(m *wire.CreateDeviceRequest) (r wire.DeviceReply, err error) {
		f, err := p.ask(wire.CreateDevice, m)
		if err != nil {
			return r, err
		}
		defer f.CloseFDs()
		if f.NumFDs != 1 {
			t.Errorf("%d descriptors", f.NumFDs)
		}
		return r, r.Decode(f.Payload)
	}
	if _, err := made(&wire.CreateDeviceRequest{SizeBytes: 1, Device: object.Device{2}}); !errors.Is(err,
		object.ErrUnsupported) {
		t.Errorf("another GPU: %v", err)
	}
	if _, err := made(&wire.CreateDeviceRequest{Device: gpu}); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	r, err := made(&wire.CreateDeviceRequest{SizeBytes: 10, Device: gpu, Name: "g", Class: object.Named,
		Meta: []byte("m"), Labels: map[string]string{"k": "v"}})
	if err != nil || r.SizeBytes != 10 || r.Bytes != 2<<20 || r.Device != gpu {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := p.ask(wire.GetDevice, &wire.NameMessage{ID: r.ID}); !errors.Is(err, object.ErrNotSealed) {
		t.Errorf("before its seal: %v", err)
	}
	f, err := p.ask(wire.Create, &wire.CreateRequest{SizeBytes: 10, Name: "h", Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	f.CloseFDs()
	var host wire.CreateReply
	if err := host.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	hostID := host.ID
	if _, err := p.ask(wire.SealDevice, &wire.SealDeviceRequest{ID: hostID}); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("sealed as if it were a GPU's: %v", err)
	}
	copied := func(m wire.CopyRequest) error {
		_, err := p.ask(wire.CopyObject, &m)
		return err
	}
	for what, x := range map[string]struct {
		m    wire.CopyRequest
		want error
	}{
		"from what is not sealed": {wire.CopyRequest{To: r.ID, From: hostID, Bytes: 10}, object.ErrNotSealed},
		"from nothing":            {wire.CopyRequest{To: r.ID, FromName: "none", Bytes: 10}, object.ErrNotFound},
	} {
		if err := copied(x.m); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.ask(wire.Seal, &wire.SealRequest{ID: hostID}); err != nil {
		t.Fatal(err)
	}
	if err := copied(wire.CopyRequest{To: r.ID, FromName: "h", Bytes: 10}); err != nil {
		t.Error(err)
	}
	if err := copied(wire.CopyRequest{To: r.ID, ToOffset: 1, From: hostID, Bytes: 10}); !errors.Is(err,
		object.ErrInvalid) {
		t.Errorf("beyond the object's end: %v", err)
	}
	if _, err := p.ask(wire.Seal, &wire.SealRequest{ID: r.ID}); err != nil {
		t.Fatal(err)
	}
	f, err = p.ask(wire.GetDevice, &wire.NameMessage{Name: "g"})
	var got wire.DeviceReply
	if err = cmp.Or(err, got.Decode(f.Payload)); err != nil || got.ID != r.ID || string(got.Meta) != "m" ||
		f.NumFDs != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	f.CloseFDs()
	if _, err := p.ask(wire.GetDevice, &wire.NameMessage{ID: hostID}); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("host memory as a GPU's: %v", err)
	}
	if _, err := p.ask(wire.Get, &wire.GetRequest{ID: r.ID}); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a GPU's memory as the host's: %v", err)
	}
	p.Close()
	waitFor(t, func() bool { return d.Connections() == 0 })
}

// copies is oneGPU that copies nothing, and says that it did.
type copies struct{ oneGPU }

func (copies) Copy(store.Asker, store.Place, store.Place, uint64) error { return nil }
