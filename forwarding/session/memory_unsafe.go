package session

import "unsafe"

// HostPtr is memory of the program: an address without a length, as OpenCL passes it. It is kept as a number, because a
// program may pass anything and Go's runtime insists on pointers being pointers. The zero HostPtr is NULL.
type HostPtr struct{ address uintptr }

// NewHostPtr wraps an address that the program passed.
func NewHostPtr(address uintptr) HostPtr { return HostPtr{address} }

// Nil says whether h is NULL.
func (h HostPtr) Nil() bool { return h.address == 0 }

// Address returns the address as a number.
func (h HostPtr) Address() uintptr { return h.address }

// plus returns the address off bytes further on.
func (h HostPtr) plus(off uint64) HostPtr { return HostPtr{h.address + uintptr(off)} }

// bytes returns n bytes from off on. The program vouches for them (OpenCL gives no way to check); n is at most
// maxHostBytes, which every caller has bounded by a buffer's size.
func (h HostPtr) bytes(off, n uint64) []byte {
	at := h.address + uintptr(off)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n)
}

// pointerTo returns the address of mapped memory for the program to keep.
func pointerTo(b []byte) HostPtr { return HostPtr{uintptr(unsafe.Pointer(unsafe.SliceData(b)))} }
