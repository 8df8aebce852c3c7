package clwire

import (
	"encoding/binary"

	"tendril/ipc/field"
)

var le = binary.LittleEndian

// Cmd heads every enqueued command: where it goes, the event that names it
// (0: the program wants none) and what it waits for.
//
//wire:part
type Cmd struct {
	Queue uint64
	Event uint64
	Wait  []uint64 `wire:"max=MaxWait"` // events
}

// Head is the head of the command that holds m.
func (m *Cmd) Head() *Cmd { return m }

// Hello opens the stream. Its Reply carries HelloReply's bytes.
//
//wire:record
type Hello struct {
	Version    uint32
	SpinMicros uint32 // how long the worker may poll before it sleeps; 0: not at all
	Program    string // for status and logs
}

// What a worker can, in HelloReply.
const (
	CapInPlace = 1 << 0 // buffers over segments are computed on in place (CPU devices)
	// it takes packed chunks on lanes, in each way of this version (LaneHeader), and would send some
	CapPacked  = 1 << 1
	CapProtect = 1 << 2 // it takes ProtectSegment
	CapSVM     = 1 << 3 // it takes CreateSVM
)

// HelloReply is the result of Hello.
//
//wire:payload
type HelloReply struct{ Version, Capabilities uint32 }

// CreateContext makes a native context over devices of the worker's platform.
//
//wire:record
type CreateContext struct {
	ID      uint64
	Devices []uint32 `wire:"max=MaxDevices"` // indices in the snapshot
}

// CreateQueue makes a native command queue; Properties is cl_command_queue_properties.
//
//wire:record
type CreateQueue struct {
	ID, Context uint64
	Device      uint32
	Properties  uint64
}

// AddSegment gives the worker shared memory; its descriptor is the next one on the socket. With AttachedSegment in the
// number the daemon has sent the descriptor, and the worker takes it.
//
//wire:record
type AddSegment struct{ ID, Bytes uint64 }

// ProtectSegment maps a segment again where it lies, by the next descriptor on the socket, which can be read alone
// unless Writable. It is answered when that is done, behind all commands before it.
//
//wire:record
type ProtectSegment struct {
	ID       uint64
	Writable bool
}

// DropSegment ends the client's use of a segment; the worker unmaps it when its last buffer is gone.
//
//wire:record
type DropSegment struct{ ID uint64 }

// CreateBuffer makes a native buffer: over Segment at Offset (in place), in the
// driver's memory (Segment 0), or as a sub-buffer of Parent at origin Offset.
//
//wire:record
type CreateBuffer struct {
	ID, Context     uint64
	Flags, Size     uint64 // cl_mem_flags; bytes
	Segment, Offset uint64
	Parent          uint64
}

// CreateSVM makes shared virtual memory (OpenCL 3.0 §5.6) with a native buffer over it, which is the object ID. On a
// device that computes on memory of the worker's it lies at Address, and is Segment, or the worker's own (Segment 0).
// Elsewhere it is the driver's, who chooses. Its Reply carries a u64: where it lies; 0: nowhere, for other memory of
// the worker's lies at Address.
//
//wire:record
type CreateSVM struct {
	ID, Context      uint64
	Flags, Size      uint64 // cl_svm_mem_flags; bytes
	Segment, Address uint64 // Address: a multiple of the page size
	Align            uint32 // as the program asked, in bytes; 0: the device's own
}

func (m *CreateSVM) check(r *field.Reader) {
	if m.Size == 0 || m.Size > MaxSVM || m.Address%SVMAlign != 0 || m.Address > 1<<56 {
		r.Fail("range")
	}
}

// SVMAlign is what shared virtual memory is aligned to, in bytes: it is mapped, in two processes. SVMTypeAlign is the
// most that every device can: the size of OpenCL C's largest data type (§5.6.1). MaxSVM is the most that one allocation
// may have.
const (
	SVMAlign     = 4096
	SVMTypeAlign = 128
	MaxSVM       = 1 << 46
)

// SVMPointers says which memory a kernel reaches by pointers that are no arguments (§5.9.2,
// CL_KERNEL_EXEC_INFO_SVM_PTRS), in its launches from here on: the addresses, and the objects that they lie in.
//
//wire:record
type SVMPointers struct {
	Kernel   uint64
	Objects  []uint64 `wire:"max=MaxSVMPointers"`
	Pointers []uint64 `wire:"max=MaxSVMPointers"` // one for each object
}

// MaxSVMPointers bounds SVMPointers to a record.
const MaxSVMPointers = 4096

func (m *SVMPointers) check(r *field.Reader) {
	if len(m.Objects) != len(m.Pointers) {
		r.Fail("count")
	}
}

// Release drops an object of any kind. Commands sent before keep what they need.
//
//wire:record
type Release struct{ ID uint64 }

// Blob carries one consecutive piece of something larger than a record.
//
//wire:record
type Blob struct {
	ID, Total, Offset uint64
	Data              []byte
}

func (m *Blob) check(r *field.Reader) {
	if m.Total > MaxBlob || m.Offset > m.Total || uint64(len(m.Data)) > m.Total-m.Offset {
		r.Fail("range")
	}
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
//
//wire:record
type CreateProgram struct {
	ID, Context uint64
	Kind        uint8
	Blob        uint64
	Binaries    []DeviceBytes `wire:"max=MaxDevices"` // nil for source and IL
}

func (m *CreateProgram) check(r *field.Reader) {
	if m.Kind < ProgramSource || m.Kind > ProgramBuiltIn {
		r.Fail("kind")
	}
}

// BuildProgram builds for Devices (none: all of the context). Its Reply carries a BuildResult.
//
//wire:record
type BuildProgram struct {
	Program uint64
	Devices []uint32 `wire:"max=MaxDevices"`
	Options []byte
	Files   uint64 // 0, or the set of files that the source may include
}

// CreateKernel makes a kernel of a built program.
//
//wire:record
type CreateKernel struct {
	ID, Program uint64
	Name        string
}

// Kinds of kernel argument.
const (
	ArgBytes   = 0 // Data is the value
	ArgMem     = 1 // Data is a u64 object id, 0 for NULL
	ArgLocal   = 2 // Data is a u64 size in bytes
	ArgSampler = 3 // Data is a u64 object id
	ArgSVM     = 4 // Data is the u64 id of a CreateSVM and a u64 address in its memory, or right behind; 0 0 for NULL
)

// Arg is one kernel argument.
//
//wire:part
type Arg struct {
	Index uint16
	Kind  uint8
	Data  []byte
}

func (a *Arg) check(r *field.Reader) {
	want := 8
	if a.Kind == ArgSVM {
		want = 16
	}
	if a.Kind > ArgSVM || a.Kind != ArgBytes && len(a.Data) != want {
		r.Fail("kind")
	}
}

// Address is where an argument of kind ArgSVM points.
func (a *Arg) Address() uint64 { return le.Uint64(a.Data[8:]) }

// ID returns the object id or size of an argument that is not ArgBytes.
func (a *Arg) ID() uint64 { return le.Uint64(a.Data) }

// NDRange launches a kernel. Args are those that changed since the kernel's
// last launch in the stream. Offset and Local are given when HasOffset, HasLocal.
//
//wire:record
type NDRange struct {
	Cmd
	Kernel    uint64
	Dims      uint8     // 1 to 3
	HasOffset bool      `wire:"bits"`
	HasLocal  bool      `wire:"bits"`
	Global    [3]uint64 `wire:"len=Dims,rest=1"` // work-items; unused dimensions are 1
	Offset    [3]uint64 `wire:"len=Dims,if=HasOffset"`
	Local     [3]uint64 `wire:"len=Dims,rest=1,if=HasLocal"`
	Args      []Arg     `wire:"max=MaxArgs"`
}

func (m *NDRange) check(r *field.Reader) {
	if m.Dims < 1 || m.Dims > 3 {
		r.Fail("dims")
	}
}

// SetArg asks for the driver's verdict on one argument.
//
//wire:record
type SetArg struct {
	Kernel uint64
	Arg    Arg
}

// Copy is clEnqueueCopyBuffer; offsets and size in bytes.
//
//wire:record
type Copy struct {
	Cmd
	Src, Dst                   uint64
	SrcOffset, DstOffset, Size uint64
}

// CopyRect is clEnqueueCopyBufferRect; origins and regions as there (x in bytes), pitches in bytes.
//
//wire:record
type CopyRect struct {
	Cmd
	Src, Dst                           uint64
	SrcOrigin, DstOrigin, Region       [3]uint64
	SrcRow, SrcSlice, DstRow, DstSlice uint64
}

// Fill is clEnqueueFillBuffer; offset and size in bytes.
//
//wire:record
type Fill struct {
	Cmd
	Buffer, Offset, Size uint64
	Pattern              []byte
}

func (m *Fill) check(r *field.Reader) {
	if len(m.Pattern) > MaxPattern {
		r.Fail("pattern")
	}
}

// WriteInline writes bytes that ride in the record.
//
//wire:record
type WriteInline struct {
	Cmd
	Buffer, Offset uint64
	Data           []byte
}

// Directions of a Transfer.
const (
	ToBuffer   = 0
	FromBuffer = 1
)

// Transfer moves bytes between a segment (dense there) and a buffer: a range
// (Rect false: Offset, Size), or a box (Origin, Region, pitches of the buffer's side).
//
//wire:record
type Transfer struct {
	Cmd
	Direction              uint8
	Buffer                 uint64
	Segment, SegmentOffset uint64
	Rect                   bool
	Offset, Size           uint64    `wire:"unless=Rect"`
	Origin, Region         [3]uint64 `wire:"if=Rect"`
	RowPitch, SlicePitch   uint64    `wire:"if=Rect"`
}

func (m *Transfer) check(r *field.Reader) {
	if m.Direction > FromBuffer {
		r.Fail("direction")
	}
}

// Host is a command that the client itself carries out between HostReady and HostDone.
//
//wire:record
type Host struct {
	Cmd
	Op uint64
}

// HostDone ends a Host command; Status 0 or negative.
//
//wire:record
type HostDone struct {
	Op     uint64
	Status int32
}

// Marker completes when its wait list, or (empty) everything before it, is done.
//
//wire:record
type Marker struct{ Cmd }

// Barrier is a Marker that everything after it waits for.
//
//wire:record
type Barrier struct{ Cmd }

// UserEvent makes an event that SetUserEvent ends.
//
//wire:record
type UserEvent struct{ ID uint64 }

// SetUserEvent ends a user event: Status 0 (complete) or negative (failed).
//
//wire:record
type SetUserEvent struct {
	ID     uint64
	Status int32
}

func (m *SetUserEvent) check(r *field.Reader) {
	if m.Status > 0 {
		r.Fail("status")
	}
}

// Flush is clFlush.
//
//wire:record
type Flush struct{ Queue uint64 }

// Finish is answered when everything sent to Queue before it is done.
//
//wire:record
type Finish struct{ Queue uint64 }

// Wait is answered when all Events are done.
//
//wire:record
type Wait struct {
	Events []uint64 `wire:"max=MaxWait"`
}

// Watch asks for an urgent push when Event reaches Level (2 submitted, 1 running, 0 complete).
//
//wire:record
type Watch struct {
	Event uint64
	Level int32
}

func (m *Watch) check(r *field.Reader) {
	if m.Level < 0 || m.Level > 2 {
		r.Fail("level")
	}
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
//
//wire:record
type Query struct {
	Kind   uint8
	Object uint64
	Device uint32
	Param  uint32
	Input  []byte
}
