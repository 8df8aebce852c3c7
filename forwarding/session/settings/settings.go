// Package settings holds what a session may be told before it starts: which daemons it reaches, which devices it shows,
// how long it waits. FromEnv reads all of it from the program's environment, which is the program's own and not
// checked: what is no value is the default.
package settings

import (
	"time"

	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
)

// Config says how a Driver reaches its daemon. The zero value has no way to: Dial must be set.
type Config struct {
	// connects to the daemon; called once, at the first question for platforms
	Dial       func() (node.Control, error)
	Servers    []Server      // daemons of other machines, in place of Dial; each gives platforms of its own
	Nodes      bool          // the devices of the other nodes of a daemon's cluster, too
	Lanes      int           // bulk lanes to a worker on another machine; 0: by the number of cores
	Plaintext  bool          // lanes without TLS, where the other machine allows it
	NoCompress bool          // what lanes carry is never packed
	Dispatch   uintptr       // address of the ICD dispatch table, the first word of every object
	Version    string        // of this library, told to the daemon
	Program    string        // told to the worker, for status
	Selector   string        // which devices are shown, see devices.ParseSelector
	Lease      string        // what TENDRIL_LEASE takes, see lease.Parse
	LeaseWait  time.Duration // for them to be free; 0: not at all
	Publish    string        // "" or a name: what the program reads back whole becomes the object of that name
	// of what is published: "host", "cuda", "opencl", or "": host memory, but cuda where no memory is shared with the
	// node
	PublishKind string
	Spin        time.Duration // how long a waiting caller polls before it sleeps
	RemoteSpin  time.Duration // the same where the worker is on another machine
	Resume      time.Duration // how long a session waits for a connection that was lost; 0: not at all
	// how long another machine may say nothing before a connection counts as lost; 0: as the kernel has it
	Silence    time.Duration
	NoPeers    bool              // contexts that span workers use no links between these
	KernelTime time.Duration     // that one command may run on its device, 0: no bound of the program's own
	BuildTime  time.Duration     // the same for one build
	Disabled   bool              // inside a worker: no platform
	Log        func(line string) // one line for the person at the terminal
	Print      func(data []byte) // what kernels print
	Env        map[string]string // driver variables of the program, for the session
	Trace      *trace.Writer     // nil: no trace; the caller closes it after the Driver
	Counters   *trace.Counters   // round trips by cause; nil: the Driver's own
}

// Server is one daemon that a process was pointed to, in place of its own node's.
type Server struct {
	Name string // HOST:PORT or ssh://…, for the person at the terminal
	Dial func() (node.Control, error)
}
