package inspect

import (
	"os"
	"time"

	"tendril/cluster/raftnode"
	"tendril/daemon/audit"
	"tendril/daemon/changes"
	"tendril/daemon/leases"
	"tendril/store/object"
	"tendril/store/timing"
)

// Bounds of a page.
const (
	defaultLimit     = 100
	maxLimit         = 1000
	maxArgumentBytes = 512
	maxPlaceBytes    = 6 << 10 // of an answer's `next`: over all nodes it has a part for each
)

// Viewer is who asks: a user of this machine, or the holder of a token.
type Viewer struct {
	Local  bool
	UID    uint32   // Local only, from the kernel
	GID    uint32   // the same: the process's own group
	Secret [32]byte // SHA-256 of the page's key, else

	Scraper bool   // sees /metrics and nothing else
	Tenant  string // Scraper only: whose samples; "" = all
}

// Page is a part of a long list: at most Limit things (1 to 1000) that stand behind the place After ("" is the
// beginning), whose name begins with Prefix.
type Page struct {
	Limit  int
	After  string
	Prefix string
	State  string    // objects only: those in this state; "" = all
	Tenant string    // objects and the audit: this tenant's; "" = all that the viewer may see
	Since  time.Time // the audit only: what was later, or then; zero = all

	AllNodes bool // the audit only: of all nodes that answer, else of this one
}

// Data is a sealed object's bytes. The caller must Close.
type Data interface {
	Size() uint64
	// Range gives n bytes from off on, valid until the next call. n is at most ChunkBytes.
	Range(off, n uint64) ([]byte, error)
	// Memory gives memory that has the object, from off on, open until Close; nil: Range alone reads it. Sockets may
	// refer to that memory from then on, also after Close.
	Memory() (file *os.File, off uint64)
	Close()
}

// ChunkBytes is how much of an object is read at a time.
const ChunkBytes = 1 << 20

// Part is what a Page asked for, or less: at most some PageBytes of JSON. Next is the place behind it; "" is the end.
// It may be empty and have a Next: a source looks at a bounded number of things.
type Part[T any] struct {
	Items  []T
	Next   string
	Total  int      // of objects, on all pages, where nothing but the tenant chooses them; else 0: nobody counts
	Silent []string // nodes that were asked and did not answer, by name
	Unsure string   // of names: why the node may know less than its cluster; "": it hears from who leads that
}

// PageBytes bounds a Part in bytes of JSON, but that it has one thing in any case.
const PageBytes = 512 << 10

// Source says what there is. The daemon implements it. Each method must be safe for concurrent use, answer from memory
// within milliseconds, show a viewer only what it may see, and give memory that it does not alter afterwards. Errors
// are the store's sentinels.
type Source interface {
	Status(Viewer) (Status, error)
	Nodes(Viewer) ([]Node, error)
	Devices(Viewer) ([]Device, error)
	Objects(Viewer, Page) (Part[object.Info], error)
	Names(Viewer, Page) (Part[Name], error)
	Sessions(Viewer) ([]Session, error)
	// Commands is what a session has in flight. It asks the session's workers, and waits for a second at most.
	Commands(v Viewer, session uint64) (Commands, error)
	Workers(Viewer) ([]Worker, error)
	Segments(Viewer) ([]Segment, error)
	Raft(Viewer) (raftnode.Status, error)
	Leases(Viewer) ([]leases.Status, error) // those that have devices, then those that wait
	Streams(Viewer, Page) (Part[object.StreamInfo], error)
	Links(Viewer) ([]Link, error)
	Settings(Viewer) ([]Setting, error)
	History(Viewer) (History, error)
	Metrics(Viewer) ([]Metric, error)

	// These are for those who administer the daemon; others get ErrPermission.
	Tenants(Viewer, Page) (Part[Tenant], error)           // by name
	Tokens(Viewer, Page) (Part[Token], error)             // the oldest first; Prefix is of the tenant
	Certificates(Viewer, Page) (Part[Certificate], error) // by serial number; Prefix is of the name
	// Audit is this node's, or all nodes', the oldest first; Prefix is of What. It reads files, and waits for nodes.
	Audit(Viewer, Page) (Part[audit.Event], error)

	Object(Viewer, object.ID) (object.Info, error)
	Open(Viewer, object.ID) (Data, error)
	// Changes follows what changes from the place on that an earlier Reader gave; "" is now. done lets it go.
	// Errors: ErrBusy, ErrQuota: too many follow already.
	Changes(v Viewer, place string) (r *changes.Reader, done func(), err error)
	Waiting() []string // what the node waits for before it serves clients; strangers may know it
}

// Status is the node in a few lines.
type Status struct {
	Version       string    `json:"version"`
	Node          string    `json:"node"` // identifier
	Name          string    `json:"name"`
	Incarnation   string    `json:"incarnation"`
	Started       time.Time `json:"started"`
	CapacityBytes uint64    `json:"capacity_bytes"`
	UsedBytes     uint64    `json:"used_bytes"`
	Objects       int       `json:"objects"`
	Sessions      int       `json:"sessions"`
	Workers       int       `json:"workers"`
	Bounds        any       `json:"bounds,omitempty"` // what workers and tenants may take, as in tendril status
	Notes         []string  `json:"notes,omitempty"`  // fallbacks in use, and why nothing better
}

// Node is a member of the cluster.
type Node struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Incarnation string    `json:"incarnation"`
	Client      []string  `json:"client_addresses"`
	Peer        []string  `json:"peer_addresses"`
	Version     string    `json:"version"`
	Joined      time.Time `json:"joined"`
	Self        bool      `json:"self"`
	Leader      bool      `json:"leader"`
	Voter       bool      `json:"voter"`
}

// Device is one OpenCL device of a node.
type Device struct {
	UUID        string `json:"uuid"`
	Node        string `json:"node"`
	Name        string `json:"name"`
	Type        string `json:"type"`
	Vendor      string `json:"vendor"`
	Driver      string `json:"driver"`
	Version     string `json:"version"`
	MemoryBytes uint64 `json:"memory_bytes"`
	Units       uint32 `json:"compute_units"`
	Sessions    int    `json:"sessions"`        // of this node that are shown it, and that the viewer may see
	Owner       string `json:"owner,omitempty"` // the tenant that leases it; "": none does, as far as this node knows
}

// Name is a published name.
type Name struct {
	Tenant    string    `json:"tenant"`
	Name      string    `json:"name"`
	Object    string    `json:"object"`
	SizeBytes uint64    `json:"size_bytes"`
	Epoch     uint64    `json:"epoch"`
	Replicas  []string  `json:"replicas"` // nodes
	Created   time.Time `json:"created"`
}

// Session is a program that uses forwarded devices.
type Session struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"`
	Program   string    `json:"program"`
	PID       int       `json:"pid,omitempty"`
	Peer      string    `json:"peer,omitempty"` // address, for remote ones
	Transport string    `json:"transport"`      // how data flows, and why not better
	Devices   []string  `json:"devices"`        // UUIDs: what its program is shown of this node
	Workers   []string  `json:"workers"`
	Bytes     uint64    `json:"bytes"` // of the devices' own memory that its workers have reserved
	Started   time.Time `json:"started"`
}

// Commands is what a session's workers say that they do. Each list is bounded.
type Commands struct {
	Session  string         `json:"session"`
	InFlight []Command      `json:"in_flight"` // of each worker the oldest first
	More     uint64         `json:"more"`      // in flight, and not listed
	Last     []EndedCommand `json:"last"`      // since somebody looked; of each worker the newest first
	Sums     []CommandSum   `json:"sums"`      // of all that ended; of each worker those that took most first
	Calls    []DriverCall   `json:"calls"`     // of the driver, that have not come back
	Notes    []string       `json:"notes"`     // what could not be learnt, and why
}

// Command is an OpenCL command that has not ended.
type Command struct {
	Worker     string  `json:"worker"`
	Queue      uint64  `json:"queue"`
	Device     string  `json:"device,omitempty"` // UUID; none: a sub-device
	Kind       string  `json:"kind"`             // as in tendril trace
	Kernel     string  `json:"kernel,omitempty"`
	State      string  `json:"state"` // queued (in the worker), giving (the driver is being given it), submitted, running
	AgeSeconds float64 `json:"age_seconds"`
}

// EndedCommand is one that has ended. What was seen to end together shares its time.
type EndedCommand struct {
	Worker     string  `json:"worker"`
	Queue      uint64  `json:"queue"`
	Device     string  `json:"device,omitempty"`
	Kind       string  `json:"kind"`
	Kernel     string  `json:"kernel,omitempty"`
	Status     int32   `json:"status"`  // 0, or OpenCL's error code
	Seconds    float64 `json:"seconds"` // from when the driver was given it, or the end before it, to its end
	AgoSeconds float64 `json:"ago_seconds"`
}

// CommandSum is how many commands of a kind, or launches of a kernel, ended, and how long they took.
type CommandSum struct {
	Worker  string  `json:"worker"`
	Kind    string  `json:"kind"`
	Kernel  string  `json:"kernel,omitempty"`
	Count   uint64  `json:"count"`
	Failed  uint64  `json:"failed"`
	Timed   uint64  `json:"timed"`   // of them: those that ended since somebody looked, and until a minute after
	Seconds float64 `json:"seconds"` // that these took
}

// DriverCall is a call of the driver in which a worker is, for some time.
type DriverCall struct {
	Worker  string  `json:"worker"`
	PID     int     `json:"pid"`
	What    string  `json:"what"`
	Queue   uint64  `json:"queue,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Worker is a process that runs a driver.
type Worker struct {
	ID       string    `json:"id"`
	PID      int       `json:"pid"`
	Platform string    `json:"platform"`
	Session  string    `json:"session,omitempty"` // "" = kept warm
	State    string    `json:"state"`
	Started  time.Time `json:"started"`

	DeviceBytes uint64 `json:"device_bytes"` // reserved of its devices' own memory
}

// Segment is a piece of shared memory.
type Segment struct {
	ID        uint64 `json:"id"`
	Tenant    string `json:"tenant"`
	Bytes     uint64 `json:"bytes"`      // charged
	UsedBytes uint64 `json:"used_bytes"` // of the objects in it
	Objects   int    `json:"objects"`
	Sealed    bool   `json:"sealed"`
	Readers   int    `json:"readers"` // connections that have it, its writer among them
	Session   bool   `json:"session"` // the memory of an OpenCL program
	Idle      bool   `json:"idle"`    // empty, kept for its writer
	Leaving   bool   `json:"leaving"` // of no use, but some connection has not let go
}

// Kinds of links.
const (
	NodeLink    = "node"    // from this node to another one
	SessionLink = "session" // from a program to its workers here
	WorkerLink  = "worker"  // between two workers of one program
)

// Link is one way that data takes, what it goes over now, and why that is nothing better.
type Link struct {
	Kind      string  `json:"kind"` // node, session or worker
	With      string  `json:"with"` // a node's ID, a program, or a worker as its program names it
	Name      string  `json:"name,omitempty"`
	Tenant    string  `json:"tenant,omitempty"`  // of a session
	Session   string  `json:"session,omitempty"` // the same
	Address   string  `json:"address,omitempty"` // of the other end, where it is on another machine
	Up        bool    `json:"up"`
	Transport string  `json:"transport"`
	Why       string  `json:"why,omitempty"`              // it is not up, or nothing better is in use
	Latency   float64 `json:"latency_seconds,omitempty"`  // one way, the least that was seen; absent: not known
	Bandwidth float64 `json:"bytes_per_second,omitempty"` // of what came lately; absent: nothing did
	Transfers int     `json:"transfers,omitempty"`        // objects on their way here over it

	Since time.Time `json:"since,omitzero"` // it is up or not
}

// The kinds of events; changes.Missed is one more.
const (
	ObjectEvent  = "object"
	NameEvent    = "name"
	SessionEvent = "session"
	LeaseEvent   = "lease"
	ClusterEvent = "cluster"
)

// Event is something that changed: what it is now, or that it is gone.
type Event struct {
	Change    string    `json:"change"`         // what became of it; of objects and their names as in tendril watch
	ID        string    `json:"id,omitempty"`   // of the object, session, lease or node
	Name      string    `json:"name,omitempty"` // of the object or node; a session's or lease's program
	Tenant    string    `json:"tenant,omitempty"`
	SizeBytes uint64    `json:"size_bytes,omitempty"`
	Look      []string  `json:"look,omitempty"` // where to look for what some events were missed of
	At        time.Time `json:"at,omitzero"`
}

// Setting is one line of the configuration in force.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // default, a file, the environment or a flag
}

// History is the last hour, or less where the node is younger.
type History struct {
	StepSeconds float64     `json:"step_seconds"` // between two samples
	Times       []time.Time `json:"times"`        // of the samples, the oldest first
	Series      []Series    `json:"series"`
}

// Series is one curve of History.
type Series struct {
	Name   string    `json:"name"`            // its unit is its end: _bytes, _per_second; else a number of things
	By     string    `json:"by,omitempty"`    // kind or tenant: what Label is
	Label  string    `json:"label,omitempty"` // a kind of memory, or a tenant
	Values []float64 `json:"values"`          // as many as History.Times
}

// Metric is one family of samples.
type Metric struct {
	Name    string // [a-zA-Z_:][a-zA-Z0-9_:]*; a counter's ends in _total
	Help    string
	Counter bool // else a gauge
	Samples []Sample
	Timed   []Timed // not nil: a histogram, whose name ends in _seconds; it has no Samples
}

// Timed is how many things took how long. Labels are names and values in turn.
type Timed struct {
	Labels []string
	Took   timing.Counted
}

// Sample is one value. Labels are names and values in turn.
type Sample struct {
	Labels []string
	Value  float64
}
