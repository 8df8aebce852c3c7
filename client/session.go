package client

import (
	"context"
	"fmt"
	"os"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/store/segment"
)

// EndSession ends another connection's session, by the number that the status shows, and returns when its workers are
// gone. It is for this machine's daemon, and for those of the session's tenant or an administrator: else ErrPermission;
// ErrNotFound where there is no such session.
func (c *Conn) EndSession(ctx context.Context, session uint64) error {
	return c.simple(ctx, wire.EndSession, &wire.Number{N: session})
}

// OpenSession begins this connection's session, which ends with the connection. options is JSON; snapshot is the
// platforms and devices that the session may use, as JSON (clwire.Snapshot). Where ctx ended, the connection may have
// the session, and is good for Close alone.
func (c *Conn) OpenSession(ctx context.Context, libraryVersion string, options []byte) (session uint64, snapshot []byte,
	err error) {
	c.noReturn()
	k, err := c.roundTrip(ctx, wire.OpenSession,
		&wire.OpenSessionRequest{LibraryVersion: libraryVersion, Options: options})
	if err != nil {
		return 0, nil, err
	}
	defer k.recycle()
	var m wire.OpenSessionReply
	if err := m.Decode(k.payload); err != nil {
		return 0, nil, err
	}
	c.mu.Lock()
	c.sessionID = m.Session
	c.mu.Unlock()
	return m.Session, append([]byte(nil), m.Snapshot...), nil
}

// Worker is the client's end of a worker. The caller owns both files.
type Worker struct {
	ID        uint64
	RingBytes uint64
	Socket    *os.File // doorbells and descriptors; blocking
	Ring      *os.File // memfd of both rings
}

// OpenWorker starts a worker on a platform of the session's snapshot. It may take seconds.
func (c *Conn) OpenWorker(ctx context.Context, platform uint32) (Worker, error) {
	m := &wire.OpenWorkerRequest{Platform: platform}
	k, err := c.roundTrip(ctx, wire.OpenWorker, m)
	if err != nil {
		k, err = c.retryFull(ctx, err, wire.OpenWorker, m)
	}
	if err != nil {
		return Worker{}, err
	}
	defer k.recycle()
	var opened wire.OpenWorkerReply
	err = opened.Decode(k.payload)
	if err == nil && (k.files[0] == nil || k.files[1] == nil) {
		err = fmt.Errorf("%w: a worker came without its two descriptors", object.ErrProtocol)
	}
	if err != nil {
		k.closeFiles()
		return Worker{}, err
	}
	return Worker{ID: opened.Worker, RingBytes: opened.RingBytes, Socket: k.files[0], Ring: k.files[1]}, nil
}

// CloseWorker ends a worker, soon.
func (c *Conn) CloseWorker(worker uint64) { c.post(0, wire.CloseWorker, &wire.Number{N: worker}) }

// ReserveDevice lets a worker's buffers take bytes of its devices' own memory in all, from now on. object.ErrQuota says
// what the tenant has and may have; what was reserved before stays.
func (c *Conn) ReserveDevice(ctx context.Context, worker, bytes uint64) error {
	return c.simple(ctx, wire.ReserveDevice, &wire.ReserveDeviceRequest{Worker: worker, Bytes: bytes})
}

// ReturnDevice is ReserveDevice of less than before, which cannot fail: it waits for nothing.
func (c *Conn) ReturnDevice(worker, bytes uint64) {
	c.post(0, wire.ReserveDevice, &wire.ReserveDeviceRequest{Worker: worker, Bytes: bytes})
}

// WorkerFate says whether a worker lives and, when not, how it ended. It waits up to 1 s for an end that is under way.
func (c *Conn) WorkerFate(ctx context.Context, worker uint64) (alive bool, text string, err error) {
	k, err := c.roundTrip(ctx, wire.WorkerFate, &wire.Number{N: worker})
	if err != nil {
		return false, "", err
	}
	defer k.recycle()
	var m wire.WorkerFateReply
	if err := m.Decode(k.payload); err != nil {
		return false, "", err
	}
	return m.Alive, m.Text, nil
}

// Segment is memory that a session works in: mapped here, and to be passed to its workers as File. Not safe for
// concurrent Free and Publish.
type Segment struct {
	ID      uint64
	File    *os.File // the Segment's: dup it to keep it
	c       *Conn
	mapping *segment.Mapping
	spent   bool // freed or published
}

// AllocSegment gives the session populated, zeroed memory of at least n bytes. The caller must Free or Publish it; it
// ends with the connection otherwise. Where memory is short, spare is called before others are waited for: it frees
// what the caller keeps without need; may be nil.
func (c *Conn) AllocSegment(ctx context.Context, n uint64, spare func()) (*Segment, error) {
	k, err := c.roundTrip(ctx, wire.AllocSegment, &wire.Number{N: n})
	if err != nil {
		if spare != nil && object.IsShort(err) {
			spare()
		}
		k, err = c.retryFull(ctx, err, wire.AllocSegment, &wire.Number{N: n})
	}
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	s, err := c.takeSegment(k)
	if err != nil {
		k.closeFiles()
	}
	return s, err
}

func (c *Conn) takeSegment(k *call) (*Segment, error) {
	var m wire.AllocSegmentReply
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	if k.files[0] == nil || k.files[1] != nil {
		return nil, fmt.Errorf("%w: a segment came without its one descriptor", object.ErrProtocol)
	}
	mapping, err := segment.Map(k.files[0], m.Bytes, true)
	if err != nil {
		c.post(0, wire.FreeSegment, &wire.Number{N: m.Segment})
		return nil, err
	}
	return &Segment{ID: m.Segment, File: k.files[0], c: c, mapping: mapping}, nil
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
	s.c.post(0, wire.FreeSegment, &wire.Number{N: s.ID})
}

func (s *Segment) unmap() {
	s.spent = true
	s.mapping.Unmap() // fails only for a mapping that is none
	s.File.Close()
}

// Publish moves the memory into a sealed object of size bytes. Nothing may map it for writing any more, here and in the
// worker (Unmap, then mappings for reading by a descriptor that is open for reading alone): else the daemon makes the
// object of a copy. The segment is spent. The connection holds one reference to the object: ReleaseID gives it back.
// replace takes o.Name from the object that has it. On an error the segment stays as it was; where ctx ended the object
// may have been made, and the segment is good for Free alone.
func (s *Segment) Publish(ctx context.Context, size uint64, o CreateOptions, replace bool) (object.ID, error) {
	if s.spent {
		return object.ID{}, fmt.Errorf("%w: segment %d is freed or published already", object.ErrInvalid, s.ID)
	}
	k, err := s.c.roundTrip(ctx, wire.PublishSegment, &wire.PublishSegmentRequest{
		Segment: s.ID, SizeBytes: size, Class: o.class(), Replace: replace, Name: o.Name, Meta: o.Meta,
	})
	if err != nil {
		return object.ID{}, err
	}
	defer k.recycle()
	var m wire.IDMessage
	if err := m.Decode(k.payload); err != nil {
		return object.ID{}, err
	}
	s.unmap()
	return m.ID, nil
}

// ReleaseID gives back one reference of this connection that no Object stands for.
func (c *Conn) ReleaseID(id object.ID) { c.postRelease(0, id) }
