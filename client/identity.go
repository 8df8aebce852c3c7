package client

import (
	"context"
	"crypto/tls"
	"time"

	"tendril/client/internal/front"
	"tendril/cluster/pki"
)

// identity is who comes in at a server: login, or what an Access gives.
type identity interface {
	credentials(ctx context.Context, server string, renew front.Renewal) (*front.Credentials, error)

	// tls is what to dial with.
	tls(*front.Credentials) *tls.Config

	// newest is the same with the certificate that the credentials have by now.
	newest(*front.Credentials) identity
}

// login is the identity that Login keeps.
type login struct{}

func (login) credentials(ctx context.Context, server string, renew front.Renewal) (*front.Credentials, error) {
	return front.OpenCredentials(ctx, server, renew)
}

func (login) tls(keys *front.Credentials) *tls.Config {
	return pki.ClientConfig(keys.Ring.Certificate, &pki.Verifier{Trust: keys.Ring.Trust(), Now: time.Now})
}

func (login) newest(*front.Credentials) identity { return login{} } // a renewed certificate is kept with it
