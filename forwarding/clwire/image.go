package clwire

// CreateImage makes a native image (OpenCL 3.0 §5.3.1): in the driver's memory, or over Parent. Its Reply carries
// ImageFacts. The program's own memory never travels with it: its contents are written afterwards.
type CreateImage struct {
	ID, Context        uint64
	Flags              uint64 // cl_mem_flags
	Order, DataType    uint32 // cl_image_format
	Kind               uint32 // cl_mem_object_type
	Width              uint64 // in elements, as are Height, Depth; ArraySize in images
	Height, Depth      uint64
	ArraySize          uint64
	RowPitch           uint64 // bytes; 0: the driver's choice
	SlicePitch, Parent uint64 // bytes; a buffer or an image, 0: none
}

func (*CreateImage) Type() Type { return TypeCreateImage }
func (m *CreateImage) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.ID), m.Context), m.Flags)
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, m.Order), m.DataType), m.Kind)
	for _, v := range [...]uint64{m.Width, m.Height, m.Depth, m.ArraySize, m.RowPitch, m.SlicePitch, m.Parent} {
		b = le.AppendUint64(b, v)
	}
	return b
}
func (m *CreateImage) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateImage}
	m.ID, m.Context, m.Flags = c.u64("id"), c.u64("context"), c.u64("flags")
	m.Order, m.DataType, m.Kind = c.u32("order"), c.u32("data type"), c.u32("kind")
	m.Width, m.Height, m.Depth, m.ArraySize = c.u64("width"), c.u64("height"), c.u64("depth"), c.u64("array size")
	m.RowPitch, m.SlicePitch, m.Parent = c.u64("row pitch"), c.u64("slice pitch"), c.u64("parent")
	return c.end()
}

// ImageFacts is what the driver says of a new image; all in bytes.
type ImageFacts struct {
	ElementBytes         uint64 // CL_IMAGE_ELEMENT_SIZE
	RowPitch, SlicePitch uint64
	MemBytes             uint64 // CL_MEM_SIZE
}

func (m *ImageFacts) Append(b []byte) []byte {
	for _, v := range [...]uint64{m.ElementBytes, m.RowPitch, m.SlicePitch, m.MemBytes} {
		b = le.AppendUint64(b, v)
	}
	return b
}
func (m *ImageFacts) Decode(b []byte) error {
	c := cursor{b: b, t: TypeReply}
	m.ElementBytes, m.RowPitch, m.SlicePitch, m.MemBytes = c.u64("element size"), c.u64("row pitch"), c.u64("slice pitch"), c.u64("memory size")
	return c.end()
}

// CreateSampler makes a native sampler (§5.7).
type CreateSampler struct {
	ID, Context        uint64
	Normalized         bool
	Addressing, Filter uint32 // cl_addressing_mode, cl_filter_mode
}

func (*CreateSampler) Type() Type { return TypeCreateSampler }
func (m *CreateSampler) Append(b []byte) []byte {
	normalized := byte(0)
	if m.Normalized {
		normalized = 1
	}
	b = append(le.AppendUint64(le.AppendUint64(b, m.ID), m.Context), normalized)
	return le.AppendUint32(le.AppendUint32(b, m.Addressing), m.Filter)
}
func (m *CreateSampler) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateSampler}
	m.ID, m.Context = c.u64("id"), c.u64("context")
	normalized := c.u8("normalized")
	if normalized > 1 {
		c.fail("normalized")
	}
	m.Normalized = normalized == 1
	m.Addressing, m.Filter = c.u32("addressing mode"), c.u32("filter mode")
	return c.end()
}

// ImageFormats asks for clGetSupportedImageFormats. Its Reply carries pairs of u32: channel order, channel data type.
type ImageFormats struct {
	Context, Flags uint64 // Flags is cl_mem_flags
	Kind           uint32 // cl_mem_object_type
}

func (*ImageFormats) Type() Type { return TypeImageFormats }
func (m *ImageFormats) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(le.AppendUint64(b, m.Context), m.Flags), m.Kind)
}
func (m *ImageFormats) Decode(b []byte) error {
	c := cursor{b: b, t: TypeImageFormats}
	m.Context, m.Flags, m.Kind = c.u64("context"), c.u64("flags"), c.u32("kind")
	return c.end()
}

// CopyImage is clEnqueueCopyImage; origins and region in elements, as there.
type CopyImage struct {
	Cmd
	Src, Dst                     uint64
	SrcOrigin, DstOrigin, Region [3]uint64
}

func (*CopyImage) Type() Type { return TypeCopyImage }
func (m *CopyImage) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(m.Cmd.append(b), m.Src), m.Dst)
	return appendU64x3(appendU64x3(appendU64x3(b, m.SrcOrigin), m.DstOrigin), m.Region)
}
func (m *CopyImage) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCopyImage}
	m.Cmd.decode(&c)
	m.Src, m.Dst = c.u64("source"), c.u64("destination")
	m.SrcOrigin, m.DstOrigin, m.Region = c.u64x3("source origin"), c.u64x3("destination origin"), c.u64x3("region")
	return c.end()
}

// Directions of a CopyImageBuffer.
const (
	BufferToImage = 0
	ImageToBuffer = 1
)

// CopyImageBuffer is clEnqueueCopyBufferToImage or clEnqueueCopyImageToBuffer; Offset in bytes, the region in elements.
type CopyImageBuffer struct {
	Cmd
	Direction      uint8
	Image, Buffer  uint64
	Offset         uint64
	Origin, Region [3]uint64
}

func (*CopyImageBuffer) Type() Type { return TypeCopyImageBuffer }
func (m *CopyImageBuffer) Append(b []byte) []byte {
	b = append(m.Cmd.append(b), m.Direction)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.Image), m.Buffer), m.Offset)
	return appendU64x3(appendU64x3(b, m.Origin), m.Region)
}
func (m *CopyImageBuffer) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCopyImageBuffer}
	m.Cmd.decode(&c)
	if m.Direction = c.u8("direction"); m.Direction > ImageToBuffer {
		c.fail("direction")
	}
	m.Image, m.Buffer, m.Offset = c.u64("image"), c.u64("buffer"), c.u64("offset")
	m.Origin, m.Region = c.u64x3("origin"), c.u64x3("region")
	return c.end()
}

// ColorBytes is the size of a fill color: four components of 32 bits.
const ColorBytes = 16

// FillImage is clEnqueueFillImage; the region in elements.
type FillImage struct {
	Cmd
	Image          uint64
	Color          [ColorBytes]byte
	Origin, Region [3]uint64
}

func (*FillImage) Type() Type { return TypeFillImage }
func (m *FillImage) Append(b []byte) []byte {
	b = append(le.AppendUint64(m.Cmd.append(b), m.Image), m.Color[:]...)
	return appendU64x3(appendU64x3(b, m.Origin), m.Region)
}
func (m *FillImage) Decode(b []byte) error {
	c := cursor{b: b, t: TypeFillImage}
	m.Cmd.decode(&c)
	m.Image = c.u64("image")
	copy(m.Color[:], c.take(ColorBytes, "color"))
	m.Origin, m.Region = c.u64x3("origin"), c.u64x3("region")
	return c.end()
}

// WriteImageInline is clEnqueueWriteImage with bytes that ride in the record, dense; origin and region with x in bytes.
type WriteImageInline struct {
	Cmd
	Image          uint64
	Origin, Region [3]uint64
	Data           []byte
}

func (*WriteImageInline) Type() Type { return TypeWriteImageInline }
func (m *WriteImageInline) Append(b []byte) []byte {
	b = le.AppendUint64(m.Cmd.append(b), m.Image)
	return appendBytes32(appendU64x3(appendU64x3(b, m.Origin), m.Region), m.Data)
}
func (m *WriteImageInline) Decode(b []byte) error {
	c := cursor{b: b, t: TypeWriteImageInline}
	m.Cmd.decode(&c)
	m.Image = c.u64("image")
	m.Origin, m.Region = c.u64x3("origin"), c.u64x3("region")
	m.Data = c.bytes32("data")
	return c.end()
}
