package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"tendril/store/events"
	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// ErrAway is a Get's answer where the object is on disk: BringBack brings it back. Peers never see it.
var ErrAway = fmt.Errorf("%w: the object is not in memory", object.ErrBusy)

// BringBack brings an object that a Get answered ErrAway for into memory, by name where id is zero, or waits for
// somebody who does. It waits for nothing else: nil is for the caller to Get again, and the object may be gone by then.
// One of a GPU is in that GPU's memory then; where that fails it is in host memory, for GetAway.
// Errors: ErrTimeout (ctx), ErrFull, ErrQuota, ErrStorage; ErrUnsupported, ErrNoDevice (of the GPU).
func (c *Conn) BringBack(ctx context.Context, id object.ID, name string) error {
	return c.bringBack(ctx, id, name, true)
}

// bringBack is BringBack; without whole one of a GPU that was on disk is left in host memory.
func (c *Conn) bringBack(ctx context.Context, id object.ID, name string, whole bool) error {
	s := c.s
	s.mu.Lock()
	e, err := c.readable(id, name)
	if err != nil || e.state != object.Spilled && !e.offDevice() {
		s.unlock()
		return nil // the caller looks again
	}
	if other := e.moving; other != nil {
		s.unlock()
		select {
		case <-other:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: object %s is on its way back into memory", object.ErrTimeout, e.id)
		}
	}
	defer s.unlock()
	if s.closed || c.closed {
		return errConnClosed
	}
	if e.state == object.Spilled {
		err = s.restore(e, s.spill.For(c.tenant.name), func() bool { return ctx.Err() != nil || s.isClosed() })
	}
	if err == nil && whole && e.offDevice() {
		err = s.enterDevice(c, e)
	}
	return err
}

// restore brings e back into a segment of the store's own. share is of the tenant that asks. mu is held, and let go
// meanwhile.
func (s *Store) restore(e *entry, share spill.Share, stop func() bool) error {
	s.transfers.Add(1)
	defer s.transfers.Done()
	e.moving, e.done = make(chan struct{}), new(atomic.Uint64)
	_, err := s.restorerOf(e.tenant).place(e, len(e.grants) > 0 || e.gpu != nil) // what is shared stands alone
	if err == nil && e.state == object.Spilled && e.size > 0 {
		into := spill.Source{Bytes: e.seg.mapping.Bytes()[e.off:][:e.size], Aligned: e.off%segment.PageBytes == 0}
		done, sums := e.done, e.sums
		s.unlock()
		began := time.Now()
		err = share.Restore(e.id, into, sums, func() bool { done.Add(spill.ChunkBytes); return stop() })
		s.reads.Add(time.Since(began))
		s.mu.Lock()
	}
	if err == nil {
		err = s.sealMemory(e, false)
	}
	close(e.moving)
	e.moving, e.done = nil, nil
	switch {
	case e.state != object.Spilled: // deleted meanwhile
		s.freeMemory(e)
		s.detach(e)
		return nil
	case err != nil:
		s.detach(e)
		if !stop() {
			e.fault = err
		}
		return err
	}
	e.state, e.fault, e.damage = object.Sealed, nil, nil
	s.notify(events.Restored, e)
	s.counts.Restored++
	s.counts.RestoredBytes += e.size
	s.spilled--
	s.spilledBytes -= e.size
	s.reconsider(e)
	s.thinDisk(e)
	return nil
}

// thinDisk gives up the copy on disk of an object that is in memory again, once the disk is half full: until then it
// saves writing it a second time.
func (s *Store) thinDisk(e *entry) {
	if e.class != object.Persisted && s.spill.TakenBytes() > s.spill.LimitBytes()/2 {
		s.dropFile(e)
	}
}

// restorerOf gives the connection that brings a tenant's objects back. mu is held.
func (s *Store) restorerOf(t *tenant) *Conn {
	if t.restorer == nil {
		t.restorer = s.newConn(Owner{Tenant: t.name, Name: "tendril daemon"}, t)
		t.restorer.internal = true
	}
	return t.restorer
}

// retireAll gives up the segments of a connection of the store's own; it may be nil. mu is held.
func (c *Conn) retireAll() {
	if c == nil {
		return
	}
	for _, g := range c.written {
		c.s.retire(g)
	}
}
