package pki

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"tendril/store/object"
)

// Trust is whose certificates are believed: an authority's and, until the authority's rotation is finished, also its
// predecessor's. Immutable.
type Trust struct {
	Authority *x509.Certificate
	Before    *x509.Certificate // nil = none: the predecessor
	// Link is the predecessor's word that Authority succeeds it: a certificate of Authority's key that the predecessor
	// has signed. nil = none. Who knows the predecessor alone learns of Authority by it.
	Link *x509.Certificate
}

// Issuer gives the authority that has signed a certificate; nil: none that is believed.
func (t Trust) Issuer(leaf *x509.Certificate) *x509.Certificate {
	for _, a := range []*x509.Certificate{t.Authority, t.Before} {
		if a != nil && leaf.CheckSignatureFrom(a) == nil {
			return a
		}
	}
	return nil
}

// Learn is t with the successor that shown, certificates that a peer has shown, proves; t itself where they prove none.
func (t Trust) Learn(shown []*x509.Certificate) Trust {
	for _, link := range shown {
		if !link.IsCA || link.Equal(t.Authority) || link.CheckSignatureFrom(t.Authority) != nil {
			continue
		}
		i := slices.IndexFunc(shown, func(a *x509.Certificate) bool {
			return a.IsCA && a.CheckSignatureFrom(a) == nil && FingerprintOf(a) == FingerprintOf(link)
		})
		if i >= 0 {
			return Trust{Authority: shown[i], Before: t.Authority, Link: link}
		}
	}
	return t
}

// Finished is t without the predecessor where shown, what a node of this cluster has shown, leaves it out.
func (t Trust) Finished(shown []*x509.Certificate) Trust {
	if t.Before != nil && slices.ContainsFunc(shown, t.Authority.Equal) && !slices.ContainsFunc(shown, t.Before.Equal) {
		return Trust{Authority: t.Authority}
	}
	return t
}

// shown is what goes with a certificate: its issuer first.
func (t Trust) shown(leaf *x509.Certificate) [][]byte {
	list := [][]byte{leaf.Raw}
	issuer := t.Issuer(leaf)
	for _, a := range []*x509.Certificate{issuer, t.Authority, t.Before, t.Link} {
		if a != nil && !slices.ContainsFunc(list, func(b []byte) bool { return string(b) == string(a.Raw) }) {
			list = append(list, a.Raw)
		}
	}
	return list
}

// Succession is a rotation of an authority as the cluster's metadata keeps it. The new key is encrypted with the old
// one: who reads the metadata alone has neither.
type Succession struct {
	Authority []byte `json:"authority"` // the certificate, DER, as the next two
	Before    []byte `json:"before,omitempty"`
	Link      []byte `json:"link,omitempty"`
	Key       []byte `json:"key,omitempty"` // nonce and AES-256-GCM of PKCS #8
	Finished  bool   `json:"finished,omitempty"`

	// Times of the metadata, Unix ns: tokens that are no later are of an earlier authority.
	Since int64 `json:"since,omitempty"` // this rotation's
	Void  int64 `json:"void,omitempty"`  // the last finished one's: they let nobody in
}

// Succeed makes an authority that is to succeed this one.
func (a *Authority) Succeed() (Succession, error) {
	next, err := makeAuthority(a.now)
	if err != nil {
		return Succession{}, err
	}
	link, err := x509.CreateCertificate(rand.Reader, next.cert, a.cert, next.key.Public(), a.key)
	if err != nil {
		return Succession{}, err
	}
	key, err := next.Key()
	if err != nil {
		return Succession{}, err
	}
	box, err := a.box()
	if err != nil {
		return Succession{}, err
	}
	nonce := make([]byte, box.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return Succession{}, err
	}
	return Succession{Authority: next.cert.Raw, Before: a.cert.Raw, Link: link,
		Key: box.Seal(nonce, nonce, key, next.cert.Raw)}, nil
}

// box encrypts for those who have this authority's key.
func (a *Authority) box() (cipher.AEAD, error) {
	private, err := a.key.ECDH()
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(append([]byte("tendril succession of an authority\x00"), private.Bytes()...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Successor gives the authority that a succession of this one makes. Errors: ErrInvalid where it is none of this one.
func (a *Authority) Successor(s Succession) (*Authority, error) {
	bad := func(what string) error {
		return fmt.Errorf("%w: the next authority: %s", object.ErrInvalid, what)
	}
	cert, err := x509.ParseCertificate(s.Authority)
	if err != nil {
		return nil, bad(err.Error())
	}
	link, err := x509.ParseCertificate(s.Link)
	if err != nil {
		return nil, bad(err.Error())
	}
	if t := (Trust{Authority: a.cert}).Learn([]*x509.Certificate{cert, link}); t.Link == nil {
		return nil, bad("this authority has not named it as its successor")
	}
	box, err := a.box()
	if err != nil {
		return nil, err
	}
	if len(s.Key) < box.NonceSize() {
		return nil, bad("it has no key")
	}
	key, err := box.Open(nil, s.Key[:box.NonceSize()], s.Key[box.NonceSize():], s.Authority)
	if err != nil {
		return nil, bad(err.Error())
	}
	next, err := AuthorityOf(cert, key, a.now)
	if err != nil {
		return nil, err
	}
	next.before, next.link = a.cert, link
	return next, nil
}

// Alone is the authority without its predecessor.
func (a *Authority) Alone() *Authority { return &Authority{cert: a.cert, key: a.key, now: a.now} }

// Trust says whom its cluster believes.
func (a *Authority) Trust() Trust { return Trust{Authority: a.cert, Before: a.before, Link: a.link} }

// WithTrust is the authority with the predecessor that t has.
func (a *Authority) WithTrust(t Trust) *Authority {
	return &Authority{cert: a.cert, key: a.key, now: a.now, before: t.Before, link: t.Link}
}

// blockBefore is the type of the PEM blocks that stand behind an authority's key until its rotation is finished: the
// predecessor's certificate and its link.
const blockBefore = "PREDECESSOR CERTIFICATE"

// appendBefore adds what stands behind an authority's key.
func (a *Authority) appendBefore(raw []byte) []byte {
	for _, c := range []*x509.Certificate{a.before, a.link} {
		if c != nil {
			raw = append(raw, pem.EncodeToMemory(&pem.Block{Type: blockBefore, Bytes: c.Raw})...)
		}
	}
	return raw
}

// parseBefore reads what appendBefore has added. "" = it fits the authority.
func (a *Authority) parseBefore(raw []byte) (fault string) {
	var list []*x509.Certificate
	for len(raw) > 0 {
		b, rest := pem.Decode(raw)
		if b == nil || b.Type != blockBefore || len(list) == 2 {
			return "it does not end with the one private key"
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return err.Error()
		}
		list, raw = append(list, c), rest
	}
	switch len(list) {
	case 0:
		return ""
	case 2:
		t := Trust{Authority: list[0]}.Learn([]*x509.Certificate{a.cert, list[1]})
		if t.Link != nil && t.Authority.Equal(a.cert) {
			a.before, a.link = list[0], list[1]
			return ""
		}
	}
	return "what stands behind its key is not that of its predecessor"
}

// issuedMark is where in a serial number the authority's mark stands: the first bytes of its fingerprint.
const issuedMark, issuedBytes = 1, 4

// IssuedBy reports whether a certificate of that number is of the authority with this fingerprint: numbers of other
// authorities look like that by chance, one in 2^32. It is for people; who is let in, signatures say.
func (s Serial) IssuedBy(f Fingerprint) bool {
	return [issuedBytes]byte(s[issuedMark:]) == [issuedBytes]byte(f[:])
}

// makeAuthority draws a key and signs its certificate.
func makeAuthority(now func() time.Time) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	cert, err := certifyItself(key, now())
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key, now: now}, nil
}
