package session

import (
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// A write's chunks are sent by the lanes' senders, one goroutine a lane, which take turns at the writes that may send; the
// caller of a blocking write sends too. A write whose turn has not come and whose allowance is used up is nobody's until
// HostReady: nothing waits for it, so that any number of writes can be under way and none is woken for another's sake.

// send sends a write's bytes, or sees that they will be sent.
func (o *bulkOp) send(blocking bool, spin time.Duration) {
	switch {
	case o.inline && o.takeInline():
		o.sendInline()
	case !blocking:
		o.share()
	default:
		o.sendHere(spin)
	}
}

// takeInline books a small write as sent ahead; false: the allowance is used up.
func (o *bulkOp) takeInline() bool {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if !o.mayGoLocked(o.host.size) {
		return false
	}
	o.at = o.host.size
	return true
}

func (o *bulkOp) sendInline() {
	data := make([]byte, 0, o.host.size)
	o.host.runs(0, o.host.size, func(part []byte) { data = append(data, part...) })
	_ = o.b.w.send(clwire.NewBulkBytes(o.id, 0, data), 0, 0) // a dead worker has failed the operation already
}

// share lets the lanes' senders have the write.
func (o *bulkOp) share() {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.shared = true
	o.b.offerLocked(o)
}

// sendHere sends what the lanes' senders do not, on the caller's thread.
func (o *bulkOp) sendHere(spin time.Duration) {
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
		case !o.b.w.reader.wait(&o.turn, spin):
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
func (b *bulk) next() (o *bulkOp, at, n uint64) {
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
func (b *bulk) offerLocked(o *bulkOp) {
	if o.shared && !o.queued && !b.closed && o.at < o.host.size {
		o.queued = true
		b.runnable = append(b.runnable, o)
		b.grown.Signal()
	}
}

// hasTurn notes that HostReady came, or will never.
func (b *bulk) hasTurn(o *bulkOp) {
	b.mu.Lock()
	o.turn.done.Store(true)
	b.offerLocked(o)
	b.mu.Unlock()
}

// nextChunk gives the next chunk; n 0: none may go now; over: none is left.
func (o *bulkOp) nextChunk() (at, n uint64, over bool) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	at, n = o.takeLocked()
	return at, n, n == 0 && (o.at == o.host.size || o.b.closed)
}

func (o *bulkOp) takeLocked() (at, n uint64) {
	if o.at == o.host.size {
		return 0, 0
	}
	if n = o.host.piece(o.at); !o.mayGoLocked(n) {
		return 0, 0
	}
	at = o.at
	o.at += n
	return at, n
}

// mayGoLocked says whether so many bytes may travel: with the write's turn, or within what all writes may send ahead of theirs.
func (o *bulkOp) mayGoLocked(n uint64) bool {
	if o.turn.done.Load() {
		return true
	}
	if o.held || o.b.ahead+n > clwire.StagingBytes {
		return false
	}
	o.b.ahead += n
	o.ahead += n
	return true
}

// sendChunk reports whether the lane still stands.
func (o *bulkOp) sendChunk(l *link.Lane, lane int, at, n uint64, scratch *[]byte) bool {
	began := o.b.w.d.began()
	wire, err := o.sendOn(l, clwire.LaneHeader{Op: o.id, Offset: at, Length: uint32(n)}, scratch)
	o.b.w.traceChunk(began, lane, o.id, uint32(n), wire, 0)
	if err != nil {
		o.b.w.die(err)
	}
	return err == nil
}

func (o *bulkOp) sendOn(l *link.Lane, h clwire.LaneHeader, scratch *[]byte) (wire uint32, err error) {
	o.memory.RLock()
	defer o.memory.RUnlock()
	if o.gone {
		h.Skipped = true
		return l.Ship(h, nil, nil)
	}
	if !o.host.rect {
		return l.Ship(h, o.host.ptr.bytes(h.Offset, uint64(h.Length)), o)
	}
	b := (*scratch)[:0]
	o.host.runs(h.Offset, uint64(h.Length), func(part []byte) { b = append(b, part...) })
	*scratch = b
	return l.Ship(h, b, o)
}

// Again implements link.Source: a write's bytes are the program's, where they were, until the worker says that it has them.
func (o *bulkOp) Again(h clwire.LaneHeader, send func(payload []byte) error) error {
	if !o.memory.TryRLock() { // somebody is about to take the memory away, and waits for a sender: perhaps for this one
		return send(nil)
	}
	defer o.memory.RUnlock()
	if o.gone || o.ended.Load() {
		return send(nil)
	}
	b := make([]byte, 0, h.Length)
	o.host.runs(h.Offset, uint64(h.Length), func(part []byte) { b = append(b, part...) })
	return send(b)
}
