//go:build cgo

package worker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// client is a minimal driver library: it speaks records and waits for answers.
type client struct {
	t       testing.TB
	link    link.Link
	other   func(clwire.Header, []byte) // records of remote sessions; nil: none come
	ids     uint64
	request uint64
	replies map[uint64]*clwire.Reply
	partial map[uint64][]byte // pages of replies
	ends    map[uint64]clwire.EventEnd
	count   map[uint64]int // reports of ends
	ready   map[uint64]int32
	faults  []clwire.Fault
	printed []byte
	hung    bool
	inPlace bool
	spin    time.Duration
}

func (c *client) id() uint64 { c.ids++; return c.ids }

func (c *client) send(m clwire.Message) {
	c.t.Helper()
	if err := c.link.Send(m, 0, 0); err != nil {
		c.t.Fatalf("%v: %v", m.Type(), err)
	}
}

// ask sends a request and returns its number.
func (c *client) ask(m clwire.Message) uint64 {
	c.t.Helper()
	c.request++
	if err := c.link.Send(m, clwire.FlagUrgent, c.request); err != nil {
		c.t.Fatalf("%v: %v", m.Type(), err)
	}
	return c.request
}

// call asks and waits.
func (c *client) call(m clwire.Message) *clwire.Reply {
	c.t.Helper()
	n := c.ask(m)
	c.until(m.Type().String(), func() bool { return c.replies[n] != nil })
	r := c.replies[n]
	delete(c.replies, n)
	return r
}

// until receives until done holds; the test fails after a long time.
func (c *client) until(what string, done func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			c.t.Fatalf("no answer: %s", what)
		}
		h, p, ok, err := c.link.Next()
		if err != nil {
			c.t.Fatal(err)
		}
		if ok {
			c.take(h, p)
			continue
		}
		if new(link.Poller).Spin(c.spin, func() bool { return !c.link.Empty() }) {
			continue
		}
		if !c.link.Arm(clwire.ConsumerAsleep) {
			continue
		}
		if err := c.link.Block(-1, time.Second); err != nil {
			if c.hung = true; c.link.Empty() {
				return
			}
		}
		c.link.Awake()
	}
}

func (c *client) take(h clwire.Header, p []byte) {
	switch h.Type {
	case clwire.TypeReply:
		var r clwire.Reply
		c.must(r.Decode(p))
		c.partial[h.Request] = append(c.partial[h.Request], r.Data...)
		if h.Flags&clwire.FlagMore == 0 {
			c.replies[h.Request] = &clwire.Reply{Status: r.Status, Data: c.partial[h.Request]}
			delete(c.partial, h.Request)
		}
	case clwire.TypeEvents:
		var e clwire.Events
		c.must(e.Decode(p))
		for _, end := range e.Ends {
			if c.ends[end.Event] = end; end.Status <= 0 {
				c.count[end.Event]++
			}
		}
	case clwire.TypeHostReady:
		var r clwire.HostReady
		c.must(r.Decode(p))
		c.ready[r.Op] = r.Status
	case clwire.TypeFault:
		var f clwire.Fault
		c.must(f.Decode(p))
		c.faults = append(c.faults, f)
	case clwire.TypePrint:
		c.printed = append(c.printed, p...)
	default:
		if c.other != nil {
			c.other(h, p)
		}
	}
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// ends of a link, over a fresh ring.
func linkEnds(t testing.TB) (ring *os.File, sockets [2]*os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	ring = os.NewFile(uintptr(fd), "ring")
	t.Cleanup(func() { ring.Close() })
	if err := ring.Truncate(clwire.RingBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := ring.WriteAt(clwire.RingHeader(), 0); err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		sockets[i] = os.NewFile(uintptr(fd), "socket")
		t.Cleanup(func() { sockets[i].Close() })
	}
	return ring, sockets
}

func newClient(t testing.TB, ring, socket *os.File) *client {
	t.Helper()
	l, err := link.New(link.Client, ring, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &client{t: t, link: l, replies: map[uint64]*clwire.Reply{}, partial: map[uint64][]byte{},
		ends:  map[uint64]clwire.EventEnd{},
		count: map[uint64]int{}, ready: map[uint64]int32{}}
}

// hello opens the stream.
func (c *client) hello() {
	c.t.Helper()
	spin := uint32(60)
	if v, err := strconv.Atoi(os.Getenv("TENDRIL_SPIN_US")); err == nil {
		spin = uint32(v)
	}
	c.spin = time.Duration(spin) * time.Microsecond
	r := c.call(&clwire.Hello{Version: clwire.Version, SpinMicros: spin, Program: "test"})
	if r.Status != 0 {
		c.t.Fatalf("Hello: %d", r.Status)
	}
	var hail clwire.HelloReply
	c.must(hail.Decode(r.Data))
	c.inPlace = hail.Capabilities&clwire.CapInPlace != 0
}

// driverFile names the driver to test with.
func driverFile(t testing.TB) string {
	t.Helper()
	if icd := os.Getenv("TENDRIL_TEST_ICD"); icd != "" {
		return icd
	}
	files, _ := filepath.Glob("/etc/OpenCL/vendors/*.icd")
	for _, f := range files {
		if filepath.Base(f) == "pocl.icd" {
			return f
		}
	}
	t.Skip("no OpenCL driver: /etc/OpenCL/vendors/pocl.icd is not there (install pocl-opencl-icd, or set TENDRIL_TEST_ICD)")
	return ""
}

var loaded struct {
	once   sync.Once
	driver *driver
	err    error
}

// testDriver loads the driver into this process, once.
func testDriver(t testing.TB) *driver {
	t.Helper()
	icd := driverFile(t)
	loaded.once.Do(func() { loaded.driver, loaded.err = load(Options{ICD: icd}) })
	if loaded.err != nil {
		t.Fatal(loaded.err)
	}
	return loaded.driver
}

// inProcess runs a session in this process and returns its client.
func inProcess(t testing.TB, lanes bool) *client {
	t.Helper()
	return inProcessWith(t, lanes, nil)
}

// inProcessWith is inProcess with segments that the daemon sends.
func inProcessWith(t testing.TB, lanes bool, attached *attachments) *client {
	t.Helper()
	d := testDriver(t)
	ring, sockets := linkEnds(t)
	l, err := link.New(link.Worker, ring, sockets[1])
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(l, d.platform, d.devices, d.inPlace, lanes, nil)
	s.attached = attached
	ended := make(chan error, 1)
	go func() { ended <- s.run() }()
	c := newClient(t, ring, sockets[0])
	t.Cleanup(func() {
		c.link.Shutdown()
		if err := <-ended; err != nil {
			t.Logf("session: %v", err)
		}
		s.peers.close()
		s.engine.Close()
		s.work.Wait()
		l.Close()
	})
	c.hello()
	return c
}

// close ends the lanes and joins their readers and the operations. A worker does not: its process ends.
func (b *bulk) close() {
	b.mu.Lock()
	b.closed = true
	for _, l := range b.lanes {
		l.Shutdown()
	}
	b.grown.Broadcast()
	b.mu.Unlock()
	b.hands.close()
	b.work.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lanes {
		l.Close()
	}
	b.lanes = nil
}

// close ends those that wait, now and later.
func (h *hands) close() {
	h.mu.Lock()
	idle := h.idle
	h.idle, h.closed = nil, true
	h.mu.Unlock()
	for _, one := range idle {
		one.ring(nil)
	}
}

// close ends all links, behind the reader.
func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.link.Close()
	}
}

// fixture is what most tests need.
type fixture struct {
	*client
	context, queue, program uint64
	segment                 []byte
	segmentID, used         uint64
	fetch                   []clwire.Transfer // brings buffers that are not in place back
}

const source = `
kernel void empty() {}
kernel void add(global int *v, int by) { v[get_global_id(0)] += by; }
kernel void wild(global int *v, ulong at) { *(volatile global int *)((ulong)v + at) = 1; }
kernel void slow(global int *v, int n) { int x = v[0]; for (int i = 0; i < n; i++) x = x * 3 + (x >> 3); v[0] = x; }
`

func newFixture(c *client, properties uint64) *fixture {
	c.t.Helper()
	f := &fixture{client: c, context: c.id()}
	c.send(&clwire.CreateContext{ID: f.context, Devices: []uint32{0}})
	f.queue = f.newQueue(properties)
	f.build(source)
	f.addSegment(1 << 20)
	return f
}

func (f *fixture) newQueue(properties uint64) uint64 {
	q := f.id()
	f.send(&clwire.CreateQueue{ID: q, Context: f.context, Properties: properties})
	return q
}

func (f *fixture) build(source string) {
	f.t.Helper()
	r := f.buildSource(source)
	if r.Status != 0 {
		f.t.Fatalf("build: %d %s", r.Status, r.Data)
	}
	var b clwire.BuildResult
	f.must(json.Unmarshal(r.Data, &b))
	if len(b.Kernels) == 0 || len(b.Devices) != 1 {
		f.t.Fatalf("build: %s", r.Data)
	}
}

// buildSource makes and builds the fixture's program.
func (f *fixture) buildSource(source string) *clwire.Reply {
	f.t.Helper()
	blob := f.id()
	f.program = f.id()
	f.send(&clwire.Blob{ID: blob, Total: uint64(len(source)), Data: []byte(source)})
	f.send(&clwire.CreateProgram{ID: f.program, Context: f.context, Kind: clwire.ProgramSource, Blob: blob})
	return f.call(&clwire.BuildProgram{Program: f.program})
}

func (f *fixture) addSegment(size int) {
	f.t.Helper()
	fd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	f.must(err)
	file := os.NewFile(uintptr(fd), "segment")
	defer file.Close()
	f.must(file.Truncate(int64(size)))
	f.segment, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	f.must(err)
	mem := f.segment
	f.t.Cleanup(func() { unix.Munmap(mem) })
	f.segmentID, f.used = f.id(), 0
	f.must(f.link.SendFD(file))
	f.send(&clwire.AddSegment{ID: f.segmentID, Bytes: uint64(size)})
}

// buffer makes a buffer and returns its id and its bytes: in place, or those
// that finish brings back.
func (f *fixture) buffer(size int) (uint64, []byte) {
	id, at := f.id(), f.used
	f.used += uint64(size+4095) &^ 4095
	m := clwire.CreateBuffer{ID: id, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: uint64(size)}
	mem := f.segment[at : at+uint64(size)]
	if f.inPlace {
		m.Segment, m.Offset = f.segmentID, at
		f.send(&m)
		return id, mem
	}
	f.send(&m)
	t := clwire.Transfer{Cmd: clwire.Cmd{Queue: f.newQueue(0)}, Buffer: id, Segment: f.segmentID, SegmentOffset: at,
		Size: uint64(size)}
	f.send(&t)
	f.call(&clwire.Finish{Queue: t.Queue})
	t.Direction = clwire.FromBuffer
	f.fetch = append(f.fetch, t)
	return id, mem
}

// bring reads back the buffers that are not in place.
func (f *fixture) bring() {
	f.t.Helper()
	for i := range f.fetch {
		f.send(&f.fetch[i])
		if r := f.call(&clwire.Finish{Queue: f.fetch[i].Queue}); r.Status != 0 {
			f.t.Fatalf("read a buffer back: %d, %+v", r.Status, f.faults)
		}
	}
}

func (f *fixture) kernel(name string) uint64 {
	id := f.id()
	f.send(&clwire.CreateKernel{ID: id, Program: f.program, Name: name})
	return id
}

func argMem(i uint16, id uint64) clwire.Arg {
	return clwire.Arg{Index: i, Kind: clwire.ArgMem, Data: nativeOrder.AppendUint64(nil, id)}
}

func argInt(i uint16, v int32) clwire.Arg {
	return clwire.Arg{Index: i, Kind: clwire.ArgBytes, Data: nativeOrder.AppendUint32(nil, uint32(v))}
}

func run1(cmd clwire.Cmd, k uint64, n uint64, args ...clwire.Arg) *clwire.NDRange {
	return &clwire.NDRange{Cmd: cmd, Kernel: k, Dims: 1, Global: [3]uint64{n, 1, 1}, Args: args}
}

func ints(b []byte) []int32 {
	v := make([]int32, len(b)/4)
	for i := range v {
		v[i] = int32(nativeOrder.Uint32(b[4*i:]))
	}
	return v
}
