package handoff

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// memory makes a segment of this many pages as the previous store did, and gives its descriptor away.
func memory(t *testing.T, pages uint64) (fd int, s Segment) {
	t.Helper()
	m, err := segment.Create(segment.Linux{}, pages*segment.PageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Fix(); err != nil {
		t.Fatal(err)
	}
	if fd, err = m.Dup(); err != nil {
		t.Fatal(err)
	}
	return fd, Segment{Bytes: m.Bytes()}
}

// isOpen reports whether a descriptor is still that file.
func isOpen(fd int, inode uint64) bool { return inode != 0 && inodeOf(fd) == inode }

// inodeOf is 0 where the descriptor is closed.
func inodeOf(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

func TestStateOwnsItsDescriptors(t *testing.T) {
	first, one := memory(t, 1)
	second, two := memory(t, 2)
	device, _ := memory(t, 1)
	h, err := New(Catalog{Segments: []Segment{one, two}, DeviceMemory: make([]Device, 1)}, []int{first, second})
	if err != nil {
		t.Fatal(err)
	}
	if fd := h.WatchDescriptor(); fd != -1 {
		t.Errorf("a watch that nobody gave has the descriptor %d", fd)
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.TakeWatch(watch), h.TakeDevices([]int{device})); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.Descriptors(), []int{first, second}) || h.WatchDescriptor() != watch ||
		!slices.Equal(h.DeviceDescriptors(), []int{device}) {
		t.Errorf("segments %v, watch %d, GPU memory %v; want %v, %d, %v", h.Descriptors(), h.WatchDescriptor(),
			h.DeviceDescriptors(), []int{first, second}, watch, device)
	}
	owned := map[int]uint64{}
	for _, fd := range []int{first, second, device} {
		owned[fd] = inodeOf(fd)
	}
	h.Close()
	h.Close()
	(*State)(nil).Close()
	for fd, inode := range owned {
		if isOpen(fd, inode) {
			t.Errorf("descriptor %d is open after Close", fd)
		}
	}
}

// What does not fit the catalog is refused, and no descriptor stays open.
func TestStateThatDoesNotFit(t *testing.T) {
	for name, spoil := range map[string]func(*Catalog, *[]int){
		"a segment of another size": func(c *Catalog, _ *[]int) { c.Segments[1].Bytes++ },
		"a descriptor too many":     func(c *Catalog, _ *[]int) { c.Segments = c.Segments[:1] },
		"a descriptor too few":      func(c *Catalog, _ *[]int) { c.Segments = append(c.Segments, c.Segments[0]) },
		"a file that is no segment": func(_ *Catalog, fds *[]int) {
			fd, err := unix.MemfdCreate("not sealed", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close((*fds)[1])
			(*fds)[1] = fd
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, one := memory(t, 1)
			second, two := memory(t, 2)
			c, fds := Catalog{Segments: []Segment{one, two}}, []int{first, second}
			spoil(&c, &fds)
			owned := []uint64{inodeOf(fds[0]), inodeOf(fds[1])}
			if h, err := New(c, fds); !errors.Is(err, object.ErrProtocol) {
				t.Errorf("%v, %v", h, err)
			}
			for i, fd := range fds {
				if isOpen(fd, owned[i]) {
					t.Errorf("descriptor %d is left open", i)
				}
			}
		})
	}
}

func TestWhatGoesWithoutTheState(t *testing.T) {
	device, _ := memory(t, 1)
	h, err := New(Catalog{DeviceMemory: make([]Device, 2)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inode := inodeOf(device)
	if err := h.TakeDevices([]int{device}); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("one descriptor for two objects: %v", err)
	}
	if err := h.TakeWatch(-1); err == nil || h.Watch != nil {
		t.Errorf("a watch of no descriptor: %v, %v", h.Watch, err)
	}
	if h.Close(); isOpen(device, inode) {
		t.Error("the descriptor that did not fit is left open")
	}
}
