package inspect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// doorway is a listener that knows its open connections and, on a unix socket, whose they are.
type doorway struct {
	net.Listener

	mu     sync.Mutex
	closed bool
	open   map[*visitor]struct{}
}

// visitor is one connection.
type visitor struct {
	net.Conn
	way   *doorway
	uid   uint32 // unix sockets only
	known bool   // uid was given by the kernel
	used  bool   // a request was begun; under way.mu
}

// Accept waits for a connection.
func (w *doorway) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, way: w}
	if u, ok := c.(*net.UnixConn); ok {
		v.uid, v.known = peerUID(u)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	w.open[v] = struct{}{}
	return v, nil
}

// Close closes the listener.
func (w *doorway) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// hangUp closes every connection.
func (w *doorway) hangUp() { w.hangUpIf(func(*visitor) bool { return true }) }

// hangUpIdle closes the connections that never finished a request head: nobody waits for an answer there.
func (w *doorway) hangUpIdle() { w.hangUpIf(func(v *visitor) bool { return !v.used }) }

func (w *doorway) hangUpIf(gone func(*visitor) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.open {
		if gone(v) {
			v.Conn.Close()
		}
	}
}

// markUsed notes that a request was read.
func (v *visitor) markUsed() {
	v.way.mu.Lock()
	v.used = true
	v.way.mu.Unlock()
}

// Close closes the connection. Idempotent.
func (v *visitor) Close() error {
	v.way.mu.Lock()
	delete(v.way.open, v)
	v.way.mu.Unlock()
	return v.Conn.Close()
}

// peerUID asks the kernel who is at the other end.
func peerUID(c *net.UnixConn) (uid uint32, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid, ok = cred.Uid, true
		}
	})
	return uid, ok && err == nil
}

// listenUnix listens on a unix socket that everybody may connect to (AllowUID decides), in place of one that nobody serves.
func listenUnix(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if c, dialErr := net.Dial("unix", path); dialErr == nil {
			c.Close()
			return nil, fmt.Errorf("%w: the inspection socket %s is served by another daemon", object.ErrBusy, path)
		} else if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w: the inspection socket %s: %w", object.ErrBusy, path, dialErr)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
