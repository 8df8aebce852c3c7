package session

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
	"tendril/store/segment"
)

// Buffer is a cl_mem: a buffer with memory of its own, or a sub-buffer of one.
type Buffer struct {
	refs   handle.Refs
	d      *Driver
	handle uintptr
	ctx    *Context
	flags  uint64
	size   uint64
	host   HostPtr         // the program's memory (CL_MEM_USE_HOST_PTR), or NULL
	given  []uint64        // properties, 0-terminated; nil: none
	parent *Buffer         // nil: not a sub-buffer
	origin uint64          // in root
	root   *Buffer         // itself when parent is nil
	mirror *mirror         // of a root over the program's memory, or nil
	object *AttachedObject // of a root that is an object of the store, or nil
	image  *image          // nil: a buffer

	id     atomic.Uint64 // changes when a published buffer gets fresh memory
	remote atomic.Pointer[worker]

	mu          sync.Mutex
	place       *place // of a root in place; guarded by mu, changes as id does
	shadow      []byte // what maps of a buffer out of place show; guarded by mu
	shadowPlace *place // where shadow is shared memory; guarded by mu
	maps        []mapping
	destructors []func()
	subs        map[*Buffer]struct{} // of a root
	old         []*Segment           // published memory that a reader of ours may still look at
	pins        int                  // of a root: bulk operations on shadow
	released    bool                 // the program has let go: shadow goes with the last pin
	moves       int                  // host commands under way that will name the object to the worker; guarded by mu
	dropped     bool                 // the worker's object goes with the last of them; guarded by mu
	content     *Buffer              // nil, or the buffer that says how much of this one means something; guarded by mu
	debited     bool                 // of a root that is an object: the device has a copy; guarded by mu

	published atomic.Bool // root: the memory is a store object now, not to be written again
	special   atomic.Bool // root: published, mirrored or an object, every use needs a look
}

// mapping is one clEnqueueMapBuffer not yet unmapped.
type mapping struct {
	address uintptr
	off, n  uint64
	flags   uint64
	image   *imageMapping // nil: of a buffer
}

// oneOf says whether at most one bit of mask is set in flags.
func oneOf(flags, mask uint64) bool { m := flags & mask; return m&(m-1) == 0 }

func checkBufferFlags(flags uint64) Status {
	switch {
	case flags&^memKnown != 0, !oneOf(flags, memAccess), !oneOf(flags, memHostAccess):
		return InvalidValue
	case flags&memUseHostPtr != 0 && flags&(memAllocHostPtr|memCopyHostPtr) != 0:
		return InvalidValue
	}
	return Success
}

// CreateBuffer is clCreateBuffer and clCreateBufferWithProperties (§5.2.1); given is the property list, 0-terminated.
func (d *Driver) CreateBuffer(context uintptr, given []uint64, flags, size uint64, host HostPtr) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	if len(given) > 0 && given[0] != 0 {
		return 0, InvalidProperty
	}
	if status := checkBufferFlags(flags); status != Success {
		return 0, status
	}
	if host.Nil() != (flags&(memUseHostPtr|memCopyHostPtr) == 0) {
		return 0, InvalidHostPtr
	}
	if size == 0 || size > ctx.maxAlloc() {
		return 0, InvalidBufferSize
	}
	if flags == 0 {
		flags = memReadWrite
	}
	b := &Buffer{d: d, ctx: ctx, flags: flags, size: size, given: given}
	b.root = b
	b.id.Store(d.newID())
	b.refs.Set(1)
	if flags&memUseHostPtr != 0 {
		b.host = host
		b.mirror = &mirror{b: b, hostNewer: true}
		b.special.Store(true)
	}
	if status := b.takeMemory(host); status != Success {
		return 0, status
	}
	return d.showBuffer(b)
}

// maxAlloc is the largest buffer that every device of the context takes, in bytes.
func (c *Context) maxAlloc() uint64 {
	limit := maxHostBytes
	for _, dev := range c.devices {
		limit = min(limit, dev.limits.maxAlloc)
	}
	return limit
}

// takeMemory gives a new buffer its memory and first contents.
func (b *Buffer) takeMemory(host HostPtr) Status {
	if b.ctx.inPlace {
		p, status := b.d.slabs.alloc(b.size, b.ctx.alignBytes, b.d.cfg.Publish != "")
		if status != Success {
			return status
		}
		b.place = p
		if b.flags&memCopyHostPtr != 0 {
			segment.Copy(p.bytes(b.size), host.bytes(0, b.size))
		}
		return Success
	}
	if status := b.ctx.debit(b.size); status != Success {
		return status
	}
	if b.flags&memCopyHostPtr == 0 {
		return Success
	}
	status := b.store(0, host.bytes(0, b.size))
	if status != Success {
		b.ctx.credit(b.size)
	}
	return status
}

// debit takes bytes of the driver's memory from what the context's smallest device has. Drivers allocate late and fail
// at a launch; a program expects the failure here.
func (c *Context) debit(n uint64) Status {
	limit := maxHostBytes
	for _, dev := range c.devices {
		if dev.limits.globalBytes != 0 {
			limit = min(limit, dev.limits.globalBytes)
		}
	}
	if c.debited.Add(n) > limit {
		c.debited.Add(-n)
		return MemObjectAllocationFailure
	}
	if status := c.reserve(n); status != Success {
		c.debited.Add(-n)
		return status
	}
	return Success
}

// credit gives back what debit took.
func (c *Context) credit(n uint64) {
	c.debited.Add(-n)
	if w := c.bound(); w != nil {
		w.giveBack(n)
	}
}

func (d *Driver) showBuffer(b *Buffer) (uintptr, Status) {
	h, err := d.buffers.Put(b)
	if err != nil {
		b.giveMemory()
		return 0, OutOfHostMemory
	}
	b.handle = h
	b.ctx.refs.Retain()
	if b.parent != nil {
		b.parent.refs.Retain()
		b.parent.adopt(b)
	}
	if b.mirror != nil {
		b.ctx.addMirror(b.mirror)
	}
	return h, Success
}

// CreateSubBuffer is clCreateSubBuffer (§5.2.1) with CL_BUFFER_CREATE_TYPE_REGION.
func (d *Driver) CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin, size uint64) (uintptr, Status) {
	p := d.buffers.Get(parent)
	if p == nil || p.parent != nil || p.image != nil {
		return 0, InvalidMemObject
	}
	flags, status := inheritFlags(p.flags, flags)
	if status != Success {
		return 0, status
	}
	if createType != bufferCreateTypeRegion || !hasInfo {
		return 0, InvalidValue
	}
	if size == 0 {
		return 0, InvalidBufferSize
	}
	if origin > p.size || size > p.size-origin {
		return 0, InvalidValue
	}
	if !p.ctx.aligned(origin) {
		return 0, MisalignedSubBufferOffset
	}
	b := &Buffer{d: d, ctx: p.ctx, flags: flags, size: size, parent: p, origin: origin, root: p}
	if !p.host.Nil() {
		b.host = p.host.plus(origin)
	}
	b.id.Store(d.newID())
	b.refs.Set(1)
	return d.showBuffer(b)
}

// aligned says whether some device of the context takes a sub-buffer at origin.
func (c *Context) aligned(origin uint64) bool {
	for _, dev := range c.devices {
		if origin%dev.limits.alignBytes == 0 {
			return true
		}
	}
	return false
}

// inheritFlags merges a sub-buffer's flags with its parent's by table 15 of §5.2.1.
func inheritFlags(parent, flags uint64) (uint64, Status) {
	switch {
	case flags&^memKnown != 0, flags&memHostPtr != 0, !oneOf(flags, memAccess), !oneOf(flags, memHostAccess),
		parent&memWriteOnly != 0 && flags&(memReadWrite|memReadOnly) != 0,
		parent&memReadOnly != 0 && flags&(memReadWrite|memWriteOnly) != 0,
		parent&memHostWriteOnly != 0 && flags&memHostReadOnly != 0,
		parent&memHostReadOnly != 0 && flags&memHostWriteOnly != 0,
		parent&memHostNoAccess != 0 && flags&(memHostReadOnly|memHostWriteOnly) != 0:
		return 0, InvalidValue
	}
	if flags&memAccess == 0 {
		flags |= parent & memAccess
	}
	if flags&memHostAccess == 0 {
		flags |= parent & memHostAccess
	}
	return flags | parent&memHostPtr, Success
}

// ensureRemote makes the buffer known to the worker before the record that names it.
func (b *Buffer) ensureRemote(w *worker) Status {
	if b.remote.Load() == w {
		return Success
	}
	if b.parent != nil {
		if status := b.parent.ensureRemote(w); status != Success {
			return status
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.remote.Load() == w {
		return Success
	}
	if b.image != nil {
		m := b.imageRecord()
		if w.send(&m, 0, 0) != nil {
			return OutOfResources
		}
		b.remote.Store(w)
		return Success
	}
	m := clwire.CreateBuffer{ID: b.id.Load(), Context: b.ctx.id, Flags: b.flags & memAccess, Size: b.size, Offset: b.origin}
	if is, status := b.objectRecord(&m); status != Success {
		return status
	} else if is {
		// The record is whole.
	} else if p := b.root.placeOf(b); p != nil {
		if w.addSegment(p.seg) != nil {
			return OutOfResources
		}
		m.Segment, m.Offset = p.seg.ID, p.off+b.origin
	} else if b.parent != nil {
		m.Parent = b.parent.id.Load()
	}
	if w.send(&m, 0, 0) != nil {
		return OutOfResources
	}
	if b.content != nil {
		b.tellContentLocked(w)
	}
	b.remote.Store(w)
	return Success
}

// placeOf reads the root's place; asking is the buffer whose lock the caller holds.
func (b *Buffer) placeOf(asking *Buffer) *place {
	if b != asking {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	return b.place
}

// bytes is the buffer's memory in place, nil out of place.
func (b *Buffer) bytes() []byte {
	p := b.root.placeOf(nil)
	if p == nil {
		return nil
	}
	return p.bytes(b.root.size)[b.origin : b.origin+b.size : b.origin+b.size]
}

// RetainMemObject is clRetainMemObject.
func (d *Driver) RetainMemObject(h uintptr) Status {
	if b := d.buffers.Get(h); b != nil && b.refs.Retain() {
		return Success
	}
	return InvalidMemObject
}

// ReleaseMemObject is clReleaseMemObject.
func (d *Driver) ReleaseMemObject(h uintptr) Status {
	b := d.buffers.Get(h)
	if b == nil || !d.releaseBuffer(b) {
		return InvalidMemObject
	}
	return Success
}

func (d *Driver) releaseBuffer(b *Buffer) bool {
	ok, last := b.refs.Release()
	if !last {
		return ok
	}
	d.buffers.Remove(b.handle)
	if b.mirror == nil {
		d.dropBuffer(b)
		return true
	}
	b.ctx.dropMirror(b.mirror)
	b.endMirror()
	return true
}

// endMirror gives the program's memory back: with the last results in it before the release returns, since a program may reuse it then.
// Where that would wait for the program itself (a user event without an end, one of its callbacks) the memory is the program's once the
// destructor callback has run, if there is one, and at once if there is none.
func (b *Buffer) endMirror() {
	m := b.mirror
	ended := m.end()
	if !ended && b.ctx.unwaited.gates.Load() == 0 && !b.d.callbacks.here() {
		m.waitQuiet()
		ended = m.end()
	}
	b.mu.Lock()
	told := len(b.destructors) > 0
	b.mu.Unlock()
	if !ended && !told {
		m.close()
	}
	if m.quiet() {
		b.d.dropBuffer(b)
		return
	}
	go func() {
		m.waitQuiet()
		m.end()
		b.d.dropBuffer(b)
	}()
}

func (d *Driver) dropBuffer(b *Buffer) {
	b.mu.Lock()
	b.dropped = true
	moving := b.moves > 0
	destructors := b.destructors
	b.destructors = nil
	b.mu.Unlock()
	if !moving {
		b.forget()
	}
	b.giveMemory()
	runLatestFirst(d.callbacks, destructors)
	if b.parent != nil {
		b.parent.disown(b)
		d.releaseBuffer(b.parent)
	}
	d.releaseContext(b.ctx)
}

// forget lets the worker's object go.
func (b *Buffer) forget() {
	if w := b.remote.Load(); w != nil {
		w.tell(&clwire.Release{ID: b.id.Load()})
	}
}

// moving keeps the worker's object until the returned function is called: a program may release a memory object whose
// reads and writes are under way.
func (b *Buffer) moving() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moves++
	return func() {
		b.mu.Lock()
		b.moves--
		last := b.moves == 0 && b.dropped
		b.mu.Unlock()
		if last {
			b.forget()
		}
	}
}

func (b *Buffer) adopt(sub *Buffer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[*Buffer]struct{}{}
	}
	b.subs[sub] = struct{}{}
}

func (b *Buffer) disown(sub *Buffer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, sub)
}

func (b *Buffer) giveMemory() {
	b.mu.Lock()
	p, old := b.place, b.old
	published, debited := b.published.Load(), b.debited
	if len(b.maps) > 0 {
		b.shadow, b.shadowPlace = nil, nil // stays mapped: a program that releases a buffer while it is mapped may still look at it
	}
	b.place, b.old, b.released = nil, nil, true
	drop := b.pins == 0 && (b.shadow != nil || b.shadowPlace != nil)
	b.mu.Unlock()
	for _, seg := range old {
		b.d.letGo(seg)
	}
	if drop {
		b.dropShadow()
	}
	switch {
	case b.object != nil:
		if debited {
			b.ctx.credit(b.size)
		}
		b.letObjectGo()
	case p == nil && b.parent == nil:
		b.ctx.credit(b.size)
	case p == nil:
	case published:
		b.d.letGo(p.seg)
	default:
		b.d.slabs.free(p, b.ctx.bound())
	}
}

func (b *Buffer) dropShadow() {
	b.mu.Lock()
	shadow, p := b.shadow, b.shadowPlace
	b.shadow, b.shadowPlace = nil, nil
	b.mu.Unlock()
	switch {
	case p != nil:
		b.d.slabs.free(p, b.ctx.bound())
	case shadow != nil:
		_ = unix.Munmap(shadow) // ours, and mapped: it cannot fail
	}
}

// SetMemObjectDestructorCallback is clSetMemObjectDestructorCallback (§5.5.1).
func (d *Driver) SetMemObjectDestructorCallback(h uintptr, call func()) Status {
	b := d.buffers.Get(h)
	if b == nil {
		return InvalidMemObject
	}
	if call == nil {
		return InvalidValue
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.destructors = append(b.destructors, call)
	return Success
}

// MemObjectInfo is clGetMemObjectInfo (§5.5.5).
func (d *Driver) MemObjectInfo(h uintptr, param uint32) ([]byte, Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return nil, InvalidMemObject
	}
	switch param {
	case 0x1100:
		return infoU32(b.memType()), Success
	case 0x1101:
		return infoU64(b.flags), Success
	case 0x1102:
		return infoSize(b.size), Success
	case 0x1103:
		return infoSize(b.host.Address()), Success
	case 0x1104:
		b.mu.Lock()
		defer b.mu.Unlock()
		return infoU32(uint32(len(b.maps))), Success
	case 0x1105:
		return infoU32(b.refs.Count()), Success
	case 0x1106:
		return infoSize(b.ctx.handle), Success
	case 0x1107:
		if b.parent == nil {
			return infoSize(0), Success
		}
		return infoSize(b.parent.handle), Success
	case 0x1108:
		return infoSize(b.origin), Success // 0 for images: they lie at their buffer's start
	case 0x1109:
		return infoU32(0), Success
	case 0x110A:
		return infoSizes(b.given), Success
	}
	return nil, InvalidValue
}
