// Package login is the way in at other machines' daemons: a token becomes a certificate, which client.DialServer shows.
// It keeps one for each server, for this user, in $TENDRIL_CREDENTIALS, else in tendril/servers of the XDG
// configuration directory.
package login

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"tendril/client/internal/front"
	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// DefaultPort is the front door's.
const DefaultPort = front.DefaultPort

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
	full, err := front.WithPort(server)
	if err != nil {
		return LoggedIn{}, fmt.Errorf("server %s: %w", server, err)
	}
	server = full
	if name == "" {
		name = front.ClientName()
	}
	dir, err := front.CredentialsDir(server)
	if err != nil {
		return LoggedIn{}, err
	}
	var trust pki.Trust
	secure, socket, err := front.Handshake(ctx, server, pki.JoinConfig(t, time.Now, func(x pki.Trust) { trust = x }))
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
	ring, err := front.OpenRing(ctx, fresh, name, trust, func(ctx context.Context, request []byte) ([]byte, error) {
		return enroll(ctx, secure, socket, t, name, request)
	})
	if err == nil {
		err = errors.Join(front.WriteAuthority(fresh, trust),
			os.WriteFile(filepath.Join(fresh, front.NameFile), []byte(server+"\n"), 0o600))
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
		return nil, front.Explain(err)
	}
	ctx, cancel := context.WithTimeout(ctx, front.HandshakeTime)
	defer cancel()
	f, err := link.Receive(ctx.Err)
	if err != nil {
		return nil, front.Explain(err)
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
