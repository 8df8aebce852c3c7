package client_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
)

// faults reports whether store faults. The memory that it stores to is mapped.
func faults(store func()) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case runtime.Error:
			faulted = true
		default:
			panic(r)
		}
	}()
	store()
	return false
}

// cannotAlter tries to store to the first, a middle and the last byte of view, which is of an object that reader gets.
func cannotAlter(t *testing.T, what string, view []byte, reader *client.Conn, id object.ID, want []byte) {
	t.Helper()
	for _, at := range []int{0, len(view) / 2, len(view) - 1} {
		if !faults(func() { view[at] ^= 0xff }) {
			t.Errorf("%s: a store to byte %d of %d went through", what, at, len(view))
		}
	}
	got := must(reader.Get(context.Background(), id, 0))(t)
	defer got.Release()
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s: the object was altered", what)
	}
}

func counted(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) + seed
	}
	return b
}

// sealedSizes are objects that share pages, have some for themselves, or a segment.
var sealedSizes = []struct {
	name string
	size int
	opts client.CreateOptions
	open bool // the slice of before the seal can still be written: see the package comment
}{
	{"small", 100, client.CreateOptions{}, true},
	{"64 KiB", 64 << 10, client.CreateOptions{}, false},
	{"askew", 100_001, client.CreateOptions{}, false},
	{"large", 24<<20 + 5, client.CreateOptions{}, false},
	{"own", 100, client.CreateOptions{Own: true}, false},
	{"filled by several", 5000, client.CreateOptions{Shared: true}, false},
	{"strict", 5000, client.CreateOptions{Strict: true}, false},
}

// TestSealedIsReadOnly: whatever the creator has of an object faults when it is written after the seal, and readers see
// no change.
func TestSealedIsReadOnly(t *testing.T) {
	n := startNode(t, store.Options{})
	creator, reader, indexed := n.dial(t), n.dial(t), n.dialIndexed(t)
	ctx := context.Background()
	must(creator.Put(ctx, []byte("lies before the others"), client.CreateOptions{}))(t)
	for _, c := range sealedSizes {
		want := counted(c.size, 1)
		buf := must(creator.Create(ctx, uint64(c.size), c.opts))(t)
		early := buf.Bytes()
		copy(early, want)
		o := must(buf.Seal(ctx))(t)
		if b := buf.Bytes(); b != nil {
			t.Errorf("%s: the buffer gives %d bytes after the seal", c.name, len(b))
		}
		if !c.open {
			cannotAlter(t, c.name+", the buffer's slice", early, reader, o.ID(), want)
		}
		cannotAlter(t, c.name+", the seal's object", o.Bytes(), reader, o.ID(), want)
		got := must(creator.Get(ctx, o.ID(), 0))(t)
		cannotAlter(t, c.name+", the creator's get", got.Bytes(), reader, o.ID(), want)
		put := must(creator.Put(ctx, want, c.opts))(t)
		cannotAlter(t, c.name+", put's object", put.Bytes(), reader, put.ID(), want)
		for range 2 { // the first one over the socket
			fast := must(indexed.Get(ctx, o.ID(), 0))(t)
			cannotAlter(t, fmt.Sprintf("%s, through the index %v", c.name, fast.ThroughIndex()), fast.Bytes(), reader,
				o.ID(), want)
			fast.Release()
		}
		for _, o := range []*client.Object{o, got, put} {
			o.Release()
		}
	}
}

// TestOwnObjectsThroughTheIndex: the connection that makes an object gets it through the index, read-only.
func TestOwnObjectsThroughTheIndex(t *testing.T) {
	n := startNode(t, store.Options{})
	c, reader := n.dialIndexed(t), n.dial(t)
	for _, size := range []int{100, 200_000} {
		want := counted(size, 2)
		buf := must(c.Create(context.Background(), uint64(size), client.CreateOptions{}))(t)
		copy(buf.Bytes(), want)
		o := must(buf.Seal(context.Background()))(t)
		for range 2 {
			got := must(c.Get(context.Background(), o.ID(), 0))(t)
			cannotAlter(t, fmt.Sprintf("%d bytes, through the index %v", size, got.ThroughIndex()), got.Bytes(), reader,
				o.ID(), want)
			got.Release()
		}
		o.Release()
	}
}

// TestRefusedSealOpensAgain: when the seal is refused the buffer can be written again.
func TestRefusedSealOpensAgain(t *testing.T) {
	n := startNode(t, store.Options{})
	c, reader := n.dial(t), n.dial(t)
	must(c.Put(context.Background(), nil, client.CreateOptions{Name: "taken", Class: object.Named}))(t)
	buf := must(c.Create(context.Background(), 100_000, client.CreateOptions{Name: "taken", Class: object.Named}))(t)
	early := buf.Bytes()
	if _, err := buf.Seal(context.Background()); err == nil {
		t.Fatal("sealed under a name that is taken")
	}
	if faults(func() { copy(buf.Bytes(), counted(len(early), 3)) }) {
		t.Fatal("after a seal that was refused the buffer cannot be written")
	}
	if err := c.DeleteByName(context.Background(), "taken"); err != nil {
		t.Fatal(err)
	}
	o := must(buf.Seal(context.Background()))(t)
	defer o.Release()
	cannotAlter(t, "sealed at the second try", early, reader, o.ID(), counted(100_000, 3))
}

// TestPartIsReadOnlyAfterDone: who fills an object of another process cannot write it after Done, nor the creator after
// the seal.
func TestPartIsReadOnlyAfterDone(t *testing.T) {
	n := startNode(t, store.Options{})
	creator, filler, reader := n.dial(t), n.dial(t), n.dial(t)
	buf := must(creator.Create(context.Background(), 9000, client.CreateOptions{Shared: true}))(t)
	part := must(filler.Fill(context.Background(), buf.ID(), ""))(t)
	early, theirs := buf.Bytes(), part.Bytes()
	copy(early, counted(9000, 4))
	if err := part.Done(context.Background()); err != nil {
		t.Fatal(err)
	}
	o := must(buf.SealFilled(context.Background(), time.Minute, false))(t)
	defer o.Release()
	cannotAlter(t, "the creator's slice", early, reader, o.ID(), counted(9000, 4))
	if !faults(func() { theirs[0] = 1 }) {
		t.Error("a part can be written after Done")
	}
}

// TestPushedFrameIsReadOnly: what was pushed cannot be written until its memory is another frame's.
func TestPushedFrameIsReadOnly(t *testing.T) {
	for _, ahead := range []int{0, 8} {
		n := startNode(t, store.Options{})
		a, b := n.dial(t), n.dial(t)
		w := must(a.OpenWriter(context.Background(), "frames", client.StreamOptions{Ahead: ahead}))(t)
		r := must(b.OpenReader(context.Background(), "frames", client.StreamOptions{}))(t)
		for i := range 20 { // the memory of each comes back
			want := counted(100_000, byte(i))
			buf := must(w.Buffer(context.Background(), 100_000))(t)
			early := buf.Bytes()
			if faults(func() { copy(early, want) }) {
				t.Fatalf("frame %d cannot be filled", i)
			}
			if err := w.Push(context.Background(), buf, nil, time.Minute); err != nil {
				t.Fatal(err)
			}
			if !faults(func() { early[0]++ }) || !faults(func() { early[len(early)-1]++ }) {
				t.Errorf("ahead %d: frame %d can be written after it was pushed", ahead, i)
			}
			f := must(r.Pop(context.Background(), time.Minute))(t)
			if !bytes.Equal(f.Bytes(), want) {
				t.Errorf("ahead %d: frame %d was altered", ahead, i)
			}
			f.Release()
		}
		r.Close(context.Background())
		w.Close(context.Background())
	}
}

// TestSealedIsReadOnlyAfterACrash: a claim keeps mappings as they are.
func TestSealedIsReadOnlyAfterACrash(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s", "tendril.sock")
	p := startKeeping(t, socket)
	c := dialAt(t, client.Options{Socket: socket})
	buf := must(c.Create(context.Background(), 100_000, client.CreateOptions{Name: "kept", Class: object.Persisted}))(t)
	early := buf.Bytes()
	copy(early, counted(100_000, 5))
	o := must(buf.Seal(context.Background()))(t)
	defer o.Release()
	p.kill()
	p.end()
	startKeeping(t, socket)
	if info := must(c.StatByName(context.Background(), "kept"))(t); info.Refs != 1 {
		t.Errorf("%d references", info.Refs)
	}
	reader := dialAt(t, client.Options{Socket: socket})
	cannotAlter(t, "the buffer's slice", early, reader, o.ID(), counted(100_000, 5))
	cannotAlter(t, "the object", o.Bytes(), reader, o.ID(), counted(100_000, 5))
}

// TestMemoryOpensForTheNextObject: buffers of all sizes share segments, are sealed, refused, pushed and given up in any
// order, by many goroutines: each can be filled when it is new, whatever lay there before, and holds what it was filled
// with in the end.
func TestMemoryOpensForTheNextObject(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 64 << 20, SegmentBytes: 4 << 20})
	c := n.dial(t)
	var wait sync.WaitGroup
	for seed := range uint64(4) {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			var held []*client.Object
			var wants [][]byte
			for range 300 {
				size := 1 + random.IntN(700_000)>>random.IntN(12)
				buf, err := c.Create(context.Background(), uint64(size), client.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				want := counted(size, byte(random.Uint32()))
				if faults(func() { copy(buf.Bytes(), want) }) {
					t.Errorf("a new buffer of %d bytes cannot be written", size)
					return
				}
				if random.IntN(4) == 0 {
					buf.Abort(context.Background())
					continue
				}
				o, err := buf.Seal(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				held, wants = append(held, o), append(wants, want)
				if i := random.IntN(len(held)); len(held) > 12 {
					if !bytes.Equal(held[i].Bytes(), wants[i]) {
						t.Errorf("an object of %d bytes holds something else", len(wants[i]))
					}
					held[i].Release()
					held, wants = append(held[:i], held[i+1:]...), append(wants[:i], wants[i+1:]...)
				}
			}
			for _, o := range held {
				o.Release()
			}
		})
	}
	wait.Wait()
}
