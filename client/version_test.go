package client

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// otherRelease is a daemon that answers Hello with one frame and reads on.
func otherRelease(t *testing.T, answer func(hello *wire.HelloRequest) (wire.Type, ipc.Payload)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		first := make([]byte, 4096)
		n, err := c.Read(first)
		if err != nil {
			return
		}
		var m wire.HelloRequest
		if err := m.Decode(first[ipc.HeaderBytes:n]); err != nil {
			return
		}
		kind, payload := answer(&m)
		_, _ = c.Write(ipc.AppendFrame(nil, kind, 0, 1, payload))
		_, _ = io.Copy(io.Discard, c)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return socket
}

type rawPayload []byte

func (p rawPayload) Append(b []byte) []byte { return append(b, p...) }

// A daemon of another version is refused with words, whichever of the two is the older, and whoever finds out.
func TestDaemonsOfOtherVersions(t *testing.T) {
	const words = "the client speaks versions 9 to 9, this daemon 1"
	for name, answer := range map[string]func(*wire.HelloRequest) (wire.Type, ipc.Payload){
		"an older daemon refuses": func(*wire.HelloRequest) (wire.Type, ipc.Payload) {
			return wire.Error, &wire.ErrorReply{Code: object.ErrVersion.Code(), Text: words}
		},
		"a newer daemon answers in its own version": func(m *wire.HelloRequest) (wire.Type, ipc.Payload) {
			return wire.Hello | wire.ReplyBit, &wire.HelloReply{Version: m.Highest + 1, DaemonVersion: "9.0"}
		},
		"and in a layout that nobody knows yet": func(m *wire.HelloRequest) (wire.Type, ipc.Payload) {
			return wire.Hello | wire.ReplyBit, rawPayload{byte(m.Highest + 1), 0, 1}
		},
		"an older daemon answers in its own": func(m *wire.HelloRequest) (wire.Type, ipc.Payload) {
			return wire.Hello | wire.ReplyBit, &wire.HelloReply{Version: m.Lowest - 1, DaemonVersion: "0.1"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Dial(context.Background(), Options{Socket: otherRelease(t, answer)})
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(), "version") {
				t.Errorf("%v", err)
			}
		})
	}
}
