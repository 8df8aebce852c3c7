package span

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/fixed"
	"tendril/forwarding/session/svm"
)

// newSVMRig has members whose devices all have shared virtual memory, but for those without.
func newSVMRig(t *testing.T, members int, setup func(m *model), without ...int) *rig {
	t.Helper()
	m := newModel(t, members, 1)
	m.svm = map[int]uint64{}
	for i := range members {
		if !slices.Contains(without, i) {
			m.svm[i] = cl.DEVICE_SVM_COARSE_GRAIN_BUFFER | cl.DEVICE_SVM_FINE_GRAIN_BUFFER
		}
	}
	if setup != nil {
		setup(m)
	}
	return newRigOver(t, m)
}

func (r *rig) alloc(n uint64) api.HostPtr {
	r.t.Helper()
	p := r.d.SVMAlloc(r.ctx, 0, n, 0)
	if p.Nil() {
		r.t.Fatalf("no shared virtual memory of %d bytes: %q", n, r.m.warned)
	}
	return p
}

// mapped is what a map on a queue shows of n bytes; change, if not nil, writes there.
func (r *rig) mapped(q uintptr, p api.HostPtr, n uint64, change func(at []byte)) []byte {
	r.t.Helper()
	flags := uint64(cl.MAP_READ)
	if change != nil {
		flags |= cl.MAP_WRITE
	}
	_, status := r.d.EnqueueSVMMap(q, true, flags, p, n, api.Waits{})
	r.ok(status)
	seen := bytes.Clone(p.Bytes(0, n))
	if change != nil {
		change(p.Bytes(0, n))
	}
	_, status = r.d.EnqueueSVMUnmap(q, p, api.Waits{})
	r.ok(status)
	return seen
}

// TestSVM: what one member's commands write, the other's and the program see, of small allocations and large ones.
func TestSVM(t *testing.T) {
	for _, n := range []uint64{100, svm.SmallBytes} {
		r := newSVMRig(t, 2, nil)
		k := r.kernel("add")
		p, other := r.alloc(n), r.alloc(n)
		_, status := r.d.EnqueueSVMMap(r.queues[0], true, cl.MAP_WRITE_INVALIDATE_REGION, p, n, api.Waits{})
		r.ok(status)
		for i := range n {
			p.Bytes(0, n)[i] = byte(i)
		}
		_, status = r.d.EnqueueSVMUnmap(r.queues[1], p, api.Waits{})
		r.ok(status)
		want := func(add byte) []byte {
			w := make([]byte, n)
			for i := range w {
				w[i] = byte(i) + add
			}
			return w
		}
		at := uintptr(0)
		for round := byte(1); round < 5; round++ {
			at = 1 - at
			r.ok(r.d.SetKernelArgSVM(k, 0, p))
			r.ok(r.d.SetKernelArg(k, 1, 1, r.bytes(1)))
			_, status = r.d.EnqueueNDRange(r.queues[at], k, nil, api.Waits{})
			r.ok(status)
			r.ok(r.d.Finish(r.queues[at]))
			if got := r.mapped(r.queues[1-at], p, n, nil); !bytes.Equal(got, want(round)) {
				t.Fatalf("%d bytes, round %d: %v…", n, round, got[:8])
			}
		}
		_, status = r.d.EnqueueSVMMemcpy(r.queues[0], true, other, p, n, api.Waits{})
		r.ok(status)
		_, status = r.d.EnqueueSVMMemFill(r.queues[1], other, r.bytes(7, 9), 2, 8, api.Waits{})
		r.ok(status)
		r.mapped(r.queues[1], other.Plus(1), 3, func(at []byte) { at[1] = 77 })
		got, now := make([]byte, n), want(4)
		copy(now, []byte{7, 9, 77, 9, 7, 9, 7, 9})
		_, status = r.d.EnqueueSVMMigrate(r.queues[0], []uintptr{other.Address()}, nil, 0, api.Waits{})
		r.ok(status)
		_, status = r.d.EnqueueSVMMemcpy(r.queues[0], true, api.HostBytes(got), other, n, api.Waits{})
		r.ok(status)
		if !bytes.Equal(got, now) {
			t.Fatalf("%d bytes: %v, want %v", n, got[:8], now[:8])
		}
		r.d.SVMFree(r.ctx, p)
		freed := false
		_, status = r.d.EnqueueSVMFree(r.queues[0], []uintptr{other.Address()}, func() {
			freed = true
			r.d.SVMFree(r.ctx, other)
		}, api.Waits{})
		r.ok(status)
		r.end()
		if !freed {
			t.Error("the program's callback was not called")
		}
	}
}

// TestSVMReach: a launch brings what it reaches by pointers in memory to its member.
func TestSVMReach(t *testing.T) {
	const n = svm.SmallBytes
	r := newSVMRig(t, 2, nil)
	k := r.kernel("add")
	list, node := r.alloc(n), r.alloc(n)
	r.ok(r.d.SetKernelArgSVM(k, 0, list))
	r.ok(r.d.SetKernelArg(k, 1, 1, r.bytes(1)))
	r.ok(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, answers.U64(uint64(node.Address())+8)))
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, answers.U64(8)), cl.INVALID_VALUE)
	r.is(r.d.SetKernelExecInfo(k, cl.KERNEL_EXEC_INFO_SVM_PTRS, []byte{1}), cl.INVALID_VALUE)
	_, status := r.d.EnqueueSVMMemFill(r.queues[0], node, r.bytes(5), 1, n, api.Waits{})
	r.ok(status)
	r.ok(r.d.Finish(r.queues[0]))
	c, err := r.d.CloneKernel(k)
	r.ok(err)
	for _, k := range []uintptr{k, c} {
		_, status = r.d.EnqueueNDRange(r.queues[1], k, nil, api.Waits{})
		r.ok(status)
	}
	r.ok(r.d.Finish(r.queues[1]))
	p, _, _ := r.d.contexts.Get(r.ctx).inSVM(node, 0)
	r.m.mu.Lock()
	if there := r.m.objects[p.root.inner[1]].data[n-1]; there != 5 {
		t.Errorf("the second member's memory has %d, want 5", there)
	}
	inner := r.d.kernels.Get(c).inner[1]
	if reach := r.m.objects[inner].reach; !slices.Equal(reach, []uintptr{node.Address() + 8}) {
		t.Errorf("the second member's kernel reaches %#x", reach)
	}
	r.m.mu.Unlock()
	r.d.SVMFree(r.ctx, list)
	r.d.SVMFree(r.ctx, node)
	r.ok(r.d.ReleaseKernel(c))
	r.end()
}

// TestSVMBuffer: a buffer over an allocation, also with a sub-buffer, and at a member without shared virtual memory.
func TestSVMBuffer(t *testing.T) {
	for name, without := range map[string][]int{"all": nil, "one without": {1}} {
		t.Run(name, func(t *testing.T) {
			r := newSVMRig(t, 2, nil, without...)
			p := r.alloc(1000)
			b, status := r.d.CreateBuffer(r.ctx, nil, cl.MEM_USE_HOST_PTR, 512, p.Plus(4))
			r.ok(status)
			sub, status := r.d.CreateSubBuffer(b, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 16, 32)
			r.ok(status)
			for param, want := range map[uint32]uint64{cl.MEM_OFFSET: 0, cl.MEM_ASSOCIATED_MEMOBJECT: 0,
				cl.MEM_USES_SVM_POINTER: 1, cl.MEM_HOST_PTR: uint64(p.Address()) + 4} {
				if value, status := r.d.MemObjectInfo(b, param); status != cl.SUCCESS || answers.Number(value) != want {
					t.Errorf("%#x: %v, %d", param, value, status)
				}
			}
			if value, _ := r.d.MemObjectInfo(sub, cl.MEM_OFFSET); answers.Number(value) != 16 {
				t.Errorf("the sub-buffer's offset is %v", value)
			}
			_, status = r.d.EnqueueSVMMemFill(r.queues[0], p, r.bytes(1), 1, 1000, api.Waits{})
			r.ok(status)
			r.ok(r.d.Finish(r.queues[0]))
			_, status = r.d.EnqueueFill(r.queues[1], sub, r.bytes(2), 1, 0, 32, api.Waits{})
			r.ok(status)
			r.ok(r.d.Finish(r.queues[1]))
			at, _, status := r.d.EnqueueMap(r.queues[1], b, true, cl.MAP_READ|cl.MAP_WRITE, 8, 64, api.Waits{})
			r.ok(status)
			if at.Address() != p.Address()+12 || at.Bytes(0, 64)[7] != 1 || at.Bytes(0, 64)[8] != 2 {
				t.Fatalf("mapped at %#x, %v", at.Address(), at.Bytes(0, 64))
			}
			at.Bytes(0, 64)[63] = 3
			_, status = r.d.EnqueueUnmap(r.queues[1], b, at, api.Waits{})
			r.ok(status)
			r.ok(r.d.Finish(r.queues[1]))
			want := slices.Concat(bytes.Repeat([]byte{1}, 20), bytes.Repeat([]byte{2}, 32), bytes.Repeat([]byte{1}, 23),
				[]byte{3}, bytes.Repeat([]byte{1}, 924))
			if got := r.mapped(r.queues[0], p, 1000, nil); !bytes.Equal(got, want) {
				t.Fatalf("%v", got[:80])
			}
			_, status = r.d.EnqueueSVMMap(r.queues[1], true, cl.MAP_READ, p, 4, api.Waits{})
			if r.is(status, map[bool]api.Status{true: cl.INVALID_OPERATION}[len(without) > 0]); status == cl.SUCCESS {
				_, status = r.d.EnqueueSVMUnmap(r.queues[1], p, api.Waits{})
				r.ok(status)
			}
			r.ok(r.d.ReleaseMemObject(sub))
			r.ok(r.d.ReleaseMemObject(b))
			r.d.SVMFree(r.ctx, p)
			r.end()
		})
	}
}

// TestSVMAddresses: one address for all. A member whose driver chooses has the word, and where its address is taken at
// another one it is asked again.
func TestSVMAddresses(t *testing.T) {
	const n = svm.SmallBytes
	var chosen uintptr
	refusals := 3
	r := newSVMRig(t, 3, func(m *model) {
		m.chooses = map[int]func() uintptr{1: func() uintptr { chosen = fixed.Pick(n); return chosen }}
		m.taken = func(device int, at uintptr) bool {
			if device == 2 && at == chosen && refusals > 0 {
				refusals--
				return true
			}
			return false
		}
	})
	p := r.alloc(n)
	if p.Address() != chosen || refusals != 0 {
		t.Errorf("at %#x, the driver's choice was %#x; %d refusals left", p.Address(), chosen, refusals)
	}
	r.d.SVMFree(r.ctx, p)
	r.m.asked = 0
	r.d.SVMFree(r.ctx, r.alloc(n))
	if r.m.asked != 3 {
		t.Errorf("asked %d times for the second allocation, want 3: who chooses is known", r.m.asked)
	}
	r.end()
}

// reserve takes n bytes of the program's addresses where nothing lies: Pick does not know of Go's heap.
func reserve(t *testing.T, n uint64) []byte {
	t.Helper()
	for {
		mem, err := fixed.Reserve(fixed.Pick(n), n)
		if err == nil {
			return mem
		}
		if !errors.Is(err, fixed.ErrTaken) {
			t.Fatal(err)
		}
	}
}

// TestSVMAddressGivenAgain: a driver that gives an address again as soon as it is free. Others are found although the
// program, or another worker, has something at the first twenty.
func TestSVMAddressGivenAgain(t *testing.T) {
	const n = svm.SmallBytes
	for _, where := range []string{"the program", "a worker"} {
		t.Run(where, func(t *testing.T) {
			list := make([]uintptr, 40) // the driver's, in order
			var free [][]byte
			for i := range list {
				mem := reserve(t, n)
				list[i] = fixed.Address(mem)
				if where == "the program" && i < 20 {
					defer fixed.Release(mem)
				} else {
					free = append(free, mem)
				}
			}
			r := newSVMRig(t, 2, func(m *model) {
				m.chooses = map[int]func() uintptr{1: func() uintptr { return m.lowestFree(list) }}
				m.taken = func(device int, at uintptr) bool {
					return where == "a worker" && device == 0 && slices.Contains(list[:20], at)
				}
			})
			for _, mem := range free {
				fixed.Release(mem)
			}
			p := r.alloc(n)
			if !slices.Contains(list[20:], p.Address()) {
				t.Errorf("at %#x; the first address that is free everywhere is %#x", p.Address(), list[20])
			}
			r.d.SVMFree(r.ctx, p)
			r.m.mu.Lock()
			left := 0
			for _, o := range r.m.objects {
				if o.at != 0 {
					left++
				}
			}
			r.m.mu.Unlock()
			if left != 0 {
				t.Errorf("%d allocations are left at members", left)
			}
			r.end()
		})
	}
}

func TestSVMThatCannotBe(t *testing.T) {
	r := newSVMRig(t, 2, func(m *model) {
		pick := func() uintptr { return fixed.Pick(svm.ArenaBytes) }
		m.chooses = map[int]func() uintptr{0: pick, 1: pick}
	})
	if p := r.d.SVMAlloc(r.ctx, 0, 64, 0); !p.Nil() {
		t.Errorf("two drivers agreed on %#x", p.Address())
	}
	says := func(text string) bool { return strings.Contains(text, errTwoChoose.Error()) }
	if !slices.ContainsFunc(r.m.warned, says) {
		t.Errorf("the log says %q", r.m.warned)
	}
	r.end()
	r = newSVMRig(t, 2, func(m *model) { m.taken = func(int, uintptr) bool { return true } })
	if p := r.d.SVMAlloc(r.ctx, 0, 64, 0); !p.Nil() {
		t.Errorf("at %#x, where something else lies", p.Address())
	}
	r.end()
	r = newSVMRig(t, 2, nil, 0, 1)
	if p := r.d.SVMAlloc(r.ctx, 0, 64, 0); !p.Nil() {
		t.Error("memory that no device has")
	}
	r.end()
}

// TestSVMGrain: where contexts span, devices say that they have the coarse grain alone, and it is so.
func TestSVMGrain(t *testing.T) {
	r := newSVMRig(t, 2, nil)
	value, status := r.d.DeviceInfo(r.m.devices[0], cl.DEVICE_SVM_CAPABILITIES)
	if r.ok(status); answers.Number(value) != cl.DEVICE_SVM_COARSE_GRAIN_BUFFER {
		t.Errorf("capabilities %v", value)
	}
	for _, flags := range []uint64{cl.MEM_SVM_FINE_GRAIN_BUFFER, 1 << 40, cl.MEM_READ_ONLY | cl.MEM_WRITE_ONLY} {
		if p := r.d.SVMAlloc(r.ctx, flags, 64, 0); !p.Nil() {
			t.Errorf("memory with flags %#x", flags)
		}
	}
	r.end()
}
