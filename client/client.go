// Package client is what a Go program links to share objects through its node's daemon. Objects are mapped, not copied;
// a get and a release cost one round trip together.
//
// Packages beside it are for other jobs: client/login for logging in at other machines, client/admin for running nodes
// and clusters, client/session for running commands on devices.
//
// What may wait, for the daemon's answer, for memory or for an object, takes a context first. Where that ends before
// the answer is here, the call gives the context's error and says what it waited for; the connection stays as good as
// before. What the answer brings later goes back: a reference, an unsealed object, a frame of a stream. What the
// request alters stays as the daemon does it: a seal, a delete or a name that was under way may have happened. The
// daemon waits on for as long as the call said, one second longer at most than the context's deadline. A context that
// cannot end costs nothing; another one is looked at every 50 ms. Calls without a context wait for nobody: they read
// what is here (Bytes, Meta), or send a message that has no answer (Release, Close, Unpop).
//
// It trusts the daemon that it dialled (see ipc.Dial for which it will not dial).
//
// Sealed objects do not change. From the seal on, the kernel gives nobody a new writable mapping, not even root. A
// write to a slice that this package hands out faults, also in the process that made the object. After the seal
// Buffer.Bytes returns nil, and an old slice faults if the object has 64 KiB or more, or a segment of its own
// (CreateOptions.Own). Only the process that made the object can still write it: through an old slice of a smaller
// object, because small objects share pages; by making pages writable again (mprotect); or through a child that was
// forked before the seal. CreateOptions.Strict excludes all three: no writable mapping is left, and none can be made.
// So what Get returns can be trusted as far as its creator, and a strict object entirely.
//
// A write to sealed memory raises SIGSEGV, because the page is mapped read-only: the program ends with "unexpected
// fault address". Under debug.SetPanicOnFault it is a panic of the goroutine that wrote, and its runtime.Error has the
// address (Addr() uintptr).
//
// The calling thread itself writes its request and reads its reply with blocking system calls; where several goroutines
// wait, one reads for all (Conn.turn) and hands the turn over. There is no reader goroutine. A timer flushes deferred
// one-way messages after 1 ms, another one asks now and then which mappings can go while idle ones are held, and so
// reads replies that nobody waits for any more. A Conn does not survive fork without exec; a Go program cannot do that
// anyway.
//
// Lock order: Conn.revival.turn, Conn.turn, Conn.sendMu, Conn.mu; and view.mu after Conn.mu, by who holds no turn of
// revival.
package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// ErrDisconnected is the answer of a call that was under way when the daemon went, and of those after it until there is
// a daemon again: the next call connects again, for some seconds at first, unless Options.NoReconnect says otherwise, a
// session was opened or the daemon is another machine's. Objects that are held stay readable in any case; a daemon that
// took over from the one before knows them.
var ErrDisconnected = errors.New("not connected to a daemon")

// Options configures a connection. The zero value is fine.
type Options struct {
	Socket  string // path; "" = the first of ipc.Sockets() where a daemon answers
	Program string // what the daemon shows; "" = the executable's name
	// Index says whether objects are got through shared memory where they can be.
	Index IndexUse
	// NoReconnect leaves a broken connection broken. Otherwise it comes back with the next call: see ErrDisconnected.
	NoReconnect bool
	// Silence is how long a server's machine may say nothing before the connection counts as lost (TCP alone; 0: about
	// half a minute), and after session.Keep its daemon while a call waits (0: as long as it likes).
	Silence time.Duration
	Spin    time.Duration // how long a call looks for its answer before it sleeps; 0 = not at all (see ipc.Dial)

	identity identity // who comes in at a server; nil = login
}

// Daemon is who answered.
type Daemon struct {
	Version       string
	Incarnation   object.ID // new each time the daemon starts
	Tenant        string    // this process's
	PID           int
	CapacityBytes uint64
}

const (
	helloTime   = 30 * time.Second       // for the daemon's first answer, on a machine that is busy, or taken over
	flushAfter  = time.Millisecond       // how long a one-way message may wait for company
	flushBytes  = 32 << 10               // of one-way messages that go at once
	sweepAfter  = 250 * time.Millisecond // first question which mappings can go, doubled up to
	sweepAtMost = time.Second            // others may wait for what this process maps without need
)

// link carries frames: an *ipc.Dialed, with descriptors, or an *ipc.Remote.
type link interface {
	SendNow(b []byte) (n int, full bool, err error)
	AwaitRoom(orInput bool, giveUp func() error) error
	Receive(giveUp func() error) (ipc.Frame, error)
	Shutdown()
	Close()
}

// Conn is a connection to the daemon. Safe for concurrent use.
type Conn struct {
	link   link
	socket string // or server, for messages
	daemon Daemon
	speaks uint16                                     // the protocol's version that was agreed on
	lane   func(context.Context) (*ipc.Socket, error) // connects once more to the same daemon
	remote bool                                       // no descriptor comes over the link
	done   func()                                     // waits for what the link started; may be nil
	// says why the daemon's first answer did not come, after Close; may be nil
	excuse   func(error) error
	patience time.Duration // for the daemon's first answer, where helloTime is too short
	// connects once more to the same server, for a session that is kept; nil: it cannot
	redial func(context.Context) (*Conn, error)
	// how long the daemon may say nothing while a call waits, in a session; 0: as long as it likes
	silence time.Duration
	renewal func(ctx context.Context, ask bool) error // gets the next certificate when it is time; nil: there is none

	revival  revival
	attempts atomic.Uint64 // numbers of AttachObject
	door     indexDoor

	turn chan struct{} // capacity 1; who has put its token in reads the socket

	sendMu  sync.Mutex           // guards the socket's writing side and what follows
	out     []byte               // one-way messages to go with the next request
	sent    int                  // bytes of out that are out already
	full    bool                 // the socket had no room for all of out
	next    uint64               // last request number
	release wire.IDMessage       // what a Release is built in
	ack     wire.FrameAckRequest // what a FrameAck is built in

	flush, sweep     *time.Timer
	background       sync.WaitGroup // timers that are set or run
	flushSet         bool           // guarded by sendMu
	sweepSet         bool           // guarded by mu, like what follows
	mu               sync.Mutex
	sweepPause       time.Duration
	spare            spare
	pending          map[uint64]*call
	views            map[uint64]*view
	idle             int // views without references
	abandoned        int // pending calls that nobody waits for
	err              error
	closed, unlinked bool
	session          bool // has one: it does not outlive the connection, unless it is kept
	sessionID        uint64
	kept             *kept       // nil: not
	renewing         *time.Timer // the next look at the certificate; nil: there is none
	gen              uint64      // lives of the connection, this one among them
	held             *Object     // the first of those that are not released
}

// Dial connects to this machine's daemon. The caller must Close; ctx is for connecting alone. No daemon is
// ErrDisconnected; one of another release may be object.ErrVersion.
func Dial(ctx context.Context, o Options) (*Conn, error) {
	return onceMore(ctx, func() (*Conn, error) { return dialHere(ctx, o) })
}

// onceMore connects again, once, where the daemon ended the connection before its first answer: it was taken over then,
// or somebody in between was restarted, and nothing had been asked of it. A refusal comes with its reason, and counts.
func onceMore(ctx context.Context, connect func() (*Conn, error)) (*Conn, error) {
	c, err := connect()
	if err == nil || ctx.Err() != nil ||
		!errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		return c, err
	}
	return connect()
}

func dialHere(ctx context.Context, o Options) (*Conn, error) {
	if o.Program == "" {
		o.Program = filepath.Base(os.Args[0])
	}
	var giveUp func() error
	if ctx.Done() != nil {
		giveUp = ctx.Err
	}
	link, at, err := ipc.Lookup(o.Socket, o.Spin, giveUp)
	if none := (*ipc.NoDaemonError)(nil); errors.As(err, &none) {
		return nil, fmt.Errorf("%w: %w: %s", ErrDisconnected, err, none.Advice())
	}
	if err != nil {
		return nil, err
	}
	o.Socket = at // a connection that comes back comes back to this daemon
	c := newConn(link, o.Socket)
	if !o.NoReconnect {
		again := o
		again.NoReconnect = true
		c.revival.dial = func(ctx context.Context) (*Conn, error) { return Dial(ctx, again) }
	}
	c.lane = func(ctx context.Context) (*ipc.Socket, error) { return ipc.DialUnix(o.Socket, ctx.Err) }
	if err := c.hello(ctx, o.Program); err != nil {
		c.Close()
		return nil, err
	}
	c.wantIndex(o.Index)
	return c, nil
}

func newConn(l link, at string) *Conn {
	return &Conn{
		link: l, socket: at, turn: make(chan struct{}, 1), sweepPause: sweepAfter,
		pending: make(map[uint64]*call), views: make(map[uint64]*view),
		gen: 1, revival: revival{turn: make(chan struct{}, 1)},
	}
}

func (c *Conn) hello(within context.Context, program string) error {
	limit := max(helloTime, c.patience)
	ctx, cancel := context.WithTimeout(within, limit)
	defer cancel()
	// In this life alone: a refusal is the answer, and nothing to try again for.
	call, err := c.roundTripIn(ctx, 1, wire.Hello, &wire.HelloRequest{
		Magic: wire.Magic, Lowest: wire.LowestVersion, Highest: wire.Version, Program: program[:min(len(program), 255)],
	})
	if errors.Is(err, context.DeadlineExceeded) && within.Err() == nil {
		return fmt.Errorf("%w: no answer at %s within %v: is it a Tendril daemon?", ErrDisconnected, c.socket, limit)
	}
	if err != nil {
		return err
	}
	defer call.recycle()
	var m wire.HelloReply
	if len(call.payload) >= 2 { // what follows may have another layout in another version
		m.Version = binary.LittleEndian.Uint16(call.payload)
	}
	if m.Version < wire.LowestVersion || m.Version > wire.Version {
		return fmt.Errorf("%w: the daemon at %s answers in version %d, this client speaks %d to %d: use a client and a daemon of the same release", object.ErrVersion, c.socket, m.Version, wire.LowestVersion, wire.Version)
	}
	if err := m.Decode(call.payload); err != nil {
		return err
	}
	c.speaks = m.Version
	c.daemon = Daemon{Version: m.DaemonVersion, Incarnation: m.Incarnation, Tenant: m.Tenant, PID: int(m.DaemonPID),
		CapacityBytes: m.CapacityBytes}
	return nil
}

// Daemon says who is at the other end.
func (c *Conn) Daemon() Daemon {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.daemon
}

// Socket is where the daemon was found, or the server's name.
func (c *Conn) Socket() string { return c.socket }

// Close ends the connection: the daemon releases its references and drops what was not sealed. Calls under way answer
// ErrDisconnected. Objects that are held stay readable until their Release; unsealed buffers must not be touched any
// more. A second Close does nothing.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.leaveSession()
	c.flushOut() // releases that wait; an error changes nothing here
	c.fail(fmt.Errorf("%w: the connection was closed", ErrDisconnected))
	c.stopTimers()
	c.background.Wait()
	c.turn <- struct{}{} // nobody reads any more
	c.sendMu.Lock()      // nor writes
	c.link.Close()
	c.sendMu.Unlock()
	if c.done != nil {
		c.done()
	}
	<-c.turn
	c.dropViews()
	return nil
}

// fail ends the connection for everybody with err; the first one counts.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// failLocked is fail for who holds mu.
func (c *Conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	if ix := c.door.index.Load(); ix != nil {
		ix.over.Store(true)
	}
	if !c.unlinked {
		c.unlinked = true
		c.link.Shutdown()
	}
	c.abandoned = 0
	for request, call := range c.pending {
		delete(c.pending, request)
		call.finish(c.err)
	}
}

func (c *Conn) stopTimers() {
	c.sendMu.Lock()
	if c.flush != nil && c.flush.Stop() {
		c.background.Done()
	}
	c.sendMu.Unlock()
	c.mu.Lock()
	for _, timer := range []*time.Timer{c.sweep, c.renewing} {
		if timer != nil && timer.Stop() {
			c.background.Done()
		}
	}
	c.mu.Unlock()
}

// disconnected makes an error of the socket ErrDisconnected.
func (c *Conn) disconnected(err error) error {
	if errors.Is(err, ErrDisconnected) {
		return err
	}
	return fmt.Errorf("%w: the daemon at %s is gone: %w", ErrDisconnected, c.socket, err)
}

// notShared reports an error of a call that needs shared memory, where there is none.
func (c *Conn) notShared(what string) error {
	if c.remote {
		return fmt.Errorf("%w: %s over %s: there is no shared memory over a network; Conn.Upload and Conn.Open copy",
			object.ErrUnsupported, what, c.socket)
	}
	return nil
}
