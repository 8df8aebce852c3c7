package session

import (
	"tendril/forwarding/clwire"
)

// ImageFormat is cl_image_format.
type ImageFormat struct{ Order, DataType uint32 }

// ImageDesc is cl_image_desc: sizes in elements, pitches in bytes, Parent its buffer or mem_object.
type ImageDesc struct {
	Kind                            uint32
	Width, Height, Depth, ArraySize uint64
	RowPitch, SlicePitch            uint64
	MipLevels, Samples              uint32
	Parent                          uintptr
}

// image is what makes a Buffer an image: one whose memory is opaque to all but its driver, or (over) lies in a buffer,
// where the host reaches it. Immutable once shown.
type image struct {
	format       ImageFormat
	desc         ImageDesc
	extent       [3]uint64 // elements; an array's images are its last dimension
	elementBytes uint64
	row, slice   uint64 // bytes, as CL_IMAGE_ROW_PITCH and CL_IMAGE_SLICE_PITCH
	under        *Buffer
	underRow     uint64    // bytes between rows in under
	host         box       // how the program's own memory is laid out (CL_MEM_USE_HOST_PTR, CL_MEM_COPY_HOST_PTR)
	create       imageMade // makes the worker's object again
}

type imageMade struct{ flags, rowPitch, slicePitch uint64 }

// Status values of images (cl.h).
const (
	ImageFormatMismatch          Status = -9
	ImageFormatNotSupported      Status = -10
	InvalidImageFormatDescriptor Status = -39
	InvalidImageSize             Status = -40
	InvalidImageDescriptor       Status = -65
)

// Image kinds (CL_MEM_OBJECT_…).
const (
	image2D       uint32 = 0x10F1
	image3D       uint32 = 0x10F2
	image2DArray  uint32 = 0x10F3
	image1D       uint32 = 0x10F4
	image1DArray  uint32 = 0x10F5
	image1DBuffer uint32 = 0x10F6
)

// Extent is an image's size in the three dimensions of its regions; false for no kind of image.
func (desc *ImageDesc) Extent() ([3]uint64, bool) {
	switch desc.Kind {
	case image1D, image1DBuffer:
		return [3]uint64{desc.Width, 1, 1}, true
	case image1DArray:
		return [3]uint64{desc.Width, desc.ArraySize, 1}, true
	case image2D:
		return [3]uint64{desc.Width, desc.Height, 1}, true
	case image2DArray:
		return [3]uint64{desc.Width, desc.Height, desc.ArraySize}, true
	case image3D:
		return [3]uint64{desc.Width, desc.Height, desc.Depth}, true
	}
	return [3]uint64{}, false
}

// CreateImage is clCreateImage and clCreateImageWithProperties (§5.3.1), format and desc nil for NULL. What only the
// driver can judge (formats, sizes) is put to it at once.
func (d *Driver) CreateImage(context uintptr, given []uint64, flags uint64, format *ImageFormat, desc *ImageDesc, host HostPtr) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	if len(given) > 0 && given[0] != 0 {
		return 0, InvalidProperty
	}
	if status := checkBufferFlags(flags &^ memKernelReadWrite); status != Success || flags&memKernelReadWrite != 0 {
		return 0, InvalidValue
	}
	if format == nil {
		return 0, InvalidImageFormatDescriptor
	}
	if desc == nil {
		return 0, InvalidImageDescriptor
	}
	extent, ok := desc.Extent()
	if !ok || desc.MipLevels != 0 || desc.Samples != 0 { // mip levels need an extension that is not shown
		return 0, InvalidImageDescriptor
	}
	if !ctx.hasImages() {
		return 0, InvalidOperation
	}
	b := &Buffer{d: d, ctx: ctx, flags: flags, given: given, image: &image{format: *format, desc: *desc, extent: extent}}
	if status := b.imageMemory(host); status != Success {
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
func (b *Buffer) imageMemory(host HostPtr) Status {
	im := b.image
	b.root = b
	if im.desc.Parent != 0 {
		if im.desc.Kind != image1DBuffer && im.desc.Kind != image2D {
			return InvalidImageDescriptor
		}
		if status := b.inherit(b.d.buffers.Get(im.desc.Parent)); status != Success {
			return status
		}
	}
	if host.Nil() != (b.flags&(memUseHostPtr|memCopyHostPtr) == 0) || !host.Nil() && b.parent != nil {
		return InvalidHostPtr
	}
	if b.flags&(memAccess|memHostAccess|memHostPtr) == 0 {
		b.flags = memReadWrite
	}
	im.create = imageMade{b.flags & memAccess, im.desc.RowPitch, im.desc.SlicePitch}
	if !host.Nil() {
		im.create.rowPitch, im.create.slicePitch = 0, 0 // the program's layout is this side's business
	}
	return Success
}

// inherit makes b an image over another object (table 15 of §5.2.1 for the flags).
func (b *Buffer) inherit(parent *Buffer) Status {
	if parent == nil || parent.image != nil && b.image.desc.Kind != image2D {
		return InvalidMemObject
	}
	if parent.ctx != b.ctx {
		return InvalidContext
	}
	flags, status := inheritFlags(parent.flags, b.flags)
	if status != Success {
		return status
	}
	b.flags, b.parent, b.root = flags, parent, parent.root
	if parent.image == nil {
		b.image.under = parent
	}
	if !parent.host.Nil() {
		b.host = parent.host
	}
	return Success
}

// makeImage has the driver make the image, and gives it its first contents.
func (d *Driver) makeImage(b *Buffer, host HostPtr) (uintptr, Status) {
	w, status := b.ctx.worker()
	if status != Success {
		return 0, status
	}
	if b.parent != nil {
		if status := b.parent.ensureRemote(w); status != Success {
			return 0, status
		}
	}
	var facts clwire.ImageFacts
	m := b.imageRecord()
	c, err := w.ask(&m)
	if err != nil {
		return 0, OutOfResources
	}
	if c.status == Success && facts.Decode(c.data) != nil {
		c.status = OutOfResources
	}
	b.remote.Store(w)
	if c.status == Success {
		c.status = b.takeFacts(&facts, host)
	}
	if c.status == Success {
		c.status = b.firstImage(host)
	}
	if c.status != Success {
		w.tell(&clwire.Release{ID: b.id.Load()})
		return 0, c.status
	}
	return d.showBuffer(b)
}

// imageRecord is what makes the worker's object. The parent, if any, is known to the worker already.
func (b *Buffer) imageRecord() clwire.CreateImage {
	im := b.image
	m := clwire.CreateImage{ID: b.id.Load(), Context: b.ctx.id, Flags: im.create.flags, Order: im.format.Order, DataType: im.format.DataType,
		Kind: im.desc.Kind, Width: im.desc.Width, Height: im.desc.Height, Depth: im.desc.Depth, ArraySize: im.desc.ArraySize,
		RowPitch: im.create.rowPitch, SlicePitch: im.create.slicePitch}
	if b.parent != nil {
		m.Parent = b.parent.id.Load()
	}
	return m
}

// takeFacts keeps what the driver said of the image, and checks the layout of the program's memory.
func (b *Buffer) takeFacts(facts *clwire.ImageFacts, host HostPtr) Status {
	im := b.image
	im.elementBytes, im.row, im.slice, b.size = facts.ElementBytes, facts.RowPitch, facts.SlicePitch, facts.MemBytes
	width, ok := product(im.extent[0], im.elementBytes)
	if im.elementBytes == 0 || !ok {
		return InvalidImageSize
	}
	if _, ok := product(width, im.extent[1], im.extent[2]); !ok {
		return InvalidImageSize
	}
	if im.under != nil {
		return im.fitUnder(width)
	}
	if host.Nil() {
		return Success
	}
	status := im.layOut(width)
	if status == Success {
		b.size = im.hostBytes()
	}
	return status
}

// fitUnder checks that the image lies in its buffer.
func (im *image) fitUnder(width uint64) Status {
	im.underRow = max(im.row, width)
	end, ok := product(im.underRow, im.extent[1])
	if !ok || end-(im.underRow-width) > im.under.size {
		return InvalidImageSize
	}
	return Success
}

// layOut takes the pitches that the program gave for its own memory (§5.3.1.2); 0 means without gaps.
func (im *image) layOut(width uint64) Status {
	row, slice := im.desc.RowPitch, im.desc.SlicePitch
	if row == 0 {
		row = width
	}
	if row < width || row%im.elementBytes != 0 || row > maxHostBytes {
		return InvalidImageDescriptor
	}
	switch im.desc.Kind {
	case image1D, image1DBuffer, image2D:
		if slice != 0 && slice%row != 0 { // it has none
			return InvalidImageDescriptor
		}
		im.host, im.row = box{row: row, slice: row * max(im.extent[1], 1)}, row
		return Success
	}
	height := im.extent[1]
	if im.desc.Kind == image1DArray {
		height = 1
	}
	least, ok := product(row, height)
	if slice == 0 {
		slice = least
	}
	if !ok || slice < least || slice%row != 0 || slice > maxHostBytes {
		return InvalidImageDescriptor
	}
	im.row, im.slice, im.host = row, slice, box{row: row, slice: slice}
	if im.desc.Kind == image1DArray {
		im.host = box{row: slice, slice: slice}
	}
	return Success
}

// hostBytes is how much of the program's memory the image covers, pitches and all.
func (im *image) hostBytes() uint64 {
	switch im.desc.Kind {
	case image1D:
		return im.row
	case image2D:
		return im.row * im.extent[1]
	case image1DArray:
		return im.slice * im.extent[1]
	}
	return im.slice * im.extent[2]
}

// memType is CL_MEM_TYPE.
func (b *Buffer) memType() uint32 {
	if b.image != nil {
		return b.image.desc.Kind
	}
	return memObjectBuffer
}

// shadowBytes is how much memory maps of an object out of place show.
func (b *Buffer) shadowBytes() uint64 {
	if im := b.image; im != nil {
		return im.elementBytes * im.extent[0] * im.extent[1] * im.extent[2]
	}
	return b.size
}

// product multiplies sizes; false when the result is no size of memory.
func product(v ...uint64) (uint64, bool) {
	n := uint64(1)
	for _, x := range v {
		if x != 0 && n > maxHostBytes/x {
			return 0, false
		}
		n *= x
	}
	return n, n <= maxHostBytes
}

// firstImage gives a new image its memory's price and the contents that the program passed.
func (b *Buffer) firstImage(host HostPtr) Status {
	if b.parent != nil {
		return Success
	}
	if status := b.ctx.debit(b.size); status != Success {
		return status
	}
	status := Success
	switch {
	case b.flags&memUseHostPtr != 0:
		b.host = host
		b.mirror = &mirror{b: b, hostNewer: true}
		b.special.Store(true)
	case b.flags&memCopyHostPtr != 0:
		status = b.moveImage(clwire.ToBuffer, [3]uint64{}, b.image.bytes(b.image.extent), b.image.host, host)
	}
	if status != Success {
		b.ctx.credit(b.size)
	}
	return status
}

// bytes is a region with x in bytes.
func (im *image) bytes(region [3]uint64) [3]uint64 {
	region[0] *= im.elementBytes
	return region
}

// ImageInfo is clGetImageInfo (§5.3.8).
func (d *Driver) ImageInfo(h uintptr, param uint32) ([]byte, Status) {
	b := d.buffers.Get(h)
	if b == nil || b.image == nil {
		return nil, InvalidMemObject
	}
	im := b.image
	switch param {
	case 0x1110:
		return le.AppendUint32(infoU32(im.format.Order), im.format.DataType), Success
	case 0x1111:
		return infoSize(im.elementBytes), Success
	case 0x1112:
		return infoSize(im.row), Success
	case 0x1113:
		return infoSize(im.slice), Success
	case 0x1114:
		return infoSize(im.desc.Width), Success
	case 0x1115:
		return infoSize(im.dimension(im.desc.Height, image2D, image2DArray, image3D)), Success
	case 0x1116:
		return infoSize(im.dimension(im.desc.Depth, image3D)), Success
	case 0x1117:
		return infoSize(im.dimension(im.desc.ArraySize, image1DArray, image2DArray)), Success
	case 0x1118:
		return infoSize(im.desc.Parent), Success
	case 0x1119, 0x111A:
		return infoU32(0), Success // no mip levels, no samples
	}
	return nil, InvalidValue
}

// dimension is a size that only some kinds of image have: 0 for the others.
func (im *image) dimension(size uint64, kinds ...uint32) uint64 {
	for _, kind := range kinds {
		if im.desc.Kind == kind {
			return size
		}
	}
	return 0
}

// imageFormatsAsked is one question of clGetSupportedImageFormats.
type imageFormatsAsked struct {
	flags uint64
	kind  uint32
}

// ImageFormats is clGetSupportedImageFormats (§5.3.2). A context asks its driver once.
func (d *Driver) ImageFormats(context uintptr, flags uint64, kind uint32) ([]ImageFormat, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return nil, InvalidContext
	}
	if _, ok := (&ImageDesc{Kind: kind}).Extent(); !ok || flags&^memKnown != 0 {
		return nil, InvalidValue
	}
	if !ctx.hasImages() {
		return nil, Success
	}
	asked := imageFormatsAsked{flags, kind}
	ctx.mu.Lock()
	list, known := ctx.formats[asked]
	ctx.mu.Unlock()
	if known {
		return list, Success
	}
	w, status := ctx.worker()
	if status != Success {
		return nil, status
	}
	c, err := w.ask(&clwire.ImageFormats{Context: ctx.id, Flags: flags, Kind: kind})
	if err != nil {
		return nil, OutOfResources
	}
	if c.status != Success {
		return nil, c.status
	}
	for data := c.data; len(data) >= 8; data = data[8:] {
		list = append(list, ImageFormat{le.Uint32(data), le.Uint32(data[4:])})
	}
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	if ctx.formats == nil {
		ctx.formats = map[imageFormatsAsked][]ImageFormat{}
	}
	ctx.formats[asked] = list
	return list, Success
}

// toImage makes an argument of an image. Whether the driver takes an image of that kind is asked once.
func (k *Kernel) toImage(index int, known argSize, size uint64, value HostPtr, a *argument) Status {
	if size != 8 {
		return InvalidArgSize
	}
	if value.Nil() {
		return InvalidArgValue
	}
	b := k.d.buffers.Get(uintptr(le.Uint64(value.bytes(0, 8))))
	if b == nil || b.ctx != k.program.ctx {
		return InvalidMemObject
	}
	if b.image == nil || known.kind != 0 && known.kind != b.image.desc.Kind {
		return InvalidArgValue
	}
	if known.reads && b.flags&memWriteOnly != 0 || known.writes && b.flags&memReadOnly != 0 {
		return InvalidArgValue
	}
	a.kind, a.buffer = clwire.ArgMem, b
	le.PutUint64(a.small[:], b.id.Load())
	return Success
}
