package session

import (
	"context"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Attached is a sealed object that a worker of this session may read.
type Attached struct {
	ID        object.ID
	Segment   uint64 // the worker's number for the memory
	Offset    uint64 // of the object in it, in bytes
	SizeBytes uint64
}

// AttachObject shows a sealed object to a worker of this session; by name where id is zero. It waits for one that is on
// disk. One in the memory of a GPU need not be sealed, if it is the tenant's: the worker may write it then. The
// connection holds a reference to it until ReleaseID. It works on another machine's daemon too: the object is one of
// that machine's. object.ErrNotFound, ErrPermission, ErrInvalid (an empty object).
func (s Session) AttachObject(ctx context.Context, worker uint64, id object.ID, name string) (Attached, error) {
	var m wire.AttachReply
	if err := conn.AskInto(ctx, s.c, wire.AttachObject,
		&wire.AttachRequest{Worker: worker, Attempt: s.c.NextAttempt(), ID: id, Name: name}, &m); err != nil {
		return Attached{}, err
	}
	return Attached{ID: m.ID, Segment: m.Segment, Offset: m.Offset, SizeBytes: m.SizeBytes}, nil
}
