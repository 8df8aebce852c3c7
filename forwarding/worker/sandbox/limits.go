package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits bound the process and what it starts. 0: no bound.
type Limits struct {
	Processes uint64 // of its user, in its user namespace
	Files     uint64 // open descriptors
	FileBytes uint64 // of one file
	OOMScore  int    // oom_score_adj
}

// Take puts limits on the calling process, soft and hard, so that nothing in it can raise them. It has to come before
// Apply, which closes /proc for writing. What the system does not offer is a Fallback.
func (l Limits) Take() []Fallback {
	var fallbacks []Fallback
	lack := func(what string, err error) {
		if err != nil {
			fallbacks = append(fallbacks, Fallback{what, err.Error()})
		}
	}
	for _, x := range []struct {
		what     string
		resource int
		most     uint64
	}{
		{"bound on processes", unix.RLIMIT_NPROC, l.Processes},
		{"bound on open files", unix.RLIMIT_NOFILE, l.Files},
		{"bound on the size of files", unix.RLIMIT_FSIZE, l.FileBytes},
	} {
		if x.most > 0 {
			lack(x.what, lower(x.resource, x.most))
		}
	}
	for _, resource := range []int{unix.RLIMIT_NICE, unix.RLIMIT_RTPRIO} { // no priority above its birth's
		lack("bound on priorities", lower(resource, 0))
	}
	if l.OOMScore != 0 {
		lack("end before others when memory is short",
			os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(l.OOMScore)), 0))
	}
	return fallbacks
}

// lower sets both limits, the hard one to what it is where that is less.
func lower(resource int, most uint64) error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(resource, &now); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	most = min(most, now.Max)
	// The syscall package's own: it remembers, and passes to programs that it starts, what it did to RLIMIT_NOFILE.
	err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("setrlimit to %d: %w", most, err)
	}
	return err
}
