package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/link"
	"tendril/forwarding/session/node"
	"tendril/store/object"
)

// fakeNode is a daemon in the test's process: memory from memfds, workers that are goroutines.
type fakeNode struct {
	t        testing.TB
	inPlace  bool
	old      bool                                              // the worker knows nothing of shared virtual memory
	svm      func(*clwire.CreateSVM) (at uint64, s api.Status) // nil: where the program wants it
	capacity uint64                                            // of AllocSegment, in bytes; 0: no limit
	gpu      string                                            // in whose memory all objects are; "": host memory
	unsealed bool                                              // objects that are opened are drafts
	noDrafts error                                             // of DraftObject
	unseal   error                                             // of PublishDraft
	noCopies error                                             // of AttachCopy, FillDraft, SendDraft, JoinDraft

	quota uint64 // of ReserveDevice, in bytes; 0: no limit

	mu        sync.Mutex
	asked     int    // times
	copies    int    // by AttachCopy
	pieces    int    // by FillDraft, SendDraft and JoinDraft
	reserved  uint64 // bytes
	next      uint64
	segments  map[uint64]*node.Segment
	bytes     uint64
	workers   map[uint64]*fakeWorker
	published map[string]*node.Segment
	fateKnown chan struct{}           // nil, or closed when workers' ends are known
	attached  map[uint64]*node.Object // references that were not given back
	lent      map[uint64][]byte       // what the worker has of objects
	drafts    map[*node.Object][]byte // neither published nor dropped
	wg        sync.WaitGroup
}

func newFakeNode(t testing.TB, inPlace bool) *fakeNode {
	return &fakeNode{t: t, inPlace: inPlace, segments: map[uint64]*node.Segment{}, workers: map[uint64]*fakeWorker{},
		published: map[string]*node.Segment{}, attached: map[uint64]*node.Object{}, lent: map[uint64][]byte{},
		drafts: map[*node.Object][]byte{}}
}

func fakeSnapshot(inPlace bool) clwire.Snapshot {
	device := clwire.DeviceSnapshot{InPlace: inPlace, UUID: "0123456789abcdef", Info: map[uint32][]byte{
		cl.DEVICE_TYPE: answers.U64(2), cl.DEVICE_MAX_WORK_ITEM_DIMENSIONS: answers.U32(3),
		cl.DEVICE_MAX_WORK_GROUP_SIZE: answers.Size(256),
		cl.DEVICE_MAX_WORK_ITEM_SIZES: answers.Sizes([]uint64{256, 256, 64}),
		cl.DEVICE_MAX_MEM_ALLOC_SIZE:  answers.U64(1 << 30), cl.DEVICE_MEM_BASE_ADDR_ALIGN: answers.U32(1024),
		cl.DEVICE_LOCAL_MEM_SIZE: answers.U64(32 << 10), cl.DEVICE_ADDRESS_BITS: answers.U32(64),
		cl.DEVICE_QUEUE_PROPERTIES: answers.U64(3), cl.DEVICE_NAME: answers.String("fake device"),
		cl.DEVICE_GLOBAL_MEM_SIZE: answers.U64(8 << 30), cl.DEVICE_IMAGE_SUPPORT: answers.U32(1),
		cl.DEVICE_EXTENSIONS:       answers.String("cl_khr_fp64 cl_khr_3d_image_writes cl_khr_int64_base_atomics"),
		cl.DEVICE_SVM_CAPABILITIES: answers.U64(7),
	}}
	return clwire.Snapshot{Platforms: []clwire.PlatformSnapshot{{
		Info: map[uint32][]byte{cl.PLATFORM_NAME: answers.String("Fake"),
			cl.PLATFORM_VERSION: answers.String("OpenCL 3.0 fake")},
		Devices: []clwire.DeviceSnapshot{device},
	}}}
}

func (n *fakeNode) OpenSession(string, []byte) ([]byte, error) {
	return json.Marshal(fakeSnapshot(n.inPlace))
}

func (n *fakeNode) OpenWorker(uint32) (conn.WorkerFiles, error) {
	ring, err := memfd(clwire.RingBytes)
	if err != nil {
		return conn.WorkerFiles{}, err
	}
	if _, err := ring.WriteAt(clwire.RingHeader(), 0); err != nil {
		return conn.WorkerFiles{}, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return conn.WorkerFiles{}, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "client")
	end, err := link.New(link.Worker, ring, mine)
	mine.Close()
	if err != nil {
		return conn.WorkerFiles{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	w := newFakeWorker(end)
	w.node = n
	n.workers[n.next] = w
	n.wg.Go(w.run)
	return conn.WorkerFiles{ID: n.next, Socket: theirs, Ring: ring}, nil
}

func (n *fakeNode) CloseWorker(uint64) {}

// ReserveDevice keeps quota; calls are counted.
func (n *fakeNode) ReserveDevice(worker, bytes uint64, less bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.quota > 0 && bytes > n.quota && !less {
		return fmt.Errorf("%w: the fake has %d bytes", object.ErrQuota, n.quota)
	}
	n.reserved = bytes
	return nil
}

func (n *fakeNode) WorkerFate(uint64) (bool, string, error) {
	n.mu.Lock()
	known := n.fateKnown
	n.mu.Unlock()
	if known != nil {
		<-known
	}
	return false, "killed by the test", nil
}

func memfd(size int) (*os.File, error) {
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "fake"), unix.Ftruncate(fd, int64(size))
}

func (n *fakeNode) AllocSegment(size uint64, spare func()) (*node.Segment, error) {
	n.mu.Lock()
	short := n.capacity != 0 && n.bytes+size > n.capacity
	n.mu.Unlock()
	if short && spare != nil { // as the client does, before it waits
		spare()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.capacity != 0 && n.bytes+size > n.capacity {
		return nil, fmt.Errorf("%w: the fake's capacity", object.ErrFull)
	}
	size = (size + 4095) &^ 4095
	f, err := memfd(int(size))
	if err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	n.next++
	n.bytes += size
	s := &node.Segment{ID: n.next, Bytes: b, File: f}
	n.segments[s.ID] = s
	return s, nil
}

func (n *fakeNode) FreeSegment(s *node.Segment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.segments[s.ID] != s {
		n.t.Errorf("segment %d freed, but it is not there", s.ID)
		return
	}
	delete(n.segments, s.ID)
	n.bytes -= uint64(len(s.Bytes))
	unix.Munmap(s.Bytes)
	s.File.Close()
}

func (n *fakeNode) PublishSegment(s *node.Segment, size uint64, name string, _ []byte) (id [16]byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.segments, s.ID)
	n.bytes -= uint64(len(s.Bytes))
	dup, err := unix.Dup(int(s.File.Fd()))
	if err != nil {
		return id, err
	}
	b, err := unix.Mmap(dup, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	n.published[name] = &node.Segment{ID: s.ID, Bytes: b, File: os.NewFile(uintptr(dup), "published")}
	le.PutUint64(id[:], s.ID)
	return id, err
}

func (n *fakeNode) AttachObject(_ uint64, id [16]byte, name string) (*node.Object, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.published[name]
	if s == nil {
		return nil, fmt.Errorf("%w: object %q %x", object.ErrNotFound, name, id)
	}
	n.next++
	o := &node.Object{ID: id, Segment: clwire.AttachedSegment | n.next, Size: uint64(len(s.Bytes)), Bytes: s.Bytes}
	if n.gpu != "" {
		o.Segment, o.Bytes, o.Device, o.Draft = o.Segment|clwire.AttachedDevice, nil, n.gpu, n.unsealed
	}
	if n.unsealed {
		s = &node.Segment{ID: s.ID, Bytes: slices.Clone(s.Bytes)} // what was published is mapped for reading
	}
	n.lent[o.Segment] = s.Bytes // the worker has it from now on, also once the client gave it back
	n.attached[o.Segment] = o
	return o, nil
}

func (n *fakeNode) AttachCopy(_ uint64, o *node.Object) (*node.Object, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noCopies != nil {
		return nil, n.noCopies
	}
	n.next++
	n.copies++
	b := n.lent[o.Segment]
	c := &node.Object{ID: [16]byte{byte(n.next), 0xc}, Segment: clwire.AttachedSegment | n.next, Size: o.Size, Bytes: b}
	n.lent[c.Segment], n.attached[c.Segment] = b, c
	return c, nil
}

func (n *fakeNode) DraftAlone(gpu string, size uint64, meta []byte) (*node.Object, error) {
	o, err := n.DraftObject(0, gpu, size, meta)
	if err == nil {
		n.DetachObject(o)
	}
	return o, err
}

func (n *fakeNode) FillDraft(o *node.Object, from [16]byte, offset, bytes uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noCopies != nil {
		return n.noCopies
	}
	n.pieces++
	for _, x := range n.attached {
		if x.ID == from && x != o {
			copy(n.drafts[o][:bytes], n.lent[x.Segment][offset:])
			return nil
		}
	}
	return fmt.Errorf("%w: object %x", object.ErrNotFound, from)
}

func (n *fakeNode) SendDraft(o *node.Object, offset uint64, b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noCopies != nil {
		return n.noCopies
	}
	n.pieces++
	copy(n.drafts[o][offset:], b)
	return nil
}

func (n *fakeNode) JoinDraft(whole *node.Object, offset uint64, part *node.Object) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attached[part.Segment] != nil {
		n.t.Error("a draft is sealed while the worker has it")
	}
	memory := n.drafts[part]
	delete(n.drafts, part)
	if n.noCopies != nil {
		return n.noCopies
	}
	n.pieces++
	copy(n.drafts[whole][offset:], memory)
	return nil
}

func (n *fakeNode) DraftObject(_ uint64, gpu string, size uint64, _ []byte) (*node.Object, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noDrafts != nil {
		return nil, n.noDrafts
	}
	n.next++
	o := &node.Object{ID: [16]byte{byte(n.next), 0xd}, Segment: clwire.AttachedSegment | clwire.AttachedDevice | n.next,
		Size: size, Device: gpu, Draft: true}
	// Not of Go's heap, as the real memory: that the worker's copy comes first the race detector cannot see, since it
	// follows from the rings. It is never given back.
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	n.drafts[o] = memory
	n.lent[o.Segment], n.attached[o.Segment] = n.drafts[o], o
	return o, nil
}

func (n *fakeNode) PublishDraft(o *node.Object, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	bytes, is := n.drafts[o]
	if !is {
		n.t.Errorf("%x is no draft", o.ID)
	}
	if n.attached[o.Segment] != nil {
		n.t.Error("a draft is sealed while the worker has it")
	}
	delete(n.drafts, o)
	if n.unseal != nil {
		return n.unseal
	}
	n.published[name] = &node.Segment{ID: o.Segment, Bytes: bytes}
	return nil
}

func (n *fakeNode) DropDraft(o *node.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, is := n.drafts[o]; !is {
		n.t.Errorf("%x is no draft", o.ID)
	}
	delete(n.drafts, o)
}

func (n *fakeNode) DetachObject(o *node.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attached[o.Segment] != o {
		n.t.Errorf("object %x detached, but it is not attached", o.ID)
	}
	delete(n.attached, o.Segment)
}

// sent is what the daemon sends a worker of an object.
func (n *fakeNode) sent(segment uint64) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lent[segment]
}

func (n *fakeNode) UnmapSegment(s *node.Segment) { unix.Munmap(s.Bytes); s.File.Close() }
func (n *fakeNode) Close() error                 { return nil }

// check fails the test for what was left behind. Call it after Driver.Close.
func (n *fakeNode) check() {
	n.wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.segments {
		n.t.Errorf("segment %d was not given back", id)
	}
	for o := range n.drafts {
		n.t.Errorf("draft %x was neither published nor dropped", o.ID)
	}
	for _, o := range n.attached {
		n.t.Errorf("object %x was not given back", o.ID)
	}
}

func (n *fakeNode) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		w.killed.Store(true)
		w.conn.Shutdown()
	}
}

func newFakeWorker(l link.Link) *fakeWorker {
	return &fakeWorker{conn: l, wake: -1, buffers: map[uint64]*fakeBuffer{}, segments: map[uint64][]byte{},
		events: map[uint64]int32{}, kernels: map[uint64]*fakeKernel{},
		programs: map[uint64]string{}, blobs: map[uint64][]byte{}, gates: map[uint64]int32{},
		contents: map[uint64]uint64{}, graphs: map[uint64][]byte{}}
}

// fakeWorker runs commands as PROTOCOL.md says, one at a time, holding what must wait. Its kernels: "inc" adds 1 to
// each byte of its first argument, "nop" does nothing, "fail" fails.
type fakeWorker struct {
	node     *fakeNode
	conn     link.Link
	far      *fakeFar // nil: on this node
	wake     int      // eventfd of chunks that arrived, or -1
	killed   atomic.Bool
	turn     sync.Mutex // held while a record is handled: a test that has it holds the worker
	buffers  map[uint64]*fakeBuffer
	segments map[uint64][]byte
	events   map[uint64]int32 // 3: not ended
	kernels  map[uint64]*fakeKernel
	programs map[uint64]string
	blobs    map[uint64][]byte
	files    map[uint64]string // sets of files, as text
	gates    map[uint64]int32  // host operations that HostDone has come for
	pending  []*fakeCommand
	waits    []fakeWait
	launches atomic.Int32 // with a request number
	oneWay   atomic.Int32
	watches  atomic.Int32
	setArgs  atomic.Int32
	graphs   map[uint64][]byte // recorded commands
	sent     atomic.Int32      // graphs
	replays  atomic.Int32
	contents map[uint64]uint64 // size buffers by buffer
	records  atomic.Int32
	outOf    map[uint64]bool
	released map[uint64]bool // queues
}

type fakeBuffer struct {
	data   []byte
	extent [3]uint64 // of an image, x in bytes
	begin  uint64    // of shared virtual memory: its address
}

type fakeKernel struct {
	name    string
	args    map[uint16]clwire.Arg
	reaches [][]uint64 // what each SVMPointers said
}

type fakeCommand struct {
	cmd     clwire.Cmd
	barrier bool
	gate    uint64 // a Host command's number
	bulk    *fakeBulk
	ready   bool // HostReady was sent
	run     func() int32
}

type fakeWait struct {
	request uint64
	queue   uint64   // Finish: commands of this queue
	events  []uint64 // Wait
	cmds    []*fakeCommand
}

func (w *fakeWorker) run() {
	defer func() {
		for id, b := range w.segments {
			if id&clwire.AttachedSegment == 0 {
				unix.Munmap(b)
			}
		}
		w.conn.Close()
	}()
	w.outOf, w.released = map[uint64]bool{}, map[uint64]bool{}
	for !w.killed.Load() {
		if w.far != nil {
			w.far.takeChunks()
			w.advance()
		}
		h, payload, ok, err := w.conn.Next()
		if err == nil && ok {
			w.records.Add(1)
			w.turn.Lock()
			err = w.handle(h, payload)
			w.advance()
			w.turn.Unlock()
		}
		if err == nil && !ok && w.conn.Arm(clwire.ConsumerAsleep) {
			err = w.conn.Block(w.wake, time.Second)
			if w.wake >= 0 {
				unpoke(w.wake)
			}
			w.conn.Awake()
		}
		if err != nil {
			if !errors.Is(err, link.ErrHangup) {
				w.testing().Errorf("the worker ends, as the product's does, of a record that is wrong: %v", err)
			}
			return
		}
	}
}

func (w *fakeWorker) testing() testing.TB {
	if w.far != nil {
		return w.far.t
	}
	return w.node.t
}

func (w *fakeWorker) reply(request uint64, status api.Status, data []byte) {
	for request != 0 {
		n := min(len(data), 60000)
		flags := uint16(clwire.FlagUrgent)
		if n < len(data) {
			flags |= clwire.FlagMore
		}
		w.conn.Send(&clwire.Reply{Status: int32(status), Data: data[:n]}, flags, request)
		if data = data[n:]; len(data) == 0 {
			return
		}
	}
}

func decode[M clwire.Message](m M, payload []byte) M {
	if err := m.Decode(slices.Clone(payload)); err != nil {
		panic(err)
	}
	return m
}

func (w *fakeWorker) handle(h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeHello:
		hello := clwire.HelloReply{Version: clwire.Version, Capabilities: clwire.CapSVM}
		if w.node != nil && w.node.old {
			hello.Capabilities = 0
		}
		w.reply(h.Request, 0, hello.Append(nil))
	case clwire.TypeCreateQueue:
		m := decode(&clwire.CreateQueue{}, p)
		w.outOf[m.ID] = m.Properties&1 != 0
	case clwire.TypeCreateContext, clwire.TypeDropSegment, clwire.TypeFlush:
	case clwire.TypeWatch:
		w.watches.Add(1)
	case clwire.TypeAddSegment:
		m := decode(&clwire.AddSegment{}, p)
		if m.ID&clwire.AttachedSegment != 0 {
			w.segments[m.ID] = w.node.sent(m.ID)
			return nil
		}
		f, err := w.conn.TakeFD()
		if err != nil {
			return err
		}
		w.segments[m.ID], err = unix.Mmap(int(f.Fd()), 0, int(m.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		f.Close()
		return err
	case clwire.TypeCreateBuffer:
		return w.createBuffer(decode(&clwire.CreateBuffer{}, p))
	case clwire.TypeCreateSVM:
		w.createSVM(h.Request, decode(&clwire.CreateSVM{}, p))
	case clwire.TypeSVMPointers:
		m := decode(&clwire.SVMPointers{}, p)
		w.kernels[m.Kernel].reaches = append(w.kernels[m.Kernel].reaches, m.Pointers)
	case clwire.TypeCreateImage:
		w.newFakeImage(h.Request, decode(&clwire.CreateImage{}, p))
	case clwire.TypeCreateSampler, clwire.TypeReleaseSubDevice:
	case clwire.TypeImageFormats:
		w.reply(h.Request, 0, slices.Concat(answers.U32(cl.RGBA), answers.U32(cl.UNORM_INT8)))
	case clwire.TypeGraph:
		m := decode(&clwire.Graph{}, p)
		w.graphs[m.ID] = w.blobs[m.Blob]
		w.sent.Add(1)
	case clwire.TypeContentSize:
		m := decode(&clwire.ContentSize{}, p)
		w.contents[m.Buffer] = m.Size
	case clwire.TypeRelease:
		m := decode(&clwire.Release{}, p)
		delete(w.buffers, m.ID)
		delete(w.kernels, m.ID)
		if w.events[m.ID] <= 0 { // of one that has not ended the end is told all the same
			delete(w.events, m.ID)
		}
		w.released[m.ID] = true
	case clwire.TypeBlob:
		m := decode(&clwire.Blob{}, p)
		w.blobs[m.ID] = append(w.blobs[m.ID], m.Data...)
	case clwire.TypeCreateProgram:
		m := decode(&clwire.CreateProgram{}, p)
		w.programs[m.ID] = string(w.blobs[m.Blob])
		var status api.Status
		if strings.Contains(w.programs[m.ID], "broken") && m.Kind == clwire.ProgramBinaries {
			status = cl.INVALID_BINARY
		}
		w.reply(h.Request, status, nil)
	case clwire.TypeCompileProgram, clwire.TypeLinkProgram, clwire.TypeFiles, clwire.TypeFileData:
		w.parts(h, p)
	case clwire.TypeBuildProgram:
		w.build(h.Request, decode(&clwire.BuildProgram{}, p))
	case clwire.TypeCreateKernel:
		m := decode(&clwire.CreateKernel{}, p)
		w.kernels[m.ID] = &fakeKernel{name: m.Name, args: map[uint16]clwire.Arg{}}
	case clwire.TypeSetArg:
		m := decode(&clwire.SetArg{}, p)
		w.setArgs.Add(1)
		var status api.Status
		if m.Arg.Kind == clwire.ArgBytes && len(m.Arg.Data) == 7 {
			status = cl.INVALID_ARG_SIZE
		}
		w.reply(h.Request, status, nil)
	case clwire.TypeUserEvent:
		w.events[decode(&clwire.UserEvent{}, p).ID] = 3
	case clwire.TypeSetUserEvent:
		m := decode(&clwire.SetUserEvent{}, p)
		w.events[m.ID] = m.Status
	case clwire.TypeHostDone:
		m := decode(&clwire.HostDone{}, p)
		w.gates[m.Op] = m.Status
	case clwire.TypeFinish:
		m := decode(&clwire.Finish{}, p)
		if w.released[m.Queue] {
			return fmt.Errorf("finish of queue %d after its release", m.Queue)
		}
		wait := fakeWait{request: h.Request, queue: m.Queue}
		for _, c := range w.pending {
			if c.cmd.Queue == m.Queue {
				wait.cmds = append(wait.cmds, c)
			}
		}
		w.waits = append(w.waits, wait)
	case clwire.TypeWait:
		w.waits = append(w.waits, fakeWait{request: h.Request, events: decode(&clwire.Wait{}, p).Events})
	case clwire.TypeQuery:
		w.query(h.Request, decode(&clwire.Query{}, p))
	default:
		return w.enqueue(h, p)
	}
	return nil
}

func (w *fakeWorker) query(request uint64, m *clwire.Query) {
	binary := []byte("bin:" + w.programs[m.Object])
	switch m.Param {
	case cl.PROGRAM_BINARY_SIZES:
		w.reply(request, 0, answers.Sizes([]uint64{uint64(len(binary))}))
	case cl.PROGRAM_BINARIES:
		w.reply(request, 0, binary)
	case cl.PROGRAM_KERNEL_NAMES:
		var names []string
		for line := range strings.Lines(w.programs[m.Object]) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "kernel" {
				names = append(names, words[1])
			}
		}
		w.reply(request, 0, answers.String(strings.Join(names, ";")))
	default:
		w.reply(request, cl.INVALID_VALUE, nil)
	}
}

func (w *fakeWorker) createBuffer(m *clwire.CreateBuffer) error {
	b := &fakeBuffer{}
	switch {
	case m.Segment != 0:
		b.data = w.segments[m.Segment][m.Offset : m.Offset+m.Size]
	case m.Parent != 0:
		parent, err := w.named(clwire.TypeCreateBuffer, m.Parent)
		if err != nil {
			return err
		}
		b.data = parent[0].data[m.Offset : m.Offset+m.Size]
	default:
		b.data = make([]byte, m.Size)
	}
	w.buffers[m.ID] = b
	return nil
}

// named are the buffers and images that a record of some type names.
func (w *fakeWorker) named(of clwire.Type, ids ...uint64) (all []*fakeBuffer, err error) {
	for _, id := range ids {
		b := w.buffers[id]
		switch {
		case b != nil:
			all = append(all, b)
		case w.released[id]:
			return nil, fmt.Errorf("%v of buffer %d after its release", of, id)
		default:
			return nil, fmt.Errorf("%v of buffer %d, which was never made", of, id)
		}
	}
	return all, nil
}

var fakeShapes = map[string]clwire.ArgShape{
	"int": {Kind: clwire.ShapeValue, Bytes: 4}, "long": {Kind: clwire.ShapeValue, Bytes: 8},
	"global": {Kind: clwire.ShapeBuffer},
	"local":  {Kind: clwire.ShapeLocal}, "image2d_t": {Kind: clwire.ShapeImage},
	"sampler_t": {Kind: clwire.ShapeSampler},
}

// build reads a source of lines "kernel NAME TYPE…"; "noinfo" leaves argument information out, "shapes" gives shapes in
// its place, "error" fails.
func (w *fakeWorker) build(request uint64, m *clwire.BuildProgram) {
	source := w.programs[m.Program]
	result := clwire.BuildResult{Made: true,
		Devices: []clwire.BuildDevice{{Log: []byte("log of " + string(m.Options)), BinaryType: 4}}}
	if strings.Contains(source, "error") {
		result.Devices[0].Status = cl.BUILD_ERROR
		data, _ := json.Marshal(result)
		w.reply(request, cl.BUILD_PROGRAM_FAILURE, data)
		return
	}
	for _, line := range strings.Split(source, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "kernel" {
			continue
		}
		k := clwire.KernelFacts{Name: words[1], NumArgs: uint32(len(words) - 2), HasArgInfo: !strings.Contains(source,
			"noinfo"), WorkGroups: []clwire.WorkGroup{{Size: 256, PreferredMultiple: 8}}}
		for _, word := range words[2:] {
			a := clwire.ArgFacts{Address: cl.KERNEL_ARG_ADDRESS_PRIVATE, TypeName: word}
			switch word {
			case "global":
				a = clwire.ArgFacts{Address: cl.KERNEL_ARG_ADDRESS_GLOBAL, TypeName: "uchar*"}
			case "const":
				a = clwire.ArgFacts{Address: cl.KERNEL_ARG_ADDRESS_GLOBAL, TypeName: "uchar*",
					TypeQualifier: cl.KERNEL_ARG_TYPE_CONST}
			case "local":
				a = clwire.ArgFacts{Address: cl.KERNEL_ARG_ADDRESS_LOCAL, TypeName: "uchar*"}
			}
			k.Args = append(k.Args, a)
			if strings.Contains(source, "shapes") {
				k.Shapes = append(k.Shapes, fakeShapes[word])
			}
		}
		if !k.HasArgInfo {
			k.Args = nil
		}
		result.Kernels = append(result.Kernels, k)
	}
	data, _ := json.Marshal(result)
	w.reply(request, 0, data)
}

func (w *fakeWorker) enqueue(h clwire.Header, p []byte) error {
	c := &fakeCommand{run: func() int32 { return 0 }}
	switch h.Type {
	case clwire.TypeNDRange:
		m := decode(&clwire.NDRange{}, p)
		if h.Request != 0 {
			w.launches.Add(1)
			if m.HasLocal && m.Global[0]%m.Local[0] != 0 {
				w.reply(h.Request, cl.INVALID_WORK_GROUP_SIZE, nil)
				return nil
			}
			w.reply(h.Request, 0, nil)
		} else {
			w.oneWay.Add(1)
		}
		k := w.kernels[m.Kernel]
		for _, a := range m.Args {
			k.args[a.Index] = a
		}
		args := map[uint16]*fakeBuffer{}
		for i, a := range k.args {
			if a.Kind == clwire.ArgMem && a.ID() != 0 {
				of, err := w.named(h.Type, a.ID())
				if err != nil {
					return err
				}
				args[i] = of[0]
			}
			if a.Kind == clwire.ArgSVM && a.ID() != 0 { // kernels use 64 bytes of it
				of, err := w.named(h.Type, a.ID())
				if err != nil {
					return err
				}
				args[i] = &fakeBuffer{data: of[0].data[a.Address()-of[0].begin:][:64]}
			}
		}
		c.cmd, c.run = m.Cmd, func() int32 { return launch(k.name, args) }
	case clwire.TypeCopy:
		m := decode(&clwire.Copy{}, p)
		of, err := w.named(h.Type, m.Src, m.Dst)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			copy(of[1].data[m.DstOffset:m.DstOffset+m.Size], of[0].data[m.SrcOffset:])
			return 0
		}
	case clwire.TypeFill:
		m := decode(&clwire.Fill{}, p)
		of, err := w.named(h.Type, m.Buffer)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			for i := range m.Size {
				of[0].data[m.Offset+i] = m.Pattern[i%uint64(len(m.Pattern))]
			}
			return 0
		}
	case clwire.TypeWriteInline:
		m := decode(&clwire.WriteInline{}, p)
		of, err := w.named(h.Type, m.Buffer)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 { copy(of[0].data[m.Offset:], m.Data); return 0 }
	case clwire.TypeBulkWrite, clwire.TypeBulkRead, clwire.TypeBulkBytes:
		return w.far.record(c, h, p)
	case clwire.TypeTransfer:
		m := decode(&clwire.Transfer{}, p)
		of, err := w.named(h.Type, m.Buffer)
		if err != nil {
			return err
		}
		b, seg := of[0], w.segments[m.Segment]
		if b.extent != [3]uint64{} {
			m.RowPitch, m.SlicePitch = b.extent[0], b.extent[0]*b.extent[1]
		}
		c.cmd, c.run = m.Cmd, func() int32 { fakeTransfer(m, b.data, seg[m.SegmentOffset:]); return 0 }
	case clwire.TypeCopyRect:
		m := decode(&clwire.CopyRect{}, p)
		c.cmd = m.Cmd
	case clwire.TypeReplay:
		m := decode(&clwire.Replay{}, p)
		w.replays.Add(1)
		c.cmd = m.Cmd
		return w.replay(c, w.graphs[m.Graph])
	case clwire.TypeHost:
		m := decode(&clwire.Host{}, p)
		c.cmd, c.gate = m.Cmd, m.Op
	case clwire.TypeMarker:
		m := decode(&clwire.Marker{}, p)
		c.cmd, c.barrier = m.Cmd, len(m.Wait) == 0
	case clwire.TypeBarrier:
		m := decode(&clwire.Barrier{}, p)
		c.cmd, c.barrier = m.Cmd, true
	default:
		return w.enqueueImage(h, p, c)
	}
	w.accept(c)
	return nil
}

// replay accepts c, whose work is a graph's.
func (w *fakeWorker) replay(c *fakeCommand, graph []byte) error {
	var runs []func() int32
	_, err := clwire.Recorded(graph, func(t clwire.Type, payload []byte) error {
		before := len(w.pending)
		if err := w.enqueue(clwire.Header{Type: t},
			clwire.Replayed(nil, &clwire.Cmd{Queue: c.cmd.Queue}, payload)); err != nil {
			return err
		}
		runs = append(runs, w.pending[before].run)
		w.pending = w.pending[:before]
		return nil
	})
	c.run = func() (status int32) {
		for _, run := range runs {
			status = min(status, run())
		}
		return status
	}
	w.accept(c)
	return err
}

func (w *fakeWorker) accept(c *fakeCommand) {
	if c.cmd.Event != 0 {
		w.events[c.cmd.Event] = 3
	}
	w.pending = append(w.pending, c)
}

func launch(name string, args map[uint16]*fakeBuffer) int32 {
	switch name {
	case "inc":
		for i := range args[0].data {
			args[0].data[i]++
		}
	case "copy":
		copy(args[1].data, args[0].data)
	case "fail":
		return int32(cl.OUT_OF_RESOURCES)
	}
	return 0
}

func fakeTransfer(m *clwire.Transfer, data, dense []byte) {
	move := func(off, at, n uint64) {
		if m.Direction == clwire.ToBuffer {
			copy(data[off:off+n], dense[at:])
		} else {
			copy(dense[at:at+n], data[off:])
		}
	}
	if !m.Rect {
		move(m.Offset, 0, m.Size)
		return
	}
	at := uint64(0)
	for z := range m.Region[2] {
		for y := range m.Region[1] {
			move((m.Origin[2]+z)*m.SlicePitch+(m.Origin[1]+y)*m.RowPitch+m.Origin[0], at, m.Region[0])
			at += m.Region[0]
		}
	}
}

// advance runs what can run until nothing can.
func (w *fakeWorker) advance() {
	for w.step() {
	}
	for i := 0; i < len(w.waits); i++ {
		if done, status := w.waitOver(&w.waits[i]); done {
			w.reply(w.waits[i].request, status, nil)
			w.waits = slices.Delete(w.waits, i, i+1)
			i--
		}
	}
}

func (w *fakeWorker) waitOver(wait *fakeWait) (bool, api.Status) {
	for _, c := range wait.cmds {
		if slices.Contains(w.pending, c) {
			return false, 0
		}
	}
	var status api.Status
	for _, e := range wait.events {
		s, ok := w.events[e]
		if ok && s > 0 {
			return false, 0
		}
		if s < 0 {
			status = cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
		}
	}
	return true, status
}

func (w *fakeWorker) step() bool {
	busy := map[uint64]bool{}
	blocked := map[uint64]bool{}
	for i, c := range w.pending {
		q := c.cmd.Queue
		ordered := !w.outOf[q] || c.barrier
		ready := !blocked[q] && !(ordered && busy[q])
		busy[q] = true
		if c.barrier || !w.outOf[q] {
			blocked[q] = true
		}
		status, failed := int32(0), false
		for _, e := range c.cmd.Wait {
			s, ok := w.events[e]
			if ok && s > 0 {
				ready = false
			}
			failed = failed || s < 0
		}
		if !ready {
			continue
		}
		if failed {
			status = int32(cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		}
		if c.bulk != nil {
			over, ended := w.far.stepBulk(c, status)
			if !over {
				continue
			}
			status = ended
		} else if c.gate != 0 {
			if !c.ready {
				c.ready = true
				w.conn.Send(&clwire.HostReady{Op: c.gate, Status: status}, clwire.FlagUrgent, 0)
			}
			done, ok := w.gates[c.gate]
			if !ok {
				continue
			}
			delete(w.gates, c.gate)
			status = min(status, done)
		} else if status == 0 {
			status = c.run()
		}
		w.pending = slices.Delete(w.pending, i, i+1)
		w.end(c, status)
		return true
	}
	return false
}

func (w *fakeWorker) end(c *fakeCommand, status int32) {
	if c.cmd.Event == 0 {
		if status < 0 {
			w.conn.Send(&clwire.Fault{Queue: c.cmd.Queue, Status: status, Text: "a command without an event failed"},
				clwire.FlagUrgent, 0)
		}
		return
	}
	if _, kept := w.events[c.cmd.Event]; kept {
		if w.events[c.cmd.Event] = status; w.released[c.cmd.Event] {
			delete(w.events, c.cmd.Event)
		}
		now := uint64(time.Now().UnixNano())
		w.conn.Send(&clwire.Events{Ends: []clwire.EventEnd{{Event: c.cmd.Event, Status: status, HasProfile: true,
			Profile: clwire.Profile{now, now, now, now + 1, now + 1}}}}, clwire.FlagUrgent, 0)
	}
}
