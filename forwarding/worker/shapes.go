//go:build cgo

package worker

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// argShapes finds out what a kernel's arguments are where the driver gives no information about them: a program built
// without -cl-kernel-arg-info, a binary, an intermediate language. It asks clSetKernelArg about values that no driver
// follows, NULL and zeros, and reads the refusals (§5.9.2). So nothing is built twice, and no build or binary is other
// than the program asked for. k is the caller's own and is never launched: what was tried stays in it.
func argShapes(k opencl.Kernel, n uint32) []clwire.ArgShape {
	shapes, zeros := make([]clwire.ArgShape, min(n, clwire.MaxArgs)), make([]byte, maxShapeBytes)
	for i := range shapes {
		shapes[i] = shapeOf(func(size uint64, null bool) opencl.Status {
			a := opencl.Arg{Index: uint32(i), Size: size}
			if null {
				a.Kind = opencl.ArgLocal
			}
			return k.SetArg(a, zeros)
		})
	}
	return shapes
}

// maxShapeBytes is the largest value that is tried: a double16.
const maxShapeBytes = 128

// shapeOf judges one argument; try sets it to so many bytes, zeros or (null) none at all. Seen with NVIDIA 580 and PoCL
// 3.1, in 8 bytes:
//
//	                 NULL                zeros
//	buffer           success             success
//	local memory     success             CL_INVALID_ARG_VALUE
//	image            CL_INVALID_ARG_…    CL_INVALID_MEM_OBJECT (PoCL: success)
//	sampler          CL_INVALID_ARG_…    CL_INVALID_SAMPLER (PoCL: success)
//	8-byte value     CL_INVALID_ARG_…    success
//	other value      CL_INVALID_ARG_…    CL_INVALID_ARG_SIZE (a structure, PoCL: success, also with any other size)
func shapeOf(try func(size uint64, null bool) opencl.Status) clwire.ArgShape {
	null, zero := try(8, true), try(8, false)
	switch {
	case null == cl.SUCCESS && zero == cl.SUCCESS:
		return clwire.ArgShape{Kind: clwire.ShapeBuffer}
	case null == cl.SUCCESS && zero == cl.INVALID_ARG_VALUE:
		return clwire.ArgShape{Kind: clwire.ShapeLocal}
	case null == cl.SUCCESS:
		return clwire.ArgShape{}
	case zero == cl.INVALID_MEM_OBJECT:
		return clwire.ArgShape{Kind: clwire.ShapeImage}
	case zero == cl.INVALID_SAMPLER:
		return clwire.ArgShape{Kind: clwire.ShapeSampler}
	case zero != cl.SUCCESS && zero != cl.INVALID_ARG_SIZE:
		return clwire.ArgShape{}
	}
	shape := valueShape(func(size uint64) bool { return try(size, false) == cl.SUCCESS })
	if shape.Kind == clwire.ShapeUnknown && zero == cl.INVALID_ARG_SIZE {
		shape.Kind = clwire.ShapeValue // of another size, which is no handle's
	}
	return shape
}

// valueShape finds the one size of a scalar or vector that fits; none where sizes are not checked, or it is another
// type's.
func valueShape(fits func(size uint64) bool) clwire.ArgShape {
	var found clwire.ArgShape
	for size := uint64(1); size <= uint64(maxShapeBytes); size *= 2 {
		if !fits(size) {
			continue
		}
		if found.Bytes != 0 {
			return clwire.ArgShape{}
		}
		found = clwire.ArgShape{Kind: clwire.ShapeValue, Bytes: uint32(size)}
	}
	return found
}
