package transfer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

func TestMain(m *testing.M) { await.Main(m) }

// bytesOf makes n bytes that no other seed has.
func bytesOf(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= n; i += 8 {
		le.PutUint64(b[i:], r.Uint64())
	}
	for i := n &^ 7; i < n; i++ {
		b[i] = byte(r.Uint32())
	}
	return b
}

func sumsOf(b []byte) (sums []byte) {
	for ; len(b) > 0; b = b[min(ChunkBytes, len(b)):] {
		sums = le.AppendUint64(sums, xxhash.Sum64(b[:min(ChunkBytes, len(b))]))
	}
	return sums
}

// node is a Holder with one object.
type node struct {
	name        string
	bytes       []byte
	sums        []byte // nil: not known
	incarnation ID
	refuse      error // Open answers
	fails       int64 // Range fails from this chunk on; 0: never
	open        atomic.Int32
	asked       atomic.Int32 // requests for chunks
	taken       []Named
	mu          sync.Mutex
}

type held struct{ n *node }

func (n *node) Open(_ context.Context, _ ID, r Request) (Object, error) {
	n.asked.Add(1)
	if n.refuse != nil {
		return nil, n.refuse
	}
	if r.Incarnation != n.incarnation {
		return nil, fmt.Errorf("%w: incarnation %x", object.ErrPermission, r.Incarnation)
	}
	n.open.Add(1)
	return &held{n}, nil
}
func (n *node) Probe() State {
	return State{Node: ID{7}, CapacityBytes: 1 << 40, FreeBytes: 5, Transfers: 3}
}
func (n *node) Take(_ ID, x Named) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken = append(n.taken, x)
	return nil
}
func (n *node) Drop(ID, Named) error { return fmt.Errorf("%w: \x1b[2Jno", object.ErrBusy) }

func (h *held) Size() uint64 { return uint64(len(h.n.bytes)) }
func (h *held) Sums() []byte { return h.n.sums }
func (h *held) Close()       { h.n.open.Add(-1) }
func (h *held) Range(off, n uint64) ([]byte, error) {
	if h.n.fails > 0 && int64(off/ChunkBytes) >= h.n.fails {
		return nil, fmt.Errorf("%w: the disk says no", object.ErrStorage)
	}
	return h.n.bytes[off:][:n], nil
}

// world is some nodes that can be dialed. cut, which may be nil, wraps what the asking side reads.
type world struct {
	nodes map[ID]*node
	cut   func(source Source, conn net.Conn) net.Conn
	dials atomic.Int32
	wg    sync.WaitGroup
}

func newWorld(t *testing.T, nodes ...*node) (*world, []Source) {
	w := &world{nodes: map[ID]*node{}}
	var sources []Source
	for i, n := range nodes {
		id := ID{byte(i + 1)}
		w.nodes[id] = n
		sources = append(sources, Source{Node: id, Name: n.name, Incarnation: n.incarnation})
	}
	t.Cleanup(func() {
		w.wg.Wait()
		for _, n := range nodes {
			if open := n.open.Load(); open != 0 {
				t.Errorf("%s has %d objects open at the end", n.name, open)
			}
		}
	})
	return w, sources
}

func (w *world) dial(ctx context.Context, s Source) (net.Conn, error) {
	w.dials.Add(1)
	n := w.nodes[s.Node]
	if n == nil {
		return nil, errors.New("connection refused")
	}
	conn, there, err := loopback.Conns()
	if err != nil {
		return nil, err
	}
	w.wg.Go(func() {
		defer there.Close()
		_ = Serve(context.Background(), there, ID{9}, n)
	})
	if w.cut != nil {
		return w.cut(s, conn), nil
	}
	return conn, nil
}

func jobOf(b []byte, sources []Source) Job {
	return Job{ID: ID{1}, Tenant: "uid:1000", Epoch: 3, SizeBytes: uint64(len(b)), Into: make(memory, len(b)),
		Sources: sources}
}

func TestPullBringsEveryByte(t *testing.T) {
	for _, size := range []int{1, 4095, ChunkBytes - 1, ChunkBytes, ChunkBytes + 1, 17*ChunkBytes + 3,
		70*ChunkBytes - 1} {
		for _, known := range []bool{false, true} {
			n := &node{name: "a", bytes: bytesOf(uint64(size), size), incarnation: ID{5}}
			if known {
				n.sums = sumsOf(n.bytes)
			}
			w, sources := newWorld(t, n)
			job := jobOf(n.bytes, sources)
			var most atomic.Uint64
			job.Progress = func(done uint64) { most.Store(max(most.Load(), done)) }
			r, err := Pull(context.Background(), job, w.dial)
			if err != nil || !bytes.Equal(job.Into.(memory), n.bytes) || !bytes.Equal(r.Sums, sumsOf(n.bytes)) ||
				r.Known != known {
				t.Fatalf("%d bytes: %v, known %v", size, err, r.Known)
			}
			if most.Load() != uint64(size) || r.Bytes[ID{1}] != uint64(size) {
				t.Errorf("%d bytes: told of %d, counted %v", size, most.Load(), r.Bytes)
			}
		}
	}
}

// memory is what is written to.
type memory []byte

func (m memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }

// short is memory that ends early.
type short struct {
	memory
	bytes int
}

func (m short) WriteAt(b []byte, at int64) (int, error) {
	if int(at)+len(b) > m.bytes {
		return 0, fmt.Errorf("%w: no memory", object.ErrFull)
	}
	return m.memory.WriteAt(b, at)
}

// TestPullWithoutMemory: where there is no memory for some bytes the transfer ends, and no other node is asked.
func TestPullWithoutMemory(t *testing.T) {
	const chunks = 5
	n := &node{name: "a", bytes: bytesOf(4, chunks*ChunkBytes-9), incarnation: ID{5}}
	w, sources := newWorld(t, n, &node{name: "b", bytes: n.bytes, incarnation: ID{5}})
	for fails := 0; fails <= chunks; fails++ {
		job := jobOf(n.bytes, sources)
		into := short{make(memory, len(n.bytes)), fails*ChunkBytes + blockBytes}
		job.Streams, job.Into = 1, into
		dials := w.dials.Load()
		_, err := Pull(context.Background(), job, w.dial)
		if done := min(into.bytes, len(n.bytes)); !bytes.Equal(into.memory[:done], n.bytes[:done]) ||
			fails < chunks && !errors.Is(err, object.ErrFull) || fails == chunks && err != nil {
			t.Errorf("no memory behind %d bytes: %v", into.bytes, err)
		}
		if w.dials.Load() != dials+1 {
			t.Errorf("no memory behind %d bytes: %d connections", into.bytes, w.dials.Load()-dials)
		}
	}
}

// cutting is a connection that ends after so many bytes were read.
type cutting struct {
	net.Conn
	left *int64
}

func (c *cutting) Read(b []byte) (int, error) {
	if *c.left <= 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), *c.left)])
	*c.left -= int64(n)
	return n, err
}

// TestPullGoesOnAfterACut: at each boundary of a chunk, and around it, the connection is cut; each time what has
// arrived stays, and the next connection brings the rest.
func TestPullGoesOnAfterACut(t *testing.T) {
	const chunks = 5
	n := &node{name: "a", bytes: bytesOf(3, chunks*ChunkBytes-77), incarnation: ID{5}}
	head := int64(headerBytes + 5)
	for chunk := int64(0); chunk <= chunks; chunk++ {
		for _, off := range []int64{-1, 0, 1, chunkHeaderBytes, chunkHeaderBytes + 1} {
			at := head + chunk*(ChunkBytes+chunkHeaderBytes) + off
			w, sources := newWorld(t, n)
			first := true
			w.cut = func(_ Source, conn net.Conn) net.Conn {
				left := int64(1 << 40)
				if first {
					left = at
				}
				first = false
				return &cutting{conn, &left}
			}
			job := jobOf(n.bytes, sources)
			job.Streams = 1
			r, err := Pull(context.Background(), job, w.dial)
			if err != nil || !bytes.Equal(job.Into.(memory), n.bytes) {
				t.Fatalf("cut at byte %d (chunk %d%+d): %v", at, chunk, off, err)
			}
			if r.Bytes[ID{1}] != uint64(len(n.bytes)) { // no chunk twice
				t.Errorf("cut at chunk %d%+d: %d bytes counted", chunk, off, r.Bytes[ID{1}])
			}
		}
	}
}

// TestPullGivesUpANodeThatIsCutAgainAndAgain: and goes on with the next one.
func TestPullGivesUpANodeThatIsCutAgainAndAgain(t *testing.T) {
	b := bytesOf(4, 6*ChunkBytes)
	w, sources := newWorld(t, &node{name: "a", bytes: b, incarnation: ID{5}},
		&node{name: "b", bytes: b, incarnation: ID{6}})
	w.cut = func(s Source, conn net.Conn) net.Conn {
		left := int64(1 << 40)
		if s.Name == "a" {
			left = 100
		}
		return &cutting{conn, &left}
	}
	job := jobOf(b, sources)
	r, err := Pull(context.Background(), job, w.dial)
	if err != nil || !bytes.Equal(job.Into.(memory), b) || r.Bytes[ID{2}] != uint64(len(b)) || len(r.Faults) == 0 {
		t.Fatalf("%v: %v, %v", err, r.Bytes, r.Faults)
	}
	if dials := w.dials.Load(); dials < maxCuts+1 || dials > maxCuts+MaxStreams {
		t.Errorf("%d connections", dials)
	}
	_, err = Pull(context.Background(), jobOf(b, sources[:1]), w.dial)
	if object.CodeOf(err) != object.ErrBusy.Code() {
		t.Errorf("the node that is cut alone: %v", err)
	}
}

// TestPullPassesOverDamage: a node whose bytes are not what they were gives nothing that is kept.
func TestPullPassesOverDamage(t *testing.T) {
	b := bytesOf(5, 9*ChunkBytes+1)
	bad := &node{name: "a", bytes: bytes.Clone(b), sums: sumsOf(b), incarnation: ID{5}}
	bad.bytes[4*ChunkBytes+5] ^= 1
	good := &node{name: "b", bytes: b, sums: sumsOf(b), incarnation: ID{6}}
	w, sources := newWorld(t, bad, good)
	job := jobOf(b, sources)
	r, err := Pull(context.Background(), job, w.dial)
	if err != nil || !bytes.Equal(job.Into.(memory), b) || len(r.Faults) == 0 ||
		!errors.Is(r.Faults[0], object.ErrStorage) {
		t.Fatalf("%v, faults %v", err, r.Faults)
	}
	job = jobOf(b, sources[:1])
	if _, err := Pull(context.Background(), job, w.dial); !errors.Is(err, object.ErrStorage) ||
		!strings.Contains(err.Error(), "a: ") {
		t.Errorf("the damaged one alone: %v", err)
	}
}

func TestPullSaysWhatEachNodeAnswered(t *testing.T) {
	b := bytesOf(6, 3*ChunkBytes)
	w, sources := newWorld(t, &node{name: "a", bytes: b, refuse: fmt.Errorf("%w: not published", object.ErrNotFound)},
		&node{name: "b", bytes: b[:ChunkBytes], incarnation: ID{6}},
		&node{name: "c", bytes: b, incarnation: ID{6}, fails: 2})
	sources = append(sources, Source{Node: ID{99}, Name: "d"})
	sources[2].Incarnation = ID{1} // an earlier one
	_, err := Pull(context.Background(), jobOf(b, sources), w.dial)
	for _, want := range []string{"a: not found: not published", "b: ", "c: permission denied", "d: busy",
		"connection refused"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if !errors.Is(err, object.ErrBusy) || object.CodeOf(err) != object.ErrBusy.Code() {
		t.Errorf("%v: one of them may answer the next time", err)
	}
	sources[2].Incarnation = ID{6}
	if _, err := Pull(context.Background(), jobOf(b, sources[2:3]), w.dial); !errors.Is(err, object.ErrStorage) ||
		!strings.Contains(err.Error(), "the disk says no") {
		t.Errorf("a node that fails in the middle: %v", err)
	}
}

func TestPullEndsWithItsContext(t *testing.T) {
	b := bytesOf(7, 64*ChunkBytes)
	w, sources := newWorld(t, &node{name: "a", bytes: b, incarnation: ID{5}})
	ctx, cancel := context.WithCancel(context.Background())
	job := jobOf(b, sources)
	job.Rate = NewRate(8 << 20)
	job.Progress = func(done uint64) { cancel() }
	r, err := Pull(ctx, job, w.dial)
	if !errors.Is(err, object.ErrTimeout) || r.Bytes[ID{1}] == 0 || r.Bytes[ID{1}] == uint64(len(b)) {
		t.Errorf("%v after %v", err, r.Bytes)
	}
}

func TestRateBounds(t *testing.T) {
	b := bytesOf(8, 12*ChunkBytes)
	w, sources := newWorld(t, &node{name: "a", bytes: b, incarnation: ID{5}})
	job := jobOf(b, sources)
	job.Rate = NewRate(50 << 20)
	began := time.Now()
	if _, err := Pull(context.Background(), job, w.dial); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 11*20*time.Millisecond { // a lower bound holds on any machine
		t.Errorf("12 MiB at 50 MiB/s took %v", took)
	}
}

func pullReply(chunks uint32, flags byte) func([]byte) []byte {
	return func(b []byte) []byte { return append(le.AppendUint32(b, chunks), flags) }
}

// TestHostileAnswers: whatever a node sends, the transfer ends, and says why.
func TestHostileAnswers(t *testing.T) {
	b := bytesOf(9, 3*ChunkBytes)
	ok := message(nil, typePull|replyBit, pullReply(3, 0))
	chunk := func(sum uint64, n uint32) []byte { return le.AppendUint32(le.AppendUint64(nil, sum), n) }
	for name, x := range map[string]struct {
		answer []byte
		want   error
	}{
		"nothing":          {nil, nil},
		"zeros":            {make([]byte, 64), object.ErrProtocol},
		"a long message":   {[]byte{0xFF, 0xFF, 0xFF, 0x7F, typePull | replyBit, 0, 0, 0}, object.ErrProtocol},
		"another type":     {message(nil, typeProbe|replyBit, nothing), object.ErrProtocol},
		"fewer chunks":     {message(nil, typePull|replyBit, pullReply(2, 0)), object.ErrProtocol},
		"an unknown flag":  {message(nil, typePull|replyBit, pullReply(3, 2)), object.ErrProtocol},
		"an error without": {message(nil, typeError, func(x []byte) []byte { return append(x, 0, 0, 0, 0) }), object.ErrProtocol},
		"a longer chunk":   {append(bytes.Clone(ok), chunk(0, ChunkBytes+1)...), object.ErrProtocol},
		"an empty chunk":   {append(bytes.Clone(ok), chunk(0, 0)...), object.ErrProtocol},
		"a wrong checksum": {append(append(bytes.Clone(ok), chunk(1, ChunkBytes)...), b[:ChunkBytes]...), object.ErrStorage},
		"no error after all": {append(append(bytes.Clone(ok), chunk(0, noChunk)...),
			message(nil, typeProbe, nothing)...), object.ErrProtocol},
		"a name for an error": {appendError(nil, fmt.Errorf("%w: \x1b[31m\u202e", object.ErrBusy)), object.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			dial := func(context.Context, Source) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer there.Close()
					var buf []byte
					_, _, _ = readMessage(there, &buf)
					_, _ = there.Write(x.answer)
				}()
				return here, nil
			}
			job := jobOf(b, []Source{{Node: ID{1}, Name: "evil"}})
			_, err := Pull(context.Background(), job, dial)
			if err == nil || x.want != nil && !errors.Is(err, x.want) {
				t.Fatalf("%v", err)
			}
			if strings.ContainsAny(err.Error(), "\x1b\u202e") {
				t.Errorf("a peer's words write on a terminal: %q", err)
			}
		})
	}
}

// overdue is a connection on which every time to wait has passed as soon as it is set.
type overdue struct{ net.Conn }

func (c overdue) SetDeadline(time.Time) error     { return c.Conn.SetReadDeadline(time.Unix(1, 0)) }
func (c overdue) SetReadDeadline(time.Time) error { return c.Conn.SetReadDeadline(time.Unix(1, 0)) }

// TestPullLeavesASilentNode: one that says nothing costs its time, and the next one gives the object.
func TestPullLeavesASilentNode(t *testing.T) {
	b := bytesOf(10, 2*ChunkBytes)
	good := &node{name: "b", bytes: b, incarnation: ID{6}}
	w, _ := newWorld(t, &node{name: "unused"}, good)
	var open []net.Conn
	var mu sync.Mutex
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	dial := func(ctx context.Context, s Source) (net.Conn, error) {
		if s.Name == "b" {
			return w.dial(ctx, s)
		}
		here, there := net.Pipe()
		mu.Lock()
		open = append(open, there)
		mu.Unlock()
		go io.Copy(io.Discard, there) // takes the request
		return overdue{here}, nil
	}
	job := jobOf(b, []Source{{Node: ID{1}, Name: "silent"}, {Node: ID{2}, Name: "b", Incarnation: ID{6}}})
	r, err := Pull(context.Background(), job, dial)
	if err != nil || !bytes.Equal(job.Into.(memory), b) || r.Bytes[ID{2}] != uint64(len(b)) {
		t.Fatalf("%v: %v, %v", err, r.Bytes, r.Faults)
	}
}

func TestServeRefuses(t *testing.T) {
	n := &node{name: "a", bytes: bytesOf(1, ChunkBytes), incarnation: ID{5}}
	ask := Request{ID: ID{1}, Incarnation: ID{5}, SizeBytes: ChunkBytes, Chunks: 1, Tenant: "t"}
	with := func(change func(*Request)) []byte {
		r := ask
		change(&r)
		return message(nil, typePull, r.append)
	}
	for name, x := range map[string]struct {
		request []byte
		want    error
	}{
		"no chunks":        {with(func(r *Request) { r.Chunks = 0 }), object.ErrProtocol},
		"too many":         {with(func(r *Request) { r.SizeBytes, r.Chunks = 1<<40, MaxChunks+1 }), object.ErrProtocol},
		"beyond its end":   {with(func(r *Request) { r.First = 1 }), object.ErrProtocol},
		"far beyond it":    {with(func(r *Request) { r.First = 1<<64 - 1 }), object.ErrProtocol},
		"no object":        {with(func(r *Request) { r.ID = ID{} }), object.ErrProtocol},
		"another size":     {with(func(r *Request) { r.SizeBytes-- }), object.ErrStorage},
		"an unknown type":  {message(nil, 99, nothing), object.ErrUnsupported},
		"a short request":  {message(nil, typePull, func(b []byte) []byte { return append(b, 1, 2, 3) }), object.ErrProtocol},
		"a short drop":     {message(nil, typeDrop, nothing), object.ErrProtocol},
		"what is not done": {message(nil, typeDrop, (&Named{ID: ID{1}}).append), object.ErrBusy},
	} {
		here, there := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- Serve(context.Background(), there, ID{9}, n) }()
		if _, err := here.Write(x.request); err != nil {
			t.Fatal(err)
		}
		var buf []byte
		kind, payload, err := readMessage(here, &buf)
		if err != nil || kind != typeError || !errors.Is(decodeError(payload), x.want) {
			t.Errorf("%s: type %d, %v, %v", name, kind, err, decodeError(payload))
		}
		here.Close()
		<-done
		there.Close()
	}
	if n.open.Load() != 0 {
		t.Errorf("%d objects are open", n.open.Load())
	}
}

// Probe asks a node how it is, as earlier releases do.
func Probe(ctx context.Context, conn net.Conn) (s State, err error) {
	answer, err := call(ctx, conn, typeProbe, nothing)
	if err == nil {
		err = s.decode(answer)
	}
	return s, err
}

func (s *State) decode(b []byte) error {
	x := reader{b: b}
	*s = State{Node: x.id(), Incarnation: x.id(), CapacityBytes: x.u64(), FreeBytes: x.u64(), Transfers: x.u32()}
	return x.end("state")
}

func TestProbeTakeDrop(t *testing.T) {
	n := &node{name: "a", bytes: []byte{1}}
	w, sources := newWorld(t, n)
	conn, err := w.dial(context.Background(), sources[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if s, err := Probe(context.Background(), conn); err != nil || s != n.Probe() {
		t.Errorf("%+v, %v", s, err)
	}
	want := Named{ID: ID{3}, Epoch: 9, Tenant: "uid:7"}
	_, err = call(context.Background(), conn, typeTake, want.append)
	if err != nil || len(n.taken) != 1 || n.taken[0] != want {
		t.Errorf("%v: %+v", err, n.taken)
	}
	_, err = call(context.Background(), conn, typeDrop, want.append)
	if !errors.Is(err, object.ErrBusy) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v", err)
	}
}

// golden are the messages as bytes: formats are for ever.
func golden() map[string][]byte {
	r := &Request{ID: ID{1, 2}, Incarnation: ID{3}, Epoch: 4, SizeBytes: 5 << 20, First: 1, Chunks: 2, Tenant: "uid:1000"}
	s := &State{Node: ID{1}, Incarnation: ID{2}, CapacityBytes: 3, FreeBytes: 4, Transfers: 5}
	n := &Named{ID: ID{9}, Epoch: 8, Tenant: "t"}
	return map[string][]byte{
		"request": message(nil, typePull, r.append),
		"state":   message(nil, typeProbe|replyBit, s.append),
		"take":    message(nil, typeTake, n.append),
		"error":   appendError(nil, object.ErrBusy),
	}
}

func TestGoldenBytes(t *testing.T) {
	for name, want := range map[string]string{
		"request": "4a00000001000000" + "01020000000000000000000000000000" + "03000000000000000000000000000000" +
			"0400000000000000" + "0000500000000000" + "0100000000000000" + "02000000" + "0800" + "7569643a31303030",
		"state": "3800000082000000" + "01000000000000000000000000000000" + "02000000000000000000000000000000" +
			"0300000000000000" + "0400000000000000" + "05000000",
		"take":  "1f00000003000000" + "09000000000000000000000000000000" + "0800000000000000" + "0100" + "74",
		"error": "0c000000ff000000" + "0c00" + "0400" + "62757379",
	} {
		if got := hex.EncodeToString(golden()[name]); got != want {
			t.Errorf("%s:\n%s, want\n%s", name, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range golden() {
		for i := range len(b) + 1 {
			f.Add(b[:i])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var buf []byte
		kind, payload, err := readMessage(bytes.NewReader(b), &buf)
		if err != nil {
			return
		}
		if cap(buf) > maxMessageBytes {
			t.Fatalf("%d bytes of memory for a message", cap(buf))
		}
		var r Request
		if r.decode(payload) == nil {
			if again := message(nil, kind, r.append); !bytes.Equal(again, b[:len(again)]) {
				t.Fatalf("%x became %x", b, again)
			}
		}
		var s State
		if s.decode(payload) == nil && !bytes.Equal(s.append(nil), payload) {
			t.Fatalf("%x became %x", payload, s.append(nil))
		}
		var n Named
		if n.decode(payload) == nil && !bytes.Equal(n.append(nil), payload) {
			t.Fatalf("%x became %x", payload, n.append(nil))
		}
		_ = decodeError(payload)
	})
}
