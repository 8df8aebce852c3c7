package span

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// counted is a kind of object: how it is retained, released, and asked for its references.
type counted struct {
	name            string
	h               uintptr
	retain, release func(uintptr) api.Status
	info            func(uintptr, uint32) ([]byte, api.Status)
	refs            uint32
	refused         api.Status
}

// TestObjectsAreCountedHere: objects of a spanning context are this package's, those of a native one and foreign ones
// the Base's, which refuses what is nobody's.
func TestObjectsAreCountedHere(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	b := r.buffer(0, 64, api.HostPtr{})
	sampler, status := d.CreateSampler(r.ctx, 1, cl.ADDRESS_CLAMP, cl.FILTER_NEAREST)
	r.ok(status)
	given, status := d.CreateSamplerWithProperties(r.ctx, []uint64{0})
	r.ok(status)
	gate, status := d.CreateUserEvent(r.ctx)
	r.ok(status)
	graph, status := d.CreateCommandBuffer(1, r.queues[:1], nil)
	r.ok(status)
	program, status := d.CreateProgramWithSource(r.ctx, []string{"add"})
	r.ok(status)
	r.ok(d.Build(program, false, nil, "", nil))
	kernel, status := d.CreateKernel(program, "add")
	r.ok(status)
	for _, x := range []counted{
		{"context", r.ctx, d.RetainContext, d.ReleaseContext, d.ContextInfo, cl.CONTEXT_REFERENCE_COUNT,
			cl.INVALID_CONTEXT},
		{"queue", r.queues[0], d.RetainQueue, d.ReleaseQueue, d.QueueInfo, cl.QUEUE_REFERENCE_COUNT,
			cl.INVALID_COMMAND_QUEUE},
		{"buffer", b, d.RetainMemObject, d.ReleaseMemObject, d.MemObjectInfo, cl.MEM_REFERENCE_COUNT,
			cl.INVALID_MEM_OBJECT},
		{"sampler", sampler, d.RetainSampler, d.ReleaseSampler, d.SamplerInfo, cl.SAMPLER_REFERENCE_COUNT,
			cl.INVALID_SAMPLER},
		{"event", gate, d.RetainEvent, d.ReleaseEvent, d.EventInfo, cl.EVENT_REFERENCE_COUNT, cl.INVALID_EVENT},
		{"command buffer", graph, d.RetainCommandBuffer, d.ReleaseCommandBuffer, d.CommandBufferInfo,
			cl.COMMAND_BUFFER_REFERENCE_COUNT_KHR, cl.INVALID_COMMAND_BUFFER_KHR},
		{"program", program, d.RetainProgram, d.ReleaseProgram, d.ProgramInfo, cl.PROGRAM_REFERENCE_COUNT,
			cl.INVALID_PROGRAM},
		{"kernel", kernel, d.RetainKernel, d.ReleaseKernel, d.KernelInfo, cl.KERNEL_REFERENCE_COUNT, cl.INVALID_KERNEL},
	} {
		before, status := x.info(x.h, x.refs)
		if r.ok(status); answers.Number(before) == 0 {
			t.Errorf("%s: no references", x.name)
		}
		r.ok(x.retain(x.h))
		if after, _ := x.info(x.h, x.refs); answers.Number(after) != answers.Number(before)+1 {
			t.Errorf("%s: %d references behind a retain of %d", x.name, answers.Number(after), answers.Number(before))
		}
		r.ok(x.release(x.h))
		for _, h := range []uintptr{0, 0x77, x.h + 8, r.m.devices[0]} {
			if got := x.retain(h); got != x.refused {
				t.Errorf("%s: retain of %#x answers %d, want %d", x.name, h, got, x.refused)
			}
			if got := x.release(h); got != x.refused {
				t.Errorf("%s: release of %#x answers %d, want %d", x.name, h, got, x.refused)
			}
			if _, got := x.info(h, x.refs); got != x.refused {
				t.Errorf("%s: info of %#x answers %d, want %d", x.name, h, got, x.refused)
			}
		}
	}
	for _, release := range []func() api.Status{
		func() api.Status { return d.ReleaseSampler(sampler) }, func() api.Status { return d.ReleaseSampler(given) },
		func() api.Status { return d.ReleaseEvent(gate) }, func() api.Status { return d.ReleaseCommandBuffer(graph) },
		func() api.Status { return d.ReleaseKernel(kernel) }, func() api.Status { return d.ReleaseProgram(program) },
	} {
		r.ok(release())
	}
	r.end()
}

// TestQueriesNameTheProgramsObjects: a query never answers with a member's handle where this package has one of its
// own.
func TestQueriesNameTheProgramsObjects(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	b := r.buffer(cl.MEM_COPY_HOST_PTR, 64, api.HostBytes(make([]byte, 64)))
	sub, status := d.CreateSubBuffer(b, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 8, 8)
	r.ok(status)
	_, status = d.CreateSubBuffer(sub, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 0, 4)
	r.is(status, cl.INVALID_MEM_OBJECT)
	k := r.kernel("add")
	program := r.value(d.KernelInfo(k, cl.KERNEL_PROGRAM))
	e := r.event(d.EnqueueMarker(r.queues[0], api.Waits{Want: true}))
	graph, status := d.CreateCommandBuffer(1, r.queues[:1], nil)
	r.ok(status)
	s, status := d.CreateSampler(r.ctx, 1, 0, 0)
	r.ok(status)
	for _, x := range []struct {
		what string
		got  uint64
		want uintptr
	}{
		{"a queue's context", r.value(d.QueueInfo(r.queues[0], cl.QUEUE_CONTEXT)), r.ctx},
		{"a queue's device", r.value(d.QueueInfo(r.queues[1], cl.QUEUE_DEVICE)), r.m.devices[1]},
		{"a buffer's context", r.value(d.MemObjectInfo(b, cl.MEM_CONTEXT)), r.ctx},
		{"a buffer's parent", r.value(d.MemObjectInfo(b, cl.MEM_ASSOCIATED_MEMOBJECT)), 0},
		{"a buffer's size", r.value(d.MemObjectInfo(b, cl.MEM_SIZE)), 64},
		{"a buffer's memory", r.value(d.MemObjectInfo(b, cl.MEM_HOST_PTR)), 0},
		{"a buffer's maps", r.value(d.MemObjectInfo(b, cl.MEM_MAP_COUNT)), 0},
		{"a buffer's properties", r.value(d.MemObjectInfo(b, cl.MEM_PROPERTIES)), 0},
		{"a buffer's type", r.value(d.MemObjectInfo(b, cl.MEM_TYPE)), cl.MEM_OBJECT_BUFFER},
		{"a buffer's flags", r.value(d.MemObjectInfo(b, cl.MEM_FLAGS)), cl.MEM_COPY_HOST_PTR | cl.MEM_READ_WRITE},
		{"a sub-buffer's parent", r.value(d.MemObjectInfo(sub, cl.MEM_ASSOCIATED_MEMOBJECT)), b},
		{"a sub-buffer's offset", r.value(d.MemObjectInfo(sub, cl.MEM_OFFSET)), 8},
		{"a kernel's context", r.value(d.KernelInfo(k, cl.KERNEL_CONTEXT)), r.ctx},
		{"a kernel's arguments", r.value(d.KernelInfo(k, cl.KERNEL_NUM_ARGS)), 2},
		{"an argument", r.value(d.KernelArgInfo(k, 0, cl.KERNEL_ARG_NAME)), 2},
		{"a kernel's work-groups", r.value(d.KernelWorkGroupInfo(k, r.m.devices[1], cl.KERNEL_WORK_GROUP_SIZE)), 2},
		{"a kernel's sub-groups",
			r.value(d.KernelSubGroupInfo(k, r.m.devices[0], cl.KERNEL_MAX_NUM_SUB_GROUPS, nil)), 2},
		{"a program's context", r.value(d.ProgramInfo(uintptr(program), cl.PROGRAM_CONTEXT)), r.ctx},
		{"a program's devices", r.value(d.ProgramInfo(uintptr(program), cl.PROGRAM_NUM_DEVICES)), 2},
		{"a program's first device", r.value(d.ProgramInfo(uintptr(program), cl.PROGRAM_DEVICES)), r.m.devices[0]},
		{"a binary's size", r.value(d.ProgramInfo(uintptr(program), cl.PROGRAM_BINARY_SIZES)), uintptr(len("add sum"))},
		{"an event's queue", r.value(d.EventInfo(e, cl.EVENT_COMMAND_QUEUE)), r.queues[0]},
		{"an event's context", r.value(d.EventInfo(e, cl.EVENT_CONTEXT)), r.ctx},
		{"an event's command", r.value(d.EventInfo(e, cl.EVENT_COMMAND_TYPE)), cl.COMMAND_MARKER},
		{"an event's times", r.value(d.EventProfilingInfo(e, cl.PROFILING_COMMAND_END)), 1},
		{"a command buffer's queue", r.value(d.CommandBufferInfo(graph, cl.COMMAND_BUFFER_QUEUES_KHR)), r.queues[0]},
		{"a command buffer's state", r.value(d.CommandBufferInfo(graph, cl.COMMAND_BUFFER_STATE_KHR)), 1},
		{"a sampler's context", r.value(d.SamplerInfo(s, cl.SAMPLER_CONTEXT)), r.ctx},
		{"a sampler's mode", r.value(d.SamplerInfo(s, cl.SAMPLER_FILTER_MODE)), 1},
		{"a context's devices", r.value(d.ContextInfo(r.ctx, cl.CONTEXT_DEVICES)), r.m.devices[0]},
		{"a context's number of devices", r.value(d.ContextInfo(r.ctx, cl.CONTEXT_NUM_DEVICES)), 2},
		{"a context's properties", r.value(d.ContextInfo(r.ctx, cl.CONTEXT_PROPERTIES)), cl.CONTEXT_PLATFORM},
		{"a device's platform", r.value(d.DeviceInfo(r.m.devices[1], cl.DEVICE_PLATFORM)), d.Platforms()[0]},
	} {
		if x.got != uint64(x.want) {
			t.Errorf("%s: %#x, want %#x", x.what, x.got, x.want)
		}
	}
	if _, status := d.KernelWorkGroupInfo(k, 0, cl.KERNEL_WORK_GROUP_SIZE); status != cl.INVALID_DEVICE {
		t.Errorf("a kernel asked of no device answers %d", status)
	}
	if _, status := d.ContextInfo(r.ctx, 1); status != cl.INVALID_VALUE {
		t.Errorf("a query of nothing answers %d", status)
	}
	r.ok(d.ReleaseSampler(s))
	r.ok(d.ReleaseCommandBuffer(graph))
	r.ok(d.ReleaseMemObject(sub))
	r.end()
}

func (r *rig) value(answer []byte, status api.Status) uint64 {
	r.t.Helper()
	r.ok(status)
	return answers.Number(answer)
}

func TestPlatformsAreMerged(t *testing.T) {
	for _, x := range []struct {
		mode  Mode
		shown int
	}{{One, 1}, {Node, 3}, {Native, 3}} {
		m := newModel(t, 3, 1)
		d, err := New(m, x.mode, 0)
		if err != nil {
			t.Fatal(err)
		}
		shown := d.Platforms()
		if len(shown) != x.shown {
			t.Fatalf("mode %d shows %d platforms, want %d", x.mode, len(shown), x.shown)
		}
		name, status := d.PlatformInfo(shown[0], cl.PLATFORM_NAME)
		if x.mode != Native && (status != cl.SUCCESS || string(name) != "Tendril\x00") {
			t.Errorf("mode %d: the platform's name is %q (%d)", x.mode, name, status)
		}
		version, _ := d.PlatformInfo(shown[0], cl.PLATFORM_VERSION)
		if string(version) != "OpenCL 3.0 model\x00" {
			t.Errorf("mode %d: the version is %q, want the least", x.mode, version)
		}
		if _, status := d.PlatformInfo(shown[0], 1); status != cl.INVALID_VALUE {
			t.Errorf("a query of nothing answers %d", status)
		}
		if _, status := d.DeviceIDs(shown[0], cl.DEVICE_TYPE_GPU); status != cl.DEVICE_NOT_FOUND {
			t.Errorf("mode %d: asked for GPUs, %d", x.mode, status)
		}
		if found, _ := d.DeviceIDs(shown[0], cl.DEVICE_TYPE_DEFAULT); len(found) != 1 {
			t.Errorf("mode %d: %d default devices", x.mode, len(found))
		}
		if d.UnloadPlatformCompiler(shown[0]) != cl.SUCCESS || d.UnloadPlatformCompiler(3) != cl.INVALID_PLATFORM {
			t.Errorf("mode %d: unloading the compiler", x.mode)
		}
		dev := m.devices[0]
		if d.RetainDevice(dev) != cl.SUCCESS || d.ReleaseDevice(dev) != cl.SUCCESS {
			t.Error("a device is not the Base's")
		}
		device, host, _ := d.DeviceTimer(dev)
		if now, _ := d.HostTimer(dev); device != 2 || host != 1 || now != 1 {
			t.Error("timers are not the Base's")
		}
		if _, _, status := d.CreateSubDevices(5, nil, 0); status != cl.INVALID_DEVICE {
			t.Error("sub-devices are not the Base's")
		}
		whole, status := d.CreateContextFromType([]uint64{cl.CONTEXT_PLATFORM, uint64(shown[0]), 0},
			cl.DEVICE_TYPE_ALL, nil)
		if status != cl.SUCCESS {
			t.Fatalf("mode %d: a context from a type: %d", x.mode, status)
		}
		if d.ReleaseContext(whole) != cl.SUCCESS {
			t.Error("the context is gone")
		}
	}
	for text, want := range map[string]Mode{"": Native, "native": Native, "NODE": Node, "one": One} {
		if got, ok := ParseMode(text, 1); !ok || got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
	if got, _ := ParseMode("", 2); got != One {
		t.Error("several servers are not one platform")
	}
	if _, ok := ParseMode("two", 1); ok {
		t.Error("two is a mode")
	}
}

// TestNativeContextsPassThrough: a context whose devices belong to one native platform is the Base's, with its
// platform's handle.
func TestNativeContextsPassThrough(t *testing.T) {
	r := newRig(t, 2, 1)
	d, shown := r.d, r.d.Platforms()[0]
	native, status := d.CreateContext([]uint64{cl.CONTEXT_PLATFORM, uint64(shown), 0}, r.m.devices[1:], nil)
	r.ok(status)
	if r.m.get(native, "context") == nil {
		t.Fatal("a native context has a handle of this package")
	}
	props, status := d.ContextInfo(native, cl.CONTEXT_PROPERTIES)
	if r.ok(status); uintptr(le.Uint64(props[8:])) != shown {
		t.Errorf("its platform is %#x, want the one that is shown, %#x", le.Uint64(props[8:]), shown)
	}
	q, status := d.CreateQueueWithProperties(native, r.m.devices[1], nil)
	r.ok(status)
	b, status := d.CreateBuffer(native, nil, 0, 16, api.HostPtr{})
	r.ok(status)
	own := r.buffer(0, 16, api.HostPtr{})
	room := make([]byte, 16)
	host := api.HostBytes(room)
	none := api.Waits{}
	rect := api.Rect{Region: [3]uint64{4, 1, 1}}
	image := api.ImageRegion{Region: [3]uint64{1, 1, 1}}
	native2 := func(_ uintptr, status api.Status) api.Status { return status }
	for name, status := range map[string]api.Status{
		"write":     native2(d.EnqueueWrite(q, b, true, 0, 16, host, none)),
		"read":      native2(d.EnqueueRead(q, b, true, 0, 16, host, none)),
		"fill":      native2(d.EnqueueFill(q, b, host, 4, 0, 16, none)),
		"copy":      native2(d.EnqueueCopy(q, b, b, 0, 8, 8, none)),
		"copy rect": native2(d.EnqueueCopyRect(q, b, b, rect, none)),
		"rect":      native2(d.EnqueueReadRect(q, b, true, rect, host, none)),
		"marker":    native2(d.EnqueueMarker(q, none)),
		"barrier":   native2(d.EnqueueBarrier(q, none)),
		"events":    d.EnqueueWaitForEvents(q, none),
		"migrate":   native2(d.EnqueueMigrate(q, []uintptr{b}, 0, none)),
		"flush":     d.Flush(q),
		"finish":    d.Finish(q),
		"content":   d.SetContentSizeBuffer(b, 0),
	} {
		if status != cl.SUCCESS {
			t.Errorf("%s in a native context: %d", name, status)
		}
	}
	// Objects of both kinds do not mix.
	mine := r.queues[0]
	for name, x := range map[string]struct{ got, want api.Status }{
		"read":          {native2(d.EnqueueRead(mine, b, true, 0, 16, host, none)), cl.INVALID_CONTEXT},
		"read, turned":  {native2(d.EnqueueRead(q, own, true, 0, 16, host, none)), cl.INVALID_MEM_OBJECT},
		"write":         {native2(d.EnqueueWrite(mine, b, true, 0, 16, host, none)), cl.INVALID_CONTEXT},
		"fill":          {native2(d.EnqueueFill(mine, 5, host, 4, 0, 16, none)), cl.INVALID_MEM_OBJECT},
		"copy":          {native2(d.EnqueueCopy(mine, own, b, 0, 0, 8, none)), cl.INVALID_CONTEXT},
		"copy of none":  {native2(d.EnqueueCopy(mine, own, 5, 0, 0, 8, none)), cl.INVALID_MEM_OBJECT},
		"copy rect":     {native2(d.EnqueueCopyRect(mine, own, b, rect, none)), cl.INVALID_CONTEXT},
		"rect":          {native2(d.EnqueueWriteRect(mine, b, true, rect, host, none)), cl.INVALID_CONTEXT},
		"unmap":         {native2(d.EnqueueUnmap(mine, b, host, none)), cl.INVALID_CONTEXT},
		"unmap of none": {native2(d.EnqueueUnmap(mine, own, host, none)), cl.INVALID_VALUE},
		"migrate":       {native2(d.EnqueueMigrate(mine, []uintptr{b}, 0, none)), cl.INVALID_MEM_OBJECT},
		"image": {native2(d.EnqueueReadImage(mine, own, true, image, 0, 0, host, none)),
			cl.INVALID_MEM_OBJECT},
		"image write": {native2(d.EnqueueWriteImage(mine, b, true, image, 0, 0, host, none)), cl.INVALID_CONTEXT},
		"image fill":  {native2(d.EnqueueFillImage(mine, b, host, image, none)), cl.INVALID_CONTEXT},
		"image copy":  {native2(d.EnqueueCopyImage(mine, own, b, image, [3]uint64{}, none)), cl.INVALID_CONTEXT},
		"image, same": {native2(d.EnqueueCopyImage(mine, own, own, image, [3]uint64{}, none)),
			cl.INVALID_MEM_OBJECT},
		"image buffer": {native2(d.EnqueueCopyImageBuffer(true, mine, b, own, image, 0, none)), cl.INVALID_CONTEXT},
		"not an image": {native2(d.EnqueueCopyImageBuffer(true, mine, own, own, image, 0, none)),
			cl.INVALID_MEM_OBJECT},
		"launch of none": {native2(d.EnqueueTask(mine, 5, none)), cl.INVALID_KERNEL},
		"wait list": {native2(d.EnqueueMarker(mine, api.Waits{N: 1, List: []uintptr{5}})),
			cl.INVALID_EVENT_WAIT_LIST},
		"no wait list": {native2(d.EnqueueMarker(mine, api.Waits{N: 1})), cl.INVALID_EVENT_WAIT_LIST},
		"events":       {d.EnqueueWaitForEvents(mine, api.Waits{N: 1, List: []uintptr{5}}), cl.INVALID_EVENT},
		"no events":    {d.EnqueueWaitForEvents(mine, none), cl.INVALID_VALUE},
		"size":         {native2(d.CreateBuffer(r.ctx, nil, 0, 1<<25, api.HostPtr{})), cl.INVALID_BUFFER_SIZE},
		"refused":      {native2(d.CreateBuffer(r.ctx, nil, 0, 0, api.HostPtr{})), cl.INVALID_BUFFER_SIZE},
		"queue":        {native2(d.CreateQueue(r.ctx, 5, 0)), cl.INVALID_DEVICE},
		"no devices":   {native2(d.CreateContext(nil, nil, nil)), cl.INVALID_VALUE},
		"no device":    {native2(d.CreateContext(nil, []uintptr{5}, nil)), cl.INVALID_DEVICE},
		"no platform": {native2(d.CreateContext([]uint64{cl.CONTEXT_PLATFORM, 5, 0}, r.m.devices, nil)),
			cl.INVALID_PLATFORM},
	} {
		if x.got != x.want {
			t.Errorf("%s: %d, want %d", name, x.got, x.want)
		}
	}
	_, e, status := d.EnqueueMap(mine, b, true, cl.MAP_READ, 0, 16, none)
	if status != cl.INVALID_CONTEXT || e != 0 {
		t.Errorf("a map of another context's buffer: %d", status)
	}
	foreign, status := d.CreateUserEvent(native)
	r.ok(status)
	_, status = d.EnqueueMarker(mine, api.Waits{N: 1, List: []uintptr{foreign}})
	r.is(status, cl.INVALID_CONTEXT)
	r.is(d.SetEventCallback(foreign, cl.COMPLETE, func(int32) {}), cl.SUCCESS)
	r.ok(d.SetUserEventStatus(foreign, cl.COMPLETE))
	r.ok(d.WaitForEvents(1, []uintptr{foreign}))
	r.ok(d.ReleaseEvent(foreign))
	for _, status := range []api.Status{d.ReleaseMemObject(b), d.ReleaseQueue(q), d.ReleaseContext(native)} {
		r.ok(status)
	}
	r.end()
}

func TestDestructorsRunLatestFirst(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	order := make(chan int, 4)
	b, status := d.CreateBuffer(r.ctx, nil, 0, 16, api.HostPtr{})
	r.ok(status)
	r.is(d.SetMemObjectDestructorCallback(b, nil), cl.INVALID_VALUE)
	r.is(d.SetMemObjectDestructorCallback(5, func() {}), cl.INVALID_MEM_OBJECT)
	r.is(d.SetContextDestructorCallback(r.ctx, nil), cl.INVALID_VALUE)
	r.is(d.SetContextDestructorCallback(5, func() {}), cl.INVALID_CONTEXT)
	r.ok(d.SetContextDestructorCallback(r.ctx, func() { order <- 3 }))
	r.ok(d.SetMemObjectDestructorCallback(b, func() { order <- 2 }))
	r.ok(d.SetMemObjectDestructorCallback(b, func() { order <- 1 }))
	r.ok(d.ReleaseMemObject(b))
	r.end()
	for want := 1; want <= 3; want++ {
		if got := <-order; got != want {
			t.Errorf("destructor %d runs in place of %d", got, want)
		}
	}
}

// TestEventsCrossMembers: a command of one member waits for another's, is told of its end, and of its failure.
func TestEventsCrossMembers(t *testing.T) {
	for _, links := range []bool{false, true} {
		r := newRig(t, 2, 1)
		r.m.links = links
		d := r.d
		gate, status := d.CreateUserEvent(r.ctx)
		r.ok(status)
		told := make(chan int32, 1)
		r.ok(d.SetEventCallback(gate, cl.COMPLETE, func(status int32) { told <- status }))
		r.is(d.SetEventCallback(gate, cl.COMPLETE, nil), cl.INVALID_VALUE)
		first := r.event(d.EnqueueMarker(r.queues[0], api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
		second := r.event(d.EnqueueMarker(r.queues[1], api.Waits{N: 1, List: []uintptr{first}, Want: true}))
		third := r.event(d.EnqueueMarker(r.queues[1], api.Waits{N: 2, List: []uintptr{gate, first}, Want: true}))
		if s := int32(r.value(d.EventInfo(third, cl.EVENT_COMMAND_EXECUTION_STATUS))); s <= cl.COMPLETE {
			t.Fatalf("a command ended before what it waits for: %d", s)
		}
		r.ok(d.EnqueueWaitForEvents(r.queues[1], api.Waits{N: 1, List: []uintptr{first}}))
		r.ok(d.SetUserEventStatus(gate, -7))
		r.is(d.SetUserEventStatus(gate, 0), cl.INVALID_OPERATION)
		r.is(d.WaitForEvents(2, []uintptr{second, third}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		r.is(d.WaitForEvents(2, []uintptr{second, 5}), cl.INVALID_EVENT)
		r.is(d.WaitForEvents(0, nil), cl.INVALID_VALUE)
		if got := <-told; got != -7 {
			t.Errorf("the callback was told %d", got)
		}
		r.ok(d.ReleaseEvent(gate))
		r.end()
	}
}

// TestAFailedWriterMovesNothing: what a failed command left is whatever it is, and what comes behind it fails.
func TestAFailedWriterMovesNothing(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	b := r.buffer(0, 16, api.HostPtr{})
	gate, status := d.CreateUserEvent(r.ctx)
	r.ok(status)
	data, got := bytes.Repeat([]byte{7}, 16), make([]byte, 16)
	wrote := r.event(d.EnqueueWrite(r.queues[0], b, false, 0, 16, api.HostBytes(data),
		api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
	read := r.event(d.EnqueueRead(r.queues[1], b, false, 0, 16, api.HostBytes(got),
		api.Waits{N: 1, List: []uintptr{wrote}, Want: true}))
	r.ok(d.SetUserEventStatus(gate, -5))
	r.is(d.WaitForEvents(1, []uintptr{read}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	_, status = d.EnqueueWrite(r.queues[0], b, true, 0, 16, api.HostBytes(data), api.Waits{})
	r.ok(status)
	_, status = d.EnqueueRead(r.queues[1], b, true, 0, 16, api.HostBytes(got), api.Waits{})
	if r.ok(status); !bytes.Equal(got, data) {
		t.Errorf("behind a failed write and a good one: %x", got)
	}
	r.ok(d.ReleaseEvent(gate))
	r.end()
}

// TestMemoryUnderABufferIsGivenBack: a release waits for the commands, so that their results lie in the program's
// memory; where the program itself holds them back it does not wait.
func TestMemoryUnderABufferIsGivenBack(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	k := r.kernel("add")
	for _, held := range []bool{false, true} {
		host := make([]byte, 16)
		b, status := d.CreateBuffer(r.ctx, nil, cl.MEM_USE_HOST_PTR, 16, api.HostBytes(host))
		r.ok(status)
		gone := make(chan bool, 1)
		r.ok(d.SetMemObjectDestructorCallback(b, func() { gone <- true }))
		r.setBuffer(k, 0, b)
		r.ok(d.SetKernelArg(k, 1, 1, r.bytes(3)))
		w, gate := api.Waits{}, uintptr(0)
		if held {
			gate, status = d.CreateUserEvent(r.ctx)
			r.ok(status)
			w = api.Waits{N: 1, List: []uintptr{gate}}
		}
		_, status = d.EnqueueTask(r.queues[1], k, w)
		r.ok(status)
		r.ok(d.ReleaseMemObject(b))
		if held {
			r.ok(d.SetUserEventStatus(gate, cl.COMPLETE))
			r.ok(d.ReleaseEvent(gate))
		}
		<-gone
		if want := bytes.Repeat([]byte{3}, 16); !bytes.Equal(host, want) {
			t.Errorf("held back %v: the memory holds %x, want %x", held, host, want)
		}
	}
	r.end()
}

func TestProgramsAreEachMembers(t *testing.T) {
	r := newRig(t, 2, 1)
	d, devices := r.d, r.m.devices
	keep := func(h uintptr, status api.Status) uintptr {
		t.Helper()
		r.ok(status)
		r.made = append(r.made, func() { r.ok(d.ReleaseProgram(h)) })
		return h
	}
	native2 := func(_ uintptr, status api.Status) api.Status { return status }
	p := keep(d.CreateProgramWithSource(r.ctx, []string{"add", " sum"}))
	_, _, status := d.CreateKernels(p, 0)
	r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
	r.is(d.Build(p, true, nil, "", nil), cl.INVALID_VALUE)
	r.is(d.Build(p, true, []uintptr{5}, "", nil), cl.INVALID_DEVICE)
	r.is(d.Build(5, false, nil, "", nil), cl.INVALID_PROGRAM)
	built := make(chan bool)
	r.ok(d.Build(p, true, devices[:1], "", func() { built <- true }))
	<-built
	one, status := d.CreateKernel(p, "add")
	r.ok(status)
	_, status = d.EnqueueTask(r.queues[1], one, api.Waits{})
	r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
	r.ok(d.ReleaseKernel(one))
	r.ok(d.Build(p, false, nil, "", nil))
	r.is(native2(d.CreateKernel(p, "none")), cl.INVALID_KERNEL_NAME)
	_, count, status := d.CreateKernels(p, 0)
	if r.ok(status); count != 2 {
		t.Errorf("%d kernels", count)
	}
	_, _, status = d.CreateKernels(p, 1)
	r.is(status, cl.INVALID_VALUE)
	all, _, status := d.CreateKernels(p, 2)
	r.ok(status)
	for _, k := range all {
		r.ok(d.ReleaseKernel(k))
	}
	binaries, status := d.Binaries(p)
	if r.ok(status); len(binaries) != 2 {
		t.Fatalf("%d binaries", len(binaries))
	}
	again, verdict, status := d.CreateProgramWithBinary(r.ctx, devices, binaries)
	if keep(again, status); verdict != cl.SUCCESS {
		t.Errorf("verdict %d", verdict)
	}
	_, _, status = d.CreateProgramWithBinary(r.ctx, devices, nil)
	r.is(status, cl.INVALID_VALUE)
	_, verdict, status = d.CreateProgramWithBinary(r.ctx, devices, [][]byte{{1}, {}})
	if r.is(status, cl.INVALID_BINARY); verdict != cl.INVALID_BINARY {
		t.Errorf("verdict %d", verdict)
	}
	_, _, status = d.CreateProgramWithBinary(r.ctx, []uintptr{devices[0], 5}, [][]byte{{1}, {1}})
	r.is(status, cl.INVALID_DEVICE)
	broken := keep(d.CreateProgramWithSource(r.ctx, []string{"broken"}))
	r.is(d.Build(broken, false, nil, "", nil), cl.BUILD_PROGRAM_FAILURE)
	_, status = d.ProgramBuildInfo(broken, devices[1], cl.PROGRAM_BUILD_LOG)
	r.ok(status)
	_, status = d.ProgramBuildInfo(broken, 5, cl.PROGRAM_BUILD_LOG)
	r.is(status, cl.INVALID_DEVICE)
	r.ok(d.Compile(p, false, nil, "", []uintptr{again}, []string{"a.h"}, true, true, nil))
	r.is(d.Compile(p, false, nil, "", []uintptr{5}, []string{"a.h"}, true, true, nil), cl.INVALID_PROGRAM)
	linked := make(chan uintptr, 1)
	l := keep(d.Link(r.ctx, false, nil, "", []uintptr{p}, func(h uintptr) { linked <- h }))
	if got := <-linked; got != l {
		t.Errorf("the callback was given %#x, want %#x", got, l)
	}
	keep(d.Link(r.ctx, true, devices[1:], "", []uintptr{p}, nil))
	r.is(native2(d.Link(r.ctx, false, nil, "", nil, nil)), cl.INVALID_VALUE)
	r.is(native2(d.Link(r.ctx, false, nil, "", []uintptr{5}, nil)), cl.INVALID_PROGRAM)
	il := keep(d.CreateProgramWithIL(r.ctx, []byte("add")))
	r.is(native2(d.CreateProgramWithIL(r.ctx, []byte("nobody's"))), cl.INVALID_OPERATION)
	r.ok(d.SetSpecConstant(il, 0, nil))
	r.is(d.SetSpecConstant(il, 1, nil), cl.INVALID_SPEC_ID)
	r.is(d.SetSpecConstant(5, 0, nil), cl.INVALID_PROGRAM)
	keep(d.CreateProgramWithBuiltInKernels(r.ctx, devices, "add"))
	r.is(native2(d.CreateProgramWithBuiltInKernels(r.ctx, devices, "")), cl.INVALID_VALUE)
	r.is(native2(d.CreateProgramWithBuiltInKernels(r.ctx, nil, "add")), cl.INVALID_DEVICE)
	r.end()
}

// TestKernelArguments: each member is told of an argument, a buffer and a sampler by its own handle, wherever a stack
// goes meanwhile.
func TestKernelArguments(t *testing.T) {
	r := newRig(t, 3, 1)
	d := r.d
	k := r.kernel("add")
	b := r.buffer(cl.MEM_COPY_HOST_PTR, 16, api.HostBytes(make([]byte, 16)))
	s, status := d.CreateSampler(r.ctx, 1, 0, 0)
	r.ok(status)
	r.setBuffer(k, 0, b)
	r.ok(d.SetKernelArg(k, 1, 1, r.bytes(5)))
	r.ok(d.SetKernelArg(k, 2, 8, api.HostBytes(bytesOf(s))))
	r.is(d.SetKernelArg(k, 9, 8, api.HostBytes(make([]byte, 8))), cl.INVALID_ARG_INDEX)
	r.is(d.SetKernelArg(5, 0, 8, api.HostBytes(make([]byte, 8))), cl.INVALID_KERNEL)
	seen := map[string]bool{}
	for _, x := range r.m.objects {
		if x.kind == "kernel" {
			seen[string(x.args[2])] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d samplers for three members", len(seen))
	}
	same, status := d.CloneKernel(k)
	r.ok(status)
	_, status = d.CloneKernel(5)
	r.is(status, cl.INVALID_KERNEL)
	for i, kernel := range []uintptr{k, same, k} {
		e := r.event(d.EnqueueNDRange(r.queues[i], kernel, &api.Range{}, api.Waits{Want: true}))
		r.ok(d.WaitForEvents(1, []uintptr{e}))
	}
	got := make([]byte, 16)
	_, status = d.EnqueueRead(r.queues[1], b, true, 0, 16, api.HostBytes(got), api.Waits{})
	if r.ok(status); got[0] != 15 || got[15] != 15 {
		t.Errorf("three members added five each: %x", got)
	}
	gone, status := d.CreateBuffer(r.ctx, nil, 0, 16, api.HostPtr{})
	r.ok(status)
	r.setBuffer(same, 0, gone)
	r.ok(d.ReleaseMemObject(gone))
	_, status = d.EnqueueTask(r.queues[0], same, api.Waits{})
	r.is(status, cl.INVALID_KERNEL_ARGS)
	r.ok(d.ReleaseKernel(same))
	r.ok(d.ReleaseSampler(s))
	r.end()
}

// TestCommandBuffersBringWhatTheyRead: a replay is one command that reads and writes what its commands do.
func TestCommandBuffersBringWhatTheyRead(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	k := r.kernel("add")
	a, b := r.buffer(cl.MEM_COPY_HOST_PTR, 16, api.HostBytes(make([]byte, 16))), r.buffer(0, 16, api.HostPtr{})
	r.setBuffer(k, 0, a)
	r.ok(d.SetKernelArg(k, 1, 1, r.bytes(2)))
	g, status := d.CreateCommandBuffer(1, r.queues[1:2], nil)
	r.ok(status)
	record := func(call func(q uintptr, w api.Waits) (uintptr, api.Status)) {
		t.Helper()
		_, status := d.Record(g, api.SyncPoints{}, call)
		r.ok(status)
	}
	record(func(q uintptr, w api.Waits) (uintptr, api.Status) { return d.EnqueueTask(q, k, w) })
	record(nil)
	record(func(q uintptr, w api.Waits) (uintptr, api.Status) { return d.EnqueueCopy(q, a, b, 0, 0, 16, w) })
	record(func(q uintptr, w api.Waits) (uintptr, api.Status) { return d.EnqueueCopy(q, b, a, 0, 0, 8, w) })
	r.ok(d.FinalizeCommandBuffer(g))
	_, status = d.Record(5, api.SyncPoints{}, nil)
	r.is(status, cl.INVALID_COMMAND_BUFFER_KHR)
	for i := range 3 {
		ones := bytes.Repeat([]byte{byte(10 * i)}, 16)
		_, status = d.EnqueueWrite(r.queues[0], a, true, 0, 16, api.HostBytes(ones), api.Waits{})
		r.ok(status)
		var queues []uintptr
		if i > 0 {
			queues = r.queues[i : i+1]
		}
		e := r.event(d.EnqueueCommandBuffer(uint32(len(queues)), queues, g, api.Waits{Want: true}))
		got := make([]byte, 16)
		_, status = d.EnqueueRead(r.queues[0], b, true, 0, 16, api.HostBytes(got), api.Waits{N: 1, List: []uintptr{e}})
		if r.ok(status); got[0] != byte(10*i+2) || got[15] != byte(10*i+2) {
			t.Errorf("replay %d: %x", i, got)
		}
	}
	_, status = d.EnqueueCommandBuffer(1, r.queues[:1], g, api.Waits{})
	r.is(status, cl.INCOMPATIBLE_COMMAND_QUEUE_KHR)
	_, status = d.EnqueueCommandBuffer(1, []uintptr{5}, g, api.Waits{})
	r.is(status, cl.INVALID_COMMAND_QUEUE)
	_, status = d.EnqueueCommandBuffer(0, nil, 5, api.Waits{})
	r.is(status, cl.INVALID_COMMAND_BUFFER_KHR)
	_, status = d.CreateCommandBuffer(1, []uintptr{5}, nil)
	r.is(status, cl.INVALID_COMMAND_QUEUE)
	r.ok(d.ReleaseCommandBuffer(g))
	r.end()
}

// TestContentIsMovedAlone: bytes that the content's number does not count need not come.
func TestContentIsMovedAlone(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	b, size := r.buffer(0, 64, api.HostPtr{}), r.buffer(0, 8, api.HostPtr{})
	r.ok(d.SetContentSizeBuffer(b, size))
	r.is(d.SetContentSizeBuffer(b, 5), cl.INVALID_MEM_OBJECT)
	data := bytes.Repeat([]byte{9}, 64)
	filled := r.event(d.EnqueueWrite(r.queues[0], b, false, 0, 64, api.HostBytes(data), api.Waits{Want: true}))
	counts := r.event(d.EnqueueWrite(r.queues[0], size, false, 0, 8, api.HostBytes(le.AppendUint64(nil, 10)),
		api.Waits{Want: true}))
	got := make([]byte, 64)
	_, status := d.EnqueueRead(r.queues[1], b, true, 0, 64, api.HostBytes(got),
		api.Waits{N: 2, List: []uintptr{filled, counts}})
	if r.ok(status); !bytes.Equal(got[:10], data[:10]) {
		t.Errorf("the content is %x", got[:10])
	}
	if got[10] == 9 {
		t.Error("bytes that mean nothing were moved")
	}
	_, status = d.EnqueueRead(r.queues[0], b, true, 0, 64, api.HostBytes(got), api.Waits{})
	r.ok(status)
	r.ok(d.SetContentSizeBuffer(b, 0))
	_, status = d.EnqueueRead(r.queues[1], b, true, 0, 64, api.HostBytes(got), api.Waits{})
	if r.ok(status); !bytes.Equal(got, data) {
		t.Errorf("without a number all bytes mean something: %x", got)
	}
	r.end()
}

// TestWaitsOutliveTheirArrival: a move that ends while its command is planned keeps its event for the command, also
// when another argument's content size looks at the same range.
func TestWaitsOutliveTheirArrival(t *testing.T) {
	r := newRig(t, 2, 1)
	h := r.buffer(0, 8, api.HostPtr{})
	_, status := r.d.EnqueueWrite(r.queues[0], h, true, 0, 8, api.HostBytes(make([]byte, 8)), api.Waits{})
	r.ok(status)
	b := r.d.buffers.Get(h)
	c := b.ctx
	uses := []use{{b: b, n: 8, reads: true}}
	c.mu.Lock()
	waits, status := c.planLocked(1, uses, behind{})
	r.ok(status)
	if len(waits) != 1 {
		t.Fatalf("%d moves to wait for", len(waits))
	}
	for waits[0].state.Load() == underWay {
		time.Sleep(time.Millisecond)
	}
	others, status := c.planLocked(1, uses, behind{})
	r.ok(status)
	for range 50 { // the move's own reference goes a moment after its state
		if status := c.d.base.RetainEvent(waits[0].event); status != cl.SUCCESS {
			t.Errorf("the event that the command waits for is gone: %d", status)
			break
		}
		c.d.base.ReleaseEvent(waits[0].event)
		time.Sleep(time.Millisecond)
	}
	c.dropLocked(others)
	c.dropLocked(waits)
	c.mu.Unlock()
	r.end()
}

func TestObjectsOfTheStore(t *testing.T) {
	r := newRig(t, 2, 1)
	d := r.d
	b, status := d.OpenObject(r.ctx, [16]byte{}, "at 1")
	r.ok(status)
	got := make([]byte, 9)
	_, status = d.EnqueueRead(r.queues[0], b, true, 0, 9, api.HostBytes(got), api.Waits{})
	if r.ok(status); string(got) != "an object" {
		t.Errorf("read %q", got)
	}
	r.ok(d.ReleaseMemObject(b))
	for name, want := range map[string]string{"near 1": "an object", "near 7": "a copy of"} {
		b, status := d.OpenObject(r.ctx, [16]byte{}, name)
		r.ok(status)
		_, status = d.EnqueueRead(r.queues[0], b, true, 0, 9, api.HostBytes(got), api.Waits{})
		if r.ok(status); string(got) != want {
			t.Errorf("%s: read %q", name, got)
		}
		r.ok(d.ReleaseMemObject(b))
	}
	_, status = d.OpenObject(r.ctx, [16]byte{}, "nowhere")
	r.is(status, cl.INVALID_VALUE)
	_, status = d.OpenObject(5, [16]byte{}, "at 1")
	r.is(status, cl.INVALID_CONTEXT)
	p := r.buffer(0, 16, api.HostPtr{})
	for i, text := range []string{"from the first one", "and the second one"} {
		_, status = d.EnqueueWrite(r.queues[i], p, false, uint64(8*i), 8, api.HostBytes([]byte(text)), api.Waits{})
		r.ok(status)
		r.ok(d.Finish(r.queues[i]))
	}
	id, err := d.Publish(p, "name", nil)
	if err != nil || string(id[:]) != "from theand the " {
		t.Errorf("published %q: %v", id, err)
	}
	host := make([]byte, 16)
	over := r.buffer(cl.MEM_USE_HOST_PTR, 16, api.HostBytes(host))
	if _, err := d.Publish(over, "", nil); !errors.Is(err, api.ErrNotPublishable) {
		t.Errorf("memory of the program's was published: %v", err)
	}
	if _, err := d.Publish(5, "", nil); err == nil {
		t.Error("nothing was published")
	}
	r.end()
}

// growing is a Base under whose calls the stack grows, and whatever was freed of it is written over.
type growing struct{ *model }

func (g growing) SetKernelArg(h uintptr, index uint32, size uint64, value api.HostPtr) api.Status {
	deep(64)
	var others sync.WaitGroup
	for range 64 {
		others.Go(func() { deep(16) })
	}
	others.Wait()
	return g.model.SetKernelArg(h, index, size, value)
}

//go:noinline
func deep(n int) byte {
	var room [1 << 10]byte
	for i := range room {
		room[i] = 0xAA
	}
	if n > 0 {
		room[0] += deep(n - 1)
	}
	return room[0] + room[len(room)-1]
}

// TestHandlesAreNotOnTheStack: a member is given a handle by its address, which must hold while the stack moves.
func TestHandlesAreNotOnTheStack(t *testing.T) {
	r := newRig(t, 2, 1)
	r.d.base = growing{r.m}
	k := r.kernel("add")
	for range 20 {
		b := r.buffer(0, 16, api.HostPtr{})
		handle := bytesOf(b)
		set := make(chan api.Status)
		go func() { set <- r.d.SetKernelArg(k, 0, 8, api.HostBytes(handle)) }() // with a stack that is small yet
		r.ok(<-set)
	}
	r.end()
}
