package daemon

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what the defaults depend on, so that tests can be on another one.
type Machine struct {
	UID         int    // effective user
	Socket      string // ipc.DefaultSocket() of this user
	MemoryBytes uint64 // the least of physical memory and every enclosing cgroup's limit; 0 = not known
	// the least of what the kernel and every enclosing cgroup allow, threads among them; 0 = not known
	Processes int
}

// ThisMachine measures the machine that the process runs on. root is "/" outside tests.
func ThisMachine(root, defaultSocket string) Machine {
	return Machine{UID: os.Geteuid(), Socket: defaultSocket, MemoryBytes: memoryBytes(root), Processes: processes(root)}
}

// memoryBytes returns the memory that this process may use: /proc/meminfo's MemTotal (proc(5)) cut by the limits of the
// cgroups it is in (cgroups(7); version 2 memory.max, version 1 memory.limit_in_bytes). Zero when nothing can be read.
func memoryBytes(root string) uint64 {
	least := uint64(math.MaxUint64)
	if n := memTotal(filepath.Join(root, "proc/meminfo")); n > 0 {
		least = n
	}
	for _, file := range cgroupLimitFiles(root) {
		if n, ok := readLimit(file); ok {
			least = min(least, n)
		}
	}
	if least == math.MaxUint64 {
		return 0
	}
	return least
}

func memTotal(path string) uint64 { return memLine(path, "MemTotal:") }

// memLine reads one line of /proc/meminfo, in bytes; 0 where there is none.
func memLine(path, name string) uint64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 54)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// availableBytes gives the memory that can still be had without ending or swapping out anything: /proc/meminfo's
// MemAvailable, cut by what each enclosing cgroup has left (its limit less its usage; of that the inactive page cache
// is to be had again). False when nothing can be read.
func availableBytes(root string) (uint64, bool) {
	least, known := uint64(math.MaxUint64), false
	if n := memLine(filepath.Join(root, "proc/meminfo"), "MemAvailable:"); n > 0 {
		least, known = n, true
	}
	for _, file := range cgroupLimitFiles(root) {
		limit, ok := readLimit(file)
		if !ok {
			continue
		}
		usage, stat := "memory.current", "inactive_file "
		if filepath.Base(file) != "memory.max" {
			usage, stat = "memory.usage_in_bytes", "total_inactive_file "
		}
		if used, ok := readLimit(filepath.Join(filepath.Dir(file), usage)); ok {
			used -= min(used, statLine(filepath.Join(filepath.Dir(file), "memory.stat"), stat))
			least, known = min(least, limit-min(limit, used)), true
		}
	}
	return least, known
}

// statLine reads one number of a cgroup's memory.stat, 0 where there is none.
func statLine(path, name string) uint64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// cgroupLimitFiles lists the limit files of this process's memory cgroup and of all its ancestors: the tightest one
// rules.
func cgroupLimitFiles(root string) []string {
	return controllerFiles(root, "memory", "memory.max", "memory.limit_in_bytes")
}

// processes gives Machine.Processes: a cgroup's pids.max is what all in it have together.
func processes(root string) int {
	least := uint64(math.MaxInt32)
	files := controllerFiles(root, "pids", "pids.max", "pids.max")
	for _, file := range append(files, filepath.Join(root, "proc/sys/kernel/pid_max"),
		filepath.Join(root, "proc/sys/kernel/threads-max")) {
		if n, ok := readLimit(file); ok {
			least = min(least, n)
		}
	}
	if least == math.MaxInt32 {
		return 0
	}
	return int(least)
}

// controllerFiles lists the files, in version 2 and in version 1, of this process's cgroup for one controller and of
// all its ancestors.
func controllerFiles(root, controller, file, fileV1 string) []string {
	raw, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	var files []string
	for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
		f := strings.SplitN(s.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[1] == "":
			files = append(files, upwards(root, "sys/fs/cgroup", f[2], file)...)
		case strings.Contains(","+f[1]+",", ","+controller+","):
			files = append(files, upwards(root, "sys/fs/cgroup/"+controller, f[2], fileV1)...)
		}
	}
	return files
}

func upwards(root, mount, group, file string) []string {
	var files []string
	for g := filepath.Clean("/" + group); ; g = filepath.Dir(g) {
		files = append(files, filepath.Join(root, mount, g, file))
		if g == "/" {
			return files
		}
	}
}

// readLimit reads one limit; version 1 says "no limit" with a number near 2^63, version 2 with "max".
func readLimit(path string) (uint64, bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return n, err == nil && n > 0 && n < 1<<62
}

// defaultVendors is where the OpenCL loaders look: OCL_ICD_VENDORS when it names a directory, else /etc/OpenCL/vendors.
func defaultVendors(lookup Lookup) []string {
	if dir, _ := lookup("OCL_ICD_VENDORS"); filepath.IsAbs(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return []string{dir}
		}
	}
	return []string{"/etc/OpenCL/vendors"}
}

// raiseFileLimit lifts the soft limit of open descriptors to the hard one (getrlimit(2)): every connection, segment and
// worker costs some. A daemon that may lifts the hard one to what is wanted. It returns the limit in force.
func raiseFileLimit(want uint64) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("getrlimit: %w", err)
	}
	if more := (unix.Rlimit{Cur: want, Max: want}); l.Max < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil {
		return want, nil
	}
	if l.Cur == l.Max {
		return l.Cur, nil
	}
	was := l.Cur
	l.Cur = l.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return was, fmt.Errorf("setrlimit(RLIMIT_NOFILE, %d): %w", l.Max, err)
	}
	return l.Cur, nil
}
