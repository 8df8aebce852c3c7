package frontdoor

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// row is one message's policy and handler.
type row struct {
	// beforeHello: allowed as the first message, and only then.
	beforeHello bool
	// oneWay: request 0 is the normal form. Others need a request number.
	oneWay bool
	// mutates: not done any more once the process that opened the connection has ended.
	mutates bool
	// session: needs an open session.
	session bool
	// local: passes a descriptor, or makes sense only beside one: not for peers on another machine.
	local bool
	// admin: for root and the daemon's own user, on this machine.
	admin bool
	// node: for the other nodes of the cluster alone.
	node bool
	// slow: may wait for something else than the store's lock, so mu is not held and earlier replies go out first.
	slow bool
	// pages: takes long for what there is and waits for nothing else meanwhile: its turn is connection.compute.
	pages bool
	// atOnce says whether the request at hand waits for nothing, or says store.ErrWouldWait instead, which only acts
	// on the poller does: then the poller does it. nil: it may wait.
	atOnce func(*connection, *ipc.Frame) bool
	// maxPayload bounds the request in bytes; ipc.MaxPayload bounds all.
	maxPayload uint32

	// One of the two decodes the request and does it, with mu held unless the row is slow. handle sends the reply
	// itself, at once or later. answer gives the reply's payload, which run sends: nil for an empty one, long for one
	// that may take several frames.
	handle func(*connection, *ipc.Frame) error
	answer func(*connection, *ipc.Frame) (ipc.Payload, error)
}

const (
	idBytes     = object.IDBytes
	stringMax   = 2 + 1<<16 - 1 // whatever a text's length can say, so that the store can say what is wrong
	metaMax     = 4 + object.MaxMetaBytes + 1
	optionsMax  = 64 << 10
	requestMax  = 4 + 4096 // a certificate request
	pageMax     = 4 + 2 + wire.MaxCursor
	auditCursor = 256 << 10 // a number of each series of each node
	labelsMax   = 2 + (object.MaxLabels+1)*2*(2+object.MaxLabelBytes+1)
)

// What follows makes a row's handle or answer of a method that gets the request decoded.

// request is what P is of a request M.
type request[M any] interface {
	*M
	Decode([]byte) error
}

// none is a request without fields: its row's maxPayload is 0.
type none struct{}

func (none) Decode([]byte) error { return nil }

// long is a payload that may be too long for one frame.
type long []byte

func (b long) Append(to []byte) []byte { return append(to, b...) }

// decoder decodes requests M. It decodes into a message from a pool: a new one would be allocated each time, and one
// of the connection's would take memory while the connection is at rest. Byte fields of a request alias the frame.
func decoder[M any, P request[M]]() func(*ipc.Frame) (M, error) {
	pool := sync.Pool{New: func() any { return P(new(M)) }}
	return func(f *ipc.Frame) (m M, err error) {
		p := pool.Get().(P)
		err = p.Decode(f.Payload)
		m, *p = *p, m
		pool.Put(p)
		return m, err
	}
}

// on is a row's handle.
func on[M any, P request[M]](do func(*connection, *ipc.Frame, M) error) func(*connection, *ipc.Frame) error {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) error {
		m, err := decode(f)
		if err != nil {
			return err
		}
		return do(c, f, m)
	}
}

// answers is a row's answer.
func answers[M any, P request[M]](do func(*connection, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) (ipc.Payload, error) {
		m, err := decode(f)
		if err != nil {
			return nil, err
		}
		return do(c, m)
	}
}

// done is answers with an empty reply.
func done[M any, P request[M]](do func(*connection, M) error) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) { return nil, do(c, m) })
}

// whether is a row's atOnce.
func whether[M any, P request[M]](is func(*connection, M) bool) func(*connection, *ipc.Frame) bool {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) bool {
		m, err := decode(f)
		return err == nil && is(c, m)
	}
}

// byNumber gives the rows as Server.row wants them.
func byNumber(rows map[wire.Type]row) (list []*row) {
	for kind, row := range rows {
		for len(list) <= int(kind) {
			list = append(list, nil)
		}
		list[kind] = &row
	}
	return list
}

var noRow row

// row gives a message's row, which is empty where the message is not known.
func (s *Server) row(kind wire.Type) (_ *row, known bool) {
	if int(kind) < len(s.rows) && s.rows[kind] != nil {
		return s.rows[kind], true
	}
	return &noRow, false
}

// act does what one frame asks, and says when it was done; began is when the last one was, or the turn began. A
// returned error ends the connection; a request's own failure is answered instead.
func (c *connection) act(f *ipc.Frame, began time.Time) (time.Time, error) {
	row, known := c.srv.row(f.Type)
	c.wanted = c.wanted || f.Flags&ipc.FlagLazy == 0
	err := c.check(f, row, known)
	fatal := err != nil
	if !fatal {
		err = c.run(f, row, known)
		fatal = object.CodeOf(err) == object.ErrProtocol.Code() || row.beforeHello
	}
	if err != nil && errors.Is(err, store.ErrWouldWait) { // on the poller; nothing was done
		c.leftOver = true
		return began, nil
	}
	took := time.Since(began)
	c.srv.tallies.add(f.Type, known, took, err != nil)
	now := began.Add(took)
	switch {
	case err == nil:
		return now, nil
	case fatal:
		c.srv.broken.Add(1)
		return now, &breach{request: f.Request, error: err}
	}
	if f.Request != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = errorFrame(c.out, c.version, f.Request, err)
	}
	return now, nil
}

// check keeps the rules whose breach ends the connection.
func (c *connection) check(f *ipc.Frame, row *row, known bool) error {
	greeted := c.store != nil
	f.CloseFDs()
	switch {
	case f.Flags&^ipc.FlagLazy != 0:
		return fmt.Errorf("%w: %v with flags 0x%x: a request has none, and the daemon accepts no descriptor",
			object.ErrProtocol, f.Type, f.Flags)
	case !greeted && !row.beforeHello:
		return fmt.Errorf("%w: %v before Hello", object.ErrProtocol, f.Type)
	case greeted && row.beforeHello:
		return fmt.Errorf("%w: a second %v", object.ErrProtocol, f.Type)
	case !known:
		return nil
	case f.Length > row.maxPayload:
		return fmt.Errorf("%w: %v of %d bytes, at most %d", object.ErrProtocol, f.Type, f.Length, row.maxPayload)
	case f.Request == 0 && !row.oneWay:
		return fmt.Errorf("%w: %v with request number 0, but it has a reply", object.ErrProtocol, f.Type)
	}
	return nil
}

// run calls the handler as its row asks.
func (c *connection) run(f *ipc.Frame, row *row, known bool) error {
	switch {
	case !known && c.peer.Role == pki.Node:
		return fmt.Errorf("%w: this node does not know request %d: its release is older than the node that asks has: "+
			"install the same release on both", object.ErrUnsupported, uint16(f.Type))
	case !known:
		return fmt.Errorf("%w: this daemon does not know request %d: is it older than its client?",
			object.ErrUnsupported, uint16(f.Type))
	case row.mutates && c.ctx.Err() != nil:
		return fmt.Errorf("%w: the process that opened the connection has ended", object.ErrPermission)
	case f.Type == wire.OpenPage && c.peer.Remote != "":
		return fmt.Errorf("%w: from another machine: keys to the page are given out only on the daemon's machine",
			object.ErrUnsupported)
	case row.admin && !c.peer.Admin:
		return fmt.Errorf("%w: only root and the daemon's own user may do this, on its machine", object.ErrPermission)
	case row.local && c.peer.Remote != "":
		return fmt.Errorf("%w: from another machine: this needs memory that is shared with the daemon, which no network does",
			object.ErrUnsupported)
	case row.node && c.peer.Role != pki.Node:
		return fmt.Errorf("%w: this is for nodes of the cluster alone", object.ErrPermission)
	case row.mutates && c.peer.Role != pki.User:
		return fmt.Errorf("%w: a certificate of role %v allows only to look: log in with a token of role user",
			object.ErrPermission, c.peer.Role)
	case row.session && !c.inSession():
		return fmt.Errorf("%w: this connection has no session", object.ErrInvalid)
	}
	c.mu.Lock()
	if row.slow {
		err := c.flush()
		c.mu.Unlock()
		if err != nil {
			return nil // loop meets sendErr at its next flush
		}
		defer c.sayWorking(f.Request)()
	} else {
		defer c.mu.Unlock()
	}
	if row.handle != nil {
		return row.handle(c, f)
	}
	p, err := row.answer(c, f)
	switch {
	case err != nil:
		return err
	case row.slow:
		return c.replyLater(func() { c.reply(f, p) })
	}
	c.reply(f, p)
	return nil
}

// answer ends a request that ran by itself (later): with p, or with why there is none. mu is held.
func (c *connection) answer(f *ipc.Frame, p ipc.Payload, err error) {
	if err != nil {
		c.out = errorFrame(c.out, c.version, f.Request, err)
	} else {
		c.reply(f, p)
	}
	c.flush() // a failure is met by serve
}

// replyLater takes mu for a slow handler's reply.
func (c *connection) replyLater(reply func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	reply()
	return nil
}

// cluster gives the metadata's side; a front door without one answers ErrUnsupported.
func (c *connection) cluster() (Cluster, error) {
	if c.srv.opts.Cluster == nil {
		return nil, fmt.Errorf("%w: this daemon has no metadata", object.ErrUnsupported)
	}
	return c.srv.opts.Cluster, nil
}

func (c *connection) peers() (Peers, error) {
	if c.srv.opts.Peers == nil {
		return nil, fmt.Errorf("%w: this daemon connects no workers", object.ErrUnsupported)
	}
	return c.srv.opts.Peers, nil
}
