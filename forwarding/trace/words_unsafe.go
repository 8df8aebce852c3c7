package trace

import (
	"sync/atomic"
	"unsafe"
)

// words shows shared memory as words. b is aligned to 8 and lives as long as they are used.
func words(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// cell shows the word at an offset for atomic use.
func cell(b []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b[at : at+8][0]))
}

// halfCell shows half a word.
func halfCell(b []byte, at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b[at : at+4][0]))
}

// Base is the buffer's address, for the C half of the driver library, which appends calls by itself.
func (w *Writer) Base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(w.mem))) }
