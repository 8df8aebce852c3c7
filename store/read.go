package store

import (
	"context"
	"fmt"

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
	off   uint64
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
	if r.view != nil {
		r.view.Unmap()        // fails only for a mapping that is none
		_ = r.c.Release(r.ID) // the connection's end may have done it
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
