package session

import (
	"slices"
	"strings"
	"sync"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/builds"
	"tendril/forwarding/session/includes"
)

// programKind is where a program comes from.
type programKind uint8

const (
	programSource programKind = iota
	programBinaries
	programLinked  // by clLinkProgram: the worker made it
	programIL      // an intermediate language
	programBuiltIn // kernels that the device has
)

// Program is a cl_program.
type Program struct {
	refs     handle.Refs
	d        *Driver
	handle   uintptr
	id       uint64
	ctx      *Context
	devices  []*Device
	source   string
	kind     programKind
	binaries [][]byte // of programBinaries: one a device; of programIL and programBuiltIn one: the IL, the names

	builds builds.Table

	mu      sync.Mutex
	created bool              // the worker knows it
	special map[uint32][]byte // specialization constants that the driver took; nil: none
}

// maxSourceBytes keeps a program within one blob.
const maxSourceBytes = clwire.MaxBlob

// CreateProgramWithSource is clCreateProgramWithSource (§5.8.1); strings hold the source's parts.
func (d *Driver) CreateProgramWithSource(context uintptr, parts []string) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if len(parts) == 0 {
		return 0, cl.INVALID_VALUE
	}
	source := strings.Join(parts, "")
	if len(source) > maxSourceBytes {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	return d.showProgram(&Program{d: d, ctx: ctx, devices: ctx.devices, source: source})
}

// CreateProgramWithBinary is clCreateProgramWithBinary (§5.8.1). The driver looks at the binaries now: its verdict
// goes to every device's binary_status.
func (d *Driver) CreateProgramWithBinary(context uintptr, devices []uintptr, binaries [][]byte) (h uintptr, verdict,
	status api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.SUCCESS, cl.INVALID_CONTEXT
	}
	if len(devices) == 0 || len(binaries) != len(devices) {
		return 0, cl.SUCCESS, cl.INVALID_VALUE
	}
	list := d.lookUp(devices)
	if list == nil {
		return 0, cl.SUCCESS, cl.INVALID_DEVICE
	}
	total := 0
	for i, dev := range list {
		if !ctx.has(dev) || len(list) != len(devices) {
			return 0, cl.SUCCESS, cl.INVALID_DEVICE
		}
		if len(binaries[i]) == 0 {
			return 0, cl.INVALID_VALUE, cl.INVALID_VALUE
		}
		total += len(binaries[i])
	}
	if total > maxSourceBytes {
		return 0, cl.INVALID_BINARY, cl.OUT_OF_HOST_MEMORY
	}
	p := &Program{d: d, ctx: ctx, devices: list, kind: programBinaries, binaries: binaries, id: d.newID()}
	w, status := ctx.worker()
	if status == cl.SUCCESS {
		status = p.createRemote(w)
	}
	if status != cl.SUCCESS {
		return 0, status, status
	}
	h, status = d.showProgram(p)
	return h, cl.SUCCESS, status
}

func (d *Driver) showProgram(p *Program) (uintptr, api.Status) {
	if p.id == 0 {
		p.id = d.newID()
	}
	if p.kind != programLinked {
		p.refs.Set(1)
	}
	h, err := d.programs.Put(p)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	p.handle = h
	p.ctx.refs.Retain()
	return h, cl.SUCCESS
}

func (k programKind) wire() uint8 {
	switch k {
	case programIL:
		return clwire.ProgramIL
	case programBuiltIn:
		return clwire.ProgramBuiltIn
	}
	return clwire.ProgramBinaries
}

// createRemote makes the program known to the worker. Binaries are judged by the driver; source cannot be wrong yet.
func (p *Program) createRemote(w *worker) api.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created {
		return cl.SUCCESS
	}
	if p.kind == programLinked {
		return cl.INVALID_PROGRAM // linking failed
	}
	m := &clwire.CreateProgram{ID: p.id, Context: p.ctx.id, Kind: clwire.ProgramSource, Blob: p.d.newID()}
	if p.kind == programSource {
		if w.SendBlob(m.Blob, []byte(includes.Localize(p.source))) != nil || w.Send(m, 0, 0) != nil {
			return cl.OUT_OF_RESOURCES
		}
		p.created = true
		return cl.SUCCESS
	}
	m.Kind = p.kind.wire()
	for i, dev := range p.devices {
		switch p.kind {
		case programBinaries:
			m.Binaries = append(m.Binaries, clwire.DeviceBytes{Device: dev.index, Bytes: uint64(len(p.binaries[i]))})
		case programBuiltIn:
			m.Binaries = append(m.Binaries, clwire.DeviceBytes{Device: dev.index})
		}
	}
	if w.SendBlob(m.Blob, p.binaries...) != nil {
		return cl.OUT_OF_RESOURCES
	}
	_, status := w.ask(m)
	p.created = status == cl.SUCCESS
	return status
}

// RetainProgram is clRetainProgram.
func (d *Driver) RetainProgram(h uintptr) api.Status {
	if p := d.programs.Get(h); p != nil && p.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_PROGRAM
}

// ReleaseProgram is clReleaseProgram.
func (d *Driver) ReleaseProgram(h uintptr) api.Status {
	p := d.programs.Get(h)
	if p == nil || !d.releaseProgram(p) {
		return cl.INVALID_PROGRAM
	}
	return cl.SUCCESS
}

func (d *Driver) releaseProgram(p *Program) bool {
	ok, last := p.refs.Release()
	if last {
		d.programs.Remove(p.handle)
		p.forget()
		d.releaseContext(p.ctx)
	}
	return ok
}

// forget takes the program away from the worker.
func (p *Program) forget() {
	if w := p.ctx.bound(); w != nil && (p.kind == programLinked || p.known()) {
		w.SendOneWay(&clwire.Release{ID: p.id})
	}
}

// ProgramInfo is clGetProgramInfo (§5.8.7), all but CL_PROGRAM_BINARIES.
func (d *Driver) ProgramInfo(h uintptr, param uint32) ([]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, cl.INVALID_PROGRAM
	}
	switch param {
	case cl.PROGRAM_REFERENCE_COUNT:
		return answers.U32(p.refs.Count()), cl.SUCCESS
	case cl.PROGRAM_CONTEXT:
		return answers.Size(p.ctx.handle), cl.SUCCESS
	case cl.PROGRAM_NUM_DEVICES:
		return answers.U32(uint32(len(p.devices))), cl.SUCCESS
	case cl.PROGRAM_DEVICES:
		return answers.Handles(handlesOf(p.devices)), cl.SUCCESS
	case cl.PROGRAM_SOURCE:
		return answers.String(p.source), cl.SUCCESS
	case cl.PROGRAM_BINARY_SIZES:
		return p.binarySizes()
	case cl.PROGRAM_NUM_KERNELS:
		names, status := p.kernelNames()
		return answers.Size(len(names)), status
	case cl.PROGRAM_KERNEL_NAMES:
		names, status := p.kernelNames()
		return answers.String(strings.Join(names, ";")), status
	case cl.PROGRAM_IL:
		if p.kind == programIL {
			return p.binaries[0], cl.SUCCESS
		}
		return []byte{}, cl.SUCCESS
	case cl.PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT, cl.PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
		return answers.U32(0), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// kernelNames is the driver's list. It is asked for when the program asks: not every driver survives the question.
func (p *Program) kernelNames() ([]string, api.Status) {
	if !p.builds.Executable() {
		return nil, cl.INVALID_PROGRAM_EXECUTABLE
	}
	if p.kind == programBuiltIn {
		return strings.Split(string(p.binaries[0]), ";"), cl.SUCCESS
	}
	w, status := p.ctx.worker()
	if status != cl.SUCCESS {
		return nil, status
	}
	list, status := w.ask(&clwire.Query{Kind: clwire.QueryProgram, Object: p.id, Param: cl.PROGRAM_KERNEL_NAMES})
	return strings.FieldsFunc(answers.Text(list), func(r rune) bool { return r == ';' }), status
}

// build is that of the code that a device runs: its own, or that of the device that it is a part of (§4.3); false:
// there is none.
func (p *Program) build(dev *Device) (builds.Build, bool) {
	for of := dev; of != nil; of = of.parent() {
		if b, built := p.builds.Of(of.index); built {
			return b, true
		}
	}
	return builds.None, false
}

// binaryType is CL_PROGRAM_BINARY_TYPE of a program that was not built: what the driver calls the binary.
func (p *Program) binaryType(dev *Device) ([]byte, api.Status) {
	w, status := p.ctx.worker()
	if status != cl.SUCCESS {
		return nil, status
	}
	data, status := w.ask(&clwire.Query{Kind: clwire.QueryProgramBuild, Object: p.id, Device: dev.index,
		Param: cl.PROGRAM_BINARY_TYPE})
	return answers.U32(uint32(answers.Number(data))), status
}

// binarySizes is CL_PROGRAM_BINARY_SIZES: of the program's devices in its order.
func (p *Program) binarySizes() ([]byte, api.Status) {
	sizes := make([]uint64, len(p.devices))
	if w := p.ctx.bound(); w != nil && p.known() {
		data, status := w.ask(&clwire.Query{Kind: clwire.QueryProgram, Object: p.id, Param: cl.PROGRAM_BINARY_SIZES})
		if status != cl.SUCCESS {
			return nil, status
		}
		for i := range sizes {
			if len(data) >= 8*(i+1) {
				sizes[i] = le.Uint64(data[8*i:])
			}
		}
	}
	return answers.Sizes(sizes), cl.SUCCESS
}

// Binaries is CL_PROGRAM_BINARIES: one slice a device, empty where there is none.
func (d *Driver) Binaries(h uintptr) ([][]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, cl.INVALID_PROGRAM
	}
	raw, status := p.binarySizes()
	if status != cl.SUCCESS {
		return nil, status
	}
	list := make([][]byte, len(p.devices))
	w := p.ctx.bound()
	if w == nil {
		return list, cl.SUCCESS
	}
	rest, status := w.ask(&clwire.Query{Kind: clwire.QueryProgram, Object: p.id, Param: cl.PROGRAM_BINARIES})
	if status != cl.SUCCESS {
		return nil, status
	}
	for i := range list {
		n := le.Uint64(raw[8*i:])
		if n > uint64(len(rest)) {
			return nil, cl.OUT_OF_RESOURCES
		}
		list[i], rest = rest[:n:n], rest[n:]
	}
	return list, cl.SUCCESS
}

// ProgramBuildInfo is clGetProgramBuildInfo (§5.8.7).
func (d *Driver) ProgramBuildInfo(h, device uintptr, param uint32) ([]byte, api.Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, cl.INVALID_PROGRAM
	}
	dev := d.devices.Get(device)
	if dev == nil {
		return nil, cl.INVALID_DEVICE
	}
	b, built := p.build(dev)
	own := hasDevice(p.devices, dev)
	if !own && (!built || !p.ctx.has(dev)) {
		return nil, cl.INVALID_DEVICE
	}
	if !built && param == cl.PROGRAM_BINARY_TYPE && p.kind != programSource && p.known() {
		return p.binaryType(dev) // the worker answers once the builds under way are over
	}
	return b.Info(param)
}

// known says whether the worker knows the program.
func (p *Program) known() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.created
}

func hasDevice(list []*Device, dev *Device) bool { return slices.Contains(list, dev) }
