package clwire

import "encoding/binary"

var le = binary.LittleEndian

// Cmd heads every enqueued command: where it goes, the event that names it
// (0: the program wants none) and what it waits for.
type Cmd struct {
	Queue uint64
	Event uint64
	Wait  []uint64 // events, at most MaxWait
}

func (m *Cmd) append(b []byte) []byte {
	b = le.AppendUint64(b, m.Queue)
	b = le.AppendUint64(b, m.Event)
	return appendIDs(b, m.Wait)
}

func (m *Cmd) decode(c *cursor) {
	m.Queue = c.u64("queue")
	m.Event = c.u64("event")
	m.Wait = decodeIDs(c, m.Wait, MaxWait, "wait list")
}

func appendIDs(b []byte, ids []uint64) []byte {
	b = le.AppendUint16(b, uint16(len(ids)))
	for _, id := range ids {
		b = le.AppendUint64(b, id)
	}
	return b
}

func decodeIDs(c *cursor, into []uint64, limit int, what string) []uint64 {
	n := c.count(limit, 8, what)
	into = into[:0]
	for range n {
		into = append(into, c.u64(what))
	}
	return into
}

func appendU32s(b []byte, v []uint32) []byte {
	b = le.AppendUint16(b, uint16(len(v)))
	for _, x := range v {
		b = le.AppendUint32(b, x)
	}
	return b
}

func decodeU32s(c *cursor, into []uint32, what string) []uint32 {
	n := c.count(MaxDevices, 4, what)
	into = into[:0]
	for range n {
		into = append(into, c.u32(what))
	}
	return into
}

// Hello opens the stream. Its Reply carries HelloReply's bytes.
type Hello struct {
	Version    uint32
	SpinMicros uint32 // how long the worker may poll before it sleeps; 0: not at all
	Program    string // for status and logs
}

func (*Hello) Type() Type { return TypeHello }
func (m *Hello) Append(b []byte) []byte {
	b = le.AppendUint32(b, m.Version)
	b = le.AppendUint32(b, m.SpinMicros)
	return appendStr16(b, m.Program)
}
func (m *Hello) Decode(b []byte) error {
	c := cursor{b: b, t: TypeHello}
	m.Version, m.SpinMicros, m.Program = c.u32("version"), c.u32("spin"), c.str16("program")
	return c.end()
}

// What a worker can, in HelloReply.
const (
	CapInPlace = 1 << 0 // buffers over segments are computed on in place (CPU devices)
	CapPacked  = 1 << 1 // it takes packed chunks on lanes, in each way of this version (LaneHeader), and would send some
	CapProtect = 1 << 2 // it takes ProtectSegment
)

// HelloReply is the result of Hello.
type HelloReply struct{ Version, Capabilities uint32 }

func (m *HelloReply) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint32(b, m.Version), m.Capabilities)
}
func (m *HelloReply) Decode(b []byte) error {
	c := cursor{b: b, t: TypeReply}
	m.Version, m.Capabilities = c.u32("version"), c.u32("capabilities")
	return c.end()
}

// CreateContext makes a native context over devices of the worker's platform.
type CreateContext struct {
	ID      uint64
	Devices []uint32 // indices in the snapshot
}

func (*CreateContext) Type() Type { return TypeCreateContext }
func (m *CreateContext) Append(b []byte) []byte {
	return appendU32s(le.AppendUint64(b, m.ID), m.Devices)
}
func (m *CreateContext) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateContext}
	m.ID = c.u64("id")
	m.Devices = decodeU32s(&c, m.Devices, "devices")
	return c.end()
}

// CreateQueue makes a native command queue; Properties is cl_command_queue_properties.
type CreateQueue struct {
	ID, Context uint64
	Device      uint32
	Properties  uint64
}

func (*CreateQueue) Type() Type { return TypeCreateQueue }
func (m *CreateQueue) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.ID), m.Context)
	return le.AppendUint64(le.AppendUint32(b, m.Device), m.Properties)
}
func (m *CreateQueue) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateQueue}
	m.ID, m.Context = c.u64("id"), c.u64("context")
	m.Device, m.Properties = c.u32("device"), c.u64("properties")
	return c.end()
}

// AddSegment gives the worker shared memory; its descriptor is the next one on the socket. With AttachedSegment in the
// number the daemon has sent the descriptor, and the worker takes it.
type AddSegment struct{ ID, Bytes uint64 }

func (*AddSegment) Type() Type { return TypeAddSegment }
func (m *AddSegment) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.ID), m.Bytes)
}
func (m *AddSegment) Decode(b []byte) error {
	c := cursor{b: b, t: TypeAddSegment}
	m.ID, m.Bytes = c.u64("id"), c.u64("bytes")
	return c.end()
}

// ProtectSegment maps a segment anew where it lies, by the next descriptor on the socket, which can be read alone unless Writable. It is
// answered when that is done, behind all commands before it.
type ProtectSegment struct {
	ID       uint64
	Writable bool
}

func (*ProtectSegment) Type() Type { return TypeProtectSegment }
func (m *ProtectSegment) Append(b []byte) []byte {
	writable := byte(0)
	if m.Writable {
		writable = 1
	}
	return append(le.AppendUint64(b, m.ID), writable)
}
func (m *ProtectSegment) Decode(b []byte) error {
	c := cursor{b: b, t: TypeProtectSegment}
	m.ID = c.u64("id")
	writable := c.u8("writable")
	if writable > 1 {
		c.fail("writable")
	}
	m.Writable = writable == 1
	return c.end()
}

// DropSegment ends the client's use of a segment; the worker unmaps it when its last buffer is gone.
type DropSegment struct{ ID uint64 }

func (*DropSegment) Type() Type               { return TypeDropSegment }
func (m *DropSegment) Append(b []byte) []byte { return le.AppendUint64(b, m.ID) }
func (m *DropSegment) Decode(b []byte) error {
	c := cursor{b: b, t: TypeDropSegment}
	m.ID = c.u64("id")
	return c.end()
}

// CreateBuffer makes a native buffer: over Segment at Offset (in place), in the
// driver's memory (Segment 0), or as a sub-buffer of Parent at origin Offset.
type CreateBuffer struct {
	ID, Context     uint64
	Flags, Size     uint64 // cl_mem_flags; bytes
	Segment, Offset uint64
	Parent          uint64
}

func (*CreateBuffer) Type() Type { return TypeCreateBuffer }
func (m *CreateBuffer) Append(b []byte) []byte {
	for _, v := range [...]uint64{m.ID, m.Context, m.Flags, m.Size, m.Segment, m.Offset, m.Parent} {
		b = le.AppendUint64(b, v)
	}
	return b
}
func (m *CreateBuffer) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateBuffer}
	m.ID, m.Context = c.u64("id"), c.u64("context")
	m.Flags, m.Size = c.u64("flags"), c.u64("size")
	m.Segment, m.Offset, m.Parent = c.u64("segment"), c.u64("offset"), c.u64("parent")
	return c.end()
}

// Release drops an object of any kind. Commands sent before keep what they need.
type Release struct{ ID uint64 }

func (*Release) Type() Type               { return TypeRelease }
func (m *Release) Append(b []byte) []byte { return le.AppendUint64(b, m.ID) }
func (m *Release) Decode(b []byte) error {
	c := cursor{b: b, t: TypeRelease}
	m.ID = c.u64("id")
	return c.end()
}

// Blob carries one consecutive piece of something larger than a record.
type Blob struct {
	ID, Total, Offset uint64
	Data              []byte
}

func (*Blob) Type() Type { return TypeBlob }
func (m *Blob) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.ID), m.Total), m.Offset)
	return appendBytes32(b, m.Data)
}
func (m *Blob) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBlob}
	m.ID, m.Total, m.Offset = c.u64("id"), c.u64("total"), c.u64("offset")
	m.Data = c.bytes32("data")
	if m.Total > MaxBlob || m.Offset > m.Total || uint64(len(m.Data)) > m.Total-m.Offset {
		c.fail("range")
	}
	return c.end()
}

// Kinds of program.
const (
	ProgramSource   = 1
	ProgramBinaries = 2
	ProgramIL       = 3 // an intermediate language
	ProgramBuiltIn  = 4 // the blob names built-in kernels, ';' between them; Binaries names the devices
)

// DeviceBytes says how many bytes of a blob belong to a device.
type DeviceBytes struct {
	Device uint32
	Bytes  uint64
}

// CreateProgram makes a program of a blob, which it uses up.
type CreateProgram struct {
	ID, Context uint64
	Kind        uint8
	Blob        uint64
	Binaries    []DeviceBytes // nil for source and IL
}

func (*CreateProgram) Type() Type { return TypeCreateProgram }
func (m *CreateProgram) Append(b []byte) []byte {
	b = append(le.AppendUint64(le.AppendUint64(b, m.ID), m.Context), m.Kind)
	b = le.AppendUint16(le.AppendUint64(b, m.Blob), uint16(len(m.Binaries)))
	for _, d := range m.Binaries {
		b = le.AppendUint64(le.AppendUint32(b, d.Device), d.Bytes)
	}
	return b
}
func (m *CreateProgram) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateProgram}
	m.ID, m.Context, m.Kind, m.Blob = c.u64("id"), c.u64("context"), c.u8("kind"), c.u64("blob")
	m.Binaries = m.Binaries[:0]
	for range c.count(MaxDevices, 12, "binaries") {
		m.Binaries = append(m.Binaries, DeviceBytes{c.u32("device"), c.u64("bytes")})
	}
	if m.Kind < ProgramSource || m.Kind > ProgramBuiltIn {
		c.fail("kind")
	}
	return c.end()
}

// BuildProgram builds for Devices (none: all of the context). Its Reply carries a BuildResult.
type BuildProgram struct {
	Program uint64
	Devices []uint32
	Options []byte
	Files   uint64 // 0, or the set of files that the source may include
}

func (*BuildProgram) Type() Type { return TypeBuildProgram }
func (m *BuildProgram) Append(b []byte) []byte {
	return le.AppendUint64(appendBytes32(appendU32s(le.AppendUint64(b, m.Program), m.Devices), m.Options), m.Files)
}
func (m *BuildProgram) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBuildProgram}
	m.decode(&c)
	return c.end()
}

func (m *BuildProgram) decode(c *cursor) {
	m.Program = c.u64("program")
	m.Devices = decodeU32s(c, m.Devices, "devices")
	m.Options, m.Files = c.bytes32("options"), c.u64("files")
}

// CreateKernel makes a kernel of a built program.
type CreateKernel struct {
	ID, Program uint64
	Name        string
}

func (*CreateKernel) Type() Type { return TypeCreateKernel }
func (m *CreateKernel) Append(b []byte) []byte {
	return appendStr16(le.AppendUint64(le.AppendUint64(b, m.ID), m.Program), m.Name)
}
func (m *CreateKernel) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateKernel}
	m.ID, m.Program, m.Name = c.u64("id"), c.u64("program"), c.str16("name")
	return c.end()
}

// Kinds of kernel argument.
const (
	ArgBytes   = 0 // Data is the value
	ArgMem     = 1 // Data is a u64 object id, 0 for NULL
	ArgLocal   = 2 // Data is a u64 size in bytes
	ArgSampler = 3 // Data is a u64 object id
)

// Arg is one kernel argument.
type Arg struct {
	Index uint16
	Kind  uint8
	Data  []byte
}

func (a *Arg) append(b []byte) []byte {
	return appendBytes32(append(le.AppendUint16(b, a.Index), a.Kind), a.Data)
}

func (a *Arg) decode(c *cursor) {
	a.Index, a.Kind, a.Data = c.u16("argument index"), c.u8("argument kind"), c.bytes32("argument value")
	if a.Kind > ArgSampler || (a.Kind != ArgBytes && len(a.Data) != 8) {
		c.fail("argument kind")
	}
}

// ID returns the object id or size of an argument that is not ArgBytes.
func (a *Arg) ID() uint64 { return le.Uint64(a.Data) }

// NDRange launches a kernel. Args are those that changed since the kernel's
// last launch in the stream. Offset and Local are given when HasOffset, HasLocal.
type NDRange struct {
	Cmd
	Kernel              uint64
	Dims                uint8 // 1 to 3
	HasOffset, HasLocal bool
	Global              [3]uint64 // work-items; unused dimensions are 1
	Offset              [3]uint64
	Local               [3]uint64
	Args                []Arg
}

const (
	hasOffset = 1
	hasLocal  = 2
)

func (*NDRange) Type() Type { return TypeNDRange }
func (m *NDRange) Append(b []byte) []byte {
	b = m.Cmd.append(b)
	b = le.AppendUint64(b, m.Kernel)
	var has uint8
	if m.HasOffset {
		has |= hasOffset
	}
	if m.HasLocal {
		has |= hasLocal
	}
	b = append(b, m.Dims, has)
	b = appendDims(b, m.Global[:m.Dims], true)
	b = appendDims(b, m.Offset[:m.Dims], m.HasOffset)
	b = appendDims(b, m.Local[:m.Dims], m.HasLocal)
	b = le.AppendUint16(b, uint16(len(m.Args)))
	for i := range m.Args {
		b = m.Args[i].append(b)
	}
	return b
}

func appendDims(b []byte, v []uint64, there bool) []byte {
	if there {
		for _, x := range v {
			b = le.AppendUint64(b, x)
		}
	}
	return b
}

func (m *NDRange) Decode(b []byte) error {
	c := cursor{b: b, t: TypeNDRange}
	m.Cmd.decode(&c)
	m.Kernel, m.Dims = c.u64("kernel"), c.u8("dimensions")
	has := c.u8("flags")
	if m.Dims < 1 || m.Dims > 3 {
		c.fail("dimensions")
	}
	if has > hasOffset|hasLocal {
		c.fail("flags")
	}
	m.HasOffset, m.HasLocal = has&hasOffset != 0, has&hasLocal != 0
	m.Global = decodeDims(&c, m.Dims, true, 1)
	m.Offset = decodeDims(&c, m.Dims, m.HasOffset, 0)
	m.Local = decodeDims(&c, m.Dims, m.HasLocal, 1)
	n := c.count(MaxArgs, 7, "argument count")
	m.Args = m.Args[:0]
	for range n {
		var a Arg
		a.decode(&c)
		m.Args = append(m.Args, a)
	}
	return c.end()
}

func decodeDims(c *cursor, dims uint8, there bool, rest uint64) (v [3]uint64) {
	for i := range v {
		v[i] = rest
		if there && i < int(dims) {
			v[i] = c.u64("dimensions")
		}
	}
	return v
}

// SetArg asks for the driver's verdict on one argument.
type SetArg struct {
	Kernel uint64
	Arg    Arg
}

func (*SetArg) Type() Type               { return TypeSetArg }
func (m *SetArg) Append(b []byte) []byte { return m.Arg.append(le.AppendUint64(b, m.Kernel)) }
func (m *SetArg) Decode(b []byte) error {
	c := cursor{b: b, t: TypeSetArg}
	m.Kernel = c.u64("kernel")
	m.Arg.decode(&c)
	return c.end()
}

// Copy is clEnqueueCopyBuffer; offsets and size in bytes.
type Copy struct {
	Cmd
	Src, Dst                   uint64
	SrcOffset, DstOffset, Size uint64
}

func (*Copy) Type() Type { return TypeCopy }
func (m *Copy) Append(b []byte) []byte {
	b = m.Cmd.append(b)
	for _, v := range [...]uint64{m.Src, m.Dst, m.SrcOffset, m.DstOffset, m.Size} {
		b = le.AppendUint64(b, v)
	}
	return b
}
func (m *Copy) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCopy}
	m.Cmd.decode(&c)
	m.Src, m.Dst = c.u64("source"), c.u64("destination")
	m.SrcOffset, m.DstOffset, m.Size = c.u64("source offset"), c.u64("destination offset"), c.u64("size")
	return c.end()
}

// CopyRect is clEnqueueCopyBufferRect; origins and regions as there (x in bytes), pitches in bytes.
type CopyRect struct {
	Cmd
	Src, Dst                           uint64
	SrcOrigin, DstOrigin, Region       [3]uint64
	SrcRow, SrcSlice, DstRow, DstSlice uint64
}

func (*CopyRect) Type() Type { return TypeCopyRect }
func (m *CopyRect) Append(b []byte) []byte {
	b = m.Cmd.append(b)
	b = le.AppendUint64(le.AppendUint64(b, m.Src), m.Dst)
	b = appendU64x3(appendU64x3(appendU64x3(b, m.SrcOrigin), m.DstOrigin), m.Region)
	for _, v := range [...]uint64{m.SrcRow, m.SrcSlice, m.DstRow, m.DstSlice} {
		b = le.AppendUint64(b, v)
	}
	return b
}
func (m *CopyRect) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCopyRect}
	m.Cmd.decode(&c)
	m.Src, m.Dst = c.u64("source"), c.u64("destination")
	m.SrcOrigin, m.DstOrigin, m.Region = c.u64x3("source origin"), c.u64x3("destination origin"), c.u64x3("region")
	m.SrcRow, m.SrcSlice = c.u64("source row pitch"), c.u64("source slice pitch")
	m.DstRow, m.DstSlice = c.u64("destination row pitch"), c.u64("destination slice pitch")
	return c.end()
}

// Fill is clEnqueueFillBuffer; offset and size in bytes.
type Fill struct {
	Cmd
	Buffer, Offset, Size uint64
	Pattern              []byte
}

func (*Fill) Type() Type { return TypeFill }
func (m *Fill) Append(b []byte) []byte {
	b = m.Cmd.append(b)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.Buffer), m.Offset), m.Size)
	return appendBytes32(b, m.Pattern)
}
func (m *Fill) Decode(b []byte) error {
	c := cursor{b: b, t: TypeFill}
	m.Cmd.decode(&c)
	m.Buffer, m.Offset, m.Size = c.u64("buffer"), c.u64("offset"), c.u64("size")
	if m.Pattern = c.bytes32("pattern"); len(m.Pattern) > MaxPattern {
		c.fail("pattern")
	}
	return c.end()
}

// WriteInline writes bytes that ride in the record.
type WriteInline struct {
	Cmd
	Buffer, Offset uint64
	Data           []byte
}

func (*WriteInline) Type() Type { return TypeWriteInline }
func (m *WriteInline) Append(b []byte) []byte {
	b = m.Cmd.append(b)
	return appendBytes32(le.AppendUint64(le.AppendUint64(b, m.Buffer), m.Offset), m.Data)
}
func (m *WriteInline) Decode(b []byte) error {
	c := cursor{b: b, t: TypeWriteInline}
	m.Cmd.decode(&c)
	m.Buffer, m.Offset, m.Data = c.u64("buffer"), c.u64("offset"), c.bytes32("data")
	return c.end()
}

// Directions of a Transfer.
const (
	ToBuffer   = 0
	FromBuffer = 1
)

// Transfer moves bytes between a segment (dense there) and a buffer: a range
// (Rect false: Offset, Size), or a box (Origin, Region, pitches of the buffer's side).
type Transfer struct {
	Cmd
	Direction              uint8
	Buffer                 uint64
	Segment, SegmentOffset uint64
	Rect                   bool
	Offset, Size           uint64
	Origin, Region         [3]uint64
	RowPitch, SlicePitch   uint64
}

func (*Transfer) Type() Type { return TypeTransfer }
func (m *Transfer) Append(b []byte) []byte {
	b = append(m.Cmd.append(b), m.Direction)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.Buffer), m.Segment), m.SegmentOffset)
	if !m.Rect {
		return le.AppendUint64(le.AppendUint64(append(b, 0), m.Offset), m.Size)
	}
	b = appendU64x3(appendU64x3(append(b, 1), m.Origin), m.Region)
	return le.AppendUint64(le.AppendUint64(b, m.RowPitch), m.SlicePitch)
}
func (m *Transfer) Decode(b []byte) error {
	c := cursor{b: b, t: TypeTransfer}
	m.Cmd.decode(&c)
	m.Direction, m.Buffer = c.u8("direction"), c.u64("buffer")
	m.Segment, m.SegmentOffset = c.u64("segment"), c.u64("segment offset")
	rect := c.u8("form")
	if rect > 1 || m.Direction > FromBuffer {
		c.fail("form")
	}
	m.Rect = rect == 1
	m.Offset, m.Size, m.Origin, m.Region, m.RowPitch, m.SlicePitch = 0, 0, [3]uint64{}, [3]uint64{}, 0, 0
	if m.Rect {
		m.Origin, m.Region = c.u64x3("origin"), c.u64x3("region")
		m.RowPitch, m.SlicePitch = c.u64("row pitch"), c.u64("slice pitch")
	} else {
		m.Offset, m.Size = c.u64("offset"), c.u64("size")
	}
	return c.end()
}

// Host is a command that the client itself carries out between HostReady and HostDone.
type Host struct {
	Cmd
	Op uint64
}

func (*Host) Type() Type               { return TypeHost }
func (m *Host) Append(b []byte) []byte { return le.AppendUint64(m.Cmd.append(b), m.Op) }
func (m *Host) Decode(b []byte) error {
	c := cursor{b: b, t: TypeHost}
	m.Cmd.decode(&c)
	m.Op = c.u64("host op")
	return c.end()
}

// HostDone ends a Host command; Status 0 or negative.
type HostDone struct {
	Op     uint64
	Status int32
}

func (*HostDone) Type() Type { return TypeHostDone }
func (m *HostDone) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.Op), uint32(m.Status))
}
func (m *HostDone) Decode(b []byte) error {
	c := cursor{b: b, t: TypeHostDone}
	m.Op, m.Status = c.u64("host op"), int32(c.u32("status"))
	return c.end()
}

// Marker completes when its wait list, or (empty) everything before it, is done.
type Marker struct{ Cmd }

func (*Marker) Type() Type               { return TypeMarker }
func (m *Marker) Append(b []byte) []byte { return m.Cmd.append(b) }
func (m *Marker) Decode(b []byte) error {
	c := cursor{b: b, t: TypeMarker}
	m.Cmd.decode(&c)
	return c.end()
}

// Barrier is a Marker that everything after it waits for.
type Barrier struct{ Cmd }

func (*Barrier) Type() Type               { return TypeBarrier }
func (m *Barrier) Append(b []byte) []byte { return m.Cmd.append(b) }
func (m *Barrier) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBarrier}
	m.Cmd.decode(&c)
	return c.end()
}

// UserEvent makes an event that SetUserEvent ends.
type UserEvent struct{ ID uint64 }

func (*UserEvent) Type() Type               { return TypeUserEvent }
func (m *UserEvent) Append(b []byte) []byte { return le.AppendUint64(b, m.ID) }
func (m *UserEvent) Decode(b []byte) error {
	c := cursor{b: b, t: TypeUserEvent}
	m.ID = c.u64("id")
	return c.end()
}

// SetUserEvent ends a user event: Status 0 (complete) or negative (failed).
type SetUserEvent struct {
	ID     uint64
	Status int32
}

func (*SetUserEvent) Type() Type { return TypeSetUserEvent }
func (m *SetUserEvent) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.ID), uint32(m.Status))
}
func (m *SetUserEvent) Decode(b []byte) error {
	c := cursor{b: b, t: TypeSetUserEvent}
	m.ID, m.Status = c.u64("id"), int32(c.u32("status"))
	if m.Status > 0 {
		c.fail("status")
	}
	return c.end()
}

// Flush is clFlush.
type Flush struct{ Queue uint64 }

func (*Flush) Type() Type               { return TypeFlush }
func (m *Flush) Append(b []byte) []byte { return le.AppendUint64(b, m.Queue) }
func (m *Flush) Decode(b []byte) error {
	c := cursor{b: b, t: TypeFlush}
	m.Queue = c.u64("queue")
	return c.end()
}

// Finish is answered when everything sent to Queue before it is done.
type Finish struct{ Queue uint64 }

func (*Finish) Type() Type               { return TypeFinish }
func (m *Finish) Append(b []byte) []byte { return le.AppendUint64(b, m.Queue) }
func (m *Finish) Decode(b []byte) error {
	c := cursor{b: b, t: TypeFinish}
	m.Queue = c.u64("queue")
	return c.end()
}

// Wait is answered when all Events are done.
type Wait struct{ Events []uint64 }

func (*Wait) Type() Type               { return TypeWait }
func (m *Wait) Append(b []byte) []byte { return appendIDs(b, m.Events) }
func (m *Wait) Decode(b []byte) error {
	c := cursor{b: b, t: TypeWait}
	m.Events = decodeIDs(&c, m.Events, MaxWait, "events")
	return c.end()
}

// Watch asks for an urgent push when Event reaches Level (2 submitted, 1 running, 0 complete).
type Watch struct {
	Event uint64
	Level int32
}

func (*Watch) Type() Type { return TypeWatch }
func (m *Watch) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.Event), uint32(m.Level))
}
func (m *Watch) Decode(b []byte) error {
	c := cursor{b: b, t: TypeWatch}
	m.Event, m.Level = c.u64("event"), int32(c.u32("level"))
	if m.Level < 0 || m.Level > 2 {
		c.fail("level")
	}
	return c.end()
}

// What a Query asks.
const (
	QueryKernelWorkGroup = 1
	QueryKernel          = 2
	QueryKernelArg       = 3 // Input: u32 index
	QueryProgram         = 4
	QueryProgramBuild    = 5
	QueryKernelSubGroup  = 6
	QueryKernelFacts     = 7 // of a program: Input is a kernel's name, the answer JSON KernelFacts
	QueryDeviceTimer     = 8 // the answer: u64 device, u64 host, ns
)

// Query reads one native clGet…Info value; its Reply carries the bytes.
type Query struct {
	Kind   uint8
	Object uint64
	Device uint32
	Param  uint32
	Input  []byte
}

func (*Query) Type() Type { return TypeQuery }
func (m *Query) Append(b []byte) []byte {
	b = le.AppendUint64(append(b, m.Kind), m.Object)
	return appendBytes32(le.AppendUint32(le.AppendUint32(b, m.Device), m.Param), m.Input)
}
func (m *Query) Decode(b []byte) error {
	c := cursor{b: b, t: TypeQuery}
	m.Kind, m.Object, m.Device, m.Param = c.u8("kind"), c.u64("object"), c.u32("device"), c.u32("parameter")
	m.Input = c.bytes32("input")
	return c.end()
}
