package segment

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is a process that has memory of segments.
type Holder struct {
	PID    int
	UID    uint32 // the real one
	Name   string // what the kernel calls it
	Inodes map[uint64]struct{}
}

// memfdName is how /proc names the memory that Create makes (proc_pid_maps(5)).
const memfdName = "/memfd:tendril (deleted)"

// Search looks through processes, one search at a time. The zero value is ready. Safe for concurrent use.
type Search struct {
	running atomic.Bool
}

// found is what a search comes to.
type found struct {
	list  []Holder
	whole bool
}

// Find is FindHolders that waits no longer than twice limit, whatever state the processes are in: the kernel may have
// who reads a process's mappings wait for that process. false and nothing then, and while such a search has not
// ended. The goroutine of one that hangs is left behind; it holds a descriptor of /proc and ends when the process
// does.
func (s *Search) Find(inodes map[uint64]struct{}, limit time.Duration) (list []Holder, whole bool) {
	if !s.running.CompareAndSwap(false, true) {
		return nil, false
	}
	end := make(chan found, 1)
	go func() {
		list, whole := FindHolders(inodes, limit)
		s.running.Store(false)
		end <- found{list, whole}
	}()
	timer := time.NewTimer(2 * limit)
	defer timer.Stop()
	select {
	case f := <-end:
		return f.list, f.whole
	case <-timer.C:
		return nil, false
	}
}

// FindHolders looks for processes that have memory with these inode numbers mapped or open, among those that this
// process may look into: root into all, others into their own user's. It reads every mapping and descriptor of each,
// some 0.1 ms a process, and stops after limit: whole says whether it saw all.
func FindHolders(inodes map[uint64]struct{}, limit time.Duration) (list []Holder, whole bool) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, false
	}
	until := time.Now().Add(limit)
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		if time.Now().After(until) {
			return list, false
		}
		h := Holder{PID: pid, Inodes: make(map[uint64]struct{})}
		dir := filepath.Join("/proc", n.Name())
		mappedIn(dir, func(inode uint64) { h.note(inode, inodes) })
		openIn(dir, func(inode uint64) { h.note(inode, inodes) })
		if len(h.Inodes) > 0 && h.describe(dir) == nil { // it may just have ended
			list = append(list, h)
		}
	}
	return list, true
}

func (h *Holder) note(inode uint64, wanted map[uint64]struct{}) {
	if _, ok := wanted[inode]; ok {
		h.Inodes[inode] = struct{}{}
	}
}

// describe reads who it is. The directory's owner would say root for a process that may not be dumped.
func (h *Holder) describe(dir string) error {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Name":
			h.Name = strings.ToValidUTF8(value, "?")
		case "Uid": // real, effective, saved, of the file system
			uid, err := strconv.ParseUint(strings.Fields(value + " ?")[0], 10, 32)
			h.UID = uint32(uid)
			return err
		}
	}
	return os.ErrNotExist
}

// mappedIn calls f with the inode number of each mapping of a segment.
func mappedIn(dir string, f func(inode uint64)) {
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); { // from-to rwxp offset dev inode path
		if !bytes.HasSuffix(lines.Bytes(), []byte(memfdName)) {
			continue
		}
		if fields := bytes.Fields(lines.Bytes()); len(fields) > 5 {
			if inode, err := strconv.ParseUint(string(fields[4]), 10, 64); err == nil {
				f(inode)
			}
		}
	}
}

// openIn calls f with the inode number of each descriptor of a segment.
func openIn(dir string, f func(inode uint64)) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return
	}
	for _, fd := range fds {
		path := filepath.Join(dir, "fd", fd.Name())
		var st unix.Stat_t
		if to, err := os.Readlink(path); err == nil && to == memfdName && unix.Stat(path, &st) == nil {
			f(st.Ino)
		}
	}
}
