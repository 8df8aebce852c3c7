//go:build cgo

package cuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Library is the driver, loaded and initialised for the life of the process.
type Library struct {
	handle unsafe.Pointer // immutable
	path   string         // immutable
}

// Open loads the driver (a path, or a name for the dynamic linker) and initialises it.
func Open(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	runtime.LockOSThread() // dlerror is a thread's
	defer runtime.UnlockOSThread()
	var why *C.char
	handle := C.tc_open(name, &why)
	if handle == nil {
		return nil, fmt.Errorf("load the CUDA driver %s: %s", path, C.GoString(why))
	}
	l := &Library{handle, path}
	return l, l.err("cuInit", C.tc_init(handle))
}

// err makes an Error of a result that is no success.
func (l *Library) err(function string, result C.int) error {
	if result == 0 {
		return nil
	}
	var name [64]C.char
	C.tc_error(l.handle, result, &name[0], C.size_t(len(name)))
	return &Error{function, int(result), C.GoString(&name[0])}
}

// Devices lists the GPUs; none is not an error.
func (l *Library) Devices() ([]Device, error) {
	var n C.int
	if err := l.err("cuDeviceGetCount", C.tc_count(l.handle, &n)); err != nil {
		return nil, err
	}
	var list []Device
	for i := range n {
		var d C.tc_device
		if err := l.err(fmt.Sprintf("cuDeviceGet and what describes device %d", i),
			C.tc_describe(l.handle, i, &d)); err != nil {
			return nil, err
		}
		x := Device{Ordinal: int(d.ordinal), Name: C.GoString(&d.name[0]), Bytes: uint64(d.bytes),
			Shares: d.shares != 0, Mode: int(d.mode)}
		for k := range x.UUID {
			x.UUID[k] = byte(d.uuid[k])
		}
		list = append(list, x)
	}
	return list, nil
}

// Context is a device in use: its primary context, which takes some 0.5 GiB of a real GPU's memory. Safe for concurrent
// use.
type Context struct {
	l       *Library
	ordinal C.int
	context C.tc_context
	bytes   uint64
}

// Context begins to use a device. The caller must Close it.
func (l *Library) Context(d Device) (*Context, error) {
	c := &Context{l: l, ordinal: C.int(d.Ordinal), bytes: d.Bytes}
	if err := l.err("cuDevicePrimaryCtxRetain", C.tc_retain(l.handle, c.ordinal, &c.context)); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends the use of the device. Nothing made of the context may be used any more.
func (c *Context) Close() error {
	return c.l.err("cuDevicePrimaryCtxRelease", C.tc_release_context(c.l.handle, c.ordinal))
}

// Bytes is the size of the device's memory.
func (c *Context) Bytes() uint64 { return c.bytes }

// Granularity is of how many bytes the size of every allocation is a multiple.
func (c *Context) Granularity() (uint64, error) {
	var n C.uint64_t
	err := c.l.err("cuMemGetAllocationGranularity", C.tc_granularity(c.l.handle, c.ordinal, &n))
	if err == nil && (n == 0 || n&(n-1) != 0) {
		err = fmt.Errorf("cuMemGetAllocationGranularity says %d bytes, which is no power of two", n)
	}
	return uint64(n), err
}

// FreeBytes is how much of the device's memory nobody has.
func (c *Context) FreeBytes() (uint64, error) {
	var free, all C.uint64_t
	err := c.l.err("cuMemGetInfo", C.tc_info(c.l.handle, c.context, &free, &all))
	return uint64(free), err
}

// Memory is an allocation of a device, of this process or another one's. It lives as long as anybody has a handle, a
// mapping or a descriptor of it.
type Memory struct {
	c      *Context
	handle C.tc_memory
	bytes  uint64
}

// Create allocates bytes, a multiple of Granularity, that can be exported. Their contents are undefined. The caller
// must Release it.
func (c *Context) Create(bytes uint64) (*Memory, error) {
	m := &Memory{c: c, bytes: bytes}
	if err := c.l.err("cuMemCreate", C.tc_create(c.l.handle, c.ordinal, C.uint64_t(bytes), &m.handle)); err != nil {
		return nil, err
	}
	return m, nil
}

// Import is the allocation of bytes that a descriptor stands for; the descriptor stays the caller's. The caller must
// Release it.
func (c *Context) Import(fd int, bytes uint64) (*Memory, error) {
	m := &Memory{c: c, bytes: bytes}
	if err := c.l.err("cuMemImportFromShareableHandle",
		C.tc_import(c.l.handle, C.int(fd), &m.handle)); err != nil {
		return nil, err
	}
	return m, nil
}

// Export gives a new descriptor, which the caller owns.
func (m *Memory) Export() (int, error) {
	var fd C.int
	if err := m.c.l.err("cuMemExportToShareableHandle", C.tc_export(m.c.l.handle, m.handle, &fd)); err != nil {
		return -1, err
	}
	return int(fd), nil
}

// Release gives the handle back. Mappings stay.
func (m *Memory) Release() error {
	return m.c.l.err("cuMemRelease", C.tc_release(m.c.l.handle, m.handle))
}

// Mapping is an allocation at an address of the device. Its methods return when the device has done the work.
type Mapping struct {
	c     *Context
	at    C.tc_pointer
	bytes uint64
}

// Map makes the whole allocation readable and writable for its device. The caller must Unmap it.
func (m *Memory) Map() (*Mapping, error) {
	c, n := m.c, C.uint64_t(m.bytes)
	v := &Mapping{c: c, bytes: m.bytes}
	if err := c.l.err("cuMemAddressReserve", C.tc_reserve(c.l.handle, c.context, n, &v.at)); err != nil {
		return nil, err
	}
	if err := c.l.err("cuMemMap", C.tc_map(c.l.handle, c.context, v.at, n, m.handle)); err != nil {
		return nil, errors.Join(err, v.freeAddress())
	}
	if err := v.Allow(c); err != nil {
		return nil, errors.Join(err, v.Unmap())
	}
	return v, nil
}

// Allow makes the mapping readable and writable for a device that Reaches it. For another device than the memory's own
// the driver can take long: 1 ms, or 9 from 512 MiB on, on two H200s.
func (v *Mapping) Allow(user *Context) error {
	return v.c.l.err("cuMemSetAccess",
		C.tc_set_access(v.c.l.handle, v.c.context, user.ordinal, v.at, C.uint64_t(v.bytes)))
}

func (v *Mapping) freeAddress() error {
	return v.c.l.err("cuMemAddressFree",
		C.tc_free_address(v.c.l.handle, v.c.context, v.at, C.uint64_t(v.bytes)))
}

// Unmap ends the mapping.
func (v *Mapping) Unmap() error {
	err := v.c.l.err("cuMemUnmap", C.tc_unmap(v.c.l.handle, v.c.context, v.at, C.uint64_t(v.bytes)))
	if err != nil {
		return err // the address is in use
	}
	return v.freeAddress()
}

// part checks a range of the mapping.
func (v *Mapping) part(offset, bytes uint64) (C.tc_pointer, error) {
	if offset > v.bytes || bytes > v.bytes-offset {
		return 0, fmt.Errorf("bytes [%d, +%d) of a mapping of %d", offset, bytes, v.bytes)
	}
	return v.at + C.tc_pointer(offset), nil
}

// parts checks a range of each of two mappings.
func (v *Mapping) parts(offset uint64, from *Mapping, fromOffset, bytes uint64) (at, source C.tc_pointer, err error) {
	if at, err = v.part(offset, bytes); err == nil {
		source, err = from.part(fromOffset, bytes)
	}
	return at, source, err
}

// done waits for the device after a call that succeeded.
func (v *Mapping) done(function string, result C.int) error {
	if err := v.c.l.err(function, result); err != nil {
		return err
	}
	return v.c.l.err(waitsForDevice, C.tc_synchronize(v.c.l.handle, v.c.context))
}

// Fill sets bytes from offset on.
func (v *Mapping) Fill(value byte, offset, bytes uint64) error {
	at, err := v.part(offset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return v.done("cuMemsetD8", C.tc_fill(v.c.l.handle, v.c.context, at, C.uchar(value), C.uint64_t(bytes)))
}

// Write copies from host memory.
func (v *Mapping) Write(offset uint64, from []byte) error {
	at, err := v.part(offset, uint64(len(from)))
	if err != nil || len(from) == 0 {
		return err
	}
	err = v.done("cuMemcpyHtoD", C.tc_to_device(v.c.l.handle, v.c.context, at,
		C.uintptr_t(uintptr(unsafe.Pointer(&from[0]))), C.uint64_t(len(from))))
	runtime.KeepAlive(from)
	return err
}

// Read copies to host memory.
func (v *Mapping) Read(to []byte, offset uint64) error {
	at, err := v.part(offset, uint64(len(to)))
	if err != nil || len(to) == 0 {
		return err
	}
	err = v.done("cuMemcpyDtoH", C.tc_to_host(v.c.l.handle, v.c.context,
		C.uintptr_t(uintptr(unsafe.Pointer(&to[0]))), at, C.uint64_t(len(to))))
	runtime.KeepAlive(to)
	return err
}

// CopyFrom copies from another mapping, which may be one of another device's memory.
func (v *Mapping) CopyFrom(offset uint64, from *Mapping, fromOffset, bytes uint64) error {
	at, source, err := v.parts(offset, from, fromOffset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return v.done("cuMemcpyDtoD", C.tc_copy(v.c.l.handle, v.c.context, at, source, C.uint64_t(bytes)))
}
