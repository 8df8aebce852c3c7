package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestStream(t *testing.T) {
	for _, ahead := range []int{0, 1, 5} {
		t.Run(fmt.Sprint("ahead=", ahead), func(t *testing.T) { testStream(t, ahead) })
	}
}

func testStream(t *testing.T, ahead int) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	w := must(a.OpenWriter(context.Background(), "video", client.StreamOptions{Frames: 4, Ahead: ahead}))(t)
	r := must(b.OpenReader(context.Background(), "video", client.StreamOptions{Existing: true, Ahead: ahead}))(t)
	ctx := context.Background()
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := range 200 {
			data := bytes.Repeat([]byte{byte(i)}, 1000+i/100) // sizes change now and then
			if err := w.Write(ctx, data, []byte(fmt.Sprintf(`{"i":%d}`, i)), -1); err != nil {
				t.Error(err)
			}
		}
		if err := w.End(ctx); err != nil {
			t.Error(err)
		}
	})
	for i := range 200 {
		f, err := r.Pop(ctx, -1)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"i":%d}`, i); f.Number != uint64(i+1) || string(f.Meta()) != want ||
			!bytes.Equal(f.Bytes(), bytes.Repeat([]byte{byte(i)}, 1000+i/100)) {
			t.Fatalf("frame %d, %s, %d bytes; want %d, %s", f.Number, f.Meta(), f.Size(), i+1, want)
		}
		f.Release()
	}
	if _, err := r.Pop(ctx, -1); !errors.Is(err, object.ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	wait.Wait()
	r.Close(ctx)
	await.Until(t, "the stream's end", func() bool { return len(must(b.Streams(ctx, ""))(t)) == 0 })
	await.Until(t, "its objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}

func TestStreamBothOnOneConnection(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	w := must(c.OpenWriter(context.Background(), "s", client.StreamOptions{Frames: 1}))(t)
	r := must(c.OpenReader(context.Background(), "s", client.StreamOptions{}))(t)
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := range 100 {
			if err := w.Write(context.Background(), []byte{byte(i)}, nil, -1); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 100 {
		f := must(r.Pop(context.Background(), -1))(t)
		if f.Bytes()[0] != byte(i) {
			t.Fatalf("frame %d has %d", i, f.Bytes()[0])
		}
		f.Release()
	}
	wait.Wait()
	w.Close(context.Background())
	r.Close(context.Background())
}

func TestStreamWaits(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	w := must(a.OpenWriter(context.Background(), "s", client.StreamOptions{Frames: 1}))(t)
	r := must(b.OpenReader(context.Background(), "s", client.StreamOptions{}))(t)
	ctx := context.Background()
	if _, err := r.Pop(ctx, time.Millisecond); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	// An abandoned pop gives its frame to the next one.
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := r.Pop(soon, -1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := w.Write(ctx, []byte("one"), nil, -1); err != nil {
		t.Fatal(err)
	}
	f := must(r.Pop(ctx, -1))(t)
	if string(f.Bytes()) != "one" {
		t.Errorf("%q", f.Bytes())
	}
	r.Unpop(f)
	again := must(r.Pop(ctx, -1))(t)
	if again.Number != f.Number {
		t.Errorf("frame %d after %d was put back", again.Number, f.Number)
	}
	again.Release()
	// A buffer whose push found no room is pushed again, or aborted.
	if err := w.Write(ctx, []byte("two"), nil, 0); err != nil {
		t.Fatal(err)
	}
	buf := must(w.Buffer(ctx, 5))(t)
	copy(buf.Bytes(), "three")
	if err := w.Push(ctx, buf, nil, 0); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	must(r.Pop(ctx, 0))(t).Release()
	if err := w.Push(ctx, buf, nil, 0); err != nil {
		t.Error(err)
	}
	left := must(w.Buffer(ctx, 5))(t)
	if err := w.Push(ctx, left, nil, 0); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	left.Abort(ctx)
	// An object that is there already goes in without a copy.
	obj := must(a.Put(ctx, []byte("object"), client.CreateOptions{}))(t)
	must(r.Pop(ctx, 0))(t).Release()
	if err := w.PushObject(ctx, obj, 0); err != nil {
		t.Fatal(err)
	}
	f = must(r.Pop(ctx, 0))(t)
	if f.ID() != obj.ID() || string(f.Bytes()) != "object" {
		t.Errorf("%v %q", f.ID(), f.Bytes())
	}
	f.Release()
	if err := w.Abort(ctx); err != nil {
		t.Error(err)
	}
	if _, err := r.Pop(ctx, -1); !errors.Is(err, object.ErrAborted) {
		t.Errorf("%v", err)
	}
	await.Until(t, "all objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}

// TestStreamAheadGoesBack: what a reader asked for and did not want is the next one's, in order.
func TestStreamAheadGoesBack(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	ctx := context.Background()
	w := must(a.OpenWriter(ctx, "s", client.StreamOptions{Frames: 8, Ahead: 3}))(t)
	r := must(b.OpenReader(ctx, "s", client.StreamOptions{Ahead: 5}))(t)
	for i := range 8 {
		if err := w.Write(ctx, []byte{byte(i)}, nil, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	must(r.Pop(ctx, -1))(t).Release()
	r.Close(ctx)
	next := must(a.OpenReader(ctx, "s", client.StreamOptions{Ahead: 2}))(t)
	for i := 1; i < 8; i++ {
		f := must(next.Pop(ctx, time.Minute))(t)
		if f.Bytes()[0] != byte(i) {
			t.Fatalf("frame %d came, want %d", f.Bytes()[0], i)
		}
		f.Release()
	}
	if _, err := next.Pop(ctx, 5*time.Millisecond); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	for i := range 20 { // more than there is room for: Close gives up what waits
		if err := w.Write(ctx, []byte{byte(i)}, nil, time.Millisecond); err != nil &&
			!errors.Is(err, object.ErrTimeout) {
			t.Fatal(err)
		}
	}
	w.Close(ctx)
	next.Close(ctx)
	if err := a.RemoveStream(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "all objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}

// TestStreamQuota: a writer that the quota stops goes on when readers give memory back.
func TestStreamQuota(t *testing.T) {
	n := startNode(t, store.Options{TenantBytes: 4 << 20})
	a, b := n.dial(t), n.dial(t)
	w := must(a.OpenWriter(context.Background(), "s", client.StreamOptions{Frames: 100}))(t)
	r := must(b.OpenReader(context.Background(), "s", client.StreamOptions{}))(t)
	ctx := context.Background()
	pushed := 0
	for ; pushed < 100; pushed++ {
		if err := w.Write(ctx, make([]byte, 1<<20), nil, 0); err != nil {
			if !errors.Is(err, object.ErrQuota) {
				t.Fatal(err)
			}
			break
		}
	}
	if pushed == 0 || pushed > 4 {
		t.Fatalf("%d frames of 1 MiB with a quota of 4", pushed)
	}
	for range pushed {
		must(r.Pop(ctx, 0))(t).Release()
	}
	if err := w.Write(ctx, make([]byte, 1<<20), nil, 0); err != nil {
		t.Errorf("after the readers gave memory back: %v", err)
	}
}

func init() {
	processes["stream writer"] = func() { streamProcess(true) }
	processes["stream reader"] = func() { streamProcess(false) }
}

// streamProcess pushes, or pops, as fast as it can until it is killed.
func streamProcess(writes bool) {
	c, err := client.Dial(context.Background(), client.Options{})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	ctx := context.Background()
	fmt.Println("ready")
	if !writes {
		r, err := c.OpenReader(ctx, "s", client.StreamOptions{})
		for err == nil {
			var f *client.Frame
			if f, err = r.Pop(ctx, -1); err == nil && f.Number%3 > 0 { // some it keeps
				f.Release()
			}
		}
		fmt.Fprintln(os.Stderr, "reader:", err)
		return
	}
	w, err := c.OpenWriter(ctx, "s", client.StreamOptions{Frames: 5})
	for i := 0; err == nil; i++ {
		err = w.Write(ctx, bytes.Repeat([]byte{byte(i)}, 3000+i%5*50_000), nil, -1)
	}
	fmt.Fprintln(os.Stderr, "writer:", err)
}

// TestStreamKills kills writers and readers at moments that nobody chose: what they leave is whole, and nothing is left
// in the end.
func TestStreamKills(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	keep := must(c.OpenWriter(context.Background(), "s", client.StreamOptions{Frames: 5, Keep: true}))(t)
	for round := range 10 {
		a, b := start(t, "stream writer", n.socket), start(t, "stream reader", n.socket)
		a.line(t)
		b.line(t)
		before := must(c.Streams(context.Background(), "s"))(t)[0].Popped
		await.Until(t, "some frames", func() bool {
			return must(c.Streams(context.Background(), "s"))(t)[0].Popped >= before+uint64(20+round*7)
		})
		if round%2 == 0 {
			a, b = b, a
		}
		a.kill()
		a.end()
		b.kill()
		b.end()
		await.Until(t, "the processes' ends", func() bool {
			return len(must(c.Streams(context.Background(),
				"s"))(t)[0].Users) == 1
		})
	}
	r := must(c.OpenReader(context.Background(), "s", client.StreamOptions{}))(t)
	if err := keep.End(context.Background()); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := r.Pop(context.Background(), -1)
		if errors.Is(err, object.ErrEnded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if data := f.Bytes(); len(strings.Trim(string(data), string(data[:1]))) > 0 {
			t.Error("a frame is not whole")
		}
		f.Release()
	}
	r.Close(context.Background())
	if err := c.RemoveStream(context.Background(), "s"); err != nil {
		t.Error(err)
	}
	await.Until(t, "all objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}
