package span

import (
	"tendril/forwarding/session"
)

// OpenObject is clCreateBufferFromObjectTENDRIL: the object of the first member's node that has it. The other members
// get its bytes as they get those of any buffer, when they first use them.
func (d *Driver) OpenObject(context uintptr, id [16]byte, name string) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.OpenObject(context, id, name)
	}
	var status session.Status
	for i, m := range c.members {
		inner, refused := d.Driver.OpenObject(m.context, id, name)
		if refused != session.Success {
			if i == 0 || status == session.InvalidValue { // which says that there is none
				status = refused
			}
			continue
		}
		size, _ := d.Driver.MemObjectInfo(inner, memSize)
		flags, _ := d.Driver.MemObjectInfo(inner, memFlags)
		b := &Buffer{ctx: c, flags: number(flags), size: number(size), inner: make([]uintptr, len(c.members))}
		b.root, b.inner[i] = b, inner
		b.parts = parts{{hi: b.size, valid: 1 << i}}
		return b.show()
	}
	return 0, status
}
