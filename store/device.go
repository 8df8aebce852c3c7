package store

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/handoff"
	"tendril/store/object"
)

// Objects in the memory of GPUs. The store has a descriptor of each one's allocation, which keeps the memory whoever
// ends, and loads no driver: Options.Devices makes allocations and copies. Whoever gets such an object gets a
// descriptor of its own; the hardware lets everyone write who has one, so such an object is for its own tenant alone.
// It is not in the index, and goes with the daemon, unless another one takes over. One that nobody uses may leave its
// GPU for host memory, and that for the disk, when memory is short; the next get brings it back (deviceaway.go).
//
// Memory of an OpenCL device cannot be had by a descriptor. What the store has of it names it, and holds the same
// bytes in host memory, its twin, so that nothing is lost where the keeper of such memory ends. No client is given
// it: such an object is filled and read by copies. The twin is charged as host memory is.
//
// An allocation is charged to its tenant and its GPU until the object has no references any more, whatever processes
// keep of it then: the kernel does not tell of a driver's memory. Some is kept for its maker's next object, and stays
// charged (deviceidle.go).

func (c *Conn) asker() Asker { return Asker{c.tenant.name, c.isStopped} }

// deviceMemory is where an object in the memory of a GPU lies.
type deviceMemory struct {
	device object.Device // immutable
	kind   object.Kind   // immutable; CUDA or OpenCL. Host: not known yet, of one that never was here
	bytes  uint64        // immutable; of the allocation, and charged
	twin   uint64        // bytes of host memory that are charged beside; kind OpenCL. Guarded by Store.mu
	fd     int           // −1: given up, or its bytes are elsewhere. Guarded by Store.mu
	// the only connection that was given a descriptor. nil: others were, or may have it in use; guarded by Store.mu
	maker *Conn
	// places in Store.coldDevices and tenant.coldDevices; nil: in use. Guarded by Store.mu
	ranked [2]*list.Element
}

// deviceCharge is what one tenant, or all, have on one GPU.
type deviceCharge struct {
	bytes     uint64
	objects   int
	away      int    // objects of that GPU whose bytes are in host memory, or on disk
	awayBytes uint64 // their sizes
}

// deviceCharges is that by GPU. Guarded by Store.mu.
type deviceCharges map[object.Device]deviceCharge

func (m deviceCharges) add(d object.Device, bytes uint64, objects int) {
	x := m[d]
	x.bytes, x.objects = x.bytes+bytes, x.objects+objects
	m.set(d, x)
}

func (m deviceCharges) sub(d object.Device, bytes uint64, objects int) {
	x := m[d]
	x.bytes, x.objects = x.bytes-bytes, x.objects-objects
	m.set(d, x)
}

func (m deviceCharges) set(d object.Device, x deviceCharge) {
	if x == (deviceCharge{}) {
		delete(m, d)
	} else {
		m[d] = x
	}
}

// deviceGranule is of what an allocation's size is a multiple on every GPU seen so far: what is charged beforehand.
const deviceGranule = 2 << 20

// roundDevice gives the size of an allocation for an object; a size near 2^64 is the driver's to refuse.
func roundDevice(size uint64) uint64 { return max((size+deviceGranule-1)&^(deviceGranule-1), size) }

// DeviceHandle is an object in the memory of a GPU as its holder needs it.
type DeviceHandle struct {
	ID     object.ID
	Device object.Device
	Kind   object.Kind // CUDA, or OpenCL: the descriptor is for keepers alone
	Size   uint64      // of the object
	Bytes  uint64      // of the allocation: what is to be mapped
	Class  object.Class
	Meta   []byte // immutable; shared with the store
	FD     int    // owned by the caller
}

// CreateDevice makes an unsealed object in the memory of a GPU; c holds one reference. The memory is zero, or what an
// object of c's own left in it that nobody else had (deviceidle.go). It waits for the driver. Errors:
// ErrInvalid, ErrUnsupported (no such GPU, or what such an object cannot be), ErrFull, ErrQuota, ErrNoDevice (the
// driver failed).
func (c *Conn) CreateDevice(spec Spec, device object.Device) (h DeviceHandle, err error) {
	return c.createDevice(spec, device, false)
}

func (c *Conn) createDevice(spec Spec, device object.Device, atOnce bool) (h DeviceHandle, err error) {
	s := c.s
	if err := s.checkDeviceSpec(spec, device); err != nil {
		return h, err
	}
	e := &entry{
		id: object.NewID(), size: spec.SizeBytes, class: spec.Class, name: spec.Name, tenant: c.tenant,
		creatorPID: c.owner.PID, creatorName: c.owner.Name, created: time.Now(),
		labels: spec.Labels, ttl: spec.TTL, expiryAt: -1, meta: append([]byte(nil), spec.Meta...),
	}
	e.charge = e.recordBytes(spec.Name, spec.Meta)
	s.mu.Lock()
	defer s.unlock()
	if c.closed || s.closed {
		return h, errConnClosed
	}
	if atOnce && !(c.roomAtOnce() && len(c.idleDevices[fit{device, roundDevice(e.size)}]) > 0) {
		return h, ErrWouldWait
	}
	s.transfers.Add(1)
	defer s.transfers.Done()
	if err := s.reserveObject(c.tenant, e.charge, c.isStopped); err != nil {
		return h, err
	}
	defer c.tenant.made()
	fd := -1
	if err = s.allocateDevice(c, e, device); err == nil {
		if fd, err = e.gpu.give(c); err != nil {
			s.freeDevice(e)
		}
	}
	if err != nil {
		s.uncharge(c.tenant, e.charge)
		return h, err
	}
	s.insert(e)
	e.creator = c
	c.open[e] = struct{}{}
	s.openCount++
	c.refer(e)
	return e.deviceHandle(fd), nil
}

// SealDevice is SealWith of an object in the memory of a GPU. ErrUnsupported: it is in host memory.
func (c *Conn) SealDevice(id object.ID, meta []byte) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	e, err := c.ownOpen(id)
	switch {
	case err != nil:
		return err
	case e.gpu == nil:
		return fmt.Errorf("%w: object %s is in host memory: its metadata is given at its creation", object.ErrUnsupported, id)
	}
	return c.sealWith(id, meta)
}

func (s *Store) checkDeviceSpec(spec Spec, device object.Device) error {
	switch {
	case s.opts.Devices == nil:
		return fmt.Errorf("%w: this store has no device memory", object.ErrUnsupported)
	case spec.SizeBytes == 0 || device.IsZero():
		return fmt.Errorf("%w: an object of %d bytes in the memory of device %s", object.ErrInvalid, spec.SizeBytes, device)
	case spec.Class == object.Persisted:
		return fmt.Errorf("%w: class persisted in the memory of a device: copy it into host memory for that",
			object.ErrUnsupported)
	case spec.Own || spec.Shared || spec.Checksum:
		return fmt.Errorf("%w: a segment, fillers or checksums for an object in the memory of a device", object.ErrUnsupported)
	}
	if err := s.opts.Devices.Available(); err != nil {
		return err
	}
	spec.SizeBytes = 0 // the capacity is host memory's
	return s.checkSpec(spec)
}

// allocateDevice gives e memory of a GPU, charged to c's tenant: what c keeps, else what the driver makes. mu is held,
// and let go meanwhile.
func (s *Store) allocateDevice(c *Conn, e *entry, device object.Device) error {
	m := c.takeIdle(device, roundDevice(e.size))
	if m == nil {
		var err error
		if m, err = s.newDevice(c, device, e.size); err != nil {
			return err
		}
	}
	s.setDevice(e, m)
	s.countDevice(e)
	return nil
}

// countDevice counts an object of whose memory the bytes are charged. mu is held.
func (s *Store) countDevice(e *entry) {
	e.tenant.devices.add(e.gpu.device, 0, 1)
	s.devices.add(e.gpu.device, 0, 1)
}

// newDevice has the driver make memory of a GPU, charged to c's tenant, for one object. Where it does not fit, objects
// that nobody uses leave that GPU. mu is held, and let go meanwhile.
func (s *Store) newDevice(c *Conn, device object.Device, size uint64) (*deviceMemory, error) {
	kind, charged, twin, err := s.reserveTwin(c, device, size)
	if err != nil {
		return nil, err
	}
	if err = s.openOne(c); err != nil { // a descriptor, as a segment is one
		s.uncharge(c.tenant, twin)
		return nil, err
	}
	if err = s.reserveDevice(c, device, charged); err != nil {
		s.closeOne(c.tenant)
		s.uncharge(c.tenant, twin)
		return nil, err
	}
	fd, bytes := -1, uint64(0)
	err = s.untilFits(c, device, charged, func() (free uint64, err error) {
		fd, bytes, err = s.makeDevice(c, device, size)
		return bytes, err
	})
	s.unchargeDevice(c.tenant, device, charged, 0)
	switch {
	case errors.Is(err, object.ErrFull):
		err = s.deviceFull(c.tenant, device, charged, err)
	case err != nil:
	case c.closed || s.closed:
		err = errConnClosed
	case kind == object.OpenCL && bytes != twin:
		err = fmt.Errorf("%w: %d bytes of device %s were made, and %d asked for", object.ErrNoDevice, bytes, device, twin)
	default:
		err = s.chargeDevice(c.tenant, device, bytes)
	}
	if err != nil {
		if fd >= 0 {
			s.opts.Devices.Forget(fd)
			s.doomedFDs = append(s.doomedFDs, fd)
		}
		s.closeOne(c.tenant)
		s.uncharge(c.tenant, twin)
		s.deviceRoom = true
		return nil, err
	}
	m := &deviceMemory{device: device, kind: kind, bytes: bytes, fd: fd, maker: c, twin: twin}
	if kind == object.OpenCL {
		m.maker = nil // it is not used again as it is: copies alone write it
	}
	return m, nil
}

// untilFits takes so many bytes of a GPU for c by take. Where that answers ErrFull, with what is free, it gives up what
// is kept there, then has objects that nobody uses leave, and takes again. mu is held, and let go meanwhile.
func (s *Store) untilFits(c *Conn, device object.Device, bytes uint64, take func() (free uint64, err error)) error {
	free, err := take()
	if errors.Is(err, object.ErrFull) && s.dropIdleOn(device) {
		free, err = take()
	}
	for errors.Is(err, object.ErrFull) {
		made, why := s.makeRoomOn(c, device, nil, bytes-min(free, bytes))
		if !made && !s.dropIdleOn(device) {
			return notToHost(err, why)
		}
		free, err = take()
	}
	return err
}

// deviceFull says of a device without room what its tenant has of it, and what helps. What others have is not its to
// know. mu is held.
func (s *Store) deviceFull(t *tenant, device object.Device, needed uint64, full error) error {
	has, idle := t.devices[device], uint64(0)
	if on := t.coldDevices[device]; on != nil {
		idle = on.bytes
	}
	return fmt.Errorf("%w: device %s: %d bytes are needed, and %d objects of %s have %d, of which %d are in use: release or delete some, or copy them to host memory",
		full, device, needed, has.objects, t.name, has.bytes, has.bytes-min(idle, has.bytes))
}

// twinGranule is of what an allocation's size is a multiple on an OpenCL device, and its twin's.
const twinGranule = 4096

// reserveTwin says what kind of memory a device has, and what an allocation there takes, for an object of a size. It
// charges the host memory that it takes beside. mu is held, and let go meanwhile.
func (s *Store) reserveTwin(c *Conn, device object.Device, size uint64) (kind object.Kind, bytes, twin uint64,
	err error) {
	bytes = roundDevice(size)
	if s.opts.DeviceKind == nil {
		return object.CUDA, bytes, 0, nil
	}
	s.unlock()
	kind = s.opts.DeviceKind(device, true)
	s.mu.Lock()
	if c.closed || s.closed {
		return kind, 0, 0, errConnClosed
	}
	if kind != object.OpenCL {
		return kind, bytes, 0, nil
	}
	bytes = max((size+twinGranule-1)&^(twinGranule-1), size)
	if err = s.reserveRoom(c.tenant, bytes, c.isStopped); err != nil {
		return kind, 0, 0, fmt.Errorf("%w (what lies in the memory of an OpenCL device takes as much of host memory)", err)
	}
	return kind, bytes, bytes, nil
}

// dropTwin has keepers let go of memory that is given up, and takes back what it is charged of host memory. mu is held.
func (s *Store) dropTwin(t *tenant, m *deviceMemory) {
	if m.kind == object.OpenCL {
		s.opts.Devices.Forget(m.fd)
		s.uncharge(t, m.twin)
		m.twin = 0
	}
}

// reserveDevice charges memory of a GPU for what is being made. Where the tenant's quota is short, what ended by itself
// is not charged any more, what the tenant keeps there goes, then what nobody uses of it leaves that GPU. mu is held,
// and let go meanwhile.
func (s *Store) reserveDevice(c *Conn, device object.Device, bytes uint64) error {
	t := c.tenant
	for {
		err, limit := s.chargeDevice(t, device, bytes), s.mostOnDevice(t)
		if err == nil || bytes > limit {
			return err
		}
		if s.dropEndedIPC() || s.dropIdleOfTenant(t, device) {
			continue
		}
		if made, why := s.makeRoomOn(c, device, t, t.devices[device].bytes+bytes-limit); !made {
			return notToHost(err, why)
		}
	}
}

// makeDevice asks the driver for memory. mu is held, and let go meanwhile; what was doomed under it is closed before.
func (s *Store) makeDevice(c *Conn, device object.Device, bytes uint64) (fd int, real uint64, err error) {
	s.unlock()
	defer s.mu.Lock()
	return s.opts.Devices.Allocate(c.asker(), device, bytes)
}

// chargeDevice charges memory of a GPU. mu is held.
func (s *Store) chargeDevice(t *tenant, device object.Device, bytes uint64) error {
	has, limit := t.devices[device].bytes, s.mostOnDevice(t)
	if limit > 0 && (bytes > limit || has > limit-bytes) {
		return fmt.Errorf("%w: %s has %d of %d bytes of device %s in objects and needs %d more: delete objects, or raise --quota-device",
			object.ErrQuota, t.name, has, limit, device, bytes)
	}
	if t.devices == nil {
		t.devices = make(deviceCharges)
	}
	t.devices.add(device, bytes, 0)
	s.devices.add(device, bytes, 0)
	return nil
}

// unchargeDevice is the reverse. mu is held.
func (s *Store) unchargeDevice(t *tenant, device object.Device, bytes uint64, objects int) {
	t.devices.sub(device, bytes, objects)
	s.devices.sub(device, bytes, objects)
}

// setDevice gives an object memory that is charged. mu is held, or s is not shared yet.
func (s *Store) setDevice(e *entry, m *deviceMemory) {
	e.gpu = m
	s.onDevices[e] = struct{}{}
	s.rankDevice(e)
}

// freeDevice gives an object's memory of a GPU back, once, where its maker does not keep it. unlock closes the
// descriptor: that may take milliseconds. mu is held.
func (s *Store) freeDevice(e *entry) {
	m := e.gpu
	if m == nil || m.fd < 0 {
		return
	}
	s.unrankDevice(e)
	delete(s.onDevices, e)
	s.deviceRoom = true
	if s.keepIdle(e.tenant, m) {
		m.fd, m.maker = -1, nil
		s.unchargeDevice(e.tenant, m.device, 0, 1)
		return
	}
	s.dropTwin(e.tenant, m)
	s.doomedFDs = append(s.doomedFDs, m.fd)
	m.fd = -1
	s.unchargeDevice(e.tenant, m.device, m.bytes, 1)
	s.closeOne(e.tenant)
}

// dropDevices gives all of it back. mu is held.
func (s *Store) dropDevices() {
	for e := range s.onDevices {
		e.gpu.maker = nil
		s.freeDevice(e)
	}
	for at := s.idleDevices.Front(); at != nil; at = s.idleDevices.Front() {
		s.dropIdleMemory(at.Value.(*idleMemory))
	}
}

// give gives a descriptor for a connection, which owns it, or with nil for another process: every one that leaves the
// daemon comes from here. From then on the memory is not its maker's alone, unless c is that. mu is held.
func (m *deviceMemory) give(c *Conn) (int, error) {
	fd, err := m.forKeeper()
	if err == nil && m.maker != c {
		m.maker = nil
	}
	return fd, err
}

// forKeeper gives a descriptor for a copy, which ends with the copy. mu is held.
func (m *deviceMemory) forKeeper() (int, error) {
	if m.fd < 0 {
		return -1, errStoreClosed
	}
	fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: a descriptor of memory of a GPU: %w", object.ErrFull, err)
	}
	return fd, nil
}

func (e *entry) deviceHandle(fd int) DeviceHandle {
	return DeviceHandle{ID: e.id, Device: e.gpu.device, Kind: e.gpu.kind, Size: e.size, Bytes: e.gpu.bytes,
		Class: e.class, Meta: e.meta, FD: fd}
}

// kind says what memory an object lies in, or comes back to.
func (s *Store) kind(e *entry) object.Kind {
	switch {
	case e.gpu == nil:
		return object.Host
	case e.gpu.kind != object.Host:
		return e.gpu.kind
	case s.opts.DeviceKind != nil:
		return s.opts.DeviceKind(e.gpu.device, false)
	}
	return object.CUDA
}

// hostBytes is what an object takes of host memory.
func (e *entry) hostBytes() uint64 {
	if e.gpu != nil {
		return 0
	}
	return e.size
}

// inHostMemory says why something cannot be done with an object in the memory of a GPU: ErrUnsupported. mu is held.
func (e *entry) inHostMemory(what string) error {
	if e.gpu == nil {
		return nil
	}
	if e.gpu.kind == object.OpenCL {
		return fmt.Errorf("%w: %s: object %s is in the memory of OpenCL device %s: copy it into host memory first",
			object.ErrUnsupported, what, e.id, e.gpu.device)
	}
	return fmt.Errorf("%w: %s: object %s is in the memory of GPU %s: get it as memory of that GPU, or copy it into host memory first",
		object.ErrUnsupported, what, e.id, e.gpu.device)
}

// GetDevice takes a reference to a sealed object in the memory of a GPU, by name where id is zero, and gives a
// descriptor of its memory. Release gives the reference back. Errors: ErrNotFound, ErrNotSealed, ErrPermission,
// ErrUnsupported (it is in host memory), ErrAway.
func (c *Conn) GetDevice(id object.ID, name string) (DeviceHandle, error) {
	return c.getDevice(id, name, c)
}

// GetAway is GetDevice of an object that is in host memory, and not in its GPU's: BringBack brought it so far, and no
// further, for the GPU or its driver is gone. The handle has no memory (FD −1, no Bytes): CopyAway reads the object.
// ErrAway: it is on disk, for BringBack. Where it is in its GPU's memory again, it is GetDevice.
func (c *Conn) GetAway(id object.ID, name string) (h DeviceHandle, err error) {
	s := c.s
	s.mu.Lock()
	e, err := c.find(id, name)
	if err != nil || c.closed || !e.isStranded() {
		s.unlock()
		return c.GetDevice(id, name)
	}
	defer s.unlock()
	if err := e.isDamaged(); err != nil {
		return h, err
	}
	c.refer(e)
	h = e.deviceHandle(-1)
	h.Kind, h.Bytes = s.kind(e), 0
	return h, nil
}

// getDevice is GetDevice, with a descriptor for whom's process; nil: for another one's.
func (c *Conn) getDevice(id object.ID, name string, whom *Conn) (h DeviceHandle, err error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.find(id, name) // no other tenant's: who reads such memory can write it
	switch {
	case err != nil:
		return h, err
	case c.closed:
		return h, errConnClosed
	case e.gpu == nil:
		return h, fmt.Errorf("%w: object %s is in host memory, not in a GPU's", object.ErrUnsupported, e.id)
	case e.state == object.Open && whom != nil:
		return h, e.notSealed()
	case e.offDevice():
		return h, e.awayFromDevice()
	}
	fd, err := e.gpu.give(whom)
	if err != nil {
		return h, err
	}
	c.refer(e)
	return e.deviceHandle(fd), nil
}

// Copy copies bytes of a sealed object of the tenant's, by name where from is zero, into an unsealed one of c's. One of
// the two at least is in the memory of a GPU; an unsealed one in host memory must have a segment of its own (Spec.Own).
// What c holds is found by its id also when it is deleted. Seals of to answer ErrBusy meanwhile. Errors: ErrNotFound,
// ErrPermission, ErrNotSealed, ErrSealed, ErrAway, ErrInvalid; ErrNoDevice (the driver failed).
func (c *Conn) Copy(to object.ID, toOffset uint64, from object.ID, fromName string, fromOffset, bytes uint64) error {
	return c.copyBytes(to, toOffset, from, fromName, fromOffset, bytes, false)
}

// MayCopyTo says what is wrong with the place that a Copy goes to, as far as that is known without its source. Errors:
// ErrNotFound, ErrPermission, ErrSealed, ErrInvalid.
func (c *Conn) MayCopyTo(to object.ID, offset, bytes uint64) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	if c.closed || c.s.closed {
		return errConnClosed
	}
	target, err := c.ownOpen(to)
	if err != nil {
		return err
	}
	return target.within(offset, bytes)
}

// CopyAway is Copy, also from an object that is in host memory in place of its GPU's, which is gone: see GetAway.
func (c *Conn) CopyAway(to object.ID, toOffset uint64, from object.ID, fromName string,
	fromOffset, bytes uint64) error {
	return c.copyBytes(to, toOffset, from, fromName, fromOffset, bytes, true)
}

// copyBytes is Copy, or with away CopyAway.
func (c *Conn) copyBytes(to object.ID, toOffset uint64, from object.ID, fromName string, fromOffset, bytes uint64,
	away bool) error {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	target, source, err := c.copied(to, from, fromName, away)
	if err != nil {
		return err
	}
	into, err := target.place(toOffset, bytes)
	if err != nil {
		return err
	}
	defer func() { s.doomedFDs = append(s.doomedFDs, into.FD) }()
	out, err := source.place(fromOffset, bytes)
	if err != nil {
		return err
	}
	defer func() { s.doomedFDs = append(s.doomedFDs, out.FD) }()
	if bytes == 0 {
		return nil
	}
	s.transfers.Add(1)
	defer s.transfers.Done()
	target.copying++
	for _, e := range []*entry{target, source} {
		e.refs++ // neither goes, nor goes to disk
		s.reconsider(e)
	}
	var read chan struct{} // of one that is away: meanwhile it does not come back, for its host memory would go
	if source.offDevice() {
		read = make(chan struct{})
		source.moving = read
	}
	s.unlock()
	if into.Device.IsZero() && out.Device.IsZero() {
		err = CopyHost(c.asker(), into, out, bytes)
	} else {
		err = s.opts.Devices.Copy(c.asker(), into, out, bytes)
	}
	s.mu.Lock()
	if read != nil {
		close(read)
		source.moving = nil
		s.reconsider(source)
	}
	target.copying--
	for _, e := range []*entry{target, source} {
		if err != nil && e.gpu != nil {
			e.gpu.maker = nil // a device may still be at it
		}
		e.refs--
		s.collect(e)
	}
	return err
}

// copied finds what Copy copies, or with away CopyAway. Who has a reference to one that is away has it by GetAway, and
// needs not say so. mu is held.
func (c *Conn) copied(to, from object.ID, fromName string, away bool) (target, source *entry, err error) {
	if c.closed || c.s.closed {
		return nil, nil, errConnClosed
	}
	if target, err = c.ownOpen(to); err != nil {
		return nil, nil, err
	}
	source, err = c.find(from, fromName)
	if r, has := c.refs[from]; has && err != nil && r.e.tenant == c.tenant { // deleted, and held
		source, err = r.e, nil
	}
	switch {
	case err != nil:
	case source.state == object.Open:
		err = source.notSealed()
	case source.offDevice() && !(source.isStranded() && (away || c.refs[source.id].count > 0)):
		err = source.awayFromDevice()
	case source.state == object.Spilled || source.gpu == nil && source.moving != nil:
		err = fmt.Errorf("%w: object %s is on disk", ErrAway, source.id)
	case source.gpu == nil && target.gpu == nil:
		err = fmt.Errorf("%w: objects %s and %s are both in host memory: copy them in your own program", object.ErrInvalid,
			target.id, source.id)
	case target.gpu == nil && (target.seg == nil || !target.seg.once || target.seg.sealed):
		err = fmt.Errorf("%w: object %s has no segment of its own: create it with one", object.ErrInvalid, target.id)
	default:
		err = source.isDamaged()
	}
	return target, source, err
}

// within is ErrInvalid for bytes beyond the object's end.
func (e *entry) within(offset, bytes uint64) error {
	if offset > e.size || bytes > e.size-offset {
		return fmt.Errorf("%w: bytes [%d, +%d) of object %s of %d", object.ErrInvalid, offset, bytes, e.id, e.size)
	}
	return nil
}

// place gives where bytes of an object lie; the caller owns the descriptor. mu is held.
func (e *entry) place(offset, bytes uint64) (p Place, err error) {
	if err := e.within(offset, bytes); err != nil {
		return Place{FD: -1}, err
	}
	switch {
	case e.gpu != nil && e.gpu.fd >= 0:
		p = Place{Device: e.gpu.device, Kind: e.gpu.kind, Bytes: e.gpu.bytes, Offset: offset}
		p.FD, err = e.gpu.forKeeper()
	case e.seg == nil:
		err = fmt.Errorf("%w: object %s is empty", object.ErrInvalid, e.id)
	default:
		p = Place{Bytes: e.seg.bytes, Offset: e.off + offset}
		p.FD, err = e.seg.mem.Dup()
	}
	return p, err
}

// ipcMemory is what a connection has lent, charged as an object of that GPU is.
type ipcMemory struct {
	device object.Device
	bytes  uint64 // 0: it ended with the process that had it
}

// dropEndedIPC charges nobody any more for what was lent and ended by itself, and says whether that was anything. Its
// connection has it until CloseIPC, which says so. mu is held, and let go meanwhile.
func (s *Store) dropEndedIPC() (any bool) {
	lender, can := s.opts.Devices.(IPCLender)
	if !can {
		return false
	}
	steps := 0
	for _, number := range lender.EndedIPC() {
		s.breathe(&steps)
		c := s.ipc[number]
		if c == nil {
			continue // it was given back
		}
		m := c.ipc[number]
		delete(s.ipc, number)
		c.ipc[number] = ipcMemory{device: m.device}
		s.unchargeDevice(c.tenant, m.device, m.bytes, 0)
		s.deviceRoom, any = true, true
	}
	return any
}

// freeIPC gives back what IPCHandle lent. mu is held.
func (c *Conn) freeIPC(number uint64) {
	m := c.ipc[number]
	delete(c.ipc, number)
	delete(c.s.ipc, number)
	c.s.opts.Devices.(IPCLender).FreeIPC(number)
	c.s.unchargeDevice(c.tenant, m.device, m.bytes, 0)
	c.s.deviceRoom = true
}

// DeviceStatus is one GPU's memory in objects.
type DeviceStatus struct {
	Device  object.Device `json:"device"`
	Objects int           `json:"objects"`
	Bytes   uint64        `json:"bytes"` // of their allocations, of those kept for the next ones, of copies that are lent
	// objects of the GPU's whose bytes are in host memory or on disk, until somebody gets them
	AwayObjects int    `json:"away_objects,omitempty"`
	AwayBytes   uint64 `json:"away_bytes,omitempty"` // their sizes
}

// list gives it by GPU, in order.
func (m deviceCharges) list() (list []DeviceStatus) {
	for _, d := range slices.SortedFunc(maps.Keys(m), object.Device.Compare) {
		list = append(list, DeviceStatus{d, m[d].objects, m[d].bytes, m[d].away, m[d].awayBytes})
	}
	return list
}

// handOffDevice leaves an object in the memory of a GPU to the next store. mu is held.
func (s *Store) handOffDevice(h *handoff.State, e *entry, o *handoff.Object) {
	if e.state != object.Sealed || e.gpu.fd < 0 {
		return
	}
	s.unrankDevice(e)
	h.Catalog.DeviceObjects = o.AppendTo(h.Catalog.DeviceObjects)
	h.Catalog.DeviceMemory = append(h.Catalog.DeviceMemory, handoff.Device{Device: e.gpu.device, Bytes: e.gpu.bytes,
		Kind: e.gpu.kind, Twin: e.gpu.twin})
	h.Devices = append(h.Devices, e.gpu.fd)
	e.gpu.fd = -1
	delete(s.onDevices, e)
}

// inheritDevices takes over what lies in the memory of GPUs; quotas are charged, and not asked. Before s is shared.
func (s *Store) inheritDevices(h *handoff.State) error {
	table, last := h.Catalog.DeviceObjects, (*handoff.Object)(nil)
	for i := 0; len(h.Devices) > 0 && len(table) > 0; i++ {
		o, rest, err := handoff.NextObject(table, last)
		if err != nil {
			return err
		}
		r := &o.Record
		if m := h.Catalog.DeviceMemory; i >= len(m) || r.ID.IsZero() || s.objects[r.ID] != nil || !r.Class.Valid() ||
			r.Class == object.Persisted || r.SizeBytes == 0 || r.SizeBytes > m[i].Bytes || m[i].Device.IsZero() ||
			m[i].Twin > roundDevice(m[i].Bytes) || m[i].Kind > object.OpenCL {
			return fmt.Errorf("%w: object %s of %d bytes in the memory of a GPU", object.ErrProtocol, r.ID, r.SizeBytes)
		}
		e, m := s.inheritRecord(o), h.Catalog.DeviceMemory[i]
		e.state = object.Sealed
		if m.Kind == object.Host {
			m.Kind = object.CUDA // of a release that knew no other
		}
		s.setDevice(e, &deviceMemory{device: m.Device, kind: m.Kind, bytes: m.Bytes, twin: m.Twin, fd: h.Devices[0]})
		h.Devices = h.Devices[1:]
		if e.tenant.devices == nil {
			e.tenant.devices = make(deviceCharges)
		}
		e.tenant.devices.add(m.Device, m.Bytes, 1)
		s.devices.add(m.Device, m.Bytes, 1)
		s.opened++
		e.tenant.opened++
		s.charged += e.charge + m.Twin
		e.tenant.charged += e.charge + m.Twin
		s.insert(e)
		table, last = rest, o
	}
	return nil
}
