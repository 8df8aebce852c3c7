package client

import (
	"context"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// PushObject puts an object of this tenant's that this process holds into the stream, and its reference with it: on
// success the Object must not be used any more. It follows what was pushed before. Where ctx ended the push may have
// happened, or happen yet: then the Object is good for another PushObject, which is that one where it happened, and for
// Release, which gives the reference back where it did not.
func (w *Writer) PushObject(ctx context.Context, o *Object, wait time.Duration) error {
	if o.released.Load() {
		return fmt.Errorf("%w: object %s was released", object.ErrInvalid, o.id)
	}
	if o.index != nil {
		return w.pushIndexed(ctx, o, wait)
	}
	if happened, err := w.c.settlePush(ctx, o); err != nil || happened {
		return err
	}
	k := newCall(wire.StreamPush)
	k.gen, k.pushes = w.gen, new(pushes)
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: o.id, WaitMS: waitMS(within(ctx, wait))}
	err := w.c.send(ctx, k, &k.ask.push)
	if err == nil {
		_, err = w.c.result(ctx, k)
	}
	if err != nil {
		w.c.notePush(o, k)
		return err
	}
	k.recycle()
	w.c.passOn(o)
	return nil
}

// pushIndexed pushes another reference to an object whose own was taken in shared memory: a stream takes those that the
// daemon knows.
func (w *Writer) pushIndexed(ctx context.Context, o *Object, wait time.Duration) error {
	known, err := w.c.getOnce(ctx, wire.GetRequest{ID: o.id})
	if err != nil {
		return err
	}
	if err := w.PushObject(ctx, known, wait); err != nil {
		known.Release()
		return err
	}
	o.Release()
	return nil
}

// passOn lets an Object go whose reference is a stream's.
func (c *Conn) passOn(o *Object) {
	if !o.released.Swap(true) {
		c.letGo(o)
	}
}

// notePush has an Object know of a push that failed, where its answer is yet to come or to be looked at.
func (c *Conn) notePush(o *Object, k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.abandoned && k.gen == c.gen {
		o.pushed = k
	}
}

// settlePush waits for the answer to an earlier push of an Object, and reports whether that happened.
func (c *Conn) settlePush(ctx context.Context, o *Object) (bool, error) {
	c.mu.Lock()
	k := o.pushed
	c.mu.Unlock()
	if k == nil {
		return false, nil
	}
	if err := c.awaitFinish(ctx, k); err != nil {
		return false, fmt.Errorf("waiting for an earlier push of object %s: %w", o.id, err)
	}
	c.mu.Lock()
	happened := k.pushes.done
	if o.pushed == k && !happened {
		o.pushed = nil
	}
	c.mu.Unlock()
	if happened {
		c.passOn(o)
	}
	return happened, nil
}
