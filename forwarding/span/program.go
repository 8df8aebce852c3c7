package span

import (
	"slices"
	"sync"

	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Program is a cl_program of a spanning context: one of session's for each member whose devices it is for.
type Program struct {
	refs    handle.Refs
	ctx     *Context
	handle  uintptr
	inner   []uintptr // session's, by member; 0: not for its devices; immutable
	devices []uintptr // immutable
}

// Parameters of clGetProgramInfo and clGetProgramBuildInfo.
const (
	programRefs        uint32 = 0x1160
	programContext     uint32 = 0x1161
	programNumDevices  uint32 = 0x1162
	programDevices     uint32 = 0x1163
	programBinarySizes uint32 = 0x1165
)

// CreateProgramWithSource is clCreateProgramWithSource (§5.8.1).
func (d *Driver) CreateProgramWithSource(context uintptr, parts []string) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateProgramWithSource(context, parts)
	}
	p := &Program{ctx: c, devices: c.devices, inner: make([]uintptr, len(c.members))}
	for i, m := range c.members {
		h, status := d.Driver.CreateProgramWithSource(m.context, parts)
		if status != session.Success {
			p.dropInner()
			return 0, status
		}
		p.inner[i] = h
	}
	return p.show()
}

// CreateProgramWithBinary is clCreateProgramWithBinary (§5.8.1): each member's driver judges its devices' binaries.
func (d *Driver) CreateProgramWithBinary(context uintptr, devices []uintptr, binaries [][]byte) (h uintptr, verdict, status session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateProgramWithBinary(context, devices, binaries)
	}
	if len(devices) == 0 || len(binaries) != len(devices) {
		return 0, session.Success, session.InvalidValue
	}
	p := &Program{ctx: c, devices: slices.Clone(devices), inner: make([]uintptr, len(c.members))}
	for i, m := range c.members {
		var own []uintptr
		var code [][]byte
		for j, dev := range devices {
			if slices.Contains(m.devices, dev) {
				own, code = append(own, dev), append(code, binaries[j])
			}
		}
		if len(own) == 0 {
			continue
		}
		if p.inner[i], verdict, status = d.Driver.CreateProgramWithBinary(m.context, own, code); status != session.Success {
			p.dropInner()
			return 0, verdict, status
		}
	}
	if slices.ContainsFunc(devices, func(dev uintptr) bool { return c.memberOf(dev) < 0 }) {
		p.dropInner()
		return 0, session.Success, session.InvalidDevice
	}
	h, status = p.show()
	return h, session.Success, status
}

func (p *Program) show() (uintptr, session.Status) {
	p.refs.Set(1)
	h, err := p.ctx.d.programs.Put(p)
	if err != nil {
		p.dropInner()
		return 0, session.OutOfHostMemory
	}
	p.handle = h
	p.ctx.refs.Retain()
	return h, session.Success
}

func (p *Program) dropInner() {
	for _, h := range p.inner {
		if h != 0 {
			p.ctx.d.Driver.ReleaseProgram(h)
		}
	}
}

// Build is clBuildProgram (§5.8.2): all members at once. With done it returns at once.
func (d *Driver) Build(h uintptr, hasList bool, devices []uintptr, options string, done func()) session.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.Build(h, hasList, devices, options, done)
	}
	return p.construct(hasList, devices, done, func(member int, devices []uintptr) session.Status {
		return d.Driver.Build(p.inner[member], true, devices, options, nil)
	})
}

// construct builds or compiles: every member its devices, at once. With done it returns before.
func (p *Program) construct(hasList bool, devices []uintptr, done func(), call func(member int, devices []uintptr) session.Status) session.Status {
	if hasList != (len(devices) > 0) {
		return session.InvalidValue
	}
	list := p.devices
	if hasList {
		list = devices
	}
	byMember, status := p.split(list)
	if status != session.Success {
		return status
	}
	if done == nil {
		return constructAll(byMember, call)
	}
	p.refs.Retain()
	go func() {
		constructAll(byMember, call)
		p.ctx.d.Notify(func() {
			done()
			p.drop()
		})
	}()
	return session.Success
}

func constructAll(byMember [][]uintptr, call func(member int, devices []uintptr) session.Status) session.Status {
	results := make([]session.Status, len(byMember))
	var work sync.WaitGroup
	for i, devices := range byMember {
		if len(devices) > 0 {
			work.Go(func() { results[i] = call(i, devices) })
		}
	}
	work.Wait()
	for _, status := range results {
		if status != session.Success {
			return status
		}
	}
	return session.Success
}

// RetainProgram is clRetainProgram.
func (d *Driver) RetainProgram(h uintptr) session.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.RetainProgram(h)
	}
	if !p.refs.Retain() {
		return session.InvalidProgram
	}
	return session.Success
}

// ReleaseProgram is clReleaseProgram.
func (d *Driver) ReleaseProgram(h uintptr) session.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.ReleaseProgram(h)
	}
	if !p.drop() {
		return session.InvalidProgram
	}
	return session.Success
}

func (p *Program) drop() bool {
	ok, last := p.refs.Release()
	if last {
		p.ctx.d.programs.Remove(p.handle)
		p.dropInner()
		p.ctx.drop()
	}
	return ok
}

// ProgramInfo is clGetProgramInfo (§5.8.7), all but CL_PROGRAM_BINARIES.
func (d *Driver) ProgramInfo(h uintptr, param uint32) ([]byte, session.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.ProgramInfo(h, param)
	}
	switch param {
	case programRefs:
		return infoU32(p.refs.Count()), session.Success
	case programContext:
		return infoHandle(p.ctx.handle), session.Success
	case programNumDevices:
		return infoU32(uint32(len(p.devices))), session.Success
	case programDevices:
		return infoHandles(p.devices), session.Success
	case programBinarySizes:
		return p.eachDevice(func(inner uintptr) ([][]byte, session.Status) {
			sizes, status := d.Driver.ProgramInfo(inner, param)
			return slices.Collect(slices.Chunk(sizes, 8)), status
		})
	}
	return p.first(func(inner uintptr) ([]byte, session.Status) { return d.Driver.ProgramInfo(inner, param) })
}

// first is the answer of the first member that has one: kernels' names are those of a member that built the program.
func (p *Program) first(ask func(inner uintptr) ([]byte, session.Status)) (answer []byte, status session.Status) {
	status = session.InvalidProgramExecutable
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		if answer, status = ask(inner); status == session.Success {
			break
		}
	}
	return answer, status
}

// collect asks each member for something a device of its own, and gives it in the order of the program's devices.
func (p *Program) collect(ask func(inner uintptr) ([][]byte, session.Status)) ([][]byte, session.Status) {
	of := map[uintptr][]byte{}
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		answers, status := ask(inner)
		if status != session.Success {
			return nil, status
		}
		devices, status := p.ctx.d.Driver.ProgramInfo(inner, programDevices)
		if status != session.Success || len(answers) != len(devices)/8 {
			return nil, session.OutOfResources
		}
		for i, answer := range answers {
			of[uintptr(le.Uint64(devices[8*i:]))] = answer
		}
	}
	list := make([][]byte, len(p.devices))
	for i, dev := range p.devices {
		list[i] = of[dev]
	}
	return list, session.Success
}

func (p *Program) eachDevice(ask func(inner uintptr) ([][]byte, session.Status)) ([]byte, session.Status) {
	list, status := p.collect(ask)
	return slices.Concat(list...), status
}

// Binaries is CL_PROGRAM_BINARIES: one slice a device, empty where there is none.
func (d *Driver) Binaries(h uintptr) ([][]byte, session.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.Binaries(h)
	}
	return p.collect(d.Driver.Binaries)
}

// ProgramBuildInfo is clGetProgramBuildInfo (§5.8.7).
func (d *Driver) ProgramBuildInfo(h, device uintptr, param uint32) ([]byte, session.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.ProgramBuildInfo(h, device, param)
	}
	i := p.ctx.memberOf(device)
	if i < 0 || p.inner[i] == 0 {
		return nil, session.InvalidDevice
	}
	return d.Driver.ProgramBuildInfo(p.inner[i], device, param)
}
