package frontdoor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// What strangers get before they have said who they are.
const (
	prefaceTime   = 2 * time.Second
	handshakeTime = 5 * time.Second
	enrollTime    = 5 * time.Second
	maxStrangers  = 512 // at a time
	maxFromOne    = 64  // of one address (IPv6: of one /64)
)

// remoteDoor is the listener for other machines. Its fields but strangers are immutable.
type remoteDoor struct {
	listener *net.TCPListener
}

// strangers counts the connections that are not authenticated. Server.mu guards it.
type strangers struct {
	total int
	from  map[netip.Addr]int
	conns map[net.Conn]struct{}
	noted time.Time // when notes was last 0
	notes int
}

// ListenTCP opens the door for other machines at address (host:port). It is done once. Errors: ErrBusy where the port is taken.
func (s *Server) ListenTCP(address string) (net.Addr, error) {
	if s.opts.TLS == nil || s.opts.Remote == nil || s.opts.Cluster == nil {
		return nil, fmt.Errorf("%w: a front door for other machines needs TLS, Remote and Cluster", object.ErrInvalid)
	}
	// Within half a minute it is noticed that a peer is gone: a machine that went to sleep, or changed its address.
	alive := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	l, err := alive.Listen(context.Background(), "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s is taken by another program: choose another with --listen HOST:PORT, or none with --listen none", object.ErrBusy, address)
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

// RemoteAddr gives the address that ListenTCP opened; nil where it did not.
func (s *Server) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remote == nil {
		return nil
	}
	return s.remote.listener.Addr()
}

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
		case !s.meet(conn):
			_ = conn.SetLinger(0) // nothing of it stays in the kernel either
			conn.Close()
		default:
			go s.receive(conn)
		}
	}
}

// meet counts a stranger in; false where there are too many.
func (s *Server) meet(conn net.Conn) bool {
	from := addressOf(conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.strangers.total >= maxStrangers || s.strangers.from[from] >= maxFromOne {
		return false
	}
	s.strangers.total++
	s.strangers.from[from]++
	s.strangers.conns[conn] = struct{}{}
	s.running.Add(1)
	return true
}

// part is the reverse of meet: the stranger is known now, or gone. It leaves running to the caller.
func (s *Server) part(conn net.Conn) {
	from := addressOf(conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.strangers.conns, conn)
	s.strangers.total--
	if s.strangers.from[from]--; s.strangers.from[from] == 0 {
		delete(s.strangers.from, from)
	}
}

// addressOf gives what a stranger is counted under.
func addressOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.Is6() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// receive finds out what a stranger wants. Its goroutine goes on as the connection's.
func (s *Server) receive(conn *net.TCPConn) {
	defer s.running.Done()
	c, err := s.introduce(conn)
	s.part(conn)
	if err != nil {
		s.noteStranger(err, conn)
	}
	if c != nil {
		c.serve()
		return
	}
	conn.Close()
}

// Strangers can fail as often as they like, but not fill the log.
const maxNotes = 20 // a minute

// noteStranger logs why a stranger was sent away.
func (s *Server) noteStranger(err error, conn net.Conn) {
	s.mu.Lock()
	if now := time.Now(); now.Sub(s.strangers.noted) > time.Minute {
		s.strangers.noted, s.strangers.notes = now, 0
	}
	s.strangers.notes++
	quiet := s.strangers.notes > maxNotes
	s.mu.Unlock()
	log := s.opts.Log.WithError(err).WithField("remote", conn.RemoteAddr())
	if quiet || errors.Is(err, io.EOF) {
		log.Debug("front door: a stranger was sent away")
		return
	}
	log.Info("front door: a stranger was sent away")
}

// introduce reads the preface and acts on it. A connection that it gives is admitted; otherwise all is done.
func (s *Server) introduce(conn *net.TCPConn) (*connection, error) {
	var raw [ipc.PrefaceBytes]byte
	if err := conn.SetDeadline(time.Now().Add(prefaceTime)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, raw[:]); err != nil {
		return nil, fmt.Errorf("preface: %w", err)
	}
	p, err := ipc.ParsePreface(&raw)
	if err != nil {
		return nil, err
	}
	if p.Kind == ipc.KindTicket {
		return nil, s.passOn(conn, p)
	}
	return s.greet(conn)
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

// greet shakes hands. Who comes with a token alone is served here, who comes with a certificate as a connection.
func (s *Server) greet(conn *net.TCPConn) (*connection, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, err
	}
	secure := tls.Server(conn, s.opts.TLS)
	if err := secure.Handshake(); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
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
	c := newConnection(s, link, nil, peer)
	if err := s.admit(c); err != nil {
		refuse(link, err)
		return nil, err
	}
	return c, nil
}

// enroll serves one Enroll and nothing else.
func (s *Server) enroll(link *ipc.Stream, remote string) error {
	link.SetDeadline(time.Now().Add(enrollTime))
	f, err := link.Receive()
	if err != nil {
		return fmt.Errorf("enroll: %w", err)
	}
	var m wire.EnrollRequest
	switch {
	case f.Type != wire.Enroll || f.Flags != 0 || f.Request == 0 || f.Length > enrollMax:
		err = fmt.Errorf("%w: %v of %d bytes without a certificate: only Enroll is allowed, log in first", object.ErrProtocol, f.Type, f.Length)
	default:
		err = m.Decode(f.Payload)
	}
	var der []byte
	if err == nil {
		der, err = s.opts.Cluster.Enroll(remote, m)
	}
	if err != nil {
		return errors.Join(err, link.Send(errorFrame(nil, f.Request, err), nil))
	}
	return link.Send(ipc.AppendFrame(nil, f.Type|wire.ReplyBit, 0, f.Request, &wire.DERMessage{DER: der}), nil)
}

// enrollMax bounds an Enroll in bytes.
const enrollMax = idBytes + 32 + 2 + 256 + requestMax

// EndIf ends the connections of some peers.
func (s *Server) EndIf(which func(Peer) bool) {
	s.mu.Lock()
	var ending []*connection
	for c := range s.conns {
		if which(c.peerNow()) {
			ending = append(ending, c)
		}
	}
	s.mu.Unlock()
	for _, c := range ending {
		c.end()
	}
}

// peerNow gives the peer from any goroutine.
func (c *connection) peerNow() Peer {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	return c.peer
}
