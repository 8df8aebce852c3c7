package geometry

import (
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
)

const (
	line    = cl.MEM_OBJECT_IMAGE1D
	lines   = cl.MEM_OBJECT_IMAGE1D_ARRAY
	plane   = cl.MEM_OBJECT_IMAGE2D
	planes  = cl.MEM_OBJECT_IMAGE2D_ARRAY
	body    = cl.MEM_OBJECT_IMAGE3D
	maximum = transfer.MaxBytes
)

// newImage makes an image of elements of 4 bytes.
func newImage(kind uint32, x, y, z uint64) *Image {
	return &Image{Desc: api.ImageDesc{Kind: kind}, Extent: [3]uint64{x, y, z}, ElementBytes: 4}
}

// TestTake: what a driver says of an image is kept, unless no address space holds it.
func TestTake(t *testing.T) {
	for _, c := range []struct {
		extent  [3]uint64
		element uint64
		status  api.Status
	}{
		{[3]uint64{10, 20, 1}, 4, cl.SUCCESS}, {[3]uint64{10, 20, 1}, 0, cl.INVALID_IMAGE_SIZE},
		{[3]uint64{maximum, 1, 1}, 4, cl.INVALID_IMAGE_SIZE},
		{[3]uint64{1 << 20, 1 << 20, 1 << 20}, 4, cl.INVALID_IMAGE_SIZE},
	} {
		im := &Image{Extent: c.extent}
		width, status := im.Take(&clwire.ImageFacts{ElementBytes: c.element, RowPitch: 48, SlicePitch: 960})
		if status != c.status || status == cl.SUCCESS && (width != 40 || im.Row != 48 || im.Slice != 960) {
			t.Errorf("%v of %d bytes: width %d, status %d, %+v", c.extent, c.element, width, status, im)
		}
	}
}

// TestLayOut: pitches that the program gave for its own memory, by kind.
func TestLayOut(t *testing.T) {
	const bad = cl.INVALID_IMAGE_DESCRIPTOR
	for _, c := range []struct {
		kind       uint32
		row, slice uint64
		status     api.Status
		host       transfer.Box
		bytes      uint64
	}{
		{line, 0, 0, 0, transfer.Box{Row: 40, Slice: 240}, 40},
		{plane, 0, 0, 0, transfer.Box{Row: 40, Slice: 240}, 240},
		{plane, 44, 0, 0, transfer.Box{Row: 44, Slice: 264}, 264},
		{plane, 36, 0, bad, transfer.Box{}, 0}, {plane, 42, 0, bad, transfer.Box{}, 0},
		{plane, 0, 100, bad, transfer.Box{}, 0}, {plane, maximum + 4, 0, bad, transfer.Box{}, 0},
		{lines, 0, 0, 0, transfer.Box{Row: 40, Slice: 40}, 240},
		{lines, 0, 80, 0, transfer.Box{Row: 80, Slice: 80}, 480},
		{planes, 0, 0, 0, transfer.Box{Row: 40, Slice: 240}, 720},
		{body, 44, 308, 0, transfer.Box{Row: 44, Slice: 308}, 924},
		{body, 44, 220, bad, transfer.Box{}, 0}, {body, 44, 310, bad, transfer.Box{}, 0},
	} {
		im := newImage(c.kind, 10, 6, 3)
		im.Desc.RowPitch, im.Desc.SlicePitch = c.row, c.slice
		status := im.LayOut(40)
		if status != c.status || status == cl.SUCCESS && (im.Host != c.host || im.HostBytes() != c.bytes) {
			t.Errorf("kind %#x, pitches %d and %d: status %d, %+v, %d bytes", c.kind, c.row, c.slice, status, im.Host,
				im.HostBytes())
		}
	}
}

// TestHostBox: pitches of a read or a write, by kind; 0 means without gaps.
func TestHostBox(t *testing.T) {
	region := [3]uint64{5, 4, 2}
	for _, c := range []struct {
		kind       uint32
		row, slice uint64
		ok         bool
		want       transfer.Box
	}{
		{plane, 0, 0, true, transfer.Box{Row: 20, Slice: 80}}, {plane, 24, 0, true, transfer.Box{Row: 24, Slice: 96}},
		{plane, 19, 0, false, transfer.Box{}}, {plane, 0, 80, false, transfer.Box{}},
		{plane, maximum + 1, 0, false, transfer.Box{}}, {plane, maximum / 2, 0, false, transfer.Box{}},
		{lines, 0, 0, true, transfer.Box{Row: 20, Slice: 20}}, {lines, 20, 32, true, transfer.Box{Row: 32, Slice: 32}},
		{body, 0, 0, true, transfer.Box{Row: 20, Slice: 80}}, {body, 20, 100, true, transfer.Box{Row: 20, Slice: 100}},
		{body, 20, 79, false, transfer.Box{}},
	} {
		got, status := newImage(c.kind, 10, 6, 3).HostBox(region, c.row, c.slice)
		if (status == cl.SUCCESS) != c.ok || got != c.want {
			t.Errorf("kind %#x, pitches %d and %d: %+v, status %d", c.kind, c.row, c.slice, got, status)
		}
	}
}

// TestInside compares with a look at every element.
func TestInside(t *testing.T) {
	im := newImage(body, 3, 2, 2)
	for i := range uint64(1 << 12) {
		var at, size [3]uint64
		inside := true
		for d := range 3 {
			at[d], size[d] = i>>(2*d)&3, i>>(6+2*d)&3
			inside = inside && size[d] > 0 && at[d]+size[d] <= im.Extent[d]
		}
		r := api.ImageRegion{Origin: at, Region: size}
		if im.Holds(&r) != inside {
			t.Fatalf("%v of %v: %v", at, size, !inside)
		}
	}
	if im.Holds(&api.ImageRegion{Region: [3]uint64{1, 1, 1}, Missing: true}) ||
		im.Inside([3]uint64{1, 0, 0}, [3]uint64{^uint64(0), 1, 1}) {
		t.Error("a region that is not there lies in the image")
	}
}

// TestUnder: an image in a buffer, whose rows may have gaps.
func TestUnder(t *testing.T) {
	im := newImage(plane, 10, 6, 1)
	im.Row = 64
	if im.FitUnder(40, 5*64+40) != cl.SUCCESS || im.FitUnder(40, 5*64+39) != cl.INVALID_IMAGE_SIZE {
		t.Error("the last row's end decides whether an image fits")
	}
	if got := im.UnderBox([3]uint64{2, 3, 0}, [3]uint64{16, 2, 1}); got != (transfer.Box{Origin: [3]uint64{8, 3, 0},
		Row: 64, Slice: 128}) {
		t.Errorf("%+v", got)
	}
}

// TestMapPitches: maps answer a slice pitch where the image has one.
func TestMapPitches(t *testing.T) {
	for _, c := range []struct {
		kind       uint32
		row, slice uint64
	}{{line, 40, 0}, {plane, 40, 0}, {lines, 40, 40}, {planes, 40, 240}, {body, 40, 240}} {
		im := newImage(c.kind, 10, 6, 3)
		layout := im.DenseBox()
		if row, slice := im.MapPitches(&layout); row != c.row || slice != c.slice ||
			im.Sliced() != (c.slice != 0) {
			t.Errorf("kind %#x: %d and %d", c.kind, row, slice)
		}
	}
	im := newImage(plane, 10, 6, 3)
	if im.DenseBytes() != 720 || im.Size(6, plane, body) != 6 || im.Size(6, body) != 0 ||
		im.Bytes([3]uint64{1, 2, 3}) != [3]uint64{4, 2, 3} {
		t.Error("sizes")
	}
	color := im.ColorBytes()
	if im.Format.Order = cl.DEPTH; color != clwire.ColorBytes || im.ColorBytes() != 4 {
		t.Error("a depth image's color has one component")
	}
}

// TestOverlap: regions, and spans of bytes.
func TestOverlap(t *testing.T) {
	size := [3]uint64{2, 2, 1}
	for _, c := range []struct {
		to   [3]uint64
		want bool
	}{
		{[3]uint64{0, 0, 0}, true}, {[3]uint64{1, 1, 0}, true},
		{[3]uint64{2, 0, 0}, false}, {[3]uint64{0, 0, 1}, false},
	} {
		if Overlap([3]uint64{}, c.to, size) != c.want || Overlap(c.to, [3]uint64{}, size) != c.want {
			t.Errorf("%v: %v", c.to, !c.want)
		}
	}
	if !SpansMeet(0, 9, 10) || SpansMeet(0, 10, 10) || SpansMeet(10, 0, 10) {
		t.Error("spans that touch do not meet")
	}
}
