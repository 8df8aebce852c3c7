package segment

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// parkFromBytes is the size from which moving page table entries beats changing them. Both ways of a range, by
// mprotect(2) and parked, in µs: 64 KiB 9 and 14, 256 KiB 15 and 15, 1 MiB 43 and 18, 4 MiB 150 and 20, 1 GiB 70,000
// and 1,000.
const parkFromBytes = 256 << 10

// parking is a second mapping of the same memory, at an address that nobody outside this package knows. Pages to which
// stores shall fault leave their entries in the page table there (mremap(2) with MREMAP_DONTUNMAP), whole tables at a
// time where it can be; the range that they leave is then made read-only without a look at each. Where they come back
// no store faults. Entries that are not there where they are looked for come back by faults: so parked and mprotected
// pages may be mixed.
type parking struct {
	at    unsafe.Pointer // nil: nothing was parked yet
	never bool           // the kernel cannot (before Linux 5.13), or has no addresses left
}

// move takes the entries of [from, to) of mapped away, or brings them back, where it can.
func (p *parking) move(mapped []byte, from, to uint64, away bool) {
	here := unsafe.Pointer(unsafe.SliceData(mapped))
	if p.never || p.at == nil && (!away || !p.open(here, uintptr(len(mapped)))) {
		return
	}
	source, target := unsafe.Add(here, from), unsafe.Add(p.at, from)
	if !away {
		source, target = target, source
	}
	n := uintptr(to - from)
	_, err := unix.MremapPtr(source, n, target, n, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED|unix.MREMAP_DONTUNMAP)
	p.never = p.never || errors.Is(err, unix.EINVAL)
}

// open maps the memory once more. A length of 0 asks for a copy of the mapping, which may write as the first does,
// whatever seals there are; it begins with the protection of the first page.
func (p *parking) open(here unsafe.Pointer, bytes uintptr) bool {
	at, err := unix.MremapPtr(here, 0, nil, bytes, unix.MREMAP_MAYMOVE)
	p.never = err != nil
	if err != nil {
		return false
	}
	if err := unix.Mprotect(unsafe.Slice((*byte)(at), bytes), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		unix.MunmapPtr(at, bytes)
		p.never = true
		return false
	}
	p.at = at
	return true
}

// end unmaps it.
func (p *parking) end(bytes int) {
	if p.at != nil {
		unix.MunmapPtr(p.at, uintptr(bytes)) // fails only for what is no mapping
		p.at = nil
	}
}
