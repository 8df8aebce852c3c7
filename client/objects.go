package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// CreateOptions says what an object is to be. The zero value is an ephemeral object without a name.
type CreateOptions struct {
	Name   string            // bound when the object is sealed; "" = none
	Class  object.Class      // Ephemeral, the zero value: TTL with a TTL, else Named with a name
	TTL    time.Duration     // class TTL: how long from Seal on; whole milliseconds
	Labels map[string]string // ≤ object.MaxLabels; for List
	Meta   []byte            // opaque, ≤ object.MaxMetaBytes; tensors: see ipc/PROTOCOL.md
	Own    bool              // a segment of its own: exactly its size, given back whole. For single objects that stay
	// the daemon makes checksums at the seal, which takes longer, and compares them from then on: see Scrub
	Checksum bool
	Shared   bool // other processes of the tenant may fill it, too (Fill); implies Own
	Strict   bool // seal so that nobody can write any more, this process neither. Implies Own
	// with class Ephemeral: the name finds the object, but does not keep it
	EphemeralName bool
}

// class is the lifetime that the options come to.
func (o *CreateOptions) class() object.Class {
	switch {
	case o.Class != object.Ephemeral:
		return o.Class
	case o.TTL != 0:
		return object.TTL
	case o.Name != "" && !o.EphemeralName:
		return object.Named
	}
	return object.Ephemeral
}

// Buffer is an object that this process fills. Not safe for concurrent Seal and Abort.
type Buffer struct {
	c      *Conn
	id     object.ID
	view   *view
	data   []byte
	off    uint64
	size   uint64
	strict bool
	whole  bool // its pages are its own
	meta   []byte
	class  object.Class
	ended  bool
	unsure bool // a push was tried, or a seal's context ended: it may be sealed
	open   bool // the view knows that it is being filled
	pushes pushes

	shown     atomic.Bool // Bytes was called: the program may have the slice still
	gen       uint64      // the life of the connection that made it
	spareNext bool        // Seal asks for another buffer of this sort on the way
}

// Create makes an unsealed object of size bytes. The caller must Seal or Abort it; it ends with the connection
// otherwise. Errors: object.ErrInvalid, ErrFull, ErrQuota, ErrLimit, ErrUnsupported; ErrDisconnected.
func (c *Conn) Create(ctx context.Context, size uint64, o CreateOptions) (*Buffer, error) {
	if err := c.notShared("create"); err != nil {
		return nil, err
	}
	m := wire.CreateRequest{SizeBytes: size, Class: o.class(), Name: o.Name, Meta: o.Meta}
	if o.Own || o.Strict || o.Shared {
		m.Flags = wire.CreateOwn
	}
	if o.Shared {
		m.Flags |= wire.CreateShared
	}
	if o.Checksum {
		m.Flags |= wire.CreateSummed
	}
	kind, ask := wire.Create, ipc.Payload(&m)
	if o.TTL != 0 || len(o.Labels) > 0 {
		kind, ask = wire.CreateWith,
			&wire.CreateWithRequest{CreateRequest: m, TTLMS: uint64(max(o.TTL.Milliseconds(), 0)), Labels: o.Labels}
	}
	plain := kind == wire.Create && m.Flags == 0 && m.Class == object.Ephemeral && o.Name == "" && len(o.Meta) == 0 &&
		size <= spareMaxBytes
	k, err := c.takeSpare(ctx, size, plain)
	if k == nil {
		k, err = c.roundTrip(ctx, kind, ask)
	}
	if err != nil {
		k, err = c.retryFull(ctx, err, kind, ask)
	}
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	b := &Buffer{c: c, id: k.create.ID, view: k.view, off: k.create.Ref.Offset, size: size, strict: o.Strict,
		meta: o.Meta, class: m.Class, gen: k.gen}
	b.whole = m.Flags&wire.CreateOwn != 0
	c.beginFilling(b.view)
	b.spareNext = plain && c.repeats(size)
	if err := b.mapMemory(); err != nil {
		b.Abort(ctx)
		return nil, err
	}
	return b, nil
}

func (b *Buffer) mapMemory() error {
	if b.view == nil {
		return nil
	}
	data, err := b.view.forWriting(b.off, b.size)
	if err == nil {
		b.data, b.open = data, true
	}
	return err
}

// shut ends the filling. Where the program may have the buffer's slice still, stores to it fault from here on: in an
// object of shutFromBytes and more, or with a segment of its own.
func (b *Buffer) shut() {
	if b.open {
		b.open = false
		b.view.leave(b.off, b.size, b.shown.Load() && (b.whole || b.size >= shutFromBytes))
	}
}

// wasSealed reports whether the answer to a seal says that an earlier one, whose context ended, was carried out.
func (b *Buffer) wasSealed(err error) bool { return b.unsure && errors.Is(err, object.ErrSealed) }

// reopen follows a seal that failed with err, unless it may have been carried out all the same.
func (b *Buffer) reopen(ctx context.Context, err error) {
	b.unsure = b.unsure || isContext(err)
	if b.unsure || b.view == nil || b.data == nil || errors.Is(err, ErrDisconnected) {
		return
	}
	if err := b.mapMemory(); err != nil {
		// no memory for mappings, or the connection was closed: it can still be aborted, or sealed as it is
		b.data = nil
	}
}

// ID names the object.
func (b *Buffer) ID() object.ID { return b.id }

// Bytes gives the memory to fill; nil after Seal and Abort. Its contents are undefined at first. A slice from before
// must not be written any more: see the package comment for where that faults.
func (b *Buffer) Bytes() []byte {
	b.shown.Store(true)
	return b.data
}

// Seal makes the object immutable and binds its name. The Object holds the creator's reference. On an error (the name
// is taken: object.ErrExists) the buffer stays, to be aborted or sealed again. Where ctx ended the daemon may have
// sealed it, and may do so yet: then it must not be written any more, another Seal gives the Object, and Abort gives
// the reference back, which a name outlives.
func (b *Buffer) Seal(ctx context.Context) (*Object, error) {
	if b.ended {
		return nil, fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, b.id)
	}
	if err := b.unmapStrict(); err != nil {
		return nil, err
	}
	k := newCall(wire.Seal)
	k.gen = b.gen
	k.ask.seal = wire.SealRequest{ID: b.id, Strict: b.strict}
	if err := b.c.sendSeal(ctx, k, b); err != nil {
		b.unsure = b.unsure || isContext(err)
		return nil, err
	}
	b.shut() // while the daemon seals
	if _, err := b.c.result(ctx, k); err != nil && !b.wasSealed(err) {
		b.reopen(ctx, err)
		return nil, err
	} else if err == nil {
		k.recycle()
	}
	return b.sealed()
}

// unmapStrict ends the writable mapping, which a strict seal needs gone.
func (b *Buffer) unmapStrict() error {
	if !b.strict || b.view == nil {
		return nil
	}
	b.data, b.open = nil, false
	return b.view.endWriting()
}

// sealed makes the Object of a buffer that was sealed just now.
func (b *Buffer) sealed() (*Object, error) {
	b.ended, b.data = true, nil
	if !b.c.endFilling(b.view) {
		return nil, fmt.Errorf("%w: the connection was closed", ErrDisconnected)
	}
	o := &Object{c: b.c, id: b.id, view: b.view, off: b.off, size: b.size, class: b.class, meta: b.meta}
	if !b.c.hold(o, b.gen) {
		return nil, fmt.Errorf("%w: object %s was sealed, then the connection broke", ErrDisconnected, b.id)
	}
	return o, nil
}

// Abort drops the object. After Seal it does nothing. The daemon is told even where ctx has ended.
func (b *Buffer) Abort(ctx context.Context) error {
	if b.ended {
		return nil
	}
	b.ended = true
	b.data = nil
	if b.open {
		b.open = false
		b.view.leave(b.off, b.size, false)
	}
	if b.c.endFilling(b.view) {
		b.c.unref(b.view)
	}
	if b.unsure { // perhaps without success after the seal: either way it ends with this reference
		b.c.mu.Lock()
		b.pushes.aborted = true
		left := b.pushes.left()
		b.c.mu.Unlock()
		if left { // it was not pushed, so that the reference is not the stream's, or by now another reader's here
			b.c.postRelease(b.gen, b.id)
		}
		return nil
	}
	err := b.c.tell(ctx, b.gen, wire.Abort, &wire.IDMessage{ID: b.id})
	if errors.Is(err, ErrDisconnected) {
		return nil // the object went with its connection
	}
	return err
}

// Put stores a copy of data as a sealed object. The caller must Release it.
func (c *Conn) Put(ctx context.Context, data []byte, o CreateOptions) (*Object, error) {
	obj, err := c.putOnce(ctx, data, o)
	if err != nil && o.Name == "" && o.class() == object.Ephemeral && errors.Is(err, ErrDisconnected) &&
		c.revival.dial != nil && c.revive(ctx) == nil {
		return c.putOnce(ctx, data, o) // if the first one was sealed nobody knows it
	}
	return obj, err
}

func (c *Conn) putOnce(ctx context.Context, data []byte, o CreateOptions) (*Object, error) {
	b, err := c.Create(ctx, uint64(len(data)), o)
	if err != nil {
		return nil, err
	}
	segment.Copy(b.data, data)
	obj, err := b.Seal(ctx)
	if err != nil {
		b.Abort(ctx) // the first error is the one to tell
		return nil, err
	}
	return obj, nil
}

// Object is a sealed object that this process holds a reference to. Safe for concurrent use, except that nobody may
// use Bytes' slice after Release.
type Object struct {
	c        *Conn
	id       object.ID
	view     *view
	off      uint64
	size     uint64
	class    object.Class
	slot     int32 // in index, where that is not nil
	meta     []byte
	released atomic.Bool
	gone     atomic.Bool

	prev, next *Object // in Conn.held; guarded by Conn.mu
	pushed     *call   // into a stream, by a PushObject whose context ended; guarded by Conn.mu

	index *fastIndex // where it was got through shared memory; nil: over the socket
	data  []byte     // where index is not nil
}

// Get takes a reference to the object. wait bounds how long to wait for one that is not there or not sealed yet; 0 is
// not at all. The caller must Release it. Errors: object.ErrNotFound, ErrNotSealed, ErrPermission, ErrTimeout;
// ErrDisconnected; ctx's.
func (c *Conn) Get(ctx context.Context, id object.ID, wait time.Duration) (*Object, error) {
	if id.IsZero() {
		return nil, fmt.Errorf("%w: the zero id names nothing", object.ErrInvalid)
	}
	return c.get(ctx, wire.GetRequest{ID: id, WaitMS: milliseconds(within(ctx, wait))})
}

// GetByName is Get by name.
func (c *Conn) GetByName(ctx context.Context, name string, wait time.Duration) (*Object, error) {
	return c.get(ctx, wire.GetRequest{Name: name, WaitMS: milliseconds(within(ctx, wait))})
}

// afterDeadline is how long the daemon waits on after a context's deadline: the context's error comes first.
const afterDeadline = time.Second

// within bounds a wait by ctx's deadline, so that the daemon does not wait on for nobody.
func within(ctx context.Context, wait time.Duration) time.Duration {
	if end, is := ctx.Deadline(); is && wait != 0 {
		if left := max(time.Until(end), 0) + afterDeadline; wait < 0 || left < wait {
			return left
		}
	}
	return wait
}

// milliseconds rounds up; the longest wait is some 49 days.
func milliseconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((int64(d)+int64(time.Millisecond)-1)/int64(time.Millisecond), 1<<32-1))
}

func (c *Conn) get(ctx context.Context, m wire.GetRequest) (*Object, error) {
	if err := c.notShared("get"); err != nil {
		return nil, err
	}
	if o := c.fastGet(ctx, &m); o != nil {
		return o, nil
	}
	if err := ended(ctx); err != nil {
		return nil, fmt.Errorf("getting object %s: %w", called(m), err)
	}
	c.prepareIndex(ctx)
	return repeated(ctx, c, wire.Get, func() (*Object, error) { return c.getOnce(ctx, m) })
}

func (c *Conn) getOnce(ctx context.Context, m wire.GetRequest) (*Object, error) {
	k := newCall(wire.Get)
	k.ask.get = m
	if err := c.send(ctx, k, &k.ask.get); err != nil {
		return nil, err
	}
	return c.finishGet(ctx, k, m)
}

// finishGet waits for a Get that was sent.
func (c *Conn) finishGet(ctx context.Context, k *call, m wire.GetRequest) (*Object, error) {
	_, err := c.result(ctx, k)
	if err != nil {
		if isContext(err) {
			return nil, fmt.Errorf("getting object %s: %w", called(m), err)
		}
		if k, err = c.retryFull(ctx, err, wire.Get, &m); err != nil { // it comes from disk, and memory is short
			return nil, err
		}
	}
	defer k.recycle()
	o := &Object{c: c, id: k.get.ID, view: k.view, off: k.get.Ref.Offset, size: k.get.SizeBytes, class: k.get.Class,
		meta: k.get.Meta}
	if !c.hold(o, k.gen) {
		return nil, errOtherLife
	}
	if _, err := o.memory(); err != nil {
		o.Release()
		return nil, err
	}
	c.useIndex(ctx, o.view)
	return o, nil
}

// called is what a get asks for.
func called(m wire.GetRequest) string {
	if m.ID.IsZero() {
		return strconv.Quote(m.Name)
	}
	return m.ID.String()
}

// memory maps the segment if that has not happened and gives the object's bytes.
func (o *Object) memory() ([]byte, error) {
	if o.view == nil {
		return nil, nil
	}
	memory, err := o.view.forReading()
	if err != nil {
		return nil, err
	}
	return slice(memory, o.off, o.size)
}

// ID names the object.
func (o *Object) ID() object.ID { return o.id }

// Size gives the object's size in bytes.
func (o *Object) Size() uint64 { return o.size }

// Class gives the object's lifetime class.
func (o *Object) Class() object.Class { return o.class }

// Meta gives the object's metadata; it must not be changed.
func (o *Object) Meta() []byte { return o.meta }

// ThroughIndex reports whether the reference was taken in shared memory, without a system call.
func (o *Object) ThroughIndex() bool { return o.index != nil }

// Info asks the daemon for the object's full description.
func (o *Object) Info(ctx context.Context) (object.Info, error) { return o.c.Stat(ctx, o.id) }

// Bytes gives the object's bytes, in memory that faults when written; nil after Release. The slice must not be used
// after Release.
func (o *Object) Bytes() []byte {
	if o.released.Load() {
		return nil
	}
	if o.index != nil {
		return o.data
	}
	data, err := o.memory()
	// only for an object of our own whose second mapping the kernel refuses: the first one could be written
	if err != nil {
		return o.ownCopy()
	}
	return data
}

func (o *Object) ownCopy() []byte {
	o.view.mu.Lock()
	defer o.view.mu.Unlock()
	if o.view.writable == nil {
		return nil
	}
	data, err := slice(o.view.writable.Bytes(), o.off, o.size)
	if err != nil {
		return nil
	}
	return bytes.Clone(data)
}

// Release gives the reference back: with the next request, or within 1 ms. A second Release does nothing.
func (o *Object) Release() {
	if o.released.Swap(true) || o.index != nil && o.index.release(o) {
		return
	}
	if o.index != nil { // rescueHeld was here
		o.index.leave()
	}
	o.c.unref(o.view)
	o.c.releaseObject(o)
}

// Gone reports whether the connection came back (see ErrDisconnected) to a daemon that does not have the object any
// more, as after a crash where it was not on disk. Its bytes stay readable here until Release; nobody can get it.
func (o *Object) Gone() bool { return o.gone.Load() }

// Stat describes one object.
func (c *Conn) Stat(ctx context.Context, id object.ID) (object.Info, error) {
	if id.IsZero() {
		return object.Info{}, fmt.Errorf("%w: the zero id names nothing", object.ErrInvalid)
	}
	var info object.Info
	err := c.query(ctx, wire.Stat, &wire.NameMessage{ID: id}, &info)
	return info, err
}

// StatByName is Stat by name.
func (c *Conn) StatByName(ctx context.Context, name string) (object.Info, error) {
	var info object.Info
	err := c.query(ctx, wire.Stat, &wire.NameMessage{Name: name}, &info)
	return info, err
}
