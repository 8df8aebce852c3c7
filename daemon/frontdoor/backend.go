package frontdoor

import (
	"context"
	"os"
)

// Peer is who opened a connection. PID, UID and GID come from the kernel (SO_PEERCRED); Tenant from the
// configured tenancy; Name is what the peer calls itself in Hello and is for display only.
type Peer struct {
	PID    int
	UID    uint32
	GID    uint32
	Tenant string
	Name   string
}

// Worker is a worker as its client needs it. Whoever receives the struct owns both files and closes them.
type Worker struct {
	ID        uint64
	RingBytes uint64
	Socket    *os.File // the client's end of the doorbell socketpair
	Ring      *os.File // the memfd of both rings
}

// Backend is what the front door asks of the rest of the daemon. Every method may be called from many
// goroutines at once. Errors wrap a sentinel of store/object. A session belongs to the connection that opened
// it: the front door calls CloseSession exactly once when that connection ends, and never passes a session's
// number for another connection.
type Backend interface {
	// Status gives the daemon's status as one JSON value. ctx ends with the connection.
	Status(ctx context.Context) ([]byte, error)
	// Devices gives the clwire.Snapshot of all platforms as JSON.
	Devices() ([]byte, error)
	// OpenSession starts a session for p. options is the client's JSON, unchecked, valid during the call only.
	// The snapshot is what this session may see, as JSON.
	OpenSession(p Peer, libraryVersion string, options []byte) (session uint64, snapshot []byte, err error)
	// CloseSession ends the session and its workers.
	CloseSession(session uint64)
	// OpenWorker gives a worker on the platform with that index in the session's snapshot. It may take seconds.
	// It must come back soon after CloseSession or the daemon's end.
	OpenWorker(session uint64, platform uint32) (Worker, error)
	// CloseWorker ends one worker; an unknown one is ignored.
	CloseWorker(session, worker uint64)
	// WorkerFate says whether the worker lives and, when not, how it ended ("killed by SIGSEGV"). It waits up
	// to 1 s for an end that is under way.
	WorkerFate(session, worker uint64) (alive bool, text string, err error)
}
