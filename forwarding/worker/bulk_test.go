//go:build cgo

package worker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

// far is a client on another machine: a stream and a lane over TLS.
type far struct {
	*client
	lane    *link.Lane
	session *session
	ended   chan struct{}    // closed at the session's end
	done    map[uint64]int32 // BulkDone
	data    map[uint64][]byte
	lengths map[uint64]uint64 // BulkLength
}

func tcpEnds(t testing.TB) (a, b *os.File) {
	t.Helper()
	a, b, err := loopback.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// farFixture runs a remote session in this process. inPlace false lets a CPU device stand for one with memory of its
// own.
func farFixture(t testing.TB, inPlace bool, properties uint64) (*far, *fixture) {
	t.Helper()
	d := testDriver(t)
	if inPlace && !d.inPlace {
		t.Skip("this device has memory of its own")
	}
	mine, err := link.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := link.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	var streams [2]*link.Stream
	var lanes [2]*link.Lane
	var errs [4]error
	var wg sync.WaitGroup
	a, b := tcpEnds(t)
	la, lb := tcpEnds(t)
	wg.Go(func() {
		streams[0], errs[0] = link.OpenStream(link.Client, a, link.Options{TLS: mine.Config(theirs.Fingerprint())})
	})
	wg.Go(func() {
		streams[1], errs[1] = link.OpenStream(link.Worker, b, link.Options{TLS: theirs.Config(mine.Fingerprint())})
	})
	wg.Go(func() {
		lanes[0], errs[2] = link.OpenLane(link.Client, la, link.Options{TLS: mine.Config(theirs.Fingerprint())})
	})
	wg.Go(func() {
		lanes[1], errs[3] = link.OpenLane(link.Worker, lb, link.Options{TLS: theirs.Config(mine.Fingerprint())})
	})
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	s := newSession(streams[1], d.platform, d.devices, inPlace, false, nil)
	s.bulk = newBulk(s)
	s.bulk.addLane(lanes[1])
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.run() // how it ends is the tests' own doing
	}()
	c := &client{t: t, link: streams[0], replies: map[uint64]*clwire.Reply{}, partial: map[uint64][]byte{},
		ends:  map[uint64]clwire.EventEnd{},
		count: map[uint64]int{}, ready: map[uint64]int32{}}
	f := &far{client: c, lane: lanes[0], session: s, ended: ended, done: map[uint64]int32{}, data: map[uint64][]byte{},
		lengths: map[uint64]uint64{}}
	c.other = f.other
	t.Cleanup(func() {
		c.link.Shutdown()
		f.lane.Shutdown()
		<-ended
		s.peers.close()
		s.bulk.close()
		s.engine.Close()
		s.work.Wait()
		c.link.Close()
		f.lane.Close()
		streams[1].Close()
	})
	c.hello()
	fix := &fixture{client: c, context: c.id()}
	c.send(&clwire.CreateContext{ID: fix.context, Devices: []uint32{0}})
	fix.queue = fix.newQueue(properties)
	fix.build(source)
	return f, fix
}

func (f *far) other(h clwire.Header, p []byte) {
	switch h.Type {
	case clwire.TypeBulkDone:
		var m clwire.BulkDone
		f.must(m.Decode(p))
		f.done[m.Op] = m.Status
	case clwire.TypeBulkLength:
		var m clwire.BulkLength
		f.must(m.Decode(p))
		f.lengths[m.Op] = m.Bytes
	case clwire.TypeBulkData:
		var m clwire.BulkData
		f.must(m.Decode(p))
		f.data[m.Op] = append([]byte(nil), m.Data...)
	}
}

// chunks sends data in shuffled chunks of n bytes; skip gives every third up.
func (f *far) chunks(op uint64, data []byte, n int, skip bool) {
	f.t.Helper()
	order := rand.New(rand.NewSource(int64(op))).Perm((len(data) + n - 1) / n)
	for _, i := range order {
		part := data[i*n : min((i+1)*n, len(data))]
		h := clwire.LaneHeader{Op: op, Offset: uint64(i * n), Length: uint32(len(part)), Skipped: skip && i%3 == 0}
		if h.Skipped {
			part = nil
		}
		f.must(f.lane.Send(h, part, nil))
	}
}

// fetch reads a buffer's bytes by a lane, or inline.
func (f *far) fetch(fix *fixture, buf uint64, shape clwire.Shape, size int, inline bool) []byte {
	f.t.Helper()
	op := f.id()
	f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Inline: inline, Buffer: buf, Shape: shape})
	f.link.Kick()
	if inline {
		f.until("an inline read", func() bool { _, ok := f.done[op]; return ok })
		return f.data[op]
	}
	got := make([]byte, size)
	for at := 0; at < size; {
		h, err := f.lane.Header()
		f.must(err)
		f.must(f.lane.Read(got[h.Offset : h.Offset+uint64(h.Length)]))
		at += int(h.Length)
	}
	f.send(&clwire.HostDone{Op: op})
	return got
}

func everyMemory(t *testing.T, f func(t *testing.T, inPlace bool)) {
	for _, inPlace := range []bool{true, false} {
		t.Run(fmt.Sprintf("inplace=%v", inPlace), func(t *testing.T) { f(t, inPlace) })
	}
}

func TestBulkThereAndBack(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		const size = 5<<20 + 12345
		buf := f.id()
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		want := make([]byte, size)
		rand.New(rand.NewSource(1)).Read(want)
		op := f.id()
		f.chunks(op, want[:1<<20], clwire.MaxChunk, false) // before its command
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
			Shape: clwire.Shape{Size: 1 << 20}})
		op2 := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op2, Buffer: buf,
			Shape: clwire.Shape{Offset: 1 << 20, Size: size - 1<<20}})
		f.link.Kick()
		f.until("its turn", func() bool { _, ok := f.ready[op2]; return ok })
		f.chunks(op2, want[1<<20:], 77777, false)
		f.until("both writes", func() bool { return len(f.done) == 2 })
		if f.done[op] != 0 || f.done[op2] != 0 {
			t.Fatalf("writes: %v", f.done)
		}
		if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
			t.Fatal("other bytes came back")
		}
		if got := f.fetch(fix, buf, clwire.Shape{Offset: 100, Size: 3000}, 3000, true); !bytes.Equal(got,
			want[100:3100]) {
			t.Fatal("other bytes came back inline")
		}
		// A rectangle: 1000 bytes × 30 rows × 3 slices, written through a kernel's queue and read back.
		shape := clwire.Shape{Rect: true, Origin: [3]uint64{7, 3, 2}, Region: [3]uint64{1000, 30, 3}, RowPitch: 1024,
			SlicePitch: 40 * 1024}
		dense := make([]byte, 1000*30*3)
		rand.New(rand.NewSource(2)).Read(dense)
		op3 := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op3, Buffer: buf, Shape: shape})
		f.chunks(op3, dense, 12345, false)
		for z := range 3 {
			for y := range 30 {
				copy(want[(2+z)*40*1024+(3+y)*1024+7:], dense[(z*30+y)*1000:][:1000])
			}
		}
		f.link.Kick()
		f.until("the rectangle", func() bool { _, ok := f.done[op3]; return ok })
		if got := f.fetch(fix, buf, shape, len(dense), false); !bytes.Equal(got, dense) {
			t.Fatal("other bytes in the rectangle")
		}
		if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
			t.Fatal("bytes outside the rectangle changed")
		}
	})
}

// hasAll reports whether every byte of a write has come.
func (b *bulk) hasAll(id uint64) bool {
	b.mu.Lock()
	o := b.ops[id]
	b.mu.Unlock()
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known && o.left == 0
}

func TestGatedBulkWriteTouchesNothing(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
		buf, gate := f.id(), f.id()
		const size = 64 << 10
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		f.send(&clwire.Fill{Cmd: clwire.Cmd{Queue: fix.queue}, Buffer: buf, Size: size, Pattern: []byte{7}})
		f.call(&clwire.Finish{Queue: fix.queue})
		f.send(&clwire.UserEvent{ID: gate})
		op, event := f.id(), f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue, Event: event, Wait: []uint64{gate}}, Op: op,
			Buffer: buf, Shape: clwire.Shape{Size: size}})
		f.chunks(op, bytes.Repeat([]byte{9}, size), 4096, false)
		await.Until(t, "whole write in the worker", func() bool { return f.session.bulk.hasAll(op) })
		if got := f.fetch(fix, buf, clwire.Shape{Size: 1000}, 1000, true); !bytes.Equal(got,
			bytes.Repeat([]byte{7}, 1000)) {
			t.Fatal("a gated write reached the buffer")
		}
		f.send(&clwire.SetUserEvent{ID: gate})
		f.link.Kick()
		f.until("the write", func() bool { _, ok := f.done[op]; return ok })
		if got := f.fetch(fix, buf, clwire.Shape{Size: 1000}, 1000, true); !bytes.Equal(got,
			bytes.Repeat([]byte{9}, 1000)) {
			t.Fatal("the write is over and not there")
		}
	})
}

func TestBulkFailures(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		buf, gate := f.id(), f.id()
		const size = 300 << 10
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		f.send(&clwire.UserEvent{ID: gate})
		op, event := f.id(), f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue, Event: event, Wait: []uint64{gate}}, Op: op,
			Buffer: buf, Shape: clwire.Shape{Size: size}})
		f.send(&clwire.SetUserEvent{ID: gate, Status: -7})
		f.link.Kick()
		f.until("the verdict", func() bool { return f.ready[op] == -14 })
		f.chunks(op, make([]byte, size), 50000, true)
		f.until("the end", func() bool { return f.done[op] == -14 })
		outside, skipped := f.id(), f.id()
		f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: fix.queue}, Op: outside, Buffer: buf,
			Shape: clwire.Shape{Offset: size, Size: 8}})
		f.link.Kick()
		f.until("a read outside", func() bool { return f.ready[outside] < 0 })
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: skipped, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.chunks(skipped, make([]byte, size), 50000, true)
		f.link.Kick()
		f.until("a write that was given up", func() bool { return f.done[skipped] == -5 })
		if r := f.call(&clwire.Finish{Queue: fix.queue}); r.Status != 0 && r.Status != -14 && r.Status != -5 {
			t.Fatalf("finish: %d", r.Status)
		}
	})
}

func TestBulkBeyondTheAllowanceEndsTheSession(t *testing.T) {
	f, _ := farFixture(t, false, 0)
	chunk := make([]byte, clwire.MaxChunk)
	go func() { // blocked, once nobody reads, until the test ends
		for op := uint64(1 << 40); f.lane.Send(clwire.LaneHeader{Op: op, Length: clwire.MaxChunk}, chunk,
			nil) == nil; op++ {
		}
	}()
	var err error
	for deadline := time.Now().Add(5 * time.Minute); err == nil && !f.link.Hung(); {
		if time.Now().After(deadline) {
			t.Fatal("the session goes on")
		}
		_, _, _, err = f.link.Next()
		time.Sleep(time.Millisecond)
	}
}

// TestManyGatedReads has more inline reads wait behind user events than there is pinned memory for them: none keeps
// another queue's reads from theirs, all bring their bytes, and those whose event fails are told so.
func TestManyGatedReads(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		buf, gates, queues := f.id(), [2]uint64{f.id(), f.id()},
			[2]uint64{fix.newQueue(0), fix.newQueue(cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)}
		const size, reads = 300 << 10, inlineSlots + 20
		want := make([]byte, size)
		rand.New(rand.NewSource(3)).Read(want)
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		write := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: write, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.chunks(write, want, 50000, false)
		f.link.Kick()
		f.until("the write", func() bool { _, ok := f.done[write]; return ok })
		var ops, events [2][]uint64
		for i, gate := range gates {
			f.send(&clwire.UserEvent{ID: gate})
			for n := range reads {
				op, event := f.id(), f.id()
				f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: queues[i], Event: event, Wait: []uint64{gate}}, Op: op,
					Inline: true, Buffer: buf,
					Shape: clwire.Shape{Offset: uint64(n), Size: 1000}})
				ops[i], events[i] = append(ops[i], op), append(events[i], event)
			}
		}
		if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
			t.Fatal("other bytes beside gated reads")
		}
		if got := f.fetch(fix, buf, clwire.Shape{Size: 77}, 77, true); !bytes.Equal(got, want[:77]) {
			t.Fatal("other bytes inline beside gated reads")
		}
		f.send(&clwire.SetUserEvent{ID: gates[0]})
		f.send(&clwire.SetUserEvent{ID: gates[1], Status: -7})
		f.link.Kick()
		over := func() bool {
			for i := range reads {
				if _, done := f.done[ops[0][i]]; !done || f.done[ops[1][i]] != -14 && f.ready[ops[1][i]] != -14 {
					return false
				}
			}
			return true
		}
		f.until("all reads", over)
		for n, op := range ops[0] {
			if f.done[op] != 0 || !bytes.Equal(f.data[op], want[n:n+1000]) {
				t.Fatalf("read %d: status %d, or other bytes", n, f.done[op])
			}
		}
		f.until("their events", func() bool { return len(f.ends) >= 2*reads })
		for n := range reads {
			if good, bad := f.ends[events[0][n]].Status, f.ends[events[1][n]].Status; good != 0 || bad != -14 {
				t.Fatalf("events of read %d ended with %d and %d", n, good, bad)
			}
		}
		if r := f.call(&clwire.Finish{Queue: queues[1]}); r.Status != 0 {
			t.Fatalf("finish: %d", r.Status)
		}
	})
}
