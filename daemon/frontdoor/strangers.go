package frontdoor

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"time"
)

// Strangers are connections that have not said who they are. There is room for so many; where it is full the newcomer
// takes the place of another one, so that a flood of silent connections cannot keep the door shut: of one that has not
// even sent a preface, of the address that has most of them, the oldest. Whoever is quick comes in.
const (
	maxStrangers = 512 // at a time
	maxFromOne   = 64  // of one address (IPv6: of one /64)
)

// stranger is one of them. Server.mu guards it, conn, from and at are immutable.
type stranger struct {
	conn    *net.TCPConn
	from    netip.Addr
	at      time.Time
	polite  bool // its preface was good
	evicted bool
}

// strangers is all of them. Server.mu guards it.
type strangers struct {
	from  map[netip.Addr]int
	all   map[*stranger]struct{}
	noted time.Time // when notes was last 0
	notes int
}

// meet counts a stranger in; nil where the door is closing.
func (s *Server) meet(conn *net.TCPConn) *stranger {
	who := &stranger{conn: conn, from: addressOf(conn), at: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return nil
	}
	switch {
	case s.strangers.from[who.from] >= maxFromOne:
		s.evict(s.strangers.victim(who.from))
	case len(s.strangers.all) >= maxStrangers:
		s.evict(s.strangers.victim(netip.Addr{}))
	}
	s.strangers.all[who] = struct{}{}
	s.strangers.from[who.from]++
	s.running.Add(1)
	return who
}

// victim chooses who goes, among those of one address, or of all where that is zero.
func (x *strangers) victim(from netip.Addr) (worst *stranger) {
	for who := range x.all {
		if (!from.IsValid() || who.from == from) && (worst == nil || x.before(who, worst)) {
			worst = who
		}
	}
	return worst
}

// before says whether a goes before b.
func (x *strangers) before(a, b *stranger) bool {
	switch {
	case a.polite != b.polite:
		return b.polite
	case x.from[a.from] != x.from[b.from]:
		return x.from[a.from] > x.from[b.from]
	}
	return a.at.Before(b.at)
}

// evict ends a stranger; its goroutine meets that. mu is held.
func (s *Server) evict(who *stranger) {
	s.strangers.forget(who)
	who.evicted = true
	_ = who.conn.SetLinger(0) // nothing of it stays in the kernel either
	who.conn.Close()
}

func (x *strangers) forget(who *stranger) {
	delete(x.all, who)
	if x.from[who.from]--; x.from[who.from] == 0 {
		delete(x.from, who.from)
	}
}

// spoke notes that a stranger sent a good preface.
func (s *Server) spoke(who *stranger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	who.polite = true
}

// part is the reverse of meet: the stranger is known now, or gone. It leaves running to the caller. A second call does
// nothing.
func (s *Server) part(who *stranger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.strangers.all[who]; there {
		s.strangers.forget(who)
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

// Strangers can fail as often as they like, but not fill the log.
const maxNotes = 20 // a minute

// noteStranger logs why a stranger was sent away.
func (s *Server) noteStranger(err error, who *stranger) {
	s.mu.Lock()
	if now := time.Now(); now.Sub(s.strangers.noted) > time.Minute {
		s.strangers.noted, s.strangers.notes = now, 0
	}
	s.strangers.notes++
	quiet := s.strangers.notes > maxNotes
	if who.evicted {
		err = errCrowded
	}
	s.mu.Unlock()
	log := s.opts.Log.WithError(err).WithField("remote", who.conn.RemoteAddr())
	if quiet || errors.Is(err, io.EOF) {
		log.Debug("front door: an unauthenticated connection was closed")
		return
	}
	log.Info("front door: an unauthenticated connection was closed")
}

var errCrowded = errors.New("too many unauthenticated connections: this one made room for another")
