package session

import (
	"encoding/json"
	"slices"
	"strings"

	"tendril/forwarding/clwire"
)

// Programs that are neither source nor binaries, and kernels that no build named.

// CreateProgramWithIL is clCreateProgramWithIL (§5.8.1). The driver looks at it now.
func (d *Driver) CreateProgramWithIL(context uintptr, il []byte) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	if !slices.ContainsFunc(ctx.devices, func(dev *Device) bool { return text(dev.info[devILVersion]) != "" }) {
		return 0, InvalidOperation
	}
	if len(il) == 0 {
		return 0, InvalidValue
	}
	if len(il) > maxSourceBytes {
		return 0, OutOfHostMemory
	}
	return d.originate(&Program{d: d, ctx: ctx, devices: ctx.devices, kind: programIL, binaries: [][]byte{il}})
}

// CreateProgramWithBuiltInKernels is clCreateProgramWithBuiltInKernels (§5.8.1); names has ';' between them.
func (d *Driver) CreateProgramWithBuiltInKernels(context uintptr, devices []uintptr, names string) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	list := d.lookUp(devices)
	if list == nil || len(list) != len(devices) {
		return 0, InvalidDevice
	}
	for _, dev := range list {
		if !ctx.has(dev) {
			return 0, InvalidDevice
		}
	}
	if names == "" {
		return 0, InvalidValue
	}
	p := &Program{d: d, ctx: ctx, devices: list, kind: programBuiltIn, binaries: [][]byte{[]byte(names)}, facts: map[string]*kernelFacts{}}
	p.order = strings.Split(names, ";")
	return d.originate(p)
}

// originate shows a program that the driver has accepted.
func (d *Driver) originate(p *Program) (uintptr, Status) {
	p.id, p.builds = d.newID(), map[uint32]*build{}
	w, status := p.ctx.worker()
	if status == Success {
		status = p.createRemote(w)
	}
	if status != Success {
		return 0, status
	}
	return d.showProgram(p)
}

// SetSpecConstant is clSetProgramSpecializationConstant (§5.8.1): programs of IL alone have any.
func (d *Driver) SetSpecConstant(h uintptr, id uint32, value []byte) Status {
	p := d.programs.Get(h)
	switch {
	case p == nil:
		return InvalidProgram
	case p.kind != programIL:
		return InvalidProgram
	case len(value) == 0 || len(value) > 256:
		return InvalidValue
	}
	w, status := p.ctx.worker()
	if status != Success {
		return status
	}
	c, err := w.ask(&clwire.SpecConstant{Program: p.id, ID: id, Value: value})
	if err != nil {
		return OutOfResources
	}
	if c.status == Success {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.special == nil {
			p.special = map[uint32][]byte{}
		}
		p.special[id] = append([]byte(nil), value...)
	}
	return c.status
}

// askFacts asks the driver for a kernel of a built program that the build's result does not name: it may be there all
// the same, and if not, the refusal is the driver's.
func (p *Program) askFacts(name string) Status {
	if len(name) > clwire.MaxText {
		return InvalidKernelName
	}
	w, status := p.ctx.worker()
	if status != Success {
		return status
	}
	c, err := w.ask(&clwire.Query{Kind: clwire.QueryKernelFacts, Object: p.id, Input: []byte(name)})
	if err != nil {
		return OutOfResources
	}
	if c.status != Success {
		return c.status
	}
	var facts clwire.KernelFacts
	if err := json.Unmarshal(c.data, &facts); err != nil || facts.NumArgs > clwire.MaxArgs {
		return OutOfResources
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.facts != nil && p.facts[name] == nil {
		p.facts[name] = newKernelFacts(&facts)
	}
	return Success
}
