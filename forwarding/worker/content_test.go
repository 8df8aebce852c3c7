//go:build cgo

package worker

import (
	"bytes"
	"math/rand"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// TestContentSize: a read brings what the size buffer says when its turn has come, which is what a command before it in the
// queue wrote there.
func TestContentSize(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		f, fix := farFixture(t, inPlace, 0)
		const size = 1 << 20
		buf, count := f.id(), f.id()
		f.send(&clwire.CreateBuffer{ID: buf, Context: fix.context, Flags: opencl.MemReadWrite, Size: size})
		f.send(&clwire.CreateBuffer{ID: count, Context: fix.context, Flags: opencl.MemReadWrite, Size: 64})
		want := make([]byte, size)
		rand.New(rand.NewSource(3)).Read(want)
		op := f.id()
		f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: fix.queue}, Op: op, Buffer: buf, Shape: clwire.Shape{Size: size}})
		f.chunks(op, want, clwire.MaxChunk, false)
		f.send(&clwire.ContentSize{Buffer: buf, Size: count})
		says := func(n uint64) {
			f.send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: fix.queue}, Buffer: count, Data: nativeOrder.AppendUint64(nil, n)})
		}
		for _, c := range []struct{ says, offset, size, brings uint64 }{
			{700_001, 0, size, 700_001}, {1000, 0, size, 1000}, {0, 0, size, 0}, {1 << 60, 0, size, size}, {size, 0, size, size},
			{500_000, 400_000, 300_000, 100_000}, {300_000, 400_000, 300_000, 0}, {700, 0, 4096, 700}, {0, 0, 4096, 0}, {4096, 100, 3000, 3000},
		} {
			says(c.says)
			got, told, n := f.trimmed(fix, buf, clwire.Shape{Offset: c.offset, Size: c.size}, c.brings)
			if uint64(len(got)) != c.brings || !bytes.Equal(got, want[c.offset:][:len(got)]) || told != (c.brings < c.size) || told && n != c.brings {
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
