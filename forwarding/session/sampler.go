package session

import (
	"sync"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/kernelargs"
)

// Sampler is a cl_sampler. The worker hears of it when a kernel uses it.
type Sampler struct {
	refs   handle.Refs
	d      *Driver
	handle uintptr
	ctx    *Context
	given  []uint64 // properties, 0-terminated; nil: none

	normalized         bool
	addressing, filter uint32

	mu           sync.Mutex
	remoteObject // changed under mu
}

// CreateSampler is clCreateSampler (OpenCL 1.2 §5.5).
func (d *Driver) CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, api.Status) {
	return d.createSampler(context, uint64(normalized), uint64(addressing), uint64(filter), nil)
}

// CreateSamplerWithProperties is clCreateSamplerWithProperties (§5.7.1); given is 0-terminated, nil for NULL.
func (d *Driver) CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, api.Status) {
	values := map[uint64]uint64{cl.SAMPLER_NORMALIZED_COORDS: 1, cl.SAMPLER_ADDRESSING_MODE: cl.ADDRESS_CLAMP,
		cl.SAMPLER_FILTER_MODE: cl.FILTER_NEAREST}
	seen := map[uint64]bool{}
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		if _, known := values[given[i]]; !known || seen[given[i]] {
			if d.contexts.Get(context) == nil {
				return 0, cl.INVALID_CONTEXT
			}
			return 0, cl.INVALID_VALUE
		}
		seen[given[i]] = true
		values[given[i]] = given[i+1]
	}
	return d.createSampler(context, values[cl.SAMPLER_NORMALIZED_COORDS], values[cl.SAMPLER_ADDRESSING_MODE],
		values[cl.SAMPLER_FILTER_MODE], given)
}

func (d *Driver) createSampler(context uintptr, normalized, addressing, filter uint64,
	given []uint64) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	// needs normalized coordinates (§5.7.1)
	wraps := addressing == cl.ADDRESS_REPEAT || addressing == cl.ADDRESS_MIRRORED_REPEAT
	if normalized > 1 || addressing < cl.ADDRESS_NONE || addressing > cl.ADDRESS_MIRRORED_REPEAT ||
		filter < cl.FILTER_NEAREST || filter > cl.FILTER_LINEAR || wraps && normalized == 0 {
		return 0, cl.INVALID_VALUE
	}
	if !ctx.hasImages() {
		return 0, cl.INVALID_OPERATION
	}
	p := &Sampler{d: d, ctx: ctx, given: given, normalized: normalized == 1, addressing: uint32(addressing),
		filter: uint32(filter)}
	p.id.Store(d.newID())
	p.refs.Set(1)
	h, err := d.samplers.Put(p)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	p.handle = h
	ctx.refs.Retain()
	return h, cl.SUCCESS
}

// ensureRemote makes the sampler known to the worker before the record that names it.
func (p *Sampler) ensureRemote(w *worker) api.Status {
	if p.remote.Load() == w {
		return cl.SUCCESS
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remote.Load() == w {
		return cl.SUCCESS
	}
	if w.Send(&clwire.CreateSampler{ID: p.id.Load(), Context: p.ctx.id, Normalized: p.normalized,
		Addressing: p.addressing, Filter: p.filter}, 0, 0) != nil {
		return cl.OUT_OF_RESOURCES
	}
	p.remote.Store(w)
	return cl.SUCCESS
}

// Number implements kernelargs.Object, as do the methods below.
func (p *Sampler) Number() uint64 { return p.id.Load() }
func (p *Sampler) Alive() bool    { return p.refs.Alive() }
func (p *Sampler) Retain() bool   { return p.refs.Retain() }

// RetainSampler is clRetainSampler.
func (d *Driver) RetainSampler(h uintptr) api.Status {
	if p := d.samplers.Get(h); p != nil && p.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_SAMPLER
}

// ReleaseSampler is clReleaseSampler.
func (d *Driver) ReleaseSampler(h uintptr) api.Status {
	p := d.samplers.Get(h)
	if p == nil {
		return cl.INVALID_SAMPLER
	}
	ok, last := p.refs.Release()
	if !ok {
		return cl.INVALID_SAMPLER
	}
	if last {
		d.samplers.Remove(p.handle)
		p.releaseRemote()
		d.releaseContext(p.ctx)
	}
	return cl.SUCCESS
}

// SamplerInfo is clGetSamplerInfo (§5.7.2).
func (d *Driver) SamplerInfo(h uintptr, param uint32) ([]byte, api.Status) {
	p := d.samplers.Get(h)
	if p == nil {
		return nil, cl.INVALID_SAMPLER
	}
	switch param {
	case cl.SAMPLER_REFERENCE_COUNT:
		return answers.U32(p.refs.Count()), cl.SUCCESS
	case cl.SAMPLER_CONTEXT:
		return answers.Size(p.ctx.handle), cl.SUCCESS
	case cl.SAMPLER_NORMALIZED_COORDS:
		return answers.Bool(p.normalized), cl.SUCCESS
	case cl.SAMPLER_ADDRESSING_MODE:
		return answers.U32(p.addressing), cl.SUCCESS
	case cl.SAMPLER_FILTER_MODE:
		return answers.U32(p.filter), cl.SUCCESS
	case cl.SAMPLER_PROPERTIES:
		return answers.Sizes(p.given), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (k *Kernel) toSampler(size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	if size != 8 {
		return cl.INVALID_ARG_SIZE
	}
	if value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	p := k.d.samplers.Get(uintptr(le.Uint64(value.Bytes(0, 8))))
	if p == nil || p.ctx != k.program.ctx {
		return cl.INVALID_SAMPLER
	}
	a.SetObject(clwire.ArgSampler, p)
	return cl.SUCCESS
}
