package store

import (
	"context"
	"errors"
	"fmt"

	"tendril/store/object"
)

// waitKey is what a Get waits for: an id, or a tenant's name.
type waitKey struct {
	id     object.ID
	tenant *tenant
	name   string
}

// Wait is Get (by name where id is zero) that waits until the object is there and sealed, or ctx ends: ErrTimeout.
func (c *Conn) Wait(ctx context.Context, id object.ID, name string) (Handle, error) {
	key := waitKey{id: id}
	if id.IsZero() {
		key = waitKey{tenant: c.tenant, name: name}
	}
	for {
		h, ready, err := c.getOrWait(key)
		if ready == nil {
			return h, err
		}
		select {
		case <-ready:
		case <-ctx.Done():
			c.s.stopWaiting(key, ready)
			return Handle{}, fmt.Errorf("%w: %w", object.ErrTimeout, err)
		}
	}
}

// getOrWait gives the object, or a channel that is closed when it is worth another look and why there is none yet.
func (c *Conn) getOrWait(key waitKey) (Handle, chan struct{}, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.find(key.id, key.name)
	if err == nil {
		h, takeErr := c.take(e)
		if err = takeErr; err == nil {
			return h, nil, nil
		}
	}
	if c.closed || !errors.Is(err, object.ErrNotFound) && !errors.Is(err, object.ErrNotSealed) {
		return Handle{}, nil, err
	}
	ready := make(chan struct{})
	c.s.waiters[key] = append(c.s.waiters[key], ready)
	return Handle{}, ready, err
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
	for _, key := range [...]waitKey{{id: e.id}, {tenant: e.tenant, name: e.name}} {
		for _, ready := range s.waiters[key] {
			close(ready)
		}
		delete(s.waiters, key)
	}
}
