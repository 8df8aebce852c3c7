package span

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Programs in parts, in an intermediate language and of built-in kernels: each member does its own.

// Compile is clCompileProgram (§5.8.4); headers and names as in package session.
func (d *Driver) Compile(h uintptr, hasList bool, devices []uintptr, options string, headers []uintptr, names []string,
	hasHeaders, hasNames bool, done func()) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.Compile(h, hasList, devices, options, headers, names, hasHeaders, hasNames, done)
	}
	var embedded []*Program
	for _, h := range headers {
		header := d.programs.Get(h)
		if header == nil || header.ctx != p.ctx {
			return cl.INVALID_PROGRAM
		}
		embedded = append(embedded, header)
	}
	return p.construct(hasList, devices, done, func(member int, devices []uintptr) api.Status {
		return d.base.Compile(p.inner[member], true, devices, options, innerOf(embedded, member), names, hasHeaders,
			hasNames, nil)
	})
}

// innerOf are session's programs at one member.
func innerOf(programs []*Program, member int) []uintptr {
	var list []uintptr
	for _, p := range programs {
		list = append(list, p.inner[member])
	}
	return list
}

// Link is clLinkProgram (§5.8.5). It waits for every member's linker; done, if not nil, runs behind it.
func (d *Driver) Link(context uintptr, hasList bool, devices []uintptr, options string, programs []uintptr,
	done func(program uintptr)) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.Link(context, hasList, devices, options, programs, done)
	}
	if len(programs) == 0 || hasList != (len(devices) > 0) {
		return 0, cl.INVALID_VALUE
	}
	p := &Program{ctx: c, devices: c.devices, inner: make([]uintptr, len(c.members))}
	if hasList {
		p.devices = slices.Clone(devices)
	}
	byMember, status := p.split(p.devices)
	if status != cl.SUCCESS {
		return 0, status
	}
	var inputs []*Program
	for _, h := range programs {
		in := d.programs.Get(h)
		if in == nil || in.ctx != c {
			return 0, cl.INVALID_PROGRAM
		}
		inputs = append(inputs, in)
	}
	for i, own := range byMember {
		if len(own) == 0 {
			continue
		}
		if slices.Contains(innerOf(inputs, i), 0) { // it has binaries for other devices alone
			p.dropInner()
			return 0, cl.INVALID_OPERATION
		}
		h, verdict := d.base.Link(c.members[i].context, true, own, options, innerOf(inputs, i), nil)
		if h == 0 {
			p.dropInner()
			return 0, verdict
		}
		if p.inner[i] = h; status == cl.SUCCESS {
			status = verdict
		}
	}
	h, shown := p.show()
	if shown != cl.SUCCESS {
		return 0, shown
	}
	if done != nil {
		p.refs.Retain()
		d.base.Notify(func() {
			done(h)
			p.drop()
		})
	}
	return h, status
}

// split sorts devices by member; each must be one of the program's.
func (p *Program) split(list []uintptr) ([][]uintptr, api.Status) {
	byMember := make([][]uintptr, len(p.inner))
	for _, dev := range list {
		i := p.ctx.memberOf(dev)
		if i < 0 || !slices.Contains(p.devices, dev) {
			return nil, cl.INVALID_DEVICE
		}
		byMember[i] = append(byMember[i], dev)
	}
	return byMember, cl.SUCCESS
}

// CreateProgramWithIL is clCreateProgramWithIL (§5.8.1): for the members that take the language.
func (d *Driver) CreateProgramWithIL(context uintptr, il []byte) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateProgramWithIL(context, il)
	}
	p := &Program{ctx: c, inner: make([]uintptr, len(c.members))}
	for i, m := range c.members {
		h, status := d.base.CreateProgramWithIL(m.context, il)
		switch status {
		case cl.SUCCESS:
			p.inner[i] = h
			p.devices = append(p.devices, m.devices...)
		case cl.INVALID_OPERATION: // none of its devices takes any
		default:
			p.dropInner()
			return 0, status
		}
	}
	if len(p.devices) == 0 {
		return 0, cl.INVALID_OPERATION
	}
	return p.show()
}

// CreateProgramWithBuiltInKernels is clCreateProgramWithBuiltInKernels (§5.8.1).
func (d *Driver) CreateProgramWithBuiltInKernels(context uintptr, devices []uintptr, names string) (uintptr,
	api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateProgramWithBuiltInKernels(context, devices, names)
	}
	if len(devices) == 0 {
		return 0, cl.INVALID_DEVICE
	}
	p := &Program{ctx: c, devices: slices.Clone(devices), inner: make([]uintptr, len(c.members))}
	byMember, status := p.split(devices)
	if status != cl.SUCCESS {
		return 0, status
	}
	for i, own := range byMember {
		if len(own) == 0 {
			continue
		}
		if p.inner[i], status = d.base.CreateProgramWithBuiltInKernels(c.members[i].context, own,
			names); status != cl.SUCCESS {
			p.dropInner()
			return 0, status
		}
	}
	return p.show()
}

// SetSpecConstant is clSetProgramSpecializationConstant (§5.8.1).
func (d *Driver) SetSpecConstant(h uintptr, id uint32, value []byte) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.base.SetSpecConstant(h, id, value)
	}
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		if status := d.base.SetSpecConstant(inner, id, value); status != cl.SUCCESS {
			return status
		}
	}
	return cl.SUCCESS
}
