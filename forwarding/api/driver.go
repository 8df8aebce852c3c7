package api

// Driver is every entry point of OpenCL that is forwarded.
type Driver interface {
	Platforms
	Contexts
	Queues
	Buffers
	SharedVirtual
	Images
	Programs
	Kernels
	Events
	CommandBuffers
	Objects
}

// Platforms are platforms and their devices (OpenCL 3.0 §4.1 to §4.3).
type Platforms interface {
	// Platforms returns the handles of the platforms; none without a daemon, a device or a match of the selector.
	Platforms() []uintptr
	// PlatformInfo is clGetPlatformInfo (OpenCL 3.0 §4.1).
	PlatformInfo(h uintptr, param uint32) ([]byte, Status)
	// UnloadPlatformCompiler is clUnloadPlatformCompiler: a hint that is not forwarded.
	UnloadPlatformCompiler(h uintptr) Status
	// DeviceIDs is clGetDeviceIDs (§4.2): the matching devices' handles.
	DeviceIDs(platform uintptr, kind uint64) ([]uintptr, Status)
	// DeviceInfo is clGetDeviceInfo (§4.2).
	DeviceInfo(h uintptr, param uint32) ([]byte, Status)
	// CreateSubDevices is clCreateSubDevices (§4.3): with room for none it counts.
	CreateSubDevices(h uintptr, properties []uint64, room uint32) (made []uintptr, count uint32, status Status)
	// RetainDevice is clRetainDevice.
	RetainDevice(h uintptr) Status
	// ReleaseDevice is clReleaseDevice.
	ReleaseDevice(h uintptr) Status
	// DeviceTimer is clGetDeviceAndHostTimer.
	DeviceTimer(h uintptr) (device, host uint64, status Status)
	// HostTimer is clGetHostTimer and the host half of clGetDeviceAndHostTimer (§4.3): ns of CLOCK_MONOTONIC,
	// which is also what devices in place stamp their profiles with.
	HostTimer(h uintptr) (uint64, Status)
}

// Contexts are contexts (§4.4).
type Contexts interface {
	// CreateContext is clCreateContext (§4.4). report may be nil.
	CreateContext(properties []uint64, devices []uintptr, report func(text string)) (uintptr, Status)
	// CreateContextFromType is clCreateContextFromType (§4.4).
	CreateContextFromType(properties []uint64, kind uint64, report func(text string)) (uintptr, Status)
	// RetainContext is clRetainContext.
	RetainContext(h uintptr) Status
	// ReleaseContext is clReleaseContext.
	ReleaseContext(h uintptr) Status
	// SetContextDestructorCallback is clSetContextDestructorCallback (§4.4).
	SetContextDestructorCallback(h uintptr, call func()) Status
	// ContextInfo is clGetContextInfo (§4.4).
	ContextInfo(h uintptr, param uint32) ([]byte, Status)
}

// Queues are command queues, and commands without a memory object (§5.1, §5.12, §5.15).
type Queues interface {
	// CreateQueue is clCreateCommandQueue (§5.1 of OpenCL 1.2).
	CreateQueue(context, device uintptr, props uint64) (uintptr, Status)
	// CreateQueueWithProperties is clCreateCommandQueueWithProperties (§5.1).
	CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, Status)
	// RetainQueue is clRetainCommandQueue.
	RetainQueue(h uintptr) Status
	// ReleaseQueue is clReleaseCommandQueue.
	ReleaseQueue(h uintptr) Status
	// QueueInfo is clGetCommandQueueInfo (§5.1).
	QueueInfo(h uintptr, param uint32) ([]byte, Status)
	// Flush is clFlush (§5.15).
	Flush(h uintptr) Status
	// Finish is clFinish (§5.15): 0, or the first failure that no event told.
	Finish(h uintptr) Status
	// EnqueueMarker is clEnqueueMarkerWithWaitList, and clEnqueueMarker with an empty list (§5.12).
	EnqueueMarker(queue uintptr, w Waits) (uintptr, Status)
	// EnqueueBarrier is clEnqueueBarrierWithWaitList, clEnqueueBarrier and clEnqueueWaitForEvents (§5.12).
	EnqueueBarrier(queue uintptr, w Waits) (uintptr, Status)
	// EnqueueWaitForEvents is clEnqueueWaitForEvents (OpenCL 1.1 §5.10): a barrier on the list.
	EnqueueWaitForEvents(queue uintptr, w Waits) Status
}

// Buffers are buffers, what all memory objects share, and their commands (§5.2, §5.5).
type Buffers interface {
	// CreateBuffer is clCreateBuffer and clCreateBufferWithProperties (§5.2.1); given is the property list,
	// 0-terminated.
	CreateBuffer(context uintptr, given []uint64, flags, size uint64, host HostPtr) (uintptr, Status)
	// CreateSubBuffer is clCreateSubBuffer (§5.2.1) with CL_BUFFER_CREATE_TYPE_REGION.
	CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin,
		size uint64) (uintptr, Status)
	// RetainMemObject is clRetainMemObject.
	RetainMemObject(h uintptr) Status
	// ReleaseMemObject is clReleaseMemObject.
	ReleaseMemObject(h uintptr) Status
	// SetMemObjectDestructorCallback is clSetMemObjectDestructorCallback (§5.5.1).
	SetMemObjectDestructorCallback(h uintptr, call func()) Status
	// MemObjectInfo is clGetMemObjectInfo (§5.5.5).
	MemObjectInfo(h uintptr, param uint32) ([]byte, Status)
	// EnqueueRead is clEnqueueReadBuffer (§5.2.2).
	EnqueueRead(queue, buffer uintptr, blocking bool, off, size uint64, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueWrite is clEnqueueWriteBuffer (§5.2.2).
	EnqueueWrite(queue, buffer uintptr, blocking bool, off, size uint64, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueReadRect is clEnqueueReadBufferRect, EnqueueWriteRect clEnqueueWriteBufferRect (§5.2.2).
	EnqueueReadRect(queue, buffer uintptr, blocking bool, r Rect, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueWriteRect: see EnqueueReadRect.
	EnqueueWriteRect(queue, buffer uintptr, blocking bool, r Rect, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueCopy is clEnqueueCopyBuffer (§5.2.4).
	EnqueueCopy(queue, src, dst uintptr, srcOff, dstOff, size uint64, w Waits) (uintptr, Status)
	// EnqueueCopyRect is clEnqueueCopyBufferRect (§5.2.4); the Rect's buffer side is the source, its host side the
	// target.
	EnqueueCopyRect(queue, src, dst uintptr, r Rect, w Waits) (uintptr, Status)
	// EnqueueFill is clEnqueueFillBuffer (§5.2.2).
	EnqueueFill(queue, buffer uintptr, pattern HostPtr, patternSize, off, size uint64, w Waits) (uintptr, Status)
	// EnqueueMap is clEnqueueMapBuffer (§5.2.3).
	EnqueueMap(queue, buffer uintptr, blocking bool, flags, off, size uint64, w Waits) (HostPtr, uintptr, Status)
	// EnqueueUnmap is clEnqueueUnmapMemObject (§5.5.3).
	EnqueueUnmap(queue, buffer uintptr, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueMigrate is clEnqueueMigrateMemObjects (§5.5.4): the contents go to the queue's device ahead of their use.
	EnqueueMigrate(queue uintptr, buffers []uintptr, flags uint64, w Waits) (uintptr, Status)
	// SetContentSizeBuffer is clSetContentSizeBufferPoCL: the 64-bit number at the beginning of size says how many
	// bytes of buffer mean something, whenever a command of the host's reads buffer.
	SetContentSizeBuffer(buffer, size uintptr) Status
}

// SharedVirtual is shared virtual memory (§5.6).
type SharedVirtual interface {
	// SVMAlloc is clSVMAlloc (§5.6.1): size and align in bytes, align 0 for the device's own; NULL where it cannot be.
	SVMAlloc(context uintptr, flags, size uint64, align uint32) HostPtr
	// SVMFree is clSVMFree (§5.6.1).
	SVMFree(context uintptr, ptr HostPtr)
	// EnqueueSVMFree is clEnqueueSVMFree (§5.6.1). call frees the pointers; nil: the implementation does. It may keep
	// pointers.
	EnqueueSVMFree(queue uintptr, pointers []uintptr, call func(), w Waits) (uintptr, Status)
	// EnqueueSVMMemcpy is clEnqueueSVMMemcpy (§5.6.1): either side may be any memory of the program's.
	EnqueueSVMMemcpy(queue uintptr, blocking bool, dst, src HostPtr, size uint64, w Waits) (uintptr, Status)
	// EnqueueSVMMemFill is clEnqueueSVMMemFill (§5.6.1).
	EnqueueSVMMemFill(queue uintptr, ptr, pattern HostPtr, patternSize, size uint64, w Waits) (uintptr, Status)
	// EnqueueSVMMap is clEnqueueSVMMap (§5.6.1).
	EnqueueSVMMap(queue uintptr, blocking bool, flags uint64, ptr HostPtr, size uint64, w Waits) (uintptr, Status)
	// EnqueueSVMUnmap is clEnqueueSVMUnmap (§5.6.1).
	EnqueueSVMUnmap(queue uintptr, ptr HostPtr, w Waits) (uintptr, Status)
	// EnqueueSVMMigrate is clEnqueueSVMMigrateMem (§5.6.1); sizes as long as pointers, or nil for NULL.
	EnqueueSVMMigrate(queue uintptr, pointers []uintptr, sizes []uint64, flags uint64, w Waits) (uintptr, Status)
	// SetKernelArgSVM is clSetKernelArgSVMPointer (§5.9.2).
	SetKernelArgSVM(kernel uintptr, index uint32, ptr HostPtr) Status
	// SetKernelExecInfo is clSetKernelExecInfo (§5.9.2). It keeps nothing of value.
	SetKernelExecInfo(kernel uintptr, param uint32, value []byte) Status
}

// Images are images and samplers (§5.3, §5.7).
type Images interface {
	// CreateImage is clCreateImage and clCreateImageWithProperties (§5.3.1), format and desc nil for NULL.
	CreateImage(context uintptr, given []uint64, flags uint64, format *ImageFormat, desc *ImageDesc,
		host HostPtr) (uintptr, Status)
	// ImageInfo is clGetImageInfo (§5.3.8).
	ImageInfo(h uintptr, param uint32) ([]byte, Status)
	// ImageFormats is clGetSupportedImageFormats (§5.3.2).
	ImageFormats(context uintptr, flags uint64, kind uint32) ([]ImageFormat, Status)
	// EnqueueReadImage is clEnqueueReadImage (§5.3.3); pitches in bytes.
	EnqueueReadImage(queue, image uintptr, blocking bool, r ImageRegion, row, slice uint64, ptr HostPtr,
		w Waits) (uintptr, Status)
	// EnqueueWriteImage is clEnqueueWriteImage (§5.3.3); pitches in bytes.
	EnqueueWriteImage(queue, image uintptr, blocking bool, r ImageRegion, row, slice uint64, ptr HostPtr,
		w Waits) (uintptr, Status)
	// EnqueueCopyImage is clEnqueueCopyImage (§5.3.4); r.Origin is the source's.
	EnqueueCopyImage(queue, src, dst uintptr, r ImageRegion, to [3]uint64, w Waits) (uintptr, Status)
	// EnqueueCopyImageBuffer is clEnqueueCopyImageToBuffer (toBuffer) or clEnqueueCopyBufferToImage (§5.3.5);
	// offset in bytes.
	EnqueueCopyImageBuffer(toBuffer bool, queue, image, buffer uintptr, r ImageRegion, offset uint64,
		w Waits) (uintptr, Status)
	// EnqueueFillImage is clEnqueueFillImage (§5.3.6): color is four components of 32 bits, of a depth image one.
	EnqueueFillImage(queue, image uintptr, color HostPtr, r ImageRegion, w Waits) (uintptr, Status)
	// EnqueueMapImage is clEnqueueMapImage (§5.3.7). hasSlice: the program takes a slice pitch.
	EnqueueMapImage(queue, image uintptr, blocking bool, flags uint64, r ImageRegion, hasSlice bool,
		w Waits) (ImageMap, Status)
	// CreateSampler is clCreateSampler (OpenCL 1.2 §5.5).
	CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, Status)
	// CreateSamplerWithProperties is clCreateSamplerWithProperties (§5.7.1); given is 0-terminated, nil for NULL.
	CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, Status)
	// RetainSampler is clRetainSampler.
	RetainSampler(h uintptr) Status
	// ReleaseSampler is clReleaseSampler.
	ReleaseSampler(h uintptr) Status
	// SamplerInfo is clGetSamplerInfo (§5.7.2).
	SamplerInfo(h uintptr, param uint32) ([]byte, Status)
}

// Programs are programs (§5.8).
type Programs interface {
	// CreateProgramWithSource is clCreateProgramWithSource (§5.8.1); parts are joined.
	CreateProgramWithSource(context uintptr, parts []string) (uintptr, Status)
	// CreateProgramWithBinary is clCreateProgramWithBinary (§5.8.1).
	CreateProgramWithBinary(context uintptr, devices []uintptr, binaries [][]byte) (h uintptr, verdict, status Status)
	// CreateProgramWithIL is clCreateProgramWithIL (§5.8.1).
	CreateProgramWithIL(context uintptr, il []byte) (uintptr, Status)
	// CreateProgramWithBuiltInKernels is clCreateProgramWithBuiltInKernels (§5.8.1); names has ';' between them.
	CreateProgramWithBuiltInKernels(context uintptr, devices []uintptr, names string) (uintptr, Status)
	// SetSpecConstant is clSetProgramSpecializationConstant (§5.8.1): programs of IL alone have any.
	SetSpecConstant(h uintptr, id uint32, value []byte) Status
	// Build is clBuildProgram (§5.8.2).
	Build(h uintptr, hasList bool, devices []uintptr, options string, done func()) Status
	// Compile is clCompileProgram (§5.8.4): headers and names are those that the source may include by name.
	// hasHeaders and hasNames say which of the arrays the program gave.
	Compile(h uintptr, hasList bool, devices []uintptr, options string, headers []uintptr, names []string, hasHeaders,
		hasNames bool, done func()) Status
	// Link is clLinkProgram (§5.8.5). done, if not nil, runs when the program is there, which it may be although
	// linking failed.
	Link(context uintptr, hasList bool, devices []uintptr, options string, programs []uintptr,
		done func(program uintptr)) (uintptr, Status)
	// RetainProgram is clRetainProgram.
	RetainProgram(h uintptr) Status
	// ReleaseProgram is clReleaseProgram.
	ReleaseProgram(h uintptr) Status
	// ProgramInfo is clGetProgramInfo (§5.8.7), all but CL_PROGRAM_BINARIES.
	ProgramInfo(h uintptr, param uint32) ([]byte, Status)
	// ProgramBuildInfo is clGetProgramBuildInfo (§5.8.7).
	ProgramBuildInfo(h, device uintptr, param uint32) ([]byte, Status)
	// Binaries is CL_PROGRAM_BINARIES: one slice a device, empty where there is none.
	Binaries(h uintptr) ([][]byte, Status)
}

// Kernels are kernels and their launches (§5.9, §5.10).
type Kernels interface {
	// CreateKernel is clCreateKernel (§5.9.1).
	CreateKernel(program uintptr, name string) (uintptr, Status)
	// CreateKernels is clCreateKernelsInProgram: count is how many handles the caller takes, 0 to ask for the
	// number.
	CreateKernels(program uintptr, count int) (handles []uintptr, total int, status Status)
	// CloneKernel is clCloneKernel (§5.9.1): the same arguments, in an object of its own.
	CloneKernel(h uintptr) (uintptr, Status)
	// RetainKernel is clRetainKernel.
	RetainKernel(h uintptr) Status
	// ReleaseKernel is clReleaseKernel.
	ReleaseKernel(h uintptr) Status
	// SetKernelArg is clSetKernelArg (§5.9.2).
	SetKernelArg(h uintptr, index uint32, size uint64, value HostPtr) Status
	// KernelInfo is clGetKernelInfo (§5.9.4).
	KernelInfo(h uintptr, param uint32) ([]byte, Status)
	// KernelArgInfo is clGetKernelArgInfo (§5.9.4).
	KernelArgInfo(h uintptr, index, param uint32) ([]byte, Status)
	// KernelWorkGroupInfo is clGetKernelWorkGroupInfo (§5.9.4).
	KernelWorkGroupInfo(kernel, device uintptr, param uint32) ([]byte, Status)
	// KernelSubGroupInfo is clGetKernelSubGroupInfo (§5.9.4); input as the program gave it.
	KernelSubGroupInfo(kernel, device uintptr, param uint32, input []byte) ([]byte, Status)
	// EnqueueNDRange is clEnqueueNDRangeKernel (§5.10).
	EnqueueNDRange(queue, kernel uintptr, r *Range, w Waits) (uintptr, Status)
	// EnqueueTask is clEnqueueTask (OpenCL 1.2 §5.10).
	EnqueueTask(queue, kernel uintptr, w Waits) (uintptr, Status)
}

// Events are events (§5.11, §5.14).
type Events interface {
	// CreateUserEvent is clCreateUserEvent (§5.9).
	CreateUserEvent(context uintptr) (uintptr, Status)
	// SetUserEventStatus is clSetUserEventStatus (§5.9): once, 0 or negative.
	SetUserEventStatus(h uintptr, status int32) Status
	// RetainEvent is clRetainEvent.
	RetainEvent(h uintptr) Status
	// ReleaseEvent is clReleaseEvent.
	ReleaseEvent(h uintptr) Status
	// EventInfo is clGetEventInfo (§5.9).
	EventInfo(h uintptr, param uint32) ([]byte, Status)
	// EventProfilingInfo is clGetEventProfilingInfo (§5.14).
	EventProfilingInfo(h uintptr, param uint32) ([]byte, Status)
	// SetEventCallback is clSetEventCallback (§5.9). call runs once, in its turn among the program's callbacks.
	SetEventCallback(h uintptr, level int32, call func(status int32)) Status
	// WaitForEvents is clWaitForEvents (§5.9).
	WaitForEvents(n uint32, list []uintptr) Status
}

// CommandBuffers are command buffers (cl_khr_command_buffer).
type CommandBuffers interface {
	// CreateCommandBuffer is clCreateCommandBufferKHR.
	CreateCommandBuffer(n uint32, queues []uintptr, given []uint64) (uintptr, Status)
	// FinalizeCommandBuffer is clFinalizeCommandBufferKHR.
	FinalizeCommandBuffer(h uintptr) Status
	// RetainCommandBuffer is clRetainCommandBufferKHR.
	RetainCommandBuffer(h uintptr) Status
	// ReleaseCommandBuffer is clReleaseCommandBufferKHR.
	ReleaseCommandBuffer(h uintptr) Status
	// CommandBufferInfo is clGetCommandBufferInfoKHR.
	CommandBufferInfo(h uintptr, param uint32) ([]byte, Status)
	// Record checks and records a command: call is the enqueue call that carries the command's arguments, with the
	// queue and the waits to give it.
	Record(h uintptr, s SyncPoints, call func(queue uintptr, w Waits) (uintptr, Status)) (point uint32, status Status)
	// EnqueueCommandBuffer is clEnqueueCommandBufferKHR: on the queue of its creation, or on one like it.
	EnqueueCommandBuffer(n uint32, queues []uintptr, h uintptr, w Waits) (uintptr, Status)
}

// Objects are objects of the store as buffers (cl_tendril_store).
type Objects interface {
	// OpenObject is clCreateBufferFromObjectTENDRIL: a buffer that is a sealed object of the store of the
	// context's node, by id, or by name where id is zero.
	OpenObject(context uintptr, id [16]byte, name string) (uintptr, Status)
	// Publish makes a buffer's memory a sealed object of the store, behind every command sent so far.
	Publish(h uintptr, name string, meta []byte) (id [16]byte, err error)
}

// Base is a Driver that another one is made over: with what OpenCL has no call for.
type Base interface {
	Driver

	// OpenUncopied is OpenObject that answers CL_INVALID_OPERATION where the buffer would be a copy of the object.
	OpenUncopied(context uintptr, id [16]byte, name string) (uintptr, Status)
	// NodeOf numbers the daemon that a platform's devices belong to, from 0 in the order in which the servers were
	// named.
	NodeOf(platform uintptr) int
	// ArgumentUse answers for an argument of a kernel.
	ArgumentUse(kernel uintptr, index uint32) ArgumentUse
	// Memory is a buffer's memory where the device computes on memory shared with this process, nil elsewhere. It
	// is valid until the buffer is released, and its contents are right when the commands that write them have
	// ended.
	Memory(buffer uintptr) []byte
	// Push starts a push and gives the event of Dst's context, with a reference, that ends with it. ok false:
	// there is no way from worker to worker for it, and nothing was done.
	Push(p Push) (event uintptr, ok bool)
	// BridgeEvent makes an event of a context that ends as a command's event of another worker's does, told from
	// worker to worker. The caller owns the handle. ok false: there is no such way, and nothing was done.
	BridgeEvent(event, context uintptr) (bridge uintptr, ok bool)
	// SVMBuffer makes shared virtual memory as a buffer. It lies at an address that the caller holds in this process,
	// or where the driver chooses. got is where; 0: something else lies there in the worker.
	SVMBuffer(context, address uintptr, flags, size uint64, align uint32) (buffer, got uintptr, err error)
	// SVMPart makes a buffer of n bytes of one that SVMBuffer made: both are the same memory.
	SVMPart(whole uintptr, given []uint64, flags, off, n uint64) (uintptr, Status)
	// SetKernelArgAt is SetKernelArgSVM with an address in a buffer that SVMBuffer made, SetKernelReach
	// SetKernelExecInfo with such addresses.
	SetKernelArgAt(kernel uintptr, index uint32, buffer, address uintptr) Status
	// SetKernelReach: see SetKernelArgAt.
	SetKernelReach(kernel uintptr, buffers, addresses []uintptr) Status
	// Warn tells of what cannot be, in the log and in the trace, and to a context's callback.
	Warn(context uintptr, text string)
	// Hear takes what the workers of events have to say of commands that have ended: whatever ended before the
	// call is known after it.
	Hear(events []uintptr)
	// InCallback says whether the caller is one of the program's callbacks, which must not wait for others.
	InCallback() bool
	// Notify runs a callback of the program's in its turn, after those that are due already.
	Notify(call func())
}
