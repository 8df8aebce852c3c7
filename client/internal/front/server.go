// Package front is a daemon of another machine as its clients need it: how it is named, the handshake, and what a login
// keeps of it. It knows no connection: package client makes that of it.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/store/object"
)

// DefaultPort is the front door's.
const DefaultPort = "7433"

const (
	ConnectTime   = 10 * time.Second // for one address of a server
	HandshakeTime = 20 * time.Second // longer than the daemon gives it
)

// WithPort adds the default port to a server's name. Errors: object.ErrInvalid for what is no HOST or HOST:PORT.
func WithPort(server string) (string, error) {
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

// Handshake connects, shows the preface and shakes hands. The caller closes the socket.
func Handshake(ctx context.Context, server string, config *tls.Config) (*tls.Conn, *ipc.Socket, error) {
	socket, err := ipc.DialTCP(ctx, server, ConnectTime)
	if err != nil {
		return nil, nil, err
	}
	_ = socket.SetDeadline(time.Now().Add(HandshakeTime))
	socket.GiveUp(ctx.Err)
	_, err = socket.Write(ipc.NewPreface(ipc.KindControl, [ipc.TicketBytes]byte{}).Append(nil))
	secure := tls.Client(socket, config)
	if err == nil {
		err = secure.Handshake()
	}
	if err != nil {
		socket.Close()
		return nil, nil, Explain(err)
	}
	_ = socket.SetDeadline(time.Time{})
	socket.GiveUp(nil)
	return secure, socket, nil
}

func Explain(err error) error {
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) {
		return fmt.Errorf("%w: no Tendril daemon answers there: %w", object.ErrProtocol, err)
	}
	return pki.Explain(err)
}
