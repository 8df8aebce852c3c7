package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril/store/object"
)

// ackReader is a reader that acknowledges, and what it has of the frames.
type ackReader struct {
	*Conn
	end     uint64
	unacked []uint64          // popped
	held    map[uint64]uint64 // acknowledged: how many references there are to be released; by number
}

type ackModel struct {
	t       *testing.T
	rng     *rand.Rand
	opts    Options
	s       *Store
	writer  *Conn
	in      uint64
	ids     []object.ID // of the frames, by their number
	waiting []uint64    // in the stream, in their order
	had     map[uint64]bool
	readers []*ackReader
	pid     int
}

func (m *ackModel) join() *ackReader {
	m.pid++ // a process each: the orphan that has a frame is the own one
	c, err := m.s.Connect(Owner{Tenant: "a", PID: m.pid, Name: "reader"})
	must(m.t, err)
	m.t.Cleanup(c.Close)
	r := &ackReader{Conn: c, held: map[uint64]uint64{}}
	r.Acknowledges()
	r.end = openStream(m.t, r.Conn, StreamSpec{Name: "s", Reads: true})
	return r
}

func (m *ackModel) back(numbers ...uint64) {
	m.waiting = append(m.waiting, numbers...)
	slices.Sort(m.waiting)
}

// has notes that a reader has a frame for good.
func (m *ackModel) has(number uint64) {
	if m.had[number] {
		m.t.Fatalf("frame %d went to two readers", number)
	}
	m.had[number] = true
}

func (m *ackModel) push() {
	size := m.rng.Uint64N(3)
	id := sealedObject(m.t, m.writer, Spec{SizeBytes: size})
	if n := len(m.ids); n > 0 && m.rng.IntN(4) == 0 { // the object of an earlier frame, if it is still there
		if h, err := m.writer.Get(m.ids[n-1]); err == nil {
			closeHandle(h)
			must(m.t, m.writer.Release(id))
			id = h.ID
		}
	}
	w, err := m.writer.Push(m.in, id, 0, nil)
	if err != nil || w != nil {
		m.t.Fatal(w, err)
	}
	m.ids = append(m.ids, id)
	m.back(uint64(len(m.ids)))
}

func (m *ackModel) pop(r *ackReader) {
	p, _, err := r.Pop(r.end, 0, nil)
	switch {
	case len(m.waiting) == 0 && errors.Is(err, object.ErrTimeout):
		return
	case err != nil || len(m.waiting) == 0 || p.Number != m.waiting[0] || p.ID != m.ids[p.Number-1]:
		m.t.Fatalf("popped frame %d, %s, %v; there wait %v", p.Number, p.ID, err, m.waiting)
	}
	closeHandle(p.Handle)
	m.waiting = m.waiting[1:]
	r.unacked = append(r.unacked, p.Number)
}

// have acknowledges a frame, in its own message or by its release.
func (m *ackModel) have(r *ackReader) {
	if len(r.unacked) == 0 {
		return
	}
	i := m.rng.IntN(len(r.unacked))
	number := r.unacked[i]
	id := m.ids[number-1]
	twice := slices.ContainsFunc(r.unacked, func(n uint64) bool { return n != number && m.ids[n-1] == id })
	for n := range r.held {
		twice = twice || m.ids[n-1] == id
	}
	r.unacked = slices.Delete(r.unacked, i, i+1)
	m.has(number)
	if !twice && m.rng.IntN(2) == 0 {
		must(m.t, r.Release(id))
		return
	}
	must(m.t, r.AckFrame(r.end, id, number))
	r.held[number]++
	if err := r.AckFrame(r.end, id, number); !errors.Is(err, object.ErrNotFound) {
		m.t.Fatalf("acknowledged twice: %v", err)
	}
}

func (m *ackModel) release(r *ackReader) {
	for number := range r.held {
		must(m.t, r.Release(m.ids[number-1]))
		delete(r.held, number)
		return
	}
}

func (m *ackModel) unpop(r *ackReader) {
	if n := len(r.unacked); n > 0 {
		number := r.unacked[n-1]
		r.unacked = r.unacked[:n-1]
		must(m.t, r.Unpop(r.end, m.ids[number-1], number))
		m.back(number)
	}
}

func (m *ackModel) kill(i int) {
	m.readers[i].Close()
	m.back(m.readers[i].unacked...)
	m.readers[i] = m.join()
}

// takeOver replaces the store. Readers that come back claim what they have.
func (m *ackModel) takeOver() {
	m.s.Leave()
	m.writer.Close()
	for _, r := range m.readers {
		r.Close()
	}
	opts := m.opts
	opts.Handoff = m.s.Handoff()
	s, err := New(opts)
	must(m.t, err)
	m.t.Cleanup(s.Close)
	m.s = s
	m.begin()
	orphans := s.Orphans()
	for i, was := range m.readers {
		m.pid = was.owner.PID - 1
		r := m.join()
		m.pid += 1000
		m.readers[i] = r
		for number := range was.held {
			if again, _ := r.Reclaim(m.ids[number-1], 0); !again {
				m.t.Fatalf("frame %d, which a reader holds, is gone", number)
			}
			r.held[number]++
		}
		if m.rng.IntN(2) == 0 && len(was.unacked) > 0 { // it had one of them
			number := was.unacked[0]
			id := m.ids[number-1]
			only := !slices.ContainsFunc(m.readers, func(other *ackReader) bool {
				return slices.ContainsFunc(slices.Concat(other.unacked, slices.Collect(keysOf(other.held))),
					func(n uint64) bool { return n != number && m.ids[n-1] == id })
			}) && !slices.ContainsFunc(was.unacked[1:], func(n uint64) bool { return m.ids[n-1] == id }) &&
				len(was.held) == 0
			if only {
				if again, _ := r.Reclaim(id, 0); !again {
					m.t.Fatalf("frame %d, which a reader has, is gone", number)
				}
				m.has(number)
				r.held[number]++
				was.unacked = was.unacked[1:]
			}
		}
		m.back(was.unacked...)
		was.unacked = nil
	}
	for _, orphan := range orphans {
		orphan.Close()
	}
}

func keysOf(held map[uint64]uint64) func(func(uint64) bool) {
	return func(yield func(uint64) bool) {
		for n := range held {
			if !yield(n) {
				return
			}
		}
	}
}

func (m *ackModel) begin() {
	m.writer = connect(m.t, m.s, "a")
	m.in = openStream(m.t, m.writer, StreamSpec{Name: "s", Writes: true, Frames: 1000, Keep: true})
}

// Frames that a reader popped and did not acknowledge go back in their order when it ends, also in a takeover: what was
// pushed is what readers had and what is left, each frame once.
func TestUnacknowledgedFramesGoBack(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			opts := Options{CapacityBytes: 64 << 20}
			m := &ackModel{t: t, rng: rand.New(rand.NewPCG(seed, 7)), opts: opts, s: newStore(t, opts),
				had: map[uint64]bool{}}
			m.begin()
			for range 3 {
				m.readers = append(m.readers, m.join())
			}
			for range 300 {
				r := m.readers[m.rng.IntN(len(m.readers))]
				switch n := m.rng.IntN(100); {
				case n < 30:
					m.push()
				case n < 60:
					m.pop(r)
				case n < 75:
					m.have(r)
				case n < 85:
					m.release(r)
				case n < 90:
					m.unpop(r)
				case n < 98:
					m.kill(m.rng.IntN(len(m.readers)))
				default:
					m.takeOver()
				}
				if fault := m.s.invariants(false); fault != "" {
					t.Fatal(fault)
				}
			}
			for i := range m.readers {
				m.kill(i)
			}
			for r := m.readers[0]; len(m.waiting) > 0; {
				m.pop(r)
				m.have(r)
			}
			if len(m.had) != len(m.ids) {
				t.Errorf("%d frames were pushed, readers had %d", len(m.ids), len(m.had))
			}
		})
	}
}

// ackedStream gives a stream "s" with a writer, and a reader that acknowledges.
func ackedStream(t *testing.T, s *Store) (writer, reader *Conn, in, out uint64) {
	writer, reader = connect(t, s, "a"), connect(t, s, "a")
	reader.Acknowledges()
	in = openStream(t, writer, StreamSpec{Name: "s", Writes: true})
	out = openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	return writer, reader, in, out
}

// A stream stays for frames that may come back, and goes with the last acknowledgement.
func TestStreamStaysForUnacknowledgedFrames(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader, in, out := ackedStream(t, s)
	id := pushNow(t, writer, in, 10)
	wantPop(t, reader, out, id, 1)
	must(t, writer.EndStream(in, false))
	must(t, writer.CloseStream(in))
	must(t, reader.CloseStream(out))
	other := connect(t, s, "a")
	again := openStream(t, other, StreamSpec{Name: "s", Reads: true, Existing: true})
	reader.Close()
	wantPop(t, other, again, id, 1)
	must(t, other.CloseStream(again))
	if list := other.Streams(""); len(list) != 0 {
		t.Errorf("the stream stayed: %+v", list)
	}
}

// A frame that is not acknowledged goes back also behind its reader's end.
func TestUnpopBehindTheClose(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader, in, out := ackedStream(t, s)
	first, second := pushNow(t, writer, in, 10), pushNow(t, writer, in, 10)
	wantPop(t, reader, out, first, 1)
	wantPop(t, reader, out, second, 2)
	must(t, reader.AckFrame(out, second, 2))
	must(t, reader.CloseStream(out))
	must(t, reader.Unpop(out, first, 1))
	if err := reader.Unpop(out, second, 2); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a frame that was acknowledged: %v", err)
	}
	out = openStream(t, reader, StreamSpec{Name: "s", Reads: true})
	wantPop(t, reader, out, first, 1)
	mustAgree(t, s, true)
}

// A pop that waits gets a frame that comes back.
func TestWaitingPopGetsWhatComesBack(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader, in, out := ackedStream(t, s)
	other := connect(t, s, "a")
	id := pushNow(t, writer, in, 10)
	wantPop(t, reader, out, id, 1)
	wake, woken := waited()
	if _, w, err := other.Pop(openStream(t, other, StreamSpec{Name: "s", Reads: true}), -1, wake); w == nil {
		t.Fatal(err)
	}
	reader.Close()
	p, err := (<-woken).Result()
	if err != nil || p.ID != id || p.Number != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	closeHandle(p.Handle)
}

// A pop costs no more memory for being acknowledged.
func TestAcknowledgingAllocatesNothing(t *testing.T) {
	measure := func(acks bool) float64 {
		s := newStore(t, Options{})
		c := connect(t, s, "a")
		c.acks = acks
		both := openStream(t, c, StreamSpec{Name: "s", Reads: true, Writes: true})
		id := pushNow(t, c, both, 0)
		defer c.Close()
		return testing.AllocsPerRun(100, func() {
			wantPop(t, c, both, id, c.tenant.streams["s"].pushed)
			if _, err := c.Push(both, id, 0, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	if without, with := measure(false), measure(true); with > without {
		t.Errorf("%v allocations a pop, and %v without", with, without)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
