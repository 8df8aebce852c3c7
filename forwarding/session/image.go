package session

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/geometry"
	"tendril/forwarding/session/kernelargs"
	"tendril/forwarding/session/kernelfacts"
	"tendril/forwarding/session/mirror"
)

// image is what makes a Buffer an image: one whose memory is opaque to all but its driver, or (over) lies in a buffer,
// where the host reaches it. Immutable once shown.
type image struct {
	geometry.Image
	under  *Buffer
	create imageMade // makes the worker's object again
}

type imageMade struct{ flags, rowPitch, slicePitch uint64 }

// CreateImage is clCreateImage and clCreateImageWithProperties (§5.3.1), format and desc nil for NULL. What only the
// driver can judge (formats, sizes) is put to it at once.
func (d *Driver) CreateImage(context uintptr, given []uint64, flags uint64, format *api.ImageFormat,
	desc *api.ImageDesc,
	host api.HostPtr) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	if len(given) > 0 && given[0] != 0 {
		return 0, cl.INVALID_PROPERTY
	}
	if status := checkBufferFlags(flags &^ cl.MEM_KERNEL_READ_AND_WRITE); status != cl.SUCCESS ||
		flags&cl.MEM_KERNEL_READ_AND_WRITE != 0 {
		return 0, cl.INVALID_VALUE
	}
	if format == nil {
		return 0, cl.INVALID_IMAGE_FORMAT_DESCRIPTOR
	}
	if desc == nil {
		return 0, cl.INVALID_IMAGE_DESCRIPTOR
	}
	extent, ok := desc.Extent()
	if !ok || desc.MipLevels != 0 || desc.Samples != 0 { // mip levels need an extension that is not shown
		return 0, cl.INVALID_IMAGE_DESCRIPTOR
	}
	if !ctx.hasImages() {
		return 0, cl.INVALID_OPERATION
	}
	b := &Buffer{d: d, ctx: ctx, flags: flags, given: given,
		image: &image{Image: geometry.Image{Format: *format, Desc: *desc, Extent: extent}}}
	if status := b.imageMemory(host); status != cl.SUCCESS {
		return 0, status
	}
	b.id.Store(d.newID())
	b.refs.Set(1)
	return d.makeImage(b, host)
}

func (c *Context) hasImages() bool {
	for _, dev := range c.devices {
		if dev.images {
			return true
		}
	}
	return false
}

// imageMemory settles whose memory a new image has: the driver's, another object's, the program's.
func (b *Buffer) imageMemory(host api.HostPtr) api.Status {
	im := b.image
	b.root = b
	if im.Desc.Parent != 0 {
		if im.Desc.Kind != cl.MEM_OBJECT_IMAGE1D_BUFFER && im.Desc.Kind != cl.MEM_OBJECT_IMAGE2D {
			return cl.INVALID_IMAGE_DESCRIPTOR
		}
		if status := b.inherit(b.d.buffers.Get(im.Desc.Parent)); status != cl.SUCCESS {
			return status
		}
		if !host.Nil() {
			return cl.INVALID_HOST_PTR
		}
	} else if host.Nil() != (b.flags&(cl.MEM_USE_HOST_PTR|cl.MEM_COPY_HOST_PTR) == 0) {
		return cl.INVALID_HOST_PTR
	}
	if b.flags&(memAccess|memHostAccess|memHostPtr) == 0 {
		b.flags = cl.MEM_READ_WRITE
	}
	im.create = imageMade{b.flags & memAccess, im.Desc.RowPitch, im.Desc.SlicePitch}
	if !host.Nil() {
		im.create.rowPitch, im.create.slicePitch = 0, 0 // the program's layout is this side's business
	}
	return cl.SUCCESS
}

// inherit makes b an image over another object (table 15 of §5.2.1 for the flags).
func (b *Buffer) inherit(parent *Buffer) api.Status {
	if parent == nil || parent.image != nil && b.image.Desc.Kind != cl.MEM_OBJECT_IMAGE2D {
		return cl.INVALID_MEM_OBJECT
	}
	if parent.ctx != b.ctx {
		return cl.INVALID_CONTEXT
	}
	flags, status := inheritFlags(parent.flags, b.flags)
	if status != cl.SUCCESS {
		return status
	}
	b.flags, b.parent, b.root = flags, parent, parent.root
	if parent.image == nil {
		b.image.under = parent
	}
	if !parent.host.Nil() {
		b.host = parent.host
	}
	return cl.SUCCESS
}

// makeImage has the driver make the image, and gives it its first contents.
func (d *Driver) makeImage(b *Buffer, host api.HostPtr) (uintptr, api.Status) {
	if facts, known := b.likeEarlier(); known {
		if status := b.begin(&facts, host); status != cl.SUCCESS {
			if w := b.remote.Load(); w != nil {
				w.SendOneWay(&clwire.Release{ID: b.id.Load()})
			}
			return 0, status
		}
		return d.showBuffer(b)
	}
	w, status := b.ctx.worker()
	if status != cl.SUCCESS {
		return 0, status
	}
	if b.parent != nil {
		if status := b.parent.ensureRemote(w); status != cl.SUCCESS {
			return 0, status
		}
	}
	var facts clwire.ImageFacts
	m := b.imageRecord()
	answer, err := w.Ask(&m)
	if err != nil {
		return 0, cl.OUT_OF_RESOURCES
	}
	status = api.Status(answer.Status)
	if status == cl.SUCCESS && facts.Decode(answer.Data) != nil {
		status = cl.OUT_OF_RESOURCES
	}
	b.remote.Store(w)
	if status == cl.SUCCESS {
		status = b.begin(&facts, host)
	}
	if status != cl.SUCCESS {
		w.SendOneWay(&clwire.Release{ID: b.id.Load()})
		return 0, status
	}
	b.remember(&facts)
	return d.showBuffer(b)
}

// begin lays a new image out as the driver says, and gives it its first contents.
func (b *Buffer) begin(facts *clwire.ImageFacts, host api.HostPtr) api.Status {
	if status := b.takeFacts(facts, host); status != cl.SUCCESS {
		return status
	}
	return b.firstImage(host)
}

// Of images like an earlier one the driver is not asked again: their worker's object is made when a command first needs
// it, as a buffer's is. Where memory is short, that command fails.
const (
	maxLikeEarlier      = 64      // kinds of images that a context remembers
	likeEarlierMaxBytes = 4 << 20 // of an image: whether there is memory for a larger one the driver says
)

// likeEarlier finds the facts of an image that was made with the same arguments.
func (b *Buffer) likeEarlier() (facts clwire.ImageFacts, known bool) {
	if b.parent != nil {
		return facts, false
	}
	c := b.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	facts, known = c.imageFacts[b.imageKind()]
	return facts, known
}

func (b *Buffer) remember(facts *clwire.ImageFacts) {
	if b.parent != nil || facts.MemBytes > likeEarlierMaxBytes {
		return
	}
	c := b.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.imageFacts == nil || len(c.imageFacts) >= maxLikeEarlier {
		c.imageFacts = map[clwire.CreateImage]clwire.ImageFacts{}
	}
	c.imageFacts[b.imageKind()] = *facts
}

// imageKind is what the driver's facts depend on.
func (b *Buffer) imageKind() clwire.CreateImage {
	m := b.imageRecord()
	m.ID = 0
	return m
}

// imageRecord is what makes the worker's object. The parent, if any, is known to the worker already.
func (b *Buffer) imageRecord() clwire.CreateImage {
	im := b.image
	m := clwire.CreateImage{ID: b.id.Load(), Context: b.ctx.id, Flags: im.create.flags, Order: im.Format.Order,
		DataType: im.Format.DataType,
		Kind:     im.Desc.Kind, Width: im.Desc.Width, Height: im.Desc.Height, Depth: im.Desc.Depth,
		ArraySize: im.Desc.ArraySize,
		RowPitch:  im.create.rowPitch, SlicePitch: im.create.slicePitch}
	if b.parent != nil {
		m.Parent = b.parent.id.Load()
	}
	return m
}

// takeFacts keeps what the driver said of the image, and checks the layout of the program's memory.
func (b *Buffer) takeFacts(facts *clwire.ImageFacts, host api.HostPtr) api.Status {
	im := b.image
	b.size = facts.MemBytes
	width, status := im.Take(facts)
	switch {
	case status != cl.SUCCESS:
		return status
	case im.under != nil:
		return im.FitUnder(width, im.under.size)
	case host.Nil():
		return cl.SUCCESS
	}
	if status = im.LayOut(width); status == cl.SUCCESS {
		b.size = im.HostBytes()
	}
	return status
}

// memType is CL_MEM_TYPE.
func (b *Buffer) memType() uint32 {
	if b.image != nil {
		return b.image.Desc.Kind
	}
	return cl.MEM_OBJECT_BUFFER
}

// shadowBytes is how much memory maps of an object out of place show.
func (b *Buffer) shadowBytes() uint64 {
	if im := b.image; im != nil {
		return im.DenseBytes()
	}
	return b.size
}

// firstImage gives a new image its memory's price and the contents that the program passed.
func (b *Buffer) firstImage(host api.HostPtr) api.Status {
	if b.parent != nil {
		return cl.SUCCESS
	}
	if status := b.ctx.debit(b.size); status != cl.SUCCESS {
		return status
	}
	var status api.Status
	switch {
	case b.flags&cl.MEM_USE_HOST_PTR != 0:
		b.host = host
		b.mirror = mirror.New(overHost{b})
		b.special.Store(true)
	case b.flags&cl.MEM_COPY_HOST_PTR != 0:
		status = b.whole(true, host)
	}
	if status != cl.SUCCESS {
		b.ctx.credit(b.size)
	}
	return status
}

// ImageInfo is clGetImageInfo (§5.3.8).
func (d *Driver) ImageInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.buffers.Get(h)
	if b == nil || b.image == nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	im := b.image
	switch param {
	case cl.IMAGE_FORMAT:
		return le.AppendUint32(answers.U32(im.Format.Order), im.Format.DataType), cl.SUCCESS
	case cl.IMAGE_ELEMENT_SIZE:
		return answers.Size(im.ElementBytes), cl.SUCCESS
	case cl.IMAGE_ROW_PITCH:
		return answers.Size(im.Row), cl.SUCCESS
	case cl.IMAGE_SLICE_PITCH:
		return answers.Size(im.Slice), cl.SUCCESS
	case cl.IMAGE_WIDTH:
		return answers.Size(im.Desc.Width), cl.SUCCESS
	case cl.IMAGE_HEIGHT:
		return answers.Size(im.Size(im.Desc.Height, cl.MEM_OBJECT_IMAGE2D, cl.MEM_OBJECT_IMAGE2D_ARRAY,
			cl.MEM_OBJECT_IMAGE3D)), cl.SUCCESS
	case cl.IMAGE_DEPTH:
		return answers.Size(im.Size(im.Desc.Depth, cl.MEM_OBJECT_IMAGE3D)), cl.SUCCESS
	case cl.IMAGE_ARRAY_SIZE:
		return answers.Size(im.Size(im.Desc.ArraySize, cl.MEM_OBJECT_IMAGE1D_ARRAY, cl.MEM_OBJECT_IMAGE2D_ARRAY)),
			cl.SUCCESS
	case cl.IMAGE_BUFFER:
		return answers.Size(im.Desc.Parent), cl.SUCCESS
	case cl.IMAGE_NUM_MIP_LEVELS, cl.IMAGE_NUM_SAMPLES:
		return answers.U32(0), cl.SUCCESS // no mip levels, no samples
	}
	return nil, cl.INVALID_VALUE
}

// imageFormatsAsked is one question of clGetSupportedImageFormats.
type imageFormatsAsked struct {
	flags uint64
	kind  uint32
}

// ImageFormats is clGetSupportedImageFormats (§5.3.2). A context asks its driver once.
func (d *Driver) ImageFormats(context uintptr, flags uint64, kind uint32) ([]api.ImageFormat, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return nil, cl.INVALID_CONTEXT
	}
	if _, ok := (&api.ImageDesc{Kind: kind}).Extent(); !ok || flags&^memKnown != 0 {
		return nil, cl.INVALID_VALUE
	}
	if !ctx.hasImages() {
		return nil, cl.SUCCESS
	}
	asked := imageFormatsAsked{flags, kind}
	ctx.mu.Lock()
	list, known := ctx.formats[asked]
	ctx.mu.Unlock()
	if known {
		return list, cl.SUCCESS
	}
	w, status := ctx.worker()
	if status != cl.SUCCESS {
		return nil, status
	}
	data, status := w.ask(&clwire.ImageFormats{Context: ctx.id, Flags: flags, Kind: kind})
	if status != cl.SUCCESS {
		return nil, status
	}
	for ; len(data) >= 8; data = data[8:] {
		list = append(list, api.ImageFormat{Order: le.Uint32(data), DataType: le.Uint32(data[4:])})
	}
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	if ctx.formats == nil {
		ctx.formats = map[imageFormatsAsked][]api.ImageFormat{}
	}
	ctx.formats[asked] = list
	return list, cl.SUCCESS
}

// toImage makes an argument of an image.
func (k *Kernel) toImage(known kernelfacts.Arg, size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	if size != 8 {
		return cl.INVALID_ARG_SIZE
	}
	if value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	b := k.d.buffers.Get(uintptr(le.Uint64(value.Bytes(0, 8))))
	if b == nil || b.ctx != k.program.ctx {
		return cl.INVALID_MEM_OBJECT
	}
	if b.image == nil || known.Kind != 0 && known.Kind != b.image.Desc.Kind {
		return cl.INVALID_ARG_VALUE
	}
	if known.Reads && b.flags&cl.MEM_WRITE_ONLY != 0 || known.Writes && b.flags&cl.MEM_READ_ONLY != 0 {
		return cl.INVALID_ARG_VALUE
	}
	a.SetObject(clwire.ArgMem, b)
	return cl.SUCCESS
}

// linear says that the image's elements lie in a buffer one after another.
func (b *Buffer) linear() bool {
	return b.image.under != nil && b.image.Desc.Kind == cl.MEM_OBJECT_IMAGE1D_BUFFER
}
