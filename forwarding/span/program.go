package span

import (
	"slices"
	"sync"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
)

// Program is a cl_program of a spanning context: one of session's for each member whose devices it is for.
type Program struct {
	refs    handle.Refs
	ctx     *Context
	handle  uintptr
	inner   []uintptr // session's, by member; 0: not for its devices; immutable
	devices []uintptr // immutable
}

// CreateProgramWithSource is clCreateProgramWithSource (§5.8.1).
func (d *Driver) CreateProgramWithSource(context uintptr, parts []string) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateProgramWithSource(context, parts)
	}
	p := &Program{ctx: c, devices: c.devices, inner: make([]uintptr, len(c.members))}
	for i, m := range c.members {
		h, status := d.base.CreateProgramWithSource(m.context, parts)
		if status != cl.SUCCESS {
			p.dropInner()
			return 0, status
		}
		p.inner[i] = h
	}
	return p.show()
}

// CreateProgramWithBinary is clCreateProgramWithBinary (§5.8.1): each member's driver judges its devices' binaries.
func (d *Driver) CreateProgramWithBinary(context uintptr, devices []uintptr, binaries [][]byte) (h uintptr, verdict,
	status api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateProgramWithBinary(context, devices, binaries)
	}
	if len(devices) == 0 || len(binaries) != len(devices) {
		return 0, cl.SUCCESS, cl.INVALID_VALUE
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
		if p.inner[i], verdict, status = d.base.CreateProgramWithBinary(m.context, own, code); status != cl.SUCCESS {
			p.dropInner()
			return 0, verdict, status
		}
	}
	if slices.ContainsFunc(devices, func(dev uintptr) bool { return c.memberOf(dev) < 0 }) {
		p.dropInner()
		return 0, cl.SUCCESS, cl.INVALID_DEVICE
	}
	h, status = p.show()
	return h, cl.SUCCESS, status
}

func (p *Program) show() (uintptr, api.Status) {
	p.refs.Set(1)
	h, err := p.ctx.d.programs.Put(p)
	if err != nil {
		p.dropInner()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	p.handle = h
	p.ctx.refs.Retain()
	return h, cl.SUCCESS
}

func (p *Program) dropInner() {
	for _, h := range p.inner {
		if h != 0 {
			p.ctx.d.base.ReleaseProgram(h)
		}
	}
}

// Build is clBuildProgram (§5.8.2): all members at once. With done it returns at once.
func (d *Driver) Build(h uintptr, hasList bool, devices []uintptr, options string, done func()) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.Build(h, hasList, devices, options, done)
	}
	return p.construct(hasList, devices, done, func(member int, devices []uintptr) api.Status {
		return d.base.Build(p.inner[member], true, devices, options, nil)
	})
}

// construct builds or compiles: every member its devices, at once. With done it returns before.
func (p *Program) construct(hasList bool, devices []uintptr, done func(),
	call func(member int, devices []uintptr) api.Status) api.Status {
	if hasList != (len(devices) > 0) {
		return cl.INVALID_VALUE
	}
	list := p.devices
	if hasList {
		list = devices
	}
	byMember, status := p.split(list)
	if status != cl.SUCCESS {
		return status
	}
	if done == nil {
		return constructAll(byMember, call)
	}
	p.refs.Retain()
	go func() {
		constructAll(byMember, call)
		p.ctx.d.base.Notify(func() {
			done()
			p.drop()
		})
	}()
	return cl.SUCCESS
}

func constructAll(byMember [][]uintptr, call func(member int, devices []uintptr) api.Status) api.Status {
	results := make([]api.Status, len(byMember))
	var work sync.WaitGroup
	for i, devices := range byMember {
		if len(devices) > 0 {
			work.Go(func() { results[i] = call(i, devices) })
		}
	}
	work.Wait()
	for _, status := range results {
		if status != cl.SUCCESS {
			return status
		}
	}
	return cl.SUCCESS
}

// RetainProgram is clRetainProgram.
func (d *Driver) RetainProgram(h uintptr) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.RetainProgram(h)
	}
	if !p.refs.Retain() {
		return cl.INVALID_PROGRAM
	}
	return cl.SUCCESS
}

// ReleaseProgram is clReleaseProgram.
func (d *Driver) ReleaseProgram(h uintptr) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.ReleaseProgram(h)
	}
	if !p.drop() {
		return cl.INVALID_PROGRAM
	}
	return cl.SUCCESS
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
func (d *Driver) ProgramInfo(h uintptr, param uint32) ([]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.ProgramInfo(h, param)
	}
	switch param {
	case cl.PROGRAM_REFERENCE_COUNT:
		return answers.U32(p.refs.Count()), cl.SUCCESS
	case cl.PROGRAM_CONTEXT:
		return answers.Size(p.ctx.handle), cl.SUCCESS
	case cl.PROGRAM_NUM_DEVICES:
		return answers.U32(uint32(len(p.devices))), cl.SUCCESS
	case cl.PROGRAM_DEVICES:
		return answers.Handles(p.devices), cl.SUCCESS
	case cl.PROGRAM_BINARY_SIZES:
		return p.eachDevice(func(inner uintptr) ([][]byte, api.Status) {
			sizes, status := d.base.ProgramInfo(inner, param)
			return slices.Collect(slices.Chunk(sizes, 8)), status
		})
	}
	return p.first(func(inner uintptr) ([]byte, api.Status) { return d.base.ProgramInfo(inner, param) })
}

// first is the answer of the first member that has one: kernels' names are those of a member that built the program.
func (p *Program) first(ask func(inner uintptr) ([]byte, api.Status)) (answer []byte, status api.Status) {
	status = cl.INVALID_PROGRAM_EXECUTABLE
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		if answer, status = ask(inner); status == cl.SUCCESS {
			break
		}
	}
	return answer, status
}

// collect asks each member for something a device of its own, and gives it in the order of the program's devices.
func (p *Program) collect(ask func(inner uintptr) ([][]byte, api.Status)) ([][]byte, api.Status) {
	of := map[uintptr][]byte{}
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		answers, status := ask(inner)
		if status != cl.SUCCESS {
			return nil, status
		}
		devices, status := p.ctx.d.base.ProgramInfo(inner, cl.PROGRAM_DEVICES)
		if status != cl.SUCCESS || len(answers) != len(devices)/8 {
			return nil, cl.OUT_OF_RESOURCES
		}
		for i, answer := range answers {
			of[uintptr(le.Uint64(devices[8*i:]))] = answer
		}
	}
	list := make([][]byte, len(p.devices))
	for i, dev := range p.devices {
		list[i] = of[dev]
	}
	return list, cl.SUCCESS
}

func (p *Program) eachDevice(ask func(inner uintptr) ([][]byte, api.Status)) ([]byte, api.Status) {
	list, status := p.collect(ask)
	return slices.Concat(list...), status
}

// Binaries is CL_PROGRAM_BINARIES: one slice a device, empty where there is none.
func (d *Driver) Binaries(h uintptr) ([][]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.Binaries(h)
	}
	return p.collect(d.base.Binaries)
}

// ProgramBuildInfo is clGetProgramBuildInfo (§5.8.7).
func (d *Driver) ProgramBuildInfo(h, device uintptr, param uint32) ([]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.ProgramBuildInfo(h, device, param)
	}
	i := p.ctx.memberOf(device)
	if i < 0 || p.inner[i] == 0 {
		return nil, cl.INVALID_DEVICE
	}
	return d.base.ProgramBuildInfo(p.inner[i], device, param)
}
