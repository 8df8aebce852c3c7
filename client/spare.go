package client

import (
	"context"
	"fmt"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// spareMaxBytes bounds what is created ahead: above it a round trip is little beside the filling.
const spareMaxBytes = 64 << 10

// spare is a buffer that was asked for together with the last Seal, because the program makes small objects of one size
// in a row: then create + fill + seal costs one round trip. It is given up where it is not taken within some ms.
// Guarded by Conn.mu.
type spare struct {
	k        *call // under way or finished; nil: none
	size     uint64
	lastSize uint64 // of the last plain buffer
	row      int    // plain buffers of lastSize in a row
	fresh    bool   // made since the flushing timer last looked
}

// repeats notes a plain Create and reports whether another of that size is likely.
func (c *Conn) repeats(size uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spare.lastSize != size {
		c.spare.lastSize, c.spare.row = size, 0
	}
	c.spare.row++
	return c.spare.row > 1
}

// takeSpare gives the spare buffer's call if it fits; nil where there is none. One that does not fit is left to the
// timer.
func (c *Conn) takeSpare(ctx context.Context, size uint64, plain bool) (*call, error) {
	c.mu.Lock()
	k := c.spare.k
	if !plain || k == nil || c.spare.size != size {
		c.mu.Unlock()
		return nil, nil
	}
	c.spare.k = nil
	c.mu.Unlock()
	switch _, err := c.result(ctx, k); {
	case isContext(err):
		return nil, err
	case err != nil:
		return nil, nil // asked for again, that error counts
	}
	return k, nil
}

// sendSeal sends b's Seal and, where another buffer of its sort is likely, the Create of that in the same write.
func (c *Conn) sendSeal(ctx context.Context, k *call, b *Buffer) error {
	if err := c.lockSend(ctx); err != nil {
		return fmt.Errorf("send a %v: %w", k.kind, err)
	}
	err := c.enqueue(k, &k.ask.seal)
	if next := c.newSpare(b); err == nil && next != nil {
		err = c.enqueue(next, &wire.CreateRequest{SizeBytes: b.size, Class: object.Ephemeral})
		c.setFlush()
	}
	if err = c.writeUnlock(ctx, err); isContext(err) {
		return c.abandon(k, err)
	}
	return err
}

func (c *Conn) newSpare(b *Buffer) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.spareNext || c.spare.k != nil || c.err != nil {
		return nil
	}
	c.spare.k, c.spare.size, c.spare.fresh = newCall(wire.Create), b.size, true
	return c.spare.k
}

// dropStaleSpare gives up a spare buffer that nobody took for a whole period of the flushing timer.
func (c *Conn) dropStaleSpare() {
	c.mu.Lock()
	k := c.spare.k
	stale := k != nil && !c.spare.fresh
	c.spare.fresh = false
	if stale {
		c.spare.k = nil
		c.spare.row = 0
	}
	again := k != nil && !stale && c.err == nil
	c.mu.Unlock()
	if again {
		c.sendMu.Lock()
		c.setFlush()
		c.sendMu.Unlock()
	}
	if !stale {
		return
	}
	if _, err := c.result(context.Background(), k); err == nil {
		c.unref(k.view)
		c.postRelease(k.gen, k.create.ID) // of an unsealed object: an abort
		k.recycle()
	}
}
