package api

import "unsafe"

// HostPtr is memory of the program: an address without a length, as OpenCL passes it. It is kept as a number, because a
// program may pass anything and Go's runtime insists on pointers being pointers. The zero HostPtr is NULL.
type HostPtr struct{ address uintptr }

// NewHostPtr wraps an address that the program passed.
func NewHostPtr(address uintptr) HostPtr { return HostPtr{address} }

// HostBytes is the memory under b, which must not be collected for as long as a command may use it. It does not move: b
// lies on the heap, or is mapped.
func HostBytes(b []byte) HostPtr {
	if escape.ever {
		escape.to = b
	}
	return HostPtr{uintptr(unsafe.Pointer(unsafe.SliceData(b)))}
}

// escape makes the compiler put on the heap what HostBytes is given: it sees no pointer in a HostPtr, and a stack moves
// when it grows. Package reflect does the same. ever stays false.
var escape struct {
	ever bool
	to   []byte
}

// Nil says whether h is NULL.
func (h HostPtr) Nil() bool { return h.address == 0 }

// Address returns the address as a number.
func (h HostPtr) Address() uintptr { return h.address }

// Plus returns the address off bytes further on.
func (h HostPtr) Plus(off uint64) HostPtr { return HostPtr{h.address + uintptr(off)} }

// Bytes returns n bytes from off on. The program vouches for them (OpenCL gives no way to check); the caller has
// bounded n by the size of an object.
func (h HostPtr) Bytes(off, n uint64) []byte {
	at := h.address + uintptr(off)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n)
}
