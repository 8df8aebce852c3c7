package client

import (
	"context"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Part is an unsealed object of another process of the same tenant that this one helps to fill. Which bytes are whose
// is for the processes to agree on. The caller must Done it; where its connection ends without, the creator's seal
// answers object.ErrAborted.
type Part struct {
	c    *Conn
	id   object.ID
	view *view
	data []byte
	meta []byte
	gen  uint64 // the life of the connection that it belongs to
	done bool
}

// Fill joins in filling an object that was created with CreateOptions.Shared: by its id, or where that is zero by the
// name that it will have. Errors: object.ErrNotFound, ErrPermission, ErrSealed, ErrExists (this connection fills it
// already), ErrBusy; ErrDisconnected.
func (c *Conn) Fill(ctx context.Context, id object.ID, name string) (*Part, error) {
	k, err := c.roundTrip(ctx, wire.Fill, &wire.NameMessage{ID: id, Name: name})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	p := &Part{c: c, id: k.get.ID, view: k.view, meta: k.get.Meta, gen: k.gen}
	c.beginFilling(p.view)
	if p.view == nil {
		return p, nil
	}
	if p.data, err = p.view.forWriting(k.get.Ref.Offset, k.get.SizeBytes); err != nil {
		p.Done(ctx)
		return nil, err
	}
	return p, nil
}

// ID names the object.
func (p *Part) ID() object.ID { return p.id }

// Meta gives the object's metadata; it must not be changed.
func (p *Part) Meta() []byte { return p.meta }

// Bytes gives the whole object's memory. It must not be touched after Done.
func (p *Part) Bytes() []byte { return p.data }

// Done unmaps the memory and says that this process has filled its part, even where ctx has ended. A second Done does
// nothing.
func (p *Part) Done(ctx context.Context) error {
	if p.done {
		return nil
	}
	p.done, p.data = true, nil
	if p.view != nil {
		if err := p.view.endWriting(); err != nil {
			return err
		}
	}
	if p.c.endFilling(p.view) {
		p.c.unref(p.view)
	}
	return p.c.tell(ctx, p.gen, wire.Filled, &wire.IDMessage{ID: p.id})
}

// SealFilled is Seal that first waits until nobody else fills the object: not at all with wait 0 (object.ErrBusy),
// without end below 0; object.ErrTimeout. Where somebody ended in the middle of it the answer is object.ErrAborted,
// unless despite says to seal it as it is.
func (b *Buffer) SealFilled(ctx context.Context, wait time.Duration, despite bool) (*Object, error) {
	if b.ended {
		return nil, fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, b.id)
	}
	if err := b.unmapStrict(); err != nil {
		return nil, err
	}
	m := wire.SealFilledRequest{SealRequest: wire.SealRequest{ID: b.id, Strict: b.strict}, Despite: despite,
		WaitMS: waitMS(within(ctx, wait))}
	b.shut()
	k, err := b.c.roundTripIn(ctx, b.gen, wire.SealFilled, &m)
	if err != nil && !b.wasSealed(err) {
		b.reopen(ctx, err)
		return nil, err
	} else if err == nil {
		k.recycle()
	}
	return b.sealed()
}
