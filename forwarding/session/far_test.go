package session

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/link"
	"tendril/forwarding/session/node"
	"tendril/tools/e2e/loopback"
)

// fakeFar is a fakeNode on another machine: it shares no memory, its workers are reached over TCP, and their bulk
// commands run as PROTOCOL.md says.
type fakeFar struct {
	*fakeNode
	secure bool
	// tamper, guarded by mu, if not nil, is asked before a lane's chunk of a read is sent; false keeps the chunk back.
	tamper func(f *fakeFar, l *link.Lane, h *clwire.LaneHeader) bool

	worker  *fakeWorker // the one there is
	config  *tls.Config
	mu      sync.Mutex
	came    []fakeChunk // from lanes
	lanes   []*link.Lane
	up      sync.Cond
	sends   sync.WaitGroup // of the worker's goroutine
	quiet   chan struct{}  // closed after them
	over    bool
	bulks   map[uint64]*fakeBulk // the worker's own
	most    atomic.Uint64        // of staged
	brought uint64               // bytes of trimmed reads
	staged  uint64               // bytes of writes whose turn has not come
}

// fakeBulk is one bulk command. Chunks may come before it.
type fakeBulk struct {
	id      uint64
	known   bool
	write   bool
	inline  bool
	buffer  *fakeBuffer
	shape   clwire.Shape
	size    uint64
	content *fakeBuffer // nil, or what says how much of a read comes
	chunks  []fakeChunk
	got     uint64
	skipped bool
	turn    bool
	status  int32
}

type fakeChunk struct {
	op, at, n uint64
	data      []byte // nil: skipped
}

func newFakeFar(n *fakeNode, secure bool) *fakeFar {
	f := &fakeFar{fakeNode: n, secure: secure, bulks: map[uint64]*fakeBulk{}, quiet: make(chan struct{})}
	f.up.L = &f.mu
	return f
}

func (f *fakeFar) AllocSegment(uint64, func()) (*node.Segment, error) { return nil, node.ErrNoShared }
func (f *fakeFar) OpenWorker(uint32) (conn.WorkerFiles, error) {
	return conn.WorkerFiles{}, node.ErrNoShared
}

func (f *fakeFar) OpenRemoteWorker(_ uint32, own link.Fingerprint, lanes int, plaintext,
	_ bool) (conn.RemoteWorker, error) {
	if plaintext == f.secure {
		return conn.RemoteWorker{}, fmt.Errorf("plaintext %v", plaintext)
	}
	id, err := link.NewIdentity()
	if err != nil {
		return conn.RemoteWorker{}, err
	}
	if f.secure {
		f.config = id.Config(own)
	}
	w := conn.RemoteWorker{ID: 7, Fingerprint: id.Fingerprint(), Tickets: make([][32]byte, lanes)}
	for i := range w.Tickets {
		w.Tickets[i][0] = byte(i)
	}
	return w, nil
}

func (f *fakeFar) KeepSession(time.Duration) (time.Duration, error) { return 0, nil }
func (f *fakeFar) ResumeWorker(uint64, []int) ([][32]byte, error)   { return nil, node.ErrNoShared }

// DialLane connects the two ends itself; ticket 0 is the control stream.
func (f *fakeFar) DialLane(ticket [32]byte) (*os.File, error) {
	dialed, mine, err := loopback.Pair()
	if err != nil {
		return nil, err
	}
	f.wg.Go(func() {
		defer mine.Close()
		if ticket[0] == 0 {
			f.serve(mine)
		} else {
			f.serveLane(mine)
		}
	})
	return dialed, nil
}

func (f *fakeFar) serve(socket *os.File) {
	defer close(f.quiet)
	s, err := link.OpenStream(link.Worker, socket, link.Options{TLS: f.config})
	if err != nil {
		f.t.Errorf("the worker's stream: %v", err)
		return
	}
	w := newFakeWorker(s)
	w.far = f
	if w.wake, err = eventFD(); err != nil {
		f.t.Error(err)
		return
	}
	f.fakeNode.mu.Lock()
	f.workers[7] = w
	f.fakeNode.mu.Unlock()
	f.mu.Lock()
	f.worker = w
	f.mu.Unlock()
	w.run()
	f.end()
	f.sends.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	fd := w.wake
	w.wake = -1
	closeFD(fd)
}

func closeFD(fd int) { os.NewFile(uintptr(fd), "eventfd").Close() }

func (f *fakeFar) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.up.Broadcast()
	for _, l := range f.lanes {
		l.Shutdown()
	}
}

func (f *fakeFar) serveLane(socket *os.File) {
	l, err := link.OpenLane(link.Worker, socket, link.Options{TLS: f.config})
	if err != nil {
		return // the session ended meanwhile
	}
	defer f.closeLane(l)
	f.mu.Lock()
	if f.over {
		l.Shutdown()
	}
	f.lanes = append(f.lanes, l)
	f.up.Broadcast()
	f.mu.Unlock()
	for {
		h, err := l.Header()
		if err != nil {
			return
		}
		c := fakeChunk{op: h.Op, at: h.Offset, n: uint64(h.Length)}
		if !h.Skipped {
			c.data = make([]byte, h.Length)
			if l.Read(c.data) != nil {
				return
			}
		}
		f.mu.Lock()
		f.came = append(f.came, c)
		if f.worker != nil && f.worker.wake >= 0 {
			poke(f.worker.wake)
		}
		f.mu.Unlock()
	}
}

// closeLane closes a lane once nobody sends by it any more.
func (f *fakeFar) closeLane(l *link.Lane) {
	<-f.quiet
	l.Close()
}

// takeChunks books what lanes brought. Like all below it runs in the worker's goroutine.
func (f *fakeFar) takeChunks() {
	f.mu.Lock()
	came := f.came
	f.came = nil
	f.mu.Unlock()
	for _, c := range came {
		f.book(c)
	}
}

func (f *fakeFar) find(id uint64) *fakeBulk {
	b := f.bulks[id]
	if b == nil {
		b = &fakeBulk{id: id}
		f.bulks[id] = b
	}
	return b
}

func (f *fakeFar) book(c fakeChunk) {
	b := f.find(c.op)
	b.chunks = append(b.chunks, c)
	b.got += c.n
	b.skipped = b.skipped || c.data == nil
	if !b.turn {
		if f.staged += c.n; f.staged > clwire.StagingBytes {
			f.t.Errorf("%d bytes are under way for writes whose turn has not come", f.staged)
		}
		f.most.Store(max(f.most.Load(), f.staged))
	}
	if b.known && (!b.write || b.got > b.size) {
		f.t.Errorf("%d bytes of %d for operation %d, a write: %v", b.got, b.size, b.id, b.write)
	}
}

// record takes a record of a bulk command; c is to be the command.
func (f *fakeFar) record(c *fakeCommand, h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeBulkBytes:
		m := decode(&clwire.BulkBytes{}, p)
		f.book(fakeChunk{m.Op, m.Offset, uint64(len(m.Data)), m.Data})
		return nil
	case clwire.TypeBulkWrite:
		m := decode(&clwire.BulkWrite{}, p)
		c.cmd, c.bulk = m.Cmd, f.find(m.Op)
		of, err := f.worker.named(h.Type, m.Buffer)
		if err != nil {
			return err
		}
		c.bulk.write, c.bulk.buffer, c.bulk.shape = true, of[0], m.Shape
	default:
		m := decode(&clwire.BulkRead{}, p)
		c.cmd, c.bulk = m.Cmd, f.find(m.Op)
		of, err := f.worker.named(h.Type, m.Buffer)
		if err != nil {
			return err
		}
		c.bulk.inline, c.bulk.buffer, c.bulk.shape = m.Inline, of[0], m.Shape
		c.bulk.content = f.worker.buffers[f.worker.contents[m.Buffer]]
	}
	b := c.bulk
	if b.known {
		return errors.New("an operation's number came twice")
	}
	b.known, b.size = true, b.shape.Size
	if b.shape.Rect {
		b.size = b.shape.Region[0] * b.shape.Region[1] * b.shape.Region[2]
	}
	f.worker.accept(c)
	return nil
}

// stepBulk goes on with a command whose dependencies are over; over says that it has ended, with a status.
func (f *fakeFar) stepBulk(c *fakeCommand, status int32) (over bool, ended int32) {
	b, w := c.bulk, f.worker
	if !c.ready {
		c.ready, b.turn, b.status = true, true, status
		f.staged -= b.got
		if !b.inline || status < 0 {
			w.conn.Send(&clwire.HostReady{Op: b.id, Status: status}, clwire.FlagUrgent, 0)
		}
		switch {
		case !b.write && status < 0:
			return true, status
		case b.inline:
			w.conn.Send(clwire.NewBulkData(b.id, 0, f.trimmed(b)), 0, 0)
			w.conn.Send(&clwire.BulkDone{Op: b.id}, clwire.FlagUrgent, 0)
			return true, 0
		case !b.write:
			dense := f.trimmed(b)
			f.sends.Go(func() { f.sendAll(b.id, dense) })
		}
	}
	if !b.write {
		_, over = w.gates[b.id]
		return over, 0
	}
	if b.got < b.size {
		return false, 0
	}
	if b.status == 0 && b.skipped {
		b.status = int32(cl.OUT_OF_RESOURCES)
	}
	if b.status == 0 {
		b.apply()
	}
	delete(f.bulks, b.id)
	w.conn.Send(&clwire.BulkDone{Op: b.id, Status: b.status}, clwire.FlagUrgent, 0)
	return true, b.status
}

// runs calls f with each contiguous part of the buffer, in the order of the dense bytes.
func (b *fakeBulk) runs(f func(part []byte)) {
	s := &b.shape
	if !s.Rect {
		f(b.buffer.data[s.Offset : s.Offset+s.Size])
		return
	}
	for z := range s.Region[2] {
		for y := range s.Region[1] {
			at := (s.Origin[2]+z)*s.SlicePitch + (s.Origin[1]+y)*s.RowPitch + s.Origin[0]
			f(b.buffer.data[at : at+s.Region[0]])
		}
	}
}

func (b *fakeBulk) read() (dense []byte) {
	b.runs(func(part []byte) { dense = append(dense, part...) })
	return dense
}

// trimmed is what a read brings.
func (f *fakeFar) trimmed(b *fakeBulk) []byte {
	dense := b.read()
	if b.content == nil || b.shape.Rect {
		return dense
	}
	n := le.Uint64(b.content.data)
	if n -= min(n, b.shape.Offset); n >= b.size {
		return dense
	}
	f.worker.conn.Send(&clwire.BulkLength{Op: b.id, Bytes: n}, clwire.FlagUrgent, 0)
	f.brought += n
	return dense[:n]
}

func (b *fakeBulk) apply() {
	dense := make([]byte, b.size)
	for _, c := range b.chunks {
		copy(dense[c.at:c.at+c.n], c.data)
	}
	b.runs(func(part []byte) { dense = dense[copy(part, dense):] })
}

// sendAll sends a read's bytes by all lanes in turn, the last chunk first.
func (f *fakeFar) sendAll(op uint64, dense []byte) {
	f.mu.Lock()
	for len(f.lanes) == 0 && !f.over {
		f.up.Wait()
	}
	lanes, tamper := f.lanes, f.tamper
	f.mu.Unlock()
	const n = 100 << 10
	for i := (len(dense)+n-1)/n - 1; i >= 0 && len(lanes) > 0; i-- {
		part := dense[i*n : min(len(dense), (i+1)*n)]
		h := clwire.LaneHeader{Op: op, Offset: uint64(i * n), Length: uint32(len(part))}
		l := lanes[i%len(lanes)]
		if tamper != nil && !tamper(f, l, &h) {
			continue
		}
		if h.Skipped || int(h.Length) > len(part) {
			part = make([]byte, h.Length)
		}
		if h.Skipped {
			part = nil
		}
		if l.Send(h, part, nil) != nil {
			return
		}
	}
}

// newFarRig is a program whose only node is on another machine.
func newFarRig(t testing.TB, secure bool, change ...func(*Config)) (*rig, *fakeFar) {
	t.Helper()
	var far *fakeFar
	r := newRig(t, false, append([]func(*Config){func(c *Config) {
		inner := c.Dial
		c.Plaintext = !secure
		c.Lanes = 2
		c.Dial = func() (node.Control, error) {
			node, err := inner()
			if err == nil {
				far = newFakeFar(node.(*fakeNode), secure)
			}
			return far, err
		}
	}}, change...)...)
	return r, far
}

// rigMaker makes a program on the kind of node that a test is run with.
type rigMaker func(change ...func(*Config)) *rig

// everyWay runs a test on this node, with a device in place and one that is not, and on another machine.
func everyWay(t *testing.T, f func(t *testing.T, newRig rigMaker)) {
	for _, inPlace := range []bool{true, false} {
		t.Run(fmt.Sprintf("inplace=%v", inPlace), func(t *testing.T) {
			f(t, func(change ...func(*Config)) *rig { return newRig(t, inPlace, change...) })
		})
	}
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		f(t, func(change ...func(*Config)) *rig {
			r, _ := newFarRig(t, secure, change...)
			return r
		})
	})
}

func overTCPAndTLS(t *testing.T, f func(t *testing.T, secure bool)) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) { f(t, secure) })
	}
}
