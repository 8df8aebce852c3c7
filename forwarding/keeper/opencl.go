//go:build cgo

package keeper

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
)

// OpenCL has no call that exports a cl_mem: it is this process's alone, and dies with it. So each one has a twin in
// host memory, a memfd that holds the same bytes. The daemon has the twin's descriptor, as it has an allocation's of
// CUDA: it names the memory, and whoever copies into the memory copies into the twin first. A keeper that is asked
// about a twin it does not know, because the one before it has ended, makes a cl_mem of it. So nothing is lost,
// sealed or not.
//
// Only keepers write such memory, and only by copies: nobody else has the cl_mem, and no client is given the twin.

// openCL is a keeper of an OpenCL platform's memory.
type openCL struct {
	opts    OpenCLOptions
	devices map[string]*clDevice // by UUID: those that were needed
	list    []opencl.Device      // of the platform; nil until it is needed
	of      opencl.Platform
	memory  map[clwire.HostMemory]*clMemory // by the twin
	copies  map[uint64]*clCopy
}

// clDevice is a device that is in use.
type clDevice struct {
	uuid    string
	context opencl.Context
	queue   opencl.Queue
	most    uint64 // bytes of one allocation
}

// clMemory is an allocation and its twin.
type clMemory struct {
	device *clDevice
	mem    opencl.Mem
	twin   []byte // mapped
}

// clCopy is a copy that goes on.
type clCopy struct {
	places   [2]clwire.KeeperPlace
	to, from clPlace
}

// clPlace is one side of a copy.
type clPlace struct {
	memory *clMemory // nil: host memory
	host   []byte
}

const pageBytes = 4096

// onlyCopies says why a copy went no better way.
const onlyCopies = "the memory of an OpenCL driver is its own process's: others have it by copies"

func newOpenCL(o OpenCLOptions) *openCL {
	return &openCL{opts: o, devices: map[string]*clDevice{}, memory: map[clwire.HostMemory]*clMemory{},
		copies: map[uint64]*clCopy{}}
}

// answer does what a request asks. made is a descriptor for the reply; −1: none. broken: a command of the driver's
// failed, after which this process is of no use: the next one begins with the twins.
func (o *openCL) answer(m *clwire.KeeperRequest, files []int, reply *clwire.KeeperReply) (made int, broken error) {
	made = -1
	var err error
	switch {
	case m.Allocate != nil:
		made, reply.Bytes, err = o.allocate(m.Allocate)
	case m.Copy != nil && (len(files) == 2 || len(files) == 0):
		reply.Way, reply.Why = clwire.KeeperPlain, onlyCopies
		err = o.copy(m.Copy, files)
	case m.End != nil:
		err = o.end(m.End.ID)
	case m.Forget != nil:
		err = o.forget(m.Forget.Memory)
	default:
		err = fmt.Errorf("a keeper of OpenCL memory was asked for nothing that it does, with %d descriptors", len(files))
	}
	if err == nil {
		return made, nil
	}
	reply.Error, reply.Fault = err.Error(), sortOf(err)
	if asCall(err) != nil {
		broken = err
	}
	return made, broken
}

// load finds the platform, once.
func (o *openCL) load() error {
	if o.list != nil {
		return nil
	}
	library, err := opencl.Open(o.opts.ICD)
	if err != nil {
		return &fault{clwire.KeeperNoDevice, err.Error()}
	}
	platforms, err := library.Platforms()
	if err != nil {
		return err
	}
	if n := o.opts.Platform; n < 0 || n >= len(platforms) {
		return &fault{clwire.KeeperNoDevice, fmt.Sprintf("%s has %d platforms, and no number %d", o.opts.ICD, len(platforms), n)}
	}
	o.of = platforms[o.opts.Platform]
	o.list, err = o.of.Devices()
	return err
}

// use gives a device with a queue, by its UUID.
func (o *openCL) use(uuid string) (*clDevice, error) {
	if d := o.devices[uuid]; d != nil {
		return d, nil
	}
	if err := o.load(); err != nil {
		return nil, err
	}
	at, err := o.placeOf(uuid)
	if err != nil {
		return nil, err
	}
	d := &clDevice{uuid: uuid}
	if raw, s := o.list[at].Info(cl.DEVICE_MAX_MEM_ALLOC_SIZE); s == cl.SUCCESS && len(raw) == 8 {
		d.most = binary.NativeEndian.Uint64(raw)
	}
	var s opencl.Status
	if d.context, s = o.of.CreateContext(o.list[at : at+1]); s != cl.SUCCESS {
		return nil, s.Err("clCreateContext")
	}
	if d.queue, s = d.context.CreateQueue(o.list[at], 0); s != cl.SUCCESS {
		return nil, errors.Join(s.Err("clCreateCommandQueue"), d.context.Release().Err("clReleaseContext"))
	}
	o.devices[uuid] = d
	return d, nil
}

// placeOf finds a device in the driver's list. Orders differ between processes, as where an environment variable is
// gone: a driver that knows UUIDs is asked for this one, and only with others the place counts that the probe found.
func (o *openCL) placeOf(uuid string) (int, error) {
	at, is := o.opts.Devices[uuid]
	if !is {
		return 0, &fault{clwire.KeeperNoDevice, fmt.Sprintf("the platform has no device %.40q", uuid)}
	}
	own := make([]string, len(o.list))
	for i, d := range o.list {
		if raw, s := d.Info(cl.DEVICE_UUID_KHR); s == cl.SUCCESS && len(raw) == 16 {
			own[i] = hex.EncodeToString(raw)
		}
	}
	there := at >= 0 && at < len(own)
	if there && (own[at] == uuid || own[at] == "") {
		return at, nil
	}
	if other := slices.Index(own, uuid); other >= 0 {
		return other, nil
	}
	return 0, &fault{clwire.KeeperNoDevice, fmt.Sprintf("the driver shows no device %.40q; it shows %d", uuid, len(own))}
}

// allocate makes zeroed memory and its twin, whose descriptor names both.
func (o *openCL) allocate(m *clwire.KeeperAllocate) (fd int, bytes uint64, err error) {
	d, err := o.use(m.Device)
	if err != nil {
		return -1, 0, err
	}
	bytes = (m.Bytes + pageBytes - 1) &^ (pageBytes - 1)
	if bytes < m.Bytes || bytes == 0 || bytes > 1<<62 {
		return -1, 0, fmt.Errorf("an allocation of %d bytes", m.Bytes)
	}
	if d.most > 0 && bytes > d.most {
		return -1, 0, &fault{clwire.KeeperNoDevice,
			fmt.Sprintf("device %s allocates at most %d bytes at once, and %d are asked for", d.uuid, d.most, bytes)}
	}
	if fd, err = newTwin(bytes); err != nil {
		return -1, 0, err
	}
	_, err = o.add(d, fd, bytes)
	if err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	return fd, bytes, nil
}

// newTwin makes a memfd whose size stays, and whose pages are there before anybody touches them.
func newTwin(bytes uint64) (fd int, err error) {
	fd, err = unix.MemfdCreate("tendril-twin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("the twin in host memory: %w", err)
	}
	if err = unix.Fallocate(fd, 0, 0, int64(bytes)); err != nil {
		err = &fault{clwire.KeeperFull, fmt.Sprintf("%d bytes for the twin in host memory: %v", bytes, err)}
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		err = fmt.Errorf("the twin in host memory: its size cannot be fixed: %w", err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// add makes memory with the bytes of a twin. A driver that allocates late says here that there is none.
func (o *openCL) add(d *clDevice, fd int, bytes uint64) (*clMemory, error) {
	key, err := keyOf(fd)
	if err != nil {
		return nil, err
	}
	m := &clMemory{device: d}
	if m.twin, err = mapHost(fd, bytes, true); err != nil {
		return nil, err
	}
	var s opencl.Status
	m.mem, s = d.context.CreateBuffer(cl.MEM_READ_WRITE, bytes, 0)
	if err = refused(s.Err("clCreateBuffer"), bytes); err == nil {
		if err = refused(m.move(false, 0, m.twin), bytes); err == nil {
			o.memory[key] = m
			return m, nil
		}
		err = errors.Join(err, m.mem.Release().Err("clReleaseMemObject"))
	}
	if asCall(err) == nil { // else the driver may still read it; the process's end unmaps it
		err = errors.Join(err, unix.Munmap(m.twin))
	}
	return nil, err
}

// refused makes a fault of what a driver says where it has no such memory: nothing is in doubt then.
func refused(err error, bytes uint64) error {
	call := asCall(err)
	if call == nil || call.Call == eventWait || call.Call == eventRelease {
		return err
	}
	switch call.Status {
	case cl.MEM_OBJECT_ALLOCATION_FAILURE, cl.OUT_OF_RESOURCES, cl.OUT_OF_HOST_MEMORY:
		return &fault{clwire.KeeperFull, fmt.Sprintf("%d bytes: %v", bytes, err)}
	case cl.INVALID_BUFFER_SIZE:
		return &fault{clwire.KeeperNoDevice, fmt.Sprintf("%d bytes: %v", bytes, err)}
	}
	return err
}

// asCall gives a driver's refusal in an error; nil: there is none.
func asCall(err error) *opencl.CallError {
	var call *opencl.CallError
	errors.As(err, &call)
	return call
}

// The calls after which it is not known what still happens, or stays.
const (
	eventWait    = "clWaitForEvents"
	eventRelease = "clReleaseEvent"
)

// move copies between memory, from an offset on, and host memory, and waits: read: into host.
func (m *clMemory) move(read bool, offset uint64, host []byte) error {
	e, s := m.device.queue.Transfer(read, m.mem, offset, uint64(len(host)), fixed.Address(host),
		opencl.After{Want: true})
	name := "clEnqueueWriteBuffer"
	if read {
		name = "clEnqueueReadBuffer"
	}
	if s != cl.SUCCESS {
		return s.Err(name)
	}
	if s = e.Wait(); s == cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST { // the copy has ended, and says itself why
		var status [1]int32
		if opencl.Statuses([]opencl.Event{e}, status[:]); status[0] < 0 {
			return errors.Join(opencl.Status(status[0]).Err(name), e.Release().Err(eventRelease))
		}
	}
	return errors.Join(s.Err(eventWait), e.Release().Err(eventRelease))
}

// find gives the memory whose twin comes as a descriptor, made anew where the keeper does not know it.
func (o *openCL) find(at clwire.KeeperPlace, fd int) (*clMemory, error) {
	key, err := keyOf(fd)
	if err != nil {
		return nil, err
	}
	d, err := o.use(at.Device)
	if err != nil {
		return nil, err
	}
	m := o.memory[key]
	switch {
	case m == nil:
		return o.add(d, fd, at.Bytes)
	case m.device != d || uint64(len(m.twin)) != at.Bytes:
		return nil, fmt.Errorf("memory of %d bytes of device %s is named as %d bytes of %.40q", len(m.twin), m.device.uuid,
			at.Bytes, at.Device)
	}
	return m, nil
}

// copy does one step of a copy, of which the first brings the descriptors.
func (o *openCL) copy(m *clwire.KeeperCopy, files []int) (err error) {
	c := o.copies[m.ID]
	switch {
	case len(files) == 0 && c == nil:
		return &fault{clwire.KeeperUnknown, fmt.Sprintf("copy %d is not known", m.ID)}
	case len(files) == 2 && c != nil:
		return fmt.Errorf("copy %d begins twice", m.ID)
	case c == nil:
		if c, err = o.begin(m, files[0], files[1]); err != nil {
			return err
		}
		o.copies[m.ID] = c
	}
	if c.places != placesOf(m) {
		err = fmt.Errorf("copy %d goes on between other places", m.ID)
	} else {
		err = c.step(m)
	}
	if err != nil || m.Last {
		err = errors.Join(err, o.end(m.ID))
	}
	return err
}

func (o *openCL) begin(m *clwire.KeeperCopy, to, from int) (c *clCopy, err error) {
	c = &clCopy{places: placesOf(m)}
	if m.To.Device == "" && m.From.Device == "" {
		return nil, errors.New("a copy between two places in host memory")
	}
	if c.to, err = o.place(m.To, to, true); err != nil {
		return nil, err
	}
	if c.from, err = o.place(m.From, from, false); err != nil {
		return nil, errors.Join(err, c.to.free())
	}
	return c, nil
}

func (o *openCL) place(at clwire.KeeperPlace, fd int, write bool) (p clPlace, err error) {
	if at.Device == "" {
		p.host, err = mapHost(fd, at.Bytes, write)
	} else {
		p.memory, err = o.find(at, fd)
	}
	return p, err
}

func (p *clPlace) free() error {
	if p.host == nil {
		return nil
	}
	return unix.Munmap(p.host)
}

// step copies the bytes of one step: into memory of a device by way of its twin, so that both hold the same.
func (c *clCopy) step(m *clwire.KeeperCopy) error {
	into := c.to.host
	if c.to.memory != nil {
		into = c.to.memory.twin
	}
	into, err := within(into, m.To.Offset, m.Bytes)
	if err != nil || m.Bytes == 0 {
		return err
	}
	if c.from.memory == nil {
		from, err := within(c.from.host, m.From.Offset, m.Bytes)
		if err == nil {
			err = guarded(func() error { copy(into, from); return nil })
		}
		if err != nil {
			return err
		}
	} else if _, err := within(c.from.memory.twin, m.From.Offset, m.Bytes); err != nil {
		return err
	} else if err := c.from.memory.move(true, m.From.Offset, into); err != nil {
		return err
	}
	if c.to.memory == nil {
		return nil
	}
	return c.to.memory.move(false, m.To.Offset, into)
}

// end ends a copy; one that is not known has nothing.
func (o *openCL) end(id uint64) error {
	c := o.copies[id]
	if c == nil {
		return nil
	}
	delete(o.copies, id)
	return errors.Join(c.to.free(), c.from.free())
}

// forget gives memory back whose object is gone. No copy of it is under way: the store sees to that.
func (o *openCL) forget(keys []clwire.HostMemory) (err error) {
	for _, key := range keys {
		m := o.memory[key]
		if m == nil || o.inUse(m) {
			continue
		}
		delete(o.memory, key)
		err = errors.Join(err, m.mem.Release().Err("clReleaseMemObject"), unix.Munmap(m.twin))
	}
	return err
}

func (o *openCL) inUse(m *clMemory) bool {
	for _, c := range o.copies {
		if c.to.memory == m || c.from.memory == m {
			return true
		}
	}
	return false
}
