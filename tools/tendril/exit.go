package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/login"
	"tendril/ipc"
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

	exitNotRunnable = 126 // as a shell has it
	exitNoProgram   = 127
)

const exitHelp = "Exit codes: " + exitCodes + "\n" + exitOthers

const exitCodes = `0 done, 1 failure, 2 wrong usage, 3 no daemon, 4 not found, 5 the store or the quota is full,
6 not allowed, 7 no such device, 8 the name is taken, 9 timed out.`

const exitOthers = `"run", "lease" and "trace" exit with the program's own code, 127 where there is no such program and
126 where it cannot be run. An interrupted command exits with 130 (Ctrl-C), or 128 and the number of another signal:
what it was storing is undone, what it has asked nodes for goes on.`

// usageError is a fault in how the command was written.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// hinted is an error with a next step of its own.
type hinted struct {
	error
	step string
}

func (h hinted) Unwrap() error { return h.error }

// noProgramError says that a program cannot be found, or run.
type noProgramError struct {
	name string
	why  error
}

func (n noProgramError) Error() string {
	if errors.Is(n.why, exec.ErrNotFound) {
		return fmt.Sprintf("there is no program %s in PATH", n.name)
	}
	return fmt.Sprintf("program %s: %v", n.name, errnoOf(n.why))
}

func (n noProgramError) Unwrap() error { return n.why }

// errnoOf gives the system's words alone, where they are the reason.
func errnoOf(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// noDeviceError says that there is no device of the name that was given.
type noDeviceError struct {
	name string
	why  error
}

// bare is an error's text without what kind of error it is, where one of these is said in other words.
func bare(err error, kinds ...error) string {
	text := err.Error()
	for _, kind := range kinds {
		text = strings.TrimPrefix(text, kind.Error()+": ")
	}
	return text
}

// Error leaves out what kind of error the reason is, and the name again: that the device is not there is said.
func (n noDeviceError) Error() string {
	why := bare(n.why, object.ErrNoDevice, object.ErrUnsupported)
	return fmt.Sprintf("there is no device %s: %s", n.name, strings.TrimPrefix(why, fmt.Sprintf("%.60q: ", n.name)))
}

func (n noDeviceError) Unwrap() error { return n.why }

// noDaemonError says that nobody answers on this machine.
type noDaemonError struct{ *ipc.NoDaemonError }

// refusedError says that a daemon answered, and lets nobody in for now or speaks another version.
type refusedError struct{ *client.EndedError }

func (r refusedError) Error() string {
	return fmt.Sprintf("the daemon at %s refuses the connection: %s", r.At,
		strings.TrimPrefix(r.Why.Error(), object.ErrBusy.Error()+": "))
}

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
		return exitNoDaemon, "Check that ssh works, that tendril is in your PATH there (or name it: ssh://HOST/PATH/TO/tendril), and that a daemon runs there."
	case errors.Is(err.why, object.ErrPermission):
		return exitPermission,
			"Create a token there (tendril token create), and log in with it: tendril login " + err.server
	case errors.Is(err.why, object.ErrVersion):
		return exitFailure, "Install the same release on both machines."
	case errors.Is(err.why, object.ErrProtocol):
		return exitFailure, "Check the address. The default port is " + login.DefaultPort +
			"; tendril status on that machine shows the daemon's."
	}
	return exitNoDaemon, "Does a daemon run there, and listen beyond its own machine (tendril daemon --listen :" +
		login.DefaultPort + ")?"
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
	if cut := (ended{}); errors.As(err, &cut) {
		code, step = cut.code, ""
	}
	text := strings.TrimPrefix(err.Error(), "tendril: ")
	if code == exitUsage {
		text = strings.TrimPrefix(text, object.ErrInvalid.Error()+": ") // the usage line says so
	}
	fmt.Fprintln(w, "tendril: "+plainLines(hideTokens(text))) // what drivers say, and names of others', stand in errors, too
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
	var line lineError
	var hint hinted
	var program noProgramError
	var absent noDeviceError
	switch {
	case errors.As(err, &hint):
		if code, _ = classify(hint.error); code == exitPermission && errors.Is(err, object.ErrPermission) {
			return code, "" // a list of what there is leads nowhere
		}
		return code, hint.step
	case errors.As(err, &line):
		return exitUsage, line.step()
	case errors.As(err, &program) && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)):
		return exitNoProgram, ""
	case errors.As(err, &program):
		return exitNotRunnable, ""
	case errors.As(err, &usage):
		return exitUsage, "See tendril --help, or --help after a verb."
	case errors.As(err, &server):
		return classifyServer(server)
	case errors.As(err, &none) && none.Denied():
		return exitPermission,
			"A daemon may run there that does not admit you: ask who runs it, or name another one with --socket or TENDRIL_SOCKET."
	case errors.As(err, &none):
		return exitNoDaemon, "Start one with: tendril daemon    (or name another socket: --socket, TENDRIL_SOCKET)"
	// A stream and an object have one number: the text tells them apart.
	case errors.Is(err, object.ErrNotFound) && strings.Contains(err.Error(), "no stream is named"):
		return exitNotFound, "See what is there with: tendril stream ls"
	case errors.Is(err, object.ErrNotFound) && strings.Contains(err.Error(), "the cluster has no node"):
		return exitNotFound, "See the cluster's nodes with: tendril cluster status"
	case errors.Is(err, object.ErrNotFound) && (strings.Contains(err.Error(), "no published object has the") ||
		strings.Contains(err.Error(), "has published no object")):
		return exitNotFound, "See what is published with: tendril ls --published    To publish an object: tendril publish"
	case errors.Is(err, object.ErrNotFound):
		return exitNotFound, "See what is there with: tendril ls"
	case errors.Is(err, object.ErrUnsupported) && strings.Contains(err.Error(), "no other node can take"):
		return exitFailure, "Have another node join (tendril cluster join), or ask for fewer replicas: " +
			"tendril replicate --replicas"
	case errors.Is(err, object.ErrFull) && (strings.Contains(err.Error(), "the GPU has no memory left") ||
		strings.Contains(err.Error(), "the device has no memory left")):
		return exitFull, "See what is there with: tendril ls    Programs and sessions take a device's memory, too."
	case errors.Is(err, object.ErrQuota) && strings.Contains(err.Error(), "--quota-device"):
		return exitFull, "See what is there with: tendril ls    For more on each device: tendril daemon --quota-device"
	case errors.Is(err, object.ErrFull):
		return exitFull, "See what takes the space with: tendril top    For a larger store: tendril daemon --capacity"
	case errors.Is(err, object.ErrLimit):
		return exitFull, "See what is there with: tendril ls, tendril stream ls    For more objects, or segments of memory: " +
			"tendril daemon --quota-objects, --quota-segments"
	case errors.Is(err, object.ErrQuota):
		return exitFull, "See what takes the space with: tendril top    For a larger quota: tendril daemon --quota"
	case errors.Is(err, object.ErrPermission), errors.Is(err, fs.ErrPermission):
		return exitPermission, ""
	case errors.Is(err, fs.ErrNotExist): // a file of this machine's
		return exitNotFound, ""
	case errors.Is(err, object.ErrNoDevice), errors.As(err, &absent):
		return exitNoDevice, "List devices with: tendril devices    Drivers that do not work: tendril status"
	case errors.Is(err, object.ErrExists) && (strings.Contains(err.Error(), "start this") ||
		strings.Contains(err.Error(), "first: tendril")): // it says what to do
		return exitExists, ""
	case errors.Is(err, object.ErrExists):
		return exitExists, "Choose another name."
	case errors.Is(err, object.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout, ""
	case errors.Is(err, object.ErrStorage):
		return exitFailure, "If the object is damaged, delete it (tendril rm) and put it again. tendril scrub finds others."
	case errors.Is(err, object.ErrInvalid): // the daemon, or the client, says what of it
		return exitUsage, ""
	case errors.Is(err, object.ErrVersion), errors.Is(err, object.ErrProtocol):
		return exitFailure, "Use the daemon, the command and the library of the same build."
	}
	return exitFailure, ""
}

// exitCode is an exit code of a program that needs no words of ours.
type exitCode int

func (e exitCode) Error() string { return "the program ended with exit code " + strconv.Itoa(int(e)) }

// lineError is a usageError of one command, whose usage line says how it is written.
type lineError struct {
	cmd *cobra.Command
	error
}

func (e lineError) Unwrap() error { return e.error }

// step says how the command is written.
func (e lineError) step() string {
	return fmt.Sprintf("Usage: %s\nSee %s --help.", e.cmd.UseLine(), e.cmd.CommandPath())
}
