package frontdoor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

const (
	maxWaits   = 64       // Gets of one connection that wait at a time
	flushBytes = 64 << 10 // replies are sent when they reach this, or when no further request is at hand
)

// transport carries frames: an *ipc.Accepted, with descriptors, or an *ipc.Stream.
type transport interface {
	Receive() (ipc.Frame, error)
	Admit(ask func(h ipc.Header, more int) error, free func(n int))
	Whole() bool
	Send(b []byte, fds []int) error
	SetDeadline(time.Time)
	Shutdown()
	Close()
}

// connection is one peer. Its goroutine is serve.
type connection struct {
	srv      *Server         // immutable
	link     transport       // receiving: serve alone; sending: under mu
	frame    ipc.Frame       // serve's, or the poller's while that has the connection, as the next two: the request at hand
	leftOver bool            // which the poller left to serve
	fault    error           // why the poller ended the connection
	wanted   bool            // and the next: somebody waits for a reply that is not sent
	process  *ipc.Process    // immutable; nil: on another machine
	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	waits    sync.WaitGroup // the pidfd's watcher and the Gets that wait
	waiting  atomic.Int32   // those Gets, and what is asleep
	asleep   asleep

	departed chan struct{} // closed when the connection is over but for cleaning up: its session may wait for its client then

	// Set by Hello in serve's goroutine, which alone may read them without stateMu.
	peer  Peer
	store *store.Conn

	scrubbed object.ScrubPass // serve's: the pass that this peer has done in steps

	stateMu    sync.Mutex // guards what follows, and store's coming; a leaf
	session    uint64
	hasSession bool
	ended      bool // no session may be opened any more
	keeping    keeping
	attached   *attached // nil: none

	mu      sync.Mutex // guards the rest
	gone    bool       // nothing may be sent any more
	out     []byte     // replies not yet sent
	sendErr error
	polled  bool     // the poller has the connection at hand: nobody may wait for the peer under mu
	unsent  []unsent // what goes before out
	uploads map[object.ID]*upload
	holds   map[object.ID]*hold
	scratch struct { // what replies are built in, so that none is allocated
		create wire.CreateReply
		get    wire.GetReply
		pop    wire.StreamPopReply
		fds    [ipc.MaxFDs]int
	}
}

func newConnection(s *Server, link transport, process *ipc.Process, peer Peer) *connection {
	c := &connection{srv: s, link: link, process: process, peer: peer, departed: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	link.Admit(c.admit, func(n int) { c.store.UnchargeRequest(uint64(n)) })
	return c
}

// serve runs the connection to its end and gives everything back.
func (c *connection) serve() {
	defer c.srv.dismiss(c)
	if c.process != nil {
		c.waits.Add(1)
		go c.watchProcess()
	}
	defer c.cleanUp()
	defer c.survive()
	c.link.SetDeadline(time.Now().Add(c.srv.opts.HelloTime))
	if c.dataConnection() {
		return
	}
	err := c.loop()
	c.flushLast(err)
	c.depart(err)
}

// who names the peer in the log.
func (c *connection) who() logrus.Fields {
	if c.peer.Remote != "" {
		return logrus.Fields{"remote": c.peer.Remote, "name": c.peer.Subject, "tenant": c.peer.Tenant}
	}
	return logrus.Fields{"pid": c.peer.PID, "tenant": c.peer.Tenant}
}

// dataConnection hands a connection that begins with a ticket's preface on to its worker; false where frames follow.
func (c *connection) dataConnection() bool {
	local, ok := c.link.(*ipc.Accepted)
	if !ok {
		return false
	}
	p, is, err := local.Preface()
	switch {
	case !is || err == nil && p.Kind != ipc.KindTicket:
		return is
	case err == nil:
		err = local.HandOn(func(fd int) error { return c.srv.opts.Backend.Lane(p.Ticket, "", fd) })
	}
	if err != nil {
		c.srv.opts.Log.WithError(err).WithFields(c.who()).Info("front door: a data connection was refused")
	}
	return true
}

// survive turns a panic, a fault of ours, into the end of this connection only.
func (c *connection) survive() {
	if fault := recover(); fault != nil {
		c.srv.opts.Log.WithFields(c.who()).Errorf("front door: connection ended by a fault of the daemon: %v\n%s", fault, debug.Stack())
	}
}

// end makes the connection end soon, from any goroutine.
func (c *connection) end() {
	c.cancel()
	c.link.Shutdown()
	c.stateMu.Lock()
	if c.store != nil {
		c.store.Stop() // a Create that populates gives up
	}
	c.stateMu.Unlock()
	c.closeSession() // an OpenWorker under way comes back
}

func (c *connection) cleanUp() {
	c.end()
	if c.process != nil {
		c.process.Close()
	}
	over := c.srv.turns.take(c.peer.Tenant)
	c.endWaits()
	over()
	c.waits.Wait()
	over = c.srv.turns.take(c.peer.Tenant)
	c.dropBytes()
	if c.store != nil {
		c.store.Close()
	}
	over()
	c.mu.Lock() // who pops or pushes elsewhere may be about to answer here
	c.gone = true
	for _, part := range c.unsent {
		part.close()
	}
	c.unsent = nil
	c.mu.Unlock()
	c.link.Close()
}

// watchProcess ends the connection with the process that opened it, though a forked child may hold the socket.
func (c *connection) watchProcess() {
	defer c.waits.Done()
	if c.process.Wait() == nil {
		c.end()
	}
}

// loop reads and acts until the connection ends; the error says why.
func (c *connection) loop() error {
	for {
		if err := c.flushIfIdle(); err != nil {
			return err
		}
		none, err := c.next()
		if err == nil && none {
			continue
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = fmt.Errorf("%w: no Hello within %v", object.ErrTimeout, c.srv.opts.HelloTime)
			}
			return err
		}
		if err := c.actInTurn(); err != nil {
			return err
		}
	}
}

// actInTurn acts on the request at hand; what may take longer than those that the poller serves waits for its turn.
func (c *connection) actInTurn() error {
	if rows[c.frame.Type].atOnce == nil {
		defer c.srv.turns.take(c.peer.Tenant)()
	}
	return c.act(&c.frame)
}

// flushIfIdle sends what is answered, unless another request is at hand or nobody waits for it: one send answers a batch.
func (c *connection) flushIfIdle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) < flushBytes && (c.leftOver || c.link.Whole() || !c.wanted && len(c.unsent) == 0) {
		return c.sendErr
	}
	c.wanted = false
	return c.flush()
}

// flush sends what is answered. mu is held.
func (c *connection) flush() error {
	if c.sendErr == nil && (len(c.out) > 0 || len(c.unsent) > 0) {
		c.sendErr = c.send(c.out, nil)
	}
	c.resetOut()
	return c.sendErr
}

func (c *connection) resetOut() {
	if cap(c.out) > 2*flushBytes {
		c.out = nil
	}
	c.out = c.out[:0]
}

// flushLast says why the connection ends, where a rule was broken.
func (c *connection) flushLast(why error) {
	if errors.Is(why, io.EOF) || errors.Is(why, unix.ECONNRESET) || c.ctx.Err() != nil {
		return
	}
	c.srv.opts.Log.WithError(why).WithFields(c.who()).Info("front door: connection ended")
	if object.CodeOf(why) == object.ErrInternal.Code() {
		return
	}
	var at *breach
	request := uint64(0)
	if errors.As(why, &at) {
		request = at.request
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = errorFrame(c.out, request, why)
	c.flush()
}

// breach is a fault that ends the connection, with the request that it is answered under.
type breach struct {
	request uint64
	error
}

func (b *breach) Unwrap() error { return b.error }

// reply appends a reply, unless none is wanted. mu is held.
func (c *connection) reply(f *ipc.Frame, p ipc.Payload) {
	if f.Request == 0 {
		return
	}
	c.out = ipc.AppendFrame(c.out, f.Type|wire.ReplyBit, 0, f.Request, p)
}

// replyFD is reply with the descriptor fd, where that is not −1.
func (c *connection) replyFD(f *ipc.Frame, p ipc.Payload, fd int) {
	if fd < 0 {
		c.reply(f, p)
		return
	}
	c.scratch.fds[0] = fd
	c.sendWith(f, p, ipc.FlagFD, c.scratch.fds[:1])
	unix.Close(fd)
}

// sendWith sends what is answered, then this reply with its descriptors beside its first byte. mu is held.
func (c *connection) sendWith(f *ipc.Frame, p ipc.Payload, flag uint16, fds []int) {
	if c.flush() != nil {
		return
	}
	c.out = ipc.AppendFrame(c.out, f.Type|wire.ReplyBit, flag, f.Request, p)
	c.sendErr = c.send(c.out, fds)
	c.resetOut()
}

// replyLong appends a reply of any length, in several frames where it must be. mu is held.
func (c *connection) replyLong(f *ipc.Frame, payload []byte) {
	for len(payload) > ipc.MaxPayload {
		c.appendRaw(f, ipc.FlagMore, payload[:ipc.MaxPayload])
		payload = payload[ipc.MaxPayload:]
		if c.flush() != nil {
			return
		}
	}
	c.appendRaw(f, 0, payload)
}

func (c *connection) appendRaw(f *ipc.Frame, flags uint16, payload []byte) {
	b, at := ipc.AppendHeader(c.out, f.Type|wire.ReplyBit, flags, f.Request)
	c.out = append(b, payload...)
	ipc.FinishFrame(c.out, at)
}

// errorFrame appends the frame that carries err.
func errorFrame(b []byte, request uint64, err error) []byte {
	return ipc.AppendFrame(b, wire.Error, 0, request, &wire.ErrorReply{Code: object.CodeOf(err), Text: err.Error()})
}
