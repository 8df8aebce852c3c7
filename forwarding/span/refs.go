package span

import "sync/atomic"

// refs counts references as a program sees them, children's among them. A release without a reference is an error.
type refs struct{ n atomic.Int32 }

func (r *refs) count() uint32 { return uint32(max(r.n.Load(), 0)) }

func (r *refs) alive() bool { return r.n.Load() > 0 }

func (r *refs) retain() bool {
	for {
		n := r.n.Load()
		if n <= 0 {
			return false
		}
		if r.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release reports ok false when there was nothing to release, and last when nothing is left.
func (r *refs) release() (ok, last bool) {
	for {
		n := r.n.Load()
		if n <= 0 {
			return false, false
		}
		if r.n.CompareAndSwap(n, n-1) {
			return true, n == 1
		}
	}
}
