package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestAMissIsCurrent: a node that hears from its leader late knows less than its cluster. Who asks it for what is
// published meanwhile is not told that it is not there: the answer waits until the node knows.
func TestAMissIsCurrent(t *testing.T) {
	w := newNetwork(t)
	w.catchUpTime, w.voteTime = 5*time.Minute, time.Hour
	x := w.cluster(3)
	x.share()
	w.cut(0, 2) // n0, which leads and alone votes, is not heard
	ctx := t.Context()
	put := func(name string) object.ID {
		return x.put(0, name, []byte("bytes of "+name), client.CreateOptions{})
	}
	asked := map[string]func(c *client.Conn) error{}
	byName := func(what string, ask func(c *client.Conn, name string) error) {
		put(what)
		asked[what] = func(c *client.Conn) error { return ask(c, what) }
	}
	byID := func(what string, ask func(c *client.Conn, id object.ID) error) {
		id := put(what)
		asked[what] = func(c *client.Conn) error { return ask(c, id) }
	}
	byName("get", func(c *client.Conn, name string) error { return released(c.GetByName(ctx, name, 0)) })
	byID("get by ID", func(c *client.Conn, id object.ID) error { return released(c.Get(ctx, id, 0)) })
	byID("get and wait", func(c *client.Conn, id object.ID) error { return released(c.Get(ctx, id, 5*time.Minute)) })
	byName("stat", func(c *client.Conn, name string) error { _, err := c.StatByName(ctx, name); return err })
	byID("stat by ID", func(c *client.Conn, id object.ID) error { _, err := c.Stat(ctx, id); return err })
	byID("checksum", func(c *client.Conn, id object.ID) error { _, err := c.Checksum(ctx, id); return err })
	byName("rm", func(c *client.Conn, name string) error { return c.DeleteByName(ctx, name) })
	byID("rm by ID", func(c *client.Conn, id object.ID) error { return c.Delete(ctx, id) })
	byName("ls", func(c *client.Conn, name string) error { return listsOnly(c, name, "never published") })
	byName("place", func(c *client.Conn, name string) error {
		_, err := admin.Of(c).Place(ctx, object.ID{}, name, "")
		return err
	})
	byName("replicate", func(c *client.Conn, name string) error {
		_, err := c.Replicate(ctx, object.ID{}, name, client.ReplicateOptions{Wanted: 2})
		return err
	})
	byID("replicate by ID", func(c *client.Conn, id object.ID) error {
		_, err := c.Replicate(ctx, id, "", client.ReplicateOptions{Wanted: 2})
		return err
	})
	const inDaemon = 3 // of them wait in publishedNow
	type answer struct {
		what string
		err  error
	}
	answers := make(chan answer, len(asked))
	for what, ask := range asked {
		conn := dial(t, x.all[2].cfg)
		go func() { answers <- answer{what, ask(conn)} }()
	}
	await.Until(t, "all wait for the cluster's word", func() bool {
		select {
		case a := <-answers:
			t.Fatalf("%s is answered by what the node knew before: %v", a.what, a.err)
		default:
		}
		return await.Waiting("frontdoor.(*connection).awaitCluster") == len(asked)-inDaemon &&
			await.Waiting("daemon.(*Daemon).publishedNow") == inDaemon
	})
	w.heal()
	for range asked {
		if a := <-answers; a.err != nil {
			t.Errorf("%s: %v", a.what, a.err)
		}
	}
}

// TestNoQuorumNoWord: a node that no majority answers says so of what it does not find, and says it at once from the
// second time on. What it has it gives. As soon as it hears from a leader it knows better.
func TestNoQuorumNoWord(t *testing.T) {
	w := newNetwork(t)
	w.voteTime, w.catchUpTime = 200*time.Millisecond, 100*time.Millisecond
	x := w.cluster(3)
	for i := range x.all {
		await.Until(t, "all nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	for i := range x.all {
		x.put(i, "here "+x.all[i].cfg.NodeName, []byte("bytes"), client.CreateOptions{})
	}
	x.share()
	for _, behind := range []int{0, 1} { // the leader, and one that follows
		alone := (x.leader() + behind) % 3
		w.cutOff(alone, 3)
		d, conn := x.all[alone], x.conns[alone]
		other := (alone + 1) % 3
		name := fmt.Sprintf("published without %s, %d", d.cfg.NodeName, behind)
		o, err := x.conns[other].Put(t.Context(), []byte("bytes"), client.CreateOptions{Class: object.Named, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
		id, published := o.ID(), make(chan error, 1)
		go func() {
			for {
				_, err := x.conns[other].Publish(t.Context(), id, "", false)
				if !errors.Is(err, object.ErrTimeout) {
					published <- err
					return
				}
			}
		}()
		for what, err := range map[string]error{
			"get":       released(conn.GetByName(t.Context(), name, 0)),
			"get by ID": released(conn.Get(t.Context(), id, 0)),
			"rm":        conn.DeleteByName(t.Context(), name),
		} {
			if !errors.Is(err, object.ErrNotFound) || !strings.Contains(err.Error(), frontdoor.ErrUnanswered.Error()) {
				t.Errorf("%s at %s, which is cut off: %v", what, d.cfg.NodeName, err)
			}
		}
		listed := 0
		for _, err = range conn.EachPublished(t.Context(), "here ") {
			if err == nil {
				listed++
			}
		}
		if listed != 3 || !errors.Is(err, object.ErrTimeout) || !strings.Contains(err.Error(),
			frontdoor.ErrUnanswered.Error()) {
			t.Errorf("ls at %s, which is cut off: %d names, %v", d.cfg.NodeName, listed, err)
		}
		await.Until(t, "HTTP says that nobody is heard", func() bool {
			part, err := (*look)(d).Names(inspect.Viewer{Local: true, UID: uint32(os.Getuid())}, inspect.Page{Limit: 1})
			return err == nil && part.Unsure != ""
		})
		await.Until(t, "the node no longer leads, and answers at once", func() bool {
			select {
			case <-d.CatchUp().Done:
				return true
			default:
				return false
			}
		})
		if b, err := x.get(alone, "here "+d.cfg.NodeName); err != nil || string(b) != "bytes" {
			t.Errorf("what the node has: %q, %v", b, err)
		}
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		w.heal()
		await.Until(t, "HTTP says nothing of that", func() bool {
			part, err := (*look)(d).Names(inspect.Viewer{Local: true, UID: uint32(os.Getuid())}, inspect.Page{Limit: 1})
			return err == nil && part.Unsure == ""
		})
		await.Until(t, "the node has caught up", func() bool {
			b, err := x.get(alone, name)
			return err == nil && string(b) == "bytes"
		})
	}
}

// TestANameThatWasGivenAway: a node that has not heard yet that a name has another object goes for the one of before.
// As that is gone, it looks again.
func TestANameThatWasGivenAway(t *testing.T) {
	w := newNetwork(t)
	w.catchUpTime, w.voteTime = 5*time.Minute, time.Hour // n0 leads and alone votes
	x := w.cluster(3)
	for _, wait := range []time.Duration{0, 5 * time.Minute} {
		name := "n" + wait.String()
		x.put(0, name, []byte("before"), client.CreateOptions{})
		other, err := x.conns[0].Put(t.Context(), []byte("after"), client.CreateOptions{Class: object.Named,
			Name: "other" + name})
		if err != nil {
			t.Fatal(err)
		}
		other.Release()
		x.share()
		w.cut(0, 2)
		if _, err := x.conns[0].Publish(t.Context(), other.ID(), name, true); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			o, err := x.conns[2].GetByName(t.Context(), name, wait)
			if err == nil && string(o.Bytes()) != "after" {
				err = errors.New(string(o.Bytes()))
			}
			got <- released(o, err)
		}()
		await.Until(t, "it goes for the one of before, or knows already that it cannot be had", func() bool {
			return await.Waiting("daemon.(*Daemon).Bring")+await.Waiting("frontdoor.(*connection).awaitCluster") > 0
		})
		w.heal()
		if err := <-got; err != nil {
			t.Errorf("waiting %v: %v", wait, err)
		}
	}
}

// TestManyMissesAskOnce: one question is under way at most, and whoever asks meanwhile shares the next one.
func TestManyMissesAskOnce(t *testing.T) {
	var asks atomic.Int32
	first := make(chan struct{})
	w := newNetwork(t)
	w.catchUpTime = 5 * time.Minute
	w.at = func(node int, step string) {
		if step == "asks how far its cluster is" && asks.Add(1) == 1 {
			<-first
		}
	}
	x := w.cluster(2)
	const clients = 20
	answers := make(chan error, clients)
	for range clients {
		conn := dial(t, x.all[1].cfg)
		go func() { answers <- released(conn.GetByName(context.Background(), "none", 0)) }()
	}
	await.Blocked(t, clients, "frontdoor.(*connection).awaitCluster")
	x.put(0, "meanwhile", []byte("bytes"), client.CreateOptions{})
	close(first)
	for range clients {
		if err := <-answers; !errors.Is(err, object.ErrNotFound) || strings.Contains(err.Error(), "did not answer") {
			t.Errorf("%v", err)
		}
	}
	if n := asks.Load(); n != 2 {
		t.Errorf("the cluster was asked %d times for %d clients that found nothing, want 2", n, clients)
	}
	if b, err := x.get(1, "meanwhile"); err != nil || string(b) != "bytes" {
		t.Errorf("%q, %v", b, err)
	}
	if n := asks.Load(); n > 3 {
		t.Errorf("the cluster was asked %d times", n)
	}
}

// TestNobodyToAsk: a node that is alone has nobody to learn from.
func TestNobodyToAsk(t *testing.T) {
	x := newCluster(t, 1, nil)
	if q := x.all[0].CatchUp(); q != nil {
		t.Error("a cluster of one is asked")
	}
	if _, err := x.get(0, "none"); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
}

// BenchmarkLookup finds a published name in process, and does not find one: by the node's own copy of the metadata.
func BenchmarkLookup(b *testing.B) {
	d, c := benchmarkDaemon(b)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	o, err := conn.Put(b.Context(), []byte("bytes"), client.CreateOptions{Class: object.Named, Name: "there"})
	if err == nil {
		_, err = conn.Publish(b.Context(), o.ID(), "", false)
	}
	if err != nil {
		b.Fatal(err)
	}
	tenant := d.localTenant(uint32(os.Getuid()), uint32(os.Getgid()))
	for _, name := range []string{"there", "none"} {
		b.Run("name="+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := d.Resolve(tenant, name); err != nil {
					_ = d.CatchUp()
				}
			}
		})
		b.Run("get="+name, func(b *testing.B) {
			for b.Loop() {
				if o, err := conn.GetByName(b.Context(), name, 0); err == nil {
					o.Release()
				}
			}
		})
	}
}

// TestTheNextQuestion: who shares it gets its answer, whatever became of the one before. Where that had none, and the
// node has not heard from a leader since, the next one is not asked.
func TestTheNextQuestion(t *testing.T) {
	for _, heard := range []bool{false, true} {
		answer := make(chan error)
		asked := 0
		x := catchUps{ask: func() error { asked++; return <-answer }, heard: func(time.Time) bool { return heard }}
		first := x.join()
		next := x.join()
		answer <- frontdoor.ErrUnanswered
		if <-first.Done; !errors.Is(first.Err, frontdoor.ErrUnanswered) {
			t.Error(first.Err)
		}
		if heard {
			answer <- nil
		}
		<-next.Done
		x.close()
		if answered := next.Err == nil; answered != heard || asked != 1 && !heard {
			t.Errorf("heard from a leader %v: %v, %d questions", heard, next.Err, asked)
		}
	}
}

// TestAMemberThatIsNotKnownYet: a node whose copy of the metadata is behind asks its cluster before it refuses another
// one's raft and transfers. The one that leads is needed for the answer.
func TestAMemberThatIsNotKnownYet(t *testing.T) {
	m := aloneIn(t)
	m.register(t)
	defer m.cancel()
	propose := func(c fsm.Command) {
		t.Helper()
		if _, err := m.raft.Propose(context.Background(), fsm.UUID(object.NewID()), c); err != nil {
			t.Fatal(err)
		}
	}
	node := func(id fsm.UUID, name string) *fsm.PutNode {
		return &fsm.PutNode{Node: fsm.Node{ID: id, Name: name, Incarnation: fsm.UUID(object.NewID())}}
	}
	propose(node(fsm.UUID(object.NewID()), "b"))
	asked := 0
	meanwhile := func() error { return nil }
	m.catchUps = catchUps{ask: func() error { asked++; return meanwhile() },
		heard: func(time.Time) bool { return true }}
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := &Daemon{log: log, ctx: t.Context()}
	d.meta.init()
	d.meta.now.Store(m)
	serve := func(p pki.Peer) error {
		near, far := net.Pipe()
		far.Close()
		defer near.Close()
		return d.serveTransfers(t.Context(), near, p)
	}
	for what, lets := range map[string]func(pki.Peer) error{
		"raft":      func(p pki.Peer) error { return m.admits(t.Context(), p) },
		"transfers": serve,
	} {
		id := fsm.UUID(object.NewID())
		peer := pki.Peer{Subject: pki.Subject{Node: id.String(), Name: what}, Serial: pki.Serial(id)}
		if err := lets(peer); !errors.Is(err, object.ErrPermission) || asked == 0 {
			t.Errorf("%s of a node that the cluster does not know: %v, %d questions", what, err, asked)
		}
		meanwhile = func() error {
			propose(node(id, what))
			propose(&fsm.RecordCertificate{Certificate: fsm.Certificate{Serial: id, Subject: what,
				Role: fsm.RoleNode, Tenant: fsm.NodeTenant(id), Expires: 1 << 62}})
			return nil
		}
		if err := lets(peer); err != nil {
			t.Errorf("%s of a node that joined meanwhile: %v", what, err)
		}
		meanwhile = func() error { return frontdoor.ErrUnanswered }
		peer.Node = object.NewID().String()
		if err := lets(peer); !errors.Is(err, object.ErrPermission) ||
			!strings.Contains(err.Error(), frontdoor.ErrUnanswered.Error()) {
			t.Errorf("%s of a node that this one does not know, without an answer: %v", what, err)
		}
		meanwhile, asked = func() error { return nil }, 0
	}
	leader := m.node
	m.node = fsm.UUID(object.NewID())
	leads := pki.Peer{Subject: pki.Subject{Node: leader.String()}, Serial: pki.Serial{9}}
	if err := m.admits(t.Context(), leads); err != nil || asked > 0 {
		t.Errorf("the node that leads here: %v, %d questions", err, asked)
	}
}
