//go:build cgo

package worker

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// linked is two workers of one program with a link between them.
type linked struct {
	t      *testing.T
	far    [2]*far
	fix    [2]*fixture
	states [2][]clwire.PeerState
	number uint64 // of the link
	last   uint64 // number of an event or push that both sides know
}

func newLinked(t *testing.T, inPlace, plaintext bool) *linked {
	t.Helper()
	w := &linked{t: t, number: 1 << 40, last: 1 << 41}
	var prints [2][32]byte
	for i := range 2 {
		w.far[i], w.fix[i] = farFixture(t, inPlace, 0)
		p := &w.far[i].session.peers
		p.mu.Lock()
		p.sockets = &peerSockets{}
		p.mu.Unlock()
		w.far[i].client.other = func(h clwire.Header, payload []byte) {
			if h.Type != clwire.TypePeerState {
				w.far[i].other(h, payload)
				return
			}
			var m clwire.PeerState
			w.far[i].must(m.Decode(payload))
			w.states[i] = append(w.states[i], m)
		}
		copy(prints[i][:], w.far[i].call(&clwire.PeerOpen{}).Data)
	}
	for index := range 3 {
		a, b := tcpEnds(t)
		for i, f := range []*os.File{a, b} {
			fd, err := dup(f)
			w.far[i].must(err)
			if index == 0 { // some come before the record, some behind it
				w.far[i].session.peers.sockets.put(&clwire.WorkerPeer{Link: w.number, Index: index}, fd)
				continue
			}
			if index == 1 {
				w.far[i].send(&clwire.PeerExpect{Link: w.number, Answers: i == 1, Plaintext: plaintext, Lanes: 3,
					PeerSHA: prints[1-i]})
				w.far[i].link.Kick()
			}
			w.far[i].session.peers.sockets.put(&clwire.WorkerPeer{Link: w.number, Index: index}, fd)
		}
	}
	for i := range 2 {
		w.await(i, true)
	}
	return w
}

// await waits for the link's state at a side.
func (w *linked) await(i int, up bool) clwire.PeerState {
	w.t.Helper()
	var last clwire.PeerState
	w.far[i].until("the link's state", func() bool {
		if n := len(w.states[i]); n > 0 {
			last = w.states[i][n-1]
		}
		return last.Link != 0 && last.Up == up
	})
	return last
}

func (w *linked) next() uint64 { w.last++; return w.last }

// buffer makes a buffer at a side and, where data is not nil, fills it.
func (w *linked) buffer(i int, size int, data []byte) uint64 {
	f := w.far[i]
	id := f.id()
	f.send(&clwire.CreateBuffer{ID: id, Context: w.fix[i].context, Flags: cl.MEM_READ_WRITE, Size: uint64(size)})
	for at := 0; at < len(data); at += 4096 {
		part := data[at:min(at+4096, len(data))]
		f.send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: w.fix[i].queue}, Buffer: id, Offset: uint64(at), Data: part})
	}
	f.call(&clwire.Finish{Queue: w.fix[i].queue})
	return id
}

func (w *linked) read(i int, id uint64, size int) (data []byte) {
	w.t.Helper()
	for at := 0; at < size; at += clwire.InlineBytes {
		n := min(clwire.InlineBytes, size-at)
		data = append(data, w.far[i].fetch(w.fix[i], id, clwire.Shape{Offset: uint64(at), Size: uint64(n)}, n, true)...)
	}
	return data
}

// ended waits for the report of an event.
func (w *linked) ended(i int, event uint64) int32 {
	w.t.Helper()
	w.far[i].until("an event", func() bool { return w.far[i].count[event] > 0 })
	if w.far[i].count[event] != 1 {
		w.t.Errorf("event %d was reported %d times", event, w.far[i].count[event])
	}
	return w.far[i].ends[event].Status
}

func kick(w *linked) {
	for _, f := range w.far {
		f.link.Kick()
	}
}

// Bytes go from worker to worker, behind what each half waits for, and what waits for them sees them.
func TestPeerPush(t *testing.T) {
	everyMemory(t, func(t *testing.T, inPlace bool) {
		w := newLinked(t, inPlace, inPlace)
		const size = 1<<20 + 777
		data := make([]byte, size)
		rand.New(rand.NewSource(3)).Read(data)
		src, dst := w.buffer(0, size, data), w.buffer(1, size, nil)
		gates := [2]uint64{w.next(), w.next()}
		for i := range 2 {
			w.far[i].send(&clwire.UserEvent{ID: gates[i]})
		}
		op := w.next()
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, 5, size-10, []uint64{gates[1]}))
		w.far[0].send(clwire.NewPeerPush(w.number, op, src, 10, size-10, []uint64{gates[0]}))
		after := w.next()
		w.far[1].send(&clwire.Marker{Cmd: clwire.Cmd{Queue: w.fix[1].queue, Event: after, Wait: []uint64{op}}})
		kick(w)
		w.far[0].send(&clwire.SetUserEvent{ID: gates[0]})
		w.far[0].call(&clwire.ClockSync{})
		if w.far[1].call(&clwire.ClockSync{}); w.far[1].count[op] != 0 {
			t.Fatal("the push ended before the other side was ready")
		}
		w.far[1].send(&clwire.SetUserEvent{ID: gates[1]})
		kick(w)
		if status := w.ended(1, op); status != 0 {
			t.Fatalf("the push ended with %d", status)
		}
		if status := w.ended(1, after); status != 0 {
			t.Fatalf("what waits for it ended with %d", status)
		}
		got := w.read(1, dst, size)
		if !bytes.Equal(got[5:size-5], data[10:]) {
			t.Error("other bytes came")
		}
	})
}

// Many pushes and events cross, both ways at once, told of in any order.
func TestPeerTraffic(t *testing.T) {
	w := newLinked(t, true, false)
	const n, size = 60, 40_000
	type one struct {
		from           int
		src, dst       uint64
		data           []byte
		op, gate, told uint64
	}
	var all []one
	r := rand.New(rand.NewSource(9))
	for k := range n {
		o := one{from: k % 2, data: make([]byte, 1+r.Intn(size)), op: w.next(), gate: w.next(), told: w.next()}
		r.Read(o.data)
		o.src, o.dst = w.buffer(o.from, len(o.data), o.data), w.buffer(1-o.from, len(o.data), nil)
		all = append(all, o)
	}
	for _, o := range all {
		a, b := w.far[o.from], w.far[1-o.from]
		a.send(&clwire.UserEvent{ID: o.gate})
		halves := []func(){
			func() { a.send(clwire.NewPeerPush(w.number, o.op, o.src, 0, uint64(len(o.data)), []uint64{o.gate})) },
			func() { b.send(clwire.NewPeerPull(w.number, o.op, o.dst, 0, uint64(len(o.data)), nil)) },
			func() { a.send(&clwire.PeerSignal{Link: w.number, Event: o.gate, There: o.told}) },
			func() { b.send(&clwire.PeerEvent{Link: w.number, ID: o.told}) },
		}
		r.Shuffle(len(halves), func(i, j int) { halves[i], halves[j] = halves[j], halves[i] })
		for i, half := range halves {
			if half(); i == 1 {
				kick(w)
			}
		}
	}
	for k := range r.Perm(n) {
		w.far[all[k].from].send(&clwire.SetUserEvent{ID: all[k].gate})
	}
	kick(w)
	for _, o := range all {
		if status := w.ended(1-o.from, o.op); status != 0 {
			t.Fatalf("push %d ended with %d", o.op, status)
		}
		if status := w.ended(1-o.from, o.told); status != 0 {
			t.Fatalf("event %d ended with %d", o.told, status)
		}
		if !bytes.Equal(w.read(1-o.from, o.dst, len(o.data)), o.data) {
			t.Fatalf("push %d brought other bytes", o.op)
		}
	}
}

// Failures cross: of the command before a push, of an event, of ranges that are none.
func TestPeerFailures(t *testing.T) {
	w := newLinked(t, true, true)
	src, dst := w.buffer(0, 100, make([]byte, 100)), w.buffer(1, 100, nil)
	gate := w.next()
	w.far[0].send(&clwire.UserEvent{ID: gate})
	for name, c := range map[string]struct {
		off, size uint64
		wait      []uint64
		want      int32
	}{
		"a failed command": {0, 100, []uint64{gate}, -7},
		"outside":          {90, 100, nil, int32(cl.INVALID_VALUE)},
		"well":             {0, 100, nil, 0},
	} {
		op := w.next()
		w.far[0].send(clwire.NewPeerPush(w.number, op, src, c.off, c.size, c.wait))
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, 0, c.size, nil))
		if len(c.wait) > 0 {
			w.far[0].send(&clwire.SetUserEvent{ID: gate, Status: -7})
		}
		kick(w)
		if status := w.ended(1, op); status != c.want {
			t.Errorf("%s: the push ended with %d, want %d", name, status, c.want)
		}
	}
	told := w.next()
	w.far[1].send(&clwire.PeerEvent{Link: w.number, ID: told})
	w.far[0].send(&clwire.PeerSignal{Link: w.number, Event: gate, There: told})
	kick(w)
	if status := w.ended(1, told); status != -7 {
		t.Errorf("the event ended with %d", status)
	}
}

// A link that breaks is told of at both ends, behind what came over it; what did not come stays open for its client.
func TestPeerBreaks(t *testing.T) {
	w := newLinked(t, true, false)
	src, dst := w.buffer(0, 1000, make([]byte, 1000)), w.buffer(1, 1000, nil)
	came, gate, late := w.next(), w.next(), w.next()
	w.far[0].send(&clwire.UserEvent{ID: gate})
	for op, wait := range map[uint64][]uint64{came: nil, late: {gate}} {
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, 0, 1000, nil))
		w.far[0].send(clwire.NewPeerPush(w.number, op, src, 0, 1000, wait))
	}
	kick(w)
	w.ended(1, came)
	w.far[0].send(&clwire.PeerClose{Link: w.number})
	kick(w)
	for i := range 2 {
		if s := w.await(i, false); s.Text == "" {
			t.Error("nobody says why")
		}
	}
	w.far[0].send(&clwire.SetUserEvent{ID: gate})
	after := w.next()
	w.far[1].send(clwire.NewPeerPull(w.number, after, dst, 0, 1000, nil)) // sent before its client heard
	w.far[0].send(clwire.NewPeerPush(w.number, after, src, 0, 1000, nil))
	w.far[0].call(&clwire.ClockSync{})
	if w.far[1].call(&clwire.ClockSync{}); w.far[1].count[late]+w.far[1].count[after] != 0 {
		t.Error("a push ended without a link")
	}
	for _, op := range []uint64{late, after} { // the client's other way
		w.far[1].send(&clwire.SetUserEvent{ID: op, Status: 0})
		kick(w)
		if status := w.ended(1, op); status != 0 {
			t.Errorf("it ended with %d", status)
		}
	}
}

// hostileEnd is a link whose other side is the test.
func hostileEnd(t *testing.T) (w *linked, words *link.Stream, chunks *link.Lane) {
	t.Helper()
	w = &linked{t: t, number: 7 << 40, last: 1 << 41}
	w.far[0], w.fix[0] = farFixture(t, true, 0)
	p := &w.far[0].session.peers
	p.mu.Lock()
	p.sockets = &peerSockets{}
	p.mu.Unlock()
	w.far[0].client.other = func(h clwire.Header, payload []byte) {
		if h.Type != clwire.TypePeerState {
			w.far[0].other(h, payload)
			return
		}
		var m clwire.PeerState
		w.far[0].must(m.Decode(payload))
		w.states[0] = append(w.states[0], m)
	}
	w.far[0].call(&clwire.PeerOpen{})
	w.far[0].send(&clwire.PeerExpect{Link: w.number, Answers: true, Plaintext: true, Lanes: 2})
	for index := range 2 {
		a, b := tcpEnds(t)
		fd, err := dup(b)
		w.far[0].must(err)
		p.sockets.put(&clwire.WorkerPeer{Link: w.number, Index: index}, fd)
		if index == 0 {
			words, err = link.OpenStream(link.Worker, a, link.Options{})
			w.far[0].must(err)
			t.Cleanup(func() { words.Close() })
			continue
		}
		chunks, err = link.OpenLane(link.Client, a, link.Options{})
		w.far[0].must(err)
		t.Cleanup(func() { chunks.Close() })
	}
	w.far[0].link.Kick()
	w.await(0, true)
	return w, words, chunks
}

// Whatever the other worker says ends the link at worst, never the session, and touches no byte that was not offered.
func TestHostilePeer(t *testing.T) {
	type end struct {
		*link.Lane
		words *link.Stream
	}
	// word sends several at once.
	word := func(e end, list ...clwire.PeerWord) error {
		for _, w := range list {
			if err := e.words.Send(&w, 0, 0); err != nil {
				return err
			}
		}
		e.words.Kick()
		return nil
	}
	piece := func(e end, op, at uint64, n int) error {
		return e.words.Send(clwire.NewPeerBytes(op, at, make([]byte, n)), clwire.FlagUrgent, 0)
	}
	for name, say := range map[string]func(e end, op uint64) error{
		"a word of no kind": func(e end, _ uint64) error { return word(e, clwire.PeerWord{}) },
		"a positive status": func(e end, op uint64) error {
			return word(e, clwire.PeerWord{Kind: clwire.PeerDone, Status: 3, Number: op})
		},
		"a record of a client's": func(e end,
			_ uint64) error {
			return e.words.Send(&clwire.Finish{Queue: 1}, clwire.FlagUrgent, 1)
		},
		"an event told twice": func(e end, _ uint64) error {
			return word(e, clwire.PeerWord{Kind: clwire.PeerDone, Number: 99},
				clwire.PeerWord{Kind: clwire.PeerDone, Number: 99})
		},
		"a push nobody knows fails": func(e end, _ uint64) error {
			return word(e, clwire.PeerWord{Kind: clwire.PeerFailed, Status: -5, Number: 99})
		},
		"bytes of no push": func(e end, _ uint64) error {
			return e.Send(clwire.LaneHeader{Op: 99, Length: 4}, []byte("evil"), nil)
		},
		"a piece of no push":     func(e end, _ uint64) error { return piece(e, 99, 0, 4) },
		"a piece of nothing":     func(e end, op uint64) error { return piece(e, op, 0, 0) },
		"a piece too long":       func(e end, op uint64) error { return piece(e, op, 0, clwire.InlineBytes+1) },
		"a piece behind the end": func(e end, op uint64) error { return piece(e, op, 998, 4) },
		"a piece far behind it":  func(e end, op uint64) error { return piece(e, op, ^uint64(1), 4) },
		"too many pieces": func(e end, op uint64) error {
			return errors.Join(piece(e, op, 0, 600), piece(e, op, 0, 600))
		},
		"bytes behind the end": func(e end, op uint64) error {
			return e.Send(clwire.LaneHeader{Op: op, Offset: 998, Length: 4}, []byte("evil"), nil)
		},
		"too many bytes": func(e end, op uint64) error {
			for range 3 {
				if err := e.Send(clwire.LaneHeader{Op: op, Length: 500}, make([]byte, 500), nil); err != nil {
					return nil
				}
			}
			return nil
		},
		"taken back half way": func(e end, op uint64) error {
			failed := clwire.PeerWord{Kind: clwire.PeerFailed, Status: -5, Number: op}
			return errors.Join(piece(e, op, 0, 500), word(e, failed))
		},
		"a length of no push": func(e end,
			_ uint64) error {
			return e.words.Send(&clwire.BulkLength{Op: 99}, clwire.FlagUrgent, 0)
		},
		"longer than it is": func(e end, op uint64) error {
			return e.words.Send(&clwire.BulkLength{Op: op, Bytes: 1000}, clwire.FlagUrgent, 0)
		},
		"shorter than what came": func(e end, op uint64) error {
			return errors.Join(piece(e, op, 0, 600),
				e.words.Send(&clwire.BulkLength{Op: op, Bytes: 599}, clwire.FlagUrgent, 0))
		},
		"shortened twice": func(e end, op uint64) error {
			return errors.Join(e.words.Send(&clwire.BulkLength{Op: op, Bytes: 900}, clwire.FlagUrgent, 0),
				e.words.Send(&clwire.BulkLength{Op: op, Bytes: 800}, clwire.FlagUrgent, 0))
		},
		"bytes behind the shorter end": func(e end, op uint64) error {
			return errors.Join(e.words.Send(&clwire.BulkLength{Op: op, Bytes: 500}, clwire.FlagUrgent, 0),
				piece(e, op, 499, 2))
		},
		"a cable cut":       func(e end, _ uint64) error { e.Shutdown(); return nil },
		"words are cut off": func(e end, _ uint64) error { e.words.Shutdown(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w, words, chunks := hostileEnd(t)
			data := bytes.Repeat([]byte("good"), 250)
			guard, dst := w.buffer(0, 1000, data), w.buffer(0, 1000, data)
			op := w.next()
			w.far[0].send(clwire.NewPeerPull(w.number, op, dst, 0, 1000, nil))
			w.far[0].call(&clwire.ClockSync{})
			if err := say(end{chunks, words}, op); err != nil {
				t.Fatal(err)
			}
			if s := w.await(0, false); s.Text == "" || strings.Contains(s.Text, "\n") {
				t.Errorf("why: %q", s.Text)
			}
			if got := w.read(0, guard, 1000); !bytes.Equal(got, data) {
				t.Error("another buffer was touched")
			}
		})
	}
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return os.NewFile(uintptr(fd), "lane"), err
}
