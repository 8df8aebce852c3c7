// Package frontdoor serves the front door's protocol (ipc/PROTOCOL.md) on a unix socket and over TLS: it says who the
// peer is, keeps every rule of the frame, and hands objects to the store, sessions to the daemon's Backend and the rest to
// its Cluster. It passes data connections on to workers without reading them. It trusts the kernel's word about a local
// peer, a verified certificate about a remote one, and nothing that a peer sends. Strangers cost it 48 bytes and a
// goroutine each, for some seconds, and are counted.
//
// A session of another machine may outlive its connection for a while (away.go).
//
// Goroutines: one accepts at each door; each connection has one that reads, acts and answers, a local one another that
// waits on the peer's pidfd, and one for each Get of what comes from disk. Gets that wait, and watches, have none (waits.go); one looks for
// all of them what was published. The poller's does for all local connections what waits for nothing. Server.Close
// joins them all.
// Lock order: connection.mu, then asleep.mu, then the store's own; Server.mu, then connection.stateMu. connection.mu makes the order in which the
// store names segments to a connection the order of the replies, for only the first mention carries the descriptor; it
// is held while a reply is sent, never during a call of the Backend.
package frontdoor

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/store"
	"tendril/store/object"
)

// Options says what a Server serves. Socket, Store, Backend and Tenant must be given.
type Options struct {
	Socket  string // path
	Store   *store.Store
	Backend Backend
	// Tenant says which tenant a user of this machine belongs to; "" refuses the connection.
	Tenant func(uid, gid uint32) string
	// Admin says which users of this machine may make and revoke tokens; nil = none.
	Admin func(uid uint32) bool
	// Cluster is the metadata; nil = what needs it is unsupported.
	Cluster Cluster
	// Peers connects workers to each other; nil = unsupported.
	Peers Peers
	// TLS is for ListenTCP (pki.ServerConfig), and Remote says who a certified peer is here: tenant and user.
	TLS    *tls.Config
	Remote func(pki.Peer) Peer
	// Revoked says whose certificates are good no more; nil = nobody's. TLS asks, too, but a revocation during the handshake would
	// find no connection to end.
	Revoked       func(pki.Serial) bool
	DaemonVersion string
	Incarnation   object.ID
	Log           logrus.FieldLogger // nil: nothing is logged
	// MaxConnections bounds them all, and TenantConnections those of one tenant. The last eighth of all is for tenants that have few, less
	// than a sixty-fourth. Defaults 4096, and half of MaxConnections.
	MaxConnections    int
	TenantConnections int
	// Inherited is the door of the daemon before; nil: Listen makes one. Listen takes it over in any case. Heirs are connections that
	// hold what that daemon's clients held, and are the Server's; each ends with its process, or Grace (default 30 s) after that
	// has connected again. With Closed nobody is let in before Open.
	Inherited *Door
	Heirs     []*store.Conn
	Grace     time.Duration
	Closed    bool
	// Takeover says whether a peer may be the next daemon, and gives the socket and the format for that; nil = nobody may.
	Takeover func(p Peer, lowest, highest uint16) (format uint16, end *os.File, err error)
	// ResumeTime is how long a session of another machine may wait for its client; 0: it ends with its connection.
	ResumeTime time.Duration
	// HelloTime is what a new connection has for its Hello. Default 2 s.
	HelloTime time.Duration
	// Lingers is how many connections may wait for their next request on a thread of their own, for some ms. Default
	// 8; negative: none. Never as many as GOMAXPROCS.
	Lingers int
}

func (o Options) withDefaults() Options {
	if o.MaxConnections == 0 {
		o.MaxConnections = 4096
	}
	if o.TenantConnections == 0 {
		o.TenantConnections = max(1, o.MaxConnections/2)
	}
	if o.HelloTime == 0 {
		o.HelloTime = 2 * time.Second
	}
	if o.Lingers == 0 {
		o.Lingers = 8
	}
	if o.Grace == 0 {
		o.Grace = 30 * time.Second
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	return o
}

// Server is a front door. Safe for concurrent use.
type Server struct {
	opts     Options           // immutable
	listener *net.UnixListener // immutable
	lock     *os.File          // immutable: flocked while the socket is ours
	lingers  *ipc.Lingers      // immutable
	poller   *ipc.Poller       // immutable; nil where the machine gives none: each connection then waits by itself

	running sync.WaitGroup // the accept loop and the connections
	turns   *turns         // immutable
	named   namedWaits
	ended   chan struct{} // closed by Close
	opening sync.Once
	open    chan struct{} // closed by Open, and by Close

	mu      sync.Mutex // guards the rest
	conns   map[*connection]struct{}
	tenants map[string]int // connections of each
	away    map[uint64]*awaySession
	closed  bool

	heirs     heirs
	remote    *remoteDoor // nil: not open
	strangers strangers
}

// Listen makes the socket and serves it until Close. A socket file that nobody answers is replaced; one that is
// answered, or whose lock is held, is ErrBusy.
func Listen(opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if opts.Store == nil || opts.Backend == nil || opts.Tenant == nil || opts.Socket == "" {
		opts.Inherited.Close()
		return nil, fmt.Errorf("%w: a front door needs Socket, Store, Backend and Tenant", object.ErrInvalid)
	}
	listener, lock, err := opts.listen()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, listener: listener, lock: lock, open: make(chan struct{}), ended: make(chan struct{}), turns: newTurns(), lingers: ipc.NewLingers(opts.Lingers), conns: make(map[*connection]struct{}), tenants: make(map[string]int), away: make(map[uint64]*awaySession)}
	s.strangers = strangers{from: map[netip.Addr]int{}, all: map[*stranger]struct{}{}}
	s.heirs = heirs{grace: opts.Grace, of: make(map[int][]*ipc.Process), timer: make(map[*ipc.Process]*time.Timer)}
	for _, conn := range opts.Heirs {
		s.heirs.adopt(conn)
	}
	if s.poller, err = ipc.NewPoller(s.lingers); err != nil {
		opts.Log.WithError(err).Warn("front door: each connection waits on a goroutine of its own")
	}
	s.running.Add(1)
	go s.accept()
	if opts.Cluster != nil {
		s.running.Add(1)
		go s.followPublished()
	}
	if !opts.Closed {
		s.Open()
	}
	return s, nil
}

// listen makes the socket, or takes the inherited one.
func (o *Options) listen() (*net.UnixListener, *os.File, error) {
	if o.Inherited == nil {
		return listenUnix(o.Socket, os.Getuid() == 0)
	}
	listener, err := o.Inherited.listener(o.Socket)
	if err != nil {
		o.Inherited.Lock.Close()
	}
	return listener, o.Inherited.Lock, err
}

// Open lets peers in; a second call does nothing.
func (s *Server) Open() { s.opening.Do(func() { close(s.open) }) }

// Connections gives the number of connections now open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Close removes the socket, ends every connection and joins every goroutine. Sessions are closed, references released.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.running.Wait()
		return
	}
	s.closed = true
	conns := make([]*connection, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	if s.remote != nil {
		s.remote.listener.Close()
	}
	for who := range s.strangers.all {
		who.conn.Close()
	}
	s.mu.Unlock()
	close(s.ended)
	s.listener.Close() // unlinks the socket
	s.Open()
	for _, c := range conns {
		c.end()
	}
	s.endAwayIf(func(Peer) bool { return true })
	s.running.Wait()
	if s.poller != nil {
		s.poller.Close()
	}
	s.heirs.close()
	s.lock.Close() // only now may another daemon take the path
}

// acceptPause is how long to wait when the machine has no descriptor for another connection.
const acceptPause = 50 * time.Millisecond

func (s *Server) accept() {
	defer s.running.Done()
	<-s.open
	for {
		conn, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.opts.Log.WithError(err).Warn("front door: accept failed; is the limit of open files too low?")
			time.Sleep(acceptPause)
		default:
			s.welcome(conn)
		}
	}
}

// welcome identifies a peer and starts its connection. It never waits for the peer.
func (s *Server) welcome(conn *net.UnixConn) {
	peer, process, err := ipc.Identify(conn)
	if err != nil {
		conn.Close() // it is gone already, or the machine is out of descriptors
		s.opts.Log.WithError(err).Debug("front door: peer cannot be identified")
		return
	}
	link, err := ipc.NewAccepted(conn, s.lingers)
	if err != nil {
		process.Close()
		return
	}
	c := newConnection(s, link, process, Peer{
		PID: peer.PID, UID: peer.UID, GID: peer.GID, Tenant: s.opts.Tenant(peer.UID, peer.GID), Role: pki.User,
		Admin: s.opts.Admin != nil && s.opts.Admin(peer.UID),
	})
	if err := s.admit(c); err != nil {
		refuse(link, err)
		process.Close()
		return
	}
	go c.serve()
}

// refuse says why and closes. The answer fits into any socket buffer, so it cannot block.
func refuse(link transport, why error) {
	link.Send(errorFrame(nil, 0, why), nil)
	link.Close()
}

// admit takes a connection in, unless there are too many or the server is closing. It counts it as running.
func (s *Server) admit(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant := c.peer.Tenant
	all, own := s.opts.MaxConnections, s.tenants[tenant]
	switch {
	case tenant == "":
		return fmt.Errorf("%w: user %d belongs to no tenant of this daemon", object.ErrPermission, c.peer.UID)
	case s.closed:
		return fmt.Errorf("%w: the daemon is stopping", object.ErrBusy)
	case len(s.conns) >= all:
		return fmt.Errorf("%w: %d connections are open, which is the limit: close some, or give the daemon more (--max-connections)", object.ErrBusy, all)
	case own >= s.opts.TenantConnections:
		return fmt.Errorf("%w: tenant %s has %d connections open, which is its limit: close some, or give tenants more (--tenant-connections)",
			object.ErrBusy, tenant, own)
	case len(s.conns) >= all-all/8 && own >= max(1, all/64):
		return fmt.Errorf("%w: %d of %d connections are open, and the last ones are for tenants that have few; %s has %d: close some, or give the daemon more (--max-connections)",
			object.ErrBusy, len(s.conns), all, tenant, own)
	}
	s.conns[c] = struct{}{}
	s.tenants[tenant]++
	s.running.Add(1)
	return nil
}

// dismiss is the reverse of admit.
func (s *Server) dismiss(c *connection) {
	s.mu.Lock()
	delete(s.conns, c)
	if s.tenants[c.peer.Tenant]--; s.tenants[c.peer.Tenant] == 0 {
		delete(s.tenants, c.peer.Tenant)
	}
	s.mu.Unlock()
	s.running.Done()
}
