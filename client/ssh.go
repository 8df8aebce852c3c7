package client

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/store/object"
)

const (
	sshScheme = "ssh://"
	sshTime   = 2 * time.Minute // for ssh to connect, and for a person who is asked for a password
	sshGrace  = 3 * time.Second // for ssh to end
)

// sshCommand is what runs the proxy on another machine. TENDRIL_SSH names another ssh(1).
func sshCommand(server string) ([]string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-") ||
		strings.HasPrefix(u.User.Username(), "-") || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: server %q: want ssh://[USER@]HOST[:PORT][/PROGRAM]", object.ErrInvalid, server)
	}
	if _, secret := u.User.Password(); secret {
		return nil, fmt.Errorf("%w: server: do not put a password into an address, where every user of this machine sees it: let ssh ask for it", object.ErrInvalid)
	}
	program := os.Getenv("TENDRIL_SSH")
	if program == "" {
		program = "ssh"
	}
	args := []string{program, "-T"}
	if u.Port() != "" {
		args = append(args, "-p", u.Port())
	}
	if name := u.User.Username(); name != "" {
		args = append(args, "-l", name)
	}
	there := "tendril"
	if len(u.Path) > 1 {
		there = u.Path
	}
	return append(args, "--", u.Hostname(), "'"+strings.ReplaceAll(there, "'", `'\''`)+"' proxy"), nil
}

// dialSSH makes a Conn over ssh's standard input and output.
func dialSSH(_ context.Context, server string) (*Conn, error) {
	argv, err := sshCommand(server)
	if err != nil {
		return nil, err
	}
	socket, cmd, ended, err := startSSH(argv, server)
	if err != nil {
		return nil, err
	}
	c := newConn(ipc.NewRemote(socket, socket), server)
	c.remote = true
	c.lane = func(context.Context) (*ipc.Socket, error) {
		lane, _, _, err := startSSH(argv, server)
		return lane, err
	}
	c.done = func() { end(cmd, ended) }
	c.patience = sshTime
	c.excuse = func(err error) error {
		if cmd.ProcessState.Success() {
			return err
		}
		return fmt.Errorf("%w: server %s: ssh ended before a daemon answered (%v)", ErrDisconnected, server,
			cmd.ProcessState)
	}
	return c, nil
}

// startSSH runs ssh on one end of a socket pair. It ends when the other end is closed; ended is closed then.
func startSSH(argv []string, server string) (socket *ipc.Socket, cmd *exec.Cmd, ended <-chan struct{}, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "ssh")
	defer theirs.Close()
	// above a program's standard descriptors (see ipc.Dial)
	fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 10)
	unix.Close(fds[0])
	if err != nil {
		return nil, nil, nil, err
	}
	cmd = exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, os.Stderr
	if err := cmd.Start(); err != nil {
		unix.Close(fd)
		return nil, nil, nil, err
	}
	done := make(chan struct{})
	go func() { // ends with ssh, which ends with the socket
		_ = cmd.Wait() // what was wrong it said on standard error
		close(done)
	}()
	return ipc.NewSocket(fd, server), cmd, done, nil
}

// end waits for ssh's end, and kills one that a dead network holds.
func end(cmd *exec.Cmd, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-time.After(sshGrace):
		_ = cmd.Process.Kill()
		<-ended
	}
}
