package session

import (
	"fmt"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
	"tendril/store/object"
)

// A driver may import memory of its own GPU up to some size only (Device.most). What is larger goes between the object
// and a buffer through a stage: an unsealed object on that GPU, small enough to be imported. The keeper copies between
// the object and the stage, the program's worker between the stage and the buffer, piece by piece. Both copies are the
// GPU's own; no host memory is used, and the size is bounded by the GPU's memory alone. It works for a program on
// another machine, too.

// stageBytes is the most that one piece has.
const stageBytes = 256 << 20

// stageOf is the size of the pieces in which size bytes reach a device.
func (dev *Device) stageOf(size uint64) uint64 {
	if dev.most > 0 {
		size = min(size, dev.most)
	}
	return min(size, stageBytes)
}

// importer is the context's device that imports memory of a GPU, if not as much as is asked for; nil: none does.
func (c *Context) importer(uuid string) *Device {
	if c.InPlace || uuid == "" {
		return nil
	}
	for _, dev := range c.devices {
		if dev.imports == uuid {
			return dev
		}
	}
	return nil
}

// openByStage is a buffer with a copy of a sealed object that is too large for its GPU's driver to import. The object's
// reference is given back in any case.
func (c *Context) openByStage(w *worker, o *node.Object, dev *Device) (h uintptr, status api.Status) {
	d, control := c.d, c.platform.control
	began := d.began()
	w.SendOneWay(&clwire.DropSegment{ID: o.Segment}) // it is never imported
	defer control.DetachObject(o)
	if o.Size > c.maxAlloc() {
		return 0, cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	b := &Buffer{d: d, ctx: c, flags: cl.MEM_READ_ONLY | cl.MEM_HOST_READ_ONLY, size: o.Size}
	b.root = b
	b.id.Store(d.newID())
	b.refs.Set(1)
	if status = b.takeMemory(api.HostPtr{}); status != cl.SUCCESS {
		return 0, status
	}
	if h, status = d.showBuffer(b); status != cl.SUCCESS {
		return 0, status
	}
	if status = b.fillByStage(w, o, dev); status != cl.SUCCESS {
		d.ReleaseMemObject(h)
		return 0, status
	}
	b.copied = true
	d.tripped(began, trace.CauseObject, nil, fmt.Sprintf("(copies on the GPU, in pieces of %d bytes)", dev.stageOf(o.Size)))
	return h, cl.SUCCESS
}

// fillByStage copies an object into a buffer by way of a stage.
func (b *Buffer) fillByStage(w *worker, o *node.Object, dev *Device) api.Status {
	control := b.ctx.platform.control
	stage, err := control.DraftObject(w.ID(), dev.imports, dev.stageOf(o.Size), nil)
	if err != nil {
		b.d.cfg.Log(fmt.Sprintf("tendril: open an object of %d bytes as a buffer, in pieces: %v", o.Size, err))
		return objectStatus(err)
	}
	defer control.DropDraft(stage)
	return b.withDraft(stage, w, dev, func(q *Queue, s *Buffer) api.Status {
		for at := uint64(0); at < o.Size; {
			n := min(stage.Size, o.Size-at)
			if err := control.FillDraft(stage, o.ID, at, n); err != nil {
				b.d.cfg.Log(fmt.Sprintf("tendril: open an object of %d bytes as a buffer, at byte %d: %v", o.Size, at, err))
				return objectStatus(err)
			}
			_, status := b.d.copy(q, cl.COMMAND_COPY_BUFFER, s, b, 0, at, n, api.Waits{})
			if status == cl.SUCCESS {
				status = q.finish() // the next piece takes its place
			}
			if status != cl.SUCCESS {
				return status
			}
			at += n
		}
		return cl.SUCCESS
	})
}

// withDraft runs f with a draft as a buffer that the worker has imported, and a queue of its GPU. Whatever f enqueues on
// it has ended when it returns.
func (b *Buffer) withDraft(o *node.Object, w *worker, dev *Device, f func(*Queue, *Buffer) api.Status) api.Status {
	if w.Send(&clwire.AddSegment{ID: o.Segment, Bytes: o.Size}, 0, 0) != nil {
		b.ctx.platform.control.DetachObject(o)
		return cl.OUT_OF_RESOURCES
	}
	h, status := b.d.showBuffer(b.ctx.overObject(o))
	if status != cl.SUCCESS {
		return status
	}
	defer b.d.ReleaseMemObject(h)
	q, status := b.ctx.moveQueue(dev)
	if status != cl.SUCCESS {
		return status
	}
	return f(q, b.d.buffers.Get(h))
}

// copyInto has a GPU copy a part of the buffer, from a byte on, into a draft in its memory, and waits for it.
func (b *Buffer) copyInto(o *node.Object, w *worker, dev *Device, from uint64) api.Status {
	return b.withDraft(o, w, dev, func(q *Queue, s *Buffer) api.Status {
		_, status := b.d.copy(q, cl.COMMAND_COPY_BUFFER, b, s, from, 0, o.Size, api.Waits{})
		if status == cl.SUCCESS {
			status = q.finish()
		}
		return status
	})
}

// publishByStage makes the object in the memory of a GPU whose driver does not import so much, piece by piece. The
// caller has waited for what was sent before.
func (b *Buffer) publishByStage(dev *Device, name string, meta []byte) (id [16]byte, err error) {
	began, control := b.d.began(), b.ctx.platform.control
	defer func() { b.d.tripped(began, trace.CausePublish, nil, name+" (two copies on the GPU)") }()
	whole, err := control.DraftAlone(dev.imports, b.size, meta)
	if err != nil {
		return id, fmt.Errorf("publish %d bytes as %q in the memory of GPU %s: %w", b.size, name, dev.imports, err)
	}
	for at := uint64(0); at < b.size && err == nil; at += dev.stageOf(b.size) {
		err = b.publishPart(whole, dev, at, min(dev.stageOf(b.size), b.size-at))
	}
	if err != nil {
		control.DropDraft(whole)
	} else {
		err = control.PublishDraft(whole, name)
	}
	if err != nil {
		return id, fmt.Errorf("publish %d bytes as %q in the memory of GPU %s, in pieces: %w", b.size, name, dev.imports, err)
	}
	return whole.ID, nil
}

// publishPart copies a piece of a buffer into the draft of the whole.
func (b *Buffer) publishPart(whole *node.Object, dev *Device, at, n uint64) error {
	w, status := b.ctx.worker()
	if status != cl.SUCCESS {
		return fmt.Errorf("%w: there is no worker (OpenCL error %d)", object.ErrInternal, status)
	}
	control := b.ctx.platform.control
	part, err := control.DraftObject(w.ID(), dev.imports, n, nil)
	if err != nil {
		return err
	}
	if status := b.copyInto(part, w, dev, at); status != cl.SUCCESS {
		control.DropDraft(part)
		return fmt.Errorf("%w: the copy on the GPU, from byte %d on, failed (OpenCL error %d)", object.ErrInternal, at, status)
	}
	return control.JoinDraft(whole, at, part)
}
