package ipc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestPrefacesThatAreNone: each field of a preface is checked, by one fault at a time.
func TestPrefacesThatAreNone(t *testing.T) {
	ticket := [TicketBytes]byte{1}
	for _, kind := range []uint8{KindControl, KindTicket, KindRaft, KindTransfer} {
		p := NewPreface(kind, [TicketBytes]byte{})
		if kind == KindTicket {
			p.Ticket = ticket
		}
		b := [PrefaceBytes]byte(p.Append(nil))
		if got, err := ParsePreface(&b); err != nil || got != p {
			t.Errorf("kind %d: %+v, %v", kind, got, err)
		}
		for what, x := range map[string]struct {
			at    int
			value byte
			want  error
		}{
			"another program":        {0, 'G', object.ErrProtocol},
			"another protocol":       {7, '2', object.ErrProtocol},
			"a newer client":         {8, 2, object.ErrVersion},
			"an older client":        {10, 0, object.ErrVersion},
			"a kind of the future":   {12, KindTransfer + 1, object.ErrProtocol},
			"words of four bytes":    {13, 4, object.ErrProtocol},
			"the other byte order":   {14, 1, object.ErrProtocol},
			"a ticket, or none":      {16, b[16] ^ 1, object.ErrProtocol},
			"a kind without a bound": {12, 255, object.ErrProtocol},
		} {
			bad := b
			bad[x.at] = x.value
			if got, err := ParsePreface(&bad); !errors.Is(err, x.want) {
				t.Errorf("kind %d, %s: %+v, %v", kind, what, got, err)
			}
		}
	}
}

// TestPrefaceInPieces: it does not matter how the bytes of a beginning come, and nothing behind a preface is taken.
func TestPrefaceInPieces(t *testing.T) {
	preface := NewPreface(KindRaft, [TicketBytes]byte{}).Append(nil)
	frame := AppendFrame(nil, wire.Hello, 0, 7, raw("a payload"))
	for cut := range PrefaceBytes {
		client, server := pair(t)
		if is, known, err := server.BeginsWithFrame(); is || known || err != nil {
			t.Fatalf("nothing came: %v, %v, %v", is, known, err)
		}
		got := make(chan error, 1)
		go func() {
			p, is, err := server.Preface()
			if err == nil && (!is || p.Kind != KindRaft) {
				err = errors.New("no preface")
			}
			got <- err
		}()
		for _, part := range [][]byte{preface[:cut], append(preface[cut:PrefaceBytes:PrefaceBytes], "TEND"...)} {
			if err := client.Send(part); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-got; err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		left := make([]byte, 5)
		if n, err := recvPlain(server.fd, left, unix.MSG_DONTWAIT); err != nil || string(left[:n]) != "TEND" {
			t.Errorf("cut at %d: %q is left, %v", cut, left[:max(n, 0)], err)
		}
	}
	for cut := 1; cut < len(frame); cut++ {
		client, server := pair(t)
		if err := client.Send(frame[:cut]); err != nil {
			t.Fatal(err)
		}
		if is, known, err := server.BeginsWithFrame(); !is || !known || err != nil {
			t.Errorf("%d bytes of a frame: %v, %v, %v", cut, is, known, err)
		}
		if err := client.Send(frame[cut:]); err != nil {
			t.Fatal(err)
		}
		if f, err := server.Receive(); err != nil || f.Request != 7 || string(f.Payload) != "a payload" {
			t.Errorf("cut at %d: %+v, %v", cut, f.Header, err)
		}
	}
	client, server := pair(t)
	client.Shutdown()
	if _, known, err := server.BeginsWithFrame(); known || !errors.Is(err, io.EOF) {
		t.Errorf("a peer that leaves at once: %v, %v", known, err)
	}
	if _, _, err := server.Preface(); !errors.Is(err, io.EOF) {
		t.Errorf("a peer that leaves at once: %v", err)
	}
}

// TestRefusedFrames: a large frame that is refused is passed over to its last byte, and the frames around it come. What
// was admitted is given back once.
func TestRefusedFrames(t *testing.T) {
	large := bytes.Repeat([]byte{'x'}, 300<<10)
	stream := AppendFrame(nil, wire.Hello, 0, 1, raw("before"))
	stream = AppendFrame(stream, wire.Hello, 0, 2, raw(large))
	stream = AppendFrame(stream, wire.Hello, 0, 3, raw("between"))
	stream = AppendFrame(stream, wire.Hello, 0, 4, raw(large[:200<<10]))
	stream = AppendFrame(stream, wire.Hello, 0, 5, raw("behind"))
	client, server := pair(t)
	admitted, why := 0, errors.New("no room")
	server.Admit(func(h Header, more int) error {
		if h.Request == 2 {
			return Refuse(h.Request, why)
		}
		admitted += more
		return nil
	}, func(n int) { admitted -= n })
	sent := make(chan error, 1)
	go func() { sent <- client.Send(stream) }()
	var got []uint64
	for len(got) < 5 {
		f, err := server.Receive()
		var refused *Refused
		switch {
		case errors.As(err, &refused):
			if !errors.Is(err, why) || err.Error() != why.Error() {
				t.Errorf("%v", err)
			}
			got = append(got, 100+refused.Request)
			continue
		case err != nil:
			t.Fatal(err)
		case f.Request == 4 && (admitted < 200<<10 || len(f.Payload) != 200<<10):
			t.Errorf("%d bytes with %d admitted", len(f.Payload), admitted)
		}
		got = append(got, f.Request)
	}
	if want := []uint64{1, 102, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	// The memory goes when the next receive begins with nothing there.
	if server.Whole() || server.Large() {
		t.Error("something is left")
	}
	if there, err := server.ReceiveNow(); there || err != nil || admitted != 0 {
		t.Errorf("%v, %v, and %d bytes are still admitted", there, err, admitted)
	}
}

// TestSendNowSendsWhatFits: to a peer that does not read goes what fits, and the rest later: every byte once.
func TestSendNowSendsWhatFits(t *testing.T) {
	client, server := pair(t)
	all := bytes.Repeat([]byte("0123456789abcdef"), 128<<10) // 2 MiB: more than a socket holds
	if !server.Writable() {
		t.Error("an empty socket takes nothing")
	}
	n, err := server.SendNow(all, nil)
	if err != nil || n == 0 || n == len(all) {
		t.Fatalf("%d of %d bytes, %v", n, len(all), err)
	}
	if more, err := server.SendNow(all[n:], nil); more != 0 || err != nil || server.Writable() {
		t.Errorf("a full socket took %d bytes, %v", more, err)
	}
	rest := make(chan error, 1)
	go func() { rest <- server.Send(all[n:], nil) }()
	peer, got := NewSocket(client.fd, "peer"), make([]byte, len(all))
	if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, all) {
		t.Errorf("the bytes differ, or %v", err)
	}
	if err := <-rest; err != nil {
		t.Error(err)
	}
	client.Shutdown()
	if n, err := server.SendNow(all, nil); n != 0 || err == nil {
		t.Errorf("to a peer that has gone: %d, %v", n, err)
	}
}

// TestWaiting: a frame at hand and bytes in the socket are what Receive returns for, an incomplete frame is not.
func TestWaiting(t *testing.T) {
	client, server := pair(t)
	if client.Waiting() {
		t.Error("nothing came")
	}
	two := AppendFrame(AppendFrame(nil, wire.Hello, 0, 1, nil), wire.Hello, 0, 2, nil)
	if err := server.Send(append(two, 1, 2, 3), nil); err != nil {
		t.Fatal(err)
	}
	for want := range uint64(2) {
		if !client.Waiting() {
			t.Errorf("frame %d does not wait", want+1)
		}
		if f, err := client.Receive(nil); err != nil || f.Request != want+1 {
			t.Fatalf("%+v, %v", f.Header, err)
		}
	}
	if client.Waiting() {
		t.Error("three bytes of a frame wait")
	}
}

// TestSocketAsAConn: a Socket reads, gives up, ends and is closed as crypto/tls expects of a net.Conn.
func TestSocketAsAConn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if _, err := DialUnix(path, nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("nobody is there: %v", err)
	}
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: path}), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(listener); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("nobody came: %v", err)
	}
	s, err := DialUnix(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	peer := NewAccepted(fd, NewLingers(0))
	defer peer.Close()
	if s.Descriptor() < 10 || s.RemoteAddr().String() != path || s.LocalAddr().String() != "" ||
		s.RemoteAddr().Network() == "" {
		t.Errorf("descriptor %d, %v, %v", s.Descriptor(), s.RemoteAddr(), s.LocalAddr())
	}
	if groups, err := peer.PeerGroups(); err != nil {
		t.Error(err)
	} else if own, err := os.Getgroups(); err != nil || len(groups) != len(own) {
		t.Errorf("groups %v, want %v, %v", groups, own, err)
	}
	b := make([]byte, 10)
	if err := s.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("time is up: %d, %v", n, err)
	}
	if err := errors.Join(s.SetDeadline(time.Time{}), s.SetWriteDeadline(time.Now().Add(-time.Hour))); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	s.giveUp = func() error { return gone }
	var timeout interface{ Timeout() bool }
	if _, err := s.Read(b); !errors.Is(err, gone) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("who gave up: %v", err)
	}
	s.giveUp = nil
	if err := peer.Send([]byte("hello"), nil); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Read(b); err != nil || string(b[:n]) != "hello" { // as good as before
		t.Errorf("%q, %v", b[:n], err)
	}
	if n, err := s.Write([]byte("to the peer")); n != 11 || err != nil { // no bound holds for it
		t.Errorf("%d, %v", n, err)
	}
	peer.Shutdown()
	if n, err := s.Read(b); n != 0 || err != io.EOF {
		t.Errorf("the peer has ended: %d, %v", n, err)
	}
	if n, err := s.Write(b); n != 0 || err == nil {
		t.Errorf("to a peer that has ended: %d, %v", n, err)
	}
	kept := s.Release()
	if err := s.Close(); err != nil { // it is another's
		t.Error(err)
	}
	if _, err := unix.FcntlInt(uintptr(kept), unix.F_GETFD, 0); err != nil {
		t.Errorf("what was given away is closed: %v", err)
	}
	unix.Close(kept)
}

// TestWatchOfAConnection: who looks on sees what was heard, what waits, and the end, also behind Close.
func TestWatchOfAConnection(t *testing.T) {
	client, server := securePair(t)
	w, err := client.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if ended, err := w.Ended(0); ended || err != nil {
		t.Errorf("it has not ended: %v, %v", ended, err)
	}
	before, _ := w.Heard()
	if err := server.Send(AppendFrame(nil, wire.Hello, 0, 1, nil), nil); err != nil {
		t.Fatal(err)
	}
	if f, err := client.Receive(nil); err != nil || f.Request != 1 {
		t.Fatalf("%+v, %v", f.Header, err)
	}
	if now, unread := w.Heard(); now <= before || unread {
		t.Errorf("heard %d times, before %d; unread: %v", now, before, unread)
	}
	if err := server.Send([]byte("x"), []int{0}); !errors.Is(err, object.ErrInternal) {
		t.Errorf("a descriptor over a network: %v", err)
	}
	server.EndReceive()
	if _, err := server.Receive(); err == nil {
		t.Error("received after the end")
	}
	client.Shutdown()
	client.Close()
	if ended, err := w.Ended(-1); !ended || err != nil {
		t.Errorf("it has ended: %v, %v", ended, err)
	}
}
