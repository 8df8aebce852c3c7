package client

import (
	"context"
	"time"

	"tendril/client/internal/conn"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Internal is what the packages beside this one (admin, session) are made of. It is not for programs.
func (c *Conn) Internal() conn.Conn { return beside{c} }

// beside is a Conn as package conn has it.
type beside struct{ c *Conn }

// asReply gives a finished call back, and what came with it to the caller.
func asReply(k *call, err error) (conn.Reply, error) {
	if err != nil {
		return conn.Reply{}, err
	}
	r := conn.Reply{Payload: k.payload, Files: k.files, Life: k.gen}
	k.payload = nil
	k.recycle()
	return r, nil
}

func (b beside) Ask(ctx context.Context, kind wire.Type, p ipc.Payload) (conn.Reply, error) {
	return asReply(b.c.roundTrip(ctx, kind, p))
}

func (b beside) AskIn(ctx context.Context, life uint64, kind wire.Type, p ipc.Payload) (conn.Reply, error) {
	return asReply(b.c.roundTripIn(ctx, life, kind, p))
}

func (b beside) AskForMemory(ctx context.Context, kind wire.Type, p ipc.Payload, spare func()) (conn.Reply, error) {
	k, err := b.c.roundTrip(ctx, kind, p)
	if err != nil {
		if spare != nil && object.IsShort(err) {
			spare()
		}
		k, err = b.c.retryFull(ctx, err, kind, p)
	}
	return asReply(k, err)
}

func (b beside) Tell(ctx context.Context, life uint64, kind wire.Type, p ipc.Payload) error {
	return b.c.tell(ctx, life, kind, p)
}

func (b beside) Post(life uint64, kind wire.Type, p ipc.Payload) { b.c.post(life, kind, p) }

func (b beside) NextAttempt() uint64 { return b.c.attempts.Add(1) }

func (b beside) Lane(ctx context.Context) (*ipc.Socket, error) { return b.c.lane(ctx) }

func (b beside) Socket() string { return b.c.socket }

func (b beside) Renew(ctx context.Context) error { return b.c.renewNow(ctx) }

func (b beside) IndexState(ctx context.Context) error { return b.c.indexState(ctx) }

func (b beside) EndsWithSession() { b.c.noReturn() }

func (b beside) HasSession(session uint64) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.sessionID = session
}

func (b beside) Keep(ctx context.Context, limit time.Duration) (time.Duration, error) {
	return b.c.keepSession(ctx, limit)
}

func (b beside) LeaveSession() { b.c.leaveSession() }
