// Package wire is the payload of each message of the local protocol (ipc/PROTOCOL.md) as a struct with Append and
// Decode, which go generate writes from the struct (docs/design/codecs.md). Decode trusts no byte: every length is
// checked against what is there before it is used, and a payload must be consumed to its end; a fault is
// object.ErrProtocol. Decoded []byte fields alias the payload and are valid as long as it is. No state, no locks.
package wire

import (
	"tendril/ipc/field"
	"tendril/store/object"
)

// Magic begins a Hello: "TDRL".
const Magic = 0x4C524454

// Protocol versions that this package speaks. Version 2 has the error code of object.ErrLimit, version 3 StreamAck,
// version 4 FrameAck in its place, version 5 the reason why a session ended as an answer to ResumeSession.
const (
	LowestVersion    = 1
	Version          = 5
	VersionAcks      = 3 // from here on a peer acknowledges the frames that it pops
	VersionFrameAcks = 4 // and names the stream of each
	VersionEndings   = 5 // from here on ResumeSession of a session that has ended answers ErrAborted, with the reason
)

// CodeFor gives the code that says an error to a peer of a protocol version, which must understand it: to one of
// version 1, or of none yet (0), an ErrLimit is the ErrQuota that it was there.
func CodeFor(version uint16, code object.Code) object.Code {
	if version < 2 && code == object.ErrLimit.Code() {
		return object.ErrQuota.Code()
	}
	return code
}

// Create's flags.
const (
	CreateOwn    = 1 // a segment of the object's own
	CreateShared = 2 // others of the tenant may fill it, too (Fill); implies CreateOwn
	CreateSummed = 4 // checksums are made when it is sealed, and compared from then on
)

// HelloRequest is the first message.
//
//wire:payload Hello
type HelloRequest struct {
	Magic           uint32
	Lowest, Highest uint16 // protocol versions that the peer speaks
	Program         string // for display
}

// HelloReply says who answers.
//
//wire:payload re Hello
type HelloReply struct {
	Version       uint16
	DaemonVersion string
	Incarnation   object.ID
	Tenant        string
	DaemonPID     uint32
	CapacityBytes uint64
}

// CreateRequest asks for an object to fill.
//
//wire:payload Create
type CreateRequest struct {
	SizeBytes uint64
	Class     object.Class
	Flags     uint8 // CreateOwn
	Name      string
	Meta      []byte
}

func (m *CreateRequest) check(r *field.Reader) {
	if m.Flags&^(CreateOwn|CreateShared|CreateSummed) != 0 {
		r.Fail("flags")
	}
}

// CreateReply says where the object lies.
//
//wire:payload re Create CreateWith Put
type CreateReply struct {
	ID  object.ID
	Ref object.Ref
}

// SealRequest makes an object immutable.
//
//wire:payload Seal
type SealRequest struct {
	ID     object.ID
	Strict bool
}

// GetRequest asks for a reference, by name where ID is zero.
//
//wire:payload Get Hold
type GetRequest struct {
	ID     object.ID
	Name   string
	WaitMS uint32
}

// GetReply says where the object lies and what it is.
//
//wire:payload re Get Fill
type GetReply struct {
	ID        object.ID
	Ref       object.Ref
	SizeBytes uint64
	Class     object.Class
	Meta      []byte
}

// IDMessage is the payload of Release and Abort.
//
//wire:payload Release Abort Filled DevicesFree re Upload PublishSegment Compose
type IDMessage struct{ ID object.ID }

// NameMessage is the payload of Delete, Stat and Unpublish: by name where ID is zero.
//
//wire:payload Delete Stat Unpublish Checksum Fill StreamRemove GetDevice IPCHandle
type NameMessage struct {
	ID   object.ID
	Name string
}

// ListRequest asks for descriptions.
//
//wire:payload List Published
type ListRequest struct {
	Prefix string
	All    bool
}

// BindRequest names an object: the payload of Bind and Publish.
//
//wire:payload Bind Publish
type BindRequest struct {
	ID      object.ID
	Name    string
	Replace bool
}

// Number is the payload of Forget, AllocSegment, FreeSegment, CloseWorker and WorkerFate, and of Publish's reply.
//
//wire:payload Forget AllocSegment FreeSegment CloseWorker WorkerFate Top StreamClose StreamCancel EndSession
//wire:payload SessionCommands CloseIPC
//wire:payload re Publish Checksum IndexLevel
type Number struct{ N uint64 }

// SweepReply lists segments to let go.
//
//wire:payload re Sweep
type SweepReply struct {
	Segments []uint64 `wire:"u32"`
}

// ErrorReply is the payload of Error.
//
//wire:payload
type ErrorReply struct {
	Code object.Code
	Text string
}
