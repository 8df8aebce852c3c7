package keeper

import (
	"container/list"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// A segment of the store that is copied a second time is pinned, whole, and stays mapped and pinned: until the daemon
// says that it goes, or others need the room. Pinning takes as long as two to five copies, so the first copy does
// without; after it a copy goes at the speed of the bus.

const (
	// pinFromBytes is the least copy for which its segment is pinned.
	pinFromBytes = 1 << 20
	// mostSeen bounds how many segments are remembered that were copied once.
	mostSeen = 1024
)

// hostMemory is the store's memory that this process knows.
type hostMemory struct {
	limit  uint64 // bytes that may be pinned
	bytes  uint64 // that are
	pinned map[clwire.HostMemory]*pinned
	order  list.List // of *pinned, the one longest without a copy first
	seen   []clwire.HostMemory
	refuse map[bool]string // why memory that can be written, or not, is not pinned any more
	told   bool            // the daemon knows what is pinned
}

// pinned is one segment.
type pinned struct {
	key    clwire.HostMemory
	memory []byte
	pin    *cuda.Pinned
	write  bool // it can be written
	copies int  // that have it now
	doomed bool // it goes when none has it any more
	at     *list.Element
}

// mostPinned bounds how many segments are pinned.
const mostPinned = 256

func keyOf(fd int) (clwire.HostMemory, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return clwire.HostMemory{}, fmt.Errorf("host memory: %w", err)
	}
	return clwire.HostMemory{Device: uint64(st.Dev), Inode: st.Ino}, nil
}

// open gives a copy host memory: pinned, or mapped for it alone, with the reason.
func (h *hostMemory) open(p *place, c *cuda.Context, at clwire.KeeperPlace, fd int, n uint64, write bool) (why string,
	err error) {
	key, err := keyOf(fd)
	if err != nil {
		return "", err
	}
	x := h.pinned[key]
	if x != nil && (uint64(len(x.memory)) != at.Bytes || write && !x.write) {
		if x.copies == 0 { // it was pinned for reading, and is now to be filled
			err = h.drop(x)
		}
		x, why = nil, "the segment is pinned for reading"
	} else if x == nil {
		x, why, err = h.add(c, key, fd, at.Bytes, n, write)
	}
	if err != nil {
		return "", err
	}
	if x != nil {
		x.copies++
		h.order.MoveToBack(x.at)
		p.host, p.pinned = x.memory, x
		p.release = func() error { return h.release(x) }
		return "", nil
	}
	memory, err := mapHost(fd, at.Bytes, write)
	if err != nil {
		return "", err
	}
	p.host, p.release = memory, func() error { return unix.Munmap(memory) }
	return why, nil
}

// add pins a segment, or says why not.
func (h *hostMemory) add(c *cuda.Context, key clwire.HostMemory, fd int, bytes, n uint64, write bool) (x *pinned,
	why string, err error) {
	switch {
	case h.limit == 0:
		return nil, "no host memory may be pinned (--pin-memory none)", nil
	case bytes > h.limit:
		return nil, fmt.Sprintf("the segment has %d bytes, and %d may be pinned (--pin-memory)", bytes, h.limit), nil
	case h.refuse[write] != "":
		return nil, h.refuse[write], nil
	case n < pinFromBytes:
		return nil, fmt.Sprintf("copies of less than %d bytes pin nothing", pinFromBytes), nil
	case !h.second(key):
		return nil, "a segment is pinned when it is copied a second time", nil
	}
	for h.bytes+bytes > h.limit || len(h.pinned) >= mostPinned {
		gone, err := h.makeWay()
		if err != nil {
			return nil, "", err
		}
		if !gone {
			return nil, fmt.Sprintf("%d bytes are pinned for other copies, of at most %d (--pin-memory)", h.bytes, h.limit), nil
		}
	}
	memory, err := mapHost(fd, bytes, write)
	if err != nil {
		return nil, "", err
	}
	pin, err := c.Pin(memory, !write)
	var drivers *cuda.Error
	if err != nil {
		err = errors.Join(err, unix.Munmap(memory))
		if !errors.As(err, &drivers) || drivers.Lasts() {
			return nil, "", err
		}
		if h.refuse == nil {
			h.refuse = map[bool]string{}
		}
		h.refuse[write] = "the driver does not pin the store's memory: " + err.Error()
		return nil, h.refuse[write], nil
	}
	x = &pinned{key: key, memory: memory, pin: pin, write: write}
	x.at = h.order.PushBack(x)
	h.pinned[key] = x
	h.bytes += bytes
	h.told = false
	return x, "", nil
}

// release ends a copy's use of a segment.
func (h *hostMemory) release(x *pinned) error {
	if x.copies--; x.copies == 0 && x.doomed {
		return h.drop(x)
	}
	return nil
}

// second reports whether a segment was copied before, and remembers it.
func (h *hostMemory) second(key clwire.HostMemory) bool {
	for i, k := range h.seen {
		if k == key {
			h.seen = append(h.seen[:i], h.seen[i+1:]...)
			return true
		}
	}
	if len(h.seen) == mostSeen {
		h.seen = h.seen[1:]
	}
	h.seen = append(h.seen, key)
	return false
}

// makeWay unpins what was longest without a copy; false: everything has one.
func (h *hostMemory) makeWay() (bool, error) {
	for at := h.order.Front(); at != nil; at = at.Next() {
		if x := at.Value.(*pinned); x.copies == 0 {
			return true, h.drop(x)
		}
	}
	return false, nil
}

// drop unpins and unmaps a segment that no copy has.
func (h *hostMemory) drop(x *pinned) error {
	h.told = false
	delete(h.pinned, x.key)
	h.order.Remove(x.at)
	h.bytes -= uint64(len(x.memory))
	return errors.Join(x.pin.Unpin(), unix.Munmap(x.memory))
}

// forget unpins and unmaps segments, those that are copied at their copies' end; those that are not pinned are no
// error.
func (h *hostMemory) forget(keys []clwire.HostMemory) (err error) {
	for _, key := range keys {
		switch x := h.pinned[key]; {
		case x == nil:
		case x.copies > 0:
			x.doomed = true
		default:
			err = errors.Join(err, h.drop(x))
		}
	}
	return err
}

// list names what is pinned; nil: the daemon knows it.
func (h *hostMemory) list() *clwire.KeeperPins {
	if h.told {
		return nil
	}
	h.told = true
	keys := []clwire.HostMemory{}
	for at := h.order.Front(); at != nil; at = at.Next() {
		keys = append(keys, at.Value.(*pinned).key)
	}
	return &clwire.KeeperPins{Memory: keys}
}
