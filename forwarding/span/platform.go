package span

import (
	"slices"
	"strings"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// platform is one that is shown in place of several native ones.
type platform struct {
	handle  uintptr
	members []uintptr // session's platforms, in their order
	info    map[uint32][]byte
}

// Platforms returns the handles of the platforms that the program sees.
func (d *Driver) Platforms() []uintptr {
	inner := d.base.Platforms()
	if d.mode == Native || len(inner) == 0 {
		return inner
	}
	d.once.Do(func() { d.merge(inner) })
	hs := make([]uintptr, len(d.merged))
	for i, p := range d.merged {
		hs[i] = p.handle
	}
	return hs
}

func (d *Driver) merge(inner []uintptr) {
	byNode := map[int]*platform{}
	for _, h := range inner {
		node := 0
		if d.mode == Node {
			node = d.base.NodeOf(h)
		}
		p := byNode[node]
		if p == nil {
			p = &platform{}
			byNode[node] = p
			d.merged = append(d.merged, p)
		}
		p.members = append(p.members, h)
	}
	shown := d.merged[:0]
	for _, p := range d.merged {
		var err error
		if p.handle, err = d.platforms.Put(p); err != nil {
			continue // four thousand nodes: the rest is not shown
		}
		d.describe(p)
		shown = append(shown, p)
	}
	d.merged = shown
}

// describe answers for a platform: the least version among its members, what all of them have, and names of ours.
func (d *Driver) describe(p *platform) {
	p.info = map[uint32][]byte{}
	least := p.members[0]
	for _, h := range p.members[1:] {
		if d.numericVersion(h) < d.numericVersion(least) {
			least = h
		}
	}
	for param := uint32(cl.PLATFORM_PROFILE); param <= cl.PLATFORM_ICD_SUFFIX_KHR; param++ {
		if value, status := d.base.PlatformInfo(least, param); status == cl.SUCCESS {
			p.info[param] = value
		}
	}
	p.info[cl.PLATFORM_NAME] = answers.String("Tendril")
}

// numericVersion is CL_PLATFORM_NUMERIC_VERSION, or what the version's text says.
func (d *Driver) numericVersion(h uintptr) uint32 {
	if value, status := d.base.PlatformInfo(h, cl.PLATFORM_NUMERIC_VERSION); status == cl.SUCCESS && len(value) == 4 {
		return le.Uint32(value)
	}
	value, _ := d.base.PlatformInfo(h, cl.PLATFORM_VERSION)
	digits := strings.TrimPrefix(string(value), "OpenCL ") // "OpenCL 1.2 …"
	if len(digits) < 3 {
		return 0
	}
	return uint32(digits[0]-'0')<<22 | uint32(digits[2]-'0')<<12
}

// shownAs is the platform that a program sees for one of session's.
func (d *Driver) shownAs(inner uintptr) uintptr {
	for _, p := range d.merged {
		if slices.Contains(p.members, inner) {
			return p.handle
		}
	}
	return inner
}

// PlatformInfo is clGetPlatformInfo (OpenCL 3.0 §4.1).
func (d *Driver) PlatformInfo(h uintptr, param uint32) ([]byte, api.Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return d.base.PlatformInfo(h, param)
	}
	if value, ok := p.info[param]; ok {
		return value, cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// UnloadPlatformCompiler is clUnloadPlatformCompiler, a hint that is not forwarded.
func (d *Driver) UnloadPlatformCompiler(h uintptr) api.Status {
	if d.platforms.Get(h) != nil {
		return cl.SUCCESS
	}
	return d.base.UnloadPlatformCompiler(h)
}

// DeviceIDs is clGetDeviceIDs (§4.2).
func (d *Driver) DeviceIDs(h uintptr, kind uint64) ([]uintptr, api.Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return d.base.DeviceIDs(h, kind)
	}
	var found []uintptr
	for i, member := range p.members {
		asked := kind
		if i > 0 && kind&cl.DEVICE_TYPE_ALL != cl.DEVICE_TYPE_ALL {
			if asked &^= cl.DEVICE_TYPE_DEFAULT; asked == 0 {
				continue
			}
		}
		devices, status := d.base.DeviceIDs(member, asked)
		if status != cl.SUCCESS && status != cl.DEVICE_NOT_FOUND {
			return nil, status
		}
		found = append(found, devices...)
	}
	if len(found) == 0 {
		return nil, cl.DEVICE_NOT_FOUND
	}
	return found, cl.SUCCESS
}

// DeviceInfo is clGetDeviceInfo (§4.2).
func (d *Driver) DeviceInfo(h uintptr, param uint32) ([]byte, api.Status) {
	value, status := d.base.DeviceInfo(h, param)
	if status == cl.SUCCESS && param == cl.DEVICE_PLATFORM && d.mode != Native {
		return answers.Size(d.shownAs(uintptr(le.Uint64(value)))), status
	}
	if status == cl.SUCCESS && param == cl.DEVICE_SVM_CAPABILITIES && d.spans(h) {
		return answers.U64(answers.Number(value) & cl.DEVICE_SVM_COARSE_GRAIN_BUFFER), status
	}
	return value, status
}

// spans says whether a device has others of other native platforms beside it, with which contexts span.
func (d *Driver) spans(device uintptr) bool {
	p := d.platforms.Get(d.shownAs(d.platformOf(device)))
	return p != nil && len(p.members) > 1
}

// platformOf is session's platform of a device; 0 for no device of ours.
func (d *Driver) platformOf(device uintptr) uintptr {
	value, status := d.base.DeviceInfo(device, cl.DEVICE_PLATFORM)
	if status != cl.SUCCESS {
		return 0
	}
	return uintptr(le.Uint64(value))
}
