// Package segment is the leaf under the store: a piece of shared memory as a memfd, its seals, its population and
// its mappings. Its job is that a descriptor which left the daemon can be trusted: never to shrink under a reader
// (F_SEAL_SHRINK from birth) and, once sealed for readers, never to be mapped writable again by anyone, root
// included (memfd_create(2), fcntl(2) "File Sealing"). It trusts the kernel. It has no locks: a Memory belongs to one
// owner at a time.
package segment

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// PageBytes is the unit of a segment's size.
const PageBytes = 4096

// populateStepBytes bounds how long one system call populates, so that a caller who gave up is heard.
const populateStepBytes = 32 << 20

// Memory is one segment's descriptor in the process that made it. Not safe for concurrent use.
type Memory struct {
	sys   System
	fd    int
	bytes int64
	huge  bool
}

// Create makes a segment of bytes (rounded up to PageBytes) that holds no pages yet. It can be resized until Fix.
// The caller owns it and must Close it. A machine without memory or descriptors to spare is object.ErrFull.
func Create(sys System, bytes uint64) (*Memory, error) {
	fd, err := sys.MemfdCreate("tendril")
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create: %w", object.ErrFull, err)
	}
	m := &Memory{sys: sys, fd: fd}
	if err := m.Resize(bytes); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// hugeStepBytes is the largest huge page that is used: populating goes in steps of whole pages.
const hugeStepBytes = populateStepBytes

// CreateHuge makes a segment of bytes, rounded up to whole huge pages, over the pages that the machine has reserved
// (vm.nr_hugepages): a large object costs a five-hundredth of the faults and page-table entries. The memory is
// populated and cannot be resized. Where there are not enough such pages, or none at all, the error is object.ErrFull
// or ErrUnsupported, and nothing is taken: ordinary pages do.
func CreateHuge(sys System, bytes uint64, stop func() bool) (*Memory, error) {
	fd, page, err := sys.MemfdHuge("tendril")
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create of huge pages: %w", object.ErrUnsupported, err)
	}
	m := &Memory{sys: sys, fd: fd, huge: true}
	if page <= PageBytes || page > hugeStepBytes || bytes == 0 || bytes > 1<<62 {
		m.Close()
		return nil, fmt.Errorf("%w: huge pages of %d bytes for a segment of %d", object.ErrUnsupported, page, bytes)
	}
	n := (int64(bytes) + page - 1) / page * page
	if err := sys.Ftruncate(fd, n); err != nil {
		m.Close()
		return nil, fmt.Errorf("%w: ftruncate of a segment to %d bytes: %w", object.ErrFull, n, err)
	}
	m.bytes = n
	if err := m.Populate(0, uint64(n), stop); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Adopt makes a Memory of the descriptor of a segment that another process made and fixed; bytes is its size. It takes
// the descriptor over, and closes it on an error. What is no such segment is object.ErrProtocol.
func Adopt(sys System, fd int, bytes uint64) (*Memory, error) {
	m := &Memory{sys: sys, fd: fd, bytes: int64(bytes)}
	var st unix.Stat_t
	const least = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	seals, err := sys.Seals(fd)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	switch {
	case err != nil:
	case seals&least != least:
		err = fmt.Errorf("its size is not fixed: seals 0x%x, want F_SEAL_SHRINK and F_SEAL_GROW (0x%x)", seals, least)
	case bytes == 0 || bytes > 1<<62 || st.Size != int64(bytes):
		err = fmt.Errorf("it has %d bytes, want %d", st.Size, bytes)
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("%w: a descriptor that is said to be a segment: %w", object.ErrProtocol, err)
	}
	m.huge = st.Blksize > PageBytes // hugetlbfs says its pages' size
	return m, nil
}

// Huge reports whether the segment lies in reserved huge pages.
func (m *Memory) Huge() bool { return m.huge }

// FD gives the descriptor, which stays the Memory's.
func (m *Memory) FD() int { return m.fd }

// RoundUp gives bytes rounded up to whole pages; 0 for 0 and where the sum would overflow an off_t.
func RoundUp(bytes uint64) uint64 {
	if bytes > 1<<62 {
		return 0
	}
	return (bytes + PageBytes - 1) &^ (PageBytes - 1)
}

// Bytes gives the size.
func (m *Memory) Bytes() uint64 { return uint64(m.bytes) }

// Resize changes the size before Fix; pages beyond a smaller size are given back to the kernel.
func (m *Memory) Resize(bytes uint64) error {
	rounded := RoundUp(bytes)
	if rounded == 0 {
		return fmt.Errorf("%w: a segment of %d bytes", object.ErrInvalid, bytes)
	}
	if err := m.sys.Ftruncate(m.fd, int64(rounded)); err != nil {
		return fmt.Errorf("%w: ftruncate of a segment to %d bytes: %w", object.ErrFull, rounded, err)
	}
	m.bytes = int64(rounded)
	return nil
}

// Fix ends resizing, for the peer's descriptor too: F_SEAL_SHRINK|F_SEAL_GROW. It must precede any sharing, or a
// peer could cut the memory away under everyone who mapped it (SIGBUS).
func (m *Memory) Fix() error {
	return m.seal(unix.F_SEAL_SHRINK | unix.F_SEAL_GROW)
}

// SealForReaders refuses every new writable mapping from now on, root's too, and every further seal. Writable
// mappings that exist stay writable. Only after it may a reader get a descriptor. Sealing again does nothing.
func (m *Memory) SealForReaders() error {
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if have, err := m.sys.Seals(m.fd); err == nil && have&want == want {
		return nil
	}
	return m.seal(want)
}

// SealStrict also ends writing through mappings: it adds F_SEAL_WRITE, which the kernel grants only when no
// writable mapping is left anywhere and nobody else has a page in hand: not a device, nor the kernel itself, which
// takes pages for moments to move or to look at them. Otherwise it answers object.ErrBusy, and no seal was added. It
// cannot follow SealForReaders. Sealing again does nothing.
func (m *Memory) SealStrict() error {
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	err := m.seal(want)
	if errors.Is(err, unix.EPERM) { // sealed already
		if have, why := m.sys.Seals(m.fd); why == nil && have&want == want {
			return nil
		}
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: a writable mapping of the segment exists, or a device uses its pages: end that, then seal",
			object.ErrBusy)
	}
	return err
}

// ReadOnly opens a descriptor of the same memory for reading alone. The caller owns it.
func ReadOnly(fd int) (int, error) {
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a segment for reading alone: %w", err)
	}
	return ro, nil
}

// LendReadOnly makes what Dup gives read alone: kernels before 6.7 map nothing shared by a writable descriptor of
// memory that is sealed strictly. Where it cannot be (no /proc), newer ones do not need it.
func (m *Memory) LendReadOnly() {
	if ro, err := ReadOnly(m.fd); err == nil {
		unix.Close(m.fd)
		m.fd = ro
	}
}

func (m *Memory) seal(seals int) error {
	if err := m.sys.AddSeals(m.fd, seals); err != nil {
		return fmt.Errorf("%w: seals 0x%x on a segment: %w", object.ErrInternal, seals, err)
	}
	return nil
}

// Populate gives every page in [from, to) memory, so that no later touch is slow or fails with SIGBUS. Pages that
// have memory keep their contents. stop is asked between steps of some ten ms; when it says true the rest is left
// and ErrTimeout comes back. A machine without memory is object.ErrFull.
func (m *Memory) Populate(from, to uint64, stop func() bool) error {
	if to > uint64(m.bytes) || from > to {
		return fmt.Errorf("%w: populate [%d, %d) of %d bytes", object.ErrInvalid, from, to, m.bytes)
	}
	for at := int64(from &^ (PageBytes - 1)); at < int64(to); at += populateStepBytes {
		if stop != nil && stop() {
			return fmt.Errorf("%w: populating a segment was cancelled", object.ErrTimeout)
		}
		n := min(populateStepBytes, int64(to)-at)
		if err := m.sys.Populate(m.fd, at, n); err != nil {
			return fmt.Errorf("%w: no memory for %d bytes of a segment: %w", object.ErrFull, n, err)
		}
	}
	return nil
}

// Dup gives a second descriptor of the same memory, close-on-exec. The caller owns it.
func (m *Memory) Dup() (int, error) {
	fd, err := m.sys.Dup(m.fd)
	if err != nil {
		return -1, fmt.Errorf("%w: dup of a segment's descriptor: %w", object.ErrFull, err)
	}
	return fd, nil
}

// Again gives a second Memory of the same memory, for who works on it while others may close the first. The caller must
// Close it.
func (m *Memory) Again() (*Memory, error) {
	fd, err := m.Dup()
	if err != nil {
		return nil, err
	}
	return &Memory{sys: m.sys, fd: fd, bytes: m.bytes, huge: m.huge}, nil
}

// Close gives up this process's descriptor; the memory lives on while anyone maps it or holds a descriptor.
func (m *Memory) Close() {
	if m.fd >= 0 {
		unix.Close(m.fd) // a memfd's close reports nothing of use
		m.fd = -1
	}
}
