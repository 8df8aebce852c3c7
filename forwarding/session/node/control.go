package node

import (
	"os"
	"time"

	"tendril/client"
	"tendril/client/session"
	"tendril/forwarding/conn"
)

// Control is the connection to the daemon. Its methods may be called concurrently.
type Control interface {
	// OpenSession begins a session and returns the snapshot of the node's devices (JSON of clwire.Snapshot).
	OpenSession(libraryVersion string, options []byte) (snapshot []byte, err error)
	// Control is what a connection to a worker asks.
	conn.Control
	// AllocSegment maps fresh zeroed memory of at least size bytes, writable.
	// Where memory is short it calls spare, which may be nil, before it waits for others': that frees what is kept.
	AllocSegment(size uint64, spare func()) (*Segment, error)
	// FreeSegment unmaps a segment and gives it back.
	FreeSegment(*Segment)
	// PublishSegment makes the first size bytes of a segment an object in the store, replacing what has the name.
	// The segment is no longer the session's; its mapping stays valid until UnmapSegment.
	PublishSegment(s *Segment, size uint64, name string, meta []byte) (id [16]byte, err error)
	UnmapSegment(*Segment)
	// AttachObject shows a sealed object to a worker, by name where id is zero, and maps it here where memory is
	// shared. It stays until DetachObject.
	AttachObject(worker uint64, id [16]byte, name string) (*Object, error)
	// AttachCopy is AttachObject of a copy in host memory, which the daemon makes of a sealed object in the memory of a
	// GPU. The object stays as it is.
	AttachCopy(worker uint64, o *Object) (*Object, error)
	DetachObject(*Object)
	// DraftObject makes an unsealed object in the memory of a GPU, by its UUID, and shows it to a worker that fills it.
	// It stays until PublishDraft or DropDraft.
	DraftObject(worker uint64, gpu string, size uint64, meta []byte) (*Object, error)
	// PublishDraft seals it and gives it a name, taken from the object that has it. Without a name it ends with this
	// process. An error leaves nothing.
	PublishDraft(o *Object, name string) error
	DropDraft(*Object)
	// DraftAlone is DraftObject that no worker is shown.
	DraftAlone(gpu string, size uint64, meta []byte) (*Object, error)
	// FillDraft has the daemon copy bytes of a sealed object, from an offset on, to the beginning of a draft.
	FillDraft(o *Object, from [16]byte, offset, bytes uint64) error
	// SendDraft sends bytes of this process's, which the daemon copies into a draft, from an offset on.
	SendDraft(o *Object, offset uint64, b []byte) error
	// JoinDraft has the daemon copy all of a draft, which ends with that, into another one. No worker has it any more.
	JoinDraft(whole *Object, offset uint64, part *Object) error
	Close() error
}

// Segment is shared memory of the session. The fields do not change.
type Segment struct {
	ID    uint64
	Bytes []byte // the mapping
	File  *os.File

	theirs *session.Segment // of a client's connection
}

// Object is an object of the store that a worker may read. Immutable.
type Object struct {
	ID      [16]byte
	Segment uint64 // the worker's number for the memory; no client's segment has it
	Offset  uint64 // of the object in it, in bytes
	Size    uint64 // bytes
	Bytes   []byte // the object, mapped for reading; nil where no memory is shared
	Device  string // the UUID of the GPU in whose memory it lies, 32 hexadecimal digits; "": host memory
	Draft   bool   // it is not sealed: the worker may write it
	Copied  bool   // it is a copy of the one asked for, which an OpenCL device has, or a GPU that is gone

	theirs *client.Object // of a client's connection, or nil
	draft  *session.Draft // of DraftObject, or nil
}

// Remote is the connection to a daemon on another machine: no memory is shared with it, so that AllocSegment
// and what belongs to it fail.
type Remote interface {
	Control
	conn.Remote
}

// InCluster is a Control whose daemon leads to the other nodes of its cluster.
type InCluster interface {
	Control
	// Others gives the nodes that answer, without the daemon's own. program and silence are for connections to them.
	Others(program string, silence time.Duration) ([]Other, error)
}

// Other is another node of a daemon's cluster.
type Other struct {
	ID   [16]byte
	Name string
	Dial func() (Control, error)
}

// Peers is a Control whose daemon connects workers.
type Peers interface {
	Control
	// OfferPeer makes the daemon let another node's worker come to one of this session's, soon: for DialPeer there.
	OfferPeer(worker, link uint64, lanes int, plaintext bool) (offer []byte, err error)
	DialPeer(worker, link uint64, offer []byte) error
	// PairPeers connects two workers of this session.
	PairPeers(a, b, link uint64, lanes int) error
	// TellPeer says for the node's status what became of a link.
	TellPeer(worker, link uint64, up bool, with, why string)
}
