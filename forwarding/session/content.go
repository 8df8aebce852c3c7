package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// SetContentSizeBuffer is clSetContentSizeBufferPoCL: the 64-bit number at the beginning of size says how many bytes of
// buffer mean something, whenever a command of the host's reads buffer. Those beyond need not be brought: where the
// device is on another machine they are not, and the program's memory keeps what it had there. A size of 0 (NULL) ends
// it.
func (d *Driver) SetContentSizeBuffer(buffer, size uintptr) api.Status {
	b := d.buffers.Get(buffer)
	if b == nil || b.image != nil {
		return cl.INVALID_MEM_OBJECT
	}
	var of *Buffer
	if size != 0 {
		if of = d.buffers.Get(size); of == nil || of.image != nil || of.size < 8 {
			return cl.INVALID_MEM_OBJECT
		}
		if of.ctx != b.ctx {
			return cl.INVALID_CONTEXT
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content = of
	if w := b.remote.Load(); w != nil {
		b.tellContentLocked(w)
	}
	return cl.SUCCESS
}

// tellContentLocked tells the worker, which has the buffer, of what says how much of it means something. Only across a
// network bytes are spared.
func (b *Buffer) tellContentLocked(w *worker) {
	m := clwire.ContentSize{Buffer: b.id.Load()}
	if b.content != nil {
		m.Size = b.content.id.Load()
	}
	if b.ctx.Remote {
		w.SendOneWay(&m)
	}
}
