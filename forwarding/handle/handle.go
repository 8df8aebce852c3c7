// Package handle keeps the addresses that an OpenCL program holds as cl_context, cl_mem and so on.
//
// A handle is the address of a 16-byte slot {dispatch table, generation} in an address range that is reserved for
// one kind of object. The range answers "is this ours, of this kind, alive?" by bounds and one load, without
// touching what the program passed: a released, foreign or made-up handle is told from a live one, never followed.
// Slots stay mapped for the life of the process, so that an ICD loader which reads the dispatch table of a released
// handle still reaches this driver (which then answers CL_INVALID_…).
//
// Trust: the program may scribble over slots; nothing is ever read back from them.
// Locks: each Table has one, for Put and Remove only; Get takes none. No other lock is taken under it.
package handle

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	slotBytes  = 16
	chunkSlots = 4096 // slots committed at a time: one 64 KiB step of address space
	// quarantineSlots is how many released slots must stand between a release and the reuse of its address, so that
	// a program that uses a handle after its release meets an error and not another object.
	quarantineSlots = 4096
)

// ErrExhausted is returned by Put when every slot of the range is alive or in quarantine and no memory is left.
var ErrExhausted = errors.New("handle: the range is exhausted")

// Table maps handles of one kind to objects of type T. The zero Table is not usable: see New.
type Table[T any] struct {
	base     uintptr // immutable: first slot
	slots    uint32  // immutable: capacity
	dispatch uintptr // immutable: written to the first word of each slot
	chunks   []atomic.Pointer[[chunkSlots]atomic.Pointer[T]]

	mu     sync.Mutex
	used   uint32   // slots handed out at least once; guarded by mu
	freed  []uint32 // ring of released slots, oldest first; guarded by mu
	head   int      // guarded by mu
	queued int      // guarded by mu
	gens   uint64   // generations given; guarded by mu
}

// New reserves address space for the given number of slots (rounded up to a chunk). dispatch is the address of the
// ICD dispatch table, which every slot starts with.
func New[T any](dispatch uintptr, slots uint32) (*Table[T], error) {
	n := (slots + chunkSlots - 1) / chunkSlots
	if n == 0 {
		n = 1
	}
	base, err := reserve(uintptr(n) * chunkSlots * slotBytes)
	if err != nil {
		return nil, fmt.Errorf("handle: reserve %d slots: %w", slots, err)
	}
	return &Table[T]{
		base: base, slots: n * chunkSlots, dispatch: dispatch,
		chunks: make([]atomic.Pointer[[chunkSlots]atomic.Pointer[T]], n),
	}, nil
}

// Get returns the object behind h, or nil when h is no live handle of this table. It takes no lock and never
// reads through h.
func (t *Table[T]) Get(h uintptr) *T {
	off := h - t.base
	if off >= uintptr(t.slots)*slotBytes || off%slotBytes != 0 {
		return nil
	}
	slot := off / slotBytes
	chunk := t.chunks[slot/chunkSlots].Load()
	if chunk == nil {
		return nil
	}
	return chunk[slot%chunkSlots].Load()
}

// Contains says whether h lies in this table's range, alive or not.
func (t *Table[T]) Contains(h uintptr) bool { return h-t.base < uintptr(t.slots)*slotBytes }

// Put gives v a handle. The caller calls Remove when the object's last reference is gone.
func (t *Table[T]) Put(v *T) (uintptr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, err := t.takeLocked()
	if err != nil {
		return 0, err
	}
	t.gens++
	h := t.base + uintptr(slot)*slotBytes
	writeSlot(h, t.dispatch, t.gens)
	t.chunks[slot/chunkSlots].Load()[slot%chunkSlots].Store(v)
	return h, nil
}

// Remove ends h: false when it was not alive.
func (t *Table[T]) Remove(h uintptr) bool {
	if t.Get(h) == nil {
		return false
	}
	slot := uint32((h - t.base) / slotBytes)
	if t.chunks[slot/chunkSlots].Load()[slot%chunkSlots].Swap(nil) == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pushLocked(slot)
	return true
}

func (t *Table[T]) takeLocked() (uint32, error) {
	if t.queued > quarantineSlots || (t.queued > 0 && t.used == t.slots) {
		return t.popLocked(), nil
	}
	if t.used == t.slots {
		return 0, fmt.Errorf("%w: %d live objects", ErrExhausted, t.slots)
	}
	if t.used%chunkSlots == 0 {
		if err := commit(t.base+uintptr(t.used)*slotBytes, chunkSlots*slotBytes); err != nil {
			if t.queued > 0 {
				return t.popLocked(), nil
			}
			return 0, fmt.Errorf("%w: commit: %v", ErrExhausted, err)
		}
		t.chunks[t.used/chunkSlots].Store(new([chunkSlots]atomic.Pointer[T]))
	}
	t.used++
	return t.used - 1, nil
}

func (t *Table[T]) popLocked() uint32 {
	slot := t.freed[t.head]
	t.head = (t.head + 1) % len(t.freed)
	t.queued--
	return slot
}

func (t *Table[T]) pushLocked(slot uint32) {
	if t.queued == len(t.freed) {
		grown := make([]uint32, max(64, 2*len(t.freed)))
		for i := range t.queued {
			grown[i] = t.freed[(t.head+i)%len(t.freed)]
		}
		t.freed, t.head = grown, 0
	}
	t.freed[(t.head+t.queued)%len(t.freed)] = slot
	t.queued++
}
