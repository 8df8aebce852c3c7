package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// A peer that received a descriptor can keep the memory for as long as it likes: through the descriptor, through a
// mapping, through descriptors of its own making (O_PATH, /proc/self/fd), in a child, in a message that nobody has
// read. Each of these holds the memfd's directory entry in the kernel. A memfd has no other name, so the entry goes
// with the last of them, and inotify(7) then reports IN_DELETE_SELF and, as it gives the watch up, IN_IGNORED. The
// latter counts: where the queue was full for the former, and Alive was asked before the watch went, nothing else tells
// of it. What neither sees are pages that the kernel itself uses for the peer after the mapping has gone: registered
// buffers of io_uring, pages in pipes. Those are bounded by RLIMIT_MEMLOCK and fs.pipe-user-pages-soft.
//
// (A lease, F_SETLEASE, was tried first: it does not see a descriptor opened with O_PATH, nor the description that
// memfd_create made.)

// Watch reports when memory that was given up is free: when no descriptor and no mapping of it is left in any
// process. It can be passed to another process, and keeps what it watches. Not safe for concurrent use, but for Wait.
type Watch struct {
	fd   int
	file *os.File // the same, for Wait
}

// NewWatch makes a Watch and tries it. ErrUnsupported: this kernel, or this process without /proc, cannot do it.
func NewWatch(sys System) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if errors.Is(err, unix.EMFILE) {
		err = fmt.Errorf("%w: this user's processes have all that sysctl fs.inotify.max_user_instances allows", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: inotify_init: %w", object.ErrUnsupported, err)
	}
	w, err := AdoptWatch(fd)
	if err != nil {
		return nil, err
	}
	if err := w.try(sys, tryTime); err != nil {
		w.Close()
		return nil, fmt.Errorf("%w: asking the kernel to report free memory: %w", object.ErrUnsupported, err)
	}
	return w, nil
}

// AdoptWatch takes a Watch's descriptor over that another process made, also where it fails.
func AdoptWatch(fd int) (*Watch, error) {
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		_, err = os.ReadFile(fdinfo(again))
	}
	if err == nil {
		err = unix.SetNonblock(again, true)
	}
	if err != nil {
		unix.Close(fd)
		if again >= 0 {
			unix.Close(again)
		}
		return nil, fmt.Errorf("%w: a descriptor of inotify: %w", object.ErrInternal, err)
	}
	return &Watch{fd: fd, file: os.NewFile(uintptr(again), "inotify")}, nil
}

// tryTime is how long NewWatch waits for a report. It is there at once, unless somebody has the memory for a moment: a
// child of this process between fork and exec, or who looks through its descriptors. A kernel that reports nothing
// makes the start take that much longer.
const tryTime = 5 * time.Second

// try sees that memory which somebody has is not reported, and that it is once nobody has.
func (w *Watch) try(sys System, limit time.Duration) error {
	m, err := Create(sys, PageBytes)
	if err != nil {
		return err
	}
	defer m.Close()
	kept, err := m.Dup()
	if err != nil {
		return err
	}
	number, err := w.Add(sys, m.fd)
	m.Close()
	early, _ := w.Freed()
	unix.Close(kept)
	late, _ := w.Freed()
	for until := time.Now().Add(limit); err == nil && len(late) == 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
		late, _ = w.Freed()
	}
	if err == nil && (len(early) != 0 || len(late) != 1 || late[0] != number) {
		err = fmt.Errorf("inotify reported %v while memory was in use and %v afterwards, want [%d] afterwards",
			early, late, number)
	}
	return err
}

// Add watches a memfd from now on, and gives the number by which Freed reports it, above those given before. The caller
// still has to close m. ErrFull: the machine watches as much as it may (fs.inotify.max_user_watches).
func (w *Watch) Add(sys System, memfd int) (number int32, err error) {
	n, err := sys.Watch(w.fd, memfd)
	if err != nil {
		return 0, fmt.Errorf("%w: inotify_add_watch of a segment (raise fs.inotify.max_user_watches?): %w",
			object.ErrFull, err)
	}
	return int32(n), nil
}

// freedBytes is what one call of Freed reads at most: two events for each memory.
const freedBytes = 512 * unix.SizeofInotifyEvent

// Freed gives the numbers of memory that is free since the last call; it does not wait. lost: the kernel dropped
// reports, and Alive says what is not free yet.
func (w *Watch) Freed() (numbers []int32, lost bool) {
	var b [freedBytes]byte
	for {
		n, err := unix.Read(w.fd, b[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return numbers, lost
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			number := int32(binary.NativeEndian.Uint32(b[at:]))
			mask, name := binary.NativeEndian.Uint32(b[at+4:]), binary.NativeEndian.Uint32(b[at+12:])
			lost = lost || mask&unix.IN_Q_OVERFLOW != 0
			if mask&unix.IN_IGNORED != 0 {
				numbers = append(numbers, number)
			}
			at += unix.SizeofInotifyEvent + int(name)
		}
		if n < len(b) {
			return numbers, lost
		}
	}
}

// Wait calls f, and again whenever there may be something for Freed that nobody has read yet, and after Again, until f
// says true or the Watch is closed.
func (w *Watch) Wait(f func() (over bool)) {
	raw, err := w.file.SyscallConn()
	for again := true; err == nil && again; {
		waited := raw.Read(func(uintptr) bool { return f() }) // fails where it is closed
		again = errors.Is(waited, os.ErrDeadlineExceeded)
		if again {
			err = w.file.SetReadDeadline(time.Time{})
		}
	}
}

// Again has Wait call f once more. Safe for concurrent use.
func (w *Watch) Again() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) } // fails where it is closed

// Alive gives what is watched and not free, with the memory's inode numbers. The cost is in proportion to it.
func (w *Watch) Alive() (map[int32]uint64, error) {
	info, err := os.ReadFile(fdinfo(w.fd))
	if err != nil {
		return nil, fmt.Errorf("%w: what inotify watches: %w", object.ErrInternal, err)
	}
	alive := make(map[int32]uint64)
	for line := range bytes.Lines(info) { // inotify wd:1 ino:1f2 sdev:1 … (proc_pid_fdinfo(5))
		fields := bytes.Fields(line)
		if len(fields) < 3 || string(fields[0]) != "inotify" {
			continue
		}
		number, err := strconv.ParseUint(string(bytes.TrimPrefix(fields[1], []byte("wd:"))), 16, 31)
		inode, inodeErr := strconv.ParseUint(string(bytes.TrimPrefix(fields[2], []byte("ino:"))), 16, 64)
		if err := errors.Join(err, inodeErr); err != nil {
			return nil, fmt.Errorf("%w: %q of inotify's fdinfo: %w", object.ErrInternal, line, err)
		}
		alive[int32(number)] = inode
	}
	return alive, nil
}

func fdinfo(fd int) string { return "/proc/self/fdinfo/" + strconv.Itoa(fd) }

// Renew makes another Watch of w, which was interrupted; w is closed.
func (w *Watch) Renew() (*Watch, error) {
	fd, err := unix.FcntlInt(uintptr(w.fd), unix.F_DUPFD_CLOEXEC, 0)
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: dup of inotify's descriptor: %w", object.ErrFull, err)
	}
	return AdoptWatch(fd)
}

// FD gives the descriptor, which stays the Watch's.
func (w *Watch) FD() int { return w.fd }

// Interrupt ends Wait, for good; w may be nil.
func (w *Watch) Interrupt() {
	if w != nil {
		w.file.Close()
	}
}

// Close ends the Watch in this process; it may be nil. A second Close does nothing.
func (w *Watch) Close() {
	if w != nil && w.fd >= 0 {
		w.file.Close()
		unix.Close(w.fd)
		w.fd = -1
	}
}

// WatchesAtMost gives how much one user may watch; 0: not known.
func WatchesAtMost() int {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return 0
	}
	return n
}
