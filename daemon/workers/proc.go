package workers

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The looks at workers read many small files of proc(5), every half second. Through package os each costs a dozen
// system calls, a descriptor for the poller and a buffer.

// appendFile appends what a file of proc(5) says; nothing where it is gone.
func appendFile(to []byte, path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return to
	}
	defer unix.Close(fd)
	for {
		if cap(to)-len(to) < 512 {
			to = append(to, make([]byte, 2048)...)[:len(to)]
		}
		n, err := unix.Read(fd, to[len(to):cap(to)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return to
		}
		to = to[:len(to)+n]
	}
}

// threadsOf lists a process's threads; none once it has ended.
func threadsOf(pid int) []string {
	d, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil
	}
	defer d.Close()
	threads, _ := d.Readdirnames(-1) // what was read until the process ended
	return threads
}
