package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"tendril/forwarding/clwire"
)

// Program is a cl_program from source or binaries.
type Program struct {
	refs
	d        *Driver
	handle   uintptr
	id       uint64
	ctx      *Context
	devices  []*Device
	source   string
	binaries [][]byte // one a device; nil: from source

	mu       sync.Mutex
	created  bool // the worker knows it
	builds   map[uint32]*build
	facts    map[string]*kernelFacts // of the last successful build
	order    []string                // kernel names as the driver lists them
	kernels  int                     // attached kernel objects: no build while there are any
	building int
}

// build is clGetProgramBuildInfo for one device.
type build struct {
	status     int32
	options    string
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
	p := &Program{d: d, ctx: ctx, devices: list, binaries: binaries, id: d.newID(), builds: map[uint32]*build{}}
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
	p.n.Store(1)
	h, err := d.programs.Put(p)
	if err != nil {
		return 0, OutOfHostMemory
	}
	p.handle = h
	p.ctx.retain()
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

// createRemote makes the program known to the worker. Binaries are judged by the driver; source cannot be wrong yet.
func (p *Program) createRemote(w *worker) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created {
		return Success
	}
	m := &clwire.CreateProgram{ID: p.id, Context: p.ctx.id, Kind: clwire.ProgramSource, Blob: p.d.newID()}
	if p.binaries == nil {
		if w.sendBlob(m.Blob, []byte(p.source)) != nil || w.send(m, 0, 0) != nil {
			return OutOfResources
		}
		p.created = true
		return Success
	}
	m.Kind = clwire.ProgramBinaries
	for i, dev := range p.devices {
		m.Binaries = append(m.Binaries, clwire.DeviceBytes{Device: dev.index, Bytes: uint64(len(p.binaries[i]))})
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

// Build is clBuildProgram (§5.8.2). With done the call returns at once, and done runs when the build has ended.
func (d *Driver) Build(h uintptr, hasList bool, devices []uintptr, options string, done func()) Status {
	p := d.programs.Get(h)
	if p == nil {
		return InvalidProgram
	}
	if hasList != (len(devices) > 0) {
		return InvalidValue
	}
	list := p.devices
	if hasList {
		if list = d.lookUp(devices); list == nil {
			return InvalidDevice
		}
		for _, dev := range list {
			if !hasDevice(p.devices, dev) {
				return InvalidDevice
			}
		}
	}
	if status := p.startBuild(list, options); status != Success {
		return status
	}
	w, status := p.ctx.worker()
	if status == Success {
		status = p.createRemote(w)
	}
	if status != Success {
		p.failBuild(list, status)
		return status
	}
	if done == nil {
		return p.build(w, list, options)
	}
	p.retain()
	go func() {
		p.build(w, list, options)
		d.callbacks.run(func() {
			done()
			d.releaseProgram(p)
		})
	}()
	return Success
}

func hasDevice(list []*Device, dev *Device) bool {
	for _, own := range list {
		if own == dev {
			return true
		}
	}
	return false
}

func (p *Program) startBuild(list []*Device, options string) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kernels > 0 || p.building > 0 {
		return InvalidOperation
	}
	p.building++
	for _, dev := range list {
		p.builds[dev.index] = &build{status: buildInProgress, options: options}
	}
	return Success
}

func (p *Program) failBuild(list []*Device, status Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.building--
	for _, dev := range list {
		p.builds[dev.index].status = buildError
		p.builds[dev.index].log = fmt.Appendf(nil, "tendril: the worker did not build this program (status %d)", status)
	}
}

// build asks the worker and takes its answer over.
func (p *Program) build(w *worker, list []*Device, options string) Status {
	c, err := w.ask(&clwire.BuildProgram{Program: p.id, Devices: indices(list), Options: []byte(options)})
	if err != nil {
		p.failBuild(list, OutOfResources)
		return OutOfResources
	}
	var result clwire.BuildResult
	if len(c.data) > 0 {
		if err := json.Unmarshal(c.data, &result); err != nil {
			p.failBuild(list, OutOfResources)
			return OutOfResources
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.building--
	for _, dev := range list { // a device the answer leaves out did not build
		p.builds[dev.index].status = buildError
		if c.status == Success {
			p.builds[dev.index].status = buildSuccess
		}
	}
	for _, answer := range result.Devices {
		if b := p.builds[answer.Device]; b != nil {
			b.status, b.log, b.binaryType, b.globals = answer.Status, p.explained(answer.Status, answer.Log), answer.BinaryType, answer.GlobalVarBytes
		}
	}
	if c.status == Success {
		p.takeKernelsLocked(result.Kernels)
	}
	return c.status
}

const noIncludes = "tendril: #include finds no file: the compiler runs in the device's sandbox, where this program's files are not; put the text into the source"

// explained is a build's log; a failed one of a source that includes files says why the compiler found none.
func (p *Program) explained(status int32, log []byte) []byte {
	if status != buildError || !strings.Contains(p.source, "#include") {
		return log
	}
	return fmt.Appendf(nil, "%s\n%s\n", strings.TrimRight(text(log), "\n"), noIncludes)
}

func (p *Program) takeKernelsLocked(kernels []clwire.KernelFacts) {
	p.facts, p.order = map[string]*kernelFacts{}, nil
	for i := range kernels {
		p.facts[kernels[i].Name] = newKernelFacts(&kernels[i])
		p.order = append(p.order, kernels[i].Name)
	}
}

// executable says whether some device has a built program.
func (p *Program) executableLocked() bool {
	for _, b := range p.builds {
		if b.status == buildSuccess {
			return p.facts != nil
		}
	}
	return false
}

// RetainProgram is clRetainProgram.
func (d *Driver) RetainProgram(h uintptr) Status {
	if p := d.programs.Get(h); p != nil && p.retain() {
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
	ok, last := p.release()
	if last {
		d.programs.Remove(p.handle)
		p.mu.Lock()
		created := p.created
		p.mu.Unlock()
		if w := p.ctx.bound(); w != nil && created {
			w.tell(&clwire.Release{ID: p.id})
		}
		d.releaseContext(p.ctx)
	}
	return ok
}

// ProgramInfo is clGetProgramInfo (§5.8.7), all but CL_PROGRAM_BINARIES.
func (d *Driver) ProgramInfo(h uintptr, param uint32) ([]byte, Status) {
	p := d.programs.Get(h)
	if p == nil {
		return nil, InvalidProgram
	}
	switch param {
	case 0x1160:
		return infoU32(p.count()), Success
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
		b = &build{status: buildNone, binaryType: binaryTypeNone}
	}
	switch param {
	case 0x1181:
		return infoU32(uint32(b.status)), Success
	case 0x1182:
		return infoString(b.options), Success
	case 0x1183:
		return infoString(text(b.log)), Success
	case 0x1184:
		return infoU32(b.binaryType), Success
	case 0x1185:
		return infoSize(b.globals), Success
	}
	return nil, InvalidValue
}
