package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Share lets others read a sealed object: to is "uid:N", "gid:N" or "all". They find it by its ID, and by name as
// TENANT/NAME. At the first grant an object that lies beside others is copied once.
func (c *Conn) Share(ctx context.Context, id object.ID, to string) error {
	return c.simple(ctx, wire.Grant, &wire.GrantRequest{ID: id, To: to})
}

// Unshare ends a grant for new readers; who has the object keeps it until its Release.
func (c *Conn) Unshare(ctx context.Context, id object.ID, to string) error {
	return c.simple(ctx, wire.Grant, &wire.GrantRequest{ID: id, Revoke: true, To: to})
}

// Query says which objects ListWhere describes.
type Query struct {
	Prefix string            // of the name
	All    bool              // other connections' unsealed ones, too
	Labels map[string]string // all of these
	Shared bool              // other tenants' that may be read, instead of the own ones

	// every tenant's, tenant by tenant, for root and the daemon's own user (others: object.ErrPermission); not with
	// Shared
	AllTenants bool
}

// ListWhere is List with more conditions.
func (c *Conn) ListWhere(ctx context.Context, q Query) ([]object.Info, error) {
	return conn.Collect(c.Objects(ctx, q))
}

// Rename gives the object that is called from the name to, at once for all. A name that is taken is object.ErrExists,
// unless replace takes it.
func (c *Conn) Rename(ctx context.Context, from, to string, replace bool) error {
	return c.simple(ctx, wire.Rename, &wire.RenameRequest{From: from, To: to, Replace: replace})
}

// Wanted is one object of a GetMany: by name where ID is zero.
type Wanted struct {
	ID   object.ID
	Name string
}

// GetMany gets all objects, in order, or none; wait bounds the waiting for all together, 0 is not at all. The caller
// must Release each.
func (c *Conn) GetMany(ctx context.Context, wanted []Wanted, wait time.Duration) ([]*Object, error) {
	deadline := time.Now().Add(within(ctx, wait))
	for at := 0; at < len(wanted) && wait > 0; at += wire.MaxWanted {
		m := wire.AwaitManyRequest{WaitMS: milliseconds(max(time.Until(deadline), 1))}
		for _, w := range wanted[at:min(at+wire.MaxWanted, len(wanted))] {
			m.Wanted = append(m.Wanted, wire.NameMessage{ID: w.ID, Name: w.Name})
		}
		k, err := c.roundTrip(ctx, wire.AwaitMany, &m)
		if err != nil {
			return nil, fmt.Errorf("waiting for %d objects: %w", len(wanted), err)
		}
		k.recycle()
	}
	return c.getAll(ctx, wanted)
}

// getAhead is how many gets are under way at once: a batch costs one round trip.
const getAhead = 32

func (c *Conn) getAll(ctx context.Context, wanted []Wanted) (list []*Object, err error) {
	defer func() {
		if err != nil {
			for _, o := range list {
				o.Release()
			}
			list = nil
		}
	}()
	if err := c.revive(ctx); err != nil {
		return nil, err
	}
	for at := 0; at < len(wanted); at += getAhead {
		batch := wanted[at:min(at+getAhead, len(wanted))]
		under, sendErr := c.sendGets(ctx, batch)
		for i, k := range under {
			o, getErr := c.finishGet(ctx, k, wire.GetRequest{ID: batch[i].ID, Name: batch[i].Name})
			if getErr != nil {
				err = errors.Join(err, fmt.Errorf("object %d of %d: %w", at+i+1, len(wanted), getErr))
				continue
			}
			list = append(list, o)
		}
		if err = errors.Join(err, sendErr); err != nil {
			return list, err
		}
	}
	return list, nil
}

// sendGets sends a batch in one write.
func (c *Conn) sendGets(ctx context.Context, batch []Wanted) (under []*call, err error) {
	if err := c.lockSend(ctx); err != nil {
		return nil, fmt.Errorf("getting %d objects: %w", len(batch), err)
	}
	for i := 0; i < len(batch) && err == nil; i++ {
		k := newCall(wire.Get)
		k.ask.get = wire.GetRequest{ID: batch[i].ID, Name: batch[i].Name}
		if err = c.enqueue(k, &k.ask.get); err == nil {
			under = append(under, k)
		}
	}
	return under, c.writeUnlock(ctx, err)
}

// Checksum gives the XXH64 (seed 0) of an object's bytes, computed by the daemon, also from disk.
func (c *Conn) Checksum(ctx context.Context, id object.ID) (uint64, error) {
	k, err := c.roundTrip(ctx, wire.Checksum, &wire.NameMessage{ID: id})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.Number
	err = m.Decode(k.payload)
	return m.N, err
}

// ReadAt copies bytes of an object from off on into b, by way of the socket: it maps nothing and brings nothing back
// from disk. The range must lie in the object: object.ErrInvalid.
func (c *Conn) ReadAt(ctx context.Context, id object.ID, b []byte, off uint64) error {
	for len(b) > 0 {
		n := min(len(b), wire.MaxReadBytes)
		k, err := c.roundTrip(ctx, wire.ReadRange,
			&wire.ReadRangeRequest{ID: id, Offset: off, Bytes: uint32(n)})
		if err != nil {
			return err
		}
		got := copy(b[:n], k.payload)
		k.recycle()
		if got != n {
			return fmt.Errorf("%w: %d of %d bytes", object.ErrProtocol, got, n)
		}
		b, off = b[n:], off+uint64(n)
	}
	return nil
}
