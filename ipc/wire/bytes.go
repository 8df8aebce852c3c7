package wire

import (
	"tendril/ipc/field"
	"tendril/store/object"
)

// MaxWriteBytes bounds a Write's data: the request is one frame.
const MaxWriteBytes = 1<<20 - (object.IDBytes + 8 + 4)

// WriteRequest fills a part of an object that Upload made.
//
//wire:payload Write
type WriteRequest struct {
	ID     object.ID
	Offset uint64
	Data   []byte
}

func (m *WriteRequest) check(r *field.Reader) {
	if len(m.Data) > MaxWriteBytes {
		r.Fail("data")
	}
}

// HoldReply says what a held object is.
//
//wire:payload re Hold
type HoldReply struct {
	ID        object.ID
	SizeBytes uint64
	Class     object.Class
	Meta      []byte
}
