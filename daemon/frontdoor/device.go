package frontdoor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// What the keeper does takes long, and may hang: such requests have goroutines of their own. What a daemon that ends
// did not do is not answered: the connection ends next, and the client asks the daemon that takes over.

// createDevice makes an object in the memory of a GPU. mu is held.
func (c *connection) createDevice(f *ipc.Frame, m wire.CreateDeviceRequest) error {
	spec := store.Spec{SizeBytes: m.SizeBytes, Class: m.Class, Name: m.Name, Meta: m.Meta, TTL: duration(m.TTLMS),
		Labels: m.Labels}
	h, err := c.store.AtOnce().CreateDevice(spec, m.Device)
	switch {
	case err == nil:
		c.replyDevice(f, h)
		return nil
	case c.polled || !errors.Is(err, store.ErrWouldWait):
		return err
	}
	header := ipc.Frame{Header: f.Header}
	spec.Meta = bytes.Clone(spec.Meta) // it is the frame's
	return c.later(store.WaitBytes+uint64(len(f.Payload)), func() {
		h, err := c.store.CreateDevice(spec, m.Device)
		if errors.Is(err, store.ErrDevicesEnded) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.answer(&header, nil, err)
			return
		}
		c.replyDevice(&header, h)
		c.flush() // a failure is met by serve
	})
}

// replyDevice answers with memory of a device. A client on another machine gets no descriptor, and nobody one of what
// an OpenCL driver has: with that no memory is to be mapped, nor of one whose GPU is gone. mu is held.
func (c *connection) replyDevice(f *ipc.Frame, h store.DeviceHandle) {
	if h.FD >= 0 && (c.peer.Remote != "" || h.Kind == object.OpenCL) {
		unix.Close(h.FD)
		h.FD = -1
	}
	if h.Kind == object.OpenCL {
		h.Bytes = 0
	}
	c.replyFD(f, &wire.DeviceReply{ID: h.ID, Device: h.Device, SizeBytes: h.Size, Bytes: h.Bytes, Class: h.Class,
		Meta: h.Meta}, h.FD)
}

// getDevice gives an object in the memory of a GPU. One that made way for others comes back first. mu is held.
func (c *connection) getDevice(f *ipc.Frame, m wire.NameMessage) error {
	h, err := c.store.GetDevice(m.ID, m.Name)
	if errors.Is(err, store.ErrAway) {
		header := ipc.Frame{Header: f.Header}
		return c.later(store.WaitBytes+uint64(len(m.Name)), func() {
			h, err := c.bringDevice(m.ID, m.Name, c.store.GetDevice, c.store.GetAway)
			if errors.Is(err, store.ErrDevicesEnded) {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.answer(&header, nil, err)
				return
			}
			c.replyDevice(&header, h)
			c.flush() // a failure is met by serve
		})
	}
	if err != nil {
		known := c.notOfDevice(m, err)
		if q := c.srv.missed(known); q != nil {
			return c.deviceCaughtUp(f, m, err, q)
		}
		return known
	}
	c.replyDevice(f, h)
	return nil
}

// deviceCaughtUp is notOfDevice with what the cluster knows. mu is held.
func (c *connection) deviceCaughtUp(f *ipc.Frame, m wire.NameMessage, err error, q *CatchUp) error {
	h := f.Header
	return c.onceCaughtUp(f, q, func(unsure error) {
		c.answer(&ipc.Frame{Header: h}, nil, LessSure(c.notOfDevice(m, err), unsure))
	})
}

// notOfDevice says of what is on other nodes, and not here, that it comes as an object in host memory. mu is held.
func (c *connection) notOfDevice(m wire.NameMessage, err error) error {
	id := m.ID
	if errors.Is(err, object.ErrNotFound) && id.IsZero() && m.Name != "" {
		id, _ = c.resolve(m.Name, err)
	}
	if wanted, is := isElsewhere(c.orElsewhere(id, err)); is {
		return fmt.Errorf("%w: object %s is on another node, and comes from there into host memory: get it so, and copy it to a device",
			object.ErrUnsupported, wanted)
	}
	return err
}

// bringDevice gets an object in the memory of a GPU, as often as it has to be brought back before. away, if it is not
// nil, gets one that cannot come back, since its GPU is gone.
func (c *connection) bringDevice(id object.ID, name string,
	get, away func(object.ID, string) (store.DeviceHandle, error)) (store.DeviceHandle, error) {
	for {
		h, err := get(id, name)
		if !errors.Is(err, store.ErrAway) {
			return h, err
		}
		switch err := c.store.BringBack(c.ctx, id, name); {
		case err == nil:
		case away == nil || !isGone(err):
			return h, err
		default:
			h, none := away(id, name)
			if none == nil {
				return h, nil
			}
			if !errors.Is(none, store.ErrAway) {
				return h, err
			}
		}
	}
}

// isGone says whether an object cannot be brought back to its GPU because that is gone, or its driver.
func isGone(err error) bool {
	return (errors.Is(err, object.ErrNoDevice) || errors.Is(err, object.ErrUnsupported)) &&
		!errors.Is(err, store.ErrDevicesEnded)
}

// copyBrought is copyBack, also of an object that other nodes have published: it comes into host memory here first.
// Nothing comes for a copy that has no place to go to.
func (c *connection) copyBrought(m wire.CopyRequest) error {
	if err := c.store.MayCopyTo(m.To, m.ToOffset, m.Bytes); err != nil {
		return err
	}
	_, err := broughtNamed(c, m.From, m.FromName, func(id object.ID, name string) (none, error) {
		m.From, m.FromName = id, name
		return none{}, c.copyBack(m)
	})
	return err
}

// copyBack copies what an object is asked for, which is brought back before, or read where it is if its GPU is gone.
func (c *connection) copyBack(m wire.CopyRequest) error {
	for {
		err := c.store.Copy(m.To, m.ToOffset, m.From, m.FromName, m.FromOffset, m.Bytes)
		if !errors.Is(err, store.ErrAway) {
			return err
		}
		err = c.store.BringBack(c.ctx, m.From, m.FromName)
		if isGone(err) {
			err = c.store.CopyAway(m.To, m.ToOffset, m.From, m.FromName, m.FromOffset, m.Bytes)
			if err == nil {
				return nil
			}
		}
		if err != nil && !errors.Is(err, store.ErrAway) {
			return err
		}
	}
}

// ipcHandle lends a copy of an object in the memory of a GPU, which is brought back there before. mu is held.
func (c *connection) ipcHandle(f *ipc.Frame, m wire.NameMessage) error {
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes+uint64(len(m.Name)), func() {
		h, err := c.store.IPCHandle(m.ID, m.Name)
		for errors.Is(err, store.ErrAway) {
			if err = c.store.BringBack(c.ctx, m.ID, m.Name); err == nil {
				h, err = c.store.IPCHandle(m.ID, m.Name)
			}
		}
		if errors.Is(err, store.ErrDevicesEnded) {
			return
		}
		if err != nil {
			err = c.notHere(m, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, &wire.IPCReply{Number: h.Number, Device: h.Device, SizeBytes: h.Size, Bytes: h.Bytes,
			Handle: h.Handle}, err)
	})
}

// notHere is notOfDevice for a request that runs by itself, once the cluster has said what it knows. mu is not held.
func (c *connection) notHere(m wire.NameMessage, err error) error {
	why := func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.notOfDevice(m, err)
	}
	known := why()
	if q := c.srv.missed(known); q != nil {
		unsure := c.awaitCluster(q)
		return LessSure(why(), unsure)
	}
	return known
}

func (c *connection) closeIPC(m wire.Number) error { return c.store.CloseIPC(m.N) }

// sealDevice seals an object in the memory of a GPU whose metadata is known now.
func (c *connection) sealDevice(m wire.SealDeviceRequest) error {
	return c.store.SealDevice(m.ID, m.Meta)
}

func (c *connection) copyObject(f *ipc.Frame, m wire.CopyRequest) error {
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes, func() {
		err := c.copyBrought(m)
		if errors.Is(err, store.ErrDevicesEnded) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, nil, err)
	})
}

func (c *connection) gpus(f *ipc.Frame, _ none) error {
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes, func() {
		var b []byte
		err := fmt.Errorf("%w: this daemon provides no device memory", object.ErrUnsupported)
		if ask := c.srv.opts.GPUs; ask != nil {
			var list any
			if list, err = ask(); err == nil {
				b, err = json.Marshal(list)
			}
		}
		if errors.Is(err, store.ErrDevicesEnded) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, long(b), err)
	})
}
