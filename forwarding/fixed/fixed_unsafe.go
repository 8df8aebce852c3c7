package fixed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Align is what addresses are multiples of, in bytes.
const Align = 4096

// ErrTaken says that something else lies at an address.
var ErrTaken = errors.New("the address is taken")

// Round is n in whole pages, in bytes.
func Round(n uint64) uint64 { return (n + Align - 1) / Align * Align }

// Where Pick looks: far from the area from which the kernel gives out addresses (mmap_base, at the top of 47 bits),
// from the heaps of programs (0x55…) and from the shadows of the sanitizers. Go may have put a heap there (since 1.26
// it chooses their place at random): what is taken is never mapped over, and the next address is tried.
const (
	pickFrom = 0x1000_0000_0000
	pickTo   = 0x5000_0000_0000
)

// Pick is an address for n bytes at which most processes have nothing. Large memory lies on a huge page's border.
func Pick(n uint64) uintptr {
	align := uint64(Align)
	if n >= 2<<20 {
		align = 2 << 20
	}
	n = Round(n)
	if n >= pickTo-pickFrom {
		return pickFrom
	}
	return uintptr((pickFrom + rand.Uint64N(pickTo-pickFrom-n)) / align * align)
}

// Reserve takes n bytes at an address, which nobody may touch yet. ErrTaken: something lies there.
func Reserve(address uintptr, n uint64) ([]byte, error) {
	n = Round(n)
	if address == 0 || address%Align != 0 || n == 0 {
		return nil, fmt.Errorf("map %d bytes at %#x: not whole pages", n, address)
	}
	at, _, e := unix.Syscall6(unix.SYS_MMAP, address, uintptr(n), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	switch {
	case e == unix.EEXIST:
		return nil, ErrTaken
	case e != 0:
		return nil, fmt.Errorf("map %d bytes at %#x: %w", n, address, e)
	}
	mem := At(at, n)
	if at != address { // Linux before 4.17 takes the flag for a hint
		Release(mem)
		return nil, ErrTaken
	}
	return mem, nil
}

// At is n bytes of mapped memory at an address, for which the caller vouches.
func At(at uintptr, n uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n)
}

// Address is where mem lies, which is outside Go's heap or pinned.
func Address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Fresh makes reserved memory usable. It is zero.
func Fresh(mem []byte) error {
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("use %d bytes of memory: %w", len(mem), err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // fewer faults where the kernel does it
	return nil
}

// View makes reserved memory a second view of shared memory that is mapped elsewhere, whole pages of it, with the
// rights that it has there (mremap(2), with an old size of 0).
func View(mem, of []byte) error {
	if uint64(len(mem)) > Round(uint64(len(of))) {
		return fmt.Errorf("a view of %d bytes of %d", len(mem), len(of))
	}
	_, _, e := unix.Syscall6(unix.SYS_MREMAP, Address(of), 0, uintptr(len(mem)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED,
		Address(mem), 0)
	if e != 0 {
		return fmt.Errorf("a second view of %d bytes: %w", len(mem), e)
	}
	return nil
}

// Release ends a reservation, and what became of it.
func Release(mem []byte) {
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, Address(mem), uintptr(len(mem)), 0)
}
