package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode"

	"tendril/store/object"
)

// A token as text: "tdl_" and 60 characters of Crockford's base 32 (no i, l, o, u; case does not matter; white space
// that a terminal or mail program put in is ignored; one double click selects it whole). The characters are these 37
// bytes:
//
//	0         1                          17          33
//	| version | authority's key          | secret    | CRC-32 (IEEE) of all before
//	| u8 = 1  | 16 bytes of its SHA-256  | 16 random | u32 little-endian
//
// Only hashes of the secret leave the process: ID names the token, SecretHash proves it.
const (
	tokenPrefix  = "tdl_"
	tokenVersion = 1
	tokenBytes   = 37
	tokenDigits  = 60
	maxTokenText = 512
)

var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// Token lets its holder ask for a certificate. It is a secret: String shows it, nothing else does (Format hides it).
type Token struct {
	authority [16]byte
	secret    [16]byte
}

// NewToken draws a token for clusters of this authority.
func (a *Authority) NewToken() (Token, error) {
	t := Token{}
	mark := FingerprintOf(a.cert)
	copy(t.authority[:], mark[:])
	_, err := rand.Read(t.secret[:])
	return t, err
}

// Text gives the token for printing, once, to whom it is for.
func (t Token) Text() string {
	b := append([]byte{tokenVersion}, t.authority[:]...)
	b = append(b, t.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return tokenPrefix + crockford.EncodeToString(b)
}

// String hides the secret, so that a token that is printed or logged by mistake is of no use.
func (t Token) String() string { return fmt.Sprintf("token %x…", t.ID()) }

// GoString hides the secret.
func (t Token) GoString() string { return t.String() }

// Format hides the secret in every verb.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, t.String()) }

// ParseToken reads a token. Errors: ErrInvalid, which says what is wrong with the text, and never shows it.
func ParseToken(text string) (Token, error) {
	var t Token
	if len(text) > maxTokenText {
		return t, fmt.Errorf("%w: a token of %d characters; one has %d", object.ErrInvalid, len(text),
			len(tokenPrefix)+tokenDigits)
	}
	s := strings.Map(func(r rune) rune {
		switch r = unicode.ToLower(r); {
		case unicode.IsSpace(r):
			return -1
		case r == 'o':
			return '0'
		case r == 'i' || r == 'l':
			return '1'
		}
		return r
	}, text)
	digits, found := strings.CutPrefix(s, "td1_") // as the map leaves it
	if !found {
		return t, fmt.Errorf("%w: a token begins with %q: make one with: tendril token create",
			object.ErrInvalid, tokenPrefix)
	}
	if len(digits) != tokenDigits {
		return t, fmt.Errorf("%w: the token has %d characters after %q instead of %d: was it copied completely?",
			object.ErrInvalid, len(digits), tokenPrefix, tokenDigits)
	}
	b, err := crockford.DecodeString(digits)
	if err != nil {
		return t, fmt.Errorf("%w: the token contains a character that tokens never have: was it mistyped?",
			object.ErrInvalid)
	}
	if len(b) != tokenBytes || crockford.EncodeToString(b) != digits ||
		crc32.ChecksumIEEE(b[:tokenBytes-4]) != binary.LittleEndian.Uint32(b[tokenBytes-4:]) {
		return t, fmt.Errorf("%w: the token's check digits are wrong: was it mistyped?", object.ErrInvalid)
	}
	if b[0] != tokenVersion {
		return t, fmt.Errorf("%w: a token of version %d, this program reads %d: upgrade it", object.ErrVersion, b[0],
			tokenVersion)
	}
	copy(t.authority[:], b[1:])
	copy(t.secret[:], b[17:])
	return t, nil
}

// ID names the token in the cluster's metadata.
func (t Token) ID() (id [16]byte) {
	h := sha256.Sum256(append([]byte("tendril token id\x00"), t.secret[:]...))
	copy(id[:], h[:])
	return id
}

// SecretHash is what the cluster keeps of the secret, and what a joining side shows over a handshake that proved the
// authority.
func (t Token) SecretHash() [32]byte {
	return sha256.Sum256(append([]byte("tendril token secret\x00"), t.secret[:]...))
}

// Matches reports, in constant time, whether the token is for clusters of the authority with this fingerprint.
func (t Token) Matches(authority Fingerprint) bool {
	return subtle.ConstantTimeCompare(t.authority[:], authority[:len(t.authority)]) == 1
}
