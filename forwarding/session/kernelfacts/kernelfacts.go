// Package kernelfacts knows what a session knows of a kernel by its name: what the build's result said of it, and the
// driver's verdicts on arguments and launches, so that each question is put to the driver once.
//
// Trust: facts come from a worker that the tenant's kernels may have broken; a wrong one makes this program's calls
// fail or succeed wrongly, and nothing else. Facts.mu is a leaf.
package kernelfacts

import (
	"strings"
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// Facts is what is known of a kernel by name, shared by all its kernel objects: the build's reply, and what the
// driver has answered since.
type Facts struct {
	clwire.KernelFacts
	Sizes []Arg // by argument index; immutable

	mu       sync.Mutex // leaf
	launches map[LaunchClass]api.Status
	args     map[ArgClass]api.Status
}

// Arg is what an argument's declaration says about clSetKernelArg.
type Arg struct {
	Bytes  uint64 // of a value; 0: only the driver knows
	Global bool   // a buffer
	Local  bool   // local memory
	Other  bool   // a pipe: none exist here
	Reads  bool   // the kernel cannot write through it

	Image   bool
	Kind    uint32 // of an image: CL_MEM_OBJECT_…; 0: unknown here
	Writes  bool   // of an image: the kernel only writes through it
	Sampler bool

	Value bool // of bytes, or (0) of a size that is not 8
	// Guessed from refusals: what is not set is not known, a driver may take other sizes too, and 8 bytes may be the
	// handle of an image or a sampler.
	Guessed bool
}

// ArgClass is one question of clSetKernelArg that the driver has answered.
type ArgClass struct {
	Index uint16
	Kind  uint8
	Size  uint64
}

// LaunchClass is what a driver's verdict on a launch may depend on, besides the argument values.
type LaunchClass struct {
	device     uint32
	dims       uint8
	hasLocal   bool
	hasOffset  bool
	divides    uint8 // bit i: local divides global in dimension i
	zero       uint8 // bit i: global is 0 in dimension i
	local      [3]uint64
	localBytes uint64 // of local-memory arguments
}

// ClassOf is what a driver's verdict on a launch holds for.
func ClassOf(r *api.Range, device uint32, localBytes uint64) LaunchClass {
	class := LaunchClass{
		device: device, dims: uint8(r.Dims), hasLocal: r.HasLocal, hasOffset: r.HasOffset,
		localBytes: localBytes,
	}
	for i := range r.Dims {
		if r.Global[i] == 0 {
			class.zero |= 1 << i
		}
		if r.HasLocal {
			class.local[i] = r.Local[i]
			if r.Global[i]%r.Local[i] == 0 {
				class.divides |= 1 << i
			}
		}
	}
	return class
}

// New makes the facts of what a build's result says.
func New(facts *clwire.KernelFacts) *Facts {
	f := &Facts{
		KernelFacts: *facts, Sizes: make([]Arg, facts.NumArgs),
		launches: map[LaunchClass]api.Status{}, args: map[ArgClass]api.Status{},
	}
	if !facts.HasArgInfo || len(facts.Args) != int(facts.NumArgs) {
		f.HasArgInfo = false
		for i := range f.Sizes {
			f.Sizes[i].Guessed = true
			if i < len(facts.Shapes) {
				f.Sizes[i] = sizeOfShape(facts.Shapes[i])
			}
		}
		return f
	}
	for i := range facts.Args {
		f.Sizes[i] = sizeOf(&facts.Args[i])
	}
	return f
}

func sizeOf(a *clwire.ArgFacts) Arg {
	switch {
	case a.Address == cl.KERNEL_ARG_ADDRESS_LOCAL:
		return Arg{Local: true}
	case a.TypeName == "sampler_t":
		return Arg{Sampler: true}
	case strings.HasPrefix(a.TypeName, "image") && strings.HasSuffix(a.TypeName, "_t"):
		return Arg{Image: true, Kind: imageTypes[a.TypeName], Reads: a.Access == cl.KERNEL_ARG_ACCESS_READ_ONLY,
			Writes: a.Access == cl.KERNEL_ARG_ACCESS_WRITE_ONLY}
	case strings.HasPrefix(a.TypeName, "pipe"):
		return Arg{Other: true}
	case a.Address == cl.KERNEL_ARG_ADDRESS_GLOBAL, a.Address == cl.KERNEL_ARG_ADDRESS_CONSTANT:
		return Arg{Global: true, Bytes: 8, Reads: a.Address == cl.KERNEL_ARG_ADDRESS_CONSTANT ||
			a.TypeQualifier&cl.KERNEL_ARG_TYPE_CONST != 0}
	case strings.HasSuffix(a.TypeName, "*"):
		return Arg{}
	}
	return Arg{Bytes: scalarBytes(a.TypeName)}
}

// sizeOfShape is sizeOf where the driver gave no argument information.
func sizeOfShape(s clwire.ArgShape) Arg {
	switch s.Kind {
	case clwire.ShapeValue:
		return Arg{Bytes: uint64(s.Bytes), Value: true, Guessed: true}
	case clwire.ShapeBuffer:
		return Arg{Global: true, Bytes: 8, Guessed: true}
	case clwire.ShapeLocal:
		return Arg{Local: true, Guessed: true}
	case clwire.ShapeImage:
		return Arg{Image: true, Guessed: true}
	case clwire.ShapeSampler:
		return Arg{Sampler: true, Guessed: true}
	}
	return Arg{Guessed: true}
}

// imageTypes are the image types of OpenCL C (§6.3.3 of OpenCL C 3.0).
var imageTypes = map[string]uint32{
	"image1d_t": cl.MEM_OBJECT_IMAGE1D, "image1d_buffer_t": cl.MEM_OBJECT_IMAGE1D_BUFFER,
	"image1d_array_t": cl.MEM_OBJECT_IMAGE1D_ARRAY, "image2d_t": cl.MEM_OBJECT_IMAGE2D,
	"image2d_array_t": cl.MEM_OBJECT_IMAGE2D_ARRAY, "image2d_depth_t": cl.MEM_OBJECT_IMAGE2D,
	"image2d_array_depth_t": cl.MEM_OBJECT_IMAGE2D_ARRAY, "image3d_t": cl.MEM_OBJECT_IMAGE3D,
}

var scalars = map[string]uint64{
	"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8,
	"float": 4, "double": 8, "half": 2, "unsigned char": 1, "unsigned short": 2, "unsigned int": 4, "unsigned long": 8,
}

// scalarBytes is the size of a scalar or vector type by its OpenCL C name; 0 for any other type. A vector of three
// takes the space of four (OpenCL C 3.0 §6.3.5).
func scalarBytes(name string) uint64 {
	base := strings.TrimRight(name, "0123456789")
	n, ok := scalars[base]
	if !ok {
		return 0
	}
	switch name[len(base):] {
	case "":
		return n
	case "2":
		return 2 * n
	case "3", "4":
		return 4 * n
	case "8":
		return 8 * n
	case "16":
		return 16 * n
	}
	return 0
}

// WorkGroup is what the build's result says of the kernel on a device, by its number; nil: nothing.
func (f *Facts) WorkGroup(device uint32) *clwire.WorkGroup {
	for i := range f.WorkGroups {
		if f.WorkGroups[i].Device == device {
			return &f.WorkGroups[i]
		}
	}
	return nil
}

// LaunchVerdict is how the driver judged a launch of a class; false: it has not been asked.
func (f *Facts) LaunchVerdict(class *LaunchClass) (api.Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, ok := f.launches[*class]
	return status, ok
}

// RememberLaunch keeps a verdict that will not change: of success, and of sizes that do not fit. What may pass next
// time (memory that is short) is asked again.
func (f *Facts) RememberLaunch(class *LaunchClass, status api.Status) {
	switch status {
	case cl.SUCCESS, cl.INVALID_WORK_DIMENSION, cl.INVALID_WORK_GROUP_SIZE, cl.INVALID_WORK_ITEM_SIZE,
		cl.INVALID_GLOBAL_WORK_SIZE, cl.INVALID_GLOBAL_OFFSET:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.launches[*class] = status
	}
}

// ArgVerdict is how the driver judged an argument of a class; false: it has not been asked.
func (f *Facts) ArgVerdict(class ArgClass) (api.Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, ok := f.args[class]
	return status, ok
}

// RememberArg keeps a verdict.
func (f *Facts) RememberArg(class ArgClass, status api.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.args[class] = status
}
