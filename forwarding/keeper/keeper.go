// Package keeper is the process `tendril keeper`: it makes the memory of GPUs that objects of the store lie in. It
// allocates, zeroes and exports; the daemon has the descriptors, and memory lives as long as a descriptor does, so
// this process may end at any time and loses nothing but copies that it lent (lend.go). It also copies between such
// memory and host memory for those who have no driver, in steps, and keeps pinned what host memory it was asked for
// more than once. A keeper of an OpenCL platform has memory that dies with it (opencl.go).
//
// Trust: the daemon, which alone speaks to it, and the driver, which runs in this process. No tenant's code runs here.
//
// Locks: none. One request is served at a time; the goroutines of a copy through pinned memory are joined within it.
package keeper

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// score is this process's oom_score_adj: where memory is short it goes before the daemon, whose score it inherited.
const score = "300"

// Options says how a keeper runs.
type Options struct {
	Control *os.File // the socket to the daemon
	Driver  string   // path or name of the CUDA driver
	// how much of the store's memory may be pinned for copies, in bytes; 0: none. The keeper's own staging is beside it
	PinBytes uint64
	OpenCL   OpenCLOptions // ICD "": a keeper of CUDA memory
}

// OpenCLOptions names the platform whose devices' memory a keeper makes.
type OpenCLOptions struct {
	ICD      string
	Platform int            // its position in the driver's list
	Devices  map[string]int // positions in the platform's list, by UUID
}

// Main serves requests until the daemon closes the socket, or the driver is of no use to this process any more.
func Main(ctx context.Context, o Options) error {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0) // in a container that forbids it: as the daemon
	fd, err := unix.FcntlInt(o.Control.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	o.Control.Close()
	defer unix.Close(fd)
	k := newKeeper(o)
	packet, rights := make([]byte, clwire.MaxControlBytes), make([]byte, unix.CmsgSpace(4*4))
	for ctx.Err() == nil {
		n, nc, _, _, err := unix.Recvmsg(fd, packet, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err // 0: the daemon is gone, or wants this process gone
		}
		if err := k.serve(fd, packet[:n], rights[:nc]); err != nil || k.broken != nil {
			return errors.Join(err, k.broken)
		}
	}
	return nil
}

// keeper is what stays between requests.
type keeper struct {
	driver   string
	library  *cuda.Library // nil until it is needed
	devices  []cuda.Device
	contexts map[int]*cuda.Context   // by ordinal: those that were needed
	sides    map[*cuda.Context]*side // of GPUs that copied to or from another one
	broken   error                   // of the driver, where it lasts
	copies   map[uint64]*copying     // those that go on
	over     []*copying              // those that have ended, and have their places mapped
	lent     map[uint64]*cuda.Owned
	host     hostMemory
	staging  staging
	opencl   *openCL // nil: a keeper of CUDA memory
}

func newKeeper(o Options) *keeper {
	k := &keeper{driver: o.Driver, contexts: map[int]*cuda.Context{}, copies: map[uint64]*copying{},
		lent: map[uint64]*cuda.Owned{}, sides: map[*cuda.Context]*side{},
		host: hostMemory{limit: o.PinBytes, pinned: map[clwire.HostMemory]*pinned{}}}
	if o.OpenCL.ICD != "" {
		k.opencl = newOpenCL(o.OpenCL)
	}
	return k
}

// serve answers one request. An error is one of the socket.
func (k *keeper) serve(fd int, packet, control []byte) error {
	files := received(control)
	defer func() {
		for _, f := range files {
			unix.Close(f)
		}
	}()
	reply, made := k.answer(packet, files)
	var rights []byte
	if made >= 0 {
		defer unix.Close(made)
		rights = unix.UnixRights(made)
	}
	raw, err := json.Marshal(reply)
	if err == nil {
		err = unix.Sendmsg(fd, raw, rights, nil, unix.MSG_NOSIGNAL)
	}
	if k.broken == nil { // else the device may still use what is mapped; the process's end unmaps it
		k.tidy()
	}
	return err
}

// tidy unmaps what copies that have ended had mapped: nobody waits for it. An error that lasts ends this process, as in
// a request.
func (k *keeper) tidy() {
	for _, c := range k.over {
		if err := c.free(); errors.Is(err, cuda.ErrLasts) {
			k.broken = err
		}
	}
	k.over = nil
}

// received gives the descriptors that came with a packet.
func received(control []byte) (files []int) {
	messages, _ := unix.ParseSocketControlMessage(control)
	for i := range messages {
		some, _ := unix.ParseUnixRights(&messages[i])
		files = append(files, some...)
	}
	return files
}

// fault is an error that is not of the driver.
type fault struct {
	sort clwire.KeeperFault
	text string
}

func (f *fault) Error() string { return f.text }

// answer does what a packet asks. made is a descriptor for the reply; −1: none.
func (k *keeper) answer(packet []byte, files []int) (reply *clwire.KeeperReply, made int) {
	reply, made = &clwire.KeeperReply{}, -1
	var m clwire.KeeperRequest
	err := json.Unmarshal(packet, &m)
	if err == nil && k.opencl != nil {
		made, k.broken = k.opencl.answer(&m, files, reply)
		return reply, made
	}
	if err == nil {
		err = k.load()
	}
	switch {
	case err != nil:
	case m.List != nil:
		reply.Devices = k.list()
	case m.Allocate != nil:
		made, reply.Bytes, err = k.allocate(m.Allocate)
	case m.Copy != nil && (len(files) == 2 || len(files) == 0):
		reply.Way, reply.Why, err = k.copy(m.Copy, files)
		reply.Pinned = k.host.list()
	case m.End != nil:
		err = k.end(m.End.ID)
	case m.Lend != nil && len(files) == 1:
		reply.Handle, reply.Bytes, err = k.lend(m.Lend, files[0])
	case m.Free != nil:
		err = k.free(m.Free.IDs)
	case m.Forget != nil:
		err = k.host.forget(m.Forget.Memory)
	default:
		err = fmt.Errorf("a request of %d bytes with %d descriptors asks for nothing", len(packet), len(files))
	}
	if err != nil {
		reply.Error, reply.Fault = err.Error(), sortOf(err)
	}
	if errors.Is(err, cuda.ErrLasts) {
		k.broken = err
	}
	return reply, made
}

func sortOf(err error) clwire.KeeperFault {
	var own *fault
	var drivers *cuda.Error
	switch {
	case errors.As(err, &own):
		return own.sort
	case errors.As(err, &drivers) && drivers.Code == cuda.OutOfMemory:
		return clwire.KeeperFull
	}
	return clwire.KeeperFailed
}

// load loads the driver, once.
func (k *keeper) load() error {
	if k.library != nil {
		return nil
	}
	l, err := cuda.Open(k.driver)
	if err != nil {
		return &fault{clwire.KeeperNoDevice, err.Error()}
	}
	if k.devices, err = l.Devices(); err != nil {
		return err
	}
	k.library = l
	return nil
}

func (k *keeper) list() (list []clwire.KeeperDevice) {
	for _, d := range k.devices {
		list = append(list, clwire.KeeperDevice{Index: d.Ordinal, UUID: hex.EncodeToString(d.UUID[:]), Name: d.Name,
			Bytes: d.Bytes, Shares: d.Shares && modeOf(d) == "", Mode: modeOf(d)})
	}
	return list
}

// modeOf is a device's compute mode as the daemon knows it.
func modeOf(d cuda.Device) clwire.ComputeMode { return clwire.ComputeModeOf(d.Mode) }

// use gives a device's context, by its UUID: orders change, UUIDs stay.
func (k *keeper) use(uuid string) (*cuda.Context, error) {
	for _, d := range k.devices {
		switch {
		case hex.EncodeToString(d.UUID[:]) != uuid:
			continue
		case !d.Shares:
			return nil, &fault{clwire.KeeperNoDevice,
				fmt.Sprintf("device %s (%s) cannot share its memory as a descriptor", uuid, d.Name)}
		case modeOf(d) != "":
			return nil, &fault{clwire.KeeperNoDevice, fmt.Sprintf("device %s (%s) is in compute mode %s, and the keeper "+
				"of its memory would be a process beside others (nvidia-smi --compute-mode 0 allows that)", uuid, d.Name, modeOf(d))}
		case k.contexts[d.Ordinal] != nil:
			return k.contexts[d.Ordinal], nil
		}
		c, err := k.library.Context(d)
		if err == nil {
			k.contexts[d.Ordinal] = c
		}
		return c, err
	}
	return nil, &fault{clwire.KeeperNoDevice,
		fmt.Sprintf("the driver shows no device %.40q; it shows %d", uuid, len(k.devices))}
}

// allocate makes zeroed memory and gives its only descriptor.
func (k *keeper) allocate(m *clwire.KeeperAllocate) (fd int, bytes uint64, err error) {
	c, err := k.use(m.Device)
	if err != nil {
		return -1, 0, err
	}
	granule, err := c.Granularity()
	if err != nil {
		return -1, 0, err
	}
	if bytes = (m.Bytes + granule - 1) &^ (granule - 1); bytes < m.Bytes || bytes == 0 {
		return -1, 0, fmt.Errorf("an allocation of %d bytes", m.Bytes)
	}
	var memory *cuda.Memory
	err = k.withRoom(c, func() (err error) {
		memory, err = c.Create(bytes)
		return err
	})
	if err != nil {
		if sortOf(err) == clwire.KeeperFull {
			bytes, _ = c.FreeBytes() // 0 where the driver does not say
			return -1, bytes, err
		}
		return -1, 0, err
	}
	err = onMapping(memory, func(v *cuda.Mapping) error { return v.Fill(0, 0, bytes) })
	fd = -1
	if err == nil {
		fd, err = memory.Export()
	}
	if given := memory.Release(); err == nil && given != nil {
		unix.Close(fd)
		fd, err = -1, given
	}
	return fd, bytes, err
}

// onMapping maps memory for as long as f runs.
func onMapping(memory *cuda.Memory, f func(*cuda.Mapping) error) error {
	v, err := memory.Map()
	if err != nil {
		return err
	}
	return errors.Join(f(v), v.Unmap())
}
