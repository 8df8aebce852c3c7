package store

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// What a session publishes was mapped writable by its client and by a worker, which runs the tenant's code. That code
// may have kept another mapping, here or in a child, or a descriptor to make one. So the daemon believes nobody: the
// kernel grants F_SEAL_WRITE only when no mapping is left that could write, and no new one can be made after it. Where
// the kernel refuses, the object is made of a copy, in memory that only the daemon has ever mapped.

// sealPublished gives a segment that nobody can write any more: g, or a copy of it. mu is held, and let go meanwhile:
// the kernel waits up to some 0.2 s for pages that a device has pinned. On an error the copy comes back too if there is
// one, for giveUpCopy.
func (s *Store) sealPublished(c *Conn, g *segmentState) (*segmentState, error) {
	if c.written[g.id] != g { // mu was let go before
		return nil, errConnClosed
	}
	again, err := g.mem.Again()
	if err != nil {
		return nil, err
	}
	defer again.Close()
	g.publishing = true
	defer func() { g.publishing = false }()
	s.unlock()
	err = again.SealStrict()
	s.mu.Lock()
	switch {
	case c.written[g.id] != g:
		return nil, errConnClosed
	case errors.Is(err, object.ErrBusy):
		return s.copyPublished(c, g, again)
	}
	return g, err
}

// copyPublished copies memory that somebody can still write into memory that nobody can. It is the tenant's, who is
// charged for both until nobody has the first any more. mu is held, and let go meanwhile.
func (s *Store) copyPublished(c *Conn, g *segmentState, from *segment.Memory) (*segmentState, error) {
	fresh, err := s.newSegment(c, g.bytes)
	if err != nil {
		return nil, fmt.Errorf("publish: the memory is mapped writable, and there is no room for a copy of %d bytes: %w", g.bytes, err)
	}
	to, err := fresh.mem.Again()
	if err != nil {
		return fresh, err
	}
	defer to.Close()
	s.unlock()
	if err = copyMemory(to, from); err == nil {
		err = sealStrict(to, c.isStopped)
	}
	s.mu.Lock()
	if c.written[g.id] != g || c.written[fresh.id] != fresh {
		return fresh, errConnClosed
	}
	return fresh, err
}

// giveUpCopy lets go of a copy that becomes no object. mu is held.
func (s *Store) giveUpCopy(fresh, g *segmentState) {
	if fresh != nil && fresh != g && fresh.writer != nil {
		s.retire(fresh)
	}
}

// copyMemory reads by system calls: whoever has the memory may punch holes into it, and a load from one can be SIGBUS.
func copyMemory(to, from *segment.Memory) error {
	mapping, err := to.Map(true)
	if err != nil {
		return err
	}
	defer mapping.Unmap()
	rest := mapping.Bytes()[:min(to.Bytes(), from.Bytes())]
	for at := int64(0); len(rest) > 0; {
		n, err := unix.Pread(from.FD(), rest[:min(len(rest), 64<<20)], at)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF // it cannot shrink
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: copy %d bytes of a segment: %w", object.ErrInternal, from.Bytes(), err)
		}
		at, rest = at+int64(n), rest[n:]
	}
	return nil
}
