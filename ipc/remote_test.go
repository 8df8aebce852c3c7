package ipc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// securePair is both ends of a TLS connection: the client's on a Socket.
func securePair(t *testing.T) (*Remote, *Stream) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan *Stream, 1)
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				served <- nil
				return
			}
			secure := tls.Server(raw,
				&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
			if secure.Handshake() == nil {
				served <- NewStream(secure, raw)
				return
			}
			raw.Close() // who looks for a node that had this port before
		}
	}()
	socket, err := DialTCP(t.Context(), l.Addr().String(), 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	socket.SetDeadline(time.Now().Add(5 * time.Minute))
	secure := tls.Client(socket, &tls.Config{InsecureSkipVerify: true})
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	socket.SetDeadline(time.Time{})
	s := <-served
	if s == nil {
		t.Fatal("no server")
	}
	r := NewRemote(secure, socket)
	t.Cleanup(func() { r.Close(); s.Close() })
	return r, s
}

func TestFramesOverTLS(t *testing.T) {
	r, s := securePair(t)
	big := make([]byte, MaxPayload)
	rand.Read(big)
	for _, size := range []int{0, 1, 100, 20000, MaxPayload} {
		sent := make(chan error, 1)
		go func() { sent <- r.Send(AppendFrame(nil, wire.Hello, 0, 7, blob(big[:size]))) }()
		f, err := s.Receive()
		if err != nil || f.Request != 7 || !bytes.Equal(f.Payload, big[:size]) {
			t.Fatalf("%d bytes: %d, %v", size, len(f.Payload), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		go func() { sent <- s.Send(AppendFrame(nil, wire.Hello|wire.ReplyBit, 0, 7, blob(big[:size])), nil) }()
		if f, err = r.Receive(nil); err != nil || !bytes.Equal(f.Payload, big[:size]) {
			t.Fatalf("reply of %d bytes: %d, %v", size, len(f.Payload), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send([]byte{1}, []int{0}); !errors.Is(err, object.ErrInternal) {
		t.Errorf("a descriptor was sent: %v", err)
	}
}

type blob []byte

func (b blob) Append(to []byte) []byte { return append(to, b...) }

// TestReceiveThatGaveUpGoesOn: half a frame has come, the caller gives up, and the next one gets the whole.
func TestReceiveThatGaveUpGoesOn(t *testing.T) {
	r, s := securePair(t)
	frame := AppendFrame(nil, wire.Hello, 0, 9, blob("payload"))
	if err := s.Send(frame[:11], nil); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	asked := 0
	for range 2 {
		if _, err := r.Receive(func() error {
			if asked++; asked%4 == 0 {
				return enough
			}
			return nil
		}); !errors.Is(err, enough) {
			t.Fatalf("gave up with %v", err)
		}
	}
	if err := s.Send(frame[11:], nil); err != nil {
		t.Fatal(err)
	}
	if f, err := r.Receive(nil); err != nil || string(f.Payload) != "payload" {
		t.Errorf("%q, %v", f.Payload, err)
	}
}

func TestShutdownEndsAReceive(t *testing.T) {
	r, s := securePair(t)
	ended := make(chan error, 2)
	go func() { _, err := r.Receive(nil); ended <- err }()
	go func() { _, err := s.Receive(); ended <- err }()
	await.Blocked(t, 2, ").Receive")
	r.Shutdown()
	s.Shutdown()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a frame came from nowhere")
		}
	}
}

func TestDialTCPThatCannot(t *testing.T) {
	for address, want := range map[string]error{"nowhere": object.ErrInvalid, "127.0.0.1:x": object.ErrInvalid,
		"127.0.0.1:99999": object.ErrInvalid} {
		if _, err := DialTCP(t.Context(), address, 5*time.Minute); !errors.Is(err, want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := DialTCP(t.Context(), "127.0.0.1:1", 5*time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestPrefaceBeforeFrames(t *testing.T) {
	for name, sent := range map[string][]byte{
		"frame": AppendFrame(nil, wire.Hello, 0, 3,
			blob("a payload that is longer than a preface, so that it takes two")),
		"short frame":      AppendFrame(nil, wire.Hello, 0, 3, nil),
		"begins like one ": append([]byte("TEND"), AppendFrame(nil, wire.Hello, 0, 3, nil)...),
	} {
		client, server := pair(t)
		if err := client.Send(sent); err != nil {
			t.Fatal(err)
		}
		if p, is, err := server.Preface(); is || err != nil {
			t.Errorf("%s: %+v, %v, %v", name, p, is, err)
			continue
		}
		f, err := server.Receive()
		if bad := !bytes.HasPrefix(sent, []byte("TEND")); bad != (err == nil && f.Request == 3) {
			t.Errorf("%s: then %v, %v", name, f.Header, err)
		}
	}
	client, server := pair(t)
	want := NewPreface(KindTicket, [TicketBytes]byte{1, 31: 2})
	if err := client.Send(append(want.Append(nil), "behind"...)); err != nil {
		t.Fatal(err)
	}
	p, is, err := server.Preface()
	if !is || err != nil || p != want {
		t.Errorf("%+v, %v, %v", p, is, err)
	}
	refused := errors.New("nobody wants it")
	if err := server.HandOn(func(int) error { return refused }); err != refused {
		t.Errorf("handed on to nobody: %v", err)
	}
	theirs := -1
	err = server.HandOn(func(fd int) (err error) {
		theirs, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(theirs)
	server.Shutdown() // of no effect on whose it is now
	server.Close()
	if err := server.HandOn(func(int) error { return nil }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("handed on twice: %v", err)
	}
	left := make([]byte, 10)
	n, err := recvPlain(theirs, left, 0)
	if err != nil || string(left[:n]) != "behind" {
		t.Errorf("behind the preface: %q, %v", left[:max(n, 0)], err)
	}
	if n, err := unix.Write(theirs, []byte("on")); n != 2 || err != nil {
		t.Errorf("who has it now cannot write: %v", err)
	}
}

func TestPrefaceBytes(t *testing.T) {
	b := Preface{1, 2, KindTicket, [TicketBytes]byte{0xAA, 31: 0xBB}}.Append(nil)
	want := slices.Concat([]byte("TENDRIL1"), []byte{1, 0, 2, 0, 1, 8, 2, 1, 0xAA}, make([]byte, 30), []byte{0xBB})
	if !bytes.Equal(b, want) || len(b) != PrefaceBytes {
		t.Errorf("%x, want %x", b, want)
	}
	if _, err := ParsePreface((*[PrefaceBytes]byte)(b)); err != nil {
		t.Error(err)
	}
	newer := Preface{2, 3, KindTicket, [TicketBytes]byte{1}}.Append(nil)
	if _, err := ParsePreface((*[PrefaceBytes]byte)(newer)); !errors.Is(err, object.ErrVersion) {
		t.Errorf("versions 2 to 3: %v", err)
	}
}

// TestReceiveTakesWhatIsHere: who waits for nothing gets the frames that have come, as over a unix socket.
func TestReceiveTakesWhatIsHere(t *testing.T) {
	r, s := securePair(t)
	if err := s.Send(AppendFrame(nil, wire.Hurry|wire.ReplyBit, 0, 3, nil), nil); err != nil {
		t.Fatal(err)
	}
	watch, err := r.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	await.Until(t, "frame that waits to be read", func() bool { _, unread := watch.Heard(); return unread })
	all := errors.New("all is read")
	giveUp := func() error { return all }
	for f, err := r.Receive(giveUp); ; f, err = r.Receive(giveUp) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == wire.Hurry|wire.ReplyBit && f.Request == 3 {
			break
		}
	}
	if _, err := r.Receive(giveUp); !errors.Is(err, all) {
		t.Errorf("behind it: %v", err)
	}
}

// TestPart: what was sent last is read, and the end behind it, though the peer sent what nobody reads any more.
func TestPart(t *testing.T) {
	r, s := securePair(t)
	for range 3 {
		if err := r.Send(AppendFrame(nil, wire.Hurry, 0, 0, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send(AppendFrame(nil, wire.Error, 0, 0, &wire.ErrorReply{Code: 81, Text: "ended"}), nil); err != nil {
		t.Fatal(err)
	}
	s.Part()
	s.Shutdown()
	if _, err := s.Receive(); err == nil {
		t.Error("the parted end receives")
	}
	if s.Send([]byte{1}, nil) == nil {
		t.Error("the parted end sends")
	}
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	if f, err := r.Receive(nil); err != nil || f.Type != wire.Error {
		t.Errorf("%v, %v", f.Type, err)
	}
	if _, err := r.Receive(nil); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
	r.Shutdown()
	<-closed
}

// patient is a socket whose writes wait as long as they like.
type patient struct{ *net.TCPConn }

func (patient) SetWriteDeadline(time.Time) error { return nil }

// TestPartWaitsForNobody: a peer that reads nothing delays the end of its connection for nobody, though a Send waits.
func TestPartWaitsForNobody(t *testing.T) {
	r, s := securePair(t)
	tcp := s.raw.(*net.TCPConn)
	s.raw = patient{tcp}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for much := make([]byte, 1<<20); s.Send(much, nil) == nil; {
		}
	}()
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "full socket", func() (full bool) {
		if err := raw.Control(func(fd uintptr) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
			full = n == 0 && err == nil
		}); err != nil {
			t.Error(err)
		}
		return full
	})
	s.Part()
	<-sent
	r.Shutdown()
	s.Close()
}

// drained says when it is read from, and notes the last deadline.
type drained struct {
	*net.TCPConn
	once sync.Once
	read chan struct{}
	last atomic.Int64
}

func (d *drained) Read(b []byte) (int, error) {
	d.once.Do(func() { close(d.read) })
	return d.TCPConn.Read(b)
}

func (d *drained) SetReadDeadline(t time.Time) error {
	d.last.Store(t.UnixNano())
	return d.TCPConn.SetReadDeadline(t)
}

// TestNothingCutsLastWordsOff: whoever else ends a connection that its end has parted with leaves its peer the time to
// read.
func TestNothingCutsLastWordsOff(t *testing.T) {
	r, s := securePair(t)
	d := &drained{TCPConn: s.raw.(*net.TCPConn), read: make(chan struct{})}
	s.raw = d
	s.Part()
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	<-d.read
	patience := d.last.Load()
	s.Shutdown()
	s.Part()
	if d.last.Load() != patience {
		t.Error("the peer is given no time any more")
	}
	r.Shutdown()
	<-closed
}
