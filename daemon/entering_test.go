package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
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
	conn, err := client.Dial(context.Background(), client.Options{Socket: d.cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	o, err := conn.Put(context.Background(), []byte("early"), client.CreateOptions{Name: "early", Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() { _, err := conn.Publish(context.Background(), o.ID(), "early", false); published <- err }()
	await.Until(t, "the object is about to be published", func() bool { return d.published.follower.Has(o.ID()) })
	close(enter)
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if got, err := x.get(0, "early"); err != nil || string(got) != "early" {
		t.Errorf("from the other node: %q, %v", got, err)
	}
}

// TestNamesBeforeTheNodeHasEntered: a node that was away serves before it knows what was published meanwhile. Who asks
// for that waits, and is answered rightly.
func TestNamesBeforeTheNodeHasEntered(t *testing.T) {
	x := newCluster(t, 2, nil)
	persist(t, x.conns[1], "before")
	x.end(1)
	if err := x.conns[0].Unpublish(context.Background(), "before"); err != nil {
		t.Fatal(err)
	}
	x.put(0, "meanwhile", []byte("bytes"), client.CreateOptions{})
	id := x.put(0, "by id", []byte("bytes"), client.CreateOptions{})
	enter := make(chan struct{})
	entered := sync.OnceFunc(func() { close(enter) })
	defer entered()
	d := x.ns.startWith(x.all[1].cfg, func(d *Daemon) {
		d.entryTime = 5 * time.Minute
		d.at = func(step string) {
			if step == "entering" {
				<-enter
			}
		}
	})
	ctx := t.Context()
	asked := map[string]func(c *client.Conn) error{
		"get":       func(c *client.Conn) error { return released(c.GetByName(ctx, "meanwhile", 0)) },
		"get by id": func(c *client.Conn) error { return released(c.Get(ctx, id, 0)) },
		"stat":      func(c *client.Conn) error { _, err := c.StatByName(ctx, "meanwhile"); return err },
		"checksum":  func(c *client.Conn) error { _, err := c.Checksum(ctx, id); return err },
		"place":     func(c *client.Conn) error { _, err := admin.Of(c).Place(ctx, object.ID{}, "meanwhile", ""); return err },
		"ls":        func(c *client.Conn) error { return listsOnly(c, "meanwhile", "before") },
	}
	answers := make(chan error, len(asked))
	for what, ask := range asked {
		conn := dial(t, d.cfg)
		go func() {
			if err := ask(conn); err != nil {
				answers <- fmt.Errorf("%s: %w", what, err)
				return
			}
			answers <- nil
		}()
	}
	await.Blocked(t, len(asked), "frontdoor.(*connection).awaitEntry")
	entered()
	for range asked {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// listsOnly says what is wrong with the list of published names.
func listsOnly(c *client.Conn, name, gone string) error {
	list, err := c.Published(context.Background(), "")
	if text := string(list); err == nil && (!strings.Contains(text, name) || strings.Contains(text, gone)) {
		err = errors.New(text)
	}
	return err
}

func released(o *client.Object, err error) error {
	if err == nil {
		o.Release()
	}
	return err
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

// TestAStartLosesNoReplica: until a node that was started anew has told the cluster what it still has, that is listed
// on other nodes only. Nothing here takes this for the cluster's wish.
func TestAStartLosesNoReplica(t *testing.T) {
	x := newCluster(t, 2, nil)
	persist(t, x.conns[1], "kept")
	if s := x.replicate(1, "kept", client.ReplicateOptions{Wanted: 2}); s.Have != 2 {
		t.Fatalf("%+v", s)
	}
	x.end(1)
	d := x.ns.startWith(x.all[1].cfg, func(d *Daemon) {
		d.at = func(step string) {
			if step != "claims what it still has" {
				return
			}
			for id, replica := range d.replicas.list(true) {
				_ = d.followReplica(id, replica, &leaderWord{})
			}
		}
	})
	conn, err := client.Dial(context.Background(), client.Options{Socket: d.cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await.Until(t, "it is listed here again", func() bool {
		names, err := publishedAt(conn)
		return err == nil && slices.Equal(names, []string{"kept"})
	})
	if info, err := conn.StatByName(context.Background(), "kept"); err != nil || info.Cached || len(info.Nodes) != 0 {
		t.Errorf("what is listed here: %+v, %v", info, err)
	}
	if o, err := conn.GetByName(t.Context(), "kept", 0); err != nil || string(o.Bytes()) != "content" {
		t.Errorf("what is listed here: %v", err)
	}
}
