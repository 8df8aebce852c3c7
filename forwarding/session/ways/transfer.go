package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/transfer"
	"tendril/store/segment"
)

// Host is the program's side of a transfer, from its address on.
type Host struct {
	Ptr api.HostPtr
	transfer.Side
}

// Linear is a side of size bytes without gaps.
func Linear(ptr api.HostPtr, size uint64) Host { return Host{ptr, transfer.Side{Size: size}} }

// runs calls f with each contiguous part of the program's memory that the dense range covers, in order.
func (s *Host) runs(from, n uint64, f func(part []byte)) {
	s.Runs(from, n, func(at, n uint64) { f(s.Ptr.Bytes(at, n)) })
}

// Transfer is a transfer between a buffer or an image and the program's memory, which of its ways it may go.
type Transfer struct {
	Purpose  transfer.Purpose
	Buffer   Buffer // nil: there are no bytes
	Write    bool   // to Buffer
	Blocking bool
	Device   clwire.Shape // the bytes in Buffer
	Host     Host         // the bytes in the program's memory, or in the memory that a map shows

	// Of a map or an unmap.
	Shown   Buffer            // whose shadow is the program's side; nil: nobody's
	ShownAt uint64            // where in Shown the bytes begin
	Program bool              // the program's side is its own memory under the buffer
	Fetch   func() api.Status // the transfer by this side itself, by this thread; nil: as that of any other

	// The program's side is in this segment, which the device's driver has pinned, from SharedAt on; nil: elsewhere.
	Shared   *node.Segment
	SharedAt uint64

	reads []*transfer.ReadHazard // of a write: those under way that may still change its bytes
}

// Linear sets the bytes of a transfer of one range of a buffer.
func (t *Transfer) Linear(off uint64, ptr api.HostPtr, size uint64) {
	t.Device.Offset, t.Device.Size = off, size
	t.Host.Ptr, t.Host.Size = ptr, size
}

// isImage: a transfer of an image is one of rows.
func (t *Transfer) isImage() bool {
	return t.Host.Rect && t.Buffer != nil && t.Buffer.ElementBytes() != 0
}

func (t *Transfer) layout() transfer.Layout {
	switch {
	case t.isImage():
		return transfer.Image
	case t.Host.Rect:
		return transfer.Rows
	}
	return transfer.Contiguous
}

func (t *Transfer) memory(c *Context) transfer.Memory {
	switch {
	case t.Program:
		return transfer.Program
	case c.Remote:
		return transfer.Remote
	case c.InPlace && !t.isImage():
		return transfer.Shared
	}
	return transfer.Device
}

func (t *Transfer) direction() uint8 {
	if t.Write {
		return clwire.ToBuffer
	}
	return clwire.FromBuffer
}

// now does the transfer, by this thread. The caller has seen to the order.
func (t *Transfer) now(c *Context) api.Status {
	switch {
	case t.Buffer == nil:
		return cl.SUCCESS
	case t.Fetch != nil:
		return t.Fetch()
	}
	return c.MoveNow(t.Buffer, t.Write, t.Device, t.Host)
}

// copyMapped copies between the buffer's memory, which is mapped here, and the program's.
func (t *Transfer) copyMapped(in []byte) {
	if !t.Host.Rect {
		mine, theirs := in[t.Device.Offset:], t.Host.Ptr.Bytes(0, t.Host.Size)
		if t.Write {
			segment.Copy(mine, theirs)
		} else {
			segment.Copy(theirs, mine)
		}
		return
	}
	dev, region := transfer.BoxOf(&t.Device), t.Host.Region
	for z := range region[2] {
		for y := range region[1] {
			mine, theirs := in[dev.Offset(y, z):][:region[0]], t.Host.Ptr.Bytes(t.Host.Box.Offset(y, z), region[0])
			if t.Write {
				copy(mine, theirs)
			} else {
				copy(theirs, mine)
			}
		}
	}
}
