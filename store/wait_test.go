package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/store/object"
)

func TestWait(t *testing.T) {
	s := newStore(t, Options{})
	a, b := connect(t, s, "x"), connect(t, s, "x")
	h, err := a.Create(Spec{SizeBytes: 10, Name: "later"})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	type answer struct {
		h   Handle
		err error
	}
	answers := make(chan answer, 2)
	for _, id := range []object.ID{h.ID, {}} {
		go func() {
			h, err := b.Wait(context.Background(), id, "later")
			answers <- answer{h, err}
		}()
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pending == 2
	})
	if err := a.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := <-answers
		if got.err != nil || got.h.ID != h.ID {
			t.Errorf("%+v, %v", got.h, got.err)
		}
		closeHandle(got.h)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = b.Wait(ctx, object.ID{}, "never")
	wantErr(t, err, object.ErrTimeout)
	wantErr(t, err, object.ErrNotFound)
	if s.pending != 0 || len(s.waits) != 0 {
		t.Errorf("%d waits left, %d keys", s.pending, len(s.waits))
	}
	_, err = connect(t, s, "y").Wait(ctx, h.ID, "")
	wantErr(t, err, object.ErrPermission)
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

// Await waits until a Get would no longer answer ErrNotFound, ErrNotSealed or ErrAway, or ctx ends: ErrTimeout. The
// object may be gone again by the time the caller gets it.
func (c *Conn) Await(ctx context.Context, id object.ID, name string) error {
	for {
		if err := c.AwaitAll(ctx, []Wanted{{id, name}}); err != nil || !c.isAway(id, name) {
			return err
		}
		if err := c.BringBack(ctx, id, name); err != nil {
			return err
		}
	}
}

// AwaitAll waits until all are sealed or, with one ctx, its time is over. What is on disk stays there: all of it may be
// more than memory holds. It keeps list.
func (c *Conn) AwaitAll(ctx context.Context, list []Wanted) error {
	ended := make(chan error, 1)
	p, err := c.Later(list, time.Time{}, func(err error, _ bool) { ended <- err })
	if p == nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if p.Cancel() {
		return fmt.Errorf("%w: %w", object.ErrTimeout, p.why)
	}
	return <-ended
}

// notThereYet reports whether waiting may mend err.
func notThereYet(err error) bool {
	return errors.Is(err, ErrAway) || errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNotSealed)
}

// isAway reports whether an object is on disk alone.
func (c *Conn) isAway(id object.ID, name string) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	e, err := c.readable(id, name)
	return err == nil && e.state == object.Spilled
}
