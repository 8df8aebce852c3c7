package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tendril/client"
	"tendril/tools/e2e/await"
)

// TestWatchTellsPublishedNames: who watches hears of names that are published and unpublished at other nodes, too; of
// those with the prefix, and of no other tenant's. Where nobody watches nothing runs.
func TestWatchTellsPublishedNames(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a := ns.start(ca)
	join(t, ca, a, ns.start(cb))
	putPublished(t, cb, "w-before")
	enough := errors.New("enough")
	began, seen := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	go func() {
		seen <- client.Watch(ctx, client.Options{Socket: ca.Socket}, "w-", func() { close(began) },
			func(ev client.Event) error {
				got = append(got, ev.Kind+" "+ev.Name)
				if len(got) == 2 {
					return enough
				}
				return nil
			})
	}()
	<-began
	putPublished(t, cb, "other")
	putPublished(t, cb, "w-far")
	if err := dial(t, cb).Unpublish(t.Context(), "w-far"); err != nil {
		t.Fatal(err)
	}
	if err := <-seen; !errors.Is(err, enough) || fmt.Sprint(got) != "[published w-far unpublished w-far]" {
		t.Errorf("%q, %v", got, err)
	}
	await.Until(t, "nothing runs", func() bool {
		a.nameTelling.mu.Lock()
		defer a.nameTelling.mu.Unlock()
		return a.nameTelling.users == 0
	})
}
