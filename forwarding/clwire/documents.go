package clwire

// The JSON documents of the protocol. Numbers of parameters are the
// cl_*_info values of the OpenCL headers.

// Snapshot is what a node offers: the answer to Devices and OpenSession.
type Snapshot struct {
	Platforms []PlatformSnapshot `json:"platforms"`
	// of the session, which sees the lease's devices alone; nil: it asked for none, or the daemon knows of none
	Lease *LeaseSnapshot `json:"lease,omitempty"`
	// devices that a session without a lease does not see: others have them for themselves alone, or wait for that
	Leased int `json:"leased,omitempty"`
}

// LeaseSnapshot is the lease that a session uses.
type LeaseSnapshot struct {
	Number  uint64 `json:"number"`
	Token   string `json:"token"`   // with it other sessions of the tenant use the lease, too
	Devices int    `json:"devices"` // how many it has here
	// of a lease over nodes: identifiers of the other nodes where it has some; nil: it is of this node alone
	Nodes []string `json:"nodes,omitzero"`
}

// PlatformSnapshot is one native platform, as its driver answered a probe.
type PlatformSnapshot struct {
	ICD     string            `json:"icd"`   // file that names the driver
	Index   int               `json:"index"` // of the platform inside that driver
	Info    map[uint32][]byte `json:"info"`  // clGetPlatformInfo: raw bytes
	Devices []DeviceSnapshot  `json:"devices"`
}

// DeviceSnapshot is one native device. Handles are left out of Info.
type DeviceSnapshot struct {
	Info          map[uint32][]byte `json:"info"` // clGetDeviceInfo: raw bytes
	InPlace       bool              `json:"in_place"`
	InPlaceReason string            `json:"in_place_reason,omitempty"` // why not
	// cl_khr_device_uuid, else derived from node, driver and position
	UUID       string      `json:"uuid,omitempty"`
	ImportMost uint64      `json:"import_most,omitempty"`  // bytes of memory that its driver imports without fault; 0: any
	Mode       ComputeMode `json:"compute_mode,omitempty"` // as the driver said when it was probed
	// 1 + its position among all that the node offers, where a session sees only some; 0: it sees all
	Number int `json:"number,omitempty"`
}

// Sizes of the allocations that a driver was seen to end at, and to import without fault, in bytes.
const (
	LargeImport = 512 << 20
	SmallImport = 510 << 20
)

// ProbeResult is what `tendril probe` writes: a driver may hold several platforms.
type ProbeResult struct {
	Platforms []PlatformSnapshot `json:"platforms"`
	Fallbacks []Fallback         `json:"fallbacks,omitempty"`
}

// BuildResult is the Reply to BuildProgram, CompileProgram and LinkProgram.
type BuildResult struct {
	Devices []BuildDevice `json:"devices"`
	// of kernels that the source names, some at least; empty when the build failed, or nothing was linked
	Kernels []KernelFacts `json:"kernels,omitempty"`
	Made    bool          `json:"made,omitempty"` // LinkProgram: there is a program
}

// BuildDevice is clGetProgramBuildInfo for one device.
type BuildDevice struct {
	Device         uint32 `json:"device"`
	Status         int32  `json:"status"` // cl_build_status
	Log            []byte `json:"log,omitempty"`
	BinaryType     uint32 `json:"binary_type"`
	GlobalVarBytes uint64 `json:"global_var_bytes,omitempty"`
}

// KernelFacts answers a program's questions about a kernel without a round trip.
type KernelFacts struct {
	Name       string     `json:"name"`
	NumArgs    uint32     `json:"num_args"`
	Attributes string     `json:"attributes,omitempty"`
	HasArgInfo bool       `json:"has_arg_info"`
	Args       []ArgFacts `json:"args,omitempty"`
	// without HasArgInfo: what clSetKernelArg's refusals tell of each argument
	Shapes     []ArgShape  `json:"shapes,omitempty"`
	WorkGroups []WorkGroup `json:"work_groups"` // one a device built for
}

// ArgFacts is clGetKernelArgInfo.
type ArgFacts struct {
	Address       uint32 `json:"address"` // cl_kernel_arg_address_qualifier
	Access        uint32 `json:"access"`
	TypeQualifier uint64 `json:"type_qualifier"`
	TypeName      string `json:"type_name"`
	Name          string `json:"name"`
}

// ArgShape is what a driver that gives no argument information lets see of an argument.
type ArgShape struct {
	Kind uint8 `json:"kind"` // Shape…
	// of a value: the one power of two that the driver takes; 0: another size, not 8
	Bytes uint32 `json:"bytes,omitempty"`
}

// Kinds of an argument. A value of 8 bytes may still be an image or a sampler of a driver that takes NULL for one.
const (
	ShapeUnknown uint8 = iota
	ShapeValue
	ShapeBuffer
	ShapeLocal
	ShapeImage
	ShapeSampler
)

// WorkGroup is clGetKernelWorkGroupInfo for one device; sizes in work-items and bytes.
type WorkGroup struct {
	Device            uint32    `json:"device"`
	Size              uint64    `json:"size"`
	CompileSize       [3]uint64 `json:"compile_size"`
	LocalBytes        uint64    `json:"local_bytes"`
	PreferredMultiple uint64    `json:"preferred_multiple"`
	PrivateBytes      uint64    `json:"private_bytes"`
}

// Fallback says what a process could not have, and why.
type Fallback struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// WorkerMessage is one packet from worker to daemon: exactly one field is set.
type WorkerMessage struct {
	Ready  *WorkerReady  `json:"ready,omitempty"`
	Failed *WorkerFailed `json:"failed,omitempty"`

	RemoteReady *RemoteReady `json:"remote_ready,omitempty"`
	LaneUp      *LaneUp      `json:"lane_up,omitempty"`
	Moved       *Moved       `json:"moved,omitempty"`

	Commands *WorkerCommands `json:"commands,omitempty"`
}

// WorkerCommands answers AskCommands: what the worker's queues have in flight, and where the time went. Times are in
// seconds. Kinds are the names of records (PROTOCOL.md), such as NDRange.
type WorkerCommands struct {
	Question uint64          `json:"question"` // that it answers
	Flying   []CommandFlying `json:"flying"`   // the oldest first
	More     uint64          `json:"more"`     // in flight, and not listed
	Last     []CommandEnded  `json:"last"`     // that ended since somebody looked, the newest first
	Sums     []CommandSum    `json:"sums"`     // of all that ended, those that took most first
	Calls    []DriverCall    `json:"calls"`    // of the driver, under way; the oldest first
	Unasked  bool            `json:"unasked"`  // the driver did not say in time what runs: a call holds it up
}

// The states of a command in flight.
const (
	CommandQueued    = "queued"    // the worker holds it: for an event, a build, the program, or its turn
	CommandGiving    = "giving"    // the driver is being given it: it is in the call
	CommandSubmitted = "submitted" // the driver has it
	CommandRunning   = "running"   // the driver says so; or nobody asks it, and it is the first of a queue in order
)

// CommandFlying is a command that has not ended, as far as the worker knows.
type CommandFlying struct {
	Queue   uint64  `json:"queue"`
	Device  uint32  `json:"device"` // index in the platform
	Kind    string  `json:"kind"`
	Kernel  string  `json:"kernel,omitempty"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"` // since the worker took it
}

// CommandEnded is a command that has ended. What was seen to end together shares its time.
type CommandEnded struct {
	Queue   uint64  `json:"queue"`
	Device  uint32  `json:"device"`
	Kind    string  `json:"kind"`
	Kernel  string  `json:"kernel,omitempty"`
	Status  int32   `json:"status"`  // 0, or an error code
	Seconds float64 `json:"seconds"` // since it was given to the driver, or since the end before it, if that is later
	Ago     float64 `json:"ago"`
}

// CommandSum is how often commands of a kind, or launches of a kernel, ended, and how long they took.
type CommandSum struct {
	Kind    string  `json:"kind"`
	Kernel  string  `json:"kernel,omitempty"`
	Count   uint64  `json:"count"`
	Failed  uint64  `json:"failed"`  // of them
	Timed   uint64  `json:"timed"`   // of them: those that ended since somebody looked
	Seconds float64 `json:"seconds"` // that these took
}

// DriverCall is a call of the driver that has not come back.
type DriverCall struct {
	What    string  `json:"what"`
	Queue   uint64  `json:"queue,omitempty"`
	Seconds float64 `json:"seconds"`
}

// AskCommands asks a worker for its WorkerCommands.
type AskCommands struct {
	Question uint64 `json:"question"`
}

// Moved says how many bytes a worker's client and it moved over lanes so far, and how many of the lanes these took:
// fewer where they were compressed.
type Moved struct {
	Sent      uint64 `json:"sent"` // by the worker
	SentWire  uint64 `json:"sent_wire"`
	Taken     uint64 `json:"taken"`
	TakenWire uint64 `json:"taken_wire"`
}

// RemoteReady answers AssignRemote: what the client has to pin.
type RemoteReady struct {
	CertificateSHA256 []byte `json:"certificate_sha256"` // 32 bytes, of the DER; base64 in JSON
}

// LaneUp says that TLS succeeded on a lane: its ticket is spent now. A lane
// that fails is closed without a word, and its ticket stays good.
type LaneUp struct {
	Index int `json:"index"`
}

// WorkerReady says that the sandbox is on and the driver loaded.
type WorkerReady struct {
	PID       int        `json:"pid"`
	Fallbacks []Fallback `json:"fallbacks,omitempty"`
}

// WorkerFailed precedes a worker's exit with status 1.
type WorkerFailed struct {
	Error string `json:"error"`
}

// DaemonMessage is one packet from daemon to worker.
type DaemonMessage struct {
	Assign *WorkerAssign `json:"assign,omitempty"`

	AssignRemote *AssignRemote `json:"assign_remote,omitempty"`
	Lane         *WorkerLane   `json:"lane,omitempty"`
	Attach       *WorkerAttach `json:"attach,omitempty"`
	DeviceLimit  *DeviceLimit  `json:"device_limit,omitempty"`
	Peer         *WorkerPeer   `json:"peer,omitempty"`
	Ask          *AskCommands  `json:"ask,omitempty"`
}

// WorkerPeer hands over one connection of a link to another worker, one descriptor with it: the raw socket.
type WorkerPeer struct {
	Link  uint64 `json:"link"`
	Index int    `json:"index"` // of the lane
}

// DeviceLimit bounds what a worker's buffers and images take of its devices' own memory, from now on. What is taken
// stays.
type DeviceLimit struct {
	Bytes uint64 `json:"bytes"`
}

// AttachedSegment is set in the numbers of segments that the daemon gives a worker; a client gives its own without it.
const AttachedSegment = 1 << 63

// AttachedDevice is set beside it where the memory is a GPU's: nothing maps it, and a CreateBuffer that names it
// imports it.
const AttachedDevice = 1 << 62

// MaxAttached bounds how many such segments wait in a worker for the buffer that names them.
const MaxAttached = 1024

// WorkerAttach shows a worker a segment of the store, one descriptor with it, which can be mapped for reading alone; or
// an allocation of a GPU's memory. A CreateBuffer may name it from then on, a DropSegment ends it.
type WorkerAttach struct {
	Segment uint64 `json:"segment"` // with AttachedSegment
	Bytes   uint64 `json:"bytes"`
	Device  string `json:"device,omitempty"` // with AttachedDevice: the UUID of the GPU whose memory it is, 32 hex digits
}

// AssignRemote gives a warm worker a session whose client comes over the network. No descriptor comes with it.
type AssignRemote struct {
	Session      uint64 `json:"session"`
	Worker       uint64 `json:"worker"`
	Tenant       string `json:"tenant"`
	ClientSHA256 []byte `json:"client_sha256"`         // 32 bytes, of the client's certificate (DER); base64 in JSON
	Lanes        int    `json:"lanes"`                 // connections, 1 to MaxLanes; 0 is the control stream
	Plaintext    bool   `json:"plaintext,omitempty"`   // no TLS on the lanes
	NoCompress   bool   `json:"no_compress,omitempty"` // what lanes carry is never packed

	// its connections can be replaced: a Lane of one that was there takes its place
	Resume        bool  `json:"resume,omitempty"`
	ResumeMillis  int64 `json:"resume_millis,omitempty"`  // how long the worker waits without a control stream
	SilenceMillis int64 `json:"silence_millis,omitempty"` // how long its client's machine may say nothing

	DeviceLimited bool       `json:"device_limited,omitempty"` // no memory may be taken before a DeviceLimit
	Limits        TimeLimits `json:"limits"`
}

// WorkerLane hands over one connection, one descriptor with it: the raw socket, nothing read behind the preface.
type WorkerLane struct {
	Index int `json:"index"`
}

// WorkerAssign gives a warm worker its session; two descriptors come with it: socket, ring.
type WorkerAssign struct {
	Session   uint64 `json:"session"`
	Worker    uint64 `json:"worker"`
	Tenant    string `json:"tenant"`
	RingBytes uint64 `json:"ring_bytes"`

	NoCompress bool `json:"no_compress,omitempty"` // what goes to other nodes' workers is never packed

	DeviceLimited bool       `json:"device_limited,omitempty"` // no memory may be taken before a DeviceLimit
	Limits        TimeLimits `json:"limits"`
}

// MaxControlBytes bounds one packet of the worker control socket.
const MaxControlBytes = 64 << 10

// SessionOptions is the JSON that OpenSession carries.
type SessionOptions struct {
	Protocol uint32 `json:"protocol"`           // Version of the session protocol that the library speaks
	Selector string `json:"selector,omitempty"` // TENDRIL_DEVICES, for status
	// driver variables of the program, filtered by the daemon's allow-list
	Env map[string]string `json:"env,omitempty"`
	// the session wants devices for itself alone; nil: it shares those that nobody leases
	Lease *LeaseOptions `json:"lease,omitempty"`
}

// LeaseOptions ask for a lease of devices that Selector matches, or name one.
type LeaseOptions struct {
	Count  int    `json:"count,omitempty"`  // devices; 0: all that match
	Ticket string `json:"ticket,omitempty"` // of a place in the line, the client's random text; "": it does not wait
	Token  string `json:"token,omitempty"`  // of a lease that is there, in place of the others
	Nodes  bool   `json:"nodes,omitempty"`  // devices of all nodes of the cluster will do
	Whole  bool   `json:"whole,omitempty"`  // with Count 0: all that match of one node, whichever it is
	Leave  bool   `json:"leave,omitempty"`  // with Ticket: its place is given up, and nothing is leased
}

// MaxLeaseText bounds a ticket and a token, in bytes.
const MaxLeaseText = 64
