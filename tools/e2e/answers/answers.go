// Package answers is a daemon for tests of clients that answers each request as the test says: what a daemon of another
// release, a broken or a hostile one would.
package answers

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Daemon counts the requests by kind.
type Daemon struct {
	Socket string
	answer func(kind wire.Type, nth int) (wire.Type, ipc.Payload) // Hello, too

	mu   sync.Mutex
	came map[wire.Type]int
}

// New listens for one connection, until the test ends. It greets it in a protocol version; nth is a request's number
// among those of its kind, from 1 on.
func New(t *testing.T, version uint16, answer func(kind wire.Type, nth int) (wire.Type, ipc.Payload)) *Daemon {
	t.Helper()
	return start(t, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
		if kind == wire.Hello {
			return kind | wire.ReplyBit, &wire.HelloReply{Version: version, Tenant: "t"}
		}
		return answer(kind, nth)
	})
}

// Greets listens for one connection, until the test ends, and answers its Hello with a frame of this kind. It gives its
// socket.
func Greets(t *testing.T, kind wire.Type, with ipc.Payload) (socket string) {
	t.Helper()
	return start(t, func(wire.Type, int) (wire.Type, ipc.Payload) { return kind, with }).Socket
}

func start(t *testing.T, answer func(kind wire.Type, nth int) (wire.Type, ipc.Payload)) *Daemon {
	t.Helper()
	d := &Daemon{Socket: filepath.Join(t.TempDir(), "s"), answer: answer, came: make(map[wire.Type]int)}
	l, err := net.Listen("unix", d.Socket)
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
		for d.serveOne(c) == nil {
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return d
}

// serveOne reads one request, which is whole and short, and answers it.
func (d *Daemon) serveOne(c net.Conn) error {
	raw := make([]byte, ipc.HeaderBytes)
	if _, err := io.ReadFull(c, raw); err != nil {
		return err
	}
	length, kind := binary.LittleEndian.Uint32(raw), wire.Type(binary.LittleEndian.Uint16(raw[4:]))
	request := binary.LittleEndian.Uint64(raw[8:])
	if _, err := io.CopyN(io.Discard, c, int64(length)); err != nil {
		return err
	}
	d.mu.Lock()
	d.came[kind]++
	nth := d.came[kind]
	d.mu.Unlock()
	if request == 0 {
		return nil
	}
	said, reply := d.answer(kind, nth)
	_, err := c.Write(ipc.AppendFrame(nil, said, 0, request, reply))
	return err
}

// Count says how many requests of a kind came.
func (d *Daemon) Count(kind wire.Type) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.came[kind]
}

// Came says how many requests of each kind came.
func (d *Daemon) Came() map[wire.Type]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.came)
}

// Raw is a payload as it stands.
type Raw string

func (r Raw) Append(b []byte) []byte { return append(b, r...) }

// Call is one call of a client.
type Call struct {
	To    func(socket string) error // connects, and calls
	Empty bool                      // its answer has no payload, and none is looked at
}

// A Conn is what Calling needs of a client's connection.
type Conn interface {
	Unpublish(ctx context.Context, name string) error
	Close() error
}

// Calling connects to a socket, calls, and sees that the connection goes on.
func Calling[C Conn](dial func(ctx context.Context, socket string) (C, error),
	call func(ctx context.Context, c C) error) func(socket string) error {
	return func(socket string) error {
		ctx := context.Background()
		c, err := dial(ctx, socket)
		if err != nil {
			return err
		}
		defer c.Close()
		err = call(ctx, c)
		if again := c.Unpublish(ctx, "n"); again != nil && !errors.Is(again, object.ErrPermission) {
			return errors.Join(errors.New("the connection does not go on"), again)
		}
		return err
	}
}

// Try checks of each call that what the daemon refuses is its error, and that an answer that makes no sense is
// object.ErrProtocol: neither is taken for an answer.
func Try(t *testing.T, calls map[string]Call) {
	refused := func(wire.Type, int) (wire.Type, ipc.Payload) {
		return wire.Error, &wire.ErrorReply{Code: object.ErrPermission.Code(), Text: "not you"}
	}
	garbage := func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
		return kind | wire.ReplyBit, Raw("\xff\xff\xff")
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			if err := call.To(New(t, wire.Version, refused).Socket); !errors.Is(err, object.ErrPermission) {
				t.Errorf("refused: %v", err)
			}
			err := call.To(New(t, wire.Version, garbage).Socket)
			if call.Empty && err != nil || !call.Empty && !errors.Is(err, object.ErrProtocol) {
				t.Errorf("an answer that makes no sense: %v", err)
			}
		})
	}
}
