package session

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
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
	inPlace    bool     // every device computes on shared segments
	remote     bool     // the worker is on another machine
	alignBytes uint64
	report     func(text string) // the program's callback; nil: none
	debited    atomic.Uint64     // bytes of buffers in the driver's memory

	mu          sync.Mutex
	w           atomic.Pointer[worker]              // written under mu
	moves       map[*Device]*Queue                  // for moves of our own; guarded by mu
	destructors []func()                            // guarded by mu
	formats     map[imageFormatsAsked][]ImageFormat // guarded by mu
	staging     stagingPool
	unwaited    unwaited

	mirrors   atomic.Pointer[[]*mirror] // buffers with the program's own memory; replaced under mirrorsMu
	mirrorsMu sync.Mutex                // leaf

	// publishing is held for reading by each enqueue call of a context in place, and for writing while memory becomes an object: so no
	// command that found it writable comes after it is not.
	publishing sync.RWMutex
}

// CreateContext is clCreateContext (§4.4). report may be nil.
func (d *Driver) CreateContext(properties []uint64, devices []uintptr, report func(text string)) (uintptr, Status) {
	platform, status := d.checkProperties(properties)
	if status != Success {
		return 0, status
	}
	if len(devices) == 0 {
		return 0, InvalidValue
	}
	list := d.lookUp(devices)
	if list == nil {
		return 0, InvalidDevice
	}
	if platform == nil {
		platform = list[0].platform
	}
	for _, dev := range list {
		if dev.platform != platform {
			return 0, InvalidDevice
		}
	}
	return d.makeContext(platform, properties, list, report)
}

// CreateContextFromType is clCreateContextFromType (§4.4).
func (d *Driver) CreateContextFromType(properties []uint64, kind uint64, report func(text string)) (uintptr, Status) {
	platform, status := d.checkProperties(properties)
	if status != Success {
		return 0, status
	}
	if platform == nil {
		if d.mu.Lock(); len(d.shown) > 0 {
			platform = d.shown[0]
		}
		d.mu.Unlock()
	}
	if platform == nil {
		return 0, InvalidPlatform
	}
	if kind&deviceTypeAll != deviceTypeAll && (kind == 0 || kind&^deviceTypeKnown != 0) {
		return 0, InvalidDeviceType
	}
	list := platform.devicesOf(kind)
	if len(list) == 0 {
		return 0, DeviceNotFound
	}
	return d.makeContext(platform, properties, list, report)
}

func (d *Driver) checkProperties(properties []uint64) (platform *Platform, status Status) {
	seen := map[uint64]bool{}
	for i := 0; i+1 < len(properties) && properties[i] != 0; i += 2 {
		if seen[properties[i]] {
			return nil, InvalidProperty
		}
		seen[properties[i]] = true
		switch properties[i] {
		case contextPlatform:
			if platform = d.platforms.Get(uintptr(properties[i+1])); platform == nil {
				return nil, InvalidPlatform
			}
		case contextInteropUserSync:
			if properties[i+1] > 1 {
				return nil, InvalidProperty
			}
		default:
			return nil, InvalidProperty
		}
	}
	return platform, Success
}

func (d *Driver) makeContext(p *Platform, properties []uint64, devices []*Device, report func(string)) (uintptr, Status) {
	c := &Context{
		d: d, id: d.newID(), platform: p, devices: devices, properties: properties, report: report,
		inPlace: true, alignBytes: 128, moves: map[*Device]*Queue{},
	}
	_, c.remote = p.control.(RemoteControl)
	c.refs.Set(1)
	for _, dev := range devices {
		c.inPlace = c.inPlace && dev.inPlace
		c.alignBytes = max(c.alignBytes, dev.limits.alignBytes)
	}
	h, err := d.contexts.Put(c)
	if err != nil {
		return 0, OutOfHostMemory
	}
	c.handle = h
	for _, dev := range devices {
		dev.hold()
	}
	return h, Success
}

// bound returns the context's worker, nil before the first use.
func (c *Context) bound() *worker { return c.w.Load() }

// worker returns the context's worker, starting it at first use. The error was told on standard error.
func (c *Context) worker() (*worker, Status) {
	if w := c.w.Load(); w != nil {
		if w.dead.Load() {
			return nil, OutOfResources
		}
		return w, Success
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.w.Load(); w != nil {
		return w, Success
	}
	w, err := c.platform.worker()
	if err == nil {
		for _, dev := range c.devices {
			if status := w.ensurePartition(dev.made); status != Success {
				return nil, status
			}
		}
		err = w.send(&clwire.CreateContext{ID: c.id, Devices: indices(c.devices)}, 0, 0)
	}
	if err != nil {
		c.d.cfg.Log(fmt.Sprintf("tendril: %v", err))
		return nil, OutOfResources
	}
	w.mu.Lock()
	w.contexts[c] = struct{}{}
	w.mu.Unlock()
	c.w.Store(w)
	return w, Success
}

// notify calls the program's context callback with text.
func (c *Context) notify(text string) {
	if c.report != nil {
		c.d.callbacks.run(func() { c.report(text) })
	}
}

// staged says that bytes pass through shared memory on their way to a device: neither does it compute there nor is it
// on another machine.
func (c *Context) staged() bool { return !c.inPlace && !c.remote }

func (c *Context) has(dev *Device) bool {
	for _, own := range c.devices {
		if own == dev {
			return true
		}
	}
	return false
}

// RetainContext is clRetainContext.
func (d *Driver) RetainContext(h uintptr) Status {
	if c := d.contexts.Get(h); c != nil && c.refs.Retain() {
		return Success
	}
	return InvalidContext
}

// ReleaseContext is clReleaseContext.
func (d *Driver) ReleaseContext(h uintptr) Status {
	c := d.contexts.Get(h)
	if c == nil || !d.releaseContext(c) {
		return InvalidContext
	}
	return Success
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
	c.staging.close(d, c.bound())
	if w := c.bound(); w != nil {
		for _, q := range moves {
			w.forgetQueue(q)
		}
		w.tell(&clwire.Release{ID: c.id})
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
func runLatestFirst(p *dispatcher, calls []func()) {
	for i := len(calls) - 1; i >= 0; i-- {
		p.run(calls[i])
	}
}

// SetContextDestructorCallback is clSetContextDestructorCallback (§4.4).
func (d *Driver) SetContextDestructorCallback(h uintptr, call func()) Status {
	c := d.contexts.Get(h)
	if c == nil {
		return InvalidContext
	}
	if call == nil {
		return InvalidValue
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.destructors = append(c.destructors, call)
	return Success
}

// ContextInfo is clGetContextInfo (§4.4).
func (d *Driver) ContextInfo(h uintptr, param uint32) ([]byte, Status) {
	c := d.contexts.Get(h)
	if c == nil {
		return nil, InvalidContext
	}
	switch param {
	case 0x1080:
		return infoU32(c.refs.Count()), Success
	case 0x1081:
		return infoHandles(handlesOf(c.devices)), Success
	case 0x1082:
		return infoSizes(c.properties), Success
	case 0x1083:
		return infoU32(uint32(len(c.devices))), Success
	}
	return nil, InvalidValue
}
