// Package session is what a program has that runs commands on devices: a session of its connection, workers of it, the
// memory that they share, and links between them. The OpenCL driver library (forwarding/session/node) is made of it.
// Objects are package client's.
package session

import (
	"context"
	"time"

	"tendril/client"
	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Session is the session of a connection, which begins with Open.
type Session struct{ c conn.Conn }

// Of gives a connection's session.
func Of(c *client.Conn) Session { return Session{c.Internal()} }

// Open begins this connection's session, which ends with the connection. options is JSON; snapshot is the
// platforms and devices that the session may use, as JSON (clwire.Snapshot). Where ctx ended, the connection may have
// the session, and is good for Close alone.
func (s Session) Open(ctx context.Context, libraryVersion string, options []byte) (session uint64, snapshot []byte,
	err error) {
	s.c.EndsWithSession()
	var m wire.OpenSessionReply
	if err := conn.AskInto(ctx, s.c, wire.OpenSession,
		&wire.OpenSessionRequest{LibraryVersion: libraryVersion, Options: options}, &m); err != nil {
		return 0, nil, err
	}
	s.c.HasSession(m.Session)
	return m.Session, m.Snapshot, nil
}

// ReleaseID gives back one reference of this connection that no Object stands for.
func (s Session) ReleaseID(id object.ID) { s.c.Post(0, wire.Release, &wire.IDMessage{ID: id}) }

// Keep makes the session of a connection to another machine's daemon outlive it: a call that finds the connection
// broken connects again, for up to limit, and goes on with the same session. It returns how long the daemon keeps it
// then, which may be less; 0: not at all, as over ssh. From then on calls of the session also end, or go on by another
// connection, where nothing comes for Options.Silence. It is asked for once, after Open.
func (s Session) Keep(ctx context.Context, limit time.Duration) (time.Duration, error) {
	return s.c.Keep(ctx, limit)
}

// Leave tells the daemon that the session ends with this connection, which is closed soon.
func (s Session) Leave() { s.c.LeaveSession() }
