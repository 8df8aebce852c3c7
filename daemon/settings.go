package daemon

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/toml/v2"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"

	"tendril/daemon/tenancy"
	"tendril/daemon/workers"
	"tendril/store/object"
)

// setting ties one field to its key (in the file, and the flag's name), its environment variable, and its text.
type setting struct {
	key, variable string
	set           func(c *Config, value string) error
	show          func(c Config) string
}

// settings is every one, in the order of `tendril config show`. It is never changed.
var settings = []setting{
	text("socket", "TENDRIL_SOCKET", func(c *Config) *string { return &c.Socket }),
	text("state-dir", "TENDRIL_STATE_DIR", func(c *Config) *string { return &c.StateDir }),
	text("name", "TENDRIL_NODE_NAME", func(c *Config) *string { return &c.NodeName }),
	size("capacity", "TENDRIL_CAPACITY", func(c *Config) *uint64 { return &c.CapacityBytes }),
	size("quota", "TENDRIL_QUOTA", func(c *Config) *uint64 { return &c.QuotaBytes }),
	sizeOrNone("spill", "TENDRIL_SPILL", func(c *Config) *int64 { return &c.SpillBytes }),
	size("quota-device", "TENDRIL_QUOTA_DEVICE", func(c *Config) *uint64 { return &c.QuotaDevice }),
	list("devices", "TENDRIL_NODE_DEVICES", func(c *Config) *[]string { return &c.Devices }),
	sizeOrNone("idle-device", "TENDRIL_IDLE_DEVICE", func(c *Config) *int64 { return &c.IdleDevice }),
	sizeOrNone("session-device", "TENDRIL_SESSION_DEVICE", func(c *Config) *int64 { return &c.SessionDevice }),
	sizeOrNone("pin-memory", "TENDRIL_PIN_MEMORY", func(c *Config) *int64 { return &c.PinBytes }),
	text("cuda-driver", "TENDRIL_CUDA_DRIVER", func(c *Config) *string { return &c.CUDADriver }),
	size("quota-spill", "TENDRIL_QUOTA_SPILL", func(c *Config) *uint64 { return &c.QuotaSpill }),
	size("request-memory", "TENDRIL_REQUEST_MEMORY", func(c *Config) *uint64 { return &c.RequestBytes }),
	number("max-connections", "TENDRIL_MAX_CONNECTIONS", func(c *Config) *int { return &c.Connections }),
	number("tenant-connections", "TENDRIL_TENANT_CONNECTIONS", func(c *Config) *int { return &c.TenantConns }),
	number("quota-objects", "TENDRIL_QUOTA_OBJECTS", func(c *Config) *int { return &c.QuotaObjects }),
	number("quota-segments", "TENDRIL_QUOTA_SEGMENTS", func(c *Config) *int { return &c.QuotaSegments }),
	{"index", "TENDRIL_INDEX",
		func(c *Config, v string) (err error) { c.NoIndex, err = parseOff(v); return },
		func(c Config) string { return map[bool]string{false: "on", true: "off"}[c.NoIndex] }},
	size("high-water", "TENDRIL_HIGH_WATER", func(c *Config) *uint64 { return &c.HighBytes }),
	span("scrub-interval", "TENDRIL_SCRUB_INTERVAL", func(c *Config) *time.Duration { return &c.ScrubEvery }),
	size("scrub-rate", "TENDRIL_SCRUB_RATE", func(c *Config) *uint64 { return &c.ScrubRate }),
	size("transfer-rate", "TENDRIL_TRANSFER_RATE", func(c *Config) *uint64 { return &c.TransferRate }),
	sizeOrNone("warm-memory", "TENDRIL_WARM_MEMORY", func(c *Config) *int64 { return &c.WarmBytes }),
	{"huge-pages", "TENDRIL_HUGE_PAGES",
		func(c *Config, v string) error {
			if v != "auto" && v != "none" {
				return fmt.Errorf("%q is neither auto nor none", v)
			}
			c.NoHuge = v == "none"
			return nil
		},
		func(c Config) string { return map[bool]string{true: "none", false: "auto"}[c.NoHuge] }},
	{"in-place", "TENDRIL_IN_PLACE",
		func(c *Config, v string) error {
			if v != "auto" && v != "off" {
				return fmt.Errorf("%q is neither auto nor off", v)
			}
			c.NoInPlace = v == "off"
			return nil
		},
		func(c Config) string { return map[bool]string{true: "off", false: "auto"}[c.NoInPlace] }},
	{"vendors", "TENDRIL_VENDORS",
		func(c *Config, v string) error { c.Vendors = filepath.SplitList(v); return nil },
		func(c Config) string { return strings.Join(c.Vendors, string(filepath.ListSeparator)) }},
	size("kernel-cache", "TENDRIL_KERNEL_CACHE", func(c *Config) *uint64 { return &c.KernelCache }),
	span("kernel-time", "TENDRIL_KERNEL_TIME", func(c *Config) *time.Duration { return &c.KernelTime }),
	span("build-time", "TENDRIL_BUILD_TIME", func(c *Config) *time.Duration { return &c.BuildTime }),
	span("lease-time", "TENDRIL_LEASE_TIME", func(c *Config) *time.Duration { return &c.LeaseTime }),
	span("lease-idle", "TENDRIL_LEASE_IDLE", func(c *Config) *time.Duration { return &c.LeaseIdle }),
	span("warm-time", "TENDRIL_WARM_TIME", func(c *Config) *time.Duration { return &c.WarmTime }),
	number("warm-workers", "TENDRIL_WARM_WORKERS", func(c *Config) *int { return &c.WarmWorkers }),
	number("max-workers", "TENDRIL_MAX_WORKERS", func(c *Config) *int { return &c.MaxWorkers }),
	span("worker-wait", "TENDRIL_WORKER_WAIT", func(c *Config) *time.Duration { return &c.WorkerWait }),
	numberOrNone("worker-processes", "TENDRIL_WORKER_PROCESSES", func(c *Config) *int { return &c.Workers.Processes }),
	sizeOrNone("worker-memory", "TENDRIL_WORKER_MEMORY", func(c *Config) *int64 { return &c.Workers.MemoryBytes }),
	numberOrNone("worker-files", "TENDRIL_WORKER_FILES", func(c *Config) *int { return &c.Workers.Files }),
	sizeOrNone("worker-file-size", "TENDRIL_WORKER_FILE_SIZE", func(c *Config) *int64 { return &c.Workers.FileBytes }),
	numberOrNone("tenant-processes", "TENDRIL_TENANT_PROCESSES",
		func(c *Config) *int { return &c.Workers.TenantProcesses }),
	sizeOrNone("tenant-memory", "TENDRIL_TENANT_MEMORY", func(c *Config) *int64 { return &c.Workers.TenantBytes }),
	{"worker-uid-range", "TENDRIL_WORKER_UID_RANGE",
		func(c *Config, v string) (err error) {
			if c.WorkerIDs = (workers.IDRange{}); v != auto {
				c.WorkerIDs, err = workers.ParseIDRange(v)
			}
			return err
		},
		func(c Config) string { return orDefault(c.WorkerIDs.String(), "none") }},
	span("probe-timeout", "TENDRIL_PROBE_TIMEOUT", func(c *Config) *time.Duration { return &c.ProbeTimeout }),
	span("start-timeout", "TENDRIL_START_TIMEOUT", func(c *Config) *time.Duration { return &c.StartTimeout }),
	text("log-level", "TENDRIL_LOG_LEVEL", func(c *Config) *string { return &c.LogLevel }),
	text("listen", "TENDRIL_LISTEN", func(c *Config) *string { return &c.Listen }),
	{"resume-time", "TENDRIL_RESUME_TIME",
		func(c *Config, v string) (err error) {
			if v == "none" {
				c.ResumeTime = -1
				return nil
			}
			c.ResumeTime, err = parseTime(v)
			return err
		},
		func(c Config) string {
			if c.ResumeTime < 0 {
				return "none"
			}
			return c.ResumeTime.String()
		}},
	span("session-deadline", "TENDRIL_SESSION_DEADLINE", func(c *Config) *time.Duration { return &c.Deadline }),
	list("plaintext-peers", "TENDRIL_PLAINTEXT_PEERS", func(c *Config) *[]string { return &c.PlaintextPeers }),
	text("compress", "TENDRIL_COMPRESS", func(c *Config) *string { return &c.Compress }),
	yes("trust-remote", "TENDRIL_TRUST_REMOTE", func(c *Config) *bool { return &c.TrustRemote }),
	text("http", "TENDRIL_HTTP", func(c *Config) *string { return &c.HTTP }),
	list("http-hosts", "TENDRIL_HTTP_HOSTS", func(c *Config) *[]string { return &c.HTTPHosts }),
	text("http-metrics", "TENDRIL_HTTP_METRICS", func(c *Config) *string { return &c.HTTPMetrics }),
}

func text(key, variable string, at func(*Config) *string) setting {
	return setting{key, variable, func(c *Config, v string) error { *at(c) = v; return nil },
		func(c Config) string { return *at(&c) }}
}

// auto is how a number's zero value, the default, is written and shown.
const auto = "auto"

func number(key, variable string, at func(*Config) *int) setting {
	return setting{key, variable, func(c *Config, v string) (err error) {
		if *at(c) = 0; v != auto {
			if *at(c), err = strconv.Atoi(v); err != nil {
				return fmt.Errorf("%q is not a whole number", v)
			}
		}
		return nil
	}, func(c Config) string { return orAuto(*at(&c)) }}
}

func size(key, variable string, at func(*Config) *uint64) setting {
	return setting{key, variable, func(c *Config, v string) (err error) {
		if *at(c) = 0; v != auto {
			*at(c), err = ParseBytes(v)
		}
		return err
	}, func(c Config) string { return orAuto(*at(&c)) }}
}

func sizeOrNone(key, variable string, at func(*Config) *int64) setting {
	return setting{key, variable, func(c *Config, v string) (err error) {
		if *at(c) = 0; v != auto {
			*at(c), err = parseWarm(v)
		}
		return err
	}, func(c Config) string {
		if *at(&c) < 0 {
			return "none"
		}
		return orAuto(*at(&c))
	}}
}

// numberOrNone is number with "none" for no bound.
func numberOrNone(key, variable string, at func(*Config) *int) setting {
	s := number(key, variable, at)
	return setting{key, variable, func(c *Config, v string) error {
		if v == "none" {
			*at(c) = -1
			return nil
		}
		return s.set(c, v)
	}, func(c Config) string {
		if *at(&c) < 0 {
			return "none"
		}
		return s.show(c)
	}}
}

func orAuto[T int | int64 | uint64](n T) string {
	if n == 0 {
		return auto
	}
	return fmt.Sprint(n)
}

func yes(key, variable string, at func(*Config) *bool) setting {
	return setting{key, variable, func(c *Config, v string) (err error) {
		if *at(c), err = strconv.ParseBool(v); err != nil {
			err = fmt.Errorf("%w: want true or false", object.ErrInvalid)
		}
		return err
	},
		func(c Config) string { return strconv.FormatBool(*at(&c)) }}
}

func span(key, variable string, at func(*Config) *time.Duration) setting {
	return setting{key, variable, func(c *Config, v string) (err error) { *at(c), err = parseTime(v); return },
		func(c Config) string { return at(&c).String() }}
}

// parseTime reads a time, with its unit.
func parseTime(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("%w: want a time with its unit, such as 30s, 5m or 24h", object.ErrInvalid)
	}
	return d, nil
}

func list(key, variable string, at func(*Config) *[]string) setting {
	return setting{key, variable, func(c *Config, v string) error { *at(c) = splitList(v); return nil },
		func(c Config) string { return strings.Join(*at(&c), ",") }}
}

// parseOff reads on and off.
func parseOff(v string) (off bool, err error) {
	switch strings.ToLower(v) {
	case "on", "1", "yes", "true":
		return false, nil
	case "off", "0", "no", "false":
		return true, nil
	}
	return false, fmt.Errorf("%w: want on or off", object.ErrInvalid)
}

func splitList(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
}

// take sets one field and remembers where its value came from.
func (c *Config) take(s setting, value, origin string) error {
	if err := s.set(c, value); err != nil {
		return err
	}
	c.came(s.key, origin)
	return nil
}

func (c *Config) came(key, origin string) {
	if c.origins == nil {
		c.origins = map[string]string{}
	}
	c.origins[key] = origin
}

// Origin says where a setting's value came from: "default", or the file, variable or flag.
func (c Config) Origin(key string) string { return orDefault(c.origins[key], "default") }

// FromEnv takes what the TENDRIL_* variables say over c's fields; an empty variable counts as unset. It reports every
// variable that cannot be read, with its value, in one error, and takes the others.
func (c *Config) FromEnv(lookup Lookup) error {
	var faults []error
	for _, s := range settings {
		value, set := lookup(s.variable)
		if !set || value == "" {
			continue
		}
		if err := c.take(s, value, "environment "+s.variable); err != nil {
			faults = append(faults, fmt.Errorf("%s=%q: %w", s.variable, value, err))
		}
	}
	return errors.Join(faults...)
}

// FromFlags is FromEnv for the flags of a command line, by their names without dashes. It leaves out flags that were
// not written.
func (c *Config) FromFlags(written Lookup) error {
	var faults []error
	for _, s := range settings {
		value, set := written(s.key)
		if !set {
			continue
		}
		if err := c.take(s, value, "flag --"+s.key); err != nil {
			faults = append(faults, fmt.Errorf("--%s %q: %w", s.key, value, err))
		}
	}
	return errors.Join(faults...)
}

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// FromFile takes what a file in TOML says: the flags' names as keys, and tables [tenants.NAME] with users, groups and
// certificates. A file that is not there is an error only where it must be. Every fault of the file is in the one
// error.
func (c *Config) FromFile(path string, must bool) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) && !must {
		return nil
	}
	if err == nil && (info.IsDir() || info.Size() > maxFileBytes) {
		err = fmt.Errorf("%s is a directory or larger than %d bytes", path, maxFileBytes)
	}
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	k := koanf.New("\x00") // no key holds this, so that names of tenants may hold dots
	if err := k.Load(rawbytes.Provider(raw), toml.Parser()); err != nil {
		return fmt.Errorf("configuration file %s: %w (a value that is no number, true, false or list stands in quotes)", path, err)
	}
	return c.fromTree(path, k.Raw())
}

func (c *Config) fromTree(path string, tree map[string]any) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		if err := c.fromFileKey(path, key, tree[key]); err != nil {
			faults = append(faults, fmt.Errorf("%s: %s: %w", path, key, err))
		}
	}
	return errors.Join(faults...)
}

func (c *Config) fromFileKey(path, key string, value any) error {
	if key == "tenants" {
		c.came(key, "file "+path)
		return c.takeTenants(value)
	}
	i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key })
	if i < 0 {
		return fmt.Errorf("there is no such setting: see tendril config show")
	}
	t, err := fileText(key, value)
	if err != nil {
		return err
	}
	if err := c.take(settings[i], t, "file "+path); err != nil {
		return fmt.Errorf("%q: %w", t, err)
	}
	return nil
}

// fileText gives a value of the file as a flag would have it.
func fileText(key string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			s, ok := x.(string)
			if !ok {
				return "", fmt.Errorf("%v in a list of strings", x)
			}
			parts[i] = s
		}
		if key == "vendors" {
			return strings.Join(parts, string(filepath.ListSeparator)), nil
		}
		return strings.Join(parts, ","), nil
	}
	return "", fmt.Errorf("%v is not a string, number, list, true or false", value)
}

func (c *Config) takeTenants(value any) error {
	tables, ok := value.(map[string]any)
	if !ok {
		return errors.New("want tables: [tenants.NAME]")
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t, err := tenantOf(name, tables[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("%q: %w", name, err))
		}
		c.Tenants = append(c.Tenants, t)
	}
	return errors.Join(faults...)
}

func tenantOf(name string, value any) (tenancy.Tenant, error) {
	t := tenancy.Tenant{Name: name}
	table, ok := value.(map[string]any)
	if !ok {
		return t, errors.New("want a table")
	}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(table)) {
		members, ok := table[key].([]any)
		switch known := slices.Contains([]string{"users", "groups", "certificates"}, key); {
		case !known && slices.ContainsFunc(settings, func(s setting) bool { return s.key == key }):
			faults = append(faults, fmt.Errorf("%s: a setting of the daemon stands above the first [tenants.NAME]", key))
			continue
		case !known:
			faults = append(faults, fmt.Errorf("%s: want users, groups or certificates", key))
			continue
		case !ok:
			faults = append(faults, fmt.Errorf("%s: want a list", key))
			continue
		}
		for _, m := range members {
			if err := addMember(&t, key, m); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", key, err))
			}
		}
	}
	return t, errors.Join(faults...)
}

func addMember(t *tenancy.Tenant, key string, m any) (err error) {
	var id uint32
	switch key {
	case "users":
		id, err = numberOf(m, func(n string) (string, error) { u, err := user.Lookup(n); return fieldOf(u, err) })
		t.Users = append(t.Users, id)
	case "groups":
		id, err = numberOf(m, func(n string) (string, error) { g, err := user.LookupGroup(n); return groupOf(g, err) })
		t.Groups = append(t.Groups, id)
	case "certificates":
		name, ok := m.(string)
		if !ok {
			return fmt.Errorf("%v is no name", m)
		}
		t.Certificates = append(t.Certificates, name)
	}
	return err
}

func fieldOf(u *user.User, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func groupOf(g *user.Group, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// numberOf reads a user's or group's number, or finds it by name.
func numberOf(m any, find func(string) (string, error)) (uint32, error) {
	var text string
	switch v := m.(type) {
	case int64:
		text = strconv.FormatInt(v, 10)
	case string:
		found, err := find(v)
		if err != nil {
			return 0, err
		}
		text = found
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%v is neither a name nor a number of 32 bits", m)
	}
	return uint32(n), nil
}

// Shown is one line of `tendril config show`.
type Shown struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// Show lists every setting with its value and where that came from. c has its defaults filled in.
func (c Config) Show() []Shown {
	var all []Shown
	for _, s := range settings {
		all = append(all, Shown{s.key, s.show(c), c.Origin(s.key)})
	}
	for _, t := range c.Tenants {
		all = append(all, Shown{"tenants." + t.Name, t.String(), c.Origin("tenants")})
	}
	return all
}

// ConfigFile says where the configuration file is looked for: TENDRIL_CONFIG, which must then be there, else
// /etc/tendril/tendril.toml for root, else tendril/tendril.toml in the user's XDG configuration directory.
func ConfigFile(uid int, lookup Lookup) (path string, must bool) {
	if told, _ := lookup("TENDRIL_CONFIG"); told != "" {
		return told, true
	}
	if uid == 0 {
		return "/etc/tendril/tendril.toml", false
	}
	if dir, _ := lookup("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tendril", "tendril.toml"), false
	}
	home, _ := lookup("HOME")
	return filepath.Join(home, ".config", "tendril", "tendril.toml"), false
}
