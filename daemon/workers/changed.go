package workers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// What devices there are, and what they say of themselves, hangs on more than the files of drivers: a library is
// upgraded, a device is plugged in, a module is loaded. Loading a driver to find out takes up to seconds. So what it
// hangs on is looked at instead, with some twenty system calls, and the drivers are probed where that differs.

// surroundings are what a probe's answer hangs on.
type surroundings struct {
	text        string
	memoryBytes uint64 // of the machine; the devices of CPUs have a part of it
}

// memoryStep is which part of the machine's memory may come or go unseen: under a balloon it always does.
const memoryStep = 8

func (s surroundings) same(as surroundings) bool {
	more, less := max(s.memoryBytes, as.memoryBytes), min(s.memoryBytes, as.memoryBytes)
	return s.text == as.text && more-less <= less/memoryStep
}

// nodesOfDevices are what drivers open, and stateOfDevices what the kernel says of some.
var (
	nodesOfDevices = []string{"/dev/dri/*", "/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/kfd", "/dev/accel/*"}
	stateOfDevices = []string{"/proc/driver/nvidia/version", "/sys/devices/system/cpu/online"}
)

// lookAround looks at the drivers that vendors announce, and at the machine.
func lookAround(vendors []string) surroundings {
	var b strings.Builder
	drivers, err := Discover(vendors)
	fmt.Fprintln(&b, err)
	library := "/etc/ld.so.cache" // the dynamic linker finds names there; an installation writes it again
	for _, d := range drivers {
		file := library
		if filepath.IsAbs(d.Library) {
			file = d.Library
		}
		fmt.Fprintln(&b, d.Library, identity(d.ICD), identity(file))
	}
	for _, pattern := range nodesOfDevices {
		nodes, _ := filepath.Glob(pattern) // the pattern is good
		for _, n := range nodes {
			var st unix.Stat_t
			_ = unix.Stat(n, &st) // one that has just gone has no number
			fmt.Fprintln(&b, n, st.Rdev)
		}
	}
	for _, path := range stateOfDevices {
		text, _ := os.ReadFile(path) // none is "none"
		b.Write(text)
	}
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // fails only for a bad address
	return surroundings{b.String(), uint64(info.Totalram) * uint64(info.Unit)}
}

// identity tells a file from another one in its place, and from itself before it was written.
func identity(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err.Error()
	}
	return fmt.Sprint(path, st.Dev, st.Ino, st.Size, st.Mtim.Nano())
}

// Changed says that the last probe's answer may be old, and gives what is closed when a probe ends. Before the first
// probe has begun nothing is old.
func (p *Pool) Changed() (old bool, probed <-chan struct{}) {
	p.mu.Lock()
	then, probed := p.around, p.looked
	p.mu.Unlock()
	return then != nil && !then.same(lookAround(p.opts.Vendors)), probed
}

// lookedAround notes what a probe that begins will hang on.
func (p *Pool) lookedAround(now surroundings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.around = &now
}

// tellLooked wakes those who wait for a probe's end.
func (p *Pool) tellLooked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.looked)
	p.looked = make(chan struct{})
}
