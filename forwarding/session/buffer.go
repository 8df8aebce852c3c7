package session

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/mapped"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/mirror"
	"tendril/forwarding/session/node"
	"tendril/store/object"
	"tendril/store/segment"
)

// Buffer is a cl_mem: a buffer with memory of its own, a sub-buffer of one, or an image.
type Buffer struct {
	refs   handle.Refs
	d      *Driver
	handle uintptr
	ctx    *Context
	flags  uint64
	size   uint64
	given  []uint64 // properties, 0-terminated; nil: none
	image  *image   // nil: a buffer

	parent *Buffer // nil: not a sub-buffer
	root   *Buffer // itself when parent is nil
	origin uint64  // in root

	host    api.HostPtr    // the program's memory (CL_MEM_USE_HOST_PTR), or NULL; a sub-buffer's part of it
	mirror  *mirror.Mirror // of a root over the program's memory, or nil
	object  *node.Object   // of a root that is an object of the store, or nil
	copied  bool           // of a root: it is a copy of a sealed object (openByStage). Immutable once it is shown
	svm     []byte         // of a root that is shared virtual memory: the program's view of it, at its address; or nil
	spans   bool           // of a root that is shared virtual memory of a context that spans: it has no view here
	viewed  bool           // svm is a second view of the shared memory that maps show
	special atomic.Bool    // published, mirrored or an object: every use needs a look

	remoteObject // changed under mu
	maps         mapped.Maps

	mu sync.Mutex // guards what follows
	placement
	inUse
	subs        map[*Buffer]struct{} // of a root: its sub-buffers
	debited     bool                 // of a root that is an object: the device has a copy
	content     *Buffer              // nil, or the buffer that says how much of this one means something
	destructors []func()
}

// oneOf says whether at most one bit of mask is set in flags.
func oneOf(flags, mask uint64) bool { m := flags & mask; return m&(m-1) == 0 }

func checkBufferFlags(flags uint64) api.Status {
	switch {
	case flags&^memKnown != 0, !oneOf(flags, memAccess), !oneOf(flags, memHostAccess):
		return cl.INVALID_VALUE
	case flags&cl.MEM_USE_HOST_PTR != 0 && flags&(cl.MEM_ALLOC_HOST_PTR|cl.MEM_COPY_HOST_PTR) != 0:
		return cl.INVALID_VALUE
	}
	return cl.SUCCESS
}

// CreateBuffer is clCreateBuffer and clCreateBufferWithProperties (§5.2.1); given is the property list, 0-terminated.
func (d *Driver) CreateBuffer(context uintptr, given []uint64, flags, size uint64, host api.HostPtr) (uintptr,
	api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if len(given) > 0 && given[0] != 0 {
		return 0, cl.INVALID_PROPERTY
	}
	if status := checkBufferFlags(flags); status != cl.SUCCESS {
		return 0, status
	}
	if host.Nil() != (flags&(cl.MEM_USE_HOST_PTR|cl.MEM_COPY_HOST_PTR) == 0) {
		return 0, cl.INVALID_HOST_PTR
	}
	if size == 0 || size > ctx.maxAlloc() {
		return 0, cl.INVALID_BUFFER_SIZE
	}
	if flags == 0 {
		flags = cl.MEM_READ_WRITE
	}
	if flags&cl.MEM_USE_HOST_PTR != 0 {
		if root, off, ok := ctx.inSVM(host, size); ok {
			return d.bufferOverSVM(root, off, size, flags, given)
		}
	}
	b := &Buffer{d: d, ctx: ctx, flags: flags, size: size, given: given}
	b.root = b
	b.id.Store(d.newID())
	b.refs.Set(1)
	if flags&cl.MEM_USE_HOST_PTR != 0 {
		b.host = host
		b.mirror = mirror.New(overHost{b})
		b.special.Store(true)
	}
	if status := b.takeMemory(host); status != cl.SUCCESS {
		return 0, status
	}
	return d.showBuffer(b)
}

// maxAlloc is the largest buffer that every device of the context takes, in bytes.
func (c *Context) maxAlloc() uint64 {
	limit := maxHostBytes
	for _, dev := range c.devices {
		limit = min(limit, dev.limits.MaxAlloc)
	}
	return limit
}

// takeMemory gives a new buffer its memory and first contents.
func (b *Buffer) takeMemory(host api.HostPtr) api.Status {
	if b.ctx.InPlace {
		p, status := b.d.slabs.Alloc(b.size, b.ctx.alignBytes, b.d.cfg.Publish != "")
		if status != cl.SUCCESS {
			return status
		}
		b.place = p
		if b.flags&cl.MEM_COPY_HOST_PTR != 0 {
			segment.Copy(p.Bytes(b.size), host.Bytes(0, b.size))
		}
		return cl.SUCCESS
	}
	if status := b.ctx.debit(b.size); status != cl.SUCCESS {
		return status
	}
	if b.flags&cl.MEM_COPY_HOST_PTR == 0 {
		return cl.SUCCESS
	}
	status := b.store(0, host.Bytes(0, b.size))
	if status != cl.SUCCESS {
		b.ctx.credit(b.size)
	}
	return status
}

// debit takes bytes of the driver's memory from what the context's smallest device has, and from what the daemon lets
// this program have. It starts the worker. Drivers allocate late and fail at a launch; a program expects the failure
// here.
func (c *Context) debit(n uint64) api.Status {
	if !c.fits(n) {
		return cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	w, status := c.worker()
	if status != cl.SUCCESS {
		c.debited.Add(-n)
		return status
	}
	return c.reserve(w, n)
}

// debitRunning is debit with a worker that runs: for who holds the lock of a buffer, under which no worker is started.
func (c *Context) debitRunning(w *worker, n uint64) api.Status {
	if !c.fits(n) {
		return cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	return c.reserve(w, n)
}

// fits counts n bytes more, if the context's smallest device has as much.
func (c *Context) fits(n uint64) bool {
	limit := maxHostBytes
	for _, dev := range c.devices {
		if dev.limits.GlobalBytes != 0 {
			limit = min(limit, dev.limits.GlobalBytes)
		}
	}
	if c.debited.Add(n) > limit {
		c.debited.Add(-n)
		return false
	}
	return true
}

// credit gives back what debit took.
func (c *Context) credit(n uint64) {
	c.debited.Add(-n)
	if w := c.bound(); w != nil {
		w.ReturnDevice(n)
	}
}

// reserve takes n bytes that fits has counted from what the daemon lets this program have, or counts them back.
func (c *Context) reserve(w *worker, n uint64) api.Status {
	if w.Dead() {
		c.debited.Add(-n)
		return cl.OUT_OF_RESOURCES
	}
	err := w.ReserveDevice(n)
	if err == nil {
		return cl.SUCCESS
	}
	c.debited.Add(-n)
	text := fmt.Sprintf("tendril: no device memory for %d bytes: %v", n, err)
	if !errors.Is(err, object.ErrQuota) {
		c.d.cfg.Log(text)
	}
	c.notify(text)
	return cl.MEM_OBJECT_ALLOCATION_FAILURE
}

func (d *Driver) showBuffer(b *Buffer) (uintptr, api.Status) {
	h, err := d.buffers.Put(b)
	if err != nil {
		b.freeMemory()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	b.handle = h
	b.ctx.refs.Retain()
	if b.parent != nil {
		b.parent.refs.Retain()
		b.parent.adopt(b)
	}
	if b.mirror != nil {
		b.ctx.mirrors.Add(b.mirror)
	}
	return h, cl.SUCCESS
}

// CreateSubBuffer is clCreateSubBuffer (§5.2.1) with CL_BUFFER_CREATE_TYPE_REGION.
func (d *Driver) CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin,
	size uint64) (uintptr, api.Status) {
	p := d.buffers.Get(parent)
	if p == nil || p.parent != nil && !p.overSVM() || p.image != nil {
		return 0, cl.INVALID_MEM_OBJECT
	}
	flags, status := inheritFlags(p.flags, flags)
	if status != cl.SUCCESS {
		return 0, status
	}
	if createType != cl.BUFFER_CREATE_TYPE_REGION || !hasInfo {
		return 0, cl.INVALID_VALUE
	}
	if size == 0 {
		return 0, cl.INVALID_BUFFER_SIZE
	}
	if origin > p.size || size > p.size-origin {
		return 0, cl.INVALID_VALUE
	}
	if !p.ctx.aligned(origin) {
		return 0, cl.MISALIGNED_SUB_BUFFER_OFFSET
	}
	b := &Buffer{d: d, ctx: p.ctx, flags: flags, size: size, parent: p, origin: p.origin + origin, root: p.root}
	if !p.host.Nil() {
		b.host = p.host.Plus(origin)
	}
	b.id.Store(d.newID())
	b.refs.Set(1)
	return d.showBuffer(b)
}

// aligned says whether some device of the context takes a sub-buffer at origin.
func (c *Context) aligned(origin uint64) bool {
	for _, dev := range c.devices {
		if origin%dev.limits.AlignBytes == 0 {
			return true
		}
	}
	return false
}

// inheritFlags merges a sub-buffer's flags with its parent's by table 15 of §5.2.1.
func inheritFlags(parent, flags uint64) (uint64, api.Status) {
	switch {
	case flags&^memKnown != 0, flags&memHostPtr != 0, !oneOf(flags, memAccess), !oneOf(flags, memHostAccess),
		parent&cl.MEM_WRITE_ONLY != 0 && flags&(cl.MEM_READ_WRITE|cl.MEM_READ_ONLY) != 0,
		parent&cl.MEM_READ_ONLY != 0 && flags&(cl.MEM_READ_WRITE|cl.MEM_WRITE_ONLY) != 0,
		parent&cl.MEM_HOST_WRITE_ONLY != 0 && flags&cl.MEM_HOST_READ_ONLY != 0,
		parent&cl.MEM_HOST_READ_ONLY != 0 && flags&cl.MEM_HOST_WRITE_ONLY != 0,
		parent&cl.MEM_HOST_NO_ACCESS != 0 && flags&(cl.MEM_HOST_READ_ONLY|cl.MEM_HOST_WRITE_ONLY) != 0:
		return 0, cl.INVALID_VALUE
	}
	if flags&memAccess == 0 {
		flags |= parent & memAccess
	}
	if flags&memHostAccess == 0 {
		flags |= parent & memHostAccess
	}
	return flags | parent&memHostPtr, cl.SUCCESS
}

// ensureRemote makes the buffer known to the worker before the record that names it.
func (b *Buffer) ensureRemote(w *worker) api.Status {
	if b.remote.Load() == w {
		return cl.SUCCESS
	}
	if b.parent != nil {
		if status := b.parent.ensureRemote(w); status != cl.SUCCESS {
			return status
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.remote.Load() == w {
		return cl.SUCCESS
	}
	if b.image != nil {
		m := b.imageRecord()
		if w.Send(&m, 0, 0) != nil {
			return cl.OUT_OF_RESOURCES
		}
		b.remote.Store(w)
		return cl.SUCCESS
	}
	m := clwire.CreateBuffer{ID: b.id.Load(), Context: b.ctx.id, Flags: b.flags & memAccess, Size: b.size,
		Offset: b.origin}
	if is, status := b.objectRecord(w, &m); status != cl.SUCCESS {
		return status
	} else if is {
		// The record is whole.
	} else if p := b.root.placeOf(b); p != nil {
		if w.addSegment(p.Segment) != nil {
			return cl.OUT_OF_RESOURCES
		}
		m.Segment, m.Offset = p.Segment.ID, p.Offset+b.origin
	} else if b.parent != nil {
		m.Parent = b.root.id.Load()
	}
	if w.Send(&m, 0, 0) != nil {
		return cl.OUT_OF_RESOURCES
	}
	if b.content != nil {
		b.tellContentLocked(w)
	}
	b.remote.Store(w)
	return cl.SUCCESS
}

// placeOf reads the root's place; asking is the buffer whose lock the caller holds.
func (b *Buffer) placeOf(asking *Buffer) *memory.Place {
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
	return p.Bytes(b.root.size)[b.origin : b.origin+b.size : b.origin+b.size]
}

// RetainMemObject is clRetainMemObject.
func (d *Driver) RetainMemObject(h uintptr) api.Status {
	if b := d.buffers.Get(h); b != nil && b.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_MEM_OBJECT
}

// ReleaseMemObject is clReleaseMemObject.
func (d *Driver) ReleaseMemObject(h uintptr) api.Status {
	b := d.buffers.Get(h)
	if b == nil || !d.releaseBuffer(b) {
		return cl.INVALID_MEM_OBJECT
	}
	return cl.SUCCESS
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
	b.ctx.mirrors.Drop(b.mirror)
	b.endMirror()
	return true
}

// endMirror gives the program's memory back: with the last results in it before the release returns, since a program
// may reuse it then. Where that would wait for the program itself (a user event without an end, one of its callbacks)
// the memory is the program's once the destructor callback has run, if there is one, and at once if there is none.
func (b *Buffer) endMirror() {
	m := b.mirror
	ended := m.End()
	if !ended && b.ctx.AsyncWrites.UserEvents() == 0 && !b.d.callbacks.Here() {
		m.WaitQuiet()
		ended = m.End()
	}
	b.mu.Lock()
	told := len(b.destructors) > 0
	b.mu.Unlock()
	if !ended && !told {
		m.Close()
	}
	if m.Quiet() {
		b.d.dropBuffer(b)
		return
	}
	b.d.background.Go(func() {
		m.WaitQuiet()
		m.End()
		b.d.dropBuffer(b)
	})
}

func (d *Driver) dropBuffer(b *Buffer) {
	b.mu.Lock()
	unused := b.drop()
	destructors := b.destructors
	b.destructors = nil
	b.mu.Unlock()
	if unused {
		b.releaseRemote()
		b.freeMemory()
	}
	runLatestFirst(d.callbacks, destructors)
	if b.parent != nil {
		b.parent.disown(b)
		d.releaseBuffer(b.parent)
	}
	if unused {
		d.releaseContext(b.ctx)
	}
}

// Keep keeps the worker's object, the memory and the context until the returned function is called: a program may
// release a memory object whose reads and writes are under way. What is gone already cannot be kept: a program may
// release an object while a call of another thread's looks at it.
func (b *Buffer) Keep() (done func(), status api.Status) {
	own, status := b.keepOwn()
	if b.root == b || status != cl.SUCCESS {
		return own, status
	}
	root, status := b.root.keepOwn()
	if status != cl.SUCCESS {
		own()
		return nil, status
	}
	return func() { own(); root() }, cl.SUCCESS
}

func (b *Buffer) keepOwn() (done func(), status api.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.use() {
		return nil, cl.INVALID_MEM_OBJECT
	}
	return func() {
		b.mu.Lock()
		last := b.endUse()
		b.mu.Unlock()
		if last {
			b.releaseRemote()
			b.freeMemory()
			b.d.releaseContext(b.ctx)
		}
	}, cl.SUCCESS
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

func (b *Buffer) freeMemory() {
	b.mu.Lock()
	p, old := b.takePlaces()
	published, debited := b.published.Load(), b.debited
	b.mu.Unlock()
	for _, seg := range old {
		b.d.releasePublished(seg)
	}
	if b.svm != nil {
		b.maps.Forget()
	}
	if !b.maps.ReleaseUnused() {
		b.maps.Release().Free(b.freeShown)
	}
	b.endView(p)
	switch {
	case b.object != nil:
		if debited {
			b.ctx.credit(b.size)
		}
		b.detachObject()
	case p == nil && b.parent == nil:
		b.ctx.credit(b.size)
	case p == nil:
	case published:
		b.d.releasePublished(p.Segment)
	default:
		b.ctx.bound().freeMemory(b.d, p)
	}
}

// SetMemObjectDestructorCallback is clSetMemObjectDestructorCallback (§5.5.1).
func (d *Driver) SetMemObjectDestructorCallback(h uintptr, call func()) api.Status {
	b := d.buffers.Get(h)
	if b == nil {
		return cl.INVALID_MEM_OBJECT
	}
	if call == nil {
		return cl.INVALID_VALUE
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.destructors = append(b.destructors, call)
	return cl.SUCCESS
}

// MemObjectInfo is clGetMemObjectInfo (§5.5.5).
func (d *Driver) MemObjectInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	switch param {
	case cl.MEM_TYPE:
		return answers.U32(b.memType()), cl.SUCCESS
	case cl.MEM_FLAGS:
		return answers.U64(b.flags), cl.SUCCESS
	case cl.MEM_SIZE:
		return answers.Size(b.size), cl.SUCCESS
	case cl.MEM_HOST_PTR:
		return answers.Size(b.host.Address()), cl.SUCCESS
	case cl.MEM_MAP_COUNT:
		return answers.U32(uint32(b.maps.Count())), cl.SUCCESS
	case cl.MEM_REFERENCE_COUNT:
		return answers.U32(b.refs.Count()), cl.SUCCESS
	case cl.MEM_CONTEXT:
		return answers.Size(b.ctx.handle), cl.SUCCESS
	case cl.MEM_ASSOCIATED_MEMOBJECT:
		if b.parent == nil || b.overSVM() {
			return answers.Size(0), cl.SUCCESS
		}
		return answers.Size(b.parent.handle), cl.SUCCESS
	case cl.MEM_OFFSET:
		return answers.Size(b.offset()), cl.SUCCESS // 0 for images: they lie at their buffer's start
	case cl.MEM_USES_SVM_POINTER:
		if b.root.svm != nil {
			return answers.U32(1), cl.SUCCESS
		}
		return answers.U32(0), cl.SUCCESS
	case cl.MEM_PROPERTIES:
		return answers.Sizes(b.given), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}
