package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// maxReply bounds a reply that comes in several frames.
const maxReply = 256 << 20

// call is one request under way. Its fields belong to who delivers until done, then to the caller.
type call struct {
	kind wire.Type
	lazy bool     // its reply may wait for company
	turn uint64   // of a Writer: with which of its writes it went
	ask  struct { // requests of the hot path, kept here so that none is allocated
		get  wire.GetRequest
		seal wire.SealRequest
		push wire.StreamPushRequest
		pop  wire.StreamPopRequest
		make wire.CreateRequest
	}
	done      chan struct{} // capacity 1
	finished  bool          // guarded by Conn.mu
	gen       uint64        // the life of the connection that it belongs to; 0 before enqueue: any
	abandoned bool          // guarded by Conn.mu: nobody waits for it any more
	err       error
	payload   []byte // of replies that are not told below; a copy
	create    wire.CreateReply
	get       wire.GetReply // of StreamPop, too; Meta is a copy
	number    uint64        // of StreamPop
	view      *view         // of create and get: one reference, the caller's
	files     [ipc.MaxFDs]*os.File
	pushes    *pushes // of StreamPush: its buffer's
}

// pushes is what is known of a buffer's or an object's pushes whose contexts ended. Guarded by Conn.mu.
type pushes struct {
	open    int  // without an answer yet
	done    bool // one was carried out: the reference is the stream's
	aborted bool // the last answer decides whether the reference is to be given back
}

// left reports whether the buffer's reference is to be given back now. Conn.mu is held.
func (p *pushes) left() bool { return p.aborted && p.open == 0 && !p.done }

// calls are used again: a call a request would be half of what a get allocates.
var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newCall(kind wire.Type) *call {
	c := calls.Get().(*call)
	c.kind = kind
	return c
}

// recycle gives a finished call back; its payload must not be used any more.
func (k *call) recycle() {
	select {
	case <-k.done:
	default:
	}
	*k = call{done: k.done, payload: k.payload[:0]}
	if cap(k.payload) <= 64<<10 {
		calls.Put(k)
	}
}

// finish ends a call. Conn.mu is held.
func (k *call) finish(err error) {
	if err != nil {
		k.err = err
	}
	k.finished = true
	k.done <- struct{}{}
}

// roundTrip sends a request and waits for its reply. The caller recycles the call where err is nil. A ctx that has
// ended sends nothing; one that ends later gives its error at once, and the reply, when it comes, is undone.
func (c *Conn) roundTrip(ctx context.Context, kind wire.Type, p ipc.Payload) (*call, error) {
	if err := ended(ctx); err != nil {
		return nil, fmt.Errorf("%v: %w", kind, err)
	}
	return repeated(ctx, c, kind, func() (*call, error) { return c.roundTripIn(ctx, 0, kind, p) })
}

// repeated does a request, and does it again where its connection broke and that changes nothing.
func repeated[T any](ctx context.Context, c *Conn, kind wire.Type, do func() (T, error)) (T, error) {
	v, err := do()
	for range mostRepeats {
		if err == nil || !c.worthRepeating(ctx, kind, err) {
			break
		}
		v, err = do()
	}
	return v, err
}

// mostRepeats bounds how often a request is sent again whose connection broke: one that comes back can break at once.
const mostRepeats = 4

// ended is ctx's error, without its lock where it cannot end.
func ended(ctx context.Context) error {
	if ctx.Done() == nil {
		return nil
	}
	return ctx.Err()
}

// roundTripIn is roundTrip in one life of the connection, or with gen 0 in any, and never repeated.
func (c *Conn) roundTripIn(ctx context.Context, gen uint64, kind wire.Type, p ipc.Payload) (*call, error) {
	k := newCall(kind)
	k.gen = gen
	if err := c.send(ctx, k, p); err != nil {
		return nil, err
	}
	return c.result(ctx, k)
}

// result waits for a call that was sent.
func (c *Conn) result(ctx context.Context, k *call) (*call, error) {
	if err := c.await(ctx, k); err != nil {
		return nil, err
	}
	if k.err == nil {
		return k, nil
	}
	// The call is not recycled: where fail ended it, a reader may be filling it. The daemon gives up afterDeadline
	// after the context's deadline: its answer is here first where this process had no processor so long.
	if given := ended(ctx); given != nil && errors.Is(k.err, object.ErrTimeout) {
		return nil, c.unanswered(k, given)
	}
	return nil, k.err
}

// simple is roundTrip for requests whose reply is empty.
func (c *Conn) simple(ctx context.Context, kind wire.Type, p ipc.Payload) error {
	k, err := c.roundTrip(ctx, kind, p)
	if err == nil {
		k.recycle()
	}
	return err
}

// simpleIn is simple in one life of the connection.
func (c *Conn) simpleIn(ctx context.Context, gen uint64, kind wire.Type, p ipc.Payload) error {
	k, err := c.roundTripIn(ctx, gen, kind, p)
	if err == nil {
		k.recycle()
	}
	return err
}

// tell is simpleIn for a short request that gives something back: it reaches the daemon even where ctx has ended,
// behind what that has not read yet.
func (c *Conn) tell(ctx context.Context, gen uint64, kind wire.Type, p ipc.Payload) error {
	k := newCall(kind)
	k.gen = gen
	c.sendMu.Lock()
	err := c.writeUnlock(ctx, c.enqueue(k, p))
	if isContext(err) {
		return c.abandon(k, err)
	}
	if err == nil {
		_, err = c.result(ctx, k)
	}
	if err == nil {
		k.recycle()
	}
	return err
}

// send registers a call and writes its request, the waiting one-way messages before it in the same write. On a broken
// connection it first makes a new one, unless k belongs to that life of it.
func (c *Conn) send(ctx context.Context, k *call, p ipc.Payload) error {
	bound := k.gen != 0
	err := c.sendOnce(ctx, k, p)
	for range mostRepeats {
		if err == nil || bound || !errors.Is(err, ErrDisconnected) || c.dialer() == nil {
			break
		}
		// Whatever the request was: the daemon did not get the whole of it.
		if err := c.revive(ctx); err != nil {
			return err
		}
		k.reset()
		err = c.sendOnce(ctx, k, p)
	}
	return err
}

func (c *Conn) sendOnce(ctx context.Context, k *call, p ipc.Payload) error {
	if err := c.lockSend(ctx); err != nil {
		return fmt.Errorf("send a %v: %w", k.kind, err)
	}
	err := c.enqueue(k, p)
	if err = c.writeUnlock(ctx, err); isContext(err) {
		return c.abandon(k, err)
	}
	return err
}

// lockSend takes sendMu, once what was left of earlier requests is out: the daemon may not read. After an error, which
// is ctx's, it is not held, and nothing is to be sent.
func (c *Conn) lockSend(ctx context.Context) error {
	c.sendMu.Lock()
	for c.full {
		if err := c.awaitRoom(ctx); err != nil {
			c.sendMu.Unlock()
			return err
		}
	}
	return nil
}

// writeUnlock writes what was enqueued, unless err, which it gives back, says not to, and lets sendMu go. Where ctx
// ends while the daemon does not read, its error comes back; what was enqueued goes out all the same, when that reads
// again.
func (c *Conn) writeUnlock(ctx context.Context, err error) error {
	defer c.sendMu.Unlock()
	if err != nil {
		return err
	}
	err = c.write()
	for err == nil && c.full {
		if err = c.awaitRoom(ctx); err != nil {
			c.setFlush() // it sends the rest
		}
	}
	return err
}

// awaitRoom waits until the socket has room, and writes. sendMu is held, but not while it waits: nobody waits longer
// than the own ctx lets. Where nobody else reads it does: a daemon whose answers nobody takes reads nothing more.
func (c *Conn) awaitRoom(ctx context.Context) error {
	l := c.link
	c.sendMu.Unlock()
	err := c.awaitRoomOf(ctx, l)
	c.sendMu.Lock()
	if err != nil || !c.full || c.link != l {
		return err
	}
	return c.write()
}

// errLookAgain ends a wait for room after a while: who read may have stopped to.
var errLookAgain = errors.New("look again")

// awaitRoomOf waits until l may have room, for a while at most. No lock is held.
func (c *Conn) awaitRoomOf(ctx context.Context, l link) error {
	looked := false
	giveUp := func() error {
		if looked {
			return errLookAgain
		}
		looked = true
		return ended(ctx)
	}
	reads := false
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		if c.link != l {
			return nil
		}
		c.readWaiting(l)
		reads = true
	default:
	}
	if err := l.AwaitRoom(reads, giveUp); !errors.Is(err, errLookAgain) {
		return err
	}
	return nil
}

// readWaiting delivers what is here. The turn is held.
func (c *Conn) readWaiting(l link) {
	for {
		f, err := l.Receive(func() error { return errAllRead })
		if err == nil {
			err = c.deliver(&f)
		}
		if errors.Is(err, errAllRead) {
			return
		}
		if err != nil {
			c.fail(c.disconnected(err))
			return
		}
	}
}

// reset makes a call that failed before its request was out fit to be sent again: nobody else knows it any more.
func (k *call) reset() {
	select {
	case <-k.done:
	default:
	}
	k.finished, k.err, k.gen = false, nil, 0
}

// errOtherLife is the answer where something belongs to a connection that broke.
var errOtherLife = fmt.Errorf("%w: it was lost with its connection; there is a new connection, so start again",
	ErrDisconnected)

// enqueue registers a call and appends its request. sendMu is held.
func (c *Conn) enqueue(k *call, p ipc.Payload) error {
	c.next++
	c.mu.Lock()
	err := c.err
	if err == nil && k.gen != 0 && k.gen != c.gen {
		err = errOtherLife
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	k.gen = c.gen
	c.pending[c.next] = k
	kind, flags := k.kind, uint16(0) // under mu: a spare buffer's call may have another user, who recycles it
	if k.lazy {
		flags = ipc.FlagLazy
	}
	c.mu.Unlock()
	c.out = ipc.AppendFrame(c.out, kind, flags, c.next, p)
	return nil
}

// write sends what the socket has room for; full says that there is more. sendMu is held.
func (c *Conn) write() error {
	n, full, err := c.link.SendNow(c.out[c.sent:])
	if c.sent, c.full = c.sent+n, full; !full || err != nil {
		c.out, c.sent, c.full = c.out[:0], 0, false
	}
	if err != nil {
		if why := c.lastWords(); why != nil {
			err = why
		}
		err = c.disconnected(err)
		c.fail(err)
	}
	return err
}

// errAllRead ends the reading of last words.
var errAllRead = errors.New("nothing more waits to be read")

// lastWords gives the reason that the daemon sent before it hung up, as it does where it lets nobody in: who writes
// first meets the end of the connection before that is read. nil: it sent none, or somebody reads who meets it. sendMu
// is held.
func (c *Conn) lastWords() error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	default:
		return nil
	}
	for {
		f, err := c.link.Receive(func() error { return errAllRead })
		if err != nil {
			return nil
		}
		f.CloseFDs()
		var m wire.ErrorReply
		if f.Type == wire.Error && f.Request == 0 && m.Decode(f.Payload) == nil {
			return &EndedError{c.socket, object.FromCode(m.Code, m.Text)}
		}
	}
}

// EndedError says that the daemon ended the connection, or let nobody in, and why. It is ErrDisconnected.
type EndedError struct {
	At  string // its socket, or server
	Why error
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("%v: the daemon at %s ended the connection: %v", ErrDisconnected, e.At, e.Why)
}

// Unwrap gives ErrDisconnected and the reason.
func (e *EndedError) Unwrap() []error { return []error{ErrDisconnected, e.Why} }

// post queues a one-way message: it goes with the next request, or by itself after flushAfter.
// It is dropped where the connection is broken, or in another life than gen: the daemon gave everything back already.
func (c *Conn) post(gen uint64, kind wire.Type, p ipc.Payload) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.lives(gen) {
		c.postLocked(kind, p)
	}
}

// postNow is post that sends at once.
func (c *Conn) postNow(gen uint64, kind wire.Type, p ipc.Payload) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.lives(gen) {
		c.out = appendOneWay(c.out, kind, p)
		c.write() // its error is the next call's
	}
}

// postRelease is post of a Release, without an allocation.
func (c *Conn) postRelease(gen uint64, id object.ID) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.lives(gen) {
		c.release.ID = id
		c.postLocked(wire.Release, &c.release)
	}
}

// postAck has the daemon know that a popped frame is here: in another life it is another reader's. A release does not
// say so by itself: this connection may hold the object otherwise, too. A daemon of version 3 is not told the stream,
// and may take a frame of another one for this, where that has the object under the same number.
func (c *Conn) postAck(gen, stream uint64, id object.ID, number uint64) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	switch {
	case c.speaks < wire.VersionAcks || !c.lives(gen):
	case c.speaks < wire.VersionFrameAcks:
		c.postLocked(wire.StreamAck, &wire.StreamAckRequest{ID: id, Number: number})
	default:
		c.ack = wire.FrameAckRequest{Stream: stream, ID: id, Number: number}
		c.postLocked(wire.FrameAck, &c.ack)
	}
}

// releaseObject takes an Object off the list and gives its reference back, if the daemon of now knows it.
func (c *Conn) releaseObject(o *Object) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.unlistAlive(o) {
		c.release.ID = o.id
		c.postLocked(wire.Release, &c.release)
	}
}

func (c *Conn) postLocked(kind wire.Type, p ipc.Payload) {
	c.out = appendOneWay(c.out, kind, p)
	if len(c.out) >= flushBytes && !c.full {
		c.write() // its error is the next call's
		return
	}
	c.setFlush()
}

func appendOneWay(b []byte, kind wire.Type, p ipc.Payload) []byte {
	return ipc.AppendFrame(b, kind, 0, 0, p)
}

// lives reports whether the connection lives, and is in its life gen where that is not 0.
func (c *Conn) lives(gen uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && (gen == 0 || gen == c.gen)
}

// setFlush arms the flushing timer. sendMu is held.
func (c *Conn) setFlush() {
	if c.flushSet {
		return
	}
	c.flushSet = true
	c.background.Add(1)
	if c.flush == nil {
		c.flush = time.AfterFunc(flushAfter, c.flushTimer)
	} else if c.flush.Reset(flushAfter) {
		c.background.Done() // it was set still: flushOut came first
	}
}

func (c *Conn) flushTimer() {
	defer c.background.Done()
	c.flushOut()
	c.sendMu.Lock()
	for c.full && c.awaitRoom(context.Background()) == nil { // an error is the next call's
	}
	c.sendMu.Unlock()
	c.dropStaleSpare()
}

func (c *Conn) flushOut() {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.flushSet = false
	if c.lives(0) && (len(c.out) > 0 || c.full) {
		c.write() // its error is the next call's
	}
}

// await waits until k is finished. Where ctx ends first, k is left to whoever reads next.
func (c *Conn) await(ctx context.Context, k *call) error {
	if err := c.awaitFinish(ctx, k); err != nil {
		return c.abandon(k, err)
	}
	return nil
}

// awaitFinish waits until k is finished, or ctx ends: reading for everybody when the turn is free, asleep otherwise.
func (c *Conn) awaitFinish(ctx context.Context, k *call) error {
	var giveUp func() error
	if ctx.Done() != nil {
		giveUp = ctx.Err
	}
	select {
	case c.turn <- struct{}{}: // the usual case, without the price of the general select
	default:
		select {
		case <-k.done:
			return nil
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := c.readUntil(giveUp, k)
	<-c.turn
	return err
}

// awaitWithin is awaitFinish that waits for so long at most: then it answers context.DeadlineExceeded. A context of its
// own would cost more than an answer that is near.
func (c *Conn) awaitWithin(ctx context.Context, wait time.Duration, k *call) error {
	deadline := time.Now().Add(wait)
	select {
	case c.turn <- struct{}{}:
	default:
		limited, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		return c.awaitFinish(limited, k)
	}
	err := c.readUntil(func() error {
		if err := ctx.Err(); err != nil || time.Now().Before(deadline) {
			return err
		}
		return context.DeadlineExceeded
	}, k)
	<-c.turn
	return err
}

// readUntil delivers frames until k is finished or giveUp, which may be nil, answers an error, which comes back. The
// turn is held.
func (c *Conn) readUntil(giveUp func() error, k *call) error {
	for !c.isFinished(k) {
		f, err := c.link.Receive(giveUp)
		if err == nil {
			err = c.deliver(&f)
		}
		if err != nil && giveUp != nil && errors.Is(err, giveUp()) {
			return err
		}
		if err != nil {
			c.fail(c.disconnected(err))
		}
	}
	return nil
}

func (c *Conn) isFinished(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.finished
}

// unanswered says what was waited for when a context ended.
func (c *Conn) unanswered(k *call, given error) error {
	return fmt.Errorf("waiting for the daemon at %s to answer a %v: %w", c.socket, k.kind, given)
}

// abandon leaves a call to whoever reads next, and undoes it where its reply is here already. It gives err, which may
// be nil, with what was waited for.
func (c *Conn) abandon(k *call, err error) error {
	if err != nil {
		err = c.unanswered(k, err)
	}
	c.mu.Lock()
	finished := k.finished
	k.abandoned = true
	if k.pushes != nil {
		k.pushes.open++
	}
	if !finished {
		c.abandoned++
		c.sweepPause = sweepAfter
		c.setSweep() // somebody is to read the reply
	}
	c.mu.Unlock()
	if finished {
		c.undo(k)
	}
	return err
}

// undo gives back what an abandoned call brought. What it altered stays: a seal, a delete, a name.
func (c *Conn) undo(k *call) {
	switch {
	case k.pushes != nil:
		c.pushAnswered(k)
	case k.err != nil:
	case k.kind == wire.Get:
		c.postRelease(k.gen, k.get.ID)
	case k.kind == wire.Create || k.kind == wire.CreateWith:
		c.postRelease(k.gen, k.create.ID) // of an unsealed object: an abort
	case k.kind == wire.Fill:
		c.post(k.gen, wire.Filled, &wire.IDMessage{ID: k.get.ID})
	case k.kind == wire.StreamPop:
		c.post(k.gen, wire.StreamUnpop,
			&wire.StreamUnpopRequest{Stream: k.ask.pop.Stream, ID: k.get.ID, Number: k.number})
	default:
		c.undoReply(k)
	}
	c.discard(k)
}

// pushAnswered notes what came of a push that nobody waits for.
func (c *Conn) pushAnswered(k *call) {
	c.mu.Lock()
	p := k.pushes
	p.open--
	p.done = p.done || k.err == nil
	left := p.left()
	c.mu.Unlock()
	if left {
		c.postRelease(k.gen, k.ask.push.ID)
	}
}

// undoReply is undo for a call whose reply is not decoded yet. One that makes no sense brought nothing.
func (c *Conn) undoReply(k *call) {
	switch k.kind {
	case wire.Upload, wire.Compose, wire.PublishSegment:
		undoWith(k, new(wire.IDMessage), func(m *wire.IDMessage) { c.postRelease(k.gen, m.ID) })
	case wire.Hold:
		undoWith(k, new(wire.HoldReply), func(m *wire.HoldReply) { c.postRelease(k.gen, m.ID) })
	case wire.CreateDevice, wire.GetDevice:
		undoWith(k, new(wire.DeviceReply), func(m *wire.DeviceReply) { c.postRelease(k.gen, m.ID) })
	case wire.IPCHandle:
		undoWith(k, new(wire.IPCReply), func(m *wire.IPCReply) {
			c.post(k.gen, wire.CloseIPC, &wire.Number{N: m.Number})
		})
	case wire.AttachObject:
		undoWith(k, new(wire.AttachReply), func(m *wire.AttachReply) { c.postRelease(k.gen, m.ID) })
	case wire.AllocSegment:
		undoWith(k, new(wire.AllocSegmentReply), func(m *wire.AllocSegmentReply) {
			c.post(k.gen, wire.FreeSegment, &wire.Number{N: m.Segment})
		})
	case wire.OpenWorker:
		undoWith(k, new(wire.OpenWorkerReply), func(m *wire.OpenWorkerReply) {
			c.post(k.gen, wire.CloseWorker, &wire.Number{N: m.Worker})
		})
	case wire.OpenRemoteWorker:
		undoWith(k, new(wire.OpenRemoteWorkerReply), func(m *wire.OpenRemoteWorkerReply) {
			c.post(k.gen, wire.CloseWorker, &wire.Number{N: m.Worker})
		})
	case wire.StreamOpen:
		undoWith(k, new(wire.StreamOpenReply), func(m *wire.StreamOpenReply) {
			c.post(k.gen, wire.StreamClose, &wire.Number{N: m.Stream})
		})
	}
}

func undoWith[M interface{ Decode([]byte) error }](k *call, m M, back func(M)) {
	if m.Decode(k.payload) == nil {
		back(m)
	}
}

// discard gives back what a reply brought that nobody will take.
func (c *Conn) discard(k *call) {
	k.closeFiles()
	c.unref(k.view)
}

// deliver gives a frame to its call. The turn is held; an error ends the connection.
func (c *Conn) deliver(f *ipc.Frame) error {
	defer f.CloseFDs() // those that nothing took
	c.mu.Lock()
	k := c.pending[f.Request]
	c.mu.Unlock()
	switch {
	case f.Type == wire.Error:
		return c.deliverError(k, f)
	case f.Type == wire.Working && c.remote:
		return nil // that something came is all it says
	case k == nil:
		return fmt.Errorf("%w: %v to request %d, which is not outstanding", object.ErrProtocol, f.Type, f.Request)
	case f.Flags&ipc.FlagLazy != 0:
		return fmt.Errorf("%w: a reply with flags 0x%x", object.ErrProtocol, f.Flags)
	case f.Type != k.kind|wire.ReplyBit:
		return fmt.Errorf("%w: %v to a %v", object.ErrProtocol, f.Type, k.kind)
	}
	if err := c.fill(k, f); err != nil {
		return err
	}
	if f.Flags&ipc.FlagMore == 0 {
		c.finish(k, f.Request, nil)
	}
	return nil
}

func (c *Conn) deliverError(k *call, f *ipc.Frame) error {
	var m wire.ErrorReply
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	err := object.FromCode(m.Code, m.Text)
	if err == nil {
		return fmt.Errorf("%w: an error with code 0", object.ErrProtocol)
	}
	if k == nil {
		return &EndedError{c.socket, err}
	}
	c.finish(k, f.Request, err)
	return nil
}

func (c *Conn) finish(k *call, request uint64, err error) {
	c.mu.Lock()
	if k.finished { // fail was here
		c.mu.Unlock()
		c.discard(k)
		return
	}
	delete(c.pending, request)
	if !k.abandoned {
		k.finish(err) // from here on it is its caller's
		c.mu.Unlock()
		return
	}
	c.abandoned--
	k.err = err
	c.mu.Unlock()
	c.undo(k)
	c.mu.Lock()
	k.finish(nil) // Reader.Close waits until it is undone
	c.mu.Unlock()
}

// isOpen reports whether the daemon has yet to answer a call that nobody waits for any more.
func (c *Conn) isOpen(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.abandoned && !k.finished
}

// fill takes a reply frame's contents over. Segments are adopted here, in the order in which the daemon named them, for
// only the first mention brings the descriptor.
func (c *Conn) fill(k *call, f *ipc.Frame) (err error) {
	switch k.kind {
	case wire.Create, wire.CreateWith:
		if err = k.create.Decode(f.Payload); err == nil {
			k.view, err = c.adopt(f, k.create.Ref, true)
		}
	case wire.Fill:
		if err = k.get.Decode(f.Payload); err == nil {
			k.get.Meta = append([]byte(nil), k.get.Meta...)
			k.view, err = c.adopt(f, k.get.Ref, true)
		}
	case wire.Get:
		if err = k.get.Decode(f.Payload); err == nil {
			k.get.Meta = append([]byte(nil), k.get.Meta...)
			k.view, err = c.adopt(f, k.get.Ref, false)
		}
	case wire.StreamPop:
		var m wire.StreamPopReply
		if err = m.Decode(f.Payload); err == nil {
			k.number, k.get = m.Number, m.GetReply
			k.get.Meta = append([]byte(nil), k.get.Meta...)
			k.view, err = c.adopt(f, k.get.Ref, false)
		}
	default:
		if len(k.payload)+len(f.Payload) > maxReply {
			return fmt.Errorf("%w: a reply of more than %d bytes", object.ErrProtocol, maxReply)
		}
		k.payload = append(k.payload, f.Payload...)
		for i := range f.NumFDs {
			k.files[i] = takeFile(f, i)
		}
	}
	return err
}

// takeFile takes a frame's descriptor over.
func takeFile(f *ipc.Frame, i int) *os.File {
	file := os.NewFile(uintptr(f.FDs[i]), "tendril")
	f.FDs[i] = -1
	return file
}

// query is a round trip whose reply is JSON.
func (c *Conn) query(ctx context.Context, kind wire.Type, p ipc.Payload, into any) error {
	k, err := c.roundTrip(ctx, kind, p)
	if err != nil {
		return err
	}
	defer k.recycle()
	if err := json.Unmarshal(k.payload, into); err != nil {
		return fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, kind, err)
	}
	return nil
}

func (k *call) closeFiles() {
	for i, f := range k.files {
		if f != nil {
			f.Close()
			k.files[i] = nil
		}
	}
}
