package wire

import (
	"tendril/ipc/field"
	"tendril/store/object"
)

// GrantRequest lets others read an object, by name where ID is zero.
//
//wire:payload Grant
type GrantRequest struct {
	ID     object.ID
	Name   string
	Revoke bool
	To     string // "uid:N", "gid:N", "all"
}

// ListWhereRequest is List with more conditions.
//
//wire:payload ListWhere
type ListWhereRequest struct {
	Prefix string
	All    bool
	Shared bool // other tenants' objects that may be read, instead of the own ones
	Labels map[string]string
}

// RenameRequest moves a name.
//
//wire:payload Rename
type RenameRequest struct {
	From, To string
	Replace  bool
}

// MaxWanted bounds an AwaitMany.
const MaxWanted = 2048

// AwaitManyRequest waits until a Get of each would find it.
//
//wire:payload AwaitMany
type AwaitManyRequest struct {
	WaitMS uint32
	Wanted []NameMessage `wire:"max=MaxWanted"`
}

// MaxReadBytes bounds a ReadRange: its reply is one frame.
const MaxReadBytes = 1 << 20

// ReadRangeRequest asks for bytes of an object, by name where ID is zero.
//
//wire:payload ReadRange
type ReadRangeRequest struct {
	ID     object.ID
	Name   string
	Offset uint64
	Bytes  uint32
}

func (m *ReadRangeRequest) check(r *field.Reader) {
	if m.Bytes > MaxReadBytes {
		r.Fail("bytes")
	}
}

// WatchRequest asks for the events of objects whose name begins so.
//
//wire:payload Watch StreamList
type WatchRequest struct{ Prefix string }
