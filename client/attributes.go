package client

import (
	"context"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Change says what Update alters of a sealed object; nil and false leave it.
type Change struct {
	Pinned  *bool             // true: stays in memory whatever is short of it
	TTL     *time.Duration    // from now on, class ttl; 0: no end any more
	Labels  map[string]string // take the place of all labels; empty, not nil: none
	Persist bool              // put on disk, and of class persisted, when Update comes back
}

// Update alters a sealed object of this tenant's. Errors: object.ErrNotFound, ErrNotSealed, ErrPermission, ErrInvalid,
// ErrFull, ErrQuota, ErrUnsupported, ErrStorage; ErrDisconnected.
func (c *Conn) Update(ctx context.Context, id object.ID, change Change) error {
	m := wire.UpdateRequest{ID: id, Labels: change.Labels}
	if change.Pinned != nil {
		m.Flags |= wire.UpdateUnpin
		if *change.Pinned {
			m.Flags ^= wire.UpdatePin | wire.UpdateUnpin
		}
	}
	if change.TTL != nil {
		m.Flags |= wire.UpdateTTL
		m.TTLMS = uint64(max(change.TTL.Milliseconds(), 0))
	}
	if change.Labels != nil {
		m.Flags |= wire.UpdateLabels
	}
	if change.Persist {
		m.Flags |= wire.UpdatePersist
	}
	return c.simple(ctx, wire.Update, &m)
}
