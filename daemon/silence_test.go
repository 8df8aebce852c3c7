package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	programs "tendril/client/session"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// swallower passes connections on to an address, but nothing more of those that are there when it is told so, though it
// takes and so acknowledges all.
type swallower struct {
	l     net.Listener
	to    string
	turn  atomic.Int64 // connections of an earlier one are swallowed
	conns atomic.Int64
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  []net.Conn
}

func newSwallower(t *testing.T, to string) *swallower {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &swallower{l: l, to: to}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			s.wg.Go(func() { s.serve(c) })
		}
	})
	return s
}

// end ends all; its connections' others are to be closed before, or it closes them.
func (s *swallower) end() {
	s.l.Close()
	s.mu.Lock()
	for _, c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *swallower) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", s.to)
	if err != nil {
		return
	}
	defer far.Close()
	s.mu.Lock()
	s.open = append(s.open, near, far)
	s.mu.Unlock()
	turn := s.turn.Load()
	var both sync.WaitGroup
	pass := func(to io.Writer, from io.Reader) {
		buf := make([]byte, 16<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if turn == s.turn.Load() {
				_, _ = to.Write(buf[:n]) // what fails, the next read says
			}
		}
	}
	both.Go(func() { pass(far, near); far.Close() })
	both.Go(func() { pass(near, far); near.Close() })
	both.Wait()
}

// A session whose control connection is swallowed goes on by another one, also a call that was under way; where it is
// not to come back, the call fails.
func TestSilentControlConnectionIsLeft(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	c.ResumeTime = 5 * time.Minute
	d, stop := serve(t, c)
	defer stop()
	text := newToken(t, dial(t, c), admin.TokenOptions{})
	s := newSwallower(t, d.door.Load().RemoteAddr().String())
	defer s.end()
	at := s.l.Addr().String()
	if _, err := login.Login(context.Background(), at, text, ""); err != nil {
		t.Fatal(err)
	}
	for name, patience := range map[string]time.Duration{"may come back": 5 * time.Minute, "may not": 0} {
		t.Run(name, func(t *testing.T) {
			var conn *client.Conn
			await.Until(t, "a session", func() bool { // a daemon that gets no processor is silent, too
				var err error
				conn, err = client.DialServer(context.Background(), at, client.Options{Silence: time.Second})
				if err != nil {
					return false
				}
				granted := time.Duration(0)
				_, _, err = programs.Of(conn).Open(context.Background(), "test", []byte(`{"protocol":1}`))
				if err == nil {
					granted, err = programs.Of(conn).Keep(context.Background(), patience)
				}
				if err == nil && (granted > 0) != (patience > 0) {
					t.Fatalf("kept for %v", granted)
				}
				if err != nil {
					conn.Close()
				}
				return err == nil
			})
			defer conn.Close()
			before := s.conns.Load()
			s.turn.Add(1)
			_, _, err := programs.Of(conn).WorkerFate(context.Background(), 77)
			switch {
			case patience > 0 && (!errors.Is(err, object.ErrNotFound) || s.conns.Load() == before):
				t.Errorf("a call in a session that may come back: %v, by %d new connections", err,
					s.conns.Load()-before)
			case patience == 0 && !errors.Is(err, client.ErrDisconnected):
				t.Errorf("a call in a session that may not: %v", err)
			}
		})
	}
}
