package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"time"

	"tendril/store/object"
)

// AuthorityFile is the name of the authority's file in the state directory: its certificate and its key, mode 0600.
const AuthorityFile = "authority.pem"

// maxRequestBytes bounds a certificate request; one for P-256 has about 250 bytes.
const maxRequestBytes = 4096

// Authority signs certificates. Immutable and safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time

	before, link *x509.Certificate // Trust.Before and Trust.Link
}

// OpenAuthority reads the authority in dir, which must exist, and makes one at the first start. now is the clock
// (time.Now). Errors: ErrDamaged when the file is there but cannot be believed; it is then left as it is.
func OpenAuthority(dir string, now func() time.Time) (*Authority, error) {
	path := filepath.Join(dir, AuthorityFile)
	cert, key, rest, err := readParts(path,
		"restore it from a copy; or remove it and start once with --bootstrap-anyway: then a new authority is made, and every node and client has to join or log in again")
	if errors.Is(err, fs.ErrNotExist) {
		return newAuthority(path, now)
	}
	if err != nil {
		return nil, err
	}
	if !cert.IsCA || cert.CheckSignatureFrom(cert) != nil {
		return nil, damaged(path, "its certificate is not that of an authority", "restore it from a copy")
	}
	a := &Authority{cert: cert, key: key, now: now}
	if fault := a.parseBefore(rest); fault != "" {
		return nil, damaged(path, fault, "restore it from a copy")
	}
	return a, nil
}

func newAuthority(path string, now func() time.Time) (*Authority, error) {
	a, err := makeAuthority(now)
	if err != nil {
		return nil, err
	}
	return a, writeParts(path, a.cert, a.key, nil)
}

// certifyItself makes the certificate of an authority's key.
func certifyItself(key *ecdsa.PrivateKey, at time.Time) (*x509.Certificate, error) {
	serial, err := newSerial(Fingerprint{})
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("Tendril authority %x", serial.Bytes()[:4])},
		NotBefore: at.Add(-clockAllowance), NotAfter: at.Add(AuthorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// AuthorityOf makes the authority of its certificate and its key (PKCS #8, DER), as a node gets them that joins a
// cluster. Errors: ErrInvalid where they do not belong together.
func AuthorityOf(cert *x509.Certificate, keyDER []byte, now func() time.Time) (*Authority, error) {
	k, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, fmt.Errorf("%w: the authority's key cannot be read", object.ErrInvalid)
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA || cert.CheckSignatureFrom(cert) != nil {
		return nil, fmt.Errorf("%w: the key is not that of the authority %.60q", object.ErrInvalid,
			cert.Subject.CommonName)
	}
	return &Authority{cert: cert, key: key, now: now}, nil
}

// Key gives the authority's key (PKCS #8, DER): for a node that joins, and nobody else.
func (a *Authority) Key() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(a.key) }

// Save writes the authority into dir, where OpenAuthority finds it.
func (a *Authority) Save(dir string) error {
	return writeParts(filepath.Join(dir, AuthorityFile), a.cert, a.key, a.appendBefore(nil))
}

// Certificate gives the authority's own certificate, which clients pin.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Issued is a new certificate.
type Issued struct {
	Certificate *x509.Certificate
	Serial      Serial
}

// Issue signs a certificate for the key in a request (DER). Only the key is taken from it: who the certificate speaks
// for is said by the caller. Errors: ErrInvalid for a request that is malformed, not signed with its own key, or for
// another kind of key than P-256 or Ed25519.
func (a *Authority) Issue(request []byte, s Subject, life time.Duration) (Issued, error) {
	if err := s.check(); err != nil {
		return Issued{}, err
	}
	if life <= 0 || life > MaxLife {
		return Issued{}, fmt.Errorf("%w: a certificate for %v: want more than 0 and at most %v", object.ErrInvalid,
			life, MaxLife)
	}
	public, err := requestKey(request)
	if err != nil {
		return Issued{}, err
	}
	serial, err := newSerial(FingerprintOf(a.cert))
	if err != nil {
		return Issued{}, err
	}
	at := a.now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.Name}, URIs: []*url.URL{s.uri()},
		NotBefore: at.Add(-clockAllowance), NotAfter: at.Add(life), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if s.Role == Node {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return Issued{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Issued{}, err
	}
	number, err := SerialOf(cert)
	return Issued{cert, number}, err
}

func requestKey(request []byte) (any, error) {
	if len(request) > maxRequestBytes {
		return nil, fmt.Errorf("%w: a certificate request of %d bytes, at most %d", object.ErrInvalid, len(request),
			maxRequestBytes)
	}
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("%w: certificate request: %w", object.ErrInvalid, err)
	}
	switch k := r.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return nil, fmt.Errorf("%w: certificate request for curve %s, want P-256", object.ErrInvalid,
				k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("%w: certificate request for a %v key, want ECDSA P-256 or Ed25519", object.ErrInvalid,
			r.PublicKeyAlgorithm)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: certificate request: %w", object.ErrInvalid, err)
	}
	return r.PublicKey, nil
}
