package frontdoor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

// fakeBackend records sessions, and gives workers only when told to.
type fakeBackend struct {
	mu      sync.Mutex
	open    map[uint64]bool
	last    uint64
	closed  int
	release chan struct{} // OpenWorker waits for it, or for its session's end
	fate    chan struct{} // WorkerFate waits for it
	ended   map[uint64]chan struct{}
	waits   func()                                           // nil: nobody waits in a line; else how its place goes
	lane    func(ticket [ipc.TicketBytes]byte, fd int) error // what Lane does; nil: there is no ticket
}

func newFakeBackend() *fakeBackend {
	return &fakeBackend{open: map[uint64]bool{}, release: make(chan struct{}), fate: make(chan struct{}),
		ended: map[uint64]chan struct{}{}}
}

func (b *fakeBackend) Status(Peer) ([]byte, error) { panic("a fault of the daemon") }
func (b *fakeBackend) EachSession(p Peer, after string, f func(any, string) bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.last {
		if at := fmt.Sprintf("%04d", i+1); b.open[i+1] && at > after && !f(map[string]uint64{"id": i + 1}, at) {
			break
		}
	}
	return nil
}
func (b *fakeBackend) Devices() ([]byte, error) {
	return nil, fmt.Errorf("%w: none", object.ErrNoDevice)
}

func (b *fakeBackend) OpenSession(_ context.Context, p Peer, version string, options []byte) (uint64, []byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits != nil {
		return 0, nil, &Waiting{object.ErrBusy, b.waits}
	}
	b.last++
	b.open[b.last] = true
	b.ended[b.last] = make(chan struct{})
	return b.last, []byte("{}"), nil
}

func (b *fakeBackend) CloseSession(session uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open[session] {
		panic("a session closed twice")
	}
	delete(b.open, session)
	b.closed++
	close(b.ended[session])
}

func (b *fakeBackend) OpenWorker(session uint64, platform uint32) (Worker, error) {
	b.mu.Lock()
	ended := b.ended[session]
	b.mu.Unlock()
	select {
	case <-b.release:
	case <-ended:
	}
	return Worker{}, fmt.Errorf("%w: no worker on platform %d", object.ErrNoDevice, platform)
}

func (b *fakeBackend) OpenRemoteWorker(session uint64,
	m wire.OpenRemoteWorkerRequest) (wire.OpenRemoteWorkerReply, error) {
	return wire.OpenRemoteWorkerReply{Worker: 7, WorkerSHA256: m.ClientSHA256, Tickets: make([][32]byte, m.Lanes)}, nil
}

func (b *fakeBackend) Lane(ticket [ipc.TicketBytes]byte, remote string, fd int) error {
	b.mu.Lock()
	lane := b.lane
	b.mu.Unlock()
	if lane != nil {
		return lane(ticket, fd)
	}
	return fmt.Errorf("%w: no such ticket", object.ErrPermission)
}

// AttachSegment answers the size for a number, so that a test sees what came.
func (b *fakeBackend) AttachSegment(session, worker, bytes uint64, device object.Device, fd int) (uint64, error) {
	if worker != 7 {
		return 0, fmt.Errorf("%w: no worker %d", object.ErrNotFound, worker)
	}
	if !device.IsZero() {
		bytes |= 1 << 62
	}
	return 1<<63 | bytes, nil
}

func (b *fakeBackend) CloseWorker(session, worker uint64) {}
func (b *fakeBackend) ReserveDevice(session, worker, bytes uint64) error {
	if bytes > 1<<30 {
		return fmt.Errorf("%w: 1 GiB", object.ErrQuota)
	}
	return nil
}
func (b *fakeBackend) WorkerFate(ctx context.Context, session, worker uint64) (bool, string, error) {
	select {
	case <-b.fate:
	case <-ctx.Done():
		return true, "", nil
	}
	return true, fmt.Sprintf("worker %d of session %d", worker, session), nil
}

func (b *fakeBackend) sessions() (open, closed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open), b.closed
}

// patience is what a door gives its peers unless a test is about how long it waits: they have the same processors.
const patience = 10 * time.Minute

type door struct {
	*Server
	store   *store.Store
	backend *fakeBackend
	socket  string
}

func open(t testing.TB, change func(*Options)) *door {
	t.Helper()
	s, err := store.New(store.Options{CapacityBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d := &door{store: s, backend: newFakeBackend(), socket: filepath.Join(t.TempDir(), "s", "sock")}
	opts := Options{Socket: d.socket, Store: s, Backend: d.backend, Tenant: func(uid, gid uint32) string { return "t" },
		HelloTime: patience, StrangerTime: patience, ChargeTime: patience, letReadTime: patience,
		farewellTime: patience, closedGrace: patience, surrenderTime: patience}
	if change != nil {
		change(&opts)
	}
	if d.Server, err = Listen(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// peer is a client without manners.
type peer struct {
	*ipc.Dialed
	t testing.TB
}

func (d *door) dial(t testing.TB) *peer {
	t.Helper()
	l, err := ipc.Dial(d.socket, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return &peer{l, t}
}

func (p *peer) send(t wire.Type, request uint64, m ipc.Payload) {
	p.t.Helper()
	if err := p.Send(ipc.AppendFrame(nil, t, 0, request, m)); err != nil {
		p.t.Fatal(err)
	}
}

var errSilence = errors.New("no answer comes")

func (p *peer) receive() (ipc.Frame, error) {
	until := time.Now().Add(5 * time.Minute)
	return p.Receive(func() error {
		if time.Now().After(until) {
			return errSilence
		}
		return nil
	})
}

// ask is a round trip; the frame's payload is valid until the next one.
func (p *peer) ask(t wire.Type, m ipc.Payload) (ipc.Frame, error) {
	p.t.Helper()
	p.send(t, 77, m)
	f, err := p.receive()
	if err != nil {
		return f, err
	}
	if f.Type == wire.Error {
		return f, decodeError(p.t, f)
	}
	if f.Type != t|wire.ReplyBit || f.Request != 77 {
		p.t.Fatalf("%v %d to %v 77", f.Type, f.Request, t)
	}
	return f, nil
}

func decodeError(t testing.TB, f ipc.Frame) error {
	t.Helper()
	var m wire.ErrorReply
	if err := m.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	return object.FromCode(m.Code, m.Text)
}

func (p *peer) hello() *peer {
	p.t.Helper()
	if _, err := p.ask(wire.Hello,
		&wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 9, Program: "test"}); err != nil {
		p.t.Fatal(err)
	}
	return p
}

// mustEnd wants one error frame of the given kind, then the end.
func (p *peer) mustEnd(want error) {
	p.t.Helper()
	f, err := p.receive()
	if err != nil || f.Type != wire.Error || !errors.Is(decodeError(p.t, f), want) {
		p.t.Errorf("got %v %q, %v; want an error frame with %v", f.Type, f.Payload, err, want)
		return
	}
	if f, err = p.receive(); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		p.t.Errorf("after the error frame: %v, %v; want the end", f.Type, err)
	}
}

type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }

func TestBrokenRulesEndTheConnection(t *testing.T) {
	d, hasty := open(t, nil), open(t, func(o *Options) { o.HelloTime = 300 * time.Millisecond })
	for name, sent := range map[string]int{"silence": 0, "half a Hello": 7} {
		t.Run(name, func(t *testing.T) {
			p := hasty.dial(t)
			p.Send(make([]byte, sent))
			p.mustEnd(object.ErrTimeout)
		})
	}
	good := d.dial(t).hello()
	hello := &wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 1}
	for name, test := range map[string]struct {
		greet bool
		send  func(p *peer)
		want  error
	}{
		"no Hello":       {false, func(p *peer) { p.send(wire.Status, 1, nil) }, object.ErrProtocol},
		"unknown before": {false, func(p *peer) { p.send(999, 1, nil) }, object.ErrProtocol},
		"wrong magic": {false,
			func(p *peer) { p.send(wire.Hello, 1, &wire.HelloRequest{Lowest: 1, Highest: 1}) }, object.ErrProtocol},
		"future version": {false, func(p *peer) {
			p.send(wire.Hello, 1,
				&wire.HelloRequest{Magic: wire.Magic, Lowest: 7, Highest: 9})
		}, object.ErrVersion},
		"Hello one-way": {false, func(p *peer) { p.send(wire.Hello, 0, hello) }, object.ErrProtocol},
		"HTTP": {false, func(p *peer) { p.Send([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) },
			object.ErrProtocol},
		"second Hello":      {true, func(p *peer) { p.send(wire.Hello, 1, hello) }, object.ErrProtocol},
		"length 2^32-1":     {true, func(p *peer) { p.Send(bytes.Repeat([]byte{0xff}, 16)) }, object.ErrProtocol},
		"payload too long":  {true, func(p *peer) { p.send(wire.Status, 1, raw("x")) }, object.ErrProtocol},
		"payload too short": {true, func(p *peer) { p.send(wire.Get, 1, raw("x")) }, object.ErrProtocol},
		"payload with a tail": {true, func(p *peer) { p.send(wire.Bind, 1, raw(make([]byte, 20))) },
			object.ErrProtocol},
		"Get one-way": {true, func(p *peer) { p.send(wire.Get, 0, &wire.GetRequest{}) }, object.ErrProtocol},
		"announced descriptor": {true, func(p *peer) {
			p.Send(ipc.AppendFrame(nil, wire.Sweep, ipc.FlagFD, 1, nil))
		}, object.ErrProtocol},
		"request with FlagMore": {true, func(p *peer) {
			p.Send(ipc.AppendFrame(nil, wire.Sweep, ipc.FlagMore, 1, nil))
		}, object.ErrProtocol},
		"create flags": {true, func(p *peer) { p.send(wire.Create, 1, &wire.CreateRequest{Flags: 10}) },
			object.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			p := d.dial(t)
			if test.greet {
				p.hello()
			}
			test.send(p)
			p.mustEnd(test.want)
		})
	}
	if _, err := good.ask(wire.Sweep, nil); err != nil {
		t.Errorf("another connection suffered: %v", err)
	}
	waitFor(t, func() bool { return d.Connections() == 1 })
}

func TestErrorsThatDoNotEndIt(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	for name, test := range map[string]struct {
		t    wire.Type
		m    ipc.Payload
		want error
	}{
		"unknown message":    {999, raw("anything"), object.ErrUnsupported},
		"unknown object":     {wire.Get, &wire.GetRequest{ID: object.ID{1}}, object.ErrNotFound},
		"too large":          {wire.Create, &wire.CreateRequest{SizeBytes: 1 << 63}, object.ErrFull},
		"unknown class":      {wire.Create, &wire.CreateRequest{Class: 77}, object.ErrInvalid},
		"long name":          {wire.Bind, &wire.BindRequest{Name: strings.Repeat("n", 256)}, object.ErrInvalid},
		"long meta":          {wire.Create, &wire.CreateRequest{Meta: make([]byte, 4097)}, object.ErrInvalid},
		"foreign segment":    {wire.Forget, &wire.Number{N: 5}, object.ErrNotFound},
		"worker, no session": {wire.OpenWorker, &wire.OpenWorkerRequest{}, object.ErrInvalid},
		"devices":            {wire.Devices, nil, object.ErrNoDevice},
		"release":            {wire.Release, &wire.IDMessage{ID: object.ID{1}}, object.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := p.ask(test.t, test.m); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	p.send(999, 0, nil) // unknown and one-way: ignored
	p.send(wire.Release, 0, &wire.IDMessage{})
	if _, err := p.ask(wire.Sweep, nil); err != nil {
		t.Error(err)
	}
}

// TestAPanicEndsOneConnection: the fake backend panics on Status.
func TestAPanicEndsOneConnection(t *testing.T) {
	d := open(t, nil)
	p, other := d.dial(t).hello(), d.dial(t).hello()
	if _, err := p.ask(wire.Status, nil); err != io.EOF {
		t.Errorf("got %v, want the end of the connection", err)
	}
	if _, err := other.ask(wire.Sweep, nil); err != nil {
		t.Errorf("another connection suffered: %v", err)
	}
}

// TestManyRequestsInOneWrite: replies come in order, whatever the batch.
func TestManyRequestsInOneWrite(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	var batch []byte
	const n = 5000
	for i := range uint64(n) {
		batch = ipc.AppendFrame(batch, wire.Get, 0, 100+i, &wire.GetRequest{Name: "none"})
	}
	sent := make(chan error, 1)
	go func() { sent <- p.Send(batch) }()
	for i := range uint64(n) {
		f, err := p.receive()
		if err != nil || f.Request != 100+i || f.Type != wire.Error {
			t.Fatalf("reply %d: %v %d, %v", i, f.Type, f.Request, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestRandomBytes feeds valid frames with random contents and types; the daemon must live on and lose nothing.
func TestRandomBytes(t *testing.T) {
	d := open(t, nil)
	types := []wire.Type{}
	for typ := range rows {
		if typ != wire.Status { // the fake's panics
			types = append(types, typ)
		}
	}
	close(d.backend.release)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := d.dial(t).hello()
		drained := make(chan struct{})
		go func() { // closing what comes
			defer close(drained)
			for {
				f, err := p.Receive(nil)
				if err != nil {
					return
				}
				f.CloseFDs()
			}
		}()
		for range 40 {
			payload := make([]byte, rng.IntN(60))
			for i := range payload {
				for payload[i] = 0xFF; rng.IntN(4) != 0; { // mostly small, as valid lengths are
					payload[i] >>= 1
				}
			}
			if p.Send(ipc.AppendFrame(nil, types[rng.IntN(len(types))], 0, rng.Uint64N(3), raw(payload))) != nil {
				break
			}
		}
		p.Shutdown()
		<-drained
	}
	waitFor(t, func() bool { return d.Connections() == 0 })
	waitFor(t, func() bool { // who looks through all processes may have a segment for a moment
		st := d.store.Status()
		return st.Objects == 0 && st.ChargedBytes == 0 && st.Segments == 0
	})
	if open, _ := d.backend.sessions(); open != 0 {
		t.Errorf("%d sessions left open", open)
	}
}

func TestSlowWorkerBlocksNobodyElse(t *testing.T) {
	d := open(t, nil)
	p, other := d.dial(t).hello(), d.dial(t).hello()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	p.send(wire.OpenWorker, 5, &wire.OpenWorkerRequest{Platform: 3})
	if _, err := other.ask(wire.Sweep, nil); err != nil {
		t.Error(err)
	}
	close(d.backend.release)
	if f, err := p.receive(); err != nil || f.Request != 5 || !errors.Is(decodeError(t, f), object.ErrNoDevice) {
		t.Errorf("%v, %v", f, err)
	}
	p.Shutdown()
	waitFor(t, func() bool { open, closed := d.backend.sessions(); return open == 0 && closed == 1 })
}

// TestCloseWhileAWorkerIsMade: Close must end the session, or it would wait for ever.
func TestCloseWhileBusy(t *testing.T) {
	d := open(t, nil)
	p, waiter := d.dial(t).hello(), d.dial(t).hello()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	p.send(wire.OpenWorker, 5, &wire.OpenWorkerRequest{})
	waiter.send(wire.Get, 6, &wire.GetRequest{Name: "never", WaitMS: 1 << 31})
	half := d.dial(t)
	half.Send([]byte{1, 2, 3})
	waitFor(t, func() bool { return d.Connections() == 3 })
	d.Close()
	if open, closed := d.backend.sessions(); open != 0 || closed != 1 || d.Connections() != 0 {
		t.Errorf("%d sessions open, %d closed, %d connections", open, closed, d.Connections())
	}
	if _, err := os.Lstat(d.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

// TestPeerThatDoesNotRead must hold up itself only.
func TestPeerThatDoesNotRead(t *testing.T) {
	d := open(t, nil)
	p, other := d.dial(t).hello(), d.dial(t).hello()
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		frame := ipc.AppendFrame(nil, wire.Get, 0, 1, &wire.GetRequest{Name: "none"})
		batch := bytes.Repeat(frame, 1000)
		for range 200 {
			if p.Send(batch) != nil {
				return
			}
		}
	}()
	for range 100 {
		if _, err := other.ask(wire.Sweep, nil); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	<-stuck
}

func TestTooManyConnections(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxConnections = 4 })
	d.dial(t).hello()
	d.dial(t).hello()
	d.dial(t).mustEnd(object.ErrBusy)
	var tenant atomic.Value
	d = open(t, func(o *Options) {
		o.MaxConnections, o.TenantConnections = 64, 50
		o.Tenant = func(uint32, uint32) string { return tenant.Load().(string) }
	})
	fill := func(who string) (n int) {
		tenant.Store(who)
		for p := d.dial(t); ; p = d.dial(t) {
			hello := wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 9, Program: "test"}
			p.Send(ipc.AppendFrame(nil, wire.Hello, 0, 1, &hello)) // fails where it has been refused by now
			f, err := p.receive()
			if err != nil {
				t.Fatal(err)
			}
			if f.Type == wire.Error {
				if err := decodeError(t, f); !errors.Is(err, object.ErrBusy) {
					t.Error(err)
				}
				return n
			}
			n++
		}
	}
	if a, b := fill("a"), fill("b"); a != 50 || b != 64-8-50 {
		t.Errorf("one tenant has %d connections, the next one %d; want 50 and 6", a, b)
	}
	for i := range 8 { // a newcomer gets in
		if n := fill(fmt.Sprint("c", i)); n != 1 {
			t.Errorf("newcomer %d has %d connections", i, n)
		}
	}
	nobody := open(t, func(o *Options) { o.Tenant = func(uid, gid uint32) string { return "" } })
	nobody.dial(t).mustEnd(object.ErrPermission)
}

// TestSilenceShutsNobodyOut: connections without a Hello count among their tenant's from the first on, so there are no
// more of them than of others, and another tenant comes in beside them.
func TestSilenceShutsNobodyOut(t *testing.T) {
	var tenant atomic.Value
	tenant.Store("silent")
	d := open(t, func(o *Options) {
		o.MaxConnections, o.TenantConnections, o.HelloTime = 64, 10, time.Hour
		o.Tenant = func(uint32, uint32) string { return tenant.Load().(string) }
	})
	for range 10 {
		d.dial(t)
	}
	waitFor(t, func() bool { return d.Connections() == 10 })
	d.dial(t).mustEnd(object.ErrBusy)
	tenant.Store("modest")
	if _, err := d.dial(t).hello().ask(wire.Sweep, nil); err != nil {
		t.Errorf("another tenant beside them: %v", err)
	}
}

func TestSocketFile(t *testing.T) {
	d := open(t, nil)
	opts := d.opts
	if _, err := Listen(opts); !errors.Is(err, object.ErrBusy) {
		t.Errorf("second daemon: %v, want ErrBusy", err)
	}
	if info, err := os.Stat(d.socket); err != nil || info.Mode().Perm() != wantMode(0o666, 0o600) {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(d.socket)); err != nil || info.Mode().Perm() != wantMode(0o755, 0o700) {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}

	opts.Socket = filepath.Join(t.TempDir(), "stale")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: opts.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(opts); !errors.Is(err, object.ErrBusy) {
		t.Errorf("a socket that somebody answers: %v, want ErrBusy", err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	s, err := Listen(opts)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	s.Close()
	if s, err = Listen(opts); err != nil { // the lock is free again
		t.Fatal(err)
	}
	s.Close()

	opts.Socket = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(opts.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(opts); !errors.Is(err, object.ErrExists) {
		t.Errorf("a file in the way: %v, want ErrExists", err)
	}
	if b, _ := os.ReadFile(opts.Socket); string(b) != "precious" {
		t.Error("the file was harmed")
	}
	opts.Socket = "/" + strings.Repeat("x", 120)
	if _, err := Listen(opts); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a long path: %v", err)
	}
	if _, err := Listen(Options{}); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("no options: %v", err)
	}
}

func wantMode(root, user os.FileMode) os.FileMode {
	if os.Getuid() == 0 {
		return root
	}
	return user
}

// TestTheTableIsComplete: every message has a row with a handler and a bound.
func TestTheTableIsComplete(t *testing.T) {
	for typ, row := range rows {
		if (row.handle == nil) == (row.answer == nil) || row.maxPayload > ipc.MaxPayload {
			t.Errorf("%v: %+v", typ, row)
		}
		if strings.HasPrefix(typ.String(), "message ") {
			t.Errorf("%v has no name", typ)
		}
	}
	for typ := wire.Type(0); typ < 100; typ++ {
		if _, ok := rows[typ]; !ok && !strings.HasPrefix(typ.String(), "message ") {
			t.Errorf("%v is not served", typ)
		}
	}
}

// TestSteadyGetAllocatesNothing guards the daemon's hot path.
func TestSteadyGetAllocatesNothing(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	id := p.sealed(&wire.CreateRequest{SizeBytes: 10})
	batch := ipc.AppendFrame(nil, wire.Release, 0, 0, &wire.IDMessage{ID: id})
	batch = ipc.AppendFrame(batch, wire.Get, 0, 1, &wire.GetRequest{ID: id})
	if _, err := p.ask(wire.Get, &wire.GetRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	got := 1.0
	for range 5 { // on a busy machine the connection goes back to the poller now and then, which allocates
		if got = testing.AllocsPerRun(100, func() {
			if err := p.Send(batch); err != nil {
				t.Error(err)
			}
			if _, err := p.Receive(nil); err != nil {
				t.Error(err)
			}
		}); got < 1 {
			return
		}
	}
	t.Errorf("%v allocations a get and release, both ends together", got)
}

func (b *fakeBackend) SessionAway(uint64, time.Time, string) {}
func (b *fakeBackend) ResumeWorker(_, _ uint64, lanes []int) ([][ipc.TicketBytes]byte, error) {
	return make([][ipc.TicketBytes]byte, len(lanes)), nil
}

func waitFor(t testing.TB, there func() bool) {
	t.Helper()
	await.Until(t, "the state that is waited for here", there)
}
