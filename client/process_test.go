package client_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tendril/daemon/frontdoor"
	"tendril/store"
	"tendril/store/segment"
)

// processes are what this test binary runs as when CLIENT_TEST_PROCESS names it: each ends with its standard input.
var processes = map[string]func(){
	"daemon": daemonProcess,
}

// daemonProcess is a store behind a front door in a process of its own.
func daemonProcess() {
	s, err := store.New(store.Options{CapacityBytes: 6 << 30, WarmBytes: 256 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	door, err := frontdoor.Listen(frontdoor.Options{
		Socket: os.Getenv("TENDRIL_SOCKET"), Store: s, Backend: &backend{store: s},
		Tenant: func(uid, gid uint32) string { return "all" },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer door.Close()
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// child is a process that ends with the test at the latest.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// start runs this binary as the named process and waits for its first line.
func start(t testing.TB, name, socket string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CLIENT_TEST_PROCESS="+name, "TENDRIL_SOCKET="+socket)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &child{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(p.end)
	return p
}

// line gives the process's next line.
func (p *child) line(t testing.TB) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("process ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// end lets the process end by itself; kill it first to have it otherwise.
func (p *child) end() {
	p.stdin.Close()
	p.cmd.Wait()
}

func (p *child) kill() { p.cmd.Process.Kill() }

// startDaemon runs a daemon and gives its socket.
func startDaemon(t testing.TB) (socket string, p *child) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s", "tendril.sock")
	p = start(t, "daemon", socket)
	if got := p.line(t); got != "ready" {
		t.Fatal(got)
	}
	return socket, p
}

func dupFile(m *segment.Memory) (*os.File, error) {
	fd, err := m.Dup()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "segment"), nil
}
