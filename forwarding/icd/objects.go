package main

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"unsafe"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/store/object"
)

//export tdlPlatforms
func tdlPlatforms(entries C.cl_uint, platforms, count C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	if (platforms == 0 && count == 0) || (platforms != 0 && entries == 0) {
		return C.CL_INVALID_VALUE
	}
	found := driver().Platforms()
	if len(found) == 0 {
		store(uintptr(count), uint32(0))
		return C.CL_PLATFORM_NOT_FOUND_KHR
	}
	return giveHandles(found, entries, platforms, count)
}

//export tdlIsPlatform
func tdlIsPlatform(h C.uintptr_t) (yes C.int) {
	if driver().UnloadPlatformCompiler(uintptr(h)) == cl.SUCCESS {
		return 1
	}
	return 0
}

//export tdlDeviceIDs
func tdlDeviceIDs(platform C.uintptr_t, kind C.cl_ulong, entries C.cl_uint, devices,
	count C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	found, status := driver().DeviceIDs(uintptr(platform), uint64(kind))
	if status == cl.INVALID_PLATFORM || status == cl.INVALID_DEVICE_TYPE {
		return C.cl_int(status)
	}
	if (devices == 0 && count == 0) || (devices != 0 && entries == 0) {
		return C.CL_INVALID_VALUE
	}
	if status != cl.SUCCESS {
		store(uintptr(count), uint32(0))
		return C.cl_int(status)
	}
	return giveHandles(found, entries, devices, count)
}

//export tdlCreateSubDevices
func tdlCreateSubDevices(device, properties C.uintptr_t, entries C.cl_uint, devices,
	count C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	room := uint32(entries)
	if devices == 0 {
		room = 0
	} else if entries == 0 {
		if _, status := driver().DeviceInfo(uintptr(device), C.CL_DEVICE_TYPE); status != cl.SUCCESS {
			return C.cl_int(status)
		}
		return C.CL_INVALID_VALUE
	}
	made, n, status := driver().CreateSubDevices(uintptr(device), partitioning(uintptr(properties)), room)
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	copy(array[uintptr](uintptr(devices), len(made)), made)
	store(uintptr(count), n)
	return C.CL_SUCCESS
}

// partitioning reads a cl_device_partition_property list as far as its kind says that it goes; nil for NULL.
func partitioning(address uintptr) []uint64 {
	if address == 0 {
		return nil
	}
	words := []uint64{*at[uint64](address)}
	switch words[0] {
	case C.CL_DEVICE_PARTITION_EQUALLY, C.CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN:
		words = append(words, *at[uint64](address + 8), *at[uint64](address + 16))
	case C.CL_DEVICE_PARTITION_BY_COUNTS:
		for i := uintptr(1); words[len(words)-1] != 0 && len(words) < 4000; i++ {
			words = append(words, *at[uint64](address + 8*i))
		}
	}
	return append(words, 0)
}

//export tdlTimers
func tdlTimers(device, deviceTime, hostTime C.uintptr_t, both C.int) (code C.cl_int) {
	defer rescue(&code)
	if both == 0 {
		host, status := driver().HostTimer(uintptr(device))
		return timed(status, hostTime, host, hostTime, host)
	}
	dev, host, status := driver().DeviceTimer(uintptr(device))
	return timed(status, deviceTime, dev, hostTime, host)
}

func timed(status api.Status, a C.uintptr_t, av uint64, b C.uintptr_t, bv uint64) C.cl_int {
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	if a == 0 || b == 0 {
		return C.CL_INVALID_VALUE
	}
	store(uintptr(a), av)
	store(uintptr(b), bv)
	return C.CL_SUCCESS
}

//export tdlInfo
func tdlInfo(what C.int, h, h2 C.uintptr_t, param C.cl_uint, size C.size_t, value,
	sizeRet C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	if what == C.TDL_PROGRAM && param == C.CL_PROGRAM_BINARIES {
		return binaries(uintptr(h), size, value, sizeRet)
	}
	bytes, status := ask(what, uintptr(h), uintptr(h2), uint32(param))
	return answer(bytes, status, size, value, sizeRet)
}

func ask(what C.int, h, h2 uintptr, param uint32) ([]byte, api.Status) {
	d := driver()
	switch what {
	case C.TDL_PLATFORM:
		return d.PlatformInfo(h, param)
	case C.TDL_DEVICE:
		return d.DeviceInfo(h, param)
	case C.TDL_CONTEXT:
		return d.ContextInfo(h, param)
	case C.TDL_QUEUE:
		return d.QueueInfo(h, param)
	case C.TDL_MEM:
		return d.MemObjectInfo(h, param)
	case C.TDL_PROGRAM:
		return d.ProgramInfo(h, param)
	case C.TDL_PROGRAM_BUILD:
		return d.ProgramBuildInfo(h, h2, param)
	case C.TDL_KERNEL:
		return d.KernelInfo(h, param)
	case C.TDL_KERNEL_WORK_GROUP:
		return d.KernelWorkGroupInfo(h, h2, param)
	case C.TDL_EVENT:
		return d.EventInfo(h, param)
	case C.TDL_EVENT_PROFILING:
		return d.EventProfilingInfo(h, param)
	case C.TDL_IMAGE:
		return d.ImageInfo(h, param)
	case C.TDL_SAMPLER:
		return d.SamplerInfo(h, param)
	case C.TDL_COMMAND_BUFFER:
		return d.CommandBufferInfo(h, param)
	}
	return nil, cl.INVALID_VALUE
}

// binaries fills the program's array of pointers to room for each device's binary; a NULL pointer skips one.
func binaries(h uintptr, size C.size_t, value, sizeRet C.uintptr_t) C.cl_int {
	found, status := driver().Binaries(h)
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	if value != 0 {
		if uint64(size) < uint64(8*len(found)) {
			return C.CL_INVALID_VALUE
		}
		for i, room := range array[uintptr](uintptr(value), len(found)) {
			if room != 0 {
				copy(array[byte](room, len(found[i])), found[i])
			}
		}
	}
	store(uintptr(sizeRet), uint64(8*len(found)))
	return C.CL_SUCCESS
}

//export tdlRef
func tdlRef(what C.int, object C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	retain, release := counting(what &^ C.TDL_RELEASE)
	switch {
	case retain == nil:
		return C.CL_INVALID_VALUE
	case what&C.TDL_RELEASE != 0:
		return C.cl_int(release(driver(), uintptr(object)))
	}
	return C.cl_int(retain(driver(), uintptr(object)))
}

// counting is how a kind of object is retained and released; nil: there is no such kind.
func counting(kind C.int) (retain, release func(api.Driver, uintptr) api.Status) {
	type D = api.Driver
	switch kind {
	case C.TDL_DEVICE:
		return D.RetainDevice, D.ReleaseDevice
	case C.TDL_CONTEXT:
		return D.RetainContext, D.ReleaseContext
	case C.TDL_QUEUE:
		return D.RetainQueue, D.ReleaseQueue
	case C.TDL_MEM:
		return D.RetainMemObject, D.ReleaseMemObject
	case C.TDL_PROGRAM:
		return D.RetainProgram, D.ReleaseProgram
	case C.TDL_KERNEL:
		return D.RetainKernel, D.ReleaseKernel
	case C.TDL_EVENT:
		return D.RetainEvent, D.ReleaseEvent
	case C.TDL_SAMPLER:
		return D.RetainSampler, D.ReleaseSampler
	case C.TDL_COMMAND_BUFFER:
		return D.RetainCommandBuffer, D.ReleaseCommandBuffer
	}
	return nil, nil
}

// tdlUnsupported looks at the object that a call which is not forwarded was given, and answers code where it lives.
//
//export tdlUnsupported
func tdlUnsupported(what C.int, object C.uintptr_t, code C.cl_int) (result C.cl_int) {
	defer rescue(&result)
	d, h := driver(), uintptr(object)
	var status api.Status
	switch what {
	case C.TDL_DEVICE:
		_, status = d.DeviceInfo(h, C.CL_DEVICE_TYPE)
	case C.TDL_CONTEXT:
		_, status = d.ContextInfo(h, C.CL_CONTEXT_NUM_DEVICES)
	case C.TDL_QUEUE:
		_, status = d.QueueInfo(h, C.CL_QUEUE_CONTEXT)
	case C.TDL_PROGRAM:
		_, status = d.ProgramInfo(h, C.CL_PROGRAM_NUM_DEVICES)
	case C.TDL_KERNEL:
		_, status = d.KernelInfo(h, C.CL_KERNEL_NUM_ARGS)
	}
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	return code
}

// reporter wraps a context callback; nil for none.
func reporter(notify, data C.uintptr_t) func(string) {
	if notify == 0 {
		return nil
	}
	return func(text string) {
		c := C.CString(text)
		defer C.free(unsafe.Pointer(c))
		C.tdl_call_context(notify, c, data)
	}
}

// caller wraps a build or destructor callback; nil for none.
func caller(notify, object, data C.uintptr_t) func() {
	if notify == 0 {
		return nil
	}
	return func() { C.tdl_call_object(notify, object, data) }
}

//export tdlCreateContext
func tdlCreateContext(properties C.uintptr_t, n C.cl_uint, devices, notify, data, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if (n == 0) || (devices == 0) || (notify == 0 && data != 0) {
		return created(0, cl.INVALID_VALUE, code)
	}
	h, status := driver().CreateContext(list(uintptr(properties)), array[uintptr](uintptr(devices), uint32(n)),
		reporter(notify, data))
	return created(h, status, code)
}

//export tdlCreateContextFromType
func tdlCreateContextFromType(properties C.uintptr_t, kind C.cl_ulong, notify, data, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if notify == 0 && data != 0 {
		return created(0, cl.INVALID_VALUE, code)
	}
	h, status := driver().CreateContextFromType(list(uintptr(properties)), uint64(kind), reporter(notify, data))
	return created(h, status, code)
}

//export tdlSetDestructor
func tdlSetDestructor(what C.int, object, notify, data C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	call := caller(notify, object, data)
	if what == C.TDL_CONTEXT {
		return C.cl_int(driver().SetContextDestructorCallback(uintptr(object), call))
	}
	return C.cl_int(driver().SetMemObjectDestructorCallback(uintptr(object), call))
}

//export tdlCreateQueue
func tdlCreateQueue(context, device C.uintptr_t, properties C.cl_ulong, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateQueue(uintptr(context), uintptr(device), uint64(properties))
	return created(h, status, code)
}

//export tdlCreateQueueWithProperties
func tdlCreateQueueWithProperties(context, device, properties, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateQueueWithProperties(uintptr(context), uintptr(device), list(uintptr(properties)))
	return created(h, status, code)
}

//export tdlCreateBuffer
func tdlCreateBuffer(context, properties C.uintptr_t, flags C.cl_ulong, size C.size_t, host,
	code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateBuffer(uintptr(context), list(uintptr(properties)), uint64(flags), uint64(size),
		api.NewHostPtr(uintptr(host)))
	return created(h, status, code)
}

//export tdlCreateSubBuffer
func tdlCreateSubBuffer(parent C.uintptr_t, flags C.cl_ulong, kind C.cl_uint, info, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	var region C.cl_buffer_region
	if info != 0 && kind == C.CL_BUFFER_CREATE_TYPE_REGION {
		region = *at[C.cl_buffer_region](uintptr(info))
	}
	h, status := driver().CreateSubBuffer(uintptr(parent), uint64(flags), uint32(kind), info != 0,
		uint64(region.origin), uint64(region.size))
	return created(h, status, code)
}

//export tdlPublish
func tdlPublish(buffer, name, id C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	oid, err := driver().Publish(uintptr(buffer), text(uintptr(name)), nil)
	if err != nil {
		logLine("tendril: " + err.Error())
		return C.cl_int(publishStatus(err))
	}
	store(uintptr(id), oid)
	return C.CL_SUCCESS
}

// publishStatus is the OpenCL code for an error of Publish.
func publishStatus(err error) api.Status {
	switch {
	case errors.Is(err, object.ErrUnsupported), errors.Is(err, object.ErrExists):
		return cl.INVALID_OPERATION
	case errors.Is(err, object.ErrInvalid):
		return cl.INVALID_MEM_OBJECT
	}
	return cl.OUT_OF_RESOURCES
}

//export tdlSetContentSize
func tdlSetContentSize(buffer, size C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().SetContentSizeBuffer(uintptr(buffer), uintptr(size)))
}

//export tdlOpenObject
func tdlOpenObject(context, id, name, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	var oid [16]byte
	if id != 0 {
		oid = *at[[16]byte](uintptr(id))
	}
	h, status := driver().OpenObject(uintptr(context), oid, text(uintptr(name)))
	return created(h, status, code)
}

//export tdlCreateUserEvent
func tdlCreateUserEvent(context, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateUserEvent(uintptr(context))
	return created(h, status, code)
}

//export tdlSetUserEventStatus
func tdlSetUserEventStatus(event C.uintptr_t, status C.cl_int) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().SetUserEventStatus(uintptr(event), int32(status)))
}

//export tdlSetEventCallback
func tdlSetEventCallback(event C.uintptr_t, level C.cl_int, notify, data C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	var call func(int32)
	if notify != 0 {
		call = func(status int32) { C.tdl_call_event(notify, event, C.cl_int(status), data) }
	}
	return C.cl_int(driver().SetEventCallback(uintptr(event), int32(level), call))
}

//export tdlWaitForEvents
func tdlWaitForEvents(n C.cl_uint, events C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().WaitForEvents(uint32(n), array[uintptr](uintptr(events), uint32(n))))
}
