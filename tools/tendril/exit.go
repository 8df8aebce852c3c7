package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/store/object"
)

// Exit codes. They are part of the command line's contract and stand in its help.
const (
	exitOK         = 0
	exitFailure    = 1
	exitUsage      = 2
	exitNoDaemon   = 3
	exitNotFound   = 4
	exitFull       = 5
	exitPermission = 6
	exitNoDevice   = 7
	exitExists     = 8
	exitTimeout    = 9
)

const exitHelp = `Exit codes: 0 done, 1 failure, 2 wrong usage, 3 no daemon, 4 not found, 5 the store or the quota is full,
6 not allowed, 7 no such device, 8 the name is taken, 9 timed out. "run" and "trace" end with the program's own code.`

// usageError is a fault in how the command was written.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// noDaemonError says that nobody answers at a socket.
type noDaemonError struct {
	socket string
	why    error
}

func (n noDaemonError) Error() string {
	if errno := syscall.Errno(0); errors.As(n.why, &errno) { // the rest of it is said below
		return fmt.Sprintf("no daemon answers at %s: %v", n.socket, errno)
	}
	return fmt.Sprintf("no daemon answers at %s: %v", n.socket, n.why)
}

func (n noDaemonError) Unwrap() error { return n.why }

// refusedError says that a daemon answers at a socket, but has as many connections open as it may.
type refusedError struct {
	socket string
	why    error
}

func (r refusedError) Error() string {
	_, why, _ := strings.Cut(r.why.Error(), object.ErrBusy.Error()+": ")
	return fmt.Sprintf("the daemon at %s refuses the connection: %s", r.socket, why)
}

func (r refusedError) Unwrap() error { return r.why }

// serverError says that another machine's daemon could not be spoken to.
type serverError struct {
	server string
	why    error
}

func (s serverError) Error() string { return s.why.Error() }
func (s serverError) Unwrap() error { return s.why }

// classifyServer is classify for those.
func classifyServer(err serverError) (code int, step string) {
	overSSH := strings.HasPrefix(err.server, "ssh://")
	switch {
	case errors.Is(err.why, object.ErrInvalid):
		return exitUsage, "See tendril login --help."
	case overSSH && errors.Is(err.why, client.ErrDisconnected):
		return exitNoDaemon, "Does ssh get there, is tendril in your PATH there (or name it: ssh://HOST/PATH/TO/tendril), and does a daemon run there (tendril daemon)?"
	case errors.Is(err.why, object.ErrPermission):
		return exitPermission, "Get a token there (tendril token create), and log in with it: tendril login " + err.server
	case errors.Is(err.why, object.ErrVersion):
		return exitFailure, "Run one release on both machines."
	case errors.Is(err.why, object.ErrProtocol):
		return exitFailure, "Is the address right? The front door's port is " + client.DefaultPort + " unless the daemon says otherwise (tendril status)."
	}
	return exitNoDaemon, "Does a daemon run there, and listen beyond its own machine (tendril daemon --listen :" + client.DefaultPort + ")?"
}

// report prints err with its next step and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if child := exitCode(0); errors.As(err, &child) {
		return int(child) // it has said what it had to say
	}
	code, step := classify(err)
	fmt.Fprintln(w, "tendril: "+strings.TrimPrefix(err.Error(), "tendril: "))
	if step != "" {
		fmt.Fprintln(w, step)
	}
	return code
}

// classify gives the exit code of an error and what a person can do about it.
func classify(err error) (code int, step string) {
	var usage usageError
	var none noDaemonError
	var server serverError
	switch {
	case errors.As(err, &usage):
		return exitUsage, "See tendril --help, or --help after a verb."
	case errors.As(err, &server):
		return classifyServer(server)
	case errors.As(err, &none):
		if errors.Is(none.why, unix.EACCES) {
			return exitPermission, "The socket is another user's: start a daemon of your own (tendril daemon), or name another with --socket."
		}
		return exitNoDaemon, "Start one with: tendril daemon    (or name another socket: --socket, TENDRIL_SOCKET)"
	// A stream and an object have one number: the text tells them apart.
	case errors.Is(err, object.ErrNotFound) && strings.Contains(err.Error(), "no stream is named"):
		return exitNotFound, "See what is there with: tendril stream ls"
	case errors.Is(err, object.ErrNotFound):
		return exitNotFound, "See what is there with: tendril ls"
	case errors.Is(err, object.ErrFull):
		return exitFull, "Delete objects (tendril ls, tendril rm), or start the daemon with a larger --capacity."
	case errors.Is(err, object.ErrQuota):
		return exitFull, "Delete objects of yours (tendril ls, tendril rm), or ask for a larger quota (tendril daemon --quota)."
	case errors.Is(err, object.ErrPermission):
		return exitPermission, ""
	case errors.Is(err, fs.ErrPermission):
		return exitPermission, ""
	case errors.Is(err, object.ErrNoDevice):
		return exitNoDevice, "See what is there with: tendril devices    and why not more with: tendril status"
	case errors.Is(err, object.ErrExists):
		return exitExists, "Choose another name, or replace the old object with --replace."
	case errors.Is(err, object.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout, ""
	case errors.Is(err, object.ErrStorage):
		return exitFailure, "Where it is damaged, delete it (tendril rm), and put it again. What else is: tendril scrub."
	case errors.Is(err, object.ErrVersion), errors.Is(err, object.ErrProtocol):
		return exitFailure, "Run the daemon, the command and the library of one build."
	}
	return exitFailure, ""
}
