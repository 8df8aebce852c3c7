package session

import (
	"os"

	"tendril/client"
)

// Control is the connection to the daemon. Its methods may be called concurrently.
type Control interface {
	// OpenSession begins a session and returns the snapshot of the node's devices (JSON of clwire.Snapshot).
	OpenSession(libraryVersion string, options []byte) (snapshot []byte, err error)
	// OpenWorker starts a worker for a platform of the snapshot. The caller owns both files.
	OpenWorker(platform uint32) (WorkerFiles, error)
	CloseWorker(worker uint64)
	// WorkerFate says how a worker ended; it waits a second at most for the end.
	WorkerFate(worker uint64) (alive bool, text string, err error)
	// ReserveDevice lets a worker's buffers take bytes of its devices' own memory in all; object.ErrQuota says why not. With less than
	// before it does not wait and returns nil.
	ReserveDevice(worker, bytes uint64, less bool) error
	// AllocSegment maps fresh zeroed memory of at least size bytes, writable.
	AllocSegment(size uint64) (*Segment, error)
	// FreeSegment unmaps a segment and gives it back.
	FreeSegment(*Segment)
	// PublishSegment makes the first size bytes of a segment an object in the store, replacing what has the name.
	// The segment is no longer the session's; its mapping stays valid until UnmapSegment.
	PublishSegment(s *Segment, size uint64, name string, meta []byte) (id [16]byte, err error)
	UnmapSegment(*Segment)
	// AttachObject shows a sealed object to a worker, by name where id is zero, and maps it here where memory is shared.
	// It stays until DetachObject.
	AttachObject(worker uint64, id [16]byte, name string) (*AttachedObject, error)
	DetachObject(*AttachedObject)
	Close() error
}

// WorkerFiles are the two ends that OpenWorker hands over.
type WorkerFiles struct {
	ID           uint64
	Socket, Ring *os.File
}

// Segment is shared memory of the session. The fields do not change.
type Segment struct {
	ID    uint64
	Bytes []byte // the mapping
	File  *os.File

	theirs *client.Segment // of a daemonControl
}
