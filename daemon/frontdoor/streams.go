package frontdoor

import (
	"fmt"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

func (c *connection) streamOpen(m wire.StreamOpenRequest) (ipc.Payload, error) {
	has := func(flag uint8) bool { return m.Flags&flag != 0 }
	end, err := c.store.OpenStream(store.StreamSpec{
		Name: m.Name, Reads: has(wire.StreamReads), Writes: has(wire.StreamWrites), New: has(wire.StreamNew),
		Existing:   has(wire.StreamExisting),
		DropOldest: has(wire.StreamDropOldest), Keep: has(wire.StreamKeep),
		Frames: int(min(m.Frames, object.MaxStreamFrames+1)), Bytes: m.Bytes,
	})
	return &wire.StreamOpenReply{Stream: end.ID, Frames: uint32(end.Frames), Bytes: end.Bytes}, err
}

// waitTime reads a wait from a peer: below 0 is for ever.
func waitTime(ms uint32) time.Duration {
	if ms == wire.WaitForEver {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

func (c *connection) streamPush(f *ipc.Frame, m wire.StreamPushRequest) error {
	header := f.Header
	if m.Seal {
		if err := c.acts().SealWith(m.ID, m.Meta); err != nil {
			return err
		}
	}
	w, err := c.acts().Push(m.Stream, m.ID, waitTime(m.WaitMS), func(w *store.Waiter) { c.answerSoon(header, w) })
	if err == nil && w == nil {
		c.reply(f, nil)
	}
	return err
}

func (c *connection) streamPop(f *ipc.Frame, m wire.StreamPopRequest) error {
	header := f.Header
	p, w, err := c.store.Pop(m.Stream, waitTime(m.WaitMS), func(w *store.Waiter) { c.answerSoon(header, w) })
	if err == nil && w == nil {
		c.replyPop(f, p)
	}
	return err
}

// replyPop answers a StreamPop. mu is held.
func (c *connection) replyPop(f *ipc.Frame, p store.Popped) {
	c.scratch.pop = wire.StreamPopReply{Number: p.Number,
		GetReply: wire.GetReply{ID: p.ID, Ref: p.Ref, SizeBytes: p.Size, Class: p.Class, Meta: p.Meta}}
	c.replyFD(f, &c.scratch.pop, p.FD)
}

// answerSoon answers a push or a pop that waited. It runs in the goroutine of whoever ended the waiting, perhaps under
// that connection's mu, and so may not wait for this one's nor for this peer to read: then a goroutine of its own does
// it. Usually none of that is so, and the answer goes out without another goroutine being woken.
func (c *connection) answerSoon(h ipc.Header, w *store.Waiter) {
	if c.mu.TryLock() {
		local, is := c.link.(*ipc.Accepted)
		if c.gone || is && len(c.out) <= answerBytes && len(c.unsent) == 0 && local.Writable() {
			c.answerWaiter(h, w)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
	c.soon(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answerWaiter(h, w)
	})
}

// answerWaiter answers. mu is held.
func (c *connection) answerWaiter(h ipc.Header, w *store.Waiter) {
	if c.gone {
		return
	}
	f := ipc.Frame{Header: h}
	p, err := w.Result()
	switch {
	case err != nil:
		c.out = errorFrame(c.out, c.version, h.Request, err)
	case h.Type == wire.StreamPop:
		c.replyPop(&f, p)
	default:
		c.reply(&f, nil)
	}
	c.flush() // a failure is met by serve
}

// soon runs a function in a goroutine that the connection's end joins; not at all once that has begun.
func (c *connection) soon(run func()) {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.ended {
		return
	}
	c.waits.Go(func() {
		defer c.survive()
		run()
	})
}

// hurry has no effect of its own: like any request that is not lazy it has what is answered sent.
func (c *connection) hurry(none) error { return nil }

func (c *connection) streamEnd(m wire.StreamEndRequest) error {
	return c.store.EndStream(m.Stream, m.Abort)
}

func (c *connection) streamClose(m wire.Number) error { return c.store.CloseStream(m.N) }

func (c *connection) streamCancel(m wire.Number) error { return c.store.CancelStream(m.N) }

func (c *connection) streamAck(m wire.StreamAckRequest) error {
	return c.store.AckFrame(0, m.ID, m.Number)
}

func (c *connection) frameAck(m wire.FrameAckRequest) error {
	if m.Stream == 0 { // to the store it is none in particular
		return fmt.Errorf("%w: a frame of stream 0", object.ErrInvalid)
	}
	return c.store.AckFrame(m.Stream, m.ID, m.Number)
}

func (c *connection) streamUnpop(m wire.StreamUnpopRequest) error {
	return c.store.Unpop(m.Stream, m.ID, m.Number)
}

func (c *connection) streamRemove(m wire.NameMessage) error { return c.store.RemoveStream(m.Name) }
