package session

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/kernelargs"
	"tendril/forwarding/session/kernelfacts"
	"tendril/forwarding/trace"
)

// EnqueueNDRange is clEnqueueNDRangeKernel (§5.10). The first launch of each class waits for the driver's verdict,
// later ones do not wait for anything.
func (d *Driver) EnqueueNDRange(queue, kernel uintptr, r *api.Range, w api.Waits) (uintptr, api.Status) {
	return d.launch(queue, kernel, r, w, cl.COMMAND_NDRANGE_KERNEL)
}

// EnqueueTask is clEnqueueTask (OpenCL 1.2 §5.10).
func (d *Driver) EnqueueTask(queue, kernel uintptr, w api.Waits) (uintptr, api.Status) {
	one := [3]uint64{1, 1, 1}
	r := api.Range{Dims: 1, HasLocal: true, Global: one, Local: one}
	return d.launch(queue, kernel, &r, w, cl.COMMAND_TASK)
}

func (d *Driver) launch(queue, kernel uintptr, r *api.Range, w api.Waits, kind uint32) (uintptr, api.Status) {
	q := d.queues.Get(queue)
	if q == nil {
		return 0, cl.INVALID_COMMAND_QUEUE
	}
	k := d.kernels.Get(kernel)
	if k == nil {
		return 0, cl.INVALID_KERNEL
	}
	if k.program.ctx != q.ctx {
		return 0, cl.INVALID_CONTEXT
	}
	if status := k.checkRange(q.device, r); status != cl.SUCCESS {
		return 0, status
	}
	var c command
	status := d.open(&c, q, kind, &w)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	return c.close(c.launch(k, r))
}

// checkRange decides what the build's facts and the device's limits decide.
func (k *Kernel) checkRange(dev *Device, r *api.Range) api.Status {
	group := k.workGroup(dev)
	if group == nil {
		return cl.INVALID_PROGRAM_EXECUTABLE
	}
	if r.Dims < 1 || r.Dims > 3 || uint64(r.Dims) > dev.limits.Dimensions {
		return cl.INVALID_WORK_DIMENSION
	}
	for i := range r.Dims {
		if r.HasOffset && r.Offset[i]+r.Global[i] < r.Offset[i] {
			return cl.INVALID_GLOBAL_OFFSET
		}
	}
	if !r.HasLocal {
		return cl.SUCCESS
	}
	return k.checkLocal(dev, group, r)
}

func (k *Kernel) checkLocal(dev *Device, group *clwire.WorkGroup, r *api.Range) api.Status {
	total := uint64(1)
	for i := range r.Dims {
		local := r.Local[i]
		if local == 0 {
			return cl.INVALID_WORK_GROUP_SIZE
		}
		if group.CompileSize[0] != 0 && local != group.CompileSize[i] || total > maxHostBytes/local {
			return cl.INVALID_WORK_GROUP_SIZE
		}
		total *= local
	}
	if dev.limits.GroupSize != 0 && total > dev.limits.GroupSize {
		return cl.INVALID_WORK_GROUP_SIZE
	}
	for i := range r.Dims {
		if r.Local[i] > dev.limits.ItemSizes[i] {
			return cl.INVALID_WORK_ITEM_SIZE
		}
	}
	return cl.SUCCESS
}

// launch sends the launch, and waits for the verdict if it is the first of its class.
func (c *command) launch(k *Kernel, r *api.Range) api.Status {
	if c.graph != nil {
		return c.recordLaunch(k, r)
	}
	k.mu.Lock()
	class := kernelfacts.ClassOf(r, c.q.device.index, k.args.LocalBytes())
	known := k.lastOK && class == k.last
	if !known {
		verdict, remembered := k.facts.LaunchVerdict(&class)
		if remembered && verdict != cl.SUCCESS {
			k.mu.Unlock()
			return verdict
		}
		known = remembered
	}
	var asked *conn.Call
	var request uint64
	if !known {
		asked, request = c.q.w.Begin(nil)
	}
	status := c.sendLaunchLocked(k, r, request)
	if status == cl.SUCCESS && known {
		k.last, k.lastOK = class, true
	}
	k.mu.Unlock()
	if asked == nil {
		return status
	}
	if status != cl.SUCCESS {
		c.q.w.Forget(request)
		return status
	}
	return c.awaitVerdict(k, class, asked)
}

func (c *command) awaitVerdict(k *Kernel, class kernelfacts.LaunchClass, asked *conn.Call) api.Status {
	asked.Cause, asked.Detail = trace.CauseFirstLaunch, k.facts.Name
	if c.q.w.Await(asked) != nil || c.q.w.Dead() {
		return cl.OUT_OF_RESOURCES
	}
	verdict := api.Status(asked.Status)
	k.facts.RememberLaunch(&class, verdict)
	k.mu.Lock()
	defer k.mu.Unlock()
	if verdict != cl.SUCCESS {
		k.args.Resend() // nobody knows what a refused launch left behind
		return verdict
	}
	k.last, k.lastOK = class, true
	return cl.SUCCESS
}

func (c *command) sendLaunchLocked(k *Kernel, r *api.Range, request uint64) api.Status {
	if !k.args.Complete() {
		return cl.INVALID_KERNEL_ARGS
	}
	if status := c.prepareArgsLocked(k); status != cl.SUCCESS {
		return status
	}
	if status := k.ensureRemote(c.q.w); status != cl.SUCCESS {
		return status
	}
	if status := k.tellReach(c.q.w); status != cl.SUCCESS {
		return status
	}
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.ndrange
	m.Kernel, m.Dims, m.HasOffset, m.HasLocal = k.id, uint8(r.Dims), r.HasOffset, r.HasLocal
	m.Global, m.Offset, m.Local = r.Global, r.Offset, r.Local
	m.Args = k.args.TakeDirty(m.Args[:0])
	_, status := q.submitLocked(m, &m.Cmd, c.e, c.wait, request)
	if status != cl.SUCCESS {
		k.args.Resend()
	}
	return status
}

// recordLaunch records a launch with a copy of the kernel, so that later arguments are not this launch's.
func (c *command) recordLaunch(k *Kernel, r *api.Range) api.Status {
	k.mu.Lock()
	class, complete := kernelfacts.ClassOf(r, c.q.device.index, k.args.LocalBytes()), k.args.Complete()
	k.mu.Unlock()
	if !complete {
		return cl.INVALID_KERNEL_ARGS
	}
	if verdict, known := k.facts.LaunchVerdict(&class); known && verdict != cl.SUCCESS {
		return verdict
	}
	l := &recordedLaunch{d: c.d, k: k.clone(), r: *r}
	if !l.k.args.Retain(c.d.releaseArg) {
		c.d.dropKernel(l.k)
		return cl.INVALID_KERNEL_ARGS // released since it was set
	}
	status := c.graph.AddLaunch(l)
	if status != cl.SUCCESS {
		l.LetGo()
	}
	return status
}

// recordedLaunch implements graphs.Launch. Nobody else has its kernel.
type recordedLaunch struct {
	d *Driver
	k *Kernel
	r api.Range
}

func (l *recordedLaunch) Record() clwire.Message {
	m := &clwire.NDRange{Kernel: l.k.id, Dims: uint8(l.r.Dims), HasOffset: l.r.HasOffset, HasLocal: l.r.HasLocal,
		Global: l.r.Global, Offset: l.r.Offset, Local: l.r.Local}
	m.Args = l.k.args.All(nil)
	return m
}

func (l *recordedLaunch) LetGo() {
	for _, i := range l.k.args.Objects() {
		l.d.releaseArg(l.k.args.Object(i))
	}
	l.d.dropKernel(l.k)
}

// releaseArg gives back the reference to an object that a recorded launch's argument names.
func (d *Driver) releaseArg(o kernelargs.Object) {
	switch o := o.(type) {
	case *Buffer:
		o.LetGo()
	case *Sampler:
		d.ReleaseSampler(o.handle)
	}
}

// prepareArgsLocked readies the objects that the kernel's arguments name: alive, known to the worker.
func (c *command) prepareArgsLocked(k *Kernel) api.Status {
	for _, i := range k.args.Objects() {
		o := k.args.Object(i)
		if !o.Alive() {
			return cl.INVALID_KERNEL_ARGS // released since it was set
		}
		var status api.Status
		switch o := o.(type) {
		case *Sampler:
			status = o.ensureRemote(c.q.w)
		case *Buffer:
			status = c.prepareArg(o, k.facts.Sizes[i].Reads)
		}
		if status != cl.SUCCESS {
			return status
		}
		k.args.Renumber(i)
	}
	return cl.SUCCESS
}

// prepareArg readies a buffer, which the kernel only reads or not: in its latest memory, where it has several.
func (c *command) prepareArg(b *Buffer, reads bool) api.Status {
	if status := b.placed(c.q); status != cl.SUCCESS {
		return status
	}
	if !b.root.special.Load() && b.remote.Load() == c.q.w {
		return cl.SUCCESS
	}
	return c.uses(b, b.flags&cl.MEM_READ_ONLY == 0 && !reads)
}

// KernelInfo is clGetKernelInfo (§5.9.4).
func (d *Driver) KernelInfo(h uintptr, param uint32) ([]byte, api.Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return nil, cl.INVALID_KERNEL
	}
	switch param {
	case cl.KERNEL_FUNCTION_NAME:
		return answers.String(k.facts.Name), cl.SUCCESS
	case cl.KERNEL_NUM_ARGS:
		return answers.U32(k.facts.NumArgs), cl.SUCCESS
	case cl.KERNEL_REFERENCE_COUNT:
		return answers.U32(k.refs.Count()), cl.SUCCESS
	case cl.KERNEL_CONTEXT:
		return answers.Size(k.program.ctx.handle), cl.SUCCESS
	case cl.KERNEL_PROGRAM:
		return answers.Size(k.program.handle), cl.SUCCESS
	case cl.KERNEL_ATTRIBUTES:
		return answers.String(k.facts.Attributes), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// KernelArgInfo is clGetKernelArgInfo (§5.9.4).
func (d *Driver) KernelArgInfo(h uintptr, index, param uint32) ([]byte, api.Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return nil, cl.INVALID_KERNEL
	}
	if index >= k.facts.NumArgs {
		return nil, cl.INVALID_ARG_INDEX
	}
	if !k.facts.HasArgInfo {
		return nil, cl.KERNEL_ARG_INFO_NOT_AVAILABLE
	}
	a := &k.facts.Args[index]
	switch param {
	case cl.KERNEL_ARG_ADDRESS_QUALIFIER:
		return answers.U32(a.Address), cl.SUCCESS
	case cl.KERNEL_ARG_ACCESS_QUALIFIER:
		return answers.U32(a.Access), cl.SUCCESS
	case cl.KERNEL_ARG_TYPE_NAME:
		return answers.String(a.TypeName), cl.SUCCESS
	case cl.KERNEL_ARG_TYPE_QUALIFIER:
		return answers.U64(a.TypeQualifier), cl.SUCCESS
	case cl.KERNEL_ARG_NAME:
		return answers.String(a.Name), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// kernelDevice resolves the device of a kernel query; 0 is right where there is only one.
func (d *Driver) kernelDevice(kernel, device uintptr) (*Kernel, *Device, api.Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return nil, nil, cl.INVALID_KERNEL
	}
	devices := k.program.devices
	if device == 0 {
		if len(devices) != 1 {
			return nil, nil, cl.INVALID_DEVICE
		}
		return k, devices[0], cl.SUCCESS
	}
	dev := d.devices.Get(device)
	if dev == nil || !hasDevice(devices, dev) && (!k.program.ctx.has(dev) || k.workGroup(dev) == nil) {
		return nil, nil, cl.INVALID_DEVICE
	}
	return k, dev, cl.SUCCESS
}

// KernelWorkGroupInfo is clGetKernelWorkGroupInfo (§5.9.4).
func (d *Driver) KernelWorkGroupInfo(kernel, device uintptr, param uint32) ([]byte, api.Status) {
	k, dev, status := d.kernelDevice(kernel, device)
	if status != cl.SUCCESS {
		return nil, status
	}
	group := k.workGroup(dev)
	if group == nil {
		return nil, cl.INVALID_DEVICE
	}
	switch param {
	case cl.KERNEL_WORK_GROUP_SIZE:
		return answers.Size(group.Size), cl.SUCCESS
	case cl.KERNEL_COMPILE_WORK_GROUP_SIZE:
		return answers.Sizes(group.CompileSize[:]), cl.SUCCESS
	case cl.KERNEL_LOCAL_MEM_SIZE:
		k.mu.Lock()
		defer k.mu.Unlock()
		return answers.U64(group.LocalBytes + k.args.LocalBytes()), cl.SUCCESS
	case cl.KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE:
		return answers.Size(group.PreferredMultiple), cl.SUCCESS
	case cl.KERNEL_PRIVATE_MEM_SIZE:
		return answers.U64(group.PrivateBytes), cl.SUCCESS
	case cl.KERNEL_GLOBAL_WORK_SIZE:
		if k.program.kind != programBuiltIn {
			return nil, cl.INVALID_VALUE // for custom devices and built-in kernels
		}
	}
	return k.query(clwire.QueryKernelWorkGroup, dev, param, nil)
}

// KernelSubGroupInfo is clGetKernelSubGroupInfo (§5.9.4); input as the program gave it.
func (d *Driver) KernelSubGroupInfo(kernel, device uintptr, param uint32, input []byte) ([]byte, api.Status) {
	k, dev, status := d.kernelDevice(kernel, device)
	if status != cl.SUCCESS {
		return nil, status
	}
	if len(input) > 256 {
		return nil, cl.INVALID_VALUE
	}
	return k.query(clwire.QueryKernelSubGroup, dev, param, input)
}

func (k *Kernel) query(kind uint8, dev *Device, param uint32, input []byte) ([]byte, api.Status) {
	w, status := k.program.ctx.worker()
	if status != cl.SUCCESS {
		return nil, status
	}
	k.mu.Lock()
	status = k.ensureRemote(w)
	k.mu.Unlock()
	if status != cl.SUCCESS {
		return nil, status
	}
	return w.ask(&clwire.Query{Kind: kind, Object: k.id, Device: dev.index, Param: param, Input: input})
}
