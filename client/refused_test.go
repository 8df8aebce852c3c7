package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
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
