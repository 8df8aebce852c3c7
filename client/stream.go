package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// StreamOptions says how a stream is opened. The zero value makes it where it is missing, with room for
// object.DefaultStreamFrames.
type StreamOptions struct {
	Frames     int    // that may wait; 0: as it is. A writer's, like Bytes and DropOldest
	Bytes      uint64 // that may wait; one frame always may. 0: as it is
	DropOldest bool   // a push into a full stream drops the frame that waits longest, instead of waiting
	Keep       bool   // the stream stays when nobody has it open and nothing waits in it
	New        bool   // it must not be there yet: object.ErrExists
	Existing   bool   // it must be there: object.ErrNotFound

	// Ahead is how many frames a Writer has on their way without an answer, or a Reader asks for before they are
	// wanted: then neither waits for the daemon while the stream flows. A Writer's errors come later then: with a
	// following Push, Flush, or End. What a Reader has asked for and not popped goes back when it ends, however it
	// does. 0: none; at most 32.
	Ahead int
}

const maxAhead = 32

// Frame is an object out of a stream. The caller must Release it; then its memory is its writer's to use again.
type Frame struct {
	*Object
	Number uint64 // from 1 on, in the order of the pushes; missing ones were dropped, or popped by others
}

// Writer pushes objects into a stream. Not safe for concurrent use: each goroutine opens its own. The caller must End,
// Abort or Close it; where the last writer of a stream ends without, its readers get object.ErrAborted.
type Writer struct {
	c                   *Conn
	name                string
	id, gen             uint64 // gen: the life of the connection that it belongs to
	closed              bool
	ahead               int
	under               []underWay // pushes without an answer, the first one first
	spares              []*call    // Creates under way or finished: the next frames' memory, of spareSize bytes
	spareSize, lastSize uint64
	writes, asked       uint64 // to the socket, by this Writer; up to the second one, no reply waits for company
}

// Reader pops objects from a stream. Safe for concurrent use, but for Close. The caller must Close it.
type Reader struct {
	c     *Conn
	name  string
	id    uint64
	gen   uint64 // the life of the connection that it belongs to
	ahead int

	mu    sync.Mutex
	under []*call // pops on their way, the first one first; only with ahead
	late  []*call // whose contexts ended before their answers came: some of them may have come meanwhile
}

func (c *Conn) openStream(ctx context.Context, name string, flags uint8, o StreamOptions) (id, gen uint64, err error) {
	for set, flag := range map[*bool]uint8{
		&o.DropOldest: wire.StreamDropOldest, &o.Keep: wire.StreamKeep, &o.New: wire.StreamNew,
		&o.Existing: wire.StreamExisting,
	} {
		if *set {
			flags |= flag
		}
	}
	if o.Frames < 0 || o.Frames > object.MaxStreamFrames {
		return 0, 0, fmt.Errorf("%w: a stream of %d frames: want 1 to %d", object.ErrInvalid, o.Frames,
			object.MaxStreamFrames)
	}
	if o.Ahead < 0 || o.Ahead > maxAhead {
		return 0, 0, fmt.Errorf("%w: %d frames ahead: want 0 to %d", object.ErrInvalid, o.Ahead, maxAhead)
	}
	k, err := c.roundTrip(ctx, wire.StreamOpen,
		&wire.StreamOpenRequest{Flags: flags, Frames: uint32(o.Frames), Bytes: o.Bytes, Name: name})
	if err != nil {
		return 0, 0, err
	}
	defer k.recycle()
	var m wire.StreamOpenReply
	err = m.Decode(k.payload)
	return m.Stream, k.gen, err
}

// OpenWriter opens a stream to push into. A stream may have many writers. Errors: object.ErrExists, ErrNotFound,
// ErrInvalid, ErrLimit, ErrQuota, ErrFull; ErrEnded for one that has ended and is not empty yet; ErrDisconnected.
func (c *Conn) OpenWriter(ctx context.Context, name string, o StreamOptions) (*Writer, error) {
	id, gen, err := c.openStream(ctx, name, wire.StreamWrites, o)
	if err != nil {
		return nil, err
	}
	return &Writer{c: c, name: name, id: id, gen: gen, ahead: o.Ahead}, nil
}

// OpenReader opens a stream to pop from. A stream may have many readers: each frame goes to one of them.
func (c *Conn) OpenReader(ctx context.Context, name string, o StreamOptions) (*Reader, error) {
	id, gen, err := c.openStream(ctx, name, wire.StreamReads, o)
	if err != nil {
		return nil, err
	}
	return &Reader{c: c, name: name, id: id, gen: gen, ahead: o.Ahead}, nil
}

// waitMS is a wait as it travels: below 0 is for ever.
func waitMS(d time.Duration) uint32 {
	if d < 0 {
		return wire.WaitForEver
	}
	return min(milliseconds(d), wire.WaitForEver-1)
}

// Streams describes this tenant's streams whose name begins with prefix.
func (c *Conn) Streams(ctx context.Context, prefix string) ([]object.StreamInfo, error) {
	return conn.Collect(c.EachStream(ctx, prefix))
}

// RemoveStream ends a stream for everybody, with object.ErrAborted, and drops what waits in it.
func (c *Conn) RemoveStream(ctx context.Context, name string) error {
	return c.simple(ctx, wire.StreamRemove, &wire.NameMessage{Name: name})
}
