package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tendril/forwarding/session/node"
)

// DefaultSpin is how long a waiting caller polls before it sleeps: waking an idle core takes some 35 µs.
const DefaultSpin = 60 * time.Microsecond

// DefaultRemoteSpin is the same for a worker that is reached over a network: an answer over TLS and loopback takes
// longer than DefaultSpin, so that every poll would be in vain (measured, kernel and clFinish on 2 cores: 90 µs with
// 60, 50 with 200).
const DefaultRemoteSpin = 200 * time.Microsecond

// maxSpin bounds what a program's environment may ask for.
const maxSpin = time.Second

// FromEnv reads the configuration of a driver library from the environment. getenv is os.Getenv.
//
//	TENDRIL_SOCKET   the daemon's socket; default: the first of ipc.Sockets where one answers
//	TENDRIL_DEVICES  which devices are shown, and in which order: see devices.ParseSelector
//	TENDRIL_SPIN_US  how long a waiting call polls before it sleeps, in µs; 0: not at all
//	TENDRIL_PUBLISH  a name: the buffer that the program reads back whole becomes the store's object of that name
//	TENDRIL_PUBLISH_KIND  where that lies: host, or cuda for the memory of the GPU; default: host, with a server cuda
//	TENDRIL_SERVER   daemons of other machines, commas between them: their devices, in place of this node's;
//	                 "local" among them is this node's (TENDRIL_SOCKET), as is the path of a socket
//	TENDRIL_NODES    1: the devices of all nodes of the daemon's cluster
//	TENDRIL_PLATFORMS  read by the driver library (package span): native, node or one
//	TENDRIL_PLAINTEXT  1: data connections to them without TLS, where they allow it
//	TENDRIL_RESUME   how long a session waits for a connection that was lost: seconds, 0 for not at all,
//	                 "block" for as long as the daemon keeps it; default 60
//	TENDRIL_DEADLINE seconds that another machine may say nothing before a connection to it counts as lost; default 10
//	TENDRIL_LANES    how many data connections carry large payloads, 1 to 7; default: by the number of cores
//	TENDRIL_COMPRESS off: payload is never compressed; otherwise it is where a connection is slower than that
//	TENDRIL_PEERS    off: contexts that span workers use no links between these
//	TENDRIL_KERNEL_TIME, TENDRIL_BUILD_TIME  how long one command may run on its device, and one
//	                 build, such as 10s: beyond it the worker is ended. The daemon's own limits hold all the same
//	TENDRIL_LEASE    devices for this program alone: how many of those that match, "all", "node" for all of one
//	                 node, or "token:" and the token of a lease that is there (tendril lease)
//	TENDRIL_LEASE_WAIT  how long it waits for them: seconds, or "block"; default: not at all
//	TENDRIL_WORKER   1 inside a worker: no platform
func FromEnv(getenv func(string) string) Config {
	c := Config{
		Selector: getenv("TENDRIL_DEVICES"),
		Publish:  getenv("TENDRIL_PUBLISH"), PublishKind: getenv("TENDRIL_PUBLISH_KIND"),
		Disabled: getenv("TENDRIL_WORKER") == "1",
		Spin:     spinOf(getenv("TENDRIL_SPIN_US"), DefaultSpin),
		Env:      driverVariables(os.Environ()),
	}
	c.RemoteSpin = spinOf(getenv("TENDRIL_SPIN_US"), DefaultRemoteSpin)
	c.Nodes = getenv("TENDRIL_NODES") == "1"
	c.Plaintext = getenv("TENDRIL_PLAINTEXT") == "1"
	c.NoCompress = getenv("TENDRIL_COMPRESS") == "off"
	c.NoPeers = getenv("TENDRIL_PEERS") == "off"
	c.KernelTime, c.BuildTime = limitOf(getenv("TENDRIL_KERNEL_TIME")), limitOf(getenv("TENDRIL_BUILD_TIME"))
	c.Lanes, _ = strconv.Atoi(getenv("TENDRIL_LANES")) // anything else: the default
	c.Lease = getenv("TENDRIL_LEASE")
	c.LeaseWait = LeaseWait(getenv("TENDRIL_LEASE_WAIT"))
	c.Resume = patienceOf(getenv("TENDRIL_RESUME"))
	c.Silence = secondsOf(getenv("TENDRIL_DEADLINE"), defaultSilence)
	socket := getenv("TENDRIL_SOCKET")
	for _, name := range strings.FieldsFunc(getenv("TENDRIL_SERVER"), func(r rune) bool { return r == ',' }) {
		c.Servers = append(c.Servers,
			Server{name, func() (node.Control, error) { return dialNamed(name, socket, c.Program, c.Silence) }})
	}
	c.Dial = func() (node.Control, error) { return node.Dial(socket, c.Program) }
	return c
}

// LocalServer names this node's daemon in a list of servers.
const LocalServer = "local"

func dialNamed(name, socket, program string, silence time.Duration) (node.Control, error) {
	switch {
	case name == LocalServer:
		return node.Dial(socket, program)
	case filepath.IsAbs(name):
		return node.Dial(name, program)
	}
	return node.DialServer(name, program, silence)
}

// Defaults of TENDRIL_RESUME and TENDRIL_DEADLINE.
const (
	defaultPatience = 60 * time.Second
	defaultSilence  = 10 * time.Second
)

// Blocking is the patience of who waits as long as there is anything to wait for.
const Blocking = 24 * time.Hour

func patienceOf(text string) time.Duration {
	if text == "block" {
		return Blocking
	}
	return secondsOf(text, defaultPatience)
}

// ValidPatience says whether a text is one that TENDRIL_RESUME takes, "" among them.
func ValidPatience(text string) bool {
	return text == "" || text == "block" || secondsOf(text, -1) >= 0
}

func secondsOf(text string, otherwise time.Duration) time.Duration {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0) {
		return otherwise
	}
	return min(time.Duration(min(seconds, Blocking.Seconds())*float64(time.Second)), Blocking)
}

// limitOf reads a duration; anything else is no limit.
func limitOf(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return max(d, 0)
}

func spinOf(text string, otherwise time.Duration) time.Duration {
	us, err := strconv.ParseUint(text, 10, 32)
	if text == "" || err != nil {
		return otherwise
	}
	return min(time.Duration(us)*time.Microsecond, maxSpin)
}

// driverPrefixes are the variables that drivers read; the daemon lets an allow-list of its own through.
var driverPrefixes = []string{"POCL_", "CL_", "CUDA_", "OCL_", "GPU_", "LP_"}

const maxDriverVariables = 64

func driverVariables(environ []string) map[string]string {
	vars := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		for _, prefix := range driverPrefixes {
			if strings.HasPrefix(name, prefix) && len(entry) < 1024 && len(vars) < maxDriverVariables {
				vars[name] = value
			}
		}
	}
	return vars
}

// String says what a configuration asks for, for logs.
func (c Config) String() string {
	return fmt.Sprintf("devices=%q spin=%v publish=%q", c.Selector, c.Spin, c.Publish)
}

// LeaseWait reads TENDRIL_LEASE_WAIT: seconds, or "block" for as long as it takes. Anything else: not at all.
func LeaseWait(text string) time.Duration {
	if text == "block" {
		return 100 * 365 * 24 * time.Hour
	}
	return secondsOf(text, 0)
}
