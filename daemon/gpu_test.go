package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon/frontdoor"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// dialGPU connects to a daemon and finds its first GPU. The caller closes.
func dialGPU(t *testing.T, socket string) (*client.Conn, object.Device) {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := conn.FindGPU(context.Background(), "cuda:0")
	if err != nil {
		conn.Close()
		t.Fatal(err)
	}
	return conn, gpu
}

// contents reads the first bytes of memory of a fake GPU: behind its descriptor is a memfd.
func contents(t *testing.T, m *client.DeviceMemory, n int) string {
	t.Helper()
	f := m.TakeFile()
	if f == nil {
		t.Fatal("there is no descriptor")
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := unix.Pread(int(f.Fd()), b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// putOnGPU makes an object with a text, as a program does that has CUDA. Memory of one that made way is back when its
// last descriptor is closed, that of a process which just starts among them: until then the GPU is full.
func putOnGPU(t *testing.T, c *client.Conn, gpu object.Device, text string,
	o client.CreateOptions) *client.DeviceObject {
	t.Helper()
	var b *client.DeviceBuffer
	var err error
	await.Until(t, "room on the GPU", func() bool {
		b, err = c.CreateDevice(context.Background(), gpu, uint64(len(text)), o)
		return !errors.Is(err, object.ErrFull)
	})
	if err != nil {
		t.Fatal(err)
	}
	f := b.Memory.TakeFile()
	defer f.Close()
	if _, err := unix.Pwrite(int(f.Fd()), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	obj, err := b.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// killKeeper kills the keeper of memory of GPUs. PID 0, where none runs, would be this process's group.
func killKeeper(t *testing.T, d *Daemon) {
	t.Helper()
	if pid := d.keeper.Status().PID; pid == 0 {
		t.Error("no keeper runs")
	} else if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// The keeper has of the daemon's environment what the CUDA driver reads, and directories of its own.
func TestTheKeepersEnvironment(t *testing.T) {
	c := aConfig(t)
	for name, value := range map[string]string{"A_SECRET": "1", "TENDRIL_TOKEN": "2", "LD_PRELOAD": "", "HOME": "/elsewhere",
		"CUDA_MPS_PIPE_DIRECTORY": "/mps", "LD_LIBRARY_PATH": "/lib/of/wsl", "CUDA_CACHE_PATH": "/elsewhere"} {
		t.Setenv(name, value)
	}
	c.CUDADriver = fakecuda.Build(t)
	d, stop := serve(t, c)
	defer stop()
	conn, _ := dialGPU(t, c.Socket)
	defer conn.Close()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.keeper.Status().PID))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for _, kv := range strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		has[name] = value
	}
	for _, name := range []string{"A_SECRET", "TENDRIL_TOKEN", "LD_PRELOAD"} {
		if value, is := has[name]; is {
			t.Errorf("it has %s=%q", name, value)
		}
	}
	if has["CUDA_MPS_PIPE_DIRECTORY"] != "/mps" || has["LD_LIBRARY_PATH"] != "/lib/of/wsl" || has["PATH"] == "" ||
		!strings.HasSuffix(has["HOME"], "/keeper") || !strings.HasPrefix(has["CUDA_CACHE_PATH"], has["HOME"]) {
		t.Errorf("it has %q", has)
	}
}

func TestObjectsOnGPUs(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver, c.QuotaDevice = fakecuda.Build(t), 8<<20
	d, stop := serve(t, c)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := d.Status(frontdoor.Peer{Admin: true})
	if err != nil || strings.Contains(string(raw), "keeper") || strings.Contains(string(raw), `"device":`) {
		t.Errorf("before anybody asks: %s, %v", raw, err)
	}
	gpu, err := conn.FindGPU(context.Background(), "cuda:1")
	if err != nil || gpu.String() != "fafafafafafafafafafafafafafafa01" {
		t.Fatalf("%v, %v", gpu, err)
	}
	if _, err := conn.FindGPU(context.Background(), "cuda:2"); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	text := strings.Repeat("0123456789", 1000)
	obj := putOnGPU(t, conn, gpu, text, client.CreateOptions{Name: "n", Class: object.Named, Meta: []byte("{}"),
		Labels: map[string]string{"k": "v"}})
	list, err := conn.ListWhere(context.Background(), client.Query{Labels: map[string]string{"k": "v"}})
	if err != nil || len(list) != 1 || list[0].Kind != object.CUDA || list[0].Device != gpu {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := conn.GetByName(context.Background(), "n", 0); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("get: %v", err)
	}
	killKeeper(t, d)
	back, err := conn.Create(context.Background(), 6, client.CreateOptions{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.CopyObject(context.Background(), back.ID(), 1, object.ID{}, "n", 9000,
		5); err != nil || string(back.Bytes()[1:]) != "01234" {
		t.Errorf("copied after the keeper was killed: %q, %v", back.Bytes(), err)
	}
	back.Abort(context.Background())
	other, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	got, err := other.GetDevice(context.Background(), object.ID{}, "n", 0)
	if err != nil || got.Size() != 10000 || string(got.Meta()) != "{}" || got.Memory.Bytes != 2<<20 ||
		got.Memory.Device != gpu || contents(t, &got.Memory, 10) != text[:10] {
		t.Errorf("%+v, %v", got, err)
	}
	for _, x := range []struct {
		device object.Device
		bytes  uint64
		want   error
	}{{object.Device{1}, 1, object.ErrUnsupported}, {gpu, 7 << 20, object.ErrQuota}, {gpu, 0, object.ErrInvalid}} {
		if _, err := conn.CreateDevice(context.Background(), x.device, x.bytes, client.CreateOptions{}); !errors.Is(err,
			x.want) {
			t.Errorf("%d bytes of %v: %v", x.bytes, x.device, err)
		}
	}
	waits := make(chan error, 1)
	go func() {
		late, err := other.GetDevice(context.Background(), object.ID{}, "late", 5*time.Minute)
		if err == nil {
			late.Release()
		}
		waits <- err
	}()
	late := putOnGPU(t, conn, gpu, "late", client.CreateOptions{Name: "late", Class: object.Named})
	if err := <-waits; err != nil {
		t.Errorf("who waited: %v", err)
	}
	late.Release()
	got.Release()
	obj.Release()
	if err := errors.Join(conn.DeleteByName(context.Background(), "n"), conn.DeleteByName(context.Background(),
		"late")); err != nil {
		t.Error(err)
	}
	await.Until(t, "release of both, which travel with what follows", func() bool {
		st, err := admin.Of(conn).Status(context.Background())
		return err == nil && !strings.Contains(string(st), `"device":`)
	})
	conn.Close()
	other.Close()
	stop()
}

// A program that opens CUDA handles alone gets one of a copy, which is charged, and goes with its connection; that of a
// keeper that ended is dead, and said to be.
func TestIPCHandles(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver, c.QuotaDevice = fakecuda.Build(t), 6<<20
	d, stop := serve(t, c)
	conn, gpu := dialGPU(t, c.Socket)
	charged := func() (n uint64) {
		for _, x := range d.store.Status().Devices {
			n += x.Bytes
		}
		return n
	}
	ctx, numbers := t.Context(), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	putOnGPU(t, conn, gpu, "canary", client.CreateOptions{Name: "n", Class: object.Named}).Release()
	asker, _ := dialGPU(t, c.Socket)
	h, err := asker.IPCHandle(ctx, object.ID{}, "n")
	if err != nil || h.Device != gpu || h.SizeBytes != 6 || h.Bytes != 2<<20 || charged() != 4<<20 {
		t.Fatalf("%+v, %v, %d charged", h, err, charged())
	}
	// as the fake driver opens it in another process
	at := fmt.Sprintf("/proc/%d/fd/%d", binary.LittleEndian.Uint32(h.Handle[:]), binary.LittleEndian.Uint32(h.Handle[4:]))
	if raw, err := os.ReadFile(at); err != nil || len(raw) != 2<<20 || string(raw[:8]) != "canary\x00\x00" {
		t.Errorf("%d bytes behind the handle, %v", len(raw), err)
	}
	if _, err := asker.IPCHandle(ctx, object.ID{}, "n"); err != nil {
		t.Error(err)
	}
	if _, err := asker.IPCHandle(ctx, object.ID{}, "n"); !errors.Is(err, object.ErrQuota) {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := h.Release(ctx); err != nil || charged() != 4<<20 {
		t.Errorf("%v, %d charged", err, charged())
	}
	if err := h.Release(ctx); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a second time: %v", err)
	}
	if h, err = conn.IPCHandle(ctx, object.ID{}, "n"); err != nil {
		t.Fatal(err)
	}
	asker.Close()
	await.Until(t, "end of what the other connection had", func() bool { return charged() == 4<<20 })
	killKeeper(t, d)
	await.Until(t, "the keeper's end, and of what is charged", func() bool { return charged() == 2<<20 })
	if slices.ContainsFunc(numbers, d.keeper.HasIPC) {
		t.Error("handles of a keeper that was killed")
	}
	err = h.Release(ctx)
	if !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), "ended") || charged() != 2<<20 {
		t.Errorf("of a keeper that was killed: %v, %d charged", err, charged())
	}
	again, err := conn.IPCHandle(ctx, object.ID{}, "n")
	if err != nil {
		t.Errorf("of the next keeper: %v", err)
	} else if err := again.Release(ctx); err != nil {
		t.Error(err)
	}
	conn.Close()
	stop()
}

// A node without a GPU starts nothing, says why, and serves as ever.
func TestNoGPU(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = "none"
	d, stop := serve(t, c)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.GPUs(context.Background()); !errors.Is(err,
		object.ErrUnsupported) || !strings.Contains(err.Error(),
		"--cuda-driver") {
		t.Errorf("%v", err)
	}
	_, err = conn.CreateDevice(context.Background(), object.Device{1}, 1, client.CreateOptions{})
	if !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	if s := d.keeper.Status(); s != nil {
		t.Errorf("%+v", s)
	}
	conn.Close()
	stop()
}

// The next daemon has the memory of GPUs, and who held it holds it; a keeper of its own copies.
func TestTakeoverWithMemoryOfGPUs(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	first, up := newDaemon(t, c), make(chan struct{})
	first.OnReady(func() { close(up) })
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	<-up
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := conn.FindGPU(context.Background(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	held := putOnGPU(t, conn, gpu, "held", client.CreateOptions{})
	putOnGPU(t, conn, gpu, "named", client.CreateOptions{Name: "n", Class: object.Named}).Release()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 2 {
		_, served := takeOver(t, ctx, c)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended = served
		var got *client.DeviceObject
		reached(t, func() error { // it may break with the request under way
			got, err = conn.GetDevice(context.Background(), object.ID{}, "n", 0)
			return err
		})
		if text := contents(t, &got.Memory, 5); text != "named" {
			t.Errorf("%q", text)
		}
		got.Release()
		again, err := conn.GetDevice(context.Background(), held.ID(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if text := contents(t, &again.Memory, 4); text != "held" {
			t.Errorf("%q", text)
		}
		again.Release()
		back, err := conn.Create(context.Background(), 4, client.CreateOptions{Own: true})
		if err != nil {
			t.Fatal(err)
		}
		err = conn.CopyObject(context.Background(), back.ID(), 0, held.ID(), "", 0, 4)
		if err != nil || string(back.Bytes()) != "held" {
			t.Errorf("%q, %v", back.Bytes(), err)
		}
		back.Abort(context.Background())
	}
	held.Release()
	conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	noneLeft(t, leaks)
	if n := memfds(t, "fakecuda"); n != 0 {
		t.Errorf("%d descriptors of memory of GPUs are left", n)
	}
}

// memfds counts this process's descriptors of memfds with a name.
func memfds(t *testing.T, name string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if to, err := os.Readlink("/proc/self/fd/" + x.Name()); err == nil && strings.HasPrefix(to, "/memfd:"+name) {
			n++
		}
	}
	return n
}

// Who asks for memory of a GPU while another daemon takes over has it from that one: it hears of no failure.
func TestTakeoverWhileMemoryOfGPUsIsAskedFor(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	first, up := newDaemon(t, c), make(chan struct{})
	first.OnReady(func() { close(up) })
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	<-up
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := conn.FindGPU(context.Background(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	stop, asked := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				asked <- nil
				return
			default:
			}
			b, err := conn.CreateDevice(context.Background(), gpu, 1, client.CreateOptions{})
			if err == nil {
				err = b.Abort(context.Background())
			}
			if err != nil && !errors.Is(err, client.ErrDisconnected) {
				asked <- err
				return
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 3 {
		_, served := takeOver(t, ctx, c)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended = served
	}
	close(stop)
	if err := <-asked; err != nil {
		t.Error(err)
	}
	conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A GPU that the administrator does not offer is not listed, and has no objects; the reason names the setting.
func TestAGPUThatIsNotOffered(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver, c.Devices = fakecuda.Build(t), []string{"fafafafa-fafa-fafa-fafa-fafafafafa01"}
	_, stop := serve(t, c)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	list, err := conn.GPUs(context.Background())
	if err != nil || len(list) != 1 || list[0].Index != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	hidden := list[0].UUID
	hidden[15] = 0
	_, err = conn.CreateDevice(context.Background(), hidden, 1, client.CreateOptions{})
	if !errors.Is(err, object.ErrUnsupported) || !strings.Contains(err.Error(), "--devices") {
		t.Errorf("%v", err)
	}
	b, err := conn.CreateDevice(context.Background(), list[0].UUID, 1, client.CreateOptions{})
	if err == nil {
		err = b.Abort(context.Background())
	}
	if err != nil {
		t.Error(err)
	}
	conn.Close()
	stop()
}
