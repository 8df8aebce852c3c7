package client

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril/client/internal/front"
	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Access is what a program needs to come in at the other nodes of its daemon's cluster. It holds a secret.
type Access struct {
	Nodes []ClusterNode // that answer, without the daemon's own

	from      *Conn  // the daemon that was asked
	server    string // whose login is used; "": the daemon is this machine's, and has given a certificate
	authority *x509.Certificate
	cert      *x509.Certificate
	key       crypto.PrivateKey
}

// ClusterNode is another node of a cluster.
type ClusterNode struct {
	ID        object.ID
	Name      string
	Addresses []string // HOST:PORT, best first
}

// Access asks the daemon for the cluster's other nodes, and for what makes them let this program in: a certificate for
// its tenant where the daemon is this machine's, else the login that the connection uses. The connection must stay open
// for as long as the Access and what was dialed with it are used: by it the certificate is renewed. ErrUnsupported: the
// daemon is older than its client, or is reached over ssh.
func (c *Conn) Access(ctx context.Context) (*Access, error) {
	k, err := c.roundTrip(ctx, wire.Access, nil)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.AccessReply
	if err := m.Decode(append([]byte(nil), k.payload...)); err != nil { // what is parsed below keeps the bytes
		return nil, err
	}
	a := &Access{from: c}
	for _, n := range m.Nodes {
		a.Nodes = append(a.Nodes, ClusterNode{n.Node, n.Name, strings.Fields(n.Addresses)})
	}
	switch {
	case len(a.Nodes) == 0:
		return a, nil
	case c.renewal != nil: // it shows the login that is good everywhere in the cluster
		a.server = c.socket
		return a, nil
	case len(m.Certificate) == 0:
		return nil, fmt.Errorf("%w: a daemon that is reached over ssh gives no way to other nodes: tendril login",
			object.ErrUnsupported)
	}
	var faults [3]error
	a.authority, faults[0] = x509.ParseCertificate(m.Authority)
	a.cert, faults[1] = x509.ParseCertificate(m.Certificate)
	a.key, faults[2] = x509.ParsePKCS8PrivateKey(m.Key)
	return a, errors.Join(faults[:]...)
}

// DialNode connects to another node of the cluster: to the one at the first of its addresses that is it. As DialServer
// has it.
func (a *Access) DialNode(ctx context.Context, n ClusterNode, o Options) (*Conn, error) {
	var faults []error
	for _, address := range n.Addresses {
		o.identity = &atNode{a, n}
		c, err := DialServer(ctx, address, o)
		if err == nil {
			return c, nil
		}
		faults = append(faults, err)
	}
	if len(faults) == 0 {
		faults = []error{errors.New("no address of it is known")}
	}
	return nil, fmt.Errorf("node %s: %w", n.Name, errors.Join(faults...))
}

// atNode is the identity at a node that an Access leads to, which must be the one that answers.
type atNode struct {
	access *Access
	node   ClusterNode
}

func (x *atNode) newest(keys *front.Credentials) identity {
	a := *x.access
	now := keys.Ring.Certificate()
	a.cert, a.key, a.authority = now.Leaf, now.PrivateKey, keys.Ring.Trust().Issuer(now.Leaf)
	return &atNode{&a, x.node}
}

// credentials gives what to show there, as front.OpenCredentials does for a login.
func (x *atNode) credentials(ctx context.Context, _ string, renew front.Renewal) (*front.Credentials, error) {
	a := x.access
	if a.server != "" {
		return front.OpenCredentials(ctx, a.server, renew)
	}
	var ring *pki.Keyring
	next := func(ctx context.Context) (*x509.Certificate, crypto.PrivateKey, error) {
		b, err := a.from.Access(ctx)
		if err == nil && b.cert == nil {
			err = fmt.Errorf("%w: no other node of the cluster answers", object.ErrTimeout)
		}
		if err != nil {
			return nil, nil, err
		}
		if was := ring.Trust(); !b.authority.Equal(was.Authority) { // its socket, or its certificate, proves the daemon
			ring.SetTrust(pki.Trust{Authority: b.authority, Before: was.Authority})
		}
		return b.cert, b.key, nil
	}
	var err error
	ring, err = pki.HeldKeyring(a.cert, a.key, pki.Trust{Authority: a.authority}, next, time.Now)
	if err == nil {
		_ = ring.RenewIfDue(ctx) // what it has may be good; else the other node says so
	}
	return &front.Credentials{Ring: ring}, err
}

// tls is what to dial with: only that node will do.
func (x *atNode) tls(keys *front.Credentials) *tls.Config {
	v := &pki.Verifier{Trust: keys.Ring.Trust(), Now: time.Now}
	return pki.NodeConfig(keys.Ring.Certificate, v, x.node.ID.String(), pki.Protocol)
}
