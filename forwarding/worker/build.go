//go:build cgo

package worker

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

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
	kernels bool                               // the result names them
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
		} else if status != opencl.Success {
			s.sendNow(&clwire.Fault{Status: int32(status), Text: c.what})
		}
	})
}

func (s *session) compile(c *construction) (opencl.Status, []byte) {
	p := c.program
	if p.status != opencl.Success {
		return p.status, nil
	}
	for _, of := range c.after {
		if of.status != opencl.Success {
			p.status = opencl.InvalidProgram
			return of.status, nil
		}
	}
	layout, err := s.files.lay(c.files)
	if err != nil {
		return opencl.OutOfHostMemory, s.complain(c, err)
	}
	if layout != nil {
		defer layout.Remove()
	}
	defer s.timed(c)()
	var status opencl.Status
	if err := layout.Run(func() error { status = c.call(layout.Options(c.options)); return nil }); err != nil {
		return opencl.OutOfHostMemory, s.complain(c, err)
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
	if status == opencl.Success && c.kernels {
		r.Kernels = s.kernelFacts(p.native, c.indices)
	}
	return status, s.described(&r)
}

// complain is the result of a build that the driver was not asked for.
func (s *session) complain(c *construction, err error) []byte {
	var r clwire.BuildResult
	for _, i := range c.indices {
		r.Devices = append(r.Devices, clwire.BuildDevice{Device: i, Status: buildFailed, Log: []byte("tendril: " + err.Error() + "\n")})
	}
	return s.described(&r)
}

const buildFailed = -2 // CL_BUILD_ERROR

func (s *session) described(r *clwire.BuildResult) []byte {
	out, err := json.Marshal(r)
	if err != nil {
		s.fail(fmt.Errorf("describe a build: %w", err))
	}
	return out
}

func buildDevice(p opencl.Program, d opencl.Device, index uint32) clwire.BuildDevice {
	b := clwire.BuildDevice{Device: index}
	status, _ := p.BuildInfo(d, opencl.BuildStatus)
	b.Status = int32(number(status))
	log, _ := p.BuildInfo(d, opencl.BuildLog)
	b.Log = []byte(text(log))
	kind, _ := p.BuildInfo(d, opencl.BuildBinaryType)
	b.BinaryType = uint32(number(kind))
	vars, _ := p.BuildInfo(d, opencl.BuildGlobalVarTotal)
	b.GlobalVarBytes = number(vars)
	return b
}

// number reads 4 or 8 bytes of the machine's order; anything else is 0.
func number(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(nativeOrder.Uint32(b))
	case 8:
		return nativeOrder.Uint64(b)
	}
	return 0
}

// text cuts the terminating zero.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// kernelFacts makes each kernel once, to ask what a program may ask.
func (s *session) kernelFacts(p opencl.Program, indices []uint32) []clwire.KernelFacts {
	names, status := p.Info(opencl.ProgramKernelNames)
	if status != opencl.Success {
		return nil
	}
	var facts []clwire.KernelFacts
	for name := range strings.SplitSeq(text(names), ";") {
		if name == "" {
			continue
		}
		k, status := p.CreateKernel(name)
		if status != opencl.Success {
			continue
		}
		facts = append(facts, s.factsOf(k, name, indices))
		k.Release()
	}
	return facts
}

// oneKernel answers for a kernel that a build's result did not name, as the driver does: with its refusal, or its facts.
func (s *session) oneKernel(p *program, name string) ([]byte, opencl.Status) {
	k, status := p.native.CreateKernel(name)
	if status != opencl.Success {
		return nil, status
	}
	defer k.Release()
	var have []uint32
	for _, i := range p.context.devices {
		if size, s := k.WorkGroupInfo(s.device(i), opencl.WorkGroupSize); s == opencl.Success && len(size) > 0 {
			have = append(have, i)
		}
	}
	out, err := json.Marshal(s.factsOf(k, name, have))
	if err != nil {
		return nil, opencl.OutOfHostMemory
	}
	return out, status
}

// factsOf asks for everything; it leaves k with arguments set.
func (s *session) factsOf(k opencl.Kernel, name string, indices []uint32) clwire.KernelFacts {
	n, _ := k.Info(opencl.KernelNumArgs)
	attributes, _ := k.Info(opencl.KernelAttributes)
	f := clwire.KernelFacts{Name: name, NumArgs: uint32(number(n)), Attributes: text(attributes), HasArgInfo: true}
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
	address, s1 := k.ArgInfo(i, opencl.ArgAddress)
	access, s2 := k.ArgInfo(i, opencl.ArgAccess)
	typeName, s3 := k.ArgInfo(i, opencl.ArgTypeName)
	qualifier, s4 := k.ArgInfo(i, opencl.ArgTypeQualifier)
	name, s5 := k.ArgInfo(i, opencl.ArgName)
	for _, s := range [...]opencl.Status{s1, s2, s3, s4, s5} {
		if s != opencl.Success {
			return clwire.ArgFacts{}, false
		}
	}
	return clwire.ArgFacts{Address: uint32(number(address)), Access: uint32(number(access)), TypeQualifier: number(qualifier),
		TypeName: text(typeName), Name: text(name)}, true
}

func workGroup(k opencl.Kernel, d opencl.Device, index uint32) clwire.WorkGroup {
	ask := func(param uint32) uint64 {
		b, _ := k.WorkGroupInfo(d, param)
		return number(b)
	}
	w := clwire.WorkGroup{Device: index, Size: ask(opencl.WorkGroupSize), LocalBytes: ask(opencl.WorkGroupLocalMem),
		PreferredMultiple: ask(opencl.WorkGroupMultiple), PrivateBytes: ask(opencl.WorkGroupPrivateMem)}
	if b, s := k.WorkGroupInfo(d, opencl.WorkGroupCompile); s == opencl.Success && len(b) == 24 {
		for i := range w.CompileSize {
			w.CompileSize[i] = nativeOrder.Uint64(b[8*i:])
		}
	}
	return w
}

// Parameters whose answers hold handles; they mean nothing to a client.
const (
	programContext = 0x1161
	programDevices = 0x1163
	kernelContext  = 0x1193
	kernelProgram  = 0x1194
)

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
	case p.status != opencl.Success:
		return nil, p.status
	case q.Kind == clwire.QueryKernelFacts:
		return s.oneKernel(p, input)
	case q.Kind == clwire.QueryProgramBuild && d == 0:
		return nil, opencl.InvalidDevice
	case q.Kind == clwire.QueryProgramBuild:
		return p.native.BuildInfo(d, q.Param)
	case q.Param == programContext || q.Param == programDevices:
		return nil, opencl.InvalidValue
	}
	return p.native.Info(q.Param)
}

func askKernel(k *kernel, q *clwire.Query, d opencl.Device, input []byte) ([]byte, opencl.Status) {
	switch {
	case k.status != opencl.Success:
		return nil, k.status
	case q.Kind == clwire.QueryKernelArg && len(input) == 4:
		return k.native.ArgInfo(nativeOrder.Uint32(input), q.Param)
	case q.Kind == clwire.QueryKernelWorkGroup && d != 0:
		return k.native.WorkGroupInfo(d, q.Param)
	case q.Kind == clwire.QueryKernelSubGroup && d != 0:
		return k.native.SubGroupInfo(d, q.Param, input)
	case q.Kind == clwire.QueryKernel && q.Param != kernelContext && q.Param != kernelProgram:
		return k.native.Info(q.Param)
	}
	return nil, opencl.InvalidValue
}
