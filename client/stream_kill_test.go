package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func init() { processes["reader"] = readerProcess }

// readerProcess pops from stream "s" as READER_STAGE says, prints what it got and "ready", and stays until it is
// killed.
func readerProcess() {
	ctx := context.Background()
	stage := os.Getenv("READER_STAGE")
	c, err := client.Dial(ctx, client.Options{})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	ahead := 0
	if stage == "ahead" {
		ahead = 3
	}
	r, err := c.OpenReader(ctx, "s", client.StreamOptions{Ahead: ahead})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	pop := func() *client.Frame {
		f, err := r.Pop(ctx, -1)
		if err != nil {
			fmt.Println("failed:", err)
			return nil
		}
		fmt.Println(f.Number)
		return f
	}
	switch stage {
	case "opened":
	case "waiting":
		go r.Pop(ctx, -1)
	case "acknowledged", "ahead":
		pop()
		c.Streams(ctx, "") // the acknowledgement goes before it
	case "released":
		pop().Release()
		c.Streams(ctx, "")
	case "released and had":
		f := pop()
		if _, err := c.Get(ctx, f.ID(), 0); err != nil { // another reference, which stays
			fmt.Println("failed:", err)
		}
		r.Unpop(f)
		pop().Release()
		c.Streams(ctx, "")
	case "closed":
		pop()
		c.Close()
	case "put back":
		f := pop()
		c.Streams(ctx, "")
		r.Unpop(f)
		c.Close()
	}
	fmt.Println("ready")
	if stage != "closed" && stage != "put back" {
		select {}
	}
}

// Whenever a reader is killed, what it had not got comes back in order, and what it had got does not.
func TestKilledReaderLosesNoFrame(t *testing.T) {
	ctx := context.Background()
	for _, stage := range []string{"opened", "waiting", "acknowledged", "ahead", "released", "released and had", "closed",
		"put back"} {
		t.Run(stage, func(t *testing.T) {
			n := startNode(t, store.Options{})
			c := n.dial(t)
			w := must(c.OpenWriter(ctx, "s", client.StreamOptions{Frames: 10}))(t)
			const frames = 5
			push := func() {
				for i := range frames {
					if err := w.Write(ctx, []byte{byte(i + 1)}, nil, -1); err != nil {
						t.Fatal(err)
					}
				}
			}
			if stage != "waiting" {
				push()
			}
			t.Setenv("READER_STAGE", stage)
			p := start(t, "reader", n.socket)
			got := uint64(0)
			for line := p.line(t); line != "ready"; line = p.line(t) {
				got = must(strconv.ParseUint(line, 10, 64))(t)
			}
			if stage == "put back" {
				got--
			}
			if stage == "waiting" {
				await.Until(t, "the pop", func() bool { return must(c.Streams(ctx, ""))(t)[0].WaitingReaders == 1 })
				stop(t, p) // it reads no more, so that the reply to its pop stays in the socket
				push()
			}
			p.kill()
			await.Until(t, "the reader's end", func() bool { return n.door.Connections() == 1 })
			r := must(c.OpenReader(ctx, "s", client.StreamOptions{}))(t)
			for want := got + 1; want <= frames; want++ {
				f := must(r.Pop(ctx, 0))(t)
				if f.Number != want || f.Bytes()[0] != byte(want) {
					t.Fatalf("frame %d, want %d", f.Number, want)
				}
				f.Release()
			}
			if f, err := r.Pop(ctx, 0); !errors.Is(err, object.ErrTimeout) {
				t.Errorf("another frame: %+v, %v", f, err)
			}
		})
	}
}

// stop has a process stand still.
func stop(t *testing.T, p *child) {
	t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the process to stand still", func() bool {
		stat := must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))(t)
		return strings.Contains(string(stat), ") T ")
	})
}

// A program that pops one object twice, as two frames, and gives the first back has the second all the same.
func TestReleaseAcknowledgesItsOwnFrame(t *testing.T) {
	ctx := context.Background()
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	w := must(a.OpenWriter(ctx, "s", client.StreamOptions{Frames: 2}))(t)
	obj := must(a.Put(ctx, []byte("object"), client.CreateOptions{}))(t)
	for _, o := range []*client.Object{must(a.Get(ctx, obj.ID(), 0))(t), obj} {
		if err := w.PushObject(ctx, o, 0); err != nil {
			t.Fatal(err)
		}
	}
	r := must(b.OpenReader(ctx, "s", client.StreamOptions{}))(t)
	first, second := must(r.Pop(ctx, 0))(t), must(r.Pop(ctx, 0))(t)
	first.Release()
	must(b.Streams(ctx, ""))(t) // what waits goes before it
	if string(second.Bytes()) != "object" {
		t.Errorf("%q", second.Bytes())
	}
	b.Close()
	await.Until(t, "the reader's end", func() bool { return n.door.Connections() == 1 })
	again := must(a.OpenReader(ctx, "s", client.StreamOptions{}))(t)
	if f, err := again.Pop(ctx, 0); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("the frame was popped again: %+v, %v", f, err)
	}
}

// What a program has of one stream says nothing of the frame that it asked for ahead in another one, though both are of
// one object and have one number: each stream gets back what is its own.
func TestAcknowledgementNamesItsStream(t *testing.T) {
	ctx := context.Background()
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	obj := must(a.Put(ctx, []byte("object"), client.CreateOptions{}))(t)
	for _, name := range []string{"ahead", "had"} {
		w := must(a.OpenWriter(ctx, name, client.StreamOptions{Frames: 2, Keep: true}))(t)
		if err := errors.Join(w.Write(ctx, []byte("first"), nil, 0),
			w.PushObject(ctx, must(a.Get(ctx, obj.ID(), 0))(t), 0)); err != nil {
			t.Fatal(err)
		}
	}
	popped := func() (n [2]uint64) {
		for i, info := range must(a.Streams(ctx, ""))(t) {
			n[i] = info.Popped
		}
		return n
	}
	ahead := must(b.OpenReader(ctx, "ahead", client.StreamOptions{Ahead: 1}))(t)
	must(ahead.Pop(ctx, -1))(t)
	await.Until(t, "the frame that was asked for ahead", func() bool { return popped() == [2]uint64{2, 0} })
	had := must(b.OpenReader(ctx, "had", client.StreamOptions{}))(t)
	for range 2 {
		must(had.Pop(ctx, 0))(t)
	}
	must(b.Streams(ctx, ""))(t) // the acknowledgements go before it
	b.Close()
	await.Until(t, "the reader's end", func() bool { return n.door.Connections() == 1 })
	if got := popped(); got != [2]uint64{1, 2} {
		t.Errorf("%d frames of the streams are popped for good", got)
	}
}
