package ipc

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"tendril/store/object"
)

// sendTime is what a remote peer has to read what is sent to it.
const sendTime = 60 * time.Second

// Stream is the daemon's end of a connection from another machine: frames over TLS, and never a descriptor. One
// goroutine may receive while another sends.
type Stream struct {
	conn net.Conn // TLS
	raw  net.Conn // below it
	in   inbox

	parted   atomic.Bool // the peer is let read what was sent
	mu       sync.Mutex  // a leaf
	draining bool        // Close reads what still comes; guarded by mu
}

// NewStream takes a connection over: conn for the frames, and raw, the socket below it, to end it at once. The caller
// must Close.
func NewStream(conn, raw net.Conn) *Stream { return &Stream{conn: conn, raw: raw} }

// Receive waits for the next frame, as Accepted.Receive does.
func (s *Stream) Receive() (Frame, error) { return receiveFrame(s.conn, &s.in) }

// receiveFrame gives the next frame of a stream without descriptors.
func receiveFrame(r io.Reader, in *inbox) (Frame, error) {
	for {
		f, ok, err := in.next()
		if ok || err != nil {
			return f, err
		}
		n, err := r.Read(in.room())
		in.end += n
		if n == 0 && err != nil {
			return Frame{}, err
		}
	}
}

// Admit has Receive ask before it takes more memory for a large frame, as Accepted's does.
func (s *Stream) Admit(ask func(h Header, more int) error, free func(n int)) {
	s.in.admit, s.in.free = ask, free
}

// Whole reports whether Receive has another frame at hand.
func (s *Stream) Whole() bool { return s.in.whole() }

// Send sends all of b. Descriptors do not travel over a network: fds must be empty.
func (s *Stream) Send(b []byte, fds []int) error {
	if len(fds) > 0 {
		return fmt.Errorf("%w: a descriptor for another machine", object.ErrInternal)
	}
	if err := s.raw.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}

// EndReceive makes Receive fail, also one under way; what is sent still goes. It may be called at any time, by anyone.
func (s *Stream) EndReceive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		_ = s.raw.SetReadDeadline(time.Unix(1, 0))
	}
}

// Bounds of what a peer may still send that is let read.
const (
	partTime  = time.Second
	partBytes = 1 << 20
)

// Part makes every call fail, as Shutdown does, and has Close let the peer read what was sent last: a socket that is
// closed with something unread, or to which something comes afterwards, resets the connection. It waits for nobody: of
// a Send under way the peer may get a part. Close waits a second at most. Part may be called at any time, by anyone.
//
// TLS is not told: its word for an end would wait up to 5 s for a peer that does not read, behind a Send that waits.
func (s *Stream) Part() {
	s.parted.Store(true)
	if half, ok := s.raw.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // nothing to be done about an error: the connection is gone then
	}
	s.EndReceive()
}

// Shutdown makes every call fail, also one under way. It may be called at any time, by anyone.
func (s *Stream) Shutdown() {
	if s.parted.Load() {
		s.EndReceive()
		return
	}
	s.raw.Close()
}

// Close gives the socket back, and says so to the peer where that can be said at once.
func (s *Stream) Close() {
	if s.parted.Load() && s.drain() == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(s.raw, partBytes))
		s.raw.Close()
		return
	}
	_ = s.raw.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	s.conn.Close()
	s.raw.Close()
}

// drain gives the peer time to read, which no Shutdown takes back.
func (s *Stream) drain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	return s.raw.SetReadDeadline(time.Now().Add(partTime))
}
