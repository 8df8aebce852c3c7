//go:build cgo

package worker

import (
	"bytes"
	"math/rand"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestContentSize: a read brings what the size buffer says when its turn has come, which is what a command before it in
// the queue wrote there.
func TestContentSize(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		const size = 1 << 20
		buf, count := f.id(), f.id()
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: size})
		f.send(&clwire.CreateBuffer{ID: count, Context: fix.context, Flags: cl.MEM_READ_WRITE, Size: 64})
		want := make([]byte, size)
		rand.New(rand.NewSource(3)).Read(want)
		op := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf,
			Shape: clwire.Shape{Size: size}})
		f.chunks(op, want, clwire.MaxChunk, false)
		f.send(&clwire.ContentSize{Buffer: buf, Size: count})
		says := func(n uint64) {
			f.send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: fix.queue}, Buffer: count,
				Data: nativeOrder.AppendUint64(nil, n)})
		}
		for _, c := range []struct{ says, offset, size, brings uint64 }{
			{700_001, 0, size, 700_001}, {1000, 0, size, 1000}, {0, 0, size, 0}, {1 << 60, 0, size, size},
			{size, 0, size, size},
			{500_000, 400_000, 300_000, 100_000}, {300_000, 400_000, 300_000, 0}, {700, 0, 4096, 700}, {0, 0, 4096, 0},
			{4096, 100, 3000, 3000},
		} {
			says(c.says)
			got, told, n := f.trimmed(fix, buf, clwire.Shape{Offset: c.offset, Size: c.size}, c.brings)
			if uint64(len(got)) != c.brings || !bytes.Equal(got, want[c.offset:][:len(got)]) ||
				told != (c.brings < c.size) || told && n != c.brings {
				t.Errorf("%+v: %d bytes, told %v of %d", c, len(got), told, n)
			}
		}
		says(10)
		f.send(&clwire.Release{ID: count})
		if got := f.fetch(fix, buf, clwire.Shape{Size: size}, size, false); !bytes.Equal(got, want) {
			t.Error("a size buffer that is gone still counts")
		}
	})
}

// TestPeerContent: a push sends what the size buffer counts once its turn has come, from the content's origin on, and
// the receiving side's client hears how much that was; however the command ends that wrote the number, the push goes
// on.
func TestPeerContent(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		w := newLinked(t, inPlace, inPlace)
		const size = 300_000
		data, before := make([]byte, size), bytes.Repeat([]byte{0xAA}, size)
		rand.New(rand.NewSource(3)).Read(data)
		src, count := w.buffer(0, size, data), w.buffer(0, 64, nil)
		for name, c := range map[string]struct{ says, origin, off, size, comes uint64 }{
			"most":                {290_000, 0, 0, size, 290_000},
			"few":                 {1000, 0, 0, size, 1000},
			"none":                {0, 0, 0, size, 0},
			"all":                 {size, 0, 0, size, size},
			"more than there are": {^uint64(0), 8, 0, size, size},
			"of a part":           {150_000, 0, 100_000, 100_000, 50_000},
			"before a part":       {90_000, 0, 100_000, 100_000, 0},
			"from an origin":      {100, 200_000, 199_000, 10_000, 1100},
		} {
			dst := w.buffer(1, size, before)
			op, gate, written := w.next(), w.next(), w.next()
			w.far[0].send(&clwire.UserEvent{ID: gate})
			w.far[0].send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: w.fix[0].queue, Event: written,
				Wait: []uint64{gate}}, Buffer: count, Data: nativeOrder.AppendUint64(nil, c.says)})
			w.far[1].send(clwire.NewPeerPull(w.number, op, dst, c.off, c.size, nil))
			push := clwire.NewPeerPush(w.number, op, src, c.off, c.size, nil)
			push.Content = clwire.PeerContent{Size: count, Origin: c.origin, Wait: []uint64{written}}
			w.far[0].send(push)
			kick(w)
			w.far[0].send(&clwire.SetUserEvent{ID: gate})
			kick(w)
			if status := w.ended(1, op); status != 0 {
				t.Fatalf("%s: the push ended with %d", name, status)
			}
			n, told := w.far[1].lengths[op]
			if told != (c.comes < c.size) || told && n != c.comes {
				t.Errorf("%s: told %v of %d bytes", name, told, n)
			}
			want := append([]byte(nil), before...)
			copy(want[c.off:], data[c.off:c.off+c.comes])
			if !bytes.Equal(w.read(1, dst, size), want) {
				t.Errorf("%s: other bytes came", name)
			}
		}
		op, gate, dst := w.next(), w.next(), w.buffer(1, size, before)
		w.far[0].send(&clwire.UserEvent{ID: gate})
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, 0, size, nil))
		push := clwire.NewPeerPush(w.number, op, src, 0, size, nil)
		push.Content = clwire.PeerContent{Size: count, Origin: 5000, Wait: []uint64{gate}}
		w.far[0].send(push)
		w.far[0].send(&clwire.SetUserEvent{ID: gate, Status: -5})
		kick(w)
		if status := w.ended(1, op); status != 0 {
			t.Errorf("a number that failed ends the push with %d", status)
		}
	})
}

// trimmed reads a range of which so many bytes should come, and returns what came and what a BulkLength said of it.
func (f *far) trimmed(fix *fixture, buf uint64, shape clwire.Shape, brings uint64) (got []byte, told bool, n uint64) {
	f.t.Helper()
	op := f.id()
	inline := shape.Size <= clwire.InlineBytes
	f.send(&clwire.BulkRead{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Inline: inline, Buffer: buf, Shape: shape})
	f.link.Kick()
	f.until("the length, or the end", func() bool {
		n, told = f.lengths[op]
		_, done := f.done[op]
		return done || !inline && (told || brings == shape.Size)
	})
	if inline {
		return f.data[op], told, n
	}
	got = make([]byte, brings)
	for arrived := uint64(0); arrived < brings; {
		h, err := f.lane.Header()
		f.must(err)
		if h.Offset+uint64(h.Length) > brings {
			f.t.Fatalf("a chunk of %d bytes at %d of %d", h.Length, h.Offset, brings)
		}
		f.must(f.lane.Read(got[h.Offset:][:h.Length]))
		arrived += uint64(h.Length)
	}
	f.send(&clwire.HostDone{Op: op})
	return got, told, n
}
