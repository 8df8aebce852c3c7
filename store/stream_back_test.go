package store

import (
	"errors"
	"testing"

	"tendril/store/object"
)

// twoStreamsOfOneObject has one object waiting as frame 1 of the streams a and b, and a reader that popped both.
func twoStreamsOfOneObject(t *testing.T, s *Store) (reader *Conn, a, b uint64, id object.ID) {
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	reader.Acknowledges()
	id = sealedObject(t, writer, Spec{SizeBytes: 10})
	for _, name := range []string{"a", "b"} {
		h, err := writer.Get(id)
		must(t, err)
		closeHandle(h)
		in := openStream(t, writer, StreamSpec{Name: name, Writes: true, Keep: true})
		_, err = writer.Push(in, id, 0, nil)
		must(t, err)
	}
	a = openStream(t, reader, StreamSpec{Name: "a", Reads: true})
	b = openStream(t, reader, StreamSpec{Name: "b", Reads: true})
	wantPop(t, reader, a, id, 1)
	wantPop(t, reader, b, id, 1)
	return reader, a, b, id
}

// wantFrames wants that so many frames wait in the streams a and b.
func wantFrames(t *testing.T, s *Store, a, b int) {
	t.Helper()
	c := connect(t, s, "a")
	defer c.Close()
	list := c.Streams("")
	if len(list) != 2 || list[0].Frames != a || list[1].Frames != b {
		t.Errorf("there wait %+v, want %d and %d frames", list, a, b)
	}
	mustAgree(t, s, true)
}

// One object may wait in several streams, under the same number: each goes back to its own.
func TestFramesOfOneObjectGoBackToTheirStreams(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(t *testing.T, c *Conn, a, b uint64, id object.ID)
		a, b int
	}{
		"put back": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) { must(t, c.Unpop(a, id, 1)) }, 1, 1},
		"put back behind the close": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) {
			must(t, c.CloseStream(a))
			must(t, c.CloseStream(b))
			must(t, c.Unpop(a, id, 1))
			must(t, c.AckFrame(0, id, 1))
		}, 1, 0},
		"acknowledged": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) { must(t, c.AckFrame(0, id, 1)) }, 0, 1},
		"put back, acknowledged": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) {
			must(t, c.Unpop(b, id, 1))
			must(t, c.AckFrame(0, id, 1))
		}, 0, 1},
		"acknowledged, the other one first": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) {
			must(t, c.AckFrame(b, id, 1))
		}, 1, 0},
		"acknowledged, the other one first, the rest put back": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) {
			must(t, c.AckFrame(b, id, 1))
			must(t, c.Unpop(a, id, 1))
		}, 1, 0},
		"acknowledged behind the close": {func(t *testing.T, c *Conn, a, b uint64, id object.ID) {
			must(t, c.CloseStream(b))
			must(t, c.AckFrame(b, id, 1))
			wantErr(t, c.AckFrame(b, id, 1), object.ErrNotFound)
			wantErr(t, c.AckFrame(a+b, id, 1), object.ErrNotFound)
		}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{})
			c, a, b, id := twoStreamsOfOneObject(t, s)
			test.act(t, c, a, b, id)
			c.Close()
			wantFrames(t, s, test.a, test.b)
		})
	}
}

// A connection that ends takes no frame any more that is pushed while it gives back what it has: neither while that are
// frames, nor while that are streams.
func TestEndedReaderTakesNoFrame(t *testing.T) {
	const frames, waits = 4 * lockSteps, 60
	for _, when := range []string{"frames", "streams"} {
		t.Run(when, func(t *testing.T) {
			s := newStore(t, Options{})
			writer, reader, other := connect(t, s, "a"), connect(t, s, "a"), connect(t, s, "a")
			reader.Acknowledges()
			in := openStream(t, writer, StreamSpec{Name: "many", Writes: true, Frames: 2 * frames, Keep: true})
			out := openStream(t, reader, StreamSpec{Name: "many", Reads: true})
			var ins []uint64
			var ready []object.ID
			pushed := false
			push := func() { // the lock is free, between two steps of the connection's end
				if pushed {
					return
				}
				pushed = true
				for i, stream := range ins {
					if w, err := writer.Push(stream, ready[i], 0, nil); err != nil || w != nil {
						t.Error(w, err)
					}
				}
			}
			for i := range waits {
				name := string(rune('A' + i))
				ins = append(ins, openStream(t, writer, StreamSpec{Name: name, Writes: true, Keep: true}))
				ready = append(ready, sealedObject(t, writer, Spec{}))
				_, w, err := reader.Pop(openStream(t, reader, StreamSpec{Name: name, Reads: true}), -1,
					func(*Waiter) { push() })
				if w == nil {
					t.Fatal(err)
				}
			}
			back := 0
			if when == "frames" {
				for back = range frames {
					wantPop(t, reader, out, pushNow(t, writer, in, 0), uint64(back+1))
				}
				_, w, err := other.Pop(openStream(t, other, StreamSpec{Name: "many", Reads: true}), -1,
					func(*Waiter) {
						push()
						if _, _, err := reader.Pop(out, 0, nil); err == nil || errors.Is(err, object.ErrTimeout) {
							t.Errorf("a pop of an ended connection: %v", err)
						}
					})
				if w == nil {
					t.Fatal(err)
				}
			}
			reader.Close()
			push()
			for _, info := range other.Streams("") {
				if want := map[bool]int{true: back, false: 1}[info.Name == "many"]; info.Frames != want {
					t.Errorf("stream %q has %d frames, want %d", info.Name, info.Frames, want)
				}
			}
			mustAgree(t, s, true)
		})
	}
}

// A frame that is put back after its stream was removed is nobody's.
func TestUnpopIntoARemovedStream(t *testing.T) {
	for _, acked := range []bool{false, true} {
		s := newStore(t, Options{})
		writer, reader, in, out := ackedStream(t, s)
		id := pushNow(t, writer, in, 10)
		wantPop(t, reader, out, id, 1)
		if acked {
			must(t, reader.AckFrame(out, id, 1))
		}
		must(t, writer.RemoveStream("s"))
		if err := reader.Unpop(out, id, 1); err != nil && !errors.Is(err, object.ErrAborted) {
			t.Error(err)
		}
		if err := reader.Release(id); !errors.Is(err, object.ErrNotFound) {
			t.Errorf("acknowledged %v: the frame is still held: %v", acked, err)
		}
		mustAgree(t, s, true)
	}
}
