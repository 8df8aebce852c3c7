//go:build cgo

package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// construction is one build, compilation or link under way: everything that its goroutine needs.
type construction struct {
	program *program
	devices []opencl.Device
	indices []uint32
	options string
	files   *fileSet // nil: none
	what    string
	call    func(options string) opencl.Status // the driver's; sets program.native where that is new
	after   []*program                         // others whose builds must be over before
	kernels bool                               // the result has facts of them
	limit   time.Duration                      // 0: none
}

// build is clBuildProgram.
func (s *session) build(h clwire.Header, m *clwire.BuildProgram) error {
	c, err := s.prepare(m, "clBuildProgram")
	if err != nil {
		return err
	}
	c.kernels = true
	c.call = func(options string) opencl.Status { return c.program.native.Build(c.devices, options) }
	s.construct(h, c)
	return nil
}

// prepare checks what a build and a compilation have in common.
func (s *session) prepare(m *clwire.BuildProgram, what string) (*construction, error) {
	p, err := lookup[*program](s, m.Program)
	if err != nil {
		return nil, err
	}
	c := &construction{program: p, what: what, options: string(m.Options), indices: append([]uint32(nil), m.Devices...)}
	if c.devices, err = s.nativeDevices(m.Devices); err != nil {
		return nil, err
	}
	if len(c.indices) == 0 {
		c.indices = p.context.devices
	}
	c.files, err = s.files.take(m.Files)
	return c, err
}

// construct runs in a goroutine of its own, after what was asked for before of the same programs.
func (s *session) construct(h clwire.Header, c *construction) {
	p := c.program
	id := h.Request
	c.limit = s.buildLimit()
	var before []chan struct{}
	for _, of := range append([]*program{p}, c.after...) {
		if of.built != nil {
			before = append(before, of.built)
		}
		of.refs.Add(1)
	}
	built := make(chan struct{})
	p.built = built
	s.work.Go(func() {
		defer func() {
			for _, of := range append([]*program{p}, c.after...) {
				of.unref()
			}
		}()
		for _, over := range before {
			<-over
		}
		status, result := s.compile(c)
		close(built)
		if id != 0 {
			s.reply(id, status, result)
		} else if status != cl.SUCCESS {
			s.sendNow(&clwire.Fault{Status: int32(status), Text: c.what})
		}
	})
}

func (s *session) compile(c *construction) (opencl.Status, []byte) {
	p := c.program
	if p.status != cl.SUCCESS {
		return p.status, nil
	}
	for _, of := range c.after {
		if of.status != cl.SUCCESS {
			p.status = cl.INVALID_PROGRAM
			return of.status, nil
		}
	}
	layout, err := s.files.lay(c.files)
	if err != nil {
		return cl.OUT_OF_HOST_MEMORY, s.complain(c, err)
	}
	if layout != nil {
		defer layout.Remove()
	}
	defer s.timed(c)()
	defer s.journal.Call(c.what)()
	var status opencl.Status
	if err := layout.Run(func() error { status = c.call(layout.Options(c.options)); return nil }); err != nil {
		return cl.OUT_OF_HOST_MEMORY, s.complain(c, err)
	}
	r := clwire.BuildResult{Made: p.native != 0}
	for _, i := range c.indices {
		if p.native == 0 {
			break
		}
		d := buildDevice(p.native, s.device(i), i)
		d.Log = []byte(layout.Log(string(d.Log)))
		r.Devices = append(r.Devices, d)
	}
	if status == cl.SUCCESS && c.kernels {
		r.Kernels = s.kernelFacts(p)
	}
	return status, s.described(&r)
}

// complain is the result of a build that the driver was not asked for.
func (s *session) complain(c *construction, err error) []byte {
	var r clwire.BuildResult
	for _, i := range c.indices {
		r.Devices = append(r.Devices,
			clwire.BuildDevice{Device: i, Status: cl.BUILD_ERROR, Log: []byte("tendril: " + err.Error() + "\n")})
	}
	return s.described(&r)
}

func (s *session) described(r *clwire.BuildResult) []byte {
	out, err := json.Marshal(r)
	if err != nil {
		s.fail(fmt.Errorf("describe a build: %w", err))
	}
	return out
}

func buildDevice(p opencl.Program, d opencl.Device, index uint32) clwire.BuildDevice {
	b := clwire.BuildDevice{Device: index}
	status, _ := p.BuildInfo(d, cl.PROGRAM_BUILD_STATUS)
	b.Status = int32(answers.Number(status))
	log, _ := p.BuildInfo(d, cl.PROGRAM_BUILD_LOG)
	b.Log = []byte(answers.Text(log))
	kind, _ := p.BuildInfo(d, cl.PROGRAM_BINARY_TYPE)
	b.BinaryType = uint32(answers.Number(kind))
	vars, _ := p.BuildInfo(d, cl.PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE)
	b.GlobalVarBytes = answers.Number(vars)
	return b
}

// kernelFacts makes each kernel of a program once, to ask what the client may ask.
func (s *session) kernelFacts(p *program) (facts []clwire.KernelFacts) {
	devices := s.builtFor(p)
	for _, name := range s.namesOf(p) {
		k, status := p.native.CreateKernel(name)
		if status != cl.SUCCESS {
			continue // left out by the preprocessor, or no kernel
		}
		facts = append(facts, s.factsOf(k, name, devices))
		k.Release()
	}
	return facts
}

// namesOf are the names of a program's kernels: the driver's list, or, where the driver is not asked, those in its
// source.
func (s *session) namesOf(p *program) []string {
	if !s.longWords.Load() {
		if list, status := p.native.Info(cl.PROGRAM_KERNEL_NAMES); status == cl.SUCCESS {
			return strings.FieldsFunc(answers.Text(list), func(r rune) bool { return r == ';' })
		}
	}
	return namesIn(p.parts())
}

// parts are the sources of a program: its own, or of those that it was linked of, which may be released before anybody
// looks into them. Looking takes seconds in a hostile source of many MiB: it is a build's work and not the reader's.
func (p *program) parts() []*sourceText {
	p.asked.Do(func() {
		if !p.linked {
			text, _ := p.native.Info(cl.PROGRAM_SOURCE)
			p.sources = []*sourceText{{text: bytes.TrimRight(text, "\x00")}}
		}
	})
	return p.sources
}

// meetWords looks at what a program may be built from.
func (s *session) meetWords(data []byte) {
	if !s.longWords.Load() && hasLongWord(data) {
		s.longWords.Store(true)
	}
}

// builtFor are the devices for which there is an executable, of this build or of one before.
func (s *session) builtFor(p *program) (devices []uint32) {
	for _, i := range p.devices {
		if status, _ := p.native.BuildInfo(s.device(i), cl.PROGRAM_BUILD_STATUS); p.builtIn ||
			int32(answers.Number(status)) == cl.BUILD_SUCCESS {
			devices = append(devices, i)
		}
	}
	return devices
}

// oneKernel answers for a kernel that a build's result did not name, as the driver does: with its refusal, or its
// facts.
func (s *session) oneKernel(p *program, name string) ([]byte, opencl.Status) {
	k, status := p.native.CreateKernel(name)
	if status != cl.SUCCESS {
		return nil, status
	}
	defer k.Release()
	out, err := json.Marshal(s.factsOf(k, name, s.builtFor(p)))
	if err != nil {
		return nil, cl.OUT_OF_HOST_MEMORY
	}
	return out, status
}

// factsOf asks for everything; it leaves k with arguments set.
func (s *session) factsOf(k opencl.Kernel, name string, indices []uint32) clwire.KernelFacts {
	n, _ := k.Info(cl.KERNEL_NUM_ARGS)
	attributes, _ := k.Info(cl.KERNEL_ATTRIBUTES)
	f := clwire.KernelFacts{Name: name, NumArgs: uint32(answers.Number(n)), Attributes: answers.Text(attributes),
		HasArgInfo: true}
	for i := range min(f.NumArgs, clwire.MaxArgs) {
		a, ok := argFacts(k, i)
		if !ok {
			f.HasArgInfo, f.Args, f.Shapes = false, nil, argShapes(k, f.NumArgs)
			break
		}
		f.Args = append(f.Args, a)
	}
	for _, i := range indices {
		f.WorkGroups = append(f.WorkGroups, workGroup(k, s.device(i), i))
	}
	return f
}

func argFacts(k opencl.Kernel, i uint32) (clwire.ArgFacts, bool) {
	address, s1 := k.ArgInfo(i, cl.KERNEL_ARG_ADDRESS_QUALIFIER)
	access, s2 := k.ArgInfo(i, cl.KERNEL_ARG_ACCESS_QUALIFIER)
	typeName, s3 := k.ArgInfo(i, cl.KERNEL_ARG_TYPE_NAME)
	qualifier, s4 := k.ArgInfo(i, cl.KERNEL_ARG_TYPE_QUALIFIER)
	name, s5 := k.ArgInfo(i, cl.KERNEL_ARG_NAME)
	for _, s := range [...]opencl.Status{s1, s2, s3, s4, s5} {
		if s != cl.SUCCESS {
			return clwire.ArgFacts{}, false
		}
	}
	return clwire.ArgFacts{Address: uint32(answers.Number(address)), Access: uint32(answers.Number(access)),
		TypeQualifier: answers.Number(qualifier),
		TypeName:      answers.Text(typeName), Name: answers.Text(name)}, true
}

func workGroup(k opencl.Kernel, d opencl.Device, index uint32) clwire.WorkGroup {
	ask := func(param uint32) uint64 {
		b, _ := k.WorkGroupInfo(d, param)
		return answers.Number(b)
	}
	w := clwire.WorkGroup{Device: index, Size: ask(cl.KERNEL_WORK_GROUP_SIZE),
		LocalBytes:        ask(cl.KERNEL_LOCAL_MEM_SIZE),
		PreferredMultiple: ask(cl.KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE),
		PrivateBytes:      ask(cl.KERNEL_PRIVATE_MEM_SIZE)}
	if b, s := k.WorkGroupInfo(d, cl.KERNEL_COMPILE_WORK_GROUP_SIZE); s == cl.SUCCESS && len(b) == 24 {
		for i := range w.CompileSize {
			w.CompileSize[i] = nativeOrder.Uint64(b[8*i:])
		}
	}
	return w
}

// query reads one native value, in a goroutine: the object may be under construction.
func (s *session) query(h clwire.Header, m *clwire.Query) error {
	if h.Request == 0 {
		return fmt.Errorf("%w: a query that nobody waits for", errRecord)
	}
	var device opencl.Device
	if d, err := s.nativeDevices([]uint32{m.Device}); err == nil {
		device = d[0]
	}
	input := append([]byte(nil), m.Input...)
	q := *m
	switch m.Kind {
	case clwire.QueryDeviceTimer:
		return s.timers(h, m.Device)
	case clwire.QueryProgram, clwire.QueryProgramBuild, clwire.QueryKernelFacts:
		p, err := lookup[*program](s, m.Object)
		if err != nil {
			return err
		}
		built := p.built
		p.refs.Add(1)
		s.work.Go(func() {
			defer p.unref()
			if built != nil {
				<-built
			}
			data, status := s.askProgram(p, &q, device, string(input))
			s.reply(h.Request, status, data)
		})
	case clwire.QueryKernel, clwire.QueryKernelArg, clwire.QueryKernelWorkGroup, clwire.QueryKernelSubGroup:
		k, err := lookup[*kernel](s, m.Object)
		if err != nil {
			return err
		}
		k.refs.Add(1)
		s.work.Go(func() {
			defer k.unref()
			if k.ready != nil {
				<-k.ready
			}
			data, status := askKernel(k, &q, device, input)
			s.reply(h.Request, status, data)
		})
	default:
		return fmt.Errorf("%w: query of kind %d", errRecord, m.Kind)
	}
	return nil
}

func (s *session) askProgram(p *program, q *clwire.Query, d opencl.Device, input string) ([]byte, opencl.Status) {
	switch {
	case p.status != cl.SUCCESS:
		return nil, p.status
	case q.Kind == clwire.QueryKernelFacts:
		return s.oneKernel(p, input)
	case q.Kind == clwire.QueryProgramBuild && d == 0:
		return nil, cl.INVALID_DEVICE
	case q.Kind == clwire.QueryProgramBuild:
		return p.native.BuildInfo(d, q.Param)
	case q.Param == cl.PROGRAM_CONTEXT || q.Param == cl.PROGRAM_DEVICES:
		return nil, cl.INVALID_VALUE
	case q.Param == cl.PROGRAM_BINARY_SIZES || q.Param == cl.PROGRAM_BINARIES:
		return s.binaries(p, q.Param)
	}
	return p.native.Info(q.Param)
}

// binaries is CL_PROGRAM_BINARY_SIZES and CL_PROGRAM_BINARIES (one after another), of the program's devices in the
// client's order. A driver that names a device in the place of its parts has one binary for all of them.
func (s *session) binaries(p *program, param uint32) ([]byte, opencl.Status) {
	devices, status := p.native.Devices()
	if status != cl.SUCCESS {
		return nil, status
	}
	sizes, status := p.native.Info(cl.PROGRAM_BINARY_SIZES)
	if status != cl.SUCCESS {
		return nil, status
	}
	var bytes []byte
	if param == cl.PROGRAM_BINARIES {
		if bytes, status = p.native.Binaries(); status != cl.SUCCESS {
			return nil, status
		}
	}
	var out []byte
	for _, i := range p.devices {
		at, size, begin := s.position(devices, s.device(i)), uint64(0), uint64(0)
		for j := 0; j <= at && 8*(j+1) <= len(sizes); j++ {
			begin, size = begin+size, nativeOrder.Uint64(sizes[8*j:])
		}
		switch {
		case param == cl.PROGRAM_BINARY_SIZES:
			out = nativeOrder.AppendUint64(out, size)
		case begin+size > uint64(len(bytes)): // built again meanwhile
			return nil, cl.INVALID_PROGRAM
		default:
			out = append(out, bytes[begin:begin+size]...)
		}
	}
	return out, cl.SUCCESS
}

// position finds a device, or else one that it is a part of, in a list; -1: neither is there.
func (s *session) position(list []opencl.Device, d opencl.Device) int {
	for d != 0 {
		if at := slices.Index(list, d); at >= 0 {
			return at
		}
		parent, _ := d.Info(cl.DEVICE_PARENT_DEVICE)
		d = opencl.Device(answers.Number(parent))
	}
	return -1
}

func askKernel(k *kernel, q *clwire.Query, d opencl.Device, input []byte) ([]byte, opencl.Status) {
	switch {
	case k.status != cl.SUCCESS:
		return nil, k.status
	case q.Kind == clwire.QueryKernelArg && len(input) == 4:
		return k.native.ArgInfo(nativeOrder.Uint32(input), q.Param)
	case q.Kind == clwire.QueryKernelWorkGroup && d != 0:
		return k.native.WorkGroupInfo(d, q.Param)
	case q.Kind == clwire.QueryKernelSubGroup && d != 0:
		return k.native.SubGroupInfo(d, q.Param, input)
	case q.Kind == clwire.QueryKernel && q.Param != cl.KERNEL_CONTEXT && q.Param != cl.KERNEL_PROGRAM:
		return k.native.Info(q.Param)
	}
	return nil, cl.INVALID_VALUE
}
