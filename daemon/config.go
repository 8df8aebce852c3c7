package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"tendril/cluster"
)

// Limits of the configuration.
const (
	MinCapacityBytes = 16 << 20  // below this not even one ordinary segment fits
	MaxCapacityBytes = 1 << 50   // no machine has more; above it a unit was mistyped
	MaxWarmWorkers   = 16        // a platform: each holds a loaded driver
	maxUnixPathBytes = 107       // sun_path less its terminator, unix(7)
	MaxWait          = time.Hour // for every time limit below
)

// Config is what a daemon is started with. The zero value of every field means the default that its comment names;
// Defaults fills them in, Validate checks all of them. A Config is not altered once a Daemon was made of it.
type Config struct {
	Socket        string        // path of the unix socket; "" = ipc.DefaultSocket()
	StateDir      string        // identity, lock, kernel caches; "" = /var/lib/tendril for root, else $XDG_STATE_HOME/tendril or ~/.local/state/tendril
	NodeName      string        // "" = the name on file, at first start the host's
	CapacityBytes uint64        // the store's; 0 = half of the memory that the machine and the cgroup allow
	QuotaBytes    uint64        // what one tenant may hold of the store; 0 = all of it
	SpillBytes    int64         // of objects on disk, under StateDir; 0 = four times the capacity, at most half of what is free there; -1 = none
	QuotaSpill    uint64        // what one tenant may have on disk; 0 = all of it
	QuotaObjects  int           // how many objects one tenant may have; 0 = as many as there is memory for
	HighBytes     uint64        // above it memory is given back ahead of need; 0 = 7/8 of the capacity
	WarmBytes     int64         // memory kept populated for new segments; 0 = the less of 256 MiB and a sixteenth of the capacity, -1 = none
	Vendors       []string      // directories of *.icd files; nil = $OCL_ICD_VENDORS where that is a directory, else /etc/OpenCL/vendors
	WarmWorkers   int           // workers kept with their driver loaded, a platform; 0 = 1, -1 = none
	MaxWorkers    int           // serving at one time on this node; 0 = 256
	ProbeTimeout  time.Duration // for one driver to say what it has; 0 = 30 s
	StartTimeout  time.Duration // for one worker to load its driver; 0 = 60 s
	LogLevel      string        // error, warn, info or debug; "" = info
}

// Lookup finds an environment variable (os.LookupEnv has this form).
type Lookup func(name string) (value string, set bool)

// settings ties each environment variable and each flag to its field.
var settings = []struct {
	variable, flag string
	set            func(c *Config, value string) error
}{
	{"TENDRIL_SOCKET", "socket", func(c *Config, v string) error { c.Socket = v; return nil }},
	{"TENDRIL_STATE_DIR", "state-dir", func(c *Config, v string) error { c.StateDir = v; return nil }},
	{"TENDRIL_NODE_NAME", "name", func(c *Config, v string) error { c.NodeName = v; return nil }},
	{"TENDRIL_CAPACITY", "capacity", func(c *Config, v string) (err error) { c.CapacityBytes, err = ParseBytes(v); return }},
	{"TENDRIL_QUOTA", "quota", func(c *Config, v string) (err error) { c.QuotaBytes, err = ParseBytes(v); return }},
	{"TENDRIL_SPILL", "spill", func(c *Config, v string) (err error) { c.SpillBytes, err = parseWarm(v); return }},
	{"TENDRIL_QUOTA_SPILL", "quota-spill", func(c *Config, v string) (err error) { c.QuotaSpill, err = ParseBytes(v); return }},
	{"TENDRIL_QUOTA_OBJECTS", "quota-objects", func(c *Config, v string) (err error) { c.QuotaObjects, err = strconv.Atoi(v); return }},
	{"TENDRIL_HIGH_WATER", "high-water", func(c *Config, v string) (err error) { c.HighBytes, err = ParseBytes(v); return }},
	{"TENDRIL_WARM_MEMORY", "warm-memory", func(c *Config, v string) (err error) { c.WarmBytes, err = parseWarm(v); return }},
	{"TENDRIL_VENDORS", "vendors", func(c *Config, v string) error { c.Vendors = filepath.SplitList(v); return nil }},
	{"TENDRIL_WARM_WORKERS", "warm-workers", func(c *Config, v string) (err error) { c.WarmWorkers, err = strconv.Atoi(v); return }},
	{"TENDRIL_MAX_WORKERS", "max-workers", func(c *Config, v string) (err error) { c.MaxWorkers, err = strconv.Atoi(v); return }},
	{"TENDRIL_PROBE_TIMEOUT", "probe-timeout", func(c *Config, v string) (err error) { c.ProbeTimeout, err = time.ParseDuration(v); return }},
	{"TENDRIL_START_TIMEOUT", "start-timeout", func(c *Config, v string) (err error) { c.StartTimeout, err = time.ParseDuration(v); return }},
	{"TENDRIL_LOG_LEVEL", "log-level", func(c *Config, v string) error { c.LogLevel = v; return nil }},
}

// FromEnv takes what the TENDRIL_* variables say over c's fields; an empty variable counts as unset. It reports every variable
// that cannot be read, with its value, in one error, and takes the others.
func (c *Config) FromEnv(lookup Lookup) error {
	var faults []error
	for _, s := range settings {
		value, set := lookup(s.variable)
		if !set || value == "" {
			continue
		}
		if err := s.set(c, value); err != nil {
			faults = append(faults, fmt.Errorf("%s=%q: %w", s.variable, value, err))
		}
	}
	return errors.Join(faults...)
}

// FromFlags is FromEnv for the flags of a command line, by their names without dashes. It leaves out flags that were not written.
func (c *Config) FromFlags(written Lookup) error {
	var faults []error
	for _, s := range settings {
		value, set := written(s.flag)
		if !set {
			continue
		}
		if err := s.set(c, value); err != nil {
			faults = append(faults, fmt.Errorf("--%s %q: %w", s.flag, value, err))
		}
	}
	return errors.Join(faults...)
}

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
		err = fmt.Errorf("%q is above %d bytes", text, uint64(MaxCapacityBytes))
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
	c.WarmWorkers = orDefault(c.WarmWorkers, 1)
	c.MaxWorkers = orDefault(c.MaxWorkers, 256)
	c.ProbeTimeout = orDefault(c.ProbeTimeout, 30*time.Second)
	c.StartTimeout = orDefault(c.StartTimeout, 60*time.Second)
	c.LogLevel = orDefault(c.LogLevel, "info")
	return c, errors.Join(faults...)
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

// Validate names every fault of a configuration that Defaults has filled in, with its value.
func (c Config) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!filepath.IsAbs(c.Socket), "socket %q is not an absolute path", c.Socket)
	fault(len(c.Socket) > maxUnixPathBytes, "socket path of %d bytes is longer than the %d a unix socket allows: %s", len(c.Socket), maxUnixPathBytes, c.Socket)
	fault(!filepath.IsAbs(c.StateDir), "state directory %q is not an absolute path", c.StateDir)
	if err := cluster.CheckName(c.NodeName); err != nil {
		faults = append(faults, err)
	}
	fault(c.CapacityBytes < MinCapacityBytes, "capacity of %d bytes is below %d", c.CapacityBytes, MinCapacityBytes)
	fault(c.CapacityBytes > MaxCapacityBytes, "capacity of %d bytes is above %d", c.CapacityBytes, uint64(MaxCapacityBytes))
	fault(c.QuotaBytes == 0 || c.QuotaBytes > c.CapacityBytes, "quota of %d bytes is not between 1 and the capacity of %d", c.QuotaBytes, c.CapacityBytes)
	fault(c.SpillBytes < -1, "spill space of %d bytes: want none (-1) or more", c.SpillBytes)
	fault(c.QuotaObjects < 0, "a quota of %d objects is below 0", c.QuotaObjects)
	fault(c.HighBytes > c.CapacityBytes, "high-water mark of %d bytes is above the capacity of %d", c.HighBytes, c.CapacityBytes)
	fault(c.WarmBytes < -1 || c.WarmBytes > 0 && uint64(c.WarmBytes) > c.CapacityBytes, "warm memory of %d bytes is not between none (-1) and the capacity of %d", c.WarmBytes, c.CapacityBytes)
	for _, dir := range c.Vendors {
		fault(!filepath.IsAbs(dir), "vendors directory %q is not an absolute path", dir)
	}
	fault(c.WarmWorkers < -1 || c.WarmWorkers > MaxWarmWorkers, "%d warm workers is not between -1 and %d", c.WarmWorkers, MaxWarmWorkers)
	fault(c.MaxWorkers < 1, "at most %d workers: at least one is needed", c.MaxWorkers)
	fault(c.ProbeTimeout <= 0 || c.ProbeTimeout > MaxWait, "probe timeout %v is not between 1ns and %v", c.ProbeTimeout, MaxWait)
	fault(c.StartTimeout <= 0 || c.StartTimeout > MaxWait, "start timeout %v is not between 1ns and %v", c.StartTimeout, MaxWait)
	switch c.LogLevel {
	case "error", "warn", "info", "debug":
	default:
		fault(true, "log level %q is not error, warn, info or debug", c.LogLevel)
	}
	return errors.Join(faults...)
}
