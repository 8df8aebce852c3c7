package session

import (
	"bytes"
	"errors"
	"testing"

	"tendril/forwarding/api"
	"tendril/store/object"
)

const testGPU = "fafafafafafafafafafafafafafafa00"

// onGPU is a rig whose device imports memory of testGPU, and a buffer of size bytes with a pattern.
func onGPU(t *testing.T, size uint64) (r *rig, q, b uintptr) {
	r = newRig(t, false)
	r.d.devices.Get(r.dev).imports = testGPU
	r.d.cfg.PublishKind = "cuda"
	q, b = r.queue(0), r.buffer(size)
	r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(hostMemory(t, pattern(int(size), 0))), api.Waits{}))
	return r, q, b
}

// object is what the node has under a name.
func (r *rig) object(name string) []byte {
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	if s := r.node.published[name]; s != nil {
		return s.Bytes
	}
	return nil
}

// A result becomes an object in the memory of the GPU: the device copies it, no segment of host memory is made, and
// the buffer goes on by itself.
func TestPublishInTheMemoryOfAGPU(t *testing.T) {
	const size = 1<<20 + 12
	r, q, b := onGPU(t, size)
	r.node.mu.Lock()
	before := r.node.bytes
	r.node.mu.Unlock()
	for n := range 2 { // the second takes the name
		if _, err := r.d.Publish(b, "result", nil); err != nil {
			t.Fatal(err)
		}
		if at := difference(r.object("result"), pattern(size, byte(n))); at >= 0 {
			t.Fatalf("object %d differs at %d", n, at)
		}
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(hostMemory(t, pattern(size, 1))), api.Waits{}))
		if at := difference(r.object("result"), pattern(size, byte(n))); at >= 0 {
			t.Fatalf("a write to the buffer reached object %d at %d", n, at)
		}
	}
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	if r.node.bytes > before {
		t.Errorf("%d more bytes of host memory", r.node.bytes-before)
	}
}

// What fails leaves no draft (the rig looks), and says what it was; the buffer stays as it is.
func TestPublishInTheMemoryOfAGPUFails(t *testing.T) {
	r, q, b := onGPU(t, 4096)
	fails := func(want error) {
		t.Helper()
		if _, err := r.d.Publish(b, "result", nil); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if r.object("result") != nil {
			t.Error("there is an object")
		}
	}
	r.node.noDrafts = object.ErrQuota
	fails(object.ErrQuota)
	r.node.noDrafts, r.node.unseal = nil, object.ErrPermission
	fails(object.ErrPermission)
	r.node.unseal = nil
	r.d.devices.Get(r.dev).imports = ""
	fails(object.ErrUnsupported)
	got := hostMemory(t, make([]byte, 4096))
	r.handle(r.d.EnqueueRead(q, b, true, 0, 4096, ptr(got), api.Waits{}))
	if !bytes.Equal(got, pattern(4096, 0)) {
		t.Error("the buffer has something else")
	}
}

// A result of more bytes than the GPU's driver imports becomes an object there piece by piece, without host memory,
// also on another machine; what fails leaves nothing.
func TestPublishMoreThanTheDriverImports(t *testing.T) {
	const size = 1<<16 + 5
	for _, remote := range []bool{false, true} {
		r, _, b := onGPU(t, size)
		r.d.contexts.Get(r.ctx).Remote = remote
		r.d.devices.Get(r.dev).most = 1 << 14
		before := r.node.bytes
		if _, err := r.d.Publish(b, "result", nil); err != nil || r.node.pieces != 5 || r.node.bytes > before {
			t.Fatalf("%d pieces, %d more bytes of host memory, %v", r.node.pieces, r.node.bytes-before, err)
		}
		if at := difference(r.object("result"), pattern(size, 0)); at >= 0 {
			t.Errorf("it differs at %d", at)
		}
		for _, x := range []struct{ drafts, copies, unseal error }{{drafts: object.ErrFull}, {copies: object.ErrFull},
			{unseal: object.ErrFull}} {
			r.node.noDrafts, r.node.noCopies, r.node.unseal = x.drafts, x.copies, x.unseal
			if _, err := r.d.Publish(b, "other", nil); !errors.Is(err, object.ErrFull) || r.object("other") != nil {
				t.Errorf("%+v: %v", x, err)
			}
		}
		r.d.contexts.Get(r.ctx).Remote = false
	}
}

// In whose memory an object is to lie is the program's to say; without a word it is host memory where that is shared.
func TestPublishKinds(t *testing.T) {
	r, _, b := onGPU(t, 4096)
	for _, x := range []struct {
		kind    string
		remote  bool
		imports string
		gpu     bool
		err     error
	}{
		{"", false, testGPU, false, nil}, {"", true, testGPU, true, nil}, {"", true, "", false, nil},
		{"host", true, testGPU, false, nil}, {"host", false, testGPU, false, nil}, {"cuda", false, testGPU, true, nil},
		{"cuda", true, testGPU, true, nil}, {"cuda", false, "", false, object.ErrUnsupported},
	} {
		r.d.cfg.PublishKind, r.d.contexts.Get(r.ctx).Remote = x.kind, x.remote
		r.d.devices.Get(r.dev).imports = x.imports
		dev, err := r.d.buffers.Get(b).publishOn()
		if (dev != nil) != x.gpu || !errors.Is(err, x.err) {
			t.Errorf("%+v: %v, %v", x, dev != nil, err)
		}
	}
	r.d.contexts.Get(r.ctx).Remote = false
}

// A device of another machine that is no GPU has nowhere to put an object. The program is told so once, and goes on.
func TestPublishFromAnotherMachinesCPU(t *testing.T) {
	const size = 4096
	var said []string
	r, _ := newFarRig(t, false, func(c *Config) {
		c.Publish, c.Log = "result", func(line string) { said = append(said, line) }
	})
	for _, kind := range []string{"", "host", "cuda"} {
		r.d.cfg.PublishKind = kind
		if _, err := r.d.Publish(r.buffer(size), "result", nil); !errors.Is(err, object.ErrUnsupported) {
			t.Errorf("kind %q: %v", kind, err)
		}
	}
	q, b, into := r.queue(0), r.buffer(size), hostMemory(t, make([]byte, size))
	for range 2 {
		r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(into), api.Waits{}))
	}
	if len(said) != 1 {
		t.Errorf("said %q", said)
	}
}

// With kind opencl it has: the result goes there by way of this process, in pieces. What fails leaves no draft.
func TestPublishOpenCLFromAnotherMachine(t *testing.T) {
	const size = sentBytes + 12345
	r, _ := newFarRig(t, false)
	r.d.cfg.PublishKind = "opencl"
	q, b := r.queue(0), r.buffer(size)
	r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(hostMemory(t, pattern(size, 3))), api.Waits{}))
	for _, x := range []*error{&r.node.noDrafts, &r.node.noCopies, &r.node.unseal} {
		*x = object.ErrQuota
		if _, err := r.d.Publish(b, "result", nil); !errors.Is(err, object.ErrQuota) || r.object("result") != nil {
			t.Errorf("%v", err)
		}
		*x = nil
	}
	r.node.pieces = 0
	if _, err := r.d.Publish(b, "result", nil); err != nil {
		t.Fatal(err)
	}
	if at := difference(r.object("result"), pattern(size, 3)); at >= 0 || r.node.pieces != 2 {
		t.Errorf("%d pieces, and the object differs at %d", r.node.pieces, at)
	}
}

// An object that is not sealed is a buffer to write, whose maker sees what was written; and it cannot be published.
func TestADraftAsABuffer(t *testing.T) {
	const size = 1 << 16
	r, host := withObject(t, false, size)
	r.ok(r.d.ReleaseMemObject(host))
	r.node.gpu, r.node.unsealed = testGPU, true
	r.d.devices.Get(r.dev).imports = testGPU
	b := r.handle(r.d.OpenObject(r.ctx, [16]byte{}, "input"))
	q := r.queue(0)
	r.handle(r.d.EnqueueWrite(q, b, true, 4096, 4096, ptr(hostMemory(t, pattern(4096, 7))), api.Waits{}))
	got := hostMemory(t, make([]byte, size))
	r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(got), api.Waits{}))
	want := append(pattern(size, 0)[:4096:4096], pattern(4096, 7)...)
	want = append(want, pattern(size, 0)[8192:]...)
	if at := difference(got, want); at >= 0 {
		t.Errorf("the buffer has %d at %d", got[at], at)
	}
	k := r.kernel("kernel copy global global")
	r.setMem(k, 1, b) // it may write through it
	r.ok(r.d.ReleaseKernel(k))
	if _, err := r.d.Publish(b, "again", nil); !errors.Is(err, object.ErrExists) {
		t.Errorf("a draft was published: %v", err)
	}
	r.ok(r.d.ReleaseMemObject(b))
}
