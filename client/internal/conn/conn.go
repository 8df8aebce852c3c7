// Package conn is a connection to a daemon as the packages beside client have it: requests, their answers, and the
// session that a connection may have. client makes it of its Conn; admin and session are made of it.
package conn

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Conn is a connection. Safe for concurrent use. What a call's context means is said at client's package comment.
type Conn interface {
	// Ask sends a request and waits for its reply. One that alters nothing goes out again where the connection broke
	// and came back.
	Ask(ctx context.Context, kind wire.Type, p ipc.Payload) (Reply, error)

	// AskIn is Ask in one life of the connection (Reply.Life), and never again.
	AskIn(ctx context.Context, life uint64, kind wire.Type, p ipc.Payload) (Reply, error)

	// AskForMemory is Ask that tries again for a while where memory is short. Before others are waited for, spare is
	// called: it frees what the caller keeps without need; may be nil.
	AskForMemory(ctx context.Context, kind wire.Type, p ipc.Payload, spare func()) (Reply, error)

	// Tell is AskIn of a short request that gives something back: it reaches the daemon even where ctx has ended.
	Tell(ctx context.Context, life uint64, kind wire.Type, p ipc.Payload) error

	// Post sends a message that has no answer, soon. It is dropped where the connection is broken, or in another life
	// than this one, where that is not 0.
	Post(life uint64, kind wire.Type, p ipc.Payload)

	// NextAttempt gives a number that no request of the connection has had.
	NextAttempt() uint64

	// Lane connects once more to the same daemon.
	Lane(ctx context.Context) (*ipc.Socket, error)

	// Socket is where the daemon was found, or the server's name.
	Socket() string

	// Renew gets the next certificate where it is due.
	Renew(ctx context.Context) error

	// IndexState says why the index in shared memory is not used; nil: it is.
	IndexState(ctx context.Context) error

	// EndsWithSession says that the connection will have a session, and does not come back once it breaks.
	EndsWithSession()

	// HasSession says which session that is.
	HasSession(session uint64)

	// Keep makes the session outlive the connection, and LeaveSession ends it with the connection all the same.
	Keep(ctx context.Context, limit time.Duration) (time.Duration, error)
	LeaveSession()
}

// Reply is what a daemon answers. Its files are the caller's.
type Reply struct {
	Payload []byte
	Files   [ipc.MaxFDs]*os.File
	Life    uint64 // of the connection, in which the answer came
}

// Close closes the files that are still there.
func (r *Reply) Close() {
	for i, f := range r.Files {
		if f != nil {
			f.Close()
			r.Files[i] = nil
		}
	}
}

// Do is Ask of what has an empty answer.
func Do(ctx context.Context, c Conn, kind wire.Type, p ipc.Payload) error {
	_, err := c.Ask(ctx, kind, p)
	return err
}

// Decoder is a message that reads itself from a payload, which it may keep.
type Decoder interface{ Decode([]byte) error }

// AskInto is Ask whose answer m reads.
func AskInto(ctx context.Context, c Conn, kind wire.Type, p ipc.Payload, m Decoder) error {
	r, err := c.Ask(ctx, kind, p)
	if err != nil {
		return err
	}
	return m.Decode(r.Payload)
}

// Query is Ask whose answer is JSON.
func Query(ctx context.Context, c Conn, kind wire.Type, p ipc.Payload, into any) error {
	r, err := c.Ask(ctx, kind, p)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(r.Payload, into); err != nil {
		return fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, kind, err)
	}
	return nil
}

// Raw is Query whose answer stays JSON.
func Raw(ctx context.Context, c Conn, kind wire.Type, p ipc.Payload) (json.RawMessage, error) {
	var raw json.RawMessage
	err := Query(ctx, c, kind, p, &raw)
	return raw, err
}
