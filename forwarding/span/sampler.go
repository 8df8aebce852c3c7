package span

import (
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
)

// Sampler is a cl_sampler of a spanning context: one of session's at each member that has images.
type Sampler struct {
	refs   handle.Refs
	ctx    *Context
	handle uintptr
	inner  []uintptr // by member; 0: no images there; immutable
}

// CreateSampler is clCreateSampler (OpenCL 1.2 §5.5).
func (d *Driver) CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, api.Status) {
	return d.newSampler(context, func(context uintptr) (uintptr, api.Status) {
		return d.base.CreateSampler(context, normalized, addressing, filter)
	})
}

// CreateSamplerWithProperties is clCreateSamplerWithProperties (§5.7.1).
func (d *Driver) CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, api.Status) {
	return d.newSampler(context, func(context uintptr) (uintptr, api.Status) {
		return d.base.CreateSamplerWithProperties(context, given)
	})
}

func (d *Driver) newSampler(context uintptr, create func(context uintptr) (uintptr, api.Status)) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return create(context)
	}
	s := &Sampler{ctx: c, inner: make([]uintptr, len(c.members))}
	made, refused := false, api.Status(cl.SUCCESS)
	for i, m := range c.members {
		h, status := create(m.context)
		switch {
		case status == cl.SUCCESS:
			s.inner[i], made = h, true
		case m.images:
			s.dropInner()
			return 0, status
		case refused == cl.SUCCESS: // of a member without images, which need not take it
			refused = status
		}
	}
	if !made {
		return 0, refused
	}
	s.refs.Set(1)
	h, err := d.samplers.Put(s)
	if err != nil {
		s.dropInner()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	s.handle = h
	c.refs.Retain()
	return h, cl.SUCCESS
}

func (s *Sampler) dropInner() {
	for _, h := range s.inner {
		if h != 0 {
			s.ctx.d.base.ReleaseSampler(h)
		}
	}
}

// RetainSampler is clRetainSampler.
func (d *Driver) RetainSampler(h uintptr) api.Status {
	s := d.samplers.Get(h)
	if s == nil {
		return d.base.RetainSampler(h)
	}
	if !s.refs.Retain() {
		return cl.INVALID_SAMPLER
	}
	return cl.SUCCESS
}

// ReleaseSampler is clReleaseSampler.
func (d *Driver) ReleaseSampler(h uintptr) api.Status {
	s := d.samplers.Get(h)
	if s == nil {
		return d.base.ReleaseSampler(h)
	}
	ok, last := s.refs.Release()
	if !ok {
		return cl.INVALID_SAMPLER
	}
	if last {
		d.samplers.Remove(h)
		s.dropInner()
		s.ctx.drop()
	}
	return cl.SUCCESS
}

// SamplerInfo is clGetSamplerInfo (§5.7.2).
func (d *Driver) SamplerInfo(h uintptr, param uint32) ([]byte, api.Status) {
	s := d.samplers.Get(h)
	switch {
	case s == nil:
		return d.base.SamplerInfo(h, param)
	case param == cl.SAMPLER_REFERENCE_COUNT:
		return answers.U32(s.refs.Count()), cl.SUCCESS
	case param == cl.SAMPLER_CONTEXT:
		return answers.Size(s.ctx.handle), cl.SUCCESS
	}
	return d.base.SamplerInfo(s.inner[slices.IndexFunc(s.inner, func(h uintptr) bool { return h != 0 })], param)
}
