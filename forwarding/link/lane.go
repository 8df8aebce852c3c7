package link

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// laneAhead is how much a lane under TLS takes from the kernel at once.
const laneAhead = 256 << 10

// gatherBulk is what a lane under TLS gives to the kernel at once: four records. More would keep a core from who wakes
// for a command.
const gatherBulk = 68 << 10

// Source has the bytes of chunks until their operation is over, to send them again.
type Source interface {
	// Again calls send once with the payload of a chunk that was sent before, or with nil where nobody needs it any
	// more. It returns send's error.
	Again(h clwire.LaneHeader, send func(payload []byte) error) error
}

// Lane carries chunks of bulk operations, in plain blocking system calls. Send
// may be called by several goroutines; Header, Read and Discard belong to one.
type Lane struct {
	role Role
	opts Options
	tell func(received uint64) // nil, or tells the peer how much has come; immutable once in use

	resuming sync.Mutex // one Resume at a time; before all others
	tending  sync.WaitGroup
	mu       sync.Mutex // sending
	header   [clwire.LaneHeaderBytes]byte
	packer   *packer // nil: chunks go plain; guarded by mu
	rx       [clwire.LaneHeaderBytes]byte
	unpacker unpacker // the reader's

	receiving sync.Mutex    // held while bytes are taken off a connection
	received  atomic.Uint64 // bytes ever taken; raised with receiving held
	told      uint64        // received, as the peer was told last; the reader's

	log laneLog

	state  sync.Mutex // guards what follows; leaf
	change sync.Cond  // there is a connection, or an end
	conn   *laneConn  // nil: there is none now
	closed bool
	why    error // of its end, or nil
}

// laneConn is one of a lane's connections.
type laneConn struct {
	*wire
	users  int           // who may be in a system call; guarded by Lane.state, as is broken
	broken bool          // nothing may be taken off it any more
	behind atomic.Bool   // what the log has from theirs on was not sent by it; cleared with Lane.mu held
	theirs uint64        // what the peer had received before it
	given  atomic.Uint64 // bytes up to which the kernel was given all, as theirs counts
}

// OpenLane takes a connection over, as OpenStream does. With Options.Lost it is to be carried by a stream
// (Stream.Carry) before it is used.
func OpenLane(role Role, socket *os.File, o Options) (*Lane, error) {
	l := &Lane{role: role, opts: o}
	if o.Compression != nil {
		l.packer = &packer{with: o.Compression}
	}
	l.change.L = &l.state
	w, err := l.connect(socket)
	if err != nil {
		return nil, err
	}
	if o.Lost != nil {
		err = w.greetAnew()
	}
	if err == nil {
		err = w.settle()
	}
	if err != nil {
		w.raw.Close()
		return nil, err
	}
	l.conn = &laneConn{wire: w}
	return l, nil
}

func (l *Lane) connect(socket *os.File) (*wire, error) {
	w, err := l.opts.connect(l.role, socket)
	if err == nil && w.tls != nil {
		w.raw.readAhead(laneAhead)
	}
	return w, err
}

func (l *Lane) lasts() bool { return l.opts.Lost != nil }

// acquire waits for a connection; the caller gives it back with release. ErrHangup: there will be none.
func (l *Lane) acquire() (*laneConn, error) {
	l.state.Lock()
	defer l.state.Unlock()
	for l.conn == nil && !l.closed {
		l.change.Wait()
	}
	if l.closed {
		return nil, ErrHangup
	}
	l.conn.users++
	return l.conn, nil
}

// release ends a use that acquire began; err is what came of it. It returns nil where another connection may take this
// one's place.
func (l *Lane) release(c *laneConn, err error) error {
	l.state.Lock()
	defer l.state.Unlock()
	c.users--
	if err != nil {
		l.breakLocked(c)
	}
	if c.broken && c.users == 0 {
		c.raw.Close()
	}
	switch {
	case err != nil && l.lasts() && !l.closed:
		return nil
	case err != nil && l.why != nil && !l.lasts():
		return l.why
	}
	return err
}

// breakLocked gives a connection up: who is in a system call comes back, the last closes it.
func (l *Lane) breakLocked(c *laneConn) {
	if c.broken {
		return
	}
	c.broken = true
	c.raw.shutdown()
	if l.conn == c {
		l.conn = nil
		if l.lasts() && !l.closed {
			l.opts.Lost()
		} else {
			l.closed = true
			l.change.Broadcast()
		}
	}
}

// Lost says whether the lane has no connection now, and waits for Resume.
func (l *Lane) Lost() bool {
	l.state.Lock()
	defer l.state.Unlock()
	return l.conn == nil && !l.closed
}

// Shutdown ends the lane in both directions. It stays valid until Close.
func (l *Lane) Shutdown() {
	l.state.Lock()
	defer l.state.Unlock()
	l.closed = true
	if c := l.conn; c != nil {
		l.breakLocked(c)
		if c.users == 0 {
			c.raw.Close()
		}
	}
	l.change.Broadcast()
}

// Close closes the connection. No other call may be running or follow.
func (l *Lane) Close() error {
	l.Shutdown()
	l.tending.Wait()
	return nil
}

// Resume goes on by another connection, as Stream.Resume. What the peer lacks is sent again before anything else, in
// the background: it may wait for what the peer is to hear by another lane.
func (l *Lane) Resume(socket *os.File) error {
	l.resuming.Lock()
	defer l.resuming.Unlock()
	w, err := l.connect(socket)
	if err != nil {
		return err
	}
	c := &laneConn{wire: w}
	c.behind.Store(true)
	c.theirs, err = w.greet(l.interrupt())
	c.given.Store(c.theirs)
	if err == nil {
		err = l.log.check(c.theirs)
	}
	if err == nil {
		err = w.settle()
	}
	if err != nil || !l.install(c) {
		w.raw.Close()
		if err == nil {
			err = ErrHangup
		}
		return err
	}
	go func() {
		defer l.tending.Done()
		l.tend()
	}()
	return nil
}

// tend sends what a new connection lacks, unless somebody holds mu, who then tends when he gives it back.
func (l *Lane) tend() {
	for {
		c := l.tryAcquire()
		if c == nil {
			return
		}
		if !c.behind.Load() || !l.mu.TryLock() {
			_ = l.release(c, nil)
			return
		}
		err := l.catchUp(c)
		l.mu.Unlock()
		_ = l.release(c, err) // lost again: the next connection's
	}
}

// tryAcquire is acquire without waiting; nil: there is no connection now.
func (l *Lane) tryAcquire() *laneConn {
	l.state.Lock()
	defer l.state.Unlock()
	if l.conn != nil {
		l.conn.users++
	}
	return l.conn
}

// interrupt gives the connection up and returns how much has come.
func (l *Lane) interrupt() (received uint64) {
	l.state.Lock()
	if c := l.conn; c != nil {
		l.breakLocked(c)
		if c.users == 0 {
			c.raw.Close()
		}
	}
	l.state.Unlock()
	l.receiving.Lock()
	defer l.receiving.Unlock()
	return l.received.Load()
}

func (l *Lane) install(c *laneConn) bool {
	l.state.Lock()
	defer l.state.Unlock()
	if l.closed {
		return false
	}
	l.conn = c
	l.change.Broadcast()
	l.tending.Add(1) // Close waits
	return true
}

// Send writes one chunk; payload is h.Length bytes, or nothing if h.Skipped. It blocks until the kernel has all, by one
// connection or the next. From then on from has the bytes, until the peer's word. It may be nil where the lane ends
// with its connection, and for skipped chunks. What a slow connection gets may be packed (Options.Compression): h says
// nothing of that.
func (l *Lane) Send(h clwire.LaneHeader, payload []byte, from Source) error {
	_, err := l.Ship(h, payload, from)
	return err
}

// Ship is Send, and says how many bytes the payload took on the lane.
func (l *Lane) Ship(h clwire.LaneHeader, payload []byte, from Source) (wire uint32, err error) {
	l.mu.Lock()
	err = l.sendLocked(&h, payload, from)
	l.mu.Unlock()
	if l.lasts() {
		l.tend()
	}
	return h.WireBytes(), err
}

func (l *Lane) sendLocked(h *clwire.LaneHeader, payload []byte, from Source) error {
	packed := l.pack(h, payload)
	if l.lasts() {
		if err := l.log.add(*h, from, packed); err != nil {
			return err
		}
	}
	if packed != nil {
		payload = packed
	}
	for {
		c, err := l.acquire()
		if err != nil {
			return err
		}
		if c.behind.Load() {
			err = l.catchUp(c) // this chunk, too
		} else {
			err = l.write(c, h, payload)
			c.given.Add(uint64(len(l.header) + len(payload)))
		}
		if err == nil || !l.lasts() {
			return l.release(c, err)
		}
		_ = l.release(c, err) // what it lacked is in the log, and the next connection is behind
	}
}

// pack returns what is sent in the place of a chunk's payload, or nil. mu is held.
func (l *Lane) pack(h *clwire.LaneHeader, payload []byte) []byte {
	if l.packer == nil || l.lasts() && l.log.keeps() > maxPacked {
		return nil
	}
	return l.packer.pack(h, payload, l.lasts())
}

func (l *Lane) write(c *laneConn, h *clwire.LaneHeader, payload []byte) error {
	h.Put(l.header[:])
	if l.packer == nil {
		return c.send(l.header[:], payload)
	}
	began := time.Now()
	err := c.send(l.header[:], payload)
	l.packer.wrote(c, h, time.Since(began))
	return err
}

// catchUp sends by a new connection what the peer did not receive by those before. mu is held.
func (l *Lane) catchUp(c *laneConn) error {
	if !c.behind.Swap(false) { // what fails breaks the connection
		return nil
	}
	for _, x := range l.log.since(c.theirs) {
		if err := x.sendAgain(c, c.theirs-min(x.at, c.theirs)); err != nil {
			return err
		}
		c.given.Store(x.end())
	}
	return nil
}

// send writes header and payload. crypto/tls makes a system call for each record of 16 KiB; here a few go together.
func (c *laneConn) send(header, payload []byte) error {
	if c.tls == nil {
		return c.sendClear(header, payload)
	}
	c.raw.gathers(gatherBulk)
	for _, part := range [2][]byte{header, payload} {
		if len(part) > 0 {
			if _, err := c.tls.Write(part); err != nil {
				return hangupOr(err)
			}
		}
	}
	return hangupOr(c.raw.gathered())
}

func (c *laneConn) sendClear(header, payload []byte) error {
	parts := [][]byte{header, payload}
	for len(parts[0])+len(parts[1]) > 0 {
		n, err := unix.SendmsgBuffers(c.raw.fd, parts, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return hangup(err)
		}
		k := min(n, len(parts[0]))
		parts[0], parts[1] = parts[0][k:], parts[1][n-k:]
	}
	return nil
}

// Header waits for the next chunk. The caller then reads or discards its payload.
func (l *Lane) Header() (clwire.LaneHeader, error) {
	if err := l.readWire(l.rx[:]); err != nil {
		return clwire.LaneHeader{}, err
	}
	h, err := clwire.ParseLaneHeader(l.rx[:])
	if err != nil {
		return h, err
	}
	l.opts.Compression.taken(&h)
	if h.Packing != clwire.Plain {
		if l.opts.Compression == nil {
			return h, fmt.Errorf("%w: a packed chunk, where none is taken", ErrCorrupt)
		}
		l.unpacker.expect(h)
	}
	return h, nil
}

// Read fills p with payload, by as many connections as it takes. A packed chunk is unpacked, into p itself where p
// takes it whole.
func (l *Lane) Read(p []byte) error {
	if l.unpacker.pending() {
		return l.readPacked(p)
	}
	return l.readWire(p)
}

// readWire fills p with what is on the lane.
func (l *Lane) readWire(p []byte) error {
	for len(p) > 0 {
		c, err := l.acquire()
		if err != nil {
			return err
		}
		l.receiving.Lock()
		n := 0
		if !l.isBroken(c) { // else the peer was told how much came by it
			n, err = c.receive(p)
		}
		received := l.received.Add(uint64(n))
		l.receiving.Unlock()
		if err = l.release(c, err); err != nil {
			return err
		}
		p = p[n:]
		if l.tell != nil && received-l.told >= ackLane {
			l.told = received
			l.tell(received)
		}
	}
	return nil
}

func (l *Lane) isBroken(c *laneConn) bool {
	l.state.Lock()
	defer l.state.Unlock()
	return c.broken
}

// receive fills p, or returns how much there was and why no more.
func (c *laneConn) receive(p []byte) (n int, err error) {
	if c.tls != nil {
		n, err = io.ReadFull(c.tls, p)
		return n, hangupOr(err)
	}
	c.raw.waiting.Store(true)
	defer c.raw.waiting.Store(false)
	for n < len(p) {
		k, _, err := unix.Recvfrom(c.raw.fd, p[n:], unix.MSG_WAITALL)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN:
		case err != nil, k == 0:
			return n, hangup(err)
		default:
			n += k
			c.raw.heard.Add(1)
		}
	}
	return n, nil
}

// acknowledged notes what the peer has.
func (l *Lane) acknowledged(received uint64) error {
	if !l.lasts() {
		return nil
	}
	return l.log.trim(received)
}

// Discard reads n bytes of payload and forgets them.
func (l *Lane) Discard(n int) error {
	if u := &l.unpacker; u.pending() && !u.begun && n == int(u.now.Length) {
		return l.discardPacked()
	}
	var buf [16 << 10]byte
	for n > 0 {
		part := buf[:min(n, len(buf))]
		if err := l.Read(part); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}

func hangupOr(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrHangup
	}
	return err
}
