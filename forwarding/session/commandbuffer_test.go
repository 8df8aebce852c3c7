package session

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// recorder records into one command buffer as package icd does.
type recorder struct {
	*rig
	h uintptr
}

func (r *rig) recorder(q uintptr, given ...uint64) recorder {
	r.t.Helper()
	return recorder{r, r.handle(r.d.CreateCommandBuffer(1, []uintptr{q}, given))}
}

func (c recorder) launch(k uintptr, points ...uint32) (uint32, api.Status) {
	return c.d.Record(c.h, api.SyncPoints{N: uint32(len(points)), List: points},
		func(q uintptr, w api.Waits) (uintptr, api.Status) {
			return c.d.EnqueueNDRange(q, k, &api.Range{Dims: 1, Global: [3]uint64{64, 1, 1}}, w)
		})
}

func (c recorder) copy(from, to uintptr, size uint64) (uint32, api.Status) {
	return c.d.Record(c.h, api.SyncPoints{}, func(q uintptr, w api.Waits) (uintptr, api.Status) {
		return c.d.EnqueueCopy(q, from, to, 0, 0, size, w)
	})
}

func (c recorder) fill(b uintptr, pattern byte, size uint64) (uint32, api.Status) {
	return c.d.Record(c.h, api.SyncPoints{}, func(q uintptr, w api.Waits) (uintptr, api.Status) {
		return c.d.EnqueueFill(q, b, ptr([]byte{pattern}), 1, 0, size, w)
	})
}

// recordThree fills b, adds 1 to it by k, and copies it to out.
func (c recorder) recordThree(k, b, out uintptr, size uint64) {
	c.t.Helper()
	for want, call := range []func() (uint32, api.Status){
		func() (uint32, api.Status) { return c.fill(b, 7, size) },
		func() (uint32, api.Status) { return c.launch(k, 0) },
		func() (uint32, api.Status) { return c.copy(b, out, size) },
	} {
		point, status := call()
		if status != cl.SUCCESS || point != uint32(want) {
			c.t.Fatalf("command %d: sync point %d, status %d", want, point, status)
		}
	}
}

func (c recorder) state() uint32 {
	c.t.Helper()
	value, status := c.d.CommandBufferInfo(c.h, cl.COMMAND_BUFFER_STATE_KHR)
	c.ok(status)
	return le.Uint32(value)
}

// TestCommandBufferReplays: what was recorded runs as it was recorded, whatever became of its kernel's arguments, its
// kernel and its buffers' handles since. The commands travel once.
func TestCommandBufferReplays(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		for _, props := range []uint64{0, cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE} {
			r := newRig()
			q, k := r.queue(props), r.kernel("kernel inc global")
			const size = 4096
			b, other, out := r.buffer(size), r.buffer(size), r.buffer(size)
			r.setMem(k, 0, b)
			c := r.recorder(q)
			c.recordThree(k, b, out, size)
			if s := c.state(); s != cl.COMMAND_BUFFER_STATE_RECORDING_KHR {
				t.Errorf("state %d while recording", s)
			}
			r.ok(r.d.FinalizeCommandBuffer(c.h))
			r.setMem(k, 0, other)
			r.ok(r.d.ReleaseKernel(k))
			r.ok(r.d.ReleaseMemObject(b))
			for range 5 {
				e := r.handle(r.d.EnqueueCommandBuffer(0, nil, c.h, api.Waits{Want: true}))
				r.ok(r.d.WaitForEvents(1, []uintptr{e}))
				r.ok(r.d.ReleaseEvent(e))
			}
			if s := c.state(); s != cl.COMMAND_BUFFER_STATE_EXECUTABLE_KHR {
				t.Errorf("state %d after the last replay", s)
			}
			got := make([]byte, size)
			r.handle(r.d.EnqueueRead(q, out, true, 0, size, ptr(got), api.Waits{}))
			if !bytes.Equal(got, bytes.Repeat([]byte{8}, size)) {
				t.Errorf("queue %d: %v…", props, got[:8])
			}
			var sent, replays int32
			r.eachWorker(func(w *fakeWorker) { sent, replays = sent+w.sent.Load(), replays+w.replays.Load() })
			if sent != 1 || replays != 5 {
				t.Errorf("the commands travelled %d times for %d replays", sent, replays)
			}
			r.ok(r.d.ReleaseCommandBuffer(c.h))
			r.is(r.d.ReleaseCommandBuffer(c.h), cl.INVALID_COMMAND_BUFFER_KHR)
			r.d.Close()
		}
	})
}

// eachWorker looks at the node's workers, which may be at work.
func (r *rig) eachWorker(f func(w *fakeWorker)) {
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	for _, w := range r.node.workers {
		f(w)
	}
}

// TestCommandBufferRefuses has what the extension says of wrong uses.
func TestCommandBufferRefuses(t *testing.T) {
	r := newRig(t, true)
	q, k := r.queue(0), r.kernel("kernel inc global")
	b := r.buffer(64)
	for _, bad := range [][]uint64{{1, 1, 0}, {cl.COMMAND_BUFFER_FLAGS_KHR, 2, 0},
		{cl.COMMAND_BUFFER_FLAGS_KHR, 0, cl.COMMAND_BUFFER_FLAGS_KHR, 0, 0}} {
		_, status := r.d.CreateCommandBuffer(1, []uintptr{q}, bad)
		r.is(status, cl.INVALID_VALUE)
	}
	_, status := r.d.CreateCommandBuffer(2, []uintptr{q, q}, nil)
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.CreateCommandBuffer(1, []uintptr{b}, nil)
	r.is(status, cl.INVALID_COMMAND_QUEUE)
	c := r.recorder(q)
	_, status = c.launch(k)
	r.is(status, cl.INVALID_KERNEL_ARGS)
	r.setMem(k, 0, b)
	_, status = c.launch(k, 0)
	r.is(status, cl.INVALID_SYNC_POINT_WAIT_LIST_KHR)
	_, status = r.d.Record(c.h, api.SyncPoints{Queue: q}, nil)
	r.is(status, cl.INVALID_COMMAND_QUEUE)
	_, status = r.d.Record(c.h, api.SyncPoints{Mutable: true}, nil)
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.Record(c.h, api.SyncPoints{N: 1}, nil)
	r.is(status, cl.INVALID_SYNC_POINT_WAIT_LIST_KHR)
	_, status = r.d.EnqueueCommandBuffer(0, nil, c.h, api.Waits{})
	r.is(status, cl.INVALID_OPERATION)
	_, status = c.launch(k)
	r.ok(status)
	r.ok(r.d.FinalizeCommandBuffer(c.h))
	r.is(r.d.FinalizeCommandBuffer(c.h), cl.INVALID_OPERATION)
	_, status = c.launch(k)
	r.is(status, cl.INVALID_OPERATION)
	_, status = r.d.EnqueueCommandBuffer(1, []uintptr{r.queue(cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)}, c.h,
		api.Waits{})
	r.is(status, cl.INCOMPATIBLE_COMMAND_QUEUE_KHR)
	_, status = r.d.EnqueueCommandBuffer(1, nil, c.h, api.Waits{})
	r.is(status, cl.INVALID_VALUE)
	// While a replay is pending another one is refused, and what it uses stays.
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	e := r.handle(r.d.EnqueueCommandBuffer(0, nil, c.h, api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
	if s := c.state(); s != cl.COMMAND_BUFFER_STATE_PENDING_KHR {
		t.Errorf("state %d behind a user event", s)
	}
	_, status = r.d.EnqueueCommandBuffer(0, nil, c.h, api.Waits{})
	r.is(status, cl.INVALID_OPERATION)
	r.ok(r.d.ReleaseCommandBuffer(c.h))
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.WaitForEvents(1, []uintptr{e}))
	for _, h := range []uintptr{0, 1, q, c.h} {
		r.is(r.d.RetainCommandBuffer(h), cl.INVALID_COMMAND_BUFFER_KHR)
		r.is(r.d.FinalizeCommandBuffer(h), cl.INVALID_COMMAND_BUFFER_KHR)
		_, status = r.d.EnqueueCommandBuffer(0, nil, h, api.Waits{})
		r.is(status, cl.INVALID_COMMAND_BUFFER_KHR)
		_, status = r.d.CommandBufferInfo(h, cl.COMMAND_BUFFER_STATE_KHR)
		r.is(status, cl.INVALID_COMMAND_BUFFER_KHR)
	}
}

// TestCommandBuffersOfManyThreads: threads of one context record, replay and release their own, and share one that may
// run while it is pending.
func TestCommandBuffersOfManyThreads(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		p := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{"kernel inc global"}))
		r.ok(r.d.Build(p, false, nil, "", nil))
		const size, threads = 512, 6
		shared, q := r.buffer(size), r.queue(0)
		r.handle(r.d.EnqueueFill(q, shared, ptr([]byte{0}), 1, 0, size, api.Waits{}))
		k := r.handle(r.d.CreateKernel(p, "inc"))
		r.setMem(k, 0, shared)
		common := r.recorder(q, cl.COMMAND_BUFFER_FLAGS_KHR, cl.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR, 0)
		_, status := common.launch(k)
		r.ok(status)
		r.ok(r.d.FinalizeCommandBuffer(common.h))
		var wg sync.WaitGroup
		var replays atomic.Int32
		for thread := range threads {
			wg.Go(func() {
				if err := r.recordAndReplay(p, common.h, byte(thread), &replays); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got := make([]byte, size)
		r.handle(r.d.EnqueueRead(q, shared, true, 0, size, ptr(got), api.Waits{}))
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(replays.Load())}, size)) {
			t.Errorf("%d after %d replays", got[0], replays.Load())
		}
	})
}

// recordAndReplay is one thread.
func (r *rig) recordAndReplay(p, common uintptr, seed byte, replays *atomic.Int32) error {
	const size = 512
	q, _ := r.d.CreateQueue(r.ctx, r.dev, uint64(seed%2))
	for round := range 8 {
		b, _ := r.d.CreateBuffer(r.ctx, nil, 0, size, api.HostPtr{})
		k, _ := r.d.CreateKernel(p, "inc")
		r.d.SetKernelArg(k, 0, 8, ptr(le.AppendUint64(nil, uint64(b))))
		h, status := r.d.CreateCommandBuffer(1, []uintptr{q}, nil)
		if status != cl.SUCCESS {
			return fmt.Errorf("create: %d", status)
		}
		c := recorder{r, h}
		c.fill(b, seed, size)
		c.launch(k)
		c.launch(k)
		r.d.FinalizeCommandBuffer(h)
		e, status := r.d.EnqueueCommandBuffer(0, nil, h, api.Waits{Want: true})
		if status != cl.SUCCESS {
			return fmt.Errorf("replay: %d", status)
		}
		if _, status := r.d.EnqueueCommandBuffer(0, nil, common, api.Waits{}); status != cl.SUCCESS {
			return fmt.Errorf("replay of the common one: %d", status)
		}
		replays.Add(1)
		r.d.ReleaseCommandBuffer(h)
		r.d.ReleaseKernel(k)
		got := make([]byte, size)
		if _, status := r.d.EnqueueRead(q, b, true, 0, size, ptr(got),
			api.Waits{N: 1, List: []uintptr{e}}); status != cl.SUCCESS || got[0] != seed+2 || got[size-1] != seed+2 {
			return fmt.Errorf("round %d: status %d, %d, want %d", round, status, got[0], seed+2)
		}
		r.d.ReleaseEvent(e)
		r.d.ReleaseMemObject(b)
	}
	r.d.ReleaseQueue(q)
	return nil
}
