//go:build cgo

// Package snapshot asks a driver what its platforms and devices are, and tries whether a device computes in the memory
// of a segment. What it finds is clwire's snapshots, which a probe writes down and the program's queries answer from.
//
// Trust: the driver runs in this process, which is a probe or a worker. The package keeps nothing.
package snapshot

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
)

// Platforms loads a driver into this process and describes its platforms. noInPlace: no device computes on segments,
// whatever it could.
func Platforms(icd string, noInPlace bool) ([]clwire.PlatformSnapshot, error) {
	lib, err := opencl.Open(icd)
	if err != nil {
		return nil, err
	}
	platforms, err := lib.Platforms()
	if err != nil {
		return nil, err
	}
	var out []clwire.PlatformSnapshot
	for i, p := range platforms {
		s, err := platform(p, noInPlace)
		if err != nil {
			return nil, err
		}
		s.ICD, s.Index = icd, i
		out = append(out, s)
	}
	return out, nil
}

func platform(p opencl.Platform, noInPlace bool) (clwire.PlatformSnapshot, error) {
	s := clwire.PlatformSnapshot{Info: map[uint32][]byte{}}
	ask(s.Info, platformParams, p.Info)
	devices, err := p.Devices()
	if err != nil {
		return s, err
	}
	for _, d := range devices {
		ds := Device(d)
		if u := ds.Info[cl.DEVICE_UUID_KHR]; len(u) == 16 {
			ds.UUID = hex.EncodeToString(u)
		}
		if ds.InPlaceReason = "the daemon's in-place is off"; !noInPlace {
			ds.InPlace, ds.InPlaceReason = InPlace(p, d)
		}
		s.Devices = append(s.Devices, ds)
	}
	return s, nil
}

// Device describes a device, or a sub-device.
func Device(d opencl.Device) clwire.DeviceSnapshot {
	ds := clwire.DeviceSnapshot{Info: map[uint32][]byte{}}
	ask(ds.Info, deviceParams, d.Info)
	return ds
}

// ask keeps every answer; what the driver does not know is left out. An empty answer is an answer.
func ask(into map[uint32][]byte, params [][2]uint32, info func(uint32) ([]byte, opencl.Status)) {
	for _, r := range params {
		for p := r[0]; p <= r[1]; p++ {
			if _, handle := handleParams[p]; handle {
				continue
			}
			if b, s := info(p); s == cl.SUCCESS {
				into[p] = append([]byte{}, b...)
			}
		}
	}
}

// platformParams and deviceParams are ranges of clGetPlatformInfo's and
// clGetDeviceInfo's parameters: all of OpenCL 1.0 to 3.0, and vendors' (CL/cl.h, CL/cl_ext.h).
var (
	platformParams = [][2]uint32{
		{0x0900, 0x0907}, // core
		{0x0920, 0x0920}, // ICD suffix
		{0x2036, 0x2038}, // semaphores
		{0x2044, 0x2044}, // external memory
		{0x106A, 0x106F}, // (devices' UUIDs; some drivers answer here as well)
	}
	deviceParams = [][2]uint32{
		{0x1000, 0x1077},                   // core to 3.0, UUID, LUID, integer dot products
		{0x12A9, 0x12AA}, {0x12B0, 0x12B0}, // command buffers
		{0x2031, 0x2031}, {0x2033, 0x2035}, {0x204C, 0x2052}, // terminate, sub-groups, semaphores, external memory
		{0x4000, 0x400A},                                                       // NVIDIA
		{0x4030, 0x404F},                                                       // AMD
		{0x407E, 0x407E}, {0x40A0, 0x40A1}, {0x40BF, 0x40BF}, {0x40E0, 0x40E0}, // Intel, Qualcomm, Arm, SPIR
		{0x4104, 0x4105}, {0x4108, 0x4108}, {0x410B, 0x410F}, {0x417E, 0x417F}, // Intel; PCI bus info (KHR) is 0x410F
		{0x418B, 0x418B}, {0x4190, 0x4194}, {0x41E0, 0x41EE}, // Intel shared memory, Arm
		{0x4230, 0x4236}, {0x4250, 0x4259}, // EXT, Intel
		{0x4400, 0x4406}, // float atomics and others
	}
	// handleParams have answers that mean something in this process only.
	handleParams = map[uint32]struct{}{
		cl.DEVICE_PLATFORM:        {},
		cl.DEVICE_PARENT_DEVICE:   {},
		cl.DEVICE_HANDLE_LIST_KHR: {},
	}
)

// canaryBytes is the size of the buffer that InPlace tries.
const canaryBytes = 64 << 10

// InPlace finds out by doing whether a device computes in the memory that a
// segment is made of; if not, it says why.
func InPlace(p opencl.Platform, d opencl.Device) (bool, string) {
	kind, s := d.Info(cl.DEVICE_TYPE)
	if s != cl.SUCCESS || answers.Number(kind)&cl.DEVICE_TYPE_CPU == 0 {
		return false, "the device has memory of its own"
	}
	fd, err := unix.MemfdCreate("canary", unix.MFD_CLOEXEC)
	if err != nil {
		return false, "memfd: " + err.Error()
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, canaryBytes); err != nil {
		return false, "memfd: " + err.Error()
	}
	mem, err := unix.Mmap(fd, 0, canaryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false, "map a memfd: " + err.Error()
	}
	if err := fill(p, d, mem); err != nil {
		// The mapping stays: after a failure the driver may still use it.
		return false, err.Error()
	}
	defer unix.Munmap(mem)
	seen := make([]byte, 8)
	if _, err := unix.Pread(fd, seen, canaryBytes-8); err != nil || binary.LittleEndian.Uint64(seen) != canary {
		return false, fmt.Sprintf("a buffer over a memfd was filled and the memfd holds % x (%v)", seen, err)
	}
	return true, ""
}

const canary = 0x7E4D811D_5EED_CA4A

// fill writes the canary over mem through a buffer and takes the buffer away again.
func fill(p opencl.Platform, d opencl.Device, mem []byte) error {
	c, s := p.CreateContext([]opencl.Device{d})
	if s != cl.SUCCESS {
		return s.Err("clCreateContext")
	}
	defer c.Release()
	q, s := c.CreateQueue(d, 0)
	if s != cl.SUCCESS {
		return s.Err("clCreateCommandQueue")
	}
	defer q.Release()
	m, s := c.CreateBuffer(cl.MEM_READ_WRITE|cl.MEM_USE_HOST_PTR, uint64(len(mem)), fixed.Address(mem))
	if s != cl.SUCCESS {
		return s.Err("clCreateBuffer with CL_MEM_USE_HOST_PTR")
	}
	defer m.Release()
	if _, s := q.Fill(m, binary.LittleEndian.AppendUint64(nil, canary), 0, uint64(len(mem)),
		opencl.After{}); s != cl.SUCCESS {
		return s.Err("clEnqueueFillBuffer")
	}
	return q.Finish().Err("clFinish")
}
