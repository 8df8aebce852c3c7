//go:build cgo

package worker

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/tools/e2e/await"
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

// TestThereIsOneReader: whatever the stays of readers in the driver, none reads beside another, the session always has
// one, and all are gone when it is over.
func TestThereIsOneReader(t *testing.T) {
	var (
		work    sync.WaitGroup
		p       *post
		reading atomic.Int32
		held    atomic.Pointer[chan struct{}] // closed: there is another reader
		stays   int                           // the reader's
		begun   = errors.New("two readers")
		over    = errors.New("over")
		random  = rand.New(rand.NewPCG(1, 2))
	)
	p = newPost(func() error {
		if reading.Add(1) > 1 {
			return begun
		}
		if h := held.Swap(nil); h != nil {
			close(*h)
		}
		for {
			if stays++; stays > 3000 {
				return over
			}
			stay := func() {}
			switch {
			case stays%300 == 299: // until somebody else is the reader
				h := make(chan struct{})
				stay = func() { held.Store(&h); <-h }
			case stays%300 == 150: // back at about the time when somebody takes over
				d := time.Duration(random.Int64N(int64(3 * reliefLook)))
				stay = func() { time.Sleep(d) } // Pause: any moment is right
			case stays == 1234: // nobody looks any more
				await.Until(t, "end of the watch", func() bool { return !p.watching.Load() })
			}
			reading.Add(-1)
			if err := p.away(stay); err != nil {
				return err
			}
			if reading.Add(1) > 1 {
				return begun
			}
		}
	}, &work)
	if err := p.hold(); err != over {
		t.Error(err)
	}
	work.Wait()
}

// TestAFinishThatBlocksInTheDriver: the driver's own finish of a queue that had short waits blocks. Another queue of
// the program is served, what comes behind in the same one is, and so is the session's end; the finish is answered
// once, when the driver lets go.
func TestAFinishThatBlocksInTheDriver(t *testing.T) {
	for name, ends := range map[string]bool{"the program goes on": false, "the session ends": true} {
		t.Run(name, func(t *testing.T) { finishBlocks(t, ends) })
	}
}

func finishBlocks(t *testing.T, ends bool) {
	pipe := filepath.Join(t.TempDir(), "finish")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NULLCL_FINISH", pipe)
	var open *os.File
	t.Cleanup(func() { open.Close() }) // behind the rig's: the session's end finishes its queues too
	r := newReaderRig(t)
	let := sync.OnceFunc(func() { // for this finish and all others
		var err error
		if open, err = os.OpenFile(pipe, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		r.link.Shutdown()
		let()
	})
	over := make(chan error, 1)
	go func() { over <- r.s.run() }()
	step := func(queue uint64) uint64 {
		r.client.send(run1(clwire.Cmd{Queue: queue}, r.kernel, 1))
		return r.ask(&clwire.Finish{Queue: queue})
	}
	answered := func(request uint64) {
		r.until("answer", func() bool { return r.replies[request] != nil })
	}
	var blocked uint64
	for blocked == 0 { // on a busy machine it takes a while until eight in a row are short
		before := r.s.post.turn.Load()
		asked := step(r.ordered)
		r.until("answer, or relief without one", func() bool {
			turn := r.s.post.turn.Load()
			if turn%2 == 0 && turn >= before+2 && r.link.Empty() && r.replies[asked] == nil {
				blocked = asked
			}
			return r.replies[asked] != nil || blocked != 0
		})
	}
	for range 20 {
		answered(step(r.disordered))
	}
	event := r.id()
	r.client.send(run1(clwire.Cmd{Queue: r.ordered, Event: event}, r.kernel, 1))
	answered(r.ask(&clwire.Wait{Events: []uint64{event}}))
	r.client.send(&clwire.Release{ID: r.ordered})
	if r.replies[blocked] != nil {
		t.Error("the finish is answered before its time")
	}
	if !ends {
		let()
		answered(blocked)
	}
	r.link.Shutdown()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if ends {
		let()
	}
}
