// Package peer is a link between the workers of one program, on one node or two: ends of events and announced bytes go
// from worker to worker without passing the program.
//
// Lane 0 of a link carries records: words (clwire.PeerWord) and the bytes of small pushes, sent by whoever learns that
// they are due and without waiting; the others carry chunks of pushes. A push has two halves that their workers hear of
// from the program: who has the bytes offers them once nothing before them is under way, who takes them says Ready once
// nothing writes over them any more; only then do they flow, so that nothing is ever kept aside for a push. A link that
// breaks stays broken: its worker is told once, after its last goroutine has ended, and the program finds another way,
// or makes another link.
//
// Trust: the other worker runs tenant code, and so may say anything. Every length and number is bounded; a word about
// something that this side's program has not told of is kept, up to a bound, for the program's records may come later.
//
// Goroutines, all joined by Close: a handshake each connection, a reader each lane; the one of lane 0 looks after the
// worker's commands while nothing comes (Worker.Wait), so that what a record frees, and what that brings about, costs
// no other thread a wake-up. Locks: Link.mu, then the stream's own; the Worker is called with it not held.
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
	// Length says that a push is over with its first so many bytes.
	Length(op, bytes uint64) error
	// Bytes takes a piece of a small push; data is the link's after the call.
	Bytes(op, offset uint64, data []byte) error
	// Wait is called by one goroutine whenever no record is there. It returns when more holds or may hold; sleep waits
	// for that.
	Wait(more func() bool, sleep func() error) error
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

const (
	maxHandshakes = 16 // connections that are at TLS at a time
	maxSoon       = 64 // words that wait for company
	maxLooks      = 32 // of the reader, for what comes next, before they go alone
)

// lane is a connection that has shaken hands.
type lane interface {
	Shutdown()
	Close() error
}

// Link is one end of a link. Its methods may be called concurrently and never wait, but for Close.
type Link struct {
	o Options // immutable

	mu       sync.Mutex
	lanes    []lane // by index, the first a *link.Stream; nil: not there yet
	words    *link.Stream
	soon     []clwire.Message // words that are in no hurry: sent before the next record, or when the reader sleeps
	payload  []*link.Lane
	awake    bool // the reader is
	missing  int  // of lanes
	shaking  map[*os.File]struct{}
	why      error             // not nil: it has ended, or is about to
	out      []clwire.Message  // before all lanes were there
	expected map[uint64]bool   // events that the other side will tell of
	early    map[uint64]int32  // ends of events that were not expected yet
	ready    map[uint64]bool   // pushes that the other side is ready for and this side has not offered
	offered  map[uint64]func() // pushes that wait for that

	work sync.WaitGroup // readers, handshakes, what Go was given
	over chan struct{}  // closed behind Lost
}

// New makes a link without connections: see Take.
func New(o Options) *Link {
	return &Link{o: o, lanes: make([]lane, o.Lanes), missing: o.Lanes, over: make(chan struct{}),
		shaking:  map[*os.File]struct{}{},
		expected: map[uint64]bool{}, early: map[uint64]int32{}, ready: map[uint64]bool{}, offered: map[uint64]func(){}}
}

// Take makes a connected socket a lane of the link. It owns f. A connection that does not come through its handshake
// changes nothing on the side that answers: somebody else may have shown the ticket. The side that dialed knows whom,
// and ends the link.
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
		came, err := l.shake(index, f)
		l.shaken(index, f, came, err)
	})
}

func (l *Link) shake(index int, f *os.File) (lane, error) {
	o := link.Options{TLS: l.o.Config, Dials: !l.o.Answers}
	if index == 0 {
		return link.OpenStream(link.Worker, f, o)
	}
	o.Compression = l.o.Compression
	return link.OpenLane(link.Worker, f, o)
}

// shaken books a handshake's end.
func (l *Link) shaken(index int, f *os.File, came lane, err error) {
	l.mu.Lock()
	delete(l.shaking, f)
	if err != nil || l.why != nil || l.lanes[index] != nil {
		l.mu.Unlock()
		if err == nil {
			came.Close()
		} else if !l.o.Answers {
			l.End(fmt.Errorf("connection %d: %w", index, err))
		}
		return
	}
	l.lanes[index] = came
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
	l.words = l.lanes[0].(*link.Stream)
	for _, m := range l.out {
		l.sendLocked(m)
	}
	l.out = nil
	l.work.Go(func() { l.End(l.readWords()) })
	for _, x := range l.lanes[1:] {
		chunks := x.(*link.Lane)
		l.payload = append(l.payload, chunks)
		l.work.Go(func() { link.GiveWay(func() { l.End(l.readChunks(chunks)) }) })
	}
}

// Payload gives the lanes for chunks; nil before Up and after the end.
func (l *Link) Payload() []*link.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing > 0 || l.why != nil {
		return nil
	}
	return l.payload
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

// Ready says that the bytes of a push may come. It never waits. What a record frees here is mostly followed by a record
// to the other side: such a word goes with it.
func (l *Link) Ready(op uint64) {
	w := &clwire.PeerWord{Kind: clwire.PeerReady, Number: op}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.why != nil:
	case l.words == nil:
		l.out = append(l.out, w)
	case l.awake && len(l.soon) < maxSoon:
		l.soon = append(l.soon, w)
	default:
		l.sendLocked(w)
	}
}

// Fail says that (the rest of) the bytes of a push will not come; status is negative. It never waits.
func (l *Link) Fail(op uint64, status int32) {
	l.send(clwire.PeerWord{Kind: clwire.PeerFailed, Status: min(status, -1), Number: op})
}

// Bytes sends a piece of a small push that Offer's start was called for. It never waits; data is the caller's after the
// call.
func (l *Link) Bytes(op, offset uint64, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == nil {
		l.sendLocked(clwire.NewPeerBytes(op, offset, data))
	}
}

// Length says, before any of its bytes, that a push is over with its first so many. It never waits.
func (l *Link) Length(op, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == nil {
		l.sendLocked(&clwire.BulkLength{Op: op, Bytes: bytes})
	}
}

// Offer has start called once the other side is ready for a push, before it returns or by the goroutine that hears of
// that. start must not wait; it may be called while the link ends, and is not called behind that.
func (l *Link) Offer(op uint64, start func()) {
	l.mu.Lock()
	now := l.why == nil && l.ready[op]
	delete(l.ready, op)
	if l.why == nil && !now {
		l.offered[op] = start
	}
	l.mu.Unlock()
	if now {
		start()
	}
}

// Go runs f, which may wait for the link, on a goroutine that the link's end waits for. It reports false, and does
// nothing, behind that end.
func (l *Link) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return false
	}
	l.work.Go(f)
	return true
}

func (l *Link) send(w clwire.PeerWord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.why != nil:
	case l.words == nil:
		l.out = append(l.out, &w)
	default:
		l.sendLocked(&w)
	}
}

// sendLocked sends a record at once, as far as the kernel takes it; the stream keeps the rest, up to a bound.
func (l *Link) sendLocked(m clwire.Message) {
	for _, w := range l.soon {
		_ = l.words.Send(w, clwire.FlagMore, 0) // an error sticks
	}
	l.soon = l.soon[:0]
	if err := l.words.Send(m, clwire.FlagUrgent, 0); err != nil {
		l.endLocked(err)
	}
}

// doze is called before the reader sleeps: whoever has a word from now on sends it.
func (l *Link) doze() {
	l.mu.Lock()
	l.awake = false
	l.mu.Unlock()
	l.sendSoon()
}

// sendSoon sends the words that went with nothing.
func (l *Link) sendSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.soon); n > 0 && l.why == nil {
		last := l.soon[n-1]
		l.soon = l.soon[:n-1]
		l.sendLocked(last)
	}
}

func (l *Link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = true
}

func (l *Link) readWords() error {
	looks := 0
	more := func() bool {
		if looks++; looks == maxLooks {
			l.sendSoon()
		}
		return !l.words.Empty()
	}
	for {
		h, payload, ok, err := l.words.Next()
		switch {
		case err != nil:
		case ok:
			err = l.record(h, payload)
		default:
			looks = 0
			err = l.o.Worker.Wait(more, l.sleep)
		}
		if err != nil {
			return err
		}
	}
}

// sleep waits for a record, or the end.
func (l *Link) sleep() error {
	l.doze()
	defer l.wake()
	if !l.words.Arm(clwire.ConsumerAsleep) {
		return nil
	}
	defer l.words.Awake()
	return l.words.Block(-1, -1)
}

// record does what the other side's record asks.
func (l *Link) record(h clwire.Header, payload []byte) error {
	switch h.Type {
	case clwire.TypePeerWord:
		var w clwire.PeerWord
		if err := w.Decode(payload); err != nil {
			return err
		}
		return l.heed(w)
	case clwire.TypeBulkLength:
		var m clwire.BulkLength
		if err := m.Decode(payload); err != nil {
			return err
		}
		return l.o.Worker.Length(m.Op, m.Bytes)
	case clwire.TypePeerBytes:
		var m clwire.PeerBytes
		if err := m.Decode(payload); err != nil {
			return err
		}
		return l.o.Worker.Bytes(m.Op, m.Offset, m.Data)
	}
	return fmt.Errorf("%w: %v between workers", clwire.ErrRecord, h.Type)
}

// heed does what a word asks.
func (l *Link) heed(w clwire.PeerWord) error {
	switch w.Kind {
	case clwire.PeerDone:
		return l.heedDone(w)
	case clwire.PeerFailed:
		return l.o.Worker.Failed(w.Number, w.Status)
	}
	return l.heedReady(w)
}

func (l *Link) heedReady(w clwire.PeerWord) error {
	l.mu.Lock()
	start := l.offered[w.Number]
	delete(l.offered, w.Number)
	full := start == nil && len(l.ready) >= clwire.MaxPeerEarly
	if start == nil && !full {
		l.ready[w.Number] = true
	}
	l.mu.Unlock()
	switch {
	case start != nil:
		start()
	case full:
		return fmt.Errorf("%w: the other worker is ready for more than %d pushes that nobody offered", clwire.ErrRecord,
			clwire.MaxPeerEarly)
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
		return fmt.Errorf("%w: the other worker tells of event %d twice, or of more than %d that nobody expects",
			clwire.ErrRecord, w.Number, clwire.MaxPeerEarly)
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
	l.endLocked(why)
}

func (l *Link) endLocked(why error) {
	if l.why != nil {
		return
	}
	if why == nil {
		why = ErrClosed
	}
	l.why = why
	clear(l.offered)
	for _, x := range l.lanes {
		if x != nil {
			x.Shutdown()
		}
	}
	for f := range l.shaking {
		_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR) // fails only when the other side is gone already
	}
	go l.finish()
}

// finish runs once, and is joined by Close.
func (l *Link) finish() {
	l.work.Wait()
	for _, x := range l.lanes {
		if x != nil {
			x.Close()
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
