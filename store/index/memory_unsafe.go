package index

import (
	"sync/atomic"
	"unsafe"
)

// wordsOf sees mapped memory as words. It is page-aligned, as mappings are.
func wordsOf(b []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}
