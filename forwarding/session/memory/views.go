package memory

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
)

// Views are ranges of the program's addresses under which it sees shared memory that a device's driver has pinned: the
// device can copy from and to them itself. The zero value has none.
type Views struct {
	mu   sync.Mutex             // of those who change the list; leaf
	list atomic.Pointer[[]view] // by address; never changed, but replaced
}

type view struct {
	from, to uintptr
	place    *Place
}

// Add notes that the program sees the first size bytes of a place, until Remove.
func (v *Views) Add(p *Place, size uint64) {
	from := api.HostBytes(p.Bytes(size)).Address()
	v.change(func(list []view) []view {
		at, _ := slices.BinarySearchFunc(list, from, view.compare)
		return slices.Insert(list, at, view{from, from + uintptr(size), p})
	})
}

// Remove takes a place out.
func (v *Views) Remove(p *Place) {
	v.change(func(list []view) []view {
		return slices.DeleteFunc(list, func(x view) bool { return x.place == p })
	})
}

// Find returns the place that a range of addresses lies in, and where in the place's segment the range begins. nil:
// not all of it lies in one place.
func (v *Views) Find(at uintptr, size uint64) (p *Place, offset uint64) {
	list := v.list.Load()
	if list == nil {
		return nil, 0
	}
	i, found := slices.BinarySearchFunc(*list, at, view.compare)
	if !found {
		i--
	}
	if i < 0 {
		return nil, 0
	}
	x := (*list)[i]
	if inside := uint64(at - x.from); at < x.to && size <= uint64(x.to-x.from)-inside {
		return x.place, x.place.Offset + inside
	}
	return nil, 0
}

func (x view) compare(at uintptr) int {
	switch {
	case x.from < at:
		return -1
	case x.from > at:
		return 1
	}
	return 0
}

func (v *Views) change(f func([]view) []view) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []view
	if old := v.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = f(list)
	v.list.Store(&list)
}
