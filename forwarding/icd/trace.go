package main

// #include "driver.h"
// void tdl_trace_start(uintptr_t base, uint64_t slots_at, uint64_t slots, uint32_t pid);
import "C"

import (
	"fmt"
	"os"
	"strings"

	"tendril/forwarding/session"
	"tendril/forwarding/stacks"
	"tendril/forwarding/trace"
)

// tracing is set when the library is loaded, so that the first call is in the trace.
var tracing struct {
	writer   *trace.Writer
	counters *trace.Counters
}

// init looks for `tendril trace`, for who wants round trips counted, and for who will ask where the program hangs.
//
//	TENDRIL_TRACE     the trace buffer that the calls go to, made by `tendril trace`
//	TENDRIL_STACKS    a directory to which SIGQUIT has goroutines' stacks written, without ending the program
//	TENDRIL_COUNTERS  a file that shows round trips by cause while the program runs, and after (trace.ReadCounters)
func init() {
	if dir := os.Getenv(stacks.Variable); dir != "" && os.Getenv("TENDRIL_WORKER") == "" {
		stacks.OnQuit(dir) // for as long as the process is
	}
	if path := os.Getenv("TENDRIL_COUNTERS"); path != "" {
		var err error
		if tracing.counters, err = trace.OpenCounters(path); err != nil {
			logLine(fmt.Sprintf("tendril: round trips are not counted: TENDRIL_COUNTERS: %v", err))
		}
	}
	path := os.Getenv("TENDRIL_TRACE")
	if path == "" || os.Getenv("TENDRIL_WORKER") != "" {
		return
	}
	w, err := trace.Open(path)
	if err != nil {
		logLine(fmt.Sprintf("tendril: no trace of this process: TENDRIL_TRACE: %v", err))
		return
	}
	tracing.writer = w
	w.Text(trace.TextProcess, uint64(os.Getpid()), program())
	C.tdl_trace_start(C.uintptr_t(w.Base()), C.uint64_t(trace.SlotsAt), C.uint64_t(w.Slots()), C.uint32_t(os.Getpid()))
}

// traceInto hands the trace to the driver.
func traceInto(c *session.Config) { c.Trace, c.Counters = tracing.writer, tracing.counters }

//export tdlTraceName
func tdlTraceName(name C.uintptr_t) C.uint32_t {
	return C.uint32_t(tracing.writer.Text(trace.TextFunction, 0, text(uintptr(name))))
}

//export tdlTraceThread
func tdlTraceThread(thread C.uint32_t) {
	name := "thread"
	if b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", thread)); err == nil {
		name = strings.TrimSpace(string(b))
	}
	tracing.writer.Text(trace.TextThread, uint64(thread), name)
}

//export tdlTraceEnd
func tdlTraceEnd() {
	defer func() { _ = recover() }() // the program is at its end, nobody is left to tell
	driver()
	used.EndTrace()
}
