package segment

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// Every alignment of both sides and lengths about the thresholds; the bytes
// around the copy stay as they were.
func TestCopyMatchesTheBuiltin(t *testing.T) {
	const guard = 128
	r := rand.New(rand.NewPCG(3, 4))
	src := make([]byte, splitBytes*2+4096)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	got := make([]byte, len(src)+2*guard)
	blank := bytes.Repeat([]byte{0xA5}, len(got))
	for _, n := range []int{0, 1, 63, 64, 4097, streamBytes - 1, streamBytes, streamBytes + 65,
		2*chunkPart - 1, 3*chunkPart + 1, 4*chunkPart - 3, splitBytes - 1,
		splitBytes, splitBytes + 12345, splitBytes * 2} {
		for range max(1, 4-n/streamBytes) {
			from, to := r.IntN(100), guard+r.IntN(100)
			for _, f := range []func(d, s []byte) int{Copy, CopyChunk} {
				copy(got, blank)
				if c := f(got[to:to+n], src[from:]); c != n {
					t.Fatalf("copied %d of %d", c, n)
				}
				if !bytes.Equal(got[to:to+n], src[from:from+n]) {
					t.Fatalf("n=%d from=%d to=%d: bytes differ", n, from, to)
				}
				if !bytes.Equal(got[:to], blank[:to]) || !bytes.Equal(got[to+n:], blank[to+n:]) {
					t.Fatalf("n=%d from=%d to=%d: wrote outside", n, from, to)
				}
			}
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20, 512 << 20} {
		src, dst := make([]byte, n), make([]byte, n)
		for i := 0; i < n; i += 4096 {
			src[i], dst[i] = 1, 2
		}
		for name, f := range map[string]func(d, s []byte) int{"builtin": func(d, s []byte) int { return copy(d, s) },
			"stream": Copy, "chunk": CopyChunk} {
			b.Run(fmt.Sprintf("size=%dKiB/path=%s", n>>10, name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f(dst, src)
				}
			})
		}
	}
}
