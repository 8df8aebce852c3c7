package daemon

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// aMachine is what the tests' defaults come from.
func aMachine() Machine {
	return Machine{UID: 1000, Socket: "/run/user/1000/t.sock", MemoryBytes: 8 << 30}
}

func env(kv ...string) Lookup {
	return func(name string) (string, bool) {
		for _, e := range kv {
			if k, v, _ := strings.Cut(e, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
}

func TestDefaults(t *testing.T) {
	c, err := Config{}.Defaults(aMachine(), env("HOME=/h"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	if c.CapacityBytes != 4<<30 || c.QuotaBytes != 4<<30 || c.WarmBytes != 256<<20 ||
		c.StateDir != "/h/.local/state/tendril" ||
		c.Socket != "/run/user/1000/t.sock" || c.WarmWorkers != 1 || c.MaxWorkers != 256 ||
		c.ProbeTimeout != 30*time.Second ||
		c.StartTimeout != time.Minute || c.LogLevel != "info" || len(c.Vendors) != 1 {
		t.Errorf("defaults: %+v", c)
	}
}

// What is shown can be written into the file.
func TestShownValuesCanBeSet(t *testing.T) {
	c, err := Config{WarmBytes: -1, SpillBytes: -1}.Defaults(aMachine(), env("HOME=/h"))
	if err != nil {
		t.Fatal(err)
	}
	c.NodeName, c.HTTP, c.HTTPHosts, c.PlaintextPeers = "n", "127.0.0.1:1", []string{"a", "b"}, []string{"10.0.0.0/8"}
	c.Devices = []string{"gpu", "3"}
	again := Config{HighBytes: 7, QuotaObjects: 7, QuotaSpill: 7}
	values := map[string]string{}
	for _, s := range c.Show() {
		values[s.Key] = s.Value
	}
	if values["spill"] != "none" || values["high-water"] != "auto" || values["quota-objects"] != "auto" {
		t.Errorf("%v", values)
	}
	if err := again.FromFlags(func(key string) (string, bool) { v, ok := values[key]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	c.origins, again.origins = nil, nil
	if !reflect.DeepEqual(c, again) {
		t.Errorf("shown and set again:\n%+v\n%+v", c, again)
	}
}

func TestDefaultStateDir(t *testing.T) {
	for _, x := range []struct {
		uid  int
		env  []string
		want string
	}{
		{0, []string{"HOME=/root", "XDG_STATE_HOME=/x"}, "/var/lib/tendril"},
		{7, []string{"HOME=/h", "XDG_STATE_HOME=/x"}, "/x/tendril"},
		{7, []string{"HOME=/h", "XDG_STATE_HOME=relative"}, "/h/.local/state/tendril"},
		{7, []string{"HOME=relative"}, ""},
		{7, nil, ""},
	} {
		got, err := defaultStateDir(x.uid, env(x.env...))
		if got != x.want || (err == nil) != (x.want != "") {
			t.Errorf("user %d with %v: %q, %v; want %q", x.uid, x.env, got, err, x.want)
		}
	}
}

func TestFromEnv(t *testing.T) {
	c := Config{NodeName: "kept", LogLevel: "debug"}
	err := c.FromEnv(env("TENDRIL_SOCKET=/s", "TENDRIL_CAPACITY=2g", "TENDRIL_VENDORS=/a:/b", "TENDRIL_WARM_WORKERS=-1",
		"TENDRIL_PROBE_TIMEOUT=5s",
		"TENDRIL_LOG_LEVEL=", "TENDRIL_WARM_MEMORY=none"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Socket != "/s" || c.CapacityBytes != 2<<30 || len(c.Vendors) != 2 || c.WarmWorkers != -1 ||
		c.ProbeTimeout != 5*time.Second ||
		c.NodeName != "kept" || c.LogLevel != "debug" || c.WarmBytes != -1 {
		t.Errorf("%+v", c)
	}
	bad := env("TENDRIL_CAPACITY=lots", "TENDRIL_QUOTA=1.2.3", "TENDRIL_MAX_WORKERS=many", "TENDRIL_START_TIMEOUT=5",
		"TENDRIL_WARM_MEMORY=2000000TiB")
	err = (&Config{}).FromEnv(bad)
	for _, want := range []string{"TENDRIL_CAPACITY", "lots", "TENDRIL_QUOTA", "1.2.3", "TENDRIL_MAX_WORKERS", "many",
		"TENDRIL_START_TIMEOUT", `"5"`, "TENDRIL_WARM_MEMORY"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "1048576": 1 << 20, "1k": 1 << 10, "1.5G": 3 << 29, "512MiB": 512 << 20, "1GB": 1e9, " 8 GiB ": 8 << 30,
		"2T": 2 << 40,
		"":   1, "-1": 1, "1X": 1, "MiB": 1, "99999999999999999999": 1,
	} {
		got, err := ParseBytes(text)
		if err == nil && got != want || err != nil && want != 1 {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestValidateNamesEveryFaultWithItsValue(t *testing.T) {
	good, err := Config{}.Defaults(aMachine(), env("HOME=/h"))
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		alter func(*Config)
		want  string
	}{
		{func(c *Config) { c.Socket = "relative.sock" }, `"relative.sock"`},
		{func(c *Config) { c.Socket = "/" + strings.Repeat("s", 200) }, "201 bytes"},
		{func(c *Config) { c.StateDir = "state" }, `"state"`},
		{func(c *Config) { c.NodeName = "a\nb" }, `"a\nb"`},
		{func(c *Config) { c.CapacityBytes = 4096 }, "capacity 4.0 KiB: want 16 MiB to 1.0 PiB"},
		{func(c *Config) { c.CapacityBytes = 1 << 60 }, "capacity 1.0 EiB"},
		{func(c *Config) { c.QuotaBytes = c.CapacityBytes + 1 }, " bytes): want 1 B to "},
		{func(c *Config) { c.Vendors = []string{"/ok", "vendors"} }, `"vendors"`},
		{func(c *Config) { c.WarmWorkers = 17 }, "warm-workers 17"},
		{func(c *Config) { c.WarmWorkers = -2 }, "warm-workers -2"},
		{func(c *Config) { c.MaxWorkers = -3 }, "max-workers -3"},
		{func(c *Config) { c.Workers.MemoryBytes = 1 << 20 },
			"worker-memory 1.0 MiB: want 128 MiB or more"},
		{func(c *Config) { c.ProbeTimeout = -1 }, "probe-timeout -1ns"},
		{func(c *Config) { c.StartTimeout = 2 * MaxWait }, "start-timeout 2h0m0s: want at most 1h0m0s"},
		{func(c *Config) { c.Deadline = time.Millisecond }, "session-deadline 1ms: want 1s or more"},
		{func(c *Config) { c.ResumeTime = 2 * MaxWait }, "resume-time 2h0m0s"},
		{func(c *Config) { c.Workers.TenantProcesses = 1 }, "tenant-processes 1"},
		{func(c *Config) { c.Listen = "7433" }, `listen "7433": want host:port, such as`},
		{func(c *Config) { c.Listen = ":99999" }, "want a port from 0 to 65535"},
		{func(c *Config) { c.PlaintextPeers = []string{"lab"} }, `plaintext-peers "lab"`},
		{func(c *Config) { c.LogLevel = "loud" }, `"loud"`},
		{func(c *Config) { c.Compress = "always" }, `"always"`},
		{func(c *Config) { c.WarmBytes = -2 }, "warm-memory -2"},
		{func(c *Config) { c.TransferRate = 1 << 20 }, "transfer-rate 1.0 MiB: want at least 2.0 MiB"},
		{func(c *Config) { c.WarmBytes = 1 << 62 }, "warm-memory 4.0 EiB"},
	}
	one := good
	one.Connections = -1
	if err := one.Validate(); err == nil || strings.Contains(err.Error(), "tenant-connections") {
		t.Errorf("a wrong number of connections is one fault: %v", err)
	}
	all := good
	for _, x := range cases {
		one := good
		x.alter(&one)
		if err := one.Validate(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("want a fault with %s, got: %v", x.want, err)
		}
	}
	all.Socket, all.StateDir, all.CapacityBytes, all.LogLevel, all.MaxWorkers = "s", "d", 1, "l", -1
	err = all.Validate()
	for _, want := range []string{`"s"`, `"d"`, "capacity 1 B", `"l"`, "max-workers -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("one error for all faults lacks %s: %v", want, err)
		}
	}
}

// The example, which the package installs, has every setting as a comment, with a value that is good.
func TestExampleHasEverySetting(t *testing.T) {
	raw, err := os.ReadFile("../packaging/tendril.toml.example")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tendril.toml")
	before, _, _ := strings.Cut(string(raw), "\n# [tenants") // whose users need not be there
	text := regexp.MustCompile(`(?m)^# ([a-z-]+ = )`).ReplaceAllString(before, "$1")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var c Config
	if err := c.FromFile(path, true); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if c.Origin(s.key) == "default" {
			t.Errorf("it has no %s", s.key)
		}
	}
}

// What stands at the wrong place in the file is said to.
func TestFaultsOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tendril.toml")
	for text, want := range map[string]string{
		"[tenants.lab]\nquota = \"1GiB\"":  "quota: a setting of the daemon stands above the first [tenants.NAME]",
		"[tenants.lab]\nquotas = \"1GiB\"": "quotas: want users, groups or certificates",
		"[tenants.lab]\nusers = \"ann\"":   "users: want a list",
		"spill = none":                     "stands in quotes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(Config).FromFile(path, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
