package inspect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// doorway is a listener that knows its open connections and, on a unix socket, whose they are.
type doorway struct {
	net.Listener

	mu     sync.Mutex
	closed bool
	open   map[*visitor]struct{}
	from   map[string]int // open connections of each address or user
	given  uint64         // connections that gave their place up, or got none
}

// visitor is one connection.
type visitor struct {
	net.Conn
	way   *doorway
	from  string    // what it is counted under: its address, or its user
	uid   uint32    // unix sockets only
	gid   uint32    // the same
	known bool      // both were given by the kernel
	busy  bool      // a request is being read or answered; under way.mu, as what follows
	given bool      // one is being answered
	since time.Time // when that began; else when it came, or had its last answer
}

// Accept waits for a connection. One more than its address or user may have takes the place of another one of theirs
// that gets no answer just now, and is closed at once where there is none: on one machine many share an address, and
// who only holds connections open must not keep the others out. One more than there may be takes the place of one of
// whoever has most.
func (w *doorway) Accept() (net.Conn, error) {
	for {
		c, err := w.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{Conn: c, way: w}
		switch x := c.(type) {
		case *net.UnixConn:
			v.uid, v.gid, v.known = peerUser(x)
			v.from = fmt.Sprintf("user %d", v.uid)
		case *net.TCPConn:
			v.from = x.RemoteAddr().(*net.TCPAddr).IP.String()
		}
		if w.admit(v) {
			return v, nil
		}
		w.mu.Lock()
		w.given++
		w.mu.Unlock()
		c.Close()
	}
}

func (w *doorway) admit(v *visitor) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed, w.from[v.from] >= maxConnectionsPeer && !w.evict(v.from),
		len(w.open) >= maxConnections && !w.evict(w.greatest()):
		return false
	}
	v.since = time.Now()
	w.open[v] = struct{}{}
	w.from[v.from]++
	return true
}

// greatest gives the address or user with most connections. mu is held.
func (w *doorway) greatest() (from string) {
	for x, n := range w.from {
		if n > w.from[from] {
			from = x
		}
	}
	return from
}

// takesLong is how long an answer may take when its connection's place is wanted.
const takesLong = 2 * time.Second

// evict closes a connection of an address or user: that which has had no answer for longest, or, where all are being
// answered, that whose peer has been reading its answer for longest. mu is held.
func (w *doorway) evict(from string) bool {
	var oldest *visitor
	for v := range w.open {
		if v.from == from && (!v.given || time.Since(v.since) > takesLong) && (oldest == nil || v.before(oldest)) {
			oldest = v
		}
	}
	if oldest == nil {
		return false
	}
	w.forget(oldest)
	w.given++
	oldest.Conn.Close()
	return true
}

// before reports whether v is to go before other.
func (v *visitor) before(other *visitor) bool {
	if v.given != other.given {
		return other.given
	}
	return v.since.Before(other.since)
}

// forget takes a connection out, once. mu is held.
func (w *doorway) forget(v *visitor) {
	if _, there := w.open[v]; !there {
		return
	}
	delete(w.open, v)
	if w.from[v.from]--; w.from[v.from] == 0 {
		delete(w.from, v.from)
	}
}

// answers notes that a request has come whole and is being answered.
func (v *visitor) answers() {
	v.way.mu.Lock()
	defer v.way.mu.Unlock()
	v.given, v.since = true, time.Now()
}

// Close closes the listener and every connection where no request is under way. Those that are busy close as they
// become idle.
func (w *doorway) Close() error {
	w.mu.Lock()
	w.closed = true
	for v := range w.open {
		if !v.busy {
			v.Conn.Close()
		}
	}
	w.mu.Unlock()
	return w.Listener.Close()
}

// hangUp closes every connection.
func (w *doorway) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.open {
		v.Conn.Close()
	}
}

// watch hears from fasthttp what a connection is doing.
func watch(c net.Conn, state fasthttp.ConnState) {
	v := visitorOf(c)
	if v == nil {
		return
	}
	v.way.mu.Lock()
	defer v.way.mu.Unlock()
	v.busy = state == fasthttp.StateActive
	if v.given && !v.busy {
		v.given, v.since = false, time.Now()
	}
	if v.way.closed && !v.busy {
		v.Conn.Close()
	}
}

// visitorOf finds the visitor in what fasthttp made of its connection; nil where it is none.
func visitorOf(c net.Conn) *visitor {
	v, _ := c.(*visitor)
	return v
}

// Close closes the connection. Idempotent.
func (v *visitor) Close() error {
	v.way.mu.Lock()
	v.way.forget(v)
	v.way.mu.Unlock()
	return v.Conn.Close()
}

// peerUser asks the kernel who is at the other end.
func peerUser(c *net.UnixConn) (uid, gid uint32, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid, gid, ok = cred.Uid, cred.Gid, true
		}
	})
	return uid, gid, ok && err == nil
}

// listenUnix listens on a unix socket that everybody may connect to (AllowUID decides), in place of one that nobody
// serves.
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
