package kernelfacts

import (
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestDeclarations: what is known of each kind of argument that a driver describes.
func TestDeclarations(t *testing.T) {
	const global, constant, private = cl.KERNEL_ARG_ADDRESS_GLOBAL, cl.KERNEL_ARG_ADDRESS_CONSTANT,
		cl.KERNEL_ARG_ADDRESS_PRIVATE
	for _, x := range []struct {
		declared clwire.ArgFacts
		want     Arg
	}{
		{clwire.ArgFacts{Address: global, TypeName: "int*"}, Arg{Global: true, Bytes: 8}},
		{clwire.ArgFacts{Address: global, TypeName: "int*", TypeQualifier: cl.KERNEL_ARG_TYPE_CONST},
			Arg{Global: true, Bytes: 8, Reads: true}},
		{clwire.ArgFacts{Address: constant, TypeName: "int*"}, Arg{Global: true, Bytes: 8, Reads: true}},
		{clwire.ArgFacts{Address: cl.KERNEL_ARG_ADDRESS_LOCAL, TypeName: "int*"}, Arg{Local: true}},
		{clwire.ArgFacts{Address: private, TypeName: "sampler_t"}, Arg{Sampler: true}},
		{clwire.ArgFacts{Address: global, TypeName: "image2d_t", Access: cl.KERNEL_ARG_ACCESS_READ_ONLY},
			Arg{Image: true, Kind: cl.MEM_OBJECT_IMAGE2D, Reads: true}},
		{clwire.ArgFacts{Address: global, TypeName: "image3d_t", Access: cl.KERNEL_ARG_ACCESS_WRITE_ONLY},
			Arg{Image: true, Kind: cl.MEM_OBJECT_IMAGE3D, Writes: true}},
		{clwire.ArgFacts{Address: global, TypeName: "pipe int"}, Arg{Other: true}},
		{clwire.ArgFacts{Address: private, TypeName: "int*"}, Arg{}},
		{clwire.ArgFacts{Address: private, TypeName: "float3"}, Arg{Bytes: 16}},
		{clwire.ArgFacts{Address: private, TypeName: "uchar2"}, Arg{Bytes: 2}},
		{clwire.ArgFacts{Address: private, TypeName: "double16"}, Arg{Bytes: 128}},
		{clwire.ArgFacts{Address: private, TypeName: "half8"}, Arg{Bytes: 16}},
		{clwire.ArgFacts{Address: private, TypeName: "unsigned long"}, Arg{Bytes: 8}},
		{clwire.ArgFacts{Address: private, TypeName: "float5"}, Arg{}},
		{clwire.ArgFacts{Address: private, TypeName: "struct pair"}, Arg{}},
	} {
		f := New(&clwire.KernelFacts{NumArgs: 1, HasArgInfo: true, Args: []clwire.ArgFacts{x.declared}})
		if f.Sizes[0] != x.want {
			t.Errorf("%+v: %+v, want %+v", x.declared, f.Sizes[0], x.want)
		}
	}
}

// TestGuesses: without a description an argument is what its shape says, and may be something else.
func TestGuesses(t *testing.T) {
	shapes := []clwire.ArgShape{{Kind: clwire.ShapeValue, Bytes: 12}, {Kind: clwire.ShapeBuffer},
		{Kind: clwire.ShapeLocal}, {Kind: clwire.ShapeImage}, {Kind: clwire.ShapeSampler}, {}}
	want := []Arg{{Bytes: 12, Value: true}, {Global: true, Bytes: 8}, {Local: true}, {Image: true}, {Sampler: true}, {},
		{}}
	// One description for seven arguments is none.
	f := New(&clwire.KernelFacts{NumArgs: 7, HasArgInfo: true, Args: make([]clwire.ArgFacts, 1), Shapes: shapes})
	if f.HasArgInfo {
		t.Error("a description that does not fit is taken")
	}
	for i := range want {
		if want[i].Guessed = true; f.Sizes[i] != want[i] {
			t.Errorf("argument %d: %+v, want %+v", i, f.Sizes[i], want[i])
		}
	}
}

// TestVerdictsAreKept: of launches those that no other moment changes, each for its class; of arguments all.
func TestVerdictsAreKept(t *testing.T) {
	f := New(&clwire.KernelFacts{WorkGroups: []clwire.WorkGroup{{Device: 1}, {Device: 4}}})
	if w := f.WorkGroup(4); w != &f.WorkGroups[1] || f.WorkGroup(2) != nil {
		t.Errorf("work group of device 4: %+v", w)
	}
	r := api.Range{Dims: 1, Global: [3]uint64{64}, Local: [3]uint64{8}, HasLocal: true}
	class := ClassOf(&r, 4, 16)
	r.Global[0] = 72
	if ClassOf(&r, 4, 16) != class {
		t.Error("two sizes that the local one divides are two classes")
	}
	others := []LaunchClass{ClassOf(&r, 3, 16), ClassOf(&r, 4, 17)}
	for _, n := range []uint64{0, 7} {
		r.Global[0] = n
		others = append(others, ClassOf(&r, 4, 16))
	}
	f.RememberLaunch(&class, cl.OUT_OF_RESOURCES)
	if _, known := f.LaunchVerdict(&class); known {
		t.Error("a verdict that may be another next time is kept")
	}
	f.RememberLaunch(&class, cl.INVALID_WORK_GROUP_SIZE)
	if status, known := f.LaunchVerdict(&class); status != cl.INVALID_WORK_GROUP_SIZE || !known {
		t.Errorf("the launch: %d, %v", status, known)
	}
	for _, other := range others {
		if _, known := f.LaunchVerdict(&other); known {
			t.Errorf("%+v has the verdict of %+v", other, class)
		}
	}
	arg := ArgClass{Index: 1, Kind: clwire.ArgBytes, Size: 12}
	if _, known := f.ArgVerdict(arg); known {
		t.Error("a verdict that nobody gave")
	}
	f.RememberArg(arg, cl.INVALID_ARG_SIZE)
	if status, known := f.ArgVerdict(arg); status != cl.INVALID_ARG_SIZE || !known {
		t.Errorf("the argument: %d, %v", status, known)
	}
}
