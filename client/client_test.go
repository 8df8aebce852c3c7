package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/session"
	"tendril/daemon/frontdoor"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) {
	if run := processes[os.Getenv("CLIENT_TEST_PROCESS")]; run != nil {
		run()
		return
	}
	await.Main(withNode{m})
}

// backend is a daemon without sessions to speak of.
type backend struct {
	store *store.Store
	full  atomic.Int32 // how many workers more there is no memory for
}

func (b *backend) Status(frontdoor.Peer) ([]byte, error) {
	return json.Marshal(map[string]any{"store": b.store.Status()})
}
func (b *backend) Devices() ([]byte, error) { return []byte(`{"platforms":[]}`), nil }
func (b *backend) OpenSession(_ context.Context, p frontdoor.Peer, version string,
	options []byte) (uint64, []byte, error) {
	return 7, []byte(fmt.Sprintf(`{"pid":%d,"fill":%q}`, p.PID, strings.Repeat("x", 3<<20))), nil
}
func (b *backend) CloseSession(uint64) {}
func (b *backend) OpenWorker(uint64, uint32) (frontdoor.Worker, error) {
	if b.full.Add(-1) >= 0 {
		return frontdoor.Worker{}, fmt.Errorf("%w: a ring", object.ErrFull)
	}
	r, w, err := os.Pipe()
	return frontdoor.Worker{ID: 3, RingBytes: 4096, Socket: r, Ring: w}, err
}
func (b *backend) OpenRemoteWorker(_ uint64, m wire.OpenRemoteWorkerRequest) (wire.OpenRemoteWorkerReply, error) {
	return wire.OpenRemoteWorkerReply{}, fmt.Errorf("%w: not in this test", object.ErrUnsupported)
}

func (b *backend) Lane([32]byte, string, int) error {
	return fmt.Errorf("%w: not in this test", object.ErrUnsupported)
}

func (b *backend) AttachSegment(uint64, uint64, uint64, object.Device, int) (uint64, error) {
	return 0, fmt.Errorf("%w: no worker", object.ErrNotFound)
}
func (b *backend) CloseWorker(uint64, uint64) {}
func (b *backend) ReserveDevice(_, _, bytes uint64) error {
	if bytes > 1<<30 {
		return fmt.Errorf("%w: 1 GiB", object.ErrQuota)
	}
	return nil
}
func (b *backend) WorkerFate(context.Context, uint64, uint64) (bool, string, error) {
	return false, "killed by SIGSEGV", nil
}

// node is a store behind a front door.
type node struct {
	store   *store.Store
	backend *backend
	door    *frontdoor.Server
	socket  string
}

func startNode(t testing.TB, opts store.Options) *node {
	t.Helper()
	if opts.CapacityBytes == 0 {
		opts.CapacityBytes = 256 << 20
	}
	s, err := store.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	n := &node{store: s, backend: &backend{store: s}, socket: filepath.Join(t.TempDir(), "s", "tendril.sock")}
	n.open(t)
	return n
}

// open opens the front door.
func (n *node) open(t testing.TB) {
	t.Helper()
	var err error
	n.door, err = frontdoor.Listen(frontdoor.Options{
		Socket: n.socket, Store: n.store, Backend: n.backend, DaemonVersion: "test",
		Tenant: func(uid, gid uint32) string { return fmt.Sprintf("uid:%d", uid) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.door.Close)
}

func (n *node) dial(t testing.TB) *client.Conn {
	t.Helper()
	c, err := client.Dial(context.Background(), client.Options{Socket: n.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestShareBetweenConnections(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	ctx := context.Background()
	for _, size := range []int{0, 1, 100, 4096, 1 << 20, 40 << 20} {
		data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		name := fmt.Sprintf("size%d", size)
		mine := must(a.Put(ctx, data, client.CreateOptions{Name: name, Class: object.Named, Meta: []byte(`{"n":1}`)}))(t)
		if !bytes.Equal(mine.Bytes(), data) {
			t.Errorf("%d bytes: the creator reads something else", size)
		}
		mine.Release()
		got := must(b.GetByName(ctx, name, 0))(t)
		if !bytes.Equal(got.Bytes(), data) || string(got.Meta()) != `{"n":1}` || got.Size() != uint64(size) {
			t.Errorf("%d bytes: got %d others", size, len(got.Bytes()))
		}
		info := must(got.Info(ctx))(t)
		if info.Name != name || info.ID != got.ID() || info.State != object.Sealed || info.CreatorPID != os.Getpid() {
			t.Errorf("%+v", info)
		}
		got.Release()
		got.Release()
		if got.Bytes() != nil {
			t.Error("Bytes after Release")
		}
	}
	infos := must(b.List(ctx, "size", false))(t)
	if len(infos) != 6 {
		t.Errorf("List: %d objects", len(infos))
	}
	for _, info := range infos {
		if err := b.Delete(ctx, info.ID); err != nil {
			t.Error(err)
		}
	}
	if left := must(b.List(ctx, "", true))(t); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 16 << 20})
	a, b := n.dial(t), n.dial(t)
	ctx := context.Background()
	want := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	_, err := a.GetByName(ctx, "none", 0)
	want(err, object.ErrNotFound)
	_, err = a.GetByName(ctx, "none", time.Millisecond)
	want(err, object.ErrTimeout)
	_, err = a.Create(ctx, 1<<40, client.CreateOptions{})
	want(err, object.ErrFull)
	_, err = a.Create(ctx, 1, client.CreateOptions{Class: object.Persisted})
	want(err, object.ErrUnsupported)
	_, err = a.Create(ctx, 1, client.CreateOptions{Name: strings.Repeat("n", 256)})
	want(err, object.ErrInvalid)
	buf := must(a.Create(ctx, 1, client.CreateOptions{}))(t)
	_, err = b.Get(ctx, buf.ID(), 0)
	want(err, object.ErrNotSealed)
	want(b.Delete(ctx, buf.ID()), object.ErrNotSealed)
	if err := buf.Abort(ctx); err != nil {
		t.Error(err)
	}
	_, err = b.Get(ctx, buf.ID(), 0)
	want(err, object.ErrNotFound)
	if _, err := admin.Of(a).Status(ctx); err != nil {
		t.Errorf("the connection must live on: %v", err)
	}
}

func TestWaitingGet(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			o, err := b.GetByName(context.Background(), "soon", time.Minute)
			if err != nil || string(o.Bytes()) != "here" {
				t.Errorf("%v", err)
				return
			}
			o.Release()
		})
	}
	// Others go on while one reads for all.
	o := must(b.Put(context.Background(), []byte("other"), client.CreateOptions{}))(t)
	o.Release()
	must(a.Put(context.Background(), []byte("here"), client.CreateOptions{Name: "soon", Class: object.Named}))(t).Release()
	wg.Wait()

	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, err := b.GetByName(ctx, "later", time.Minute)
		failed <- err
	}()
	await.Until(t, "a waiting get", func() bool { cancel(); return true })
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled get: %v", err)
	}
	later := must(a.Put(context.Background(), []byte("late"), client.CreateOptions{Name: "later", Class: object.Named}))(t)
	later.Release()
	await.Until(t, "the abandoned get's reference to go", func() bool {
		info, err := b.StatByName(context.Background(), "later") // reads, and so undoes
		return err == nil && info.Refs == 0
	})
}

func TestManyGoroutines(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				data := []byte(fmt.Sprintf("%d/%d", g, i))
				o, err := c.Put(context.Background(), data, client.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				again, err := c.Get(context.Background(), o.ID(), 0)
				if err != nil || !bytes.Equal(again.Bytes(), data) {
					t.Errorf("%v", err)
					return
				}
				o.Release()
				again.Release()
			}
		})
	}
	wg.Wait()
	await.Until(t, "all objects to go", func() bool { return n.store.Status().Objects == 0 })
}

func TestStrict(t *testing.T) {
	n := startNode(t, store.Options{})
	a := n.dial(t)
	o := must(a.Put(context.Background(), []byte("never again"), client.CreateOptions{Strict: true}))(t)
	defer o.Release()
	if info := must(o.Info(context.Background()))(t); !info.Strict || string(o.Bytes()) != "never again" {
		t.Errorf("%+v %q", info, o.Bytes())
	}
}

func TestMemoryComesBack(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20, WriterCacheBytes: 20 << 20})
	a, b := n.dial(t), n.dial(t)
	ctx := context.Background()
	for i := range 20 { // 20 × 16 MiB through a store of 64
		o, err := a.Put(ctx, bytes.Repeat([]byte{byte(i)}, 16<<20), client.CreateOptions{})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		got := must(b.Get(ctx, o.ID(), 0))(t)
		if got.Bytes()[16<<20-1] != byte(i) {
			t.Fatalf("round %d: wrong bytes", i)
		}
		got.Release()
		o.Release()
	}
	await.Until(t, "room for more than fits beside what both keep mapped", func() bool {
		buf, err := a.Create(ctx, 40<<20, client.CreateOptions{})
		if err == nil {
			err = buf.Abort(ctx)
		}
		return err == nil
	})
	a.Close()
	await.Until(t, "the reader to let go", func() bool {
		st := n.store.Status()
		return st.SegmentBytes == 0 && st.TableBytes == 0 && st.LeavingBytes == 0
	})
}

func TestDaemonGoes(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	o := must(c.Put(context.Background(), []byte("kept"), client.CreateOptions{}))(t)
	failed := make(chan error)
	go func() {
		_, err := c.GetByName(context.Background(), "never", time.Minute)
		failed <- err
	}()
	await.Until(t, "a waiting get", func() bool { return n.door.Connections() == 1 })
	n.door.Close()
	if err := <-failed; !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("get under way: %v", err)
	}
	if _, err := admin.Of(c).Status(context.Background()); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("later call: %v", err)
	}
	if string(o.Bytes()) != "kept" {
		t.Error("held objects must stay readable")
	}
	o.Release()
	if _, err := client.Dial(context.Background(), client.Options{Socket: n.socket}); !errors.Is(err,
		client.ErrDisconnected) {
		t.Errorf("Dial without a daemon: %v", err)
	}
}

func TestSession(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	if _, err := session.Of(c).AllocSegment(context.Background(), 100, nil); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("AllocSegment outside a session: %v", err)
	}
	id, snapshot, err := session.Of(c).Open(context.Background(), "v", []byte(`{}`))
	if err != nil || id != 7 || len(snapshot) < 3<<20 || !json.Valid(snapshot) {
		t.Fatalf("Open: %d, %d bytes, %v", id, len(snapshot), err)
	}
	if _, _, err := session.Of(c).Open(context.Background(), "v", nil); !errors.Is(err, object.ErrExists) {
		t.Errorf("second session: %v", err)
	}
	n.backend.full.Store(2) // for a moment
	w := must(session.Of(c).OpenWorker(context.Background(), 0))(t)
	if w.ID != 3 {
		t.Errorf("%+v", w)
	}
	go func() { w.Ring.Write([]byte("ding")); w.Ring.Close() }()
	bell := make([]byte, 8)
	if k, err := w.Socket.Read(bell); string(bell[:k]) != "ding" {
		t.Errorf("descriptors in the wrong order? %v", err)
	}
	w.Socket.Close()
	alive, text, err := session.Of(c).WorkerFate(context.Background(), 3)
	if alive || text != "killed by SIGSEGV" || err != nil {
		t.Errorf("fate: %v %q %v", alive, text, err)
	}
	if err := session.Of(c).ReserveDevice(context.Background(), 3, 1<<30); err != nil {
		t.Error(err)
	}
	if err := session.Of(c).ReserveDevice(context.Background(), 3, 2<<30); !errors.Is(err, object.ErrQuota) {
		t.Error(err)
	}
	session.Of(c).ReturnDevice(3, 0)
	session.Of(c).CloseWorker(3)

	s := must(session.Of(c).AllocSegment(context.Background(), 100_000, nil))(t)
	copy(s.Bytes(), "result")
	made := must(s.Publish(context.Background(), 6, object.Named, "r", nil, false))(t)
	if s.Bytes() != nil {
		t.Error("a published segment must be unmapped")
	}
	s.Free()
	o := must(c.Get(context.Background(), made, 0))(t)
	if string(o.Bytes()) != "result" {
		t.Errorf("%q", o.Bytes())
	}
	o.Release()
	session.Of(c).ReleaseID(made)
	free := must(session.Of(c).AllocSegment(context.Background(), 1, nil))(t)
	free.Free()
	await.Until(t, "the freed segment to go", func() bool { return n.store.Status().SessionBytes == 0 })
}

// Where memory is short a session gives back what it keeps before it waits for others, once.
func TestSessionSparesFirst(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 8 << 20})
	c := n.dial(t)
	if _, _, err := session.Of(c).Open(context.Background(), "v", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	kept := must(session.Of(c).AllocSegment(context.Background(), 6<<20, nil))(t)
	spared := 0
	s := must(session.Of(c).AllocSegment(context.Background(), 5<<20, func() { spared++; kept.Free() }))(t)
	if spared != 1 {
		t.Errorf("asked %d times to spare something", spared)
	}
	if _, err := session.Of(c).AllocSegment(context.Background(), 5<<20, func() { spared++ }); !errors.Is(err,
		object.ErrFull) || spared != 2 {
		t.Errorf("with nothing to spare: %v, asked %d times", err, spared)
	}
	more := must(session.Of(c).AllocSegment(context.Background(), 1<<20,
		func() { t.Error("asked to spare where there is room") }))(t)
	more.Free()
	s.Free()
}

func (b *backend) EachSession(frontdoor.Peer, string, func(any, string) bool) error { return nil }
func (b *backend) SessionAway(uint64, time.Time, string)                            {}
func (b *backend) ResumeWorker(_, _ uint64, lanes []int) ([][32]byte, error) {
	return make([][32]byte, len(lanes)), nil
}

// TestWhatKeepsAnObject: with a name it stays, and with a TTL it has that class, unless the options say otherwise.
func TestWhatKeepsAnObject(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	for i, c := range []struct {
		o     client.CreateOptions
		class object.Class
		stays bool
	}{
		{client.CreateOptions{}, object.Ephemeral, false},
		{client.CreateOptions{Name: "named"}, object.Named, true},
		{client.CreateOptions{Name: "ephemeral", EphemeralName: true}, object.Ephemeral, false},
		{client.CreateOptions{TTL: time.Hour}, object.TTL, true},
		{client.CreateOptions{Name: "ttl", TTL: time.Hour}, object.TTL, true},
		{client.CreateOptions{Name: "both", Class: object.Named}, object.Named, true},
	} {
		o := must(a.Put(context.Background(), []byte("x"), c.o))(t)
		info := must(o.Info(context.Background()))(t)
		if o.Class() != c.class || info.Class != c.class {
			t.Errorf("%d: class %v here, %v at the daemon, want %v", i, o.Class(), info.Class, c.class)
		}
		o.Release()
		a.Stat(context.Background(), o.ID()) // the release went before it
		if _, err := b.Stat(context.Background(), o.ID()); (err == nil) != c.stays {
			t.Errorf("%d: after the release: %v", i, err)
		}
	}
}
