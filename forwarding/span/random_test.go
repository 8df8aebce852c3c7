package span

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/tools/e2e/await"
)

// rig is a program: a spanning context over a model, a queue for each member in order and one out of order, and what is
// made.
type rig struct {
	t      *testing.T
	m      *model
	d      *Driver
	ctx    uintptr
	queues []uintptr
	made   []func() // releases
	given  [][]byte // to commands
}

// bytes is memory of the program's that stays until the test's end: a HostPtr keeps nothing from being collected.
func (r *rig) bytes(b ...byte) api.HostPtr {
	r.given = append(r.given, b)
	return api.HostBytes(b)
}

func newRig(t *testing.T, members int, seed uint64) *rig {
	t.Helper()
	return newRigOver(t, newModel(t, members, seed))
}

func newRigOver(t *testing.T, m *model) *rig {
	t.Helper()
	d, err := New(m, One, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, m: m, d: d}
	platform := d.Platforms()[0]
	devices, status := d.DeviceIDs(platform, cl.DEVICE_TYPE_ALL)
	r.ok(status)
	r.ctx, status = d.CreateContext([]uint64{cl.CONTEXT_PLATFORM, uint64(platform), 0}, devices, nil)
	r.ok(status)
	r.made = append(r.made, func() { r.ok(d.ReleaseContext(r.ctx)) })
	for i, device := range append(devices, devices[len(devices)-1]) {
		props := uint64(0)
		if i == len(devices) {
			props = cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE
		}
		q, status := d.CreateQueue(r.ctx, device, props)
		r.ok(status)
		r.queues = append(r.queues, q)
		r.made = append(r.made, func() { r.ok(d.ReleaseQueue(q)) })
	}
	return r
}

func (r *rig) ok(status api.Status) {
	r.t.Helper()
	if status != cl.SUCCESS {
		r.t.Fatalf("OpenCL error %d", status)
	}
}

func (r *rig) is(got, want api.Status) {
	r.t.Helper()
	if got != want {
		r.t.Fatalf("OpenCL error %d, want %d", got, want)
	}
}

// event checks what an enqueue call answers, and releases its event at the end.
func (r *rig) event(h uintptr, status api.Status) uintptr {
	r.t.Helper()
	r.ok(status)
	if h == 0 {
		r.t.Fatal("no event")
	}
	r.made = append(r.made, func() { r.ok(r.d.ReleaseEvent(h)) })
	return h
}

func (r *rig) buffer(flags, size uint64, host api.HostPtr) uintptr {
	r.t.Helper()
	b, status := r.d.CreateBuffer(r.ctx, nil, flags, size, host)
	r.ok(status)
	r.made = append(r.made, func() { r.ok(r.d.ReleaseMemObject(b)) })
	return b
}

func (r *rig) kernel(name string) uintptr {
	r.t.Helper()
	p, status := r.d.CreateProgramWithSource(r.ctx, []string{"add ", "sum"})
	r.ok(status)
	r.ok(r.d.Build(p, false, nil, "", nil))
	k, status := r.d.CreateKernel(p, name)
	r.ok(status)
	r.ok(r.d.ReleaseProgram(p))
	r.made = append(r.made, func() { r.ok(r.d.ReleaseKernel(k)) })
	return k
}

// end releases everything and finds what the context kept of its members.
func (r *rig) end() {
	r.t.Helper()
	for _, q := range r.queues {
		r.ok(r.d.Finish(q))
	}
	r.m.quiet()
	for _, release := range slices.Backward(r.made) {
		release()
	}
	r.m.quiet()
	var left []string
	defer func() {
		if len(left) > 0 {
			r.t.Errorf("not released: %v", left)
		}
	}()
	// The end of a buffer over the program's memory may go on in a goroutine of its own, behind the program's callback.
	await.Until(r.t, "release of all that the context had", func() bool { left = r.m.left(); return len(left) == 0 })
}

// quiet waits until nothing is to be done: all that was enqueued has ended, and all that this calls has been called.
func (m *model) quiet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for busy := true; busy; {
		m.await(func() bool { return len(m.ready) == 0 && len(m.calls) == 0 && !m.calling })
		busy = len(m.ready) > 0
	}
}

func bytesOf(h uintptr) []byte { return le.AppendUint64(nil, uint64(h)) }

// setBuffer sets a buffer as an argument.
func (r *rig) setBuffer(kernel uintptr, index uint32, b uintptr) {
	r.t.Helper()
	r.ok(r.d.SetKernelArg(kernel, index, 8, api.HostBytes(bytesOf(b))))
}

// flat is a buffer as a program may think of it: bytes, and the event of the last command on them.
type flat struct {
	h     uintptr
	data  []byte
	last  []uintptr
	whole *flat // of a sub-buffer
	lo    int
	host  []byte // the program's memory under it
}

func (f *flat) root() *flat {
	if f.whole != nil {
		return f.whole
	}
	return f
}

// expectation is a read under way.
type expectation struct{ got, want []byte }

// TestRandomProgramsSeeOneMemory runs random commands on the queues of all members, ordered by events where they touch
// the same buffer, and compares every byte that is read with a flat model.
func TestRandomProgramsSeeOneMemory(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 20
	}
	for _, way := range []string{"chunks", "shared", "pushes", "lost"} {
		t.Run(way, func(t *testing.T) {
			for seed := range seeds {
				r := newRig(t, 2+int(seed%2), seed)
				r.m.mu.Lock()
				r.m.lazy, r.m.shared, r.m.links, r.m.lossy = seed%4 > 1, way == "shared", way == "pushes" ||
					way == "lost", way == "lost"
				r.m.mu.Unlock()
				(&walk{rig: r, random: rand.New(rand.NewPCG(seed, 3)), seed: seed, add: r.kernel("add"),
					sum: r.kernel("sum")}).run(60)
				r.end()
				r.m.close()
			}
		})
	}
}

type walk struct {
	*rig
	random   *rand.Rand
	seed     uint64
	add, sum uintptr
	flats    []*flat
	reads    []expectation
	held     [][]byte // memory that commands use
}

func (w *walk) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.random.Uint32())
	}
	w.held = append(w.held, b)
	return b
}

// create makes a buffer of one of the kinds.
func (w *walk) create() {
	size := 64 + 4*w.random.IntN(100)
	f := &flat{data: w.bytes(size)}
	switch w.random.IntN(3) {
	case 0:
		f.h = w.buffer(cl.MEM_COPY_HOST_PTR, uint64(size), api.HostBytes(slices.Clone(f.data)))
	case 1:
		f.host = slices.Clone(f.data)
		f.h = w.buffer(cl.MEM_USE_HOST_PTR, uint64(size), api.HostBytes(f.host))
	default:
		f.h = w.buffer(0, uint64(size), api.HostPtr{})
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueWrite(w.queue(), f.h, false, 0, uint64(size), api.HostBytes(slices.Clone(f.data)), waits)
		})
	}
	w.flats = append(w.flats, f)
	if w.random.IntN(2) == 0 {
		lo, n := 4*w.random.IntN(size/8), 4*(1+w.random.IntN(size/8))
		h, status := w.d.CreateSubBuffer(f.h, 0, cl.BUFFER_CREATE_TYPE_REGION, true, uint64(lo), uint64(n))
		w.ok(status)
		w.made = append(w.made, func() { w.ok(w.d.ReleaseMemObject(h)) })
		w.flats = append(w.flats, &flat{h: h, data: f.data[lo : lo+n : lo+n], whole: f, lo: lo})
	}
}

func (w *walk) queue() uintptr { return w.queues[w.random.IntN(len(w.queues))] }
func (w *walk) any() *flat     { return w.flats[w.random.IntN(len(w.flats))] }

// waits is what a command on some buffers comes behind.
func waits(fs ...*flat) api.Waits {
	var list []uintptr
	for _, f := range fs {
		for _, e := range f.root().last {
			if !slices.Contains(list, e) {
				list = append(list, e)
			}
		}
	}
	return api.Waits{N: uint32(len(list)), List: list, Want: true}
}

func (w *walk) note(f *flat, call func(api.Waits) (uintptr, api.Status)) { w.note2(f, f, call) }
func (w *walk) note2(f, g *flat, call func(api.Waits) (uintptr, api.Status)) {
	w.t.Helper()
	e := w.event(call(waits(f, g)))
	f.root().last, g.root().last = []uintptr{e}, []uintptr{e}
}

// part is a random range.
func (w *walk) part(n int) (lo, hi int) {
	lo = w.random.IntN(n)
	return lo, lo + 1 + w.random.IntN(n-lo)
}

func (w *walk) run(steps int) {
	w.t.Helper()
	for range 3 {
		w.create()
	}
	for range steps {
		w.step()
		if w.random.IntN(10) == 0 {
			w.settle()
		}
	}
	w.settle()
}

func (w *walk) step() {
	f := w.any()
	lo, hi := w.part(len(f.data))
	q, n := w.queue(), uint64(hi-lo)
	switch w.random.IntN(9) {
	case 0:
		data := w.bytes(int(n))
		copy(f.data[lo:], data)
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueWrite(q, f.h, w.random.IntN(3) == 0, uint64(lo), n, api.HostBytes(data), waits)
		})
	case 1, 2:
		got := w.bytes(int(n))
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueRead(q, f.h, w.random.IntN(3) == 0, uint64(lo), n, api.HostBytes(got), waits)
		})
		w.reads = append(w.reads, expectation{got, slices.Clone(f.data[lo:hi])})
	case 3:
		g := w.any()
		if g.root() == f.root() {
			return
		}
		to := w.random.IntN(len(g.data))
		n = min(n, uint64(len(g.data)-to))
		copy(g.data[to:], f.data[lo:lo+int(n)])
		w.note2(f, g, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueCopy(q, f.h, g.h, uint64(lo), uint64(to), n, waits)
		})
	case 4:
		with := w.bytes(4)
		lo, n = lo&^3, n&^3+4
		if lo+int(n) > len(f.data) {
			return
		}
		copy(f.data[lo:], slices.Repeat(with, int(n)/4))
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueFill(q, f.h, api.HostBytes(with), 4, uint64(lo), n, waits)
		})
	case 5:
		w.launch(f, q)
	case 6:
		w.rectangle(f, q)
	case 7:
		w.mapping(f, q, lo, hi)
	case 8:
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueMigrate(q, []uintptr{f.h}, 0, waits)
		})
	}
}

func (w *walk) launch(f *flat, q uintptr) {
	g := w.any()
	if g.root() == f.root() {
		with := w.bytes(1)
		w.setBuffer(w.add, 0, f.h)
		w.ok(w.d.SetKernelArg(w.add, 1, 1, api.HostBytes(with)))
		for i := range f.data {
			f.data[i] += with[0]
		}
		w.note(f, func(waits api.Waits) (uintptr, api.Status) {
			return w.d.EnqueueNDRange(q, w.add, &api.Range{Dims: 1}, waits)
		})
		return
	}
	w.setBuffer(w.sum, 0, f.h)
	w.setBuffer(w.sum, 1, g.h)
	for i := range min(len(f.data), len(g.data)) {
		f.data[i] += g.data[i]
	}
	w.note2(f, g, func(waits api.Waits) (uintptr, api.Status) { return w.d.EnqueueTask(q, w.sum, waits) })
}

func (w *walk) rectangle(f *flat, q uintptr) {
	rect := api.Rect{BufferOrigin: [3]uint64{uint64(w.random.IntN(8)), 1, 0},
		Region: [3]uint64{uint64(1 + w.random.IntN(8)), 2, 1}, BufferRow: 16, HostRow: 8}
	if len(f.data) < 64 {
		return
	}
	host := w.bytes(16)
	write := w.random.IntN(2) == 0
	want := slices.Clone(host)
	rows(rect.BufferOrigin, rect.HostOrigin, rect.Region, 16, 0, 8, 0, func(a, b, n uint64) {
		if write {
			copy(f.data[a:a+n], host[b:])
		} else {
			copy(want[b:b+n], f.data[a:])
		}
	})
	w.note(f, func(waits api.Waits) (uintptr, api.Status) {
		if write {
			return w.d.EnqueueWriteRect(q, f.h, false, rect, api.HostBytes(host), waits)
		}
		return w.d.EnqueueReadRect(q, f.h, false, rect, api.HostBytes(host), waits)
	})
	if !write {
		w.reads = append(w.reads, expectation{host, want})
	}
}

// mapping maps a range, changes it and unmaps it, from another queue now and then.
func (w *walk) mapping(f *flat, q uintptr, lo, hi int) {
	flags := []uint64{cl.MAP_READ, cl.MAP_WRITE | cl.MAP_READ, cl.MAP_WRITE_INVALIDATE_REGION}[w.random.IntN(3)]
	at, e, status := w.d.EnqueueMap(q, f.h, true, flags, uint64(lo), uint64(hi-lo), waits(f))
	w.event(e, status)
	shown := at.Bytes(0, uint64(hi-lo))
	if flags != cl.MAP_WRITE_INVALIDATE_REGION && !bytes.Equal(shown, f.data[lo:hi]) {
		w.t.Fatalf("seed %d: a map of [%d, %d) shows %x, want %x", w.seed, lo, hi, shown, f.data[lo:hi])
	}
	if flags != cl.MAP_READ {
		copy(shown, w.bytes(hi-lo))
		copy(f.data[lo:hi], shown)
	}
	if w.random.IntN(3) == 0 {
		q = w.queue()
	}
	f.root().last = nil
	w.note(f, func(waits api.Waits) (uintptr, api.Status) { return w.d.EnqueueUnmap(q, f.h, at, waits) })
}

// settle waits for everything and compares what was read, and the program's memory under the buffers that have some.
func (w *walk) settle() {
	w.t.Helper()
	for _, q := range w.queues {
		w.ok(w.d.Finish(q))
	}
	for _, x := range w.reads {
		if !bytes.Equal(x.got, x.want) {
			w.t.Fatalf("seed %d: read %x, want %x", w.seed, x.got, x.want)
		}
	}
	w.reads, w.held = nil, nil
	for i, f := range w.flats {
		if f.host != nil && !bytes.Equal(f.host, f.data) {
			w.t.Fatalf("seed %d: the memory under buffer %d is %x, want %x", w.seed, i, f.host, f.data)
		}
		if f.host != nil && w.random.IntN(2) == 0 { // the program writes its memory while no command uses it
			copy(f.host, w.bytes(len(f.host)))
			copy(f.data, f.host)
		}
	}
}
