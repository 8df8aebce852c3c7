package client

import (
	"context"
	"encoding/json"
	"fmt"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// SessionCommands describes as JSON what a session has in flight, what of it ended last, and where its time went, by
// the number that EachSession shows. It is for those of the session's tenant or an administrator: else ErrPermission;
// ErrNotFound where there is no such session; ErrUnsupported by a daemon that does not know.
func (c *Conn) SessionCommands(ctx context.Context, session uint64) (json.RawMessage, error) {
	k, err := c.roundTrip(ctx, wire.SessionCommands, &wire.Number{N: session})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var raw json.RawMessage
	if err := json.Unmarshal(k.payload, &raw); err != nil {
		return nil, fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, wire.SessionCommands, err)
	}
	return raw, nil
}
