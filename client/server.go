package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril/client/internal/front"
	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// DialServer connects to the daemon of another machine: HOST:PORT (mutual TLS, after Login), or
// ssh://[USER@]HOST[:PORT][/PROGRAM], which runs `PROGRAM proxy` there (default: tendril) over ssh(1) and needs neither
// login nor open port. No descriptors come over such a connection: what shares memory answers object.ErrUnsupported.
// o.Socket and o.Spin do not matter. ctx is for connecting alone. The caller must Close.
func DialServer(ctx context.Context, server string, o Options) (*Conn, error) {
	connect := func() (*Conn, error) { return dialServer(ctx, server, o) }
	if !strings.HasPrefix(server, sshScheme) { // ssh may have asked a person for a password
		first := connect
		connect = func() (*Conn, error) { return onceMore(ctx, first) }
	}
	c, err := connect()
	if err == nil {
		c.keepRenewed(renewalEvery)
	}
	return c, err
}

// dialServer is DialServer without a watch over the certificate's life.
func dialServer(ctx context.Context, server string, o Options) (*Conn, error) {
	if o.Program == "" {
		o.Program = filepath.Base(os.Args[0])
	}
	dial := func(ctx context.Context, server string) (*Conn, error) { return dialTLS(ctx, server, o) }
	if strings.HasPrefix(server, sshScheme) {
		dial = dialSSH
	}
	c, err := dial(ctx, server)
	var known *object.Sentinel
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("connecting to server %s: %w", server, ctx.Err())
	case errors.As(err, &known): // somebody answered, or nobody was asked
		return nil, fmt.Errorf("server %s: %w", server, err)
	case err != nil:
		return nil, fmt.Errorf("%w: server %s: %w", ErrDisconnected, server, err)
	}
	c.silence = o.Silence
	if err := c.hello(ctx, o.Program); err != nil {
		c.Close()
		if c.excuse != nil {
			err = c.excuse(err)
		}
		return nil, pki.Explain(err)
	}
	if c.renewal != nil {
		_ = c.renewal(ctx, false) // the present certificate is good; it is tried again
	}
	return c, nil
}

// renewalEvery is how often a connection looks whether its certificate is to be renewed: from two thirds of its life
// on. The daemon ends the connection with the certificate, and knows that it was renewed over this one.
const renewalEvery = 10 * time.Minute

// renewNow gets the next certificate where it is due, or the cluster has got another authority: every ten minutes,
// after DialServer. It does nothing on connections that show no certificate.
func (c *Conn) renewNow(ctx context.Context) error {
	if c.renewal == nil {
		return nil
	}
	return c.renewal(ctx, true)
}

// renewIn renews the certificate where it is due, or of another authority than signs, the one that the daemon signs
// with.
func (c *Conn) renewIn(ctx context.Context, keys *front.Credentials, signs *x509.Certificate) error {
	t := keys.Ring.Trust()
	if signs != nil && !signs.Equal(t.Authority) && !signs.Equal(t.Before) {
		if err := keys.Trust(pki.Trust{Authority: signs, Before: t.Authority}); err != nil {
			return err
		}
	}
	if keys.Ring.Outdated() && signs != nil && signs.Equal(keys.Ring.Trust().Authority) {
		return keys.Ring.Renew(ctx)
	}
	return keys.Ring.RenewIfDue(ctx)
}

// authority asks the daemon, which has proven to be of the cluster, for the authority that it signs with.
func (c *Conn) authority(ctx context.Context) (*x509.Certificate, error) {
	k, err := c.roundTrip(ctx, wire.Access, nil)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.AccessReply
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(slices.Clone(m.Authority))
}

// keepRenewed renews the certificate in time, until Close.
func (c *Conn) keepRenewed(every time.Duration) {
	if c.renewal == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewing = time.AfterFunc(every, func() {
		defer c.background.Done()
		_ = c.renewNow(context.Background()) // the next look tries again
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.closed {
			c.background.Add(1)
			c.renewing.Reset(every)
		}
	})
	c.background.Add(1)
}

// Remote reports whether the daemon is reached without descriptors: no shared memory.
func (c *Conn) Remote() bool { return c.remote }

func dialTLS(ctx context.Context, server string, o Options) (*Conn, error) {
	server, err := front.WithPort(server)
	if err != nil {
		return nil, err
	}
	var c *Conn
	who := o.identity
	if who == nil {
		who = login{}
	}
	keys, err := who.credentials(ctx, server, func(ctx context.Context, request []byte) ([]byte, error) {
		if c == nil {
			return nil, fmt.Errorf("%w: the certificate for %s has expired: tendril login %s", object.ErrPermission,
				server, server)
		}
		return c.renew(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	secure, socket, err := front.Handshake(ctx, server, who.tls(keys))
	if err != nil {
		return nil, err
	}
	socket.Watch(o.Silence)
	c = newConn(ipc.NewRemote(secure, socket), server)
	c.remote = true
	c.redial = func(ctx context.Context) (*Conn, error) {
		again := o
		again.identity = who.newest(keys)
		return dialServer(ctx, server, again)
	}
	c.lane = func(ctx context.Context) (*ipc.Socket, error) { return ipc.DialTCP(ctx, server, front.ConnectTime) }
	shown := secure.ConnectionState().PeerCertificates
	_ = keys.See(shown) // what cannot be kept is shown again in the next handshake
	issuer := keys.Ring.Trust().Issuer(shown[0])
	c.renewal = func(ctx context.Context, ask bool) error {
		signs := issuer
		if ask { // the cluster may have got another authority since the handshake
			if now, err := c.authority(ctx); err == nil {
				signs = now
			}
		}
		return c.renewIn(ctx, keys, signs)
	}
	return c, nil
}

// renew gets the next certificate over this connection.
func (c *Conn) renew(ctx context.Context, request []byte) ([]byte, error) {
	k, err := c.roundTrip(ctx, wire.Renew, &wire.DERMessage{DER: request})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.DERMessage
	err = m.Decode(k.payload)
	return append([]byte(nil), m.DER...), err
}
