package session

import (
	"context"
	"fmt"
	"os"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Worker is the client's end of a worker. The caller owns both files.
type Worker struct {
	ID        uint64
	RingBytes uint64
	Socket    *os.File // doorbells and descriptors; blocking
	Ring      *os.File // memfd of both rings
}

// OpenWorker starts a worker on a platform of the session's snapshot. It may take seconds.
func (s Session) OpenWorker(ctx context.Context, platform uint32) (Worker, error) {
	m := &wire.OpenWorkerRequest{Platform: platform}
	r, err := s.c.AskForMemory(ctx, wire.OpenWorker, m, nil)
	if err != nil {
		return Worker{}, err
	}
	var opened wire.OpenWorkerReply
	err = opened.Decode(r.Payload)
	if err == nil && (r.Files[0] == nil || r.Files[1] == nil) {
		err = fmt.Errorf("%w: a worker came without its two descriptors", object.ErrProtocol)
	}
	if err != nil {
		r.Close()
		return Worker{}, err
	}
	return Worker{ID: opened.Worker, RingBytes: opened.RingBytes, Socket: r.Files[0], Ring: r.Files[1]}, nil
}

// CloseWorker ends a worker, soon.
func (s Session) CloseWorker(worker uint64) { s.c.Post(0, wire.CloseWorker, &wire.Number{N: worker}) }

// ReserveDevice lets a worker's buffers take bytes of its devices' own memory in all, from now on. object.ErrQuota says
// what the tenant has and may have; what was reserved before stays.
func (s Session) ReserveDevice(ctx context.Context, worker, bytes uint64) error {
	return conn.Do(ctx, s.c, wire.ReserveDevice, &wire.ReserveDeviceRequest{Worker: worker, Bytes: bytes})
}

// ReturnDevice is ReserveDevice of less than before, which cannot fail: it waits for nothing.
func (s Session) ReturnDevice(worker, bytes uint64) {
	s.c.Post(0, wire.ReserveDevice, &wire.ReserveDeviceRequest{Worker: worker, Bytes: bytes})
}

// WorkerFate says whether a worker lives and, when not, how it ended. It waits up to 1 s for an end that is under way.
func (s Session) WorkerFate(ctx context.Context, worker uint64) (alive bool, text string, err error) {
	var m wire.WorkerFateReply
	if err := conn.AskInto(ctx, s.c, wire.WorkerFate, &wire.Number{N: worker}, &m); err != nil {
		return false, "", err
	}
	return m.Alive, m.Text, nil
}
