package conn

import (
	"os"
	"time"

	"tendril/forwarding/link"
)

// Control is what a connection asks of the daemon that has the worker. Its methods may be called concurrently.
type Control interface {
	// OpenWorker starts a worker for a platform of the snapshot. The caller owns both files.
	OpenWorker(platform uint32) (WorkerFiles, error)
	CloseWorker(worker uint64)
	// WorkerFate says how a worker ended; it waits a second at most for the end. SessionEndedError: with its session.
	WorkerFate(worker uint64) (alive bool, text string, err error)
	// ReserveDevice lets a worker's buffers take bytes of its devices' own memory in all; object.ErrQuota says why
	// not. With less than before it does not wait and returns nil.
	ReserveDevice(worker, bytes uint64, less bool) error
}

// SessionEndedError says that the daemon ended a session, and why.
type SessionEndedError struct{ Why string }

func (e *SessionEndedError) Error() string { return e.Why }

// WorkerFiles are the two ends that OpenWorker hands over.
type WorkerFiles struct {
	ID           uint64
	Socket, Ring *os.File
}

// Remote is what a connection asks of a daemon on another machine, beside Control.
type Remote interface {
	// OpenRemoteWorker starts a worker whose lanes this process will dial, each with a ticket, within 30 s. own is
	// the fingerprint of the certificate shown on them. With resume the connections can be replaced.
	OpenRemoteWorker(platform uint32, own link.Fingerprint, lanes int, plaintext, resume bool) (RemoteWorker, error)
	// DialLane connects once more and shows a ticket. The caller owns the socket, from which nothing was read.
	DialLane(ticket [32]byte) (*os.File, error)
	// KeepSession makes the session outlive this connection, for limit at most; it returns for how long, 0: not at
	// all.
	KeepSession(limit time.Duration) (time.Duration, error)
	// ResumeWorker gives tickets for new connections in the place of a worker's lanes that were lost, in ascending
	// order.
	ResumeWorker(worker uint64, lanes []int) ([][32]byte, error)
}

// RemoteWorker is what OpenRemoteWorker gives.
type RemoteWorker struct {
	ID          uint64
	Fingerprint link.Fingerprint // of the worker's certificate
	Tickets     [][32]byte       // one a lane; lane 0 is the control stream
}
