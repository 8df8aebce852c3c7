package session

import (
	"fmt"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// BenchmarkCreateRelease makes buffers that live at once, and releases them: per buffer, without what C adds.
func BenchmarkCreateRelease(b *testing.B) {
	for _, inPlace := range []bool{true, false} {
		b.Run(fmt.Sprintf("buffers=100000/inplace=%v", inPlace), func(b *testing.B) {
			r := newRig(b, inPlace)
			all := make([]uintptr, 100_000)
			for range b.N {
				for i := range all {
					var status api.Status
					if all[i], status = r.d.CreateBuffer(r.ctx, nil, cl.MEM_READ_WRITE, 256,
						api.HostPtr{}); status != cl.SUCCESS {
						b.Fatal(status)
					}
				}
				for _, h := range all {
					if status := r.d.ReleaseMemObject(h); status != cl.SUCCESS {
						b.Fatal(status)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(all)), "ns/buffer")
			r.ok(r.d.ReleaseContext(r.ctx))
		})
	}
}

// BenchmarkTransfer is what a transfer costs this side: a blocking one of a buffer in place that waits for nothing, and
// one of either kind that is sent, by a worker that does nothing but answer.
func BenchmarkTransfer(b *testing.B) {
	for _, inPlace := range []bool{true, false} {
		for _, size := range []uint64{64, 4 << 10} {
			b.Run(fmt.Sprintf("op=write/blocking=true/size=%d/inplace=%v", size, inPlace), func(b *testing.B) {
				r := newRig(b, inPlace)
				q, buffer, in := r.queue(0), r.buffer(size), make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					if _, status := r.d.EnqueueWrite(q, buffer, true, 0, size, ptr(in),
						api.Waits{}); status != cl.SUCCESS {
						b.Fatal(status)
					}
				}
			})
			b.Run(fmt.Sprintf("op=write/blocking=false/size=%d/inplace=%v", size, inPlace), func(b *testing.B) {
				r := newRig(b, inPlace)
				q, buffer, in := r.queue(0), r.buffer(size), make([]byte, size)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, status := r.d.EnqueueWrite(q, buffer, false, 0, size, ptr(in),
						api.Waits{}); status != cl.SUCCESS {
						b.Fatal(status)
					}
					if i%64 == 63 {
						r.d.Finish(q)
					}
				}
			})
		}
	}
}

// BenchmarkEnqueue is what a command costs that nobody waits for, with a clFinish for each hundred: time and
// allocations of both ends, of which the worker does nothing but take the commands.
func BenchmarkEnqueue(b *testing.B) {
	const batch, size = 100, 1 << 20
	var k uintptr
	for _, far := range []bool{false, true} {
		for name, op := range map[string]func(r *rig, q, buffer uintptr){
			"fill": func(r *rig, q, buffer uintptr) {
				r.handle(r.d.EnqueueFill(q, buffer, ptr([]byte{1}), 1, 0, 1, api.Waits{}))
			},
			"fill+event": func(r *rig, q, buffer uintptr) {
				r.ok(r.d.ReleaseEvent(r.handle(r.d.EnqueueFill(q, buffer, ptr([]byte{1}), 1, 0, 1,
					api.Waits{Want: true}))))
			},
			"write": func(r *rig, q, buffer uintptr) {
				r.handle(r.d.EnqueueWrite(q, buffer, false, 0, 64, ptr(make([]byte, 64)), api.Waits{}))
			},
			"map+unmap": func(r *rig, q, buffer uintptr) {
				at, _, status := r.d.EnqueueMap(q, buffer, true, cl.MAP_READ|cl.MAP_WRITE, 0, size, api.Waits{})
				r.ok(status)
				r.handle(r.d.EnqueueUnmap(q, buffer, at, api.Waits{}))
			},
			"launch": func(r *rig, q, _ uintptr) { r.launch(q, k, api.Waits{}) },
			"setarg": func(r *rig, _, buffer uintptr) { r.setMem(k, 0, buffer) },
			"writebulk": func(r *rig, q, buffer uintptr) {
				r.handle(r.d.EnqueueWrite(q, buffer, false, 0, size, ptr(benchBytes[:]), api.Waits{}))
			},
		} {
			if far && name == "map+unmap" {
				continue // the bytes of a map out of place are another benchmark's: Transfer
			}
			b.Run(fmt.Sprintf("op=%s/far=%v", name, far), func(b *testing.B) {
				var r *rig
				if far {
					r, _ = newFarRig(b, false)
				} else {
					r = newRig(b, true)
				}
				q, buffer := r.queue(0), r.buffer(size)
				k = r.kernel("kernel inc global")
				r.setMem(k, 0, r.buffer(64))
				r.launch(q, k, api.Waits{}) // the first one is asked about
				b.ReportAllocs()
				for i := range b.N {
					if op(r, q, buffer); i%batch == batch-1 {
						r.ok(r.d.Finish(q))
					}
				}
				r.ok(r.d.Finish(q))
			})
		}
	}
}

var benchBytes [1 << 20]byte
