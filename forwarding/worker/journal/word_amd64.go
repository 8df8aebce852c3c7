//go:build !race

package journal

import "sync/atomic"

// word is set by one thread at a time and read by any. On this processor what one thread stores others see in its
// order, and a store that need not be seen at once costs a tenth of one that must (sync/atomic's).
type word struct{ v uint64 }

func (w *word) set(v uint64) { w.v = v }

func (w *word) get() uint64 { return atomic.LoadUint64(&w.v) }
