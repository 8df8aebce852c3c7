package wire

import (
	"tendril/ipc/field"
	"tendril/store/object"
)

// StreamOpen's flags.
const (
	StreamReads      = 1
	StreamWrites     = 2
	StreamNew        = 4  // it must not be there yet
	StreamExisting   = 8  // it must be there
	StreamDropOldest = 16 // a push into a full stream drops what waits longest
	StreamKeep       = 32 // it stays when nobody has it open and nothing waits
)

// WaitForEver is a wait without end, in ms.
const WaitForEver = 1<<32 - 1

// StreamOpenRequest opens a stream.
//
//wire:payload StreamOpen
type StreamOpenRequest struct {
	Flags  uint8
	Frames uint32 // that may wait; 0 = as it is
	Bytes  uint64 // that may wait; 0 = as it is
	Name   string
}

func (m *StreamOpenRequest) check(r *field.Reader) {
	if m.Flags >= 2*StreamKeep {
		r.Fail("flags")
	}
}

// StreamOpenReply gives the connection's number for the stream and its bounds.
//
//wire:payload re StreamOpen
type StreamOpenReply struct {
	Stream uint64
	Frames uint32
	Bytes  uint64
}

// StreamPushRequest moves a reference into a stream.
//
//wire:payload StreamPush
type StreamPushRequest struct {
	Stream uint64
	ID     object.ID
	Seal   bool   // the object is the connection's own: seal it first, where that has not happened
	WaitMS uint32 // WaitForEver: without end
	Meta   []byte // with Seal: the object's metadata from now on; empty = as Create said
}

// StreamPopRequest takes the frame that waits longest.
//
//wire:payload StreamPop
type StreamPopRequest struct {
	Stream uint64
	WaitMS uint32 // WaitForEver: without end
}

// StreamPopReply is a frame: its number in the stream, then what a Get answers.
//
//wire:payload re StreamPop
type StreamPopReply struct {
	Number uint64
	GetReply
}

// StreamEndRequest says that no more frames come.
//
//wire:payload StreamEnd
type StreamEndRequest struct {
	Stream uint64
	Abort  bool // what waits is dropped
}

// StreamAckRequest says that the peer, of version 3, has a frame.
//
//wire:payload StreamAck
type StreamAckRequest struct {
	ID     object.ID
	Number uint64 // the frame's
}

// FrameAckRequest says that the peer has a frame of a stream.
//
//wire:payload FrameAck
type FrameAckRequest struct {
	Stream uint64
	ID     object.ID
	Number uint64
}

// StreamUnpopRequest puts a popped frame back.
//
//wire:payload StreamUnpop
type StreamUnpopRequest struct {
	Stream uint64
	ID     object.ID
	Number uint64
}
