package span

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// maxMembers bounds the platforms of one context: their sets are kept in a word.
const maxMembers = 64

// member is what a context has on one of session's platforms.
type member struct {
	context uintptr // session's
	devices []uintptr
	images  bool    // one of the devices has them
	align   uint64  // of sub-buffers: the least that one of the devices takes, in bytes
	move    uintptr // session's in-order queue for moves; 0: not made yet; guarded by Context.mu
}

// Context is a cl_context whose devices belong to several of session's platforms.
type Context struct {
	refs       handle.Refs
	d          *Driver
	handle     uintptr
	devices    []uintptr // in the program's order
	members    []*member // one a platform, in the order of its first device
	properties []uint64  // as the program gave them, 0-terminated; nil: none
	limit      uint64    // bytes that a buffer may have: every member's

	mu          sync.Mutex
	mirrors     map[*Buffer]struct{} // guarded by mu
	gates       atomic.Int32         // user events of the program's that have not ended
	destructors []func()             // guarded by mu
	recording   *CommandBuffer       // under which a command is recorded; guarded by mu
	writes      uint64               // commands that wrote; guarded by mu
}

// Parameters of clCreateContext's list, clGetDeviceInfo and clGetContextInfo.
const (
	contextPlatform  = 0x1084
	deviceMaxAlloc   = 0x1010
	deviceBaseAlign  = 0x1019 // bits
	deviceImages     = 0x1016
	contextRefs      = 0x1080
	contextDevices   = 0x1081
	contextProps     = 0x1082
	contextNumDevice = 0x1083
)

// nativeProperties replaces a spanning platform by the one of session's that a member context is made on.
func (d *Driver) nativeProperties(properties []uint64, inner uintptr) (native []uint64, status session.Status) {
	native = slices.Clone(properties)
	for i := 0; i+1 < len(native) && native[i] != 0; i += 2 {
		if native[i] != contextPlatform {
			continue
		}
		p := d.platforms.Get(uintptr(native[i+1]))
		switch {
		case p == nil && d.mode != Native:
			return nil, session.InvalidPlatform
		case p != nil && !slices.Contains(p.members, inner):
			return nil, session.InvalidDevice
		case p != nil:
			native[i+1] = uint64(inner)
		}
	}
	return native, session.Success
}

// CreateContext is clCreateContext (§4.4). report may be nil.
func (d *Driver) CreateContext(properties []uint64, devices []uintptr, report func(text string)) (uintptr, session.Status) {
	if d.mode == Native {
		return d.Driver.CreateContext(properties, devices, report)
	}
	if len(devices) == 0 {
		return 0, session.InvalidValue
	}
	var unique []uintptr
	byPlatform := map[uintptr][]uintptr{}
	var order []uintptr
	for _, h := range devices {
		inner := d.platformOf(h)
		if inner == 0 {
			return 0, session.InvalidDevice
		}
		if slices.Contains(unique, h) {
			continue
		}
		unique = append(unique, h)
		if byPlatform[inner] == nil {
			order = append(order, inner)
		}
		byPlatform[inner] = append(byPlatform[inner], h)
	}
	if len(order) == 1 {
		native, status := d.nativeProperties(properties, order[0])
		if status != session.Success {
			return 0, status
		}
		return d.Driver.CreateContext(native, devices, report)
	}
	if len(order) > maxMembers {
		return 0, session.OutOfResources
	}
	c := &Context{d: d, devices: unique, properties: properties, mirrors: map[*Buffer]struct{}{}}
	for _, inner := range order {
		native, status := d.nativeProperties(properties, inner)
		if status == session.Success {
			status = c.addMember(native, byPlatform[inner], report)
		}
		if status != session.Success {
			c.dropMembers()
			return 0, status
		}
	}
	return c.show()
}

func (c *Context) addMember(properties []uint64, devices []uintptr, report func(string)) session.Status {
	h, status := c.d.Driver.CreateContext(properties, devices, report)
	if status != session.Success {
		return status
	}
	m := &member{context: h, devices: devices, align: ^uint64(0)}
	for _, dev := range devices {
		value, _ := c.d.Driver.DeviceInfo(dev, deviceBaseAlign)
		m.align = min(m.align, max(number(value)/8, 1))
		value, _ = c.d.Driver.DeviceInfo(dev, deviceImages)
		m.images = m.images || number(value) != 0
		value, _ = c.d.Driver.DeviceInfo(dev, deviceMaxAlloc)
		if n := number(value); c.limit == 0 || n < c.limit {
			c.limit = n
		}
	}
	c.members = append(c.members, m)
	return session.Success
}

func (c *Context) show() (uintptr, session.Status) {
	c.refs.Set(1)
	h, err := c.d.contexts.Put(c)
	if err != nil {
		c.dropMembers()
		return 0, session.OutOfHostMemory
	}
	c.handle = h
	return h, session.Success
}

func (c *Context) dropMembers() {
	for _, m := range c.members {
		if m.move != 0 {
			c.d.Driver.ReleaseQueue(m.move)
		}
		c.d.Driver.ReleaseContext(m.context)
	}
}

// CreateContextFromType is clCreateContextFromType (§4.4).
func (d *Driver) CreateContextFromType(properties []uint64, kind uint64, report func(text string)) (uintptr, session.Status) {
	if d.mode == Native {
		return d.Driver.CreateContextFromType(properties, kind, report)
	}
	shown := d.Platforms()
	if len(shown) == 0 {
		return 0, session.InvalidPlatform
	}
	h := shown[0]
	for i := 0; i+1 < len(properties) && properties[i] != 0; i += 2 {
		if properties[i] == contextPlatform {
			h = uintptr(properties[i+1])
		}
	}
	if d.platforms.Get(h) == nil {
		return 0, session.InvalidPlatform
	}
	devices, status := d.DeviceIDs(h, kind)
	if status != session.Success {
		return 0, status
	}
	return d.CreateContext(properties, devices, report)
}

// RetainContext is clRetainContext.
func (d *Driver) RetainContext(h uintptr) session.Status {
	c := d.contexts.Get(h)
	if c == nil {
		return d.Driver.RetainContext(h)
	}
	if !c.refs.Retain() {
		return session.InvalidContext
	}
	return session.Success
}

// ReleaseContext is clReleaseContext.
func (d *Driver) ReleaseContext(h uintptr) session.Status {
	c := d.contexts.Get(h)
	if c == nil {
		return d.Driver.ReleaseContext(h)
	}
	if !c.drop() {
		return session.InvalidContext
	}
	return session.Success
}

// drop gives up a reference, and with the last one everything.
func (c *Context) drop() bool {
	ok, last := c.refs.Release()
	if !last {
		return ok
	}
	c.d.contexts.Remove(c.handle)
	c.mu.Lock()
	destructors := c.destructors
	c.destructors = nil
	c.mu.Unlock()
	c.dropMembers()
	c.d.runLatestFirst(destructors)
	return true
}

// runLatestFirst calls destructor callbacks in the order of §4.4 and §5.5.
func (d *Driver) runLatestFirst(calls []func()) {
	for _, call := range slices.Backward(calls) {
		d.Notify(call)
	}
}

// SetContextDestructorCallback is clSetContextDestructorCallback (§4.4).
func (d *Driver) SetContextDestructorCallback(h uintptr, call func()) session.Status {
	c := d.contexts.Get(h)
	switch {
	case c == nil:
		return d.Driver.SetContextDestructorCallback(h, call)
	case call == nil:
		return session.InvalidValue
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.destructors = append(c.destructors, call)
	return session.Success
}

// ContextInfo is clGetContextInfo (§4.4).
func (d *Driver) ContextInfo(h uintptr, param uint32) ([]byte, session.Status) {
	c := d.contexts.Get(h)
	if c == nil {
		value, status := d.Driver.ContextInfo(h, param)
		if status == session.Success && param == contextProps && d.mode != Native {
			value = d.shownProperties(value)
		}
		return value, status
	}
	switch param {
	case contextRefs:
		return infoU32(c.refs.Count()), session.Success
	case contextDevices:
		return infoHandles(c.devices), session.Success
	case contextProps:
		return infoList(c.properties), session.Success
	case contextNumDevice:
		return infoU32(uint32(len(c.devices))), session.Success
	}
	return nil, session.InvalidValue
}

// shownProperties is a native context's list as the program gave it.
func (d *Driver) shownProperties(list []byte) []byte {
	list = slices.Clone(list)
	for at := 0; at+16 <= len(list); at += 16 {
		if le.Uint64(list[at:]) == contextPlatform {
			le.PutUint64(list[at+8:], uint64(d.shownAs(uintptr(le.Uint64(list[at+8:])))))
		}
	}
	return list
}

// memberOf is the position of a device's member; -1 for a device of another context.
func (c *Context) memberOf(device uintptr) int {
	return slices.IndexFunc(c.members, func(m *member) bool { return slices.Contains(m.devices, device) })
}

// moveQueueLocked is the member's queue for moves. It runs in order and nothing on it ever waits for an event, so that
// a move never waits for another's condition.
func (c *Context) moveQueueLocked(i int) (uintptr, session.Status) {
	m := c.members[i]
	if m.move == 0 {
		q, status := c.d.Driver.CreateQueue(m.context, m.devices[0], 0)
		if status != session.Success {
			return 0, status
		}
		m.move = q
	}
	return m.move, session.Success
}
