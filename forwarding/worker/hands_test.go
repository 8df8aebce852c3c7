//go:build cgo

package worker

import (
	"bytes"
	"math/rand"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// rested waits until so many hands have nothing to do, and returns them.
func (h *hands) rested(t *testing.T, n int) []*hand {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		idle := append([]*hand(nil), h.idle...)
		h.mu.Unlock()
		if len(idle) == n {
			return idle
		}
	}
	t.Fatalf("there are not %d hands at rest", n)
	return nil
}

// settled waits until all hands have nothing to do, and returns them.
func (h *hands) settled(t *testing.T) []*hand {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		idle, count := append([]*hand(nil), h.idle...), h.count
		h.mu.Unlock()
		if len(idle) == count {
			return idle
		}
	}
	t.Fatal("the hands do not rest")
	return nil
}

// TestReadsStartNoThreads: read after read is sent by the thread that sent the one before, and gives its memory back.
func TestReadsStartNoThreads(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		const size = 900 << 10
		want := make([]byte, size)
		rand.New(rand.NewSource(5)).Read(want)
		buf, write := f.id(), f.id()
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: write, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.chunks(write, want, 200<<10, false)
		f.link.Kick()
		f.until("the write", func() bool { _, ok := f.done[write]; return ok })
		h := &f.session.bulk.hands
		before := len(h.settled(t)) // whoever waited for the device
		for n := range 5 {
			if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
				t.Fatalf("read %d: other bytes", n)
			}
			if now := len(h.settled(t)); now > max(before, 1) {
				t.Errorf("read %d: %d threads, %d before", n, now, before)
			}
		}
		if p := &f.session.bulk.staging; !inPlace && len(p.out) != outSlots {
			t.Errorf("%d of %d slots came back", len(p.out), outSlots)
		}
	})
}

// TestFewThreadsWaitForWhatIsWritten: however many chunks of a write are on their way to a device, one thread waits for
// them, and it is there for the next ones. One that is about to rest is not asked: so there may be a second.
func TestFewThreadsWaitForWhatIsWritten(t *testing.T) {
	f, fix := farFixture(t, false, 0)
	const size, part, writes = 6 << 20, 100 << 10, 3
	want := make([]byte, size)
	rand.New(rand.NewSource(6)).Read(want)
	buf := f.id()
	f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
	for range writes {
		write := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: write, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.link.Kick()
		f.until("the write's turn", func() bool { _, ok := f.ready[write]; return ok })
		f.chunks(write, want, part, false)
		f.until("the write", func() bool { _, ok := f.done[write]; return ok })
	}
	if n := len(f.session.bulk.hands.settled(t)); n == 0 || n > 3 {
		t.Errorf("%d threads waited for %d writes of %d chunks", n, writes, size/part)
	}
	if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
	if p := &f.session.bulk.staging; len(p.free) != stagingSlots-outSlots {
		t.Errorf("%d of %d slots came back", len(p.free), stagingSlots-outSlots)
	}
}

// TestHands: what is run at once runs on as many threads, which are there for the next; those that wait end with the
// rest.
func TestHands(t *testing.T) {
	var h hands
	var work sync.WaitGroup
	const n = clwire.MaxLanes + 2
	all := func() map[int]bool {
		var mu sync.Mutex
		var begun, over sync.WaitGroup
		threads := map[int]bool{}
		begun.Add(n)
		over.Add(n)
		for range n {
			h.run(&work, func() {
				begun.Done()
				begun.Wait()
				mu.Lock()
				threads[unix.Gettid()] = true
				mu.Unlock()
				over.Done()
			})
		}
		over.Wait()
		return threads
	}
	before := all()
	h.rested(t, clwire.MaxLanes)
	after := all()
	again := 0
	for id := range after {
		if before[id] {
			again++
		}
	}
	if len(before) != n || len(after) != n || again < clwire.MaxLanes {
		t.Errorf("%d threads, then %d, of which %d had been there", len(before), len(after), again)
	}
	h.rested(t, clwire.MaxLanes)
	h.close()
	work.Wait()
	h.run(&work, func() {})
	work.Wait()
	if len(h.idle) != 0 {
		t.Errorf("%d wait behind the end", len(h.idle))
	}
}

// TestALateSenderAsksTheDeviceNothing: the others have sent all chunks of a read, and its program has released the
// context, before a sender comes to the processor.
func TestALateSenderAsksTheDeviceNothing(t *testing.T) {
	o := &bulkOp{b: &bulk{}, size: 1 << 20, buffer: &buffer{context: &clContext{}}} // of no device
	f := &outflow{o: o, at: o.size, senders: 1}
	f.send(nil, nil)
	if o.b.staging.seg != nil {
		t.Error("it has asked for a queue")
	}
}

// TestTheReaderBeginsWithOneCommand: of a rectangle and of an image the reader gives a device nothing, also where a
// queue and memory are free.
func TestTheReaderBeginsWithOneCommand(t *testing.T) {
	c, noQueue := &clContext{}, opencl.Queue(1) // whoever gave it a command would crash
	for what, o := range map[string]*bulkOp{
		"rectangle": {buffer: &buffer{context: c}, ext: extent{Shape: clwire.Shape{Rect: true}}},
		"image":     {buffer: &buffer{context: c, image: &imageShape{}}},
	} {
		o.b, o.size = &bulk{}, 1<<20
		p := &o.b.staging
		p.queues, p.out = map[*clContext]opencl.Queue{c: noQueue}, make(chan int, 1)
		p.out <- 0
		if flying := (&outflow{o: o}).begin(); flying != nil || len(p.out) != 1 {
			t.Errorf("%s: %d copies begun", what, len(flying))
		}
	}
}
