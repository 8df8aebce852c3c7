package client

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// farLink is a connection to a daemon of another machine, and that daemon's end.
func farLink(t *testing.T) (*Conn, *ipc.Stream) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := ipc.DialTCP(t.Context(), l.Addr().String(), 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(ipc.NewRemote(socket, socket), "far")
	c.remote, c.session = true, true
	there := ipc.NewStream(raw, raw)
	t.Cleanup(func() { c.Close(); there.Close() })
	return c, there
}

// wasEnded checks that err says that the daemon has ended the session, and why.
func wasEnded(t *testing.T, err error, why string) {
	t.Helper()
	ended := (*EndedError)(nil)
	if !errors.As(err, &ended) || !errors.Is(ended.Why, object.ErrAborted) || !strings.Contains(err.Error(), why) {
		t.Errorf("it says %v", err)
	}
}

// TestGuardReadsTheLastWords: the daemon says why it ends the connection while nobody waits for an answer of it, and
// the guard is the first to notice.
func TestGuardReadsTheLastWords(t *testing.T) {
	c, there := farLink(t)
	if err := there.Send(ipc.AppendFrame(nil, wire.Error, 0, 0,
		&wire.ErrorReply{Code: object.ErrAborted.Code(), Text: "aborted: ended by somebody"}), nil); err != nil {
		t.Fatal(err)
	}
	there.Close()
	c.background.Add(1)
	go c.guard()
	await.Until(t, "connection that is broken", func() bool { return c.broken() != nil })
	wasEnded(t, c.broken(), "ended by somebody")
}

// TestWhoComesBackIsToldWhyItsSessionEnded: the last words were lost with the connection.
func TestWhoComesBackIsToldWhyItsSessionEnded(t *testing.T) {
	c, there := farLink(t)
	c.kept = &kept{session: 2, secret: [32]byte{7}, patience: time.Hour}
	c.redial = func(context.Context) (*Conn, error) {
		next, there := farLink(t)
		go func() {
			var m wire.ResumeSessionRequest
			f, err := there.Receive()
			if err != nil || f.Type != wire.ResumeSession || m.Decode(f.Payload) != nil || m.Session != 2 ||
				m.Secret != [32]byte{7} {
				t.Errorf("%v %+v, %v", f.Type, m, err)
			}
			_ = there.Send(ipc.AppendFrame(nil, wire.Error, 0, f.Request,
				&wire.ErrorReply{Code: object.ErrAborted.Code(), Text: "aborted: ended by somebody"}), nil)
		}()
		return next, nil
	}
	there.Close()
	c.background.Add(1)
	go c.guard()
	await.Until(t, "session that is over", c.isFinal)
	wasEnded(t, c.broken(), "ended by somebody")
	for range 2 {
		_, err := c.roundTrip(t.Context(), wire.WorkerFate, &wire.Number{N: 1})
		wasEnded(t, err, "ended by somebody")
	}
}
