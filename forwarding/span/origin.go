package span

import (
	"slices"

	"tendril/forwarding/session"
)

// Programs in parts, in an intermediate language and of built-in kernels: each member does its own.

// Compile is clCompileProgram (§5.8.4); headers and names as in package session.
func (d *Driver) Compile(h uintptr, hasList bool, devices []uintptr, options string, headers []uintptr, names []string, hasHeaders, hasNames bool, done func()) session.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.Compile(h, hasList, devices, options, headers, names, hasHeaders, hasNames, done)
	}
	var embedded []*Program
	for _, h := range headers {
		header := d.programs.Get(h)
		if header == nil || header.ctx != p.ctx {
			return session.InvalidProgram
		}
		embedded = append(embedded, header)
	}
	return p.construct(hasList, devices, done, func(member int, devices []uintptr) session.Status {
		return d.Driver.Compile(p.inner[member], true, devices, options, innerOf(embedded, member), names, hasHeaders, hasNames, nil)
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
func (d *Driver) Link(context uintptr, hasList bool, devices []uintptr, options string, programs []uintptr, done func(program uintptr)) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.Link(context, hasList, devices, options, programs, done)
	}
	if len(programs) == 0 || hasList != (len(devices) > 0) {
		return 0, session.InvalidValue
	}
	p := &Program{ctx: c, devices: c.devices, inner: make([]uintptr, len(c.members))}
	if hasList {
		p.devices = slices.Clone(devices)
	}
	byMember, status := p.split(p.devices)
	if status != session.Success {
		return 0, status
	}
	var inputs []*Program
	for _, h := range programs {
		in := d.programs.Get(h)
		if in == nil || in.ctx != c {
			return 0, session.InvalidProgram
		}
		inputs = append(inputs, in)
	}
	for i, own := range byMember {
		if len(own) == 0 {
			continue
		}
		h, verdict := d.Driver.Link(c.members[i].context, true, own, options, innerOf(inputs, i), nil)
		if h == 0 {
			p.dropInner()
			return 0, verdict
		}
		if p.inner[i] = h; status == session.Success {
			status = verdict
		}
	}
	h, shown := p.show()
	if shown != session.Success {
		return 0, shown
	}
	if done != nil {
		p.refs.Retain()
		d.Notify(func() {
			done(h)
			p.drop()
		})
	}
	return h, status
}

// split sorts devices by member; each must be one of the program's.
func (p *Program) split(list []uintptr) ([][]uintptr, session.Status) {
	byMember := make([][]uintptr, len(p.inner))
	for _, dev := range list {
		i := p.ctx.memberOf(dev)
		if i < 0 || !slices.Contains(p.devices, dev) {
			return nil, session.InvalidDevice
		}
		byMember[i] = append(byMember[i], dev)
	}
	return byMember, session.Success
}

// CreateProgramWithIL is clCreateProgramWithIL (§5.8.1): for the members that take the language.
func (d *Driver) CreateProgramWithIL(context uintptr, il []byte) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateProgramWithIL(context, il)
	}
	p := &Program{ctx: c, inner: make([]uintptr, len(c.members))}
	for i, m := range c.members {
		h, status := d.Driver.CreateProgramWithIL(m.context, il)
		switch status {
		case session.Success:
			p.inner[i] = h
			p.devices = append(p.devices, m.devices...)
		case session.InvalidOperation: // none of its devices takes any
		default:
			p.dropInner()
			return 0, status
		}
	}
	if len(p.devices) == 0 {
		return 0, session.InvalidOperation
	}
	return p.show()
}

// CreateProgramWithBuiltInKernels is clCreateProgramWithBuiltInKernels (§5.8.1).
func (d *Driver) CreateProgramWithBuiltInKernels(context uintptr, devices []uintptr, names string) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateProgramWithBuiltInKernels(context, devices, names)
	}
	if len(devices) == 0 {
		return 0, session.InvalidDevice
	}
	p := &Program{ctx: c, devices: slices.Clone(devices), inner: make([]uintptr, len(c.members))}
	byMember, status := p.split(devices)
	if status != session.Success {
		return 0, status
	}
	for i, own := range byMember {
		if len(own) == 0 {
			continue
		}
		if p.inner[i], status = d.Driver.CreateProgramWithBuiltInKernels(c.members[i].context, own, names); status != session.Success {
			p.dropInner()
			return 0, status
		}
	}
	return p.show()
}

// SetSpecConstant is clSetProgramSpecializationConstant (§5.8.1).
func (d *Driver) SetSpecConstant(h uintptr, id uint32, value []byte) session.Status {
	p := d.programs.Get(h)
	if p == nil {
		return d.Driver.SetSpecConstant(h, id, value)
	}
	for _, inner := range p.inner {
		if inner == 0 {
			continue
		}
		if status := d.Driver.SetSpecConstant(inner, id, value); status != session.Success {
			return status
		}
	}
	return session.Success
}
