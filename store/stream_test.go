package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tendril/store/object"
)

func openStream(t testing.TB, c *Conn, spec StreamSpec) uint64 {
	t.Helper()
	end, err := c.OpenStream(spec)
	if err != nil {
		t.Fatal(err)
	}
	return end.ID
}

// pushNow pushes a new object of size bytes and wants no waiting.
func pushNow(t testing.TB, c *Conn, stream uint64, size uint64) object.ID {
	t.Helper()
	id := sealedObject(t, c, Spec{SizeBytes: size})
	if w, err := c.Push(stream, id, 0, nil); err != nil || w != nil {
		t.Fatalf("push: %v, %v", w, err)
	}
	return id
}

// waited is a wake and the channel that says it was called.
func waited() (func(*Waiter), chan *Waiter) {
	c := make(chan *Waiter, 1)
	return func(w *Waiter) { c <- w }, c
}

func wantPop(t testing.TB, c *Conn, stream uint64, id object.ID, number uint64) {
	t.Helper()
	p, w, err := c.Pop(stream, 0, nil)
	if err != nil || w != nil || p.ID != id || p.Number != number {
		t.Fatalf("pop: %+v, %v, want object %s, frame %d", p, err, id, number)
	}
	closeHandle(p.Handle)
}

func TestStreamOrderAndBounds(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true, Frames: 2})
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	first, second := pushNow(t, writer, in, 100), pushNow(t, writer, in, 0)
	third := sealedObject(t, writer, Spec{SizeBytes: 5})
	if _, err := writer.Push(in, third, 0, nil); !errors.Is(err, object.ErrTimeout) {
		t.Fatalf("a push into a full stream: %v", err)
	}
	wake, woken := waited()
	if w, err := writer.Push(in, third, -1, wake); err != nil || w == nil {
		t.Fatalf("a push that waits: %v, %v", w, err)
	}
	wantPop(t, reader, out, first, 1)
	if _, err := (<-woken).Result(); err != nil {
		t.Fatal(err)
	}
	wantPop(t, reader, out, second, 2)
	wantPop(t, reader, out, third, 3)
	if _, _, err := reader.Pop(out, 0, nil); !errors.Is(err, object.ErrTimeout) {
		t.Fatalf("a pop from an empty stream: %v", err)
	}
	wake, woken = waited()
	if _, w, err := reader.Pop(out, time.Millisecond, wake); err != nil || w == nil {
		t.Fatal(w, err)
	}
	if _, err := (<-woken).Result(); !errors.Is(err, object.ErrTimeout) {
		t.Fatalf("a pop that waited: %v", err)
	}
	if err := writer.Release(first); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("the pushed reference is still the writer's: %v", err)
	}
}

func TestStreamHandsOn(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	wakeA, wokenA := waited()
	wakeB, wokenB := waited()
	for _, wake := range []func(*Waiter){wakeA, wakeB} {
		if _, w, err := reader.Pop(out, -1, wake); err != nil || w == nil {
			t.Fatal(w, err)
		}
	}
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true})
	first, second := pushNow(t, writer, in, 1), pushNow(t, writer, in, 2)
	for i, woken := range []chan *Waiter{wokenA, wokenB} {
		p, err := (<-woken).Result()
		if want := []object.ID{first, second}[i]; err != nil || p.ID != want || p.Number != uint64(i+1) {
			t.Fatalf("%+v, %v, want %s", p, err, want)
		}
		closeHandle(p.Handle)
	}
	// Frames that a reader gives back come first again, in order.
	third := pushNow(t, writer, in, 3)
	if err := reader.Unpop(out, second, 2); err != nil {
		t.Fatal(err)
	}
	if err := reader.Unpop(out, first, 1); err != nil {
		t.Fatal(err)
	}
	for i, id := range []object.ID{first, second, third} {
		wantPop(t, reader, out, id, uint64(i+1))
	}
	for _, bad := range []uint64{0, 9} {
		if err := reader.Unpop(out, first, bad); !errors.Is(err, object.ErrNotFound) {
			t.Errorf("gave frame %d back: %v", bad, err)
		}
	}
	if err := reader.Unpop(out, object.NewID(), 1); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
}

func TestStreamDropsOldest(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "a")
	both := openStream(t, c, StreamSpec{Name: "s", Reads: true, Writes: true, Frames: 2, DropOldest: true})
	var ids []object.ID
	for i := range 5 {
		ids = append(ids, pushNow(t, c, both, uint64(i)))
	}
	if info := c.Streams("")[0]; info.Dropped != 3 || info.Frames != 2 || info.Pushed != 5 || info.Bytes != 7 {
		t.Errorf("%+v", info)
	}
	if n := s.Counts().DroppedFrames; n != 3 {
		t.Errorf("%d frames are counted as dropped, want 3", n)
	}
	if _, err := c.Stat(ids[0], ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a dropped frame is still there: %v", err)
	}
	wantPop(t, c, both, ids[3], 4)
	wantPop(t, c, both, ids[4], 5)
}

func TestStreamBoundInBytes(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "a")
	both := openStream(t, c, StreamSpec{Name: "s", Reads: true, Writes: true, Bytes: 1000})
	large := pushNow(t, c, both, 5000) // one frame always may wait
	id := sealedObject(t, c, Spec{SizeBytes: 1})
	if _, err := c.Push(both, id, 0, nil); !errors.Is(err, object.ErrTimeout) {
		t.Fatalf("a push beyond the bound: %v", err)
	}
	wantPop(t, c, both, large, 1)
	if _, err := c.Push(both, id, 0, nil); err != nil {
		t.Fatal(err)
	}
}

func TestStreamEnds(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true})
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	id := pushNow(t, writer, in, 10)
	if err := reader.EndStream(out, false); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a reader ended the stream: %v", err)
	}
	if err := writer.EndStream(in, false); err != nil {
		t.Fatal(err)
	}
	more := sealedObject(t, writer, Spec{SizeBytes: 1})
	if _, err := writer.Push(in, more, -1, nil); !errors.Is(err, object.ErrEnded) {
		t.Errorf("a push after the end: %v", err)
	}
	if _, err := connect(t, s, "a").OpenStream(StreamSpec{Name: "s", Writes: true}); !errors.Is(err, object.ErrEnded) {
		t.Errorf("another writer after the end: %v", err)
	}
	writer.Close() // what waits stays
	wantPop(t, reader, out, id, 1)
	if _, _, err := reader.Pop(out, -1, nil); !errors.Is(err, object.ErrEnded) {
		t.Errorf("a pop after the end: %v", err)
	}
	if err := reader.CloseStream(out); err != nil {
		t.Fatal(err)
	}
	if list := reader.Streams(""); len(list) != 0 {
		t.Errorf("an empty stream that nobody has open stayed: %+v", list)
	}
}

func TestStreamWriterDies(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true})
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	id := pushNow(t, writer, in, 10)
	wantPop(t, reader, out, id, 1)
	wake, woken := waited()
	if _, w, err := reader.Pop(out, -1, wake); err != nil || w == nil {
		t.Fatal(w, err)
	}
	writer.Close()
	if _, err := (<-woken).Result(); !errors.Is(err, object.ErrAborted) {
		t.Errorf("who waited for a dead writer: %v", err)
	}
	if _, _, err := reader.Pop(out, -1, nil); !errors.Is(err, object.ErrAborted) {
		t.Errorf("who asks after it: %v", err)
	}
	next := connect(t, s, "a")
	in = openStream(t, next, StreamSpec{Name: "s", Writes: true})
	id = pushNow(t, next, in, 11)
	wantPop(t, reader, out, id, 2)
	if err := next.CloseStream(in); err != nil { // in good order: more writers may come
		t.Fatal(err)
	}
	if _, _, err := reader.Pop(out, 0, nil); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("after a writer that closed: %v", err)
	}
}

func TestStreamReaderDies(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true, Frames: 1})
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	wake, _ := waited()
	if _, w, err := reader.Pop(out, -1, wake); err != nil || w == nil {
		t.Fatal(w, err)
	}
	reader.Close() // its waiting pop must not take a frame along
	id := pushNow(t, writer, in, 10)
	last := connect(t, s, "a")
	wantPop(t, last, openStream(t, last, StreamSpec{Name: "s", Reads: true}), id, 1)
	last.Close() // it held the frame: gone with it
	if st := s.Status(); st.Objects != 0 || st.References != 0 {
		t.Errorf("%+v", st)
	}
}

func TestStreamRemoved(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true, Frames: 1, Keep: true})
	pushNow(t, writer, in, 10)
	wake, woken := waited()
	id := sealedObject(t, writer, Spec{SizeBytes: 3})
	if w, err := writer.Push(in, id, time.Hour, wake); err != nil || w == nil {
		t.Fatal(w, err)
	}
	if err := connect(t, s, "b").RemoveStream("s"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if err := reader.RemoveStream("s"); err != nil {
		t.Fatal(err)
	}
	if _, err := (<-woken).Result(); !errors.Is(err, object.ErrAborted) {
		t.Errorf("who waited: %v", err)
	}
	if err := writer.Release(id); err != nil {
		t.Errorf("a push that failed took the reference: %v", err)
	}
	if err := writer.CloseStream(in); err != nil {
		t.Error(err)
	}
	if st := s.Status(); st.Objects != 0 || st.TableBytes != 0 {
		t.Errorf("left: %+v", st)
	}
}

func TestStreamBadInput(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "a")
	for _, spec := range []StreamSpec{
		{Name: "", Reads: true}, {Name: "s"}, {Name: "a\nb", Reads: true}, {Name: "s", Reads: true, Frames: 3},
		{Name: "s", Reads: true, DropOldest: true},
		{Name: "s", Writes: true, Frames: object.MaxStreamFrames + 1},
		{Name: "s", Writes: true, New: true, Existing: true},
	} {
		if _, err := c.OpenStream(spec); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	if _, err := c.OpenStream(StreamSpec{Name: "s", Reads: true, Existing: true}); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	in := openStream(t, c, StreamSpec{Name: "s", Writes: true})
	if _, err := c.OpenStream(StreamSpec{Name: "s", Writes: true, New: true}); !errors.Is(err, object.ErrExists) {
		t.Error(err)
	}
	if _, _, err := c.Pop(in, 0, nil); !errors.Is(err, object.ErrPermission) {
		t.Error(err)
	}
	if _, err := c.Push(99, object.NewID(), 0, nil); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	if _, err := c.Push(in, object.NewID(), 0, nil); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	h, err := c.Create(Spec{SizeBytes: 4})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if _, err := c.Push(in, h.ID, 0, nil); !errors.Is(err, object.ErrNotSealed) {
		t.Error(err)
	}
	if err := c.SealWith(h.ID, make([]byte, object.MaxMetaBytes+1)); !errors.Is(err, object.ErrInvalid) {
		t.Error(err)
	}
	if err := c.SealWith(h.ID, []byte("meta")); err != nil {
		t.Error(err)
	}
	if info, err := c.Stat(h.ID, ""); err != nil || string(info.Meta) != `{"base64":"bWV0YQ=="}` {
		t.Errorf("%s, %v", info.Meta, err)
	}
	for range maxStreamWaits {
		wake, _ := waited()
		out := openStream(t, c, StreamSpec{Name: "r", Reads: true})
		if _, _, err := c.Pop(out, -1, wake); err != nil {
			t.Fatal(err)
		}
	}
	out := openStream(t, c, StreamSpec{Name: "r", Reads: true})
	if _, _, err := c.Pop(out, -1, nil); !errors.Is(err, object.ErrBusy) {
		t.Errorf("too many waits: %v", err)
	}
}

// TestStreamManyWritersAndReaders loses nothing, hands nothing out twice, and leaves nothing.
func TestStreamManyWritersAndReaders(t *testing.T) {
	const writers, readers, each = 4, 3, 300
	s := newStore(t, Options{})
	keeper := connect(t, s, "a")
	opened := openStream(t, keeper, StreamSpec{Name: "s", Writes: true, Frames: 7})
	var mu sync.Mutex
	seen := map[object.ID]int{}
	var writing, reading sync.WaitGroup
	for range writers {
		c := connect(t, s, "a")
		in := openStream(t, c, StreamSpec{Name: "s", Writes: true})
		writing.Go(func() {
			for range each {
				id := sealedObject(t, c, Spec{SizeBytes: 10})
				wake, woken := waited()
				w, err := c.Push(in, id, -1, wake)
				if w != nil {
					_, err = (<-woken).Result()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range readers {
		c := connect(t, s, "a")
		out := openStream(t, c, StreamSpec{Name: "s", Reads: true})
		reading.Go(func() {
			for {
				wake, woken := waited()
				p, w, err := c.Pop(out, -1, wake)
				if w != nil {
					p, err = (<-woken).Result()
				}
				if errors.Is(err, object.ErrEnded) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				closeHandle(p.Handle)
				mu.Lock()
				seen[p.ID]++
				mu.Unlock()
				if err := c.Release(p.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	if err := keeper.EndStream(opened, false); err != nil {
		t.Error(err)
	}
	reading.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("object %s came %d times", id, n)
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d frames came", len(seen), writers*each)
	}
	if st := s.Status(); st.Objects != 0 || st.References != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestStreamFramesReuseMemory wants a stream in motion to make no new segments.
func TestStreamFramesReuseMemory(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := connect(t, s, "a"), connect(t, s, "a")
	in := openStream(t, writer, StreamSpec{Name: "s", Writes: true, Frames: 3})
	out := openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	segments := map[uint64]bool{}
	for range 500 {
		h, err := writer.Create(Spec{SizeBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
		segments[h.Ref.Segment] = true
		if err := writer.SealWith(h.ID, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Push(in, h.ID, 0, nil); err != nil {
			t.Fatal(err)
		}
		p, _, err := reader.Pop(out, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(p.Handle)
		if err := reader.Release(p.ID); err != nil {
			t.Fatal(err)
		}
	}
	if len(segments) > 2 {
		t.Errorf("500 frames, one at a time, lay in %d segments", len(segments))
	}
}

func TestStreamsOfATenantAreBounded(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "a")
	for i := range object.MaxStreams {
		id := openStream(t, c, StreamSpec{Name: fmt.Sprint(i), Writes: true, Keep: true})
		if err := c.CloseStream(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.OpenStream(StreamSpec{Name: "more", Writes: true}); !errors.Is(err, object.ErrQuota) {
		t.Error(err)
	}
	if n := len(c.Streams("102")); n != 5 { // 102, 1020 to 1023
		t.Errorf("%d streams begin with 102", n)
	}
}
