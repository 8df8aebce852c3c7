package ways

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
)

// script is a random program of reads, writes, maps and unmaps, all ordered: by one queue, or each by the event of the
// one before. So a model that does each at once says what every byte is.
type script struct {
	*rig
	rnd     *rand.Rand
	queues  []*fakeQueue
	chained bool // by events
	last    *fakeEvent

	buffers, should []*fakeBuffer // what is there; what the model has. Maps are of the first
	shown           *memory.Place // what maps show; nil: memory of the program's own
	host, model     []byte        // the program's memory, which begins with what maps show
	mapped          [][2]uint64   // ranges of the first buffer that are mapped now; they do not meet
	log             []string
}

const (
	seeds        = 10        // 500 were run once
	scriptBuffer = 700 << 10 // bytes of each buffer
	scriptHost   = scriptBuffer + 500<<10
)

func newScript(t *testing.T, seed uint64, kind string, chained bool) *script {
	s := &script{rig: newRig(t, kind == "shared", kind == "remote"), rnd: rand.New(rand.NewPCG(seed, 7)),
		chained: chained, host: make([]byte, scriptHost), model: make([]byte, scriptHost)}
	s.w.inline = s.rnd.IntN(2) == 0
	late := rand.New(rand.NewPCG(seed, 8))
	s.w.late = func() bool { return late.IntN(4) > 0 }
	s.queues = []*fakeQueue{s.q}
	if chained {
		s.queues = append(s.queues, &fakeQueue{w: s.w, state: State{OutOfOrder: true}})
	}
	for i := range 3 {
		b := s.buffer(scriptBuffer)
		copy(b.data, pattern(scriptBuffer, byte(17*i+1)))
		s.buffers = append(s.buffers, b)
		s.should = append(s.should, &fakeBuffer{data: bytes.Clone(b.data)})
	}
	if kind == "device" {
		s.warm(s.buffers[0])
	}
	if kind == "device" && s.rnd.IntN(2) == 0 { // else maps show memory of the program's own
		p, status := s.Slabs.AllocOwn(scriptHost)
		s.ok(status)
		s.ok(s.PinMap(s.buffers[0], p))
		s.Views.Add(p, scriptBuffer)
		s.shown, s.host = p, p.Bytes(scriptHost)
	}
	if s.rnd.IntN(3) == 0 { // no staging memory, or little of it
		s.source.left = s.rnd.Uint64N(2) << 20
	}
	for i := range s.host {
		s.host[i] = byte(i >> 3)
	}
	copy(s.model, s.host)
	return s
}

// span is a random part of n bytes: often small, often large.
func (s *script) span(n uint64) (off, size uint64) {
	size = 1 + s.rnd.Uint64N(min(n, []uint64{3000, 60 << 10, 200 << 10, 700 << 10}[s.rnd.IntN(4)]))
	return s.rnd.Uint64N(n - size + 1), size
}

// place is where a read or a write may be in the program's memory: what is mapped, or what maps never show.
func (s *script) place() (off, size uint64) {
	if len(s.mapped) > 0 && s.rnd.IntN(4) > 0 {
		m := s.mapped[s.rnd.IntN(len(s.mapped))]
		off, size = s.span(m[1])
		return m[0] + off, size
	}
	off, size = s.span(scriptHost - scriptBuffer)
	return scriptBuffer + off, size
}

// enqueue carries a transfer out as the next command.
func (s *script) enqueue(tr *Transfer, what string) {
	q := s.queues[s.rnd.IntN(len(s.queues))]
	c := &Command{Context: s.Context, Queue: q, Kind: cl.COMMAND_READ_BUFFER}
	if s.chained {
		e := newFakeEvent(s.rnd.IntN(4) == 0)
		if c.Event, c.Wanted = e, true; s.last != nil && s.last.Status() > 0 {
			c.Wait, c.Listed = []uint64{s.last.id}, true
		}
		s.last = e
	}
	from := len(s.sentSince(0))
	s.ok(c.CarryOut(tr))
	s.log = append(s.log, fmt.Sprintf("%s, blocking %v: %s", what, tr.Blocking, types(s.sentSince(from))))
	if tr.Blocking && !tr.Write && !bytes.Equal(s.host, s.model) { // all before it have ended, too
		s.fail()
	}
}

// step enqueues one command, or has the worker carry out one.
func (s *script) step() {
	blocking := s.rnd.IntN(6) == 0
	switch n := s.rnd.IntN(12); {
	case n < 3:
		s.w.step()
	case n < 9:
		i, write := s.rnd.IntN(len(s.buffers)), n < 6
		if len(s.mapped) > 0 && i == 0 {
			i = 1 // what is mapped is the program's
		}
		at, size := s.place()
		off := s.rnd.Uint64N(scriptBuffer - size + 1)
		if write {
			copy(s.should[i].data[off:], s.model[at:at+size])
		} else {
			copy(s.model[at:], s.should[i].data[off:off+size])
		}
		s.enqueue(linear(s.buffers[i], write, blocking, off, s.host[at:at+size]),
			fmt.Sprintf("write %v of buffer %d [%d,+%d), host %d", write, i, off, size, at))
	case n < 11:
		s.toMap(blocking)
	default:
		s.unmap()
	}
}

// show is a map or an unmap of a range of the first buffer.
func (s *script) show(write, blocking bool, off, size uint64) {
	if s.InPlace { // nothing moves: maps show the buffer itself, of which the model's commands know nothing
		return
	}
	b := s.buffers[0]
	tr := linear(b, write, blocking, off, s.host[off:off+size])
	tr.Purpose, tr.Shown, tr.ShownAt = transfer.Map, b, off
	if s.shown != nil {
		tr.Shared, tr.SharedAt = s.shown.Segment, s.shown.Offset+off
	}
	tr.Fetch = func() api.Status { return s.MoveNow(b, write, tr.Device, tr.Host) }
	if write {
		copy(s.should[0].data[off:], s.model[off:off+size])
	} else {
		copy(s.model[off:], s.should[0].data[off:off+size])
	}
	s.enqueue(tr, fmt.Sprintf("map, write %v [%d,+%d)", write, off, size))
}

func (s *script) toMap(blocking bool) {
	off, size := s.span(scriptBuffer)
	for _, m := range s.mapped {
		if off < m[0]+m[1] && m[0] < off+size {
			return
		}
	}
	s.show(false, blocking, off, size)
	s.mapped = append(s.mapped, [2]uint64{off, size})
}

func (s *script) unmap() {
	if len(s.mapped) == 0 {
		return
	}
	m := s.mapped[0]
	s.mapped = s.mapped[1:]
	s.show(true, false, m[0], m[1])
}

// end carries out all that is left, and compares.
func (s *script) end() {
	s.w.finish()
	s.background.Wait()
	same := bytes.Equal(s.host, s.model)
	for i := range s.buffers {
		same = same && bytes.Equal(s.buffers[i].data, s.should[i].data)
	}
	if !same {
		s.fail()
	}
	s.log = nil
}

func (s *script) fail() {
	s.t.Helper()
	for _, line := range s.log {
		s.t.Log(line)
	}
	s.t.Fatal("other bytes than the model's")
}

// TestRandomOrders: whatever ways commands take, their bytes are as if each had been carried out before the next began.
func TestRandomOrders(t *testing.T) {
	for _, kind := range []string{"device", "remote", "shared"} {
		for _, chained := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/chained=%v", kind, chained), func(t *testing.T) {
				for seed := range uint64(seeds) {
					s := newScript(t, seed, kind, chained)
					for range 10 {
						for range s.rnd.IntN(12) {
							s.step()
						}
						s.end()
					}
					if s.shown != nil {
						s.Views.Remove(s.shown)
						s.Slabs.FreeNow(s.shown)
					}
				}
			})
		}
	}
}
