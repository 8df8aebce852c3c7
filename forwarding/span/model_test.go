package span

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// model is a Base in memory: platforms of one device each, whose buffers are real bytes and whose queues execute. A
// command runs when what it waits for has ended; of those that may run a random one is taken. Objects of different
// contexts do not mix, as with session: what package span gets wrong about members is refused here, and a byte that it
// does not move is not there. The tests over it reach 90 % of the package.
type model struct {
	modelSVM
	t *testing.T

	mu        sync.Mutex
	changed   sync.Cond // a command has ended, or may run, or somebody waits
	random    *rand.Rand
	objects   map[uintptr]*thing
	last      uintptr
	platforms []uintptr
	devices   []uintptr
	ready     []*modelCommand // enqueued, not ended
	calls     []func()        // of callbacks, in order
	calling   bool            // one of them runs
	waiters   int
	lazy      bool // commands run only while somebody waits
	links     bool // Push and BridgeEvent have a way
	lossy     bool // some pushes are lost
	shared    bool // buffers' memory is shared with this process
	noImages  int  // the device without them; -1: none
	closed    bool
	running   sync.WaitGroup
	moved     int // pushes that brought their bytes
}

// thing is an object of the model.
type thing struct {
	refs    int
	ctx     *thing // of a context itself: nil
	kind    string
	device  uintptr   // of a context, a queue
	data    []byte    // of a buffer, an image; a part of its parent's
	parent  *thing    // keeps it
	flags   uint64    // of memory
	props   uint64    // of a queue
	element uint64    // bytes of an image's element
	extent  [3]uint64 // of an image
	layout  api.ImageDesc
	event   *modelEvent
	tail    []*modelCommand // of a queue: not ended
	barrier *modelCommand
	args    map[uint32][]byte // of a kernel
	offs    map[uint32]uint64 // of a kernel's argument in its buffer: an address of shared virtual memory
	reach   []uintptr         // of a kernel
	at      uintptr           // of shared virtual memory
	name    string            // of a kernel; of a program: its source
	built   bool
	shown   map[uintptr]*shownMap
	record  []func() // of a command buffer
	ended   []func()
}

// shownMap is a mapping: the memory that the program has, and where it lies in the object.
type shownMap struct {
	memory []byte
	back   func()
	writes bool
}

type modelEvent struct {
	status int32
	kind   uint32
	queue  uintptr
	calls  []func(int32)
}

type modelCommand struct {
	event  *modelEvent
	behind []*modelEvent // in the order of the queue
	waits  []*modelEvent // a failure among them is this one's
	do     func()
}

func newModel(t *testing.T, members int, seed uint64) *model {
	m := &model{t: t, random: rand.New(rand.NewPCG(seed, 7)), objects: map[uintptr]*thing{}, last: 1 << 12,
		noImages: -1}
	m.changed.L = &m.mu
	for range members {
		m.platforms = append(m.platforms, m.put(&thing{kind: "platform"}))
		m.devices = append(m.devices, m.put(&thing{kind: "device"}))
	}
	m.running.Go(m.execute)
	m.running.Go(m.callBack)
	t.Cleanup(m.close)
	return m
}

func (m *model) close() {
	m.mu.Lock()
	m.closed = true
	m.changed.Broadcast()
	m.mu.Unlock()
	m.running.Wait()
}

func (m *model) put(x *thing) uintptr {
	m.last += 16
	x.refs = 1
	m.objects[m.last] = x
	return m.last
}

// left lists what has not been released, but for platforms and devices.
func (m *model) left() (kinds []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h, x := range m.objects {
		if x.kind != "platform" && x.kind != "device" {
			kinds = append(kinds, fmt.Sprintf("%s %#x (%d)", x.kind, h, x.refs))
		}
	}
	slices.Sort(kinds)
	return kinds
}

func (m *model) get(h uintptr, kind string) *thing {
	if x := m.objects[h]; x != nil && x.kind == kind {
		return x
	}
	return nil
}

func (m *model) memory(h uintptr) *thing {
	if x := m.get(h, "buffer"); x != nil {
		return x
	}
	return m.get(h, "image")
}

func (m *model) retain(h uintptr, refused api.Status, kinds ...string) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.objects[h]
	if x == nil || !slices.Contains(kinds, x.kind) {
		return refused
	}
	x.refs++
	return cl.SUCCESS
}

func (m *model) release(h uintptr, refused api.Status, kinds ...string) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.objects[h]
	if x == nil || !slices.Contains(kinds, x.kind) {
		return refused
	}
	if x.refs--; x.refs == 0 {
		delete(m.objects, h)
		m.calls = append(m.calls, x.ended...)
		m.changed.Broadcast()
	}
	return cl.SUCCESS
}

// execute runs commands in a random order among those that may run.
func (m *model) execute() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.closed {
		var may []*modelCommand
		if !m.lazy || m.waiters > 0 {
			for _, c := range m.ready {
				if c.mayRun() {
					may = append(may, c)
				}
			}
		}
		if len(may) == 0 {
			m.changed.Wait()
			continue
		}
		m.run(may[m.random.IntN(len(may))])
	}
}

func (c *modelCommand) mayRun() bool {
	open := func(e *modelEvent) bool { return e.status > 0 }
	return !slices.ContainsFunc(c.behind, open) && !slices.ContainsFunc(c.waits, open)
}

func (m *model) run(c *modelCommand) {
	m.ready = slices.DeleteFunc(m.ready, func(x *modelCommand) bool { return x == c })
	status := int32(cl.COMPLETE)
	for _, e := range c.waits {
		if e.status < 0 {
			status = cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
		}
	}
	if status == cl.COMPLETE && c.do != nil {
		c.do()
	}
	m.end(c.event, status)
}

func (m *model) end(e *modelEvent, status int32) {
	e.status = status
	for _, call := range e.calls {
		m.calls = append(m.calls, func() { call(status) })
	}
	e.calls = nil
	m.changed.Broadcast()
}

func (m *model) callBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case len(m.calls) > 0:
			call := m.calls[0]
			m.calls, m.calling = m.calls[1:], true
			m.mu.Unlock()
			call()
			m.mu.Lock()
			m.calling = false
			m.changed.Broadcast()
		case m.closed:
			return
		default:
			m.changed.Wait()
		}
	}
}

// await waits until a condition holds, and lets commands run.
func (m *model) await(holds func() bool) {
	m.waiters++
	m.changed.Broadcast()
	for !holds() && !m.closed {
		m.changed.Wait()
	}
	m.waiters--
}

// enqueue is what all commands share. The caller holds m.mu.
func (m *model) enqueue(q *thing, queue uintptr, kind uint32, blocking bool, w api.Waits, do func()) (uintptr,
	api.Status) {
	if cb, ok := w.Recorder.(*thing); ok {
		cb.record = append(cb.record, do)
		return 0, cl.SUCCESS
	}
	waits, status := m.waitList(q, w)
	if status != cl.SUCCESS {
		return 0, status
	}
	c := &modelCommand{event: &modelEvent{status: cl.SUBMITTED, kind: kind, queue: queue}, waits: waits, do: do}
	q.tail = slices.DeleteFunc(q.tail, func(x *modelCommand) bool { return x.event.status <= 0 })
	all := kind == cl.COMMAND_BARRIER && len(waits) == 0 || kind == cl.COMMAND_MARKER && len(waits) == 0
	if q.barrier != nil {
		c.behind = append(c.behind, q.barrier.event)
	}
	if q.props&cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0 || all {
		for _, before := range q.tail {
			c.behind = append(c.behind, before.event)
		}
	}
	q.tail = append(q.tail, c)
	if kind == cl.COMMAND_BARRIER {
		q.barrier = c
	}
	m.ready = append(m.ready, c)
	m.changed.Broadcast()
	var h uintptr
	if w.Want {
		h = m.put(&thing{kind: "event", ctx: q.ctx, event: c.event})
	}
	if blocking {
		m.await(func() bool { return c.event.status <= 0 })
		if c.event.status < 0 {
			return h, api.Status(c.event.status)
		}
	}
	return h, cl.SUCCESS
}

func (m *model) waitList(q *thing, w api.Waits) (waits []*modelEvent, status api.Status) {
	if int(w.N) != len(w.List) {
		return nil, cl.INVALID_EVENT_WAIT_LIST
	}
	for _, h := range w.List {
		e := m.get(h, "event")
		switch {
		case e == nil:
			return nil, cl.INVALID_EVENT_WAIT_LIST
		case e.ctx != q.ctx:
			return nil, cl.INVALID_CONTEXT
		}
		waits = append(waits, e.event)
	}
	return waits, cl.SUCCESS
}

// on resolves a queue and memory objects of its context. The caller holds m.mu.
func (m *model) on(queue uintptr, objects ...uintptr) (q *thing, found []*thing, status api.Status) {
	if q = m.get(queue, "queue"); q == nil {
		return nil, nil, cl.INVALID_COMMAND_QUEUE
	}
	for _, h := range objects {
		x := m.memory(h)
		switch {
		case x == nil:
			return nil, nil, cl.INVALID_MEM_OBJECT
		case x.ctx != q.ctx:
			return nil, nil, cl.INVALID_CONTEXT
		}
		found = append(found, x)
	}
	return q, found, cl.SUCCESS
}

func (m *model) Platforms() []uintptr { return m.platforms }

func (m *model) PlatformInfo(h uintptr, param uint32) ([]byte, api.Status) {
	i := slices.Index(m.platforms, h)
	switch {
	case i < 0:
		return nil, cl.INVALID_PLATFORM
	case param == cl.PLATFORM_VERSION:
		return answers.String(fmt.Sprintf("OpenCL 3.%d model", i)), cl.SUCCESS
	case param == cl.PLATFORM_NUMERIC_VERSION && i > 0:
		return answers.U32(3<<22 | uint32(i)<<12), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (m *model) UnloadPlatformCompiler(h uintptr) api.Status {
	return m.check(slices.Contains(m.platforms, h), cl.INVALID_PLATFORM)
}

func (m *model) check(ok bool, refused api.Status) api.Status {
	if ok {
		return cl.SUCCESS
	}
	return refused
}

func (m *model) DeviceIDs(platform uintptr, kind uint64) ([]uintptr, api.Status) {
	i := slices.Index(m.platforms, platform)
	switch {
	case i < 0:
		return nil, cl.INVALID_PLATFORM
	case kind&(cl.DEVICE_TYPE_CPU|cl.DEVICE_TYPE_DEFAULT) == 0:
		return nil, cl.DEVICE_NOT_FOUND
	}
	return []uintptr{m.devices[i]}, cl.SUCCESS
}

func (m *model) DeviceInfo(h uintptr, param uint32) ([]byte, api.Status) {
	i := slices.Index(m.devices, h)
	if i < 0 {
		return nil, cl.INVALID_DEVICE
	}
	switch param {
	case cl.DEVICE_PLATFORM:
		return answers.Size(m.platforms[i]), cl.SUCCESS
	case cl.DEVICE_MEM_BASE_ADDR_ALIGN:
		return answers.U32(8 * 4), cl.SUCCESS
	case cl.DEVICE_IMAGE_SUPPORT:
		return answers.U32(uint32(min(1, max(i-m.noImages, m.noImages-i)))), cl.SUCCESS
	case cl.DEVICE_SVM_CAPABILITIES:
		return answers.U64(m.svm[i]), cl.SUCCESS
	case cl.DEVICE_MAX_MEM_ALLOC_SIZE:
		return answers.U64(1 << 24), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (m *model) CreateSubDevices(h uintptr, _ []uint64, _ uint32) ([]uintptr, uint32, api.Status) {
	return nil, 0, m.check(slices.Contains(m.devices, h), cl.INVALID_DEVICE)
}
func (m *model) RetainDevice(h uintptr) api.Status { return m.retain(h, cl.INVALID_DEVICE, "device") }
func (m *model) ReleaseDevice(h uintptr) api.Status {
	return m.release(h, cl.INVALID_DEVICE, "device")
}
func (m *model) DeviceTimer(h uintptr) (device, host uint64, status api.Status) {
	return 2, 1, m.check(slices.Contains(m.devices, h), cl.INVALID_DEVICE)
}
func (m *model) HostTimer(h uintptr) (uint64, api.Status) {
	return 1, m.check(slices.Contains(m.devices, h), cl.INVALID_DEVICE)
}

func (m *model) CreateContext(properties []uint64, devices []uintptr, _ func(string)) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(devices) != 1 || !slices.Contains(m.devices, devices[0]) {
		return 0, cl.INVALID_DEVICE
	}
	if len(properties) > 1 && !slices.Contains(m.platforms, uintptr(properties[1])) {
		return 0, cl.INVALID_PLATFORM
	}
	x := &thing{kind: "context", device: devices[0]}
	if len(properties) > 1 {
		x.props = properties[1]
	}
	return m.put(x), cl.SUCCESS
}

func (m *model) CreateContextFromType(properties []uint64, _ uint64, report func(string)) (uintptr, api.Status) {
	return m.CreateContext(properties, m.devices[:1], report)
}
func (m *model) RetainContext(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_CONTEXT, "context")
}
func (m *model) ReleaseContext(h uintptr) api.Status {
	return m.release(h, cl.INVALID_CONTEXT, "context")
}

func (m *model) ContextInfo(h uintptr, param uint32) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.get(h, "context")
	switch {
	case x == nil:
		return nil, cl.INVALID_CONTEXT
	case param == cl.CONTEXT_PROPERTIES:
		return answers.Sizes([]uint64{cl.CONTEXT_PLATFORM, x.props, 0}), cl.SUCCESS
	case param == cl.CONTEXT_NUM_DEVICES:
		return answers.U32(1), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (m *model) onEnd(h uintptr, call func(), refused api.Status, kinds ...string) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.objects[h]
	if x == nil || !slices.Contains(kinds, x.kind) {
		return refused
	}
	x.ended = append(x.ended, call)
	return cl.SUCCESS
}

func (m *model) SetContextDestructorCallback(h uintptr, call func()) api.Status {
	return m.onEnd(h, call, cl.INVALID_CONTEXT, "context")
}

func (m *model) CreateQueue(context, device uintptr, props uint64) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	switch {
	case c == nil:
		return 0, cl.INVALID_CONTEXT
	case c.device != device:
		return 0, cl.INVALID_DEVICE
	}
	return m.put(&thing{kind: "queue", ctx: c, device: device, props: props}), cl.SUCCESS
}

func (m *model) CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, api.Status) {
	props := uint64(0)
	if len(given) > 1 {
		props = given[1]
	}
	return m.CreateQueue(context, device, props)
}
func (m *model) RetainQueue(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_COMMAND_QUEUE, "queue")
}
func (m *model) ReleaseQueue(h uintptr) api.Status {
	return m.release(h, cl.INVALID_COMMAND_QUEUE, "queue")
}

func (m *model) QueueInfo(h uintptr, param uint32) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.get(h, "queue")
	switch {
	case q == nil:
		return nil, cl.INVALID_COMMAND_QUEUE
	case param == cl.QUEUE_PROPERTIES:
		return answers.U64(q.props), cl.SUCCESS
	case param == cl.QUEUE_DEVICE:
		return answers.Size(q.device), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (m *model) Flush(h uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.check(m.get(h, "queue") != nil, cl.INVALID_COMMAND_QUEUE)
}

func (m *model) Finish(h uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.get(h, "queue")
	if q == nil {
		return cl.INVALID_COMMAND_QUEUE
	}
	tail := slices.Clone(q.tail)
	m.await(func() bool {
		return !slices.ContainsFunc(tail, func(c *modelCommand) bool { return c.event.status > 0 })
	})
	return cl.SUCCESS
}

func (m *model) plain(queue uintptr, kind uint32, w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, _, status := m.on(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	return m.enqueue(q, queue, kind, false, w, func() {})
}

func (m *model) EnqueueMarker(queue uintptr, w api.Waits) (uintptr, api.Status) {
	return m.plain(queue, cl.COMMAND_MARKER, w)
}
func (m *model) EnqueueBarrier(queue uintptr, w api.Waits) (uintptr, api.Status) {
	return m.plain(queue, cl.COMMAND_BARRIER, w)
}
func (m *model) EnqueueWaitForEvents(queue uintptr, w api.Waits) api.Status {
	_, status := m.plain(queue, cl.COMMAND_BARRIER, w)
	return status
}

func (m *model) CreateBuffer(context uintptr, _ []uint64, flags, size uint64, host api.HostPtr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	switch {
	case c == nil:
		return 0, cl.INVALID_CONTEXT
	case size == 0:
		return 0, cl.INVALID_BUFFER_SIZE
	case (flags&(cl.MEM_COPY_HOST_PTR|cl.MEM_USE_HOST_PTR) != 0) == host.Nil():
		return 0, cl.INVALID_HOST_PTR
	}
	if flags&7 == 0 {
		flags |= cl.MEM_READ_WRITE
	}
	x := &thing{kind: "buffer", ctx: c, flags: flags, data: make([]byte, size)}
	for i := range x.data {
		x.data[i] = 0xEE // what a member never got
	}
	if !host.Nil() {
		copy(x.data, host.Bytes(0, size))
	}
	return m.put(x), cl.SUCCESS
}

func (m *model) CreateSubBuffer(parent uintptr, flags uint64, createType uint32, hasInfo bool, origin,
	size uint64) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.get(parent, "buffer")
	switch {
	case p == nil || p.parent != nil:
		return 0, cl.INVALID_MEM_OBJECT
	case createType != cl.BUFFER_CREATE_TYPE_REGION || !hasInfo || origin+size > uint64(len(p.data)):
		return 0, cl.INVALID_VALUE
	case origin%4 != 0:
		return 0, cl.MISALIGNED_SUB_BUFFER_OFFSET
	}
	return m.put(&thing{kind: "buffer", ctx: p.ctx, flags: flags | p.flags, parent: p,
		data: p.data[origin : origin+size : origin+size]}), cl.SUCCESS
}

func (m *model) RetainMemObject(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_MEM_OBJECT, "buffer", "image")
}
func (m *model) ReleaseMemObject(h uintptr) api.Status {
	return m.release(h, cl.INVALID_MEM_OBJECT, "buffer", "image")
}
func (m *model) SetMemObjectDestructorCallback(h uintptr, call func()) api.Status {
	return m.onEnd(h, call, cl.INVALID_MEM_OBJECT, "buffer", "image")
}

func (m *model) MemObjectInfo(h uintptr, param uint32) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.memory(h)
	switch {
	case x == nil:
		return nil, cl.INVALID_MEM_OBJECT
	case param == cl.MEM_FLAGS:
		return answers.U64(x.flags), cl.SUCCESS
	case param == cl.MEM_SIZE:
		return answers.U64(uint64(len(x.data))), cl.SUCCESS
	case param == cl.MEM_TYPE:
		return answers.U32(cl.MEM_OBJECT_BUFFER), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// linear enqueues a command on ranges of buffers, each checked.
func (m *model) linear(queue uintptr, kind uint32, blocking bool, w api.Waits, size uint64, do func(parts [][]byte),
	at ...any) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var parts [][]byte
	var q *thing
	for i := 0; i < len(at); i += 2 {
		found, list, status := m.on(queue, at[i].(uintptr))
		if status != cl.SUCCESS {
			return 0, status
		}
		off := at[i+1].(uint64)
		if size > uint64(len(list[0].data)) || off > uint64(len(list[0].data))-size {
			return 0, cl.INVALID_VALUE
		}
		q, parts = found, append(parts, list[0].data[off:off+size])
	}
	return m.enqueue(q, queue, kind, blocking, w, func() { do(parts) })
}

func (m *model) EnqueueRead(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return m.linear(queue, cl.COMMAND_READ_BUFFER, blocking, w, size,
		func(p [][]byte) { copy(ptr.Bytes(0, size), p[0]) }, buffer, off)
}
func (m *model) EnqueueWrite(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return m.linear(queue, cl.COMMAND_WRITE_BUFFER, blocking, w, size,
		func(p [][]byte) { copy(p[0], ptr.Bytes(0, size)) }, buffer, off)
}
func (m *model) EnqueueCopy(queue, src, dst uintptr, srcOff, dstOff, size uint64, w api.Waits) (uintptr, api.Status) {
	return m.linear(queue, cl.COMMAND_COPY_BUFFER, false, w, size, func(p [][]byte) { copy(p[1], p[0]) }, src,
		srcOff, dst, dstOff)
}
func (m *model) EnqueueFill(queue, buffer uintptr, pattern api.HostPtr, patternSize, off, size uint64,
	w api.Waits) (uintptr, api.Status) {
	with := slices.Clone(pattern.Bytes(0, patternSize))
	return m.linear(queue, cl.COMMAND_FILL_BUFFER, false, w, size, func(p [][]byte) {
		for at := 0; at < len(p[0]); at += len(with) {
			copy(p[0][at:], with)
		}
	}, buffer, off)
}

// rows calls f with where each row of a box lies on both sides.
func rows(a, b, region [3]uint64, aRow, aSlice, bRow, bSlice uint64, f func(a, b, n uint64)) {
	pitch := func(row, slice uint64) (uint64, uint64) {
		if row == 0 {
			row = region[0]
		}
		if slice == 0 {
			slice = row * region[1]
		}
		return row, slice
	}
	aRow, aSlice = pitch(aRow, aSlice)
	bRow, bSlice = pitch(bRow, bSlice)
	for z := range region[2] {
		for y := range region[1] {
			f(a[0]+(a[1]+y)*aRow+(a[2]+z)*aSlice, b[0]+(b[1]+y)*bRow+(b[2]+z)*bSlice, region[0])
		}
	}
}

func (m *model) rect(queue, buffer uintptr, kind uint32, blocking bool, r api.Rect, w api.Waits,
	move func(in []byte, host uint64)) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, list, status := m.on(queue, buffer)
	if status != cl.SUCCESS {
		return 0, status
	}
	fits := r.Region[0]*r.Region[1]*r.Region[2] > 0
	each := func(f func(in []byte, host uint64)) {
		rows(r.BufferOrigin, r.HostOrigin, r.Region, r.BufferRow, r.BufferSlice, r.HostRow, r.HostSlice,
			func(a, b, n uint64) {
				if fits = fits && a+n <= uint64(len(list[0].data)); fits {
					f(list[0].data[a:a+n], b)
				}
			})
	}
	if each(func([]byte, uint64) {}); !fits {
		return 0, cl.INVALID_VALUE
	}
	return m.enqueue(q, queue, kind, blocking, w, func() { each(move) })
}

func (m *model) EnqueueReadRect(queue, buffer uintptr, blocking bool, r api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return m.rect(queue, buffer, cl.COMMAND_READ_BUFFER_RECT, blocking, r, w,
		func(in []byte, host uint64) { copy(ptr.Bytes(host, uint64(len(in))), in) })
}
func (m *model) EnqueueWriteRect(queue, buffer uintptr, blocking bool, r api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return m.rect(queue, buffer, cl.COMMAND_WRITE_BUFFER_RECT, blocking, r, w,
		func(in []byte, host uint64) { copy(in, ptr.Bytes(host, uint64(len(in)))) })
}
func (m *model) EnqueueCopyRect(queue, src, dst uintptr, r api.Rect, w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	to := m.memory(dst)
	m.mu.Unlock()
	if to == nil {
		return 0, cl.INVALID_MEM_OBJECT
	}
	return m.rect(queue, src, cl.COMMAND_COPY_BUFFER_RECT, false, r, w,
		func(in []byte, at uint64) { copy(to.data[at:], in) })
}

func (m *model) EnqueueMap(queue, buffer uintptr, blocking bool, flags, off, size uint64, w api.Waits) (api.HostPtr,
	uintptr, api.Status) {
	m.mu.Lock()
	x := m.get(buffer, "buffer")
	m.mu.Unlock()
	if x != nil && (size == 0 || off+size > uint64(len(x.data))) {
		return api.HostPtr{}, 0, cl.INVALID_VALUE
	}
	s := &shownMap{memory: make([]byte, size), writes: flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0}
	event, status := m.linear(queue, cl.COMMAND_MAP_BUFFER, blocking, w, size,
		func(p [][]byte) { copy(s.memory, p[0]) }, buffer, off)
	if status != cl.SUCCESS {
		return api.HostPtr{}, 0, status
	}
	s.back = func() { copy(x.data[off:], s.memory) }
	return m.show(x, s), event, cl.SUCCESS
}

func (m *model) show(x *thing, s *shownMap) api.HostPtr {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.shown == nil {
		x.shown = map[uintptr]*shownMap{}
	}
	at := api.HostBytes(s.memory)
	x.shown[at.Address()] = s
	return at
}

func (m *model) EnqueueUnmap(queue, memory uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, list, status := m.on(queue, memory)
	if status != cl.SUCCESS {
		return 0, status
	}
	s := list[0].shown[ptr.Address()]
	if s == nil {
		return 0, cl.INVALID_VALUE
	}
	delete(list[0].shown, ptr.Address())
	return m.enqueue(q, queue, cl.COMMAND_UNMAP_MEM_OBJECT, false, w, func() {
		if s.writes {
			s.back()
		}
	})
}

func (m *model) EnqueueMigrate(queue uintptr, buffers []uintptr, _ uint64, w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, _, status := m.on(queue, buffers...)
	if status != cl.SUCCESS {
		return 0, status
	}
	return m.enqueue(q, queue, cl.COMMAND_MIGRATE_MEM_OBJECTS, false, w, func() {})
}

func (m *model) SetContentSizeBuffer(buffer, size uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.check(m.get(buffer, "buffer") != nil && (size == 0 || m.get(size, "buffer") != nil), cl.INVALID_MEM_OBJECT)
}

// Programs: the source's words are the kernels' names. A word "broken" does not build.

func (m *model) program(context uintptr, source string) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	if c == nil {
		return 0, cl.INVALID_CONTEXT
	}
	return m.put(&thing{kind: "program", ctx: c, device: c.device, name: source}), cl.SUCCESS
}

func (m *model) CreateProgramWithSource(context uintptr, parts []string) (uintptr, api.Status) {
	return m.program(context, strings.Join(parts, ""))
}
func (m *model) CreateProgramWithBinary(context uintptr, _ []uintptr, binaries [][]byte) (uintptr, api.Status,
	api.Status) {
	if len(binaries[0]) == 0 {
		return 0, cl.INVALID_BINARY, cl.INVALID_BINARY
	}
	h, status := m.program(context, string(binaries[0]))
	return h, cl.SUCCESS, status
}
func (m *model) CreateProgramWithIL(context uintptr, il []byte) (uintptr, api.Status) {
	if string(il) == "nobody's" {
		return 0, cl.INVALID_OPERATION
	}
	return m.program(context, string(il))
}
func (m *model) CreateProgramWithBuiltInKernels(context uintptr, _ []uintptr, names string) (uintptr, api.Status) {
	if names == "" {
		return 0, cl.INVALID_VALUE
	}
	return m.program(context, names)
}

func (m *model) withProgram(h uintptr, f func(p *thing) api.Status) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.get(h, "program")
	if p == nil {
		return cl.INVALID_PROGRAM
	}
	return f(p)
}

func (m *model) SetSpecConstant(h uintptr, id uint32, _ []byte) api.Status {
	return m.withProgram(h, func(*thing) api.Status { return m.check(id == 0, cl.INVALID_SPEC_ID) })
}
func (m *model) Build(h uintptr, _ bool, _ []uintptr, _ string, done func()) api.Status {
	return m.withProgram(h, func(p *thing) api.Status {
		p.built = !strings.Contains(p.name, "broken")
		if done != nil {
			m.calls = append(m.calls, done)
		}
		return m.check(p.built, cl.BUILD_PROGRAM_FAILURE)
	})
}
func (m *model) Compile(h uintptr, hasList bool, devices []uintptr, options string, headers []uintptr, names []string,
	_, _ bool, done func()) api.Status {
	if len(headers) != len(names) {
		return cl.INVALID_VALUE
	}
	return m.Build(h, hasList, devices, options, done)
}
func (m *model) Link(context uintptr, _ bool, _ []uintptr, _ string, programs []uintptr, _ func(uintptr)) (uintptr,
	api.Status) {
	var source []string
	for _, h := range programs {
		if status := m.withProgram(h,
			func(p *thing) api.Status { source = append(source, p.name); return cl.SUCCESS }); status != cl.SUCCESS {
			return 0, status
		}
	}
	h, status := m.program(context, strings.Join(source, " "))
	if status == cl.SUCCESS {
		status = m.Build(h, false, nil, "", nil)
	}
	return h, status
}
func (m *model) RetainProgram(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_PROGRAM, "program")
}
func (m *model) ReleaseProgram(h uintptr) api.Status {
	return m.release(h, cl.INVALID_PROGRAM, "program")
}
func (m *model) ProgramInfo(h uintptr, param uint32) (answer []byte, status api.Status) {
	status = m.withProgram(h, func(p *thing) api.Status {
		switch param {
		case cl.PROGRAM_KERNEL_NAMES:
			answer = answers.String(strings.Join(strings.Fields(p.name), ";"))
			return m.check(p.built, cl.INVALID_PROGRAM_EXECUTABLE)
		case cl.PROGRAM_DEVICES:
			answer = answers.Size(p.device)
		case cl.PROGRAM_BINARY_SIZES:
			answer = answers.U64(uint64(len(p.name)))
		default:
			return cl.INVALID_VALUE
		}
		return cl.SUCCESS
	})
	return answer, status
}
func (m *model) ProgramBuildInfo(h, _ uintptr, _ uint32) ([]byte, api.Status) {
	return nil, m.withProgram(h, func(*thing) api.Status { return cl.SUCCESS })
}
func (m *model) Binaries(h uintptr) (list [][]byte, status api.Status) {
	status = m.withProgram(h, func(p *thing) api.Status { list = [][]byte{[]byte(p.name)}; return cl.SUCCESS })
	return list, status
}

// Kernels: "add" adds a byte to each byte of a buffer, "sum" adds a buffer to another one.

func (m *model) CreateKernel(program uintptr, name string) (h uintptr, status api.Status) {
	status = m.withProgram(program, func(p *thing) api.Status {
		switch {
		case !p.built:
			return cl.INVALID_PROGRAM_EXECUTABLE
		case !slices.Contains(strings.Fields(p.name), name):
			return cl.INVALID_KERNEL_NAME
		}
		h = m.put(&thing{kind: "kernel", ctx: p.ctx, name: name, args: map[uint32][]byte{}, offs: map[uint32]uint64{}})
		return cl.SUCCESS
	})
	return h, status
}
func (m *model) CreateKernels(program uintptr, _ int) ([]uintptr, int, api.Status) {
	return nil, 0, m.withProgram(program, func(*thing) api.Status { return cl.SUCCESS })
}
func (m *model) CloneKernel(h uintptr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(h, "kernel")
	if k == nil {
		return 0, cl.INVALID_KERNEL
	}
	same := &thing{kind: "kernel", ctx: k.ctx, name: k.name, args: map[uint32][]byte{}, offs: maps.Clone(k.offs),
		reach: k.reach}
	for i, v := range k.args {
		same.args[i] = v
	}
	return m.put(same), cl.SUCCESS
}
func (m *model) RetainKernel(h uintptr) api.Status { return m.retain(h, cl.INVALID_KERNEL, "kernel") }
func (m *model) ReleaseKernel(h uintptr) api.Status {
	return m.release(h, cl.INVALID_KERNEL, "kernel")
}
func (m *model) SetKernelArg(h uintptr, index uint32, size uint64, value api.HostPtr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(h, "kernel")
	switch {
	case k == nil:
		return cl.INVALID_KERNEL
	case index > 2:
		return cl.INVALID_ARG_INDEX
	}
	bytes := slices.Clone(value.Bytes(0, size))
	if m.argument(k, index).Memory {
		if b := m.memory(uintptr(answers.Number(bytes))); b == nil || b.ctx != k.ctx {
			return cl.INVALID_MEM_OBJECT
		}
	}
	k.args[index] = bytes
	delete(k.offs, index)
	return cl.SUCCESS
}
func (m *model) argument(k *thing, index uint32) api.ArgumentUse {
	switch {
	case index == 0:
		return api.ArgumentUse{Known: true, Memory: true, Writes: true}
	case k.name == "sum":
		return api.ArgumentUse{Known: true, Memory: true}
	case index == 2:
		return api.ArgumentUse{Known: true, Sampler: true}
	}
	return api.ArgumentUse{Known: true}
}
func (m *model) ArgumentUse(kernel uintptr, index uint32) api.ArgumentUse {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.get(kernel, "kernel"); k != nil {
		return m.argument(k, index)
	}
	return api.ArgumentUse{Writes: true}
}
func (m *model) kernelInfo(h uintptr) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return answers.U32(2), m.check(m.get(h, "kernel") != nil, cl.INVALID_KERNEL)
}
func (m *model) KernelInfo(h uintptr, _ uint32) ([]byte, api.Status)       { return m.kernelInfo(h) }
func (m *model) KernelArgInfo(h uintptr, _, _ uint32) ([]byte, api.Status) { return m.kernelInfo(h) }
func (m *model) KernelWorkGroupInfo(h, _ uintptr, _ uint32) ([]byte, api.Status) {
	return m.kernelInfo(h)
}
func (m *model) KernelSubGroupInfo(h, _ uintptr, _ uint32, _ []byte) ([]byte, api.Status) {
	return m.kernelInfo(h)
}

func (m *model) EnqueueNDRange(queue, kernel uintptr, _ *api.Range, w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, k := m.get(queue, "queue"), m.get(kernel, "kernel")
	switch {
	case q == nil:
		return 0, cl.INVALID_COMMAND_QUEUE
	case k == nil:
		return 0, cl.INVALID_KERNEL
	case k.ctx != q.ctx:
		return 0, cl.INVALID_CONTEXT
	case len(k.args) < 2:
		return 0, cl.INVALID_KERNEL_ARGS
	}
	to, with := m.memory(uintptr(answers.Number(k.args[0]))), k.args[1]
	data := to.data[k.offs[0]:]
	var from *thing
	if k.name == "sum" {
		from = m.memory(uintptr(answers.Number(with)))
	}
	return m.enqueue(q, queue, cl.COMMAND_NDRANGE_KERNEL, false, w, func() {
		for i := range data {
			switch {
			case from == nil:
				data[i] += with[0]
			case i < len(from.data):
				data[i] += from.data[i]
			}
		}
	})
}
func (m *model) EnqueueTask(queue, kernel uintptr, w api.Waits) (uintptr, api.Status) {
	return m.EnqueueNDRange(queue, kernel, nil, w)
}

func (m *model) CreateUserEvent(context uintptr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	if c == nil {
		return 0, cl.INVALID_CONTEXT
	}
	return m.put(&thing{kind: "event", ctx: c, event: &modelEvent{status: cl.SUBMITTED, kind: cl.COMMAND_USER}}),
		cl.SUCCESS
}

func (m *model) withEvent(h uintptr, f func(e *modelEvent) api.Status) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.get(h, "event")
	if e == nil {
		return cl.INVALID_EVENT
	}
	return f(e.event)
}
func (m *model) SetUserEventStatus(h uintptr, status int32) api.Status {
	return m.withEvent(h, func(e *modelEvent) api.Status {
		if e.status <= 0 {
			return cl.INVALID_OPERATION
		}
		m.end(e, status)
		return cl.SUCCESS
	})
}
func (m *model) RetainEvent(h uintptr) api.Status  { return m.retain(h, cl.INVALID_EVENT, "event") }
func (m *model) ReleaseEvent(h uintptr) api.Status { return m.release(h, cl.INVALID_EVENT, "event") }
func (m *model) EventInfo(h uintptr, param uint32) (answer []byte, status api.Status) {
	status = m.withEvent(h, func(e *modelEvent) api.Status {
		switch param {
		case cl.EVENT_COMMAND_EXECUTION_STATUS:
			answer = answers.U32(uint32(e.status))
		case cl.EVENT_COMMAND_TYPE:
			answer = answers.U32(e.kind)
		case cl.EVENT_COMMAND_QUEUE:
			answer = answers.Size(e.queue)
		default:
			return cl.INVALID_VALUE
		}
		return cl.SUCCESS
	})
	return answer, status
}
func (m *model) EventProfilingInfo(h uintptr, _ uint32) ([]byte, api.Status) {
	return answers.U64(1), m.withEvent(h, func(*modelEvent) api.Status { return cl.SUCCESS })
}
func (m *model) SetEventCallback(h uintptr, _ int32, call func(int32)) api.Status {
	return m.withEvent(h, func(e *modelEvent) api.Status {
		if e.status > 0 {
			e.calls = append(e.calls, call)
			return cl.SUCCESS
		}
		status := e.status
		m.calls = append(m.calls, func() { call(status) })
		m.changed.Broadcast()
		return cl.SUCCESS
	})
}
func (m *model) WaitForEvents(n uint32, list []uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n == 0 || int(n) != len(list) {
		return cl.INVALID_VALUE
	}
	var events []*modelEvent
	for _, h := range list {
		e := m.get(h, "event")
		if e == nil {
			return cl.INVALID_EVENT
		}
		events = append(events, e.event)
	}
	m.await(func() bool { return !slices.ContainsFunc(events, func(e *modelEvent) bool { return e.status > 0 }) })
	return m.check(!slices.ContainsFunc(events, func(e *modelEvent) bool { return e.status < 0 }),
		cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
}

func (m *model) CreateCommandBuffer(_ uint32, queues []uintptr, _ []uint64) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(queues) != 1 || m.get(queues[0], "queue") == nil {
		return 0, cl.INVALID_COMMAND_QUEUE
	}
	return m.put(&thing{kind: "graph", ctx: m.get(queues[0], "queue").ctx, device: queues[0]}), cl.SUCCESS
}
func (m *model) withGraph(h uintptr, f func(b *thing) api.Status) api.Status {
	m.mu.Lock()
	b := m.get(h, "graph")
	m.mu.Unlock()
	if b == nil {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	return f(b)
}
func (m *model) FinalizeCommandBuffer(h uintptr) api.Status {
	return m.withGraph(h, func(b *thing) api.Status { b.built = true; return cl.SUCCESS })
}
func (m *model) RetainCommandBuffer(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_COMMAND_BUFFER_KHR, "graph")
}
func (m *model) ReleaseCommandBuffer(h uintptr) api.Status {
	return m.release(h, cl.INVALID_COMMAND_BUFFER_KHR, "graph")
}
func (m *model) CommandBufferInfo(h uintptr, _ uint32) ([]byte, api.Status) {
	return answers.U32(1), m.withGraph(h, func(*thing) api.Status { return cl.SUCCESS })
}
func (m *model) Record(h uintptr, _ api.SyncPoints, call func(uintptr, api.Waits) (uintptr, api.Status)) (point uint32,
	status api.Status) {
	status = m.withGraph(h, func(b *thing) api.Status {
		if call == nil {
			return cl.SUCCESS
		}
		_, status := call(b.device, api.Waits{Recorder: b})
		return status
	})
	return 0, status
}
func (m *model) EnqueueCommandBuffer(_ uint32, queues []uintptr, h uintptr, w api.Waits) (event uintptr,
	status api.Status) {
	status = m.withGraph(h, func(b *thing) (status api.Status) {
		m.mu.Lock()
		defer m.mu.Unlock()
		queue := b.device
		if len(queues) > 0 {
			queue = queues[0]
		}
		event, status = m.enqueue(m.get(queue, "queue"), queue, cl.COMMAND_COMMAND_BUFFER_KHR, false, w, func() {
			for _, do := range b.record {
				do()
			}
		})
		return status
	})
	return event, status
}

// OpenUncopied: what has "near" in its name is copied by the members that it is not at.
func (m *model) OpenUncopied(context uintptr, id [16]byte, name string) (uintptr, api.Status) {
	place, near := strings.CutPrefix(name, "near ")
	if !near {
		return m.OpenObject(context, id, name)
	}
	h, status := m.OpenObject(context, id, "at "+place)
	if status == cl.INVALID_VALUE {
		status = cl.INVALID_OPERATION
	}
	return h, status
}

func (m *model) OpenObject(context uintptr, _ [16]byte, name string) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	switch {
	case c == nil:
		return 0, cl.INVALID_CONTEXT
	case strings.HasPrefix(name, "near "):
		return m.put(&thing{kind: "buffer", ctx: c, flags: cl.MEM_READ_ONLY, data: []byte("a copy of the object")}),
			cl.SUCCESS
	case name != fmt.Sprint("at ", slices.Index(m.devices, c.device)):
		return 0, cl.INVALID_VALUE
	}
	return m.put(&thing{kind: "buffer", ctx: c, flags: cl.MEM_READ_ONLY, data: []byte("an object of the store's")}),
		cl.SUCCESS
}
func (m *model) Publish(h uintptr, _ string, _ []byte) (id [16]byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.get(h, "buffer")
	if b == nil {
		return id, api.ErrNotPublishable
	}
	copy(id[:], b.data)
	return id, nil
}

func (m *model) NodeOf(platform uintptr) int { return slices.Index(m.platforms, platform) }
func (m *model) Memory(h uintptr) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.get(h, "buffer"); x != nil && m.shared {
		return x.data
	}
	return nil
}
func (m *model) Hear([]uintptr)   {}
func (m *model) InCallback() bool { return false }
func (m *model) Notify(call func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, call)
	m.changed.Broadcast()
}

func (m *model) events(list []uintptr) (events []*modelEvent) {
	for _, h := range list {
		e := m.get(h, "event")
		if e == nil {
			m.t.Errorf("a push names an event that is none: %#x", h)
			continue
		}
		events = append(events, e.event)
	}
	return events
}

// Push brings the bytes behind its events; a lost one says so in their place.
func (m *model) Push(p api.Push) (uintptr, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	src, dst := m.memory(p.Src), m.memory(p.Dst)
	if !m.links || src == nil || dst == nil {
		return 0, false
	}
	e := &modelEvent{status: cl.SUBMITTED, calls: []func(int32){p.Ended}}
	h := m.put(&thing{kind: "event", ctx: dst.ctx, event: e})
	m.objects[h].refs++ // until it has ended
	e.calls = append(e.calls, func(int32) { m.ReleaseEvent(h) })
	behind := slices.Concat(m.events(p.Before), m.events(p.Content.After))
	if m.lossy && m.random.IntN(2) == 0 {
		m.calls = append(m.calls, func() { p.Lost(h) })
		m.changed.Broadcast()
		return h, true
	}
	from, to := src.data[p.Off:p.Off+p.Size], dst.data[p.Off:p.Off+p.Size]
	m.ready = append(m.ready, &modelCommand{event: e, behind: behind, waits: m.events(p.After), do: func() {
		copy(to, from)
		m.moved++
	}})
	m.changed.Broadcast()
	return h, true
}

func (m *model) BridgeEvent(event, context uintptr) (uintptr, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of, c := m.get(event, "event"), m.get(context, "context")
	if !m.links || of == nil || c == nil {
		return 0, false
	}
	e := &modelEvent{status: cl.SUBMITTED}
	m.ready = append(m.ready, &modelCommand{event: e, waits: []*modelEvent{of.event}})
	m.changed.Broadcast()
	return m.put(&thing{kind: "event", ctx: c, event: e}), true
}
