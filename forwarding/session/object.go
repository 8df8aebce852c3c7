package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
	"tendril/store/object"
)

// OpenObject is clCreateBufferFromObjectTENDRIL: a buffer that is a sealed object of the store of the context's node,
// by id, or by name where id is zero. The buffer is read-only, for kernels and for the host.
//
// A device that computes on shared memory works on the object's own memory. Any other gets its copy, from the node's
// memory, when a command other than a copy from the buffer first needs it there.
//
// An object in the memory of a GPU is that memory, where the driver imports it. One that is too large for that is
// copied on the GPU (openByStage). For a context without that GPU the daemon copies it into host memory first, as it
// does one in the memory of an OpenCL device.
//
// An unsealed object in the memory of a GPU, of the same tenant and by its id, is a buffer that may be written: its
// maker seals it.
func (d *Driver) OpenObject(context uintptr, id [16]byte, name string) (uintptr, api.Status) {
	return d.openObject(context, id, name, true)
}

// OpenUncopied is OpenObject that refuses an object in the memory of a GPU which the context would get a copy of.
func (d *Driver) OpenUncopied(context uintptr, id [16]byte, name string) (uintptr, api.Status) {
	return d.openObject(context, id, name, false)
}

func (d *Driver) openObject(context uintptr, id [16]byte, name string, copies bool) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if (id == [16]byte{}) == (name == "") {
		return 0, cl.INVALID_VALUE
	}
	w, status := ctx.worker()
	if status != cl.SUCCESS {
		return 0, status
	}
	began := d.began()
	o, err := ctx.platform.control.AttachObject(w.ID(), id, name)
	if err == nil && o.Copied {
		name += byCopy
	}
	d.tripped(began, trace.CauseObject, nil, name)
	if err != nil {
		d.cfg.Log(fmt.Sprintf("tendril: open an object as a buffer: %v", err))
		return 0, objectStatus(err)
	}
	// The worker takes the memory now: what the daemon sent it does not pile up there.
	if w.Send(&clwire.AddSegment{ID: o.Segment, Bytes: o.Offset + o.Size}, 0, 0) != nil {
		ctx.platform.control.DetachObject(o)
		return 0, cl.OUT_OF_RESOURCES
	}
	foreign := o.Device != "" && !ctx.imports(o.Device, o.Size)
	if (foreign || o.Copied) && !copies {
		w.SendOneWay(&clwire.DropSegment{ID: o.Segment})
		ctx.platform.control.DetachObject(o)
		return 0, cl.INVALID_OPERATION
	}
	if dev := ctx.importer(o.Device); foreign && dev != nil && !o.Draft {
		return ctx.openByStage(w, o, dev)
	}
	if foreign {
		if o, err = ctx.copyForWorker(w, o); err != nil {
			d.cfg.Log(fmt.Sprintf("tendril: open an object as a buffer: %v", err))
			return 0, objectStatus(err)
		}
	}
	return d.showBuffer(ctx.overObject(o))
}

// byCopy is what a trace says of an object that is opened by a copy.
const byCopy = " (one copy through host memory)"

// copyForWorker gives a worker that cannot import an object in the memory of a GPU a copy of it in host memory, in
// place of the object. A draft has none: what kernels write there would not be seen.
func (c *Context) copyForWorker(w *worker, o *node.Object) (copied *node.Object, err error) {
	began, control := c.d.began(), c.platform.control
	err = errors.New("it is not sealed, and kernels would write into a copy")
	if !o.Draft {
		copied, err = control.AttachCopy(w.ID(), o)
	}
	w.SendOneWay(&clwire.DropSegment{ID: o.Segment})
	control.DetachObject(o)
	if err != nil {
		return nil, fmt.Errorf("%w: object %x of %d bytes is in the memory of GPU %s, which is no device of the context, or "+
			"whose driver does not import so much: %w", object.ErrUnsupported, o.ID, o.Size, o.Device, err)
	}
	c.d.tripped(began, trace.CauseObject, nil, byCopy)
	if w.Send(&clwire.AddSegment{ID: copied.Segment, Bytes: copied.Offset + copied.Size}, 0, 0) != nil {
		control.DetachObject(copied)
		return nil, fmt.Errorf("%w: the worker has ended", object.ErrNoDevice)
	}
	return copied, nil
}

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

// withDraft runs f with a draft as a buffer that the worker has imported, and a queue of its GPU. Whatever f enqueues
// on it has ended when it returns.
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

// overObject is a buffer that is an object: for reading, or a draft.
func (c *Context) overObject(o *node.Object) *Buffer {
	b := &Buffer{d: c.d, ctx: c, flags: cl.MEM_READ_ONLY | cl.MEM_HOST_READ_ONLY, size: o.Size, object: o}
	if o.Draft {
		b.flags = cl.MEM_READ_WRITE
	}
	b.root = b
	b.id.Store(c.d.newID())
	b.refs.Set(1)
	b.special.Store(true)
	if o.Bytes != nil {
		b.place = &memory.Place{Segment: &node.Segment{ID: o.Segment, Bytes: o.Bytes}, Size: o.Size}
	}
	return b
}

// externalMemory is the extension with which a driver makes a buffer of memory that another one allocated.
const externalMemory = "cl_khr_external_memory_opaque_fd"

// imports says whether so many bytes of a GPU's memory can be a buffer of the context: the GPU is a device of it, whose
// driver imports descriptors.
func (c *Context) imports(uuid string, size uint64) bool {
	return !c.InPlace && slices.ContainsFunc(c.devices, func(d *Device) bool {
		return d.imports == uuid && d.importsBytes(size)
	})
}

func (dev *Device) importsBytes(size uint64) bool { return dev.most == 0 || size <= dev.most }

func objectStatus(err error) api.Status {
	switch {
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrInvalid), errors.Is(err, object.ErrNotSealed):
		return cl.INVALID_VALUE
	case errors.Is(err, object.ErrPermission), errors.Is(err, object.ErrUnsupported):
		return cl.INVALID_OPERATION
	case errors.Is(err, object.ErrFull), errors.Is(err, object.ErrQuota):
		return cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	return cl.OUT_OF_RESOURCES
}

// isSealed says whether a buffer, or what it is part of, is a sealed object of the store: nothing may write to it.
func (b *Buffer) isSealed() bool {
	return b.root.copied || b.root.object != nil && !b.root.object.Draft
}

// objectRecord fills in where the worker finds an object's buffer; false: the buffer is none. The caller holds b.mu.
func (b *Buffer) objectRecord(w *worker, m *clwire.CreateBuffer) (bool, api.Status) {
	o := b.root.object
	switch {
	case o == nil:
		return false, cl.SUCCESS
	case b.parent != nil && !b.ctx.InPlace:
		m.Parent = b.parent.id.Load() // a part of the device's copy
		return true, cl.SUCCESS
	case o.Device != "": // the memory is there already
	case b.parent == nil && !b.ctx.InPlace:
		if b.size > b.ctx.maxAlloc() {
			return true, cl.MEM_OBJECT_ALLOCATION_FAILURE
		}
		if status := b.ctx.debitRunning(w, b.size); status != cl.SUCCESS {
			return true, status
		}
		b.debited = true
	}
	m.Segment, m.Offset = o.Segment, o.Offset+b.origin
	return true, cl.SUCCESS
}

// copyOfObject returns the record that copies a part of an object straight from the node's memory into another buffer,
// which the caller fills in; nil where the device has the object already, in its own memory or where it computes.
func (b *Buffer) copyOfObject(q *Queue, off, toOff, size uint64) *clwire.Transfer {
	o := b.root.object
	if o == nil || o.Device != "" || b.ctx.InPlace || b.root.remote.Load() == q.w {
		return nil
	}
	return &clwire.Transfer{
		Direction: clwire.ToBuffer, Offset: toOff, Size: size, Segment: o.Segment,
		SegmentOffset: o.Offset + b.origin + off,
	}
}

// Pauses between looks at commands that may still read a released object.
const (
	firstLook = time.Millisecond
	lastLook  = time.Second
)

// detachObject gives the reference to a released buffer's object back once no command can read it any more: the
// store may use the memory for something else then.
func (b *Buffer) detachObject() {
	d, o, w := b.d, b.object, b.ctx.bound()
	control := b.ctx.platform.control
	end := func() {
		w.SendOneWay(&clwire.DropSegment{ID: o.Segment})
		control.DetachObject(o)
	}
	readers := w.sent()
	if readers.Passed() {
		end()
		return
	}
	readers.Request()
	d.background.Go(func() {
		for pause := firstLook; !readers.Passed(); pause = min(2*pause, lastLook) {
			w.Poll()
			select {
			case <-time.After(pause):
			case <-d.closing:
				return // references end with the connection
			}
		}
		end()
	})
}
