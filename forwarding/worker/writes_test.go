//go:build cgo

package worker

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestBlocksOfWrites: the bytes of writes stay as they are until those who come behind them have ended, and blocks are
// used again.
func TestBlocksOfWrites(t *testing.T) {
	var from blocks
	w := &writeBytes{}
	type write struct {
		mem   []byte
		seed  byte
		ended func(int32)
	}
	var open []write // oldest first, as they end
	rnd := rand.New(rand.NewPCG(1, 2))
	fill := func(n int, seed byte) []byte { return bytes.Repeat([]byte{seed}, n) }
	seen := map[*byte]bool{}
	for i := range 20000 {
		seed, waits := byte(i), rnd.IntN(3) > 0
		mem, ended := w.keep(&from, fill(1+rnd.IntN(inBlock), seed), waits)
		if mem != nil {
			seen[&w.now[0]] = true
			open = append(open, write{mem, seed, ended})
		}
		for len(open) > 0 && (len(open) > 100 || mem == nil || rnd.IntN(4) == 0) {
			x := open[0]
			open = open[1:]
			if !bytes.Equal(x.mem, fill(len(x.mem), x.seed)) {
				t.Fatalf("write %d: its bytes have changed", i)
			}
			if x.ended != nil && rnd.IntN(10) == 0 {
				x.ended(-14) // before others: nothing may be let go
			} else if x.ended != nil {
				x.ended(0)
			}
		}
	}
	if len(seen) > 2*fullBlocks+keptBlocks {
		t.Errorf("%d blocks", len(seen))
	}
	w.letGo(&from)
	if w.now != nil || len(w.full) > 0 || len(from.free) == 0 || len(from.free) > keptBlocks {
		t.Errorf("%d blocks are kept", len(from.free))
	}
}

// TestManySmallWrites: what is written in records arrives, also held back, with wait lists, and on a queue without
// order.
func TestManySmallWrites(t *testing.T) {
	for _, properties := range []uint64{0, cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE} {
		far, f := farFixture(t, false, properties)
		const size, count = 600, 3000
		b := f.id()
		f.send(&clwire.CreateBuffer{ID: b, Context: f.context, Size: size * count})
		want := make([]byte, size*count)
		var last []uint64
		for i := range count {
			part := want[i*size:][:size]
			for j := range part {
				part[j] = byte(i + j*i)
			}
			m := &clwire.WriteInline{Cmd: clwire.Cmd{Queue: f.queue}, Buffer: b, Offset: uint64(i * size), Data: part}
			if i%5 == 0 {
				m.Cmd.Event, m.Cmd.Wait = f.id(), last
				last = []uint64{m.Cmd.Event}
			}
			f.send(m)
		}
		f.call(&clwire.Finish{Queue: f.queue})
		if got := far.fetch(f, b, clwire.Shape{Size: size * count}, size*count, false); !bytes.Equal(got, want) {
			t.Errorf("queue %d: other bytes", properties)
		}
	}
}
