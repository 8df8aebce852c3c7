package main

// #include "driver.h"
import "C"

import (
	"bytes"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

//export tdlCreateProgramWithSource
func tdlCreateProgramWithSource(context C.uintptr_t, count C.cl_uint, strings, lengths, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if count == 0 || strings == 0 {
		return created(0, cl.INVALID_VALUE, code)
	}
	parts := make([]string, count)
	sizes := array[uint64](uintptr(lengths), uint32(count))
	for i, p := range array[uintptr](uintptr(strings), uint32(count)) {
		switch {
		case p == 0:
			return created(0, cl.INVALID_VALUE, code)
		case sizes != nil && sizes[i] != 0:
			parts[i] = string(array[byte](p, sizes[i]))
		default:
			parts[i] = text(p)
		}
	}
	h, status := driver().CreateProgramWithSource(uintptr(context), parts)
	return created(h, status, code)
}

//export tdlCreateProgramWithBinary
func tdlCreateProgramWithBinary(context C.uintptr_t, n C.cl_uint, devices, lengths, binaries, verdicts,
	code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if n == 0 || devices == 0 || lengths == 0 || binaries == 0 {
		return created(0, cl.INVALID_VALUE, code)
	}
	sizes := array[uint64](uintptr(lengths), uint32(n))
	copies := make([][]byte, n)
	for i, p := range array[uintptr](uintptr(binaries), uint32(n)) {
		if p != 0 && sizes[i] != 0 {
			copies[i] = bytes.Clone(array[byte](p, sizes[i]))
		}
	}
	h, verdict, status := driver().CreateProgramWithBinary(uintptr(context),
		array[uintptr](uintptr(devices), uint32(n)), copies)
	if status != cl.SUCCESS && verdict == cl.SUCCESS {
		return created(0, status, code) // something else was wrong: nobody looked at the binaries
	}
	for i := range array[C.cl_int](uintptr(verdicts), uint32(n)) {
		store(uintptr(verdicts)+uintptr(4*i), C.cl_int(verdict))
	}
	return created(h, status, code)
}

//export tdlCreateProgramWithIL
func tdlCreateProgramWithIL(context, il C.uintptr_t, size C.size_t, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateProgramWithIL(uintptr(context), bytes.Clone(array[byte](uintptr(il), uint64(size))))
	return created(h, status, code)
}

//export tdlCreateProgramWithBuiltInKernels
func tdlCreateProgramWithBuiltInKernels(context C.uintptr_t, n C.cl_uint, devices, names,
	code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if n == 0 || devices == 0 || names == 0 {
		if _, status := driver().ContextInfo(uintptr(context), C.CL_CONTEXT_NUM_DEVICES); status != cl.SUCCESS {
			return created(0, status, code)
		}
		return created(0, cl.INVALID_VALUE, code)
	}
	h, status := driver().CreateProgramWithBuiltInKernels(uintptr(context), array[uintptr](uintptr(devices), uint32(n)),
		text(uintptr(names)))
	return created(h, status, code)
}

//export tdlSetSpecConstant
func tdlSetSpecConstant(program C.uintptr_t, id C.cl_uint, size C.size_t, value C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().SetSpecConstant(uintptr(program), uint32(id),
		bytes.Clone(array[byte](uintptr(value), uint64(size)))))
}

//export tdlBuildProgram
func tdlBuildProgram(program C.uintptr_t, n C.cl_uint, devices, options, notify, data C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	if badBuild(n, devices, notify, data) {
		return invalidValueOf(program)
	}
	list := append([]uintptr(nil), array[uintptr](uintptr(devices), uint32(n))...)
	return C.cl_int(driver().Build(uintptr(program), devices != 0, list, text(uintptr(options)),
		caller(notify, program, data)))
}

func badBuild(n C.cl_uint, devices, notify, data C.uintptr_t) bool {
	return (n == 0) != (devices == 0) || (notify == 0 && data != 0)
}

// invalidValueOf is CL_INVALID_VALUE, where the program is one.
func invalidValueOf(program C.uintptr_t) C.cl_int {
	if _, status := driver().ProgramInfo(uintptr(program), C.CL_PROGRAM_NUM_DEVICES); status != cl.SUCCESS {
		return C.cl_int(status)
	}
	return C.CL_INVALID_VALUE
}

//export tdlCompileProgram
func tdlCompileProgram(program C.uintptr_t, p *C.tdl_parts, notify, data C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	if badBuild(p.num_devices, p.devices, notify, data) {
		return invalidValueOf(program)
	}
	devices := append([]uintptr(nil), array[uintptr](uintptr(p.devices), uint32(p.num_devices))...)
	var headers []uintptr
	var names []string
	if p.programs != 0 {
		headers = append(headers, array[uintptr](uintptr(p.programs), uint32(p.num_programs))...)
	}
	if p.names != 0 {
		for _, name := range array[uintptr](uintptr(p.names), uint32(p.num_programs)) {
			if name == 0 {
				return invalidValueOf(program)
			}
			names = append(names, text(name))
		}
	}
	if len(headers) != len(names) || p.num_programs > 0 && len(headers) == 0 {
		return invalidValueOf(program)
	}
	return C.cl_int(driver().Compile(uintptr(program), p.devices != 0, devices, text(uintptr(p.options)),
		headers, names,
		p.programs != 0, p.names != 0, caller(notify, program, data)))
}

//export tdlLinkProgram
func tdlLinkProgram(context C.uintptr_t, p *C.tdl_parts, notify, data, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if badBuild(p.num_devices, p.devices, notify, data) || (p.num_programs == 0) != (p.programs == 0) {
		if _, status := driver().ContextInfo(uintptr(context), C.CL_CONTEXT_NUM_DEVICES); status != cl.SUCCESS {
			return created(0, status, code)
		}
		return created(0, cl.INVALID_VALUE, code)
	}
	devices := append([]uintptr(nil), array[uintptr](uintptr(p.devices), uint32(p.num_devices))...)
	programs := append([]uintptr(nil), array[uintptr](uintptr(p.programs), uint32(p.num_programs))...)
	var done func(uintptr)
	if notify != 0 {
		done = func(h uintptr) { C.tdl_call_object(notify, C.uintptr_t(h), data) }
	}
	h, status := driver().Link(uintptr(context), p.devices != 0, devices, text(uintptr(p.options)), programs, done)
	return created(h, status, code)
}

//export tdlCreateKernel
func tdlCreateKernel(program, name, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	if name == 0 {
		if _, status := driver().ProgramInfo(uintptr(program), C.CL_PROGRAM_NUM_DEVICES); status != cl.SUCCESS {
			return created(0, status, code)
		}
		return created(0, cl.INVALID_VALUE, code)
	}
	h, status := driver().CreateKernel(uintptr(program), text(uintptr(name)))
	return created(h, status, code)
}

//export tdlCloneKernel
func tdlCloneKernel(kernel, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CloneKernel(uintptr(kernel))
	return created(h, status, code)
}

//export tdlCreateKernels
func tdlCreateKernels(program C.uintptr_t, n C.cl_uint, kernels, count C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	room := int(n)
	if kernels == 0 {
		room = 0
	}
	found, total, status := driver().CreateKernels(uintptr(program), room)
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	if kernels != 0 && room == 0 && total > 0 {
		return C.CL_INVALID_VALUE
	}
	copy(array[uintptr](uintptr(kernels), len(found)), found)
	store(uintptr(count), uint32(total))
	return C.CL_SUCCESS
}

//export tdlSetKernelArg
func tdlSetKernelArg(kernel C.uintptr_t, index C.cl_uint, size C.size_t, value C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().SetKernelArg(uintptr(kernel), uint32(index), uint64(size), api.NewHostPtr(uintptr(value))))
}

//export tdlKernelArgInfo
func tdlKernelArgInfo(kernel C.uintptr_t, index, param C.cl_uint, size C.size_t, value,
	sizeRet C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	bytes, status := driver().KernelArgInfo(uintptr(kernel), uint32(index), uint32(param))
	return answer(bytes, status, size, value, sizeRet)
}

//export tdlKernelSubGroupInfo
func tdlKernelSubGroupInfo(kernel, device C.uintptr_t, param C.cl_uint, inSize C.size_t, input C.uintptr_t,
	size C.size_t, value, sizeRet C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	if uint64(inSize) > 256 {
		return C.CL_INVALID_VALUE
	}
	bytes, status := driver().KernelSubGroupInfo(uintptr(kernel), uintptr(device), uint32(param),
		array[byte](uintptr(input), uint64(inSize)))
	return answer(bytes, status, size, value, sizeRet)
}
