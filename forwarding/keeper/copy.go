package keeper

import (
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// copying is a copy of which both places are mapped.
type copying struct {
	to, from place
	id       uint64
	places   [2]clwire.KeeperPlace // as the first step named them, without offsets: to's, from's
	pushes   bool                  // from one device to another by way of its windows
	why      string                // not pushes, or host memory is not pinned
}

// place is one side of a copy: memory of a device, or of the host.
type place struct {
	context *cuda.Context // nil: host memory
	device  *cuda.Mapping
	host    []byte
	pinned  *pinned // nil: host is this copy's own mapping
	release func() error
}

// copy does one step of a copy, of which the first brings the descriptors.
func (k *keeper) copy(m *clwire.KeeperCopy, files []int) (way clwire.KeeperWay, why string, err error) {
	c := k.copies[m.ID]
	switch {
	case len(files) == 0 && c == nil:
		return "", "", &fault{clwire.KeeperUnknown, fmt.Sprintf("copy %d is not known", m.ID)}
	case len(files) == 2 && c != nil:
		return "", "", fmt.Errorf("copy %d begins twice", m.ID)
	case c == nil:
		if c, err = k.begin(m, files[0], files[1]); err != nil {
			return "", "", err
		}
		k.copies[m.ID] = c
	}
	if c.places != placesOf(m) {
		err = fmt.Errorf("copy %d goes on between other places", m.ID)
	} else {
		way, err = k.step(c, m)
	}
	if err != nil || m.Last {
		delete(k.copies, m.ID)
		k.over = append(k.over, c)
	}
	return way, c.why, err
}

func placesOf(m *clwire.KeeperCopy) [2]clwire.KeeperPlace {
	to, from := m.To, m.From
	to.Offset, from.Offset = 0, 0
	return [2]clwire.KeeperPlace{to, from}
}

// end unmaps what a copy has mapped; one that is not known has nothing.
func (k *keeper) end(id uint64) error {
	c := k.copies[id]
	if c == nil {
		return nil
	}
	delete(k.copies, id)
	return c.free()
}

func (c *copying) free() error { return errors.Join(c.from.free(), c.to.free()) }

func (p *place) free() error {
	if p.release == nil {
		return nil
	}
	return p.release()
}

// begin maps both places.
func (k *keeper) begin(m *clwire.KeeperCopy, to, from int) (*copying, error) {
	c := &copying{id: m.ID, places: placesOf(m)}
	if m.To.Device == "" && m.From.Device == "" {
		return nil, errors.New("a copy between two places in host memory")
	}
	err := k.mapDevice(&c.to, m.To, to)
	if err == nil {
		err = k.mapDevice(&c.from, m.From, from)
	}
	if err == nil {
		err = k.between(c)
	}
	if err == nil && m.To.Device == "" {
		c.why, err = k.host.open(&c.to, c.from.context, m.To, to, m.Bytes, true)
	}
	if err == nil && m.From.Device == "" {
		c.why, err = k.host.open(&c.from, c.to.context, m.From, from, m.Bytes, false)
	}
	if err != nil {
		return nil, errors.Join(err, c.free())
	}
	return c, nil
}

// mapDevice maps a device's memory for that device; a place of the host is left as it is.
func (k *keeper) mapDevice(p *place, at clwire.KeeperPlace, fd int) error {
	if at.Device == "" {
		return nil
	}
	c, err := k.use(at.Device)
	if err != nil {
		return err
	}
	memory, err := c.Import(fd, at.Bytes)
	if err != nil {
		return err
	}
	v, err := memory.Map()
	if err = errors.Join(err, memory.Release()); err != nil { // a mapping keeps the memory by itself
		if v != nil {
			err = errors.Join(err, v.Unmap())
		}
		return err
	}
	p.context, p.device, p.release = c, v, v.Unmap
	return nil
}

// between says which way a copy between two devices goes: through host memory where there is no other, or no memory
// for another.
func (k *keeper) between(c *copying) error {
	if c.to.context == nil || c.from.context == nil || c.to.context == c.from.context {
		return nil
	}
	err := k.openWindows(c.to.context, c.from.context)
	c.pushes = err == nil
	var drivers *cuda.Error
	if errors.Is(err, errReach) || errors.As(err, &drivers) && !errors.Is(err, cuda.ErrLasts) {
		c.why, err = err.Error(), nil
	}
	return err
}

// step copies the bytes of one step.
func (k *keeper) step(c *copying, m *clwire.KeeperCopy) (clwire.KeeperWay, error) {
	to, from, n := m.To.Offset, m.From.Offset, m.Bytes
	switch {
	case c.to.context == nil:
		host, err := within(c.to.host, to, n)
		if err != nil || n == 0 {
			return "", err
		}
		if c.to.pinned != nil {
			return clwire.KeeperPinned, c.from.device.Read(host, from)
		}
		return k.staged(c.from.context, n, func() error { return c.from.device.Read(host, from) },
			func(l *lane) error { return l.read(host, c.from.device, from) })
	case c.from.context == nil:
		host, err := within(c.from.host, from, n)
		if err != nil || n == 0 {
			return "", err
		}
		if c.from.pinned != nil {
			return clwire.KeeperPinned, c.to.device.Write(to, host)
		}
		return k.staged(c.to.context, n, func() error { return c.to.device.Write(to, host) },
			func(l *lane) error { return l.write(c.to.device, to, host) })
	case c.to.context == c.from.context:
		return clwire.KeeperOnDevice, c.to.device.CopyFrom(to, c.from.device, from, n)
	case c.pushes:
		if err := k.between(c); err != nil { // the windows were unmapped, perhaps (withRoom)
			return "", err
		}
	}
	if c.pushes {
		return clwire.KeeperPeer, k.push(c, to, from, n)
	}
	return k.acrossHost(c, to, from, n)
}

// acrossHost copies between two devices that do not reach each other: through memory of the keeper's own, pinned where
// the driver pins any.
func (k *keeper) acrossHost(c *copying, to, from, n uint64) (clwire.KeeperWay, error) {
	way, between := clwire.KeeperStaged, []byte(nil)
	err := k.staging.open(c.to.context)
	var drivers *cuda.Error
	switch {
	case err == nil:
		between = k.staging.slots[0].bytes
	case errors.As(err, &drivers) && drivers.Lasts():
		return "", err
	default:
		way, between = clwire.KeeperPlain, make([]byte, min(n, slotBytes))
	}
	for at := uint64(0); at < n; {
		part := between[:min(n-at, uint64(len(between)))]
		err := c.from.device.Read(part, from+at)
		if err == nil {
			err = c.to.device.Write(to+at, part)
		}
		if err != nil {
			return "", err
		}
		at += uint64(len(part))
	}
	return way, nil
}

// within gives a part of host memory that is mapped.
func within(memory []byte, offset, n uint64) ([]byte, error) {
	if all := uint64(len(memory)); offset > all || n > all-offset {
		return nil, fmt.Errorf("bytes [%d, +%d) of %d of host memory", offset, n, all)
	}
	return memory[offset : offset+n], nil
}

// mapHost maps a memfd of some bytes.
func mapHost(fd int, bytes uint64, write bool) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("host memory: %w", err)
	}
	if bytes == 0 || uint64(max(st.Size, 0)) < bytes {
		return nil, fmt.Errorf("a memfd of %d bytes, which is said to have %d", st.Size, bytes)
	}
	access := unix.PROT_READ
	if write {
		access |= unix.PROT_WRITE
	}
	memory, err := unix.Mmap(fd, 0, int(bytes), access, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of host memory: %w", bytes, err)
	}
	return memory, nil
}

// guarded runs f, which touches host memory: pages that cannot be had are an error and not this process's end.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = fmt.Errorf("host memory could not be touched: %v", r)
		}
	}()
	return f()
}
