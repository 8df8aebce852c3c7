package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// pushLate pushes o into w, whose context ends before the answer comes; carried waits until the daemon has done it.
func pushLate(t *testing.T, r *relay, w *client.Writer, o *client.Object, carried func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	r.answer.Lock()
	defer r.answer.Unlock()
	go func() { failed <- w.PushObject(ctx, o, 0) }()
	carried()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("a push whose context ended: %v", err)
	}
}

// TestPushObjectThatHappened: a push of an object whose context ended may be carried out all the same. Then its
// reference is the stream's: a Release gives none back, least of all another one of this connection's, and another push
// is that one.
func TestPushObjectThatHappened(t *testing.T) {
	for _, again := range []bool{false, true} {
		n := startNode(t, store.Options{})
		r := newRelay(t, n)
		c, look := r.dial(t), n.dial(t)
		before := n.held(t, look)
		bg := context.Background()
		w := must(c.OpenWriter(bg, "stream", client.StreamOptions{}))(t)
		pushed := must(c.Put(bg, []byte("text"), client.CreateOptions{}))(t)
		kept := must(c.Get(bg, pushed.ID(), 0))(t)
		pushLate(t, r, w, pushed, func() {
			await.Until(t, "the push", func() bool { return must(look.Streams(bg, ""))(t)[0].Frames == 1 })
		})
		if again {
			if err := w.PushObject(bg, pushed, 0); err != nil {
				t.Errorf("once more: %v", err)
			}
		}
		pushed.Release()
		if got := must(look.Streams(bg, ""))(t)[0]; got.Pushed != 1 {
			t.Errorf("%d frames pushed", got.Pushed)
		}
		reader := must(look.OpenReader(bg, "stream", client.StreamOptions{}))(t)
		frame := must(reader.Pop(bg, 5*time.Minute))(t)
		frame.Release()
		reader.Close(bg)
		w.Close(bg) // behind what came before it
		if _, err := look.Stat(bg, kept.ID()); err != nil || string(kept.Bytes()) != "text" {
			t.Errorf("again %v: the other reference went with it: %v", again, err)
		}
		kept.Release()
		await.Until(t, "everything to go", func() bool { return n.held(t, look) == before })
	}
}

// TestPushObjectThatFails: where a push whose context ended is not carried out the reference is the Object's: it is
// pushed by another, or given back by Release, whichever of that and the answer comes first.
func TestPushObjectThatFails(t *testing.T) {
	for _, x := range []string{"released first", "answered first", "pushed again"} {
		n := startNode(t, store.Options{})
		r := newRelay(t, n)
		c, look := r.dial(t), n.dial(t)
		before := n.held(t, look)
		bg := context.Background()
		w := must(c.OpenWriter(bg, "stream", client.StreamOptions{Frames: 1}))(t)
		if err := w.Write(bg, []byte("first"), nil, 0); err != nil {
			t.Fatal(err)
		}
		o := must(c.Put(bg, []byte("text"), client.CreateOptions{}))(t)
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		if err := w.PushObject(ctx, o, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("into a full stream: %v", err)
		}
		cancel()
		reader := must(look.OpenReader(bg, "stream", client.StreamOptions{}))(t)
		refused := func() bool { return must(look.Streams(bg, ""))(t)[0].WaitingWriters == 0 }
		switch x {
		case "released first":
			o.Release()
		case "answered first":
			await.Until(t, "the refusal", refused)
			must(c.Stat(bg, o.ID()))(t)
			o.Release()
		case "pushed again":
			await.Until(t, "the refusal", refused)
			must(reader.Pop(bg, 5*time.Minute))(t).Release()
			if err := w.PushObject(bg, o, 0); err != nil {
				t.Errorf("again: %v", err)
			}
			o.Release()
		}
		await.Until(t, "the refusal", refused)
		frame := must(reader.Pop(bg, 5*time.Minute))(t)
		if want := map[bool]string{true: "text", false: "first"}[x == "pushed again"]; string(frame.Bytes()) != want {
			t.Errorf("%s: %q came", x, frame.Bytes())
		}
		frame.Release()
		w.Close(bg)
		reader.Close(bg)
		await.Until(t, x+": everything to go", func() bool { return n.held(t, look) == before })
	}
}

// TestPushObjectOfTheIndex: an object whose reference was taken in shared memory can be pushed, too, once.
func TestPushObjectOfTheIndex(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dialIndexed(t)
	look := n.dial(t)
	before := n.held(t, look)
	bg := context.Background()
	made := must(c.Put(bg, []byte("text"), client.CreateOptions{Name: "named"}))(t)
	w := must(c.OpenWriter(bg, "stream", client.StreamOptions{}))(t)
	var o *client.Object
	await.Until(t, "a get through the index", func() bool {
		if o = must(c.GetByName(bg, "named", 0))(t); !o.ThroughIndex() {
			o.Release()
			return false
		}
		return true
	})
	made.Release()
	if err := w.PushObject(bg, o, 0); err != nil {
		t.Fatal(err)
	}
	if o.Bytes() != nil {
		t.Error("a pushed object still has bytes")
	}
	reader := must(look.OpenReader(bg, "stream", client.StreamOptions{}))(t)
	frame := must(reader.Pop(bg, 5*time.Minute))(t)
	if string(frame.Bytes()) != "text" || frame.ID() != o.ID() {
		t.Errorf("%q", frame.Bytes())
	}
	frame.Release()
	reader.Close(bg)
	w.Close(bg)
	if err := c.DeleteByName(bg, "named"); err != nil {
		t.Error(err)
	}
	await.Until(t, "everything to go", func() bool { return n.held(t, look) == before })
	if _, err := look.Stat(bg, frame.ID()); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
}
