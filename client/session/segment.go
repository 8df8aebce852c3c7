package session

import (
	"context"
	"fmt"
	"os"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// Segment is memory that a session works in: mapped here, and to be passed to its workers as File. Not safe for
// concurrent Free and Publish.
type Segment struct {
	ID      uint64
	File    *os.File // the Segment's: dup it to keep it
	c       conn.Conn
	mapping *segment.Mapping
	spent   bool // freed or published
}

// AllocSegment gives the session populated, zeroed memory of at least n bytes. The caller must Free or Publish it; it
// ends with the connection otherwise. Where memory is short, spare is called before others are waited for: it frees
// what the caller keeps without need; may be nil.
func (s Session) AllocSegment(ctx context.Context, n uint64, spare func()) (*Segment, error) {
	r, err := s.c.AskForMemory(ctx, wire.AllocSegment, &wire.Number{N: n}, spare)
	if err != nil {
		return nil, err
	}
	memory, err := s.takeSegment(&r)
	if err != nil {
		r.Close()
	}
	return memory, err
}

func (s Session) takeSegment(r *conn.Reply) (*Segment, error) {
	var m wire.AllocSegmentReply
	if err := m.Decode(r.Payload); err != nil {
		return nil, err
	}
	if r.Files[0] == nil || r.Files[1] != nil {
		return nil, fmt.Errorf("%w: a segment came without its one descriptor", object.ErrProtocol)
	}
	mapping, err := segment.Map(r.Files[0], m.Bytes, true)
	if err != nil {
		s.c.Post(0, wire.FreeSegment, &wire.Number{N: m.Segment})
		return nil, err
	}
	return &Segment{ID: m.Segment, File: r.Files[0], c: s.c, mapping: mapping}, nil
}

// Bytes gives the memory; nil after Unmap, Free or Publish, when no slice of it may be used any more.
func (s *Segment) Bytes() []byte { return s.mapping.Bytes() }

// Unmap ends this mapping, for a caller who maps File himself: a segment that nobody has mapped for writing is
// published without a copy.
func (s *Segment) Unmap() { s.mapping.Unmap() } // fails only for a mapping that is none

// Free gives the memory back, soon. A second Free does nothing.
func (s *Segment) Free() {
	if s.spent {
		return
	}
	s.unmap()
	s.c.Post(0, wire.FreeSegment, &wire.Number{N: s.ID})
}

func (s *Segment) unmap() {
	s.spent = true
	s.mapping.Unmap() // fails only for a mapping that is none
	s.File.Close()
}

// Publish moves the memory into a sealed object of size bytes. Nothing may map it for writing any more, here and in the
// worker (Unmap, then mappings for reading by a descriptor that is open for reading alone): else the daemon makes the
// object of a copy. The segment is spent. The connection holds one reference to the object: ReleaseID gives it back.
// replace takes the name from the object that has it. On an error the segment stays as it was; where ctx ended the
// object may have been made, and the segment is good for Free alone.
func (s *Segment) Publish(ctx context.Context, size uint64, class object.Class, name string, meta []byte,
	replace bool) (object.ID, error) {
	if s.spent {
		return object.ID{}, fmt.Errorf("%w: segment %d is freed or published already", object.ErrInvalid, s.ID)
	}
	var m wire.IDMessage
	err := conn.AskInto(ctx, s.c, wire.PublishSegment, &wire.PublishSegmentRequest{
		Segment: s.ID, SizeBytes: size, Class: class, Replace: replace, Name: name, Meta: meta,
	}, &m)
	if err != nil {
		return object.ID{}, err
	}
	s.unmap()
	return m.ID, nil
}
