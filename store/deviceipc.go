package store

import (
	"errors"
	"fmt"

	"tendril/store/object"
)

// maxIPC is how much one connection may have lent at a time.
const maxIPC = 64

// IPCHandle is a copy of an object, lent to programs that open a handle.
type IPCHandle struct {
	Number uint64 // for CloseIPC
	Device object.Device
	Size   uint64 // of the object
	Bytes  uint64 // of the copy, and charged
	Handle [object.IPCHandleBytes]byte
}

// IPCHandle copies a sealed object in the memory of a GPU, by name where id is zero, for who opens a CUDA handle. The
// copy is charged to c's tenant and that GPU, and no part of the object: whoever opens it may write it, and it stays
// when the object goes. It goes with CloseIPC, with c, and where the process ends that has it. It waits for the driver.
// Errors: GetDevice's; ErrUnsupported, too, where the driver gives no handles; ErrFull, ErrQuota, ErrLimit, ErrNoDevice
// (the driver failed).
func (c *Conn) IPCHandle(id object.ID, name string) (h IPCHandle, err error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.lent(id, name)
	if err != nil {
		return h, err
	}
	lender, can := s.opts.Devices.(IPCLender)
	if !can {
		return h, fmt.Errorf("%w: this store lends no memory of GPUs by handles", object.ErrUnsupported)
	}
	from, err := e.place(0, e.size)
	if err != nil {
		return h, err
	}
	defer func() { s.doomedFDs = append(s.doomedFDs, from.FD) }()
	s.transfers.Add(1)
	defer s.transfers.Done()
	c.lending++
	e.refs++ // it neither goes, nor leaves its GPU
	s.reconsider(e)
	h, err = s.lendIPC(lender, c, e, from)
	c.lending--
	if err != nil {
		e.gpu.maker = nil // a device may still be at it
	}
	e.refs--
	s.collect(e)
	return h, err
}

// lent finds what IPCHandle copies. mu is held.
func (c *Conn) lent(id object.ID, name string) (*entry, error) {
	if c.closed || c.s.closed {
		return nil, errConnClosed
	}
	e, err := c.find(id, name)
	switch {
	case err != nil:
		return nil, err
	case e.gpu == nil:
		return nil, fmt.Errorf("%w: object %s is in host memory, not in a GPU's", object.ErrUnsupported, e.id)
	case e.gpu.kind == object.OpenCL:
		return nil, fmt.Errorf("%w: object %s is in the memory of an OpenCL device, which has no CUDA handle",
			object.ErrUnsupported, e.id)
	case e.state == object.Open:
		return nil, e.notSealed()
	case e.offDevice():
		return nil, e.awayFromDevice()
	case len(c.ipc)+c.lending >= maxIPC:
		return nil, fmt.Errorf("%w: this connection has %d handles of GPU memory: release some", object.ErrLimit, maxIPC)
	}
	return e, e.isDamaged()
}

// lendIPC has an object copied, charged to c's tenant. mu is held, and let go meanwhile.
func (s *Store) lendIPC(lender IPCLender, c *Conn, e *entry, from Place) (h IPCHandle, err error) {
	s.dropEndedIPC() // so it is asked often enough
	device, charged := e.gpu.device, roundDevice(e.size)
	if err = s.reserveDevice(c, device, charged); err != nil {
		return h, err
	}
	h = IPCHandle{Device: device, Size: e.size}
	err = s.untilFits(c, device, charged, func() (free uint64, err error) {
		s.unlock()
		defer s.mu.Lock()
		h.Number, h.Handle, h.Bytes, err = lender.LendIPC(c.asker(), from, h.Size)
		return h.Bytes, err
	})
	s.unchargeDevice(c.tenant, device, charged, 0)
	if errors.Is(err, object.ErrFull) {
		err = s.deviceFull(c.tenant, device, charged, err)
	}
	if err == nil {
		if err = s.keepIPC(lender, c, &h); err != nil {
			lender.FreeIPC(h.Number)
		}
	}
	if err != nil {
		s.deviceRoom = true
		return IPCHandle{}, err
	}
	return h, nil
}

// keepIPC makes what was lent c's, and charges it. mu is held.
func (s *Store) keepIPC(lender IPCLender, c *Conn, h *IPCHandle) error {
	switch {
	case c.closed || s.closed:
		return errConnClosed
	case !lender.HasIPC(h.Number): // EndedIPC may have said so already
		return errIPCEnded
	}
	if err := s.chargeDevice(c.tenant, h.Device, h.Bytes); err != nil {
		return err
	}
	if c.ipc == nil {
		c.ipc = make(map[uint64]ipcMemory)
	}
	if s.ipc == nil {
		s.ipc = make(map[uint64]*Conn)
	}
	c.ipc[h.Number], s.ipc[h.Number] = ipcMemory{h.Device, h.Bytes}, c
	return nil
}

var errIPCEnded = fmt.Errorf("%w: the keeper of GPU memory ended, and with it the copy that this handle was of",
	object.ErrNoDevice)

// CloseIPC gives a copy back that IPCHandle made. Errors: ErrNotFound; ErrNoDevice: it is given back, but it had ended
// before, with the process that had it, and the handle with it.
func (c *Conn) CloseIPC(number uint64) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	if _, has := c.ipc[number]; !has {
		return fmt.Errorf("%w: this connection has no handle of GPU memory with number %d", object.ErrNotFound, number)
	}
	lived := c.s.opts.Devices.(IPCLender).HasIPC(number)
	c.freeIPC(number)
	if !lived {
		return errIPCEnded
	}
	return nil
}
