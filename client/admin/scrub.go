package admin

import (
	"context"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Scrub has the daemon compare objects with their checksums, in memory where they are known and on disk: all objects
// for root and the daemon's own user, else this tenant's. An object in memory without checksums gets them. It goes in
// steps; after each of them progress is called, unless it is nil, with what all have found so far. Errors:
// ErrDisconnected; ctx's.
func (n Node) Scrub(ctx context.Context, progress func(object.ScrubReport)) (all object.ScrubReport, err error) {
	all.Damaged = []object.Damage{}
	for from := ""; ; from = all.Next {
		step, err := n.scrubStep(ctx, from)
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

func (n Node) scrubStep(ctx context.Context, from string) (step object.ScrubReport, err error) {
	err = conn.Query(ctx, n.c, wire.Scrub, &wire.ScrubRequest{From: from}, &step)
	return step, err
}
