package frontdoor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"tendril/cluster/pki"
	"tendril/store/object"
)

// A connection ends when its certificate does, though TLS asks for that in the handshake alone. A client renews its
// certificate in time over the connection that it has, which then lives as long as the new one. Whoever comes back with
// a new certificate finds a session that is kept (away.go).

// lookAtClock is the longest time between two looks at the clock, which may be set, and which goes on while the machine
// is suspended, when timers do not.
const lookAtClock = 10 * time.Minute

// expires ends the connection when its certificate has expired. The connection is admitted. Its end stops the timer.
func (c *connection) expires() {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.ended || c.certificate.expires.IsZero() {
		return
	}
	left := time.Until(c.certificate.expires)
	if left > 0 {
		c.expiry = time.AfterFunc(min(left, lookAtClock), c.expires)
		return
	}
	c.expired.Store(true)
	c.link.EndReceive() // and no more: its session may wait for a client with a new one
}

// errExpired is why the connection of an expired certificate ends.
var errExpired = fmt.Errorf("%w: the certificate has expired: log in again", object.ErrPermission)

// ErrRevoked is why the sessions of a revoked certificate end.
var ErrRevoked = errors.New("its certificate was revoked")

// stopExpiry ends what expires has begun. A look under way may begin it once more, for a connection that is gone.
func (c *connection) stopExpiry() {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.certificate.expires = time.Time{}
}

// renewed notes that the peer has the next certificate: from here on the connection lives as long as that one, and ends
// with its revocation. It runs in serve's goroutine.
func (c *connection) renewed(der []byte) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("%w: the renewed certificate: %w", object.ErrInternal, err)
	}
	serial, err := pki.SerialOf(cert)
	if err != nil {
		return err
	}
	c.stateMu.Lock()
	c.certificate.serial, c.certificate.expires, c.certificate.leaf = serial, cert.NotAfter, cert
	session := c.session
	c.stateMu.Unlock()
	if c.srv.void(cert) { // who revoked it a moment ago knew the old one alone
		c.end(ofSession(session, ErrRevoked))
	}
	return nil
}
