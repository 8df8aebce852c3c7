// Package workers finds the OpenCL drivers of this machine and runs them in processes of their own.
//
// The daemon loads no driver. Each driver found (an .icd file) is probed once in a process that may crash or hang
// without harm, and each (session, platform) gets one worker process that serves it. Workers with their driver loaded
// are kept warm, because loading is the slow part. A worker is told its session over its control socket
// (forwarding/clwire/PROTOCOL.md, "Worker control"), gets its end of the data socket and the ring, and from then on
// talks to its client alone.
//
// Trust: nothing that a probe or a worker says is believed beyond its form and length; after the assignment, when
// tenant code may run in it, a worker is not listened to at all. A worker is started in a PID namespace of its own
// where the system allows it, in a session and process group of its own, which its sandbox lets nothing leave, as a
// user that is the tenant's alone when the daemon is root, with a short environment, and gets only the descriptors 0
// to 3.
//
// Life: every process is reaped by the goroutine that waits for it, which first kills what is left of its group; in a
// PID namespace nothing is left then, since its first process is the last to end. Workers die with the daemon
// (PDEATHSIG, bound to the spawner's locked thread, and not to be put off from inside the sandbox), with their session,
// or by themselves. Close kills all and joins every goroutine.
//
// Locks: Pool.mu guards everything in a Pool; process.mu guards one process's number against its own reuse, and is
// taken under Pool.mu at times, never the other way round. guard.mu is a leaf, taken under process.mu at a process's
// end. Nothing blocks under any of them, except a write to a guard that does not read: guardLimit, once.
package workers

import (
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"tendril/forwarding/clwire"
)

// Options says how a Pool runs its workers. All fields but Args are needed; Validate is the configuration's business
// (daemon.Config).
type Options struct {
	// the tendril binary; "/proc/self/exe" survives its replacement on disk and directories closed to workers
	Executable string
	Args       []string      // put before the verb; for tests
	Node       string        // the node's identifier, for devices that have no UUID of their own
	Vendors    []string      // directories of *.icd files
	StateDir   string        // where the users of tenants' workers are kept
	IDs        IDRange       // that tenants' workers run as when the daemon is root
	Claims     string        // ClaimsDir, where the daemons of one machine agree on them; "" = they do not
	Limits     Limits        // of workers and of tenants
	Group      string        // directory of the cgroup that the daemon divides; "" = none
	NoGroup    string        // why there is none
	LimitsLook time.Duration // between two looks at those that only the daemon keeps; 0 = 500 ms
	// directory under which each tenant's caches are made; workers' users must be able to reach it
	CacheRoot  string
	CacheBytes uint64        // what one tenant's may take on disk; 0 = as much as there is
	CacheLook  time.Duration // between two looks at that; 0 = 5 s
	Warm       int           // workers kept ready, a platform; negative = none
	WarmTime   time.Duration // without a session, after which none is kept ready until the next; 0 = they stay
	Max        int           // workers serving at one time
	Wait       time.Duration // for one to become free; 0 = not at all
	// of devices' own memory, for one tenant's workers; 0, or nil = no bound. It is called under a lock, and waits for
	// nothing
	DeviceBytes  func(tenant string) uint64
	SessionBytes uint64 // of each GPU's memory, that a session's driver takes; 0 = sessions are not admitted by it
	// what objects have of a GPU's memory, in bytes, once those that nobody uses have made way for a tenant where that
	// is more than most; nil: nothing. It may wait for the driver
	Objects func(tenant, uuid string, most uint64) (bytes uint64)
	// holds one when memory of objects may have become free on a GPU; nil: nobody says
	GPURoom <-chan struct{}
	// what CUDA says of this node's GPUs; nil: nothing. It may wait for the driver
	GPUs func() ([]clwire.KeeperDevice, error)
	// new memory of a GPU, which the caller owns, to try its OpenCL driver with; nil: there is none. It may wait for
	// the driver. Errors: object.ErrUnsupported (no object lies on that GPU), others
	GPUMemory func(uuid string, bytes uint64) (*os.File, error)
	// a probe has no more questions of these two; nil: nobody wants to know
	GPUsDone     func()
	KernelTime   time.Duration // that one command may run on its device; 0 = no bound
	BuildTime    time.Duration // that one build may take; 0 = no bound
	NoInPlace    bool          // no device computes on shared memory, whatever it could
	Devices      Choice        // which devices are offered
	ProbeTimeout time.Duration // for one driver to be probed
	StartTimeout time.Duration // for one worker to load its driver, or to get ready for another machine
	Log          logrus.FieldLogger

	isolations []isolation // nil: isolations(); for tests
	gpus       func() int  // nil: nvidiaGPUs; for tests
}

// Platform is one platform of a probed driver that works. It is immutable, and stays usable by sessions that hold it
// when a later probe replaces it.
type Platform struct {
	Driver   Driver
	Name     string // CL_PLATFORM_NAME
	Snapshot clwire.PlatformSnapshot
	Places   []int // of its devices in the driver's list, where some are hidden; nil: all are there
}

// DriverState is where a driver stands.
type DriverState string

// The states of a driver.
const (
	DriverProbing DriverState = "probing"
	DriverReady   DriverState = "ready"
	DriverFailed  DriverState = "failed"
)

// DriverStatus is one driver in `tendril status`.
type DriverStatus struct {
	ICD       string      `json:"icd"`
	Library   string      `json:"library"`
	State     DriverState `json:"state"`
	Error     string      `json:"error,omitempty"`
	Platforms []string    `json:"platforms,omitempty"`
	Devices   int         `json:"devices"` // of all its platforms
}

// Status is one worker process in `tendril status`.
type Status struct {
	ID          uint64    `json:"id,omitempty"` // 0 while warm
	PID         int       `json:"pid"`
	State       string    `json:"state"` // starting, warm, serving, ending
	Platform    string    `json:"platform"`
	Tenant      string    `json:"tenant"`
	UID         uint32    `json:"uid"` // that the process runs as
	Session     uint64    `json:"session,omitempty"`
	Since       time.Time `json:"since"` // its start
	MemoryBytes uint64    `json:"memory_bytes"`
	// of it and all that it started, without what it shares; at the last look
	OwnBytes    uint64            `json:"own_bytes"`
	Processes   int               `json:"processes"`    // of the same, threads too
	DeviceBytes uint64            `json:"device_bytes"` // reserved of its devices' own memory
	Fallbacks   []clwire.Fallback `json:"fallbacks,omitempty"`
	// by its client and it, where their link is slow and something was compressed
	Moved *clwire.Moved `json:"moved,omitempty"`
}
