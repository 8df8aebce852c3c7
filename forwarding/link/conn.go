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

// Errors of a link. ErrHangup also ends every later call.
var (
	ErrHangup  = errors.New("the peer hung up")
	ErrCorrupt = errors.New("the shared ring is corrupt")
	ErrTooLong = errors.New("record too long")
	ErrBacklog = errors.New("the client does not read its answers")
)

// Role says which end of the link a Conn is.
type Role int

// The two ends.
const (
	Client Role = iota
	Worker
)

// maxBacklogBytes bounds what a worker keeps for a client that does not read.
const maxBacklogBytes = 64 << 20

// Conn is one end of a link.
//
// Send, SendFD and Hung may run concurrently with everything. Next, Arm, Block
// and TakeFD belong to one goroutine at a time.
type Conn struct {
	role Role   // immutable
	mem  []byte // immutable; the whole memfd
	sock int    // immutable
	hung atomic.Bool

	tx struct {
		sync.Mutex
		producer
		scratch []byte
		backlog [][]byte // worker only: encoded records that found no room
		bytes   int      // of backlog
	}
	tap func(t clwire.Type, n int) // nil, or told of every record sent; set before the first
	rx  consumer
	fds []int // received, not yet taken; owned until TakeFD
}

// New maps the ring and takes over the socket. Both files are duplicated or
// mapped; the caller still owns and closes them.
func New(role Role, ring, socket *os.File) (*Conn, error) {
	if err := checkSize(ring); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(ring.Fd()), 0, clwire.RingBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a ring of %d bytes: %w", clwire.RingBytes, err)
	}
	header := clwire.RingHeader()
	if string(mem[:len(header)]) != string(header) {
		unix.Munmap(mem)
		return nil, fmt.Errorf("%w: bad header % x", ErrCorrupt, mem[:len(header)])
	}
	// Above the standard descriptors, which a program may close and reuse.
	sock, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		unix.Munmap(mem)
		return nil, fmt.Errorf("duplicate the link's socket: %w", err)
	}
	c := &Conn{role: role, mem: mem, sock: sock}
	const toWorker, toClient = clwire.RingHeaderBytes, clwire.RingHeaderBytes + clwire.ToWorkerBytes
	w := newRing(mem, clwire.RingToWorker, toWorker, clwire.ToWorkerBytes)
	cl := newRing(mem, clwire.RingToClient, toClient, clwire.ToClientBytes)
	if role == Client {
		c.tx.ring, c.rx.ring = w, cl
	} else {
		c.tx.ring, c.rx.ring = cl, w
	}
	return c, nil
}

func checkSize(ring *os.File) error {
	info, err := ring.Stat()
	if err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	if info.Size() < clwire.RingBytes {
		return fmt.Errorf("%w: %d bytes, need %d", ErrCorrupt, info.Size(), clwire.RingBytes)
	}
	return nil
}

// Close unmaps the ring and closes the socket and every descriptor not taken.
// No other call may be running or follow.
func (c *Conn) Close() error {
	for _, fd := range c.fds {
		unix.Close(fd)
	}
	c.fds = nil
	return errors.Join(unix.Close(c.sock), unix.Munmap(c.mem))
}

// Shutdown ends the link in both directions: the peer sees a hang-up, and a
// Block of this end returns ErrHangup. The Conn stays valid until Close.
func (c *Conn) Shutdown() {
	c.hung.Store(true)
	_ = unix.Shutdown(c.sock, unix.SHUT_RDWR) // fails only when the peer is gone already
}

// SetTap implements Link, for a client.
func (c *Conn) SetTap(f func(t clwire.Type, n int)) { c.tap = f }

// Hung says whether the peer was seen to be gone.
func (c *Conn) Hung() bool { return c.hung.Load() }

// Send publishes one record. A client waits while its ring is full (until the
// peer hangs up: ErrHangup); a worker never waits, what finds no room is kept
// for Flush. The message is encoded before Send returns.
func (c *Conn) Send(m clwire.Message, flags uint16, request uint64) error {
	c.tx.Lock()
	defer c.tx.Unlock()
	c.tx.scratch = m.Append(c.tx.scratch[:0])
	return c.sendLocked(clwire.Header{Type: m.Type(), Flags: flags, Request: request}, c.tx.scratch)
}

func (c *Conn) sendLocked(h clwire.Header, payload []byte) error {
	if len(payload) > clwire.MaxRecord {
		return fmt.Errorf("%w: %v of %d bytes, the limit is %d", ErrTooLong, h.Type, len(payload), clwire.MaxRecord)
	}
	if c.hung.Load() {
		return ErrHangup
	}
	if c.role == Worker {
		return c.sendWorker(h, payload)
	}
	var start time.Time
	for {
		ok, err := c.tx.push(h, payload)
		if err != nil {
			return err
		}
		if ok {
			c.ring(h.Flags)
			if c.tap != nil {
				c.tap(h.Type, len(payload))
			}
			return nil
		}
		if start, err = c.awaitRoom(start); err != nil {
			return err
		}
	}
}

// awaitRoom lets a full ring drain: it yields for a while, then sleeps in
// steps, looking for a hang-up. start is zero on the first call.
func (c *Conn) awaitRoom(start time.Time) (time.Time, error) {
	if start.IsZero() {
		start = time.Now()
	}
	if time.Since(start) < 50*time.Microsecond {
		Yield()
		return start, nil
	}
	p := []unix.PollFd{{Fd: int32(c.sock), Events: unix.POLLRDHUP}}
	timeout := unix.NsecToTimespec((50 * time.Microsecond).Nanoseconds())
	if n, err := unix.Ppoll(p, &timeout, nil); n > 0 && err == nil {
		c.hung.Store(true)
		return start, ErrHangup
	}
	return start, nil
}

func (c *Conn) sendWorker(h clwire.Header, payload []byte) error {
	if len(c.tx.backlog) == 0 {
		ok, err := c.tx.push(h, payload)
		if err != nil {
			return err
		}
		if ok {
			c.ring(h.Flags)
			return nil
		}
	}
	if c.tx.bytes+len(payload) > maxBacklogBytes {
		return fmt.Errorf("%w: %d bytes wait", ErrBacklog, c.tx.bytes)
	}
	h.Length = uint32(len(payload))
	rec := make([]byte, clwire.HeaderBytes+len(payload))
	h.Put(rec)
	copy(rec[clwire.HeaderBytes:], payload)
	c.tx.backlog = append(c.tx.backlog, rec)
	c.tx.bytes += len(rec)
	c.ring(clwire.FlagUrgent) // the ring is full: whoever sleeps must drain it
	return nil
}

// Flush sends what found no room before, as far as there is room now. It
// reports whether something still waits; call it again within a millisecond then.
func (c *Conn) Flush() (waits bool, err error) {
	c.tx.Lock()
	defer c.tx.Unlock()
	for len(c.tx.backlog) > 0 {
		rec := c.tx.backlog[0]
		h, err := clwire.ParseHeader(rec)
		if err != nil {
			return false, err
		}
		ok, err := c.tx.push(h, rec[clwire.HeaderBytes:])
		if err != nil || !ok {
			return true, err
		}
		c.ring(h.Flags)
		c.tx.backlog = c.tx.backlog[1:]
		c.tx.bytes -= len(rec)
	}
	c.tx.backlog = nil
	return false, nil
}

func (c *Conn) ring(flags uint16) {
	if c.tx.bell(flags&clwire.FlagUrgent != 0) {
		c.sendByte(clwire.Bell, nil)
	}
}

// Next returns the next record, or ok false when there is none now. The
// payload aliases shared memory and is valid until the next call of Next or Done.
func (c *Conn) Next() (h clwire.Header, payload []byte, ok bool, err error) {
	return c.rx.pull()
}

// Done gives the space of the records taken so far back to the peer. Next does
// the same where there is none; call Done before a long pause.
func (c *Conn) Done() { c.rx.release() }

// Empty says whether Next would find nothing now. Unlike Next it may be called
// by any goroutine, as a hint: it reads the ring's own words alone.
func (c *Conn) Empty() bool { return c.rx.tail.Load() == c.rx.head.Load() }

// Arm announces that the caller is about to Block: ConsumerAsleep or
// ConsumerLazy. It reports false, and takes the announcement back, when a
// record is there already.
func (c *Conn) Arm(state uint32) bool {
	c.rx.release()
	c.rx.state.Store(state)
	if c.rx.empty() {
		return true
	}
	c.Awake()
	return false
}

// Awake takes an Arm back: the caller polls from now on and wants no bells.
func (c *Conn) Awake() { c.rx.state.Store(clwire.ConsumerAwake) }
