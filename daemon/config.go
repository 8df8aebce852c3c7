package daemon

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"tendril/cluster"
	"tendril/daemon/tenancy"
	"tendril/daemon/workers"
)

// DefaultConnections is how many connections the front door has room for.
const DefaultConnections = 4096

// minTransferRate is the least bound of bytes a second from other nodes: 32 chunks may wait for each other, four
// connections of each of eight objects, and the giver waits 30 s for each.
const minTransferRate = 2 << 20

// Limits of the configuration.
const (
	MinCapacityBytes = 16 << 20  // below this not even one ordinary segment fits
	MaxCapacityBytes = 1 << 50   // no machine has more; above it a unit was mistyped
	MinKernelCache   = 16 << 20  // some drivers write as much for one program
	MaxConnections   = 1 << 20   // each takes some KiB and one to three descriptors
	minProcesses     = 64        // of a worker, threads among them
	minFiles         = 256       // of a worker
	minWorkerBytes   = 128 << 20 // of a worker: what a driver and its compiler take before anything runs
	MaxWarmWorkers   = 16        // a platform: each holds a loaded driver
	maxUnixPathBytes = 107       // sun_path less its terminator, unix(7)
	MaxWait          = time.Hour // for every time limit below
)

// Config is what a daemon is started with. The zero value of every field means the default that its comment names;
// Defaults fills them in, Validate checks all of them. A Config is not altered once a Daemon was made of it.
type Config struct {
	Socket string // path of the unix socket; "" = ipc.DefaultSocket()
	// StateDir has identity, lock and kernel caches; "" = /var/lib/tendril for root, else $XDG_STATE_HOME/tendril or
	// ~/.local/state/tendril.
	StateDir      string
	NodeName      string // "" = the name on file, at first start the host's
	CapacityBytes uint64 // the store's; 0 = half of the memory that the machine and the cgroup allow
	QuotaBytes    uint64 // what one tenant may hold of the store; 0 = all of it
	// of objects on disk, under StateDir; 0 = four times the capacity, at most half of what is free there; -1 = none
	SpillBytes int64
	// what one tenant's sessions may take of the devices' own memory, and its objects of each GPU's; 0 = all of it
	QuotaDevice uint64
	Devices     []string // which are offered: types, indices, UUIDs (workers.ParseChoice); nil = all
	// what one tenant's connections keep of each GPU's memory for their next objects; 0 = 1 GiB, -1 = none
	IdleDevice int64
	// what a session's driver takes of each GPU, in bytes: as many sessions are admitted as fit; 0 = 512 MiB, -1 = any
	SessionDevice int64

	PinBytes   int64  // of the store's memory that stays pinned for copies to GPUs; 0 = half of the capacity, -1 = none
	CUDADriver string // path or name; "" = libcuda.so.1 where there is an NVIDIA GPU; "none": no objects on GPUs
	QuotaSpill uint64 // what one tenant may have on disk; 0 = all of it
	NoIndex    bool   // local processes are offered no index in shared memory
	// RequestBytes of the daemon's own memory may be held by requests that wait and by replies that nobody has read;
	// 0 = an eighth of the capacity, 64 to 512 MiB.
	RequestBytes uint64
	Connections  int // open at the front door at a time; 0 = DefaultConnections
	TenantConns  int // of them one tenant's; 0 = half of them
	QuotaObjects int // how many objects one tenant may have; 0 = as many as there is memory for
	// how many segments of memory one tenant may have, each a descriptor of the daemon's; 0 = half of those there may
	// be (Daemon.segmentFiles)
	QuotaSegments int
	HighBytes     uint64        // above it memory is given back ahead of need; 0 = 7/8 of the capacity
	ScrubEvery    time.Duration // between two scrubs of all objects; 0 = none
	ScrubRate     uint64        // bytes a second that those read; 0 = 64 MiB
	TransferRate  uint64        // bytes a second that come from other nodes' objects; 0 = as can, else ≥ 2 MiB
	// memory kept populated for new segments; 0 = the less of 256 MiB and a sixteenth of the capacity, -1 = none
	WarmBytes int64
	NoInPlace bool // devices that compute on shared memory are treated as those with memory of their own
	NoHuge    bool // reserved huge pages are left to other programs
	// directories of *.icd files; nil = $OCL_ICD_VENDORS where that is a directory, else /etc/OpenCL/vendors
	Vendors      []string
	KernelCache  uint64          // what one tenant's compiled kernels and temporary files may take on disk; 0 = 4 GiB
	KernelTime   time.Duration   // that one command may run on its device; 0 = no bound
	BuildTime    time.Duration   // that one build may take; 0 = no bound
	WarmWorkers  int             // workers kept with their driver loaded, a platform; 0 = 1, -1 = none
	WorkerIDs    workers.IDRange // users of tenants' workers where the daemon is root; zero: workers.OwnIDs()
	Workers      workers.Limits  // bounds of workers and tenants; fields of 0: see workerLimits; negative: none
	WarmTime     time.Duration   // without a session, after which no worker is kept ready; 0 = 10 min
	WorkerWait   time.Duration   // for a worker to become free where too many serve; 0 = 5 s, negative: not at all
	MaxWorkers   int             // serving at one time on this node; 0 = 256
	ProbeTimeout time.Duration   // for one driver to say what it has; 0 = 30 s
	StartTimeout time.Duration   // for one worker to load its driver, or to get ready for another machine; 0 = 60 s
	LogLevel     string          // error, warn, info or debug; "" = info

	// host:port of the front door for other machines, "none" for none; "" = DefaultListen, given up where that is taken
	Listen string
	// how long a session of another machine waits for its client; 0 = 60 s, negative: not at all
	ResumeTime time.Duration
	Deadline   time.Duration // how long its client's machine may say nothing; 0 = 10 s
	LeaseTime  time.Duration // that devices may be leased; 0 = no bound
	LeaseIdle  time.Duration // that leased devices may have nothing to do; 0 = no bound

	PlaintextPeers []string // addresses or networks whose sessions may do without TLS, besides this machine
	Compress       string   // "auto" or "off": whether what sessions move over slow links is compressed; "" = auto
	TrustRemote    bool     // programs of other machines are served, although workers have no sandbox here
	HTTP           string   // host:port of inspection over TCP; "" = over its unix socket only
	HTTPHosts      []string // names that HTTP clients may use for this node
	HTTPMetrics    string   // "key", or "open": /metrics needs none, which HTTP on loopback alone may be; "" = key
	Tenants        []tenancy.Tenant

	origins map[string]string // key → where its value came from; absent = default
}

// DefaultListen is where the front door waits for TCP without configuration.
const DefaultListen = "127.0.0.1:7433"

// Lookup finds an environment variable (os.LookupEnv has this form).
type Lookup func(name string) (value string, set bool)

// ParseBytes reads a number of bytes: "1073741824", "1GiB", "1.5g" (powers of 1024), "1GB" (powers of 1000).
func ParseBytes(text string) (uint64, error) {
	t := strings.TrimSpace(text)
	if n := len(t); n > 0 && strings.ContainsRune("kKmMgGtT", rune(t[n-1])) {
		t += "iB"
	}
	b, err := humanize.ParseBytes(t)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size such as 512MiB or 8g", text)
	}
	return b, nil
}

// parseWarm reads a size, or "none" (and "0") for no warm memory at all.
func parseWarm(text string) (int64, error) {
	if text == "none" || text == "0" {
		return -1, nil
	}
	n, err := ParseBytes(text)
	if err == nil && n > MaxCapacityBytes {
		err = fmt.Errorf("%q: want at most %s", text, sizeText(MaxCapacityBytes))
	}
	return int64(n), err
}

// Defaults returns c with every zero field filled in from the machine: its user, its memory, lookup's environment.
// It fails only where no default can be found (no home directory, no memory figures) and the field was not set.
func (c Config) Defaults(m Machine, lookup Lookup) (Config, error) {
	var faults []error
	if c.Socket == "" {
		c.Socket = m.Socket
	}
	if c.StateDir == "" {
		dir, err := defaultStateDir(m.UID, lookup)
		faults = append(faults, err)
		c.StateDir = dir
	}
	if c.CapacityBytes == 0 {
		if m.MemoryBytes == 0 {
			faults = append(faults, errors.New("the machine's memory is not known: set --capacity"))
		}
		c.CapacityBytes = m.MemoryBytes / 2
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = c.CapacityBytes
	}
	c.WarmBytes = orDefault(c.WarmBytes, int64(min(256<<20, c.CapacityBytes/16)))
	if c.Vendors == nil {
		c.Vendors = defaultVendors(lookup)
	}
	c.ScrubRate = orDefault(c.ScrubRate, 64<<20)
	c.IdleDevice = orDefault(c.IdleDevice, 1<<30)
	c.SessionDevice = orDefault(c.SessionDevice, 512<<20)
	c.PinBytes = orDefault(c.PinBytes, int64(c.CapacityBytes/2))
	c.KernelCache = orDefault(c.KernelCache, 4<<30)
	c.WarmWorkers = orDefault(c.WarmWorkers, 1)
	c.MaxWorkers = orDefault(c.MaxWorkers, 256)
	c.WorkerIDs = orDefault(c.WorkerIDs, workers.OwnIDs())
	c.WarmTime = orDefault(c.WarmTime, 10*time.Minute)
	c.WorkerWait = orDefault(c.WorkerWait, 5*time.Second)
	c.Workers = c.workerLimits(m)
	c.ProbeTimeout = orDefault(c.ProbeTimeout, 30*time.Second)
	c.StartTimeout = orDefault(c.StartTimeout, 60*time.Second)
	c.ResumeTime = orDefault(c.ResumeTime, 60*time.Second)
	c.Deadline = orDefault(c.Deadline, 10*time.Second)
	c.LogLevel = orDefault(c.LogLevel, "info")
	c.Compress = orDefault(c.Compress, auto)
	c.Listen = orDefault(c.Listen, DefaultListen)
	return c, errors.Join(faults...)
}

// workerLimits fills in what bounds workers. Threads count as processes: a driver of a CPU has one a processor, a
// compiler and the Go runtime some more. Where an enclosing cgroup bounds processes, a worker must leave most of them
// to others.
func (c Config) workerLimits(m Machine) workers.Limits {
	l := c.Workers
	worker, tenant := 256+8*runtime.NumCPU(), 32*(256+8*runtime.NumCPU())
	if m.Processes > 0 {
		worker, tenant = max(min(worker, m.Processes/4), minProcesses), min(tenant, m.Processes/2)
	}
	l.Processes = orDefault(l.Processes, worker)
	l.TenantProcesses = orDefault(l.TenantProcesses, max(tenant, l.Processes))
	if m.MemoryBytes > 0 {
		l.MemoryBytes = orDefault(l.MemoryBytes, max(int64(m.MemoryBytes/4), minWorkerBytes))
		l.TenantBytes = orDefault(l.TenantBytes, max(int64(m.MemoryBytes/8*3), l.MemoryBytes))
	}
	l.Files = orDefault(l.Files, 16384)
	l.FileBytes = orDefault(l.FileBytes, 1<<30)
	return l
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// defaultStateDir follows the XDG base directory specification for users other than root.
func defaultStateDir(uid int, lookup Lookup) (string, error) {
	if uid == 0 {
		return "/var/lib/tendril", nil
	}
	if dir, _ := lookup("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tendril"), nil
	}
	if home, _ := lookup("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "tendril"), nil
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME is set: set --state-dir")
}

// Validate names every fault of a configuration that Defaults has filled in: setting, value, and what is wanted.
func (c Config) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!filepath.IsAbs(c.Socket), "socket %q: want an absolute path", c.Socket)
	fault(len(c.Socket) > maxUnixPathBytes, "socket %s: its path has %d bytes, and a unix socket's has at most %d",
		c.Socket, len(c.Socket), maxUnixPathBytes)
	fault(!filepath.IsAbs(c.StateDir), "state-dir %q: want an absolute path", c.StateDir)
	if err := cluster.CheckName(c.NodeName); err != nil {
		faults = append(faults, err)
	}
	faults = append(faults, c.checkMemory()...)
	fault(c.TransferRate > 0 && c.TransferRate < minTransferRate, "transfer-rate %s: want at least %s, or none: a "+
		"connection on which a chunk takes more than 30 s is given up, and 32 chunks of 1 MiB may wait",
		humanize.IBytes(c.TransferRate), humanize.IBytes(minTransferRate))
	fault(c.QuotaObjects < 0, "quota-objects %d: want 0 (no limit) or more", c.QuotaObjects)
	fault(c.QuotaSegments < 0, "quota-segments %d: want 0 (the default) or more", c.QuotaSegments)
	fault(c.Connections < 0 || c.Connections > MaxConnections, "max-connections %d: want 1 to %d", c.Connections,
		MaxConnections)
	all := orDefault(c.Connections, DefaultConnections)
	fault(c.TenantConns < 0 || all > 0 && c.TenantConns > all-all/8,
		"tenant-connections %d: want 1 to %d: an eighth of all %d is for other tenants (max-connections)",
		c.TenantConns, all-all/8, all)
	for _, dir := range c.Vendors {
		fault(!filepath.IsAbs(dir), "vendors %q: want absolute paths", dir)
	}
	fault(c.WarmWorkers < -1 || c.WarmWorkers > MaxWarmWorkers, "warm-workers %d: want -1 (none) to %d",
		c.WarmWorkers, MaxWarmWorkers)
	fault(c.MaxWorkers < 1, "max-workers %d: want 1 or more", c.MaxWorkers)
	faults = append(faults, c.checkWorkers()...)
	for _, x := range []struct {
		key         string
		value       time.Duration
		least, most time.Duration
	}{
		{"warm-time", c.WarmTime, time.Second, 1000 * time.Hour},
		{"worker-wait", c.WorkerWait, -MaxWait, MaxWait},
		{"probe-timeout", c.ProbeTimeout, 1, MaxWait},
		{"start-timeout", c.StartTimeout, 1, MaxWait},
		{"resume-time", c.ResumeTime, -MaxWait, MaxWait},
		{"session-deadline", c.Deadline, time.Second, MaxWait},
	} {
		fault(x.value < x.least && x.least > 0, "%s %v: want %v or more", x.key, x.value, x.least)
		fault(x.value > x.most, "%s %v: want at most %v", x.key, x.value, x.most)
	}
	if _, err := workers.ParseChoice(c.Devices); err != nil {
		faults = append(faults, err)
	}
	fault(c.ScrubEvery < 0, "scrub-interval %v: want 0 (never) or more", c.ScrubEvery)
	fault(c.LeaseTime < 0, "lease-time %v: want 0 (no bound) or more", c.LeaseTime)
	fault(c.LeaseIdle != 0 && c.LeaseIdle < time.Second, "lease-idle %v: want 0 (no bound) or 1s or more", c.LeaseIdle)
	fault(c.KernelTime < 0, "kernel-time %v: want 0 (no bound) or more", c.KernelTime)
	fault(c.BuildTime < 0, "build-time %v: want 0 (no bound) or more", c.BuildTime)
	faults = append(faults, c.checkAddresses()...)
	switch c.LogLevel {
	case "error", "warn", "info", "debug":
	default:
		fault(true, "log-level %q: want error, warn, info or debug", c.LogLevel)
	}
	return errors.Join(faults...)
}

// sizeText is a size as people write it, with the bytes where it is not exact.
func sizeText(n uint64) string {
	text := humanize.IBytes(n)
	if same, err := humanize.ParseBytes(text); err == nil && same == n {
		return text
	}
	return fmt.Sprintf("%s (%d bytes)", text, n)
}

// checkMemory names the faults of the sizes of store, disk and caches.
func (c Config) checkMemory() (faults []error) {
	within := func(key string, n, least, most uint64, why string) {
		if n < least || n > most {
			faults = append(faults, fmt.Errorf("%s %s: want %s to %s%s", key, sizeText(n), sizeText(least), sizeText(most), why))
		}
	}
	const capacity = " (the capacity)"
	within("capacity", c.CapacityBytes, MinCapacityBytes, MaxCapacityBytes, "")
	within("quota", c.QuotaBytes, 1, c.CapacityBytes, capacity)
	within("high-water", c.HighBytes, 0, c.CapacityBytes, capacity)
	within("kernel-cache", c.KernelCache, MinKernelCache, math.MaxUint64, "")
	if c.RequestBytes != 0 {
		within("request-memory", c.RequestBytes, 16<<20, 1<<60, "")
	}
	if c.WarmBytes > 0 {
		within("warm-memory", uint64(c.WarmBytes), 0, c.CapacityBytes, capacity)
	}
	if c.PinBytes > 0 {
		within("pin-memory", uint64(c.PinBytes), 0, c.CapacityBytes, capacity)
	}
	if c.PinBytes < -1 {
		faults = append(faults, fmt.Errorf("pin-memory %d: want none, or a size", c.PinBytes))
	}
	if c.IdleDevice < -1 {
		faults = append(faults, fmt.Errorf("idle-device %d: want none, or a size", c.IdleDevice))
	}
	if c.SessionDevice < -1 {
		faults = append(faults, fmt.Errorf("session-device %d: want none, or a size", c.SessionDevice))
	}
	if c.WarmBytes < -1 {
		faults = append(faults, fmt.Errorf("warm-memory %d: want none, or a size", c.WarmBytes))
	}
	if c.SpillBytes < -1 {
		faults = append(faults, fmt.Errorf("spill %d: want none, or a size", c.SpillBytes))
	}
	return faults
}

// checkWorkers names the faults of workers' bounds. A bound below 0 is none.
func (c Config) checkWorkers() (faults []error) {
	number := func(key string, n, least int, why string) {
		if n > 0 && n < least {
			faults = append(faults, fmt.Errorf("%s %d: want %d or more: %s", key, n, least, why))
		}
	}
	bytes := func(key string, n, least int64, why string) {
		if n > 0 && n < least {
			faults = append(faults, fmt.Errorf("%s %s: want %s or more: %s", key, sizeText(uint64(n)),
				sizeText(uint64(least)), why))
		}
	}
	l := c.Workers
	number("worker-processes", l.Processes, minProcesses, "a driver's threads count")
	number("worker-files", l.Files, minFiles, "a driver and its compiler open as many")
	bytes("worker-memory", l.MemoryBytes, minWorkerBytes, "a driver and its compiler take as much")
	bytes("worker-file-size", l.FileBytes, 1<<20, "compiled kernels are as large")
	number("tenant-processes", l.TenantProcesses, l.Processes, "one worker may have them (worker-processes)")
	bytes("tenant-memory", l.TenantBytes, l.MemoryBytes, "one worker may have it (worker-memory)")
	return faults
}

// checkAddresses names the faults of what is listened on and who is named.
func (c Config) checkAddresses() (faults []error) {
	check := func(what, address string) {
		if _, port, err := net.SplitHostPort(address); err != nil {
			faults = append(faults, fmt.Errorf("%s %q: want host:port, such as 10.0.0.1:7433, or :7433 for all addresses", what,
				address))
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			faults = append(faults, fmt.Errorf("%s %q: want a port from 0 to 65535, not %q", what, address, port))
		}
	}
	if c.Listen != "none" {
		check("listen", c.Listen)
	}
	if c.HTTP != "" {
		check("http", c.HTTP)
	}
	switch c.HTTPMetrics {
	case "", metricsKey:
	case metricsOpen:
		if !Loopback(c.HTTP) {
			faults = append(faults, fmt.Errorf("http-metrics open with http %q: metrics without a key are for loopback alone: "+
				"take http = \"127.0.0.1:7434\", or scrape with a token (tendril token create --role metrics)", c.HTTP))
		}
	default:
		faults = append(faults, fmt.Errorf("http-metrics %q: want %s or %s", c.HTTPMetrics, metricsKey, metricsOpen))
	}
	if c.Compress != auto && c.Compress != compressOff {
		faults = append(faults, fmt.Errorf("compress %q: want %s or %s", c.Compress, auto, compressOff))
	}
	for _, p := range c.PlaintextPeers {
		if _, err := parsePrefix(p); err != nil {
			faults = append(faults,
				fmt.Errorf("plaintext-peers %q: want an address, or a network such as 10.0.0.0/8", p))
		}
	}
	if _, err := tenancy.NewTable(c.Tenants); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// Config.HTTPMetrics's words.
const (
	metricsKey  = "key"
	metricsOpen = "open"
)

// compressOff is Config.Compress's other word than auto.
const compressOff = "off"

// parsePrefix reads an address or a network.
func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// Loopback reports whether an address to listen on is reached from this machine alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
