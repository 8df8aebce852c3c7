//go:build cgo

package worker

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/forecast"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
	"tendril/forwarding/worker/journal"
	storesegment "tendril/store/segment"
)

var errRecord = errors.New("bad record")

// session is one client's use of one platform. The reader owns the fields
// without a lock.
type session struct {
	link         link.Link
	bulk         *bulk             // nil: the client is on this node
	compression  *link.Compression // of the lanes; nil: nothing is packed
	private      privateMemory
	deviceMemory *deviceMemory
	platform     opencl.Platform
	devices      []opencl.Device
	inPlace      bool // every device computes on segments
	submitters   bool // the driver may block in clEnqueue…: a GPU's
	engine       *engine.Engine
	journal      *journal.Journal
	output       *output // what kernels print; nil in tests

	greeted  bool
	spin     time.Duration
	course   forecast.Course // commands, and how long it takes until what is waited for
	poller   link.Poller     // the reader's
	highest  uint64          // of all ids so far
	objects  map[uint64]any  // contexts, buffers, programs, kernels
	queues   map[uint64]*clQueue
	segments map[uint64]*segment
	blobs    map[uint64]*blob
	blocks   blocks // of writes
	files    fileSets
	subs     subDevices
	peers    peers

	graphBytes int // of all graphs; the reader's
	limits     timeLimits
	launch     launch
	write      inlineWrite
	small      smallWrites
	tracer     *tracer // nil: nobody traces
	scratch    records
	said       reports                  // the engine's, which is locked when it reports
	rows       *[rowCount]row           // dispatch.go
	messages   [rowCount]clwire.Message // what records are decoded into
	longWords  atomic.Bool              // of what programs are built from: see hasLongWord
	attached   *attachments             // segments that the daemon sends; nil in tests

	liveMu sync.Mutex
	live   map[*clQueue]struct{} // native queues, for Finish before an unmap

	ring     *link.Conn  // the link on the same node; nil across a network, where a link flushes by itself
	asleep   atomic.Bool // run does not look after the ring's backlog
	flushing atomic.Bool // flushWhileAsleep does

	post *post // the reader's

	work   sync.WaitGroup // builds, queries, releases
	failed atomic.Pointer[error]
}

// records are reused from one to the next.
type records struct {
	command engine.Command
	replay  []byte // a recorded command with the Cmd of its turn
}

// reports are reused from one to the next. A record is encoded when it is sent.
type reports struct {
	events clwire.Events
	reply  clwire.Reply
}

// blob gathers the pieces of something larger than a record.
type blob struct {
	data  []byte
	total uint64
}

// newSession makes a session over an open link. submitters: the driver may block in clEnqueue….
func newSession(l link.Link, p opencl.Platform, devices []opencl.Device, inPlace, submitters bool,
	out *output) *session {
	s := &session{link: l, platform: p, devices: devices, inPlace: inPlace, submitters: submitters, output: out,
		objects: map[uint64]any{}, queues: map[uint64]*clQueue{}, segments: map[uint64]*segment{},
		blobs: map[uint64]*blob{}, journal: journal.New(),
		live: map[*clQueue]struct{}{}, deviceMemory: newDeviceMemory(), rows: &rows}
	s.post = newPost(s.serve, &s.work)
	s.ring, _ = l.(*link.Conn)
	s.peers.s = s
	o := engine.Options{Submitters: submitters, Brief: submitters && s.ring != nil}
	if s.ring == nil {
		o.Reported = l.Kick
	}
	s.engine = engine.New(nativeDriver{}, reporter{s}, o)
	if out != nil {
		out.send = s.print
	}
	return s
}

// run serves the session until the client is gone (nil) or breaks the protocol.
func (s *session) run() (err error) {
	defer func() { s.tracer.end() }()
	defer s.unbound()
	defer func() {
		if f := s.failed.Load(); f != nil { // it brought the hang-up about
			err = *f
		}
		if err != nil && !errors.Is(err, link.ErrHangup) {
			s.sendNow(&clwire.Fault{Status: int32(cl.OUT_OF_RESOURCES), Text: err.Error()})
			s.link.Flush()
			return
		}
		err = nil
	}()
	return s.post.hold()
}

// serve is the reader's: it takes records until the client is gone or breaks the protocol, or another goroutine is the
// reader.
func (s *session) serve() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the worker failed: %v", r)
		}
	}()
	for {
		if err := s.takeAll(); err != nil {
			return err
		}
		if err := s.idle(); err != nil {
			return err
		}
	}
}

// flushEvery is how often a full ring is tried again.
const flushEvery = time.Millisecond

// tickEvery is how many records pass between two looks at the clock.
const tickEvery = 64

// takeAll executes every record that is there.
func (s *session) takeAll() error {
	last := time.Now()
	s.journal.Tick(last)
	for n := 1; ; n++ {
		h, payload, ok, err := s.link.Next()
		if err != nil {
			return err
		}
		if !ok {
			return s.sendGathered()
		}
		s.journal.Doing(uint32(h.Type))
		if err := s.execute(h, payload); err != nil {
			return fmt.Errorf("%v: %w", h.Type, err)
		}
		s.runDue()
		if n%tickEvery == 0 && time.Since(last) > 100*time.Microsecond {
			s.engine.Tick()
			if _, err := s.link.Flush(); err != nil {
				return err
			}
			last = time.Now()
			s.journal.Tick(last)
		}
	}
}

// idle polls for a while, then sleeps until there is a record. Where somebody waits for an end that is foreseen it
// sleeps first, until shortly before.
func (s *session) idle() error {
	if f := s.failed.Load(); f != nil {
		return *f
	}
	s.journal.Doing(journal.Polling)
	if s.engine.Brief() {
		return s.post.away(s.engine.FinishBrief)
	}
	planned := false
	look := func() bool {
		waits := s.engine.Poll()
		s.runDue()
		return !s.link.Empty() || planned && !waits // who was answered soon has more to do: that is polled for again
	}
	if s.poller.Spin(min(s.spin, forecast.Glance), look) {
		return nil
	}
	plan := s.expect()
	if plan.Sleep == 0 && s.poller.Spin(min(s.spin, forecast.FirstLook), look) {
		return nil
	}
	spin := s.spin - forecast.FirstLook
	if plan != (forecast.Plan{}) {
		planned = true
		if plan.Sleep > 0 {
			if err := s.nap(plan); err != nil || !s.link.Empty() {
				return err
			}
		}
		spin = max(spin, plan.Poll)
	}
	if s.poller.Spin(spin, look) {
		return nil
	}
	return s.rest(-1)
}

// nap sleeps by a plan, or until there is a record. A driver behind submitters is not waited in meanwhile: NVIDIA's
// keeps a core busy for each who waits. It is asked at every step.
func (s *session) nap(plan forecast.Plan) (err error) {
	until := time.Now().Add(plan.Sleep)
	if !s.submitters {
		err = s.rest(plan.Sleep)
	} else {
		err = s.napSteps(until, plan.Nap)
	}
	if by := time.Since(until); by >= 0 && err == nil && s.link.Empty() {
		s.course.Late(by)
	}
	return err
}

func (s *session) napSteps(until time.Time, step time.Duration) error {
	s.sleep(true)
	defer s.sleep(false)
	for left := time.Until(until); left > 0 && s.link.Empty(); left = time.Until(until) {
		if s.engine.Look(); !s.engine.Awaited() {
			return nil
		}
		if err := s.doze(min(left, step)); err != nil {
			return err
		}
	}
	return nil
}

// expect says when somebody's wait is expected to end.
func (s *session) expect() forecast.Plan {
	if s.spin <= 0 || runtime.NumCPU() == 1 || !s.engine.Awaited() {
		return forecast.Plan{}
	}
	return s.course.Expect()
}

// rest sleeps until there is a record, or for so long; −1: for ever.
func (s *session) rest(most time.Duration) error {
	s.sleep(true)
	defer s.sleep(false)
	s.engine.Park()
	defer s.engine.Unpark()
	return s.doze(most)
}

// doze sleeps on the link, which nobody else reads.
func (s *session) doze(most time.Duration) error {
	s.runDue()
	waits, err := s.link.Flush()
	if err != nil {
		return err
	}
	timeout := most
	if waits && (most < 0 || most > flushEvery) {
		timeout = flushEvery
	}
	if !s.link.Arm(clwire.ConsumerAsleep) {
		return nil
	}
	s.journal.Doing(journal.Sleeping)
	defer s.link.Awake()
	return s.link.Block(-1, timeout)
}

// sleep tells who needs it whether the reader looks after the ring's backlog and the bulk operations.
func (s *session) sleep(asleep bool) {
	s.asleep.Store(asleep)
	if s.bulk != nil {
		s.bulk.asleep.Store(asleep)
	}
}

func (s *session) runDue() {
	if s.bulk != nil {
		s.bulk.runDue()
	}
}

// fail ends the session from another goroutine.
func (s *session) fail(err error) {
	if s.failed.CompareAndSwap(nil, &err) {
		s.link.Shutdown()
	}
}

// reporter is the engine's sink.
type reporter struct{ s *session }

func (r reporter) Events(ends []engine.End, urgent bool) {
	if r.s.output != nil {
		r.s.output.drain()
	}
	var flags uint16
	switch {
	case urgent:
		flags = clwire.FlagUrgent
	case r.s.ring == nil:
		// an answer, or engine.Options.Reported: the stream's flusher would be one thread more to wake
		flags = clwire.FlagMore
	}
	r.s.said.events.Ends = ends
	r.s.send(&r.s.said.events, flags, 0)
}

func (r reporter) Reply(request uint64, status int32) {
	if r.s.output != nil {
		r.s.output.drain()
	}
	r.s.said.reply.Status = status
	r.s.send(&r.s.said.reply, clwire.FlagUrgent, request)
}

func (r reporter) HostReady(op uint64, status int32) {
	r.s.tracedReady(op, status)
	if r.s.bulk != nil && r.s.bulk.ready(op, status) {
		return
	}
	r.s.send(&clwire.HostReady{Op: op, Status: status}, clwire.FlagUrgent, 0)
}

func (r reporter) Fault(object, queue uint64, status int32, text string) {
	r.s.sendNow(&clwire.Fault{Object: object, Queue: queue, Status: status, Text: text})
}

func (s *session) send(m clwire.Message, flags uint16, request uint64) {
	if flags&clwire.FlagUrgent != 0 {
		s.course.Ended()
	}
	if err := s.link.Send(m, flags, request); err != nil {
		s.fail(err)
		return
	}
	if s.ring == nil || !s.asleep.Load() {
		return // run flushes before it sleeps
	}
	if waits, err := s.ring.Flush(); err == nil && waits && s.flushing.CompareAndSwap(false, true) {
		s.work.Go(s.flushWhileAsleep)
	}
}

// flushWhileAsleep sends on what found no room in the ring: a query's long answer or a kernel's output comes while run
// sleeps, and the client that waits for it sends nothing that would wake it.
func (s *session) flushWhileAsleep() {
	for {
		waits, err := s.ring.Flush()
		if err != nil {
			s.fail(err)
		}
		if waits && !s.ring.Hung() {
			time.Sleep(flushEvery)
			continue
		}
		s.flushing.Store(false)
		// Whoever left something meanwhile saw this one at work.
		waits, _ = s.ring.Flush()
		if !waits || s.ring.Hung() || !s.flushing.CompareAndSwap(false, true) {
			return
		}
	}
}

func (s *session) sendNow(m clwire.Message) { s.send(m, clwire.FlagUrgent, 0) }

func (s *session) print(b []byte) { s.sendNow(&clwire.Print{Data: b}) }

// reply answers a request with bytes, in as many records as it takes.
func (s *session) reply(request uint64, status opencl.Status, data []byte) {
	const room = clwire.MaxRecord - 8
	for len(data) > room {
		s.send(&clwire.Reply{Status: int32(status), Data: data[:room]}, clwire.FlagMore, request)
		data = data[room:]
	}
	s.send(&clwire.Reply{Status: int32(status), Data: data}, clwire.FlagUrgent, request)
}

// outcome tells how the creation of an object went: to the request, or as a
// Fault if it failed and nobody asked.
func (s *session) outcome(h clwire.Header, object uint64, status opencl.Status, text string) {
	switch {
	case h.Request != 0:
		s.reply(h.Request, status, nil)
	case status != cl.SUCCESS:
		s.sendNow(&clwire.Fault{Object: object, Status: int32(status), Text: text})
	}
}

// segment finds a segment by its id.
func (s *session) segment(id uint64) (*segment, error) {
	if seg := s.segments[id]; seg != nil {
		return seg, nil
	}
	if id&clwire.AttachedSegment != 0 {
		return s.attach(id)
	}
	return nil, fmt.Errorf("%w: no segment %d", errRecord, id)
}

// addSegment maps the next descriptor, or takes what the daemon sent.
func (s *session) addSegment(m *clwire.AddSegment) error {
	if m.ID&clwire.AttachedSegment != 0 {
		_, err := s.segment(m.ID) // the daemon has sent it
		return err
	}
	f, err := s.link.TakeFD()
	if err != nil {
		return err
	}
	defer f.Close()
	if s.segments[m.ID] != nil || m.ID == 0 {
		return fmt.Errorf("%w: segment %d is there already", errRecord, m.ID)
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("segment %d: %w", m.ID, err)
	}
	const most = 1 << 46 // bytes; half of an address space
	if m.Bytes == 0 || m.Bytes > most || info.Size() < int64(m.Bytes) {
		return fmt.Errorf("%w: segment %d of %d bytes has a descriptor of %d", errRecord, m.ID, m.Bytes, info.Size())
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(m.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	published := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	if published { // before this worker first heard of it
		mem, err = unix.Mmap(int(f.Fd()), 0, int(m.Bytes), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return fmt.Errorf("map segment %d of %d bytes: %w", m.ID, m.Bytes, err)
	}
	seg := &segment{id: m.ID, mem: mem, readOnly: published, gone: s.unmap}
	seg.refs.Store(1)
	s.segments[m.ID] = seg
	return nil
}

// protectSegment takes the right to write away from this process's own mapping, or gives it back. Commands that came
// before may still write.
func (s *session) protectSegment(h clwire.Header, m *clwire.ProtectSegment) error {
	f, err := s.link.TakeFD()
	if err != nil {
		return err
	}
	seg := s.segments[m.ID]
	if seg == nil || m.ID&clwire.AttachedSegment != 0 || h.Request == 0 {
		f.Close()
		return fmt.Errorf("%w: segment %d is none to protect", errRecord, m.ID)
	}
	writable := m.Writable
	seg.readOnly = !writable
	seg.refs.Add(1)
	queues := s.liveQueues()
	s.work.Go(func() {
		defer f.Close()
		defer seg.unref()
		for _, q := range queues {
			q.native.Finish()
			q.unref()
		}
		var status opencl.Status
		if storesegment.Remap(seg.mem, f, writable) != nil {
			status = cl.OUT_OF_RESOURCES // the client learns that from what it tries then
		}
		s.reply(h.Request, status, nil)
	})
	return nil
}

func (s *session) dropSegment(id uint64) error {
	seg, err := s.segment(id)
	if err != nil {
		return err
	}
	delete(s.segments, id)
	seg.unref()
	return nil
}

// unmap ends a segment's mapping once no native command can touch it.
func (s *session) unmap(seg *segment) { s.afterCommands(seg.unmap) }

// afterCommands does something once every native command there is now has ended: buffers may have been released while
// their last commands run.
func (s *session) afterCommands(do func()) {
	queues := s.liveQueues()
	s.work.Go(func() {
		for _, q := range queues {
			q.native.Finish()
			q.unref()
		}
		do()
	})
}

// liveQueues holds and returns the queues whose commands may not have ended.
func (s *session) liveQueues() (queues []*clQueue) {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	for q := range s.live {
		if q.refs.Add(1) > 1 {
			queues = append(queues, q)
		}
	}
	return queues
}
