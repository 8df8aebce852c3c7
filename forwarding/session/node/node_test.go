package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/frontdoor"
	"tendril/forwarding/clwire"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

type linker = frontdoor.Peers // which has a method of that name

// daemon is a real front door with a real store, and a test's own answers for what a worker pool would say. A method
// that it lacks panics.
type daemon struct {
	frontdoor.Backend
	linker
	store  *store.Store
	gone   *atomic.Bool // its GPUs
	socket string

	mu   sync.Mutex
	said []string // what the pool was asked
}

func (d *daemon) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = append(d.said, fmt.Sprintf(format, args...))
}

// heard waits until the pool was asked something: what needs no answer is sent and not waited for.
func (d *daemon) heard(t *testing.T, what string) {
	t.Helper()
	await.Until(t, "question "+what, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, s := range d.said {
			if s == what {
				return true
			}
		}
		return false
	})
}

func (d *daemon) OpenSession(_ context.Context, p frontdoor.Peer, version string,
	options []byte) (uint64, []byte, error) {
	return 7, fmt.Appendf(nil, "%s %s %s", p.Name, version, options), nil
}
func (d *daemon) CloseSession(session uint64) { d.note("end of session %d", session) }

func (d *daemon) OpenWorker(session uint64, platform uint32) (frontdoor.Worker, error) {
	if platform != 2 {
		return frontdoor.Worker{}, fmt.Errorf("%w: platform %d", object.ErrNotFound, platform)
	}
	r, w, err := os.Pipe()
	return frontdoor.Worker{ID: 3, RingBytes: 4096, Socket: r, Ring: w}, err
}

func (d *daemon) OpenRemoteWorker(uint64, wire.OpenRemoteWorkerRequest) (wire.OpenRemoteWorkerReply, error) {
	return wire.OpenRemoteWorkerReply{}, fmt.Errorf("%w: no way in", object.ErrNotFound)
}

func (d *daemon) ResumeWorker(_, worker uint64, _ []int) ([][32]byte, error) {
	return nil, fmt.Errorf("%w: worker %d", object.ErrNotFound, worker)
}

func (d *daemon) CloseWorker(_, worker uint64) { d.note("end of worker %d", worker) }

func (d *daemon) WorkerFate(_ context.Context, _, worker uint64) (bool, string, error) {
	return false, fmt.Sprintf("worker %d was killed by SIGSEGV", worker), nil
}

func (d *daemon) ReserveDevice(_, worker, bytes uint64) error {
	d.note("worker %d may have %d bytes", worker, bytes)
	if bytes > 1<<20 {
		return fmt.Errorf("%w: 1 MiB", object.ErrQuota)
	}
	return nil
}

func (d *daemon) AttachSegment(_, worker, bytes uint64, device object.Device, fd int) (uint64, error) {
	if worker != 3 {
		return 0, fmt.Errorf("%w: worker %d", object.ErrNotFound, worker)
	}
	if !device.IsZero() {
		return 1<<63 | clwire.AttachedDevice | 5, nil
	}
	return 1<<63 | 5, nil
}

func (d *daemon) OfferPeer(_ uint64, m wire.OfferPeerRequest) ([]byte, error) {
	return fmt.Appendf(nil, "offer of worker %d", m.Worker), nil
}

func (d *daemon) DialPeer(_ context.Context, _ uint64, m wire.DialPeerRequest) error {
	d.note("dial %d with %s", m.Worker, m.Offer)
	return nil
}

func (d *daemon) PairPeers(_ uint64, m wire.PairPeersRequest) error {
	return fmt.Errorf("%w: %d and %d", object.ErrUnsupported, m.Workers[0], m.Workers[1])
}

func (d *daemon) TellPeer(_ uint64, m wire.TellPeerRequest) {
	d.note("link %d is up: %v", m.Link, m.Up)
}

// start starts a daemon and begins a session with it.
func start(t *testing.T) (*daemon, Control) {
	t.Helper()
	gone := new(atomic.Bool)
	s, err := store.New(store.Options{CapacityBytes: 64 << 20, Devices: gpus{gone}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d := &daemon{store: s, gone: gone, socket: filepath.Join(t.TempDir(), "s", "tendril.sock")}
	door, err := frontdoor.Listen(frontdoor.Options{Socket: d.socket, Store: s, Backend: d, Peers: d,
		Tenant: func(uint32, uint32) string { return "lab" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	c, err := Dial(d.socket, "program")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		d.heard(t, "end of session 7")
	})
	snapshot, err := c.OpenSession("v1", []byte("options"))
	if err != nil || string(snapshot) != "program v1 options" {
		t.Fatalf("%q, %v", snapshot, err)
	}
	return d, c
}

// sessionBytes waits until the store's sessions have so many bytes.
func (d *daemon) sessionBytes(t *testing.T, want uint64) {
	t.Helper()
	await.Until(t, fmt.Sprintf("session with %d bytes", want), func() bool {
		return d.store.Status().SessionBytes == want
	})
}

// other is another client of the daemon.
func (d *daemon) other(t *testing.T) *client.Conn {
	t.Helper()
	c, err := client.Dial(context.Background(), client.Options{Socket: d.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestNobodyThere(t *testing.T) {
	if _, err := Dial(filepath.Join(t.TempDir(), "none"), "program"); err == nil {
		t.Error("connected to no daemon")
	}
	if _, err := DialServer("", "program", 0); err == nil {
		t.Error("connected to a server without a name")
	}
}

// TestSegment: memory is zeroed, writable, and the session's until it is freed; its descriptor is none of those that a
// program takes for its standard files.
func TestSegment(t *testing.T) {
	d, c := start(t)
	s, err := c.AllocSegment(5000, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Bytes) < 5000 || !bytes.Equal(s.Bytes, make([]byte, len(s.Bytes))) {
		t.Errorf("%d bytes, or not zeroed", len(s.Bytes))
	}
	if fd := s.File.Fd(); fd < aboveStandard {
		t.Errorf("descriptor %d", fd)
	}
	copy(s.Bytes, "written")
	read := make([]byte, 7)
	if _, err := s.File.ReadAt(read, 0); err != nil || string(read) != "written" {
		t.Errorf("%q, %v", read, err)
	}
	d.sessionBytes(t, uint64(len(s.Bytes)))
	c.FreeSegment(s)
	d.sessionBytes(t, 0)
	half, err := c.AllocSegment(40<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocSegment(40<<20, nil); !errors.Is(err, object.ErrFull) {
		t.Errorf("80 MiB of 64: %v", err)
	}
	c.FreeSegment(half)
}

// TestPublish: a segment becomes an object without a copy, and stays mapped here until it is unmapped.
func TestPublish(t *testing.T) {
	for _, name := range []string{"result", ""} {
		t.Run("name="+name, func(t *testing.T) {
			d, c := start(t)
			s, err := c.AllocSegment(1<<20, nil)
			if err != nil {
				t.Fatal(err)
			}
			copy(s.Bytes, "computed")
			id, err := c.PublishSegment(s, 1000, name, []byte(`{"dtype":"|u1"}`))
			if err != nil {
				t.Fatal(err)
			}
			o, err := d.other(t).Get(t.Context(), id, 0)
			if err != nil || len(o.Bytes()) != 1000 || string(o.Bytes()[:8]) != "computed" {
				t.Fatalf("%v", err)
			}
			if string(s.Bytes[:8]) != "computed" {
				t.Error("the segment is not mapped here any more")
			}
			d.sessionBytes(t, 0)
			c.UnmapSegment(s)
			o.Release()
			want := 0 // an object without a name lives as long as this process
			if name == "" {
				want = 1
			}
			await.Until(t, "end of the references", func() bool { return d.store.Status().References == want })
		})
	}
}

func TestWorker(t *testing.T) {
	d, c := start(t)
	w, err := c.OpenWorker(2)
	if err != nil || w.ID != 3 {
		t.Fatalf("%+v, %v", w, err)
	}
	if _, err := w.Ring.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	w.Ring.Close()
	w.Socket.Close()
	if _, err := c.OpenWorker(0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a platform that is none: %v", err)
	}
	if alive, how, err := c.WorkerFate(3); alive || how != "worker 3 was killed by SIGSEGV" || err != nil {
		t.Errorf("%v, %q, %v", alive, how, err)
	}
	c.CloseWorker(3)
	d.heard(t, "end of worker 3")
}

// TestReserveDevice: more is asked for, less is said.
func TestReserveDevice(t *testing.T) {
	d, c := start(t)
	if err := c.ReserveDevice(3, 1000, false); err != nil {
		t.Error(err)
	}
	if err := c.ReserveDevice(3, 2<<20, false); !errors.Is(err, object.ErrQuota) {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := c.ReserveDevice(3, 500, true); err != nil {
		t.Error(err)
	}
	d.heard(t, "worker 3 may have 500 bytes")
}

// TestAttachObject: an object is referenced and mapped while a worker has it, and neither afterwards.
func TestAttachObject(t *testing.T) {
	d, c := start(t)
	writer := d.other(t)
	put, err := writer.Put(context.Background(), []byte("contents"), client.CreateOptions{Name: "o", Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	id := put.ID()
	put.Release()
	for _, by := range []struct {
		id   [16]byte
		name string
	}{{id: id}, {name: "o"}} {
		o, err := c.AttachObject(3, by.id, by.name)
		if err != nil {
			t.Fatal(err)
		}
		if o.ID != id || o.Segment != 1<<63|5 || o.Size != 8 || string(o.Bytes) != "contents" {
			t.Errorf("%+v", o)
		}
		c.DetachObject(o)
		await.Until(t, "end of the references", func() bool { return d.store.Status().References == 0 })
	}
	if _, err := c.AttachObject(3, [16]byte{}, "none"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is none: %v", err)
	}
	if _, err := c.AttachObject(4, id, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker that is none: %v", err)
	}
	await.Until(t, "end of the references", func() bool { return d.store.Status().References == 0 })
}

func TestPeers(t *testing.T) {
	d, c := start(t)
	p := c.(Peers)
	offer, err := p.OfferPeer(3, 9, 2, false)
	if err != nil || string(offer) != "offer of worker 3" {
		t.Errorf("%q, %v", offer, err)
	}
	if err := p.DialPeer(4, 9, offer); err != nil {
		t.Error(err)
	}
	d.heard(t, "dial 4 with offer of worker 3")
	if err := p.PairPeers(3, 4, 9, 1); !errors.Is(err, object.ErrUnsupported) {
		t.Error(err)
	}
	p.TellPeer(3, 9, true, "worker 4", "")
	d.heard(t, "link 9 is up: true")
}

// TestRemote: with another machine no memory is shared, and what belongs to that fails. The daemon here is none: it
// makes no worker that is come to by tickets, and keeps no session.
func TestRemote(t *testing.T) {
	_, c := start(t)
	far := Control(&remote{*c.(*local)}).(Remote)
	if _, err := far.AllocSegment(100, nil); !errors.Is(err, object.ErrUnsupported) || !errors.Is(err, ErrNoShared) {
		t.Errorf("memory: %v", err)
	}
	if _, err := far.OpenRemoteWorker(2, [32]byte{}, 1, false, true); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker: %v", err)
	}
	if _, err := far.ResumeWorker(3, []int{0}); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker's new lane: %v", err)
	}
	if kept, err := far.KeepSession(time.Second); kept != 0 || err != nil {
		t.Errorf("the session is kept for %v, %v", kept, err)
	}
	lane, err := far.DialLane([32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if err := lane.Close(); err != nil {
		t.Error(err)
	}
	far.(interface{ Leave() }).Leave()
}
