package session

import (
	"strings"
	"sync"

	"tendril/forwarding/clwire"
)

// kernelFacts is what is known of a kernel by name, shared by all its kernel objects: the build's reply, and what the
// driver has answered since.
type kernelFacts struct {
	clwire.KernelFacts
	sizes []argSize // by argument index

	mu       sync.Mutex // leaf
	launches map[launchClass]Status
	args     map[argClass]Status
}

// argSize is what an argument's declaration says about clSetKernelArg.
type argSize struct {
	bytes  uint64 // of a value; 0: only the driver knows
	global bool   // a buffer
	local  bool   // local memory
	other  bool   // a pipe: none exist here
	reads  bool   // the kernel cannot write through it

	image   bool
	kind    uint32 // of an image: CL_MEM_OBJECT_…; 0: unknown here
	writes  bool   // of an image: the kernel only writes through it
	sampler bool

	value   bool // of bytes, or (0) of a size that is not 8
	guessed bool // from refusals: what is not set is not known, a driver may take other sizes too, and 8 bytes may be the handle of an image or a sampler
}

// argClass is one question of clSetKernelArg that the driver has answered.
type argClass struct {
	index uint16
	kind  uint8
	size  uint64
}

// launchClass is what a driver's verdict on a launch may depend on, besides the argument values.
type launchClass struct {
	device     uint32
	dims       uint8
	hasLocal   bool
	hasOffset  bool
	divides    uint8 // bit i: local divides global in dimension i
	zero       uint8 // bit i: global is 0 in dimension i
	local      [3]uint64
	localBytes uint64 // of local-memory arguments
}

func newKernelFacts(facts *clwire.KernelFacts) *kernelFacts {
	f := &kernelFacts{
		KernelFacts: *facts, sizes: make([]argSize, facts.NumArgs),
		launches: map[launchClass]Status{}, args: map[argClass]Status{},
	}
	if !facts.HasArgInfo || len(facts.Args) != int(facts.NumArgs) {
		f.HasArgInfo = false
		for i := range f.sizes {
			f.sizes[i].guessed = true
			if i < len(facts.Shapes) {
				f.sizes[i] = sizeOfShape(facts.Shapes[i])
			}
		}
		return f
	}
	for i := range facts.Args {
		f.sizes[i] = sizeOf(&facts.Args[i])
	}
	return f
}

func sizeOf(a *clwire.ArgFacts) argSize {
	switch {
	case a.Address == addressLocal:
		return argSize{local: true}
	case a.TypeName == "sampler_t":
		return argSize{sampler: true}
	case strings.HasPrefix(a.TypeName, "image") && strings.HasSuffix(a.TypeName, "_t"):
		return argSize{image: true, kind: imageTypes[a.TypeName], reads: a.Access == accessReadOnly, writes: a.Access == accessWriteOnly}
	case strings.HasPrefix(a.TypeName, "pipe"):
		return argSize{other: true}
	case a.Address == addressGlobal, a.Address == addressConstant:
		return argSize{global: true, bytes: 8, reads: a.Address == addressConstant || a.TypeQualifier&typeConst != 0}
	case strings.HasSuffix(a.TypeName, "*"):
		return argSize{}
	}
	return argSize{bytes: scalarBytes(a.TypeName)}
}

// sizeOfShape is sizeOf where the driver gave no argument information.
func sizeOfShape(s clwire.ArgShape) argSize {
	switch s.Kind {
	case clwire.ShapeValue:
		return argSize{bytes: uint64(s.Bytes), value: true, guessed: true}
	case clwire.ShapeBuffer:
		return argSize{global: true, bytes: 8, guessed: true}
	case clwire.ShapeLocal:
		return argSize{local: true, guessed: true}
	case clwire.ShapeImage:
		return argSize{image: true, guessed: true}
	case clwire.ShapeSampler:
		return argSize{sampler: true, guessed: true}
	}
	return argSize{guessed: true}
}

// imageTypes are the image types of OpenCL C (§6.3.3 of OpenCL C 3.0).
var imageTypes = map[string]uint32{
	"image1d_t": image1D, "image1d_buffer_t": image1DBuffer, "image1d_array_t": image1DArray, "image2d_t": image2D,
	"image2d_array_t": image2DArray, "image2d_depth_t": image2D, "image2d_array_depth_t": image2DArray, "image3d_t": image3D,
}

// CL_KERNEL_ARG_ACCESS_…
const (
	accessReadOnly  uint32 = 0x11A0
	accessWriteOnly uint32 = 0x11A1
)

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

func (f *kernelFacts) workGroup(device uint32) *clwire.WorkGroup {
	for i := range f.WorkGroups {
		if f.WorkGroups[i].Device == device {
			return &f.WorkGroups[i]
		}
	}
	return nil
}

func (f *kernelFacts) launchVerdict(class *launchClass) (Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, ok := f.launches[*class]
	return status, ok
}

// remember keeps a verdict that will not change: of success, and of sizes that do not fit. What may pass next time
// (memory that is short) is asked again.
func (f *kernelFacts) rememberLaunch(class *launchClass, status Status) {
	switch status {
	case Success, InvalidWorkDimension, InvalidWorkGroupSize, InvalidWorkItemSize, InvalidGlobalWorkSize, InvalidGlobalOffset:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.launches[*class] = status
	}
}
