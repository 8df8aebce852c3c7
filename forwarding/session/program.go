package session

import (
	"strings"
	"sync"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
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

	mu       sync.Mutex
	created  bool // the worker knows it
	builds   map[uint32]*build
	facts    map[string]*kernelFacts // of the last successful build
	order    []string                // kernel names as the driver lists them
	special  map[uint32][]byte       // specialization constants that the driver took; nil: none
	kernels  int                     // attached kernel objects: no build while there are any
	building int
}

// build is clGetProgramBuildInfo for one device.
type build struct {
	status     int32
	by         *construction
	log        []byte
	binaryType uint32
	globals    uint64
}

// maxSourceBytes keeps a program within one blob.
const maxSourceBytes = clwire.MaxBlob

// CreateProgramWithSource is clCreateProgramWithSource (§5.8.1); strings hold the source's parts.
func (d *Driver) CreateProgramWithSource(context uintptr, parts []string) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	if len(parts) == 0 {
		return 0, InvalidValue
	}
	source := strings.Join(parts, "")
	if len(source) > maxSourceBytes {
		return 0, OutOfHostMemory
	}
	return d.showProgram(&Program{d: d, ctx: ctx, devices: ctx.devices, source: source})
}

// CreateProgramWithBinary is clCreateProgramWithBinary (§5.8.1). The driver looks at the binaries now: its verdict
// goes to every device's binary_status.
func (d *Driver) CreateProgramWithBinary(context uintptr, devices []uintptr, binaries [][]byte) (h uintptr, verdict, status Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, Success, InvalidContext
	}
	if len(devices) == 0 || len(binaries) != len(devices) {
		return 0, Success, InvalidValue
	}
	list := d.lookUp(devices)
	if list == nil {
		return 0, Success, InvalidDevice
	}
	total := 0
	for i, dev := range list {
		if !ctx.has(dev) || len(list) != len(devices) {
			return 0, Success, InvalidDevice
		}
		if len(binaries[i]) == 0 {
			return 0, InvalidValue, InvalidValue
		}
		total += len(binaries[i])
	}
	if total > maxSourceBytes {
		return 0, InvalidBinary, OutOfHostMemory
	}
	p := &Program{d: d, ctx: ctx, devices: list, kind: programBinaries, binaries: binaries, id: d.newID(), builds: map[uint32]*build{}}
	w, status := ctx.worker()
	if status == Success {
		status = p.createRemote(w)
	}
	if status != Success {
		return 0, status, status
	}
	h, status = d.showProgram(p)
	return h, Success, status
}

func (d *Driver) showProgram(p *Program) (uintptr, Status) {
	if p.id == 0 {
		p.id, p.builds = d.newID(), map[uint32]*build{}
	}
	if p.kind != programLinked {
		p.refs.Set(1)
	}
	h, err := d.programs.Put(p)
	if err != nil {
		return 0, OutOfHostMemory
	}
	p.handle = h
	p.ctx.refs.Retain()
	return h, Success
}

// blobPiece is how much of a blob one record carries.
const blobPiece = 60 << 10

func (w *worker) sendBlob(id uint64, parts ...[]byte) error {
	var total, at uint64
	for _, part := range parts {
		total += uint64(len(part))
	}
	if total == 0 {
		return w.send(&clwire.Blob{ID: id}, 0, 0)
	}
	for _, part := range parts {
		for len(part) > 0 {
			n := min(len(part), blobPiece)
			if err := w.send(&clwire.Blob{ID: id, Total: total, Offset: at, Data: part[:n]}, 0, 0); err != nil {
				return err
			}
			part, at = part[n:], at+uint64(n)
		}
	}
	return nil
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
func (p *Program) createRemote(w *worker) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created {
		return Success
	}
	if p.kind == programLinked {
		return InvalidProgram // linking failed
	}
	m := &clwire.CreateProgram{ID: p.id, Context: p.ctx.id, Kind: clwire.ProgramSource, Blob: p.d.newID()}
	if p.kind == programSource {
		if w.sendBlob(m.Blob, []byte(includes.Localize(p.source))) != nil || w.send(m, 0, 0) != nil {
			return OutOfResources
		}
		p.created = true
		return Success
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
	if w.sendBlob(m.Blob, p.binaries...) != nil {
		return OutOfResources
	}
	c, err := w.ask(m)
	if err != nil {
		return OutOfResources
	}
	p.created = c.status == Success
	return c.status
}

func (p *Program) takeKernelsLocked(kernels []clwire.KernelFacts) {
	p.facts, p.order = map[string]*kernelFacts{}, nil
	for i := range kernels {
		p.facts[kernels[i].Name] = newKernelFacts(&kernels[i])
		p.order = append(p.order, kernels[i].Name)
	}
}

// executableLocked says whether some device has a program that was built or linked, and not only compiled.
func (p *Program) executableLocked() bool {
	if p.kind == programBuiltIn {
		return true
	}
	for _, b := range p.builds {
		if b.status == buildSuccess && p.facts != nil {
			return true
		}
	}
	return false
}

// RetainProgram is clRetainProgram.
func (d *Driver) RetainProgram(h uintptr) Status {
	if p := d.programs.Get(h); p != nil && p.refs.Retain() {
		return Success
	}
	return InvalidProgram
}

// ReleaseProgram is clReleaseProgram.
func (d *Driver) ReleaseProgram(h uintptr) Status {
	p := d.programs.Get(h)
	if p == nil || !d.releaseProgram(p) {
		return InvalidProgram
	}
	return Success
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
	p.mu.Lock()
	known := p.created || p.kind == programLinked
	p.mu.Unlock()
	if w := p.ctx.bound(); w != nil && known {
		w.tell(&clwire.Release{ID: p.id})
	}
}

// ProgramInfo is clGetProgramInfo (§5.8.7), all but CL_PROGRAM_BINARIES.
func (d *Driver) ProgramInfo(h uintptr, param uint32) ([]byte, Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, InvalidProgram
	}
	switch param {
	case 0x1160:
		return infoU32(p.refs.Count()), Success
	case 0x1161:
		return infoSize(p.ctx.handle), Success
	case 0x1162:
		return infoU32(uint32(len(p.devices))), Success
	case 0x1163:
		return infoHandles(handlesOf(p.devices)), Success
	case 0x1164:
		return infoString(p.source), Success
	case 0x1165:
		return p.binarySizes()
	case 0x1167, 0x1168:
		return p.kernelNames(param)
	case 0x1169:
		if p.kind == programIL {
			return p.binaries[0], Success
		}
		return []byte{}, Success
	case 0x116A, 0x116B:
		return infoU32(0), Success
	}
	return nil, InvalidValue
}

func (p *Program) kernelNames(param uint32) ([]byte, Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.executableLocked() {
		return nil, InvalidProgramExecutable
	}
	if param == 0x1167 {
		return infoSize(len(p.order)), Success
	}
	return infoString(strings.Join(p.order, ";")), Success
}

// binarySizes is CL_PROGRAM_BINARY_SIZES: of the program's devices in its order.
func (p *Program) binarySizes() ([]byte, Status) {
	sizes := make([]uint64, len(p.devices))
	p.mu.Lock()
	created := p.created
	p.mu.Unlock()
	if w := p.ctx.bound(); w != nil && created {
		c, err := w.ask(&clwire.Query{Kind: clwire.QueryProgram, Object: p.id, Param: 0x1165})
		if err != nil {
			return nil, OutOfResources
		}
		if c.status != Success {
			return nil, c.status
		}
		for i := range sizes {
			if len(c.data) >= 8*(i+1) {
				sizes[i] = le.Uint64(c.data[8*i:])
			}
		}
	}
	return infoSizes(sizes), Success
}

// Binaries is CL_PROGRAM_BINARIES: one slice a device, empty where there is none.
func (d *Driver) Binaries(h uintptr) ([][]byte, Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, InvalidProgram
	}
	raw, status := p.binarySizes()
	if status != Success {
		return nil, status
	}
	list := make([][]byte, len(p.devices))
	w := p.ctx.bound()
	if w == nil {
		return list, Success
	}
	c, err := w.ask(&clwire.Query{Kind: clwire.QueryProgram, Object: p.id, Param: 0x1166})
	if err != nil {
		return nil, OutOfResources
	}
	if c.status != Success {
		return nil, c.status
	}
	rest := c.data
	for i := range list {
		n := le.Uint64(raw[8*i:])
		if n > uint64(len(rest)) {
			return nil, OutOfResources
		}
		list[i], rest = rest[:n:n], rest[n:]
	}
	return list, Success
}

// ProgramBuildInfo is clGetProgramBuildInfo (§5.8.7).
func (d *Driver) ProgramBuildInfo(h, device uintptr, param uint32) ([]byte, Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, InvalidProgram
	}
	dev := d.devices.Get(device)
	if dev == nil || !hasDevice(p.devices, dev) {
		return nil, InvalidDevice
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.builds[dev.index]
	if b == nil {
		b = &build{status: buildNone, binaryType: binaryTypeNone, by: &construction{}}
	}
	switch param {
	case 0x1181:
		return infoU32(uint32(b.status)), Success
	case 0x1182:
		return infoString(b.by.options), Success
	case 0x1183:
		return infoString(text(b.log)), Success
	case 0x1184:
		return infoU32(b.binaryType), Success
	case 0x1185:
		return infoSize(b.globals), Success
	}
	return nil, InvalidValue
}
