package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// ErrNoFD answers SendFD and TakeFD where descriptors cannot travel.
var ErrNoFD = errors.New("no descriptor travels over a network")

const (
	gatherBytes  = 16 << 10              // records gather until there are so many bytes: one TLS record
	gatherTime   = 40 * time.Microsecond // or the oldest is so old; the timer adds a little
	lingerTime   = 5 * time.Millisecond  // the flusher polls so long before it sleeps: waking it costs the sender more
	clientUnsent = 1 << 20               // bytes that a client keeps before Send waits
	streamBuffer = 2 * (clwire.HeaderBytes + clwire.MaxRecord)
)

// Stream is one end of a control stream across a network: records over TLS
// 1.3, or in the clear. Who may call what is as with a Conn.
type Stream struct {
	role Role      // immutable
	raw  *rawConn  // immutable
	tls  *tls.Conn // immutable; nil: in the clear
	hung atomic.Bool
	tap  func(t clwire.Type, n int) // nil, or told of every record sent; set before the first

	tx struct {
		sync.Mutex
		pending []byte // records that gather
		err     error  // sticks
	}
	unsent  atomic.Bool // there is something for the flusher
	asleep  atomic.Bool // the flusher waits for wake
	wake    chan struct{}
	stop    atomic.Bool
	flusher sync.WaitGroup

	buf  []byte      // received; owned by the reader
	at   int         // start of the next record
	end  int         // of what is there
	more atomic.Bool // Next has not yet found the connection empty
}

// NewStream takes a connection over, after the handshake if config is not nil.
// It blocks for the handshake, ten seconds a step at most. socket is
// duplicated; the caller still owns and closes it.
func NewStream(role Role, socket *os.File, config *tls.Config) (*Stream, error) {
	raw, err := newRawConn(socket)
	if err != nil {
		return nil, err
	}
	t, err := raw.handshake(role, config)
	if err != nil {
		raw.Close()
		return nil, err
	}
	raw.setPolled()
	s := &Stream{role: role, raw: raw, tls: t, buf: make([]byte, streamBuffer), wake: make(chan struct{}, 1)}
	s.more.Store(true)
	s.flusher.Go(s.flushLater)
	return s, nil
}

// Close ends the flusher and closes the connection. No other call may be running or follow.
func (s *Stream) Close() error {
	s.stop.Store(true)
	s.Shutdown()
	s.rouse()
	s.flusher.Wait()
	return s.raw.Close()
}

// Shutdown ends the stream in both directions, after what the kernel takes at
// once. The Stream stays valid until Close.
func (s *Stream) Shutdown() {
	s.Kick()
	s.hung.Store(true)
	s.raw.shutdown()
}

// SetTap implements Link.
func (s *Stream) SetTap(f func(t clwire.Type, n int)) { s.tap = f }

// Hung says whether the peer was seen to be gone.
func (s *Stream) Hung() bool { return s.hung.Load() }

// SendFD implements Link.
func (s *Stream) SendFD(*os.File) error { return ErrNoFD }

// TakeFD implements Link.
func (s *Stream) TakeFD() (*os.File, error) { return nil, ErrNoFD }

// Send adds one record to what gathers, and sends all if the record is urgent
// or enough. A client waits while too much is unsent; a worker never waits, but
// fails with ErrBacklog when its client reads nothing.
func (s *Stream) Send(m clwire.Message, flags uint16, request uint64) error {
	s.tx.Lock()
	defer s.tx.Unlock()
	if s.tx.err != nil {
		return s.tx.err
	}
	if s.hung.Load() {
		return ErrHangup
	}
	start := len(s.tx.pending)
	b := append(s.tx.pending, make([]byte, clwire.HeaderBytes)...)
	b = m.Append(b)
	n := len(b) - start - clwire.HeaderBytes
	if n > clwire.MaxRecord {
		return fmt.Errorf("%w: %v of %d bytes, the limit is %d", ErrTooLong, m.Type(), n, clwire.MaxRecord)
	}
	clwire.Header{Length: uint32(n), Type: m.Type(), Flags: flags, Request: request}.Put(b[start:])
	s.tx.pending = b
	if s.tap != nil {
		s.tap(m.Type(), n)
	}
	if flags&clwire.FlagUrgent == 0 && len(b) < gatherBytes {
		s.later()
		return nil
	}
	left, err := s.flushLocked()
	if err != nil {
		return err
	}
	return s.bound(left)
}

// bound keeps what is unsent within limits.
func (s *Stream) bound(left int) error {
	if s.role == Worker {
		if left > maxBacklogBytes {
			return fmt.Errorf("%w: %d bytes wait", ErrBacklog, left)
		}
		return nil
	}
	for left > clientUnsent {
		if err := s.awaitRoom(-1); err != nil {
			return err
		}
		var err error
		if left, err = s.flushLocked(); err != nil {
			return err
		}
	}
	return nil
}

// flushLocked encrypts what gathered and hands it to the kernel as far as it takes it.
func (s *Stream) flushLocked() (left int, err error) {
	if s.tx.err != nil {
		return 0, s.tx.err
	}
	plain := s.tx.pending
	if s.tls != nil && len(plain) > 0 {
		_, err = s.tls.Write(plain)
		plain = nil
	}
	if err == nil {
		left, err = s.raw.push(plain)
	}
	s.tx.pending = s.tx.pending[:0]
	if err != nil {
		s.tx.err = err
		if errors.Is(err, ErrHangup) {
			s.hung.Store(true)
		}
		return left, err
	}
	if left > 0 {
		s.later()
	}
	return left, nil
}

// Kick sends what gathered. A failure shows at the next Send or Next.
func (s *Stream) Kick() {
	s.tx.Lock()
	defer s.tx.Unlock()
	if len(s.tx.pending) > 0 {
		_, _ = s.flushLocked()
	}
}

// Flush implements Link: what the kernel does not take is the flusher's.
func (s *Stream) Flush() (waits bool, err error) {
	s.Kick()
	s.tx.Lock()
	defer s.tx.Unlock()
	return false, s.tx.err
}

// later sees that the flusher looks at what is unsent.
func (s *Stream) later() {
	s.unsent.Store(true)
	if s.asleep.Load() {
		s.rouse()
	}
}

func (s *Stream) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flushLater sends what nobody kicked. It looks every gatherTime while there is
// something now and then, and sleeps otherwise.
func (s *Stream) flushLater() {
	idle := time.Now()
	for !s.stop.Load() {
		if !s.unsent.Load() && time.Since(idle) > lingerTime {
			s.asleep.Store(true)
			if !s.unsent.Load() && !s.stop.Load() {
				<-s.wake
			}
			s.asleep.Store(false)
		}
		pause := unix.NsecToTimespec(gatherTime.Nanoseconds())
		_ = unix.Nanosleep(&pause, nil) // an interruption makes it shorter
		if s.unsent.Swap(false) {
			idle = time.Now()
			s.flushAll()
		}
	}
}

// flushAll sends until nothing is left.
func (s *Stream) flushAll() {
	for !s.stop.Load() {
		s.tx.Lock()
		left, err := s.flushLocked()
		s.tx.Unlock()
		if err != nil || left == 0 || s.awaitRoom(time.Second) != nil {
			return
		}
	}
}

// awaitRoom waits until the kernel takes more; timeout negative: as long as it takes.
func (s *Stream) awaitRoom(timeout time.Duration) error {
	p := []unix.PollFd{{Fd: int32(s.raw.fd), Events: unix.POLLOUT}}
	if err := poll(p, timeout); err != nil {
		return err
	}
	if s.hung.Load() || p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
		s.hung.Store(true)
		return ErrHangup
	}
	return nil
}

func poll(p []unix.PollFd, timeout time.Duration) error {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		ts = &t
	}
	if _, err := unix.Ppoll(p, ts, nil); err != nil && err != unix.EINTR {
		return fmt.Errorf("poll a connection: %w", err)
	}
	return nil
}

// Next returns the next record, or ok false when there is none now. The payload
// is valid until the next call. The end of the connection is ErrHangup.
func (s *Stream) Next() (h clwire.Header, payload []byte, ok bool, err error) {
	for {
		need := clwire.HeaderBytes
		if s.end-s.at >= need {
			if h, err = clwire.ParseHeader(s.buf[s.at:]); err != nil {
				return h, nil, false, err
			}
			need += int(h.Length)
			if s.end-s.at >= need {
				payload = s.buf[s.at+clwire.HeaderBytes : s.at+need : s.at+need]
				s.at += need
				return h, payload, true, nil
			}
		}
		if ok, err = s.fill(need); !ok || err != nil {
			return clwire.Header{}, nil, false, err
		}
	}
}

// fill receives more; ok false: there is none now.
func (s *Stream) fill(need int) (ok bool, err error) {
	if s.at == s.end || s.at+need > len(s.buf) {
		s.end = copy(s.buf, s.buf[s.at:s.end])
		s.at = 0
	}
	s.more.Store(true)
	var n int
	if s.tls != nil {
		n, err = s.tls.Read(s.buf[s.end:])
	} else {
		n, err = s.raw.Read(s.buf[s.end:])
	}
	s.end += n
	switch {
	case err == nil || n > 0:
		return true, nil
	case errors.Is(err, errAgain):
		s.more.Store(false)
		return false, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, ErrHangup):
		s.hung.Store(true)
		return false, ErrHangup
	}
	return false, err
}

// Done does nothing: the buffer is this end's own.
func (s *Stream) Done() {}

// Empty says whether Next would find nothing now. It may be called by any goroutine, as a hint.
func (s *Stream) Empty() bool {
	if s.more.Load() {
		return false
	}
	p := []unix.PollFd{{Fd: int32(s.raw.fd), Events: unix.POLLIN}}
	return poll(p, 0) == nil && p[0].Revents == 0
}

// Arm reports whether the caller may Block. The peer does not know who sleeps.
func (s *Stream) Arm(uint32) bool { return !s.more.Load() }

// Awake does nothing: see Arm.
func (s *Stream) Awake() {}

// Block sleeps until there is something to read, the peer hangs up, wake (a
// descriptor, or -1) is readable, or timeout is over (negative: none). It reads nothing.
func (s *Stream) Block(wake int, timeout time.Duration) error {
	if s.hung.Load() {
		return ErrHangup
	}
	return poll([]unix.PollFd{{Fd: int32(s.raw.fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}, timeout)
}
