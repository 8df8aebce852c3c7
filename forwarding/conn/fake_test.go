package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
	"tendril/store/object"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

func init() { exitPatience = 5 * time.Minute } // a process that stands still is no daemon that does not answer

const (
	success        int32 = cl.SUCCESS
	outOfResources int32 = cl.OUT_OF_RESOURCES
)

// record is what the fake worker received.
type record struct {
	clwire.Header
	payload []byte
}

// fakeWorker is the other end of a connection: it answers what begins one and keeps the rest for the test, which
// answers as it likes.
type fakeWorker struct {
	t       testing.TB
	link    link.Link
	records chan record
	ended   chan struct{} // run has returned
	hello   func(w *fakeWorker, request uint64)
	files   atomic.Int32 // descriptors that came
	stop    atomic.Bool
}

func greetWell(w *fakeWorker, request uint64) {
	m := clwire.HelloReply{Version: clwire.Version, Capabilities: clwire.CapProtect | clwire.CapPacked}
	w.reply(request, success, m.Append(nil))
}

func (w *fakeWorker) run() {
	defer close(w.ended)
	defer w.link.Close()
	for !w.stop.Load() {
		pause := 50 * time.Millisecond
		if waits, _ := w.link.Flush(); waits {
			pause = 100 * time.Microsecond
		}
		h, payload, ok, err := w.link.Next()
		switch {
		case err != nil:
			return
		case ok:
			w.take(h, payload)
		case w.link.Arm(clwire.ConsumerAsleep):
			if w.link.Block(-1, pause) != nil {
				return
			}
			w.link.Awake()
		}
	}
}

func (w *fakeWorker) take(h clwire.Header, payload []byte) {
	switch h.Type {
	case clwire.TypeHello:
		w.hello(w, h.Request)
		return
	case clwire.TypeClockSync:
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			w.t.Error(err)
		}
		w.reply(h.Request, success, (&clwire.ClockReply{Taken: now.Nano(), Answered: now.Nano()}).Append(nil))
		return
	case clwire.TypeTakesPacked:
		return
	case clwire.TypeTraceOn:
		var m clwire.TraceOn
		if m.Decode(payload) == nil && m.Shared {
			w.takeFile()
		}
	case clwire.TypeAddSegment, clwire.TypeProtectSegment:
		w.takeFile()
	}
	w.records <- record{h, slices.Clone(payload)}
}

func (w *fakeWorker) takeFile() {
	if f, err := w.link.TakeFD(); err != nil {
		w.t.Errorf("no descriptor: %v", err)
	} else {
		f.Close()
		w.files.Add(1)
	}
}

// expect returns the next record, which is of a type.
func (w *fakeWorker) expect(typ clwire.Type) record {
	w.t.Helper()
	select {
	case r := <-w.records:
		if r.Type != typ {
			w.t.Fatalf("the worker received %v, want %v", r.Type, typ)
		}
		return r
	case <-time.After(5 * time.Minute):
		w.t.Fatalf("no %v comes", typ)
	}
	panic("unreachable")
}

// nothing says that no record waits to be looked at. What it is asked about has been sent by then.
func (w *fakeWorker) nothing() {
	w.t.Helper()
	select {
	case r := <-w.records:
		w.t.Errorf("the worker received %v", r.Type)
	default:
	}
}

func (w *fakeWorker) send(m clwire.Message) {
	if err := w.link.Send(m, clwire.FlagUrgent, 0); err != nil && !errors.Is(err, link.ErrHangup) {
		w.t.Errorf("send %v: %v", m.Type(), err)
	}
	w.link.Kick()
}

func (w *fakeWorker) reply(request uint64, status int32, data []byte) {
	_ = w.link.Send(&clwire.Reply{Status: status, Data: data}, clwire.FlagUrgent, request)
	w.link.Kick()
}

// raw is a record as it never should be.
type raw struct {
	typ     clwire.Type
	payload []byte
}

func (r *raw) Type() clwire.Type      { return r.typ }
func (r *raw) Append(b []byte) []byte { return append(b, r.payload...) }
func (r *raw) Decode([]byte) error    { return nil }

// fakeDaemon is the daemon that has the worker.
type fakeDaemon struct {
	t       testing.TB
	hello   func(w *fakeWorker, request uint64) // nil: greetWell
	opening func() error                        // nil, or what OpenWorker fails of
	fate    func() (alive bool, text string, err error)

	mu       sync.Mutex
	worker   *fakeWorker
	closed   []uint64
	quota    uint64 // of ReserveDevice; 0: none
	counts   bool   // ReserveDevice is there
	reserved []uint64
}

func (d *fakeDaemon) OpenWorker(uint32) (WorkerFiles, error) {
	if d.opening != nil {
		if err := d.opening(); err != nil {
			return WorkerFiles{}, err
		}
	}
	ring := memfd(d.t, clwire.RingBytes)
	if _, err := ring.WriteAt(clwire.RingHeader(), 0); err != nil {
		return WorkerFiles{}, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return WorkerFiles{}, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "client")
	end, err := link.New(link.Worker, ring, mine)
	mine.Close()
	if err != nil {
		return WorkerFiles{}, err
	}
	d.start(end)
	return WorkerFiles{ID: 7, Socket: theirs, Ring: ring}, nil
}

func (d *fakeDaemon) start(end link.Link) *fakeWorker {
	w := &fakeWorker{t: d.t, link: end, records: make(chan record, 4096), ended: make(chan struct{}), hello: d.hello}
	if w.hello == nil {
		w.hello = greetWell
	}
	d.mu.Lock()
	d.worker = w
	d.mu.Unlock()
	go w.run()
	return w
}

func (d *fakeDaemon) CloseWorker(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = append(d.closed, id)
}

func (d *fakeDaemon) WorkerFate(uint64) (bool, string, error) {
	if d.fate == nil {
		return false, "killed by the test", nil
	}
	return d.fate()
}

func (d *fakeDaemon) ReserveDevice(_, bytes uint64, less bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.counts {
		return object.ErrUnsupported
	}
	if d.quota > 0 && bytes > d.quota && !less {
		return fmt.Errorf("%w: the fake has %d bytes", object.ErrQuota, d.quota)
	}
	d.reserved = append(d.reserved, bytes)
	return nil
}

func memfd(t testing.TB, size int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "fake")
}

// fakeSink notes what it is told, a line each.
type fakeSink struct {
	known func(event uint64) bool // nil: all are

	mu    sync.Mutex
	lines []string
	lost  chan struct{} // closed by Lost
}

func newSink() *fakeSink { return &fakeSink{lost: make(chan struct{})} }

func (s *fakeSink) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *fakeSink) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

func (s *fakeSink) knows(f func(event uint64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = f
}

func (s *fakeSink) Ended(end *clwire.EventEnd) bool {
	s.add("event %d: %d", end.Event, end.Status)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known == nil || s.known(end.Event)
}
func (s *fakeSink) Fault(m *clwire.Fault) {
	s.add("fault of queue %d: %d %s", m.Queue, m.Status, m.Text)
}
func (s *fakeSink) Pushed(event, n uint64)   { s.add("pushed %d: %d", event, n) }
func (s *fakeSink) Print(data []byte)        { s.add("print %s", data) }
func (s *fakeSink) Notice(line string)       { s.add("notice %s", line) }
func (s *fakeSink) Lost(err error, own bool) { s.add("lost, by this side: %v", own); close(s.lost) }
func (s *fakeSink) PeerState(m *clwire.PeerState) error {
	if s.add("link %d up: %v", m.Link, m.Up); m.Link == 0 {
		return fmt.Errorf("%w: no link", clwire.ErrRecord)
	}
	return nil
}

// rig is one connection under test.
type rig struct {
	t      testing.TB
	daemon *fakeDaemon
	sink   *fakeSink
	log    *fakeSink
	c      *Conn
}

func options(control Control, sink, log *fakeSink) Options {
	var ids atomic.Uint64
	return Options{
		Control: control, Name: "the fake", Sink: sink, NewID: func() uint64 { return ids.Add(1) }, Program: "test",
		Spin: 20 * time.Microsecond,
		Log:  func(line string) { log.add("%s", line) }, Counters: &trace.Counters{},
	}
}

// open makes a connection to a fake worker of this node.
func open(t *testing.T, change ...func(r *rig, o *Options)) *rig {
	t.Helper()
	r := &rig{t: t, daemon: &fakeDaemon{t: t, counts: true}, sink: newSink(), log: newSink()}
	o := options(r.daemon, r.sink, r.log)
	for _, f := range change {
		f(r, &o)
	}
	r.c = New(o)
	if err := r.c.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.c.Close()
		<-r.w().ended
	})
	return r
}

func (r *rig) w() *fakeWorker {
	r.daemon.mu.Lock()
	defer r.daemon.mu.Unlock()
	return r.daemon.worker
}

// lost waits until the Sink was told of the end.
func (r *rig) lost() {
	r.t.Helper()
	select {
	case <-r.sink.lost:
	case <-time.After(5 * time.Minute):
		r.t.Fatal("no word of the end comes")
	}
}

func (r *rig) said(line string) bool { return slices.Contains(r.sink.all(), line) }

// ask sends a question in the background; the answer comes by the channel.
func (r *rig) ask(m clwire.Message) chan *Call {
	answer := make(chan *Call, 1)
	go func() {
		call, err := r.c.Ask(m)
		if err != nil {
			call = nil
		}
		answer <- call
	}()
	return answer
}

// fakeFar is a daemon of another machine, with the lanes' far ends.
type fakeFar struct {
	*fakeDaemon
	secure  bool
	keeps   bool
	tickets int          // 0: as many as asked for
	refuse  func() error // nil, or what ResumeWorker answers; guarded by mu, as all below
	dialing func() error // nil, or what DialLane fails of
	config  *tls.Config
	sockets map[int]*os.File // of each lane's present connection, to cut it
	stream  *link.Stream
	up      chan struct{}   // closed when stream is there
	over    context.Context // ends under mu, by close: a connection that comes up later is closed at once
	end     context.CancelFunc
	lanes   map[int]*link.Lane
	chunks  []chunk
	work    sync.WaitGroup
}

// chunk is what came by a lane.
type chunk struct {
	clwire.LaneHeader
	data []byte
}

func (f *fakeFar) OpenWorker(uint32) (WorkerFiles, error) {
	return WorkerFiles{}, errors.New("not this node's")
}

func (f *fakeFar) OpenRemoteWorker(_ uint32, own link.Fingerprint, lanes int, plaintext, _ bool) (RemoteWorker, error) {
	if f.opening != nil {
		if err := f.opening(); err != nil {
			return RemoteWorker{}, err
		}
	}
	id, err := link.NewIdentity()
	if err != nil {
		return RemoteWorker{}, err
	}
	if f.secure {
		f.config = id.Config(own)
	}
	if f.tickets != 0 {
		lanes = f.tickets
	}
	w := RemoteWorker{ID: 7, Fingerprint: id.Fingerprint(), Tickets: make([][32]byte, lanes)}
	for i := range w.Tickets {
		w.Tickets[i][0] = byte(i)
	}
	return w, nil
}

func (f *fakeFar) KeepSession(limit time.Duration) (time.Duration, error) { return limit, nil }

func (f *fakeFar) ResumeWorker(_ uint64, lanes []int) ([][32]byte, error) {
	f.mu.Lock()
	refuse := f.refuse
	f.mu.Unlock()
	if refuse != nil {
		if err := refuse(); err != nil {
			return nil, err
		}
	}
	tickets := make([][32]byte, len(lanes))
	for i, number := range lanes {
		tickets[i][0] = byte(number)
	}
	return tickets, nil
}

// DialLane connects the two ends.
func (f *fakeFar) DialLane(ticket [32]byte) (*os.File, error) {
	f.mu.Lock()
	dialing := f.dialing
	f.mu.Unlock()
	if dialing != nil {
		if err := dialing(); err != nil {
			return nil, err
		}
	}
	dialed, mine, err := loopback.Pair()
	if err != nil {
		return nil, err
	}
	f.work.Go(func() { f.accept(int(ticket[0]), mine) })
	return dialed, nil
}

func (f *fakeFar) accept(number int, socket *os.File) {
	f.mu.Lock()
	if old := f.sockets[number]; old != nil {
		old.Close()
	}
	f.sockets[number] = socket
	stream, lane := f.stream, f.lanes[number]
	f.mu.Unlock()
	o := link.Options{TLS: f.config, Compression: &link.Compression{}}
	if f.keeps {
		o.Lost = func() {}
	}
	switch {
	case number == 0 && stream != nil:
		_ = stream.Resume(socket)
	case number == 0:
		s, err := link.OpenStream(link.Worker, socket, o)
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.over.Err() != nil {
			f.mu.Unlock()
			s.Close()
			return
		}
		f.stream = s
		f.mu.Unlock()
		f.start(s)
		close(f.up)
	case lane != nil:
		_ = lane.Resume(socket)
	default:
		l, err := link.OpenLane(link.Worker, socket, o)
		if err != nil {
			return
		}
		select {
		case <-f.up:
		case <-f.over.Done():
		}
		f.mu.Lock()
		if f.over.Err() != nil {
			f.mu.Unlock()
			l.Close()
			return
		}
		f.lanes[number] = l
		f.stream.Carry(l, number)
		f.mu.Unlock()
		f.collect(l)
	}
}

func (f *fakeFar) collect(l *link.Lane) {
	for {
		h, err := l.Header()
		if err != nil {
			return
		}
		x := chunk{LaneHeader: h}
		if !h.Skipped {
			x.data = make([]byte, h.Length)
			if l.Read(x.data) != nil {
				return
			}
		}
		f.mu.Lock()
		f.chunks = append(f.chunks, x)
		f.mu.Unlock()
	}
}

// came puts together what came of an operation by the lanes; skipped are bytes that were left out.
func (f *fakeFar) came(op, size uint64) (data []byte, got, skipped uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data = make([]byte, size)
	for _, x := range f.chunks {
		if x.Op == op && x.Skipped {
			skipped += uint64(x.Length)
		} else if x.Op == op {
			got += uint64(copy(data[x.Offset:], x.data))
		}
	}
	return data, got, skipped
}

// lane returns a lane's far end, once it is up.
func (f *fakeFar) lane(number int) (l *link.Lane) {
	f.t.Helper()
	await.Until(f.t, fmt.Sprintf("lane %d", number), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		l = f.lanes[number]
		return l != nil
	})
	return l
}

// cut breaks a lane's connection.
func (f *fakeFar) cut(number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sockets[number]; s != nil {
		_ = unix.Shutdown(int(s.Fd()), unix.SHUT_RDWR)
	}
}

func (f *fakeFar) close() {
	f.mu.Lock()
	f.end()
	for _, l := range f.lanes {
		l.Close()
	}
	if f.stream != nil {
		f.stream.Shutdown()
	}
	f.mu.Unlock()
	f.work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sockets {
		s.Close()
	}
}

// openFar makes a connection to a fake worker of another machine.
func openFar(t *testing.T, secure, keeps bool, change ...func(f *fakeFar, o *Options)) (*rig, *fakeFar) {
	t.Helper()
	r, f, o := farRig(t, secure, keeps, change...)
	r.c = New(o)
	if err := r.c.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.c.Close()
		f.close()
		<-r.w().ended
	})
	return r, f
}

func farRig(t *testing.T, secure, keeps bool, change ...func(f *fakeFar, o *Options)) (*rig, *fakeFar, Options) {
	t.Helper()
	r := &rig{t: t, daemon: &fakeDaemon{t: t, counts: true}, sink: newSink(), log: newSink()}
	f := &fakeFar{fakeDaemon: r.daemon, secure: secure, keeps: keeps, up: make(chan struct{}),
		sockets: map[int]*os.File{}, lanes: map[int]*link.Lane{}}
	f.over, f.end = context.WithCancel(context.Background())
	o := options(f, r.sink, r.log)
	o.Lanes, o.Plaintext = 2, !secure
	if keeps {
		o.Resumes, o.Resume = true, 10*time.Minute
	}
	for _, g := range change {
		g(f, &o)
	}
	return r, f, o
}
