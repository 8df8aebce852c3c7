// Package peer is a link between the workers of one program, on one node or two: ends of events and announced bytes go from
// worker to worker without passing the program.
//
// Lane 0 of a link carries words (clwire.PeerWord), the others chunks of pushes. A push has two halves that their workers hear
// of from the program: who has the bytes offers them once nothing before them is under way, who takes them says Ready once
// nothing writes over them any more; only then do they flow, so that nothing is ever kept aside for a push. A link that breaks
// stays broken: its worker is told once, after its last goroutine has ended, and the program finds another way.
//
// Trust: the other worker runs tenant code, and so may say anything. Every length and number is bounded; a word about
// something that this side's program has not told of is kept, up to a bound, for the program's records may come later.
//
// Goroutines, all joined by Close: a handshake each connection, a reader each lane, the words' sender. Locks: Link.mu, a
// leaf; the Worker is called with it not held.
package peer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// ErrClosed is why a link ended that this side closed.
var ErrClosed = errors.New("the link was closed")

// Worker is what a link tells its worker. Calls may come from several goroutines; an error ends the link.
type Worker interface {
	// Up says, once, that every lane is there.
	Up()
	// Done says how an expected event ended.
	Done(event uint64, status int32)
	// Failed says that a push that Ready was said of will not come.
	Failed(op uint64, status int32) error
	// Chunk takes the payload of a chunk, if it has one, off the lane.
	Chunk(l *link.Lane, h clwire.LaneHeader) error
	// Lost says, last and once, why the link has ended.
	Lost(why error)
}

// Options say what a link is.
type Options struct {
	Answers bool        // this side is the TLS server
	Config  *tls.Config // nil: in the clear
	// Compression is nil where nothing is packed.
	Compression *link.Compression
	Lanes       int // 2 to clwire.MaxPeerLanes
	Worker      Worker
}

// maxHandshakes bounds connections that are at TLS at a time.
const maxHandshakes = 16

// Link is one end of a link. Its methods may be called concurrently and never wait, but for Close.
type Link struct {
	o Options // immutable

	mu       sync.Mutex
	lanes    []*link.Lane // by index; nil: not there yet
	missing  int          // of lanes
	shaking  map[*os.File]struct{}
	why      error // not nil: it has ended, or is about to
	out      []byte
	outgoing sync.Cond         // out has something, or why is set
	expected map[uint64]bool   // events that the other side will tell of
	early    map[uint64]int32  // ends of events that were not expected yet
	ready    map[uint64]bool   // pushes that the other side is ready for and this side has not offered
	offered  map[uint64]func() // pushes that wait for that

	work sync.WaitGroup // readers, sender, handshakes, pushes
	over chan struct{}  // closed behind Lost
}

// New makes a link without connections: see Take.
func New(o Options) *Link {
	l := &Link{o: o, lanes: make([]*link.Lane, o.Lanes), missing: o.Lanes, over: make(chan struct{}), shaking: map[*os.File]struct{}{},
		expected: map[uint64]bool{}, early: map[uint64]int32{}, ready: map[uint64]bool{}, offered: map[uint64]func(){}}
	l.outgoing.L = &l.mu
	return l
}

// Take makes a connected socket a lane of the link. It owns f. A connection that does not come through its handshake changes nothing
// on the side that answers: somebody else may have shown the ticket. The side that dialed knows whom, and ends the link.
func (l *Link) Take(index int, f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil || index < 0 || index >= len(l.lanes) || l.lanes[index] != nil || len(l.shaking) >= maxHandshakes {
		f.Close()
		return
	}
	l.shaking[f] = struct{}{}
	l.work.Go(func() {
		defer f.Close()
		role := link.Client
		if l.o.Answers {
			role = link.Worker
		}
		lane, err := link.OpenLane(role, f, link.Options{TLS: l.o.Config, Compression: l.o.Compression})
		l.shaken(index, f, lane, err)
	})
}

// shaken books a handshake's end.
func (l *Link) shaken(index int, f *os.File, lane *link.Lane, err error) {
	l.mu.Lock()
	delete(l.shaking, f)
	if err != nil || l.why != nil || l.lanes[index] != nil {
		l.mu.Unlock()
		if err == nil {
			lane.Close()
		} else if !l.o.Answers {
			l.End(fmt.Errorf("connection %d: %w", index, err))
		}
		return
	}
	l.lanes[index] = lane
	l.missing--
	whole := l.missing == 0
	if whole {
		l.startLocked()
	}
	l.mu.Unlock()
	if whole {
		l.o.Worker.Up()
	}
}

func (l *Link) startLocked() {
	l.work.Go(l.sendWords)
	l.work.Go(func() { l.End(l.readWords()) })
	l.work.Go(func() { l.End(l.readChunks(l.lanes[1])) }) // small pushes come here, which a command waits for
	for _, lane := range l.lanes[2:] {
		l.work.Go(func() { link.GiveWay(func() { l.End(l.readChunks(lane)) }) })
	}
}

// Payload gives the lanes for chunks; nil before Up and after the end.
func (l *Link) Payload() []*link.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing > 0 || l.why != nil {
		return nil
	}
	return l.lanes[1:]
}

// Expect says that the other side will tell how an event ends; Done may be called before it returns.
func (l *Link) Expect(event uint64) error {
	l.mu.Lock()
	status, here := l.early[event]
	delete(l.early, event)
	again := l.expected[event]
	if !here {
		l.expected[event] = true
	}
	l.mu.Unlock()
	if again {
		return fmt.Errorf("%w: event %d is expected already", clwire.ErrRecord, event)
	}
	if here {
		l.o.Worker.Done(event, status)
	}
	return nil
}

// Tell says how an event ended here. It never waits.
func (l *Link) Tell(event uint64, status int32) {
	l.send(clwire.PeerWord{Kind: clwire.PeerDone, Status: min(status, 0), Number: event})
}

// Ready says that the bytes of a push may come. It never waits.
func (l *Link) Ready(op uint64) { l.send(clwire.PeerWord{Kind: clwire.PeerReady, Number: op}) }

// Fail says that (the rest of) the bytes of a push will not come; status is negative. It never waits.
func (l *Link) Fail(op uint64, status int32) {
	l.send(clwire.PeerWord{Kind: clwire.PeerFailed, Status: min(status, -1), Number: op})
}

// Offer has start called, on a goroutine of its own, once the other side is ready for a push; never after the link's end.
func (l *Link) Offer(op uint64, start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.why != nil:
	case l.ready[op]:
		delete(l.ready, op)
		l.work.Go(start)
	default:
		l.offered[op] = start
	}
}

func (l *Link) send(w clwire.PeerWord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	l.out = w.Append(l.out)
	l.outgoing.Signal()
}

func (l *Link) sendWords() {
	var spare []byte
	for {
		l.mu.Lock()
		for len(l.out) == 0 && l.why == nil {
			l.outgoing.Wait()
		}
		if l.why != nil {
			l.mu.Unlock()
			return
		}
		out := l.out
		l.out = spare[:0]
		l.mu.Unlock()
		if err := l.lanes[0].Write(out); err != nil {
			l.End(err)
			return
		}
		spare = out
	}
}

func (l *Link) readWords() error {
	var raw [clwire.PeerWordBytes]byte
	for {
		if err := l.lanes[0].Read(raw[:]); err != nil {
			return err
		}
		var w clwire.PeerWord
		err := w.Decode(raw[:])
		if err == nil {
			err = l.heed(w)
		}
		if err != nil {
			return err
		}
	}
}

// heed does what a word asks.
func (l *Link) heed(w clwire.PeerWord) error {
	switch w.Kind {
	case clwire.PeerDone:
		return l.heedDone(w)
	case clwire.PeerFailed:
		return l.o.Worker.Failed(w.Number, w.Status)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	start := l.offered[w.Number]
	delete(l.offered, w.Number)
	switch {
	case l.why != nil:
	case start != nil:
		l.work.Go(start)
	case len(l.ready) >= clwire.MaxPeerEarly:
		return fmt.Errorf("%w: the other worker is ready for more than %d pushes that nobody offered", clwire.ErrRecord, clwire.MaxPeerEarly)
	default:
		l.ready[w.Number] = true
	}
	return nil
}

func (l *Link) heedDone(w clwire.PeerWord) error {
	l.mu.Lock()
	wanted := l.expected[w.Number]
	delete(l.expected, w.Number)
	_, twice := l.early[w.Number]
	full := len(l.early) >= clwire.MaxPeerEarly
	if !wanted && !full {
		l.early[w.Number] = w.Status
	}
	l.mu.Unlock()
	switch {
	case wanted:
		l.o.Worker.Done(w.Number, w.Status)
	case full || twice:
		return fmt.Errorf("%w: the other worker tells of event %d twice, or of more than %d that nobody expects", clwire.ErrRecord, w.Number, clwire.MaxPeerEarly)
	}
	return nil
}

func (l *Link) readChunks(lane *link.Lane) error {
	for {
		h, err := lane.Header()
		if err == nil {
			err = l.o.Worker.Chunk(lane, h)
		}
		if err != nil {
			return err
		}
	}
}

// End ends the link; the first reason counts. The worker hears of it from another goroutine.
func (l *Link) End(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	if why == nil {
		why = ErrClosed
	}
	l.why = why
	clear(l.offered)
	for _, lane := range l.lanes {
		if lane != nil {
			lane.Shutdown()
		}
	}
	for f := range l.shaking {
		_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR) // fails only when the other side is gone already
	}
	l.outgoing.Broadcast()
	go l.finish()
}

// finish runs once, and is joined by Close.
func (l *Link) finish() {
	l.work.Wait()
	for _, lane := range l.lanes {
		if lane != nil {
			lane.Close()
		}
	}
	l.o.Worker.Lost(l.why)
	close(l.over)
}

// Close ends the link and returns behind Lost.
func (l *Link) Close() {
	l.End(ErrClosed)
	<-l.over
}
