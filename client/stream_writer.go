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
func (w *Writer) Buffer(size uint64) (*Buffer, error) {
	if w.spareSize != size {
		w.dropSpares()
	}
	k, m := (*call)(nil), wire.CreateRequest{SizeBytes: size}
	var err error
	if len(w.spares) > 0 {
		k, w.spares = w.spares[0], w.spares[1:]
		k, err = w.result(context.Background(), k)
	} else {
		k, err = w.c.roundTripIn(context.Background(), w.gen, wire.Create, &m)
	}
	if err != nil {
		w.dropSpares()
		if k, err = w.c.retryFull(context.Background(), err, wire.Create, &m); err != nil {
			return nil, err
		}
	}
	defer k.recycle()
	b := &Buffer{c: w.c, id: k.create.ID, view: k.view, off: k.create.Ref.Offset, size: size, gen: k.gen}
	w.c.beginFilling(b.view)
	if err := b.mapMemory(); err != nil {
		b.Abort()
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
	b.pushed = true
	k := newCall(wire.StreamPush)
	k.gen = w.gen
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: b.id, Seal: true, WaitMS: waitMS(wait), Meta: meta}
	if err := w.send(k, b.size); err != nil {
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
			p.b.Abort() // the first error is the one to tell
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
	if _, err := w.result(ctx, p.k); err != nil {
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
func (w *Writer) send(k *call, size uint64) error {
	w.writes++
	k.turn, k.lazy = w.writes, w.mayWait()
	if !k.lazy {
		w.asked = w.writes
	}
	w.c.sendMu.Lock()
	defer w.c.sendMu.Unlock()
	if err := w.c.enqueue(k, &k.ask.push); err != nil {
		return err
	}
	again := w.lastSize == size && (len(w.spares) == 0 || w.spareSize == size)
	for w.lastSize = size; again && len(w.spares) <= w.ahead; {
		next := newCall(wire.Create)
		next.gen, next.turn, next.lazy = w.gen, k.turn, k.lazy
		next.ask.make = wire.CreateRequest{SizeBytes: size}
		if err := w.c.enqueue(next, &next.ask.make); err != nil {
			return err
		}
		w.spares, w.spareSize = append(w.spares, next), size
	}
	return w.c.write()
}

// dropSpares gives up memory that was asked for ahead.
func (w *Writer) dropSpares() {
	for _, k := range w.spares {
		if _, err := w.result(context.Background(), k); err == nil {
			w.c.unref(k.view)
			w.c.postRelease(k.gen, k.create.ID) // of an unsealed object: an abort
			k.recycle()
		}
	}
	w.spares = nil
}

// Write pushes a copy of data.
func (w *Writer) Write(ctx context.Context, data, meta []byte, wait time.Duration) error {
	b, err := w.Buffer(uint64(len(data)))
	if err != nil {
		return err
	}
	segment.Copy(b.data, data)
	err = w.Push(ctx, b, meta, wait)
	if err != nil && w.ahead == 0 {
		b.Abort() // the first error is the one to tell
	}
	return err
}

// PushObject puts an object of this tenant's that this process holds into the stream, and its reference with it: on
// success the Object must not be used any more. It follows what was pushed before.
func (w *Writer) PushObject(ctx context.Context, o *Object, wait time.Duration) error {
	if o.released.Load() {
		return fmt.Errorf("%w: object %s was released", object.ErrInvalid, o.id)
	}
	k := newCall(wire.StreamPush)
	k.gen = w.gen
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: o.id, WaitMS: waitMS(wait)}
	if err := w.c.send(ctx, k, &k.ask.push); err != nil {
		return err
	}
	if _, err := w.c.result(ctx, k); err != nil {
		return err
	}
	k.recycle()
	if !o.released.Swap(true) {
		w.c.letGo(o)
	}
	return nil
}

// End says that no more frames come, from any writer: readers get what waits, then object.ErrEnded. It waits until what
// this Writer pushed is in the stream, and closes the Writer.
func (w *Writer) End() error {
	if w.closed {
		return nil
	}
	return errors.Join(w.Flush(context.Background()), w.end(false))
}

// Abort drops what waits; writers and readers get object.ErrAborted. It closes the Writer.
func (w *Writer) Abort() error {
	if w.closed {
		return nil
	}
	return w.end(true)
}

func (w *Writer) end(abort bool) error {
	err := w.c.simpleIn(w.gen, wire.StreamEnd, &wire.StreamEndRequest{Stream: w.id, Abort: abort})
	w.Close()
	return err
}

// Close leaves the stream to other writers, which may be yet to come. Pushes that wait for room are given up (Flush
// waits for them). A second Close does nothing.
func (w *Writer) Close() {
	if w.closed {
		return
	}
	w.closed = true
	if len(w.under) > 0 {
		// then they are answered; a dead connection answers, too
		_ = w.c.simpleIn(w.gen, wire.StreamCancel, &wire.Number{N: w.id})
		_ = w.drain(context.Background(), 0) // who wants to know calls Flush
	}
	w.dropSpares()
	w.c.post(w.gen, wire.StreamClose, &wire.Number{N: w.id})
}
