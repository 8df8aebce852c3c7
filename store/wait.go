package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tendril/store/object"
)

// waitKey is what a Get waits for: an id, or a tenant's name. A name with a / in it may be an own one or another tenant's object, whose
// tenant may not be here yet: it stands without a tenant, and every object that can be called so wakes who waits.
type waitKey struct {
	id     object.ID
	tenant *tenant
	name   string
}

// waitKeyOf gives the key for one that c waits for.
func (c *Conn) waitKeyOf(id object.ID, name string) waitKey {
	switch {
	case !id.IsZero():
		return waitKey{id: id}
	case strings.Contains(name, "/"):
		return waitKey{name: name}
	}
	return waitKey{tenant: c.tenant, name: name}
}

// Wait is Get (by name where id is zero) that waits until the object is there and sealed, or ctx ends: ErrTimeout.
func (c *Conn) Wait(ctx context.Context, id object.ID, name string) (Handle, error) {
	for {
		if err := c.Await(ctx, id, name); err != nil {
			return Handle{}, err
		}
		h, err := c.GetEither(id, name)
		if err == nil || !notThereYet(err) {
			return h, err
		}
	}
}

// Await waits until a Get would no longer answer ErrNotFound or ErrNotSealed, or ctx ends: ErrTimeout. The object may be
// gone again by the time the caller gets it.
func (c *Conn) Await(ctx context.Context, id object.ID, name string) error {
	return c.await(ctx, id, name, true)
}

// await is Await; where fetch is false an object on disk stays there.
func (c *Conn) await(ctx context.Context, id object.ID, name string, fetch bool) error {
	for {
		ready, key, err := c.watch(id, name)
		if errors.Is(err, ErrAway) && !fetch {
			return nil
		}
		if errors.Is(err, ErrAway) {
			if err := c.bringBack(ctx, id, name); err != nil {
				return err
			}
			continue
		}
		if ready == nil {
			return err
		}
		select {
		case <-ready:
		case <-ctx.Done():
			c.s.stopWaiting(key, ready)
			return fmt.Errorf("%w: %w", object.ErrTimeout, err)
		}
	}
}

// notThereYet reports whether waiting may mend err.
func notThereYet(err error) bool {
	return errors.Is(err, ErrAway) || errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNotSealed)
}

// watch gives a channel that is closed when the object is worth another look and why it is not to be had yet; or nil
// where there is nothing to wait for.
func (c *Conn) watch(id object.ID, name string) (chan struct{}, waitKey, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.closed {
		return nil, waitKey{}, errConnClosed
	}
	key := c.waitKeyOf(id, name)
	e, err := c.readable(id, name)
	switch {
	case err == nil && e.state == object.Spilled:
		return nil, key, fmt.Errorf("%w: object %s", ErrAway, e.id)
	case err == nil && e.state == object.Sealed:
		return nil, key, nil
	case err == nil:
		err = e.notSealed()
	case !errors.Is(err, object.ErrNotFound):
		return nil, key, err
	}
	ready := make(chan struct{})
	c.s.waiters[key] = append(c.s.waiters[key], ready)
	return ready, key, err
}

func (s *Store) stopWaiting(key waitKey, ready chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.waiters[key]
	for i, w := range list {
		if w == ready {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(s.waiters, key)
	} else {
		s.waiters[key] = list
	}
}

// signal wakes who waits for e, by id and by name. mu is held.
func (s *Store) signal(e *entry) {
	if len(s.waiters) == 0 {
		return
	}
	for _, key := range [...]waitKey{{id: e.id}, {tenant: e.tenant, name: e.name}, {name: e.name}, {name: e.tenant.name + "/" + e.name}} {
		for _, ready := range s.waiters[key] {
			close(ready)
		}
		delete(s.waiters, key)
	}
}
