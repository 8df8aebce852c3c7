package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
	"tendril/store/object"
	"tendril/store/segment"
)

// Publish moves a buffer's memory into a store object, after every command sent so far, without a copy. Reads go on
// from the same memory; the buffer's next write gets fresh memory. Small buffers, which share a slab, are copied into a
// segment of their own first, unless the process was started to publish; buffers in a driver's memory are copied.
//
// With Config.PublishKind "cuda", and where no memory is shared with the device's node, the object lies in the memory
// of the GPU, where the GPU copies it once. With "opencl" it lies in the memory of the context's first device, which a
// keeper's process has: the bytes go there by way of host memory, or from another machine by way of this process.
//
// With Config.Publish the driver does it for programs that know nothing of the store: the buffer that a blocking read
// of its whole size has just read back becomes the object of that name; the last one stays.
func (d *Driver) Publish(h uintptr, name string, meta []byte) (id [16]byte, err error) {
	b := d.buffers.Get(h)
	if b == nil || b.image != nil {
		return id, fmt.Errorf("%w: publish %#x: no live buffer", object.ErrInvalid, h)
	}
	kept, status := b.Keep() // it waits, and sends several records
	if status != cl.SUCCESS {
		return id, fmt.Errorf("%w: publish %#x: the buffer is being released", object.ErrInvalid, h)
	}
	defer kept()
	if status := b.ctx.beginPublishing(); status != cl.SUCCESS {
		return id, fmt.Errorf("%w: publish: an earlier command failed (OpenCL error %d)", object.ErrInvalid, status)
	}
	defer b.ctx.publishing.Unlock()
	return b.publish(name, meta)
}

// publishTries is how often beginPublishing lets others' commands go first where the program holds some back.
const publishTries = 100

// beginPublishing waits for every command sent so far, and gives publishing locked. A command may wait for the program
// (a user event), and that for its next call: so nobody is kept from enqueueing while anything waits, neither by the
// lock nor by who waits for it.
func (c *Context) beginPublishing() api.Status {
	for try, pause := 0, time.Microsecond; ; try++ {
		if status := c.finishAll(); status != cl.SUCCESS {
			return status
		}
		if c.publishing.TryLock() {
			if try >= publishTries || c.AsyncWrites.UserEvents() == 0 || len(c.bound().busyQueues()) == 0 {
				status := c.finishAll()
				if status != cl.SUCCESS {
					c.publishing.Unlock()
				}
				return status
			}
			c.publishing.Unlock()
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Millisecond)
	}
}

// finishAll waits for every command sent so far.
func (c *Context) finishAll() api.Status {
	for _, q := range c.bound().busyQueues() {
		if status := q.finish(); status != cl.SUCCESS {
			return status
		}
	}
	return cl.SUCCESS
}

func (b *Buffer) publish(name string, meta []byte) (id [16]byte, err error) {
	if b.parent != nil || b.mirror != nil {
		return id, api.ErrNotPublishable
	}
	if b.object != nil {
		return id, fmt.Errorf("%w: publish: the buffer is object %x already", object.ErrExists, b.object.ID)
	}
	if b.d.cfg.PublishKind == "opencl" {
		return b.publishOpenCL(name, meta)
	}
	dev, err := b.publishOn()
	if err != nil {
		return id, err
	}
	switch {
	case dev == nil:
	case dev.importsBytes(b.size):
		return b.publishDevice(dev, name, meta)
	default:
		return b.publishByStage(dev, name, meta)
	}
	if !b.ctx.InPlace || b.mappedForWriting() {
		return b.publishCopy(name, meta)
	}
	var left *memory.Place
	defer func() { b.free(left) }()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.published.Load():
		return id, fmt.Errorf("%w: publish: this memory is an object already; write to the buffer first",
			object.ErrExists)
	case b.place.Shared():
		if left, err = b.moveOutLocked(); err != nil {
			return id, err
		}
	}
	began := b.d.began()
	defer func() { b.d.tripped(began, trace.CausePublish, nil, name) }()
	writable := b.d.protect(b.place.Segment)
	id, err = b.d.control.PublishSegment(b.place.Segment, b.size, name, meta)
	if err != nil {
		writable()
		return id, fmt.Errorf("publish %d bytes as %q: %w", b.size, name, err)
	}
	b.d.slabs.Disown(b.place.Segment)
	b.published.Store(true)
	b.special.Store(true)
	return id, nil
}

// mappedForWriting says whether the program has a pointer by which it may write the buffer at any time.
func (b *Buffer) mappedForWriting() bool {
	b.mu.Lock()
	all := append(slices.Collect(maps.Keys(b.subs)), b)
	b.mu.Unlock()
	for _, x := range all {
		if x.maps.Writable() {
			return true
		}
	}
	return false
}

// protect leaves this process and its workers mappings of a segment that cannot be written, so that the daemon can seal
// the memory as it is. Where that fails the daemon finds a mapping that can, and copies. The returned function undoes
// it.
func (d *Driver) protect(seg *node.Segment) (undo func()) {
	ro, err := segment.ReadOnly(int(seg.File.Fd()))
	if err != nil {
		return func() {}
	}
	file := os.NewFile(uintptr(ro), "segment")
	defer file.Close()
	d.remap(seg, file, false)
	return func() { d.remap(seg, seg.File, true) }
}

func (d *Driver) remap(seg *node.Segment, by *os.File, writable bool) {
	for _, w := range d.workers() {
		if err := w.protect(seg, by, writable); err != nil {
			d.cfg.Log(fmt.Sprintf("tendril: publish: the worker's mapping: %v", err))
		}
	}
	if err := segment.Remap(seg.Bytes, by, writable); err != nil {
		d.cfg.Log(fmt.Sprintf("tendril: publish: %v", err))
	}
}

// protect has the worker map a segment that it knows anew. A worker that cannot, or is dead, leaves it as it is.
func (w *worker) protect(seg *node.Segment, by *os.File, writable bool) error {
	status, err := w.ProtectSegment(seg.ID, by, writable)
	if err == nil && api.Status(status) != cl.SUCCESS {
		err = fmt.Errorf("%w: OpenCL error %d", object.ErrInternal, status)
	}
	return err
}

// publishCopy makes the object of a buffer in the driver's memory, or of one that the program may write at any time:
// the bytes are copied once, into the object's own segment, and the buffer stays as it is.
func (b *Buffer) publishCopy(name string, meta []byte) (id [16]byte, err error) {
	if b.d.control == nil {
		return id, fmt.Errorf("%w: publish %q: the device is of another machine, and only a GPU whose driver imports memory (%s) can keep a result there, or any device with --publish-kind opencl",
			object.ErrUnsupported, name, externalMemory)
	}
	seg, err := b.d.control.AllocSegment(b.size, nil)
	if err != nil {
		return id, fmt.Errorf("publish %d bytes as %q: %w", b.size, name, err)
	}
	if status := b.load(0, seg.Bytes[:b.size]); status != cl.SUCCESS {
		b.d.control.FreeSegment(seg)
		return id, fmt.Errorf("%w: publish %d bytes as %q: the device's copy failed (OpenCL error %d)",
			object.ErrInternal, b.size, name, status)
	}
	writable := b.d.protect(seg)
	if id, err = b.d.control.PublishSegment(seg, b.size, name, meta); err != nil {
		writable()
		b.d.control.FreeSegment(seg)
		return id, fmt.Errorf("publish %d bytes as %q: %w", b.size, name, err)
	}
	b.d.control.UnmapSegment(seg)
	return id, nil
}

// publishOpenCL makes the object in the memory of an OpenCL device, which no process but its keeper has: of an object
// in host memory, which goes then.
func (b *Buffer) publishOpenCL(name string, meta []byte) (id [16]byte, err error) {
	far, control, device := b.ctx.Remote || b.d.control == nil, b.ctx.platform.control, b.ctx.devices[0].uuid
	began, how := b.d.began(), " (copies through host memory)"
	if far {
		how = " (copies through the program's memory)"
	}
	defer func() { b.d.tripped(began, trace.CausePublish, nil, name+how) }()
	if !far {
		if id, err = b.publishCopy("", nil); err != nil {
			return id, err
		}
		defer control.DetachObject(&node.Object{ID: id})
	}
	o, err := control.DraftAlone(device, b.size, meta)
	if err == nil {
		if far {
			err = b.sendInto(control, o)
		} else {
			err = control.FillDraft(o, id, 0, b.size)
		}
		if err != nil {
			control.DropDraft(o)
		} else {
			err = control.PublishDraft(o, name)
		}
	}
	if err != nil {
		return [16]byte{}, fmt.Errorf("publish %d bytes as %q in the memory of OpenCL device %s: %w", b.size, name, device,
			err)
	}
	return o.ID, nil
}

// sentBytes is how much of a buffer of another machine's device is in this process's memory at a time.
const sentBytes = 8 << 20

// sendInto copies a buffer of another machine's device into a draft there, by way of this process: no memory is shared
// with that machine, and no process but the keeper has the draft's.
func (b *Buffer) sendInto(control node.Control, o *node.Object) error {
	part := make([]byte, min(sentBytes, b.size))
	for at := uint64(0); at < b.size; at += uint64(len(part)) {
		part = part[:min(uint64(len(part)), b.size-at)]
		if status := b.load(at, part); status != cl.SUCCESS {
			return fmt.Errorf("%w: reading it, from byte %d on, failed (OpenCL error %d)", object.ErrInternal, at, status)
		}
		if err := control.SendDraft(o, at, part); err != nil {
			return err
		}
	}
	return nil
}

// publishOn is the GPU in whose memory the object of a buffer is to lie; nil: in host memory.
func (b *Buffer) publishOn() (*Device, error) {
	var dev *Device
	if !b.ctx.InPlace {
		if i := slices.IndexFunc(b.ctx.devices, func(d *Device) bool { return d.imports != "" }); i >= 0 {
			dev = b.ctx.devices[i]
		}
	}
	switch kind := b.d.cfg.PublishKind; {
	case kind == "host" || kind == "" && !b.ctx.Remote:
		return nil, nil
	case kind == "cuda" && dev == nil:
		return nil, fmt.Errorf("%w: publish as an object of kind cuda: no device of the context is a GPU whose driver imports memory (%s)",
			object.ErrUnsupported, externalMemory)
	}
	return dev, nil
}

// publishDevice makes the object in the memory of the GPU: the daemon allocates it, the worker imports it, and the GPU
// copies the bytes, so that any program of the tenant on that node maps them where they are. The seal comes when the
// GPU's work on them has ended. The caller has waited for what was sent before.
func (b *Buffer) publishDevice(dev *Device, name string, meta []byte) (id [16]byte, err error) {
	w, status := b.ctx.worker()
	if status != cl.SUCCESS {
		return id, fmt.Errorf("%w: publish: there is no worker (OpenCL error %d)", object.ErrInternal, status)
	}
	began := b.d.began()
	defer func() { b.d.tripped(began, trace.CausePublish, nil, name+" (one copy on the GPU)") }()
	control := b.ctx.platform.control
	o, err := control.DraftObject(w.ID(), dev.imports, b.size, meta)
	if err != nil {
		return id, fmt.Errorf("publish %d bytes as %q in the memory of GPU %s: %w", b.size, name, dev.imports, err)
	}
	if status := b.copyInto(o, w, dev, 0); status != cl.SUCCESS {
		control.DropDraft(o)
		return id, fmt.Errorf("%w: publish %d bytes as %q: the copy on GPU %s failed (OpenCL error %d)",
			object.ErrInternal, b.size, name, dev.imports, status)
	}
	if err := control.PublishDraft(o, name); err != nil {
		return id, fmt.Errorf("publish %d bytes as %q: %w", b.size, name, err)
	}
	return o.ID, nil
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

// free gives memory of the buffer's back once the commands sent so far cannot use it any more; nil is none. The caller
// holds no lock: queues may be asked for their progress.
func (b *Buffer) free(p *memory.Place) {
	if p != nil {
		b.ctx.bound().freeMemory(b.d, p)
	}
}

// freeShown gives back what maps showed.
func (b *Buffer) freeShown(p *memory.Place) {
	b.ctx.Views.Remove(p)
	b.free(p)
}

// moveOutLocked gives a buffer that shares a slab a segment of its own. The caller frees the place that it left.
func (b *Buffer) moveOutLocked() (left *memory.Place, err error) {
	p, status := b.d.slabs.Alloc(b.size, b.ctx.alignBytes, true)
	if status != cl.SUCCESS {
		return nil, fmt.Errorf("%w: publish: no segment of %d bytes", object.ErrFull, b.size)
	}
	segment.Copy(p.Bytes(b.size), b.place.Bytes(b.size))
	return b.replaceLocked(p), nil
}

// replaceLocked puts the buffer into other memory: a new object for the worker, made when next used. Sub-buffers are
// made anew too, since they alias the old memory. The caller frees the place that was left.
func (b *Buffer) replaceLocked(p *memory.Place) (left *memory.Place) {
	b.renumber(b.d.newID()) // first: who finds the memory unpublished, without the lock, finds no object either
	for sub := range b.subs {
		sub.renumber(b.d.newID())
	}
	return b.moveTo(p)
}

// freshen gives a published buffer memory that it may write; its contents come along if keep.
func (b *Buffer) freshen(keep bool) api.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.published.Load() {
		return cl.SUCCESS
	}
	p, status := b.d.slabs.Alloc(b.size, b.ctx.alignBytes, true)
	if status != cl.SUCCESS {
		return status
	}
	if keep {
		segment.Copy(p.Bytes(b.size), b.place.Bytes(b.size))
	}
	b.replaceLocked(p)
	b.special.Store(b.mirror != nil)
	if b.maps.Count() == 0 && len(b.ctx.bound().busyQueues()) == 0 {
		for _, seg := range b.old {
			b.d.releasePublished(seg)
		}
		b.old = nil
	}
	return cl.SUCCESS
}

// releasePublished ends this session's use of memory that was published.
func (d *Driver) releasePublished(seg *node.Segment) {
	d.slabs.Forget(seg)
	d.control.UnmapSegment(seg)
}

// publishRead runs after a blocking read, for Config.Publish.
func (d *Driver) publishRead(b *Buffer, off, size uint64) {
	if d.cfg.Publish == "" || off != 0 || size != b.size || b.svm != nil {
		return
	}
	meta, err := json.Marshal(map[string]any{"dtype": "|u1", "shape": []uint64{b.size}, "strides": []uint64{1}})
	if err == nil {
		_, err = d.Publish(b.handle, d.cfg.Publish, meta)
	}
	if err == nil || errors.Is(err, object.ErrExists) {
		return
	}
	line := fmt.Sprintf("tendril: %v", err)
	if errors.Is(err, object.ErrUnsupported) { // so will be the next reads': the reasons are few
		if _, said := d.unpublished.LoadOrStore(line, true); said {
			return
		}
	}
	d.cfg.Log(line)
}
