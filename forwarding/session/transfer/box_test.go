package transfer

import (
	"math/rand/v2"
	"testing"

	"tendril/forwarding/clwire"
)

// TestOverlap compares the arithmetic with a walk over every byte.
func TestOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 3000 {
		region := [3]uint64{rng.Uint64N(4) + 1, rng.Uint64N(3) + 1, rng.Uint64N(3) + 1}
		row := region[0] + rng.Uint64N(4)
		slice := row * (region[1] + rng.Uint64N(3))
		corner := func() Box {
			return Box{[3]uint64{rng.Uint64N(row), rng.Uint64N(4), rng.Uint64N(4)}, row, slice}
		}
		a, b := corner(), corner()
		taken := map[uint64]bool{}
		want := false
		for pass, c := range []Box{a, b} {
			for z := range region[2] {
				for y := range region[1] {
					for x := range region[0] {
						at := c.Offset(y, z) + x
						want = want || pass == 1 && taken[at]
						if pass == 0 {
							taken[at] = true
						}
					}
				}
			}
		}
		if got := Overlap(0, a, 0, b, region); got != want {
			t.Fatalf("%+v %+v %v: %v, want %v", a, b, region, got, want)
		}
	}
}

// Pitches of 0 stand for rows without gaps; what no address space holds is refused.
func TestPitches(t *testing.T) {
	region := [3]uint64{8, 3, 2}
	for _, c := range []struct {
		row, slice uint64
		ok         bool
		want       Box
	}{
		{0, 0, true, Box{Row: 8, Slice: 24}}, {10, 0, true, Box{Row: 10, Slice: 30}},
		{10, 40, true, Box{Row: 10, Slice: 40}},
		{7, 0, false, Box{}}, {10, 29, false, Box{}}, {10, 45, false, Box{}}, {MaxBytes + 1, 0, false, Box{}},
		{MaxBytes / 2, 0, false, Box{}},
		{8, MaxBytes + 8, false, Box{}},
	} {
		b := Box{Row: c.row, Slice: c.slice}
		if ok := b.Pitched(region); ok != c.ok || ok && b != c.want {
			t.Errorf("pitches %d and %d: %v, %+v", c.row, c.slice, ok, b)
		}
	}
	b := Box{Origin: [3]uint64{4, 1, 1}, Row: 10, Slice: 40}
	if end, ok := b.End(region); !ok || end != 40+10+4+40+20+8 {
		t.Errorf("ends at %d, %v", end, ok)
	}
	b.Origin[2] = MaxBytes
	if _, ok := b.End(region); ok {
		t.Error("an end beyond any address space")
	}
	b.Origin[2] = 1
	shape := b.Shape(region)
	if got := BoxOf(&shape); got != b || shape.Region != region || !shape.Rect {
		t.Errorf("%+v comes back as %+v", b, got)
	}
	if row := b.RowOrigin(1, 1); row != [3]uint64{4, 1 + 1 + 2*4, 0} {
		t.Errorf("row 1 of slice 1 is at %v", row)
	}
}

// model says where each byte of a transfer's dense range lies on either side.
type model struct {
	side   Side
	device clwire.Shape
	image  bool // laid out by its driver: here without gaps
}

var extent = [3]uint64{6 << 20, 8, 8} // of the images

func (m *model) program(i uint64) uint64 {
	x, y, z := m.corner(i)
	return m.side.Box.Offset(y, z) + x
}

func (m *model) onDevice(i uint64) uint64 {
	if !m.side.Rect {
		return m.device.Offset + i
	}
	x, y, z := m.corner(i)
	at, row, slice := m.device.Origin, m.device.RowPitch, m.device.SlicePitch
	if m.image {
		row, slice = extent[0], extent[0]*extent[1]
	}
	return (at[2]+z)*slice + (at[1]+y)*row + at[0] + x
}

func (m *model) corner(i uint64) (x, y, z uint64) {
	if !m.side.Rect {
		return i, 0, 0
	}
	region := m.side.Region
	return i % region[0], i / region[0] % region[1], i / region[0] / region[1]
}

// left is how many bytes from i on lie in a row on either side.
func (m *model) left(i uint64) uint64 {
	if !m.side.Rect {
		return m.side.Size - i
	}
	return m.side.Region[0] - i%m.side.Region[0]
}

func models() map[string]*model {
	all := map[string]*model{"range": {side: Side{Size: 9<<20 + 5}, device: clwire.Shape{Offset: 77}}}
	for name, region := range map[string][3]uint64{
		"narrow": {12, 5, 3}, "rows of 1 MiB": {1 << 20, 5, 2}, "rows of 5 MiB": {5 << 20, 2, 1}, "one row": {12, 1, 1},
		"slices": {1200, 7, 800},
	} {
		side := Side{Size: region[0] * region[1] * region[2], Rect: true, Region: region,
			Box: Box{Origin: [3]uint64{3, 1, 1}, Row: 5<<20 + 7}}
		side.Box.Slice = side.Box.Row * (region[1] + 1)
		dev := Box{Origin: [3]uint64{16, 2, 1}, Row: region[0] + 24}
		dev.Slice = dev.Row * (region[1] + 3)
		all[name] = &model{side: side, device: dev.Shape(region)}
		side.Unit = 4
		all[name+", image"] = &model{side: side,
			device: clwire.Shape{Rect: true, Origin: dev.Origin, Region: region}, image: true}
	}
	return all
}

// TestSide: runs and chunks cover the dense range once, in order, and no chunk is larger than a lane takes.
func TestSide(t *testing.T) {
	for name, m := range models() {
		at := uint64(0)
		low, high := m.side.Span()
		for at < m.side.Size {
			n := m.side.Chunk(at)
			if n == 0 || n > clwire.MaxChunk || m.side.Unit != 0 && n%m.side.Unit != 0 {
				t.Fatalf("%s: a chunk of %d bytes at %d", name, n, at)
			}
			from := at
			m.side.Runs(at, n, func(off, n uint64) {
				if off != m.program(from) || n > m.left(from) || off < low || off+n > high {
					t.Fatalf("%s: %d bytes from %d on lie at %d, not %d", name, n, from, off, m.program(from))
				}
				from += n
			})
			if from != at+n {
				t.Fatalf("%s: the runs of %d bytes at %d end at %d", name, n, at, from)
			}
			at = from
		}
		if at != m.side.Size || low != m.program(0) || high != m.program(at-1)+1 {
			t.Errorf("%s: %d of %d bytes, in %d to %d", name, at, m.side.Size, low, high)
		}
	}
}

// TestPieces: the pieces of a transfer pair each byte of the program's with the device's byte, once, and each fits a
// chunk.
func TestPieces(t *testing.T) {
	for name, m := range models() {
		done, pieces := uint64(0), 0
		for p := range Pieces(&m.device, m.image, &m.side) {
			first := done
			p.Runs(func(chunk, at, n uint64) {
				for _, i := range []uint64{0, n - 1} {
					if dev := onDevice(&p.Transfer, m.image, chunk+i); at+i != m.program(done+i) ||
						dev != m.onDevice(done+i) {
						t.Fatalf("%s: byte %d is paired as %d with %d, not %d with %d", name, done+i, at+i, dev,
							m.program(done+i), m.onDevice(done+i))
					}
				}
				if chunk != done-first || n > m.left(done) {
					t.Fatalf("%s: %d bytes from %d on, at %d of the chunk", name, n, done, chunk)
				}
				done += n
			})
			if pieces++; done-first != p.Bytes || p.Bytes == 0 || p.Bytes > ChunkBytes {
				t.Fatalf("%s: %d of %d bytes", name, done-first, p.Bytes)
			}
		}
		if done != m.side.Size {
			t.Errorf("%s: %d of %d bytes", name, done, m.side.Size)
		}
		if least := int(m.side.Size / ChunkBytes); m.image && pieces > 4*least+4 {
			t.Errorf("%s: %d pieces for %d bytes", name, pieces, m.side.Size)
		}
		for range Pieces(&m.device, m.image, &m.side) {
			break // no more are made than are wanted
		}
	}
}

// onDevice is where a byte of a piece's chunk lies.
func onDevice(t *clwire.Transfer, image bool, i uint64) uint64 {
	m := model{side: Side{Rect: t.Rect, Region: t.Region}, image: image, device: clwire.Shape{
		Offset: t.Offset, Origin: t.Origin, RowPitch: t.RowPitch, SlicePitch: t.SlicePitch,
	}}
	return m.onDevice(i)
}
