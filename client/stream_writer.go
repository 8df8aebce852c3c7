package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// underWay is a push without an answer.
type underWay struct {
	k *call
	b *Buffer
}

// Buffer gives memory for the next frame, of size bytes: fill Bytes and Push it, or Abort it. While frames have one
// size the memory of the next ones is asked for together with each push, so that nobody waits for it.
func (w *Writer) Buffer(ctx context.Context, size uint64) (*Buffer, error) {
	if w.spareSize != size {
		w.dropSpares()
	}
	k, m := (*call)(nil), wire.CreateRequest{SizeBytes: size}
	var err error
	if len(w.spares) > 0 {
		k, w.spares = w.spares[0], w.spares[1:]
		k, err = w.result(ctx, k)
	} else {
		k, err = w.c.roundTripIn(ctx, w.gen, wire.Create, &m)
	}
	if isContext(err) {
		return nil, fmt.Errorf("waiting for memory for a frame of stream %q: %w", w.name, err)
	}
	if err != nil {
		w.dropSpares()
		if k, err = w.c.retryFull(ctx, err, wire.Create, &m); err != nil {
			return nil, err
		}
	}
	defer k.recycle()
	b := &Buffer{c: w.c, id: k.create.ID, view: k.view, off: k.create.Ref.Offset, size: size, gen: k.gen}
	w.c.beginFilling(b.view)
	if err := b.mapMemory(); err != nil {
		b.Abort(ctx)
		return nil, err
	}
	return b, nil
}

// Push seals a buffer and puts it into the stream with the metadata meta (opaque, ≤ object.MaxMetaBytes; nil is none).
// Where the stream is full it waits: not at all with wait 0, without end below 0. After an error the buffer is to be
// pushed again, unchanged, or aborted; an ended ctx leaves it open whether the push still happens. From here on a slice
// of it faults when it is written, as after a Seal, until the memory is another buffer's. Errors: object.ErrTimeout;
// ErrEnded, ErrAborted (the stream was removed); ErrDisconnected; ctx's.
//
// With StreamOptions.Ahead the buffer is the Writer's from here on, and the error may be that of an earlier one, which
// was dropped.
func (w *Writer) Push(ctx context.Context, b *Buffer, meta []byte, wait time.Duration) error {
	if b.ended {
		return fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, b.id)
	}
	b.unsure = true
	k := newCall(wire.StreamPush)
	k.gen, k.pushes = w.gen, &b.pushes
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: b.id, Seal: true, WaitMS: waitMS(within(ctx, wait)),
		Meta: meta}
	if err := w.send(ctx, k, b.size); err != nil {
		if w.ahead > 0 {
			b.Abort(ctx) // the first error is the one to tell
		}
		return err
	}
	b.shut() // while the daemon pushes; for good, as it is to be pushed again unchanged
	if w.ahead == 0 {
		return w.settle(ctx, underWay{k, b})
	}
	b.data = nil
	w.under = append(w.under, underWay{k, b})
	return w.drain(ctx, w.ahead)
}

// drain waits until at most so many pushes are without an answer.
func (w *Writer) drain(ctx context.Context, most int) (first error) {
	for len(w.under) > most {
		p := w.under[0]
		w.under = w.under[1:]
		if err := w.settle(ctx, p); err != nil {
			p.b.Abort(ctx) // the first error is the one to tell
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// Flush waits until every frame is in the stream, and tells the first error since the last Push.
func (w *Writer) Flush(ctx context.Context) error { return w.drain(ctx, 0) }

// settle waits for a push's answer.
func (w *Writer) settle(ctx context.Context, p underWay) error {
	if _, err := w.result(ctx, p.k); isContext(err) {
		return fmt.Errorf("waiting for room in stream %q: %w", w.name, err)
	} else if err != nil {
		return err
	}
	p.k.recycle()
	p.b.ended, p.b.data = true, nil
	if w.c.endFilling(p.b.view) {
		w.c.unref(p.b.view)
	}
	return nil
}

// result waits for a call of this Writer's, and has the daemon hurry where the reply would wait for company.
func (w *Writer) result(ctx context.Context, k *call) (*call, error) {
	if k.turn > w.asked && !w.c.isFinished(k) {
		w.asked = w.writes
		w.c.postNow(w.gen, wire.Hurry, nil)
	}
	return w.c.result(ctx, k)
}

// mayWait reports whether the reply to the next push may wait for company, so that a stream in motion is answered once
// for some frames, and a writer that waits for something else is not woken for it. It may not once half of what may be
// under way is unanswered, unless answers are on their way.
func (w *Writer) mayWait() bool {
	unanswered := 0
	for _, p := range w.under {
		switch {
		case w.c.isFinished(p.k):
		case p.k.turn <= w.asked:
			return true
		default:
			unanswered++
		}
	}
	return unanswered < (w.ahead+1)/2
}

// send sends a push and, where frames have one size, the Creates of the next ones' memory in the same write.
func (w *Writer) send(ctx context.Context, k *call, size uint64) error {
	w.writes++
	k.turn, k.lazy = w.writes, w.mayWait()
	if !k.lazy {
		w.asked = w.writes
	}
	if err := w.c.lockSend(ctx); err != nil {
		return fmt.Errorf("send a %v: %w", k.kind, err)
	}
	err := w.c.enqueue(k, &k.ask.push)
	again := w.lastSize == size && (len(w.spares) == 0 || w.spareSize == size)
	for w.lastSize = size; again && len(w.spares) <= w.ahead && err == nil; {
		next := newCall(wire.Create)
		next.gen, next.turn, next.lazy = w.gen, k.turn, k.lazy
		next.ask.make = wire.CreateRequest{SizeBytes: size}
		if err = w.c.enqueue(next, &next.ask.make); err == nil {
			w.spares, w.spareSize = append(w.spares, next), size
		}
	}
	if err = w.c.writeUnlock(ctx, err); isContext(err) {
		return w.c.abandon(k, err)
	}
	return err
}

// dropSpares gives up memory that was asked for ahead: what is not here yet is given back when it comes.
func (w *Writer) dropSpares() {
	for _, k := range w.spares {
		_ = w.c.abandon(k, nil)
	}
	w.spares = nil
}

// Write pushes a copy of data.
func (w *Writer) Write(ctx context.Context, data, meta []byte, wait time.Duration) error {
	b, err := w.Buffer(ctx, uint64(len(data)))
	if err != nil {
		return err
	}
	segment.Copy(b.data, data)
	err = w.Push(ctx, b, meta, wait)
	if err != nil && w.ahead == 0 {
		b.Abort(ctx) // the first error is the one to tell
	}
	return err
}

// End says that no more frames come, from any writer: readers get what waits, then object.ErrEnded. It waits until what
// this Writer pushed is in the stream, and closes the Writer.
func (w *Writer) End(ctx context.Context) error {
	if w.closed {
		return nil
	}
	return errors.Join(w.Flush(ctx), w.end(ctx, false))
}

// Abort drops what waits; writers and readers get object.ErrAborted. It closes the Writer.
func (w *Writer) Abort(ctx context.Context) error {
	if w.closed {
		return nil
	}
	return w.end(ctx, true)
}

func (w *Writer) end(ctx context.Context, abort bool) error {
	err := w.c.tell(ctx, w.gen, wire.StreamEnd, &wire.StreamEndRequest{Stream: w.id, Abort: abort})
	w.Close(ctx)
	return err
}

// Close leaves the stream to other writers, which may be yet to come. Pushes that wait for room are given up (Flush
// waits for them). It waits for the daemon to say so, or for the end of ctx. A second Close does nothing.
func (w *Writer) Close(ctx context.Context) {
	if w.closed {
		return
	}
	w.closed = true
	if len(w.under) > 0 {
		// then they are answered; a dead connection answers, too
		_ = w.c.tell(ctx, w.gen, wire.StreamCancel, &wire.Number{N: w.id})
		_ = w.drain(ctx, 0) // who wants to know calls Flush
	}
	w.dropSpares()
	w.c.post(w.gen, wire.StreamClose, &wire.Number{N: w.id})
}
