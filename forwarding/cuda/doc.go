// Package cuda is the only binding to the CUDA driver: it opens libcuda.so.1, or what stands in its place, at run time
// and calls what virtual memory management needs: memory of a device as a POSIX descriptor, which other processes map.
// Only the keeper (forwarding/keeper), and the program that checks a GPU machine, load it.
//
// Trust: the driver is trusted with the process, in which it runs. Callers pass handles that this package gave them and
// that they have not given back; nothing is checked twice.
//
// Locks: none, and no state but the table of functions: the driver may be called from every thread. A context is
// current in a thread, and goroutines move, so each call that needs one sets it.
//
// Without cgo the package is there, and Open says why it cannot work.
package cuda
