package pki

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"tendril/store/object"
)

// Files of keyrings in a state directory.
const (
	NodeFile   = "node.pem"
	ClientFile = "client.pem"
)

// Issuer signs a certificate request (DER): the authority on its own node, the front door of another elsewhere.
type Issuer func(ctx context.Context, request []byte) (*x509.Certificate, error)

// Keyring holds one certificate with its key, on disk (mode 0600) and in memory, and renews it in time: from two thirds
// of its life on. Each certificate has a new key. Safe for concurrent use.
type Keyring struct {
	path    string // "": it is on no disk
	trust   atomic.Pointer[Trust]
	issue   Issuer
	next    func(context.Context) (*x509.Certificate, crypto.PrivateKey, error) // of HeldKeyring; issue is nil
	name    string
	now     func() time.Time
	current atomic.Pointer[tls.Certificate]

	mu sync.Mutex // one renewal at a time
}

// OpenKeyring reads path (NodeFile or ClientFile in a state directory) and asks issue for a certificate where there is
// none, or one of another authority, or one that is due. Errors: ErrDamaged when the file is there but cannot be
// believed; what issue says.
func OpenKeyring(ctx context.Context, path, name string, trust Trust, issue Issuer,
	now func() time.Time) (*Keyring, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("keyring %q is not an absolute path", path)
	}
	k := &Keyring{path: path, issue: issue, name: name, now: now}
	k.trust.Store(&trust)
	cert, key, err := readPair(path, renewOut)
	switch {
	case err == nil && trust.Issuer(cert) != nil:
		k.hold(cert, key)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := k.RenewIfDue(ctx); err != nil {
		if c := k.current.Load(); c == nil || checkTimes(c.Leaf, now()) != nil {
			return nil, err
		}
	}
	return k, nil
}

// HeldKeyring makes a Keyring of a certificate and its key that are on no disk. What renews them is next: whoever has
// given them gives others. Errors: ErrInvalid where they do not belong together, or are of another authority.
func HeldKeyring(cert *x509.Certificate, private crypto.PrivateKey, trust Trust,
	next func(context.Context) (*x509.Certificate, crypto.PrivateKey, error), now func() time.Time) (*Keyring, error) {
	k := &Keyring{next: next, name: cert.Subject.CommonName, now: now}
	k.trust.Store(&trust)
	return k, k.take(cert, private)
}

// take holds a pair that somebody else has made.
func (k *Keyring) take(cert *x509.Certificate, private crypto.PrivateKey) error {
	key, ok := private.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) || k.Trust().Issuer(cert) == nil {
		return fmt.Errorf("%w: the certificate of %.60q is not that of its key, or of another authority",
			object.ErrInvalid, cert.Subject.CommonName)
	}
	k.hold(cert, key)
	return nil
}

func (k *Keyring) hold(cert *x509.Certificate, key *ecdsa.PrivateKey) {
	for {
		t := k.trust.Load()
		k.current.Store(&tls.Certificate{Certificate: t.shown(cert), PrivateKey: key, Leaf: cert})
		if k.trust.Load() == t { // else SetTrust may have seen the certificate before alone
			return
		}
	}
}

// Trust says which authority the certificate is of, or is to be of.
func (k *Keyring) Trust() Trust { return *k.trust.Load() }

// SetTrust changes it: the certificate stays, and is shown with what goes with the new one.
func (k *Keyring) SetTrust(t Trust) {
	k.trust.Store(&t)
	for {
		old := k.current.Load()
		if old == nil {
			return
		}
		next := &tls.Certificate{Certificate: t.shown(old.Leaf), PrivateKey: old.PrivateKey, Leaf: old.Leaf}
		if k.current.CompareAndSwap(old, next) {
			return
		}
	}
}

// Outdated reports whether the certificate is of another authority than the one that is to be.
func (k *Keyring) Outdated() bool {
	c := k.current.Load()
	return c != nil && c.Leaf.CheckSignatureFrom(k.Trust().Authority) != nil
}

// Renew gets a new certificate now.
func (k *Keyring) Renew(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renew(ctx)
}

// Certificate gives the certificate to show, with that of the authority, and what else goes with it, behind it. It must
// not be altered.
func (k *Keyring) Certificate() *tls.Certificate { return k.current.Load() }

// dueAt is when the current certificate is to be renewed.
func (k *Keyring) dueAt() time.Time {
	c := k.current.Load()
	if c == nil {
		return time.Time{}
	}
	return c.Leaf.NotBefore.Add(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore) * 2 / 3)
}

// RenewIfDue gets a new certificate when it is time, or when the clock is before the current one's begin. The old one
// stays in use where that fails.
func (k *Keyring) RenewIfDue(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewIfDue(ctx)
}

func (k *Keyring) renewIfDue(ctx context.Context) error {
	c := k.current.Load()
	if at := k.now(); c != nil && at.Before(k.dueAt()) && !at.Before(c.Leaf.NotBefore) {
		return nil
	}
	return k.renew(ctx)
}

// renew gets a certificate for a new key. mu is held.
func (k *Keyring) renew(ctx context.Context) error {
	if k.next != nil {
		cert, private, err := k.next(ctx)
		if err != nil {
			return err
		}
		return k.take(cert, private)
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	request, err := NewRequest(key, k.name)
	if err != nil {
		return err
	}
	cert, err := k.issue(ctx, request)
	if err != nil && k.current.Load() == nil {
		return err // the first one: there is nothing yet that path would name
	}
	if err != nil {
		return fmt.Errorf("renew %s: %w", k.path, err)
	}
	if k.Trust().Issuer(cert) == nil || !key.PublicKey.Equal(cert.PublicKey) {
		return fmt.Errorf("renew %s: what was issued is of another authority or for another key", k.path)
	}
	if k.path != "" {
		if err := writePair(k.path, cert, key); err != nil {
			return err
		}
	}
	k.hold(cert, key)
	return nil
}

// Reload takes what stands at path now, and gets a new certificate where nothing stands there any more, or one that is
// due. What is damaged, of another authority, for somebody else or out of its time is ErrDamaged, and the old one stays
// in use.
func (k *Keyring) Reload(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	cert, key, err := readPair(k.path, renewOut)
	if errors.Is(err, fs.ErrNotExist) {
		return k.renew(ctx)
	}
	if err != nil {
		return err
	}
	if k.Trust().Issuer(cert) == nil || checkTimes(cert, k.now()) != nil || !k.sameSubject(cert) {
		return damaged(k.path,
			"its certificate is of another authority, for somebody else, or out of its time", renewOut)
	}
	k.hold(cert, key)
	return k.renewIfDue(ctx)
}

// renewOut is the way out of a certificate that is of no use.
const renewOut = "remove it: a new certificate is issued then"

func (k *Keyring) sameSubject(cert *x509.Certificate) bool {
	theirs, err := SubjectOf(cert)
	if err != nil {
		return false
	}
	ours, err := SubjectOf(k.current.Load().Leaf)
	return err != nil || ours == theirs
}

// Run renews in time until ctx ends; failures go to failed and are tried again an hour later at the latest. It looks at
// the wall clock each hour, for machines that sleep.
func (k *Keyring) Run(ctx context.Context, failed func(error)) {
	for {
		wait := min(max(k.dueAt().Sub(k.now()), time.Minute), time.Hour)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if err := k.RenewIfDue(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}

// IssueFrom makes an Issuer of an authority in the same process; record (may be nil) is told of each certificate before
// it is used.
func IssueFrom(a *Authority, s Subject, life time.Duration, record func(context.Context, Issued) error) Issuer {
	return func(ctx context.Context, request []byte) (*x509.Certificate, error) {
		issued, err := a.Issue(request, s, life)
		if err != nil {
			return nil, err
		}
		if record != nil {
			if err := record(ctx, issued); err != nil {
				return nil, err
			}
		}
		return issued.Certificate, nil
	}
}
