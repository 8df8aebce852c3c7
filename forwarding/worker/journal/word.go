//go:build !amd64 || race

package journal

import "sync/atomic"

// word is set by one thread at a time and read by any.
type word struct{ v atomic.Uint64 }

func (w *word) set(v uint64) { w.v.Store(v) }

func (w *word) get() uint64 { return w.v.Load() }
