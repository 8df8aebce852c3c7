package span

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/fixed"
	"tendril/forwarding/handle"
)

// Buffer is a cl_mem of a spanning context: a buffer or image of session's at each member that has used it.
type Buffer struct {
	refs   handle.Refs
	ctx    *Context
	handle uintptr
	flags  uint64
	size   uint64      // bytes; of an image rows
	host   api.HostPtr // the program's memory (CL_MEM_USE_HOST_PTR), or NULL
	given  []uint64    // properties, 0-terminated; nil: none
	parent *Buffer     // of a sub-buffer, or what an image lies in; nil: none
	origin uint64      // in root
	root   *Buffer     // itself when parent is nil
	image  *image      // nil: a buffer
	view   []byte      // of a root that is shared virtual memory: the program's memory at its address; or nil

	// Guarded by Context.mu.
	inner       []uintptr // session's, by member; 0: not made yet
	parts       parts     // of a root
	mirror      *mirror   // of a root over the program's memory
	maps        []mapping
	destructors []func()
	content     *Buffer   // whose number counts the bytes that mean something; nil: all do
	counted     []*Buffer // whose content a number in this root counts
}

// mapping is one clEnqueueMapBuffer not yet unmapped.
type mapping struct {
	address uintptr
	member  int
	off, n  uint64
	writes  bool
	host    bool             // the program's own memory was given: session knows of no mapping
	region  *api.ImageRegion // of an image's own memory that was given
}

// sameInnerFlagsMask are the flags that a member's buffer has of the program's.
const sameInnerFlagsMask = ^uint64(cl.MEM_USE_HOST_PTR | cl.MEM_COPY_HOST_PTR)

// CreateBuffer is clCreateBuffer and clCreateBufferWithProperties (§5.2.1). The first member checks the arguments and
// takes the first contents; the others get memory when they first use the buffer.
func (d *Driver) CreateBuffer(context uintptr, given []uint64, flags, size uint64, host api.HostPtr) (uintptr,
	api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateBuffer(context, given, flags, size, host)
	}
	if size > c.limit {
		return 0, cl.INVALID_BUFFER_SIZE
	}
	if flags&cl.MEM_USE_HOST_PTR != 0 {
		if p, off, ok := c.inSVM(host, size); ok {
			return c.bufferOver(p.root, off, given, flags, size)
		}
	}
	native := flags
	if flags&cl.MEM_USE_HOST_PTR != 0 && flags&(cl.MEM_ALLOC_HOST_PTR|cl.MEM_COPY_HOST_PTR) == 0 && !host.Nil() {
		native = flags&^cl.MEM_USE_HOST_PTR | cl.MEM_COPY_HOST_PTR // the mirror is this package's
	}
	inner, status := d.base.CreateBuffer(c.members[0].context, given, native, size, host)
	if status != cl.SUCCESS {
		return 0, status
	}
	b := &Buffer{ctx: c, flags: flags, size: size, given: given, inner: make([]uintptr, len(c.members))}
	value, _ := d.base.MemObjectInfo(inner, cl.MEM_FLAGS)
	b.flags = answers.Number(value)&sameInnerFlagsMask | flags&^sameInnerFlagsMask
	b.root, b.inner[0] = b, inner
	p := part{hi: size}
	if native&cl.MEM_COPY_HOST_PTR != 0 {
		p.valid = 1
	}
	b.parts = parts{p}
	if flags&cl.MEM_USE_HOST_PTR != 0 {
		b.host, b.mirror = host, &mirror{}
	}
	return b.show()
}

func (b *Buffer) show() (uintptr, api.Status) {
	b.refs.Set(1)
	h, err := b.ctx.d.buffers.Put(b)
	if err != nil {
		b.dropInner()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	b.handle = h
	b.ctx.refs.Retain()
	if b.parent != nil {
		b.parent.refs.Retain()
	}
	if b.mirror != nil {
		b.ctx.mu.Lock()
		b.ctx.mirrors[b] = struct{}{}
		b.ctx.mu.Unlock()
	}
	return h, cl.SUCCESS
}

// CreateSubBuffer is clCreateSubBuffer (§5.2.1). It is checked at a member whose devices take the origin; a member
// whose devices do not refuses the commands that use it (CL_MISALIGNED_SUB_BUFFER_OFFSET).
func (d *Driver) CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin,
	size uint64) (uintptr, api.Status) {
	p := d.buffers.Get(parent)
	if p == nil {
		return d.base.CreateSubBuffer(parent, flags, createType, hasInfo, origin, size)
	}
	if p.parent != nil && !p.overSVM() {
		return 0, cl.INVALID_MEM_OBJECT
	}
	c := p.ctx
	at := 0
	for i, m := range c.members {
		if origin%m.align == 0 {
			at = i
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	whole, status := p.atLocked(at)
	if status != cl.SUCCESS {
		return 0, status
	}
	inner, status := d.base.CreateSubBuffer(whole, flags, createType, hasInfo, origin, size)
	if status != cl.SUCCESS {
		return 0, status
	}
	b := &Buffer{ctx: c, size: size, parent: p, origin: p.origin + origin, root: p.root,
		inner: make([]uintptr, len(c.members))}
	value, _ := d.base.MemObjectInfo(inner, cl.MEM_FLAGS)
	b.flags = answers.Number(value)&sameInnerFlagsMask | p.flags&^sameInnerFlagsMask
	if b.inner[at] = inner; !p.host.Nil() {
		b.host = p.host.Plus(origin)
	}
	return b.show()
}

// atLocked is the buffer at a member, made now if the member never used it.
func (b *Buffer) atLocked(member int) (uintptr, api.Status) {
	if h := b.inner[member]; h != 0 {
		return h, cl.SUCCESS
	}
	d := b.ctx.d.base
	var h uintptr
	var status api.Status
	if b.image != nil {
		h, status = b.againLocked(member)
	} else if b.parent == nil {
		h, status = d.CreateBuffer(b.ctx.members[member].context, b.given, b.flags&sameInnerFlagsMask, b.size,
			api.HostPtr{})
	} else {
		h, status = b.partLocked(member)
	}
	if status == cl.SUCCESS {
		b.inner[member] = h
	}
	return h, status
}

// RetainMemObject is clRetainMemObject.
func (d *Driver) RetainMemObject(h uintptr) api.Status {
	b := d.buffers.Get(h)
	if b == nil {
		return d.base.RetainMemObject(h)
	}
	if !b.refs.Retain() {
		return cl.INVALID_MEM_OBJECT
	}
	return cl.SUCCESS
}

// ReleaseMemObject is clReleaseMemObject.
func (d *Driver) ReleaseMemObject(h uintptr) api.Status {
	b := d.buffers.Get(h)
	if b == nil {
		return d.base.ReleaseMemObject(h)
	}
	if !b.drop() {
		return cl.INVALID_MEM_OBJECT
	}
	return cl.SUCCESS
}

func (b *Buffer) drop() bool {
	ok, last := b.refs.Release()
	if !last {
		return ok
	}
	b.ctx.d.buffers.Remove(b.handle)
	if b.mirror == nil {
		b.end()
		return true
	}
	b.endMirror()
	return true
}

func (b *Buffer) end() {
	c := b.ctx
	c.mu.Lock()
	delete(c.mirrors, b)
	b.setContentLocked(nil)
	b.parts.drop(c.ends())
	destructors := b.destructors
	b.destructors = nil
	c.mu.Unlock()
	b.dropInner()
	if b.view != nil {
		fixed.Release(b.view)
	}
	c.d.runLatestFirst(destructors)
	if b.parent != nil {
		b.parent.drop()
	}
	c.drop()
}

// dropInner gives session's buffers back. Moves under way hold references of their own.
func (b *Buffer) dropInner() {
	for _, h := range b.inner {
		if h != 0 {
			b.ctx.d.base.ReleaseMemObject(h)
		}
	}
}

func (c *Context) ends() ends {
	return ends{event: func(h uintptr) { c.d.base.ReleaseEvent(h) }}
}

// SetMemObjectDestructorCallback is clSetMemObjectDestructorCallback (§5.5.1).
func (d *Driver) SetMemObjectDestructorCallback(h uintptr, call func()) api.Status {
	b := d.buffers.Get(h)
	switch {
	case b == nil:
		return d.base.SetMemObjectDestructorCallback(h, call)
	case call == nil:
		return cl.INVALID_VALUE
	}
	b.ctx.mu.Lock()
	defer b.ctx.mu.Unlock()
	b.destructors = append(b.destructors, call)
	return cl.SUCCESS
}

// MemObjectInfo is clGetMemObjectInfo (§5.5.5).
func (d *Driver) MemObjectInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return d.base.MemObjectInfo(h, param)
	}
	switch param {
	case cl.MEM_FLAGS:
		return answers.U64(b.flags), cl.SUCCESS
	case cl.MEM_SIZE:
		if b.image != nil {
			return d.base.MemObjectInfo(b.inner[b.image.home], param)
		}
		return answers.U64(b.size), cl.SUCCESS
	case cl.MEM_HOST_PTR:
		return answers.Size(b.host.Address()), cl.SUCCESS
	case cl.MEM_MAP_COUNT:
		b.ctx.mu.Lock()
		defer b.ctx.mu.Unlock()
		return answers.U32(uint32(len(b.maps))), cl.SUCCESS
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
		return answers.U64(b.offset()), cl.SUCCESS
	case cl.MEM_USES_SVM_POINTER:
		if b.root.view != nil {
			return answers.U32(1), cl.SUCCESS
		}
		return answers.U32(0), cl.SUCCESS
	case cl.MEM_PROPERTIES:
		return answers.Sizes(b.given), cl.SUCCESS
	}
	for _, inner := range b.inner {
		if inner != 0 {
			return d.base.MemObjectInfo(inner, param)
		}
	}
	return nil, cl.INVALID_VALUE
}
