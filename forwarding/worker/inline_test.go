//go:build cgo

package worker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// TestSmallWritesAreGathered: writes one behind the other are one command of the driver's; whatever comes between, or
// could show it, parts them.
func TestSmallWritesAreGathered(t *testing.T) {
	r := newReaderRig(t)
	write := func(queue, buffer, offset uint64, size int) *clwire.WriteInline {
		return &clwire.WriteInline{Cmd: clwire.Cmd{Queue: queue}, Buffer: buffer, Offset: offset,
			Data: make([]byte, size)}
	}
	commands := func() (n uint64) {
		for _, s := range r.s.journal.Look(func(uint64, uint64) bool { return false }).Sums {
			if s.Kind == clwire.TypeWriteInline.String() {
				n = s.Count
			}
		}
		return n
	}
	seen := uint64(0)
	for _, c := range []struct {
		name string
		want uint64
		send func()
	}{
		{"1000 of 64 B", 4, func() { // of 16 KiB
			for i := range uint64(1000) {
				r.client.send(write(r.ordered, r.buffer, 64*i, 64))
			}
		}},
		{"a gap, and the same again", 3, func() {
			for _, at := range []uint64{0, 4, 12, 12} {
				r.client.send(write(r.ordered, r.buffer, at, 4))
			}
		}},
		{"a kernel between", 2, func() {
			r.client.send(write(r.ordered, r.buffer, 0, 4))
			r.client.send(run1(clwire.Cmd{Queue: r.ordered}, r.kernel, 1))
			r.client.send(write(r.ordered, r.buffer, 4, 4))
		}},
		{"an event, and a wait for it", 3, func() {
			m, after := write(r.ordered, r.buffer, 4, 4), write(r.ordered, r.buffer, 8, 4)
			m.Event = r.id()
			after.Wait = []uint64{m.Event}
			r.client.send(write(r.ordered, r.buffer, 0, 4))
			r.client.send(m)
			r.client.send(after)
		}},
		{"no order", 2, func() {
			r.client.send(write(r.disordered, r.buffer, 0, 4))
			r.client.send(write(r.disordered, r.buffer, 4, 4))
		}},
		{"two queues", 2, func() {
			r.client.send(write(r.ordered, r.buffer, 0, 4))
			r.client.send(write(r.disordered, r.buffer, 4, 4))
		}},
		{"large ones", 2, func() {
			r.client.send(write(r.ordered, r.buffer, 0, gatheredBytes+1))
			r.client.send(write(r.ordered, r.buffer, gatheredBytes+1, gatheredBytes+1))
		}},
	} {
		c.send()
		r.ask(&clwire.Finish{Queue: r.ordered})
		r.ask(&clwire.Finish{Queue: r.disordered})
		r.read()
		r.release()
		if n := commands(); n-seen != c.want {
			t.Errorf("%s: %d commands, want %d", c.name, n-seen, c.want)
		}
		seen = commands()
	}
}

// TestGatheredWritesKeepTheirBytes: a buffer has what a model has, whichever writes became one command.
func TestGatheredWritesKeepTheirBytes(t *testing.T) {
	t.Setenv("NULLCL_BYTES", fmt.Sprint(1<<24)) // the driver's memory is some
	r := newReaderRig(t)
	const size = 1 << 20
	q, b := r.s.queues[r.ordered], r.s.objects[r.buffer].(*buffer)
	read := func(host []byte) {
		e, status := q.native.Transfer(true, b.native, 0, size, fixed.Address(host), opencl.After{Want: true})
		if status != cl.SUCCESS || e.Wait() != cl.SUCCESS {
			t.Fatal("the buffer cannot be read")
		}
		e.Release()
	}
	want, got := make([]byte, size), make([]byte, size)
	read(want)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		at := uint64(0)
		for range 200 {
			if random.IntN(8) == 0 { // else it comes behind the one before
				at += uint64(random.IntN(100))
			}
			data := want[at:][:1+random.IntN(2*gatheredBytes)>>random.IntN(10)]
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			r.client.send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: r.ordered}, Buffer: r.buffer, Offset: at,
				Data: data})
			at += uint64(len(data))
		}
		r.ask(&clwire.Finish{Queue: r.ordered})
		r.read()
		r.release()
		if read(got); !bytes.Equal(got, want) {
			t.Fatalf("round %d: other bytes", round)
		}
	}
}

// TestInlineWritesAllocateNothing: a small write in a queue in order, of a buffer in place, once its queue has a block.
func TestInlineWritesAllocateNothing(t *testing.T) {
	b := &buffer{size: 256, seg: &segment{mem: make([]byte, 256)}}
	b.refs.Store(1)
	s := &session{greeted: true, rows: &rows, engine: engine.New(nil, nil, engine.Options{}),
		objects: map[uint64]any{2: b}, queues: map[uint64]*clQueue{1: {writes: &writeBytes{}}}}
	if err := s.engine.AddQueue(1, 1, false, 0, func() {}); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte{7}, 64)
	payload := (&clwire.WriteInline{Cmd: clwire.Cmd{Queue: 1}, Buffer: 2, Offset: 100, Data: data}).Append(nil)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.execute(clwire.Header{Type: clwire.TypeWriteInline}, payload); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a write", n)
	}
	if !bytes.Equal(b.seg.mem[100:164], data) || b.seg.mem[99] != 0 || b.seg.mem[164] != 0 || b.refs.Load() != 1 {
		t.Errorf("%v, %d references", b.seg.mem[90:170], b.refs.Load())
	}
	s.queues[1].writes.letGo(&s.blocks)
}

// TestGatheredWriteIsWhatTheReaderIsAt: while the driver is given gathered writes the session says so, and does not
// name the record that came behind them.
func TestGatheredWriteIsWhatTheReaderIsAt(t *testing.T) {
	r := newReaderRig(t)
	send := func(m clwire.Message) error {
		r.s.journal.Doing(uint32(m.Type()))
		return r.s.execute(clwire.Header{Type: m.Type()}, m.Append(nil))
	}
	write := &clwire.WriteInline{Cmd: clwire.Cmd{Queue: r.ordered}, Buffer: r.buffer, Data: make([]byte, 4)}
	if err := send(write); err != nil {
		t.Fatal(err)
	}
	r.s.small.message.Queue = r.id() // there is none: the reader stays where it was
	if err := send(&clwire.Flush{Queue: r.ordered}); err == nil {
		t.Fatal("a write to no queue is no error")
	}
	r.s.journal.Tick(time.Now().Add(-time.Hour)) // it has been there for long
	calls := r.s.journal.Look(func(uint64, uint64) bool { return false }).Calls
	if want := "record " + clwire.TypeWriteInline.String(); len(calls) != 1 || calls[0].What != want {
		t.Errorf("the reader is at %v, want %q", calls, want)
	}
}
