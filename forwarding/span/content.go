package span

import "tendril/forwarding/session"

// SetContentSizeBuffer is clSetContentSizeBufferPoCL. Over several platforms the hint is taken, and all bytes are brought.
func (d *Driver) SetContentSizeBuffer(buffer, size uintptr) session.Status {
	b := d.buffers.Get(buffer)
	if b == nil {
		return d.Driver.SetContentSizeBuffer(buffer, size)
	}
	of := d.buffers.Get(size)
	switch {
	case size != 0 && (of == nil || of.size < 8):
		return session.InvalidMemObject
	case size != 0 && of.ctx != b.ctx:
		return session.InvalidContext
	}
	return session.Success
}
