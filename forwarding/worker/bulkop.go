//go:build cgo

package worker

import (
	"fmt"
	"sync"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
)

// bulkOp is one BulkWrite or BulkRead. Until its record came (known) it is no
// more than chunks that wait.
type bulkOp struct {
	b  *bulk
	id uint64

	// Set once with bulk.mu and mu held, before known.
	known, write, inline bool
	buffer               *buffer
	ext                  extent
	content              *buffer       // nil, or what says how much of a read or push means something; held
	origin               uint64        // of the content, in a push's buffer
	size                 uint64        // dense bytes
	refused              opencl.Status // ≠ 0: the buffer or the shape is bad

	verdict int32 // of the engine; guarded by bulk.mu until due
	over    bool  // the engine has ended the command itself; likewise

	mu      sync.Mutex
	turn    bool
	status  int32
	staged  []stagedChunk
	left    uint64 // bytes that no chunk has named yet
	placing int    // chunks under way to the buffer
	told    bool   // BulkDone was sent
	short   bool   // a push that takes less than all
}

// stagedChunk waits for its operation's turn. data nil: skipped.
type stagedChunk struct {
	at   uint64
	n    uint64
	data []byte
}

// countLocked books a chunk of the wire.
func (o *bulkOp) countLocked(at, n uint64) error {
	if !o.write || at > o.size || n > o.size-at || n > o.left {
		return fmt.Errorf("%w: a chunk of %d bytes at %d for operation %d of %d bytes, %d of them expected", errRecord,
			n, at, o.id, o.size, o.left)
	}
	o.left -= n
	return nil
}

// receive takes one chunk off a lane: straight into the buffer's memory where
// that can be, into pinned memory for a device with its own, or aside.
func (o *bulkOp) receive(l *link.Lane, h clwire.LaneHeader) error {
	n := uint64(h.Length)
	o.mu.Lock()
	if o.known {
		if err := o.countLocked(h.Offset, n); err != nil {
			o.mu.Unlock()
			return err
		}
	}
	known, now := o.known, o.turn
	bad := o.status != 0
	if known {
		o.placing++ // from the books on: the operation must not end while the chunk is being read
	}
	o.mu.Unlock()
	switch {
	case h.Skipped && now:
		o.placed(int32(cl.OUT_OF_RESOURCES))
		return nil
	case h.Skipped:
		return o.stage(stagedChunk{at: h.Offset, n: n}, known)
	case now && bad:
		err := l.Discard(int(n))
		o.placed(0)
		return err
	case now && o.buffer.seg != nil:
		return o.receiveInPlace(l, h.Offset, n)
	case now:
		return o.receiveDevice(l, h.Offset, n)
	}
	if o.b.staged.Add(int64(n)) > maxStaged {
		return fmt.Errorf("%w: %d bytes for writes whose turn has not come, the limit is %d", errRecord,
			o.b.staged.Load(), clwire.StagingBytes)
	}
	data := make([]byte, n)
	if err := l.Read(data); err != nil {
		return err
	}
	return o.stage(stagedChunk{h.Offset, n, data}, known)
}

// stage keeps a chunk for later, or places it if the turn has come meanwhile.
// counted says that the chunk is in the books.
func (o *bulkOp) stage(c stagedChunk, counted bool) error {
	o.mu.Lock()
	if o.known && !counted {
		if err := o.countLocked(c.at, c.n); err != nil {
			o.mu.Unlock()
			return err
		}
		o.placing++
	}
	if !o.turn {
		if o.known {
			o.placing--
		}
		o.staged = append(o.staged, c)
		if len(o.staged) > maxBulkOps {
			o.mu.Unlock()
			return fmt.Errorf("%w: %d chunks for operation %d", errRecord, len(o.staged), o.id)
		}
		o.mu.Unlock()
		return nil
	}
	o.mu.Unlock()
	o.place(c)
	return nil
}

// place puts a chunk that was kept where it belongs.
func (o *bulkOp) place(c stagedChunk) {
	if c.data == nil {
		o.placed(int32(cl.OUT_OF_RESOURCES))
		return
	}
	o.b.staged.Add(-int64(c.n))
	o.mu.Lock()
	bad := o.status != 0
	o.mu.Unlock()
	switch {
	case bad:
		o.placed(0)
	case o.buffer.seg != nil:
		mem, data := o.buffer.bytes(), c.data
		o.ext.runs(c.at, c.n, func(at, n uint64) bool {
			data = data[copy(mem[at:at+n], data):]
			return true
		})
		o.placed(0)
	default:
		o.placeDevice(c)
	}
}

// placed books the end of a chunk's way.
func (o *bulkOp) placed(status int32) {
	o.mu.Lock()
	o.placing--
	if status != 0 && o.status == 0 {
		o.status = status
	}
	o.mu.Unlock()
	o.maybeDone()
}

// maybeDone ends a write whose bytes are all in place, or accounted for.
func (o *bulkOp) maybeDone() {
	o.mu.Lock()
	done := o.turn && o.left == 0 && o.placing == 0 && !o.told
	o.told = o.told || done
	status := o.status
	o.mu.Unlock()
	if done {
		o.end(status)
	}
}

func (o *bulkOp) end(status int32) { o.b.ended(o, status) }

// start runs when the operation's turn has come, or will never.
func (o *bulkOp) start() {
	if !o.write {
		o.startRead()
		return
	}
	o.mu.Lock()
	var bytes uint64
	for _, c := range o.staged {
		bytes += c.n
	}
	o.mu.Unlock()
	if bytes > promptBytes || bytes > 0 && o.buffer.seg == nil && o.verdict == 0 {
		o.b.work.Go(o.startWrite)
		return
	}
	o.startWrite()
}

func (o *bulkOp) startWrite() {
	o.mu.Lock()
	o.turn = true
	o.status = o.verdict
	staged := o.staged
	o.staged = nil
	o.placing += len(staged)
	o.mu.Unlock()
	if o.verdict == 0 { // not before: without limit, it would all be kept aside
		o.b.s.send(&clwire.HostReady{Op: o.id}, clwire.FlagUrgent, 0)
	}
	for _, c := range staged {
		o.place(c)
	}
	o.maybeDone()
}

func (o *bulkOp) startRead() {
	switch {
	case o.verdict != 0:
		if o.content != nil {
			o.content.unref()
		}
		if !o.over {
			o.b.s.hostDone(o.id, o.verdict)
		}
		o.b.forget(o.id)
	case o.content != nil && o.content.seg == nil:
		o.b.work.Go(func() { o.trim(); o.content = nil; o.startRead() })
	case o.content != nil:
		o.trim()
		o.content = nil
		o.startRead()
	case o.inline && o.size == 0:
		o.end(0)
	case o.size == 0: // the client knows that it has all
	case o.inline && o.buffer.seg != nil:
		o.readInline(o.buffer.bytes())
	case o.inline:
		o.b.work.Go(o.readInlineDevice)
	default:
		if lanes := o.b.now(); len(lanes) > 0 {
			o.sendByHands(lanes)
		} else { // the first has to be waited for
			o.b.work.Go(func() { link.GiveWay(o.sendOut) })
		}
	}
}

// readInline answers from memory, in one piece with the end.
func (o *bulkOp) readInline(mem []byte) {
	data := make([]byte, 0, o.size)
	o.ext.runs(0, o.size, func(at, n uint64) bool {
		data = append(data, mem[at:at+n]...)
		return true
	})
	o.b.s.send(clwire.NewBulkData(o.id, 0, data), 0, 0)
	o.end(0)
}

func (o *bulkOp) receiveInPlace(l *link.Lane, at, n uint64) error {
	mem := o.buffer.bytes()
	if !o.ext.Rect {
		err := l.Read(mem[o.ext.Offset+at:][:n])
		o.placed(0)
		return err
	}
	data := make([]byte, n)
	err := l.Read(data)
	o.b.staged.Add(int64(n)) // place takes it off
	o.place(stagedChunk{at, n, data})
	return err
}
