package frontdoor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/cluster/pki"
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
	EndReceive()
	Part()
	Shutdown()
	Close()
}

// connection is one peer. The poller serves it, or a goroutine of its own, serve, with what the poller left to that.
type connection struct {
	srv  *Server   // immutable
	link transport // receiving: serve alone; sending: under mu
	// serve's, or the poller's while that has the connection, as the next four: the request at hand
	frame    ipc.Frame
	framed   bool            // it has begun with a frame
	leftOver bool            // which the poller left to serve
	fault    error           // why the poller ended the connection
	wanted   bool            // and the next: somebody waits for a reply that is not sent
	process  *ipc.Watching   // immutable; nil: on another machine
	greeting *time.Timer     // immutable; ends the time for Hello
	late     atomic.Bool     // it has
	expired  atomic.Bool     // the peer's certificate has
	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	waits    sync.WaitGroup // the Gets that wait
	waiting  atomic.Int32   // those Gets, and what is asleep
	asleep   asleep

	// closed when the connection is over but for cleaning up: its session may wait for its client then
	departed chan struct{}

	peer    Peer        // as it was admitted, for good but for Name, which Hello sets under stateMu; see peerNow
	store   *store.Conn // Hello's; other goroutines than serve's that may run before it read it under stateMu
	indexed bool        // it counts among those with the index; guarded by Server.mu

	scrubbed object.ScrubPass // serve's: the pass that this peer has done in steps
	endTurn  func()           // serve's: ends the turn of the request at hand, which has one

	handOnTurn func() // the same, for who waits at once for something else

	ranged *store.Reading // serve's: the Hold that the last ReadRange read; nil: none, or it is released

	stateMu    sync.Mutex // guards what follows, and store's coming; before the store's
	session    uint64
	hasSession bool
	ended      bool   // no session may be opened any more
	why        error  // the session ends with the connection; nil: nobody is to be told
	leaveLine  func() // gives up the place in a line that the last request for a session got; nil: it got none
	keeping    keeping
	attached   *attached // nil: none
	// of the peer: the one of its handshake, or what renewed that; expires is zero where there is none, or no more
	certificate struct {
		serial  pki.Serial
		leaf    *x509.Certificate
		expires time.Time
	}
	expiry *time.Timer // nil: the peer has no certificate, or it is not looked at yet

	mu      sync.Mutex // guards the rest
	version uint16     // of the protocol, agreed on in Hello; 0 before
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

func newConnection(s *Server, link transport, peer Peer) *connection {
	c := &connection{srv: s, link: link, peer: peer, departed: make(chan struct{})}
	c.certificate.serial, c.certificate.expires, c.certificate.leaf = peer.Serial, peer.Expires, peer.Leaf
	c.ctx, c.cancel = context.WithCancel(context.Background())
	link.Admit(c.admit, func(n int) { c.store.UnchargeRequest(uint64(n)) })
	return c
}

// begin bounds the time for Hello. The connection is admitted.
func (c *connection) begin() {
	c.greeting = time.AfterFunc(c.srv.opts.HelloTime, func() {
		c.late.Store(true)
		c.link.EndReceive()
	})
}

// serve runs the connection until the poller goes on with it, or to its end.
func (c *connection) serve() {
	if !c.serveSome() {
		c.finish(c.srv.turns.take)
	}
}

// serveSome reports whether the poller goes on: then nothing of c may be touched any more.
func (c *connection) serveSome() (polled bool) {
	defer c.survive()
	err := c.fault
	if err == nil && !c.framed {
		if c.dataConnection() {
			return false
		}
		c.framed = true
	}
	if err == nil {
		if polled, err = c.loop(); polled {
			return true
		}
	}
	if c.late.Load() && c.store == nil {
		err = fmt.Errorf("%w: no Hello within %v", object.ErrTimeout, c.srv.opts.HelloTime)
	}
	if c.expired.Load() && c.ctx.Err() == nil {
		err = errExpired
	}
	c.flushLast(err)
	c.depart(err)
	return false
}

// finish gives everything back. take is how it comes to a turn for that.
func (c *connection) finish(take func(tenant string) (over func())) {
	c.greeting.Stop()
	c.stopExpiry()
	c.cleanUp(take)
	c.srv.dismiss(c)
}

// left goes on where the poller has let go of the connection. over: it has ended.
func (c *connection) left() (over bool) {
	if c.endsAtOnce() && c.saysWhyAtOnce() {
		close(c.departed)
		c.finish(func(string) func() { return func() {} })
		return true
	}
	go c.serve()
	return false
}

// endsAtOnce reports whether the connection has ended and has nothing to give back that is worth a turn.
func (c *connection) endsAtOnce() bool {
	if c.fault == nil || !hungUp(c.fault) && isInternal(c.fault) || c.late.Load() || c.waiting.Load() > 0 ||
		c.inSession() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unsent)+len(c.uploads)+len(c.holds) == 0 && (c.store == nil || c.store.ClosesAtOnce())
}

// hungUp reports whether a connection ended because its peer went.
func hungUp(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) }

func isInternal(err error) bool { return object.CodeOf(err) == object.ErrInternal.Code() }

// saysWhyAtOnce is flushLast that waits for nobody; false: flushLast has to do it. What the peer does not take at once
// of the last replies is lost, as it is where the peer does not read them before it closes its end.
func (c *connection) saysWhyAtOnce() bool {
	if hungUp(c.fault) || c.ctx.Err() != nil {
		return true
	}
	if !c.srv.farewells.say(c.who(), c.fault) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sendErr == nil {
		_, c.sendErr = c.link.(*ipc.Accepted).SendNow(errorFrame(c.out, c.version, requestOf(c.fault), c.fault), nil)
	}
	c.resetOut()
	return true
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
	case err == nil && !c.greeting.Stop():
		err = fmt.Errorf("%w: a preface after more than %v", object.ErrTimeout, c.srv.opts.HelloTime)
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
		c.srv.opts.Log.WithFields(c.who()).Errorf("front door: connection ended by a fault of the daemon: %v\n%s",
			fault, debug.Stack())
	}
}

// end makes the connection end soon, from any goroutine. why is for a client of its session that comes back; nil: there
// is nothing to say.
func (c *connection) end(why error) {
	c.link.Shutdown() // first: no request is refused with the cause that its process has ended
	c.cancel()
	c.stateMu.Lock()
	if c.store != nil {
		c.store.Stop() // a Create that populates gives up
	}
	c.stateMu.Unlock()
	c.closeSession(why) // an OpenWorker under way comes back
}

func (c *connection) cleanUp(take func(tenant string) (over func())) {
	c.end(nil)
	if c.process != nil {
		c.process.Close()
	}
	over := take(c.peer.Tenant)
	c.endWaits()
	over()
	c.waits.Wait()
	over = take(c.peer.Tenant)
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

// processEnded ends the connection with the process that opened it, though a forked child may hold the socket. It waits
// for nothing.
func (c *connection) processEnded() {
	c.link.Shutdown() // first: see end
	c.cancel()
	c.srv.running.Add(1) // it is not 0: cleanUp has not closed process yet
	go func() {
		defer c.srv.running.Done()
		c.end(nil)
	}()
}

// loop reads and acts until the poller goes on, or the connection ends; the error says why.
func (c *connection) loop() (polled bool, err error) {
	for {
		if err := c.flushIfIdle(); err != nil {
			return false, err
		}
		polled, err := c.next()
		switch {
		case err != nil && c.answerRefused(err):
			continue
		case polled || err != nil:
			return polled, err
		}
		if err := c.actInTurn(); err != nil {
			return false, err
		}
	}
}

// answerRefused answers a request that there was no memory for. false: err says something else.
func (c *connection) answerRefused(err error) bool {
	var r *ipc.Refused
	if !errors.As(err, &r) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = true
	if r.Request != 0 {
		c.out = errorFrame(c.out, c.version, r.Request, r)
	}
	return true
}

// actInTurn acts on the request at hand; what may take longer than those that the poller serves waits for its turn.
func (c *connection) actInTurn() error {
	if row, _ := c.srv.row(c.frame.Type); row.atOnce == nil && !row.pages {
		c.endTurn, c.handOnTurn = c.srv.turns.begin(c.peer.Tenant)
		defer func() { c.endTurn() }()
	}
	_, err := c.act(&c.frame, time.Now())
	return err
}

// compute is the turn of a row that pages: none goes on beside it. It is over before the peer is sent anything.
func (c *connection) compute(do func()) {
	over := c.srv.PageTurn(c.peer.Tenant)
	defer over()
	do()
}

// nextTurn is for a request that takes long: it ends the turn, and waits for another one. Only for rows without atOnce.
func (c *connection) nextTurn() {
	c.endTurn()
	c.endTurn, c.handOnTurn = c.srv.turns.begin(c.peer.Tenant)
}

// flushIfIdle sends what is answered, unless another request is at hand or nobody waits for it: one send answers a
// batch.
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
	if hungUp(why) || c.ctx.Err() != nil {
		return
	}
	c.srv.farewells.log(c.who(), why)
	if isInternal(why) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = errorFrame(c.out, c.version, requestOf(why), why)
	c.flush()
}

// breach is a fault that ends the connection, with the request that it is answered under.
type breach struct {
	request uint64
	error
}

func (b *breach) Unwrap() error { return b.error }

// requestOf gives the request that a connection's end is answered under; 0: none.
func requestOf(why error) uint64 {
	if at := (*breach)(nil); errors.As(why, &at) {
		return at.request
	}
	return 0
}

// reply appends a reply, unless none is wanted. mu is held.
func (c *connection) reply(f *ipc.Frame, p ipc.Payload) {
	if f.Request == 0 {
		return
	}
	if b, is := p.(long); is {
		c.replyLong(f, b)
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

// errorFrame appends the frame that carries err to a peer of a version of the protocol.
func errorFrame(b []byte, version uint16, request uint64, err error) []byte {
	code := wire.CodeFor(version, object.CodeOf(err))
	return ipc.AppendFrame(b, wire.Error, 0, request, &wire.ErrorReply{Code: code, Text: err.Error()})
}
