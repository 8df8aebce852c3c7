package workers

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// Limits bound one worker with all that it starts, and all workers of a tenant together. What is not above 0 is no
// bound.
type Limits struct {
	Processes       int   // threads count as such
	MemoryBytes     int64 // of its own: what it maps of the store is not in it
	Files           int   // open descriptors of one process
	FileBytes       int64 // of one file that it writes
	TenantProcesses int
	TenantBytes     int64
}

// workerScore is a worker's oom_score_adj: long before anything else that matters here. What a worker has started is
// raised to the end of the scale, so that a herd goes before another tenant's worker (watch.go).
const (
	workerScore = 900
	herdScore   = 1000
)

// variable is what a process takes as its own limits, as one of its environment (forwarding/worker, stage one: a
// process may always lower its own, while the daemon may lack the right to set another user's).
func (l Limits) variable(choice isolation) string {
	own := clwire.WorkerLimits{Files: uint64(max(l.Files, 0)), FileBytes: uint64(max(l.FileBytes, 0)),
		OOMScore: workerScore}
	switch {
	case choice&unix.CLONE_NEWUSER != 0 && countsByNamespace():
		own.Processes = uint64(max(l.Processes, 0))
	case os.Geteuid() == 0: // then the count is of the tenant's user, all of whose processes are workers'
		own.Processes = uint64(max(l.TenantProcesses, 0))
	}
	raw, err := json.Marshal(own)
	if err != nil { // numbers alone
		panic(err)
	}
	return clwire.WorkerLimitsVariable + "=" + string(raw)
}

// countsByNamespace reports whether RLIMIT_NPROC counts the processes of a user namespace apart from its user's others,
// as Linux does since 5.14. Before, an ordinary user's limit would count all that the user runs.
func countsByNamespace() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	major, rest, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA == nil && errB == nil && (a > 5 || a == 5 && b >= 14)
}
