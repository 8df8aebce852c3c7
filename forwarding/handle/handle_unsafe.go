package handle

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve takes address space that no access can reach until commit. It lives as long as the process: a program may
// hold a handle for ever.
func reserve(bytes uintptr) (uintptr, error) {
	p, err := unix.MmapPtr(-1, 0, nil, bytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return uintptr(p), err
}

// commit makes a reserved range readable and writable (mprotect(2)).
func commit(addr, bytes uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_MPROTECT, addr, bytes, unix.PROT_READ|unix.PROT_WRITE)
	if errno != 0 {
		return errno
	}
	return nil
}

// writeSlot fills a committed slot. The dispatch word comes first: cl_icd.h expects it at offset 0 of every object.
func writeSlot(h, dispatch uintptr, generation uint64) {
	slot := (*[2]uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&h)))
	slot[0] = uint64(dispatch)
	slot[1] = generation
}
