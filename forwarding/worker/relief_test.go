//go:build cgo

package worker

import (
	"errors"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// TestAReaderThatStaysAwayIsRelieved: while one reader blocks in the driver, another serves the session, and it is the
// only one from then on. One that comes back in time stays.
func TestAReaderThatStaysAwayIsRelieved(t *testing.T) {
	d := testDriver(t)
	ring, sockets := linkEnds(t)
	l, err := link.New(link.Worker, ring, sockets[1])
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(l, d.platform, d.devices, d.inPlace, true, nil)
	for range 3 {
		if err := s.post.away(func() {}); err != nil {
			t.Fatalf("a reader that is back: %v", err)
		}
	}
	held, back := make(chan struct{}), make(chan error, 1)
	go func() { back <- s.post.away(func() { <-held }) }()
	c := newClient(t, ring, sockets[0])
	c.hello()
	f := newFixture(c, 0)
	b, mem := f.buffer(64)
	f.send(run1(clwire.Cmd{Queue: f.queue}, f.kernel("add"), 16, argMem(0, b), argInt(1, 7)))
	f.finish(f.queue, 0)
	f.expect("of another reader", mem, 7)
	close(held)
	if err := <-back; !errors.Is(err, errRelieved) {
		t.Errorf("who was relieved: %v", err)
	}
	c.link.Shutdown()
	if err := <-s.post.over; !errors.Is(err, link.ErrHangup) {
		t.Errorf("the session ends with %v", err)
	}
	close(s.post.left)
	s.peers.close()
	s.engine.Close()
	s.work.Wait()
	l.Close()
}
