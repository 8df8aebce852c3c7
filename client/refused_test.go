package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestRefusedBeforeHello: a daemon that lets nobody in says why and hangs up, perhaps before the client has written
// anything. The reason is the answer, at once.
func TestRefusedBeforeHello(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	why := &wire.ErrorReply{Code: object.CodeOf(object.ErrBusy), Text: "tenant x has 3 connections open"}
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(ipc.AppendFrame(nil, wire.Error, 0, 0, why))
		c.Close()
	}()
	link, err := ipc.Dial(socket, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-refused
	c, tries := newConn(link, socket), 0
	defer c.Close()
	c.revival.dial = func(context.Context) (*Conn, error) {
		tries++
		return nil, ErrDisconnected
	}
	err = c.hello(context.Background(), "test")
	if !errors.Is(err, object.ErrBusy) || !errors.Is(err, ErrDisconnected) ||
		!strings.Contains(err.Error(), why.Text) || tries > 0 {
		t.Errorf("%v, after %d more tries to connect", err, tries)
	}
}

// TestConnectsOnceMore: a daemon that hangs up before its first answer is asked a second time, and no third. One that
// says why it refuses is asked once.
func TestConnectsOnceMore(t *testing.T) {
	hello := ipc.AppendFrame(nil, wire.Hello|wire.ReplyBit, 0, 1, &wire.HelloReply{Version: wire.Version, Tenant: "x"})
	refusal := ipc.AppendFrame(nil, wire.Error, 0, 1, &wire.ErrorReply{Code: object.CodeOf(object.ErrBusy), Text: "no"})
	for name, x := range map[string]struct {
		answers [][]byte // of each connection; then it hangs up
		want    error
		tries   int32
	}{
		"the second answers": {[][]byte{nil, hello}, nil, 2},
		"none answers":       {[][]byte{nil, nil, hello}, ErrDisconnected, 2},
		"the first refuses":  {[][]byte{refusal, hello}, object.ErrBusy, 1},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			var tries atomic.Int32
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, answer := range x.answers {
					c, err := l.Accept()
					if err != nil {
						return
					}
					tries.Add(1)
					_, _ = c.Read(make([]byte, 4096))
					_, _ = c.Write(answer)
					c.Close()
				}
			}()
			c, err := Dial(t.Context(), Options{Socket: socket, Index: IndexOff})
			if err == nil {
				c.Close()
			}
			l.Close()
			<-done
			if !errors.Is(err, x.want) || x.want == nil && err != nil || tries.Load() != x.tries {
				t.Errorf("%v after %d connections; want %v after %d", err, tries.Load(), x.want, x.tries)
			}
		})
	}
}
