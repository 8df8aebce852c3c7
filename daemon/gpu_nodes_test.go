package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// gpuAtFirst is a cluster whose first node alone has GPUs, of so many bytes.
func gpuAtFirst(t *testing.T, nodes int, bytes uint64, change func(*Config)) (*clusterOf, object.Device) {
	t.Helper()
	t.Setenv("CUDA_FAKE_BYTES", fmt.Sprint(bytes))
	x := newCluster(t, nodes, func(i int, c *Config) {
		if i > 0 {
			c.CUDADriver = "none"
			return
		}
		c.CUDADriver = fakecuda.Build(t)
		if change != nil {
			change(c)
		}
	})
	gpu, err := x.conns[0].FindGPU(context.Background(), "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	return x, gpu
}

// publishOnGPU publishes an object in the memory of the first node's GPU.
func (x *clusterOf) publishOnGPU(gpu object.Device, name string, what []byte, meta string) object.ID {
	x.t.Helper()
	obj := putOnGPU(x.t, x.conns[0], gpu, string(what), client.CreateOptions{Name: name, Class: object.Named,
		Meta: []byte(meta)})
	defer obj.Release()
	if _, err := x.conns[0].Publish(context.Background(), obj.ID(), "", false); err != nil {
		x.t.Fatal(err)
	}
	return obj.ID()
}

// onGPUs gives how many objects the first node's GPUs have.
func (x *clusterOf) onGPUs() (objects int) {
	for _, d := range x.all[0].store.Status().Devices {
		objects += d.Objects
	}
	return objects
}

// TestAnObjectOfAGPUAtAnotherNode: it comes as an object in host memory, with its metadata, from whatever memory its
// bytes are in there; nothing of the way stays at the node that gave it.
func TestAnObjectOfAGPUAtAnotherNode(t *testing.T) {
	x, gpu := gpuAtFirst(t, 2, 64<<20, nil)
	bg := context.Background()
	const meta = `{"dtype":"<f4","shape":[3,4]}`
	for _, size := range []int{1, 1 << 20, 35<<20 + 17} { // of more requests than one
		name, want := fmt.Sprint("size", size), noise(uint64(size), size)
		id := x.publishOnGPU(gpu, name, want, meta)
		x.share()
		before := x.all[0].store.Status()
		got, err := x.conns[1].GetByName(bg, name, 0)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if !bytes.Equal(got.Bytes(), want) || string(got.Meta()) != meta {
			t.Errorf("%d bytes: other bytes, or metadata %q", size, got.Meta())
		}
		info, err := x.conns[1].Stat(bg, id)
		if err != nil || info.Kind != object.Host || !info.Device.IsZero() || info.CopiedFrom != object.CUDA ||
			info.CopiedFromNode != "n0" {
			t.Errorf("at the other node: %+v, %v", info, err)
		}
		if here, err := x.conns[0].Stat(bg, id); err != nil || here.Kind != object.CUDA || here.CopiedFrom != 0 ||
			here.CopiedFromNode != "" {
			t.Errorf("at its own: %+v, %v", here, err)
		}
		got.Release()
		await.Until(t, "nothing of the way stays", func() bool {
			now := x.all[0].store.Status()
			return now.OpenObjects <= before.OpenObjects && now.References <= before.References &&
				now.UsedBytes <= before.UsedBytes && now.Connections <= before.Connections
		})
	}
}

// TestAnObjectAwayFromItsGPUAtAnotherNode: one that made way is read where it is, in host memory or on disk, and takes
// nobody's place on the GPU; the keeper is killed meanwhile.
func TestAnObjectAwayFromItsGPUAtAnotherNode(t *testing.T) {
	const many = 14
	x, gpu := gpuAtFirst(t, 2, 4<<20, func(c *Config) {
		c.CapacityBytes, c.QuotaBytes, c.PinBytes = 16<<20, 16<<20, 8<<20
	})
	text := func(i int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%09d", i)), 150_000) }
	for i := range many {
		x.publishOnGPU(gpu, fmt.Sprint(i), text(i), "")
	}
	x.share()
	await.Until(t, "some are on disk", func() bool { // the last one may still be under way there
		st := x.all[0].store.Status()
		if len(st.Devices) != 1 || st.Devices[0].AwayObjects != many-2 {
			t.Fatalf("%+v", st.Devices)
		}
		return st.SpilledObjects > 0
	})
	for i := range many {
		if pid := x.all[0].keeper.Status().PID; pid > 0 && i%4 == 1 { // the last is on the GPU
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if got, err := x.get(1, fmt.Sprint(i)); err != nil || !bytes.Equal(got, text(i)) {
			t.Errorf("object %d: other bytes, or %v", i, err)
		}
	}
	if x.all[0].keeper.Status().Starts < 2 {
		t.Error("the keeper was not killed")
	}
	if st := x.all[0].store.Status(); st.Devices[0].AwayObjects != many-2 {
		t.Errorf("some came back to the GPU: %+v", st.Devices)
	}
}

// TestReplicasOfAnObjectOfAGPU: they are in host memory. A move takes the object off the GPU.
func TestReplicasOfAnObjectOfAGPU(t *testing.T) {
	x, gpu := gpuAtFirst(t, 3, 64<<20, nil)
	want := noise(3, 3<<20+17)
	id := x.publishOnGPU(gpu, "o", want, "")
	x.share()
	if s := x.replicate(0, "o", client.ReplicateOptions{Wanted: 2}); s.Have != 2 {
		t.Fatalf("%+v", s)
	}
	x.share()
	other := 1
	if !slices.Contains(x.listed(0, id), "n1") { // it may be about to drop what it took too late
		other = 2
	}
	x.whole(other, id, want)
	s := x.replicate(0, "o", client.ReplicateOptions{Move: true, From: "n0"})
	if s.To == "" {
		t.Errorf("%+v", s)
	}
	await.Until(t, "the GPU has no object", func() bool { return x.onGPUs() == 0 })
	x.share()
	for i := range x.all { // the first node has it brought, too
		if got, err := x.get(i, "o"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("node %d after the move: %v", i, err)
		}
	}
}

// TestAnObjectOfAGPUThatDoesNotCome: what keeps it is said at the node that asked.
func TestAnObjectOfAGPUThatDoesNotCome(t *testing.T) {
	x, gpu := gpuAtFirst(t, 2, 64<<20, func(c *Config) { c.QuotaBytes = 1 << 20 })
	bg := context.Background()
	id := x.publishOnGPU(gpu, "o", noise(1, 3<<20), "")
	x.share()
	if _, err := x.get(1, "o"); !errors.Is(err, object.ErrQuota) || !strings.Contains(err.Error(), "n0") {
		t.Errorf("without room for its bytes there: %v", err)
	}
	if _, err := x.conns[1].GetDevice(bg, object.ID{}, "o", 0); !errors.Is(err, object.ErrUnsupported) ||
		!strings.Contains(err.Error(), "another node") {
		t.Errorf("as memory of a GPU: %v", err)
	}
	if _, err := x.conns[1].GetDevice(bg, id, "", 0); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("as memory of a GPU, by its id: %v", err)
	}
	if _, err := x.conns[1].IPCHandle(bg, object.ID{}, "o"); !errors.Is(err, object.ErrUnsupported) ||
		!strings.Contains(err.Error(), "another node") {
		t.Errorf("as a CUDA handle: %v", err)
	}
}

// TestGPUObjectsAcrossNodesWhileKeepersDie: objects are made on a GPU with room for two, published, got at another
// node, copied back and deleted by several at once, while the keeper is killed again and again. Every byte that anybody
// gets is right, and at the end nothing is charged, held or open that was not before.
func TestGPUObjectsAcrossNodesWhileKeepersDie(t *testing.T) {
	const who, each, size = 3, 8, 1<<20 + 77
	x, gpu := gpuAtFirst(t, 2, 4<<20, func(c *Config) {
		c.CapacityBytes, c.QuotaBytes, c.PinBytes = 32<<20, 32<<20, 4<<20
	})
	bg := context.Background()
	baseline := func(d *Daemon) string {
		st := d.store.Status()
		return fmt.Sprintf("%d objects, %d open, %d references, devices %v, %d used", st.Objects, st.OpenObjects,
			st.References, st.Devices, st.UsedBytes)
	}
	before := []string{baseline(x.all[0]), baseline(x.all[1])}
	stop := make(chan struct{})
	var killer, workers sync.WaitGroup
	killer.Go(func() {
		for seen := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond): // Pause: between looks at what the keeper has done
			}
			steps, s := 0, x.all[0].keeper.Status()
			if s == nil || s.PID == 0 {
				continue
			}
			for _, c := range s.Copies {
				steps += c.Steps
			}
			if steps >= seen+2 { // as many came through
				seen = steps
				_ = unix.Kill(s.PID, unix.SIGKILL)
			}
		}
	})
	// as a client does that is told of a keeper's end, or of a full GPU
	again := func(what string, f func() error) error {
		for {
			err := f()
			switch {
			case errors.Is(err, object.ErrNoDevice), errors.Is(err, object.ErrFull), errors.Is(err, object.ErrBusy):
			default:
				if err != nil {
					err = fmt.Errorf("%s: %w", what, err)
				}
				return err
			}
			if t.Context().Err() != nil {
				return err
			}
		}
	}
	trip := func(here, there *client.Conn, name string, want []byte) error {
		var b *client.DeviceBuffer
		err := again("create", func() (err error) {
			b, err = here.CreateDevice(bg, gpu, size, client.CreateOptions{Name: name, Class: object.Named})
			return err
		})
		if err != nil {
			return err
		}
		f := b.Memory.TakeFile()
		_, err = unix.Pwrite(int(f.Fd()), want, 0)
		f.Close()
		obj, fault := b.Seal(bg)
		if err = errors.Join(err, fault); err != nil {
			return err
		}
		id := obj.ID()
		obj.Release()
		if _, err := here.Publish(bg, id, "", false); err != nil {
			return err
		}
		err = again("get there", func() error {
			o, err := there.GetByName(bg, name, 5*time.Minute)
			if err != nil {
				return err
			}
			defer o.Release()
			if !bytes.Equal(o.Bytes(), want) {
				return fmt.Errorf("%s has other bytes at the other node", name)
			}
			return nil
		})
		if err != nil {
			return err
		}
		host, err := here.Create(bg, size, client.CreateOptions{Own: true})
		if err != nil {
			return err
		}
		err = again("copy here", func() error { return here.CopyObject(bg, host.ID(), 0, id, "", 0, size) })
		if err == nil && !bytes.Equal(host.Bytes(), want) {
			err = fmt.Errorf("%s has other bytes in a copy", name)
		}
		return errors.Join(err, host.Abort(bg), there.DeleteByName(bg, name))
	}
	for w := range who {
		workers.Go(func() {
			var conns [2]*client.Conn
			for i := range conns {
				var err error
				if conns[i], err = client.Dial(bg, client.Options{Socket: x.all[i].cfg.Socket}); err != nil {
					t.Error(err)
					return
				}
				defer conns[i].Close()
			}
			for i := range each {
				name := fmt.Sprintf("%d-%d", w, i)
				if err := trip(conns[0], conns[1], name, noise(uint64(100*w+i), size)); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	killer.Wait()
	if s := x.all[0].keeper.Status(); s == nil || s.Starts < 3 {
		t.Errorf("the keeper was hardly killed: %+v", s)
	}
	for i, d := range x.all {
		what := fmt.Sprintf("node %d is as before (%s)", i, before[i])
		await.Until(t, what, func() bool { return baseline(d) == before[i] })
	}
	await.Until(t, "no memory of the GPU is open", func() bool { return gpuFiles(t) == 0 })
}

// gpuFiles counts the descriptors of memory of a fake GPU that this process has.
func gpuFiles(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, "memfd:fake") {
			n++
		}
	}
	return n
}

// TestAnObjectOfAnotherNodeIntoAGPU: a copy brings what other nodes have published, by its name or its ID, and puts it
// into memory of a GPU here, with its metadata. It is this node's own then, and goes its own way.
func TestAnObjectOfAnotherNodeIntoAGPU(t *testing.T) {
	driver := fakecuda.Build(t)
	x := newCluster(t, 2, func(_ int, c *Config) { c.CUDADriver = driver })
	bg := context.Background()
	gpu, err := x.conns[0].FindGPU(bg, "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	const meta = `{"dtype":"|u1"}`
	onGPU, inHost := noise(1, 3<<20+5), noise(2, 1<<20+9)
	id := x.publishOnGPU(gpu, "g", onGPU, meta)
	host, err := x.conns[0].Put(bg, inHost, client.CreateOptions{Name: "h", Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Release()
	if _, err := x.conns[0].Publish(bg, host.ID(), "", false); err != nil {
		t.Fatal(err)
	}
	x.share()
	there, err := x.conns[1].FindGPU(bg, "cuda:1")
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, obj *client.DeviceObject, err error, want []byte) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer obj.Release()
		if obj.Memory.Device != there || contents(t, &obj.Memory, len(want)) != string(want) {
			t.Errorf("%s: on %s, or other bytes", name, obj.Memory.Device)
		}
	}
	obj, err := x.conns[1].CopyToDevice(bg, object.ID{}, "g", 0, there, client.CreateOptions{Name: "g",
		Class: object.Named})
	if err == nil && string(obj.Meta()) != meta {
		t.Errorf("metadata %q", obj.Meta())
	}
	check("by name", obj, err, onGPU)
	if err := x.conns[1].DeleteByName(bg, "g"); err != nil { // the copy, which hides what is published
		t.Error(err)
	}
	if _, err := x.conns[1].Stat(bg, id); err != nil {
		t.Errorf("the published one: %v", err)
	}
	for what, from := range map[string]struct {
		id   object.ID
		name string
		want []byte
	}{"h by name": {name: "h", want: inHost}, "h by its ID": {id: host.ID(), want: inHost}, "g by its ID": {id: id, want: onGPU}} {
		// as C and Python do, who ask for nothing but the copy
		b, err := x.conns[1].CreateDevice(bg, there, uint64(len(from.want)), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.conns[1].CopyObject(bg, b.ID(), 0, from.id, from.name, 0, uint64(len(from.want))); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		obj, err := b.Seal(bg)
		check(what, obj, err, from.want)
	}
	b, err := x.conns[1].CreateDevice(bg, there, 10, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.conns[1].CopyObject(bg, b.ID(), 0, object.ID{}, "none", 0, 10); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("one that nobody has: %v", err)
	}
	if err := x.conns[1].CopyObject(bg, b.ID(), 0, object.ID{}, "h", 0, 11); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := b.Abort(bg); err != nil {
		t.Error(err)
	}
}
