package wire

import (
	"tendril/store/object"
)

// OpenSessionRequest begins a session.
//
//wire:payload OpenSession
type OpenSessionRequest struct {
	LibraryVersion string
	Options        []byte // JSON
}

// OpenSessionReply is the answer, put together from all its frames.
//
//wire:payload re OpenSession
type OpenSessionReply struct {
	Session  uint64
	Snapshot []byte
}

// OpenWorkerRequest asks for a worker.
//
//wire:payload OpenWorker
type OpenWorkerRequest struct{ Platform uint32 }

// OpenWorkerReply comes with two descriptors: socket, ring.
//
//wire:payload re OpenWorker
type OpenWorkerReply struct{ Worker, RingBytes uint64 }

// AllocSegmentReply comes with a descriptor.
//
//wire:payload re AllocSegment
type AllocSegmentReply struct{ Segment, Bytes uint64 }

// PublishSegmentRequest moves a session's segment into an object.
//
//wire:payload PublishSegment
type PublishSegmentRequest struct {
	Segment   uint64
	SizeBytes uint64
	Class     object.Class
	Replace   bool
	Name      string
	Meta      []byte
}

// ReserveDeviceRequest says how many bytes of its devices' memory a worker's buffers may take in all, from now on.
//
//wire:payload ReserveDevice
type ReserveDeviceRequest struct{ Worker, Bytes uint64 }

// WorkerFateReply says how a worker is.
//
//wire:payload re WorkerFate
type WorkerFateReply struct {
	Alive bool
	Text  string
}
