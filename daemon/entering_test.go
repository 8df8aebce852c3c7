package daemon

import (
	"testing"

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
