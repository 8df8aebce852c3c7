package span

import (
	"slices"
	"strings"

	"tendril/forwarding/session"
)

// platform is one that is shown in place of several native ones.
type platform struct {
	handle  uintptr
	members []uintptr // session's platforms, in their order
	info    map[uint32][]byte
}

// Parameters of clGetPlatformInfo and clGetDeviceInfo that this package answers.
const (
	platformVersion        uint32 = 0x0901
	platformName           uint32 = 0x0902
	platformNumericVersion uint32 = 0x0906
	devicePlatform         uint32 = 0x1031
)

// Platforms returns the handles of the platforms that the program sees.
func (d *Driver) Platforms() []uintptr {
	inner := d.Driver.Platforms()
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
			node = d.NodeOf(h)
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
	for param := uint32(0x0900); param <= 0x0920; param++ {
		if value, status := d.Driver.PlatformInfo(least, param); status == session.Success {
			p.info[param] = value
		}
	}
	p.info[platformName] = infoString("Tendril")
}

// numericVersion is CL_PLATFORM_NUMERIC_VERSION, or what the version's text says.
func (d *Driver) numericVersion(h uintptr) uint32 {
	if value, status := d.Driver.PlatformInfo(h, platformNumericVersion); status == session.Success && len(value) == 4 {
		return le.Uint32(value)
	}
	value, _ := d.Driver.PlatformInfo(h, platformVersion)
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
func (d *Driver) PlatformInfo(h uintptr, param uint32) ([]byte, session.Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return d.Driver.PlatformInfo(h, param)
	}
	if value, ok := p.info[param]; ok {
		return value, session.Success
	}
	return nil, session.InvalidValue
}

// UnloadPlatformCompiler is clUnloadPlatformCompiler, a hint that is not forwarded.
func (d *Driver) UnloadPlatformCompiler(h uintptr) session.Status {
	if d.platforms.Get(h) != nil {
		return session.Success
	}
	return d.Driver.UnloadPlatformCompiler(h)
}

// deviceTypeDefault is CL_DEVICE_TYPE_DEFAULT: of all that are shown, the first.
const (
	deviceTypeDefault uint64 = 1 << 0
	deviceTypeAll     uint64 = 0xFFFFFFFF
)

// DeviceIDs is clGetDeviceIDs (§4.2).
func (d *Driver) DeviceIDs(h uintptr, kind uint64) ([]uintptr, session.Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return d.Driver.DeviceIDs(h, kind)
	}
	var found []uintptr
	for i, member := range p.members {
		asked := kind
		if i > 0 && kind&deviceTypeAll != deviceTypeAll {
			if asked &^= deviceTypeDefault; asked == 0 {
				continue
			}
		}
		devices, status := d.Driver.DeviceIDs(member, asked)
		if status != session.Success && status != session.DeviceNotFound {
			return nil, status
		}
		found = append(found, devices...)
	}
	if len(found) == 0 {
		return nil, session.DeviceNotFound
	}
	return found, session.Success
}

// DeviceInfo is clGetDeviceInfo (§4.2).
func (d *Driver) DeviceInfo(h uintptr, param uint32) ([]byte, session.Status) {
	value, status := d.Driver.DeviceInfo(h, param)
	if status == session.Success && param == devicePlatform && d.mode != Native {
		return infoHandle(d.shownAs(uintptr(le.Uint64(value)))), status
	}
	return value, status
}

// platformOf is session's platform of a device; 0 for no device of ours.
func (d *Driver) platformOf(device uintptr) uintptr {
	value, status := d.Driver.DeviceInfo(device, devicePlatform)
	if status != session.Success {
		return 0
	}
	return uintptr(le.Uint64(value))
}
