package wire

import (
	"tendril/store/object"
)

// AttachRequest shows a sealed object's segment to a worker of the session, read-only; by name where ID is zero.
//
//wire:payload AttachObject
type AttachRequest struct {
	Worker  uint64
	Attempt uint64 // the client's number for it: asked for again, it is answered again and not done twice; 0: no such
	ID      object.ID
	Name    string
}

// AttachReply says under what number the worker knows the segment, and where the object lies in it. The connection
// holds a reference to the object until a Release.
//
//wire:payload re AttachObject
type AttachReply struct {
	ID        object.ID
	Segment   uint64
	Offset    uint64
	SizeBytes uint64
}
