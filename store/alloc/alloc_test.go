package alloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// bitmap is the naive reference: one bool a granule.
type bitmap struct {
	taken []bool
	start map[uint64]uint64
}

func (m *bitmap) fits(off, n uint64) bool {
	if off+n > uint64(len(m.taken))*Granule {
		return false
	}
	for g := off / Granule; g < (off+n)/Granule; g++ {
		if m.taken[g] {
			return false
		}
	}
	return true
}

func (m *bitmap) first(n, align uint64) (uint64, bool) {
	for off := uint64(0); off+n <= uint64(len(m.taken))*Granule; off += align {
		if m.fits(off, n) {
			return off, true
		}
	}
	return 0, false
}

func (m *bitmap) set(off, n uint64, v bool) {
	for g := off / Granule; g < (off+n)/Granule; g++ {
		m.taken[g] = v
	}
}

func (m *bitmap) largestAndUsed() (largest, used uint64) {
	run := uint64(0)
	for _, t := range m.taken {
		if t {
			run = 0
			used += Granule
			continue
		}
		run += Granule
		largest = max(largest, run)
	}
	return largest, used
}

// drive runs one program of operations, three bytes each, on allocator and reference.
func drive(t *testing.T, granules uint64, program []byte) {
	driveRanges(t, New(granules*Granule), granules, program)
	driveRanges(t, NewSized(granules*Granule), granules, program)
}

// giveBack frees off by the way that r has.
func giveBack(r *Ranges, off, n uint64) error {
	if r.allocated != nil {
		return r.Free(off)
	}
	return r.FreeSized(off, n)
}

func driveRanges(t *testing.T, r *Ranges, granules uint64, program []byte) {
	m := &bitmap{taken: make([]bool, granules), start: map[uint64]uint64{}}
	var live []uint64
	for ; len(program) >= 3; program = program[3:] {
		op, a, b := program[0], uint64(program[1]), uint64(program[2])
		if op%2 == 0 || len(live) == 0 {
			live = driveAlloc(t, r, m, live, a*Granule/2, uint64(1)<<(b%14))
		} else {
			i := int(a) % len(live)
			off := live[i]
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			if err := giveBack(r, off, m.start[off]); err != nil {
				t.Fatalf("Free(%d): %v", off, err)
			}
			if err := giveBack(r, off, m.start[off]); !errors.Is(err, ErrNotAllocated) {
				t.Fatalf("Free(%d) again = %v, want ErrNotAllocated", off, err)
			}
			m.set(off, m.start[off], false)
			delete(m.start, off)
		}
		if err := giveBack(r, uint64(len(m.taken))*Granule, Granule); !errors.Is(err, ErrNotAllocated) {
			t.Fatalf("Free of the end = %v, want ErrNotAllocated", err)
		}
		largest, used := m.largestAndUsed()
		if r.Largest() != largest || r.Used() != used || r.Count() != len(live) {
			t.Fatalf("Largest %d Used %d Count %d, want %d %d %d", r.Largest(), r.Used(), r.Count(), largest,
				used, len(live))
		}
	}
}

func driveAlloc(t *testing.T, r *Ranges, m *bitmap, live []uint64, n, align uint64) []uint64 {
	rounded := max((n+Granule-1)/Granule*Granule, Granule)
	_, possible := m.first(rounded, max(align, Granule))
	fits := r.Fits(n, align)
	off, ok := r.Alloc(n, align)
	if fits != ok {
		t.Fatalf("Fits(%d, %d) says %v, Alloc %v", n, align, fits, ok)
	}
	if ok != possible {
		t.Fatalf("Alloc(%d, %d) = %v, reference says %v", n, align, ok, possible)
	}
	if !ok {
		return live
	}
	if off%max(align, Granule) != 0 || !m.fits(off, rounded) {
		t.Fatalf("Alloc(%d, %d) = %d: misaligned, outside or taken", n, align, off)
	}
	m.set(off, rounded, true)
	m.start[off] = rounded
	return append(live, off)
}

func TestAgainstBitmap(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		program := make([]byte, 3*400)
		for i := range program {
			program[i] = byte(rng.Uint32())
		}
		drive(t, 1+rng.Uint64N(700), program)
	}
}

func FuzzRanges(f *testing.F) {
	f.Add(uint16(100), []byte{0, 9, 0, 0, 9, 7, 1, 0, 0, 0, 200, 12})
	f.Add(uint16(1), []byte{0, 0, 0, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, granules uint16, program []byte) {
		drive(t, uint64(granules%1024), program[:min(len(program), 600)])
	})
}

func TestExtremes(t *testing.T) {
	r := New(^uint64(0))
	if _, ok := r.Alloc(1<<63, 64); ok {
		t.Error("more than everything was given")
	}
	if _, ok := r.Alloc(^uint64(0), ^uint64(0)); ok {
		t.Error("an alignment that is no power of two was taken")
	}
	if off, ok := r.Alloc(100, 1<<63); !ok || off != 0 {
		t.Errorf("Alloc(100, 1<<63) = %d, %v: offset 0 is aligned to anything", off, ok)
	}
	if _, ok := r.Alloc(100, 1<<63); ok {
		t.Error("two ranges at offset 0")
	}
	if _, ok := New(63).Alloc(1, 1); ok {
		t.Error("a tail below a granule was given")
	}
}

func BenchmarkAllocFree(b *testing.B) {
	for _, live := range []int{100, 10_000, 500_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			r := New(uint64(live) * 4096)
			offs := make([]uint64, live)
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range offs {
				offs[i], _ = r.Alloc(64+rng.Uint64N(2048), 64)
			}
			b.ReportAllocs()
			for b.Loop() {
				i := rng.IntN(live)
				if err := r.Free(offs[i]); err != nil {
					b.Fatal(err)
				}
				offs[i], _ = r.Alloc(64+rng.Uint64N(2048), 64)
			}
		})
	}
}
