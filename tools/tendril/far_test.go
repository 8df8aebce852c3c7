package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/daemon"
	"tendril/daemon/inspect"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// farNode starts a node that other machines reach, and gives its address.
func farNode(t *testing.T, args ...string) (*node, string) {
	t.Helper()
	n := startNode(t, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	var s daemon.Status
	if err := json.Unmarshal([]byte(n.want(0, nil, "status", "--json")), &s); err != nil || s.Node.Listen == "" {
		t.Fatalf("%+v, %v", s.Node, err)
	}
	return n, s.Node.Listen
}

func TestLoginFromAnotherMachine(t *testing.T) {
	n, at := farNode(t)
	n.want(6, []string{"tendril login " + at}, "--server", at, "ls")
	token := strings.TrimSpace(n.want(0, []string{"tdl_"}, "token", "create", "--expires", "1h", "--tenant",
		"lab", "--once"))
	code, out, errs := n.run(token+"\n", "login", at, "--name", "laptop")
	if code != 0 || !strings.Contains(out, "laptop (user, tenant lab)") {
		t.Fatalf("code %d: %s%s", code, out, errs)
	}
	code, _, errs = n.run(token, "login", at)
	if code != 6 || !strings.Contains(errs, "one use") || strings.Contains(errs, token) ||
		strings.Contains(errs, "client.pem") {
		t.Errorf("a used token: code %d: %s", code, errs)
	}
	n.want(0, []string{"testnode"}, "--server", at, "status")
	n.want(0, []string{"You have no sealed objects"}, "--server", at, "ls")
	n.want(0, []string{"You have no sealed objects"}, "--server", n.socket, "ls")
	n.want(6, []string{"on its machine"}, "--server", at, "token", "ls")
	n.want(2, []string{"several servers"}, "--server", at, "--server", at, "ls")
	n.want(2, []string{"one or the other"}, "--server", at, "--socket", n.socket, "ls")
	var tokens []inspect.Token
	if err := json.Unmarshal([]byte(n.want(0, nil, "token", "ls", "--json")), &tokens); err != nil ||
		len(tokens) != 1 || tokens[0].State != "used" || tokens[0].Certificates != 1 {
		t.Fatalf("%+v, %v", tokens, err)
	}
	n.want(0, []string{"laptop"}, "token", "ls")
	tenantByClient(t, n)
	n.want(0, []string{"These keep their certificates: laptop."}, "token", "revoke", tokens[0].ID)
	n.want(0, []string{"testnode"}, "--server", at, "status")
	n.want(0, nil, "token", "revoke", tokens[0].ID, "--certificates")
	n.want(6, []string{"refuses our certificate"}, "--server", at, "ls")
	n.want(0, []string{"revoked"}, "token", "ls")
	if strings.Contains(n.log.String(), token) {
		t.Error("the token is in the daemon's log")
	}
	err := filepath.WalkDir(n.dir, func(path string, e fs.DirEntry, err error) error {
		var raw []byte
		if err == nil && e.Type().IsRegular() {
			raw, err = os.ReadFile(path)
		}
		if strings.Contains(string(raw), token) {
			t.Errorf("the token is in %s", path)
		}
		if errors.Is(err, fs.ErrNotExist) { // the daemon has removed it meanwhile
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// throughServer puts, gets, stats and removes objects of another machine's daemon.
func throughServer(t *testing.T, n *node, server string) {
	t.Helper()
	far := func(code int, want []string, args ...string) string {
		t.Helper()
		return n.want(code, want, append([]string{"--server", server}, args...)...)
	}
	for _, size := range []int{0, 1, 4096, 5<<20 + 7} {
		name := fmt.Sprintf("far%d", size)
		path := n.file(name, pattern(size))
		far(0, []string{name}, "put", path)
		far(8, []string{"--replace"}, "put", path)
		far(0, nil, "put", path, "--replace", "--label", "a=b")
		if _, out, errs := n.run("", "--server", server, "get", name); out != string(pattern(size)) {
			t.Errorf("%s: %d other bytes came back: %s", name, len(out), errs)
		}
		if _, out, _ := n.run("", "--server", server, "get", name, "--offset", "3000", "--length",
			"2000"); size > 3000 && out != string(pattern(size)[3000:min(size, 5000)]) {
			t.Errorf("%s: a part: %d other bytes", name, len(out))
		}
		far(0, []string{object.Counted(size, "byte") + " (", "named", "sealed"}, "stat", name)
	}
	far(2, []string{"beyond"}, "get", "far1", "--offset", "2", "-o", "-")
	far(2, []string{"--length"}, "get", "far1", "--length", "lots", "-o", "-")
	if code, _, errs := n.run(strings.Repeat("x", 9<<20), "--server", server, "put", "-", "--name",
		"stream"); code != 0 {
		t.Errorf("a stream: %s", errs)
	}
	big := n.file("big", nil)
	if err := os.Truncate(big, 100<<20); err != nil {
		t.Fatal(err)
	}
	far(5, []string{"full"}, "put", big)
	far(0, nil, "put", n.file("shown", []byte("for all")), "--publish")
	far(0, []string{"shown"}, "ls", "--published")
	far(0, []string{"for all"}, "get", "shown", "--wait", "5m")
	far(9, nil, "get", "never", "--wait", "20ms", "-o", "-")
	far(0, nil, "rm", "far0", "far1", "far4096", fmt.Sprintf("far%d", 5<<20+7), "stream", "shown")
	far(4, nil, "stat", "far1")
	nothingLeft(t, func() string { return far(0, nil, "ls", "--json") })
}

// nothingLeft waits for an empty list. The daemon hears a moment later of the end of a process, which had objects.
func nothingLeft(t *testing.T, ls func() string) {
	t.Helper()
	await.Until(t, "an empty list", func() bool { return strings.TrimSpace(ls()) == "[]" })
}

func TestObjectsOfAnotherMachine(t *testing.T) {
	n, at := farNode(t)
	token := strings.TrimSpace(n.want(0, nil, "token", "create", "--tenant", "lab"))
	looks := strings.TrimSpace(n.want(0, nil, "token", "create", "--tenant", "lab", "--role", "read-only"))
	n.want(0, nil, "login", at, "--token", token)
	throughServer(t, n, at)
	n.want(0, nil, "--server", at, "put", n.file("kept", []byte("kept")))
	n.want(0, nil, "login", at, "--token", looks)
	n.want(6, []string{"read-only"}, "--server", at, "put", n.file("y", []byte("y")))
	n.want(6, []string{"read-only"}, "--server", at, "rm", "kept")
	n.want(0, []string{"kept"}, "--server", at, "get", "kept")
	n.want(4, nil, "get", "kept", "-o", "-") // another tenant's here
}

func TestServersThatAreNone(t *testing.T) {
	n, at := farNode(t)
	n.want(2, []string{"begins with"}, "login", at, "--token", "nonsense")
	n.want(2, []string{"no token"}, "login", at)
	for _, server := range []string{"http://gpubox", "gpubox:lots", "gpubox:0", "me@gpubox", ":7433", "gpubox/7433"} {
		n.want(2, []string{"want HOST"}, "--server", server, "ls")
		n.want(2, []string{"want HOST"}, "login", server, "--token",
			strings.TrimSpace(n.want(0, nil, "token", "create")))
	}
	token := strings.TrimSpace(n.want(0, nil, "token", "create"))
	other, otherAt := farNode(t)
	n.want(6, []string{"another authority"}, "login", otherAt, "--token", token)
	n.want(3, []string{"Does a daemon run there"}, "login", "127.0.0.1:1", "--token", token)
	n.want(0, nil, "login", at, "--token", token)
	// Another daemon answers where ours did: same name, other keys.
	was := credentialsAt(t, n.dir, at)
	if err := os.Rename(was, strings.Replace(was, port(at), port(otherAt), 1)); err != nil {
		t.Fatal(err)
	}
	n.want(6, []string{"another authority"}, "--server", otherAt, "ls")
	_ = other
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func credentialsAt(t *testing.T, home, address string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(home, ".config", "tendril", "servers", "*"+port(address)))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

func TestServerOverSSH(t *testing.T) {
	n := startNode(t)
	ssh := n.file("ssh", []byte(fmt.Sprintf("#!/bin/sh\necho \"$@\" > %s/ssh-args\nfor last; do :; done\nPATH=%s:$PATH exec sh -c \"$last\"\n", n.dir, built)))
	if err := os.Chmod(ssh, 0o755); err != nil {
		t.Fatal(err)
	}
	n.env = append(n.env, "TENDRIL_SSH="+ssh)
	n.want(0, []string{"testnode"}, "--server", "ssh://me@gpubox:2222", "status")
	args, err := os.ReadFile(filepath.Join(n.dir, "ssh-args"))
	if want := "-T -p 2222 -l me -- gpubox 'tendril' proxy\n"; err != nil || string(args) != want {
		t.Errorf("ssh was called with %q, %v; want %q", args, err, want)
	}
	n.want(0, nil, "--server", "ssh://gpubox"+filepath.Join(built, "tendril"), "ls")
	throughServer(t, n, "ssh://gpubox")
	n.want(3, []string{"exit status 127", "in your PATH there"}, "--server", "ssh://gpubox/no/such/program", "ls")
	n.want(2, nil, "--server", "ssh://-oProxyCommand=evil/", "ls")
	n.want(2, []string{"needs no login"}, "login", "ssh://gpubox")
	n.want(2, []string{"password"}, "--server", "ssh://me:secret@gpubox", "ls")
	await.Until(t, "no proxy is left", func() bool { return n.proxies() == 0 })
}

// proxies counts the processes that copy between ssh(1) and the node's daemon.
func (n *node) proxies() (count int) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		args, _ := os.ReadFile(p + "/cmdline") // none: it has ended, or is another user's
		env, _ := os.ReadFile(p + "/environ")
		if strings.HasSuffix(string(args), "\x00proxy\x00") &&
			strings.Contains(string(env), "TENDRIL_SOCKET="+n.socket+"\x00") {
			count++
		}
	}
	return count
}

func TestPublishAndGetByName(t *testing.T) {
	n := startNode(t)
	file := n.file("w.bin", pattern(100000))
	n.want(0, nil, "put", file, "--publish")
	n.want(0, []string{"w.bin", "testnode"}, "ls", "--published")
	n.want(8, nil, "put", file, "--publish")
	n.want(0, nil, "put", file, "--publish", "--replace")
	code, out, errs := n.run("", "get", "w.bin", "-o", "-")
	if code != 0 || out != string(pattern(100000)) {
		t.Errorf("code %d, %d bytes: %s", code, len(out), errs)
	}
	done := make(chan string)
	go func() {
		_, out, errs := n.run("", "get", "soon", "--wait", "5m", "-o", "-")
		done <- out + errs
	}()
	n.want(0, nil, "put", file, "--name", "local", "--publish") // wakes who waits, and is not it
	n.want(0, nil, "put", n.file("soon", []byte("here")), "--publish")
	if got := <-done; got != "here" {
		t.Errorf("a waiting get: %q", got)
	}
	n.want(0, nil, "rm", "soon", "local")
	n.want(0, nil, "put", file, "--name", "fleeting", "--publish")
	n.want(0, nil, "set", "fleeting", "--ttl", "300ms") // from now on: before, it might be gone when it is published
	n.want(0, nil, "put", file, "--name", "moved", "--publish")
	// no longer what was published
	n.want(0, nil, "put", n.file("other", []byte("other")), "--name", "moved", "--replace")
	gone := func() bool {
		out := n.want(0, nil, "ls", "--published")
		return !strings.Contains(out, "fleeting") && !strings.Contains(out, "moved")
	}
	await.Until(t, "end of what is published of objects that are gone", gone)
	n.want(0, []string{"other"}, "get", "moved")
	n.want(0, nil, "rm", "moved")
	n.want(0, nil, "rm", "w.bin")
	if out := n.want(0, nil, "ls", "--published", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("published: %s", out)
	}
	n.want(4, nil, "get", "w.bin", "-o", "-")
}

func TestConfigurationFile(t *testing.T) {
	n := newNode(t)
	file := n.file("t.toml",
		[]byte("capacity = \"128MiB\"\nvendors = [\"/a\", \"/b\"]\nmax-workers = 9\n[tenants.lab]\nusers = [4242]\n"))
	n.env = append(n.env, "TENDRIL_QUOTA=64MiB")
	n.want(0, []string{"134217728 (128 MiB)", "auto", "file " + file, "67108864", "environment TENDRIL_QUOTA",
		"flag --name", "users [4242]", "/a:/b"}, "config", "show", "--config", file, "--name", "x")
	bad := n.file("bad.toml",
		[]byte("capacity = \"lots\"\nmax-workers = true\nsuch = 1\nlisten = \"nowhere\"\n[tenants.\"uid:7\"]\nusers = [\"no such user\"]\n[tenants.b]\ncolours = [\"red\"]\n"))
	n.want(2, []string{"lots", "max-workers", "such", "nowhere", "uid:7", "no such user", "colours"}, "daemon",
		"--config", bad)
	n.want(4, []string{"no such file"}, "daemon", "--config", "absent.toml")
	n.want(2, []string{"torn.toml"}, "daemon", "--config", n.file("torn.toml", []byte("capacity = ")))
}

func TestPageOverHTTP(t *testing.T) {
	n := startNode(t, "--http", "127.0.0.1:0")
	address := strings.TrimSpace(n.want(0, []string{"/ui#token="}, "ui"))
	base, secret, _ := strings.Cut(address, "/ui#token=")
	curl := func(args ...string) string {
		out, err := exec.Command("curl", append([]string{"-sS", "--max-time", "300"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	if got := curl("-H", "Authorization: Bearer "+secret, base+"/v1/status"); !strings.Contains(got,
		`"name":"testnode"`) {
		t.Error(got)
	}
	if got := curl(base + "/v1/status"); !strings.Contains(got, "error") {
		t.Errorf("without a token: %s", got)
	}
	if got := curl("--unix-socket", n.socket+".http", "http://node/v1/raft"); !strings.Contains(got,
		`"state":"Leader"`) {
		t.Error(got)
	}
	plain := startNode(t)
	plain.want(1, []string{"--http"}, "ui")
}

// tenantByClient: a tenant may be named by a client of it, which token ls shows, where that is said. A client's name
// alone is a tenant's: clients choose theirs.
func tenantByClient(t *testing.T, n *node) {
	t.Helper()
	made := func(want string, args ...string) string {
		t.Helper()
		var token struct{ Token string }
		code, out, errs := n.run("", append([]string{"token", "create", "--json"}, args...)...)
		if code != 0 {
			t.Fatal(errs)
		}
		decode(t, out, &token)
		var list []inspect.Token
		n.json(&list, "token", "ls")
		if last := list[len(list)-1]; last.Tenant != want {
			t.Errorf("%q is for %q, want %q", args, last.Tenant, want)
		}
		n.want(0, nil, "token", "revoke", list[len(list)-1].ID)
		return errs
	}
	if errs := made("lab", "--tenant", "client:laptop"); errs != "" {
		t.Error(errs)
	}
	if errs := made("laptop", "--tenant", "laptop"); !strings.Contains(errs, "--tenant client:laptop") {
		t.Error(errs)
	}
	if errs := made("lab", "--tenant", "lab"); errs != "" {
		t.Error(errs)
	}
	n.want(4, []string{`no client is called "nobody"`, "tendril token ls"}, "token", "create", "--tenant", "client:nobody")
	if _, out, _ := n.run("", "__complete", "token", "create", "--tenant", "cl"); !strings.Contains(out,
		"client:laptop\ttenant lab") {
		t.Error(out)
	}
}
