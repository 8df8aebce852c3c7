package clwire

import "time"

// TimeLimits bound how long one command may run on its device, and one build. 0: no bound. As a record it is the
// program's own wish, from then on; in an assignment the daemon's, which stays an upper bound whatever the program asks
// for. A worker that sees one exceeded ends, and says why as its last words.
//
//wire:record
type TimeLimits struct {
	KernelNanos uint64 `json:"kernel_ns,omitempty"` // nanoseconds that a command has been seen to run
	BuildNanos  uint64 `json:"build_ns,omitempty"`  // nanoseconds of a build, compilation or link
}

// Exit statuses of a worker that a limit ended.
const (
	ExitKernelTime = 24
	ExitBuildTime  = 25
)

// NewTimeLimits makes the message of two durations; one that is not positive is no bound.
func NewTimeLimits(kernel, build time.Duration) TimeLimits {
	return TimeLimits{KernelNanos: uint64(max(kernel, 0)), BuildNanos: uint64(max(build, 0))}
}

// Tighter returns the smaller of each bound, where 0 is none.
func (m TimeLimits) Tighter(other TimeLimits) TimeLimits {
	return TimeLimits{KernelNanos: tighter(m.KernelNanos, other.KernelNanos),
		BuildNanos: tighter(m.BuildNanos, other.BuildNanos)}
}

func tighter(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// WorkerLimitsVariable is the environment variable that brings a worker, or a probe, its WorkerLimits as JSON.
const WorkerLimitsVariable = "TENDRIL_WORKER_LIMITS"

// WorkerLimits is what a worker's process takes on before it loads a driver. 0: no bound.
type WorkerLimits struct {
	Processes uint64 `json:"processes,omitempty"`  // RLIMIT_NPROC
	Files     uint64 `json:"files,omitempty"`      // RLIMIT_NOFILE
	FileBytes uint64 `json:"file_bytes,omitempty"` // RLIMIT_FSIZE
	OOMScore  int    `json:"oom_score,omitempty"`  // oom_score_adj
}
