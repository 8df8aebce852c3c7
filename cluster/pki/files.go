package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"

	"tendril/cluster/durable"
)

// maxFileBytes bounds what is read of a file; a valid one has about 1 KiB.
const maxFileBytes = 64 << 10

const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY" // PKCS #8
)

func damaged(path, fault, out string) error {
	return fmt.Errorf("%w: %s: %s; it was left as it is: %s", ErrDamaged, path, fault, out)
}

// readPair reads a certificate and its key. The key must be the certificate's, and closed to everyone but the owner.
func readPair(path, out string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, key, rest, err := readParts(path, out)
	if err == nil && len(rest) > 0 {
		err = damaged(path, "it does not end with the one private key", out)
	}
	return cert, key, err
}

// readParts is readPair for a file in which something may stand behind the key: rest.
func readParts(path, out string) (cert *x509.Certificate, key *ecdsa.PrivateKey, rest []byte, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileBytes {
		return nil, nil, nil, damaged(path,
			fmt.Sprintf("it is %v with %d bytes, not a small regular file", info.Mode(), info.Size()), out)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, nil, nil, damaged(path, fmt.Sprintf("its mode is %v, so others may have read the key",
			info.Mode().Perm()), "if nobody did, chmod 600 it; else remove it")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	cert, key, rest, fault := parsePair(raw)
	if fault != "" {
		return nil, nil, nil, damaged(path, fault, out)
	}
	return cert, key, rest, nil
}

// parsePair gives what is wrong, or "".
func parsePair(raw []byte) (cert *x509.Certificate, key *ecdsa.PrivateKey, rest []byte, fault string) {
	first, rest := pem.Decode(raw)
	if first == nil || first.Type != blockCertificate {
		return nil, nil, nil, "it does not begin with a certificate"
	}
	second, rest := pem.Decode(rest)
	if second == nil || second.Type != blockKey {
		return nil, nil, nil, "it does not end with the one private key"
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, nil, nil, err.Error()
	}
	k, err := x509.ParsePKCS8PrivateKey(second.Bytes)
	if err != nil {
		return nil, nil, nil, "the private key cannot be read"
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, nil, "the private key is not the certificate's"
	}
	return cert, key, rest, ""
}

// writePair replaces a file by a certificate and its key, at once and durably, mode 0600.
func writePair(path string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	return writeParts(path, cert, key, nil)
}

// writeParts is writePair with something behind the key.
func writeParts(path string, cert *x509.Certificate, key *ecdsa.PrivateKey, rest []byte) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	raw := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: cert.Raw})
	raw = append(raw, pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der})...)
	return durable.Replace(path, append(raw, rest...))
}

// EncodeCertificate gives a certificate as PEM.
func EncodeCertificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: c.Raw})
}
