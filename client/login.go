package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// DefaultPort is the front door's.
const DefaultPort = "7433"

const (
	connectTime   = 10 * time.Second // for one address of a server
	handshakeTime = 10 * time.Second
	authorityFile = "authority.crt" // the pinned authority's certificate; the key is in pki.ClientFile
	serverFile    = "server"        // the server's name
)

// withPort adds the default port to a server's name. Errors: object.ErrInvalid for what is no HOST or HOST:PORT.
func withPort(server string) (string, error) {
	full := server
	host, port, err := net.SplitHostPort(server)
	if err != nil { // without a port; an IPv6 address may stand in brackets then
		host, port = server, DefaultPort
		if inner, is := strings.CutPrefix(server, "["); is && strings.HasSuffix(inner, "]") {
			host = strings.TrimSuffix(inner, "]")
		}
		full = net.JoinHostPort(host, port)
	}
	_, notIP := netip.ParseAddr(host)
	n, notPort := strconv.ParseUint(port, 10, 16)
	if host == "" || strings.ContainsAny(host, "/[]@ ") || notPort != nil || n == 0 ||
		strings.Contains(host, ":") && notIP != nil {
		return "", fmt.Errorf("%w: %.80q: want HOST, HOST:PORT or ssh://[USER@]HOST; an IPv6 address with a port stands in brackets: [ADDRESS]:PORT", object.ErrInvalid, server)
	}
	return full, nil
}

// handshake connects, shows the preface and shakes hands. The caller closes the socket.
func handshake(ctx context.Context, server string, config *tls.Config) (*tls.Conn, *ipc.Socket, error) {
	socket, err := ipc.DialTCP(ctx, server, connectTime)
	if err != nil {
		return nil, nil, err
	}
	_ = socket.SetDeadline(time.Now().Add(handshakeTime))
	socket.GiveUp(ctx.Err)
	_, err = socket.Write(ipc.NewPreface(ipc.KindControl, [ipc.TicketBytes]byte{}).Append(nil))
	secure := tls.Client(socket, config)
	if err == nil {
		err = secure.Handshake()
	}
	if err != nil {
		socket.Close()
		return nil, nil, explain(err)
	}
	_ = socket.SetDeadline(time.Time{})
	socket.GiveUp(nil)
	return secure, socket, nil
}

func explain(err error) error {
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) {
		return fmt.Errorf("%w: no Tendril daemon answers there: %w", object.ErrProtocol, err)
	}
	return pki.Explain(err)
}

// identity is who comes in at a server: login, or what an Access gives.
type identity interface {
	credentials(ctx context.Context, server string, renew renewal) (*credentials, error)

	// tls is what to dial with.
	tls(*credentials) *tls.Config

	// newest is the same with the certificate that the credentials have by now.
	newest(*credentials) identity
}

// renewal gets a certificate (DER) for a request (DER).
type renewal func(ctx context.Context, request []byte) ([]byte, error)

// login is the identity that Login keeps.
type login struct{}

func (login) credentials(ctx context.Context, server string, renew renewal) (*credentials, error) {
	return openCredentials(ctx, server, renew)
}

func (login) tls(keys *credentials) *tls.Config {
	return pki.ClientConfig(keys.ring.Certificate, &pki.Verifier{Trust: keys.ring.Trust(), Now: time.Now})
}

func (login) newest(*credentials) identity { return login{} } // a renewed certificate is kept with it

// credentials are what Login keeps of one server.
type credentials struct {
	ring *pki.Keyring
	dir  string // where the authority is kept; "": nowhere
}

// see learns from what a node of the cluster has shown, in a handshake that was good, which authorities there are.
func (k *credentials) see(shown []*x509.Certificate) error {
	old := k.ring.Trust()
	now := old.Learn(shown).Finished(shown)
	if now == old {
		return nil
	}
	return k.trust(now)
}

// trust has the credentials believe others from now on.
func (k *credentials) trust(now pki.Trust) error {
	if k.dir != "" {
		if err := writeAuthority(k.dir, now); err != nil {
			return err
		}
	}
	k.ring.SetTrust(now)
	return nil
}

// writeAuthority keeps whom a login believes: the authority and, until its rotation is finished, its predecessor.
func writeAuthority(dir string, t pki.Trust) error {
	raw := pki.EncodeCertificate(t.Authority)
	if t.Before != nil {
		raw = append(raw, pki.EncodeCertificate(t.Before)...)
	}
	path := filepath.Join(dir, authorityFile)
	fresh, err := os.CreateTemp(dir, authorityFile+"-") // other programs read and write the file at the same time
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

func openCredentials(ctx context.Context, server string, renew renewal) (*credentials, error) {
	dir, err := credentialsDir(server)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, authorityFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: not logged in: tendril login %s", object.ErrPermission, server)
	}
	if err != nil {
		return nil, err
	}
	trust, err := parseAuthority(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: log in again: tendril login %s", filepath.Join(dir, authorityFile), err, server)
	}
	ring, err := openRing(ctx, dir, clientName(), trust, renew)
	if err != nil {
		return nil, err
	}
	return &credentials{ring, dir}, nil
}

func openRing(ctx context.Context, dir, name string, trust pki.Trust, sign renewal) (*pki.Keyring, error) {
	issue := func(ctx context.Context, request []byte) (*x509.Certificate, error) {
		der, err := sign(ctx, request)
		if err != nil {
			return nil, err
		}
		return x509.ParseCertificate(der)
	}
	return pki.OpenKeyring(ctx, filepath.Join(dir, pki.ClientFile), name, trust, issue, time.Now)
}

// parseAuthority reads what writeAuthority has written.
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

// credentialsDir is where what Login gets for a server is kept: in $TENDRIL_CREDENTIALS, else in tendril/servers of the
// user's XDG configuration directory.
func credentialsDir(server string) (string, error) {
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

// clientName is what a certificate is asked for under: the machine's name.
func clientName() string {
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "client"
}

// LoggedIn says what a login brought.
type LoggedIn struct {
	Server  string // with its port
	Name    string
	Role    pki.Role
	Tenant  string
	Expires time.Time // renewed before, as long as it is used
	Dir     string    // where authority and key are kept
}

// Login shows a token to a server, checks that the server is the token's, and keeps its authority and a new key and
// certificate for DialServer (directory 0700, key 0600). name "" = this machine's. Errors: object.ErrPermission for a
// token that is not good (any more) and for a server of another cluster; nothing is kept then.
func Login(ctx context.Context, server, token, name string) (LoggedIn, error) {
	t, err := pki.ParseToken(token)
	if err != nil {
		return LoggedIn{}, err
	}
	full, err := withPort(server)
	if err != nil {
		return LoggedIn{}, fmt.Errorf("server %s: %w", server, err)
	}
	server = full
	if name == "" {
		name = clientName()
	}
	dir, err := credentialsDir(server)
	if err != nil {
		return LoggedIn{}, err
	}
	var trust pki.Trust
	secure, socket, err := handshake(ctx, server, pki.JoinConfig(t, time.Now, func(x pki.Trust) { trust = x }))
	if err != nil {
		return LoggedIn{}, fmt.Errorf("server %s: %w", server, err)
	}
	defer socket.Close()
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return LoggedIn{}, err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".login-")
	if err != nil {
		return LoggedIn{}, err
	}
	defer os.RemoveAll(fresh)
	ring, err := openRing(ctx, fresh, name, trust, func(ctx context.Context, request []byte) ([]byte, error) {
		return enroll(ctx, secure, socket, t, name, request)
	})
	if err == nil {
		err = errors.Join(writeAuthority(fresh, trust),
			os.WriteFile(filepath.Join(fresh, serverFile), []byte(server+"\n"), 0o600))
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(dir), os.Rename(fresh, dir))
	}
	if err != nil {
		return LoggedIn{}, fmt.Errorf("server %s: %w", server, err)
	}
	leaf := ring.Certificate().Leaf
	subject, err := pki.SubjectOf(leaf)
	return LoggedIn{server, subject.Name, subject.Role, subject.Tenant, leaf.NotAfter, dir}, err
}

// enroll is the one exchange that a token is good for.
func enroll(ctx context.Context, conn net.Conn, socket *ipc.Socket, t pki.Token, name string,
	request []byte) ([]byte, error) {
	link := ipc.NewRemote(conn, socket)
	ask := wire.EnrollRequest{Token: t.ID(), SecretHash: t.SecretHash(), Name: name, Request: request}
	if err := link.Send(ipc.AppendFrame(nil, wire.Enroll, 0, 1, &ask)); err != nil {
		return nil, explain(err)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	f, err := link.Receive(ctx.Err)
	if err != nil {
		return nil, explain(err)
	}
	if f.Type == wire.Error {
		var m wire.ErrorReply
		if err := m.Decode(f.Payload); err != nil {
			return nil, err
		}
		return nil, object.FromCode(m.Code, m.Text)
	}
	var m wire.DERMessage
	if f.Type != wire.Enroll|wire.ReplyBit {
		return nil, fmt.Errorf("%w: %v to an Enroll", object.ErrProtocol, f.Type)
	}
	err = m.Decode(f.Payload)
	return append([]byte(nil), m.DER...), err
}
