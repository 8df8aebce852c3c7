package conn

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// A write's chunks are sent by the lanes' senders, one goroutine a lane, which take turns at the writes that may
// send; the caller of a blocking write sends too. A write whose turn has not come and whose allowance is used up is
// nobody's until HostReady: nothing waits for it, so that any number of writes can be under way and none is woken for
// another's sake.

// Send sends a write's bytes, or sees that they will be sent. blocking: by the caller's thread, too.
func (o *BulkOp) Send(blocking bool) {
	switch {
	case o.Inline && o.takeInline():
		o.sendInline()
	case !blocking:
		o.share()
	default:
		o.sendHere()
	}
}

// takeInline books a small write as sent ahead; false: the allowance is used up.
func (o *BulkOp) takeInline() bool {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if !o.mayGoLocked(o.Size) {
		return false
	}
	o.at = o.Size
	return true
}

func (o *BulkOp) sendInline() {
	data := o.owner.Append(make([]byte, 0, o.Size), 0, o.Size)
	_ = o.b.c.Send(clwire.NewBulkBytes(o.ID, 0, data), 0, 0) // a dead worker has failed the operation already
}

// share lets the lanes' senders have the write.
func (o *BulkOp) share() {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.shared = true
	o.b.offerLocked(o)
}

// sendHere sends what the lanes' senders do not, on the caller's thread.
func (o *BulkOp) sendHere() {
	l, lanes := o.b.lane(0)
	if lanes > 1 {
		o.share()
	}
	var scratch []byte
	for l != nil {
		at, n, over := o.nextChunk()
		switch {
		case over:
			return
		case n > 0:
			if !o.sendChunk(l, 0, at, n, &scratch) {
				return
			}
		case !o.b.c.Wait(&o.turn):
			return
		}
	}
}

// sender sends by one lane, of a number, until the end.
func (b *bulk) sender(l *link.Lane, lane int) {
	var scratch []byte
	for {
		o, at, n := b.next()
		if o == nil || !o.sendChunk(l, lane, at, n, &scratch) {
			return
		}
	}
}

// next waits for a chunk to send; nil when the worker is gone.
func (b *bulk) next() (o *BulkOp, at, n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for len(b.runnable) == 0 && !b.closed {
			b.grown.Wait()
		}
		if b.closed {
			return nil, 0, 0
		}
		o, b.runnable = b.runnable[0], b.runnable[1:]
		o.queued = false
		if at, n = o.takeLocked(); n > 0 {
			b.offerLocked(o)
			return o, at, n
		}
	}
}

// offerLocked makes a write runnable, behind the others, if there is something left of it for the lanes' senders.
func (b *bulk) offerLocked(o *BulkOp) {
	if o.shared && !o.queued && !b.closed && o.at < o.Size {
		o.queued = true
		b.runnable = append(b.runnable, o)
		b.grown.Signal()
	}
}

// hasTurn notes that HostReady came, or will never.
func (b *bulk) hasTurn(o *BulkOp) {
	b.mu.Lock()
	o.turn.Complete()
	b.offerLocked(o)
	b.mu.Unlock()
}

// nextChunk gives the next chunk; n 0: none may go now; over: none is left.
func (o *BulkOp) nextChunk() (at, n uint64, over bool) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	at, n = o.takeLocked()
	return at, n, n == 0 && (o.at == o.Size || o.b.closed)
}

func (o *BulkOp) takeLocked() (at, n uint64) {
	if o.at == o.Size {
		return 0, 0
	}
	if n = o.owner.Chunk(o.at); !o.mayGoLocked(n) {
		return 0, 0
	}
	at = o.at
	o.at += n
	return at, n
}

// mayGoLocked says whether so many bytes may travel: with the write's turn, or within what all writes may send ahead
// of theirs.
func (o *BulkOp) mayGoLocked(n uint64) bool {
	if o.turn.Done() {
		return true
	}
	if o.Held || o.b.ahead+n > clwire.StagingBytes {
		return false
	}
	o.b.ahead += n
	o.ahead += n
	return true
}

// sendChunk reports whether the lane still stands.
func (o *BulkOp) sendChunk(l *link.Lane, lane int, at, n uint64, scratch *[]byte) bool {
	began := o.b.c.opt.Tracer.Began()
	wire, err := o.sendOn(l, clwire.LaneHeader{Op: o.ID, Offset: at, Length: uint32(n)}, scratch)
	o.b.c.traceChunk(began, lane, o.ID, uint32(n), wire, 0)
	if err != nil {
		o.b.c.die(err)
	}
	return err == nil
}

func (o *BulkOp) sendOn(l *link.Lane, h clwire.LaneHeader, scratch *[]byte) (wire uint32, err error) {
	o.memory.RLock()
	defer o.memory.RUnlock()
	if o.gone {
		h.Skipped = true
		return l.Ship(h, nil, nil)
	}
	if o.OnePiece {
		return l.Ship(h, o.owner.Bytes(h.Offset, uint64(h.Length)), o)
	}
	*scratch = o.owner.Append((*scratch)[:0], h.Offset, uint64(h.Length))
	return l.Ship(h, *scratch, o)
}

// Again implements link.Source: a write's bytes are the program's, where they were, until the worker says that it has
// them.
func (o *BulkOp) Again(h clwire.LaneHeader, send func(payload []byte) error) error {
	if !o.memory.TryRLock() { // somebody is about to take the memory away, and waits for a sender: perhaps for this one
		return send(nil)
	}
	defer o.memory.RUnlock()
	if o.gone || o.ended.Load() {
		return send(nil)
	}
	return send(o.owner.Append(make([]byte, 0, h.Length), h.Offset, uint64(h.Length)))
}
