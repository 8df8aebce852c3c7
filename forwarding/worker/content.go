//go:build cgo

package worker

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
)

// contentBytes is how long the number in a size buffer is.
const contentBytes = 8

// contentSize notes which buffer says how much of another means something. By number: a size buffer may be released
// first.
func (s *session) contentSize(m *clwire.ContentSize) error {
	b, err := lookup[*buffer](s, m.Buffer)
	if err != nil {
		return err
	}
	b.content = m.Size
	return nil
}

// sizeBuffer returns the buffer of a number that says how much of b means something, held for the caller; nil: all of b
// does.
func (s *session) sizeBuffer(b *buffer, id uint64) *buffer {
	size, ok := s.objects[id].(*buffer)
	if !ok || size.image != nil || size.inside(0, contentBytes) != cl.SUCCESS || size.context != b.context {
		return nil
	}
	size.refs.Add(1)
	return size
}

// trim shortens a read whose turn has come to what means something, and tells the client. It may wait for the device.
func (o *bulkOp) trim() {
	defer o.content.unref()
	if n := o.meant(0); n < o.size {
		o.size = n
		o.b.s.send(&clwire.BulkLength{Op: o.id, Bytes: n}, clwire.FlagUrgent, 0)
	}
}

// meant is how many bytes of a read or push mean something, where the content begins at origin. It may wait for the
// device.
func (o *bulkOp) meant(origin uint64) uint64 {
	var n uint64
	if o.content.seg != nil {
		n = nativeOrder.Uint64(o.content.bytes())
	} else {
		var status opencl.Status
		if n, status = o.readContent(); status != cl.SUCCESS {
			return o.size // a hint that cannot be read is none
		}
	}
	if n > ^uint64(0)-origin {
		return o.size
	}
	n += origin
	return min(n-min(n, o.ext.Offset), o.size)
}

// readContent brings the number out of a device's memory.
func (o *bulkOp) readContent() (uint64, opencl.Status) {
	p := &o.b.staging
	q, status := p.queue(o.b.s, o.content.context)
	if status != cl.SUCCESS {
		return 0, status
	}
	i := <-p.free
	defer func() { p.free <- i }()
	e, status := q.Transfer(true, o.content.native, 0, contentBytes, fixed.Address(p.slot(i)), opencl.After{Want: true})
	q.Flush()
	if status = waitFor(e, status); status != cl.SUCCESS {
		return 0, status
	}
	return nativeOrder.Uint64(p.slot(i)), status
}
