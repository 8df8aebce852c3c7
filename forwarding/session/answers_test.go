package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// asked is a query, and its answer as a number.
type asked struct {
	param uint32
	want  uint64
}

func (r *rig) answers(what string, info func(h uintptr, param uint32) ([]byte, api.Status), h uintptr, gone api.Status,
	all []asked) {
	r.t.Helper()
	for _, x := range all {
		data, status := info(h, x.param)
		if got := answers.Number(data); status != cl.SUCCESS || got != x.want {
			r.t.Errorf("%s, %#x: %d, status %d, want %d", what, x.param, got, status, x.want)
		}
	}
	_, status := info(h, 77)
	if r.is(status, cl.INVALID_VALUE); what == "platform" {
		return
	}
	_, status = info(8, all[0].param) // no handle of anything's
	r.is(status, gone)
}

// TestAnswers: what objects say of themselves.
func TestAnswers(t *testing.T) {
	r := newRig(t, true)
	d, platform := r.d, r.d.Platforms()[0]
	q := r.handle(d.CreateQueueWithProperties(r.ctx, r.dev,
		[]uint64{cl.QUEUE_PROPERTIES, cl.QUEUE_PROFILING_ENABLE, 0}))
	r.answers("context", d.ContextInfo, r.ctx, cl.INVALID_CONTEXT, []asked{{cl.CONTEXT_REFERENCE_COUNT, 2},
		{cl.CONTEXT_NUM_DEVICES, 1}, {cl.CONTEXT_DEVICES, uint64(r.dev)}})
	r.answers("queue", d.QueueInfo, q, cl.INVALID_COMMAND_QUEUE, []asked{{cl.QUEUE_CONTEXT, uint64(r.ctx)},
		{cl.QUEUE_DEVICE, uint64(r.dev)}, {cl.QUEUE_REFERENCE_COUNT, 1},
		{cl.QUEUE_PROPERTIES, cl.QUEUE_PROFILING_ENABLE}, {cl.QUEUE_DEVICE_DEFAULT, 0}})
	_, status := d.QueueInfo(q, cl.QUEUE_SIZE)
	r.is(status, cl.INVALID_COMMAND_QUEUE)
	_, status = d.CreateQueueWithProperties(r.ctx, r.dev, []uint64{77, 1, 0})
	r.is(status, cl.INVALID_VALUE)
	_, status = d.CreateQueueWithProperties(r.ctx, r.dev, []uint64{cl.QUEUE_SIZE, 5, 0})
	r.is(status, cl.INVALID_VALUE)

	e := r.handle(d.EnqueueMarker(q, api.Waits{Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	r.answers("event", d.EventInfo, e, cl.INVALID_EVENT, []asked{{cl.EVENT_COMMAND_QUEUE, uint64(q)},
		{cl.EVENT_COMMAND_TYPE, cl.COMMAND_MARKER}, {cl.EVENT_REFERENCE_COUNT, 1},
		{cl.EVENT_COMMAND_EXECUTION_STATUS, 0}, {cl.EVENT_CONTEXT, uint64(r.ctx)}})
	_, status = d.EventProfilingInfo(e, cl.PROFILING_COMMAND_END)
	r.ok(status)
	_, status = d.EventProfilingInfo(e, 77)
	r.is(status, cl.INVALID_VALUE)
	gate := r.handle(d.CreateUserEvent(r.ctx))
	r.answers("user event", d.EventInfo, gate, cl.INVALID_EVENT, []asked{{cl.EVENT_COMMAND_QUEUE, 0},
		{cl.EVENT_COMMAND_EXECUTION_STATUS, cl.SUBMITTED}})
	_, status = d.EventProfilingInfo(gate, cl.PROFILING_COMMAND_END)
	r.is(status, cl.PROFILING_INFO_NOT_AVAILABLE)

	source := "kernel inc global int\nkernel nop"
	p := r.handle(d.CreateProgramWithSource(r.ctx, []string{source}))
	_, status = d.ProgramInfo(p, cl.PROGRAM_KERNEL_NAMES)
	r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
	r.ok(d.Build(p, false, nil, "-w", nil))
	r.answers("program", d.ProgramInfo, p, cl.INVALID_PROGRAM, []asked{{cl.PROGRAM_REFERENCE_COUNT, 1},
		{cl.PROGRAM_CONTEXT, uint64(r.ctx)}, {cl.PROGRAM_NUM_DEVICES, 1}, {cl.PROGRAM_DEVICES, uint64(r.dev)},
		{cl.PROGRAM_NUM_KERNELS, 2}, {cl.PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT, 0}})
	for param, want := range map[uint32]string{cl.PROGRAM_SOURCE: source, cl.PROGRAM_KERNEL_NAMES: "inc;nop"} {
		if data, _ := d.ProgramInfo(p, param); answers.Text(data) != want {
			t.Errorf("program, %#x: %q", param, data)
		}
	}
	ofDevice := func(h uintptr, param uint32) ([]byte, api.Status) { return d.ProgramBuildInfo(h, r.dev, param) }
	r.answers("build", ofDevice, p, cl.INVALID_PROGRAM, []asked{{cl.PROGRAM_BUILD_STATUS, cl.BUILD_SUCCESS},
		{cl.PROGRAM_BINARY_TYPE, 4}, {cl.PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, 0}})
	if data, _ := ofDevice(p, cl.PROGRAM_BUILD_OPTIONS); answers.Text(data) != "-w" {
		t.Errorf("options %q", data)
	}
	made, total, status := d.CreateKernels(p, 2)
	if r.ok(status); total != 2 {
		t.Fatalf("%d kernels", total)
	}
	k := made[0]
	r.answers("kernel", d.KernelInfo, k, cl.INVALID_KERNEL, []asked{{cl.KERNEL_NUM_ARGS, 2},
		{cl.KERNEL_REFERENCE_COUNT, 1}, {cl.KERNEL_CONTEXT, uint64(r.ctx)}, {cl.KERNEL_PROGRAM, uint64(p)}})
	ofDevice = func(h uintptr, param uint32) ([]byte, api.Status) { return d.KernelWorkGroupInfo(h, 0, param) }
	r.answers("work group", ofDevice, k, cl.INVALID_KERNEL, []asked{{cl.KERNEL_WORK_GROUP_SIZE, 256},
		{cl.KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, 8}, {cl.KERNEL_LOCAL_MEM_SIZE, 0},
		{cl.KERNEL_PRIVATE_MEM_SIZE, 0}})
	argument := func(h uintptr, param uint32) ([]byte, api.Status) { return d.KernelArgInfo(h, 1, param) }
	r.answers("argument", argument, k, cl.INVALID_KERNEL, []asked{
		{cl.KERNEL_ARG_ADDRESS_QUALIFIER, cl.KERNEL_ARG_ADDRESS_PRIVATE}, {cl.KERNEL_ARG_TYPE_QUALIFIER, 0}})
	_, status = d.KernelArgInfo(k, 2, cl.KERNEL_ARG_NAME)
	r.is(status, cl.INVALID_ARG_INDEX)
	_, status = d.KernelSubGroupInfo(k, r.dev, 77, make([]byte, 257))
	r.is(status, cl.INVALID_VALUE)

	r.answers("device", d.DeviceInfo, r.dev, cl.INVALID_DEVICE, []asked{{cl.DEVICE_TYPE, 2},
		{cl.DEVICE_PLATFORM, uint64(platform)}, {cl.DEVICE_MAX_WORK_GROUP_SIZE, 256}})
	if data, _ := d.PlatformInfo(platform, cl.PLATFORM_NAME); len(answers.Text(data)) == 0 {
		t.Error("a platform without a name")
	}
	r.ok(d.UnloadPlatformCompiler(platform))
	r.is(d.UnloadPlatformCompiler(8), cl.INVALID_PLATFORM)
}

// TestHandlesOfNothing: a handle that is none is refused by its kind's code, also when it is retained or released.
func TestHandlesOfNothing(t *testing.T) {
	r := newRig(t, true)
	d := r.d
	q, b, k, e := r.queue(0), r.buffer(8), r.kernel("kernel nop"), r.handle(r.d.CreateUserEvent(r.ctx))
	p := r.handle(d.CreateProgramWithSource(r.ctx, []string{"x"}))
	for _, x := range []struct {
		h               uintptr
		retain, release func(uintptr) api.Status
		gone            api.Status
	}{
		{q, d.RetainQueue, d.ReleaseQueue, cl.INVALID_COMMAND_QUEUE},
		{b, d.RetainMemObject, d.ReleaseMemObject, cl.INVALID_MEM_OBJECT},
		{k, d.RetainKernel, d.ReleaseKernel, cl.INVALID_KERNEL}, {e, d.RetainEvent, d.ReleaseEvent, cl.INVALID_EVENT},
		{p, d.RetainProgram, d.ReleaseProgram, cl.INVALID_PROGRAM},
		{r.ctx, d.RetainContext, d.ReleaseContext, cl.INVALID_CONTEXT},
	} {
		r.ok(x.retain(x.h))
		r.ok(x.release(x.h))
		r.ok(x.release(x.h))
		r.is(x.retain(8), x.gone)
		r.is(x.release(8), x.gone)
	}
	r.ok(d.RetainDevice(r.dev)) // counts nothing: it is no part of another
	r.ok(d.ReleaseDevice(r.dev))
	r.is(d.RetainDevice(8), cl.INVALID_DEVICE)
}

// TestContexts: by type, and what the specification refuses.
func TestContexts(t *testing.T) {
	r := newRig(t, true)
	platform := uint64(r.d.Platforms()[0])
	h := r.handle(r.d.CreateContextFromType([]uint64{cl.CONTEXT_PLATFORM, platform, 0}, cl.DEVICE_TYPE_CPU, nil))
	r.ok(r.d.ReleaseContext(h))
	h = r.handle(r.d.CreateContextFromType(nil, cl.DEVICE_TYPE_ALL, nil))
	r.ok(r.d.ReleaseContext(h))
	for _, x := range []struct {
		given []uint64
		kind  uint64
		want  api.Status
	}{
		{nil, cl.DEVICE_TYPE_GPU, cl.DEVICE_NOT_FOUND}, {nil, 0, cl.INVALID_DEVICE_TYPE},
		{[]uint64{cl.CONTEXT_PLATFORM, 8, 0}, cl.DEVICE_TYPE_CPU, cl.INVALID_PLATFORM},
		{[]uint64{77, 8, 0}, cl.DEVICE_TYPE_CPU, cl.INVALID_PROPERTY},
		{[]uint64{cl.CONTEXT_INTEROP_USER_SYNC, 2, 0}, cl.DEVICE_TYPE_CPU, cl.INVALID_PROPERTY},
		{[]uint64{cl.CONTEXT_PLATFORM, platform, cl.CONTEXT_PLATFORM, platform, 0}, cl.DEVICE_TYPE_CPU,
			cl.INVALID_PROPERTY},
	} {
		_, status := r.d.CreateContextFromType(x.given, x.kind, nil)
		r.is(status, x.want)
	}
}

// TestOrder: barriers, migrations, tasks and waits put commands into order, in queues of either kind.
func TestOrder(t *testing.T) {
	for _, props := range []uint64{0, cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE} {
		r := newRig(t, true)
		q, b, k := r.queue(props), r.buffer(8), r.kernel("kernel inc global")
		gate, out := r.handle(r.d.CreateUserEvent(r.ctx)), make([]byte, 8)
		r.handle(r.d.EnqueueFill(q, b, ptr([]byte{5}), 1, 0, 8, api.Waits{N: 1, List: []uintptr{gate}}))
		r.handle(r.d.EnqueueBarrier(q, api.Waits{}))
		r.handle(r.d.EnqueueMigrate(q, []uintptr{b}, cl.MIGRATE_MEM_OBJECT_HOST, api.Waits{}))
		r.setMem(k, 0, b)
		r.ok(r.d.SetUserEventStatus(gate, 0))
		done := r.handle(r.d.EnqueueTask(q, k, api.Waits{Want: true}))
		r.ok(r.d.EnqueueWaitForEvents(q, api.Waits{N: 1, List: []uintptr{done}}))
		r.ok(r.d.WaitForEvents(1, []uintptr{done}))
		r.handle(r.d.EnqueueBarrier(q, api.Waits{N: 1, List: []uintptr{done}})) // an event that has ended
		r.handle(r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{done}}))
		r.handle(r.d.EnqueueRead(q, b, true, 0, 8, ptr(out), api.Waits{}))
		if !bytes.Equal(out, bytes.Repeat([]byte{6}, 8)) {
			t.Errorf("queue %d: %d came", props, out)
		}
		r.is(r.d.EnqueueWaitForEvents(q, api.Waits{}), cl.INVALID_VALUE)
		r.is(r.d.EnqueueWaitForEvents(q, api.Waits{N: 1, List: []uintptr{8}}), cl.INVALID_EVENT)
		_, status := r.d.EnqueueMigrate(q, nil, 0, api.Waits{})
		r.is(status, cl.INVALID_VALUE)
		_, status = r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{8}})
		r.is(status, cl.INVALID_EVENT_WAIT_LIST)
		clone := r.handle(r.d.CloneKernel(k))
		done = r.handle(r.d.EnqueueTask(q, clone, api.Waits{Want: true}))
		r.ok(r.d.WaitForEvents(1, []uintptr{done}))
		r.handle(r.d.EnqueueRead(q, b, true, 0, 8, ptr(out), api.Waits{}))
		if out[0] != 7 {
			t.Errorf("a clone worked on other memory: %d", out[0])
		}
	}
}
