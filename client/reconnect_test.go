package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/session"
	"tendril/daemon/frontdoor"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func init() { processes["keeping daemon"] = keepingDaemonProcess }

// keepingDaemonProcess is a daemon whose persisted objects outlive it.
func keepingDaemonProcess() {
	socket := os.Getenv("TENDRIL_SOCKET")
	s, err := store.New(store.Options{CapacityBytes: 96 << 20, SegmentBytes: 4 << 20,
		SpillDir: filepath.Join(filepath.Dir(socket), "objects")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	door, err := frontdoor.Listen(frontdoor.Options{
		Socket: socket, Store: s, Backend: &backend{store: s}, Tenant: func(uid, gid uint32) string { return "all" },
		Incarnation: object.NewID(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer door.Close()
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

func startKeeping(t testing.TB, socket string) *child {
	t.Helper()
	p := start(t, "keeping daemon", socket)
	if got := p.line(t); got != "ready" {
		t.Fatal(got)
	}
	return p
}

func dialAt(t testing.TB, o client.Options) *client.Conn {
	t.Helper()
	c := must(client.Dial(context.Background(), o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// What a client holds stays readable when the daemon is killed, what is on disk is held again, and the next call is
// answered by the daemon that comes after.
func TestReconnectAfterACrash(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	c := dialAt(t, client.Options{Socket: socket})
	plain := must(c.Put(context.Background(), []byte("ephemeral"), client.CreateOptions{}))(t)
	early := must(c.Put(context.Background(), []byte("let go early"), client.CreateOptions{Name: "early",
		Class: object.Persisted}))(t)
	kept := must(c.Put(context.Background(), []byte("persisted"), client.CreateOptions{Name: "kept",
		Class: object.Persisted}))(t)
	open := must(c.Create(context.Background(), 100, client.CreateOptions{}))(t)
	w := must(c.OpenWriter(context.Background(), "frames", client.StreamOptions{}))(t)
	before := c.Daemon()

	p.kill()
	p.end()
	early.Release()
	startKeeping(t, socket)
	if err := w.Write(context.Background(), []byte("frame"), nil, 0); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("a writer of the daemon before: %v", err)
	}
	if _, err := open.Seal(context.Background()); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("sealing a buffer of the daemon before: %v", err)
	}
	info := must(c.StatByName(context.Background(), "kept"))(t)
	if info.Refs != 1 || c.Daemon().Incarnation == before.Incarnation {
		t.Errorf("%d references to what was held, before %+v, now %+v", info.Refs, before, c.Daemon())
	}
	if info := must(c.StatByName(context.Background(), "early"))(t); info.Refs != 0 {
		t.Errorf("%d references to what was released", info.Refs)
	}
	if string(plain.Bytes()) != "ephemeral" || string(kept.Bytes()) != "persisted" {
		t.Errorf("held: %q, %q", plain.Bytes(), kept.Bytes())
	}
	if !plain.Gone() || kept.Gone() {
		t.Errorf("gone: %v, %v", plain.Gone(), kept.Gone())
	}
	if err := open.Abort(context.Background()); err != nil {
		t.Error(err)
	}
	again := must(c.GetByName(context.Background(), "kept", 0))(t)
	if string(again.Bytes()) != "persisted" {
		t.Errorf("%q", again.Bytes())
	}
	for _, o := range []*client.Object{plain, kept, again} {
		o.Release()
	}
	if info := must(c.StatByName(context.Background(), "kept"))(t); info.Refs != 0 {
		t.Errorf("%d references at the end", info.Refs)
	}
	w = must(c.OpenWriter(context.Background(), "frames", client.StreamOptions{}))(t)
	if err := w.Write(context.Background(), []byte("frame"), nil, 0); err != nil {
		t.Error(err)
	}
	w.Close(context.Background())
}

func TestNoReconnect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	c := dialAt(t, client.Options{Socket: socket, NoReconnect: true})
	inSession := dialAt(t, client.Options{Socket: socket})
	if _, _, err := session.Of(inSession).Open(context.Background(), "v", nil); err != nil {
		t.Fatal(err)
	}
	p.kill()
	p.end()
	startKeeping(t, socket)
	for range 2 {
		if _, err := c.List(context.Background(), "", false); !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("with NoReconnect: %v", err)
		}
		if _, err := inSession.List(context.Background(), "", false); !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("with a session: %v", err)
		}
	}
}

// A front door that closes and opens again before the same store is what a handover looks like: segments keep their
// numbers, and what was mapped needs no descriptor.
func TestReconnectToTheSameMemory(t *testing.T) {
	t.Setenv("TENDRIL_INDEX", "off") // whose slots are mapped, and written
	n := startNode(t, store.Options{WarmBytes: 1 << 20})
	c := n.dial(t)
	mine := must(c.Put(context.Background(), []byte("mine"), client.CreateOptions{Name: "mine", Class: object.Named}))(t)
	other := n.dial(t)
	got := must(other.Get(context.Background(), mine.ID(), 0))(t)
	twice := must(other.Get(context.Background(), mine.ID(), 0))(t)
	if string(mine.Bytes())+string(got.Bytes()) != "minemine" {
		t.Error("other bytes")
	}
	before := mappings(t)
	n.door.Close()
	await.Until(t, "the connections' end", func() bool { return n.store.Status().References == 0 })
	n.open(t)
	for range 2 {
		for _, conn := range []*client.Conn{c, other} {
			o := must(conn.GetByName(context.Background(), "mine", 0))(t)
			if string(o.Bytes()) != "mine" {
				t.Errorf("%q", o.Bytes())
			}
			o.Release()
		}
	}
	await.Until(t, "three references", func() bool { return must(c.Stat(context.Background(), mine.ID()))(t).Refs == 3 })
	if now := mappings(t); now > before {
		t.Errorf("%d mappings before, %d after", before, now)
	}
	for _, o := range []*client.Object{mine, got, twice} {
		if o.Gone() || string(o.Bytes()) != "mine" {
			t.Errorf("gone %v, %q", o.Gone(), o.Bytes())
		}
		o.Release()
	}
	if err := c.DeleteByName(context.Background(), "mine"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the memory to come back", func() bool {
		c.Sweep(context.Background())
		other.Sweep(context.Background())
		return n.store.Status().UsedBytes == 0 && n.store.Status().References == 0 && n.store.Status().Segments == 0
	})
}

// TestDaemonKilledAtRandom has many clients put, get, read and release while the daemon is killed again and again.
// Whatever they hold has the bytes that it should have, what fails fails with ErrDisconnected or because the object is
// gone, and at the end nothing is left.
func TestDaemonKilledAtRandom(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	for i := range 4 { // on disk, for all to get
		c := dialAt(t, client.Options{Socket: socket})
		must(c.Put(context.Background(), pattern(uint64(i)),
			client.CreateOptions{Name: fmt.Sprint("p", i), Class: object.Persisted}))(t).Release()
		c.Close()
	}
	kills, clients := 6, 6
	if testing.Short() {
		kills = 2
	}
	maps := mappings(t)
	stop := make(chan struct{})
	var running sync.WaitGroup
	conns := make([]*client.Conn, clients)
	for i := range conns {
		conns[i] = dialAt(t, client.Options{Socket: socket})
		running.Go(func() { (&roamer{t: t, c: conns[i], rng: rand.New(rand.NewPCG(uint64(i), 7))}).roam(stop) })
	}
	for range kills {
		time.Sleep(time.Duration(20+rand.IntN(120)) * time.Millisecond) // Pause: a kill in the middle of anything
		p.kill()
		p.end()
		p = startKeeping(t, socket)
	}
	close(stop)
	running.Wait()
	c := dialAt(t, client.Options{Socket: socket})
	for i := range 4 {
		o := must(c.GetByName(context.Background(), fmt.Sprint("p", i), 0))(t)
		if !bytes.Equal(o.Bytes(), pattern(uint64(i))) {
			t.Errorf("persisted object %d changed", i)
		}
		o.Release()
	}
	await.Until(t, "the references' end", func() bool {
		list := must(c.List(context.Background(), "", true))(t)
		for _, info := range list {
			if info.Refs > 0 {
				return false
			}
		}
		return len(list) == 4
	})
	for _, conn := range conns {
		conn.Close()
	}
	c.Close()
	if now := mappings(t); now > maps {
		t.Errorf("%d mappings before, %d after", maps, now)
	}
}

// pattern is 5,000 to some 40,000 bytes that follow from seed.
func pattern(seed uint64) []byte {
	b := make([]byte, 5000+seed%7*5000)
	for i := range b {
		b[i] = byte(seed*31 + uint64(i)*7)
	}
	return b
}

// roamer is one client at random.
type roamer struct {
	t    *testing.T
	c    *client.Conn
	rng  *rand.Rand
	held []heldObject
}

type heldObject struct {
	o    *client.Object
	seed uint64
}

func (r *roamer) roam(stop chan struct{}) {
	defer func() {
		for len(r.held) > 0 {
			r.release()
		}
	}()
	for {
		select {
		case <-stop:
			return
		default:
			r.step()
		}
	}
}

func (r *roamer) step() {
	switch {
	case len(r.held) > 20:
		r.release()
	case r.rng.IntN(3) == 0:
		seed := r.rng.Uint64N(1000)
		o, err := r.c.Put(context.Background(), pattern(seed), client.CreateOptions{})
		r.take(o, seed, err)
	case r.rng.IntN(2) == 0:
		seed := r.rng.Uint64N(4)
		o, err := r.c.GetByName(context.Background(), fmt.Sprint("p", seed), 0)
		r.take(o, seed, err)
	case len(r.held) > 0 && r.rng.IntN(2) == 0:
		h := r.held[r.rng.IntN(len(r.held))]
		o, err := r.c.Get(context.Background(), h.o.ID(), 0)
		if errors.Is(err, object.ErrNotFound) && !h.o.Gone() && r.heldHere(h.o) {
			r.t.Errorf("object %s is held and not there", h.o.ID())
		}
		r.take(o, h.seed, err)
	case len(r.held) > 0:
		r.release()
	}
}

// heldHere asks again: the daemon may have been killed in between.
func (r *roamer) heldHere(o *client.Object) bool {
	_, err := r.c.Stat(context.Background(), o.ID())
	return errors.Is(err, object.ErrNotFound) && !o.Gone()
}

func (r *roamer) take(o *client.Object, seed uint64, err error) {
	switch {
	case err == nil:
		r.held = append(r.held, heldObject{o, seed})
		r.check(o, seed)
	case !errors.Is(err, client.ErrDisconnected) && !errors.Is(err, object.ErrNotFound):
		r.t.Errorf("unexpected: %v", err)
	}
}

func (r *roamer) check(o *client.Object, seed uint64) {
	if !bytes.Equal(o.Bytes(), pattern(seed)) {
		r.t.Errorf("object %s (gone: %v) has other bytes than it should", o.ID(), o.Gone())
	}
}

func (r *roamer) release() {
	i := r.rng.IntN(len(r.held))
	h := r.held[i]
	r.check(h.o, h.seed)
	h.o.Release()
	r.held[i] = r.held[len(r.held)-1]
	r.held = r.held[:len(r.held)-1]
}

// A Watch says that its daemon went, listens to the next one, and says that some events are missing.
func TestWatchGoesOn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	put := func(name string) {
		dialAt(t, client.Options{Socket: socket}).Put(context.Background(), []byte("x"),
			client.CreateOptions{Name: name, Class: object.Named})
	}
	done := errors.New("done")
	var seen []string
	began := 0
	err := client.Watch(ctx, client.Options{Socket: socket}, "", func() { began++; put("first") },
		func(ev client.Event) error {
			switch seen = append(seen, ev.Kind); {
			case ev.Name == "first":
				p.kill()
				p.end()
			case ev.Kind == client.EventDisconnected && len(seen) == 2:
				p = startKeeping(t, socket)
			case ev.Kind == client.EventLost:
				put("second")
			case ev.Name == "second":
				return done
			}
			return nil
		})
	if !errors.Is(err, done) || began != 1 || fmt.Sprint(seen) != "[sealed disconnected lost sealed]" {
		t.Errorf("%v, began %d times, %v", err, began, seen)
	}

	err = client.Watch(ctx, client.Options{Socket: socket, NoReconnect: true}, "", func() { p.kill(); p.end() },
		func(client.Event) error { return nil })
	if !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("without reconnecting: %v", err)
	}
	err = client.Watch(ctx, client.Options{Socket: socket}, "", nil, func(client.Event) error { return nil })
	if !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("where there was no daemon at first: %v", err)
	}
	p = startKeeping(t, socket)
	ended, end := context.WithCancel(ctx)
	err = client.Watch(ended, client.Options{Socket: socket}, "", func() { p.kill(); p.end() },
		func(ev client.Event) error { end(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("given up while there was no daemon: %v", err)
	}
}

// What changes nothing is repeated while the connections that it is repeated on break, too, as when one handover
// follows another: four times at most.
func TestRepeats(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	makeNamed(t, n.dial(t))
	for name, call := range map[string]func(c *client.Conn) error{
		"stat": func(c *client.Conn) error { _, err := c.StatByName(context.Background(), "named"); return err },
		"get": func(c *client.Conn) error {
			o, err := c.GetByName(context.Background(), "named", 0)
			if err == nil {
				o.Release()
			}
			return err
		},
	} {
		c := r.dial(t)
		for _, cuts := range []int32{1, 3, 1000} {
			r.cuts.Store(cuts)
			if err := call(c); err != nil && cuts < 1000 || cuts == 1000 && !errors.Is(err, client.ErrDisconnected) {
				t.Errorf("%s, with %d connections cut: %v", name, cuts, err)
			}
		}
		r.cuts.Store(0)
	}
}
