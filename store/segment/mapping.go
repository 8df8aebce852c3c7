package segment

import (
	"fmt"
	"os"

	mmap "github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Mapping is a segment in this process's address space.
type Mapping struct {
	data     mmap.MMap
	writable bool
	page     uint64
	parking  parking // of a writable mapping
}

// Map maps the first n bytes of a segment's descriptor, shared. The file stays the caller's and may be closed
// afterwards. The caller must Unmap. A file shorter than n is object.ErrProtocol (touching beyond its end would
// be SIGBUS); a writable mapping of a segment sealed for readers is object.ErrPermission.
func Map(f *os.File, n uint64, writable bool) (*Mapping, error) {
	return mapWith(Linux{}, f, n, writable)
}

func mapWith(sys System, f *os.File, n uint64, writable bool) (*Mapping, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: fstat of a segment: %w", object.ErrInternal, err)
	}
	if n == 0 || n > 1<<62 || uint64(info.Size()) < n {
		return nil, fmt.Errorf("%w: a segment of %d bytes came as a file of %d", object.ErrProtocol, n, info.Size())
	}
	prot := mmap.RDONLY
	if writable {
		prot = mmap.RDWR
	}
	data, err := sys.Map(f, int(n), prot)
	switch {
	case err == nil:
		return &Mapping{data: data, writable: writable, page: pageBytes(f)}, nil
	case os.IsPermission(err):
		return nil, fmt.Errorf("%w: mapping of a sealed segment: %w", object.ErrPermission, err)
	}
	return nil, fmt.Errorf("%w: mmap of %d bytes: %w", object.ErrFull, n, err)
}

// Map maps the whole segment into this process, not into its children. The caller must Unmap; the Memory may be closed
// before.
func (m *Memory) Map(writable bool) (*Mapping, error) {
	fd, err := m.Dup()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "segment")
	defer f.Close()
	mapping, err := mapWith(m.sys, f, uint64(m.bytes), writable)
	if err == nil {
		notForked(mapping.data)
	}
	return mapping, err
}

// Bytes gives the mapped memory. It faults after Unmap, and on stores where the mapping is not writable.
func (m *Mapping) Bytes() []byte { return m.data }

// pageBytes gives the size of the pages that a segment lies in: its huge pages', where it has those.
func pageBytes(f *os.File) uint64 {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) == nil && st.Type == unix.HUGETLBFS_MAGIC && st.Bsize > PageBytes {
		return uint64(st.Bsize)
	}
	return PageBytes
}

// PageBytes gives the unit of Protect.
func (m *Mapping) PageBytes() uint64 { return m.page }

// Protect allows stores to [from, to) of a writable mapping, or forbids them: then they fault. Both are multiples of
// PageBytes. The kernel may have no room for one mapping more (ENOMEM); to the whole of a mapping that does not happen.
//
// Many pages are parked (parking): mprotect(2) costs some 75 ns a page, twice an object, a third of what filling it
// costs. It costs nothing where the pages' entries are elsewhere, or where the range has the protection already.
func (m *Mapping) Protect(from, to uint64, stores bool) error {
	prot := unix.PROT_READ
	if stores {
		prot |= unix.PROT_WRITE
	}
	if !m.writable || to > uint64(len(m.data)) || from > to {
		return fmt.Errorf("%w: protect [%d, %d) of a mapping of %d bytes", object.ErrInvalid, from, to, len(m.data))
	}
	if to-from >= parkFromBytes && m.page == PageBytes {
		m.parking.move(m.data, from, to, !stores)
	}
	if err := unix.Mprotect(m.data[from:to], prot); err != nil {
		return fmt.Errorf("%w: mprotect of %d bytes: %w", object.ErrFull, to-from, err)
	}
	return nil
}

// Writable reports whether stores are allowed.
func (m *Mapping) Writable() bool { return m.writable }

// Populate enters the pages of [from, to) into this process's page table ahead of use (MADV_POPULATE_*): one call
// instead of a fault a page. It is advice: a kernel that cannot leaves it to the faults.
func (m *Mapping) Populate(from, to uint64) {
	if to > uint64(len(m.data)) || from >= to {
		return
	}
	advice := unix.MADV_POPULATE_READ
	if m.writable {
		advice = unix.MADV_POPULATE_WRITE
	}
	_ = unix.Madvise(m.data[from&^(PageBytes-1):to], advice)
}

// Unmap ends the mapping. Nothing may hold a slice of it any more. A second Unmap does nothing.
func (m *Mapping) Unmap() error {
	if m.data == nil {
		return nil
	}
	m.parking.end(len(m.data))
	return m.data.Unmap() // sets data to nil
}
