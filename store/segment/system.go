package segment

import (
	"errors"
	"os"
	"strconv"

	mmap "github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// System is the kernel as this package uses it; a test's own fails the i-th call.
type System interface {
	// MemfdCreate makes an empty memfd: close-on-exec, seals allowed, not executable.
	MemfdCreate(name string) (fd int, err error)
	Ftruncate(fd int, bytes int64) error
	// Populate gives memory to the n bytes from off on; both are multiples of PageBytes, or n reaches the end.
	Populate(fd int, off, n int64) error
	AddSeals(fd, seals int) error
	Seals(fd int) (int, error)
	// Dup makes another descriptor, close-on-exec.
	Dup(fd int) (int, error)
	// MemfdHuge is MemfdCreate over the machine's reserved huge pages (hugetlb), whose size it gives.
	MemfdHuge(name string) (fd int, pageBytes int64, err error)
	// Watch has the inotify instance watch report when nobody has the memfd fd any more, under the number that it
	// gives.
	Watch(watch, fd int) (number int, err error)
	// Map maps the first n bytes, shared; prot is mmap.RDONLY or mmap.RDWR.
	Map(f *os.File, n, prot int) (mmap.MMap, error)
}

// Linux is the real System.
type Linux struct{}

// MemfdCreate implements System. MFD_NOEXEC_SEAL (Linux 6.3) keeps a tenant's bytes from being executed as a file.
func (Linux) MemfdCreate(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	return fd, err
}

// Ftruncate implements System.
func (Linux) Ftruncate(fd int, bytes int64) error { return unix.Ftruncate(fd, bytes) }

// Populate implements System: MADV_POPULATE_WRITE through a mapping that lives for the call (madvise(2), Linux
// 5.14), with huge pages where the machine gives them for the asking. An older kernel gets fallocate(2), which
// gives pages and leaves clearing them to the first touch; a store by the daemon itself could end it with SIGBUS.
func (Linux) Populate(fd int, off, n int64) error {
	b, err := unix.Mmap(fd, off, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(b)
	notForked(b)
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // advice only
	err = retryInterrupted(func() error { return unix.Madvise(b, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) {
		err = retryInterrupted(func() error { return unix.Fallocate(fd, 0, off, n) })
	}
	return err
}

// notForked keeps a mapping out of children. A process in a user namespace of its own, as workers are, begins as a copy
// of the whole address space until it executes its program; with this mapping in it nobody could seal the memory
// strictly meanwhile.
func notForked(mapped []byte) {
	_ = unix.Madvise(mapped, unix.MADV_DONTFORK) // without it a strict seal may have to wait
}

// AddSeals implements System.
func (Linux) AddSeals(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return err
}

// Seals implements System.
func (Linux) Seals(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0) }

// Dup implements System.
func (Linux) Dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// MemfdHuge implements System: memfd_create(2) with MFD_HUGETLB, pages of the machine's default huge size.
func (Linux) MemfdHuge(name string) (int, int64, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	return fd, int64(st.Blksize), nil // hugetlbfs: the page's size
}

// Watch implements System.
func (Linux) Watch(watch, fd int) (int, error) {
	return unix.InotifyAddWatch(watch, "/proc/self/fd/"+strconv.Itoa(fd), unix.IN_DELETE_SELF)
}

// Map implements System.
func (Linux) Map(f *os.File, n, prot int) (mmap.MMap, error) { return mmap.MapRegion(f, n, prot, 0, 0) }

// retryInterrupted repeats a call that the Go runtime's preemption signal cut short.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
