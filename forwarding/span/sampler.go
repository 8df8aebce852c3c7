package span

import (
	"slices"

	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Sampler is a cl_sampler of a spanning context: one of session's at each member that has images.
type Sampler struct {
	refs   handle.Refs
	ctx    *Context
	handle uintptr
	inner  []uintptr // by member; 0: no images there; immutable
}

// Parameters of clGetSamplerInfo.
const (
	samplerRefs    uint32 = 0x1150
	samplerContext uint32 = 0x1151
)

// CreateSampler is clCreateSampler (OpenCL 1.2 §5.5).
func (d *Driver) CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, session.Status) {
	return d.newSampler(context, func(context uintptr) (uintptr, session.Status) {
		return d.Driver.CreateSampler(context, normalized, addressing, filter)
	})
}

// CreateSamplerWithProperties is clCreateSamplerWithProperties (§5.7.1).
func (d *Driver) CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, session.Status) {
	return d.newSampler(context, func(context uintptr) (uintptr, session.Status) {
		return d.Driver.CreateSamplerWithProperties(context, given)
	})
}

func (d *Driver) newSampler(context uintptr, create func(context uintptr) (uintptr, session.Status)) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return create(context)
	}
	s := &Sampler{ctx: c, inner: make([]uintptr, len(c.members))}
	made, refused := false, session.Success
	for i, m := range c.members {
		h, status := create(m.context)
		switch {
		case status == session.Success:
			s.inner[i], made = h, true
		case m.images:
			s.dropInner()
			return 0, status
		case refused == session.Success: // of a member without images, which need not take it
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
		return 0, session.OutOfHostMemory
	}
	s.handle = h
	c.refs.Retain()
	return h, session.Success
}

func (s *Sampler) dropInner() {
	for _, h := range s.inner {
		if h != 0 {
			s.ctx.d.Driver.ReleaseSampler(h)
		}
	}
}

// RetainSampler is clRetainSampler.
func (d *Driver) RetainSampler(h uintptr) session.Status {
	s := d.samplers.Get(h)
	if s == nil {
		return d.Driver.RetainSampler(h)
	}
	if !s.refs.Retain() {
		return session.InvalidSampler
	}
	return session.Success
}

// ReleaseSampler is clReleaseSampler.
func (d *Driver) ReleaseSampler(h uintptr) session.Status {
	s := d.samplers.Get(h)
	if s == nil {
		return d.Driver.ReleaseSampler(h)
	}
	ok, last := s.refs.Release()
	if !ok {
		return session.InvalidSampler
	}
	if last {
		d.samplers.Remove(h)
		s.dropInner()
		s.ctx.drop()
	}
	return session.Success
}

// SamplerInfo is clGetSamplerInfo (§5.7.2).
func (d *Driver) SamplerInfo(h uintptr, param uint32) ([]byte, session.Status) {
	s := d.samplers.Get(h)
	switch {
	case s == nil:
		return d.Driver.SamplerInfo(h, param)
	case param == samplerRefs:
		return infoU32(s.refs.Count()), session.Success
	case param == samplerContext:
		return infoHandle(s.ctx.handle), session.Success
	}
	return d.Driver.SamplerInfo(s.inner[slices.IndexFunc(s.inner, func(h uintptr) bool { return h != 0 })], param)
}
