package span

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/svm"
)

// maxMembers bounds the platforms of one context: their sets are kept in a word.
const maxMembers = 64

// member is what a context has on one of session's platforms.
type member struct {
	context uintptr // session's
	devices []uintptr
	images  bool    // one of the devices has them
	svm     bool    // all devices have shared virtual memory
	align   uint64  // of sub-buffers: the least that one of the devices takes, in bytes
	move    uintptr // session's in-order queue for moves; 0: not made yet; guarded by Context.mu
}

// Context is a cl_context whose devices belong to several of session's platforms.
type Context struct {
	refs       handle.Refs
	d          *Driver
	handle     uintptr
	devices    []uintptr           // in the program's order
	members    []*member           // one a platform, in the order of its first device
	properties []uint64            // as the program gave them, 0-terminated; nil: none
	limit      uint64              // bytes that a buffer may have: every member's
	arenas     svm.Arenas[*Buffer] // small shared virtual memory
	chooser    atomic.Int32        // the member whose driver chooses addresses, plus 1; 0: none is known to

	mu          sync.Mutex
	mirrors     map[*Buffer]struct{} // guarded by mu
	gates       atomic.Int32         // user events of the program's that have not ended
	destructors []func()             // guarded by mu
	recording   *CommandBuffer       // under which a command is recorded; guarded by mu
	writes      uint64               // commands that wrote; guarded by mu
}

// nativeProperties replaces a spanning platform by the one of session's that a member context is made on.
func (d *Driver) nativeProperties(properties []uint64, inner uintptr) (native []uint64, status api.Status) {
	native = slices.Clone(properties)
	for i := 0; i+1 < len(native) && native[i] != 0; i += 2 {
		if native[i] != cl.CONTEXT_PLATFORM {
			continue
		}
		p := d.platforms.Get(uintptr(native[i+1]))
		switch {
		case p == nil && d.mode != Native:
			return nil, cl.INVALID_PLATFORM
		case p != nil && !slices.Contains(p.members, inner):
			return nil, cl.INVALID_DEVICE
		case p != nil:
			native[i+1] = uint64(inner)
		}
	}
	return native, cl.SUCCESS
}

// CreateContext is clCreateContext (§4.4). report may be nil.
func (d *Driver) CreateContext(properties []uint64, devices []uintptr, report func(text string)) (uintptr, api.Status) {
	if d.mode == Native {
		return d.base.CreateContext(properties, devices, report)
	}
	if len(devices) == 0 {
		return 0, cl.INVALID_VALUE
	}
	var unique []uintptr
	byPlatform := map[uintptr][]uintptr{}
	var order []uintptr
	for _, h := range devices {
		inner := d.platformOf(h)
		if inner == 0 {
			return 0, cl.INVALID_DEVICE
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
		if status != cl.SUCCESS {
			return 0, status
		}
		return d.base.CreateContext(native, devices, report)
	}
	if len(order) > maxMembers {
		return 0, cl.OUT_OF_RESOURCES
	}
	c := &Context{d: d, devices: unique, properties: properties, mirrors: map[*Buffer]struct{}{}}
	for _, inner := range order {
		native, status := d.nativeProperties(properties, inner)
		if status == cl.SUCCESS {
			status = c.addMember(native, byPlatform[inner], report)
		}
		if status != cl.SUCCESS {
			c.dropMembers()
			return 0, status
		}
	}
	return c.show()
}

func (c *Context) addMember(properties []uint64, devices []uintptr, report func(string)) api.Status {
	h, status := c.d.base.CreateContext(properties, devices, report)
	if status != cl.SUCCESS {
		return status
	}
	m := &member{context: h, devices: devices, align: ^uint64(0), svm: c.d.takesSVM(devices)}
	for _, dev := range devices {
		value, _ := c.d.base.DeviceInfo(dev, cl.DEVICE_MEM_BASE_ADDR_ALIGN)
		m.align = min(m.align, max(answers.Number(value)/8, 1))
		value, _ = c.d.base.DeviceInfo(dev, cl.DEVICE_IMAGE_SUPPORT)
		m.images = m.images || answers.Number(value) != 0
		value, _ = c.d.base.DeviceInfo(dev, cl.DEVICE_MAX_MEM_ALLOC_SIZE)
		if n := answers.Number(value); c.limit == 0 || n < c.limit {
			c.limit = n
		}
	}
	c.members = append(c.members, m)
	return cl.SUCCESS
}

func (c *Context) show() (uintptr, api.Status) {
	c.refs.Set(1)
	h, err := c.d.contexts.Put(c)
	if err != nil {
		c.dropMembers()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	c.handle = h
	return h, cl.SUCCESS
}

func (c *Context) dropMembers() {
	for _, m := range c.members {
		if m.move != 0 {
			c.d.base.ReleaseQueue(m.move)
		}
		c.d.base.ReleaseContext(m.context)
	}
}

// CreateContextFromType is clCreateContextFromType (§4.4).
func (d *Driver) CreateContextFromType(properties []uint64, kind uint64, report func(text string)) (uintptr,
	api.Status) {
	if d.mode == Native {
		return d.base.CreateContextFromType(properties, kind, report)
	}
	shown := d.Platforms()
	if len(shown) == 0 {
		return 0, cl.INVALID_PLATFORM
	}
	h := shown[0]
	for i := 0; i+1 < len(properties) && properties[i] != 0; i += 2 {
		if properties[i] == cl.CONTEXT_PLATFORM {
			h = uintptr(properties[i+1])
		}
	}
	if d.platforms.Get(h) == nil {
		return 0, cl.INVALID_PLATFORM
	}
	devices, status := d.DeviceIDs(h, kind)
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.CreateContext(properties, devices, report)
}

// RetainContext is clRetainContext.
func (d *Driver) RetainContext(h uintptr) api.Status {
	c := d.contexts.Get(h)
	if c == nil {
		return d.base.RetainContext(h)
	}
	if !c.refs.Retain() {
		return cl.INVALID_CONTEXT
	}
	return cl.SUCCESS
}

// ReleaseContext is clReleaseContext.
func (d *Driver) ReleaseContext(h uintptr) api.Status {
	c := d.contexts.Get(h)
	if c == nil {
		return d.base.ReleaseContext(h)
	}
	if !c.drop() {
		return cl.INVALID_CONTEXT
	}
	return cl.SUCCESS
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
		d.base.Notify(call)
	}
}

// SetContextDestructorCallback is clSetContextDestructorCallback (§4.4).
func (d *Driver) SetContextDestructorCallback(h uintptr, call func()) api.Status {
	c := d.contexts.Get(h)
	switch {
	case c == nil:
		return d.base.SetContextDestructorCallback(h, call)
	case call == nil:
		return cl.INVALID_VALUE
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.destructors = append(c.destructors, call)
	return cl.SUCCESS
}

// ContextInfo is clGetContextInfo (§4.4).
func (d *Driver) ContextInfo(h uintptr, param uint32) ([]byte, api.Status) {
	c := d.contexts.Get(h)
	if c == nil {
		value, status := d.base.ContextInfo(h, param)
		if status == cl.SUCCESS && param == cl.CONTEXT_PROPERTIES && d.mode != Native {
			value = d.shownProperties(value)
		}
		return value, status
	}
	switch param {
	case cl.CONTEXT_REFERENCE_COUNT:
		return answers.U32(c.refs.Count()), cl.SUCCESS
	case cl.CONTEXT_DEVICES:
		return answers.Handles(c.devices), cl.SUCCESS
	case cl.CONTEXT_PROPERTIES:
		return answers.Sizes(c.properties), cl.SUCCESS
	case cl.CONTEXT_NUM_DEVICES:
		return answers.U32(uint32(len(c.devices))), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// shownProperties is a native context's list as the program gave it.
func (d *Driver) shownProperties(list []byte) []byte {
	list = slices.Clone(list)
	for at := 0; at+16 <= len(list); at += 16 {
		if le.Uint64(list[at:]) == cl.CONTEXT_PLATFORM {
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
func (c *Context) moveQueueLocked(i int) (uintptr, api.Status) {
	m := c.members[i]
	if m.move == 0 {
		q, status := c.d.base.CreateQueue(m.context, m.devices[0], 0)
		if status != cl.SUCCESS {
			return 0, status
		}
		m.move = q
	}
	return m.move, cl.SUCCESS
}
