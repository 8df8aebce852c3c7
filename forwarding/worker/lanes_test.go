//go:build cgo

package worker

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// addLanes gives the client n more lanes, in the clear, and returns all.
func (f *far) addLanes(n int) []*link.Lane {
	f.t.Helper()
	lanes := []*link.Lane{f.lane}
	for range n {
		a, b := tcpEnds(f.t)
		mine, err := link.OpenLane(link.Client, a, link.Options{})
		f.must(err)
		theirs, err := link.OpenLane(link.Worker, b, link.Options{})
		f.must(err)
		f.session.bulk.addLane(theirs)
		f.t.Cleanup(mine.Shutdown)
		lanes = append(lanes, mine)
	}
	return lanes
}

// gathered is a read's bytes as they come.
type gathered struct {
	mu   sync.Mutex
	data map[uint64][]byte
	left map[uint64]int
	over chan uint64
}

func (g *gathered) expect(op uint64, size int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.data[op], g.left[op] = make([]byte, size), size
}

// from takes a lane's chunks until the lane ends.
func (g *gathered) from(l *link.Lane) {
	for {
		h, err := l.Header()
		if err != nil {
			return
		}
		part := make([]byte, h.Length)
		if l.Read(part) != nil {
			return
		}
		g.mu.Lock()
		copy(g.data[h.Op][h.Offset:], part)
		if g.left[h.Op] -= len(part); g.left[h.Op] == 0 {
			g.over <- h.Op
		}
		g.mu.Unlock()
	}
}

// Several reads at once leave by several lanes, whole, and each exactly once.
func TestReadsLeaveByEveryLane(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		lanes := f.addLanes(2)
		const size = 6<<20 + 777
		buf := f.id()
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		want := make([]byte, size)
		rand.New(rand.NewSource(4)).Read(want)
		op := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.link.Kick()
		f.until("the write's turn", func() bool { _, ok := f.ready[op]; return ok })
		f.chunks(op, want, clwire.MaxChunk, false)
		f.until("the write", func() bool { return len(f.done) == 1 })

		g := &gathered{data: map[uint64][]byte{}, left: map[uint64]int{}, over: make(chan uint64, 16)}
		for _, l := range lanes {
			go g.from(l)
		}
		shapes := []clwire.Shape{
			{Size: size}, {Offset: 5, Size: 3}, {Offset: 1 << 20, Size: 4<<20 + 1},
			{Rect: true, Origin: [3]uint64{3, 1, 0}, Region: [3]uint64{1500, 700, 2}, RowPitch: 2048,
				SlicePitch: 1024 * 2048},
			{Rect: true, Origin: [3]uint64{1, 0, 0}, Region: [3]uint64{300_000, 9, 1}, RowPitch: 310_000,
				SlicePitch: 2_790_000},
		}
		ops := map[uint64]clwire.Shape{}
		for _, shape := range shapes {
			op := f.id()
			ops[op] = shape
			g.expect(op, int(sizeOf(&shape)))
			f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf, Shape: shape})
			f.link.Kick()
			select { // in order: the next one's turn comes once this one is received
			case ended := <-g.over:
				f.send(&clwire.HostDone{Op: ended})
			case <-time.After(5 * time.Minute):
				t.Fatalf("%+v: its bytes do not come", shape)
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for op, shape := range ops {
			var part []byte
			e, _ := extentOf(&buffer{size: size}, &shape)
			e.runs(0, e.size, func(at, n uint64) bool { part = append(part, want[at:at+n]...); return true })
			if !bytes.Equal(g.data[op], part) {
				t.Errorf("%+v: other bytes came back", shape)
			}
		}
	})
}

// awaitEnd waits for the session's end.
func (f *far) awaitEnd() {
	f.t.Helper()
	select {
	case <-f.ended:
	case <-time.After(5 * time.Minute):
		f.t.Fatal("the session goes on")
	}
}

// What a client says of a chunk is checked before a byte of the buffer is touched, whatever the buffer's memory.
func TestHostileChunksEndTheSession(t *testing.T) {
	const size = 1 << 20
	for name, h := range map[string]clwire.LaneHeader{
		"behind the end":       {Offset: size + 1, Length: 1},
		"over the end":         {Offset: size - 1, Length: 2},
		"an offset that wraps": {Offset: ^uint64(0) - 1, Length: 4},
		"too long":             {Length: clwire.MaxChunk + 1},
		"no length":            {},
	} {
		t.Run(name, func(t *testing.T) {
			everyMemory(t, func(t *testing.T, inPlace bool) {
				f, fix := farFixture(t, inPlace, 0)
				buf, op := f.id(), f.id()
				f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
				f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
					Shape: clwire.Shape{Size: size}})
				f.link.Kick()
				f.until("the write's turn", func() bool { _, ok := f.ready[op]; return ok })
				h.Op = op
				_ = f.lane.Send(h, make([]byte, h.Length), nil) // the session may end before all is sent
				f.awaitEnd()
			})
		})
	}
}

// More bytes than a write has, and bytes for a read, end the session.
func TestChunksTooManyEndTheSession(t *testing.T) {
	for _, write := range []bool{true, false} {
		t.Run(fmt.Sprintf("write=%v", write), func(t *testing.T) {
			f, fix := farFixture(t, false, 0)
			buf, op, gate := f.id(), f.id(), f.id()
			const size = 300 << 10
			f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
			f.send(&clwire.UserEvent{ID: gate})
			cmd := clwire.Cmd{Queue: fix.queue, Wait: []uint64{gate}}
			if write {
				f.send(&clwire.BulkWrite{Cmd: cmd, Op: op, Buffer: buf, Shape: clwire.Shape{Size: size}})
			} else {
				f.send(&clwire.BulkRead{Cmd: cmd, Op: op, Buffer: buf, Shape: clwire.Shape{Size: size}})
			}
			f.link.Kick()
			for range 3 {
				_ = f.lane.Send(clwire.LaneHeader{Op: op, Length: 200 << 10}, make([]byte, 200<<10), nil)
			}
			f.awaitEnd()
		})
	}
}

// A lane that is cut in the middle of a transfer ends the session; nothing of it stays (the fixture joins all).
func TestLaneIsCut(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		for _, write := range []bool{true, false} {
			t.Run(fmt.Sprintf("write=%v", write), func(t *testing.T) {
				f, fix := farFixture(t, inPlace, 0)
				lanes := f.addLanes(1)
				buf, op := f.id(), f.id()
				const size = 24 << 20
				f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
				if write {
					f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
						Shape: clwire.Shape{Size: size}})
				} else {
					f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
						Shape: clwire.Shape{Size: size}})
				}
				f.link.Kick()
				f.until("its turn", func() bool { _, ok := f.ready[op]; return ok })
				if write {
					f.chunks(op, make([]byte, 1<<20), clwire.MaxChunk, false)
				} else {
					_, err := lanes[0].Header()
					f.must(err)
				}
				lanes[0].Shutdown()
				f.awaitEnd()
			})
		}
	})
}

// FuzzLane lets a client send anything on a lane, for a write whose turn has come, one that waits, a rectangle, and
// operations that there are not.
func FuzzLane(f *testing.F) {
	seed := func(headers ...clwire.LaneHeader) {
		var b []byte
		for _, h := range headers {
			var head [clwire.LaneHeaderBytes]byte
			h.Put(head[:])
			b = append(b, head[:]...)
			if !h.Skipped {
				b = append(b, make([]byte, min(h.Length, 1<<12))...)
			}
		}
		f.Add(b)
	}
	seed(clwire.LaneHeader{Op: 90, Length: 100}, clwire.LaneHeader{Op: 90, Offset: 100, Length: 100})
	seed(clwire.LaneHeader{Op: 91, Length: 8}, clwire.LaneHeader{Op: 92, Offset: 4, Length: 4},
		clwire.LaneHeader{Op: 93, Length: 30})
	seed(clwire.LaneHeader{Op: 90, Length: 200, Skipped: true}, clwire.LaneHeader{Op: 92, Length: 8, Skipped: true})
	seed(clwire.LaneHeader{Op: 90, Offset: 199, Length: 2}, clwire.LaneHeader{Op: 94, Length: 1})
	f.Fuzz(func(t *testing.T, input []byte) {
		s, stop := fuzzSession(t)
		defer stop()
		for _, m := range []clwire.Message{
			&clwire.UserEvent{ID: 40},
			&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: 2}, Op: 90, Buffer: 3, Shape: clwire.Shape{Offset: 8, Size: 200}},
			&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: 2, Wait: []uint64{40}}, Op: 92, Buffer: 3,
				Shape: clwire.Shape{Rect: true, Region: [3]uint64{4, 2, 1}, RowPitch: 8, SlicePitch: 16}},
			&clwire.BulkRead{Cmd: clwire.Cmd{Queue: 2}, Op: 94, Buffer: 3, Shape: clwire.Shape{Size: 256}},
		} {
			if err := s.execute(clwire.Header{Type: m.Type()}, m.Append(nil)); err != nil {
				t.Fatal(err)
			}
			s.runDue()
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, mine := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "mine")
		l, err := link.OpenLane(link.Worker, theirs, link.Options{})
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		var sent sync.WaitGroup
		sent.Go(func() {
			_, _ = mine.Write(input) // the reader may end before all is sent
			mine.Close()
		})
		if s.bulk.readLane(l) == nil {
			t.Error("a lane ended without an error")
		}
		l.Shutdown()
		sent.Wait()
		l.Close()
	})
}
