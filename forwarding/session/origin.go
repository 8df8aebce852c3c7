package session

import (
	"encoding/json"
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/builds"
)

// Programs that are neither source nor binaries, and kernels that no build named.

// CreateProgramWithIL is clCreateProgramWithIL (§5.8.1). The driver looks at it now.
func (d *Driver) CreateProgramWithIL(context uintptr, il []byte) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if !takeIL(ctx.devices) {
		return 0, cl.INVALID_OPERATION
	}
	if len(il) == 0 {
		return 0, cl.INVALID_VALUE
	}
	if len(il) > maxSourceBytes {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	return d.originate(&Program{d: d, ctx: ctx, devices: ctx.devices, kind: programIL, binaries: [][]byte{il}})
}

// takeIL says whether one of the devices takes programs in an intermediate language.
func takeIL(devices []*Device) bool {
	return slices.ContainsFunc(devices,
		func(dev *Device) bool { return answers.Text(dev.info[cl.DEVICE_IL_VERSION]) != "" })
}

// CreateProgramWithBuiltInKernels is clCreateProgramWithBuiltInKernels (§5.8.1); names has ';' between them.
func (d *Driver) CreateProgramWithBuiltInKernels(context uintptr, devices []uintptr, names string) (uintptr,
	api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	list := d.lookUp(devices)
	if list == nil || len(list) != len(devices) {
		return 0, cl.INVALID_DEVICE
	}
	for _, dev := range list {
		if !ctx.has(dev) {
			return 0, cl.INVALID_DEVICE
		}
	}
	if names == "" {
		return 0, cl.INVALID_VALUE
	}
	p := &Program{d: d, ctx: ctx, devices: list, kind: programBuiltIn, binaries: [][]byte{[]byte(names)},
		builds: builds.Table{BuiltIn: true}}
	return d.originate(p)
}

// originate shows a program that the driver has accepted.
func (d *Driver) originate(p *Program) (uintptr, api.Status) {
	p.id = d.newID()
	w, status := p.ctx.worker()
	if status == cl.SUCCESS {
		status = p.createRemote(w)
	}
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.showProgram(p)
}

// SetSpecConstant is clSetProgramSpecializationConstant (§5.8.1): programs of IL alone have any.
func (d *Driver) SetSpecConstant(h uintptr, id uint32, value []byte) api.Status {
	p := d.programs.Get(h)
	switch {
	case p == nil:
		return cl.INVALID_PROGRAM
	case !takeIL(p.devices):
		return cl.INVALID_OPERATION
	case p.kind != programIL:
		return cl.INVALID_PROGRAM
	case len(value) == 0 || len(value) > 256:
		return cl.INVALID_VALUE
	}
	w, status := p.ctx.worker()
	if status != cl.SUCCESS {
		return status
	}
	_, status = w.ask(&clwire.SpecConstant{Program: p.id, ID: id, Value: value})
	if status == cl.SUCCESS {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.special == nil {
			p.special = map[uint32][]byte{}
		}
		p.special[id] = append([]byte(nil), value...)
	}
	return status
}

// askFacts asks the driver for a kernel of a built program that the build's result does not name: it may be there all
// the same, and if not, the refusal is the driver's. The facts are noted, unless the program was built since the round.
func (p *Program) askFacts(name string, round int) api.Status {
	if len(name) > clwire.MaxText {
		return cl.INVALID_KERNEL_NAME
	}
	w, status := p.ctx.worker()
	if status != cl.SUCCESS {
		return status
	}
	data, status := w.ask(&clwire.Query{Kind: clwire.QueryKernelFacts, Object: p.id, Input: []byte(name)})
	if status != cl.SUCCESS {
		return status
	}
	var facts clwire.KernelFacts
	if err := json.Unmarshal(data, &facts); err != nil || facts.NumArgs > clwire.MaxArgs {
		return cl.OUT_OF_RESOURCES
	}
	p.builds.Note(&facts, name, round)
	return cl.SUCCESS
}
