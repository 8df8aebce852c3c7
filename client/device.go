package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Objects in the memory of GPUs. This package calls no CUDA: it gives the descriptor of an allocation, which the
// program imports (cuMemImportFromShareableHandle) and maps on the GPU with that UUID. A program waits for its GPU's
// work on the memory before Seal, and ends its mapping before Release. The hardware lets everyone write who has the
// memory.

// GPU is a device whose memory objects can lie in.
type GPU struct {
	Index  int           `json:"index"` // in the driver's order on the daemon's side: cuda:INDEX
	UUID   object.Device `json:"uuid"`
	Name   string        `json:"name"`
	Bytes  uint64        `json:"memory_bytes"`
	Shares bool          `json:"shares"` // its memory can be objects
	// "exclusive" or "prohibited": the driver allows one process on it, or none. "": any
	Mode string `json:"compute_mode,omitempty"`
}

// GPUs lists them. object.ErrUnsupported says why there are none, or that the daemon is of an earlier release.
func (c *Conn) GPUs(ctx context.Context) ([]GPU, error) {
	k, err := c.roundTrip(ctx, wire.GPUs, nil)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var list []GPU
	if err := json.Unmarshal(k.payload, &list); err != nil {
		return nil, fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, wire.GPUs, err)
	}
	return list, nil
}

// FindGPU reads a UUID, cuda:N for the N-th of GPUs, or opencl:N for the N-th OpenCL device that programs see. Of a
// UUID it does not ask whether this node has it. Errors: object.ErrInvalid (text is none of these), ErrNoDevice (there
// is no N-th), and those of GPUs.
func (c *Conn) FindGPU(ctx context.Context, text string) (object.Device, error) {
	kind, place, _ := strings.Cut(text, ":")
	if kind != "cuda" && kind != "opencl" {
		gpu, err := object.ParseDevice(text)
		if err != nil {
			err = noDeviceText(text)
		}
		return gpu, err
	}
	n, err := strconv.ParseUint(place, 10, 64) // 1<<64-1 for what is beyond
	if errors.Is(err, strconv.ErrSyntax) {
		return object.Device{}, noDeviceText(text)
	}
	if kind == "opencl" {
		return c.findOpenCL(ctx, text, n)
	}
	list, err := c.GPUs(ctx)
	if err != nil {
		return object.Device{}, err
	}
	for _, g := range list {
		if uint64(g.Index) == n {
			return g.UUID, nil
		}
	}
	return object.Device{}, fmt.Errorf("%w: %.60q: this node has %s, the first is cuda:0", object.ErrNoDevice, text,
		object.Counted(len(list), "GPU"))
}

// noDeviceText says that a text names no device of any node.
func noDeviceText(text string) error {
	return fmt.Errorf("%w: %.60q: want cuda:N, such as cuda:0, opencl:N, or a UUID of 32 hexadecimal digits",
		object.ErrInvalid, text)
}

// findOpenCL gives the UUID of an OpenCL device by its position among all that the node shows, which text has.
func (c *Conn) findOpenCL(ctx context.Context, text string, n uint64) (object.Device, error) {
	var snapshot struct {
		Platforms []struct {
			Devices []struct {
				UUID object.Device `json:"uuid"`
			} `json:"devices"`
		} `json:"platforms"`
	}
	if err := c.query(ctx, wire.Devices, nil, &snapshot); err != nil {
		return object.Device{}, err
	}
	count := 0
	for _, p := range snapshot.Platforms {
		for _, d := range p.Devices {
			if uint64(count) == n {
				return d.UUID, nil
			}
			count++
		}
	}
	return object.Device{}, fmt.Errorf("%w: %.60q: this node has %s, the first is opencl:0",
		object.ErrNoDevice, text, object.Counted(count, "OpenCL device"))
}

// DeviceMemory is an allocation of a device.
type DeviceMemory struct {
	Device object.Device
	// of the allocation: what is to be mapped. The object's bytes are its first ones. 0: an OpenCL driver's memory,
	// which no other process maps, or the GPU of an object that made way is gone; CopyObject reads it
	Bytes uint64

	mu   sync.Mutex
	file *os.File // nil: taken, or closed, or there is none
}

// TakeFile gives the descriptor, once: the caller closes it, or hands it to what consumes it. nil: it was taken, or
// there is none.
func (m *DeviceMemory) TakeFile() *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.file
	m.file = nil
	return f
}

func (m *DeviceMemory) close() {
	if f := m.TakeFile(); f != nil {
		f.Close()
	}
}

// DeviceBuffer is an object in the memory of a GPU that this process fills. Not safe for concurrent Seal and Abort.
type DeviceBuffer struct {
	Memory DeviceMemory // zero at first

	c     *Conn
	id    object.ID
	size  uint64
	class object.Class
	meta  []byte
	named bool
	gen   uint64 // the life of the connection that made it
	ended bool

	unsure bool // a seal's context ended: it may be sealed
}

// CreateDevice makes an unsealed object of size bytes in the memory of a GPU. Of the options Own, Checksum, Shared and
// Strict are object.ErrUnsupported. The caller must Seal or Abort it. Errors: object.ErrUnsupported (no such GPU),
// ErrInvalid, ErrFull, ErrQuota, ErrNoDevice (the driver failed); ErrDisconnected.
func (c *Conn) CreateDevice(ctx context.Context, device object.Device, size uint64,
	o CreateOptions) (*DeviceBuffer, error) {
	if o.Own || o.Checksum || o.Shared || o.Strict {
		return nil, fmt.Errorf("%w: Own, Checksum, Shared or Strict in the memory of a device", object.ErrUnsupported)
	}
	b := &DeviceBuffer{c: c, size: size, class: o.class(), meta: o.Meta, named: o.Name != ""}
	k, m, err := c.askDevice(ctx, wire.CreateDevice, &wire.CreateDeviceRequest{SizeBytes: size, Device: device,
		Class: o.class(), Name: o.Name, Meta: o.Meta, TTLMS: uint64(max(o.TTL.Milliseconds(), 0)), Labels: o.Labels})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	b.id, b.gen = m.ID, k.gen
	b.Memory.Device, b.Memory.Bytes, b.Memory.file = m.Device, m.Bytes, k.takeFile()
	return b, nil
}

// askDevice asks for memory of a GPU. The caller recycles the call.
func (c *Conn) askDevice(ctx context.Context, kind wire.Type,
	p interface{ Append([]byte) []byte }) (*call, wire.DeviceReply, error) {
	var m wire.DeviceReply
	if err := c.notShared(kind.String()); err != nil {
		return nil, m, err
	}
	k, err := c.roundTrip(ctx, kind, p)
	if err != nil {
		return nil, m, err
	}
	if err = m.Decode(k.payload); err == nil && (k.files[0] == nil) != (m.Bytes == 0) {
		err = fmt.Errorf("%w: a %v reply of %d bytes to be mapped, and a descriptor: %v", object.ErrProtocol, kind, m.Bytes,
			k.files[0] != nil)
	}
	if err != nil {
		k.closeFiles()
		k.recycle()
		return nil, m, err
	}
	m.Meta = append([]byte(nil), m.Meta...)
	return k, m, nil
}

// takeFile gives a reply's descriptor.
func (k *call) takeFile() *os.File {
	f := k.files[0]
	k.files[0] = nil
	return f
}

// ID names the object.
func (b *DeviceBuffer) ID() object.ID { return b.id }

// Seal makes the object findable, with the creator's reference. The GPU's work on it must have ended. On an error (the
// name is taken: object.ErrExists) the buffer stays. An ended ctx is as for Buffer.Seal.
func (b *DeviceBuffer) Seal(ctx context.Context) (*DeviceObject, error) {
	if b.ended {
		return nil, fmt.Errorf("%w: object %s is sealed or aborted already", object.ErrSealed, b.id)
	}
	err := b.c.simpleIn(ctx, b.gen, wire.Seal, &wire.SealRequest{ID: b.id})
	if err != nil && !(b.unsure && errors.Is(err, object.ErrSealed)) {
		b.unsure = b.unsure || isContext(err)
		return nil, err
	}
	b.ended = true
	o := &DeviceObject{held: &Object{c: b.c, id: b.id, size: b.size, class: b.class, meta: b.meta}}
	o.Memory.Device, o.Memory.Bytes, o.Memory.file = b.Memory.Device, b.Memory.Bytes, b.Memory.TakeFile()
	if !b.c.hold(o.held, b.gen) {
		o.Memory.close()
		return nil, fmt.Errorf("%w: object %s was sealed, then the connection broke", ErrDisconnected, b.id)
	}
	return o, nil
}

// Abort drops the object. After Seal it does nothing. If the object has no name, the daemon hears of it with this
// connection's next request, or within some ms.
func (b *DeviceBuffer) Abort(ctx context.Context) error {
	if b.ended {
		return nil
	}
	b.ended = true
	b.Memory.close()
	if !b.named || b.unsure {
		// nobody waits for its name, and the next request, which it goes along with, gets the memory again
		b.c.postRelease(b.gen, b.id)
		return nil
	}
	err := b.c.tell(ctx, b.gen, wire.Abort, &wire.IDMessage{ID: b.id})
	if errors.Is(err, ErrDisconnected) {
		return nil // the object went with its connection
	}
	return err
}

// DeviceObject is a sealed object in the memory of a GPU that this process holds a reference to.
type DeviceObject struct {
	Memory DeviceMemory
	held   *Object
}

// GetDevice takes a reference to an object in the memory of a GPU, by name where id is zero. wait bounds how long to
// wait for one that is not there or not sealed yet. The caller must Release it. Errors: as Get's; object.ErrUnsupported
// for one in host memory.
func (c *Conn) GetDevice(ctx context.Context, id object.ID, name string, wait time.Duration) (*DeviceObject, error) {
	k, m, err := c.askDevice(ctx, wire.GetDevice, &wire.NameMessage{ID: id, Name: name})
	if wait > 0 && (errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNotSealed)) {
		var waited *call
		ask := &wire.AwaitManyRequest{WaitMS: milliseconds(within(ctx, wait)),
			Wanted: []wire.NameMessage{{ID: id, Name: name}}}
		if waited, err = c.roundTrip(ctx, wire.AwaitMany, ask); err == nil {
			waited.recycle()
			k, m, err = c.askDevice(ctx, wire.GetDevice, &wire.NameMessage{ID: id, Name: name})
		}
	}
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	o := &DeviceObject{held: &Object{c: c, id: m.ID, size: m.SizeBytes, class: m.Class, meta: m.Meta}}
	o.Memory.Device, o.Memory.Bytes, o.Memory.file = m.Device, m.Bytes, k.takeFile()
	if !c.hold(o.held, k.gen) {
		o.Memory.close()
		return nil, errOtherLife
	}
	return o, nil
}

// ID names the object.
func (o *DeviceObject) ID() object.ID { return o.held.id }

// Size gives the object's size in bytes.
func (o *DeviceObject) Size() uint64 { return o.held.size }

// Class gives the object's lifetime class.
func (o *DeviceObject) Class() object.Class { return o.held.class }

// Meta gives the object's metadata; it must not be changed.
func (o *DeviceObject) Meta() []byte { return o.held.meta }

// Release gives the reference back; the program has ended its mapping before. A second Release does nothing.
func (o *DeviceObject) Release() {
	o.Memory.close()
	o.held.Release()
}

// CopyToDevice makes an object in the memory of a device of a sealed one in any other memory, by name where id is zero,
// with the metadata of that one unless o has some. One that other nodes have published comes into host memory here
// first. wait is as in Get. The caller must Release it. Errors: Open's, CreateDevice's, CopyObject's; object.ErrExists
// where the name is taken.
func (c *Conn) CopyToDevice(ctx context.Context, id object.ID, name string, wait time.Duration, device object.Device,
	o CreateOptions) (*DeviceObject, error) {
	from, err := c.Open(ctx, id, name, wait)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	if o.Meta == nil {
		o.Meta = from.Meta()
	}
	b, err := c.CreateDevice(ctx, device, from.Size(), o)
	if err != nil {
		return nil, err
	}
	if err = c.CopyObject(ctx, b.ID(), 0, from.ID(), "", 0, from.Size()); err == nil {
		var made *DeviceObject
		if made, err = b.Seal(ctx); err == nil {
			return made, nil
		}
	}
	return nil, errors.Join(err, b.Abort(ctx))
}

// CopyObject has the daemon copy bytes of a sealed object, by name where from is zero, into an unsealed one of this
// connection. One that other nodes have published is brought into host memory here first. One of the two at least is in
// the memory of a GPU, and one in host memory that is copied into was created with Own. Errors: object.ErrInvalid,
// ErrNotFound, ErrNotSealed, ErrSealed, ErrPermission, ErrNoDevice (the driver failed); ErrDisconnected.
func (c *Conn) CopyObject(ctx context.Context, to object.ID, toOffset uint64, from object.ID, fromName string,
	fromOffset, bytes uint64) error {
	return c.simple(ctx, wire.CopyObject, &wire.CopyRequest{To: to, ToOffset: toOffset, From: from, FromName: fromName,
		FromOffset: fromOffset, Bytes: bytes})
}

// IPCHandle is a copy of an object in the memory of a GPU for programs that open a CUDA handle, and no descriptor: in
// another process than the daemon's keeper, with cuIpcOpenMemHandle or cudaIpcOpenMemHandle on that GPU. It is no part
// of the object: who opens it may write it, and it stays when the object goes. It is charged to the tenant until
// Release. It goes with the connection, and with the daemon's keeper, which a fault of its driver may end at any time;
// whoever has it open closes it before Release.
type IPCHandle struct {
	Device    object.Device
	SizeBytes uint64 // of the object: the copy's first bytes
	Bytes     uint64 // of the copy
	Handle    [object.IPCHandleBytes]byte

	c      *Conn
	number uint64
	gen    uint64 // the life of the connection that it belongs to
}

// IPCHandle copies a sealed object of kind cuda, by name where id is zero, and gives a handle of the copy. The caller
// must Release it. Errors: as GetDevice's; object.ErrUnsupported for other kinds, a driver that gives no handles, or an
// earlier release's daemon; ErrFull, ErrQuota; ErrLimit: this connection has 64 of them; ErrNoDevice: the driver
// failed.
func (c *Conn) IPCHandle(ctx context.Context, id object.ID, name string) (*IPCHandle, error) {
	if err := c.notShared(wire.IPCHandle.String()); err != nil {
		return nil, err
	}
	k, err := c.roundTrip(ctx, wire.IPCHandle, &wire.NameMessage{ID: id, Name: name})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.IPCReply
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	return &IPCHandle{Device: m.Device, SizeBytes: m.SizeBytes, Bytes: m.Bytes, Handle: m.Handle, c: c,
		number: m.Number, gen: k.gen}, nil
}

// Release gives the copy back. Errors: object.ErrNoDevice: it had ended with the keeper before, and the handle was of
// no use since; ErrDisconnected: it went with the connection. A second Release is object.ErrNotFound.
func (h *IPCHandle) Release(ctx context.Context) error {
	return h.c.tell(ctx, h.gen, wire.CloseIPC, &wire.Number{N: h.number})
}
