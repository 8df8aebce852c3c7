package span

import (
	"math/rand/v2"
	"testing"
)

// oneByte is what is known of one byte, kept the simple way.
type oneByte struct {
	valid    uint64
	writer   *write
	arrivals int
}

// TestPartsAreTheirBytes runs random histories on parts and on an array of bytes, and compares them after each step.
func TestPartsAreTheirBytes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const size = 48
		ps := parts{{hi: size}}
		model := make([]oneByte, size)
		alive := map[uintptr]bool{}
		free := ends{event: func(h uintptr) {
			if !alive[h] {
				t.Fatalf("seed %d: event %d is released twice, or was never taken", seed, h)
			}
			delete(alive, h)
		}}
		var writes []*write
		var arrivals []*arrival
		event := uintptr(0)
		for range 60 {
			lo := uint64(r.IntN(size))
			hi := lo + 1 + uint64(r.IntN(int(size-lo)))
			member := r.IntN(4)
			switch r.IntN(4) {
			case 0:
				event++
				alive[event] = true
				w := &write{member: member, event: event}
				writes = append(writes, w)
				ps.wrote(lo, hi, w, free)
				for i := lo; i < hi; i++ {
					model[i].valid, model[i].writer = 1<<member, w
				}
			case 1:
				event++
				alive[event] = true
				a := &arrival{member: member, event: event}
				arrivals = append(arrivals, a)
				from, to := ps.cut(lo, hi)
				for i := from; i < to; i++ {
					ps[i].valid |= 1 << member
					ps[i].arrivals = append(ps[i].arrivals, a)
					a.refs++
				}
				for i := lo; i < hi; i++ {
					model[i].valid |= 1 << member
					model[i].arrivals++
				}
			case 2:
				for _, a := range arrivals {
					a.state.Store(arrived)
				}
				ps.merge(free)
				for i := range model {
					model[i].arrivals = 0
				}
			case 3:
				ps.cut(lo, hi)
			}
			checkParts(t, seed, ps, model)
		}
		ps.drop(free)
		for _, w := range writes {
			if w.refs != 0 {
				t.Fatalf("seed %d: a write has %d references left", seed, w.refs)
			}
		}
		if len(alive) != 0 {
			t.Fatalf("seed %d: %d events were never released", seed, len(alive))
		}
	}
}

func checkParts(t *testing.T, seed uint64, ps parts, model []oneByte) {
	t.Helper()
	at := uint64(0)
	for _, p := range ps {
		if p.lo != at || p.hi <= p.lo {
			t.Fatalf("seed %d: part [%d,%d) behind %d", seed, p.lo, p.hi, at)
		}
		under := 0
		for _, a := range p.arrivals {
			if a.state.Load() == underWay {
				under++
			}
		}
		for ; at < p.hi; at++ {
			want := model[at]
			if p.valid != want.valid || p.writer != want.writer || under != want.arrivals {
				t.Fatalf("seed %d, byte %d: valid %b writer %p %d arrivals, want %b %p %d", seed, at, p.valid, p.writer,
					under, want.valid, want.writer, want.arrivals)
			}
		}
	}
	if at != uint64(len(model)) {
		t.Fatalf("seed %d: parts end at %d", seed, at)
	}
}

func TestLostMoveBroughtNothing(t *testing.T) {
	a := &arrival{member: 2, refs: 1}
	a.state.Store(lost)
	p := part{hi: 8, valid: 1<<2 | 1, arrivals: []*arrival{a}}
	p.trim(ends{event: func(uintptr) {}})
	if p.valid != 1 || len(p.arrivals) != 0 {
		t.Errorf("%+v", p)
	}
	// What was written at the member since is not lost with it.
	a.refs = 1
	p = part{hi: 8, valid: 1 << 2, writer: &write{member: 2}, arrivals: []*arrival{a}}
	if p.trim(ends{event: func(uintptr) {}}); p.valid != 1<<2 {
		t.Errorf("%+v", p)
	}
}

func TestSourceIsWhereTheBytesAre(t *testing.T) {
	coming := &arrival{member: 0}
	for what, x := range map[string]struct {
		p       part
		member  int
		pending *arrival
	}{
		"the writer's":            {part{valid: 0b1010, writer: &write{member: 3}}, 3, nil},
		"one that is there":       {part{valid: 0b11, arrivals: []*arrival{coming}}, 1, nil},
		"one that is about to be": {part{valid: 0b1, arrivals: []*arrival{coming}}, 0, coming},
	} {
		if member, pending := x.p.source(); member != x.member || pending != x.pending {
			t.Errorf("%s: member %d, %v", what, member, pending)
		}
	}
}
