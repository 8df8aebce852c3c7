//go:build cgo

package worker

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/worker/engine"
)

// bulk is what a session across a network has beside its control stream: lanes,
// and the operations whose bytes they carry. An operation is a host operation of
// the engine that this process carries out itself once its turn has come.
//
// Locks: bulk.mu, and after it bulkOp.mu; both come after the engine's. The
// engine is called with neither held.
type bulk struct {
	s *session

	mu     sync.Mutex
	ops    map[uint64]*bulkOp
	lanes  []*link.Lane
	grown  sync.Cond // a lane came, or closed
	closed bool
	due    []*bulkOp // their turn has come; for runDue

	// Immutable: how the lanes' end and an operation's own are told of. The client's bulk ends the session.
	fail  func(error)
	ended func(o *bulkOp, status int32)
	aside func(do func()) // runs do on another thread, which work counts

	staged  atomic.Int64 // bytes kept for writes whose turn has not come
	asleep  atomic.Bool  // the reader will not look at due
	staging staging
	hands   hands
	work    sync.WaitGroup // lane readers, hands and operations
}

// Bounds on what a client may begin. Staging: what it promised, and a chunk a
// lane of slack, since its count and ours meet only at BulkDone.
const (
	maxBulkOps  = 1 << 16
	maxStaged   = clwire.StagingBytes + clwire.MaxLanes*clwire.MaxChunk
	promptBytes = 64 << 10 // the reader places so much itself; more it hands to a goroutine
)

func newBulk(s *session) *bulk {
	b := &bulk{s: s, ops: map[uint64]*bulkOp{}, fail: s.fail}
	b.ended = b.tellEnd
	b.aside = func(do func()) { b.hands.run(&b.work, do) }
	b.grown.L = &b.mu
	return b
}

// tellEnd tells the engine and the client. The engine's reports come first, so that the client's call returns to a
// program that finds its event complete.
func (b *bulk) tellEnd(o *bulkOp, status int32) {
	if !o.over {
		b.s.hostDone(o.id, status)
	}
	b.s.send(&clwire.BulkDone{Op: o.id, Status: status}, clwire.FlagUrgent, 0)
	b.forget(o.id)
}

// addLane takes over a lane and reads it until it ends.
func (b *bulk) addLane(l *link.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		l.Close()
		return
	}
	b.lanes = append(b.lanes, l)
	b.grown.Broadcast()
	b.work.Go(func() {
		var err error
		link.GiveWay(func() { err = b.readLane(l) })
		b.fail(fmt.Errorf("a lane ended: %w", err))
	})
}

// all returns the lanes there are, waiting for the first; none when the session is over.
func (b *bulk) all() []*link.Lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.lanes) == 0 && !b.closed {
		b.grown.Wait()
	}
	if b.closed {
		return nil
	}
	return slices.Clone(b.lanes)
}

// now returns the lanes there are.
func (b *bulk) now() []*link.Lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	return slices.Clone(b.lanes)
}

func (b *bulk) readLane(l *link.Lane) error {
	for {
		h, err := l.Header()
		if err != nil {
			return err
		}
		op, err := b.find(h.Op)
		if err == nil {
			err = op.receive(l, h)
		}
		if err != nil {
			return err
		}
	}
}

// find returns an operation; one whose record has not come yet is made.
func (b *bulk) find(id uint64) (*bulkOp, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if op := b.ops[id]; op != nil {
		return op, nil
	}
	if len(b.ops) >= maxBulkOps {
		return nil, fmt.Errorf("%w: %d bulk operations under way", errRecord, len(b.ops))
	}
	op := &bulkOp{b: b, id: id}
	b.ops[id] = op
	return op, nil
}

func (b *bulk) forget(id uint64) {
	b.mu.Lock()
	op := b.ops[id]
	delete(b.ops, id)
	b.mu.Unlock()
	if op != nil && op.buffer != nil {
		op.buffer.unref()
	}
}

// ready is the engine's word that an operation's turn has come, or (negative)
// that it never will. It reports false when the operation is not a bulk one.
func (b *bulk) ready(id uint64, status int32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	op := b.ops[id]
	if op == nil || !op.known {
		return false
	}
	if status == 0 {
		status = int32(op.refused)
	} else {
		op.over = true // the engine has ended the command
	}
	op.verdict = status
	if status != 0 || !op.write && !op.inline {
		b.s.send(&clwire.HostReady{Op: id, Status: status}, clwire.FlagUrgent, 0)
	}
	b.due = append(b.due, op)
	if b.asleep.Load() && !b.closed {
		b.work.Go(b.runDue)
	}
	return true
}

// runDue starts what is due. The reader calls it after each look at the engine.
func (b *bulk) runDue() {
	for {
		b.mu.Lock()
		if len(b.due) == 0 {
			b.mu.Unlock()
			return
		}
		op := b.due[0]
		b.due = b.due[1:]
		b.mu.Unlock()
		op.start()
	}
}

// begin makes an operation of its record and hands it to the engine.
func (b *bulk) begin(id uint64, buf *buffer, shape *clwire.Shape, write, inline bool) error {
	ext, status := extentOf(buf, shape)
	if write && buf.seg != nil && buf.seg.readOnly {
		status = cl.INVALID_OPERATION
	}
	if inline && ext.size > clwire.InlineBytes {
		return fmt.Errorf("%w: an inline read of %d bytes", errRecord, ext.size)
	}
	op, err := b.find(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	op.mu.Lock()
	defer op.mu.Unlock()
	if id == 0 || op.known || !write && len(op.staged) > 0 {
		return fmt.Errorf("%w: operation %d is taken or zero", errRecord, id)
	}
	buf.refs.Add(1)
	op.known, op.write, op.inline, op.buffer, op.ext, op.refused = true, write, inline, buf, ext, status
	op.size = sizeOf(shape)
	if !write && !shape.Rect && status == cl.SUCCESS {
		op.content = b.s.sizeBuffer(buf, buf.content)
	}
	op.left = op.size
	if op.size == 0 || op.size > 1<<62 {
		return fmt.Errorf("%w: operation %d of %d bytes", errRecord, id, op.size)
	}
	for _, c := range op.staged {
		if err := op.countLocked(c.at, c.n); err != nil {
			return err
		}
	}
	return nil
}

// take stages or places a chunk of the control stream.
func (b *bulk) take(m *clwire.BulkBytes) error {
	n := uint64(len(m.Data))
	if n == 0 {
		return fmt.Errorf("%w: an empty chunk for operation %d", errRecord, m.Op)
	}
	op, err := b.find(m.Op)
	if err != nil {
		return err
	}
	if b.staged.Add(int64(n)) > maxStaged {
		return fmt.Errorf("%w: more than %d bytes for writes whose turn has not come", errRecord, clwire.StagingBytes)
	}
	c := stagedChunk{m.Offset, n, append([]byte(nil), m.Data...)}
	op.mu.Lock()
	late := op.turn && op.buffer.seg == nil
	op.mu.Unlock()
	if !late {
		return op.stage(c, false)
	}
	// The reader must not wait for a device.
	op.mu.Lock()
	err = op.countLocked(c.at, c.n)
	op.placing++
	op.mu.Unlock()
	if err == nil {
		b.work.Go(func() { op.place(c) })
	}
	return err
}

// received is the client's word that it has all bytes of a read.
func (b *bulk) received(id uint64) {
	b.mu.Lock()
	op := b.ops[id]
	read := op != nil && op.known && !op.write
	b.mu.Unlock()
	if read {
		b.forget(id)
	}
}

// bulkCommand hands a bulk operation to the engine.
func (s *session) bulkCommand(h clwire.Header, cmd *clwire.Cmd, id, buf uint64, shape *clwire.Shape, write,
	inline bool) error {
	b, err := lookup[*buffer](s, buf)
	if err != nil {
		return err
	}
	if err := s.bulk.begin(id, b, shape, write, inline); err != nil {
		return err
	}
	if t := s.bulk.readTask(id); t != nil {
		return s.enqueue(h, engine.KindTask, cmd, t, nil, id)
	}
	return s.enqueue(h, engine.KindHost, cmd, nil, nil, id)
}
