package session

import "tendril/forwarding/clwire"

// contentVersion is the version of cl_pocl_content_size, as CL_MAKE_VERSION packs it: 1.0.0.
const contentVersion = 1 << 22

// SetContentSizeBuffer is clSetContentSizeBufferPoCL: the 64-bit number at the beginning of size says how many bytes of
// buffer mean something, whenever a command of the host's reads buffer. Those beyond need not be brought: where the device
// is on another machine they are not, and the program's memory keeps what it had there. A size of 0 (NULL) ends it.
func (d *Driver) SetContentSizeBuffer(buffer, size uintptr) Status {
	b := d.buffers.Get(buffer)
	if b == nil || b.image != nil {
		return InvalidMemObject
	}
	var of *Buffer
	if size != 0 {
		if of = d.buffers.Get(size); of == nil || of.image != nil || of.size < 8 {
			return InvalidMemObject
		}
		if of.ctx != b.ctx {
			return InvalidContext
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content = of
	if w := b.remote.Load(); w != nil {
		b.tellContentLocked(w)
	}
	return Success
}

// tellContentLocked tells the worker, which has the buffer, of what says how much of it means something. Only across a
// network bytes are spared.
func (b *Buffer) tellContentLocked(w *worker) {
	m := clwire.ContentSize{Buffer: b.id.Load()}
	if b.content != nil {
		m.Size = b.content.id.Load()
	}
	if b.ctx.remote {
		w.tell(&m)
	}
}

// onLength hears that a read, or a push to this worker, is over with its first bytes.
func (w *worker) onLength(payload []byte) error {
	var m clwire.BulkLength
	if err := m.Decode(payload); err != nil {
		return err
	}
	if w.bulk != nil {
		if o := w.bulk.find(m.Op); o != nil {
			return o.shorten(m.Bytes)
		}
	}
	w.onPushed(&m)
	return nil
}
