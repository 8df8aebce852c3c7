package segment

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

func (h *Holder) describe(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	h.UID = st.Uid
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	h.Name = strings.ToValidUTF8(string(bytes.TrimSpace(name)), "?")
	return err
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
