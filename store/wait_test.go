package store

import (
	"context"
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
