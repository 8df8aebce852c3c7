//go:build cgo

package worker

import (
	"bytes"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/engine"
)

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
