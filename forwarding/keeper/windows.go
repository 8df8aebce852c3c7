package keeper

import (
	"errors"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// Between two GPUs a copy goes through memory of the keeper's own on the destination, its windows: the source pushes a
// part into one, while the destination copies the part before on from the other. Windows stay until their memory is
// asked for, so each source has them mapped once. To map the objects themselves for the other GPU can take the driver
// longer than the copy: from 512 MiB on 9 ms on two H200s, which copy 1 GiB in 2.7 (docs/PERFORMANCE.md).
const (
	windowCount     = 2
	mostWindowBytes = 32 << 20 // each part takes some 5 µs beside its copy
	windowShare     = 2048     // a window is this part of the GPU's memory, if that is less, and no less than a granule
)

// side is what one GPU has for such copies, as their source and as their destination. It is made at the first one and
// lasts as long as the keeper.
type side struct {
	queue       *cuda.Stream
	done        [windowCount]*cuda.Event // the last part that this GPU copied by way of each window
	windows     *cuda.Mapping            // what others push to; nil: nobody has, or their memory was asked for since
	windowBytes uint64
	pushes      map[*cuda.Context]bool // who can, by what the driver answered
}

// side gives a GPU's.
func (k *keeper) side(c *cuda.Context) (*side, error) {
	if s := k.sides[c]; s != nil {
		return s, nil
	}
	queue, err := c.Stream()
	if err != nil {
		return nil, err
	}
	s := &side{queue: queue, pushes: map[*cuda.Context]bool{}}
	for i := range s.done {
		if s.done[i], err = c.Event(); err != nil {
			for _, e := range s.done[:i] {
				err = errors.Join(err, e.Close())
			}
			return nil, errors.Join(err, queue.Close())
		}
	}
	k.sides[c] = s
	return s, nil
}

// errReach is why there is no way from one GPU to another but through host memory.
var errReach = errors.New("the driver says that the one GPU does not reach the other's memory")

// openWindows makes ready what a copy from one GPU to another needs that lasts. errReach: there is no such way.
func (k *keeper) openWindows(to, from *cuda.Context) error {
	if _, err := k.side(from); err != nil {
		return err
	}
	s, err := k.side(to)
	if err != nil {
		return err
	}
	can, known := s.pushes[from]
	if !known {
		if can, err = from.Reaches(to); err == nil && can {
			err = s.allow(to, from)
		}
		if err != nil {
			return err
		}
		s.pushes[from] = can
	}
	if !can {
		return errReach
	}
	return nil
}

// allow lets another GPU push to this one's windows, which it makes where there are none.
func (s *side) allow(own, from *cuda.Context) error {
	if s.windows != nil {
		return s.windows.Allow(from)
	}
	granule, err := own.Granularity()
	if err != nil {
		return err
	}
	s.windowBytes = min(mostWindowBytes, max(granule, own.Bytes()/windowShare&^(granule-1)))
	memory, err := own.Create(s.windowBytes * windowCount)
	if err != nil {
		return err
	}
	windows, err := memory.Map()
	err = errors.Join(err, memory.Release()) // a mapping keeps the memory by itself
	if err == nil {
		err = windows.Allow(from)
	}
	if err == nil {
		s.windows = windows
	} else if windows != nil {
		err = errors.Join(err, windows.Unmap())
	}
	return err
}

// withRoom runs f, which takes memory of a device. Where that is full it unmaps the device's windows, which nobody is
// charged for, and runs f again. A copy that goes on by way of them makes them anew, or takes another way.
// Precondition: nothing is under way.
func (k *keeper) withRoom(c *cuda.Context, f func() error) error {
	err, s := f(), k.sides[c]
	if err == nil || sortOf(err) != clwire.KeeperFull || s == nil || s.windows == nil {
		return err
	}
	windows := s.windows
	s.windows = nil
	clear(s.pushes)
	if fault := windows.Unmap(); fault != nil {
		return errors.Join(err, fault)
	}
	return f()
}

// push copies n bytes from one GPU to another by way of its windows. When it returns, nothing is under way, or the
// error lasts.
func (k *keeper) push(c *copying, to, from, n uint64) (err error) {
	source, destination := k.sides[c.from.context], k.sides[c.to.context]
	part := destination.windowBytes
	for at, i := uint64(0), 0; at < n && err == nil; at, i = at+part, i+1 {
		err = destination.through(i, source, c.to.device, to+at, c.from.device, from+at, min(part, n-at))
	}
	if fault := source.queue.Wait(); fault != nil {
		return errors.Join(err, fault) // the destination may wait for it for ever; this lasts
	}
	return errors.Join(err, destination.queue.Wait())
}

// through queues the i-th part of a push: into the window whose turn it is once that is empty, and on from there.
func (s *side) through(i int, source *side, to *cuda.Mapping, at uint64, from *cuda.Mapping, fromAt, n uint64) error {
	window := i % windowCount
	place := uint64(window) * s.windowBytes
	var err error
	if i >= windowCount {
		err = source.queue.Await(s.done[window])
	}
	if err == nil {
		err = s.windows.CopyLater(source.queue, place, from, fromAt, n)
	}
	if err == nil {
		err = source.queue.Record(source.done[window])
	}
	if err == nil {
		err = s.queue.Await(source.done[window])
	}
	if err == nil {
		err = to.CopyLater(s.queue, at, s.windows, place, n)
	}
	if err == nil {
		err = s.queue.Record(s.done[window])
	}
	return err
}
