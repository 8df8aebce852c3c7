package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// What is written wrongly is told in our words, with the usage line and exit code 2; a program that is not there is a
// shell's 127.
func TestWhatIsMistyped(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "taken", n.file("taken", []byte("x")))
	n.want(0, nil, "stream", "push", "ended", n.file("frame", []byte("x")))
	for _, x := range []struct {
		code  int
		texts []string
		args  []string
	}{
		{2, []string{`session has no command "kil": did you mean end?`}, []string{"session", "kil", "3"}},
		{2, []string{`leases has no command "kil": did you mean end?`}, []string{"leases", "kil", "3"}},
		{4, []string{"no lease"}, []string{"leases", "kill", "3"}},
		{2, []string{`token has no command "delete": did you mean revoke?`}, []string{"token", "delete", "3"}},
		{2, []string{`there is no command "delete": did you mean rm?`}, []string{"delete", "x"}},
		{127, []string{"there is no program end in PATH", "tendril leases end"}, []string{"lease", "end", "3"}},
		{2, []string{"a time is written --wait=1s"}, []string{"lease", "--wait", "1s", "--", "true"}},
		{2, []string{"a time is written --wait=30s"}, []string{"run", "--lease", "1", "--wait", "30s", "true"}},
		{127, []string{"there is no program 1s in PATH"}, []string{"lease", "--wait", "--", "1s"}},
		{2, []string{"--replicas 0: want 1 to 64"}, []string{"replicate", "x", "--replicas", "0"}},
		{2, []string{`token has no command "zzz": it has create, ls, revoke`}, []string{"token", "zzz"}},
		{0, []string{"Available Commands"}, []string{"session"}},
		{0, []string{"--policy POLICY   the POLICY: spread, pack or 'near NODE'"}, []string{"place", "--help"}},
		{2, []string{"stat needs NAME|ID", "Usage: tendril stat NAME|ID"}, []string{"stat"}},
		{2, []string{`stat takes NAME|ID, got ["a" "b"]`}, []string{"stat", "a", "b"}},
		{2, []string{`status takes no arguments, got ["x"]`}, []string{"status", "x"}},
		{4, []string{"no object", "tendril ls", "To wait for it: --wait 10s"}, []string{"get", "none"}},
		{9, []string{"no object", "tendril ls --all"}, []string{"get", "none", "--wait", "20ms"}},
		{2, []string{`--wait "5": want a time with its unit, such as 30s`}, []string{"get", "x", "--wait", "5"}},
		{2, []string{`--number "x": want a whole number`}, []string{"top", "-n", "x"}},
		{2, []string{`--kernel-time "5"`, "want a time with its unit"}, []string{"daemon", "--kernel-time", "5"}},
		{2, []string{"--persist and --ttl: use one of them", "Usage: tendril put FILE|-", "See tendril put --help."},
			[]string{"put", "x", "--ttl", "1s", "--persist"}},
		{2, []string{`there is no command "lss": did you mean ls?`}, []string{"lss"}},
		{2, []string{`there is no command "qqqq"`}, []string{"qqqq"}},
		{2, []string{`there is no command "nope"`}, []string{"help", "nope"}},
		{2, []string{`completion has no command "tcsh": did you mean bash`}, []string{"completion", "tcsh"}},
		{0, []string{"List your objects", "Exit codes"}, []string{"help"}},
		{0, []string{"Usage:", "tendril token ls"}, []string{"help", "token", "ls"}},
		{2, []string{"share needs --to", "Usage: tendril share NAME|ID --to"}, []string{"share", "x"}},
		{2, []string{"nothing to set", "Usage: tendril set NAME|ID"}, []string{"set", "x"}},
		{2, []string{"want PART=OBJECT", "Usage: tendril compose"}, []string{"compose", "x", "y"}},
		{2, []string{"run needs a program", "Usage: tendril run"}, []string{"run"}},
		{2, []string{`--name "": want a name`, "Usage: tendril put"}, []string{"put", n.file("y", nil), "--name", ""}},
		{2, []string{"--output needs a value"}, []string{"get", "x", "--output"}},
		{2, []string{"tendril: -o needs a value"}, []string{"get", "x", "-o"}},
		{4, []string{"no session 99", "tendril session ls"}, []string{"session", "kill", "99"}},
		{4, []string{"tendril token ls"}, []string{"token", "revoke", strings.Repeat("0a", 16)}},
		{2, []string{`"zz": want a token's ID, or 4 digits or more`}, []string{"token", "revoke", "zz"}},
		{2, []string{`tendril: role "admin", want user`}, []string{"token", "create", "--role", "admin"}},
		{4, []string{"no peer b:7433", "tendril peer ls"}, []string{"peer", "rm", "b:7433"}},
		{2, []string{"there is no user nosuchuser on this machine; a group is written :GROUP"},
			[]string{"share", "taken", "--to", "nosuchuser"}},
		{2, []string{"there is no group nosuchgroup"}, []string{"share", "taken", "--to", ":nosuchgroup"}},
		{4, []string{"is not shared with uid:1005", "tendril stat taken"}, []string{"share", "taken", "--revoke", "--to", "uid:1005"}},
		{4, []string{`no published object has the name "taken"`, "tendril publish"},
			[]string{"migrate", "taken", "--to", "b"}},
		{4, []string{`no published object has the name "taken"`}, []string{"place", "taken"}},
		{2, []string{"migrate needs --to NODE", "Usage: tendril migrate NAME|ID --to NODE"}, []string{"migrate", "x"}},
		{2, []string{"--ttl -5s: want more than 0"}, []string{"put", n.file("z", nil), "--ttl", "-5s"}},
		{2, []string{"--ttl -5s: want 0 (no limit) or more"}, []string{"set", "taken", "--ttl", "-5s"}},
		{2, []string{`"typ=gpu": want type=…`}, []string{"run", "--device", "typ=gpu", "--", "true"}},
		{8, []string{"with --replace"}, []string{"put", "--name", "taken", n.file("y", nil)}},
		{8, []string{"Choose another name."}, []string{"compose", "taken", "a=taken"}},
		{4, []string{"write /no/such/file: no such file or directory"}, []string{"get", "taken", "-o", "/no/such/file"}},
		{1, []string{"the stream has ended", "tendril stream rm ended"}, []string{"stream", "push", "ended", n.file("z", nil)}},
		{127, []string{"there is no program nosuchprogram in PATH"}, []string{"run", "--", "nosuchprogram"}},
		{127, []string{"no such file"}, []string{"run", "--", "/no/such/program"}},
		{126, []string{"permission denied"}, []string{"run", "--", n.file("plain", nil)}},
	} {
		_, out, err := n.run("", x.args...)
		for _, raw := range []string{"arg(s)", "flag(s)", "Did you mean this", "unknown command", "strconv", "time: ",
			"tendril: tendril"} {
			if strings.Contains(out+err, raw) {
				t.Errorf("tendril %v: %s", x.args, err)
			}
		}
		n.want(x.code, x.texts, x.args...)
	}
}

// The help fits the terminal; in a pipe it is as it is written.
func TestHelpFits(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{{"daemon", "--help"}, {"run", "--help"}, {"token", "--help"}} {
		code, out := n.onTerminal(80, nil, args...).wait()
		about, rest, _ := strings.Cut(out, "Usage:")
		_, flags, _ := strings.Cut(rest, "\nFlags:\n")
		if flags, _, _ = strings.Cut(flags, "\nUse "); code != 0 || about == "" || flags == "" {
			t.Errorf("%v: %d %s", args, code, out)
		}
		fitted(t, strings.Join(args, " "), 80, about+flags)
	}
}

// The beginning of an ID is enough where no other object's begins so.
func TestShortIDs(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", n.file("one", []byte("first")))
	n.want(0, nil, "put", n.file("two", []byte("second")))
	var list []struct{ ID, Name string }
	n.json(&list, "ls")
	short := list[0].ID[:8]
	n.want(0, []string{list[0].ID}, "stat", short)
	if _, out, err := n.run("", "get", short); out != "first" {
		t.Errorf("%q %s", out, err)
	}
	n.want(4, []string{"not found"}, "stat", "ffff0000ffff")
	n.want(4, []string{"not found"}, "stat", short[:3])
	n.want(0, nil, "put", "--name", short, n.file("named", []byte("third")))
	n.want(0, []string{"5 bytes"}, "stat", short) // a name first
	for _, marked := range []string{"id:" + short, "id:" + list[0].ID} {
		n.want(0, []string{list[0].ID}, "stat", marked)
		n.want(0, []string{"first"}, "get", marked)
	}
	n.want(0, nil, "publish", list[1].ID[:10])
	n.want(0, nil, "unpublish", "id:"+list[1].ID[:10])
	n.want(2, []string{"4 to 32 hexadecimal digits"}, "get", "id:xyz")
	n.want(4, []string{"not found"}, "get", "id:ffff0000ffff")
	n.want(0, nil, "put", "--name", strings.Repeat("cd", 16), n.file("digits", []byte("fourth")))
	n.want(0, []string{"fourth"}, "get", strings.Repeat("cd", 16))
	n.want(4, []string{"not found"}, "get", "id:"+strings.Repeat("cd", 16)) // no name
	n.want(0, nil, "rm", list[1].ID[:10])
}

// A get of what is not there says so, also where it would write to a terminal.
func TestGetSaysNotFoundFirst(t *testing.T) {
	n := startNode(t)
	var out, errs bytes.Buffer
	c := &cli{term: terminal{out: &out, err: &errs, isOut: true}, socket: n.socket}
	if code := report(&errs, c.get(t.Context(), "none", "", part{length: 1}, 0)); code != exitNotFound {
		t.Errorf("%d: %s", code, &errs)
	}
	n.want(0, nil, "put", "--name", "some", n.file("x", []byte("x")))
	if code := report(&errs, c.get(t.Context(), "some", "", part{length: 1}, 0)); code != exitUsage || out.Len() > 0 ||
		!strings.Contains(errs.String(), "-o FILE") {
		t.Errorf("%d: %s", code, &errs)
	}
}

// A token that is typed is not shown; the terminal is as it was afterwards.
func TestTokenIsNotShown(t *testing.T) {
	master, slave := openTerminal(t, 80)
	echo := func() bool {
		state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return state.Lflag&unix.ECHO != 0
	}
	var errs promptThen
	errs.then = func() {
		if _, err := master.WriteString("secret\n"); err != nil {
			t.Error(err)
		}
	}
	errs.hidden = func() bool { return !echo() }
	c := &cli{term: terminal{in: slave, out: &bytes.Buffer{}, err: &errs}}
	if token, err := c.askToken(""); token != "secret" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
	if !errs.was {
		t.Error("what is typed is shown")
	}
	if !echo() {
		t.Error("the terminal shows nothing any more")
	}
}

// Login's list: what was kept is named, and forgotten on demand.
func TestServersAndLogout(t *testing.T) {
	n := startNode(t)
	kept := filepath.Join(n.dir, "servers")
	n.env = append(n.env, "TENDRIL_CREDENTIALS="+kept)
	n.want(0, []string{"not logged in to any"}, "servers")
	n.want(4, []string{"not logged in to nobody:7433", "tendril servers"}, "logout", "nobody")
	if err := os.MkdirAll(filepath.Join(kept, "at-127.0.0.1_1"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.want(0, []string{"127.0.0.1:1", "no: "}, "servers")
	n.want(0, nil, "logout", "127.0.0.1:1")
	n.want(0, []string{"[]"}, "servers", "--json")
}

// The doctor says what is good, and what is to be done about the rest; it fails where something is bad.
func TestDoctor(t *testing.T) {
	n := startNode(t)
	var list []finding
	code, out, errs := n.run("", "doctor", "--json")
	decode(t, out, &list)
	states := map[string]string{}
	for _, f := range list {
		states[f.Check] = f.State
		if f.State == faulty && f.Do == "" {
			t.Errorf("%+v does not say what to do", f)
		}
		if strings.Contains(f.Found, object.ErrUnsupported.Error()) {
			t.Errorf("%s: %q, says twice that it is not there", f.Check, f.Found)
		}
	}
	if states["kernel"] != good || states["daemon"] != good || states["memory"] != good || states["disk"] == "" ||
		states["clock"] == "" {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if states["driver library"] != faulty || code != exitFailure { // the test's build has none beside it
		t.Errorf("%d %s", code, out)
	}
	n.want(1, []string{"refuses", "tendril daemon --listen"}, "doctor", "--server", "127.0.0.1:1")
	n.want(1, []string{"name"}, "doctor", "--server", "no-such-host.invalid")
	n.socket = filepath.Join(n.dir, "none")
	n.want(1, []string{"bad   daemon", "tendril daemon"}, "doctor", "--socket", n.socket)
}

// A kernel is run on each device where there is a driver.
func TestDoctorRunsAKernel(t *testing.T) {
	if _, err := os.Stat("/etc/OpenCL/vendors/pocl.icd"); err != nil {
		t.Skip("skipped: no PoCL")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("skipped: PoCL needs a linker")
	}
	n := startNode(t, "--vendors", "/etc/OpenCL/vendors")
	const doing = "a first kernel is built and run on " // then the device's name, as far as 80 columns go
	_, out, errs := n.run("", "doctor")
	if !strings.Contains(out, "ok    device: ") || !strings.Contains(out, "a kernel was built and ran") ||
		strings.Contains(out+errs, doing) {
		t.Error(out, errs)
	}
	if _, out := n.onTerminal(80, nil, "doctor").wait(); !strings.Contains(out, doing) {
		t.Errorf("%q", out)
	}
}

// promptThen is the standard error of one who types once the prompt is there and the terminal shows nothing.
type promptThen struct {
	then   func()
	hidden func() bool
	was    bool
	once   sync.Once
}

func (p *promptThen) Write(b []byte) (int, error) {
	p.once.Do(func() {
		go func() {
			for began := time.Now(); time.Since(began) < 5*time.Minute; await.Rest(began) {
				if p.was = p.hidden(); p.was {
					break
				}
			}
			p.then()
		}()
	})
	return len(b), nil
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func (n *node) json(into any, args ...string) {
	n.t.Helper()
	decode(n.t, n.want(0, nil, append(args, "--json")...), into)
}

// A store that the machine has no memory for is warned of.
func TestCapacityAboveTheMachines(t *testing.T) {
	n := startNode(t, "--capacity", "512TiB")
	await.Until(t, "warning in the log, which is read beside this", func() bool {
		return strings.Contains(n.log.String(), "start with a smaller --capacity")
	})
}

// What the shell offers: objects and streams by name, servers, sessions, tokens, devices, what flags take; and files
// where files are wanted alone.
func TestCompletion(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "photo-1", n.file("one", []byte("first")))
	n.want(0, nil, "put", "--name", "other", n.file("two", []byte("second")))
	var token struct{ Token string }
	n.json(&token, "token", "create")
	var tokens []struct{ ID string }
	n.json(&tokens, "token", "ls")
	const noFiles, anyFile = ":4", ":0"
	n.want(0, nil, "token", "create", "--tenant", "lab")
	n.want(0, nil, "peer", "add", "far.example.org:7433", "--ca", strings.Repeat("0a", 32))
	n.want(0, nil, "share", "photo-1", "--to", "uid:1005")
	for _, x := range []struct {
		want, not string
		args      []string
	}{
		{"photo-1", "other", []string{"get", "ph"}},
		{"photo-1", "other", []string{"stat", "ph"}},
		{"photo-1", "other", []string{"rm", "ph"}},
		{"photo-1", "other", []string{"mv", "ph"}},
		{"photo-1", "other", []string{"ls", "ph"}},
		{noFiles, "photo-1", []string{"stream", "rm", ""}},
		{"local", "photo-1", []string{"--server", ""}},
		{tokens[0].ID, "photo-1", []string{"token", "revoke", tokens[0].ID[:3]}},
		{noFiles, tokens[0].ID, []string{"token", "revoke", "zz"}},
		{"read-only", "photo-1", []string{"token", "create", "--role", ""}},
		{"native", "photo-1", []string{"run", "--platforms", ""}},
		{noFiles, "photo-1", []string{"session", "kill", ""}},
		{"far.example.org:7433", "photo-1", []string{"peer", "rm", "far"}},
		{noFiles, "far.example.org", []string{"peer", "rm", "near"}},
		{"lab", "photo-1", []string{"token", "create", "--tenant", "l"}},
		{"root", ":root", []string{"share", "photo-1", "--to", "ro"}},
		{"all", "\nroot\n", []string{"share", "photo-1", "--to", "a"}},
		{":root", "uid:1005", []string{"share", "photo-1", "--to", ":ro"}},
		{"uid:1005", "\nroot\n", []string{"share", "photo-1", "--revoke", "--to", ""}},
		{"image=photo-1", "other", []string{"compose", "both", "image=ph"}},
		{":6", "photo-1", []string{"compose", "both", "ph"}},
		{":6", "photo-1", []string{"compose", "ph"}},
		{noFiles, "photo-1", []string{"status", ""}},
		{anyFile, "photo-1", []string{"put", ""}},
		{anyFile, "photo-1", []string{"run", ""}},
		{anyFile, "photo-1", []string{"get", "photo-1", "--output", ""}},
		{noFiles, "photo-1", []string{"run", "--device", ""}}, // this node has none
	} {
		_, out, _ := n.run("", append([]string{"__complete"}, x.args...)...)
		if !strings.Contains(out, x.want) || strings.Contains(out, x.not) || x.want == anyFile &&
			strings.Contains(out, noFiles) {
			t.Errorf("%q: %s", x.args, out)
		}
	}
}

// A driver that was installed while the daemon runs is seen by the next one that asks for devices.
func TestANewDriverIsSeen(t *testing.T) {
	n := startNode(t)
	n.want(0, []string{"No OpenCL device"}, "devices")
	if err := os.MkdirAll(filepath.Join(n.dir, "vendors"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.file("vendors/new.icd", []byte("/no/such/library.so\n"))
	n.want(0, []string{"No OpenCL device"}, "devices")
	n.want(0, []string{"failed", "new.icd"}, "status")
}

// Devices are offered by number and by type.
func TestDevicesToComplete(t *testing.T) {
	if _, err := os.Stat("/etc/OpenCL/vendors/pocl.icd"); err != nil {
		t.Skip("skipped: no PoCL")
	}
	n := startNode(t, "--vendors", "/etc/OpenCL/vendors")
	for _, verb := range []string{"run", "env", "trace"} {
		if _, out, _ := n.run("", "__complete", verb, "--device", ""); !strings.Contains(out, "0\t") ||
			!strings.Contains(out, "type=cpu") {
			t.Errorf("%s: %s", verb, out)
		}
	}
}

// The beginning of a token's ID is enough.
func TestShortTokenIDs(t *testing.T) {
	n := startNode(t)
	var token struct{ Token string }
	n.json(&token, "token", "create")
	n.json(&token, "token", "create")
	var list []struct{ ID, State string }
	n.json(&list, "token", "ls")
	if len(list) != 2 {
		t.Fatal(list)
	}
	n.want(2, []string{"want a token's ID"}, "token", "revoke", list[0].ID[:3])
	n.want(4, []string{"no token's ID begins with ffff0000ffff", "tendril token ls"}, "token", "revoke", "ffff0000ffff")
	n.want(0, nil, "token", "revoke", list[0].ID[:12])
	n.json(&list, "token", "ls")
	if list[0].State != "revoked" || list[1].State == "revoked" {
		t.Errorf("%v", list)
	}
}

// A daemon of another build is told of, once a command, beside its output; the shell's questions are answered alone.
func TestAnotherBuildIsSaid(t *testing.T) {
	n := startNode(t) // of version test; this process is another
	n.want(0, nil, "put", "--name", "x", n.file("x", []byte("x")))
	const said = "the daemon is version test, this command is version dev"
	for _, x := range []struct {
		times int
		args  []string
	}{{1, []string{"ls", "--json"}}, {1, []string{"put", "--replace", "--name", "x", filepath.Join(n.dir, "x")}},
		{0, []string{"version"}}, {0, []string{"__complete", "get", "x"}}, {0, []string{"doctor", "--json"}}} {
		var out, errs bytes.Buffer
		run(t.Context(), terminal{in: os.Stdin, out: &out, err: &errs}, append([]string{"--socket", n.socket}, x.args...))
		if strings.Count(errs.String(), said) != x.times || strings.Contains(out.String(), said) {
			t.Errorf("%q: %s%s", x.args, &out, &errs)
		}
	}
	if _, _, errs := n.run("", "ls"); errs != "" {
		t.Errorf("the same build: %s", errs)
	}
}

// Root sees everybody's objects, and whose they are; others are told who may.
func TestAllTenants(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: another user's commands need root")
	}
	n := startNode(t)
	path := n.file("x", []byte("x"))
	n.want(0, nil, "put", "--name", "roots", path)
	if code, out := n.asNobody("put", "--name", "nobodys", path); code != 0 {
		t.Fatal(out)
	}
	n.want(0, []string{"TENANT", "uid:0", "roots", "uid:65534", "nobodys"}, "ls", "--all-tenants")
	var list []struct{ Name, Tenant string }
	n.json(&list, "ls", "--all-tenants", "nob")
	if len(list) != 1 || list[0].Tenant != "uid:65534" {
		t.Error(list)
	}
	if out := n.want(0, nil, "ls"); strings.Contains(out, "nobodys") {
		t.Error(out)
	}
	if code, out := n.asNobody("ls", "--all-tenants"); code != exitPermission || !strings.Contains(out, "only root") ||
		strings.Contains(out, "roots") {
		t.Errorf("%d %s", code, out)
	}
	n.want(2, []string{"--all-tenants and --shared: use one of them"}, "ls", "--all-tenants", "--shared")
}
