// Package handoff is what one store hands to the next, which may be in another process: the memory as descriptors, and
// a Catalog of the objects in it, of references and streams. Store.Handoff fills a State; store.New takes it over.
//
// The previous store is trusted to mean well, and not to be right: New checks that the descriptors fit the catalog, and
// the store checks the rest. No goroutines, no locks: a State has one owner.
package handoff

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// State is what Store.Handoff returns. It owns descriptors: its holder must Close it or give it to New, which takes
// them over, also when it fails.
type State struct {
	Catalog Catalog
	Memory  []*segment.Memory // in the order of Catalog.Segments
	Devices []int             // descriptors of GPU memory, in the order of Catalog.DeviceMemory
	Watch   *segment.Watch    // reports when Catalog.Remnants are free; nil: nothing does
}

// Catalog is a State without the memory. It travels between releases as encoding/gob: fields may be added.
type Catalog struct {
	NextSegment uint64 // last segment number given
	Segments    []Segment
	Objects     []byte      // a table: table.go
	Undead      []object.ID // deleted ones whose files could not be removed
	Streams     []Stream
	Conns       []Conn
	Remnants    []Remnant

	// Those in the memory of GPUs are apart: a release that does not know them goes on without. Those of GPUs that are
	// in host memory or on disk stand among the others, which they are for such a release.
	DeviceObjects []byte // a table as Objects
	DeviceMemory  []Device
}

// Device is the GPU memory that holds the object at the same place in Catalog.DeviceObjects.
type Device struct {
	Device object.Device
	Bytes  uint64 // of the allocation
	Kind   object.Kind
	Twin   uint64 // bytes of host memory that are charged beside: kind OpenCL
}

// Remnant is memory that the store gave up and that some process still has mapped.
type Remnant struct {
	Tenant string
	Bytes  uint64
	Number int32 // under which the State's watch reports that it is free
	Since  time.Time
	// users of other tenants that were shown it, and those tenants, where it is not known yet who pays
	Foreign map[uint32]string
}

// Segment is one segment. Its descriptor stands at the same place in State.Descriptors.
type Segment struct {
	ID     uint64
	Bytes  uint64
	Tenant string
	Alone  bool // holds one object and never another one
	// users of other tenants that were shown it, and those tenants
	Foreign map[uint32]string
}

// Stream is a stream with what waits in it.
type Stream struct {
	Tenant, Name            string
	Created                 time.Time
	Limit                   int
	LimitBytes              uint64
	DropOldest, Keep, Ended bool
	Broken                  string // why no more frames come; "" = they do
	Pushed, Popped, Dropped uint64
	Frames                  []Frame
}

// Frame is a frame that waits, with the stream's reference.
type Frame struct {
	ID     object.ID
	Number uint64
}

// Conn is what one connection held.
type Conn struct {
	Tenant, Name string
	PID          int    // 0: not a process of this machine
	Refs         []byte // a table: table.go
	Unacked      []Popped
}

// Popped is a frame that a connection popped, and that its peer may not have. The reference is one of the connection's.
type Popped struct {
	Stream string
	Frame
}

// New makes a State of what came from another process. fds are the segments' descriptors; it takes
// them over, also when it fails.
func New(catalog Catalog, fds []int) (*State, error) {
	h := &State{Catalog: catalog}
	var fault error
	for i, fd := range fds {
		var want uint64
		if i < len(catalog.Segments) {
			want = catalog.Segments[i].Bytes
		}
		m, err := segment.Adopt(segment.Linux{}, fd, want) // closes fd where it cannot
		if err != nil {
			fault = err
			continue
		}
		h.Memory = append(h.Memory, m)
	}
	if fault == nil && len(fds) != len(catalog.Segments) {
		fault = fmt.Errorf("%w: %d descriptors for %d segments", object.ErrProtocol, len(fds), len(catalog.Segments))
	}
	if fault != nil {
		h.Close()
		return nil, fault
	}
	return h, nil
}

// Descriptors returns the segments' descriptors in the catalog's order. The State keeps owning them.
func (h *State) Descriptors() []int {
	fds := make([]int, len(h.Memory))
	for i, m := range h.Memory {
		fds[i] = m.FD()
	}
	return fds
}

// WatchDescriptor returns the descriptor of the watch that reports when Catalog.Remnants are free; −1: there is none.
// The State keeps owning it.
func (h *State) WatchDescriptor() int {
	if h.Watch == nil {
		return -1
	}
	return h.Watch.FD()
}

// TakeWatch gives a State that came from another process the descriptor that WatchDescriptor returned there. It
// takes it over, also when it fails. Without it the remnants are forgotten.
func (h *State) TakeWatch(fd int) error {
	w, err := segment.AdoptWatch(fd)
	if err == nil {
		h.Watch = w
	}
	return err
}

// DeviceDescriptors returns the descriptors of GPU memory in the catalog's order. The State keeps owning them.
func (h *State) DeviceDescriptors() []int { return h.Devices }

// TakeDevices gives a State that came from another process the descriptors that DeviceDescriptors returned
// there. It takes them over, also when it fails. Without them the objects are forgotten.
func (h *State) TakeDevices(fds []int) error {
	h.Devices = append(h.Devices, fds...)
	if len(h.Devices) != len(h.Catalog.DeviceMemory) {
		return fmt.Errorf("%w: %d descriptors for %d objects in the memory of GPUs", object.ErrProtocol, len(h.Devices),
			len(h.Catalog.DeviceMemory))
	}
	return nil
}

// Close closes the descriptors. The receiver may be nil.
func (h *State) Close() {
	if h == nil {
		return
	}
	h.Watch.Close()
	h.Watch = nil
	for _, m := range h.Memory {
		m.Close()
	}
	for _, fd := range h.Devices {
		unix.Close(fd)
	}
	h.Memory, h.Devices = nil, nil
}
