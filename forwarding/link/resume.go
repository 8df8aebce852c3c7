package link

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// A Stream or Lane with Options.Lost survives its connections. Both ends count the bytes of records or chunks that they
// have sent and received since the first connection, whatever TLS or TCP make of them; on each connection they say
// first how much has come (clwire.AppendResume), and send the rest again. A stream keeps what it sent until the peer
// acknowledges it; a lane keeps a line for each chunk, whose bytes are still where they were.

// Options say how the connections of one end are made and kept.
type Options struct {
	TLS *tls.Config // nil: in the clear
	// Dials makes a Worker's end the TLS client, where both ends are workers.
	Dials bool
	// Silence is how long the peer may say nothing before a connection counts as lost: its machine, as the kernel has
	// it, and for a client its process, too (pulse.go); 0: as the kernel has it.
	Silence time.Duration
	// Lost makes the end survive its connections: it hears once of each that is lost, and must neither block nor use
	// the end. Resume brings the next one. nil: the end ends with its connection.
	Lost func()
	// Compression is a lane's: nil where packed chunks are neither sent nor taken, as between two processes of one
	// machine.
	Compression *Compression

	handshake time.Duration // what bounds each read and write of a handshake; 0: the constants'. Tests have others
}

const (
	ackStream = 64 << 10 // received bytes of a stream between two acknowledgements
	ackLane   = 4 << 20  // of a lane: each wakes the peer's reader
	lostKeeps = 8 << 20  // bytes that a client's stream keeps while there is no connection; then Send waits
	maxLog    = 1 << 18  // chunks of a lane that the peer has not acknowledged
)

// wire is one connection: TLS, or the socket itself.
type wire struct {
	raw *rawConn
	tls *tls.Conn // nil: in the clear
}

// connect takes a connection over, shakes hands and, where there is a received (bytes on earlier connections),
// exchanges greetings. Each step is bounded until settle.
func (o *Options) connect(role Role, socket *os.File) (*wire, error) {
	raw, err := newRawConn(socket)
	if err != nil {
		return nil, err
	}
	raw.watch(o.Silence)
	w := &wire{raw: raw}
	limit := handshakeTime
	if o.Silence > 0 {
		limit = min(limit, max(o.Silence, leastHandshake))
	}
	limit = cmp.Or(o.handshake, limit)
	if err = raw.limit(limit); err == nil {
		if o.Dials {
			role = Client
		}
		w.tls, err = raw.handshake(role, o.TLS)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return w, nil
}

// greet tells the peer how much of its bytes has come, and hears the same.
func (w *wire) greet(received uint64) (theirs uint64, err error) {
	var b [clwire.ResumeBytes]byte
	_, err = w.Write(clwire.AppendResume(b[:0], received))
	if err == nil {
		_, err = io.ReadFull(w, b[:])
	}
	if err != nil {
		return 0, fmt.Errorf("greeting: %w", err)
	}
	return clwire.ParseResume(b[:])
}

// settle ends what bounded the steps before.
func (w *wire) settle() error { return w.raw.limit(0) }

// Read reads what is there, at least a byte, or blocks.
func (w *wire) Read(p []byte) (int, error) {
	if w.tls != nil {
		return w.tls.Read(p)
	}
	return w.raw.Read(p)
}

// Write writes all of p.
func (w *wire) Write(p []byte) (int, error) {
	if w.tls != nil {
		return w.tls.Write(p)
	}
	return w.raw.Write(p)
}

func newPark() (int, error) {
	low, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(low)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		return -1, fmt.Errorf("duplicate an eventfd: %w", err)
	}
	return fd, nil
}

// Lost says whether the stream has no connection now, and waits for Resume.
func (s *Stream) Lost() bool { return s.lost.Load() }

// Resume goes on by another connection to the same peer, from where the last one left off; that is given up, wherever
// it stands. It blocks for the handshake. After an error the stream waits for the next one, unless it has ended:
// ErrHangup, ErrCorrupt. socket is duplicated; the caller still owns it.
func (s *Stream) Resume(socket *os.File) error {
	s.resuming.Lock()
	defer s.resuming.Unlock()
	w, err := s.opts.connect(s.role, socket)
	if err != nil {
		return err
	}
	s.rx.Lock()
	going, received := s.lose(), s.received // nothing comes by the old connection from here on
	s.rx.Unlock()
	var theirs uint64
	if !going {
		err = ErrHangup
	} else if theirs, err = w.greet(received); err == nil {
		err = w.settle()
	}
	if err == nil {
		err = s.adopt(w, theirs)
	}
	if err != nil {
		w.raw.Close()
	}
	return err
}

// adopt puts a connection in the place of the lost one. The descriptor's number stays, so that whoever polls needs no
// lock.
func (s *Stream) adopt(w *wire, theirs uint64) error {
	s.tx.Lock()
	defer s.tx.Unlock()
	if err := s.replaceLocked(w, theirs); err != nil {
		s.tx.err = err
		s.hung.Store(true)
		s.tx.room.Broadcast()
		return err
	}
	s.tx.room.Broadcast()
	_, _ = s.flushLocked() // what fails shows at the next Send or Next
	return nil
}

func (s *Stream) replaceLocked(w *wire, theirs uint64) error {
	if theirs < s.ackedTo.Load() || theirs > s.tx.base+uint64(s.tx.sent) {
		return fmt.Errorf("%w: the peer has received %d bytes, of %d to %d", ErrCorrupt, theirs, s.ackedTo.Load(),
			s.tx.base+uint64(s.tx.sent))
	}
	s.rx.Lock()
	defer s.rx.Unlock()
	s.state.Lock()
	defer s.state.Unlock()
	if s.hung.Load() {
		return ErrHangup
	}
	if err := unix.Dup3(w.raw.fd, s.fd, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("duplicate a connection: %w", err)
	}
	unix.Close(w.raw.fd)
	w.raw.fd = s.fd
	w.raw.setPolled()
	s.w = w
	s.ackedTo.Store(theirs)
	s.tx.sent = int(theirs - s.tx.base)
	s.more.Store(true)
	s.lost.Store(false)
	pokeFD(s.park) // poll(2) looks numbers up anew when it wakes, but waits on the files that it found at first
	return nil
}

// lose gives up a connection that broke: whoever waits to send on it wakes. It reports whether the stream goes on by
// another, or has ended. The caller holds tx or rx: so the connection is the one that broke.
func (s *Stream) lose() (going bool) {
	s.state.Lock()
	defer s.state.Unlock()
	if s.park < 0 || s.hung.Load() {
		s.hung.Store(true)
		return false
	}
	if s.lost.Load() {
		return true
	}
	_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // fails only when the peer is gone already
	if unix.Dup3(s.park, s.fd, unix.O_CLOEXEC) != nil {
		s.hung.Store(true)
		return false
	}
	s.lost.Store(true)
	s.opts.Lost()
	return true
}

func pokeFD(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:]) // fails only when the counter is full: it is readable then
}

func unpokeFD(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:]) // fails only when nobody poked
}

// changeBlocked counts who is in Block. The last to leave takes word of another connection back: one who still waits on
// the lost one's file and found nothing any more would sleep on, deaf to the next.
func (s *Stream) changeBlocked(n int, told bool) {
	s.parking.Lock()
	defer s.parking.Unlock()
	if s.blocked += n; s.blocked == 0 && told {
		unpokeFD(s.park)
	}
}

// Carry makes the stream tell the peer how far a lane is, and hear the same of the peer, to find out whether it works
// (pulse.go) and what must be sent again. number is from 1 on. Call it before the lane is used.
func (s *Stream) Carry(l *Lane, number int) {
	if l.lasts() {
		l.tell = func(received uint64) { s.sendAck(uint8(number), received) }
	}
	s.lanes[number].Store(l)
}

// sendAck tells the peer how much has come. It waits for nothing.
func (s *Stream) sendAck(lane uint8, received uint64) {
	s.tx.Lock()
	defer s.tx.Unlock()
	if s.lost.Load() || s.hung.Load() || s.tx.err != nil {
		return // the greeting says it, or nobody asks
	}
	if s.appendLocked(&clwire.Ack{Lane: lane, Received: received}, 0, 0) == nil {
		s.later()
	}
}

// ofLink says whether a record is the link's, not its user's.
func ofLink(t clwire.Type) bool {
	return t == clwire.TypeAck || t == clwire.TypeLeave || t == clwire.TypePulse
}

// own acts on such a record.
func (s *Stream) own(t clwire.Type, payload []byte) error {
	switch t {
	case clwire.TypePulse:
		var m clwire.Pulse
		if err := m.Decode(payload); err != nil {
			return err
		}
		return s.onPulse(&m)
	case clwire.TypeLeave:
		s.state.Lock()
		s.hung.Store(true)
		s.state.Unlock()
		s.wakeSenders()
		return ErrHangup
	}
	var m clwire.Ack
	if err := m.Decode(payload); err != nil {
		return err
	}
	if s.park < 0 {
		return nil // nothing is kept to be sent again
	}
	return s.acked(int(m.Lane), m.Received)
}

// acknowledged notes what need not be kept any more. The reader calls it: it takes no lock that a sender may hold while
// it waits.
func (s *Stream) acknowledged(received uint64) error {
	if received > s.sentTo.Load() {
		return fmt.Errorf("%w: %d bytes acknowledged, of %d", ErrCorrupt, received, s.sentTo.Load())
	}
	if !s.raiseAcked(received) {
		return nil
	}
	if s.waiting.Load() > 0 {
		s.wakeSenders()
	}
	return nil
}

// raiseAcked reports whether that is news: an acknowledgement that is sent again comes behind a greeting that says
// more.
func (s *Stream) raiseAcked(received uint64) bool {
	for {
		old := s.ackedTo.Load()
		if received <= old || s.ackedTo.CompareAndSwap(old, received) {
			return received > old
		}
	}
}

func (s *Stream) wakeSenders() {
	s.tx.Lock()
	defer s.tx.Unlock()
	s.tx.room.Broadcast()
}

// trimLocked drops what was acknowledged and returns how many bytes are kept.
func (s *Stream) trimLocked() (kept int) {
	n := int(s.ackedTo.Load() - s.tx.base)
	kept = len(s.tx.buf) - n
	switch {
	case kept == 0 && cap(s.tx.buf) > 1<<20:
		s.tx.buf = nil
	case n < len(s.tx.buf)/2 || n < ackStream/2 && kept > 0: // a byte is moved once for each that is dropped
		return kept
	default:
		s.tx.buf = s.tx.buf[:copy(s.tx.buf, s.tx.buf[n:])]
	}
	s.tx.base += uint64(n)
	s.tx.sent -= n
	return kept
}

// awaitPeerLocked waits while a client's stream keeps too much: for a connection, or for the peer's word.
func (s *Stream) awaitPeerLocked() error {
	if s.park < 0 {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	for {
		kept := s.trimLocked()
		switch {
		case s.tx.err != nil:
			return s.tx.err
		case s.hung.Load():
			return ErrHangup
		case kept <= lostKeeps, kept <= maxBacklogBytes && !s.lost.Load():
			return nil
		}
		s.tx.room.Wait()
	}
}

// broke says what a failed read or write of the connection means: nil when another one will take its place. The caller
// holds tx or rx.
func (s *Stream) broke(err error) error {
	if s.park >= 0 && s.lose() {
		return nil
	}
	if errors.Is(err, ErrHangup) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || s.hung.Load() {
		s.hung.Store(true)
		return s.hangup()
	}
	return err
}

// greetAnew is greet on a first connection.
func (w *wire) greetAnew() error {
	theirs, err := w.greet(0)
	if err == nil && theirs != 0 {
		err = fmt.Errorf("%w: %d bytes received before the first", ErrCorrupt, theirs)
	}
	return err
}
