package client

import (
	"context"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// StreamOptions says how a stream is opened. The zero value makes it where it is missing, with room for
// object.DefaultStreamFrames.
type StreamOptions struct {
	Frames     int    // that may wait; 0: as it is. A writer's, like Bytes and DropOldest
	Bytes      uint64 // that may wait; one frame always may. 0: as it is
	DropOldest bool   // a push into a full stream drops the frame that waits longest, instead of waiting
	Keep       bool   // the stream stays when nobody has it open and nothing waits in it
	New        bool   // it must not be there yet: object.ErrExists
	Existing   bool   // it must be there: object.ErrNotFound
}

// Frame is an object out of a stream. The caller must Release it; then its memory is its writer's to use again.
type Frame struct {
	*Object
	Number uint64 // from 1 on, in the order of the pushes; missing ones were dropped, or popped by others
}

// Writer pushes objects into a stream. Not safe for concurrent use: each goroutine opens its own. The caller must End, Abort
// or Close it; where the last writer of a stream ends without, its readers get object.ErrAborted.
type Writer struct {
	c        *Conn
	name     string
	id       uint64
	closed   bool
	spare    *call // a Create under way or finished: the next frame's memory
	size     uint64
	lastSize uint64
}

// Reader pops objects from a stream. Safe for concurrent use, but for Close. The caller must Close it.
type Reader struct {
	c    *Conn
	name string
	id   uint64
}

func (c *Conn) openStream(name string, flags uint8, o StreamOptions) (uint64, error) {
	for set, flag := range map[*bool]uint8{
		&o.DropOldest: wire.StreamDropOldest, &o.Keep: wire.StreamKeep, &o.New: wire.StreamNew, &o.Existing: wire.StreamExisting,
	} {
		if *set {
			flags |= flag
		}
	}
	if o.Frames < 0 || o.Frames > object.MaxStreamFrames {
		return 0, fmt.Errorf("%w: a stream of %d frames: want 1 to %d", object.ErrInvalid, o.Frames, object.MaxStreamFrames)
	}
	k, err := c.roundTrip(context.Background(), wire.StreamOpen, &wire.StreamOpenRequest{Flags: flags, Frames: uint32(o.Frames), Bytes: o.Bytes, Name: name})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.StreamOpenReply
	err = m.Decode(k.payload)
	return m.Stream, err
}

// OpenWriter opens a stream to push into. A stream may have many writers. Errors: object.ErrExists, ErrNotFound, ErrInvalid,
// ErrQuota, ErrFull; ErrEnded for one that has ended and is not empty yet; ErrDisconnected.
func (c *Conn) OpenWriter(name string, o StreamOptions) (*Writer, error) {
	id, err := c.openStream(name, wire.StreamWrites, o)
	if err != nil {
		return nil, err
	}
	return &Writer{c: c, name: name, id: id}, nil
}

// OpenReader opens a stream to pop from. A stream may have many readers: each frame goes to one of them.
func (c *Conn) OpenReader(name string, o StreamOptions) (*Reader, error) {
	id, err := c.openStream(name, wire.StreamReads, o)
	if err != nil {
		return nil, err
	}
	return &Reader{c: c, name: name, id: id}, nil
}

// waitMS is a wait as it travels: below 0 is for ever.
func waitMS(d time.Duration) uint32 {
	if d < 0 {
		return wire.WaitForEver
	}
	return min(milliseconds(d), wire.WaitForEver-1)
}

// Buffer gives memory for the next frame, of size bytes: fill Bytes and Push it, or Abort it. While frames have one size
// the memory of the next is asked for together with each push, so that neither waits.
func (w *Writer) Buffer(size uint64) (*Buffer, error) {
	k, m := w.spare, wire.CreateRequest{SizeBytes: size}
	w.spare = nil
	if k != nil && w.size != size {
		w.dropSpare(k)
		k = nil
	}
	var err error
	if k != nil {
		k, err = w.c.result(context.Background(), k)
	} else {
		k, err = w.c.roundTrip(context.Background(), wire.Create, &m)
	}
	if err != nil {
		if k, err = w.c.retryFull(context.Background(), err, wire.Create, &m); err != nil {
			return nil, err
		}
	}
	defer k.recycle()
	b := &Buffer{c: w.c, id: k.create.ID, view: k.view, off: k.create.Ref.Offset, size: size}
	w.c.beginFilling(b.view)
	if err := b.mapMemory(); err != nil {
		b.Abort()
		return nil, err
	}
	return b, nil
}

// Push seals a buffer and puts it into the stream with the metadata meta (opaque, ≤ object.MaxMetaBytes; nil is none). Where the stream
// is full it waits: not at all with wait 0, without end below 0. After an error the buffer is to be pushed again, unchanged,
// or aborted; an ended ctx leaves it open whether the push still happens. Errors: object.ErrTimeout; ErrEnded, ErrAborted (the
// stream was removed); ErrDisconnected; ctx's.
func (w *Writer) Push(ctx context.Context, b *Buffer, meta []byte, wait time.Duration) error {
	if b.ended {
		return fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, b.id)
	}
	b.pushed = true
	k := newCall(wire.StreamPush)
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: b.id, Seal: true, WaitMS: waitMS(wait), Meta: meta}
	if err := w.send(k, b.size); err != nil {
		return err
	}
	if _, err := w.c.result(ctx, k); err != nil {
		return err
	}
	k.recycle()
	b.ended, b.data = true, nil
	if w.c.endFilling(b.view) {
		w.c.unref(b.view)
	}
	return nil
}

// send sends a push and, where frames have one size, the Create of the next one's memory in the same write.
func (w *Writer) send(k *call, size uint64) error {
	w.c.sendMu.Lock()
	defer w.c.sendMu.Unlock()
	if err := w.c.enqueue(k, &k.ask.push); err != nil {
		return err
	}
	if again := w.lastSize == size; again && w.spare == nil {
		next := newCall(wire.Create)
		next.ask.make = wire.CreateRequest{SizeBytes: size}
		if err := w.c.enqueue(next, &next.ask.make); err != nil {
			return err
		}
		w.spare, w.size = next, size
	}
	w.lastSize = size
	return w.c.write()
}

// dropSpare gives up memory that was asked for ahead.
func (w *Writer) dropSpare(k *call) {
	if _, err := w.c.result(context.Background(), k); err == nil {
		w.c.unref(k.view)
		w.c.postRelease(k.create.ID) // of an unsealed object: an abort
		k.recycle()
	}
}

// Write pushes a copy of data.
func (w *Writer) Write(ctx context.Context, data, meta []byte, wait time.Duration) error {
	b, err := w.Buffer(uint64(len(data)))
	if err != nil {
		return err
	}
	segment.Copy(b.data, data)
	if err := w.Push(ctx, b, meta, wait); err != nil {
		b.Abort() // the first error is the one to tell
		return err
	}
	return nil
}

// PushObject puts an object of this tenant's that this process holds into the stream, and its reference with it: on success
// the Object must not be used any more.
func (w *Writer) PushObject(ctx context.Context, o *Object, wait time.Duration) error {
	if o.released.Load() {
		return fmt.Errorf("%w: object %s was released", object.ErrInvalid, o.id)
	}
	k := newCall(wire.StreamPush)
	k.ask.push = wire.StreamPushRequest{Stream: w.id, ID: o.id, WaitMS: waitMS(wait)}
	if err := w.c.send(k, &k.ask.push); err != nil {
		return err
	}
	if _, err := w.c.result(ctx, k); err != nil {
		return err
	}
	k.recycle()
	if !o.released.Swap(true) {
		w.c.unref(o.view)
	}
	return nil
}

// End says that no more frames come, from any writer: readers get what waits, then object.ErrEnded. It closes the Writer.
func (w *Writer) End() error { return w.end(false) }

// Abort drops what waits; writers and readers get object.ErrAborted. It closes the Writer.
func (w *Writer) Abort() error { return w.end(true) }

func (w *Writer) end(abort bool) error {
	if w.closed {
		return nil
	}
	err := w.c.simple(wire.StreamEnd, &wire.StreamEndRequest{Stream: w.id, Abort: abort})
	w.Close()
	return err
}

// Close leaves the stream to other writers, which may be yet to come. A second Close does nothing.
func (w *Writer) Close() {
	if w.closed {
		return
	}
	w.closed = true
	if w.spare != nil {
		w.dropSpare(w.spare)
		w.spare = nil
	}
	w.c.post(wire.StreamClose, &wire.Number{N: w.id})
}

// Pop takes the frame that waits longest. Where none does it waits for one: not at all with wait 0, without end below 0. Errors:
// object.ErrTimeout; ErrEnded: there was the last one; ErrAborted: the stream was removed, or its last writer died;
// ErrDisconnected; ctx's, and then a frame that comes nevertheless goes back.
func (r *Reader) Pop(ctx context.Context, wait time.Duration) (*Frame, error) {
	k := newCall(wire.StreamPop)
	k.ask.pop = wire.StreamPopRequest{Stream: r.id, WaitMS: waitMS(wait)}
	if err := r.c.send(k, &k.ask.pop); err != nil {
		return nil, err
	}
	if _, err := r.c.result(ctx, k); err != nil {
		return nil, err
	}
	defer k.recycle()
	o := &Object{c: r.c, id: k.get.ID, view: k.view, off: k.get.Ref.Offset, size: k.get.SizeBytes, class: k.get.Class, meta: k.get.Meta}
	f := &Frame{Object: o, Number: k.number}
	if _, err := o.memory(); err != nil {
		r.Unpop(f)
		return nil, err
	}
	return f, nil
}

// Unpop puts a frame back to where it was, for whoever pops next, in the place of its Release.
func (r *Reader) Unpop(f *Frame) {
	if f.released.Swap(true) {
		return
	}
	r.c.unref(f.view)
	r.c.post(wire.StreamUnpop, &wire.StreamUnpopRequest{Stream: r.id, ID: f.id, Number: f.Number})
}

// Close leaves the stream. Frames that were popped stay.
func (r *Reader) Close() { r.c.post(wire.StreamClose, &wire.Number{N: r.id}) }

// Streams describes this tenant's streams whose name begins with prefix.
func (c *Conn) Streams(prefix string) ([]object.StreamInfo, error) {
	var list []object.StreamInfo
	err := c.query(wire.StreamList, &wire.WatchRequest{Prefix: prefix}, &list)
	return list, err
}

// RemoveStream ends a stream for everybody, with object.ErrAborted, and drops what waits in it.
func (c *Conn) RemoveStream(name string) error {
	return c.simple(wire.StreamRemove, &wire.NameMessage{Name: name})
}
