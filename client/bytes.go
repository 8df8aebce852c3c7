package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Objects' bytes where shared memory does not reach: copied to and from the daemon in frames. It also works on the
// daemon's own machine, at the price of a copy each way.

const (
	chunkBytes = 512 << 10 // of one Write or ReadRange
	ahead      = 8         // requests that are under way at a time
)

// Upload is an object that is written piece by piece, from its beginning to its end. Not safe for concurrent use.
type Upload struct {
	c     *Conn
	ctx   context.Context // NewUpload's: Write is an io.Writer's
	id    object.ID
	gen   uint64 // the life of the connection that it belongs to
	size  uint64
	at    uint64  // sent
	calls []*call // not yet answered, in order
	err   error   // the first; sticks
	ended bool

	unsure bool // a seal's context ended: it may be sealed
}

// NewUpload makes an unsealed object of size bytes (o.Own and o.Strict do not matter). ctx is also its Writes'. The
// caller must Seal or Abort it; it ends with the connection otherwise. Errors: as Create.
func (c *Conn) NewUpload(ctx context.Context, size uint64, o CreateOptions) (*Upload, error) {
	flags := uint8(0)
	if o.Checksum {
		flags = wire.CreateSummed
	}
	k, err := c.roundTrip(ctx, wire.Upload, &wire.CreateWithRequest{
		CreateRequest: wire.CreateRequest{SizeBytes: size, Class: o.class(), Flags: flags, Name: o.Name, Meta: o.Meta},
		TTLMS:         uint64(max(o.TTL.Milliseconds(), 0)), Labels: o.Labels,
	})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.IDMessage
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	return &Upload{c: c, ctx: ctx, id: m.ID, gen: k.gen, size: size}, nil
}

// ID names the object.
func (u *Upload) ID() object.ID { return u.id }

// Write sends the next bytes. It returns when they are on their way: what the daemon says to them is a later Write's
// error, or Seal's.
func (u *Upload) Write(b []byte) (n int, err error) {
	for len(b) > 0 && u.err == nil {
		part := b[:min(len(b), chunkBytes)]
		if len(u.calls) == ahead {
			u.answer(u.ctx)
		}
		if u.err != nil {
			break
		}
		k := newCall(wire.Write)
		k.gen = u.gen
		if u.err = u.c.send(u.ctx, k,
			&wire.WriteRequest{ID: u.id, Offset: u.at, Data: part}); u.err != nil {
			break
		}
		u.calls = append(u.calls, k)
		u.at += uint64(len(part))
		n += len(part)
		b = b[len(part):]
	}
	return n, u.err
}

// answer waits for the oldest request's answer.
func (u *Upload) answer(ctx context.Context) {
	k, err := u.c.result(ctx, u.calls[0])
	u.calls = append(u.calls[:0], u.calls[1:]...)
	if err == nil {
		k.recycle()
	} else if u.err == nil {
		u.err = err
	}
}

// Seal makes the object immutable and binds its name. The connection holds a reference until Release. All bytes must
// have been written: what is missing is io.ErrShortWrite. After an error the object is to be aborted; where ctx ended
// it may be sealed all the same, and Seal may be called again.
func (u *Upload) Seal(ctx context.Context) error {
	for len(u.calls) > 0 {
		u.answer(ctx)
	}
	switch {
	case u.err != nil:
		return u.err
	case u.ended:
		return fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, u.id)
	case u.at != u.size:
		return fmt.Errorf("%w: %d of %d bytes", io.ErrShortWrite, u.at, u.size)
	}
	err := u.c.simpleIn(ctx, u.gen, wire.Seal, &wire.SealRequest{ID: u.id})
	if u.unsure && errors.Is(err, object.ErrSealed) {
		err = nil // the one before was carried out
	}
	u.ended, u.unsure = err == nil, isContext(err)
	return err
}

// Release gives the creator's reference to a sealed object back.
func (u *Upload) Release() { u.c.postRelease(u.gen, u.id) }

// Abort drops the object. After Seal it does nothing. The daemon is told even where ctx has ended.
func (u *Upload) Abort(ctx context.Context) error {
	for _, k := range u.calls {
		_ = u.c.abandon(k, nil) // nobody wants to know
	}
	u.calls = nil
	if u.ended {
		return nil
	}
	u.ended = true
	if u.unsure { // perhaps sealed: either way it ends with this reference
		u.Release()
		return nil
	}
	return u.c.tell(ctx, u.gen, wire.Abort, &wire.IDMessage{ID: u.id})
}

// Remote is a sealed object whose bytes are read over the connection. Safe for concurrent use.
type Remote struct {
	c     *Conn
	id    object.ID
	gen   uint64 // the life of the connection that it belongs to
	size  uint64
	class object.Class
	meta  []byte
}

// Open takes a reference to an object, by name where id is zero, to read its bytes over the connection. wait as in Get.
// The caller must Close. Errors: as Get.
func (c *Conn) Open(ctx context.Context, id object.ID, name string, wait time.Duration) (*Remote, error) {
	k, err := c.roundTrip(ctx, wire.Hold, &wire.GetRequest{ID: id, Name: name, WaitMS: milliseconds(within(ctx, wait))})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.HoldReply
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	return &Remote{c: c, id: m.ID, gen: k.gen, size: m.SizeBytes, class: m.Class,
		meta: append([]byte(nil), m.Meta...)}, nil
}

// ID names the object.
func (r *Remote) ID() object.ID { return r.id }

// Size gives the object's size in bytes.
func (r *Remote) Size() uint64 { return r.size }

// Class gives the object's lifetime class.
func (r *Remote) Class() object.Class { return r.class }

// Meta gives the object's metadata; it must not be changed.
func (r *Remote) Meta() []byte { return r.meta }

// Close gives the reference back.
func (r *Remote) Close() { r.c.postRelease(r.gen, r.id) }

// CopyRange writes n bytes from off on to w, several requests ahead of it. Errors: object.ErrInvalid beyond the
// object's end; w's; ErrDisconnected.
func (r *Remote) CopyRange(ctx context.Context, w io.Writer, off, n uint64) (err error) {
	if off > r.size || n > r.size-off {
		return fmt.Errorf("%w: bytes [%d, +%d) of an object of %d", object.ErrInvalid, off, n, r.size)
	}
	var calls []*call
	defer func() {
		for _, k := range calls { // after an error: nobody wants the rest
			_ = r.c.abandon(k, nil)
		}
	}()
	for end := off + n; off < end || len(calls) > 0; {
		if off < end && len(calls) < ahead {
			k := newCall(wire.ReadRange)
			k.gen = r.gen
			part := min(chunkBytes, end-off)
			if err := r.c.send(ctx, k, &wire.ReadRangeRequest{ID: r.id, Offset: off, Bytes: uint32(part)}); err != nil {
				return err
			}
			calls = append(calls, k)
			off += part
			continue
		}
		k := calls[0]
		calls = append(calls[:0], calls[1:]...)
		if err := r.write(ctx, w, k); err != nil {
			return err
		}
	}
	return nil
}

// write writes one answer.
func (r *Remote) write(ctx context.Context, w io.Writer, k *call) error {
	k, err := r.c.result(ctx, k)
	if err != nil {
		return err
	}
	defer k.recycle()
	n, err := w.Write(k.payload)
	if err == nil && n < len(k.payload) {
		err = io.ErrShortWrite
	}
	return err
}
