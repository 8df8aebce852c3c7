package session

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// hostMemory is memory of a program: the driver keeps its address as a number, which the collector does not see.
func hostMemory(t *testing.T, contents []byte) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, len(contents), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	copy(b, contents)
	return b
}

// withObject makes an object of a pattern in the store, and a buffer of it.
func withObject(t *testing.T, inPlace bool, size uint64) (r *rig, buffer uintptr) {
	t.Helper()
	r = newRig(t, inPlace)
	q, b := r.queue(0), r.buffer(size)
	r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(hostMemory(t, pattern(int(size), 0))), api.Waits{}))
	if _, err := r.d.Publish(b, "input", nil); err != nil {
		t.Fatal(err)
	}
	r.ok(r.d.ReleaseMemObject(b))
	r.ok(r.d.ReleaseQueue(q))
	return r, r.handle(r.d.OpenObject(r.ctx, [16]byte{}, "input"))
}

func TestAnObjectIsReadAsABuffer(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		const size = 1 << 20
		r, in := withObject(t, inPlace, size)
		q, k, out := r.queue(0), r.kernel("kernel copy const global"), r.buffer(size)
		r.setMem(k, 0, in)
		r.setMem(k, 1, out)
		r.launch(q, k, api.Waits{})
		got := hostMemory(t, make([]byte, size))
		r.handle(r.d.EnqueueRead(q, out, true, 0, size, ptr(got), api.Waits{}))
		if at := difference(got, pattern(size, 0)); at >= 0 {
			t.Errorf("the kernel read %d at %d", got[at], at)
		}
		clear(got)
		r.handle(r.d.EnqueueRead(q, in, true, 0, size, ptr(got), api.Waits{}))
		if at := difference(got, pattern(size, 0)); at >= 0 {
			t.Errorf("the program read %d at %d", got[at], at)
		}
		at, _, status := r.d.EnqueueMap(q, in, true, cl.MAP_READ, 64, 64, api.Waits{})
		r.ok(status)
		if !bytes.Equal(at.Bytes(0, 64), pattern(size, 0)[64:128]) {
			t.Error("the map shows something else")
		}
		r.handle(r.d.EnqueueUnmap(q, in, at, api.Waits{}))
		sub := r.handle(r.d.CreateSubBuffer(in, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 4096, 4096))
		r.handle(r.d.EnqueueCopy(q, sub, out, 0, 0, 4096, api.Waits{}))
		r.handle(r.d.EnqueueRead(q, out, true, 0, 4096, ptr(got), api.Waits{}))
		if !bytes.Equal(got[:4096], pattern(size, 0)[4096:8192]) {
			t.Error("a part of it is something else")
		}
		r.ok(r.d.ReleaseMemObject(in))
		if len(r.node.attached) != 1 {
			t.Error("the object is gone, but a part of it is in use")
		}
		r.ok(r.d.ReleaseMemObject(sub))
	})
}

func TestNothingWritesToAnObject(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r, in := withObject(t, inPlace, 4096)
		q, other := r.queue(0), r.buffer(4096)
		data := hostMemory(t, make([]byte, 4096))
		_, status := r.d.EnqueueWrite(q, in, true, 0, 4096, ptr(data), api.Waits{})
		r.is(status, cl.INVALID_OPERATION)
		_, status = r.d.EnqueueFill(q, in, ptr(data), 4, 0, 4096, api.Waits{})
		r.is(status, cl.INVALID_OPERATION)
		_, status = r.d.EnqueueCopy(q, other, in, 0, 0, 4096, api.Waits{})
		r.is(status, cl.INVALID_OPERATION)
		_, _, status = r.d.EnqueueMap(q, in, true, cl.MAP_WRITE, 0, 4096, api.Waits{})
		r.is(status, cl.INVALID_OPERATION)
		_, status = r.d.CreateSubBuffer(in, cl.MEM_READ_WRITE, cl.BUFFER_CREATE_TYPE_REGION, true, 0, 1024)
		r.is(status, cl.INVALID_VALUE)
		k := r.kernel("kernel inc global")
		r.is(r.d.SetKernelArg(k, 0, 8, ptr(hostMemory(t, le.AppendUint64(nil, uint64(in))))), cl.INVALID_ARG_VALUE)
		if _, err := r.d.Publish(in, "again", nil); !errors.Is(err, object.ErrUnsupported) &&
			!errors.Is(err, object.ErrExists) {
			t.Errorf("published again: %v", err)
		}
		if !bytes.Equal(r.node.published["input"].Bytes[:4096], pattern(4096, 0)) {
			t.Error("the object has changed")
		}
		r.ok(r.d.ReleaseMemObject(in))
	})
}

func TestObjectsThatCannotBeOpened(t *testing.T) {
	r := newRig(t, true)
	_, status := r.d.OpenObject(r.ctx, [16]byte{}, "nowhere")
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.OpenObject(r.ctx, [16]byte{}, "")
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.OpenObject(r.ctx, [16]byte{1}, "both")
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.OpenObject(r.dev, [16]byte{1}, "")
	r.is(status, cl.INVALID_CONTEXT)
	if !r.log.contain("not found") {
		t.Error("nobody was told why")
	}
}

// An object in the memory of a GPU is the buffer's memory for the GPU's own context: nothing is copied, and nothing is
// debited. Any other context gets a copy in host memory; where there is none it is refused, and said why.
func TestAnObjectInTheMemoryOfAGPU(t *testing.T) {
	const size, gpu = 1 << 20, "fafafafafafafafafafafafafafafa00"
	r, host := withObject(t, false, size)
	r.ok(r.d.ReleaseMemObject(host))
	await.Until(t, "the release", func() bool { r.node.mu.Lock(); defer r.node.mu.Unlock(); return len(r.node.attached) == 0 })
	r.node.gpu, r.node.noCopies = gpu, object.ErrUnsupported
	for _, imports := range []string{"", "fafafafafafafafafafafafafafafa01"} {
		r.d.devices.Get(r.dev).imports = imports
		_, status := r.d.OpenObject(r.ctx, [16]byte{}, "input")
		r.is(status, cl.INVALID_OPERATION)
	}
	if !r.log.contain("memory of GPU " + gpu) {
		t.Error("nobody was told why")
	}
	r.node.mu.Lock()
	if len(r.node.attached) != 0 {
		t.Error("a refusal keeps a reference")
	}
	r.node.mu.Unlock()
	r.d.devices.Get(r.dev).imports = gpu
	before := r.d.contexts.Get(r.ctx).debited.Load()
	in := r.handle(r.d.OpenObject(r.ctx, [16]byte{}, "input"))
	q, out := r.queue(0), r.buffer(4096)
	r.handle(r.d.EnqueueCopy(q, in, out, 8192, 0, 4096, api.Waits{}))
	got := hostMemory(t, make([]byte, size))
	r.handle(r.d.EnqueueRead(q, out, true, 0, 4096, ptr(got), api.Waits{}))
	if !bytes.Equal(got[:4096], pattern(size, 0)[8192:8192+4096]) {
		t.Error("something else was copied")
	}
	if r.d.buffers.Get(in).remote.Load() == nil {
		t.Error("the bytes came from elsewhere than the device")
	}
	if debited := r.d.contexts.Get(r.ctx).debited.Load() - before; debited > 4096 {
		t.Errorf("%d bytes were debited for memory that is there", debited)
	}
	r.handle(r.d.EnqueueRead(q, in, true, 0, size, ptr(got), api.Waits{}))
	if at := difference(got, pattern(size, 0)); at >= 0 {
		t.Errorf("the program read %d at %d", got[at], at)
	}
	sub := r.handle(r.d.CreateSubBuffer(in, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 4096, 4096))
	r.handle(r.d.EnqueueRead(q, sub, true, 0, 4096, ptr(got), api.Waits{}))
	if !bytes.Equal(got[:4096], pattern(size, 0)[4096:8192]) {
		t.Error("a part of it is something else")
	}
	_, status := r.d.EnqueueWrite(q, in, true, 0, 4096, ptr(got), api.Waits{})
	r.is(status, cl.INVALID_OPERATION)
	r.ok(r.d.ReleaseMemObject(sub))
	r.ok(r.d.ReleaseMemObject(in))
}

// An object that is larger than what its GPU's driver imports is copied on the GPU, piece by piece, without any host
// memory; all references are given back, whatever fails. The buffer is as read-only as another one of an object, and
// goes on when the object is gone. It works on another machine, too.
func TestALargeObjectInTheMemoryOfAGPU(t *testing.T) {
	const size, gpu, most = 1<<16 + 77, "fafafafafafafafafafafafafafafa00", 1 << 14
	for _, remote := range []bool{false, true} {
		r, host := withObject(t, false, size)
		r.ok(r.d.ReleaseMemObject(host))
		none := func() bool { r.node.mu.Lock(); defer r.node.mu.Unlock(); return len(r.node.attached) == 0 }
		await.Until(t, "the release", none)
		r.node.gpu = gpu
		dev := r.d.devices.Get(r.dev)
		dev.imports, dev.most = gpu, most
		r.d.contexts.Get(r.ctx).Remote = remote
		_, status := r.d.OpenUncopied(r.ctx, [16]byte{}, "input")
		r.is(status, cl.INVALID_OPERATION)
		before := r.d.contexts.Get(r.ctx).debited.Load()
		r.node.noDrafts = object.ErrQuota
		_, status = r.d.OpenObject(r.ctx, [16]byte{}, "input")
		r.is(status, cl.MEM_OBJECT_ALLOCATION_FAILURE)
		r.node.noDrafts, r.node.noCopies = nil, object.ErrNoDevice
		_, status = r.d.OpenObject(r.ctx, [16]byte{}, "input")
		r.is(status, cl.OUT_OF_RESOURCES)
		r.node.noCopies = nil
		await.Until(t, "the release", none)
		if n := r.d.contexts.Get(r.ctx).debited.Load() - before; n != 0 {
			t.Errorf("%d bytes of the device stay debited", n)
		}
		in := r.handle(r.d.OpenObject(r.ctx, [16]byte{}, "input"))
		await.Until(t, "the release", none)
		r.d.contexts.Get(r.ctx).Remote = false // the rig has no lanes
		got, q := hostMemory(t, make([]byte, size)), r.queue(0)
		r.handle(r.d.EnqueueRead(q, in, true, 0, size, ptr(got), api.Waits{}))
		if at := difference(got, pattern(size, 0)); at >= 0 || r.node.copies > 0 || r.node.pieces != 5 {
			t.Errorf("remote %v: %d copies by host, %d pieces, another byte at %d", remote, r.node.copies, r.node.pieces, at)
		}
		_, status = r.d.EnqueueWrite(q, in, true, 0, 4096, ptr(got), api.Waits{})
		r.is(status, cl.INVALID_OPERATION)
		r.ok(r.d.ReleaseMemObject(in))
	}
}

// A context whose device does not import the memory reads a copy in host memory; both references are given back. A
// draft has no copy.
func TestACopyOfAnObjectInTheMemoryOfAGPU(t *testing.T) {
	const size, gpu = 1 << 16, "fafafafafafafafafafafafafafafa00"
	for _, x := range []struct {
		inPlace bool
		imports string
		most    uint64
		copied  bool
	}{{true, gpu, 0, true}, {false, "", 0, true}, {false, gpu, size, false}} {
		r, host := withObject(t, x.inPlace, size)
		r.ok(r.d.ReleaseMemObject(host))
		r.node.gpu = gpu
		dev := r.d.devices.Get(r.dev)
		dev.imports, dev.most = x.imports, x.most
		if x.copied {
			_, status := r.d.OpenUncopied(r.ctx, [16]byte{}, "input")
			r.is(status, cl.INVALID_OPERATION)
		}
		in := r.handle(r.d.OpenObject(r.ctx, [16]byte{}, "input"))
		got := hostMemory(t, make([]byte, size))
		r.handle(r.d.EnqueueRead(r.queue(0), in, true, 0, size, ptr(got), api.Waits{}))
		if at := difference(got, pattern(size, 0)); at >= 0 || (r.node.copies == 1) != x.copied {
			t.Errorf("%+v: %d copies, another byte at %d", x, r.node.copies, at)
		}
		r.ok(r.d.ReleaseMemObject(in))
		await.Until(t, "the release", func() bool {
			r.node.mu.Lock()
			defer r.node.mu.Unlock()
			return len(r.node.attached) == 0
		})
		if r.node.unsealed = true; x.copied {
			_, status := r.d.OpenObject(r.ctx, [16]byte{}, "input")
			r.is(status, cl.INVALID_OPERATION)
		}
	}
}

// A part of an object goes to a device with memory of its own without the rest.
func TestPartOfAnObjectIsCopied(t *testing.T) {
	const size = 1 << 20
	r, in := withObject(t, false, size)
	q, part := r.queue(0), r.buffer(4096)
	r.handle(r.d.EnqueueCopy(q, in, part, 8192, 0, 4096, api.Waits{}))
	got := hostMemory(t, make([]byte, 4096))
	r.handle(r.d.EnqueueRead(q, part, true, 0, 4096, ptr(got), api.Waits{}))
	if !bytes.Equal(got, pattern(size, 0)[8192:8192+4096]) {
		t.Error("something else was copied")
	}
	if r.d.buffers.Get(in).remote.Load() != nil {
		t.Error("the device has a copy of the whole")
	}
	r.ok(r.d.ReleaseMemObject(in))
}

// A reference stays until the commands that may read the object have ended, also those of a released queue.
func TestAnObjectOutlivesItsReaders(t *testing.T) {
	r, in := withObject(t, true, 4096)
	q, k, out := r.queue(0), r.kernel("kernel copy const global"), r.buffer(4096)
	r.setMem(k, 0, in)
	r.setMem(k, 1, out)
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	r.launch(q, k, api.Waits{N: 1, List: []uintptr{gate}})
	r.ok(r.d.ReleaseMemObject(in))
	r.ok(r.d.ReleaseQueue(q))
	held := func() int {
		r.node.mu.Lock()
		defer r.node.mu.Unlock()
		return len(r.node.attached)
	}
	if held() != 1 {
		t.Error("the object is gone, but a kernel will read it")
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	for deadline := time.Now().Add(5 * time.Minute); held() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the object is held for ever")
		}
	}
}

// difference is the first place where two slices of one length differ; -1: none.
func difference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// inAndOutOfPlace runs a test on a device that computes on shared memory, and on one that does not.
func inAndOutOfPlace(t *testing.T, f func(t *testing.T, inPlace bool)) {
	t.Run("in place", func(t *testing.T) { f(t, true) })
	t.Run("out of place", func(t *testing.T) { f(t, false) })
}
