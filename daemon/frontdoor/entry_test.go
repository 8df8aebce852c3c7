package frontdoor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// enteringCluster is a publishingCluster that the node has not entered yet.
type enteringCluster struct {
	*publishingCluster
	entered chan struct{}
}

func (c *enteringCluster) Entered() <-chan struct{} { return c.entered }

func openEntering(t *testing.T, patience time.Duration) (*door, *enteringCluster) {
	cluster := &enteringCluster{newPublishingCluster(), make(chan struct{})}
	return open(t, func(o *Options) { o.Cluster, o.EntryTime = cluster, patience }), cluster
}

// TestRequestsWaitForTheEntry: what the store does not have may be published, which a node does not know that has just
// been started. Who asks waits, and nobody else.
func TestRequestsWaitForTheEntry(t *testing.T) {
	d, cluster := openEntering(t, time.Hour)
	conn := connectTo(t, d.store)
	id, here := sealed(t, conn, object.Named, "own"), sealed(t, conn, object.Named, "here")
	p := d.dial(t).hello()
	p.send(wire.Get, 5, &wire.GetRequest{Name: "published"})
	await.Blocked(t, 1, "frontdoor.(*connection).awaitEntry")
	for _, other := range []*peer{p, d.dial(t).hello()} {
		if _, err := other.ask(wire.Stat, &wire.NameMessage{ID: here}); err != nil {
			t.Error(err)
		}
	}
	await.Blocked(t, 1, "frontdoor.(*connection).awaitEntry")
	cluster.publish("published", id)
	close(cluster.entered)
	p.mustGet(id)
}

// TestEveryRequestWaitsForTheEntry: whatever asks by a published name.
func TestEveryRequestWaitsForTheEntry(t *testing.T) {
	name := wire.NameMessage{Name: "published"}
	for kind, m := range map[wire.Type]interface{ Append([]byte) []byte }{
		wire.Get:           &wire.GetRequest{Name: "published"},
		wire.Hold:          &wire.GetRequest{Name: "published", WaitMS: 1 << 30},
		wire.Stat:          &name,
		wire.PublishedPage: &wire.PageRequest{},
		wire.Published:     &wire.ListRequest{},
		wire.Delete:        &name,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			d, cluster := openEntering(t, time.Hour)
			id := sealed(t, connectTo(t, d.store), object.Named, "own")
			p := d.dial(t).hello()
			p.send(kind, 5, m)
			await.Blocked(t, 1, "frontdoor.(*connection).awaitEntry")
			cluster.publish("published", id)
			close(cluster.entered)
			f, err := p.receive()
			f.CloseFDs()
			if err != nil || f.Type != kind|wire.ReplyBit {
				t.Errorf("%v %q, %v", f.Type, f.Payload, err)
			}
		})
	}
}

// TestTheEntryDoesNotCome: who waited is told what is missing, and after some time nobody waits any more.
func TestTheEntryDoesNotCome(t *testing.T) {
	d, cluster := openEntering(t, 10*time.Millisecond)
	cluster.publish("old", sealed(t, connectTo(t, d.store), object.Named, "own"))
	p := d.dial(t).hello()
	for range 2 {
		for kind, m := range map[wire.Type]interface{ Append([]byte) []byte }{
			wire.Get:  &wire.GetRequest{Name: "new"},
			wire.Stat: &wire.NameMessage{Name: "new"},
		} {
			if _, err := p.ask(kind, m); !errors.Is(err, object.ErrNotFound) ||
				!strings.Contains(err.Error(), "has not reached its cluster yet") {
				t.Errorf("%v: %v", kind, err)
			}
		}
		if _, err := p.ask(wire.PublishedPage, &wire.PageRequest{}); !errors.Is(err, object.ErrTimeout) {
			t.Errorf("list: %v", err)
		}
		f, err := p.ask(wire.Get, &wire.GetRequest{Name: "old"}) // as far as the node knows
		if err != nil {
			t.Error(err)
		}
		f.CloseFDs()
		waitFor(t, func() bool { return !d.isEntering() })
	}
}

// waitsEnd has a Get and another request wait in a function, ends the Get's connection, and then the front door.
func waitsEnd(t *testing.T, d *door, in string, kind wire.Type, m ipc.Payload) {
	t.Helper()
	p, stays := d.dial(t).hello(), d.dial(t).hello()
	p.send(wire.Get, 5, &wire.GetRequest{Name: "n"})
	stays.send(kind, 5, m)
	await.Blocked(t, 2, in)
	p.Close()
	waitFor(t, func() bool { return d.Connections() == 1 })
	d.Server.Close()
}

// TestAGetEndsThatWaitsForTheEntry: with its connection, and with the front door.
func TestAGetEndsThatWaitsForTheEntry(t *testing.T) {
	d, _ := openEntering(t, time.Hour)
	waitsEnd(t, d, "frontdoor.(*connection).awaitEntry", wire.Get, &wire.GetRequest{Name: "n"})
}
