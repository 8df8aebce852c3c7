package clwire

// Programs in parts, and the files that their sources include.

// Limits of programs in parts.
const (
	MaxPrograms  = 1024     // headers of a CompileProgram, inputs of a LinkProgram
	MaxFiles     = 8192     // files of one set
	MaxFileBytes = 64 << 20 // bytes of one set's files together
	MaxPath      = 4096     // bytes of a path, as PATH_MAX has it
)

// How a client names the directory in which the worker lays a set's files out. It does not know it.
const (
	// FilesRoot stands in options for the directory that holds the client's absolute paths.
	FilesRoot = "\x01"
	// FilesAlias is that directory's name in FilesBase, for #include directives that name absolute paths.
	FilesAlias = ".tendril-root"
	// FilesBase stands in options for the directory that holds FilesAlias.
	FilesBase = "\x02"
)

// EmbeddedHeader is an embedded header of a CompileProgram: the source of Program, included as Name.
type EmbeddedHeader struct {
	Program uint64
	Name    string
}

// CompileProgram is clCompileProgram. Its Reply carries a BuildResult without kernels.
type CompileProgram struct {
	BuildProgram
	Headers []EmbeddedHeader
}

func (*CompileProgram) Type() Type { return TypeCompileProgram }
func (m *CompileProgram) Append(b []byte) []byte {
	b = le.AppendUint16(m.BuildProgram.Append(b), uint16(len(m.Headers)))
	for _, h := range m.Headers {
		b = appendStr16(le.AppendUint64(b, h.Program), h.Name)
	}
	return b
}
func (m *CompileProgram) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCompileProgram}
	m.BuildProgram.decode(&c)
	m.Headers = m.Headers[:0]
	for range c.count(MaxPrograms, 10, "headers") {
		m.Headers = append(m.Headers, EmbeddedHeader{c.u64("header"), c.str16("header's name")})
	}
	return c.end()
}

// LinkProgram is clLinkProgram: ID is the new program's. Its Reply carries a BuildResult; the program is there if
// BuildResult.Made says so, whatever the status.
type LinkProgram struct {
	ID, Context uint64
	Devices     []uint32
	Options     []byte
	Programs    []uint64
}

func (*LinkProgram) Type() Type { return TypeLinkProgram }
func (m *LinkProgram) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.ID), m.Context)
	return appendIDs(appendBytes32(appendU32s(b, m.Devices), m.Options), m.Programs)
}
func (m *LinkProgram) Decode(b []byte) error {
	c := cursor{b: b, t: TypeLinkProgram}
	m.ID, m.Context = c.u64("id"), c.u64("context")
	m.Devices = decodeU32s(&c, m.Devices, "devices")
	m.Options = c.bytes32("options")
	m.Programs = decodeIDs(&c, m.Programs, MaxPrograms, "programs")
	return c.end()
}

// Files names the files that a build may include: Blob is a FilesManifest. Its Reply carries the positions of those
// that the worker does not have, as u32; FileData brings them. One BuildProgram or CompileProgram uses the set up.
type Files struct{ Set, Blob uint64 }

func (*Files) Type() Type               { return TypeFiles }
func (m *Files) Append(b []byte) []byte { return (*FileData)(m).Append(b) }
func (m *Files) Decode(b []byte) error  { return (*FileData)(m).decode(cursor{b: b, t: TypeFiles}) }

// FileData brings the files that were missing, one after another in Blob.
type FileData struct{ Set, Blob uint64 }

func (*FileData) Type() Type               { return TypeFileData }
func (m *FileData) Append(b []byte) []byte { return le.AppendUint64(le.AppendUint64(b, m.Set), m.Blob) }
func (m *FileData) Decode(b []byte) error  { return m.decode(cursor{b: b, t: TypeFileData}) }

func (m *FileData) decode(c cursor) error {
	m.Set, m.Blob = c.u64("set"), c.u64("blob")
	return c.end()
}

// FilesManifest is the JSON document of a set of files.
type FilesManifest struct {
	Dir   []byte      `json:"dir"` // the program's working directory, absolute
	Files []FileEntry `json:"files"`
}

// FileEntry is one file. A path is absolute, as the compiler will spell it: it may hold "..".
type FileEntry struct {
	Path   []byte `json:"path"`
	SHA256 []byte `json:"sha256"` // 32 bytes
	Bytes  uint64 `json:"bytes"`
}

// SubDeviceBase is the first device index that a client gives to sub-devices; those below are the snapshot's.
const SubDeviceBase = 1 << 16

// Limits of sub-devices.
const (
	MaxSubDevices   = 4096 // of one partition, and of one session
	MaxPartitioning = 4096 // words of a property list
)

// CreateSubDevices is clCreateSubDevices: the sub-devices get the indices from First on. With Room 0 it counts. Its Reply
// carries SubDevices.
type CreateSubDevices struct {
	Device, First uint32
	Room          uint32 // CL_INVALID_VALUE where there would be more
	Properties    []uint64
}

func (*CreateSubDevices) Type() Type { return TypeCreateSubDevices }
func (m *CreateSubDevices) Append(b []byte) []byte {
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, m.Device), m.First), m.Room)
	return appendIDs(b, m.Properties)
}
func (m *CreateSubDevices) Decode(b []byte) error {
	c := cursor{b: b, t: TypeCreateSubDevices}
	m.Device, m.First, m.Room = c.u32("device"), c.u32("first"), c.u32("room")
	m.Properties = decodeIDs(&c, m.Properties, MaxPartitioning, "properties")
	return c.end()
}

// SubDevices is the JSON document that answers CreateSubDevices.
type SubDevices struct {
	Count   uint32           `json:"count"`
	Devices []DeviceSnapshot `json:"devices,omitempty"` // with Room
}

// ReleaseSubDevice drops a sub-device; contexts keep what they need.
type ReleaseSubDevice struct{ Device uint32 }

func (*ReleaseSubDevice) Type() Type               { return TypeReleaseSubDevice }
func (m *ReleaseSubDevice) Append(b []byte) []byte { return le.AppendUint32(b, m.Device) }
func (m *ReleaseSubDevice) Decode(b []byte) error {
	c := cursor{b: b, t: TypeReleaseSubDevice}
	m.Device = c.u32("device")
	return c.end()
}

// SpecConstant is clSetProgramSpecializationConstant; its Reply is the driver's verdict.
type SpecConstant struct {
	Program uint64
	ID      uint32
	Value   []byte
}

func (*SpecConstant) Type() Type { return TypeSpecConstant }
func (m *SpecConstant) Append(b []byte) []byte {
	return appendBytes32(le.AppendUint32(le.AppendUint64(b, m.Program), m.ID), m.Value)
}
func (m *SpecConstant) Decode(b []byte) error {
	c := cursor{b: b, t: TypeSpecConstant}
	m.Program, m.ID, m.Value = c.u64("program"), c.u32("id"), c.bytes32("value")
	return c.end()
}
