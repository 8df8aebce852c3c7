package segment

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Remap maps a whole shared mapping of the caller's again at its address, by another descriptor of the same memory:
// slices of it stay valid. With one that is open for reading alone the kernel does not count the mapping as one that
// may write, as it does after mprotect(2); only so can the memory be sealed against all writing.
func Remap(mapped []byte, f *os.File, writable bool) error {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	at := unsafe.Pointer(unsafe.SliceData(mapped))
	if _, err := unix.MmapPtr(int(f.Fd()), 0, at, uintptr(len(mapped)), prot,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return fmt.Errorf("map %d bytes again, writable %v: %w", len(mapped), writable, err)
	}
	return nil
}
