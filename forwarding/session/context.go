package session

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/callback"
	"tendril/forwarding/session/mirror"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/svm"
	"tendril/forwarding/session/ways"
)

// Context is a cl_context over devices of one platform. It starts no worker; the first queue or build does.
type Context struct {
	refs       handle.Refs
	d          *Driver
	handle     uintptr
	id         uint64
	platform   *Platform
	devices    []*Device
	properties []uint64 // as the program gave them, 0-terminated; nil: none
	alignBytes uint64
	report     func(text string) // the program's callback; nil: none
	debited    atomic.Uint64     // bytes of buffers in the driver's memory

	mu          sync.Mutex
	w           atomic.Pointer[worker]                   // written under mu
	moves       map[*Device]*Queue                       // for moves of our own; guarded by mu
	destructors []func()                                 // guarded by mu
	formats     map[imageFormatsAsked][]api.ImageFormat  // guarded by mu
	imageFacts  map[clwire.CreateImage]clwire.ImageFacts // of images like earlier ones; guarded by mu
	mirrors     mirror.List                              // of buffers with the program's own memory
	arenas      svm.Arenas[*Buffer]                      // small shared virtual memory
	ways.Context

	// publishing is held for reading by each enqueue call of a context in place, and for writing while memory becomes
	// an object: so no command that found it writable comes after it is not.
	publishing sync.RWMutex
}

// CreateContext is clCreateContext (§4.4). report may be nil.
func (d *Driver) CreateContext(properties []uint64, devices []uintptr, report func(text string)) (uintptr, api.Status) {
	platform, status := d.checkProperties(properties)
	if status != cl.SUCCESS {
		return 0, status
	}
	if len(devices) == 0 {
		return 0, cl.INVALID_VALUE
	}
	d.cudaSeen.Do(d.warnOfCUDA)
	list := d.lookUp(devices)
	if list == nil {
		return 0, cl.INVALID_DEVICE
	}
	if platform == nil {
		platform = list[0].platform
	}
	for _, dev := range list {
		if dev.platform != platform {
			return 0, cl.INVALID_DEVICE
		}
	}
	return d.makeContext(platform, properties, list, report)
}

// CreateContextFromType is clCreateContextFromType (§4.4).
func (d *Driver) CreateContextFromType(properties []uint64, kind uint64, report func(text string)) (uintptr,
	api.Status) {
	platform, status := d.checkProperties(properties)
	if status != cl.SUCCESS {
		return 0, status
	}
	if platform == nil {
		if shown := d.connectedPlatforms(); len(shown) > 0 {
			platform = shown[0]
		}
	}
	if platform == nil {
		return 0, cl.INVALID_PLATFORM
	}
	if kind&cl.DEVICE_TYPE_ALL != cl.DEVICE_TYPE_ALL && (kind == 0 || kind&^deviceTypeKnown != 0) {
		return 0, cl.INVALID_DEVICE_TYPE
	}
	list := platform.devicesOf(kind)
	if len(list) == 0 {
		return 0, cl.DEVICE_NOT_FOUND
	}
	return d.makeContext(platform, properties, list, report)
}

func (d *Driver) checkProperties(properties []uint64) (platform *Platform, status api.Status) {
	seen := map[uint64]bool{}
	for i := 0; i+1 < len(properties) && properties[i] != 0; i += 2 {
		if seen[properties[i]] {
			return nil, cl.INVALID_PROPERTY
		}
		seen[properties[i]] = true
		switch properties[i] {
		case cl.CONTEXT_PLATFORM:
			if platform = d.platforms.Get(uintptr(properties[i+1])); platform == nil {
				return nil, cl.INVALID_PLATFORM
			}
		case cl.CONTEXT_INTEROP_USER_SYNC:
			if properties[i+1] > 1 {
				return nil, cl.INVALID_PROPERTY
			}
		default:
			return nil, cl.INVALID_PROPERTY
		}
	}
	return platform, cl.SUCCESS
}

func (d *Driver) makeContext(p *Platform, properties []uint64, devices []*Device,
	report func(string)) (uintptr, api.Status) {
	c := &Context{
		d: d, id: d.newID(), platform: p, devices: devices, properties: properties, report: report,
		alignBytes: 128, moves: map[*Device]*Queue{},
	}
	c.Context = ways.Context{Session: &d.transfers, InPlace: true, Mirrors: &c.mirrors, MoveQueue: c.ownQueue}
	_, c.Remote = p.control.(node.Remote)
	c.refs.Set(1)
	for _, dev := range devices {
		c.InPlace = c.InPlace && dev.inPlace
		c.alignBytes = max(c.alignBytes, dev.limits.AlignBytes)
	}
	h, err := d.contexts.Put(c)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	c.handle = h
	for _, dev := range devices {
		dev.hold()
	}
	return h, cl.SUCCESS
}

// bound returns the context's worker, nil before the first use.
func (c *Context) bound() *worker { return c.w.Load() }

// worker returns the context's worker, starting it at first use. The error was told on standard error.
func (c *Context) worker() (*worker, api.Status) {
	if w := c.w.Load(); w != nil {
		if w.Dead() {
			return nil, cl.OUT_OF_RESOURCES
		}
		return w, cl.SUCCESS
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.w.Load(); w != nil {
		return w, cl.SUCCESS
	}
	w, err := c.platform.worker()
	if err == nil {
		for _, dev := range c.devices {
			if status := w.ensurePartition(dev.made); status != cl.SUCCESS {
				return nil, status
			}
		}
		err = w.Send(&clwire.CreateContext{ID: c.id, Devices: indices(c.devices)}, 0, 0)
	}
	if err != nil {
		c.d.cfg.Log(fmt.Sprintf("tendril: %v", err))
		return nil, cl.OUT_OF_RESOURCES
	}
	w.mu.Lock()
	w.contexts[c] = struct{}{}
	w.mu.Unlock()
	c.w.Store(w)
	return w, cl.SUCCESS
}

// notify calls the program's context callback with text.
func (c *Context) notify(text string) {
	if c.report != nil {
		c.d.callbacks.Run(func() { c.report(text) })
	}
}

func (c *Context) has(dev *Device) bool { return slices.Contains(c.devices, dev) }

// RetainContext is clRetainContext.
func (d *Driver) RetainContext(h uintptr) api.Status {
	if c := d.contexts.Get(h); c != nil && c.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_CONTEXT
}

// ReleaseContext is clReleaseContext.
func (d *Driver) ReleaseContext(h uintptr) api.Status {
	c := d.contexts.Get(h)
	if c == nil || !d.releaseContext(c) {
		return cl.INVALID_CONTEXT
	}
	return cl.SUCCESS
}

func (d *Driver) releaseContext(c *Context) bool {
	ok, last := c.refs.Release()
	if last {
		d.dropContext(c)
	}
	return ok
}

func (d *Driver) dropContext(c *Context) {
	d.contexts.Remove(c.handle)
	c.mu.Lock()
	moves, destructors := c.moves, c.destructors
	c.moves, c.destructors = nil, nil
	c.mu.Unlock()
	c.Staging.Close(d.slabs, c.bound().sent)
	if w := c.bound(); w != nil {
		for _, q := range moves {
			w.forgetQueue(q)
		}
		w.SendOneWay(&clwire.Release{ID: c.id})
		w.mu.Lock()
		delete(w.contexts, c)
		w.mu.Unlock()
	}
	runLatestFirst(d.callbacks, destructors)
	for _, dev := range c.devices {
		dev.letGo()
	}
}

// runLatestFirst calls destructor callbacks in the order that the specification gives (§4.4, §5.4).
func runLatestFirst(p *callback.Dispatcher, calls []func()) {
	for i := len(calls) - 1; i >= 0; i-- {
		p.Run(calls[i])
	}
}

// SetContextDestructorCallback is clSetContextDestructorCallback (§4.4).
func (d *Driver) SetContextDestructorCallback(h uintptr, call func()) api.Status {
	c := d.contexts.Get(h)
	if c == nil {
		return cl.INVALID_CONTEXT
	}
	if call == nil {
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
		return nil, cl.INVALID_CONTEXT
	}
	switch param {
	case cl.CONTEXT_REFERENCE_COUNT:
		return answers.U32(c.refs.Count()), cl.SUCCESS
	case cl.CONTEXT_DEVICES:
		return answers.Handles(handlesOf(c.devices)), cl.SUCCESS
	case cl.CONTEXT_PROPERTIES:
		return answers.Sizes(c.properties), cl.SUCCESS
	case cl.CONTEXT_NUM_DEVICES:
		return answers.U32(uint32(len(c.devices))), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}
