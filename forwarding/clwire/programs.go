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
//
//wire:record
type CompileProgram struct {
	BuildProgram
	Headers []EmbeddedHeader `wire:"max=MaxPrograms"`
}

// LinkProgram is clLinkProgram: ID is the new program's. Its Reply carries a BuildResult; the program is there if
// BuildResult.Made says so, whatever the status.
//
//wire:record
type LinkProgram struct {
	ID, Context uint64
	Devices     []uint32 `wire:"max=MaxDevices"`
	Options     []byte
	Programs    []uint64 `wire:"max=MaxPrograms"`
}

// Files names the files that a build may include: Blob is a FilesManifest. Its Reply carries the positions of those
// that the worker does not have, as u32; FileData brings them. One BuildProgram or CompileProgram uses the set up.
//
//wire:record
type Files struct{ Set, Blob uint64 }

// FileData brings the files that were missing, one after another in Blob.
//
//wire:record
type FileData struct{ Set, Blob uint64 }

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

// CreateSubDevices is clCreateSubDevices: the sub-devices get the indices from First on. With Room 0 it counts. Its
// Reply carries SubDevices.
//
//wire:record
type CreateSubDevices struct {
	Device, First uint32
	Room          uint32   // CL_INVALID_VALUE where there would be more
	Properties    []uint64 `wire:"max=MaxPartitioning"`
}

// SubDevices is the JSON document that answers CreateSubDevices.
type SubDevices struct {
	Count   uint32           `json:"count"`
	Devices []DeviceSnapshot `json:"devices,omitempty"` // with Room
}

// ReleaseSubDevice drops a sub-device; contexts keep what they need.
//
//wire:record
type ReleaseSubDevice struct{ Device uint32 }

// SpecConstant is clSetProgramSpecializationConstant; its Reply is the driver's verdict.
//
//wire:record
type SpecConstant struct {
	Program uint64
	ID      uint32
	Value   []byte
}
