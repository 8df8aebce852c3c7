package span

import (
	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Buffer is a cl_mem of a spanning context: a buffer or image of session's at each member that has used it.
type Buffer struct {
	refs   handle.Refs
	ctx    *Context
	handle uintptr
	flags  uint64
	size   uint64          // bytes; of an image rows
	host   session.HostPtr // the program's memory (CL_MEM_USE_HOST_PTR), or NULL
	given  []uint64        // properties, 0-terminated; nil: none
	parent *Buffer         // of a sub-buffer, or what an image lies in; nil: none
	origin uint64          // in root
	root   *Buffer         // itself when parent is nil
	image  *image          // nil: a buffer

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
	host    bool                 // the program's own memory was given: session knows of no mapping
	region  *session.ImageRegion // of an image's own memory that was given
}

// Flags and parameters of memory objects.
const (
	memReadOnly        uint64 = 1 << 2
	memUseHostPtr      uint64 = 1 << 3
	memAllocHostPtr    uint64 = 1 << 4
	memCopyHostPtr     uint64 = 1 << 5
	memSize            uint32 = 0x1102
	memHostPointer     uint32 = 0x1103
	memMapCount        uint32 = 0x1104
	memRefs            uint32 = 0x1105
	memContext         uint32 = 0x1106
	memParent          uint32 = 0x1107
	memFlags           uint32 = 0x1101
	memOffset          uint32 = 0x1108
	memProperties      uint32 = 0x110A
	createTypeRegion   uint32 = 0x1220
	sameInnerFlagsMask        = ^(memUseHostPtr | memCopyHostPtr)
)

// CreateBuffer is clCreateBuffer and clCreateBufferWithProperties (§5.2.1). The first member checks the arguments and
// takes the first contents; the others get memory when they first use the buffer.
func (d *Driver) CreateBuffer(context uintptr, given []uint64, flags, size uint64, host session.HostPtr) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateBuffer(context, given, flags, size, host)
	}
	if size > c.limit {
		return 0, session.InvalidBufferSize
	}
	native := flags
	if flags&memUseHostPtr != 0 && flags&(memAllocHostPtr|memCopyHostPtr) == 0 && !host.Nil() {
		native = flags&^memUseHostPtr | memCopyHostPtr // the mirror is this package's
	}
	inner, status := d.Driver.CreateBuffer(c.members[0].context, given, native, size, host)
	if status != session.Success {
		return 0, status
	}
	b := &Buffer{ctx: c, flags: flags, size: size, given: given, inner: make([]uintptr, len(c.members))}
	value, _ := d.Driver.MemObjectInfo(inner, memFlags)
	b.flags = number(value)&sameInnerFlagsMask | flags&^sameInnerFlagsMask
	b.root, b.inner[0] = b, inner
	p := part{hi: size}
	if native&memCopyHostPtr != 0 {
		p.valid = 1
	}
	b.parts = parts{p}
	if flags&memUseHostPtr != 0 {
		b.host, b.mirror = host, &mirror{}
	}
	return b.show()
}

func (b *Buffer) show() (uintptr, session.Status) {
	b.refs.Set(1)
	h, err := b.ctx.d.buffers.Put(b)
	if err != nil {
		b.dropInner()
		return 0, session.OutOfHostMemory
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
	return h, session.Success
}

// CreateSubBuffer is clCreateSubBuffer (§5.2.1). It is checked at a member whose devices take the origin; a member whose
// devices do not refuses the commands that use it (CL_MISALIGNED_SUB_BUFFER_OFFSET).
func (d *Driver) CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin, size uint64) (uintptr, session.Status) {
	p := d.buffers.Get(parent)
	if p == nil {
		return d.Driver.CreateSubBuffer(parent, flags, createType, hasInfo, origin, size)
	}
	if p.parent != nil {
		return 0, session.InvalidMemObject
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
	if status != session.Success {
		return 0, status
	}
	inner, status := d.Driver.CreateSubBuffer(whole, flags, createType, hasInfo, origin, size)
	if status != session.Success {
		return 0, status
	}
	b := &Buffer{ctx: c, size: size, parent: p, origin: origin, root: p, inner: make([]uintptr, len(c.members))}
	value, _ := d.Driver.MemObjectInfo(inner, memFlags)
	b.flags = number(value)&sameInnerFlagsMask | p.flags&^sameInnerFlagsMask
	if b.inner[at] = inner; !p.host.Nil() {
		b.host = p.host.Plus(origin)
	}
	return b.show()
}

// atLocked is the buffer at a member, made now if the member never used it.
func (b *Buffer) atLocked(member int) (uintptr, session.Status) {
	if h := b.inner[member]; h != 0 {
		return h, session.Success
	}
	d := b.ctx.d.Driver
	var h uintptr
	var status session.Status
	if b.image != nil {
		h, status = b.againLocked(member)
	} else if b.parent == nil {
		h, status = d.CreateBuffer(b.ctx.members[member].context, b.given, b.flags&sameInnerFlagsMask, b.size, session.HostPtr{})
	} else {
		var whole uintptr
		if whole, status = b.parent.atLocked(member); status == session.Success {
			h, status = d.CreateSubBuffer(whole, b.flags&sameInnerFlagsMask&^memAllocHostPtr, createTypeRegion, true, b.origin, b.size)
		}
	}
	if status == session.Success {
		b.inner[member] = h
	}
	return h, status
}

// RetainMemObject is clRetainMemObject.
func (d *Driver) RetainMemObject(h uintptr) session.Status {
	b := d.buffers.Get(h)
	if b == nil {
		return d.Driver.RetainMemObject(h)
	}
	if !b.refs.Retain() {
		return session.InvalidMemObject
	}
	return session.Success
}

// ReleaseMemObject is clReleaseMemObject.
func (d *Driver) ReleaseMemObject(h uintptr) session.Status {
	b := d.buffers.Get(h)
	if b == nil {
		return d.Driver.ReleaseMemObject(h)
	}
	if !b.drop() {
		return session.InvalidMemObject
	}
	return session.Success
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
			b.ctx.d.Driver.ReleaseMemObject(h)
		}
	}
}

func (c *Context) ends() ends {
	return ends{event: func(h uintptr) { c.d.Driver.ReleaseEvent(h) }}
}

// SetMemObjectDestructorCallback is clSetMemObjectDestructorCallback (§5.5.1).
func (d *Driver) SetMemObjectDestructorCallback(h uintptr, call func()) session.Status {
	b := d.buffers.Get(h)
	switch {
	case b == nil:
		return d.Driver.SetMemObjectDestructorCallback(h, call)
	case call == nil:
		return session.InvalidValue
	}
	b.ctx.mu.Lock()
	defer b.ctx.mu.Unlock()
	b.destructors = append(b.destructors, call)
	return session.Success
}

// MemObjectInfo is clGetMemObjectInfo (§5.5.5).
func (d *Driver) MemObjectInfo(h uintptr, param uint32) ([]byte, session.Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return d.Driver.MemObjectInfo(h, param)
	}
	switch param {
	case memFlags:
		return infoU64(b.flags), session.Success
	case memSize:
		if b.image != nil {
			return d.Driver.MemObjectInfo(b.inner[b.image.home], param)
		}
		return infoU64(b.size), session.Success
	case memHostPointer:
		return infoHandle(b.host.Address()), session.Success
	case memMapCount:
		b.ctx.mu.Lock()
		defer b.ctx.mu.Unlock()
		return infoU32(uint32(len(b.maps))), session.Success
	case memRefs:
		return infoU32(b.refs.Count()), session.Success
	case memContext:
		return infoHandle(b.ctx.handle), session.Success
	case memParent:
		if b.parent == nil {
			return infoHandle(0), session.Success
		}
		return infoHandle(b.parent.handle), session.Success
	case memOffset:
		if b.image != nil {
			return infoU64(0), session.Success // it lies at its buffer's start
		}
		return infoU64(b.origin), session.Success
	case memProperties:
		return infoList(b.given), session.Success
	}
	for _, inner := range b.inner {
		if inner != 0 {
			return d.Driver.MemObjectInfo(inner, param)
		}
	}
	return nil, session.InvalidValue
}
