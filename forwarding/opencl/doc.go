// Package opencl is the only binding to OpenCL drivers: it opens one vendor
// library, named by an .icd file, at run time, and calls through its dispatch
// table (cl_khr_icd), so that no ICD loader stands between and no other
// driver, ours included, is ever loaded.
//
// Trust: the driver is trusted with the process (it runs inside it); callers
// pass handles that this package gave them and that they have not released. The
// package keeps no tables and checks no handle.
//
// Functions return the driver's own cl_int. Hot calls (Launch, Statuses, the
// enqueues) are one crossing into C each and allocate nothing. The package
// holds no locks and no state: OpenCL's own rules on threads apply
// (OpenCL 3.0 §A.2: everything but SetArg on one kernel may run concurrently).
//
// Without cgo the package is there, and Open says why it cannot work.
package opencl
