package admin

import (
	"context"
	"encoding/json"
	"iter"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// SessionCommands describes as JSON what a session has in flight, what of it ended last, and where its time went, by
// the number that EachSession shows. It is for those of the session's tenant or an administrator: else ErrPermission;
// ErrNotFound where there is no such session; ErrUnsupported by a daemon that does not know.
func (n Node) SessionCommands(ctx context.Context, session uint64) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.SessionCommands, &wire.Number{N: session})
}

// EachSession describes the sessions of the tenant's programs, each as JSON; the daemon's owner sees all.
// object.ErrUnsupported: the daemon is of an earlier release, and lists them in Status alone.
func (n Node) EachSession(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return conn.Listing[json.RawMessage](ctx, n.c, wire.SessionPage, conn.Prefixed(""), 0, nil)
}

// EndSession ends another connection's session, by the number that the status shows, and returns when its workers are
// gone. It is for this machine's daemon, and for those of the session's tenant or an administrator: else ErrPermission;
// ErrNotFound where there is no such session.
func (n Node) EndSession(ctx context.Context, session uint64) error {
	return conn.Do(ctx, n.c, wire.EndSession, &wire.Number{N: session})
}
