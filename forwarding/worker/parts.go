//go:build cgo

package worker

import (
	"fmt"
	"strings"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/include"
)

// Programs in parts, and the files that sources include.

func (s *session) fileData(m *clwire.FileData) error {
	data, err := s.takeBlob(m.Blob)
	if err != nil {
		return err
	}
	s.meetWords(data)
	return s.files.bring(m.Set, data)
}

// compileProgram is clCompileProgram.
func (s *session) compileProgram(h clwire.Header, m *clwire.CompileProgram) error {
	c, err := s.prepare(&m.BuildProgram, "clCompileProgram")
	if err != nil {
		return err
	}
	names := make([]string, len(m.Headers))
	for i, header := range m.Headers {
		p, err := lookup[*program](s, header.Program)
		if err != nil {
			return err
		}
		if names[i] = header.Name; strings.IndexByte(header.Name, 0) >= 0 {
			return fmt.Errorf("%w: the name of header %d holds a zero", errRecord, i)
		}
		c.after = append(c.after, p)
	}
	c.call = func(options string) opencl.Status {
		headers := make([]opencl.Header, len(names))
		for i, p := range c.after {
			headers[i] = opencl.Header{Program: p.native, Name: names[i]}
		}
		return c.program.native.Compile(c.devices, options, headers)
	}
	s.construct(h, c)
	return nil
}

// linkProgram is clLinkProgram: the new program is in its table at once, and there when the link is over.
func (s *session) linkProgram(h clwire.Header, m *clwire.LinkProgram) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	context, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	p := &program{context: context, status: context.status, linked: true}
	p.refs.Store(1)
	c := &construction{program: p, what: "clLinkProgram", options: string(m.Options),
		indices: append([]uint32(nil), m.Devices...), kernels: true}
	if c.devices, err = s.nativeDevices(m.Devices); err != nil {
		return err
	}
	if len(c.indices) == 0 {
		c.indices = context.devices
	}
	for _, id := range m.Programs {
		in, err := lookup[*program](s, id)
		if err != nil {
			return err
		}
		c.after = append(c.after, in)
	}
	p.devices = c.indices
	c.call = func(options string) opencl.Status {
		inputs := make([]opencl.Program, len(c.after))
		for i, in := range c.after {
			inputs[i] = in.native
		}
		var status opencl.Status
		p.native, status = context.native.Link(c.devices, options, inputs)
		for _, in := range c.after {
			p.sources = withSources(p.sources, in.parts())
		}
		if p.native == 0 {
			p.status = cl.INVALID_PROGRAM
		}
		return status
	}
	s.objects[m.ID] = p
	s.construct(h, c)
	return nil
}

// fileSets are the sets of files that builds to come will use up. The reader's, but for lay.
type fileSets struct {
	store *include.Store // nil: none can be kept
	sets  map[uint64]*fileSet
}

// fileSet is one of them. It does not change once a build has taken it.
type fileSet struct {
	manifest *clwire.FilesManifest
	missing  []uint32
	data     []byte // of missing
}

const maxFileSets = 64

func (s *session) filesRecord(h clwire.Header, m *clwire.Files) error {
	blob, err := s.takeBlob(m.Blob)
	if err != nil {
		return err
	}
	f := &s.files
	if _, taken := f.sets[m.Set]; taken || m.Set == 0 || len(f.sets) >= maxFileSets {
		return fmt.Errorf("%w: set of files %d, %d wait to be used", errRecord, m.Set, len(f.sets))
	}
	set := &fileSet{}
	if set.manifest, err = include.ParseManifest(blob); err != nil {
		return err
	}
	if f.sets == nil {
		f.sets = map[uint64]*fileSet{}
	}
	f.sets[m.Set] = set
	var out []byte
	if f.store != nil {
		set.missing = f.store.Missing(set.manifest)
	}
	for _, i := range set.missing {
		out = nativeOrder.AppendUint32(out, i)
	}
	if h.Request != 0 {
		s.reply(h.Request, cl.SUCCESS, out)
	}
	return nil
}

// bring takes what was missing of a set.
func (f *fileSets) bring(id uint64, data []byte) error {
	set := f.sets[id]
	if set == nil || set.data != nil {
		return fmt.Errorf("%w: no set of files %d that lacks any", errRecord, id)
	}
	if set.data = data; data == nil {
		set.data = []byte{}
	}
	return nil
}

// take uses a set up; 0 is none.
func (f *fileSets) take(id uint64) (*fileSet, error) {
	if id == 0 {
		return nil, nil
	}
	set := f.sets[id]
	if set == nil {
		return nil, fmt.Errorf("%w: no set of files %d", errRecord, id)
	}
	delete(f.sets, id)
	return set, nil
}

// lay keeps what came and makes the layout; nil without a set.
func (f *fileSets) lay(set *fileSet) (*include.Layout, error) {
	if set == nil {
		return nil, nil
	}
	if f.store == nil {
		return nil, fmt.Errorf("this worker has no directory for included files")
	}
	if err := f.store.Put(set.manifest, set.missing, set.data); err != nil {
		return nil, err
	}
	return f.store.Lay(set.manifest)
}
