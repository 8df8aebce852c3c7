package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Pop takes the frame that waits longest. Where none does it waits for one: not at all with wait 0, without end below
// 0. Errors: object.ErrTimeout; ErrEnded: there was the last one; ErrAborted: the stream was removed, or its last
// writer died; ErrDisconnected; ctx's, and then a frame that comes nevertheless goes back. A frame that is returned is
// this Reader's; where its process dies within 1 ms, or its connection breaks, another pop may return it once more.
func (r *Reader) Pop(ctx context.Context, wait time.Duration) (*Frame, error) {
	if r.ahead > 0 && wait != 0 {
		return r.popAhead(ctx, wait)
	}
	if f, err := r.popUnderWay(); f != nil || err != nil {
		return f, err
	}
	k, err := r.ask(ctx, waitMS(within(ctx, wait)))
	if err == nil {
		_, err = r.c.result(ctx, k)
	}
	if isContext(err) {
		r.comesLate(k)
		return nil, fmt.Errorf("waiting for a frame of stream %q: %w", r.name, err)
	}
	if err != nil {
		return nil, err
	}
	return r.frame(k)
}

// comesLate notes a pop that nobody waits for, unless it is undone already.
func (r *Reader) comesLate(k *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = slices.DeleteFunc(append(r.late, k), func(k *call) bool { return !r.c.isOpen(k) })
}

// ask sends a pop.
func (r *Reader) ask(ctx context.Context, waitMS uint32) (*call, error) {
	k := newCall(wire.StreamPop)
	k.gen = r.gen
	k.ask.pop = wire.StreamPopRequest{Stream: r.id, WaitMS: waitMS}
	return k, r.c.send(ctx, k, &k.ask.pop)
}

// frame makes a finished call's frame.
func (r *Reader) frame(k *call) (*Frame, error) {
	defer k.recycle()
	o := &Object{c: r.c, id: k.get.ID, view: k.view, off: k.get.Ref.Offset, size: k.get.SizeBytes, class: k.get.Class,
		meta: k.get.Meta}
	f := &Frame{Object: o, Number: k.number}
	if !r.c.hold(o, k.gen) {
		return nil, errOtherLife
	}
	if _, err := o.memory(); err != nil {
		r.Unpop(f)
		return nil, err
	}
	r.c.postAck(k.gen, k.ask.pop.Stream, o.id, f.Number)
	return f, nil
}

// popUnderWay gives a frame that is here already; nil where there is none.
func (r *Reader) popUnderWay() (*Frame, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.under) == 0 || !r.c.isFinished(r.under[0]) {
		return nil, nil
	}
	return r.take()
}

// take gives the first pop's outcome. mu is held, and the pop finished.
func (r *Reader) take() (*Frame, error) {
	k := r.under[0]
	r.under = r.under[1:]
	if k.err != nil {
		return nil, k.err
	}
	return r.frame(k)
}

// popAhead keeps ahead+1 pops on their way and gives the first one's frame.
func (r *Reader) popAhead(ctx context.Context, wait time.Duration) (*Frame, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.askAhead(ctx)
	switch {
	case err != nil:
	case wait > 0:
		err = r.c.awaitWithin(ctx, wait, r.under[0])
	default:
		err = r.c.awaitFinish(ctx, r.under[0])
	}
	if isContext(err) && ctx.Err() != nil {
		return nil, fmt.Errorf("waiting for a frame of stream %q: %w", r.name, err)
	}
	if err != nil && wait > 0 && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w: stream %q: nothing for %v", object.ErrTimeout, r.name, wait)
	}
	if err != nil {
		return nil, err
	}
	return r.take()
}

// askAhead sends what pops are missing, in one write, when half of them are. mu is held.
func (r *Reader) askAhead(ctx context.Context) error {
	if n := len(r.under); n > 0 && n > r.ahead/2 {
		return nil
	}
	if err := r.c.lockSend(ctx); err != nil {
		return err
	}
	var err error
	for len(r.under) <= r.ahead && err == nil {
		k := newCall(wire.StreamPop)
		k.gen = r.gen
		k.ask.pop = wire.StreamPopRequest{Stream: r.id, WaitMS: wire.WaitForEver}
		if err = r.c.enqueue(k, &k.ask.pop); err == nil {
			r.under = append(r.under, k)
		}
	}
	return r.c.writeUnlock(ctx, err)
}

// Unpop puts a frame back to where it was, for whoever pops next, in the place of its Release.
func (r *Reader) Unpop(f *Frame) {
	if f.released.Swap(true) {
		return
	}
	r.c.letGo(f.Object)
	r.c.post(r.gen, wire.StreamUnpop, &wire.StreamUnpopRequest{Stream: r.id, ID: f.id, Number: f.Number})
}

// Close leaves the stream. Frames that were popped stay; those that were only asked for go back. It waits until they
// are back, for the next reader. Where ctx ends before, the stream stays open here, so that they can go back when they
// come, until the connection is closed.
func (r *Reader) Close(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if len(r.under)+len(r.late) > 0 {
		// then they are answered; a dead connection answers, too
		err = r.c.tell(ctx, r.gen, wire.StreamCancel, &wire.Number{N: r.id})
	}
	for len(r.under) > 0 && !isContext(err) {
		if err = r.c.awaitFinish(ctx, r.under[0]); err != nil {
			break
		}
		if f, err := r.take(); err == nil {
			r.Unpop(f)
		}
	}
	for _, k := range r.under {
		_ = r.c.abandon(k, nil) // undone when it comes
	}
	r.late, r.under = append(r.late, r.under...), nil
	for len(r.late) > 0 && !isContext(err) {
		if err = r.c.awaitFinish(ctx, r.late[0]); err == nil {
			r.late = r.late[1:]
		}
	}
	if len(r.late) > 0 {
		return
	}
	// when it is answered the next reader finds all in order
	_ = r.c.tell(ctx, r.gen, wire.StreamClose, &wire.Number{N: r.id})
}
