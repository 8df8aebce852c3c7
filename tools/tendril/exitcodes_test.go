package main

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// asNobody runs a command line of a node's as a user who owns nothing of it.
func (n *node) asNobody(args ...string) (code int, said string) {
	n.t.Helper()
	base := cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir()) // where t.TempDir's are
	for dir := n.dir; strings.HasPrefix(dir, base+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(built, "tendril"), args...)
	cmd.Env, cmd.Dir = n.env, n.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := cmd.CombinedOutput() // its exit code says what the error would
	return cmd.ProcessState.ExitCode(), string(out)
}

// failures are the commonest ones of every verb, by the exit code of the table (exitHelp) that they must have.
// In a line %F is a file, %L one that is larger than the tenant's quota, %D a directory; "nobody: " is another user.
var failures = map[int][]string{
	exitUsage: {"put", "put %F --device gpu", "put %D", "get", "stat", "ls --nothing", "session kill x", "peer rm x",
		"lease --wait=soon -- true", "run --device speed=fast -- true", "tenant map x", "nonsense", "session nonsense",
		"cluster join x:1 --token nonsense", "mv named " + strings.Repeat("n", 300),
		"put %F --device opencl:0 --name " + strings.Repeat("n", 300), "put %F --device opencl:x", "audit --since soon",
		"stream push s --frame lots", "get named --offset lots -o -"},
	exitNotFound: {
		"put missing", "put missing --device opencl:0", "stream push s missing", "get named -o missing/out",
		"config show --config missing", "daemon --config missing",
		"trace -o missing/t.json -- true", "run --library missing -- true",
		"cluster restore missing --name y --state-dir %D/other", "cluster backup missing/b",
		"get none -o -", "stat none", "rm none", "mv none other", "set none --pin", "share none --to root",
		"publish none", "unpublish none", "place none", "replicate none --replicas 2", "migrate none --to testnode",
		"replicate published --to nonode", "migrate published --to nonode", "drain nonode", "compose whole part=none",
		"stream rm none", "session show 9", "session kill 9", "leases end 9", "token revoke abcdef",
		"certificate revoke abcdef", "tenant quota none --memory 1MiB", "tenant disable none", "tenant enable none",
		"tenant rm none", "tenant map none --user root", "cluster remove nonode", "logout nowhere"},
	exitFull: {"put %L", "put %L --name named --replace", "stream push s %L"},
	exitPermission: {"--server localhost:1 ls", "nobody: cluster leave", "nobody: cluster remove x",
		"nobody: cluster recover --yes", "nobody: cluster rotate", "nobody: cluster backup b", "nobody: token create",
		"nobody: token ls", "nobody: token revoke abcdef", "nobody: certificate ls",
		"nobody: certificate revoke abcdef", "nobody: tenant create x", "nobody: tenant ls",
		"nobody: tenant map x --user root", "nobody: tenant quota x --memory 1MiB", "nobody: tenant disable x",
		"nobody: tenant enable x", "nobody: tenant rm x", "nobody: audit", "nobody: peer ls",
		"nobody: peer add x:1 --ca " + strings.Repeat("ab", 32), "nobody: peer rm x:1", "nobody: ls --all-tenants",
		"nobody: put closed", "nobody: stream push t closed", "nobody: config show --config closed"},
	exitNoDevice: {"put %F --name g --device opencl:7", "put %F --name g --device cuda:7",
		"put %F --name g --device 00112233445566778899aabbccddeeff", "run --device 7 -- true", "env --device 7",
		"lease --device 7 -- true", "trace --device 7 -- true"},
	exitExists: {"put %F --name named", "mv other named", "publish other --name published", "tenant create lab",
		"compose named part=other"},
	exitTimeout:     {"get none --wait 20ms -o -", "stream pop s2 --wait 20ms"},
	exitNoProgram:   {"run -- none-such", "trace -- none-such", "lease -- none-such"},
	exitNotRunnable: {"run -- %F", "trace -- %F", "lease -- %F"},
}

// without has the verbs that do not fail in a way of the table, and why.
var without = map[string]string{
	"version": "asks nobody", "completion": "asks nobody", "doctor": "its checks have no code each",
	"help": "asks nobody", "servers": "those that do not answer are listed", "man": "asks nobody",
}

// TestExitCodes: every verb fails with the code that the table has for it.
func TestExitCodes(t *testing.T) {
	n := withQuota(t)
	replace := strings.NewReplacer("%F", n.file("file", []byte("x")), "%L", n.file("large", pattern(9<<20)), "%D", n.dir)
	if err := os.Chmod(n.file("closed", []byte("x")), 0); err != nil {
		t.Fatal(err)
	}
	n.env = append(n.env, passphraseEnv+"=a passphrase of some length")
	for _, name := range []string{"named", "other", "published"} {
		n.want(0, nil, "put", "file", "--name", name)
	}
	n.want(0, nil, "publish", "published")
	n.want(0, nil, "tenant", "create", "lab")
	n.want(exitNoDevice, []string{"no device opencl:7: this node has 1 OpenCL device, the first is opencl:0",
		"tendril devices"}, "put", "file", "--name", "g", "--device", "opencl:7")
	for want, lines := range failures {
		for _, line := range lines {
			line, asNobody := strings.CutPrefix(line, "nobody: ")
			args := strings.Fields(replace.Replace(line))
			var code int
			var said string
			switch {
			case !asNobody:
				var out string
				code, out, said = n.run("", args...)
				said += out
			case os.Getuid() != 0:
				continue
			default:
				code, said = n.asNobody(args...)
			}
			if code != want {
				t.Errorf("%.80s: %d, want %d\n%s", line, code, want, said)
			}
		}
	}
}

// withQuota gives a node with a device, on which a tenant may have 8 MiB.
func withQuota(t *testing.T) *node { return withLibrary(t, "--quota", "8MiB") }

// TestLeaseThatTimesOut: who waited for a device in vain is told so, and who did not wait, that it is busy.
func TestLeaseThatTimesOut(t *testing.T) {
	n := withLibrary(t)
	out := n.want(0, nil, "lease", "--", "sh", "-c", `for wait in --wait=20ms ""; do
		env -u TENDRIL_LEASE "$0" lease $wait -- true; echo "code $?"; done 2>&1`, filepath.Join(built, "tendril"))
	if !strings.Contains(out, "timed out: ") || strings.Count(out, "tendril leases") != 2 ||
		!strings.Contains(out, "code 9") || !strings.Contains(out, "code 1") {
		t.Error(out)
	}
}

// TestNoDaemonForAnyVerb: each verb that asks a daemon says that there is none, and how to start one.
func TestNoDaemonForAnyVerb(t *testing.T) {
	n := newNode(t)
	replace := strings.NewReplacer("FILE|-", n.file("x", []byte("x")), "NAME|ID --to USER|GROUP|all", "x --to root",
		"NAME|ID --to NODE", "x --to y", "NAME PART=OBJECT…", "x part=y", "STREAM [FILE…]", "s "+n.file("x", nil),
		"HOST:PORT --ca FINGERPRINT", "x:1 --ca "+strings.Repeat("ab", 32), "HOST:PORT", "x:1", "HOST[:PORT]",
		"x:1 --token tdl_"+strings.Repeat("0a", 30), "[flags] -- PROGRAM [ARGS…]", "-- true", "NAME NEWNAME", "x y",
		"NAME|ID…", "x", "NAME|ID", "x", "ID…", "123456", "ID", "123456", "LEASE", "1", "TENANT", "lab", "NODE", "x",
		"STREAM", "s", "[PREFIX]", "", "[SERIAL]", "")
	more := map[string]string{"tenant map": "--user root", "tenant quota": "--memory 1MiB", "set": "--pin",
		"replicate": "--replicas 2", "get": "-o -", "stream push": "", "certificate revoke": "abcdef",
		"cluster recover": "--yes"}
	asks := 0
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			each(sub)
		}
		if !cmd.IsAvailableCommand() || !cmd.HasParent() || cmd.HasSubCommands() && cmd.Name() != "leases" {
			return
		}
		path := below(cmd)
		switch first, _, _ := strings.Cut(path, " "); {
		case without[first] != "", path == "daemon", path == "config show", path == "login", path == "logout",
			path == "cluster restore", path == "cluster backup":
			return
		}
		_, args, _ := strings.Cut(cmd.Use, " ")
		line := path + " " + replace.Replace(strings.TrimSuffix(args, "[NODE]")) + " " + more[path]
		code, out, errs := n.run("", strings.Fields(line)...)
		if code != exitNoDaemon || !strings.Contains(errs, n.socket) {
			t.Errorf("%s: %d\n%s%s", line, code, out, errs)
		}
		asks++
	}
	each((&cli{term: terminal{out: &bytes.Buffer{}, err: &bytes.Buffer{}}}).root(nil))
	if asks < 50 {
		t.Errorf("%d verbs asked", asks)
	}
	if text := (&cli{}).root(nil).Long; !strings.Contains(text, exitCodes) {
		t.Errorf("the help has no table: %s", text)
	}
}
