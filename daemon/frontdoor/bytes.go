package frontdoor

import (
	"errors"
	"fmt"
	"os"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/store/segment"
)

// Objects' bytes for peers that shared memory does not reach: the daemon copies them into and out of the store, in
// frames.

// Limits of one connection.
const (
	maxUploads = 16
	maxHolds   = 256

	// mappingBytes is what an object that is uploaded or held is charged, besides its memory: a process may have some
	// 65,000 mappings.
	mappingBytes = 8 << 10
)

// upload is an object that its creator fills with Write.
type upload struct {
	memory  *segment.Mapping // nil: empty, or sealed already
	bytes   []byte
	segment uint64
}

// hold is an object that is being read.
type hold struct {
	reading *store.Reading
	count   int // Holds less Releases
}

// uploading begins an object. mu is held.
func (c *connection) uploading(m wire.CreateWithRequest) (ipc.Payload, error) {
	if len(c.uploads) >= maxUploads {
		return nil, fmt.Errorf("%w: %d objects are being uploaded on this connection: seal or abort one",
			object.ErrBusy, maxUploads)
	}
	if err := c.store.ChargeRequest(mappingBytes); err != nil {
		return nil, err
	}
	h, err := c.store.Create(store.Spec{
		SizeBytes: m.SizeBytes, Class: m.Class, Own: true, Checksum: m.Flags&wire.CreateSummed != 0, Name: m.Name,
		Meta: m.Meta, TTL: duration(m.TTLMS), Labels: m.Labels,
	})
	if err != nil {
		c.store.UnchargeRequest(mappingBytes)
		return nil, err
	}
	u, err := newUpload(h)
	if err != nil {
		c.store.UnchargeRequest(mappingBytes)
		return nil, errors.Join(err, c.store.Abort(h.ID))
	}
	if c.uploads == nil {
		c.uploads = make(map[object.ID]*upload)
	}
	c.uploads[h.ID] = u
	return &wire.IDMessage{ID: h.ID}, nil
}

// newUpload maps a new object and takes its descriptor over.
func newUpload(h store.Handle) (*upload, error) {
	u := &upload{segment: h.Ref.Segment}
	if h.FD < 0 {
		return u, nil
	}
	file := os.NewFile(uintptr(h.FD), "upload")
	defer file.Close()
	memory, err := segment.Map(file, h.Ref.SegmentBytes, true)
	if err == nil {
		u.memory, u.bytes = memory, memory.Bytes()[h.Ref.Offset:][:h.Size]
	}
	return u, err
}

// unmap ends writing.
func (u *upload) unmap() {
	if u.memory != nil {
		_ = u.memory.Unmap() // fails only for a mapping that is none
		u.memory, u.bytes = nil, nil
	}
}

// write fills a part of an upload. mu is held.
func (c *connection) write(m wire.WriteRequest) error {
	u := c.uploads[m.ID]
	if u == nil {
		return fmt.Errorf("%w: object %s is not being uploaded on this connection", object.ErrNotFound, m.ID)
	}
	if n := uint64(len(m.Data)); m.Offset > uint64(len(u.bytes)) || n > uint64(len(u.bytes))-m.Offset {
		return fmt.Errorf("%w: bytes [%d, +%d) of an object with room for %d", object.ErrInvalid, m.Offset, n,
			len(u.bytes))
	}
	segment.Copy(u.bytes[m.Offset:], m.Data)
	return nil
}

// sealUpload is Seal's part for an upload: no writable mapping stays, and the memory is not charged to this
// connection's knowing it. A seal that failed (the name is taken) leaves an object that can be sealed again, but not
// written. mu is held.
func (c *connection) sealUpload(id object.ID, seal func() error) error {
	u := c.uploads[id]
	if u == nil {
		return seal()
	}
	u.unmap()
	if err := seal(); err != nil {
		return err
	}
	c.endUpload(id)
	return nil
}

// endUpload forgets an upload that was sealed or aborted. mu is held.
func (c *connection) endUpload(id object.ID) {
	u := c.uploads[id]
	if u == nil {
		return
	}
	u.unmap()
	delete(c.uploads, id)
	c.store.UnchargeRequest(mappingBytes)
	if u.segment != 0 {
		_ = c.store.Forget(u.segment) // an abort may have ended it already
	}
}

// hold is Get without a descriptor: the object's bytes are asked for with ReadRange until Release.
func (c *connection) hold(f *ipc.Frame, m wire.GetRequest) error {
	return c.getOrWait(f, m, (*connection).giveHold)
}

// giveHold answers a Hold of an object that is there. mu is held.
func (c *connection) giveHold(f *ipc.Frame, id object.ID, name string) error {
	r, err := c.store.OpenAny(c.ctx, id, name)
	if err != nil {
		return err
	}
	reply := wire.HoldReply{ID: r.ID, SizeBytes: r.Size, Class: r.Class, Meta: r.Meta}
	h := c.holds[r.ID]
	switch {
	case h != nil:
		r.Close()
	case len(c.holds) >= maxHolds:
		r.Close()
		return fmt.Errorf("%w: %d objects are being read on this connection: release one", object.ErrBusy, maxHolds)
	default:
		if err := c.store.ChargeRequest(mappingBytes); err != nil {
			r.Close()
			return err
		}
		h = &hold{reading: r}
		if c.holds == nil {
			c.holds = make(map[object.ID]*hold)
		}
		c.holds[r.ID] = h
	}
	h.count++
	c.reply(f, &reply)
	return nil
}

// releaseHold is Release's part for a Hold; false where there is none. mu is held.
func (c *connection) releaseHold(id object.ID) bool {
	h := c.holds[id]
	if h == nil {
		return false
	}
	if h.count--; h.count == 0 {
		delete(c.holds, id)
		if c.ranged == h.reading {
			c.ranged = nil
		}
		h.reading.Close()
		c.store.UnchargeRequest(mappingBytes)
	}
	return true
}

// dropBytes gives back what uploads and holds have mapped; the goroutines of the connection have ended.
func (c *connection) dropBytes() {
	for id, u := range c.uploads {
		u.unmap()
		delete(c.uploads, id)
	}
	for id, h := range c.holds {
		h.reading.Close()
		delete(c.holds, id)
	}
}

// readRange answers out of a Hold, or opens the object for this once.
func (c *connection) readRange(f *ipc.Frame, m wire.ReadRangeRequest) error {
	c.mu.Lock()
	h := c.holds[m.ID] // serve's goroutine, which is here, is the one that releases
	c.mu.Unlock()
	if h != nil {
		if c.ranged != nil && c.ranged != h.reading {
			c.ranged.Rest() // one object of a device at a time has host memory
		}
		c.ranged = h.reading
		return c.replyRange(f, h.reading, m)
	}
	r, err := c.openAny(m.ID, m.Name)
	if err != nil {
		return err
	}
	defer r.Close()
	return c.replyRange(f, r, m)
}

// openAny opens an object for the request at hand, also one that other nodes have, or one in the memory of a device.
func (c *connection) openAny(id object.ID, name string) (*store.Reading, error) {
	return broughtNamed(c, id, name, func(id object.ID, name string) (*store.Reading, error) {
		return c.store.OpenAny(c.ctx, id, name)
	})
}

// unlessEnding keeps an answer back that says of memory of a device that the daemon ends: the connection ends next, and
// the client asks the daemon that takes over.
func (c *connection) unlessEnding(err error) error {
	if errors.Is(err, store.ErrDevicesEnded) {
		<-c.ctx.Done()
	}
	return err
}

// replyRange sends what lies in memory from there, without a copy, but for little.
func (c *connection) replyRange(f *ipc.Frame, r *store.Reading, m wire.ReadRangeRequest) error {
	if !r.InMemory() {
		n := min(uint64(m.Bytes), r.Size)
		if err := c.awaitCharge(n); err != nil {
			return err
		}
		defer c.store.UnchargeRequest(n)
	}
	b, err := r.Range(m.Offset, uint64(m.Bytes))
	if err != nil {
		return c.unlessEnding(err)
	}
	return c.replyLater(func() {
		if len(b) < flushBytes/2 {
			c.appendRaw(f, 0, b)
			return
		}
		at := 0
		c.out, at = ipc.AppendHeader(c.out, f.Type|wire.ReplyBit, 0, f.Request)
		ipc.SetLength(c.out, at, len(b))
		if c.flush() == nil {
			c.sendErr = c.send(b, nil)
		}
	})
}
