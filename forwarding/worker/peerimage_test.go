//go:build cgo

package worker

import (
	"bytes"
	"math/rand"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// image makes an image of RGBA bytes at a side and fills it.
func (w *linked) image(i int, m clwire.CreateImage, data []byte) uint64 {
	w.t.Helper()
	f, q := w.far[i], w.fix[i].queue
	// CL_RGBA, CL_UNSIGNED_INT8
	m.ID, m.Context, m.Flags, m.Order, m.DataType = f.id(), w.fix[i].context, cl.MEM_READ_WRITE, cl.RGBA,
		cl.UNSIGNED_INT8
	if r := f.call(&m); r.Status != int32(cl.SUCCESS) {
		w.t.Fatalf("an image of kind %#x: status %d", m.Kind, r.Status)
	}
	op := f.id()
	f.send(&clwire.BulkWrite{Cmd: clwire.Cmd{Queue: q}, Op: op, Buffer: m.ID, Shape: wholeShape(&m)})
	f.chunks(op, data, clwire.MaxChunk, false)
	f.call(&clwire.Finish{Queue: q})
	return m.ID
}

func wholeShape(m *clwire.CreateImage) clwire.Shape {
	extent := extentOfImage(m)
	extent[0] *= 4
	return clwire.Shape{Rect: true, Region: extent}
}

// TestPeerImages pushes rows of images of all kinds, within a slice and across several, as pieces and as chunks.
func TestPeerImages(t *testing.T) {
	w := newLinked(t, false, false)
	for name, c := range map[string]struct {
		image    clwire.CreateImage
		from, to uint64 // rows
	}{
		"1d":            {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE1D, Width: 1000}, 0, 1},
		"1d array":      {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE1D_ARRAY, Width: 300, ArraySize: 20}, 3, 17},
		"2d, small":     {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 100, Height: 150}, 10, 149},
		"2d, large":     {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 1001, Height: 300}, 0, 300},
		"2d, long rows": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8000, Height: 30}, 1, 29},
		"2d array": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D_ARRAY, Width: 200, Height: 100,
			ArraySize: 7}, 150, 601},
		"3d": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 64, Height: 33,
			Depth: 40}, 5, 1300},
		"3d, within slice": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 64, Height: 100,
			Depth: 4}, 210, 260},
	} {
		shape := wholeShape(&c.image)
		size := sizeOf(&shape)
		data, before := make([]byte, size), make([]byte, size)
		rand.New(rand.NewSource(3)).Read(data)
		rand.New(rand.NewSource(4)).Read(before)
		src, dst := w.image(0, c.image, data), w.image(1, c.image, before)
		op, row := w.next(), shape.Region[0]
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, c.from*row, (c.to-c.from)*row, nil))
		w.far[0].send(clwire.NewPeerPush(w.number, op, src, c.from*row, (c.to-c.from)*row, nil))
		kick(w)
		if status := w.ended(1, op); status != 0 {
			t.Errorf("%s: the push ended with %d", name, status)
			continue
		}
		copy(before[c.from*row:c.to*row], data[c.from*row:])
		if !bytes.Equal(w.far[1].fetch(w.fix[1], dst, shape, int(size), size <= clwire.InlineBytes), before) {
			t.Errorf("%s: other bytes came", name)
		}
	}
	m := clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 100, Height: 10}
	src, dst := w.image(0, m, make([]byte, 4000)), w.image(1, m, make([]byte, 4000))
	for name, c := range map[string]struct{ offset, size uint64 }{
		"part of a row": {0, 396}, "not at a row": {4, 400}, "beyond the last": {3600, 800},
		"far beyond": {^uint64(399), 800},
	} {
		op := w.next()
		w.far[1].send(clwire.NewPeerPull(w.number, op, dst, 0, c.size, nil))
		w.far[0].send(clwire.NewPeerPush(w.number, op, src, c.offset, c.size, nil))
		kick(w)
		if status := w.ended(1, op); status != int32(cl.INVALID_VALUE) {
			t.Errorf("%s: the push ended with %d", name, status)
		}
	}
}
