//go:build cgo

package worker

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

func (s *session) createContext(h clwire.Header, m *clwire.CreateContext) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	devices, err := s.nativeDevices(m.Devices)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return fmt.Errorf("%w: a context without devices", errRecord)
	}
	c := &clContext{devices: append([]uint32(nil), m.Devices...)}
	c.refs.Store(1)
	c.native, c.status = s.platform.CreateContext(devices)
	s.objects[m.ID] = c
	s.outcome(h, m.ID, c.status, "clCreateContext")
	return nil
}

func (s *session) createQueue(h clwire.Header, m *clwire.CreateQueue) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	device, err := s.nativeDevices([]uint32{m.Device})
	if err != nil {
		return err
	}
	q := &clQueue{id: m.ID, context: c, device: m.Device}
	status := c.status
	if status == cl.SUCCESS {
		q.native, status = c.native.CreateQueue(device[0], s.nativeProperties(m.Properties))
	}
	if status == cl.SUCCESS && m.Properties&cl.QUEUE_PROFILING_ENABLE != 0 {
		if q.clock, status = c.native.CreateQueue(device[0], cl.QUEUE_PROFILING_ENABLE); status != cl.SUCCESS {
			q.native.Release()
		}
	}
	if status != cl.SUCCESS {
		// Without a queue no command can be taken: the session cannot go on unless the client asked.
		s.outcome(h, m.ID, status, "clCreateCommandQueue")
		if h.Request == 0 {
			return fmt.Errorf("clCreateCommandQueue: OpenCL error %d", status)
		}
		return nil
	}
	ordered := m.Properties&cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
	if ordered {
		q.writes = &writeBytes{}
	}
	q.refs.Store(1)
	s.queues[m.ID] = q
	s.liveMu.Lock()
	s.live[q] = struct{}{}
	s.liveMu.Unlock()
	err = s.engine.AddQueue(m.ID, engine.Native(q.native), !ordered, engine.Native(q.clock), func() {
		q.native.Finish() // nobody may have followed its last commands
		s.liveMu.Lock()
		delete(s.live, q)
		s.liveMu.Unlock()
		if ordered {
			q.writes.letGo(&s.blocks)
		}
		q.unref()
	})
	s.engine.Note(m.ID, s.journal.Queue(m.ID, q.device, ordered))
	s.outcome(h, m.ID, cl.SUCCESS, "")
	return err
}

const accessFlags = cl.MEM_READ_WRITE | cl.MEM_WRITE_ONLY | cl.MEM_READ_ONLY

func (s *session) createBuffer(h clwire.Header, m *clwire.CreateBuffer) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	b := &buffer{size: m.Size, context: c, status: c.status}
	b.refs.Store(1)
	switch {
	case m.Parent != 0:
		err = s.subBuffer(b, m)
	case m.Segment != 0:
		err = s.inPlaceBuffer(b, m)
	case b.status != cl.SUCCESS:
	case s.take(b, m.Size) != cl.SUCCESS:
	case s.bulk != nil && s.inPlace:
		s.privateBuffer(b, m)
	default:
		b.native, b.status = c.native.CreateBuffer(m.Flags&(accessFlags|cl.MEM_ALLOC_HOST_PTR), m.Size, 0)
	}
	if err != nil {
		return err
	}
	if b.status != cl.SUCCESS && b.charged > 0 { // the driver had none
		b.memory.give(b.charged)
		b.charged = 0
	}
	s.objects[m.ID] = b
	s.outcome(h, m.ID, b.status, fmt.Sprintf("clCreateBuffer of %d bytes", m.Size))
	return nil
}

// take books a new buffer's bytes of the devices' own memory. They go back with the buffer, which stays in its table if
// it failed.
func (s *session) take(b *buffer, n uint64) opencl.Status {
	b.status = s.deviceMemory.take(b, n)
	return b.status
}

func (s *session) subBuffer(b *buffer, m *clwire.CreateBuffer) error {
	parent, err := lookup[*buffer](s, m.Parent)
	if err != nil {
		return err
	}
	if b.status = parent.inside(m.Offset, m.Size); b.status != cl.SUCCESS {
		return nil
	}
	if parent.seg != nil {
		s.layOver(b, m.Flags, parent.seg, parent.at+m.Offset)
		return nil
	}
	if parent.svm != nil { // at any offset: nobody's sub-buffer, but what a program made of its pointer
		b.native, b.status = b.context.native.CreateBuffer(m.Flags&accessFlags|cl.MEM_USE_HOST_PTR, m.Size,
			parent.svm.at+uintptr(m.Offset))
	} else {
		b.native, b.status = parent.native.CreateSubBuffer(m.Flags&accessFlags, m.Offset, m.Size)
	}
	if b.status == cl.SUCCESS {
		b.parent = parent
		parent.refs.Add(1)
	}
	return nil
}

// inPlaceBuffer lays a buffer over a range of a segment. No native sub-buffers
// are needed: all are views of the same memory.
func (s *session) inPlaceBuffer(b *buffer, m *clwire.CreateBuffer) error {
	seg, err := s.segment(m.Segment)
	if err != nil {
		return err
	}
	if seg.gpu != nil {
		return s.importBuffer(b, m, seg.gpu)
	}
	if !seg.inside(m.Offset, m.Size) || m.Size == 0 {
		return fmt.Errorf("%w: a buffer of %d bytes at %d of a segment of %d", errRecord, m.Size, m.Offset,
			len(seg.mem))
	}
	if !s.inPlace && !seg.readOnly {
		return fmt.Errorf("%w: this platform does not compute on segments", errRecord)
	}
	if b.status != cl.SUCCESS {
		return nil
	}
	if seg.readOnly && (!s.inPlace || m.Offset%storeAlign != 0) {
		// The driver makes a copy of its own, for its device or because a wide load of PoCL's would fault.
		if (!s.inPlace || s.bulk != nil) && s.take(b, m.Size) != cl.SUCCESS {
			return nil
		}
		b.native, b.status = b.context.native.CreateBuffer(cl.MEM_READ_ONLY|cl.MEM_COPY_HOST_PTR, b.size,
			fixed.Address(seg.mem)+uintptr(m.Offset))
		return nil
	}
	s.layOver(b, m.Flags, seg, m.Offset)
	return nil
}

// importBuffer makes the native buffer of a GPU's memory that the store lent, on the device that has it.
func (s *session) importBuffer(b *buffer, m *clwire.CreateBuffer, a *allocation) error {
	if m.Offset != 0 || m.Size == 0 || m.Size > a.bytes {
		return fmt.Errorf("%w: a buffer of %d bytes at %d of an allocation of %d", errRecord, m.Size, m.Offset, a.bytes)
	}
	if b.status != cl.SUCCESS {
		return nil
	}
	device := s.importer(b.context, a.uuid)
	if device == 0 {
		b.status = cl.INVALID_OPERATION
		return nil
	}
	own, err := unix.FcntlInt(a.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		b.status = cl.OUT_OF_RESOURCES
		return nil
	}
	b.native, b.status = b.context.native.ImportBuffer(device, m.Flags&accessFlags, a.bytes, own)
	if b.status != cl.SUCCESS {
		unix.Close(own)
	}
	return nil
}

// importer is the context's device with this UUID, if its driver imports memory; 0: there is none.
func (s *session) importer(c *clContext, uuid string) opencl.Device {
	for _, index := range c.devices {
		d := s.device(index)
		own, status := d.Info(cl.DEVICE_UUID_KHR)
		extensions, _ := d.Info(cl.DEVICE_EXTENSIONS)
		if status == cl.SUCCESS && hex.EncodeToString(own) == uuid &&
			bytes.Contains(extensions, []byte(externalMemory)) {
			return d
		}
	}
	return 0
}

// externalMemory is the extension with which a driver makes a buffer of memory that another one allocated.
const externalMemory = "cl_khr_external_memory_opaque_fd"

// storeAlign is what a buffer over a store object must be aligned to, in bytes: the widest vector of OpenCL C.
const storeAlign = 128

// layOver makes the native buffer over memory in place.
func (s *session) layOver(b *buffer, flags uint64, seg *segment, at uint64) {
	b.native, b.status = b.context.native.CreateBuffer(flags&accessFlags|cl.MEM_USE_HOST_PTR, b.size,
		fixed.Address(seg.mem)+uintptr(at))
	if b.status == cl.SUCCESS {
		b.seg, b.at = seg, at
		seg.refs.Add(1)
	}
}

func (s *session) createProgram(h clwire.Header, m *clwire.CreateProgram) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	data, err := s.takeBlob(m.Blob)
	if err != nil {
		return err
	}
	p := &program{context: c, status: c.status, devices: c.devices}
	p.refs.Store(1)
	s.meetWords(data)
	var verdicts []byte
	switch {
	case p.status != cl.SUCCESS:
	case m.Kind == clwire.ProgramSource:
		p.native, p.status = c.native.CreateProgram(data)
	case m.Kind == clwire.ProgramIL:
		p.native, p.status = c.native.CreateProgramIL(data)
	case m.Kind == clwire.ProgramBuiltIn:
		err = s.fromBuiltIn(p, m, string(data))
	default:
		verdicts, err = s.fromBinaries(p, m, data)
	}
	if err != nil {
		return err
	}
	s.output.expect(m.Kind, data)
	s.objects[m.ID] = p
	if h.Request != 0 {
		s.reply(h.Request, p.status, verdicts)
		return nil
	}
	s.outcome(h, m.ID, p.status, "clCreateProgram")
	return nil
}

func (s *session) fromBuiltIn(p *program, m *clwire.CreateProgram, names string) error {
	indices := make([]uint32, len(m.Binaries))
	for i, d := range m.Binaries {
		indices[i] = d.Device
	}
	devices, err := s.nativeDevices(indices)
	if err != nil {
		return err
	}
	p.devices, p.builtIn = indices, true
	p.native, p.status = p.context.native.CreateProgramBuiltIn(devices, names)
	return nil
}

// fromBinaries returns each binary's status, as u32.
func (s *session) fromBinaries(p *program, m *clwire.CreateProgram, data []byte) ([]byte, error) {
	var sizes []uint64
	var indices []uint32
	for _, d := range m.Binaries {
		indices, sizes = append(indices, d.Device), append(sizes, d.Bytes)
	}
	devices, err := s.nativeDevices(indices)
	if err != nil {
		return nil, err
	}
	p.devices = indices
	var verdicts []int32
	p.native, verdicts, p.status = p.context.native.CreateProgramBinary(devices, sizes, data)
	var out []byte
	for _, v := range verdicts {
		out = nativeOrder.AppendUint32(out, uint32(v))
	}
	return out, nil
}

// createKernel makes a kernel now, or when the build under way is over: then
// commands that use it wait behind a gate.
func (s *session) createKernel(h clwire.Header, m *clwire.CreateKernel) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	p, err := lookup[*program](s, m.Program)
	if err != nil {
		return err
	}
	k := &kernel{id: m.ID, name: s.journal.Kernel(m.Name)}
	k.refs.Store(1)
	s.objects[m.ID] = k
	name := m.Name
	if !p.building() {
		k.make(p, name)
		s.outcome(h, m.ID, k.status, "clCreateKernel of "+name)
		return nil
	}
	k.gate, k.ready = s.engine.NewGate(), make(chan struct{})
	p.refs.Add(1)
	k.refs.Add(1)
	built := p.built
	s.work.Go(func() { // behind the return: m is another kernel's then
		<-built
		k.make(p, name)
		p.unref()
		close(k.ready)
		k.gate.Open(int32(k.status))
		s.outcome(h, k.id, k.status, "clCreateKernel of "+name)
		k.unref()
	})
	return nil
}

func (k *kernel) make(p *program, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status = p.status; k.status == cl.SUCCESS {
		k.native, k.status = p.native.CreateKernel(name)
	}
}
