//go:build cgo

package worker

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// readTask makes a command for the driver of an inline read of a device's own memory: the driver gets it behind what
// comes before it on its queue. Waiting here for that to end, and for the copy then, wakes two threads, which made 200
// µs of 40 on an H200. nil: this read has to wait for its turn (where another buffer says how long it is), or all the
// pinned memory for such reads is in use.
func (b *bulk) readTask(id uint64) *memTask {
	b.mu.Lock()
	o := b.ops[id]
	b.mu.Unlock()
	if !o.inline || o.refused != cl.SUCCESS || o.buffer.seg != nil || o.content != nil || o.buffer.image != nil {
		return nil
	}
	if _, _, whole := o.ext.rows(0, o.size); o.ext.Rect && !whole {
		return nil
	}
	if _, status := b.staging.queue(b.s, o.buffer.context); status != cl.SUCCESS {
		return nil
	}
	var slot int
	select {
	case slot = <-b.staging.freeInline:
	default:
		return nil
	}
	mem := b.staging.inlineSlot(slot)[:o.size]
	t := &memTask{what: "clEnqueueReadBuffer", buffers: [2]*buffer{o.buffer}}
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return o.transfer(q, true, 0, o.size, mem, a)
	}
	t.finished = func(status int32) {
		if status == 0 {
			b.s.send(clwire.NewBulkData(o.id, 0, mem), 0, 0)
		}
		b.staging.freeInline <- slot
		b.s.send(&clwire.BulkDone{Op: o.id, Status: status}, clwire.FlagUrgent, 0)
		b.forget(o.id)
	}
	return t.hold()
}
