package api

import (
	"testing"
	"unsafe"

	"tendril/forwarding/cl"
)

// TestExtent: the dimensions of an image's regions by its kind (OpenCL 3.0 §5.3.3): an array's count is its last one,
// and what a kind has not counts as 1, whatever the program wrote there.
func TestExtent(t *testing.T) {
	desc := ImageDesc{Width: 2, Height: 3, Depth: 5, ArraySize: 7}
	for kind, want := range map[uint32][3]uint64{
		cl.MEM_OBJECT_IMAGE1D:        {2, 1, 1},
		cl.MEM_OBJECT_IMAGE1D_BUFFER: {2, 1, 1},
		cl.MEM_OBJECT_IMAGE1D_ARRAY:  {2, 7, 1},
		cl.MEM_OBJECT_IMAGE2D:        {2, 3, 1},
		cl.MEM_OBJECT_IMAGE2D_ARRAY:  {2, 3, 7},
		cl.MEM_OBJECT_IMAGE3D:        {2, 3, 5},
	} {
		desc.Kind = kind
		if got, ok := desc.Extent(); !ok || got != want {
			t.Errorf("kind %#x: %v, %v, want %v", kind, got, ok, want)
		}
	}
	for _, kind := range []uint32{0, cl.MEM_OBJECT_BUFFER, cl.MEM_OBJECT_PIPE, ^uint32(0)} {
		desc.Kind = kind
		if got, ok := desc.Extent(); ok || got != [3]uint64{} {
			t.Errorf("kind %#x: %v, %v", kind, got, ok)
		}
	}
}

// grow makes the stack move.
func grow(n int) byte {
	var room [4096]byte
	room[n%len(room)] = 1
	if n > 0 {
		return grow(n-1) + room[n%2]
	}
	return room[0]
}

// TestHostPtr: the memory is the program's, at the address it gave, and stays there while a stack moves.
func TestHostPtr(t *testing.T) {
	memory := make([]byte, 16)
	p := HostBytes(memory)
	if p.Nil() || p.Address() != uintptr(unsafe.Pointer(&memory[0])) || NewHostPtr(p.Address()) != p {
		t.Errorf("%#x", p.Address())
	}
	grow(500)
	p.Plus(4).Bytes(2, 3)[1] = 'x'
	if memory[7] != 'x' {
		t.Errorf("%q", memory)
	}
	if part := p.Bytes(8, 8); len(part) != 8 || cap(part) != 8 || &part[0] != &memory[8] {
		t.Error("another part")
	}
	if p.Plus(1<<63).Plus(1<<63) != p { // addresses are numbers: a program's may wrap
		t.Error("wrapped")
	}
	var none HostPtr
	if !none.Nil() || none != NewHostPtr(0) || !HostBytes(nil).Nil() || len(none.Bytes(0, 0)) != 0 {
		t.Error("NULL is an address")
	}
}

func TestRecorded(t *testing.T) {
	if (&Waits{Want: true}).Recorded() || !(&Waits{Recorder: 1}).Recorded() {
		t.Error("what is sent is recorded, or the reverse")
	}
}
