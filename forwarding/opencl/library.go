//go:build cgo

package opencl

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"tendril/forwarding/cl"
)

// maxInfoBytes bounds what one clGet…Info answer may claim. Binaries are read otherwise.
const maxInfoBytes = 64 << 20

// Library is one driver, loaded for the life of the process: drivers do not
// survive being unloaded.
type Library struct {
	handle unsafe.Pointer // immutable
	path   string         // immutable: what the .icd file named
}

// Platform is one platform of a driver.
type Platform struct{ id uintptr }

// Open loads the driver that an .icd file names on its first line (a path, or a
// name for the dynamic linker).
func Open(icd string) (*Library, error) {
	path, err := readICD(icd)
	if err != nil {
		return nil, err
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	handle := C.td_open(name, &why)
	if handle == nil {
		return nil, fmt.Errorf("load the OpenCL driver %s, named by %s: %s", path, icd, C.GoString(why))
	}
	return &Library{handle: handle, path: path}, nil
}

func readICD(icd string) (string, error) {
	f, err := os.Open(icd)
	if err != nil {
		return "", unopened(err, os.Getuid())
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 4096).ReadSlice('\n')
	path := strings.TrimSpace(string(line))
	if path == "" {
		return "", fmt.Errorf("driver file %s names no library (%v)", icd, err)
	}
	return path, nil
}

// unopened is the error of a driver file that user, as whom this runs, could not open.
func unopened(err error, user int) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("driver file: %w: workers run as user %d: let everybody read it, and search the directories above it",
			err, user)
	}
	return fmt.Errorf("driver file: %w", err)
}

// Path is what the .icd file named.
func (l *Library) Path() string { return l.path }

// Platforms lists the driver's platforms; none is not an error.
func (l *Library) Platforms() ([]Platform, error) {
	var ids [32]C.td_handle
	var n C.uint32_t
	if s := Status(C.td_platforms(l.handle, 0, nil, &n)); s != cl.SUCCESS || n == 0 {
		if s == cl.PLATFORM_NOT_FOUND_KHR || s == cl.SUCCESS {
			return nil, nil
		}
		return nil, s.Err("clIcdGetPlatformIDsKHR of " + l.path)
	}
	n = min(n, C.uint32_t(len(ids)))
	if s := Status(C.td_platforms(l.handle, n, &ids[0], &n)); s != cl.SUCCESS {
		return nil, s.Err("clIcdGetPlatformIDsKHR of " + l.path)
	}
	var out []Platform
	for _, id := range ids[:min(int(n), len(ids))] {
		out = append(out, Platform{uintptr(id)})
	}
	return out, nil
}

// Devices lists the platform's devices of every type; none is not an error.
func (p Platform) Devices() ([]Device, error) {
	var ids [256]C.td_handle
	var n C.uint32_t
	s := Status(C.td_devices(C.td_handle(p.id), C.uint32_t(len(ids)), &ids[0], &n))
	if s == cl.DEVICE_NOT_FOUND {
		return nil, nil
	}
	if s != cl.SUCCESS {
		return nil, s.Err("clGetDeviceIDs")
	}
	var out []Device
	for _, id := range ids[:min(int(n), len(ids))] {
		out = append(out, Device(id))
	}
	return out, nil
}

// info asks for the size, then for the bytes.
func info(what C.uint32_t, object, device uintptr, index, param uint32, input []byte) ([]byte, Status) {
	var size C.size_t
	in, n := unsafe.Pointer(unsafe.SliceData(input)), C.size_t(len(input))
	o, d := C.td_handle(object), C.td_handle(device)
	s := Status(C.td_info(what, o, d, C.uint32_t(index), C.uint32_t(param), in, n, 0, nil, &size))
	if s != cl.SUCCESS || size == 0 {
		return nil, s
	}
	if size > maxInfoBytes {
		return nil, cl.OUT_OF_HOST_MEMORY
	}
	value := make([]byte, size)
	s = Status(C.td_info(what, o, d, C.uint32_t(index), C.uint32_t(param), in, n, size,
		unsafe.Pointer(&value[0]), &size))
	if s != cl.SUCCESS {
		return nil, s
	}
	return value[:min(int(size), len(value))], s
}

// Info is clGetPlatformInfo.
func (p Platform) Info(param uint32) ([]byte, Status) {
	return info(C.TD_PLATFORM, p.id, 0, 0, param, nil)
}

// Info is clGetDeviceInfo.
func (d Device) Info(param uint32) ([]byte, Status) {
	return info(C.TD_DEVICE, uintptr(d), 0, 0, param, nil)
}

// Info is clGetProgramInfo, except for ProgramBinaries (see Binaries).
func (p Program) Info(param uint32) ([]byte, Status) {
	if param == cl.PROGRAM_BINARIES {
		return p.Binaries()
	}
	return info(C.TD_PROGRAM, uintptr(p), 0, 0, param, nil)
}

// BuildInfo is clGetProgramBuildInfo.
func (p Program) BuildInfo(d Device, param uint32) ([]byte, Status) {
	return info(C.TD_BUILD, uintptr(p), uintptr(d), 0, param, nil)
}

// Info is clGetKernelInfo.
func (k Kernel) Info(param uint32) ([]byte, Status) {
	return info(C.TD_KERNEL, uintptr(k), 0, 0, param, nil)
}

// ArgInfo is clGetKernelArgInfo.
func (k Kernel) ArgInfo(index, param uint32) ([]byte, Status) {
	return info(C.TD_KERNEL_ARG, uintptr(k), 0, index, param, nil)
}

// WorkGroupInfo is clGetKernelWorkGroupInfo.
func (k Kernel) WorkGroupInfo(d Device, param uint32) ([]byte, Status) {
	return info(C.TD_WORK_GROUP, uintptr(k), uintptr(d), 0, param, nil)
}

// SubGroupInfo is clGetKernelSubGroupInfo (2.1; the caller checks the platform's version).
func (k Kernel) SubGroupInfo(d Device, param uint32, input []byte) ([]byte, Status) {
	return info(C.TD_SUB_GROUP, uintptr(k), uintptr(d), 0, param, input)
}
