package session

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// Range is the index space of a launch. Lengths are those of the arrays that the program passed, 0 for NULL.
type Range struct {
	Dims                uint32
	HasOffset, HasLocal bool
	Offset              [3]uint64
	Global              [3]uint64
	Local               [3]uint64
}

// EnqueueNDRange is clEnqueueNDRangeKernel (§5.10). The first launch of each class waits for the driver's verdict,
// later ones do not wait for anything.
func (d *Driver) EnqueueNDRange(queue, kernel uintptr, r *Range, w Waits) (uintptr, Status) {
	return d.launch(queue, kernel, r, w, cmdNDRange)
}

// EnqueueTask is clEnqueueTask (OpenCL 1.2 §5.10).
func (d *Driver) EnqueueTask(queue, kernel uintptr, w Waits) (uintptr, Status) {
	one := [3]uint64{1, 1, 1}
	r := Range{Dims: 1, HasLocal: true, Global: one, Local: one}
	return d.launch(queue, kernel, &r, w, cmdTask)
}

func (d *Driver) launch(queue, kernel uintptr, r *Range, w Waits, kind uint32) (uintptr, Status) {
	q := d.queues.Get(queue)
	if q == nil {
		return 0, InvalidCommandQueue
	}
	k := d.kernels.Get(kernel)
	if k == nil {
		return 0, InvalidKernel
	}
	if k.program.ctx != q.ctx {
		return 0, InvalidContext
	}
	if status := k.checkRange(q.device, r); status != Success {
		return 0, status
	}
	c, status := d.open(q, kind, w)
	if status != Success {
		return c.close(status)
	}
	return c.close(c.launch(k, r))
}

// checkRange decides what the build's facts and the device's limits decide.
func (k *Kernel) checkRange(dev *Device, r *Range) Status {
	group := k.facts.workGroup(dev.index)
	if group == nil {
		return InvalidProgramExecutable
	}
	if r.Dims < 1 || r.Dims > 3 || uint64(r.Dims) > dev.limits.dimensions {
		return InvalidWorkDimension
	}
	for i := range r.Dims {
		if r.HasOffset && r.Offset[i]+r.Global[i] < r.Offset[i] {
			return InvalidGlobalOffset
		}
	}
	if !r.HasLocal {
		return Success
	}
	return k.checkLocal(dev, group, r)
}

func (k *Kernel) checkLocal(dev *Device, group *clwire.WorkGroup, r *Range) Status {
	total := uint64(1)
	for i := range r.Dims {
		local := r.Local[i]
		if local == 0 {
			return InvalidWorkGroupSize
		}
		if group.CompileSize[0] != 0 && local != group.CompileSize[i] || total > maxHostBytes/local {
			return InvalidWorkGroupSize
		}
		total *= local
	}
	if dev.limits.groupSize != 0 && total > dev.limits.groupSize {
		return InvalidWorkGroupSize
	}
	for i := range r.Dims {
		if r.Local[i] > dev.limits.itemSizes[i] {
			return InvalidWorkItemSize
		}
	}
	return Success
}

func (r *Range) class(q *Queue, localBytes uint64) launchClass {
	class := launchClass{
		device: q.device.index, dims: uint8(r.Dims), hasLocal: r.HasLocal, hasOffset: r.HasOffset, localBytes: localBytes,
	}
	for i := range r.Dims {
		if r.Global[i] == 0 {
			class.zero |= 1 << i
		}
		if r.HasLocal {
			class.local[i] = r.Local[i]
			if r.Global[i]%r.Local[i] == 0 {
				class.divides |= 1 << i
			}
		}
	}
	return class
}

// launch sends the launch, and waits for the verdict if it is the first of its class.
func (c *command) launch(k *Kernel, r *Range) Status {
	if c.graph != nil {
		return c.graph.addLaunch(k, r)
	}
	k.mu.Lock()
	class := r.class(c.q, k.localBytes)
	known := k.lastOK && class == k.last
	if !known {
		verdict, remembered := k.facts.launchVerdict(&class)
		if remembered && verdict != Success {
			k.mu.Unlock()
			return verdict
		}
		known = remembered
	}
	var asked *call
	var request uint64
	if !known {
		asked, request = c.q.w.begin(nil)
	}
	status := c.sendLaunchLocked(k, r, request)
	if status == Success && known {
		k.last, k.lastOK = class, true
	}
	k.mu.Unlock()
	if asked == nil {
		return status
	}
	if status != Success {
		c.q.w.forget(request)
		return status
	}
	return c.awaitVerdict(k, class, asked)
}

func (c *command) awaitVerdict(k *Kernel, class launchClass, asked *call) Status {
	asked.cause, asked.detail = trace.CauseFirstLaunch, k.facts.Name
	if c.q.w.await(asked) != nil || c.q.w.dead.Load() {
		return OutOfResources
	}
	k.facts.rememberLaunch(&class, asked.status)
	k.mu.Lock()
	defer k.mu.Unlock()
	if asked.status != Success {
		k.resendLocked()
		return asked.status
	}
	k.last, k.lastOK = class, true
	return Success
}

// resendLocked marks every argument as not sent: nobody knows what a refused launch left behind.
func (k *Kernel) resendLocked() {
	for i := range k.args {
		if a := &k.args[i]; a.set && !a.dirty {
			a.dirty = true
			k.dirty++
		}
	}
}

func (c *command) sendLaunchLocked(k *Kernel, r *Range, request uint64) Status {
	if k.unset > 0 {
		return InvalidKernelArgs
	}
	if status := c.prepareArgsLocked(k); status != Success {
		return status
	}
	if status := k.ensureRemote(c.q.w); status != Success {
		return status
	}
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.ndrange
	m.Kernel, m.Dims, m.HasOffset, m.HasLocal = k.id, uint8(r.Dims), r.HasOffset, r.HasLocal
	m.Global, m.Offset, m.Local = r.Global, r.Offset, r.Local
	m.Args = m.Args[:0]
	if k.dirty > 0 {
		m.Args = k.takeDirtyLocked(m.Args)
	}
	_, status := q.submitLocked(m, &m.Cmd, c.e, c.wait, request)
	if status != Success {
		k.resendLocked()
	}
	return status
}

func (k *Kernel) takeDirtyLocked(args []clwire.Arg) []clwire.Arg {
	for i := range k.args {
		if a := &k.args[i]; a.dirty {
			args = append(args, clwire.Arg{Index: uint16(i), Kind: a.kind, Data: a.value()})
			a.dirty = false
		}
	}
	k.dirty = 0
	return args
}

// prepareArgsLocked readies the kernel's buffers: alive, known to the worker, in their latest memory.
func (c *command) prepareArgsLocked(k *Kernel) Status {
	for _, i := range k.memArgs {
		a := &k.args[i]
		if p := a.sampler; p != nil {
			if !p.refs.Alive() {
				return InvalidKernelArgs // released since it was set
			}
			if status := p.ensureRemote(c.q.w); status != Success {
				return status
			}
			continue
		}
		b := a.buffer
		if b == nil {
			continue
		}
		if !b.refs.Alive() {
			return InvalidKernelArgs // released since it was set
		}
		if b.parent != nil {
			if status := b.placed(c.q); status != Success {
				return status
			}
		}
		if b.root.special.Load() || b.remote.Load() != c.q.w {
			writes := b.flags&memReadOnly == 0 && !k.facts.sizes[i].reads
			if status := c.uses(b, writes); status != Success {
				return status
			}
		}
		if id := b.id.Load(); id != a.sentID {
			a.sentID = id
			le.PutUint64(a.small[:], id)
			if !a.dirty {
				a.dirty = true
				k.dirty++
			}
		}
	}
	return Success
}

// KernelInfo is clGetKernelInfo (§5.9.4).
func (d *Driver) KernelInfo(h uintptr, param uint32) ([]byte, Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return nil, InvalidKernel
	}
	switch param {
	case 0x1190:
		return infoString(k.facts.Name), Success
	case 0x1191:
		return infoU32(k.facts.NumArgs), Success
	case 0x1192:
		return infoU32(k.refs.Count()), Success
	case 0x1193:
		return infoSize(k.program.ctx.handle), Success
	case 0x1194:
		return infoSize(k.program.handle), Success
	case 0x1195:
		return infoString(k.facts.Attributes), Success
	}
	return nil, InvalidValue
}

// KernelArgInfo is clGetKernelArgInfo (§5.9.4).
func (d *Driver) KernelArgInfo(h uintptr, index, param uint32) ([]byte, Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return nil, InvalidKernel
	}
	if index >= k.facts.NumArgs {
		return nil, InvalidArgIndex
	}
	if !k.facts.HasArgInfo {
		return nil, KernelArgInfoNotAvailable
	}
	a := &k.facts.Args[index]
	switch param {
	case 0x1196:
		return infoU32(a.Address), Success
	case 0x1197:
		return infoU32(a.Access), Success
	case 0x1198:
		return infoString(a.TypeName), Success
	case 0x1199:
		return infoU64(a.TypeQualifier), Success
	case 0x119A:
		return infoString(a.Name), Success
	}
	return nil, InvalidValue
}

// kernelDevice resolves the device of a kernel query; 0 is right where there is only one.
func (d *Driver) kernelDevice(kernel, device uintptr) (*Kernel, *Device, Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return nil, nil, InvalidKernel
	}
	devices := k.program.devices
	if device == 0 {
		if len(devices) != 1 {
			return nil, nil, InvalidDevice
		}
		return k, devices[0], Success
	}
	dev := d.devices.Get(device)
	if dev == nil || !hasDevice(devices, dev) {
		return nil, nil, InvalidDevice
	}
	return k, dev, Success
}

// KernelWorkGroupInfo is clGetKernelWorkGroupInfo (§5.9.4).
func (d *Driver) KernelWorkGroupInfo(kernel, device uintptr, param uint32) ([]byte, Status) {
	k, dev, status := d.kernelDevice(kernel, device)
	if status != Success {
		return nil, status
	}
	group := k.facts.workGroup(dev.index)
	if group == nil {
		return nil, InvalidDevice
	}
	switch param {
	case 0x11B0:
		return infoSize(group.Size), Success
	case 0x11B1:
		return infoSizes(group.CompileSize[:]), Success
	case 0x11B2:
		k.mu.Lock()
		defer k.mu.Unlock()
		return infoU64(group.LocalBytes + k.localBytes), Success
	case 0x11B3:
		return infoSize(group.PreferredMultiple), Success
	case 0x11B4:
		return infoU64(group.PrivateBytes), Success
	case kernelGlobalWorkSize:
		if k.program.kind != programBuiltIn {
			return nil, InvalidValue // for custom devices and built-in kernels
		}
	}
	return k.query(clwire.QueryKernelWorkGroup, dev, param, nil)
}

// KernelSubGroupInfo is clGetKernelSubGroupInfo (§5.9.4); input as the program gave it.
func (d *Driver) KernelSubGroupInfo(kernel, device uintptr, param uint32, input []byte) ([]byte, Status) {
	k, dev, status := d.kernelDevice(kernel, device)
	if status != Success {
		return nil, status
	}
	if len(input) > 256 {
		return nil, InvalidValue
	}
	return k.query(clwire.QueryKernelSubGroup, dev, param, input)
}

func (k *Kernel) query(kind uint8, dev *Device, param uint32, input []byte) ([]byte, Status) {
	w, status := k.program.ctx.worker()
	if status != Success {
		return nil, status
	}
	k.mu.Lock()
	status = k.ensureRemote(w)
	k.mu.Unlock()
	if status != Success {
		return nil, status
	}
	c, err := w.ask(&clwire.Query{Kind: kind, Object: k.id, Device: dev.index, Param: param, Input: input})
	if err != nil {
		return nil, OutOfResources
	}
	return c.data, c.status
}
