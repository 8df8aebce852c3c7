package ipc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// SystemSocket is the socket of the daemon that root runs for everybody.
const SystemSocket = "/run/tendril/tendril.sock"

// Sockets are the places where a client looks for a daemon, in this order: $TENDRIL_SOCKET alone where that is set;
// else the user's own, $XDG_RUNTIME_DIR/tendril/tendril.sock or without that variable /tmp/tendril-UID/tendril.sock;
// then the system's, /run/tendril/tendril.sock. Root's own is the system's, whatever the variables of a login say.
func Sockets() []string { return socketsOf(os.Getenv, os.Getuid()) }

func socketsOf(getenv func(string) string, uid int) []string {
	told, runtime := getenv("TENDRIL_SOCKET"), getenv("XDG_RUNTIME_DIR")
	switch {
	case told != "":
		return []string{told}
	case uid == 0:
		return []string{SystemSocket}
	case runtime != "":
		return []string{filepath.Join(runtime, "tendril", "tendril.sock"), SystemSocket}
	}
	return []string{fmt.Sprintf("/tmp/tendril-%d/tendril.sock", uid), SystemSocket}
}

// DefaultSocket is where a daemon listens unless told otherwise: the first of Sockets.
func DefaultSocket() string { return Sockets()[0] }

// Lookup connects to the daemon at a socket, or with "" to the first of Sockets where one answers, and says at which.
// Nobody at any of them is a *NoDaemonError. giveUp as Dial has it. The caller must Close.
func Lookup(socket string, spin time.Duration, giveUp func() error) (*Dialed, string, error) {
	if socket != "" {
		return lookup([]string{socket}, spin, giveUp)
	}
	return lookup(Sockets(), spin, giveUp)
}

func lookup(sockets []string, spin time.Duration, giveUp func() error) (*Dialed, string, error) {
	none := &NoDaemonError{}
	for _, at := range sockets {
		d, err := Dial(at, spin, giveUp)
		if err == nil {
			return d, at, nil
		}
		if giveUp != nil {
			if given := giveUp(); given != nil {
				return nil, "", fmt.Errorf("connect to %s: %w", at, given)
			}
		}
		none.Tried = append(none.Tried, Try{at, err})
	}
	return nil, "", none
}

// Try is a socket where nobody answered, and why.
type Try struct {
	Socket string
	Why    error
}

// NoDaemonError says that no daemon answered at the sockets that were tried.
type NoDaemonError struct{ Tried []Try }

// Error names all of them.
func (e *NoDaemonError) Error() string {
	parts := make([]string, len(e.Tried))
	for i, t := range e.Tried {
		why := t.Why.Error()
		if errno := syscall.Errno(0); errors.As(t.Why, &errno) {
			why = errno.Error()
		}
		parts[i] = fmt.Sprintf("%s (%s)", t.Socket, why)
	}
	return "no daemon answers at " + strings.Join(parts, " or ")
}

// Unwrap gives the reasons.
func (e *NoDaemonError) Unwrap() []error {
	reasons := make([]error, len(e.Tried))
	for i, t := range e.Tried {
		reasons[i] = t.Why
	}
	return reasons
}

// Denied reports whether a daemon may be at one of them that does not let this user in. Then a second daemon is not
// what is missing.
func (e *NoDaemonError) Denied() bool {
	for _, t := range e.Tried {
		if errors.Is(t.Why, unix.EACCES) || errors.Is(t.Why, object.ErrPermission) {
			return true
		}
	}
	return false
}

// Advice is what a person can do about it.
func (e *NoDaemonError) Advice() string {
	if e.Denied() {
		return "ask who runs the daemon there to let you in, or name another socket (TENDRIL_SOCKET)"
	}
	return "start one with: tendril daemon"
}
