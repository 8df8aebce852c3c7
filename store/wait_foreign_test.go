package store

import (
	"context"
	"testing"
	"time"

	"tendril/store/object"
)

// TestWaitForAnotherTenantsObject: who waits for TENANT/NAME is woken by its grant, also where that tenant has nothing
// yet, and by an object of its own that is called so.
func TestWaitForAnotherTenantsObject(t *testing.T) {
	s := newStore(t, Options{})
	reader := connect(t, s, "uid:1")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	wait := func(name string) chan error {
		done := make(chan error, 1)
		go func() {
			h, err := reader.Wait(ctx, object.ID{}, name)
			if err == nil {
				closeHandle(h)
			}
			done <- err
		}()
		waitFor(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.pending > 0 })
		return done
	}
	done := wait("uid:2/x")
	owner := connect(t, s, "uid:2")
	id := sealedObject(t, owner, Spec{SizeBytes: 10, Name: "x", Class: object.Named})
	select {
	case err := <-done:
		t.Fatalf("before it was shared: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := owner.Grant(id, "", "uid:1", false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("once it was shared: %v", err)
	}
	done = wait("uid:2/own")
	sealedObject(t, reader, Spec{SizeBytes: 10, Name: "uid:2/own", Class: object.Named})
	if err := <-done; err != nil {
		t.Errorf("an own object of that name: %v", err)
	}
}
