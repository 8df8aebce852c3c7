package link

import (
	"errors"
	"fmt"
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
	gatherBytes = 16 << 10              // records gather until there are so many bytes: one TLS record
	gatherTime  = 40 * time.Microsecond // or the oldest is so old; the timer adds a little
	// lingerTime is how long the flusher polls before it sleeps: each look takes 5 to 10 µs of somebody's core, and
	// waking it takes as much of the sender's.
	lingerTime = time.Millisecond
	// between two looks of a flusher that always comes too late: each takes a core from who works
	vainTime     = 8 * gatherTime
	clientUnsent = 1 << 20 // bytes that a client keeps before Send waits
	streamBuffer = 2 * (clwire.HeaderBytes + clwire.MaxRecord)
)

// Stream is one end of a control stream across a network: records over TLS
// 1.3, or in the clear. Who may call what is as with a Conn.
type Stream struct {
	role Role    // immutable
	opts Options // immutable
	fd   int     // immutable: the connection of now, or what stands in for it
	// immutable: eventfd, stands in for a lost connection and tells of the next; -1: the stream ends with its first
	park int
	hung atomic.Bool
	why  atomic.Pointer[error]      // of hung, or nil: ErrHangup
	lost atomic.Bool                // no connection now
	tap  func(t clwire.Type, n int) // nil, or told of every record sent; set before the first

	resuming sync.Mutex // one Resume at a time; before all others
	tx       struct {
		sync.Mutex
		buf  []byte    // what the peer may not have, then records that gather
		base uint64    // bytes sent before buf
		sent int       // of buf, on the connection of now
		err  error     // sticks
		room sync.Cond // the peer has acknowledged, there is a connection, or an end
	}
	heldUp  atomic.Bool   // the holder of tx waits until the kernel takes more
	waiting atomic.Int32  // senders in awaitPeerLocked
	sentTo  atomic.Uint64 // bytes that were ever on a connection
	ackedTo atomic.Uint64 // bytes that the peer is known to have
	unsent  atomic.Bool   // there may be something for the flusher
	asleep  atomic.Bool   // the flusher waits for wake
	wake    chan struct{}
	stop    atomic.Bool
	flusher sync.WaitGroup

	rx       sync.Mutex  // taking bytes off the connection; after tx
	w        *wire       // replaced with tx, rx and state held; guarded by any of them
	received uint64      // bytes ever taken; guarded by rx
	closed   bool        // fd is another's by now, perhaps; guarded by rx
	acks     uint64      // received, as the peer was told last; the reader's
	buf      []byte      // received; owned by the reader
	at       int         // start of the next record
	end      int         // of what is there
	more     atomic.Bool // Next has not yet found the connection empty

	parking sync.Mutex // leaf
	blocked int        // callers in Block; guarded by parking

	state sync.Mutex // losing and ending; leaf
	lanes [clwire.MaxLanes]atomic.Pointer[Lane]
	pulse pulse
}

// OpenStream takes a connection over and ends with it. With Options.TLS it begins with the handshake: it blocks then,
// ten seconds a step at most. socket is duplicated; the caller still owns and closes it.
func OpenStream(role Role, socket *os.File, o Options) (*Stream, error) {
	w, err := o.connect(role, socket)
	if err != nil {
		return nil, err
	}
	s := &Stream{role: role, opts: o, fd: w.raw.fd, park: -1, w: w, buf: make([]byte, streamBuffer),
		wake: make(chan struct{}, 1)}
	s.tx.room.L = &s.tx.Mutex
	if o.Lost != nil {
		s.park, err = newPark()
	}
	if err == nil && o.Lost != nil {
		err = w.greetAnew()
	}
	if err == nil {
		err = w.settle()
	}
	if err != nil {
		w.raw.Close()
		s.closePark()
		return nil, err
	}
	w.raw.setPolled()
	s.more.Store(true)
	s.flusher.Go(s.flushLater)
	s.pulse.over, s.pulse.sooner = make(chan struct{}), make(chan struct{}, 1)
	s.pulse.beats.Go(s.beat)
	return s, nil
}

func (s *Stream) closePark() {
	if s.park >= 0 {
		unix.Close(s.park)
	}
}

// Close ends the flusher and closes the connection. No other call may be running or follow. One that does all the same
// fails: it takes no bytes of a connection that has the descriptor's number by then, and sends none there.
func (s *Stream) Close() error {
	s.stop.Store(true)
	s.Shutdown()
	s.rouse()
	close(s.pulse.over)
	s.flusher.Wait()
	s.pulse.beats.Wait()
	s.tx.Lock()
	defer s.tx.Unlock()
	s.rx.Lock()
	defer s.rx.Unlock()
	s.tx.err, s.closed = ErrHangup, true
	s.closePark()
	return unix.Close(s.fd)
}

// Abandon is Close for a stream that another one took the place of: the peer is not told that the session ends, and
// goes on by another connection.
func (s *Stream) Abandon() error {
	s.state.Lock()
	s.hung.Store(true)
	s.state.Unlock()
	return s.Close()
}

// Shutdown ends the stream in both directions, after what the kernel takes at
// once, and says so to a peer that would wait for another connection. The Stream stays valid until Close.
func (s *Stream) Shutdown() {
	if s.lockToSend() {
		if s.park >= 0 && !s.hung.Load() && s.tx.err == nil {
			_ = s.appendLocked(&clwire.Leave{}, 0, 0) // of no length: it cannot be too long
		}
		_, _ = s.flushLocked()
		s.tx.Unlock()
	}
	s.state.Lock()
	s.hung.Store(true)
	_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // fails only when the peer is gone already
	if s.park >= 0 {
		pokeFD(s.park)
	}
	s.state.Unlock()
	s.wakeSenders()
}

// lockToSend takes tx, unless its holder waits for a peer that may be silent: nobody waits for that.
func (s *Stream) lockToSend() bool {
	for !s.tx.TryLock() {
		if s.heldUp.Load() {
			return false
		}
		time.Sleep(gatherTime)
	}
	return true
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
	if err := s.appendLocked(m, flags, request); err != nil {
		return err
	}
	if flags&clwire.FlagUrgent == 0 && len(s.tx.buf)-s.tx.sent < gatherBytes {
		if flags&clwire.FlagMore == 0 { // else the next is about to come
			s.later()
		}
		return nil
	}
	left, err := s.flushLocked()
	if err != nil {
		return err
	}
	return s.boundLocked(left)
}

// appendLocked adds a record to what gathers.
func (s *Stream) appendLocked(m clwire.Message, flags uint16, request uint64) error {
	start := len(s.tx.buf)
	b := append(s.tx.buf, make([]byte, clwire.HeaderBytes)...)
	b = m.Append(b)
	n := len(b) - start - clwire.HeaderBytes
	if n > clwire.MaxRecord {
		return fmt.Errorf("%w: %v of %d bytes, the limit is %d", ErrTooLong, m.Type(), n, clwire.MaxRecord)
	}
	clwire.Header{Length: uint32(n), Type: m.Type(), Flags: flags, Request: request}.Put(b[start:])
	s.tx.buf = b
	if s.tap != nil && !ofLink(m.Type()) {
		s.tap(m.Type(), n)
	}
	return nil
}

// boundLocked keeps what is unsent, or may have to be sent again, within limits.
func (s *Stream) boundLocked(left int) error {
	if s.role == Worker {
		if kept := max(left, len(s.tx.buf)); kept > maxBacklogBytes {
			return fmt.Errorf("%w: %d bytes wait", ErrBacklog, kept)
		}
		return nil
	}
	for {
		if err := s.awaitPeerLocked(); err != nil || left <= clientUnsent {
			return err
		}
		s.heldUp.Store(true)
		err := s.awaitRoom(-1)
		s.heldUp.Store(false)
		if err != nil {
			return err
		}
		if left, err = s.flushLocked(); err != nil {
			return err
		}
	}
}

// flushLocked encrypts what gathered and hands it to the kernel as far as it takes it. Without a connection it waits
// for the next.
func (s *Stream) flushLocked() (left int, err error) {
	if s.tx.err != nil {
		return 0, s.tx.err
	}
	if s.lost.Load() {
		return 0, nil
	}
	if s.park >= 0 {
		s.trimLocked()
	}
	plain := s.tx.buf[s.tx.sent:]
	s.tx.sent = len(s.tx.buf)
	s.sentTo.Store(s.tx.base + uint64(s.tx.sent))
	if s.w.tls != nil && len(plain) > 0 {
		_, err = s.w.tls.Write(plain)
		plain = nil
	}
	if err == nil {
		left, err = s.w.raw.push(plain)
	}
	if s.park < 0 {
		s.tx.base += uint64(s.tx.sent)
		s.tx.buf, s.tx.sent = s.tx.buf[:0], 0
	}
	if err != nil {
		s.tx.err = s.broke(err)
		return 0, s.tx.err
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
	if len(s.tx.buf) > s.tx.sent {
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
// something now and then, more seldom while somebody kicks it all, and sleeps otherwise.
func (s *Stream) flushLater() {
	idle, look := time.Now(), gatherTime
	for !s.stop.Load() {
		if !s.unsent.Load() && time.Since(idle) > lingerTime {
			s.asleep.Store(true)
			if !s.unsent.Load() && !s.stop.Load() {
				<-s.wake
			}
			s.asleep.Store(false)
		}
		pause := unix.NsecToTimespec(look.Nanoseconds())
		_ = unix.Nanosleep(&pause, nil) // an interruption makes it shorter
		switch {
		case !s.unsent.Swap(false):
		case s.flushAll():
			idle, look = time.Now(), gatherTime
		default:
			idle, look = time.Now(), min(2*look, vainTime)
		}
	}
}

// flushAll sends until nothing is left, and reports whether there was anything.
func (s *Stream) flushAll() (some bool) {
	for !s.stop.Load() {
		s.tx.Lock()
		some = some || len(s.tx.buf) > s.tx.sent
		left, err := s.flushLocked()
		s.tx.Unlock()
		some = some || left > 0
		if err != nil || left == 0 || s.awaitRoom(time.Second) != nil {
			break
		}
	}
	return some
}

// awaitRoom waits until the kernel takes more; timeout negative: as long as it takes.
func (s *Stream) awaitRoom(timeout time.Duration) error {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	if err := poll(p, timeout); err != nil {
		return err
	}
	// what can be resumed, the next write finds lost
	if s.hung.Load() || s.park < 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
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
				if !ofLink(h.Type) {
					return h, payload, true, nil
				}
				if err = s.own(h.Type, payload); err != nil {
					return h, nil, false, err
				}
				continue
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
	n, err := s.receive()
	s.end += n
	switch {
	case err == nil || n > 0:
		return true, nil
	case errors.Is(err, errAgain):
		return false, nil
	}
	return false, err
}

// receive takes what has come, and tells the peer now and then how much that is.
func (s *Stream) receive() (n int, err error) {
	s.rx.Lock()
	switch {
	case s.closed, s.hung.Load() && s.park >= 0:
		err = ErrHangup
	case s.lost.Load():
		err = errAgain
	default:
		if n, err = s.w.Read(s.buf[s.end:]); err != nil && n == 0 && !errors.Is(err, errAgain) {
			if err = s.broke(err); err == nil {
				err = errAgain
			}
		}
	}
	if errors.Is(err, errAgain) && n == 0 {
		s.more.Store(false) // not later: there may be another connection by then
	}
	s.received += uint64(n)
	received := s.received
	s.rx.Unlock()
	if s.park >= 0 && received-s.acks >= ackStream {
		s.acks = received
		s.sendAck(0, received)
	}
	return n, err
}

// Done does nothing: the buffer is this end's own.
func (s *Stream) Done() {}

// Empty says whether Next would find nothing now. It may be called by any goroutine, as a hint.
func (s *Stream) Empty() bool {
	if s.follows() {
		return false
	}
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	return poll(p, 0) == nil && p[0].Revents == 0
}

// follows says whether there may be more behind the record that Next gave last, without a system call.
func (s *Stream) follows() bool { return s.more.Load() }

// Arm reports whether the caller may Block. The peer does not know who sleeps.
func (s *Stream) Arm(uint32) bool { return !s.more.Load() }

// Awake does nothing: see Arm.
func (s *Stream) Awake() {}

// Block sleeps until there is something to read, the peer hangs up, wake (a
// descriptor, or -1) is readable, or timeout is over (negative: none). It reads nothing.
func (s *Stream) Block(wake int, timeout time.Duration) error {
	if s.hung.Load() {
		return s.hangup()
	}
	p := [3]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN},
		{Fd: int32(s.park), Events: unix.POLLIN}}
	s.changeBlocked(1, false)
	err := poll(p[:], timeout)
	s.changeBlocked(-1, p[2].Revents != 0)
	return err
}
