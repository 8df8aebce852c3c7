package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// Rename gives the object that has one name another, at once for all; replace takes that from the object that has it.
func (c *Conn) Rename(from, to string, replace bool) error {
	if err := checkBinding(to); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.unlock()
	e, err := c.lookupName(from)
	if err != nil {
		return err
	}
	return c.s.rebind(e, to, replace)
}

// Reading is a sealed object's bytes as this process reads them, in memory or on disk.
type Reading struct {
	ID    object.ID
	Size  uint64
	Class object.Class
	Meta  []byte // immutable; shared with the store
	c     *Conn
	view  *segment.Mapping // nil: on disk, or empty
	off   uint64

	part *partCopy // what OpenPart copied, and Close ends; nil: view is the object's own memory
}

// Open begins to read an object that c may read, by name where id is zero, without bringing it back from disk. It holds
// a reference where the object is in memory. The caller must Close. Errors: ErrNotFound, ErrNotSealed, ErrPermission.
func (c *Conn) Open(id object.ID, name string) (*Reading, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := c.readable(id, name)
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		return nil, errConnClosed
	case e.state == object.Open:
		return nil, e.notSealed()
	}
	if err := e.inHostMemory("read"); err != nil {
		return nil, err
	}
	r := &Reading{ID: e.id, Size: e.size, Class: e.class, Meta: e.meta, c: c}
	return r, r.reach(e)
}

// reach maps and holds e where it is in memory. mu is held.
func (r *Reading) reach(e *entry) (err error) {
	if e.state != object.Sealed || e.seg == nil {
		return nil
	}
	if err := e.isDamaged(); err != nil {
		return err
	}
	if r.view, err = e.seg.mem.Map(false); err == nil {
		r.off = e.off
		r.c.refer(e)
	}
	return err
}

// follow looks again where the object is: its file went because it is in memory now, or it is deleted. It may have gone
// to disk again.
func (r *Reading) follow() error {
	s := r.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := r.c.readable(r.ID, "")
	switch {
	case err != nil:
		return err
	case r.c.closed:
		return errConnClosed
	}
	return r.reach(e)
}

// Close ends reading.
func (r *Reading) Close() {
	if r.view == nil {
		return
	}
	r.view.Unmap() // fails only for a mapping that is none
	if r.part == nil {
		_ = r.c.Release(r.ID) // the connection's end may have done it
	} else {
		_ = r.part.drop(r.c)
	}
}

// InMemory reports whether Range gives what is there, and takes no memory for it.
func (r *Reading) InMemory() bool { return r.view != nil || r.Size == 0 }

// Range gives n bytes from off on, in the mapping or in memory of its own; valid until Close.
func (r *Reading) Range(off, n uint64) ([]byte, error) {
	if off > r.Size || n > r.Size-off {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of an object of %d", object.ErrInvalid, off, n, r.Size)
	}
	switch {
	case n == 0:
		return nil, nil
	case r.part != nil && (off < r.part.first || off > r.part.end || n > r.part.end-off):
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of a part [%d, %d) of an object", object.ErrInvalid, off, n,
			r.part.first, r.part.end)
	case r.view != nil:
		return r.view.Bytes()[r.off+off:][:n], nil
	}
	b, err := r.c.s.spill.For(r.c.tenant.name).ReadRange(r.ID, off, n)
	for try := 0; err != nil && try < followAtMost; try++ {
		if why := r.follow(); why != nil {
			return nil, why
		}
		if r.view != nil {
			return r.view.Bytes()[r.off+off:][:n], nil
		}
		b, err = r.c.s.spill.For(r.c.tenant.name).ReadRange(r.ID, off, n)
	}
	return b, err
}

// followAtMost is how often an object may come back from disk and leave again while a part of it is read.
const followAtMost = 4

// Checksum gives the XXH64 (seed 0) of the whole object. ctx ends it early. It calls between after each MiB but
// the last: what is long lets others in.
func (r *Reading) Checksum(ctx context.Context, between func()) (uint64, error) {
	sum := xxhash.New()
	for at := uint64(0); at < r.Size; at += spill.ChunkBytes {
		if at > 0 {
			between()
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%w: checksum: %w", object.ErrTimeout, ctx.Err())
		}
		b, err := r.Range(at, min(spill.ChunkBytes, r.Size-at))
		if err != nil {
			return 0, err
		}
		sum.Write(b) // never fails
	}
	return sum.Sum64(), nil
}

// OpenPart is Open for bytes [off, +n) alone, of an object in whatever memory. What is in a device's, or left it for
// host memory, is copied once into host memory that is charged to c's tenant until Close; one on disk is in host memory
// afterwards, and takes nobody's place on the device. Its checksums are not known. It waits for the driver, and the
// disk. Errors: Open's, Create's, Copy's; ErrTimeout (ctx).
func (c *Conn) OpenPart(ctx context.Context, id object.ID, off, n uint64) (*Reading, error) {
	for {
		r, err := c.Open(id, "")
		if !errors.Is(err, object.ErrUnsupported) {
			return r, err
		}
		r, err = c.copyPart(id, off, n)
		if !errors.Is(err, ErrAway) {
			return r, err
		}
		if err := c.bringBack(ctx, id, "", false); err != nil {
			return nil, err
		}
	}
}

// copyPart copies bytes of an object of a device into an object of c's own, which Reading.Close ends.
func (c *Conn) copyPart(id object.ID, off, n uint64) (*Reading, error) {
	info, err := c.deviceObject(id)
	if err != nil {
		return nil, err
	}
	if n == 0 || off > info.Size || n > info.Size-off {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of object %s of %d", object.ErrInvalid, off, n, id, info.Size)
	}
	made, err := c.Create(Spec{SizeBytes: n, Own: true})
	if err != nil {
		return nil, fmt.Errorf("%d bytes of host memory to copy object %s, of device %s, into: %w", n, id, info.Device, err)
	}
	part := &partCopy{id: made.ID, segment: made.Ref.Segment, first: off, end: off + n}
	r := &Reading{ID: id, Size: info.Size, Class: info.Class, Meta: info.Meta, c: c, part: part}
	if err = c.CopyAway(made.ID, 0, id, "", off, n); err == nil {
		file := os.NewFile(uintptr(made.FD), "part")
		r.view, err = segment.Map(file, made.Ref.SegmentBytes, false)
		file.Close()
	} else {
		unix.Close(made.FD)
	}
	if err != nil {
		return nil, errors.Join(err, part.drop(c))
	}
	r.off = made.Ref.Offset - off // wraps around, and Range adds what is at least off
	return r, nil
}

// partCopy is the copy that OpenPart made.
type partCopy struct {
	id         object.ID
	segment    uint64
	first, end uint64 // which bytes of the object it has
}

// drop ends it; nobody has it mapped.
func (p *partCopy) drop(c *Conn) error {
	err := c.Abort(p.id)
	_ = c.Forget(p.segment) // the abort may have ended it already
	return err
}

// deviceObject describes a sealed object of a device, wherever its bytes are, as a handle without memory.
func (c *Conn) deviceObject(id object.ID) (h DeviceHandle, err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.find(id, "")
	switch {
	case err != nil:
		return h, err
	case e.gpu == nil:
		return h, e.inHostMemory("read")
	case e.state == object.Open:
		return h, e.notSealed()
	}
	return e.deviceHandle(-1), nil
}
