package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Compose makes a composite: an object without bytes of its own whose members are sealed objects of this tenant. It
// keeps them, also those that are deleted meanwhile. Of the options Name, Class, TTL, Labels and Meta count; a
// persisted composite needs persisted members. The caller must Release it. Errors: object.ErrInvalid, ErrNotFound,
// ErrPermission, ErrNotSealed, ErrExists, ErrFull, ErrQuota, ErrUnsupported (too deep, too large); ErrDisconnected.
func (c *Conn) Compose(ctx context.Context, members []object.Member, o CreateOptions) (*Object, error) {
	if len(members) > object.MaxMembers {
		return nil, fmt.Errorf("%w: a composite of %d members: want 1 to %d", object.ErrInvalid, len(members),
			object.MaxMembers)
	}
	m := wire.ComposeRequest{Class: o.class(), Name: o.Name, Meta: o.Meta, TTLMS: uint64(max(o.TTL.Milliseconds(), 0)),
		Labels: o.Labels, Members: members}
	k, err := c.roundTrip(ctx, wire.Compose, &m)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var id wire.IDMessage
	if err := id.Decode(k.payload); err != nil {
		return nil, err
	}
	composed := &Object{c: c, id: id.ID, class: o.class(), meta: o.Meta}
	if !c.hold(composed, k.gen) {
		return nil, errOtherLife
	}
	return composed, nil
}

// Tree is a composite with what it has, or a plain object: then Members is empty.
type Tree struct {
	*Object               // nil: Device
	Device  *DeviceObject // in the memory of a device, whatever the others are in; nil: Object
	Members map[string]*Tree
}

// GetTree gets an object and, where it is a composite, its members and theirs. The caller must ReleaseAll. wait is
// Get's, for the object itself.
func (c *Conn) GetTree(ctx context.Context, id object.ID, wait time.Duration) (*Tree, error) {
	o, err := c.Get(ctx, id, wait)
	if errors.Is(err, object.ErrUnsupported) {
		if of, none := c.GetDevice(ctx, id, "", 0); none == nil {
			return &Tree{Device: of}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	t := &Tree{Object: o}
	if o.Size() > 0 {
		return t, nil
	}
	info, err := o.Info(ctx)
	for i := 0; i < len(info.Members) && err == nil; i++ {
		var part *Tree
		if part, err = c.GetTree(ctx, info.Members[i].ID, 0); err == nil {
			if t.Members == nil {
				t.Members = make(map[string]*Tree, len(info.Members))
			}
			t.Members[info.Members[i].Name] = part
		} else {
			err = fmt.Errorf("member %q: %w", info.Members[i].Name, err)
		}
	}
	if err != nil {
		t.ReleaseAll()
		return nil, err
	}
	return t, nil
}

// ReleaseAll releases the object and everything below it.
func (t *Tree) ReleaseAll() {
	for _, part := range t.Members {
		part.ReleaseAll()
	}
	if t.Device != nil {
		t.Device.Release()
	} else {
		t.Release()
	}
}
