package span

import (
	"encoding/binary"
	"fmt"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

var le = binary.LittleEndian

// OpenObject is clCreateBufferFromObjectTENDRIL: the object of the first member's node that has it; a member that works
// on the object itself goes before one that would get a copy. The other members get its bytes as they get those of any
// buffer, when they first use them.
func (d *Driver) OpenObject(context uintptr, id [16]byte, name string) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.OpenObject(context, id, name)
	}
	h, status := d.openAt(c, func(m *member) (uintptr, api.Status) { return d.base.OpenUncopied(m.context, id, name) })
	if status == cl.INVALID_OPERATION {
		return d.openAt(c, func(m *member) (uintptr, api.Status) { return d.base.OpenObject(m.context, id, name) })
	}
	return h, status
}

// openAt is OpenObject by one way to open it at a member.
func (d *Driver) openAt(c *Context, open func(*member) (uintptr, api.Status)) (h uintptr, status api.Status) {
	for i, m := range c.members {
		inner, refused := open(m)
		if refused != cl.SUCCESS {
			if i == 0 || status == cl.INVALID_VALUE { // which says that there is none
				status = refused
			}
			continue
		}
		size, _ := d.base.MemObjectInfo(inner, cl.MEM_SIZE)
		flags, _ := d.base.MemObjectInfo(inner, cl.MEM_FLAGS)
		b := &Buffer{ctx: c, flags: answers.Number(flags), size: answers.Number(size),
			inner: make([]uintptr, len(c.members))}
		b.root, b.inner[i] = b, inner
		b.parts = parts{{hi: b.size, valid: 1 << i}}
		return b.show()
	}
	return 0, status
}

// Publish makes the buffer's memory an object of the store, at the node of the member that has the newest bytes; where
// several have some of them, of the one that has the first. It waits for what must come there, as for earlier commands.
func (d *Driver) Publish(h uintptr, name string, meta []byte) (id [16]byte, err error) {
	b := d.buffers.Get(h)
	if b == nil {
		return d.base.Publish(h, name, meta)
	}
	if b.root.mirror != nil || b.parent != nil {
		return id, api.ErrNotPublishable
	}
	c := b.ctx
	c.mu.Lock()
	member := b.firstMemberLocked()
	if b.image == nil {
		if p := &b.parts[0]; p.valid != 0 {
			member, _ = p.source()
		}
	}
	inner, status := b.atLocked(member)
	var waits []*arrival
	if status == cl.SUCCESS {
		waits, status = c.planLocked(member, []use{b.allOf(true, false)}, behind{})
	}
	for _, a := range waits {
		c.d.base.RetainEvent(a.event)
	}
	c.dropLocked(waits)
	c.mu.Unlock()
	for _, a := range waits {
		e := a.event
		if waited := c.await(e); status == cl.SUCCESS {
			status = waited
		}
		c.d.base.ReleaseEvent(e)
	}
	if status != cl.SUCCESS {
		return id, fmt.Errorf("publish: cannot bring the buffer's bytes together at one node (OpenCL error %d)", status)
	}
	return d.base.Publish(inner, name, meta)
}
