package store

import (
	"container/list"
	"errors"
	"fmt"

	"tendril/store/object"
	"tendril/store/segment"
)

// Objects of GPUs that nobody uses make way where memory of their GPU is short: the one longest without use is copied
// into host memory, in a segment of its own, where it is one of the cold objects and may go to disk (evict.go). The
// next GetDevice answers ErrAway, and BringBack brings it into the memory of its GPU again.
//
// A program that has such memory mapped holds a reference as long, so nothing leaves under it. One that released it and
// has it mapped still keeps the memory, which then is not free, and reads on what is there: sealed bytes do not change.
//
// On the way, either way, entry.moving is set, and the object has both memories. Until it has arrived only the one that
// it comes from counts: deviceMemory.fd ≥ 0 says that it is the GPU's. Who gets it meanwhile has it there, and it
// stays.
//
// One of an OpenCL device needs no such copy: its twin has the same bytes in host memory, and becomes that segment. So
// it makes way where host memory is full, too, and is then written to disk like others (victims in evict.go).
//
// Where its GPU is gone, or that one's driver, BringBack brings it into host memory, and fails then. GetAway gives a
// reference to what is there, and CopyAway reads it, without any driver.

// coldOn are the objects of one GPU's memory that nobody uses. Guarded by Store.mu.
type coldOn struct {
	bytes uint64    // of their allocations
	list  list.List // of *entry, the one longest without use first
}

// coldDevices is that by GPU; made with the first. Guarded by Store.mu.
type coldDevices map[object.Device]*coldOn

func (m *coldDevices) add(e *entry) *list.Element {
	on := (*m)[e.gpu.device]
	if on == nil {
		on = &coldOn{}
		if *m == nil {
			*m = make(coldDevices)
		}
		(*m)[e.gpu.device] = on
	}
	on.bytes += e.gpu.bytes
	return on.list.PushBack(e)
}

func (m coldDevices) remove(e *entry, at *list.Element) {
	on := m[e.gpu.device]
	on.list.Remove(at)
	if on.bytes -= e.gpu.bytes; on.list.Len() == 0 {
		delete(m, e.gpu.device)
	}
}

// rankDevice puts an object in the memory of a GPU at the end of the cold ones, or takes it out. mu is held.
func (s *Store) rankDevice(e *entry) {
	cold := e.mayLeaveDevice() && e.moving == nil
	switch {
	case !cold:
		s.unrankDevice(e)
	case e.gpu.ranked[0] == nil:
		e.gpu.ranked = [2]*list.Element{s.coldDevices.add(e), e.tenant.coldDevices.add(e)}
		s.deviceRoom = true
	}
}

// unrankDevice takes it out. mu is held.
func (s *Store) unrankDevice(e *entry) {
	if at := e.gpu.ranked; at[0] != nil {
		s.coldDevices.remove(e, at[0])
		e.tenant.coldDevices.remove(e, at[1])
		e.gpu.ranked = [2]*list.Element{}
	}
}

// mayLeaveDevice reports whether an object is in the memory of a GPU and nobody uses it. mu is held.
func (e *entry) mayLeaveDevice() bool {
	return e.gpu.fd >= 0 && e.state == object.Sealed && e.refs == 0 && (e.held || e.memberOf > 0) && !e.pinned &&
		!e.sealing
}

// offDevice reports whether an object of a GPU is in host memory or on disk. mu is held.
func (e *entry) offDevice() bool {
	return e.gpu != nil && e.gpu.fd < 0 && (e.state == object.Sealed || e.state == object.Spilled)
}

// isStranded reports whether an object of a GPU is in host memory, and stays there: nobody brings it anywhere. mu is
// held.
func (e *entry) isStranded() bool {
	return e.offDevice() && e.state == object.Sealed && e.moving == nil
}

// device is the GPU that an object is of; zero: of none.
func (e *entry) device() object.Device {
	if e.gpu == nil {
		return object.Device{}
	}
	return e.gpu.device
}

// awayFromDevice is ErrAway for such an object.
func (e *entry) awayFromDevice() error {
	return fmt.Errorf("%w: object %s is not in the memory of its GPU %s now", ErrAway, e.id, e.gpu.device)
}

// ofDevice makes an object that is not in the table yet one of a GPU, out of whose memory it is; zero: of none.
func (s *Store) ofDevice(e *entry, device object.Device) {
	if !device.IsZero() {
		e.gpu = &deviceMemory{device: device, fd: -1}
	}
}

// countAway counts an object that left its GPU's memory (1), or came back or is gone (−1). mu is held.
func (s *Store) countAway(e *entry, n int) {
	if e.tenant.devices == nil {
		e.tenant.devices = make(deviceCharges)
	}
	for _, m := range []deviceCharges{s.devices, e.tenant.devices} {
		x := m[e.gpu.device]
		x.away += n
		x.awayBytes += uint64(n) * e.size // −1 wraps around, and takes off
		m.set(e.gpu.device, x)
	}
}

// makeRoomOn has objects leave a GPU, a tenant's or (nil) anybody's, until so many bytes are free, for c. An error that
// the caller has already says what for; made: some left, and the caller may try again. why, where something kept them:
// c's own tenant's objects, or the driver. It does nothing where that would not be enough. mu is held, and let go
// meanwhile.
func (s *Store) makeRoomOn(c *Conn, device object.Device, of *tenant, missing uint64) (made bool, why error) {
	cold := func() *coldOn {
		if of != nil {
			return of.coldDevices[device]
		}
		return s.coldDevices[device]
	}
	if on := cold(); on == nil || on.bytes < missing {
		return false, nil
	}
	freed, kept := uint64(0), (*entry)(nil) // kept: the first that stayed; behind it stand those that were not tried
	for tries := 0; tries < maxVictims && freed < max(missing, 1); {
		on := cold()
		if on == nil || on.list.Front().Value == kept || c.stopped.Load() || s.closed {
			break
		}
		e := on.list.Front().Value.(*entry)
		n, err := s.leaveDevice(c, e)
		freed += n
		if err == nil {
			continue
		}
		if tries++; kept == nil {
			kept = e
		}
		if !object.IsShort(err) && !errors.Is(err, object.ErrLimit) {
			return freed > 0, err
		}
		if e.tenant == c.tenant { // what another tenant has is not c's to know
			why = err
		}
	}
	return freed > 0, why
}

// LeaveOnDevice gives what the tenants' objects have of a GPU's memory, in bytes. Where that is more than most, what is
// kept there for new ones goes, and what nobody uses makes way first, for a tenant, as far as that is enough.
func (s *Store) LeaveOnDevice(tenant string, device object.Device, most uint64) uint64 {
	s.mu.Lock()
	s.dropEndedIPC()
	has := s.devices[device].bytes
	s.unlock()
	if has <= most {
		return has
	}
	c, err := s.Connect(Owner{Tenant: tenant, Name: "room for a session"})
	if err != nil {
		return has
	}
	defer c.Close()
	s.mu.Lock()
	defer s.unlock()
	s.dropIdleOn(device)
	if has = s.devices[device].bytes; has > most && !s.closed {
		_, _ = s.makeRoomOn(c, device, nil, has-most) // why not is whoever asked to say: it has the sum
	}
	return s.devices[device].bytes
}

// notToHost says why memory of a GPU is short, and why what could leave it cannot; cannot may be nil.
func notToHost(short, cannot error) error {
	if cannot == nil {
		return short
	}
	return fmt.Errorf("%w (and to host memory: %w)", short, cannot)
}

// leaveDevice copies an object that nobody uses into host memory, charged to its tenant, and gives up the GPU's, of so
// many bytes; 0: somebody got it meanwhile, or err says why not. c is who needs the room. mu is held, and let go
// meanwhile.
func (s *Store) leaveDevice(c *Conn, e *entry) (freed uint64, err error) {
	s.transfers.Add(1)
	defer s.transfers.Done()
	bytes := e.gpu.bytes
	if s.adoptTwin(e) {
		return bytes, nil
	}
	e.moving = make(chan struct{})
	s.reconsider(e)
	_, err = s.restorerOf(e.tenant).placeWhole(e, nil, true)
	if err == nil && e.mayLeaveDevice() {
		if err = s.copyOwn(c, e, e.gpu, false); err != nil {
			e.gpu.maker = nil // a device may still be at it
		}
	}
	if err == nil && e.mayLeaveDevice() {
		err = s.sealMemory(e, false)
	}
	close(e.moving)
	e.moving = nil
	if err == nil && e.mayLeaveDevice() && !s.closed {
		s.giveUpDevice(e)
		s.countAway(e, 1)
		s.reconsider(e)
		return bytes, nil
	}
	s.detach(e)
	room := s.deviceRoom
	s.collect(e) // it may have been deleted
	if e.gpu.fd < 0 {
		return bytes, nil
	}
	s.deviceRoom = room // it stays: who waits for room, and had it leave, does not try again at once
	return 0, err
}

// adoptTwin makes an object's twin its segment in host memory, and gives up the device's memory. What is charged of
// host memory stays as it is. It does so where the object may come back: for that the segment and the next twin have to
// fit side by side. mu is held.
func (s *Store) adoptTwin(e *entry) bool {
	m, most := e.gpu, s.opts.CapacityBytes
	if quota := s.mostBytes(e.tenant); quota > 0 {
		most = min(most, quota)
	}
	if m.kind != object.OpenCL || m.twin != m.bytes || m.twin > most/2 {
		return false
	}
	fd, err := m.forKeeper()
	if err != nil {
		return false
	}
	mem, err := segment.Adopt(s.opts.System, fd, m.twin)
	if err != nil {
		return false
	}
	if mem.SealForReaders() != nil {
		mem.Close()
		return false
	}
	s.nextID++
	g := &segmentState{id: s.nextID, bytes: m.twin, tenant: e.tenant, mem: mem, once: true, sealed: true,
		seen: make(map[*Conn]struct{})}
	s.segments[g.id] = g
	s.opened++ // beside the one that giveUpDevice takes off
	e.tenant.opened++
	m.twin = 0 // g has the charge
	s.giveUpDevice(e)
	s.attach(e, g, 0)
	s.countAway(e, 1)
	s.reconsider(e)
	return true
}

// adoptTwins does that with objects of OpenCL devices that nobody uses, a tenant's or (nil) anybody's, until so many
// bytes of host memory may go to disk. It does nothing where that would not be enough. It reports whether it did
// anything. mu is held.
func (s *Store) adoptTwins(of *tenant, missing uint64) bool {
	cold, all := s.coldDevices, uint64(0)
	if of != nil {
		cold = of.coldDevices
	}
	var lists []*coldOn
	for _, on := range cold {
		if on.list.Front().Value.(*entry).gpu.kind == object.OpenCL {
			lists, all = append(lists, on), all+on.bytes
		}
	}
	if all < missing {
		return false
	}
	adopted, tries := uint64(0), 0
	for _, on := range lists {
		for at := on.list.Front(); at != nil && adopted < missing && tries < maxVictims; tries++ {
			e := at.Value.(*entry)
			at = at.Next()
			if bytes := e.gpu.bytes; s.roomOnDisk(e) == nil && s.adoptTwin(e) {
				adopted += bytes
			}
		}
	}
	return adopted > 0
}

// giveUpDevice gives back the GPU's memory of an object whose bytes are elsewhere. mu is held.
func (s *Store) giveUpDevice(e *entry) {
	e.gpu.maker = nil // it is to be free, and not kept
	s.freeDevice(e)
}

// enterDevice brings an object that is in host memory back into its GPU's, for c. It may be gone afterwards, which is
// no error. mu is held, and let go meanwhile.
func (s *Store) enterDevice(c *Conn, e *entry) error {
	if err := e.isDamaged(); err != nil {
		return err
	}
	s.transfers.Add(1)
	defer s.transfers.Done()
	e.moving = make(chan struct{})
	s.reconsider(e)
	m, err := s.newDevice(c, e.gpu.device, e.size)
	if err == nil && e.state == object.Sealed {
		err = s.copyOwn(c, e, m, true)
	}
	if err == nil {
		s.awaitFile(e) // as long as one is being written it cannot be removed
	}
	if err == nil && s.closed {
		err = errConnClosed
	}
	close(e.moving)
	e.moving = nil
	if err != nil || e.state != object.Sealed {
		if m != nil {
			s.dropTwin(e.tenant, m)
			s.doomedFDs = append(s.doomedFDs, m.fd)
			s.deviceRoom = true
			s.unchargeDevice(e.tenant, m.device, m.bytes, 0)
			s.closeOne(e.tenant)
		}
		if s.collect(e); e.state == object.Deleted {
			return nil
		}
		return err
	}
	s.countAway(e, -1)
	m.maker = nil
	s.detach(e)
	s.setDevice(e, m)
	s.countDevice(e)
	e.sums, e.fault = nil, nil // who has the GPU's memory can write it
	s.dropFile(e)
	s.reconsider(e)
	return nil
}

// copyOwn copies an object between its host memory and memory of its GPU; in: into that. mu is held, and let go
// meanwhile.
func (s *Store) copyOwn(c *Conn, e *entry, m *deviceMemory, in bool) error {
	device := Place{Device: m.device, Kind: m.kind, Bytes: m.bytes}
	host := Place{Bytes: e.seg.bytes, Offset: e.off}
	var err, fault error
	device.FD, err = m.forKeeper()
	host.FD, fault = e.seg.mem.Dup()
	if err = errors.Join(err, fault); err == nil {
		to, from := host, device
		if in {
			to, from = device, host
		}
		s.unlock()
		err = s.opts.Devices.Copy(c.asker(), to, from, e.size)
		s.mu.Lock()
	}
	for _, fd := range []int{device.FD, host.FD} {
		if fd >= 0 {
			s.doomedFDs = append(s.doomedFDs, fd)
		}
	}
	return err
}
