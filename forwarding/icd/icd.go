// Command icd is the OpenCL driver library, libtendril_opencl.so (-buildmode=c-shared): what an ICD loader opens.
//
// The C half (stubs.c) fills the whole dispatch table; each function that is forwarded hands its arguments to one Go
// function here, which reads the program's arrays and calls an api.Driver. Nothing is decided here.
//
// Trust: arguments are whatever the program passes; handles and pointers arrive as numbers. Arrays are read where
// OpenCL says that they are. A panic in Go ends in CL_OUT_OF_HOST_MEMORY and one line on standard error, never in the
// program.
//
// State: one Driver for the process, as the OpenCL ABI has it. No locks of its own.
package main

// #cgo CFLAGS: -std=gnu11 -fvisibility=hidden -Wall
// #cgo LDFLAGS: -Wl,-Bsymbolic-functions ${SRCDIR}/exports.so
// #include "driver.h"
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session"
	"tendril/forwarding/session/settings"
	"tendril/forwarding/span"
)

// stamp is set by the build: -ldflags "-X main.stamp=tendril-library-version=…;". So `tendril` finds it in the file.
// What Go says of a build that does not depend on its folder (-trimpath) has no such flags.
var stamp string

// version is the stamp's.
func version() string {
	if _, after, found := strings.Cut(stamp, "="); found {
		return strings.TrimSuffix(after, ";")
	}
	return "dev"
}

func main() {} // c-shared wants one; it never runs

// driver is made at the first call: a process that only loads the library keeps no memory for it.
var driver = sync.OnceValue(func() api.Driver {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	config := settings.FromEnv(os.Getenv)
	config.Dispatch = uintptr(unsafe.Pointer(&C.tdl_dispatch))
	config.Version = version()
	config.Program = program()
	config.Log = logLine
	traceInto(&config)
	config.Print = func(data []byte) { writeAll(1, data) }
	nodes := len(config.Servers)
	if config.Nodes {
		nodes = max(nodes, 2) // as far as is known here
	}
	mode, ok := span.ParseMode(os.Getenv("TENDRIL_PLATFORMS"), nodes)
	if !ok {
		logLine(fmt.Sprintf("tendril: TENDRIL_PLATFORMS=%q is none of native, node, one: native is taken",
			os.Getenv("TENDRIL_PLATFORMS")))
	}
	inner, err := session.New(config)
	var d *span.Driver
	if err == nil {
		d, err = span.New(inner, mode, config.Dispatch)
	}
	if err != nil {
		logLine(fmt.Sprintf("tendril: the driver library cannot start: %v", err))
		panic(err)
	}
	used = inner
	C.tdl_used = 1
	return d
})

// gcPercent is how much this runtime's heap, some MiB of objects and events, grows between two collections: of the time
// that 100,000 buffers take to be made and released a third went into collecting at Go's default.
const gcPercent = 400

// used is the driver's inner half, for the process's end. It is set before tdl_used.
var used *session.Driver

// fateLimit is how long a program's exit waits to hear why a worker ended: a little more than one question takes.
const fateLimit = 1500 * time.Millisecond

// leaveLimit bounds the farewell to other machines.
const leaveLimit = 300 * time.Millisecond

// tdlEnd is called at exit() where the driver was used.
//
//export tdlEnd
func tdlEnd() {
	used.WaitReports(fateLimit)
	used.Leave(leaveLimit)
}

func program() string {
	if exe, err := os.Readlink("/proc/self/exe"); err == nil {
		return filepath.Base(exe)
	}
	return filepath.Base(os.Args[0])
}

// logLine writes one line to standard error in one piece.
func logLine(line string) { writeAll(2, []byte(line+"\n")) }

func writeAll(fd int, data []byte) {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return // the program closed it; nobody is left to tell
		}
		data = data[n:]
	}
}

// rescue turns a panic into an error code.
func rescue(code *C.cl_int) {
	if r := recover(); r != nil {
		logLine(fmt.Sprintf("tendril: a fault in the driver library, please report it: %v", r))
		*code = C.CL_OUT_OF_HOST_MEMORY
	}
}

// rescueHandle is rescue for functions that return a handle and their code through a pointer.
func rescueHandle(code uintptr) {
	if r := recover(); r != nil {
		logLine(fmt.Sprintf("tendril: a fault in the driver library, please report it: %v", r))
		store[C.cl_int](code, C.CL_OUT_OF_HOST_MEMORY)
	}
}

// at returns what the program keeps at an address that OpenCL says is readable.
func at[T any](address uintptr) *T { return (*T)(*(*unsafe.Pointer)(unsafe.Pointer(&address))) }

// store writes v unless the address is NULL.
func store[T any](address uintptr, v T) {
	if address != 0 {
		*at[T](address) = v
	}
}

// array returns n elements at an address; nil for NULL, empty but not nil for no elements.
func array[T any, N ~uint32 | ~uint64 | ~int](address uintptr, n N) []T {
	if address == 0 {
		return nil
	}
	return unsafe.Slice(at[T](address), n)
}

// list copies a property list up to and with its terminating 0; nil for NULL.
func list(address uintptr) []uint64 {
	if address == 0 {
		return nil
	}
	var items []uint64
	for i := uintptr(0); ; i += 2 {
		key := *at[uint64](address + 8*i)
		items = append(items, key)
		if key == 0 {
			return items
		}
		items = append(items, *at[uint64](address + 8*i + 8))
	}
}

// text reads a NUL-terminated string; "" for NULL.
func text(address uintptr) string {
	if address == 0 {
		return ""
	}
	return C.GoString(at[C.char](address))
}

// three reads an array of up to three sizes.
func three(address uintptr, dims int) (v [3]uint64) {
	for i := range dims {
		v[i] = *at[uint64](address + uintptr(8*i))
	}
	return v
}

// answer gives bytes to a clGet…Info call: CL_INVALID_VALUE where they do not fit.
func answer(bytes []byte, status api.Status, size C.size_t, value, sizeRet C.uintptr_t) C.cl_int {
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	if value != 0 {
		if uint64(size) < uint64(len(bytes)) {
			return C.CL_INVALID_VALUE
		}
		copy(array[byte](uintptr(value), len(bytes)), bytes)
	}
	store(uintptr(sizeRet), uint64(len(bytes)))
	return C.CL_SUCCESS
}

// handles gives a list of handles to a call that takes num_entries, an array and a count.
func giveHandles(found []uintptr, entries C.cl_uint, array_, count C.uintptr_t) C.cl_int {
	if array_ != 0 {
		for i := range min(len(found), int(entries)) {
			*at[uintptr](uintptr(array_) + uintptr(8*i)) = found[i]
		}
	}
	store(uintptr(count), uint32(len(found)))
	return C.CL_SUCCESS
}

// created finishes a call that makes an object.
func created(h uintptr, status api.Status, code C.uintptr_t) C.uintptr_t {
	store(uintptr(code), C.cl_int(status))
	return C.uintptr_t(h)
}

// waits reads the common part of an enqueue call.
func waits(w *C.tdl_waits) api.Waits {
	return api.Waits{N: uint32(w.n), List: array[uintptr](uintptr(w.list), uint32(w.n)), Want: w.event != 0}
}

// enqueued finishes an enqueue call.
func enqueued(event uintptr, status api.Status, w *C.tdl_waits) C.cl_int {
	if status == cl.SUCCESS {
		store(uintptr(w.event), event)
	}
	return C.cl_int(status)
}
