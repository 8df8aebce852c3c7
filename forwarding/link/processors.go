package link

import (
	"os"
	"runtime"
)

// leastProcessors is how many threads run Go code at once at least.
const leastProcessors = 8

// RaiseProcessors lets more threads run Go code at once than there are cores, where these are few, unless the
// environment says how many. A thread in a system call keeps its place among them until Go's monitor takes it away, up
// to 10 ms later; with as many places as cores a caller coming back from a poll found none while a lane or the flusher
// slept in the kernel: a kernel and finish over TLS took 65 to 80 µs with 2 places, 40 to 50 with 8. It is
// process-wide: for a process whose Go runtime is ours alone, a worker's or the driver library's.
func RaiseProcessors() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < leastProcessors {
		runtime.GOMAXPROCS(leastProcessors)
	}
}
