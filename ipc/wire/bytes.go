package wire

import (
	"tendril/ipc/field"
	"tendril/store/object"
)

// MaxWriteBytes bounds a Write's data: the request is one frame.
const MaxWriteBytes = 1<<20 - (object.IDBytes + 8 + 4)

// MaxPutBytes bounds the data of a Put.
const MaxPutBytes = 64 << 10

// PutRequest makes a sealed object of its data, whose name may be another object's with Replace. The reply is Create's.
//
//wire:payload Put
type PutRequest struct {
	Class   object.Class
	Replace bool
	Name    string
	Meta    []byte
	TTLMS   uint64 // class ttl: ms from now on
	Labels  map[string]string
	Data    []byte
}

func (m *PutRequest) check(r *field.Reader) {
	if len(m.Data) > MaxPutBytes {
		r.Fail("data")
	}
}

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
