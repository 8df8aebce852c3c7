// Package mapped keeps the maps of a buffer or an image, and the memory that they show where the device's own is not
// mapped here: the shadow.
//
// Trust: sizes were checked by the caller. Locks: Maps.mu is a leaf.
package mapped

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/transfer"
)

// Map is one map that is not yet unmapped.
type Map struct {
	Address uintptr
	Off, N  uint64 // bytes of the buffer
	Flags   uint64
	Image   *Image // nil: of a buffer
}

// Image is the part of a map that images have: what is shown (x of the region in bytes), and how it lies from Base on.
type Image struct {
	Origin, Region [3]uint64
	Base           api.HostPtr
	Layout         transfer.Box
}

// Memory is memory that maps showed, and that the caller gives back.
type Memory struct {
	bytes []byte
	place *memory.Place // where bytes are shared memory
	own   func()        // what ends memory that was given (ShowGiven)
}

// Free gives the memory back: what is shared by means of shared.
func (m Memory) Free(shared func(*memory.Place)) {
	switch {
	case m.place != nil:
		shared(m.place)
	case m.own != nil:
		m.own()
	case m.bytes != nil:
		_ = unix.Munmap(m.bytes) // ours, and mapped: it cannot fail
	}
}

// Maps are the maps of one object. The zero value has none.
type Maps struct {
	use      atomic.Int32 // fresh, used or releasedFresh
	mu       sync.Mutex
	list     []Map
	shadow   Memory
	pins     int  // bulk operations on the shadow
	released bool // the program has let the object go: the shadow goes with the last pin
}

// Whether a lock was ever needed.
const (
	fresh int32 = iota
	used
	releasedFresh // ReleaseUnused
)

// lock is for whoever adds something.
func (s *Maps) lock() {
	s.mu.Lock()
	s.released = s.released || !s.use.CompareAndSwap(fresh, used) && s.use.Load() == releasedFresh
}

// Add notes a map.
func (s *Maps) Add(m Map) {
	s.lock()
	defer s.mu.Unlock()
	s.list = append(s.list, m)
}

// Take removes the latest map at an address.
func (s *Maps) Take(address uintptr) (m Map, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.list) - 1; i >= 0; i-- {
		if s.list[i].Address == address {
			m = s.list[i]
			s.list = slices.Delete(s.list, i, i+1)
			return m, true
		}
	}
	return Map{}, false
}

// Count is how many maps there are.
func (s *Maps) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// Writable says whether the program has a pointer by which it may write at any time.
func (s *Maps) Writable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.list, func(m Map) bool { return m.Flags&^cl.MAP_READ != 0 })
}

// Shadow is the shadow, of size bytes: memory of this process's alone, unless Show was before.
func (s *Maps) Shadow(size uint64) ([]byte, api.Status) {
	s.lock()
	defer s.mu.Unlock()
	if s.shadow.bytes == nil {
		shadow, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, cl.MAP_FAILURE
		}
		s.shadow.bytes = shadow
	}
	return s.shadow.bytes, cl.SUCCESS
}

// Shown is the shadow, nil where there is none.
func (s *Maps) Shown() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shadow.bytes
}

// Show makes shared memory the shadow, of size bytes. false: another thread was first, or the object is released.
func (s *Maps) Show(p *memory.Place, size uint64) bool {
	s.lock()
	defer s.mu.Unlock()
	if s.shadow.bytes != nil || s.released {
		return false
	}
	s.shadow = Memory{bytes: p.Bytes(size), place: p}
	return true
}

// ShowGiven makes memory the shadow of an object that nobody else has yet. end gives it back, when the object's maps
// are over.
func (s *Maps) ShowGiven(b []byte, end func()) {
	s.lock()
	defer s.mu.Unlock()
	s.shadow = Memory{bytes: b, own: end}
}

// Forget drops all maps: the program has said that it will not look at them any more.
func (s *Maps) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
}

// Segment is the shared segment under the shadow, nil where there is none.
func (s *Maps) Segment() *node.Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shadow.place == nil {
		return nil
	}
	return s.shadow.place.Segment
}

// Pin keeps the shadow until Unpin, also after Release: a write of it may be under way.
func (s *Maps) Pin() {
	s.lock()
	defer s.mu.Unlock()
	s.pins++
}

// Unpin undoes Pin. The caller gives back what goes with the last pin.
func (s *Maps) Unpin() Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins--
	return s.leftLocked()
}

// ReleaseUnused is Release for an object of which nothing was ever mapped or shown, as most: then there is nothing to
// give back. false: Release is still to be called.
func (s *Maps) ReleaseUnused() bool { return s.use.CompareAndSwap(fresh, releasedFresh) }

// Release says that the program has let the object go. The caller gives back what nobody uses. What is mapped stays: a
// program that releases an object while it is mapped may still look at it.
func (s *Maps) Release() Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released = true; len(s.list) > 0 {
		s.shadow = Memory{}
	}
	return s.leftLocked()
}

// leftLocked takes the shadow, if nobody will use it any more.
func (s *Maps) leftLocked() (left Memory) {
	if s.released && s.pins == 0 {
		left, s.shadow = s.shadow, Memory{}
	}
	return left
}
