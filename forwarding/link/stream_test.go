package link

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

// tcpPair returns both ends of a TCP connection over loopback.
func tcpPair(t testing.TB) (client, worker *os.File) {
	t.Helper()
	client, worker, err := loopback.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		worker.Close()
	})
	return client, worker
}

// configs returns TLS for both ends, or nil twice.
func configs(t testing.TB, secure bool) (client, worker *tls.Config) {
	t.Helper()
	if !secure {
		return nil, nil
	}
	a, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return a.Config(b.Fingerprint()), b.Config(a.Fingerprint())
}

// patient has a handshake that does not end because this process, which is both ends, stands still.
func patient(c *tls.Config) Options { return Options{TLS: c, handshake: 5 * time.Minute} }

func streamPair(t testing.TB, secure bool) (client, worker *Stream) {
	t.Helper()
	a, b := tcpPair(t)
	ca, cb := configs(t, secure)
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { client, errs[0] = OpenStream(Client, a, patient(ca)) })
	wg.Go(func() { worker, errs[1] = OpenStream(Worker, b, patient(cb)) })
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); worker.Close() })
	return client, worker
}

func bothWays(t *testing.T, f func(t *testing.T, secure bool)) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) { f(t, secure) })
	}
}

// next waits for one record.
func next(t testing.TB, l Link) (clwire.Header, []byte) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		h, p, ok, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return h, p
		}
		if time.Now().After(deadline) {
			t.Fatal("no record")
		}
		if l.Arm(clwire.ConsumerAsleep) {
			if err := l.Block(-1, time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestStreamKeepsOrder(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		client, worker := streamPair(t, secure)
		const n = 3000
		sent := make(chan error, 1)
		go func() {
			for i := range uint64(n) {
				m := &clwire.WriteInline{Buffer: i, Data: bytes.Repeat([]byte{byte(i)}, int(i*37)%40000)}
				if err := client.Send(m, 0, i+1); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i := range uint64(n) {
			h, p := next(t, worker)
			var m clwire.WriteInline
			if err := m.Decode(p); err != nil || h.Request != i+1 || m.Buffer != i || len(m.Data) != int(i*37)%40000 {
				t.Fatalf("record %d: %+v, buffer %d, %d bytes, %v", i, h, m.Buffer, len(m.Data), err)
			}
			if len(m.Data) > 0 && (m.Data[0] != byte(i) || m.Data[len(m.Data)-1] != byte(i)) {
				t.Fatalf("record %d: wrong bytes", i)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	})
}

func TestStreamSendsUnkicked(t *testing.T) {
	client, worker := streamPair(t, true)
	for i := range uint64(20) {
		if err := client.Send(&clwire.Flush{Queue: i}, 0, 0); err != nil {
			t.Fatal(err)
		}
		if h, _ := next(t, worker); h.Type != clwire.TypeFlush {
			t.Fatalf("got %v", h.Type)
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // Pause: the next meets the flusher awake or asleep
	}
}

func TestStreamWorkerNeverWaits(t *testing.T) {
	_, worker := streamPair(t, true)
	data := make([]byte, 60000)
	var err error
	for range 3 * maxBacklogBytes / len(data) {
		if err = worker.Send(&clwire.Print{Data: data}, clwire.FlagUrgent, 0); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrBacklog) {
		t.Fatalf("a client that reads nothing: %v", err)
	}
}

// What was sent before a shutdown arrives, also where the flusher is about to send it.
func TestShutdownAwaitsTheFlusher(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		client, worker := streamPair(t, secure)
		client.tx.Lock() // as the flusher
		if err := client.appendLocked(&clwire.Flush{Queue: 7}, 0, 0); err != nil {
			t.Fatal(err)
		}
		var over sync.WaitGroup
		over.Go(client.Shutdown)
		await.Blocked(t, 1, "link.(*Stream).Shutdown")
		client.tx.Unlock()
		if h, _ := next(t, worker); h.Type != clwire.TypeFlush {
			t.Errorf("got %v", h.Type)
		}
		over.Wait()
	})
}

func TestStreamHangup(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		client, worker := streamPair(t, secure)
		if err := client.Send(&clwire.Flush{Queue: 7}, 0, 0); err != nil {
			t.Fatal(err)
		}
		client.Shutdown()
		if h, _ := next(t, worker); h.Type != clwire.TypeFlush {
			t.Fatalf("got %v", h.Type)
		}
		for {
			_, _, ok, err := worker.Next()
			if ok {
				t.Fatal("a record after the end")
			}
			if err != nil {
				if !errors.Is(err, ErrHangup) {
					t.Fatal(err)
				}
				break
			}
			if err := worker.Block(-1, time.Second); err != nil && !errors.Is(err, ErrHangup) {
				t.Fatal(err)
			}
		}
		if err := client.Send(&clwire.Flush{}, 0, 0); !errors.Is(err, ErrHangup) {
			t.Fatalf("send after the end: %v", err)
		}
	})
}

func TestWrongCertificateIsRefused(t *testing.T) {
	a, b := tcpPair(t)
	stranger, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	ca, cb := configs(t, true)
	good := ca.Certificates
	ca.Certificates = stranger.Config(Fingerprint{}).Certificates
	var workerErr error
	var wg sync.WaitGroup
	wg.Go(func() { // the client's handshake ends before the worker looks at its certificate
		if s, err := OpenStream(Client, a, patient(ca)); err == nil {
			s.Close()
		}
	})
	wg.Go(func() {
		var s *Stream
		if s, workerErr = OpenStream(Worker, b, patient(cb)); workerErr == nil {
			s.Close()
		}
	})
	wg.Wait()
	if !errors.Is(workerErr, ErrPeer) {
		t.Fatalf("a stranger's certificate: %v", workerErr)
	}
	ca.Certificates = good
}

func lanePair(t testing.TB, secure bool) (client, worker *Lane) {
	t.Helper()
	a, b := tcpPair(t)
	ca, cb := configs(t, secure)
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { client, errs[0] = OpenLane(Client, a, patient(ca)) })
	wg.Go(func() { worker, errs[1] = OpenLane(Worker, b, patient(cb)) })
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); worker.Close() })
	return client, worker
}

func TestLaneCarriesChunks(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		client, worker := lanePair(t, secure)
		want := make([]byte, 3<<20)
		rand.Read(want)
		sent := make(chan error, 1)
		go func() {
			var err error
			for at := 0; at < len(want) && err == nil; at += clwire.MaxChunk {
				err = client.Send(clwire.LaneHeader{Op: 9, Offset: uint64(at), Length: clwire.MaxChunk},
					want[at:at+clwire.MaxChunk], nil)
			}
			sent <- errors.Join(err, client.Send(clwire.LaneHeader{Op: 9, Length: 5, Skipped: true}, nil, nil))
		}()
		got := make([]byte, len(want))
		for range len(want) / clwire.MaxChunk {
			h, err := worker.Header()
			if err != nil {
				t.Fatal(err)
			}
			if err := worker.Read(got[h.Offset : h.Offset+uint64(h.Length)]); err != nil {
				t.Fatal(err)
			}
		}
		if h, err := worker.Header(); err != nil || !h.Skipped || h.Length != 5 {
			t.Fatalf("%+v, %v", h, err)
		}
		if err := <-sent; err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v, equal %v", err, bytes.Equal(got, want))
		}
		client.Shutdown()
		if _, err := worker.Header(); !errors.Is(err, ErrHangup) {
			t.Fatalf("after the end: %v", err)
		}
	})
}

func TestDescriptorsAreClosed(t *testing.T) {
	client, _ := streamPair(t, false)
	if flags, err := unix.FcntlInt(uintptr(client.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 ||
		client.fd < 10 {
		t.Fatalf("descriptor %d has flags %#x, %v", client.fd, flags, err)
	}
}

// A call that comes after Close leaves the connection alone that has the descriptor's number by then.
func TestNothingIsReadOrSentAfterClose(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		a, b := tcpPair(t)
		config, theirs := configs(t, secure)
		var s, peer *Stream
		err := both(func() (err error) { s, err = OpenStream(Client, a, Options{TLS: config}); return },
			func() (err error) { peer, err = OpenStream(Worker, b, Options{TLS: theirs}); return })
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		next, other := tcpPair(t) // before the number is free
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Dup3(int(next.Fd()), s.fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s.fd)
		_, err = other.Write([]byte("another's"))
		if err = errors.Join(err, unix.Shutdown(int(other.Fd()), unix.SHUT_WR)); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := s.Next(); !errors.Is(err, ErrHangup) {
			t.Errorf("Next: %v", err)
		}
		if err := s.Send(&clwire.Flush{Queue: 1}, clwire.FlagUrgent, 0); !errors.Is(err, ErrHangup) {
			t.Errorf("Send: %v", err)
		}
		s.Kick()
		got := make([]byte, 100)
		if n, err := unix.Read(s.fd, got); err != nil || string(got[:n]) != "another's" {
			t.Errorf("of the other connection came %q, %v", got[:n], err)
		}
		_ = unix.Shutdown(s.fd, unix.SHUT_WR)
		if sent, err := io.ReadAll(other); err != nil || len(sent) > 0 {
			t.Errorf("to the other connection went % x, %v", sent, err)
		}
	})
}

// One record there and one back, the caller polling as a session does.
func BenchmarkStreamRoundTrip(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(fmt.Sprintf("tls=%v", secure), func(b *testing.B) {
			client, worker := streamPair(b, secure)
			echo := func(l Link, want bool) bool {
				for {
					_, _, ok, err := l.Next()
					if err != nil {
						return false
					}
					if ok {
						return true
					}
					if !new(Poller).Spin(60*time.Microsecond, func() bool { return !l.Empty() }) && l.Arm(1) {
						if l.Block(-1, -1) != nil {
							return false
						}
					}
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for echo(worker, true) {
					_ = worker.Send(&clwire.Reply{}, clwire.FlagUrgent, 1)
				}
			}()
			for b.Loop() {
				if client.Send(&clwire.Finish{}, clwire.FlagUrgent, 1) != nil || !echo(client, true) {
					b.Fatal("hung up")
				}
			}
			client.Shutdown()
			<-done
		})
	}
}

func BenchmarkLane(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(fmt.Sprintf("tls=%v", secure), func(b *testing.B) {
			client, worker := lanePair(b, secure)
			chunk, into := make([]byte, clwire.MaxChunk), make([]byte, clwire.MaxChunk)
			b.SetBytes(clwire.MaxChunk)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					if _, err := worker.Header(); err != nil || worker.Read(into) != nil {
						return
					}
				}
			}()
			for b.Loop() {
				if err := client.Send(clwire.LaneHeader{Op: 1, Length: clwire.MaxChunk}, chunk, nil); err != nil {
					b.Fatal(err)
				}
			}
			client.Shutdown()
			<-done
		})
	}
}
