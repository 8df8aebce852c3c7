package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// raftConns are raft's connections to other nodes, those that this node has dialed and those that it has accepted.
// One ends when the other node's certificate expires, or is believed no more: raft makes the next one at once, for
// which that node shows the certificate that it has by then.
type raftConns struct {
	mu   sync.Mutex
	open map[*raftConn]struct{}
}

// raftConn is one of them.
type raftConn struct {
	net.Conn
	leaf *x509.Certificate // the other node's
	of   *raftConns
	ends *time.Timer
}

var errNoCertificate = errors.New("the other node has shown no certificate")

// add takes a connection whose handshake was good. now is the clock that judges certificates.
func (r *raftConns) add(conn *tls.Conn, now time.Time) (*raftConn, error) {
	shown := conn.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil, errNoCertificate
	}
	c := &raftConn{Conn: conn, leaf: shown[0], of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[*raftConn]struct{}{}
	}
	r.open[c] = struct{}{}
	c.ends = time.AfterFunc(c.leaf.NotAfter.Sub(now), func() { c.Close() })
	return c, nil
}

// Close closes the connection. Idempotent: raft closes one that has ended when it next uses it, which may be never.
func (c *raftConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	ends := c.ends
	c.of.mu.Unlock()
	ends.Stop()
	return c.Conn.Close()
}

// endIf ends those to and from nodes with some certificates.
func (r *raftConns) endIf(which func(*x509.Certificate) bool) {
	r.mu.Lock()
	list := slices.Collect(maps.Keys(r.open))
	r.mu.Unlock()
	for _, c := range list {
		if which(c.leaf) {
			c.Close() // TLS says goodbye first, which may take a while
		}
	}
}
