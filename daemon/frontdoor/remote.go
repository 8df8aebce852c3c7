package frontdoor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// remoteDoor is the listener for other machines. Its fields but strangers are immutable.
type remoteDoor struct {
	listener *net.TCPListener
}

// ListenTCP opens the door for other machines at address (host:port). It is done once. Errors: ErrBusy where the port
// is taken.
func (s *Server) ListenTCP(address string) (net.Addr, error) {
	if s.opts.TLS == nil || s.opts.Remote == nil || s.opts.Cluster == nil {
		return nil, fmt.Errorf("%w: a front door for other machines needs TLS, Remote and Cluster", object.ErrInvalid)
	}
	// Within a minute it is noticed that a peer is gone: a machine that went to sleep, or changed its address.
	alive := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         setUserTimeout,
	}
	l, err := alive.Listen(context.Background(), "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s is in use by another program: choose another address with --listen HOST:PORT, or --listen none", object.ErrBusy, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.remote != nil {
		l.Close()
		return nil, fmt.Errorf("%w: the front door is closing, or open already", object.ErrBusy)
	}
	s.remote = &remoteDoor{listener: l.(*net.TCPListener)}
	s.running.Add(1)
	go s.acceptRemote(s.remote.listener)
	return l.Addr(), nil
}

// userTimeout is how long what was sent, a keep-alive probe among it, may stay unacknowledged (TCP_USER_TIMEOUT of
// tcp(7), which also counts against a program that somebody has stopped while more was on its way to it than fits into
// its socket).
const userTimeout = time.Minute

// setUserTimeout prepares a listening socket; what it accepts inherits that, also in a worker.
func setUserTimeout(_, _ string, raw syscall.RawConn) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond))
	})
	return errors.Join(controlErr, err)
}

// RemoteAddr gives the address that ListenTCP opened; nil where it did not.
func (s *Server) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remote == nil {
		return nil
	}
	return s.remote.listener.Addr()
}

// acceptPause is how long to wait when the machine has no descriptor for another connection.
const acceptPause = 50 * time.Millisecond

func (s *Server) acceptRemote(l *net.TCPListener) {
	defer s.running.Done()
	for {
		conn, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.opts.Log.WithError(err).Warn("front door: accept failed; is the limit of open files too low?")
			time.Sleep(acceptPause)
		default:
			if who := s.meet(conn); who != nil {
				go s.receive(who)
			}
		}
	}
}

// receive finds out what a stranger wants. Its goroutine goes on as the connection's.
func (s *Server) receive(who *stranger) {
	defer s.running.Done()
	c, given, err := s.introduce(who)
	s.part(who)
	if err != nil {
		s.noteStranger(err, who)
	}
	if given {
		return
	}
	if c != nil {
		c.framed = true
		c.begin()
		c.serve()
		return
	}
	who.conn.Close()
}

// introduce reads the preface and acts on it. A connection that it gives is admitted; given says that somebody else has
// the socket now; otherwise all is done.
func (s *Server) introduce(who *stranger) (c *connection, given bool, err error) {
	conn := who.conn
	var raw [ipc.PrefaceBytes]byte
	if err := conn.SetDeadline(time.Now().Add(s.opts.StrangerTime)); err != nil {
		return nil, false, err
	}
	if _, err := io.ReadFull(conn, raw[:]); err != nil {
		return nil, false, fmt.Errorf("preface: %w", err)
	}
	p, err := ipc.ParsePreface(&raw)
	if err != nil {
		return nil, false, err
	}
	s.spoke(who)
	switch p.Kind {
	case ipc.KindTicket:
		return nil, false, s.passOn(conn, p)
	case ipc.KindRaft:
		given, err = s.giveNode(conn)
		return nil, given, err
	case ipc.KindTransfer:
		return nil, false, s.serveTransfers(who)
	}
	c, err = s.greet(conn)
	return c, false, err
}

// passOn hands the raw socket to the ticket's worker.
func (s *Server) passOn(conn *net.TCPConn, p ipc.Preface) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var laneErr error
	err = raw.Control(func(fd uintptr) { laneErr = s.opts.Backend.Lane(p.Ticket, conn.RemoteAddr().String(), int(fd)) })
	return errors.Join(err, laneErr)
}

// shake shakes hands. The preface says what a connection is for, where nobody has proven anything yet; the handshake
// says it once more.
func (s *Server) shake(conn *net.TCPConn, raft bool) (*tls.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(s.opts.StrangerTime)); err != nil {
		return nil, err
	}
	secure := tls.Server(conn, s.opts.TLS)
	if err := secure.Handshake(); err != nil {
		letRead(conn, s.opts.letReadTime)
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if is := secure.ConnectionState().NegotiatedProtocol; (is == pki.ProtocolRaft) != raft {
		return nil, fmt.Errorf("%w: a connection of another kind (%q) than its preface says", object.ErrProtocol, is)
	}
	return secure, nil
}

// Bounds of what a peer may have sent before it was told that its handshake failed.
const (
	letReadTime  = time.Second
	letReadBytes = 64 << 10
)

// letRead takes what the peer has sent already, until it closes or limit is over. In TLS 1.3 a client sends before it
// knows whether its certificate is believed; to close with that unread would reset the connection, and take from it the
// alert that says so.
func letRead(conn *net.TCPConn, limit time.Duration) {
	if err := errors.Join(conn.CloseWrite(), conn.SetReadDeadline(time.Now().Add(limit))); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, letReadBytes))
}

// giveNode hands a node's connection to raft.
func (s *Server) giveNode(conn *net.TCPConn) (given bool, err error) {
	if s.opts.Nodes == nil {
		return false, fmt.Errorf("%w: this daemon is in no cluster", object.ErrUnsupported)
	}
	secure, err := s.shake(conn, true)
	if err != nil {
		return false, err
	}
	peer, _, err := pki.PeerOf(secure.ConnectionState())
	if err == nil && peer.Role != pki.Node {
		err = fmt.Errorf("%w: %.60q is not a node", object.ErrPermission, peer.Name)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return false, err
	}
	return true, s.opts.Nodes.GiveRaft(peer, secure)
}

// greet shakes hands. Who comes with a token alone is served here, who comes with a certificate as a connection.
func (s *Server) greet(conn *net.TCPConn) (*connection, error) {
	secure, err := s.shake(conn, false)
	if err != nil {
		return nil, err
	}
	certified, known, err := pki.PeerOf(secure.ConnectionState())
	if err != nil {
		return nil, err
	}
	link := ipc.NewStream(secure, conn)
	if !known {
		defer link.Close()
		return nil, s.enroll(link, conn.RemoteAddr().String())
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	peer := s.opts.Remote(certified)
	peer.Remote = conn.RemoteAddr().String()
	c := newConnection(s, link, peer)
	if err := s.admitRemote(c); err != nil {
		refuse(link, err)
		return nil, err
	}
	return c, nil
}

// admitRemote takes a connection in and looks once more whether its certificate is good: from here on EndIf finds it.
func (s *Server) admitRemote(c *connection) error {
	if err := s.admit(c); err != nil {
		return err
	}
	if s.void(c.peer.Leaf) {
		s.dismiss(c)
		return fmt.Errorf("%w: the certificate of %.60q was revoked, or the cluster has another authority: log in again "+
			"with a new token", object.ErrPermission, c.peer.Subject)
	}
	c.expires()
	return nil
}

// void reports whether a certificate is good no more. A peer without one has none that is not.
func (s *Server) void(leaf *x509.Certificate) bool {
	return s.opts.Void != nil && leaf != nil && s.opts.Void(leaf)
}

// enroll serves one Enroll or Join and nothing else.
func (s *Server) enroll(link *ipc.Stream, remote string) error {
	defer time.AfterFunc(s.opts.StrangerTime, link.EndReceive).Stop()
	f, err := link.Receive()
	if err != nil {
		return fmt.Errorf("enroll: %w", err)
	}
	var reply ipc.Payload
	switch {
	case f.Type == wire.Enroll && f.Flags == 0 && f.Request != 0 && f.Length <= enrollMax:
		reply, err = s.enrollClient(remote, f.Payload)
	case f.Type == wire.Join && s.opts.Nodes != nil && f.Flags == 0 && f.Request != 0 && f.Length <= joinMax:
		reply, err = s.enrollNode(remote, f.Payload)
	default:
		err = fmt.Errorf("%w: %v of %d bytes without a certificate: only Enroll is allowed, log in first",
			object.ErrProtocol, f.Type, f.Length)
	}
	if err != nil {
		return errors.Join(err, link.Send(errorFrame(nil, 0, f.Request, forStrangers(err)), nil))
	}
	return link.Send(ipc.AppendFrame(nil, f.Type|wire.ReplyBit, 0, f.Request, reply), nil)
}

func (s *Server) enrollClient(remote string, payload []byte) (ipc.Payload, error) {
	var m wire.EnrollRequest
	if err := m.Decode(payload); err != nil {
		return nil, err
	}
	der, err := s.opts.Cluster.Enroll(remote, m)
	return &wire.DERMessage{DER: der}, err
}

func (s *Server) enrollNode(remote string, payload []byte) (ipc.Payload, error) {
	var m wire.JoinRequest
	if err := m.Decode(payload); err != nil {
		return nil, err
	}
	reply, err := s.opts.Nodes.Join(remote, m)
	return &reply, err
}

// forStrangers keeps what is wrong inside the daemon, which may name its files, from who has not logged in.
func forStrangers(err error) error {
	if object.CodeOf(err) != object.ErrInternal.Code() {
		return err
	}
	return fmt.Errorf("%w: the login failed: the daemon's log says why", object.ErrInternal)
}

// enrollMax bounds an Enroll in bytes, joinMax a Join.
const (
	enrollMax = idBytes + 32 + 2 + 256 + requestMax
	joinMax   = 2*idBytes + 32 + 4 + 2*(2+256) + requestMax
)

// EndIf ends the connections of some peers, and their sessions. why is for a client that comes back for one, as another
// certificate may let it; nil: there is nothing to say.
func (s *Server) EndIf(which func(Peer) bool, why error) {
	s.mu.Lock()
	var ending []*connection
	for c := range s.conns {
		if which(c.peerNow()) {
			ending = append(ending, c)
		}
	}
	s.mu.Unlock()
	for _, c := range ending {
		c.stateMu.Lock()
		session := c.session
		c.stateMu.Unlock()
		c.end(ofSession(session, why))
	}
	s.endAwayIf(which, why)
	s.endAskersIf(which)
}

// peerNow gives the peer with the certificate that it has now. Any goroutine may call it.
func (c *connection) peerNow() Peer {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	return c.peerLocked()
}

// peerLocked is peerNow for who holds stateMu.
func (c *connection) peerLocked() Peer {
	p := c.peer
	p.Serial, p.Expires, p.Leaf = c.certificate.serial, c.certificate.expires, c.certificate.leaf
	return p
}
