// Package frontdoor serves the front door's protocol (ipc/PROTOCOL.md) on a unix socket and over TLS: it says who the
// peer is, keeps every rule of the frame, and hands objects to the store, sessions to the daemon's Backend and the rest
// to its Cluster. It passes data connections on to workers without reading them. It trusts the kernel's word about a
// local peer, a verified certificate about a remote one, and nothing that a peer sends. Strangers cost it 48 bytes and
// a goroutine each, for some seconds, and are counted.
//
// table.go names every message with its rules and its handler, and hands that to the server. Nothing below names the
// table, nor a handler by itself: what only a row leads to (pages, queries, compose, ...) is read alone.
//
// A session of another machine may outlive its connection for a while (away.go).
//
// Goroutines: the poller's lets local connections in and does for all of them what waits for nothing, from Hello on. A
// connection has one that reads, acts and answers only while it has something to do that may wait; one of another
// machine always. There is one for each Get of what comes from disk. Gets that wait, and watches, have none (waits.go);
// one looks for all of them what was published. One writes why connections ended into the log. One waits for the
// processes that have connected to end, and one accepts from other machines. Server.Close joins them all. Lock
// order: connection.mu, then asleep.mu, then the store's own; Server.mu, then connection.stateMu. connection.mu
// makes the order in which the store names segments to a connection the order of the replies, for only the first
// mention carries the descriptor; it is held while a reply is sent, never during a call of the Backend.
package frontdoor

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
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

// Options says what a Server serves. Socket, Store, Backend and Tenant must be given.
type Options struct {
	Socket  string // path
	Store   *store.Store
	Backend Backend
	// Tenant says which tenant a user of this machine belongs to; "" refuses the connection.
	Tenant func(uid, gid uint32) string
	// Refuses says whose tenant is disabled; nil = nobody's. It is called under a lock, and waits for nothing.
	Refuses func(Peer) bool
	// Admin says which users of this machine may make and revoke tokens; nil = none.
	Admin func(uid uint32) bool
	// Cluster is the metadata; nil = what needs it is unsupported.
	Cluster Cluster
	// Nodes is the other nodes' side; nil = unsupported.
	Nodes Nodes
	// Elsewhere is about objects that are on other nodes; nil = nobody gets those.
	Elsewhere Elsewhere
	// Transfers gives other nodes objects, with TransfersTLS; nil = they get none.
	Transfers    Transfers
	TransfersTLS *tls.Config
	// Peers connects workers to each other; nil = unsupported.
	Peers Peers
	// GPUs lists those whose memory objects can lie in, for JSON; nil = unsupported. It may wait.
	GPUs func() (any, error)
	// TLS is for ListenTCP (pki.ServerConfig), and Remote says who a certified peer is here: tenant and user.
	TLS    *tls.Config
	Remote func(pki.Peer) Peer
	// Void says which certificates are good no more: they were revoked, or are of an authority that was rotated; nil =
	// none. TLS asks, too, but a revocation during the handshake would find no connection to end.
	Void          func(*x509.Certificate) bool
	DaemonVersion string
	Incarnation   object.ID
	Log           logrus.FieldLogger // nil: nothing is logged
	// MaxConnections bounds them all, and TenantConnections those of one tenant. The last eighth of all is for tenants
	// that have few, less than a sixty-fourth. Defaults 4096, and half of MaxConnections.
	MaxConnections    int
	TenantConnections int
	// MaxFiles bounds the descriptors that local connections take: one each, one for each process that has some, and
	// one for each that has the index. The last eighth is as of MaxConnections. Default 0: no bound.
	MaxFiles int
	// Inherited is the previous daemon's door; nil: Listen makes one. Listen takes it over, also when it fails. Orphans
	// hold the references of that daemon's clients. The Server owns them and closes each when its process ends, or
	// Grace (default 30 s) after that process has connected again. With Closed nobody is let in before Open.
	Inherited *Door
	Orphans   []*store.Conn
	Grace     time.Duration
	Closed    bool
	// Takeover says whether a peer may be the next daemon, and gives the socket and the format for that; nil = nobody
	// may.
	Takeover func(p Peer, lowest, highest uint16) (format uint16, end *os.File, err error)
	// ResumeTime is how long a session of another machine may wait for its client; 0: it ends with its connection.
	ResumeTime time.Duration
	// HelloTime is what a new connection has for its Hello. Default 30 s: it is known whose the connection is, and it
	// counts among its tenant's, so silence gains nothing, and a program may be scheduled late.
	HelloTime time.Duration
	// StrangerTime is what a connection from another machine has for each step until it is known whose it is: its
	// preface, its handshake, an Enroll. Default 15 s. Meanwhile it is one of the strangers, who are counted.
	StrangerTime time.Duration
	// EntryTime is how long a request that needs to know what is published waits for the node to enter its cluster,
	// just after the start. Default 2 s.
	EntryTime time.Duration
	// ChargeTime is how long a request waits for memory that its tenant's other requests hold. Default 10 s.
	ChargeTime time.Duration
	// Lingers is how many connections may wait for their next request on a thread of their own, for some ms. Default
	// 8; negative: none. Never as many as GOMAXPROCS.
	Lingers int

	// The constants of these names; tests have others.
	letReadTime, farewellTime, closedGrace, surrenderTime time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxConnections == 0 {
		o.MaxConnections = 4096
	}
	if o.TenantConnections == 0 {
		o.TenantConnections = max(1, o.MaxConnections/2)
	}
	if o.HelloTime == 0 {
		o.HelloTime = 30 * time.Second
	}
	if o.StrangerTime == 0 {
		o.StrangerTime = 15 * time.Second
	}
	if o.EntryTime == 0 {
		o.EntryTime = 2 * time.Second
	}
	if o.ChargeTime == 0 {
		o.ChargeTime = 10 * time.Second
	}
	if o.Lingers == 0 {
		o.Lingers = 8
	}
	if o.Grace == 0 {
		o.Grace = 30 * time.Second
	}
	o.letReadTime = cmp.Or(o.letReadTime, letReadTime)
	o.farewellTime = cmp.Or(o.farewellTime, farewellTime)
	o.closedGrace = cmp.Or(o.closedGrace, closedGrace)
	o.surrenderTime = cmp.Or(o.surrenderTime, surrenderTime)
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	return o
}

// Server is a front door. Safe for concurrent use.
type Server struct {
	opts      Options        // immutable
	rows      []*row         // immutable: what it answers, and how, by message; nil: unknown. See row
	listener  *listener      // immutable
	lock      *os.File       // immutable: flocked while the socket is ours
	lingers   *ipc.Lingers   // immutable
	poller    *ipc.Poller    // immutable
	processes *ipc.Processes // immutable
	farewells *farewells     // immutable
	entryBy   time.Time      // immutable: until then requests wait for the entry

	running sync.WaitGroup // the connections and what accepts from other machines
	turns   *turns         // immutable
	pages   *turns         // immutable: one at a time
	pace    ipc.Pace       // of pages; of whoever has a turn of them
	// immutable but in tests, both: whether other tenants work, and what calls the next after a rest
	othersWork func(tenant string) bool
	afterRest  func(next func())
	named      namedWaits
	endings    endings
	tallies    tallies
	broken     atomic.Uint64 // connections whose peer broke the protocol
	ended      chan struct{} // closed by Close
	opening    sync.Once

	mu      sync.Mutex // guards the rest
	conns   map[*connection]struct{}
	tenants map[string]int // connections of each
	indexed int            // connections with the index
	away    map[uint64]*awaySession
	closed  bool

	orphans   orphans
	askers    []*asker    // of other nodes, that want objects
	remote    *remoteDoor // nil: not open
	strangers strangers
}

// listen is Listen for a door that answers what the rows name.
func listen(opts Options, rows map[wire.Type]row) (*Server, error) {
	opts = opts.withDefaults()
	if opts.Store == nil || opts.Backend == nil || opts.Tenant == nil || opts.Socket == "" {
		opts.Inherited.Close()
		return nil, fmt.Errorf("%w: a front door needs Socket, Store, Backend and Tenant", object.ErrInvalid)
	}
	listener, lock, err := opts.listen()
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, rows: byNumber(rows), listener: listener, lock: lock, ended: make(chan struct{}),
		turns: newTurns(), pages: newTurns(),
		lingers: ipc.NewLingers(opts.Lingers), entryBy: time.Now().Add(entryTimes * opts.EntryTime),
		conns: make(map[*connection]struct{}), tenants: make(map[string]int), away: make(map[uint64]*awaySession),
	}
	s.pages.free = 1
	s.othersWork = s.lingers.OthersWork
	s.named.first = make(chan struct{}, 1)
	s.afterRest = func(next func()) { time.AfterFunc(ipc.PaceRest, next) }
	s.strangers = strangers{from: map[netip.Addr]int{}, all: map[*stranger]struct{}{}}
	s.orphans = orphans{grace: opts.Grace, of: make(map[int][]*ipc.Process), timer: make(map[*ipc.Process]*time.Timer)}
	if s.poller, err = ipc.NewPoller(); err == nil {
		s.processes, err = ipc.NewProcesses()
	}
	if err != nil {
		if s.poller != nil {
			s.poller.Close()
		}
		listener.Close()
		lock.Close()
		return nil, fmt.Errorf("front door: %w", err)
	}
	s.farewells = newFarewells(opts.Log)
	for _, conn := range opts.Orphans {
		s.orphans.adopt(conn)
	}
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
func (o *Options) listen() (*listener, *os.File, error) {
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
func (s *Server) Open() {
	s.opening.Do(func() {
		if err := s.poller.Listen(s.listener.fd, s.lingers, s.accept); err != nil {
			s.opts.Log.WithError(err).Error("front door: cannot accept connections")
		}
	})
}

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
	for _, n := range s.askers {
		n.end()
	}
	s.mu.Unlock()
	close(s.ended)
	s.listener.unlink()
	for _, c := range conns {
		c.end(nil)
	}
	s.endAwayIf(func(Peer) bool { return true }, nil)
	s.running.Wait()
	s.poller.Close()
	s.farewells.close()
	s.listener.Close()
	s.processes.Close()
	s.orphans.close()
	s.lock.Close() // only now may another daemon take the path
}

// accept lets the next peer in, on the poller's goroutine.
func (s *Server) accept(began time.Time) ipc.Turn {
	s.mu.Lock()
	if s.closed { // who waits in the socket's queue may be another daemon's
		s.mu.Unlock()
		return ipc.Leave
	}
	fd, err := ipc.Accept(s.listener.fd)
	s.mu.Unlock()
	switch {
	case errors.Is(err, unix.EAGAIN):
		return ipc.Served
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED):
		return ipc.More
	case err != nil:
		go s.opts.Log.WithError(err).Warn("front door: accept failed; is the limit of open files too low?")
		return ipc.Rest
	}
	if tenant := s.welcome(fd); tenant != "" {
		s.poller.Charge(tenant, time.Since(began))
	}
	return ipc.More
}

// welcome identifies a peer and starts its connection. It waits for nothing. It gives the peer's tenant, where it has
// one.
func (s *Server) welcome(fd int) (tenant string) {
	link := ipc.NewAccepted(fd, s.lingers)
	peer, err := link.Peer()
	if err != nil {
		link.Close() // it is gone already
		return ""
	}
	tenant = s.opts.Tenant(peer.UID, peer.GID)
	c := newConnection(s, link, Peer{
		PID: peer.PID, UID: peer.UID, GID: peer.GID, Tenant: tenant, Role: pki.User,
		Admin: s.opts.Admin != nil && s.opts.Admin(peer.UID),
	})
	if err := s.admit(c); err != nil {
		refuse(link, err)
		return tenant
	}
	if c.process, err = s.processes.Watch(link, peer.PID, c.processEnded); err != nil {
		s.dismiss(c)
		link.Close() // it has ended already, or the machine is out of descriptors
		return tenant
	}
	c.begin()
	if !s.poller.Serve(link, tenant, c.step, c.left) {
		go c.serve()
	}
	return tenant
}

// refuse says why and closes. The answer fits into any socket buffer, so it cannot block.
func refuse(link transport, why error) {
	link.Send(errorFrame(nil, 0, 0, why), nil)
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
	case s.opts.Refuses != nil && s.opts.Refuses(c.peer):
		return fmt.Errorf("%w: tenant %s is disabled: ask the administrator of the cluster (tendril tenant enable)",
			object.ErrPermission, tenant)
	case s.closed:
		return fmt.Errorf("%w: the daemon is stopping", object.ErrBusy)
	case len(s.conns) >= all:
		return fmt.Errorf("%w: %d connections are open, which is the limit: close some, or give the daemon more (--max-connections)", object.ErrBusy, all)
	case own >= s.opts.TenantConnections:
		return fmt.Errorf("%w: tenant %s has %s open, which is its limit: close some, or give tenants more (--tenant-connections)",
			object.ErrBusy, tenant, object.Counted(own, "connection"))
	case len(s.conns) >= all-all/8 && own >= max(1, all/64):
		return fmt.Errorf("%w: %d of %d connections are open, and the last ones are reserved for tenants that have few; %s has %d: close some, or give the daemon more (--max-connections)",
			object.ErrBusy, len(s.conns), all, tenant, own)
	}
	if limit := s.opts.MaxFiles; limit > 0 && c.peer.Remote == "" {
		files := s.files()
		if files+2 > limit || files+2 > limit-limit/8 && own >= max(1, all/64) {
			return fmt.Errorf("%w: %d connections take %d of the daemon's descriptors, of %d that they may take: close some, or raise its limit of open files (ulimit -Hn, LimitNOFILE=)",
				object.ErrBusy, len(s.conns), files, limit)
		}
	}
	s.conns[c] = struct{}{}
	s.tenants[tenant]++
	s.running.Add(1)
	return nil
}

// files gives how many descriptors connections take. mu is held.
func (s *Server) files() int { return len(s.conns) + s.processes.Count() + s.indexed }

// takeIndex counts another connection's index in, where descriptors are not short. mu is not held.
func (s *Server) takeIndex(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit := s.opts.MaxFiles; limit > 0 && s.files() >= limit-limit/4 {
		return fmt.Errorf("%w: connections take %d of the daemon's descriptors, of %d that they may take: get objects over the socket", object.ErrBusy, s.files(), limit)
	}
	if !c.indexed {
		c.indexed = true
		s.indexed++
	}
	return nil
}

// dismiss is the reverse of admit.
func (s *Server) dismiss(c *connection) {
	s.mu.Lock()
	delete(s.conns, c)
	if c.indexed {
		s.indexed--
	}
	if s.tenants[c.peer.Tenant]--; s.tenants[c.peer.Tenant] == 0 {
		delete(s.tenants, c.peer.Tenant)
	}
	s.mu.Unlock()
	s.running.Done()
}
