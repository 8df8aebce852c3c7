package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

func TestMain(m *testing.M) { await.Main(m) }

// clock is a clock that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)} }

func authority(t testing.TB, c *clock) (*Authority, string) {
	t.Helper()
	dir := t.TempDir()
	a, err := OpenAuthority(dir, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

func keyring(t testing.TB, a *Authority, c *clock, s Subject, life time.Duration) *Keyring {
	t.Helper()
	k, err := OpenKeyring(context.Background(), filepath.Join(t.TempDir(), "x.pem"), s.Name, a.Trust(),
		IssueFrom(a, s, life, nil), c.now)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var (
	nodeSubject = Subject{Name: "server", Role: Node, Node: "00ff"}
	userSubject = Subject{Name: "läptop & co", Role: User, Tenant: "team=a&b"}
)

// handshake runs both sides over a pipe and sends a byte each way, since TLS 1.3 clients hear of a refusal only then.
func handshake(t *testing.T, server, client *tls.Config) (cs tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	b, a, err := loopback.Conns() // a pipe without a buffer deadlocks where both sides send alerts
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(5 * time.Minute))
	}
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		if err == nil {
			cs = s.ConnectionState()
		}
		if err == nil { // until the client has gone: closing with unread bytes would reset the connection
			s.Read(make([]byte, 1))
		}
		a.Close()
		done <- err
	}()
	_, clientErr = c.Read(make([]byte, 1))
	b.Close()
	return cs, <-done, clientErr
}

func TestAuthorityIsMadeOnceAndKept(t *testing.T) {
	c := newClock()
	a, dir := authority(t, c)
	b, err := OpenAuthority(dir, c.now)
	if err != nil || !a.Certificate().Equal(b.Certificate()) || FingerprintOf(a.cert) != FingerprintOf(b.cert) {
		t.Fatal("another authority at the second start", err)
	}
	info, _ := os.Stat(filepath.Join(dir, AuthorityFile))
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	c := newClock()
	_, dir := authority(t, c)
	path := filepath.Join(dir, AuthorityFile)
	whole, _ := os.ReadFile(path)
	other, otherDir := authority(t, c)
	_ = other
	foreign, _ := os.ReadFile(filepath.Join(otherDir, AuthorityFile))
	cut := bytes.Index(whole, []byte("-----BEGIN PRIVATE"))
	otherCut := bytes.Index(foreign, []byte("-----BEGIN PRIVATE"))
	cases := map[string][]byte{"empty": {}, "torn": whole[:len(whole)/2], "no key": whole[:cut],
		"no certificate": whole[cut:],
		"another's key":  append(append([]byte{}, whole[:cut]...), foreign[otherCut:]...),
		"twice":          append(append([]byte{}, whole...), whole...), "zeros": make([]byte, len(whole))}
	for i := 40; i < len(whole)-40; i += 60 {
		flipped := append([]byte{}, whole...)
		flipped[i] ^= 0x01
		cases[fmt.Sprint("byte ", i)] = flipped
	}
	for what, content := range cases {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := OpenAuthority(dir, c.now)
		if err == nil && bytes.Equal(a.cert.Raw, mustParse(t, whole).Raw) {
			continue // a flip in what PEM ignores
		}
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "restore") {
			t.Errorf("%s: %v", what, err)
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(now, content) {
			t.Errorf("%s: the file was altered", what)
		}
	}
	os.WriteFile(path, whole, 0o600)
	os.Chmod(path, 0o640)
	if _, err := OpenAuthority(dir, c.now); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
}

func mustParse(t *testing.T, raw []byte) *x509.Certificate {
	t.Helper()
	cert, _, _, fault := parsePair(raw)
	if fault != "" {
		t.Fatal(fault)
	}
	return cert
}

func TestIssueRefusesBadRequests(t *testing.T) {
	a, _ := authority(t, newClock())
	key, _ := NewKey()
	good, err := NewRequest(key, "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(good, userSubject, time.Hour); err != nil {
		t.Fatal(err)
	}
	big, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	curve, _ := NewRequest(big, "x")
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	rsaRequest, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	forged := append([]byte{}, good...)
	forged[len(forged)-3] ^= 1
	for what, request := range map[string][]byte{"nothing": nil, "garbage": []byte("x"), "P-384": curve,
		"RSA": rsaRequest, "forged": forged, "long": make([]byte, maxRequestBytes+1), "cut": good[:50]} {
		if _, err := a.Issue(request, userSubject, time.Hour); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, s := range []Subject{{}, {Name: "x", Role: 9}, {Name: "x", Role: Node}, {Name: "x\n", Role: User},
		{Name: strings.Repeat("x", 300), Role: User}} {
		if _, err := a.Issue(good, s, time.Hour); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := a.Issue(good, userSubject, MaxLife+1); !errors.Is(err, object.ErrInvalid) {
		t.Error(err)
	}
}

func TestTokenTextIsCheckedForTypos(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	b, _ := authority(t, c)
	tok, err := a.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	text := tok.Text()
	for _, variant := range []string{text, strings.ToUpper(text), "  " + text[:30] + "\n  " + text[30:] + "\n",
		strings.ReplaceAll(strings.ReplaceAll(text[4:], "0", "O"), "1", "I")} {
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(variant)), "tdl_") {
			variant = "tdl_" + variant
		}
		if got, err := ParseToken(variant); err != nil || got != tok {
			t.Errorf("%q: %v", variant, err)
		}
	}
	if !tok.Matches(FingerprintOf(a.cert)) || tok.Matches(FingerprintOf(b.cert)) {
		t.Error("the token names the wrong authority")
	}
	for i := range text {
		for _, r := range "0az_u" {
			bad := text[:i] + string(r) + text[i+1:]
			if got, err := ParseToken(bad); err == nil && got != tok {
				t.Errorf("a typo at %d went through", i)
			} else if err != nil && strings.Contains(err.Error(), text[10:40]) {
				t.Errorf("the error shows the secret: %v", err)
			}
		}
		if i > 4 && text[i] != text[i-1] {
			bad := []byte(text)
			bad[i], bad[i-1] = bad[i-1], bad[i]
			if _, err := ParseToken(string(bad)); err == nil {
				t.Errorf("two characters changed places at %d, and nobody noticed", i)
			}
		}
	}
	for _, bad := range []string{"", "tdl_", text[:40], text + "0", "xyz_" + text[4:], strings.Repeat("a", 10000)} {
		if _, err := ParseToken(bad); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	for _, shown := range []string{fmt.Sprint(tok), fmt.Sprintf("%v %+v %#v %s %x %d %q", tok, tok, tok, tok, tok, tok,
		tok), fmt.Sprintf("%+v", struct{ T Token }{tok})} {
		if strings.Contains(shown, fmt.Sprintf("%x", tok.secret)) || strings.Contains(shown, text) ||
			strings.Contains(shown, fmt.Sprint(tok.secret[:3])[1:8]) {
			t.Errorf("printing shows the secret: %s", shown)
		}
	}
	if id := tok.ID(); id == [16]byte{} || tok.SecretHash() == [32]byte{} {
		t.Error("empty hashes")
	}
}

func TestMutualTLS(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	server, client := keyring(t, a, c, nodeSubject, NodeLife), keyring(t, a, c, userSubject, ClientLife)
	var revoked Serial
	v := &Verifier{Trust: a.Trust(), Now: c.now, Revoked: func(s Serial) bool { return s == revoked }}
	cs, errS, errC := handshake(t, ServerConfig(server.Certificate, v), ClientConfig(client.Certificate, v))
	if errS != nil || errC != nil || cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != Protocol {
		t.Fatal(errS, errC, cs.Version)
	}
	peer, ok, err := PeerOf(cs)
	if err != nil || !ok || peer.Subject != userSubject {
		t.Fatalf("%+v %v %v", peer, ok, err)
	}
	revoked = peer.Serial
	_, errS, errC = handshake(t, ServerConfig(server.Certificate, v), ClientConfig(client.Certificate, v))
	if !errors.Is(errS, object.ErrPermission) || !strings.Contains(errS.Error(), "revoked") {
		t.Errorf("revoked: %v", errS)
	}
	if err := Explain(errC); !errors.Is(err, object.ErrPermission) || !strings.Contains(err.Error(), "log in") {
		t.Errorf("the client hears only: %v", err)
	}
}

// selfSigned is a certificate that no authority knows.
func selfSigned(t *testing.T, now time.Time) tls.Certificate {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ephemeral"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(MaxLife)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestWhoIsRefused(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	b, _ := authority(t, c)
	v := &Verifier{Trust: a.Trust(), Now: c.now}
	server, client := keyring(t, a, c, nodeSubject, NodeLife), keyring(t, a, c, userSubject, ClientLife)
	impostor := keyring(t, a, c, userSubject, ClientLife)
	foreign := keyring(t, b, c, nodeSubject, NodeLife)
	nothing := func() *tls.Certificate { return &tls.Certificate{} }
	ephemeral := selfSigned(t, c.at)
	self := func() *tls.Certificate { return &ephemeral }
	old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true,
		Certificates: []tls.Certificate{*client.Certificate()}}
	join := ClientConfig(nothing, v)
	join.NextProtos = []string{ProtocolJoin, Protocol}
	cases := []struct {
		what           string
		server, client *tls.Config
		want           string // in the server's or the client's error
	}{
		{"client of another authority", ServerConfig(server.Certificate, v), ClientConfig(foreign.Certificate, v),
			"another authority"},
		{"server of another authority", ServerConfig(foreign.Certificate, v), ClientConfig(client.Certificate, v),
			"another authority"},
		{"a client that answers as a server", ServerConfig(impostor.Certificate, v),
			ClientConfig(client.Certificate, v), "incompatible key usage"},
		{"no client certificate", ServerConfig(server.Certificate, v), ClientConfig(nothing, v),
			"didn't provide a certificate"},
		{"a certificate that the client made", ServerConfig(server.Certificate, v), ClientConfig(self, v),
			"another authority"},
		{"TLS 1.2", ServerConfig(server.Certificate, v), old, "version"},
		{"both protocols to get around the certificate", ServerConfig(server.Certificate, v), join,
			"didn't provide a certificate"},
	}
	for _, x := range cases {
		_, errS, errC := handshake(t, x.server, x.client)
		if errS == nil || errC == nil || !strings.Contains(errS.Error()+errC.Error(), x.want) {
			t.Errorf("%s: %v; %v", x.what, errS, errC)
		}
	}
}

func TestClocks(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	leaf := keyring(t, a, c, userSubject, time.Hour).Certificate().Leaf
	for _, x := range []struct {
		now  time.Time
		want []string
	}{
		{c.at.Add(-time.Hour), []string{"2026-11-01T11:50:00Z", "2026-11-01T11:00:00Z", "clocks"}},
		{c.at.Add(2 * time.Hour), []string{"2026-11-01T13:00:00Z", "2026-11-01T14:00:00Z", "expired"}},
	} {
		v := &Verifier{Trust: a.Trust(), Now: func() time.Time { return x.now }}
		_, err := v.Verify([]*x509.Certificate{leaf}, false)
		for _, want := range x.want {
			if !errors.Is(err, object.ErrPermission) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %v", want, err)
			}
		}
	}
}

func TestJoin(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	b, _ := authority(t, c)
	v := &Verifier{Trust: a.Trust(), Now: c.now}
	server := keyring(t, a, c, nodeSubject, NodeLife)
	tok, _ := a.NewToken()
	var learned *x509.Certificate
	cs, errS, errC := handshake(t, ServerConfig(server.Certificate, v),
		JoinConfig(tok, c.now, func(x Trust) { learned = x.Authority }))
	if errS != nil || errC != nil || learned == nil || !learned.Equal(a.Certificate()) {
		t.Fatal(errS, errC, learned)
	}
	if _, ok, err := PeerOf(cs); ok || err != nil {
		t.Error("a join counts as authenticated", err)
	}
	learned = nil
	wrong, _ := b.NewToken()
	_, _, errC = handshake(t, ServerConfig(server.Certificate, v),
		JoinConfig(wrong, c.now, func(x Trust) { learned = x.Authority }))
	if !errors.Is(errC, object.ErrPermission) || !strings.Contains(errC.Error(), "another authority than the token") ||
		learned != nil {
		t.Error(errC, learned)
	}
	// Somebody who shows the right authority's certificate behind his own.
	fake := keyring(t, b, c, nodeSubject, NodeLife)
	mixed := *fake.Certificate()
	mixed.Certificate = [][]byte{mixed.Certificate[0], a.Certificate().Raw}
	_, _, errC = handshake(t, ServerConfig(func() *tls.Certificate { return &mixed }, v),
		JoinConfig(tok, c.now, func(x Trust) { learned = x.Authority }))
	if !errors.Is(errC, object.ErrPermission) || learned != nil {
		t.Error(errC, learned)
	}
}

// A keyring on no disk gets its next pair from where it got the first one, and keeps that where there is no good one.
func TestHeldKeyring(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	stranger, _ := authority(t, c)
	pair := func(a *Authority) (*x509.Certificate, crypto.PrivateKey, error) {
		key, _ := NewKey()
		request, _ := NewRequest(key, "x")
		issued, err := a.Issue(request, Subject{Name: "x", Role: User, Tenant: "t"}, 24*time.Hour)
		return issued.Certificate, key, err
	}
	from, asked := a, 0
	cert, key, err := pair(a)
	if err != nil {
		t.Fatal(err)
	}
	next := func(context.Context) (*x509.Certificate, crypto.PrivateKey, error) { asked++; return pair(from) }
	k, err := HeldKeyring(cert, key, a.Trust(), next, c.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.RenewIfDue(context.Background()); err != nil || asked != 0 {
		t.Fatalf("%d, %v", asked, err)
	}
	c.at, from = c.at.Add(17*time.Hour), stranger
	if err := k.RenewIfDue(context.Background()); !errors.Is(err, object.ErrInvalid) || k.Certificate().Leaf != cert {
		t.Fatalf("of another authority: %v", err)
	}
	from = a
	if err := k.RenewIfDue(context.Background()); err != nil || asked != 2 || k.Certificate().Leaf == cert {
		t.Fatalf("%d, %v", asked, err)
	}
}

func TestRenewal(t *testing.T) {
	c := newClock()
	a, _ := authority(t, c)
	path := filepath.Join(t.TempDir(), NodeFile)
	issued, broken := 0, false
	issue := func(ctx context.Context, request []byte) (*x509.Certificate, error) {
		if broken {
			return nil, errors.New("nobody there")
		}
		return IssueFrom(a, nodeSubject, 90*time.Hour,
			func(context.Context, Issued) error { issued++; return nil })(ctx, request)
	}
	open := func() (*Keyring, error) {
		return OpenKeyring(context.Background(), path, "server", a.Trust(), issue, c.now)
	}
	k, err := open()
	if err != nil || issued != 1 {
		t.Fatal(err, issued)
	}
	first := k.Certificate()
	if k, err = open(); err != nil || issued != 1 || !k.Certificate().Leaf.Equal(first.Leaf) {
		t.Fatal("a second start asked for another", err, issued)
	}
	c.at = c.at.Add(50 * time.Hour)
	if err := k.RenewIfDue(context.Background()); err != nil || issued != 1 {
		t.Fatal(err, issued)
	}
	c.at = c.at.Add(15 * time.Hour)
	broken = true
	if err := k.RenewIfDue(context.Background()); err == nil || !k.Certificate().Leaf.Equal(first.Leaf) {
		t.Fatal("the old certificate must stay", err)
	}
	if _, err := open(); err != nil { // still valid
		t.Fatal(err)
	}
	broken = false
	if err := k.RenewIfDue(context.Background()); err != nil || issued != 2 || k.Certificate().Leaf.Equal(first.Leaf) ||
		FingerprintOf(k.Certificate().Leaf) == FingerprintOf(first.Leaf) {
		t.Fatal(err, issued)
	}
	c.at, broken = c.at.Add(1000*time.Hour), true
	if _, err := open(); err == nil {
		t.Error("opened with an expired certificate and nobody to renew it")
	}
	broken = false
	os.WriteFile(path, []byte("torn"), 0o600)
	if _, err := open(); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx, func(error) {}) }()
	cancel()
	<-done
}

func FuzzParseToken(f *testing.F) {
	a, err := OpenAuthority(f.TempDir(), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	tok, _ := a.NewToken()
	f.Add(tok.Text())
	f.Add("tdl_")
	f.Add(" TDL_OIL")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseToken(text)
		if err != nil {
			return
		}
		if again, err := ParseToken(tok.Text()); err != nil || again != tok {
			t.Fatal(text, err)
		}
	})
}

func FuzzParsePair(f *testing.F) {
	a, err := OpenAuthority(f.TempDir(), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "x")
	if err := writePair(path, a.cert, a.key); err != nil {
		f.Fatal(err)
	}
	raw, _ := os.ReadFile(path)
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Fuzz(func(t *testing.T, raw []byte) {
		if cert, key, _, fault := parsePair(raw); fault == "" && !key.PublicKey.Equal(cert.PublicKey) {
			t.Fatal("a key that is not the certificate's")
		}
	})
}
