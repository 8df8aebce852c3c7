package conn

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// BulkOwner is the command of a bulk operation: the program's memory, whose bytes are dense on the wire, and who is
// told of the end. Ranges lie inside the operation. The memory is not touched any more once Ended has been called.
type BulkOwner interface {
	// Bytes is a part of the memory itself; it is asked for where that is in one piece.
	Bytes(off, n uint64) []byte
	// Append appends a part of the memory.
	Append(to []byte, off, n uint64) []byte
	// Scatter writes a part of the memory.
	Scatter(off uint64, data []byte)
	// Chunk is the length of the chunk that begins at a place, at most clwire.MaxChunk.
	Chunk(at uint64) uint64
	// Ended is called once, under the reader's lock or by any goroutine: it must not wait. status is 0 or negative.
	Ended(status int32)
}

// BulkOp is one bulk command under way: a read or a write whose bytes travel apart from its record.
type BulkOp struct {
	Completion            // it is over: the program's memory is its own again
	turn       Completion // HostReady came

	ID       uint64
	Size     uint64 // bytes
	Write    bool
	Inline   bool   // its bytes go on the control stream, or may: see FitsInline
	OnePiece bool   // the program's memory is in one piece
	Held     bool   // nothing of a write goes before its turn: its bytes may change until then
	Before   func() // not nil: of a write, called before its turn counts, and may wait

	Status int32 // once done

	b     *bulk
	owner BulkOwner
	ended atomic.Bool
	short bool         // a read that is over before its end; under the reader's lock
	left  atomic.Int64 // bytes of a read that have not come, and one by lanes for HostReady

	// Of a write; guarded by bulk.mu.
	at     uint64 // where the next chunk begins
	ahead  uint64 // its part of bulk.ahead
	shared bool   // the lanes' senders take part
	queued bool   // is in bulk.runnable

	memory sync.RWMutex
	gone   bool // guarded by memory: the program's memory must not be touched any more
}

// Bulk prepares o, whose exported fields but ID are set, as an operation of owner's. The worker is a remote one.
func (c *Conn) Bulk(o *BulkOp, owner BulkOwner) {
	o.b, o.owner, o.ID = c.bulk, owner, c.opt.NewID()
	if o.left.Store(int64(o.Size)); !o.Write && !o.Inline {
		// HostReady is the last of what the control stream said before the bytes: the ends of the commands before
		// this one, and the bytes of small reads. Lanes may be quicker than that stream, and the program must not see
		// this read end before those.
		o.left.Add(1)
	}
}

// Register puts the operation among those under way, before its record is sent; false: the worker is gone. Whoever
// cannot send the record calls Finish.
func (o *BulkOp) Register() bool {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if !o.b.closed {
		o.b.ops[o.ID] = o
	}
	return !o.b.closed
}

// giveUp returns when nobody touches the program's memory any more, nor will.
func (o *BulkOp) giveUp() {
	o.memory.Lock()
	o.gone = true
	o.memory.Unlock()
}

// Finish ends the operation once.
func (o *BulkOp) Finish(status int32) {
	if o.ended.Swap(true) {
		return
	}
	o.b.forget(o)
	o.Status = status
	o.owner.Ended(status)
	o.Complete()
	o.b.c.reader.wakeOthers()
}

// receive takes a chunk of a read off a lane, straight into the program's memory where it is in one piece.
// last: the caller ends the read now, by arrived.
func (o *BulkOp) receive(l *link.Lane, h clwire.LaneHeader) (last bool, err error) {
	n := uint64(h.Length)
	if o.Write || h.Skipped || h.Offset > o.Size || n > o.Size-h.Offset {
		return false, fmt.Errorf("%w: a chunk of %d bytes at %d of a read of %d", clwire.ErrRecord, n, h.Offset, o.Size)
	}
	var dense []byte
	if !o.OnePiece {
		dense = make([]byte, n)
		if err := l.Read(dense); err != nil {
			return false, err
		}
	}
	o.memory.RLock()
	gone := o.gone
	switch {
	case gone:
	case !o.OnePiece:
		o.owner.Scatter(h.Offset, dense)
	default:
		err = l.Read(o.owner.Bytes(h.Offset, n))
	}
	o.memory.RUnlock()
	if gone && o.OnePiece {
		return false, l.Discard(int(n))
	}
	return err == nil && o.left.Add(-int64(n)) <= 0 && !gone, err
}

// turned takes HostReady of a read by lanes. It may run under the reader's lock.
func (o *BulkOp) turned() {
	if o.left.Add(-1) <= 0 {
		o.arrived()
	}
}

// arrived ends a read by lanes whose bytes are all there, and whose turn has come.
func (o *BulkOp) arrived() {
	c := o.b.c
	c.MemoryWritten() // before whoever waits for what the worker says next
	c.SendOneWay(&clwire.HostDone{Op: o.ID})
	c.Kick()
	o.Finish(cl.SUCCESS)
}

// shorten takes the bytes of a read off that will not come.
func (o *BulkOp) shorten(to uint64) error {
	if o.Write || o.short || !o.OnePiece || to >= o.Size {
		return fmt.Errorf("%w: an operation of %d bytes is over with %d", clwire.ErrRecord, o.Size, to)
	}
	o.short = true
	if left := o.left.Add(-int64(o.Size - to)); left <= 0 && !o.Inline {
		o.arrived()
	}
	return nil
}

// take copies a chunk of an inline read. It runs under the reader's lock.
func (o *BulkOp) take(at uint64, data []byte) error {
	n := uint64(len(data))
	if o.Write || at > o.Size || n > o.Size-at {
		return fmt.Errorf("%w: %d bytes at %d of a read of %d", clwire.ErrRecord, n, at, o.Size)
	}
	o.memory.RLock()
	defer o.memory.RUnlock()
	if !o.gone {
		o.owner.Scatter(at, data)
		o.left.Add(-int64(n))
	}
	return nil
}
