//go:build cgo

package worker

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The bytes of a write that came in its record stay until the driver has read them. Those of a queue in order lie one
// behind the other in blocks of its own: when a write that begins a block has ended, those of the blocks before it
// have. So a write needs no event of its own, which costs a driver a microsecond, and no memory of its own.
const (
	blockBytes = 256 << 10
	blockAlign = 64
	inBlock    = 16 << 10 // larger writes have memory of their own
	keptBlocks = 8        // of a session, that nobody uses
	fullBlocks = 4        // of a queue: if no write can be asked about them, writes have memory of their own
)

// block is memory outside Go's heap.
type block []byte

// blocks are those that nobody uses.
type blocks struct {
	mu   sync.Mutex // leaf
	free []block
}

// take gives a block; nil: there is no memory.
func (b *blocks) take() block {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.free); n > 0 {
		last := b.free[n-1]
		b.free = b.free[:n-1]
		return last
	}
	mem, err := unix.Mmap(-1, 0, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	return mem
}

func (b *blocks) give(used ...block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range used {
		if len(b.free) < keptBlocks {
			b.free = append(b.free, one)
		} else {
			_ = unix.Munmap(one)
		}
	}
}

// writeBytes are a queue's blocks.
type writeBytes struct {
	mu   sync.Mutex // before blocks.mu
	now  block      // nil: none yet
	at   int        // of now: what is used
	full []block    // their writes have not been seen to end
}

// keep copies the bytes of a write; nil: there is no room. ended, if not nil, is to be called once the write has ended,
// with how. waits: it may fail before those before it have ended.
func (w *writeBytes) keep(from *blocks, data []byte, waits bool) (mem []byte, ended func(int32)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now == nil || w.at+len(data) > blockBytes {
		if len(w.full) == fullBlocks {
			return nil, nil
		}
		fresh := from.take()
		if fresh == nil {
			return nil, nil
		}
		if w.now != nil {
			w.full = append(w.full, w.now)
		}
		w.now, w.at = fresh, 0
	}
	mem = w.now[w.at : w.at+len(data)]
	copy(mem, data)
	w.at += (len(data) + blockAlign - 1) &^ (blockAlign - 1)
	if len(w.full) == 0 || waits {
		return mem, nil
	}
	before := w.full
	w.full = nil
	return mem, func(status int32) {
		if status == 0 {
			from.give(before...)
			return
		}
		w.mu.Lock() // it may never have begun: the next one tells
		defer w.mu.Unlock()
		w.full = append(w.full, before...)
	}
}

// letGo gives the blocks back. No command reads them any more.
func (w *writeBytes) letGo(to *blocks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		to.give(w.now)
	}
	to.give(w.full...)
	w.now, w.full = nil, nil
}

// keepBytes copies the bytes of a write in a queue to where the driver may read them until ended has been called: with
// nil, as long as the queue does.
func (s *session) keepBytes(queue uint64, data []byte, waits bool) (mem []byte, ended func(int32)) {
	if q := s.queues[queue]; q != nil && q.writes != nil && len(data) <= inBlock {
		if mem, ended := q.writes.keep(&s.blocks, data, waits); mem != nil {
			return mem, ended
		}
	}
	mem, pinner := append([]byte(nil), data...), new(runtime.Pinner)
	pinner.Pin(&mem[0])
	return mem, func(int32) { pinner.Unpin() }
}
