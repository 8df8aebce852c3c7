package daemon

import (
	"testing"
	"time"

	"tendril/client"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestPublishBeforeTheNodeHasEntered: a node serves before its cluster knows that it was started anew. What its clients
// publish then waits for that, rather than being refused.
func TestPublishBeforeTheNodeHasEntered(t *testing.T) {
	x := newCluster(t, 2, nil)
	x.end(1)
	enter := make(chan struct{})
	d := x.ns.startWith(x.all[1].cfg, func(d *Daemon) {
		d.at = func(step string) {
			if step == "entering" {
				<-enter
			}
		}
	})
	conn, err := client.Dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	o, err := conn.Put([]byte("early"), client.CreateOptions{Name: "early", Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() { _, err := conn.Publish(o.ID(), "early", false); published <- err }()
	await.Until(t, "the object is about to be published", func() bool { return d.published.follower.Has(o.ID()) })
	close(enter)
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if got, err := x.get(0, "early"); err != nil || string(got) != "early" {
		t.Errorf("from the other node: %q, %v", got, err)
	}
}

// TestLeadsBeforeItsStoreIsOpen: a node that has started may lead its cluster before its store is open, and there are
// objects with too few replicas. It sees to them when it can.
func TestLeadsBeforeItsStoreIsOpen(t *testing.T) {
	x := newCluster(t, 1, nil)
	persist(t, x.conns[0], "kept")
	if _, err := x.conns[0].Replicate(t.Context(), object.ID{}, "kept", client.ReplicateOptions{Wanted: 2}); err != nil {
		t.Fatal(err)
	}
	x.end(0)
	d := x.ns.startWith(x.all[0].cfg, func(d *Daemon) {
		d.at = func(step string) {
			if step == "opening the store" {
				// Pause: the leader looks after replicas, were it to.
				time.Sleep(300 * time.Millisecond)
			}
		}
	})
	o, err := dial(t, d.cfg).GetByName(t.Context(), "kept", 0)
	if err != nil {
		t.Fatal(err)
	}
	o.Release()
}
