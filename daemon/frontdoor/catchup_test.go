package frontdoor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// laggingCluster is a publishingCluster that learns of what is published when it is told that the cluster has answered.
type laggingCluster struct {
	*publishingCluster
	asked atomic.Int32
	q     *CatchUp
}

func (c *laggingCluster) CatchUp() *CatchUp {
	c.asked.Add(1)
	return c.q
}

func openLagging(t *testing.T) (*door, *laggingCluster) {
	cluster := &laggingCluster{publishingCluster: newPublishingCluster(), q: &CatchUp{Done: make(chan struct{})}}
	return open(t, func(o *Options) { o.Cluster = cluster }), cluster
}

// namers are the requests that look up a published name.
func namers(name string) map[wire.Type]interface{ Append([]byte) []byte } {
	m := wire.NameMessage{Name: name}
	return map[wire.Type]interface{ Append([]byte) []byte }{
		wire.Get:          &wire.GetRequest{Name: name},
		wire.Hold:         &wire.GetRequest{Name: name},
		wire.Stat:         &m,
		wire.Delete:       &m,
		wire.Checksum:     &m,
		wire.ReadRange:    &wire.ReadRangeRequest{Name: name, Bytes: 1},
		wire.AttachObject: &wire.AttachRequest{Worker: 7, Name: name},
	}
}

// TestAMissWaitsForTheClustersWord: what this node does not know of may be published. Who asks waits until the cluster
// has answered, and nobody else.
func TestAMissWaitsForTheClustersWord(t *testing.T) {
	all := namers("published")
	all[wire.PublishedPage], all[wire.Published] = &wire.PageRequest{}, &wire.ListRequest{}
	for kind, m := range all {
		t.Run(kind.String(), func(t *testing.T) {
			d, cluster := openLagging(t)
			conn := connectTo(t, d.store)
			id, here := sealed(t, conn, object.Named, "own"), sealed(t, conn, object.Named, "here")
			p := d.dial(t).hello()
			if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
				t.Fatal(err)
			}
			p.send(kind, 5, m)
			await.Blocked(t, 1, "frontdoor.(*connection).awaitCluster")
			other := d.dial(t).hello()
			for _, m := range []wire.NameMessage{{ID: here}, {Name: "here"}} {
				if _, err := other.ask(wire.Stat, &m); err != nil {
					t.Error(err)
				}
			}
			if n := cluster.asked.Load(); n != 1 {
				t.Errorf("the cluster was asked %d times", n)
			}
			cluster.publish("published", id)
			close(cluster.q.Done)
			f, err := p.receive()
			f.CloseFDs()
			if err != nil || f.Type != kind|wire.ReplyBit {
				t.Errorf("%v %q, %v", f.Type, f.Payload, err)
			}
		})
	}
}

// TestAMissIsOne: where the cluster knows of nothing either, that is the answer, and where it does not answer that is
// said.
func TestAMissIsOne(t *testing.T) {
	for what, answer := range map[string]func(*CatchUp){
		"it answers": func(q *CatchUp) { close(q.Done) },
		"it does not answer": func(q *CatchUp) {
			q.Err = ErrUnanswered
			close(q.Done)
		},
	} {
		t.Run(what, func(t *testing.T) {
			d, cluster := openLagging(t)
			answer(cluster.q)
			p := d.dial(t).hello()
			if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
				t.Fatal(err)
			}
			asks := namers("none")
			id := object.NewID()
			for kind, m := range asks {
				_, err := p.ask(kind, m)
				said := err != nil && strings.Contains(err.Error(), ErrUnanswered.Error())
				if !errors.Is(err, object.ErrNotFound) || said != (what != "it answers") {
					t.Errorf("%v: %v", kind, err)
				}
			}
			for kind, m := range map[wire.Type]interface{ Append([]byte) []byte }{
				wire.Get:       &wire.GetRequest{ID: id},
				wire.Stat:      &wire.NameMessage{ID: id},
				wire.Delete:    &wire.NameMessage{ID: id},
				wire.Checksum:  &wire.NameMessage{ID: id},
				wire.ReadRange: &wire.ReadRangeRequest{ID: id, Bytes: 1},
				wire.GetDevice: &wire.NameMessage{ID: id},
				wire.IPCHandle: &wire.NameMessage{ID: id},
			} {
				_, err := p.ask(kind, m)
				said := err != nil && strings.Contains(err.Error(), ErrUnanswered.Error())
				if !errors.Is(err, object.ErrNotFound) || said != (what != "it answers") {
					t.Errorf("%v by ID: %v", kind, err)
				}
			}
		})
	}
}

// TestWaitingForANameWaitsForNoAnswer: a Get that waits for a name has the cluster asked, and gets what is put here
// meanwhile.
func TestWaitingForANameWaitsForNoAnswer(t *testing.T) {
	d, cluster := openLagging(t)
	p := awaited(t, d, "n")
	p.mustGet(sealed(t, connectTo(t, d.store), object.Named, "n"))
	if n := cluster.asked.Load(); n != 1 {
		t.Errorf("the cluster was asked %d times", n)
	}
}

// TestAMissIsCharged: it counts among what its connection waits for. A client that asks for more ahead is not refused:
// nothing more of it is read until there are answers.
func TestAMissIsCharged(t *testing.T) {
	asks := map[wire.Type]interface{ Append([]byte) []byte }{
		wire.Get:       &wire.GetRequest{Name: "none"},
		wire.Hold:      &wire.GetRequest{Name: "none"},
		wire.Stat:      &wire.NameMessage{Name: "none"},
		wire.GetDevice: &wire.NameMessage{Name: "none"},
	}
	for kind, m := range asks {
		t.Run(kind.String(), func(t *testing.T) {
			d, cluster := openLagging(t)
			p := d.dial(t).hello()
			const all = 2*maxWaits + 5
			for i := range uint64(all) {
				p.send(kind, 10+i, m)
			}
			await.Blocked(t, maxWaits+1, "frontdoor.(*connection).awaitCluster")
			close(cluster.q.Done)
			for range all {
				f, err := p.receive()
				if err != nil || f.Type != wire.Error || !errors.Is(decodeError(t, f), object.ErrNotFound) {
					t.Fatalf("%v %q, %v", f.Type, f.Payload, err)
				}
			}
			waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
		})
	}
}

// TestAMissEndsWithItsConnection: and with the front door.
func TestAMissEndsWithItsConnection(t *testing.T) {
	d, _ := openLagging(t)
	waitsEnd(t, d, "frontdoor.(*connection).awaitCluster", wire.Stat, &wire.NameMessage{Name: "n"})
}

// listed is a laggingCluster that lists names.
type listed struct {
	*laggingCluster
	names []string
}

func (c *listed) EachPublished(_, _, after string, unsure error, f func(any, string) bool) error {
	for _, name := range c.names {
		if name > after && !f(map[string]string{"name": name, "unsure": fmt.Sprint(unsure)}, name) {
			break
		}
	}
	return nil
}

// TestAListSaysThatTheClusterIsSilent: what this node knows is listed, page by page, and then it is said that there may
// be more. A list that the cluster has answered ends without a word. It is asked once, for the first page.
func TestAListSaysThatTheClusterIsSilent(t *testing.T) {
	const long = object.MaxNameBytes
	for what, names := range map[string][]string{"none": nil, "some": {"a", "b", "c"},
		"odd": {"?", strings.Repeat("?", long)}} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/silent=%v", what, silent), func(t *testing.T) {
				cluster := &listed{&laggingCluster{publishingCluster: newPublishingCluster(),
					q: &CatchUp{Done: make(chan struct{})}}, names}
				if silent {
					cluster.q.Err = ErrUnanswered
				}
				close(cluster.q.Done)
				d := open(t, func(o *Options) { o.Cluster = cluster })
				p := d.dial(t).hello()
				var got []string
				for cursor, first := "", true; first || cursor != ""; first = false {
					f, err := p.ask(wire.PublishedPage, &wire.PageRequest{Limit: 1, Cursor: cursor})
					if err != nil {
						if !silent || !errors.Is(err, object.ErrTimeout) ||
							!strings.Contains(err.Error(), ErrUnanswered.Error()) {
							t.Error(err)
						}
						silent = false // it was said
						break
					}
					var m wire.PageReply
					var items []struct{ Name, Unsure string }
					if err := errors.Join(m.Decode(f.Payload), json.Unmarshal(m.Items, &items)); err != nil {
						t.Fatal(err)
					}
					for _, x := range items {
						got = append(got, x.Name)
						if (x.Unsure == ErrUnanswered.Error()) != silent {
							t.Errorf("%q: %s", x.Name, x.Unsure)
						}
					}
					cursor = strings.Clone(m.Next) // the payload is the frame's
				}
				if silent {
					t.Error("it is not said that the cluster is silent")
				}
				if n := cluster.asked.Load(); n != 1 {
					t.Errorf("the cluster was asked %d times for one list", n)
				}
				if !slices.Equal(got, names) {
					t.Errorf("listed %q, want %q", got, names)
				}
			})
		}
	}
}
