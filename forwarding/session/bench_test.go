package session

import (
	"fmt"
	"testing"
)

// BenchmarkCreateRelease makes buffers that live at once, and releases them: per buffer, without what C adds.
func BenchmarkCreateRelease(b *testing.B) {
	for _, inPlace := range []bool{true, false} {
		b.Run(fmt.Sprintf("buffers=100000/inplace=%v", inPlace), func(b *testing.B) {
			r := newRig(b, inPlace)
			all := make([]uintptr, 100_000)
			for range b.N {
				for i := range all {
					var status Status
					if all[i], status = r.d.CreateBuffer(r.ctx, nil, memReadWrite, 256, HostPtr{}); status != Success {
						b.Fatal(status)
					}
				}
				for _, h := range all {
					if status := r.d.ReleaseMemObject(h); status != Success {
						b.Fatal(status)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(all)), "ns/buffer")
			r.ok(r.d.ReleaseContext(r.ctx))
		})
	}
}
