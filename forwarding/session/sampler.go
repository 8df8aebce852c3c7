package session

import (
	"sync"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
)

// Sampler is a cl_sampler. The worker hears of it when a kernel uses it.
type Sampler struct {
	refs   handle.Refs
	d      *Driver
	handle uintptr
	id     uint64
	ctx    *Context
	given  []uint64 // properties, 0-terminated; nil: none

	normalized         bool
	addressing, filter uint32

	mu     sync.Mutex // before worker.segMu, as Buffer.mu
	remote *worker    // that knows it; guarded by mu
}

// Sampler parameters and values (CL_SAMPLER_…, CL_ADDRESS_…, CL_FILTER_…).
const (
	samplerNormalized = 0x1152
	samplerAddressing = 0x1153
	samplerFilter     = 0x1154
	addressNone       = 0x1130
	addressClamp      = 0x1132
	addressRepeat     = 0x1133
	addressMirrored   = 0x1134
	filterNearest     = 0x1140
	filterLinear      = 0x1141
)

// CreateSampler is clCreateSampler (OpenCL 1.2 §5.5).
func (d *Driver) CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, Status) {
	return d.createSampler(context, uint64(normalized), uint64(addressing), uint64(filter), nil)
}

// CreateSamplerWithProperties is clCreateSamplerWithProperties (§5.7.1); given is 0-terminated, nil for NULL.
func (d *Driver) CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, Status) {
	values := map[uint64]uint64{samplerNormalized: 1, samplerAddressing: addressClamp, samplerFilter: filterNearest}
	seen := map[uint64]bool{}
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		if _, known := values[given[i]]; !known || seen[given[i]] {
			if d.contexts.Get(context) == nil {
				return 0, InvalidContext
			}
			return 0, InvalidValue
		}
		seen[given[i]] = true
		values[given[i]] = given[i+1]
	}
	return d.createSampler(context, values[samplerNormalized], values[samplerAddressing], values[samplerFilter], given)
}

func (d *Driver) createSampler(context uintptr, normalized, addressing, filter uint64, given []uint64) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	wraps := addressing == addressRepeat || addressing == addressMirrored // needs normalized coordinates (§5.7.1)
	if normalized > 1 || addressing < addressNone || addressing > addressMirrored || filter < filterNearest || filter > filterLinear || wraps && normalized == 0 {
		return 0, InvalidValue
	}
	if !ctx.hasImages() {
		return 0, InvalidOperation
	}
	p := &Sampler{d: d, id: d.newID(), ctx: ctx, given: given, normalized: normalized == 1, addressing: uint32(addressing), filter: uint32(filter)}
	p.refs.Set(1)
	h, err := d.samplers.Put(p)
	if err != nil {
		return 0, OutOfHostMemory
	}
	p.handle = h
	ctx.refs.Retain()
	return h, Success
}

// ensureRemote makes the sampler known to the worker before the record that names it.
func (p *Sampler) ensureRemote(w *worker) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remote == w {
		return Success
	}
	if w.send(&clwire.CreateSampler{ID: p.id, Context: p.ctx.id, Normalized: p.normalized, Addressing: p.addressing, Filter: p.filter}, 0, 0) != nil {
		return OutOfResources
	}
	p.remote = w
	return Success
}

// RetainSampler is clRetainSampler.
func (d *Driver) RetainSampler(h uintptr) Status {
	if p := d.samplers.Get(h); p != nil && p.refs.Retain() {
		return Success
	}
	return InvalidSampler
}

// ReleaseSampler is clReleaseSampler.
func (d *Driver) ReleaseSampler(h uintptr) Status {
	p := d.samplers.Get(h)
	if p == nil {
		return InvalidSampler
	}
	ok, last := p.refs.Release()
	if !ok {
		return InvalidSampler
	}
	if last {
		d.samplers.Remove(p.handle)
		p.mu.Lock()
		w := p.remote
		p.mu.Unlock()
		if w != nil {
			w.tell(&clwire.Release{ID: p.id})
		}
		d.releaseContext(p.ctx)
	}
	return Success
}

// SamplerInfo is clGetSamplerInfo (§5.7.2).
func (d *Driver) SamplerInfo(h uintptr, param uint32) ([]byte, Status) {
	p := d.samplers.Get(h)
	if p == nil {
		return nil, InvalidSampler
	}
	switch param {
	case 0x1150:
		return infoU32(p.refs.Count()), Success
	case 0x1151:
		return infoSize(p.ctx.handle), Success
	case samplerNormalized:
		return infoBool(p.normalized), Success
	case samplerAddressing:
		return infoU32(p.addressing), Success
	case samplerFilter:
		return infoU32(p.filter), Success
	case 0x1158:
		return infoSizes(p.given), Success
	}
	return nil, InvalidValue
}

func (k *Kernel) toSampler(size uint64, value HostPtr, a *argument) Status {
	if size != 8 {
		return InvalidArgSize
	}
	if value.Nil() {
		return InvalidArgValue
	}
	p := k.d.samplers.Get(uintptr(le.Uint64(value.bytes(0, 8))))
	if p == nil || p.ctx != k.program.ctx {
		return InvalidSampler
	}
	a.kind, a.sampler = clwire.ArgSampler, p
	le.PutUint64(a.small[:], p.id)
	return Success
}
