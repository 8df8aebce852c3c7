package client

import (
	"context"
	"encoding/json"
	"fmt"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Scrub has the daemon compare objects with their checksums, in memory where they are known and on disk: all objects
// for root and the daemon's own user, else this tenant's. An object in memory without checksums gets them. It goes in
// steps; after each of them progress is called, unless it is nil, with what all have found so far. Errors:
// ErrDisconnected; ctx's.
func (c *Conn) Scrub(ctx context.Context, progress func(object.ScrubReport)) (all object.ScrubReport, err error) {
	all.Damaged = []object.Damage{}
	for from := ""; ; from = all.Next {
		step, err := c.scrubStep(ctx, from)
		if err != nil {
			return all, err
		}
		all.Add(step)
		if progress != nil {
			progress(all)
		}
		if all.Next == "" {
			return all, nil
		}
	}
}

func (c *Conn) scrubStep(ctx context.Context, from string) (step object.ScrubReport, err error) {
	k, err := c.roundTrip(ctx, wire.Scrub, &wire.ScrubRequest{From: from})
	if err != nil {
		return step, err
	}
	defer k.recycle()
	if err := json.Unmarshal(k.payload, &step); err != nil {
		return step, fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, wire.Scrub, err)
	}
	return step, nil
}
