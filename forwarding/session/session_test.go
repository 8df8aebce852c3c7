package session

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

// rig is one program on a fake node.
type rig struct {
	t    testing.TB
	node *fakeNode
	d    *Driver
	ctx  uintptr
	dev  uintptr
	log  *logLines
}

type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, s)
}

func (l *logLines) contain(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.lines, func(line string) bool { return strings.Contains(line, s) })
}

func newRig(t testing.TB, inPlace bool, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, node: newFakeNode(t, inPlace), log: &logLines{}}
	config := Config{Dial: func() (node.Control, error) { return r.node, nil }, Spin: 20 * time.Microsecond,
		Log: r.log.add}
	for _, f := range change {
		f(&config)
	}
	var err error
	if r.d, err = New(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.d.Close(); r.node.check() })
	platforms := r.d.Platforms()
	if len(platforms) != 1 {
		t.Fatalf("%d platforms", len(platforms))
	}
	devices, status := r.d.DeviceIDs(platforms[0], cl.DEVICE_TYPE_ALL)
	r.ok(status)
	r.dev = devices[0]
	r.ctx = r.handle(r.d.CreateContext(nil, devices, nil))
	return r
}

func (r *rig) ok(s api.Status) {
	r.t.Helper()
	if s != cl.SUCCESS {
		r.t.Fatalf("status %d", s)
	}
}

func (r *rig) is(got, want api.Status) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("status %d, want %d", got, want)
	}
}

func (r *rig) handle(h uintptr, s api.Status) uintptr {
	r.t.Helper()
	r.ok(s)
	return h
}

func (r *rig) queue(props uint64) uintptr { return r.handle(r.d.CreateQueue(r.ctx, r.dev, props)) }
func (r *rig) buffer(size uint64) uintptr {
	return r.handle(r.d.CreateBuffer(r.ctx, nil, 0, size, api.HostPtr{}))
}

// kernel builds a program of one kernel.
func (r *rig) kernel(declaration string) uintptr {
	r.t.Helper()
	p := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{declaration}))
	r.ok(r.d.Build(p, false, nil, "", nil))
	return r.handle(r.d.CreateKernel(p, strings.Fields(declaration)[1]))
}

// ptr hands a slice over as a program does: by an address that Go's collector does not follow. What is kept makes
// callers' arrays live on the heap, where they do not move as on a stack that grows, and live on for a while.
func ptr(b []byte) api.HostPtr {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	lent.last[lent.n%len(lent.last)] = b
	lent.n++
	return api.HostBytes(b)
}

var lent struct {
	mu   sync.Mutex
	last [64][]byte
	n    int
}

func (r *rig) setMem(k uintptr, index uint32, b uintptr) {
	r.t.Helper()
	value := le.AppendUint64(nil, uint64(b))
	r.ok(r.d.SetKernelArg(k, index, 8, ptr(value)))
}

func (r *rig) launch(q, k uintptr, w api.Waits) uintptr {
	r.t.Helper()
	return r.handle(r.d.EnqueueNDRange(q, k, &api.Range{Dims: 1, Global: [3]uint64{64, 1, 1}}, w))
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) + seed
	}
	return b
}

func TestKernelReadsAndWrites(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		q, k := r.queue(0), r.kernel("kernel inc global")
		largest := 37 << 20
		if testing.Short() {
			largest = 5 << 20 // under the race detector; more than a far node keeps for a write whose turn has not come
		}
		for _, size := range []int{16, 40 << 10, 3 << 20, largest} {
			b, in, out := r.buffer(uint64(size)), pattern(size, 1), make([]byte, size)
			r.setMem(k, 0, b)
			for _, blocking := range []bool{true, false} {
				r.handle(r.d.EnqueueWrite(q, b, blocking, 0, uint64(size), ptr(in), api.Waits{}))
				r.launch(q, k, api.Waits{})
				r.handle(r.d.EnqueueRead(q, b, blocking, 0, uint64(size), ptr(out), api.Waits{}))
				r.ok(r.d.Finish(q))
				for i := range in {
					if out[i] != in[i]+1 {
						t.Fatalf("size %d, blocking %v: byte %d is %d, want %d", size, blocking, i, out[i], in[i]+1)
					}
				}
			}
			r.ok(r.d.ReleaseMemObject(b))
		}
	})
}

func TestUserEventHoldsEverything(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		q, k := r.queue(0), r.kernel("kernel inc global")
		const size = 256 << 10
		b, in, out := r.buffer(size), pattern(size, 3), make([]byte, size)
		r.setMem(k, 0, b)
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		wrote := r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in),
			api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
		r.launch(q, k, api.Waits{})
		read := r.handle(r.d.EnqueueRead(q, b, false, 0, size, ptr(out), api.Waits{Want: true}))
		var told atomic.Int32
		told.Store(99)
		called := make(chan struct{})
		r.ok(r.d.SetEventCallback(read, 0, func(s int32) { told.Store(s); close(called) }))
		if status, _ := r.d.EventInfo(wrote, cl.EVENT_COMMAND_EXECUTION_STATUS); int32(le.Uint32(status)) <= 0 {
			t.Fatal("the write ran before the user event")
		}
		r.ok(r.d.SetUserEventStatus(gate, 0))
		r.is(r.d.SetUserEventStatus(gate, 0), cl.INVALID_OPERATION)
		r.ok(r.d.WaitForEvents(2, []uintptr{wrote, read}))
		<-called
		if told.Load() != 0 || out[5] != in[5]+1 {
			t.Fatalf("callback %d, byte %d", told.Load(), out[5])
		}
		for _, e := range []uintptr{gate, wrote, read} {
			r.ok(r.d.ReleaseEvent(e))
			r.is(r.d.ReleaseEvent(e), cl.INVALID_EVENT)
		}
	})
}

func TestFailureReachesDependents(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel fail")
	bad := r.launch(q, k, api.Waits{Want: true})
	r.is(r.d.WaitForEvents(1, []uintptr{bad}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	b, out := r.buffer(64), make([]byte, 64)
	_, status := r.d.EnqueueRead(q, b, true, 0, 64, ptr(out), api.Waits{N: 1, List: []uintptr{bad}, Want: false})
	r.is(status, cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	dependent := r.handle(r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{bad}, Want: true}))
	r.is(r.d.WaitForEvents(1, []uintptr{dependent}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	// Without an event the failure is latched on the queue, and told once.
	r.launch(q, k, api.Waits{})
	r.is(r.d.Finish(q), cl.OUT_OF_RESOURCES)
	r.is(r.d.Finish(q), cl.SUCCESS)
}

func TestHostPtrWithoutMaps(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		q, k := r.queue(0), r.kernel("kernel inc global")
		host := pattern(100_000, 0)
		b := r.handle(r.d.CreateBuffer(r.ctx, nil, cl.MEM_USE_HOST_PTR, uint64(len(host)), ptr(host)))
		r.setMem(k, 0, b)
		for round := range 5 {
			host[7] = byte(10 * round) // the program writes between its commands
			r.launch(q, k, api.Waits{})
			r.launch(q, k, api.Waits{})
			switch round % 3 {
			case 0:
				r.ok(r.d.Finish(q))
			case 1:
				e := r.handle(r.d.EnqueueMarker(q, api.Waits{Want: true}))
				r.ok(r.d.WaitForEvents(1, []uintptr{e}))
				r.ok(r.d.ReleaseEvent(e))
			case 2:
				at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_READ, 0, 16, api.Waits{})
				r.ok(status)
				if at != ptr(host) {
					t.Fatal("the map does not show the program's memory")
				}
				r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
			}
			if host[7] != byte(10*round)+2 {
				t.Fatalf("round %d: %d", round, host[7])
			}
		}
		// A map for writing is seen by the next kernel.
		at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_WRITE, 0, 16, api.Waits{})
		r.ok(status)
		host[0] = 100
		r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
		r.launch(q, k, api.Waits{})
		destroyed := make(chan struct{})
		r.ok(r.d.SetMemObjectDestructorCallback(b, func() { close(destroyed) }))
		r.ok(r.d.ReleaseMemObject(b))
		<-destroyed
		if host[0] != 101 {
			t.Fatalf("after release: %d", host[0])
		}
	})
}

func TestMaps(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		q, k := r.queue(0), r.kernel("kernel inc global")
		const size = 1 << 20
		b := r.buffer(size)
		r.setMem(k, 0, b)
		at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_WRITE_INVALIDATE_REGION, 4096, 8192, api.Waits{})
		r.ok(status)
		copy(at.Bytes(0, 8192), pattern(8192, 9))
		r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
		r.launch(q, k, api.Waits{})
		at, e, status := r.d.EnqueueMap(q, b, false, cl.MAP_READ, 4096, 8192, api.Waits{Want: true})
		r.ok(status)
		r.ok(r.d.WaitForEvents(1, []uintptr{e}))
		for i, want := range pattern(8192, 10) {
			if got := at.Bytes(uint64(i), 1)[0]; got != want {
				t.Fatalf("byte %d: %d, want %d", i, got, want)
			}
		}
		r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
		_, status = r.d.EnqueueUnmap(q, b, at, api.Waits{})
		r.is(status, cl.INVALID_VALUE)
	})
}

// TestRectsStayInside compares rectangular transfers with a naive copy; bytes outside the region must not change.
func TestRectsStayInside(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		q := r.queue(0)
		rng := rand.New(rand.NewPCG(4, 5))
		const size = 1 << 16
		b := r.buffer(size)
		for range 60 {
			var rect api.Rect
			for i := range 3 {
				rect.Region[i] = rng.Uint64N(7) + 1
				rect.BufferOrigin[i], rect.HostOrigin[i] = rng.Uint64N(4), rng.Uint64N(4)
			}
			rect.BufferRow, rect.HostRow = rect.Region[0]+rng.Uint64N(9), rect.Region[0]+rng.Uint64N(9)
			rect.BufferSlice = rect.BufferRow * (rect.Region[1] + rng.Uint64N(5))
			rect.HostSlice = rect.HostRow * (rect.Region[1] + rng.Uint64N(5))
			device, host := pattern(size, byte(rng.Uint32())), pattern(size, byte(rng.Uint32()))
			for _, write := range []bool{true, false} {
				wantDevice, wantHost := slices.Clone(device), slices.Clone(host)
				naive(&rect, wantDevice, wantHost, write)
				r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(device), api.Waits{}))
				if write {
					r.handle(r.d.EnqueueWriteRect(q, b, true, rect, ptr(host), api.Waits{}))
				} else {
					r.handle(r.d.EnqueueReadRect(q, b, true, rect, ptr(host), api.Waits{}))
				}
				got := make([]byte, size)
				r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(got), api.Waits{}))
				if !bytes.Equal(got, wantDevice) || !bytes.Equal(host, wantHost) {
					t.Fatalf("write %v %+v", write, rect)
				}
			}
		}
	})
}

func naive(r *api.Rect, device, host []byte, write bool) {
	for z := range r.Region[2] {
		for y := range r.Region[1] {
			for x := range r.Region[0] {
				d := (r.BufferOrigin[2]+z)*r.BufferSlice + (r.BufferOrigin[1]+y)*r.BufferRow + r.BufferOrigin[0] + x
				h := (r.HostOrigin[2]+z)*r.HostSlice + (r.HostOrigin[1]+y)*r.HostRow + r.HostOrigin[0] + x
				if write {
					device[d] = host[h]
				} else {
					host[h] = device[d]
				}
			}
		}
	}
}

func TestFirstLaunchOfAClassAsks(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel nop local int")
	number := pattern(4, 0)
	r.ok(r.d.SetKernelArg(k, 0, 512, api.HostPtr{}))
	r.ok(r.d.SetKernelArg(k, 1, 4, ptr(number)))
	shape := func(global, local uint64) api.Status {
		_, status := r.d.EnqueueNDRange(q, k,
			&api.Range{Dims: 1, HasLocal: true, Global: [3]uint64{global}, Local: [3]uint64{local}}, api.Waits{})
		return status
	}
	worker := r.worker()
	steps := []struct {
		global, local uint64
		want          api.Status
		asked         int32 // so far
	}{
		{64, 8, cl.SUCCESS, 1}, {128, 8, cl.SUCCESS, 1}, {64, 16, cl.SUCCESS, 2},
		{65, 16, cl.INVALID_WORK_GROUP_SIZE, 3}, {67, 16, cl.INVALID_WORK_GROUP_SIZE, 3},
		{512, 512, cl.INVALID_WORK_GROUP_SIZE, 3}, {64, 8, cl.SUCCESS, 3},
	}
	for i, s := range steps {
		if got := shape(s.global, s.local); got != s.want || worker.launches.Load() != s.asked {
			t.Fatalf("step %d: status %d, %d asked; want %d, %d", i, got, worker.launches.Load(), s.want, s.asked)
		}
	}
	r.ok(r.d.SetKernelArg(k, 0, 1024, api.HostPtr{}))
	r.ok(shape(64, 8))
	if worker.launches.Load() != 4 {
		t.Fatal("more local memory was not asked for")
	}
}

func (r *rig) worker() *fakeWorker {
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	for _, w := range r.node.workers {
		return w
	}
	r.t.Fatal("no worker")
	return nil
}

func TestArgumentSizes(t *testing.T) {
	r := newRig(t, true)
	b := r.buffer(64)
	value := make([]byte, 200)
	le.PutUint64(value, uint64(b))
	junk := pattern(200, 1)
	cases := []struct {
		declaration string
		size        uint64
		value       []byte
		want        api.Status
	}{
		{"int", 4, junk, cl.SUCCESS}, {"int", 8, junk, cl.INVALID_ARG_SIZE}, {"int", 4, nil, cl.INVALID_ARG_VALUE},
		{"float3", 16, junk, cl.SUCCESS},
		{"float3", 12, junk, cl.INVALID_ARG_SIZE}, {"ulong16", 128, junk, cl.SUCCESS}, {"global", 8, value, cl.SUCCESS},
		{"global", 8, nil, cl.SUCCESS},
		{"global", 4, value, cl.INVALID_ARG_SIZE}, {"global", 8, junk, cl.INVALID_MEM_OBJECT},
		{"local", 64, nil, cl.SUCCESS}, {"local", 0, nil, cl.INVALID_ARG_SIZE},
		{"local", 64, junk, cl.INVALID_ARG_VALUE}, {"image2d_t", 8, junk, cl.INVALID_MEM_OBJECT},
		{"image2d_t", 8, value, cl.INVALID_ARG_VALUE},
		{"sampler_t", 8, junk, cl.INVALID_SAMPLER}, {"sampler_t", 4, junk, cl.INVALID_ARG_SIZE}, {"image3d_t", 8, nil,
			cl.INVALID_ARG_VALUE}, {"struct_s", 20, junk, cl.SUCCESS}, {"struct_s", 7, junk, cl.INVALID_ARG_SIZE},
	}
	for _, c := range cases {
		k := r.kernel("kernel nop " + c.declaration)
		var p api.HostPtr
		if c.value != nil {
			p = ptr(c.value)
		}
		if got := r.d.SetKernelArg(k, 0, c.size, p); got != c.want {
			t.Errorf("%s of %d bytes, NULL %v: %d, want %d", c.declaration, c.size, c.value == nil, got, c.want)
		}
		r.is(r.d.SetKernelArg(k, 1, c.size, p), cl.INVALID_ARG_INDEX)
	}
}

func TestHandleIsAHandleWithoutArgumentInformation(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel inc unknown\nnoinfo")
	b := r.buffer(64)
	r.setMem(k, 0, b)
	r.launch(q, k, api.Waits{})
	out := make([]byte, 64)
	r.handle(r.d.EnqueueRead(q, b, true, 0, 64, ptr(out), api.Waits{}))
	if out[0] == 0 {
		t.Fatal("the kernel did not get the buffer")
	}
	before := r.worker().setArgs.Load()
	number := pattern(8, 1)
	for range 3 {
		r.ok(r.d.SetKernelArg(k, 0, 8, ptr(number)))
	}
	if asked := r.worker().setArgs.Load() - before; asked != 1 {
		t.Fatalf("a size was asked %d times", asked)
	}
}

func TestShapesJudgeWithoutArgumentInformation(t *testing.T) {
	r := newRig(t, true)
	r.queue(0)
	b := r.buffer(64)
	mem, junk, zero := make([]byte, 8), pattern(8, 1), make([]byte, 8)
	le.PutUint64(mem, uint64(b))
	cases := []struct {
		kind  string
		size  uint64
		value []byte // nil: NULL
		want  api.Status
	}{
		{"global", 8, mem, cl.SUCCESS}, {"global", 8, nil, cl.SUCCESS}, {"global", 8, zero, cl.SUCCESS},
		{"global", 8, junk, cl.INVALID_MEM_OBJECT}, {"global", 4, mem, cl.INVALID_ARG_SIZE},
		{"image2d_t", 8, junk, cl.INVALID_MEM_OBJECT}, {"image2d_t", 8, zero, cl.INVALID_MEM_OBJECT},
		{"image2d_t", 8, mem, cl.INVALID_ARG_VALUE}, {"image2d_t", 8, nil, cl.INVALID_ARG_VALUE},
		{"sampler_t", 8, junk, cl.INVALID_SAMPLER}, {"sampler_t", 8, mem, cl.INVALID_SAMPLER},
		{"sampler_t", 4, junk, cl.INVALID_ARG_SIZE},
		{"local", 64, nil, cl.SUCCESS}, {"local", 8, mem, cl.INVALID_ARG_VALUE},
		{"int", 4, junk, cl.SUCCESS}, {"long", 8, junk, cl.SUCCESS}, {"long", 8, mem, cl.SUCCESS},
		{"int", 0, junk, cl.INVALID_ARG_SIZE},
	}
	before := r.worker().setArgs.Load()
	for _, c := range cases {
		k := r.kernel("kernel nop " + c.kind + "\nnoinfo shapes")
		var p api.HostPtr
		if c.value != nil {
			p = ptr(c.value)
		}
		if got := r.d.SetKernelArg(k, 0, c.size, p); got != c.want {
			t.Errorf("%s of %d bytes %x: %d, want %d", c.kind, c.size, c.value, got, c.want)
		}
		if _, got := r.d.KernelArgInfo(k, 0, cl.KERNEL_ARG_TYPE_NAME); got != cl.KERNEL_ARG_INFO_NOT_AVAILABLE {
			t.Errorf("%s: argument information: %d", c.kind, got)
		}
	}
	if asked := r.worker().setArgs.Load() - before; asked != 0 {
		t.Errorf("the driver was asked %d times", asked)
	}
	// Any other size is the driver's to judge: some take shorter ones.
	r.is(r.d.SetKernelArg(r.kernel("kernel nop int\nnoinfo shapes"), 0, 7, ptr(junk)), cl.INVALID_ARG_SIZE)
	if asked := r.worker().setArgs.Load() - before; asked != 1 {
		t.Errorf("the driver was asked %d times about another size", asked)
	}
}

func TestWorkerDies(t *testing.T) {
	r := newRig(t, true)
	told := make(chan string, 8)
	r.ok(r.d.ReleaseContext(r.ctx))
	r.ctx = r.handle(r.d.CreateContext(nil, []uintptr{r.dev}, func(text string) { told <- text }))
	q := r.queue(0)
	b, out := r.buffer(64), make([]byte, 64)
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	held := r.handle(r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
	failed := make(chan int32, 1)
	r.ok(r.d.SetEventCallback(held, 0, func(s int32) { failed <- s }))
	waited := make(chan api.Status, 1)
	go func() { waited <- r.d.Finish(q) }()
	await.Blocked(t, 1, "session.(*Driver).Finish")
	r.node.kill()
	r.is(<-waited, cl.OUT_OF_RESOURCES)
	if s := <-failed; s != int32(cl.OUT_OF_RESOURCES) {
		t.Errorf("the event's callback got %d", s)
	}
	if text := <-told; !strings.Contains(text, "killed by the test") {
		t.Errorf("the context was told %q", text)
	}
	r.is(r.d.WaitForEvents(1, []uintptr{held}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	r.is(r.d.Finish(q), cl.OUT_OF_RESOURCES)
	_, status := r.d.EnqueueRead(q, b, true, 0, 64, ptr(out), api.Waits{})
	r.is(status, cl.OUT_OF_RESOURCES)
	if !r.log.contain("killed by the test") {
		t.Errorf("standard error says %q", r.log.lines)
	}
	r.ctx = r.handle(r.d.CreateContext(nil, []uintptr{r.dev}, nil))
	r.ok(r.d.Finish(r.queue(0)))
}

func TestMemoryInUseIsNotReused(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel inc global")
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	b := r.buffer(4096)
	r.setMem(k, 0, b)
	r.launch(q, k, api.Waits{N: 1, List: []uintptr{gate}, Want: false})
	r.ok(r.d.ReleaseMemObject(b))
	var fresh []uintptr
	zero := make([]byte, 4096)
	for range 50 {
		fresh = append(fresh, r.handle(r.d.CreateBuffer(r.ctx, nil, cl.MEM_COPY_HOST_PTR, 4096, ptr(zero))))
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.Finish(q))
	for i, h := range fresh {
		out := make([]byte, 4096)
		r.handle(r.d.EnqueueRead(q, h, true, 0, 4096, ptr(out), api.Waits{}))
		if !bytes.Equal(out, zero) {
			t.Fatalf("buffer %d got the memory of a released one in use", i)
		}
	}
}

// Memory that is released while a released queue works asks for progress, but not that queue: it is gone for the
// worker.
func TestReleasedQueueIsNotAskedAgain(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel inc global")
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	b := r.buffer(4096)
	r.setMem(k, 0, b)
	r.launch(q, k, api.Waits{N: 1, List: []uintptr{gate}, Want: false})
	r.ok(r.d.ReleaseQueue(q))
	for range 3 {
		r.ok(r.d.ReleaseMemObject(r.buffer(memory.AskAfterBytes)))
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	other, out := r.queue(0), make([]byte, 4096)
	r.handle(r.d.EnqueueRead(other, b, true, 0, 4096, ptr(out), api.Waits{}))
	r.ok(r.d.Finish(other))
}

func TestFullStore(t *testing.T) {
	r := newRig(t, true)
	r.node.capacity = 64 << 20
	_, status := r.d.CreateBuffer(r.ctx, nil, 0, 100<<20, api.HostPtr{})
	r.is(status, cl.MEM_OBJECT_ALLOCATION_FAILURE)
	b := r.buffer(40 << 20)
	_, status = r.d.CreateBuffer(r.ctx, nil, 0, 40<<20, api.HostPtr{})
	r.is(status, cl.MEM_OBJECT_ALLOCATION_FAILURE)
	r.ok(r.d.ReleaseMemObject(b))
	// What was kept for reuse is given back when it is needed.
	r.ok(r.d.ReleaseMemObject(r.buffer(60 << 20)))
}

func TestPublish(t *testing.T) {
	r := newRig(t, true, func(c *Config) { c.Publish = "result" })
	q, k := r.queue(0), r.kernel("kernel inc global")
	const size = 8192
	b := r.buffer(size)
	r.setMem(k, 0, b)
	in, out := pattern(size, 0), make([]byte, size)
	for round := range 3 {
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
		r.launch(q, k, api.Waits{})
		r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{}))
		object := r.node.published["result"]
		if object == nil || !bytes.Equal(object.Bytes, pattern(size, 1)) {
			t.Fatalf("round %d: the object is not what was read", round)
		}
		r.launch(q, k, api.Waits{}) // writes: the object must not change
		r.ok(r.d.Finish(q))
		if !bytes.Equal(object.Bytes, pattern(size, 1)) {
			t.Fatal("a published object changed")
		}
		in2 := make([]byte, size)
		r.handle(r.d.EnqueueRead(q, b, true, 0, size/2, ptr(in2), api.Waits{}))
		if !bytes.Equal(in2[:size/2], pattern(size, 2)[:size/2]) {
			t.Fatal("the contents did not come along")
		}
	}
	r.ok(r.d.ReleaseMemObject(b))
}

// Publishing waits for a command that waits for the program, which may enqueue before it lets that go on.
func TestPublishLetsOthersEnqueue(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("reads=%v", reads), func(t *testing.T) {
			r := newRig(t, true)
			const size = 2 << 20
			b, other, q2 := r.buffer(size), r.buffer(size), r.queue(0)
			q, gate, _ := r.heldMarker()
			ended := make(chan error, 2)
			if reads {
				go func() {
					_, status := r.d.EnqueueRead(q, other, true, 0, 16, ptr(make([]byte, 16)),
						api.Waits{N: 1, List: []uintptr{gate}})
					if status != cl.SUCCESS {
						ended <- fmt.Errorf("read: status %d", status)
						return
					}
					ended <- nil
				}()
			} else {
				ended <- nil
			}
			go func() {
				_, err := r.d.Publish(b, "object", nil)
				ended <- err
			}()
			enqueued := make(chan api.Status, 1)
			go func() {
				var status api.Status
				for i := 0; i < 200 && status == cl.SUCCESS; i++ {
					_, status = r.d.EnqueueMarker(q2, api.Waits{})
					time.Sleep(time.Millisecond / 10) // Pause: Publish has its turn meanwhile
				}
				enqueued <- status
			}()
			select {
			case status := <-enqueued:
				r.ok(status)
			case <-time.After(5 * time.Minute):
				t.Error("a marker was not enqueued")
			}
			r.ok(r.d.SetUserEventStatus(gate, 0))
			for range 2 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A driver's own memory cannot move into the store: the object is a copy, and the buffer goes on as it was.
func TestPublishOutOfPlace(t *testing.T) {
	r := newRig(t, false, func(c *Config) { c.Publish = "result" })
	q, b := r.queue(0), r.buffer(3000)
	want := bytes.Repeat([]byte{7}, 3000)
	_, status := r.d.EnqueueWrite(q, b, true, 0, 3000, ptr(want), api.Waits{})
	r.ok(status)
	_, status = r.d.EnqueueRead(q, b, true, 0, 3000, ptr(make([]byte, 3000)), api.Waits{})
	r.ok(status)
	object := r.node.published["result"]
	if object == nil || !bytes.Equal(object.Bytes[:3000], want) {
		t.Fatal("the object is not what the program read")
	}
	_, status = r.d.EnqueueWrite(q, b, true, 0, 3000, ptr(make([]byte, 3000)), api.Waits{})
	r.ok(status)
	if !bytes.Equal(object.Bytes[:3000], want) {
		t.Error("a published object changed")
	}
}

func TestDriversMemoryIsDebited(t *testing.T) {
	r := newRig(t, false)
	var all []uintptr
	for range 8 { // the device has 8 GiB
		all = append(all, r.buffer(1<<30))
	}
	_, status := r.d.CreateBuffer(r.ctx, nil, 0, 1, api.HostPtr{})
	r.is(status, cl.MEM_OBJECT_ALLOCATION_FAILURE)
	sub, status := r.d.CreateSubBuffer(all[0], 0, cl.BUFFER_CREATE_TYPE_REGION, true, 0, 1<<20)
	r.ok(status)
	r.ok(r.d.ReleaseMemObject(sub))
	_, status = r.d.CreateBuffer(r.ctx, nil, 0, 1, api.HostPtr{})
	r.is(status, cl.MEM_OBJECT_ALLOCATION_FAILURE)
	r.ok(r.d.ReleaseMemObject(all[0]))
	r.buffer(1 << 30)
}

func TestReferences(t *testing.T) {
	r := newRig(t, true)
	count := func(b []byte, s api.Status) uint32 { r.ok(s); return le.Uint32(b) }
	if n := count(r.d.ContextInfo(r.ctx, cl.CONTEXT_REFERENCE_COUNT)); n != 1 {
		t.Fatalf("a fresh context has %d references", n)
	}
	q, b := r.queue(0), r.buffer(64)
	sub := r.handle(r.d.CreateSubBuffer(b, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 0, 32))
	if n := count(r.d.ContextInfo(r.ctx, cl.CONTEXT_REFERENCE_COUNT)); n != 4 {
		t.Fatalf("context: %d references", n)
	}
	r.ok(r.d.ReleaseMemObject(b))
	r.is(r.d.RetainMemObject(b), cl.SUCCESS) // the sub-buffer keeps it
	r.ok(r.d.ReleaseMemObject(b))
	r.ok(r.d.ReleaseMemObject(sub))
	r.is(r.d.RetainMemObject(b), cl.INVALID_MEM_OBJECT)
	r.is(r.d.ReleaseMemObject(sub), cl.INVALID_MEM_OBJECT)
	destroyed := make(chan int, 2)
	r.ok(r.d.SetContextDestructorCallback(r.ctx, func() { destroyed <- 1 }))
	r.ok(r.d.SetContextDestructorCallback(r.ctx, func() { destroyed <- 2 }))
	r.ok(r.d.ReleaseQueue(q))
	r.ok(r.d.ReleaseContext(r.ctx))
	if <-destroyed != 2 || <-destroyed != 1 {
		t.Fatal("destructor callbacks run latest first")
	}
	for _, bad := range []uintptr{0, 1, r.ctx, q, b, ^uintptr(0)} {
		r.is(r.d.ReleaseContext(bad), cl.INVALID_CONTEXT)
		r.is(r.d.Finish(bad), cl.INVALID_COMMAND_QUEUE)
		r.is(r.d.ReleaseMemObject(bad), cl.INVALID_MEM_OBJECT)
		r.is(r.d.ReleaseEvent(bad), cl.INVALID_EVENT)
		r.is(r.d.ReleaseKernel(bad), cl.INVALID_KERNEL)
		r.is(r.d.ReleaseProgram(bad), cl.INVALID_PROGRAM)
	}
}

func TestProgramBinaries(t *testing.T) {
	r := newRig(t, true)
	r.queue(0)
	p := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{"kernel", " inc global"}))
	done := make(chan struct{})
	r.ok(r.d.Build(p, false, nil, "-DX", func() { close(done) }))
	<-done
	log, status := r.d.ProgramBuildInfo(p, r.dev, cl.PROGRAM_BUILD_LOG)
	r.ok(status)
	if answers.Text(log) != "log of -DX" {
		t.Fatalf("log %q", log)
	}
	binaries, status := r.d.Binaries(p)
	r.ok(status)
	if string(binaries[0]) != "bin:kernel inc global" {
		t.Fatalf("%q", binaries)
	}
	_, verdict, status := r.d.CreateProgramWithBinary(r.ctx, []uintptr{r.dev}, [][]byte{[]byte("broken")})
	r.is(status, cl.INVALID_BINARY)
	r.is(verdict, cl.INVALID_BINARY)
	bad := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{"error"}))
	r.is(r.d.Build(bad, false, nil, "", nil), cl.BUILD_PROGRAM_FAILURE)
	_, status = r.d.CreateKernel(bad, "inc")
	r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
}

func TestManyThreads(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		p := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{"kernel inc global"}))
		r.ok(r.d.Build(p, false, nil, "", nil))
		var wg sync.WaitGroup
		for thread := range 8 {
			wg.Go(func() {
				if err := r.work(p, thread); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// work is one thread of a program with its own queue, kernel and buffers.
func (r *rig) work(p uintptr, thread int) error {
	q, s1 := r.d.CreateQueue(r.ctx, r.dev, uint64(thread%2))
	k, s2 := r.d.CreateKernel(p, "inc")
	if s1 != cl.SUCCESS || s2 != cl.SUCCESS {
		return fmt.Errorf("status %d %d", s1, s2)
	}
	for round := range 30 {
		size := uint64(64 << (round % 12))
		b, _ := r.d.CreateBuffer(r.ctx, nil, 0, size, api.HostPtr{})
		value, in, out := le.AppendUint64(nil, uint64(b)), pattern(int(size), byte(thread)), make([]byte, size)
		r.d.SetKernelArg(k, 0, 8, ptr(value))
		wrote, _ := r.d.EnqueueWrite(q, b, false, 0, size, ptr(in), api.Waits{Want: true})
		ran, _ := r.d.EnqueueNDRange(q, k, &api.Range{Dims: 1, Global: [3]uint64{64}},
			api.Waits{N: 1, List: []uintptr{wrote}, Want: true})
		if _, status := r.d.EnqueueRead(q, b, round%2 == 0, 0, size, ptr(out),
			api.Waits{N: 1, List: []uintptr{ran}, Want: false}); status != cl.SUCCESS {
			return fmt.Errorf("thread %d round %d: read %d", thread, round, status)
		}
		if status := r.d.Finish(q); status != cl.SUCCESS {
			return fmt.Errorf("thread %d round %d: finish %d", thread, round, status)
		}
		for i := range in {
			if out[i] != in[i]+1 {
				return fmt.Errorf("thread %d round %d: byte %d is %d, want %d", thread, round, i, out[i], in[i]+1)
			}
		}
		r.d.ReleaseEvent(wrote)
		r.d.ReleaseEvent(ran)
		r.d.ReleaseMemObject(b)
	}
	r.d.ReleaseKernel(k)
	r.d.ReleaseQueue(q)
	return nil
}

func TestNoDaemon(t *testing.T) {
	log := &logLines{}
	d, err := New(Config{Dial: func() (node.Control, error) { return node.Dial("/nonexistent/tendril.sock", "test") },
		Log: log.add})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 2 {
		if len(d.Platforms()) != 0 {
			t.Fatal("a platform without a daemon")
		}
	}
	if len(log.lines) != 1 || !log.contain("tendril daemon") {
		t.Errorf("said %q", log.lines)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel nop int")
	number := pattern(8, 0)
	shape := &api.Range{Dims: 1, HasLocal: true, Global: [3]uint64{64}, Local: [3]uint64{8}}
	r.ok(r.d.SetKernelArg(k, 0, 4, ptr(number)))
	r.handle(r.d.EnqueueNDRange(q, k, shape, api.Waits{}))
	r.ok(r.d.Finish(q))
	if n := testing.AllocsPerRun(100, func() {
		number[0]++
		r.d.SetKernelArg(k, 0, 4, ptr(number))
	}); n != 0 {
		t.Errorf("SetKernelArg allocates %v times", n)
	}
}

// A user event that ends while the first command that waits for it is being sent: who makes it known to the worker
// tells its end.
func TestUserEventEndsWhileItIsMadeKnown(t *testing.T) {
	r := newRig(t, true)
	q := r.queue(0)
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	e := r.d.events.Get(gate)
	e.decided, e.set = true, 0 // as SetUserEventStatus leaves it for a moment
	r.handle(r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{gate}}))
	over := make(chan api.Status)
	go func() { over <- r.d.Finish(q) }()
	select {
	case status := <-over:
		r.ok(status)
	case <-time.After(5 * time.Minute):
		t.Fatal("the worker has not heard of the end")
	}
	r.is(r.d.SetUserEventStatus(gate, 0), cl.INVALID_OPERATION)
}

// heldMarker is a marker that waits for a user event, and their queue.
func (r *rig) heldMarker() (q, gate, held uintptr) {
	q = r.queue(0)
	gate = r.handle(r.d.CreateUserEvent(r.ctx))
	return q, gate, r.handle(r.d.EnqueueMarker(q, api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
}

// The worker answers for a callback once: who sets another for the same status asks again, or nobody is woken for what
// comes later.
func TestEachCallbackIsAskedFor(t *testing.T) {
	r := newRig(t, true)
	q, gate, held := r.heldMarker()
	calls := make(chan int32, 2)
	for range 2 {
		r.ok(r.d.SetEventCallback(held, 2, func(s int32) { calls <- s }))
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.Finish(q))
	if n := r.worker().watches.Load(); n != 2 {
		t.Errorf("the worker was asked %d times for 2 callbacks", n)
	}
	for range 2 {
		if s := <-calls; s != 2 {
			t.Errorf("a callback got %d", s)
		}
	}
}

// TestWhoPollsIsTold: a program that asks an event's state again and again has the worker told once that somebody
// waits; one that looks once does not.
func TestWhoPollsIsTold(t *testing.T) {
	r := newRig(t, true)
	q, gate, held := r.heldMarker()
	for looks, want := range []int32{0, 0, 1, 1, 1} {
		r.d.Hear([]uintptr{held}) // the answer comes behind what was asked before
		if n := r.worker().watches.Load(); n != want {
			t.Errorf("%d looks: the worker was asked %d times", looks, n)
		}
		_, status := r.d.EventInfo(held, cl.EVENT_COMMAND_EXECUTION_STATUS)
		r.ok(status)
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.Finish(q))
}

// A callback for a status that the worker has said already is called while the command still runs: nothing else would
// be said before its end.
func TestCallbackForWhatWasSaid(t *testing.T) {
	r := newRig(t, true)
	q, gate, held := r.heldMarker()
	calls := make(chan int32, 2)
	r.ok(r.d.SetEventCallback(held, 2, func(s int32) { calls <- s }))
	r.d.events.Get(held).report(&clwire.EventEnd{Status: 2})
	r.ok(r.d.SetEventCallback(held, 2, func(s int32) { calls <- s }))
	for range 2 {
		select {
		case s := <-calls:
			if s != 2 {
				t.Errorf("a callback got %d", s)
			}
		case <-time.After(5 * time.Minute):
			t.Error("a callback waits for the end")
		}
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.Finish(q))
}
