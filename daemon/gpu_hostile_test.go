package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// rawClient speaks the protocol by hand, and may stop anywhere.
type rawClient struct {
	*net.UnixConn
	t       *testing.T
	request uint64
}

func dialRaw(t *testing.T, socket string) *rawClient {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{conn, t, 0}
	c.ask(wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 2, Program: "hostile"})
	return c
}

// frame gives a request as it goes over the socket.
func (c *rawClient) frame(kind wire.Type, m ipc.Payload) []byte {
	c.request++
	return ipc.AppendFrame(nil, kind, 0, c.request, m)
}

// ask sends a request and reads its reply, whose descriptors it leaves.
func (c *rawClient) ask(kind wire.Type, m ipc.Payload) (wire.Type, []byte) {
	c.t.Helper()
	if _, err := c.Write(c.frame(kind, m)); err != nil {
		c.t.Fatal(err)
	}
	var header [16]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		c.t.Fatal(err)
	}
	payload := make([]byte, binary.LittleEndian.Uint32(header[0:]))
	if _, err := io.ReadFull(c, payload); err != nil {
		c.t.Fatal(err)
	}
	return wire.Type(binary.LittleEndian.Uint16(header[4:])), payload
}

// wantNoDeviceMemory waits until nothing is left of memory of GPUs, neither in the books nor as a descriptor.
// The books name each GPU that has some under the key "device"; a copy by way of "device" is not that.
func wantNoDeviceMemory(t *testing.T, conn *client.Conn) {
	t.Helper()
	await.Until(t, "the end of all memory of GPUs", func() bool {
		st, err := admin.Of(conn).Status(context.Background())
		return err == nil && !strings.Contains(string(st), `"device":`) && memfds(t, "fakecuda") == 0
	})
}

// Whatever a client asks of the memory of GPUs, it gets an answer that says what is wrong, the keeper goes on, and
// nothing is left.
func TestHostileRequestsForGPUs(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	d, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	unknown := gpu
	unknown[15] ^= 0x55
	var asking sync.WaitGroup
	for _, bytes := range []uint64{1 << 63, 1<<63 - 1, 1<<64 - 1, 1<<64 - 1<<21, 1<<64 - 1<<21 + 1, 1 << 62, 1 << 45} {
		for _, device := range []object.Device{gpu, unknown} {
			asking.Go(func() {
				b, err := conn.CreateDevice(context.Background(), device, bytes, client.CreateOptions{})
				if err == nil {
					b.Abort(context.Background())
				}
				if !errors.Is(err, object.ErrFull) && !errors.Is(err, object.ErrNoDevice) &&
					!errors.Is(err, object.ErrUnsupported) {
					t.Errorf("%d bytes of %v: %v", bytes, device, err)
				}
			})
		}
	}
	asking.Wait()
	maker, err := client.Dial(context.Background(), client.Options{Socket: c.Socket}) // keeps the memory until its end
	if err != nil {
		t.Fatal(err)
	}
	obj := putOnGPU(t, maker, gpu, "0123456789", client.CreateOptions{})
	back, err := conn.Create(context.Background(), 10, client.CreateOptions{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range [][3]uint64{{1<<64 - 1, 0, 2}, {0, 1<<64 - 1, 2}, {0, 0, 1<<64 - 1}, {1 << 63, 1 << 63, 1 << 63},
		{5, 0, 6}, {0, 5, 6}, {10, 10, 1}} {
		if err := conn.CopyObject(context.Background(), back.ID(), x[0], obj.ID(), "", x[1], x[2]); !errors.Is(err,
			object.ErrInvalid) {
			t.Errorf("a copy of %v: %v", x, err)
		}
	}
	if err := conn.CopyObject(context.Background(), back.ID(), 2, obj.ID(), "", 4,
		6); err != nil || string(back.Bytes()[2:8]) != "456789" {
		t.Errorf("%q, %v", back.Bytes(), err)
	}
	back.Abort(context.Background())
	obj.Release()
	maker.Close()
	for range 4 {
		asking.Go(func() {
			other, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Close()
			for range 300 {
				b, err := other.CreateDevice(context.Background(), gpu, 1, client.CreateOptions{})
				if err == nil {
					err = b.Abort(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asking.Wait()
	look, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	conn.Close() // and with it go the allocations that it keeps
	wantNoDeviceMemory(t, look)
	if s := d.keeper.Status(); s == nil || s.Starts != 1 || s.Fault != "" {
		t.Errorf("the keeper: %+v", s)
	}
}

// A client that is killed at any step of its requests for memory of GPUs leaves nothing behind.
func TestKilledWithMemoryOfGPUs(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	_, stop := serve(t, c)
	defer stop()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	gpu, err := conn.FindGPU(context.Background(), "cuda:1")
	if err != nil {
		t.Fatal(err)
	}
	create := &wire.CreateDeviceRequest{SizeBytes: 4 << 20, Device: gpu}
	made := func(h *rawClient) object.ID {
		kind, payload := h.ask(wire.CreateDevice, create)
		var m wire.DeviceReply
		if kind != wire.CreateDevice|wire.ReplyBit || m.Decode(payload) != nil {
			t.Fatalf("%v: %q", kind, payload)
		}
		return m.ID
	}
	ends := func(h *rawClient, b []byte) {
		if _, err := h.Write(b); err != nil {
			t.Error(err)
		}
		h.Close()
	}
	for n, step := range []func(h *rawClient){
		func(h *rawClient) { b := h.frame(wire.CreateDevice, create); ends(h, b[:len(b)/2]) },
		func(h *rawClient) { ends(h, h.frame(wire.CreateDevice, create)) },
		func(h *rawClient) {
			var all []byte
			for range 20 {
				all = append(all, h.frame(wire.CreateDevice, create)...)
			}
			ends(h, all)
		},
		func(h *rawClient) { made(h); h.Close() },
		func(h *rawClient) { ends(h, h.frame(wire.Seal, &wire.SealRequest{ID: made(h)})) },
		func(h *rawClient) { ends(h, h.frame(wire.Abort, &wire.IDMessage{ID: made(h)})) },
		func(h *rawClient) {
			id := made(h)
			if kind, text := h.ask(wire.Seal, &wire.SealRequest{ID: id}); kind != wire.Seal|wire.ReplyBit {
				t.Errorf("%v: %q", kind, text)
			}
			ends(h, h.frame(wire.CopyObject, &wire.CopyRequest{To: made(h), From: id, Bytes: 4 << 20}))
		},
		func(h *rawClient) {
			id := made(h)
			h.ask(wire.Seal, &wire.SealRequest{ID: id})
			ends(h, h.frame(wire.GetDevice, &wire.NameMessage{ID: id}))
		},
	} {
		t.Run(fmt.Sprint("step=", n), func(t *testing.T) {
			step(dialRaw(t, c.Socket))
			wantNoDeviceMemory(t, conn)
		})
	}
	// a descriptor that nobody received is closed by the kernel; one of a client that lives stays
	obj := putOnGPU(t, conn, gpu, "lives", client.CreateOptions{})
	got, err := conn.GetDevice(context.Background(), obj.ID(), "", 0)
	if err != nil || contents(t, &got.Memory, 5) != "lives" {
		t.Errorf("%v", err)
	}
	got.Release()
	obj.Release()
}

// What is given back twice, or by somebody who does not have it, is given back once: another one's object stays, and
// the next object in that memory too.
func TestMemoryOfGPUsThatIsGivenBackTwice(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	_, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	h := dialRaw(t, c.Socket)
	defer h.Close()
	create := func() object.ID {
		kind, payload := h.ask(wire.CreateDevice, &wire.CreateDeviceRequest{SizeBytes: 5, Device: gpu})
		var m wire.DeviceReply
		if kind != wire.CreateDevice|wire.ReplyBit || m.Decode(payload) != nil {
			t.Fatalf("%v: %q", kind, payload)
		}
		return m.ID
	}
	others := putOnGPU(t, conn, gpu, "other", client.CreateOptions{})
	first := create()
	for _, kind := range []wire.Type{wire.Abort, wire.Abort, wire.Release, wire.Release} {
		h.ask(kind, &wire.IDMessage{ID: first})
	}
	second := create() // in the memory of the first, that its maker keeps
	for _, kind := range []wire.Type{wire.Abort, wire.Release} {
		h.ask(kind, &wire.IDMessage{ID: first})
		h.ask(kind, &wire.IDMessage{ID: others.ID()})
	}
	if kind, text := h.ask(wire.Seal, &wire.SealRequest{ID: second}); kind != wire.Seal|wire.ReplyBit {
		t.Errorf("the next object in that memory: %v: %q", kind, text)
	}
	for range 2 {
		h.ask(wire.Delete, &wire.NameMessage{ID: second})
		h.ask(wire.Release, &wire.IDMessage{ID: second})
	}
	third := create()
	if _, err := conn.Stat(context.Background(), third); err != nil {
		t.Errorf("the third: %v", err)
	}
	got, err := conn.GetDevice(context.Background(), others.ID(), "", 0)
	if err != nil || contents(t, &got.Memory, 5) != "other" {
		t.Fatalf("another connection's: %v", err)
	}
	got.Release()
	others.Release()
	h.Close()
	conn.Close() // which keeps the memory of what it made
	look, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	wantNoDeviceMemory(t, look)
}

// A reader that writes to a sealed object of a GPU, which the hardware allows: everybody sees it, nothing is called
// damaged, and the object goes as any other. What leaves the GPU's memory is what lies there then.
func TestAReaderThatWritesToASealedObject(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver = fakecuda.Build(t)
	_, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	obj := putOnGPU(t, conn, gpu, "sealed", client.CreateOptions{})
	reader, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	got, err := reader.GetDevice(context.Background(), obj.ID(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	file := got.Memory.TakeFile()
	if _, err := unix.Pwrite(int(file.Fd()), []byte("change"), 0); err != nil {
		t.Errorf("the hardware does not allow it: %v", err)
	}
	got.Release()
	reader.Close()
	back, err := conn.Create(context.Background(), 6, client.CreateOptions{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.CopyObject(context.Background(), back.ID(), 0, obj.ID(), "", 0,
		6); err != nil || string(back.Bytes()) != "change" {
		t.Errorf("%q, %v", back.Bytes(), err)
	}
	back.Abort(context.Background())
	if info, err := conn.Stat(context.Background(),
		obj.ID()); err != nil || info.Fault != "" || info.State != object.Sealed {
		t.Errorf("%+v, %v", info, err)
	}
	obj.Release()
	if _, err := unix.Pwrite(int(file.Fd()), []byte("late"), 0); err != nil { // who keeps the memory has it for itself
		t.Error(err)
	}
	next := putOnGPU(t, conn, gpu, "anew", client.CreateOptions{})
	again, err := conn.GetDevice(context.Background(), next.ID(), "", 0)
	if err != nil || contents(t, &again.Memory, 4) != "anew" {
		t.Errorf("the next object: %v", err)
	}
	again.Release()
	next.Release()
	file.Close()
	conn.Close()
	look, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	wantNoDeviceMemory(t, look)
}
