package client_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func (n *node) dialIndexed(t testing.TB) *client.Conn {
	t.Helper()
	c, err := client.Dial(context.Background(), client.Options{Socket: n.socket, Index: client.IndexOn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := admin.Of(c).IndexState(context.Background()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGetThroughTheIndex(t *testing.T) {
	n := startNode(t, store.Options{})
	writer, reader := n.dial(t), n.dialIndexed(t)
	ctx := context.Background()
	for _, size := range []int{0, 1, 4096, 1 << 20, 40 << 20} {
		name := fmt.Sprint("size-", size)
		want := bytes.Repeat([]byte{byte(size >> 4), 7}, size/2+1)[:size]
		o := must(writer.Put(ctx, want,
			client.CreateOptions{Name: name, Class: object.Named, Meta: []byte(`{"dtype":"<f4"}`)}))(t)
		must(reader.Get(ctx, o.ID(), 0))(t).Release() // the segment's first
		byID, byName := must(reader.Get(ctx, o.ID(), 0))(t), must(reader.GetByName(ctx, name, 5*time.Minute))(t)
		for _, got := range []*client.Object{byID, byName} {
			if !got.ThroughIndex() {
				t.Errorf("%d bytes: not through the index", size)
			}
			if got.ID() != o.ID() || got.Size() != uint64(size) || got.Class() != object.Named ||
				string(got.Meta()) != `{"dtype":"<f4"}` || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%d bytes: %v, %d bytes, %v, %q", size, got.ID(), got.Size(), got.Class(), got.Meta())
			}
			got.Populate()
			got.Release()
			got.Release()
			if got.Bytes() != nil {
				t.Error("bytes after Release")
			}
		}
		o.Release()
		if err := writer.DeleteByName(ctx, name); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := reader.GetByName(ctx, name, 0); !errors.Is(err, object.ErrNotFound) {
				t.Errorf("a deleted object: %v", err)
			}
		}
	}
	await.Until(t, "the memory to come back",
		func() bool { return reader.Sweep(ctx) == nil && n.store.Status().LeavingBytes == 0 })
}

func TestIndexIsAskedForAndMayBeRefused(t *testing.T) {
	n := startNode(t, store.Options{NoIndex: true})
	c := must(client.Dial(context.Background(), client.Options{Socket: n.socket, Index: client.IndexOn}))(t)
	defer c.Close()
	if err := admin.Of(c).IndexState(context.Background()); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a daemon without index: %v", err)
	}
	o := must(c.Put(context.Background(), []byte("x"), client.CreateOptions{}))(t)
	must(c.Get(context.Background(), o.ID(), 0))(t).Release()
	for value, want := range map[string]bool{"on": true, "off": false, "": false} {
		t.Setenv("TENDRIL_INDEX", value)
		n := startNode(t, store.Options{})
		c := n.dial(t)
		if err := admin.Of(c).IndexState(context.Background()); (err == nil) != want {
			t.Errorf("TENDRIL_INDEX=%q: %v", value, err)
		}
	}
}

// TestObjectsOutliveTheirConnection: Close leaves what is held readable, and the last Release unmaps everything.
func TestObjectsOutliveTheirConnection(t *testing.T) {
	body := func(t *testing.T) {
		n := startNode(t, store.Options{})
		writer := n.dial(t)
		c := must(client.Dial(context.Background(), client.Options{Socket: n.socket, Index: client.IndexOn}))(t)
		o := must(writer.Put(context.Background(), []byte("held"), client.CreateOptions{}))(t)
		slow := must(c.Get(context.Background(), o.ID(), 0))(t)
		var held []*client.Object
		for range 3 {
			held = append(held, must(c.Get(context.Background(), o.ID(), 0))(t))
		}
		slow.Release()
		c.Close()
		if _, err := c.Get(context.Background(), o.ID(), 0); !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("a get after Close: %v", err)
		}
		for _, h := range held {
			if !h.ThroughIndex() || string(h.Bytes()) != "held" {
				t.Errorf("%v %q", h.ThroughIndex(), h.Bytes())
			}
			h.Release()
		}
		o.Release()
	}
	life := func() { t.Run("life", body) }
	life()
	fds, maps := openFDs(t), mappings(t)
	for range 3 {
		life()
	}
	await.Until(t, "descriptors to be closed", func() bool { return openFDs(t) <= fds })
	if got := mappings(t); got > maps {
		t.Errorf("mappings: %d before, %d after", maps, got)
	}
}

// TestDaemonEndsTheIndex: once the daemon has ended the connection nothing more comes out of the index.
func TestDaemonEndsTheIndex(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dialIndexed(t)
	o := must(c.Put(context.Background(), []byte("x"), client.CreateOptions{Class: object.Named, Name: "n"}))(t)
	must(c.Get(context.Background(), o.ID(), 0))(t).Release()
	if got := must(c.Get(context.Background(), o.ID(), 0))(t); !got.ThroughIndex() {
		t.Fatal("not through the index: this test shows nothing")
	}
	n.door.Close()
	if got, err := c.Get(context.Background(), o.ID(), 0); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestMoreObjectsThanSlots: what has no slot is held over the socket.
func TestMoreObjectsThanSlots(t *testing.T) {
	n := startNode(t, store.Options{})
	writer, c := n.dial(t), n.dialIndexed(t)
	o := must(writer.Put(context.Background(), []byte("many"), client.CreateOptions{}))(t)
	var held []*client.Object
	fast := 0
	for range 2000 {
		got := must(c.Get(context.Background(), o.ID(), 0))(t)
		if got.ThroughIndex() {
			fast++
		}
		held = append(held, got)
	}
	if fast < 500 || fast == len(held) {
		t.Errorf("%d of %d in slots", fast, len(held))
	}
	o.Release()
	if string(held[0].Bytes()) != "many" {
		t.Error("bytes of a held object")
	}
	for _, h := range held {
		h.Release()
	}
	await.Until(t, "the object to go", func() bool { return n.store.Status().Objects == 0 })
}

// TestIndexUnderFire has writers that replace, delete and rename what readers get, all at once.
func TestIndexUnderFire(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10})
	const names = 8
	var fast, slow atomic.Int64
	var stop atomic.Bool
	var wait sync.WaitGroup
	for r := range 3 {
		c := n.dialIndexed(t)
		for g := range 2 {
			wait.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(r), uint64(g)))
				for i := 0; !stop.Load(); i++ {
					// The daemon and the writers are in this process, too: they need the processor.
					if i%64 == 0 {
						time.Sleep(50 * time.Microsecond)
					}
					o, err := c.GetByName(context.Background(), fmt.Sprint(rng.IntN(names)), 0)
					if errors.Is(err, object.ErrNotFound) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if !whole(o) {
						t.Errorf("object %s (through the index: %v): its memory is another's", o.ID(), o.ThroughIndex())
						stop.Store(true)
					}
					if o.ThroughIndex() {
						fast.Add(1)
					} else {
						slow.Add(1)
					}
					o.Release()
				}
			})
		}
	}
	writers, changes := 2, 2000
	if testing.Short() {
		changes = 500
	}
	for w := range writers {
		c := n.dialIndexed(t)
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(w)))
			for i := 0; !stop.Load() && (i < changes || fast.Load() < 2000 && i < 1_000_000); i++ {
				fire(t, c, rng, names)
			}
			stop.Store(true)
		})
	}
	wait.Wait()
	t.Logf("%d gets through the index, %d over the socket", fast.Load(), slow.Load())
	if fast.Load() == 0 {
		t.Error("nothing came through the index: this test shows nothing")
	}
}

// fire puts, replaces, renames or deletes.
func fire(t *testing.T, c *client.Conn, rng *rand.Rand, names int) {
	name := fmt.Sprint(rng.IntN(names))
	var err error
	switch rng.IntN(8) {
	default:
		var b *client.Buffer
		if b, err = c.Create(context.Background(), uint64(8+rng.IntN(3000)), client.CreateOptions{}); err != nil {
			break
		}
		fillWhole(b.Bytes(), b.ID())
		var o *client.Object
		if o, err = b.Seal(context.Background()); err == nil {
			err = c.Bind(context.Background(), o.ID(), name, true)
			o.Release()
		}
	case 0:
		err = c.DeleteByName(context.Background(), name)
	case 1:
		err = c.Rename(context.Background(), name, fmt.Sprint(rng.IntN(names)), true)
	}
	if err != nil && !errors.Is(err, object.ErrNotFound) && !errors.Is(err, object.ErrFull) {
		t.Error(err)
	}
}

// fillWhole makes every 8 bytes the id's first ones.
func fillWhole(b []byte, id object.ID) {
	for i := 0; i+8 <= len(b); i += 8 {
		copy(b[i:], id[:8])
	}
}

func whole(o *client.Object) bool {
	id := o.ID()
	want := binary.LittleEndian.Uint64(id[:8])
	b := o.Bytes()
	for i := 0; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != want {
			return false
		}
	}
	return true
}

func init() { processes["index victim"] = indexVictim }

// indexVictim gets, holds and releases until it is killed; a wrong byte is its last line.
func indexVictim() {
	c, err := client.Dial(context.Background(), client.Options{Index: client.IndexOn})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	var held []*client.Object
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	for {
		if o, err := c.GetByName(context.Background(), fmt.Sprint(rng.IntN(8)), 0); err == nil {
			held = append(held, o)
		}
		for _, o := range held {
			if !whole(o) {
				fmt.Println("wrong bytes in object", o.ID())
				return
			}
		}
		if len(held) > 20 {
			i := rng.IntN(len(held))
			held[i].Release()
			held = append(held[:i], held[i+1:]...)
		}
	}
}

// TestKilledIndexClients kills processes at any instruction while the objects that they hold are replaced.
func TestKilledIndexClients(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10})
	c := n.dialIndexed(t)
	rng := rand.New(rand.NewPCG(3, 3))
	kills := 12
	if testing.Short() {
		kills = 4
	}
	var victims []*child
	for range kills {
		v := start(t, "index victim", n.socket)
		if got := v.line(t); got != "ready" {
			t.Fatal(got)
		}
		victims = append(victims, v)
		for range 200 + rng.IntN(200) {
			fire(t, c, rng, 8)
		}
		if len(victims) > 2 {
			i := rng.IntN(len(victims))
			victims[i].kill()
			victims[i].mustBeSilent(t)
			victims = append(victims[:i], victims[i+1:]...)
		}
	}
	for _, v := range victims {
		v.kill()
		v.mustBeSilent(t)
	}
	await.Until(t, "the connections to end", func() bool { return n.door.Connections() == 1 })
	for i := range 8 {
		if err := c.DeleteByName(context.Background(), fmt.Sprint(i)); err != nil && !errors.Is(err,
			object.ErrNotFound) {
			t.Error(err)
		}
	}
	await.Until(t, "every object and segment to go", func() bool {
		st := n.store.Status()
		return c.Sweep(context.Background()) == nil && st.Objects == 0 && st.References == 0 &&
			st.LeavingBytes == 0
	})
	c.Close()
	await.Until(t, "all memory to come back", func() bool { return n.store.Status().ChargedBytes == 0 })
}

// mustBeSilent fails where the process had something to say before it ended.
func (p *child) mustBeSilent(t *testing.T) {
	t.Helper()
	for p.lines.Scan() {
		t.Error(p.lines.Text())
	}
}

// TestIndexAfterReconnecting: what is held in slots when the connection breaks is held by the next one, over the
// socket, and the index is there again.
func TestIndexAfterReconnecting(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dialIndexed(t)
	ctx := context.Background()
	var held []*client.Object
	for i := range 4 {
		o := must(c.Put(ctx, fmt.Appendf(nil, "object %d", i),
			client.CreateOptions{Class: object.Named, Name: fmt.Sprint("n", i)}))(t)
		must(c.Get(ctx, o.ID(), 0))(t).Release()
		fast := must(c.GetByName(ctx, fmt.Sprint("n", i), 0))(t)
		if !fast.ThroughIndex() {
			t.Fatal("not through the index: this test shows nothing")
		}
		o.Release()
		held = append(held, fast)
	}
	n.door.Close()
	held[0].Release()
	n.open(t)
	for i := range 4 {
		if got := must(c.StatByName(ctx, fmt.Sprint("n", i)))(t).Refs; got != min(i, 1) {
			t.Errorf("object %d: %d references", i, got)
		}
	}
	held[1].Release()
	for i, o := range held[2:] {
		if want := fmt.Sprintf("object %d", i+2); string(o.Bytes()) != want || o.Gone() {
			t.Errorf("%q, want %q; gone: %v", o.Bytes(), want, o.Gone())
		}
	}
	must(c.GetByName(ctx, "n3", 0))(t).Release()
	again := must(c.GetByName(ctx, "n3", 0))(t)
	if !again.ThroughIndex() {
		t.Errorf("not through the index again: %v", admin.Of(c).IndexState(ctx))
	}
	again.Release()
	held[2].Release()
	held[3].Release()
	for i := range 4 {
		if err := c.DeleteByName(ctx, fmt.Sprint("n", i)); err != nil {
			t.Error(err)
		}
	}
	await.Until(t, "everything to go", func() bool {
		st := n.store.Status()
		return c.Sweep(ctx) == nil && st.Objects == 0 && st.References == 0 && st.LeavingBytes == 0
	})
}

// TestIndexAcrossConnections breaks the connection again and again while several goroutines get, look and release.
func TestIndexAcrossConnections(t *testing.T) {
	n := startNode(t, store.Options{})
	keeper := n.dial(t)
	for i := range 4 {
		b := must(keeper.Create(context.Background(), 4096, client.CreateOptions{Class: object.Named,
			Name: fmt.Sprint(i)}))(t)
		fillWhole(b.Bytes(), b.ID())
		must(b.Seal(context.Background()))(t).Release()
	}
	c := n.dialIndexed(t)
	stop, done := make(chan struct{}), make(chan struct{}, 4)
	var fast [4]atomic.Int64
	var gets atomic.Int64
	for g := range 4 {
		go func() {
			var held []*client.Object
			for i := 0; ; i++ {
				select {
				case <-stop:
					for _, o := range held {
						o.Release()
					}
					done <- struct{}{}
					return
				default:
				}
				o, err := c.GetByName(context.Background(), fmt.Sprint((g+i)%4), 0)
				if errors.Is(err, client.ErrDisconnected) {
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				gets.Add(1)
				if o.ThroughIndex() {
					fast[g].Add(1)
				}
				if held = append(held, o); len(held) > 10 {
					if !whole(held[0]) {
						t.Errorf("object %v has other bytes", held[0].ID())
					}
					held[0].Release()
					held = held[1:]
				}
			}
		}()
	}
	for range 10 {
		n.door.Close()
		n.open(t)
		before := gets.Load()
		await.Until(t, "gets after the connection came back", func() bool { return gets.Load() > before+4 })
	}
	for g := range fast {
		await.Until(t, "a get through the index", func() bool { return fast[g].Load() > 0 })
	}
	close(stop)
	for range fast {
		<-done
	}
	c.Close()
	await.Until(t, "the references to go", func() bool { return n.store.Status().References == 0 })
}

// TestIndexOfADaemonThatWasKilled: an index that nobody tends any more is left soon, though it answers every get.
func TestIndexOfADaemonThatWasKilled(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	c := dialAt(t, client.Options{Socket: socket, Index: client.IndexOn})
	o := must(c.Put(context.Background(), []byte("of before"), client.CreateOptions{Name: "n", Class: object.Named}))(t)
	must(c.GetByName(context.Background(), "n", 0))(t).Release()
	held := must(c.GetByName(context.Background(), "n", 0))(t)
	if !held.ThroughIndex() {
		t.Fatalf("not through the index: %v", admin.Of(c).IndexState(context.Background()))
	}
	p.kill()
	p.end()
	startKeeping(t, socket)
	await.Until(t, "the new daemon's answer", func() bool {
		got, err := c.GetByName(context.Background(), "n", 0)
		if err == nil {
			got.Release()
		}
		return errors.Is(err, object.ErrNotFound)
	})
	for _, o := range []*client.Object{o, held} {
		if string(o.Bytes()) != "of before" || !o.Gone() {
			t.Errorf("%q, gone: %v", o.Bytes(), o.Gone())
		}
		o.Release()
	}
	must(c.Put(context.Background(), []byte("of now"), client.CreateOptions{Name: "n", Class: object.Named}))(t).Release()
	for range 2 {
		got := must(c.GetByName(context.Background(), "n", 0))(t)
		if string(got.Bytes()) != "of now" {
			t.Errorf("%q", got.Bytes())
		}
		got.Release()
	}
}
