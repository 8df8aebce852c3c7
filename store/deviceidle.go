package store

import (
	"container/list"
	"slices"
	"time"

	"tendril/store/object"
)

// Memory of GPUs that no object lies in any more is kept for the next object of its maker: an allocation costs the
// driver some 2 ms, and this nothing. Whose memory may be kept, for whom and for how long:
//
//   - only the connection that made an object may get its memory again, as it is; what lies in it is that connection's
//     own. Others get memory that the keeper zeroed.
//   - only where no other connection was ever given a descriptor, and the keeper failed at no copy from or to it: the
//     kernel does not tell who has memory of a driver mapped, or which device still writes to it. A maker that keeps a
//     mapping after its Release sees its own next object, as with malloc.
//   - it stays charged, as memory and as a descriptor; it goes when its connection ends, when room for something else
//     is short, when the tenant keeps more than Options.IdleDeviceBytes on that GPU, and after idleDeviceTime.

// idleDeviceTime is how long memory of a GPU is kept that no object lies in. Others want it, too, who are not asked: a
// program of the same GPU that Tendril does not know.
const idleDeviceTime = time.Minute

// idleMemory is memory of a GPU that no object lies in. Guarded by Store.mu.
type idleMemory struct {
	deviceMemory
	since time.Time
	all   *list.Element // of Store.idleDevices, the one longest idle first
	own   *list.Element // of what its tenant has on that GPU, likewise
}

// idleOn is what one tenant keeps on one GPU. Guarded by Store.mu.
type idleOn struct {
	bytes uint64
	list  list.List // of *idleMemory, the one longest idle first
}

// fit is what memory must be to be an object's: of a device, and of so many bytes.
type fit struct {
	device object.Device
	bytes  uint64
}

// keepIdle keeps an object's memory for its maker; false: it may not, and nothing is done. mu is held.
func (s *Store) keepIdle(t *tenant, m *deviceMemory) bool {
	c, most := m.maker, s.opts.IdleDeviceBytes
	if c == nil || c.closed || s.closed || m.bytes > most || m.fd < 0 {
		return false
	}
	on := t.idleDevices[m.device]
	for on != nil && on.bytes+m.bytes > most {
		s.dropIdleMemory(on.list.Front().Value.(*idleMemory))
		on = t.idleDevices[m.device]
	}
	if on == nil {
		on = &idleOn{}
		if t.idleDevices == nil {
			t.idleDevices = make(map[object.Device]*idleOn)
		}
		t.idleDevices[m.device] = on
	}
	x := &idleMemory{deviceMemory: *m, since: time.Now()}
	on.bytes += m.bytes
	x.own, x.all = on.list.PushBack(x), s.idleDevices.PushBack(x)
	if c.idleDevices == nil {
		c.idleDevices = make(map[fit][]*idleMemory)
	}
	f := fit{m.device, m.bytes}
	c.idleDevices[f] = append(c.idleDevices[f], x)
	if s.idleDevices.Len() == 1 {
		s.wakeJanitor()
	}
	return true
}

// staysAtOnce reports whether an object's memory would be kept, and nothing of its tenant's would go for it. mu is
// held.
func (m *deviceMemory) staysAtOnce(t *tenant) bool {
	if m.fd < 0 {
		return true // it is gone
	}
	if m.maker == nil || m.maker.closed || m.maker.s.closed {
		return false
	}
	kept := uint64(0)
	if on := t.idleDevices[m.device]; on != nil {
		kept = on.bytes
	}
	return kept+m.bytes <= m.maker.s.opts.IdleDeviceBytes
}

// takeIdle gives memory that c made and keeps, the one last used; nil: none fits. It stays charged. mu is held.
func (c *Conn) takeIdle(device object.Device, bytes uint64) *deviceMemory {
	of := c.idleDevices[fit{device, bytes}]
	if len(of) == 0 {
		return nil
	}
	x := of[len(of)-1]
	c.s.unlistIdle(x)
	m := x.deviceMemory
	return &m
}

// unlistIdle takes memory out of what is kept. mu is held.
func (s *Store) unlistIdle(x *idleMemory) {
	c, f := x.maker, fit{x.device, x.bytes}
	of := c.idleDevices[f] // those of one size, of one connection: as many as Options.IdleDeviceBytes has room for
	of = slices.Delete(of, slices.Index(of, x), slices.Index(of, x)+1)
	if c.idleDevices[f] = of; len(of) == 0 {
		delete(c.idleDevices, f)
	}
	on := c.tenant.idleDevices[x.device]
	on.list.Remove(x.own)
	if on.bytes -= x.bytes; on.list.Len() == 0 {
		delete(c.tenant.idleDevices, x.device)
	}
	s.idleDevices.Remove(x.all)
}

// dropIdleMemory gives kept memory back. mu is held.
func (s *Store) dropIdleMemory(x *idleMemory) {
	s.unlistIdle(x)
	s.doomedFDs = append(s.doomedFDs, x.fd)
	s.deviceRoom = true
	s.unchargeDevice(x.maker.tenant, x.device, x.bytes, 0)
	s.closeOne(x.maker.tenant)
}

// dropIdleOf gives back what a connection keeps. mu is held.
func (c *Conn) dropIdleOf() {
	for _, of := range c.idleDevices {
		for _, x := range slices.Clone(of) {
			c.s.dropIdleMemory(x)
		}
	}
}

// dropIdleOfTenant gives back the memory that a tenant keeps longest on a GPU; false: it keeps none. mu is held.
func (s *Store) dropIdleOfTenant(t *tenant, device object.Device) bool {
	on := t.idleDevices[device]
	if on == nil {
		return false
	}
	s.dropIdleMemory(on.list.Front().Value.(*idleMemory))
	return true
}

// dropIdleFile gives back the memory of a GPU that is kept longest, by a tenant of all that it has, else by anyone:
// each takes a descriptor. mu is held.
func (s *Store) dropIdleFile(t *tenant) bool {
	for device := range t.idleDevices {
		return s.dropIdleOfTenant(t, device)
	}
	if s.opened < s.opts.Segments { // the tenant's own limit, and it keeps nothing
		return false
	}
	if first := s.idleDevices.Front(); first != nil {
		s.dropIdleMemory(first.Value.(*idleMemory))
		return true
	}
	return false
}

// dropIdleOn gives back all that is kept on a GPU, whoever keeps it, and says whether that was anything: the device has
// no memory left. mu is held, and let go meanwhile.
func (s *Store) dropIdleOn(device object.Device) (any bool) {
	steps := 0
	for at := s.idleDevices.Front(); at != nil; {
		x := at.Value.(*idleMemory)
		at = at.Next()
		if x.device != device {
			continue
		}
		s.dropIdleMemory(x)
		any = true
		if steps++; steps%lockSteps == 0 {
			s.pause(nil)
			at = s.idleDevices.Front()
		}
	}
	return any
}

// dropIdleSince gives back what has been kept for long, and says in what time there is more to do. mu is held.
func (s *Store) dropIdleSince(now time.Time) (wait time.Duration) {
	for at := s.idleDevices.Front(); at != nil; at = s.idleDevices.Front() {
		x := at.Value.(*idleMemory)
		if left := x.since.Add(idleDeviceTime).Sub(now); left > 0 {
			return left
		}
		s.dropIdleMemory(x)
	}
	return keepAtMost
}
