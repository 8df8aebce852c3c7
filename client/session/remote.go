package session

import (
	"context"
	"fmt"

	"tendril/client"
	"tendril/client/internal/conn"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// RemoteWorker is a worker that is reached through its daemon's front door: ticket i, shown by DialLane within 30 s,
// opens lane i.
type RemoteWorker struct {
	ID           uint64
	WorkerSHA256 [32]byte   // of the worker's certificate (DER): what to pin; zero without TLS
	Tickets      [][32]byte // secrets
}

// OpenRemoteWorker starts a worker on a platform of the session's snapshot, for a client that descriptors do not reach.
// clientSHA256 is the hash of the certificate (DER) that this client will show on each lane; plaintext does without
// TLS, where the daemon allows that; with resume the connections can be replaced (ResumeWorker), and greet each other.
// It may take seconds.
func (s Session) OpenRemoteWorker(ctx context.Context, platform uint32, clientSHA256 [32]byte, lanes int, plaintext,
	resume bool) (RemoteWorker, error) {
	var m wire.OpenRemoteWorkerReply
	err := conn.AskInto(ctx, s.c, wire.OpenRemoteWorker, &wire.OpenRemoteWorkerRequest{
		Platform: platform, ClientSHA256: clientSHA256, Lanes: uint8(min(max(lanes, 0), 255)), Plaintext: plaintext,
		Resume: resume,
	}, &m)
	if err != nil {
		return RemoteWorker{}, err
	}
	return RemoteWorker{ID: m.Worker, WorkerSHA256: m.WorkerSHA256, Tickets: m.Tickets}, nil
}

// ResumeWorker gives tickets for new connections to a worker of OpenRemoteWorker, one for each of the lanes
// (ascending), in the place of those that were lost. Errors: object.ErrNoDevice, with its fate, for a worker that has
// ended; ErrNotFound.
func (s Session) ResumeWorker(ctx context.Context, worker uint64, lanes []int) ([][32]byte, error) {
	m := &wire.ResumeWorkerRequest{Worker: worker}
	for _, lane := range lanes {
		m.Lanes |= 1 << lane
	}
	var reply wire.ResumeWorkerReply
	if err := conn.AskInto(ctx, s.c, wire.ResumeWorker, m, &reply); err != nil {
		return nil, err
	}
	if len(reply.Tickets) != len(lanes) {
		return nil, fmt.Errorf("%w: %d tickets for %d lanes", object.ErrProtocol, len(reply.Tickets), len(lanes))
	}
	return reply.Tickets, nil
}

// DialLane connects once more to the same daemon with a ticket of OpenRemoteWorker. What follows on the socket is
// between the caller and the worker. The caller must Close it.
func (s Session) DialLane(ctx context.Context, ticket [32]byte) (*ipc.Socket, error) {
	lane, err := s.c.Lane(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: a data connection to %s: %w", client.ErrDisconnected, s.c.Socket(), err)
	}
	if _, err := lane.Write(ipc.NewPreface(ipc.KindTicket, ticket).Append(nil)); err != nil {
		lane.Close()
		return nil, fmt.Errorf("%w: a data connection to %s: %w", client.ErrDisconnected, s.c.Socket(), err)
	}
	return lane, nil
}
