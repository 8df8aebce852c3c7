package session

import "unsafe"

// HostPtr is memory of the program: an address without a length, as OpenCL passes it. The zero HostPtr is NULL.
type HostPtr struct{ p unsafe.Pointer }

// NewHostPtr wraps an address that the program passed.
func NewHostPtr(p unsafe.Pointer) HostPtr { return HostPtr{p} }

// Nil says whether h is NULL.
func (h HostPtr) Nil() bool { return h.p == nil }

// Address returns the address as a number.
func (h HostPtr) Address() uintptr { return uintptr(h.p) }

// bytes returns n bytes from off on. The program vouches for them (OpenCL gives no way to check); n is at most
// maxHostBytes, which every caller has bounded by a buffer's size.
func (h HostPtr) bytes(off, n uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(h.p, off)), n)
}

// pointerTo returns the address of mapped memory for the program to keep.
func pointerTo(b []byte) HostPtr { return HostPtr{unsafe.Pointer(unsafe.SliceData(b))} }

// plus returns the address off bytes further on.
func (h HostPtr) plus(off uint64) HostPtr { return HostPtr{unsafe.Add(h.p, off)} }
