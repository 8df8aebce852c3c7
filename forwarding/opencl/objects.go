//go:build cgo

package opencl

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"encoding/binary"
	"unsafe"

	"tendril/forwarding/cl"
)

func handles[T ~uintptr](h []T) *C.td_handle {
	return (*C.td_handle)(unsafe.Pointer(unsafe.SliceData(h)))
}

// CreateContext is clCreateContext without a callback.
func (p Platform) CreateContext(devices []Device) (Context, Status) {
	var err C.cl_int
	c := C.td_create_context(C.td_handle(p.id), C.uint32_t(len(devices)), handles(devices), &err)
	return Context(c), Status(err)
}

// CreateQueue is clCreateCommandQueue; properties are OutOfOrder and Profiling.
func (c Context) CreateQueue(d Device, properties uint64) (Queue, Status) {
	var err C.cl_int
	q := C.td_create_queue(C.td_handle(c), C.td_handle(d), C.uint64_t(properties), &err)
	return Queue(q), Status(err)
}

// CreateBuffer is clCreateBuffer. host is an address outside Go's heap, or 0; the
// caller keeps that memory until the buffer and every command on it are gone.
func (c Context) CreateBuffer(flags uint64, size uint64, host uintptr) (Mem, Status) {
	var err C.cl_int
	m := C.td_create_buffer(C.td_handle(c), C.uint64_t(flags), C.size_t(size), C.uintptr_t(host), &err)
	return Mem(m), Status(err)
}

// ImportBuffer makes a buffer of memory that another driver allocated. The driver owns the descriptor if it succeeds.
// device is where the memory lies: with two GPUs NVIDIA's driver 580 crashes where it has to guess. Precondition: the
// device has the extension cl_khr_external_memory_opaque_fd, which only drivers of OpenCL 3.0 have.
func (c Context) ImportBuffer(device Device, flags, size uint64, fd int) (Mem, Status) {
	var err C.cl_int
	m := C.td_import_buffer(C.td_handle(c), C.td_handle(device), C.uint64_t(flags), C.size_t(size), C.int(fd), &err)
	return Mem(m), Status(err)
}

// SVMAlloc is clSVMAlloc (OpenCL 3.0 §5.6.1): size and alignment in bytes; 0 where the driver has none.
func (c Context) SVMAlloc(flags, size uint64, alignment uint32) uintptr {
	return uintptr(C.td_svm_alloc(C.td_handle(c), C.uint64_t(flags), C.size_t(size), C.uint32_t(alignment)))
}

// SVMFree is clSVMFree: no command uses the memory any more.
func (c Context) SVMFree(address uintptr) { C.td_svm_free(C.td_handle(c), C.uintptr_t(address)) }

// SetSVMPointers is clSetKernelExecInfo with CL_KERNEL_EXEC_INFO_SVM_PTRS (§5.9.2): what the kernel reaches by
// pointers that are no arguments. One goroutine a kernel.
func (k Kernel) SetSVMPointers(pointers []uintptr) Status {
	return Status(C.td_svm_pointers(C.td_handle(k), C.size_t(len(pointers)),
		(*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(pointers)))))
}

// CreateSubBuffer is clCreateSubBuffer.
func (m Mem) CreateSubBuffer(flags, origin, size uint64) (Mem, Status) {
	var err C.cl_int
	s := C.td_create_sub_buffer(C.td_handle(m), C.uint64_t(flags), C.size_t(origin), C.size_t(size), &err)
	return Mem(s), Status(err)
}

// CreateProgram is clCreateProgramWithSource with one string.
func (c Context) CreateProgram(source []byte) (Program, Status) {
	if len(source) == 0 {
		return 0, cl.INVALID_VALUE
	}
	var err C.cl_int
	p := C.td_create_source(C.td_handle(c), (*C.char)(unsafe.Pointer(&source[0])), C.size_t(len(source)), &err)
	return Program(p), Status(err)
}

// CreateProgramBinary is clCreateProgramWithBinary; the binaries stand in bytes
// one after another, sizes[i] for devices[i]. verdicts is each binary's status.
func (c Context) CreateProgramBinary(devices []Device, sizes []uint64, bytes []byte) (p Program,
	verdicts []int32, s Status) {
	var total uint64
	for _, n := range sizes {
		if total += n; n == 0 || total > uint64(len(bytes)) {
			return 0, nil, cl.INVALID_VALUE
		}
	}
	if len(devices) == 0 || len(devices) != len(sizes) {
		return 0, nil, cl.INVALID_VALUE
	}
	verdicts = make([]int32, len(devices))
	var err C.cl_int
	h := C.td_create_binary(C.td_handle(c), C.uint32_t(len(devices)), handles(devices),
		(*C.size_t)(unsafe.Pointer(&sizes[0])),
		(*C.uchar)(unsafe.Pointer(&bytes[0])), (*C.int32_t)(unsafe.Pointer(&verdicts[0])), &err)
	return Program(h), verdicts, Status(err)
}

// CreateProgramIL is clCreateProgramWithIL (OpenCL 3.0 §5.8.1); InvalidOperation where the driver has none.
func (c Context) CreateProgramIL(il []byte) (Program, Status) {
	if len(il) == 0 {
		return 0, cl.INVALID_VALUE
	}
	var err C.cl_int
	p := C.td_create_il(C.td_handle(c), unsafe.Pointer(&il[0]), C.size_t(len(il)), &err)
	return Program(p), Status(err)
}

// CreateProgramBuiltIn is clCreateProgramWithBuiltInKernels; names as there.
func (c Context) CreateProgramBuiltIn(devices []Device, names string) (Program, Status) {
	n := C.CString(names)
	defer C.free(unsafe.Pointer(n))
	var err C.cl_int
	p := C.td_create_built_in(C.td_handle(c), C.uint32_t(len(devices)), handles(devices), n, &err)
	return Program(p), Status(err)
}

// SetSpecConstant is clSetProgramSpecializationConstant.
func (p Program) SetSpecConstant(id uint32, value []byte) Status {
	return Status(C.td_spec_constant(C.td_handle(p), C.uint32_t(id), C.size_t(len(value)),
		unsafe.Pointer(unsafe.SliceData(value))))
}

// CountSubDevices is clCreateSubDevices without making them; properties end in 0.
func (d Device) CountSubDevices(properties []uintptr) (uint32, Status) {
	var n C.uint32_t
	s := Status(C.td_sub_devices(C.td_handle(d),
		(*C.intptr_t)(unsafe.Pointer(unsafe.SliceData(properties))), 0, nil, &n))
	return uint32(n), s
}

// CreateSubDevices is clCreateSubDevices of n devices. The caller releases each.
func (d Device) CreateSubDevices(properties []uintptr, n uint32) ([]Device, Status) {
	out := make([]Device, n)
	var found C.uint32_t
	s := Status(C.td_sub_devices(C.td_handle(d), (*C.intptr_t)(unsafe.Pointer(unsafe.SliceData(properties))),
		C.uint32_t(n), handles(out), &found))
	if s != cl.SUCCESS {
		return nil, s
	}
	return out[:min(n, uint32(found))], s
}

// Release is clReleaseDevice, of a sub-device.
func (d Device) Release() Status { return Status(C.td_release_device(C.td_handle(d))) }

// Timers is clGetDeviceAndHostTimer: ns of the device's clock and the driver's host clock.
func (d Device) Timers() (device, host uint64, s Status) {
	var both [2]C.uint64_t
	s = Status(C.td_timers(C.td_handle(d), &both[0]))
	return uint64(both[0]), uint64(both[1]), s
}

// Build is clBuildProgram without a callback: it blocks for as long as the
// compiler takes. No devices means all of the context.
func (p Program) Build(devices []Device, options string) Status {
	o := C.CString(options)
	defer C.free(unsafe.Pointer(o))
	return Status(C.td_build(C.td_handle(p), C.uint32_t(len(devices)), handles(devices), o))
}

// Header is an embedded header of a compilation: a program, included by name.
type Header struct {
	Program Program
	Name    string
}

// Compile is clCompileProgram without a callback (OpenCL 3.0 §5.8.4): it blocks. At most 1024 headers.
func (p Program) Compile(devices []Device, options string, headers []Header) Status {
	o := C.CString(options)
	defer C.free(unsafe.Pointer(o))
	var programs []Program
	var names []byte
	for _, h := range headers {
		programs, names = append(programs, h.Program), append(append(names, h.Name...), 0)
	}
	n := C.CBytes(names)
	defer C.free(n)
	return Status(C.td_compile(C.td_handle(p), C.uint32_t(len(devices)), handles(devices), o,
		C.uint32_t(len(headers)), handles(programs), (*C.char)(n)))
}

// Link is clLinkProgram without a callback (OpenCL 3.0 §5.8.5): it blocks. The program is 0, or there although linking
// failed.
func (c Context) Link(devices []Device, options string, programs []Program) (Program, Status) {
	o := C.CString(options)
	defer C.free(unsafe.Pointer(o))
	var err C.cl_int
	p := C.td_link(C.td_handle(c), C.uint32_t(len(devices)), handles(devices), o, C.uint32_t(len(programs)),
		handles(programs), &err)
	return Program(p), Status(err)
}

// Devices is CL_PROGRAM_DEVICES.
func (p Program) Devices() ([]Device, Status) {
	raw, s := p.Info(cl.PROGRAM_DEVICES)
	list := make([]Device, len(raw)/8)
	for i := range list {
		list[i] = Device(binary.NativeEndian.Uint64(raw[8*i:]))
	}
	return list, s
}

// Binaries returns the binaries of all devices, one after another; their sizes
// are Info(ProgramBinarySizes).
func (p Program) Binaries() ([]byte, Status) {
	raw, s := p.Info(cl.PROGRAM_BINARY_SIZES)
	if s != cl.SUCCESS {
		return nil, s
	}
	sizes := make([]uint64, len(raw)/8)
	var total uint64
	for i := range sizes {
		sizes[i] = binary.NativeEndian.Uint64(raw[8*i:])
		if total += sizes[i]; sizes[i] > 1<<30 || total > 1<<30 {
			return nil, cl.OUT_OF_HOST_MEMORY
		}
	}
	if total == 0 {
		return nil, cl.SUCCESS
	}
	bytes := make([]byte, total)
	s = Status(C.td_binaries(C.td_handle(p), C.uint32_t(len(sizes)), (*C.size_t)(unsafe.Pointer(&sizes[0])),
		(*C.uchar)(unsafe.Pointer(&bytes[0]))))
	if s != cl.SUCCESS {
		return nil, s
	}
	return bytes, s
}

// CreateKernel is clCreateKernel.
func (p Program) CreateKernel(name string) (Kernel, Status) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var err C.cl_int
	k := C.td_create_kernel(C.td_handle(p), n, &err)
	return Kernel(k), Status(err)
}

// Release drops the caller's reference; the handle must not be used again.
func (c Context) Release() Status { return release(C.TD_RELEASE_CONTEXT, uintptr(c)) }

// Release drops the caller's reference.
func (q Queue) Release() Status { return release(C.TD_RELEASE_QUEUE, uintptr(q)) }

// Release drops the caller's reference.
func (m Mem) Release() Status { return release(C.TD_RELEASE_MEM, uintptr(m)) }

// Release drops the caller's reference.
func (p Program) Release() Status { return release(C.TD_RELEASE_PROGRAM, uintptr(p)) }

// Release drops the caller's reference.
func (k Kernel) Release() Status { return release(C.TD_RELEASE_KERNEL, uintptr(k)) }

// Retain adds a reference of the caller's own.
func (e Event) Retain() { C.td_retain_event(C.td_handle(e)) }

// Release drops the caller's reference.
func (e Event) Release() Status { return release(C.TD_RELEASE_EVENT, uintptr(e)) }

func release(kind C.uint32_t, h uintptr) Status {
	return Status(C.td_release(kind, C.td_handle(h)))
}
