package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/daemon/frontdoor"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// gpus is a GPU whose memory is memfds.
type gpus struct{ device object.Device }

func (gpus) Available() error { return nil }

func (g gpus) Allocate(_ store.Asker, device object.Device, n uint64) (int, uint64, error) {
	if device != g.device {
		return -1, 0, fmt.Errorf("%w: GPU %s", object.ErrUnsupported, device)
	}
	fd, err := unix.MemfdCreate("allocation", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, 0, err
	}
	real := (n + 2<<20 - 1) &^ (2<<20 - 1)
	return fd, real, unix.Ftruncate(fd, int64(real))
}

func (gpus) Copy(_ store.Asker, to, from store.Place, n uint64) error {
	b := make([]byte, n)
	if _, err := unix.Pread(from.FD, b, int64(from.Offset)); err != nil {
		return err
	}
	_, err := unix.Pwrite(to.FD, b, int64(to.Offset))
	return err
}

func (gpus) Forget(int) {}

// gpuNode is a node with one GPU, cuda:3.
func gpuNode(t *testing.T) (*node, object.Device) {
	t.Helper()
	gpu := object.Device{0: 0xfa, 15: 1}
	n := startNode(t, store.Options{Devices: gpus{gpu}, IdleDeviceBytes: 1 << 30})
	n.door.Close()
	var err error
	n.door, err = frontdoor.Listen(frontdoor.Options{Socket: n.socket, Store: n.store, Backend: n.backend,
		Tenant: func(uid, gid uint32) string { return fmt.Sprintf("uid:%d", uid) },
		GPUs:   func() (any, error) { return []client.GPU{{Index: 3, UUID: gpu, Name: "one", Shares: true}}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.door.Close)
	return n, gpu
}

// fileOf takes an allocation's descriptor, which is there once.
func fileOf(t *testing.T, m *client.DeviceMemory) *os.File {
	t.Helper()
	f := m.TakeFile()
	if f == nil || m.TakeFile() != nil {
		t.Fatal("the descriptor is there not once")
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFindGPU(t *testing.T) {
	n, gpu := gpuNode(t)
	c := n.dial(t)
	for text, want := range map[string]error{
		"cuda:3": nil, gpu.String(): nil, "GPU-fa000000-0000-0000-0000-000000000001": nil,
		"cuda:0": object.ErrNoDevice, "cuda:4": object.ErrNoDevice, "opencl:0": object.ErrNoDevice,
		"cuda:99999999999999999999": object.ErrNoDevice,
		"cuda:":                     object.ErrInvalid, "cuda:-3": object.ErrInvalid, "": object.ErrInvalid, "cuda:3 ": object.ErrInvalid,
		"3": object.ErrInvalid, "CUDA:3": object.ErrInvalid, "opencl:x": object.ErrInvalid, "opencl:": object.ErrInvalid,
	} {
		if d, err := c.FindGPU(context.Background(), text); !errors.Is(err, want) || err == nil && d != gpu {
			t.Errorf("%q: %v, %v, want %v", text, d, err, want)
		}
	}
	none := startNode(t, store.Options{}).dial(t)
	if list, err := none.GPUs(context.Background()); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a node without: %v, %v", list, err)
	}
	if _, err := none.FindGPU(context.Background(), "cuda:0"); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a node without: %v", err)
	}
}

// TestObjectInTheMemoryOfAGPU: from its making to its end, as a program without a GPU has it: bytes get there and back
// by copies of the daemon's. Descriptors do not pile up.
func TestObjectInTheMemoryOfAGPU(t *testing.T) {
	n, gpu := gpuNode(t)
	c, other := n.dial(t), n.dial(t)
	text := bytes.Repeat([]byte("0123456789"), 500)
	from := must(c.Put(context.Background(), text, client.CreateOptions{Name: "from", Class: object.Named}))(t)
	defer from.Release()
	before := openFDs(t)
	b := must(c.CreateDevice(context.Background(), gpu, 5000, client.CreateOptions{Name: "g", Class: object.Named,
		Meta: []byte("m")}))(t)
	if b.Memory.Device != gpu || b.Memory.Bytes != 2<<20 {
		t.Errorf("%+v", &b.Memory)
	}
	waited := make(chan error, 1)
	go func() { // waits for its seal
		o, err := other.GetDevice(t.Context(), object.ID{}, "g", time.Minute)
		if err == nil {
			o.Release()
			o.Release() // does nothing
		}
		waited <- err
	}()
	if err := c.CopyObject(context.Background(), b.ID(), 100, object.ID{}, "from", 10, 4900); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyObject(context.Background(), b.ID(), 101, from.ID(), "", 0, 4900); !errors.Is(err,
		object.ErrInvalid) {
		t.Errorf("beyond the end: %v", err)
	}
	o := must(b.Seal(context.Background()))(t)
	if _, err := b.Seal(context.Background()); !errors.Is(err, object.ErrSealed) {
		t.Errorf("a second seal: %v", err)
	}
	if err := b.Abort(context.Background()); err != nil {
		t.Errorf("after the seal: %v", err)
	}
	if err := <-waited; err != nil {
		t.Errorf("who waited: %v", err)
	}
	got := must(other.GetDevice(t.Context(), b.ID(), "", 0))(t)
	if got.ID() != b.ID() || got.Size() != 5000 || got.Class() != object.Named || string(got.Meta()) != "m" ||
		got.Memory.Device != gpu || got.Memory.Bytes != 2<<20 {
		t.Errorf("%+v", got)
	}
	read, f := make([]byte, 5000), fileOf(t, &got.Memory)
	if _, err := f.ReadAt(read, 0); err != nil || !bytes.Equal(read[100:], text[10:4910]) ||
		!bytes.Equal(read[:100], make([]byte, 100)) {
		t.Errorf("the bytes differ, or %v", err)
	}
	f.Close()
	back := must(other.Create(context.Background(), 4900, client.CreateOptions{Own: true}))(t)
	if err := other.CopyObject(context.Background(), back.ID(), 0, got.ID(), "", 100, 4900); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(back.Bytes(), text[10:4910]) {
		t.Error("the bytes in host memory differ")
	}
	if err := back.Abort(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := other.GetDevice(t.Context(), from.ID(), "", 0); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("host memory as a GPU's: %v", err)
	}
	if _, err := other.GetDevice(t.Context(), object.ID{}, "none", time.Millisecond); !errors.Is(err,
		object.ErrNotFound) && !errors.Is(err, object.ErrTimeout) {
		t.Errorf("what is not there: %v", err)
	}
	got.Release()
	o.Release()
	if err := c.Delete(context.Background(), b.ID()); err != nil {
		t.Error(err)
	}
	await.Until(t, "descriptors to be closed", func() bool { // but for an allocation, for its maker, and a client's segment
		return openFDs(t) <= before+2
	})
}

// TestAbortOnAGPUAsksNothing: the abort of an object without a name goes along with the next request, which gets the
// memory again, and arrives by itself where there is none. One with a name is waited for.
func TestAbortOnAGPUAsksNothing(t *testing.T) {
	n, gpu := gpuNode(t)
	c := n.dial(t)
	aborts := func() (asked uint64) {
		for _, x := range n.door.Tallies() {
			if x.Message == "Abort" {
				asked = x.Took.Number()
			}
		}
		return asked
	}
	var first unix.Stat_t
	for i := range 50 {
		b := must(c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{}))(t)
		var here unix.Stat_t
		if err := unix.Fstat(int(fileOf(t, &b.Memory).Fd()), &here); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = here
		}
		if err := b.Abort(context.Background()); err != nil || here.Ino != first.Ino {
			t.Fatalf("abort %d: %v, of memory %d, the first was %d", i, err, here.Ino, first.Ino)
		}
	}
	await.Until(t, "end of the last one", func() bool { return n.store.Status().OpenObjects == 0 })
	if asked := aborts(); asked != 0 {
		t.Errorf("%d aborts were asked for", asked)
	}
	named := must(c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{Name: "g", Class: object.Named}))(t)
	if err := named.Abort(context.Background()); err != nil || aborts() != 1 || n.store.Status().OpenObjects != 0 {
		t.Errorf("with a name: %v, %d were asked for", err, aborts())
	}
}

// TestMakingOnAGPUThatFails: what cannot be made leaves nothing, and an abort gives the memory back, also behind the
// connection's end.
func TestMakingOnAGPUThatFails(t *testing.T) {
	n, gpu := gpuNode(t)
	c := n.dial(t)
	for what, o := range map[string]client.CreateOptions{"own": {Own: true}, "checksum": {Checksum: true},
		"shared": {Shared: true}, "strict": {Strict: true}, "on disk": {Class: object.Persisted}} {
		if _, err := c.CreateDevice(context.Background(), gpu, 10, o); !errors.Is(err, object.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.CreateDevice(context.Background(), object.Device{1}, 10, client.CreateOptions{}); !errors.Is(err,
		object.ErrUnsupported) {
		t.Errorf("another GPU: %v", err)
	}
	if _, err := c.CreateDevice(context.Background(), gpu, 0, client.CreateOptions{}); !errors.Is(err,
		object.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	b := must(c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{Name: "g", Class: object.Named}))(t)
	second := must(c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{Name: "g",
		Class: object.Named}))(t)
	must(b.Seal(context.Background()))(t).Release()
	if _, err := second.Seal(context.Background()); !errors.Is(err, object.ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	for range 2 {
		if err := second.Abort(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if second.Memory.TakeFile() != nil {
		t.Error("an aborted object's memory is still here")
	}
	third := must(c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{}))(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := third.Abort(context.Background()); err != nil {
		t.Errorf("behind the connection's end: %v", err)
	}
	if _, err := c.CreateDevice(context.Background(), gpu, 10, client.CreateOptions{}); !errors.Is(err,
		client.ErrDisconnected) {
		t.Errorf("behind the connection's end: %v", err)
	}
	await.Until(t, "end of the objects that were not sealed", func() bool { return n.store.Status().Objects == 1 })
}

// A composite has members in the memory of devices and of the host; its tree gives each as what it is.
func TestATreeWithMembersOnAGPU(t *testing.T) {
	n, gpu := gpuNode(t)
	bg := context.Background()
	a, b := n.dial(t), n.dial(t)
	buf := must(a.CreateDevice(bg, gpu, 5, client.CreateOptions{Meta: []byte(`{"n":2}`)}))(t)
	if _, err := unix.Pwrite(int(fileOf(t, &buf.Memory).Fd()), []byte("there"), 0); err != nil {
		t.Fatal(err)
	}
	there := must(buf.Seal(bg))(t)
	here := must(a.Put(bg, []byte("here"), client.CreateOptions{}))(t)
	inner := must(a.Compose(bg, []object.Member{{Name: "gpu", ID: there.ID()}}, client.CreateOptions{}))(t)
	whole := must(a.Compose(bg, []object.Member{{Name: "cpu", ID: here.ID()}, {Name: "more", ID: inner.ID()}},
		client.CreateOptions{Class: object.Named, Name: "whole"}))(t)
	a.Close() // what it held is the composite's alone now
	tree := must(b.GetTree(bg, whole.ID(), time.Minute))(t)
	part := tree.Members["more"].Members["gpu"]
	if part == nil || part.Device == nil || part.Object != nil || string(part.Device.Meta()) != `{"n":2}` ||
		tree.Device != nil || string(tree.Members["cpu"].Bytes()) != "here" {
		t.Fatalf("%+v, of it %+v", tree, part)
	}
	got := make([]byte, 5)
	if _, err := unix.Pread(int(fileOf(t, &part.Device.Memory).Fd()), got, 0); err != nil || string(got) != "there" {
		t.Errorf("%q, %v", got, err)
	}
	host := must(b.Create(bg, 5, client.CreateOptions{Own: true}))(t)
	if err := b.CopyObject(bg, host.ID(), 0, part.Device.ID(), "", 0, 5); err != nil || string(host.Bytes()) != "there" {
		t.Errorf("to the host: %q, %v", host.Bytes(), err)
	}
	if err := host.Abort(bg); err != nil {
		t.Error(err)
	}
	tree.ReleaseAll()
	alone := must(b.GetTree(bg, there.ID(), 0))(t)
	if alone.Device == nil || alone.Device.Size() != 5 {
		t.Errorf("%+v", alone)
	}
	alone.ReleaseAll()
	if _, err := b.GetTree(bg, object.ID{9}, 0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	if err := b.DeleteByName(bg, "whole"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "all objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}
