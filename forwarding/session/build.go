package session

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/includes"
)

// construction is one clBuildProgram, clCompileProgram or clLinkProgram: under way, and afterwards what a program's
// code came from on a device.
type construction struct {
	p       *Program
	list    []*Device
	options string
	headers []embedded // of a compilation
	compile bool
	inputs  []*Program // of a link
	given   bool       // a link: the program named the devices
	// manifest of the files that were included, which the worker's tenant has by their hashes; nil: none
	files    []byte
	buildErr api.Status // what the call answers where its sources cannot be read
}

// embedded is one header of clCompileProgram.
type embedded struct {
	p    *Program
	name string
}

// Build is clBuildProgram (§5.8.2). With done the call returns at once, and done runs when the build has ended.
func (d *Driver) Build(h uintptr, hasList bool, devices []uintptr, options string, done func()) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return cl.INVALID_PROGRAM
	}
	list, status := d.buildDevices(p.devices, hasList, devices)
	if status != cl.SUCCESS {
		return status
	}
	return d.construct(&construction{p: p, list: list, options: options, buildErr: cl.BUILD_PROGRAM_FAILURE}, done)
}

// Compile is clCompileProgram (§5.8.4): headers and names are those that the source may include by name. hasHeaders
// and hasNames say which of the arrays the program gave.
func (d *Driver) Compile(h uintptr, hasList bool, devices []uintptr, options string, headers []uintptr, names []string,
	hasHeaders, hasNames bool, done func()) api.Status {
	p := d.programs.Get(h)
	if p == nil {
		return cl.INVALID_PROGRAM
	}
	if n := max(len(headers), len(names)); hasHeaders != (n > 0) || hasNames != (n > 0) || n > clwire.MaxPrograms {
		return cl.INVALID_VALUE
	}
	list, status := d.buildDevices(p.devices, hasList, devices)
	if status != cl.SUCCESS {
		return status
	}
	c := &construction{p: p, list: list, options: options, compile: true, buildErr: cl.COMPILE_PROGRAM_FAILURE}
	for i, h := range headers {
		header := d.programs.Get(h)
		if header == nil {
			return cl.INVALID_PROGRAM
		}
		c.headers = append(c.headers, embedded{header, names[i]})
	}
	if p.kind != programSource {
		return cl.INVALID_OPERATION
	}
	for _, header := range c.headers {
		if header.p.kind != programSource {
			return cl.INVALID_OPERATION
		}
	}
	return d.construct(c, done)
}

// buildDevices resolves the devices of a build: all of own without a list.
func (d *Driver) buildDevices(own []*Device, hasList bool, devices []uintptr) ([]*Device, api.Status) {
	if hasList != (len(devices) > 0) {
		return nil, cl.INVALID_VALUE
	}
	if !hasList {
		return own, cl.SUCCESS
	}
	list := d.lookUp(devices)
	if list == nil {
		return nil, cl.INVALID_DEVICE
	}
	for _, dev := range list {
		if !hasDevice(own, dev) {
			return nil, cl.INVALID_DEVICE
		}
	}
	return list, cl.SUCCESS
}

// construct starts the build, and waits for it or lets done tell.
func (d *Driver) construct(c *construction, done func()) api.Status {
	if status := c.p.builds.Begin(indices(c.list), c.options, c); status != cl.SUCCESS {
		return status
	}
	if done == nil {
		return c.run()
	}
	c.p.refs.Retain()
	for _, header := range c.headers {
		header.p.refs.Retain()
	}
	d.background.Go(func() {
		c.run()
		for _, header := range c.headers {
			d.releaseProgram(header.p)
		}
		d.callbacks.Run(func() {
			done()
			d.releaseProgram(c.p)
		})
	})
	return cl.SUCCESS
}

// fail ends a build that the worker did not carry out, and returns the status.
func (c *construction) fail(status api.Status, why string) api.Status {
	c.p.builds.Fail(indices(c.list), "tendril: "+why)
	return status
}

// run makes what the build needs known to the worker, asks for it and takes the answer over.
func (c *construction) run() api.Status {
	w, status := c.p.ctx.worker()
	if status == cl.SUCCESS {
		status = c.prepare(w)
	}
	if status != cl.SUCCESS {
		return c.fail(status, fmt.Sprintf("the worker did not build this program (status %d)", status))
	}
	m, err := c.message(w)
	if errors.Is(err, includes.ErrTooMuch) {
		return c.fail(c.buildErr, err.Error())
	}
	if err != nil {
		return c.fail(cl.OUT_OF_RESOURCES, err.Error())
	}
	answer, err := w.Ask(m)
	if err != nil {
		return c.fail(cl.OUT_OF_RESOURCES, err.Error())
	}
	var result clwire.BuildResult
	if len(answer.Data) > 0 {
		if err := json.Unmarshal(answer.Data, &result); err != nil {
			return c.fail(cl.OUT_OF_RESOURCES, "the worker's answer: "+err.Error())
		}
	}
	c.end(api.Status(answer.Status), &result)
	return api.Status(answer.Status)
}

// prepare makes the programs known to the worker.
func (c *construction) prepare(w *worker) api.Status {
	var all []*Program
	if c.inputs == nil {
		all = append(all, c.p)
	}
	all = append(all, c.inputs...)
	for _, header := range c.headers {
		all = append(all, header.p)
	}
	for _, p := range all {
		if status := p.createRemote(w); status != cl.SUCCESS {
			return status
		}
	}
	return cl.SUCCESS
}

func (c *construction) message(w *worker) (clwire.Message, error) {
	if c.inputs != nil {
		m := &clwire.LinkProgram{ID: c.p.id, Context: c.p.ctx.id, Options: []byte(c.options)}
		if c.given {
			m.Devices = indices(c.list)
		}
		for _, in := range c.inputs {
			m.Programs = append(m.Programs, in.id)
		}
		return m, nil
	}
	options, files, err := c.sendFiles(w)
	if err != nil {
		return nil, err
	}
	m := clwire.BuildProgram{Program: c.p.id, Devices: indices(c.list), Options: []byte(options), Files: files}
	if !c.compile {
		return &m, nil
	}
	compile := &clwire.CompileProgram{BuildProgram: m}
	for _, header := range c.headers {
		compile.Headers = append(compile.Headers, clwire.EmbeddedHeader{Program: header.p.id, Name: header.name})
	}
	return compile, nil
}

// sendFiles finds what the source includes, tells the worker, and sends it what it lacks.
func (c *construction) sendFiles(w *worker) (options string, set uint64, err error) {
	source := includes.Source{Text: c.p.source}
	if len(c.headers) > 0 {
		source.Headers = map[string]string{}
		for _, header := range c.headers {
			source.Headers[header.name] = header.p.source
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return c.options, 0, nil // a directory that is gone holds no files
	}
	found, err := includes.Collect(source, c.options, dir)
	if found == nil || err != nil {
		return c.options, 0, err
	}
	m := clwire.FilesManifest{Dir: []byte(found.Dir)}
	for _, f := range found.Files {
		sum := sha256.Sum256(f.Content)
		m.Files = append(m.Files, clwire.FileEntry{Path: []byte(f.Path), SHA256: sum[:], Bytes: uint64(len(f.Content))})
	}
	manifest, err := json.Marshal(&m)
	if err != nil {
		return "", 0, err
	}
	c.files = manifest
	set = w.d.newID()
	return found.Options, set, w.sendSet(set, manifest, found.Files)
}

// sendSet tells of a set of files and brings what is missing.
func (w *worker) sendSet(set uint64, manifest []byte, files []includes.File) error {
	blob := w.d.newID()
	if err := w.SendBlob(blob, manifest); err != nil {
		return err
	}
	answer, err := w.Ask(&clwire.Files{Set: set, Blob: blob})
	if err != nil || len(answer.Data) == 0 {
		return err
	}
	var missing [][]byte
	for at := 0; at+4 <= len(answer.Data); at += 4 {
		i := le.Uint32(answer.Data[at:])
		if int64(i) >= int64(len(files)) {
			return fmt.Errorf("%w: file %d of %d is missing", clwire.ErrRecord, i, len(files))
		}
		missing = append(missing, files[i].Content)
	}
	blob = w.d.newID()
	if err := w.SendBlob(blob, missing...); err != nil {
		return err
	}
	return w.Send(&clwire.FileData{Set: set, Blob: blob}, 0, 0)
}

// end takes the worker's answer over.
func (c *construction) end(status api.Status, result *clwire.BuildResult) {
	if c.inputs != nil {
		c.p.mu.Lock()
		c.p.created = result.Made
		c.p.mu.Unlock()
	}
	c.p.builds.End(indices(c.list), status, result, c.compile)
}

// Link is clLinkProgram (§5.8.5). done, if not nil, runs when the program is there, which it may be although linking
// failed.
func (d *Driver) Link(context uintptr, hasList bool, devices []uintptr, options string, programs []uintptr,
	done func(program uintptr)) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if len(programs) == 0 || len(programs) > clwire.MaxPrograms || hasList != (len(devices) > 0) {
		return 0, cl.INVALID_VALUE
	}
	list := ctx.devices
	if hasList {
		if list = d.lookUp(devices); list == nil {
			return 0, cl.INVALID_DEVICE
		}
		for _, dev := range list {
			if !ctx.has(dev) {
				return 0, cl.INVALID_DEVICE
			}
		}
	}
	var inputs []*Program
	for _, h := range programs {
		in := d.programs.Get(h)
		if in == nil || in.ctx != ctx {
			return 0, cl.INVALID_PROGRAM
		}
		inputs = append(inputs, in)
	}
	p := &Program{d: d, ctx: ctx, devices: list, kind: programLinked, id: d.newID()}
	p.refs.Set(1)
	c := &construction{p: p, list: list, options: options, inputs: inputs, given: hasList,
		buildErr: cl.LINK_PROGRAM_FAILURE}
	return d.link(c, done)
}

// link waits for the linker also where a callback is given, which is allowed, so that refusals are answered as the
// driver's own are.
func (d *Driver) link(c *construction, done func(uintptr)) (uintptr, api.Status) {
	status := d.construct(c, nil)
	if !c.p.created { // nobody else has it yet
		c.p.forget()
		return 0, status
	}
	h, shown := d.showProgram(c.p)
	if shown != cl.SUCCESS {
		c.p.forget()
		return 0, shown
	}
	if done == nil {
		return h, status
	}
	c.p.refs.Retain()
	d.callbacks.Run(func() {
		done(h)
		d.releaseProgram(c.p)
	})
	return h, status
}
