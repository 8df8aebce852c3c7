package front

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tendril/cluster/pki"
	"tendril/store/object"
)

// The files of a login, in CredentialsDir.
const (
	AuthorityFile = "authority.crt" // the pinned authority's certificate; the key is in pki.ClientFile
	NameFile      = "server"        // the server's name
)

// Renewal gets a certificate (DER) for a request (DER).
type Renewal func(ctx context.Context, request []byte) ([]byte, error)

// Credentials are what Login keeps of one server.
type Credentials struct {
	Ring *pki.Keyring
	Dir  string // where the authority is kept; "": nowhere
}

// See learns from what a node of the cluster has shown, in a Handshake that was good, which authorities there are.
func (k *Credentials) See(shown []*x509.Certificate) error {
	old := k.Ring.Trust()
	now := old.Learn(shown).Finished(shown)
	if now == old {
		return nil
	}
	return k.Trust(now)
}

// Trust has the credentials believe others from now on.
func (k *Credentials) Trust(now pki.Trust) error {
	if k.Dir != "" {
		if err := WriteAuthority(k.Dir, now); err != nil {
			return err
		}
	}
	k.Ring.SetTrust(now)
	return nil
}

// WriteAuthority keeps whom a login believes: the authority and, until its rotation is finished, its predecessor.
func WriteAuthority(dir string, t pki.Trust) error {
	raw := pki.EncodeCertificate(t.Authority)
	if t.Before != nil {
		raw = append(raw, pki.EncodeCertificate(t.Before)...)
	}
	path := filepath.Join(dir, AuthorityFile)
	fresh, err := os.CreateTemp(dir, AuthorityFile+"-") // other programs read and write the file at the same time
	if err != nil {
		return err
	}
	_, err = fresh.Write(raw)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		os.Remove(fresh.Name())
	}
	return err
}

func OpenCredentials(ctx context.Context, server string, renew Renewal) (*Credentials, error) {
	dir, err := CredentialsDir(server)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, AuthorityFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: not logged in: tendril login %s", object.ErrPermission, server)
	}
	if err != nil {
		return nil, err
	}
	trust, err := parseAuthority(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: log in again: tendril login %s", filepath.Join(dir, AuthorityFile), err, server)
	}
	ring, err := OpenRing(ctx, dir, ClientName(), trust, renew)
	if err != nil {
		return nil, err
	}
	return &Credentials{ring, dir}, nil
}

func OpenRing(ctx context.Context, dir, name string, trust pki.Trust, sign Renewal) (*pki.Keyring, error) {
	issue := func(ctx context.Context, request []byte) (*x509.Certificate, error) {
		der, err := sign(ctx, request)
		if err != nil {
			return nil, err
		}
		return x509.ParseCertificate(der)
	}
	return pki.OpenKeyring(ctx, filepath.Join(dir, pki.ClientFile), name, trust, issue, time.Now)
}

// parseAuthority reads what WriteAuthority has written.
func parseAuthority(raw []byte) (t pki.Trust, err error) {
	for _, into := range []**x509.Certificate{&t.Authority, &t.Before} {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break
		}
		if *into, err = x509.ParseCertificate(block.Bytes); err != nil {
			return t, err
		}
	}
	if t.Authority == nil {
		return t, fmt.Errorf("%w: no certificate", object.ErrInvalid)
	}
	return t, nil
}

// CredentialsDir is where what Login gets for a server is kept: in $TENDRIL_CREDENTIALS, else in tendril/servers of the
// user's XDG configuration directory.
func CredentialsDir(server string) (string, error) {
	base := os.Getenv("TENDRIL_CREDENTIALS")
	if base == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("%w: set TENDRIL_CREDENTIALS", err)
		}
		base = filepath.Join(config, "tendril", "servers")
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, strings.ToLower(server))
	return filepath.Abs(filepath.Join(base, "at-"+name))
}

// ClientName is what a certificate is asked for under: the machine's name.
func ClientName() string {
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "client"
}
