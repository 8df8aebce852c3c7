package session

import (
	"bytes"
	"slices"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/session/svm"
	"tendril/tools/e2e/await"
)

// createSVM makes the memory of a device: a segment in place, its own elsewhere.
func (w *fakeWorker) createSVM(request uint64, m *clwire.CreateSVM) {
	at, status := m.Address, api.Status(cl.SUCCESS)
	if w.node != nil && w.node.svm != nil {
		at, status = w.node.svm(m)
	}
	b := &fakeBuffer{begin: at}
	if m.Segment != 0 {
		b.data = w.segments[m.Segment][:m.Size]
	} else {
		b.data = make([]byte, m.Size)
	}
	w.buffers[m.ID] = b
	w.reply(request, status, answers.U64(at))
}

// ways3 runs a test with a device that computes on shared memory, one with memory of its own, and one far away.
func ways3(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("in place", func(t *testing.T) { f(t, newRig(t, true)) })
	t.Run("staged", func(t *testing.T) { f(t, newRig(t, false)) })
	t.Run("far", func(t *testing.T) {
		r, _ := newFarRig(t, true)
		f(t, r)
	})
}

func (r *rig) svm(n uint64) api.HostPtr {
	r.t.Helper()
	p := r.d.SVMAlloc(r.ctx, cl.MEM_READ_WRITE, n, 0)
	if p.Nil() {
		r.t.Fatalf("no shared virtual memory of %d bytes: %q", n, r.log.lines)
	}
	return p
}

// done releases the event of a call that went well.
func (r *rig) done(event uintptr, s api.Status) {
	r.t.Helper()
	r.ok(s)
	if event != 0 {
		r.ok(r.d.ReleaseEvent(event))
	}
}

func TestSharedVirtualMemory(t *testing.T) {
	ways3(t, func(t *testing.T, r *rig) {
		q := r.queue(0)
		k := r.kernel("kernel inc global")
		for _, n := range []uint64{100, svm.SmallBytes - 1, svm.SmallBytes, 3 << 20} {
			p, other := r.svm(n), r.svm(n)
			r.done(r.d.EnqueueSVMMap(q, true, cl.MAP_WRITE_INVALIDATE_REGION, p, n, api.Waits{}))
			own := p.Bytes(0, n)
			for i := range own {
				own[i] = byte(i)
			}
			r.done(r.d.EnqueueSVMUnmap(q, p, api.Waits{}))
			r.ok(r.d.SetKernelArgSVM(k, 0, p.Plus(3)))
			r.launch(q, k, api.Waits{})
			want := make([]byte, n)
			for i := range want {
				want[i] = byte(i)
				if i >= 3 && i < 67 {
					want[i]++
				}
			}
			got := make([]byte, n)
			r.done(r.d.EnqueueSVMMemcpy(q, true, ptr(got), p, n, api.Waits{}))
			if !bytes.Equal(got, want) {
				t.Fatalf("%d bytes: out", n)
			}
			r.done(r.d.EnqueueSVMMemcpy(q, true, other, p, n, api.Waits{Want: true}))
			r.done(r.d.EnqueueSVMMemFill(q, other.Plus(8), ptr([]byte{7, 8}), 2, 16, api.Waits{}))
			for i := range 16 {
				want[8+i] = byte(7 + i%2)
			}
			r.done(r.d.EnqueueSVMMap(q, true, cl.MAP_READ|cl.MAP_WRITE, other, n, api.Waits{}))
			if !bytes.Equal(other.Bytes(0, n), want) {
				t.Fatalf("%d bytes: across, filled and mapped", n)
			}
			other.Bytes(0, n)[1] = 99
			r.done(r.d.EnqueueSVMUnmap(q, other, api.Waits{}))
			b := r.handle(r.d.CreateBuffer(r.ctx, nil, cl.MEM_USE_HOST_PTR, 50, other))
			one := make([]byte, 50)
			r.done(r.d.EnqueueRead(q, b, true, 0, 50, ptr(one), api.Waits{}))
			if one[1] != 99 || !bytes.Equal(one[2:], want[2:50]) {
				t.Fatalf("%d bytes: a buffer over it", n)
			}
			if uses, _ := r.d.MemObjectInfo(b, cl.MEM_USES_SVM_POINTER); !bytes.Equal(uses, answers.U32(1)) {
				t.Error("a buffer over it does not say so")
			}
			r.ok(r.d.ReleaseMemObject(b))
			r.done(r.d.EnqueueSVMMigrate(q, []uintptr{p.Address()}, nil, 0, api.Waits{}))
			r.ok(r.d.Finish(q))
			r.d.SVMFree(r.ctx, p)
			freed := make(chan struct{})
			r.done(r.d.EnqueueSVMFree(q, []uintptr{other.Address()}, func() {
				r.d.SVMFree(r.ctx, other)
				close(freed)
			}, api.Waits{}))
			<-freed
			if _, _, ok := r.d.shared.Find(p.Address()); ok {
				t.Errorf("%d bytes: freed, and there", n)
			}
		}
		r.done(r.d.EnqueueSVMFree(q, []uintptr{r.svm(64).Address()}, nil, api.Waits{}))
		r.ok(r.d.Finish(q))
	})
}

// TestAddressThatIsTaken: the driver gives an address that the program has not; what it gave goes back.
func TestAddressThatIsTaken(t *testing.T) {
	r := newRig(t, false)
	taken, err := fixed.Reserve(fixed.Pick(1<<20), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer fixed.Release(taken)
	var asked []uint64
	r.node.svm = func(m *clwire.CreateSVM) (uint64, api.Status) {
		asked = append(asked, m.ID)
		if len(asked) <= 3 {
			return uint64(fixed.Address(taken)), cl.SUCCESS
		}
		return uint64(fixed.Pick(m.Size)), cl.SUCCESS
	}
	p := r.svm(1 << 20)
	p.Bytes(0, 1<<20)[5] = 1
	w := r.worker()
	await.Until(t, "what was refused is given back", func() bool {
		w.turn.Lock()
		defer w.turn.Unlock()
		return w.released[asked[0]] && w.released[asked[1]] && w.released[asked[2]]
	})
	w.turn.Lock()
	if len(asked) != 4 || w.released[asked[3]] {
		t.Errorf("%d tries, and the last was given back: %v", len(asked), w.released[asked[3]])
	}
	w.turn.Unlock()
	r.d.SVMFree(r.ctx, p)
}

func TestNoSharedVirtualMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(n *fakeNode)
		says string
	}{
		{"nowhere", func(n *fakeNode) {
			n.svm = func(*clwire.CreateSVM) (uint64, api.Status) { return 0, cl.SUCCESS }
		}, "no address is free"},
		{"no memory", func(n *fakeNode) {
			n.svm = func(*clwire.CreateSVM) (uint64, api.Status) { return 0, cl.MEM_OBJECT_ALLOCATION_FAILURE }
		}, "no memory left"},
		{"an older worker", func(n *fakeNode) { n.old = true }, "older release"},
	} {
		for _, inPlace := range []bool{true, false} {
			r := newRig(t, inPlace)
			c.set(r.node)
			if !r.d.SVMAlloc(r.ctx, 0, 1<<20, 0).Nil() || !r.d.SVMAlloc(r.ctx, 0, 64, 0).Nil() {
				t.Errorf("%s: there is some", c.name)
			}
			if !r.log.contain(c.says) {
				t.Errorf("%s: %q", c.name, r.log.lines)
			}
		}
	}
	r := newRig(t, false)
	for _, c := range []struct {
		flags, size uint64
		align       uint32
	}{{0, 0, 0}, {0, 1 << 62, 0}, {0, 64, 3}, {0, 64, 8192}, {cl.MEM_SVM_FINE_GRAIN_BUFFER, 64, 0},
		{cl.MEM_SVM_ATOMICS, 64, 0}, {cl.MEM_READ_ONLY | cl.MEM_WRITE_ONLY, 64, 0}, {cl.MEM_USE_HOST_PTR, 64, 0}} {
		if !r.d.SVMAlloc(r.ctx, c.flags, c.size, c.align).Nil() {
			t.Errorf("%+v: there is some", c)
		}
	}
	if len(r.log.lines) > 0 {
		t.Errorf("what the specification refuses is told at the terminal: %q", r.log.lines)
	}
}

// TestReach: what a kernel reaches is told before its next launch, once, and to each clone.
func TestReach(t *testing.T) {
	r := newRig(t, true)
	q, k, p := r.queue(0), r.kernel("kernel inc global"), r.svm(1000)
	r.ok(r.d.SetKernelArgSVM(k, 0, p))
	list := slices.Concat(answers.Size(p.Address()), answers.Size(p.Address()+1000))
	r.ok(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, list))
	for range 3 {
		r.launch(q, k, api.Waits{})
	}
	clone := r.handle(r.d.CloneKernel(k))
	r.launch(q, clone, api.Waits{})
	r.ok(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, nil))
	r.launch(q, k, api.Waits{})
	r.ok(r.d.Finish(q))
	at := uint64(p.Address())
	whole := [][]uint64{{at, at + 1000}}
	w := r.worker()
	w.turn.Lock()
	for h, want := range map[uintptr][][]uint64{k: append(whole[:1:1], nil), clone: whole} {
		if got := w.kernels[r.d.kernels.Get(h).id].reaches; !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%x, want %x", got, want)
		}
	}
	w.turn.Unlock()
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, list[:7]), cl.INVALID_VALUE)
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, answers.Size(uintptr(5))), cl.INVALID_VALUE)
	r.is(r.d.SetKernelExecInfo(k, 1, list), cl.INVALID_VALUE)
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, answers.U32(1)), cl.INVALID_OPERATION)
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, answers.U32(0)), cl.SUCCESS)
	r.is(r.d.SetKernelArgSVM(k, 0, p.Plus(svm.ArenaBytes)), cl.INVALID_ARG_VALUE)
	r.is(r.d.SetKernelArgSVM(k, 1, p), cl.INVALID_ARG_INDEX)
	r.ok(r.d.SetKernelArgSVM(k, 0, api.HostPtr{}))
	r.d.SVMFree(r.ctx, p)
}
