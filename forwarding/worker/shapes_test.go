//go:build cgo

package worker

import (
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// What two drivers answered, seen on an H200 (driver 580.159) and with PoCL 3.1.
func TestShapeOf(t *testing.T) {
	const ok, badValue, badSize, badMem, badSampler = cl.SUCCESS, cl.INVALID_ARG_VALUE, cl.INVALID_ARG_SIZE,
		cl.INVALID_MEM_OBJECT, cl.INVALID_SAMPLER
	for _, c := range []struct {
		what       string
		null, zero opencl.Status // of 8 bytes
		fits       uint64        // another size that is taken; 1<<63: every size is
		want       clwire.ArgShape
	}{
		{"buffer", ok, ok, 0, clwire.ArgShape{Kind: clwire.ShapeBuffer}},
		{"local", ok, badValue, 0, clwire.ArgShape{Kind: clwire.ShapeLocal}},
		{"image", badValue, badMem, 0, clwire.ArgShape{Kind: clwire.ShapeImage}},
		{"sampler", badValue, badSampler, 0, clwire.ArgShape{Kind: clwire.ShapeSampler}},
		{"long", badValue, ok, 0, clwire.ArgShape{Kind: clwire.ShapeValue, Bytes: 8}},
		{"int", badValue, badSize, 4, clwire.ArgShape{Kind: clwire.ShapeValue, Bytes: 4}},
		{"double16", badSize, badSize, 128, clwire.ArgShape{Kind: clwire.ShapeValue, Bytes: 128}},
		{"structure of 24 bytes", badValue, badSize, 24, clwire.ArgShape{Kind: clwire.ShapeValue}},
		{"structure, sizes not checked", badValue, ok, 1 << 63, clwire.ArgShape{}},
		{"a driver that takes NULL and nothing else", ok, badSize, 0, clwire.ArgShape{}},
		{"a driver out of memory", cl.OUT_OF_HOST_MEMORY, cl.OUT_OF_HOST_MEMORY, 4, clwire.ArgShape{}},
	} {
		got := shapeOf(func(size uint64, null bool) opencl.Status {
			switch {
			case null:
				return c.null
			case size == 8:
				return c.zero
			case size == c.fits, c.fits == 1<<63:
				return ok
			}
			return badSize
		})
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
