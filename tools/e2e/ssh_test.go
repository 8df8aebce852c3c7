package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// sshServer starts sshd(8) for this user on a port of this machine, and gives a program to be TENDRIL_SSH that trusts
// it.
func sshServer(t *testing.T) (program, server string) {
	t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd = os.Getenv("TENDRIL_SSHD") // one that is not installed
	}
	if _, err := os.Stat(sshd); err != nil {
		t.Skip("skipped: sshd is not installed")
	}
	if _, err := user.Lookup("sshd"); err != nil && os.Getuid() == 0 && os.Getenv("TENDRIL_SSHD") == "" {
		t.Skipf("skipped: sshd is not set up: %v", err)
	}
	need(t, "ssh", installed("ssh"))
	need(t, "ssh-keygen", installed("ssh-keygen"))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, key := range []string{"host", "own"} {
		if _, err := rig.Output(exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			at(key))); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	config := fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n",
		port, at("host"), at("own.pub"))
	wrapper := fmt.Sprintf("#!/bin/sh\nexec ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=%s -i %s \"$@\"\n", at("known"), at("own"))
	for name, text := range map[string]string{"config": config, "ssh": wrapper} {
		if err := os.WriteFile(at(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Mkdir("/run/sshd", 0o755) // where root's sshd separates itself; it is there where sshd is a service
	cmd := exec.Command(sshd, "-D", "-e", "-f", at("config"))
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", log.String())
		}
	})
	eventually(t, func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err
	})
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return at("ssh"), fmt.Sprintf("ssh://%s@127.0.0.1:%d", me.Username, port)
}

// TestProgramsOverSSH: the same as TestRealSSH, with a program in ssh's place that runs what it is told on this
// machine.
func TestProgramsOverSSH(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	fake := filepath.Join(t.TempDir(), "ssh")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	overSSH(t, fake, "ssh://me@gpubox:2222")
}

// TestRealSSH: a machine's devices and objects through ssh alone, without a token and without a port of ours.
func TestRealSSH(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	ssh, server := sshServer(t)
	overSSH(t, ssh, server)
}

func overSSH(t *testing.T, ssh, server string) {
	n := node(t, "TENDRIL_LISTEN=none")
	// What ssh starts has its own environment: a program there that knows the node's socket.
	there := filepath.Join(t.TempDir(), "tendril")
	if err := os.WriteFile(there, fmt.Appendf(nil, "#!/bin/sh\nexec %s --socket %s \"$@\"\n", n.Tendril(), n.Socket()),
		0o755); err != nil {
		t.Fatal(err)
	}
	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), n.Tendril(),
			append([]string{args[0], "--server", server + there}, args[1:]...)...)
		cmd.Env = append(rig.Native(), "TENDRIL_SSH="+ssh)
		cmd.Stdin = strings.NewReader(stdin)
		return rig.Output(cmd)
	}
	if out, err := run(wholeScript, "run", "--", session); err != nil || strings.Count(out, "good") != 2 {
		t.Errorf("a program: %q, %v", out, err)
	}
	if _, err := run("over ssh", "put", "-", "--name", "x"); err != nil {
		t.Error(err)
	}
	if out, err := run("", "get", "x", "-o", "-"); err != nil || out != "over ssh" {
		t.Errorf("get: %q, %v", out, err)
	}
	if _, err := run("", "login"); err == nil {
		t.Error("a login without a server")
	}
	eventually(t, idle(t.Context(), n))
}
