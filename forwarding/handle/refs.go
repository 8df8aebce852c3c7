package handle

import "sync/atomic"

// Refs counts the references to an object as a program sees them. Children hold one of their parent, as in native
// drivers. Releases without a reference are errors, never a count below zero. The zero Refs is gone: see Set. Safe for
// concurrent use.
type Refs struct{ n atomic.Int32 }

// Set begins the count of a new object.
func (r *Refs) Set(n int32) { r.n.Store(n) }

// Count is what the program is told.
func (r *Refs) Count() uint32 { return uint32(max(r.n.Load(), 0)) }

// Alive reports whether a reference is left.
func (r *Refs) Alive() bool { return r.n.Load() > 0 }

// Retain reports false when the object is already gone.
func (r *Refs) Retain() bool {
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

// Release reports ok false when there was nothing to release, and last when nothing is left.
func (r *Refs) Release() (ok, last bool) {
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
