package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cespare/xxhash/v2"

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
	seg   *segmentState    // what view is of
	off   uint64
	file  *os.File // seg's, open; nil: not yet

	parts *parts // of an object of a device; nil: of none
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
		r.seg, r.off = e.seg, e.off
		r.c.refer(e)
	}
	return err
}

// Memory gives the memory that the object lies in, open for reading until Close, and where in it the object begins: for
// who sends it with sendfile(2). What a socket has of it is the memory itself, after Close, too, until its reader has
// taken it: so nothing else comes into this memory any more. nil: Range reads the object, for it shares its segment, is
// on disk, on a device or empty, or lies in huge pages, which the kernel does not send.
func (r *Reading) Memory() (file *os.File, off uint64) {
	s := r.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	g := r.seg
	if g == nil || g.mem == nil || g.ranges != nil || g.mem.Huge() || !r.open() {
		return nil, 0
	}
	g.sent = true
	return r.file, r.off
}

// open opens the segment, once; false where it cannot: then the mapping does. mu is held.
func (r *Reading) open() bool {
	if r.file == nil && r.seg != nil && r.seg.mem != nil {
		if fd, err := r.seg.mem.Dup(); err == nil {
			r.file = os.NewFile(uintptr(fd), "segment")
		}
	}
	return r.file != nil
}

// Read is Range into b, from off on. What is in memory is read by system calls: a mapping that is read once costs more,
// by the first touch of each page, than the copy.
func (r *Reading) Read(b []byte, off uint64) error {
	if n := uint64(len(b)); off > r.Size || n > r.Size-off || n == 0 || !r.opened() {
		from, err := r.Range(off, n)
		copy(b, from)
		return err
	}
	_, err := r.file.ReadAt(b, int64(r.off+off))
	return err
}

// opened is open for who has not the lock, which it takes once.
func (r *Reading) opened() bool {
	if r.file != nil {
		return true
	}
	r.c.s.mu.Lock()
	defer r.c.s.mu.Unlock()
	return r.open()
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
	if r.Rest(); r.parts != nil && r.parts.own != nil {
		r.parts.own()
	}
	if r.file != nil {
		r.file.Close() // a memfd's close reports nothing of use
	}
	if r.view == nil {
		return
	}
	r.view.Unmap()        // fails only for a mapping that is none
	_ = r.c.Release(r.ID) // the connection's end may have done it
}

// Rest lets go of host memory that Range copied an object of a device into; the next Range takes some again.
func (r *Reading) Rest() {
	if r.parts != nil {
		_ = r.parts.rest() // the connection's end may have done it
	}
}

// Copies reports whether Range copies bytes, of an object of a device: then Close may take long.
func (r *Reading) Copies() bool { return r.parts != nil }

// InMemory reports whether Range takes no memory but what the store charges for.
func (r *Reading) InMemory() bool { return r.view != nil || r.parts != nil || r.Size == 0 }

// Range gives n bytes from off on, in the mapping or in memory of its own: valid until Close, and of an object of a
// device until the next Range, or Rest.
func (r *Reading) Range(off, n uint64) ([]byte, error) {
	if off > r.Size || n > r.Size-off {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of an object of %d", object.ErrInvalid, off, n, r.Size)
	}
	switch {
	case n == 0:
		return nil, nil
	case r.parts != nil:
		return r.parts.read(r, off, n)
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

// Objects of devices are read by this process as copies of parts, in host memory that is charged to the tenant. The
// keeper, or for a twin this process, copies; what made way is copied from where it is, and stays there.

// partBytes is what a reading has of an object at most, where no more is asked for at once.
const partBytes = 16 << 20

// parts is where a Reading has an object of a device.
type parts struct {
	conn *Conn           // has the part
	ctx  context.Context // ends the wait for the disk
	part *part           // nil: none yet

	own  func() // ends conn, which is the reading's own, and holds the object; nil: it is neither
	held bool   // conn has a reference to the object
}

// part is an unsealed object in host memory, into which bytes of another are copied.
type part struct {
	id         object.ID
	segment    uint64
	view       *segment.Mapping
	at         uint64 // where it begins in view
	room       uint64 // its size
	first, end uint64 // which bytes of the other it has
}

// OpenAny is Open of an object in whatever memory. Range of what is in a device's, or left it for host memory or the
// disk, copies as much as it is asked for, and up to 16 MiB where it is asked for one range behind the other; Rest lets
// go of that. Its checksums are not known. It waits for nothing. Range waits for the driver, and for the disk until ctx
// ends. An object of a device is held until Close, as any other, but one that is on disk alone. Errors: Open's;
// ErrPermission: another tenant's of a device. Range's: Create's, Copy's; ErrTimeout (ctx).
func (c *Conn) OpenAny(ctx context.Context, id object.ID, name string) (*Reading, error) {
	r, err := c.Open(id, name)
	if !errors.Is(err, object.ErrUnsupported) {
		return r, err
	}
	own, err := c.s.Connect(Owner{Tenant: c.tenant.name, Name: "reading"})
	if err != nil {
		return nil, err
	}
	end := context.AfterFunc(ctx, own.Stop)
	if r, err = own.openParts(ctx, id, name); err != nil {
		end()
		own.Close()
		return nil, err
	}
	r.parts.own = func() { end(); own.Close() }
	return r, nil
}

// openParts begins to read an object of a device by c, which is for that alone.
func (c *Conn) openParts(ctx context.Context, id object.ID, name string) (*Reading, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.find(id, name) // no other tenant's
	switch {
	case err != nil:
		return nil, err
	case e.state == object.Open:
		return nil, e.notSealed()
	case e.gpu == nil: // the name is another object's now
		return nil, fmt.Errorf("%w: %q is another object now", object.ErrNotFound, name)
	}
	r := &Reading{ID: e.id, Size: e.size, Class: e.class, Meta: e.meta, c: c}
	r.parts = &parts{conn: c, ctx: ctx}
	r.parts.hold(e)
	return r, nil
}

// hold takes a reference, once, where the bytes are in memory: one on disk may go. mu is held.
func (p *parts) hold(e *entry) {
	if !p.held && e.state == object.Sealed && (e.gpu.fd >= 0 || e.isStranded()) {
		p.conn.refer(e)
		p.held = true
	}
}

// OpenPart is OpenAny for bytes [off, +n) alone, which of an object of a device are copied here and now, once, and
// read even if the object goes. One in host memory is Open's. It waits for the driver, and the disk. Errors: Open's,
// Create's, Copy's; ErrTimeout (ctx).
func (c *Conn) OpenPart(ctx context.Context, id object.ID, off, n uint64) (*Reading, error) {
	r, err := c.Open(id, "")
	if !errors.Is(err, object.ErrUnsupported) {
		return r, err
	}
	info, err := c.deviceObject(id)
	if err != nil {
		return nil, err
	}
	if n == 0 || off > info.Size || n > info.Size-off {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of object %s of %d", object.ErrInvalid, off, n, id, info.Size)
	}
	r = &Reading{ID: id, Size: info.Size, Class: info.Class, Meta: info.Meta, c: c, parts: &parts{conn: c, ctx: ctx}}
	if err := r.parts.take(id, off, n); err != nil {
		return nil, errors.Join(err, r.parts.rest())
	}
	return r, nil
}

// read gives bytes of an object, which are copied here where the part does not have them.
func (p *parts) read(r *Reading, off, n uint64) ([]byte, error) {
	x := p.part
	if x != nil && off >= x.first && off <= x.end && n <= x.end-off {
		return x.view.Bytes()[x.at+off-x.first:][:n], nil
	}
	if p.own == nil {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of an object, of which another part was copied", object.ErrInvalid, off, n)
	}
	ahead := n
	if x != nil && off > x.first && off <= x.end { // one behind the other
		ahead = min(max(n, min(2*(x.end-x.first), partBytes)), r.Size-off)
	}
	err := p.take(r.ID, off, ahead)
	if ahead > n && object.IsShort(err) {
		err = p.take(r.ID, off, n)
	}
	if err != nil {
		return nil, err
	}
	return p.part.view.Bytes()[p.part.at:][:n], nil
}

// take has the part be bytes [off, +n) of an object, wherever they are: one on disk is in host memory afterwards, and
// takes nobody's place on the device.
func (p *parts) take(id object.ID, off, n uint64) error {
	if p.ctx.Err() != nil {
		return fmt.Errorf("%w: read object %s: %w", object.ErrTimeout, id, context.Cause(p.ctx))
	}
	if p.part != nil && p.part.room < n {
		if err := p.rest(); err != nil {
			return err
		}
	}
	c := p.conn
	if p.part == nil {
		var err error
		if p.part, err = c.newPart(n); err != nil {
			return fmt.Errorf("%d bytes of host memory to copy object %s, of a device, into: %w", n, id, err)
		}
	}
	p.part.first, p.part.end = 0, 0
	for {
		err := c.CopyAway(p.part.id, 0, id, "", off, n)
		switch {
		case err == nil:
			p.part.first, p.part.end = off, off+n
			if p.own != nil {
				p.holdNow(id)
			}
			return nil
		case !errors.Is(err, ErrAway):
			return err
		}
		if err := c.bringBack(p.ctx, id, "", false); err != nil {
			return err
		}
	}
}

// holdNow is hold of an object that may be deleted.
func (p *parts) holdNow(id object.ID) {
	s := p.conn.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.objects[id]; e != nil {
		p.hold(e)
	}
}

// rest lets go of the part.
func (p *parts) rest() (err error) {
	if x := p.part; x != nil {
		p.part = nil
		err = x.drop(p.conn)
	}
	return err
}

// newPart makes a part with room for n bytes.
func (c *Conn) newPart(n uint64) (*part, error) {
	made, err := c.Create(Spec{SizeBytes: n, Own: true})
	if err != nil {
		return nil, err
	}
	x := &part{id: made.ID, segment: made.Ref.Segment, at: made.Ref.Offset, room: n}
	file := os.NewFile(uintptr(made.FD), "part")
	defer file.Close()
	if x.view, err = segment.Map(file, made.Ref.SegmentBytes, false); err != nil {
		return nil, errors.Join(err, x.drop(c))
	}
	return x, nil
}

// drop ends it; nobody else has it mapped.
func (x *part) drop(c *Conn) error {
	if x.view != nil {
		_ = x.view.Unmap() // fails only for a mapping that is none
	}
	err := c.Abort(x.id)
	_ = c.Forget(x.segment) // the abort may have ended it already
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
