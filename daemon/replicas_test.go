package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// replicate asks at node i until it is done, and gives what it came to.
func (x *clusterOf) replicate(i int, name string, o client.ReplicateOptions) (s ReplicateStatus) {
	x.t.Helper()
	await.Until(x.t, fmt.Sprintf("%q is as wanted: %+v", name, o), func() bool {
		raw, err := x.conns[i].Replicate(context.Background(), object.ID{}, name, o)
		if errors.Is(err, object.ErrBusy) { // a node is slow to answer
			return false
		}
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		if err != nil {
			x.t.Fatal(err)
		}
		o.To, o.From = s.To, s.From
		return s.Done
	})
	return s
}

// whole checks that a node's own store has the object, not as a copy that may go, with these bytes.
func (x *clusterOf) whole(i int, id object.ID, want []byte) {
	x.t.Helper()
	info, err := x.conns[i].Stat(context.Background(), id)
	if err != nil || info.Cached || len(info.Nodes) != 0 {
		x.t.Fatalf("node %d: %+v, %v", i, info, err)
	}
	obj, err := x.conns[i].Get(context.Background(), id, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	defer obj.Release()
	if !bytes.Equal(obj.Bytes(), want) {
		x.t.Errorf("node %d has other bytes", i)
	}
}

// has reports whether a node's own store has an object.
func (x *clusterOf) has(i int, id object.ID) bool {
	c := x.all[i]
	conn, err := c.store.Connect(store.Owner{Tenant: fmt.Sprint("uid:", os.Getuid())})
	if err != nil {
		x.t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Stat(id, "")
	return err == nil
}

// listed gives the nodes that the metadata lists for an object, as node i knows it.
func (x *clusterOf) listed(i int, id object.ID) (list []string) {
	x.all[i].meta.raft.View(func(s *fsm.State) {
		o, _ := s.Object(fsm.UUID(id))
		for _, r := range runningReplicas(s, o) {
			n, _ := s.Node(r.Node)
			list = append(list, n.Name)
		}
	})
	slices.Sort(list)
	return list
}

// TestReplicasSurviveAllButOne: what is acknowledged with three replicas is whole on three nodes, and is there when two
// of them, the one that published it among them, are gone.
func TestReplicasSurviveAllButOne(t *testing.T) {
	x := newCluster(t, 3, nil)
	for _, size := range []int{0, 1, 3<<20 + 17} {
		name, want := fmt.Sprint("size", size), noise(uint64(size), size)
		id := x.put(0, name, want, client.CreateOptions{Meta: []byte(`{"k":1}`)})
		s := x.replicate(0, name, client.ReplicateOptions{Wanted: 3})
		if s.Have != 3 || s.Wanted != 3 || len(s.Nodes) != 3 || s.Why != "" {
			t.Fatalf("%+v", s)
		}
		x.share()
		for i := range x.all {
			x.whole(i, id, want)
		}
	}
	x.end(0)
	x.end(1)
	for _, size := range []int{0, 1, 3<<20 + 17} {
		if got, err := x.get(2, fmt.Sprint("size", size)); err != nil || !bytes.Equal(got, noise(uint64(size), size)) {
			t.Errorf("%d bytes with one node left: %v", size, err)
		}
	}
}

// TestMoreReplicasThanNodes: the number is accepted, shown as wanted and had, and reached when a node comes.
func TestMoreReplicasThanNodes(t *testing.T) {
	x := newCluster(t, 2, nil)
	want := noise(7, 1<<20)
	id := x.put(0, "many", want, client.CreateOptions{})
	x.share()
	s := x.replicate(1, "many", client.ReplicateOptions{Wanted: 3})
	if s.Wanted != 3 || s.Have != 2 || s.Possible != 2 || !strings.Contains(s.Why, "n0: it has a replica") {
		t.Errorf("%+v", s)
	}
	for _, wanted := range []uint16{fsm.MaxReplicas + 1, 65535} {
		if _, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{
			Wanted: wanted}); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%d replicas: %v", wanted, err)
		}
	}
	c := aNode(t, "late")
	c.Listen = freePort(t)
	d := x.ns.start(c)
	join(t, x.all[0].cfg, x.all[0], d)
	await.Until(t, "the node that came has the third", func() bool { return len(x.listed(0, id)) == 3 })
	x.all = append(x.all, d)
	if !x.has(2, id) {
		t.Error("it is listed there, and not there")
	}
}

// TestDeleteReachesEveryReplica: from a node that has one, and from one that has none.
func TestDeleteReachesEveryReplica(t *testing.T) {
	x := newCluster(t, 3, nil)
	for by := range 3 {
		want := noise(8, 70_000)
		id := x.put(0, "gone", want, client.CreateOptions{})
		x.replicate(0, "gone", client.ReplicateOptions{To: "n1"})
		x.share()
		if by == 2 && x.has(2, id) {
			t.Fatal("node 2 has it")
		}
		if err := x.conns[by].Delete(context.Background(), id); err != nil {
			t.Fatalf("node %d: %v", by, err)
		}
		for i := range x.all {
			await.Until(t, fmt.Sprintf("node %d has it no more", i), func() bool { return !x.has(i, id) })
		}
		await.Until(t, "the metadata has it no more", func() bool {
			counts := map[string]int{}
			x.all[0].meta.raft.View(func(s *fsm.State) { counts = s.Counts() })
			return counts["objects"]+counts["deleted"] == 0
		})
	}
}

// TestMove: the object is on the other node then, and not on this one, whatever held it here.
func TestMove(t *testing.T) {
	x := newCluster(t, 3, nil)
	want := noise(9, 2<<20)
	id := x.put(0, "moved", want, client.CreateOptions{})
	x.replicate(0, "moved", client.ReplicateOptions{To: "n2", Move: true, From: "n0"})
	await.Until(t, "it is gone where it was", func() bool { return !x.has(0, id) })
	if list := x.listed(0, id); !slices.Equal(list, []string{"n2"}) {
		t.Errorf("on nodes %v", list)
	}
	x.share()
	x.whole(2, id, want)
	if got, err := x.get(1, "moved"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("from where it went: %v", err)
	}
	if _, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{Move: true,
		To: "nowhere"}); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("to a node that is none: %v", err)
	}
}

// TestReplicateAsksASlowNodeAgain: a node that could not be reached in time, and answers otherwise, is asked once more.
func TestReplicateAsksASlowNodeAgain(t *testing.T) {
	x := newCluster(t, 1, nil)
	c := aNode(t, "n1")
	c.Listen = freePort(t)
	var slow atomic.Bool
	d := x.ns.startWith(c, func(d *Daemon) {
		d.dialNode = func(ctx context.Context, address string) (net.Conn, error) {
			if slow.CompareAndSwap(true, false) {
				return nil, os.ErrDeadlineExceeded
			}
			return dialTCP(ctx, address)
		}
	})
	join(t, x.all[0].cfg, x.all[0], d)
	x.all, x.conns = append(x.all, d), append(x.conns, dial(t, c))
	answered(t, x)
	x.put(1, "wanted", noise(13, 70_000), client.CreateOptions{})
	slow.Store(true)
	x.replicate(1, "wanted", client.ReplicateOptions{To: "n0"})
	if slow.Load() {
		t.Error("nobody was dialed")
	}
}

// TestMoveNowhere: where every other node has a replica, that is the reason, and not that the store is full.
func TestMoveNowhere(t *testing.T) {
	x := newCluster(t, 2, nil)
	id := x.put(0, "everywhere", noise(12, 70_000), client.CreateOptions{})
	x.replicate(0, "everywhere", client.ReplicateOptions{Wanted: 2})
	await.Until(t, "n1 answers", func() bool { return x.all[0].answers(x.all[1].meta.node) })
	_, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{Move: true, From: "n0"})
	if !errors.Is(err, object.ErrUnsupported) || errors.Is(err, object.ErrFull) ||
		!strings.Contains(err.Error(), "n1: it has a replica") || strings.Contains(err.Error(), "n0:") {
		t.Errorf("moving it away: %v", err)
	}
	if _, err := x.conns[0].Replicate(context.Background(), object.ID{}, "nothing",
		client.ReplicateOptions{Wanted: 2}); err == nil || !strings.Contains(err.Error(), "no published object") {
		t.Errorf("what is not published: %v", err)
	}
}

// TestMoveKeepsTheNumber: a move gives up one replica, and none where the others would be too few.
func TestMoveKeepsTheNumber(t *testing.T) {
	x := newCluster(t, 3, nil)
	id := x.put(0, "dear", noise(11, 1<<20), client.CreateOptions{})
	x.replicate(0, "dear", client.ReplicateOptions{Wanted: 3})
	c := aNode(t, "n3") // it comes last: a node that was asked for a replica, and was slow, would have it late
	c.Listen = freePort(t)
	last := x.ns.start(c)
	join(t, x.all[0].cfg, x.all[0], last)
	x.all, x.conns = append(x.all, last), append(x.conns, dial(t, last.cfg))
	before := x.listed(0, id)
	free := slices.IndexFunc(x.all, func(d *Daemon) bool { return !slices.Contains(before, d.cfg.NodeName) })
	if len(before) != 3 || before[0] != "n0" || free < 0 {
		t.Fatalf("on nodes %v", before)
	}
	for range 3 { // who asks again must not take another one away
		_, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{Move: true, To: before[1]})
		if !errors.Is(err, object.ErrInvalid) {
			t.Fatalf("to a node that has one: %v", err)
		}
	}
	if list := x.listed(0, id); !slices.Equal(list, before) {
		t.Fatalf("on nodes %v, before on %v", list, before)
	}
	x.replicate(0, "dear", client.ReplicateOptions{Move: true, To: fmt.Sprint("n", free)})
	want := append(before[1:], fmt.Sprint("n", free))
	slices.Sort(want)
	if list := x.listed(0, id); !slices.Equal(list, want) {
		t.Errorf("on nodes %v, want %v", list, want)
	}
}

// TestMoveBesideASilentNode: a move gives up no replica while the node of another one is silent, says which that is,
// and is done once it answers.
func TestMoveBesideASilentNode(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(4)
	id := x.put(0, "dear", noise(21, 70_000), client.CreateOptions{})
	x.replicate(0, "dear", client.ReplicateOptions{Wanted: 3})
	list := x.listed(0, id)
	named := func(is bool) int { // n0 leads
		return slices.IndexFunc(x.all, func(d *Daemon) bool {
			return d.cfg.NodeName != "n0" && slices.Contains(list, d.cfg.NodeName) == is
		})
	}
	silent, free := named(true), named(false)
	if len(list) != 3 || silent < 0 || free < 0 {
		t.Fatalf("on nodes %v", list)
	}
	w.cutOff(silent, 4)
	await.Until(t, "one is silent", func() bool { return !x.all[0].answers(x.all[silent].meta.node) })
	o := client.ReplicateOptions{Move: true, To: x.all[free].cfg.NodeName, From: "n0"}
	await.Until(t, "the move says what it waits for", func() bool {
		_, err := x.conns[0].Replicate(context.Background(), id, "", o)
		if err != nil && !errors.Is(err, object.ErrBusy) && !errors.Is(err, object.ErrTimeout) { // of an election
			t.Fatal(err)
		}
		return err != nil && strings.Contains(err.Error(), "do not answer: "+x.all[silent].cfg.NodeName)
	})
	w.heal()
	x.replicate(0, "dear", o)
	if now := x.listed(0, id); slices.Contains(now, "n0") || !slices.Contains(now, o.To) {
		t.Errorf("on nodes %v", now)
	}
}

// TestReplicasOutliveATakeover: the next daemon has a replica that the one before took, listed all the while, and gone
// when the object is published no longer.
func TestReplicasOutliveATakeover(t *testing.T) {
	x := newCluster(t, 2, nil)
	want := noise(10, 1<<20)
	id := x.put(0, "stays", want, client.CreateOptions{})
	x.replicate(0, "stays", client.ReplicateOptions{Wanted: 2})
	epoch := func() (n uint64) {
		x.all[0].meta.raft.View(func(s *fsm.State) {
			o, _ := s.Object(fsm.UUID(id))
			n = o.Epoch
		})
		return n
	}
	before := epoch()
	x.all[1] = x.ns.startWith(x.all[1].cfg, (*Daemon).TakeOver)
	conn, err := client.Dial(context.Background(), client.Options{Socket: x.all[1].cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	x.conns[1] = conn
	await.Until(t, "the cluster knows of the new daemon", func() bool { return clusterInfo(t, x.all[1]).Entered })
	x.whole(1, id, want)
	if list := x.listed(0, id); len(list) != 2 || epoch() != before {
		t.Errorf("on nodes %v, and the metadata's record changed from epoch %d to %d", list, before, epoch())
	}
	if err := x.conns[0].Unpublish(context.Background(), "stays"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the replica is gone", func() bool { return !x.has(1, id) })
}

// TestReplicaThatMayBeListed: a node that does not hear whether the cluster lists its replica keeps it, and looks at it
// again.
func TestReplicaThatMayBeListed(t *testing.T) {
	x := newCluster(t, 1, nil)
	taken := make(chan object.ID, 1)
	c := aNode(t, "n1")
	c.Listen = freePort(t)
	d := x.ns.startWith(c, func(d *Daemon) {
		d.at = func(step string) {
			if step == "kept a replica" {
				x.ns.gone.Store(true)
				if err := d.meta.now.Load().raft.Close(); err != nil { // nothing answers from here on
					t.Error(err)
				}
				d.replicas.mu.Lock()
				defer d.replicas.mu.Unlock()
				for id := range d.replicas.taking {
					taken <- id
				}
			}
		}
	})
	x.all, x.conns = append(x.all, d), append(x.conns, dial(t, c))
	join(t, x.all[0].cfg, x.all[0], d)
	id := x.put(0, "dear", noise(17, 70_000), client.CreateOptions{})
	if _, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{To: "n1"}); err != nil {
		t.Fatal(err)
	}
	if got := <-taken; got != id {
		t.Fatalf("it takes %s, not %s", got, id)
	}
	await.Until(t, "it has failed", func() bool {
		d.replicas.mu.Lock()
		defer d.replicas.mu.Unlock()
		return d.replicas.taking[id] != nil && d.replicas.taking[id].err != nil
	})
	if _, noted := d.replicas.list(true)[id]; !noted || !x.has(1, id) {
		t.Errorf("it is looked at again: %v; it is there: %v", noted, x.has(1, id))
	}
}

// TestGoneWhileItIsHeld: a node that finds what the cluster lists here, and sees it deleted in the same moment, holds
// nothing of it.
func TestGoneWhileItIsHeld(t *testing.T) {
	var id object.ID
	tenant := fmt.Sprint("uid:", os.Getuid())
	d := newNodes(t).startWith(aNode(t, "n0"), func(d *Daemon) {
		d.at = func(step string) {
			if step == "held what is published" { // once, by the call below
				if err := d.dropReplica(tenant, id); err != nil {
					t.Error(err)
				}
			}
		}
	})
	o, err := dial(t, d.cfg).Put(context.Background(), []byte("short-lived"), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id = o.ID()
	if err := d.holdOwn(tenant, id); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	if list := d.published.names(); len(list) > 0 {
		t.Errorf("something is held of %v", list)
	}
}

// TestDeletedWhileCutOff: what is deleted at a node that reaches no other one is published no longer once it does.
func TestDeletedWhileCutOff(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(3)
	at := (x.leader() + 1) % len(x.all)
	id := x.put(at, "gone", noise(18, 1000), client.CreateOptions{})
	x.share()
	w.cutOff(at, len(x.all))
	await.Until(t, "it has no connection that would still carry what it says", func() bool {
		return !slices.ContainsFunc(x.all, func(d *Daemon) bool {
			return d != x.all[at] && x.all[at].answers(d.meta.node)
		})
	})
	if err := x.all[at].dropReplica(fmt.Sprint("uid:", os.Getuid()), id); err != nil {
		t.Fatal(err)
	}
	// Pause: longer than one try to tell the cluster.
	time.Sleep(proposeTime + time.Second)
	w.heal()
	for i := range x.all {
		await.Until(t, fmt.Sprintf("node %d knows that it is gone", i), func() bool { return !x.all[i].isPublished(id) })
	}
}

// TestRepair: a node that does not answer has its replicas made anew elsewhere; when it comes back the surplus goes.
func TestRepair(t *testing.T) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	x := w.cluster(4)
	for i := range x.all { // while the number of voters grows, the end of one may leave them without a majority
		await.Until(t, "three nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	want := noise(10, 1<<20)
	id := x.put(0, "dear", want, client.CreateOptions{})
	x.replicate(0, "dear", client.ReplicateOptions{Wanted: 2})
	x.share()
	list := x.listed(0, id)
	if len(list) != 2 || list[0] != "n0" {
		t.Fatalf("on nodes %v", list)
	}
	lost := slices.IndexFunc(x.all, func(d *Daemon) bool { return d.cfg.NodeName == list[1] })
	for _, d := range x.all { // what a node has counts no more once it is silent
		d.repairTime.Store(int64(time.Millisecond))
	}
	x.end(lost)
	other := 0
	await.Until(t, "another node has a replica", func() bool {
		other = slices.IndexFunc(x.all, func(d *Daemon) bool {
			return d.cfg.NodeName != list[0] && d.cfg.NodeName != list[1] &&
				slices.Contains(x.listed(0, id), d.cfg.NodeName)
		})
		return other > 0
	})
	x.whole(other, id, want)
}

// TestDamagedReplica: a replica whose file is damaged is got anew by who wants the object, and no other replica is
// touched.
func TestDamagedReplica(t *testing.T) {
	want := noise(19, 12<<20)
	x, id := damagedReplica(t, want)
	if got, err := x.get(1, "dear"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("at the node with the damage: %v", err)
	}
	x.share()
	// Pause: a deletion, if there is one, reaches the other node.
	time.Sleep(300 * time.Millisecond)
	if !x.has(0, id) {
		t.Error("the other replica is gone")
	}
	await.Until(t, "there are two replicas again", func() bool { return len(x.listed(0, id)) == 2 && x.has(1, id) })
	x.whole(0, id, want)
	x.whole(1, id, want)
}

// TestScrubGivesUpADamagedReplica: a replica that nobody gets is found damaged by a scrub, and made anew.
func TestScrubGivesUpADamagedReplica(t *testing.T) {
	want := noise(20, 12<<20)
	x, id := damagedReplica(t, want)
	report, err := admin.Of(x.conns[1]).Scrub(t.Context(), nil)
	if err != nil || len(report.Damaged) != 1 || report.Damaged[0].ID != id {
		t.Fatalf("the scrub found %+v, %v", report, err)
	}
	await.Until(t, "the replica is another one", func() bool {
		report, err := admin.Of(x.conns[1]).Scrub(t.Context(), nil)
		return err == nil && len(report.Damaged) == 0 && len(x.listed(0, id)) == 2 && x.has(1, id)
	})
	x.whole(0, id, want)
	x.whole(1, id, want)
}

// damagedReplica makes a cluster of two nodes with an object "dear", whose replica at the second one is on disk and
// damaged.
func damagedReplica(t *testing.T, want []byte) (*clusterOf, object.ID) {
	t.Helper()
	x := newCluster(t, 2, func(_ int, c *Config) {
		c.CapacityBytes, c.QuotaBytes, c.HighBytes, c.SpillBytes = 32<<20, 32<<20, 32<<20, 256<<20
	})
	id := x.put(0, "dear", want, client.CreateOptions{})
	x.replicate(0, "dear", client.ReplicateOptions{Wanted: 2})
	x.share()
	var buf *client.Buffer
	await.Until(t, "there is room for an object that has the replica go to disk", func() (there bool) {
		var err error
		buf, err = x.conns[1].Create(context.Background(), 28<<20, client.CreateOptions{Own: true})
		// a process that is just being started has this one's memory for a moment
		if err != nil && !errors.Is(err, object.ErrFull) {
			t.Fatal(err)
		}
		return err == nil
	})
	files, err := filepath.Glob(filepath.Join(x.all[1].cfg.StateDir, objectsFolder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.IsDir() || info.Size() < 12<<20 {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt([]byte("damage"), 6<<20)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	if damaged != 1 {
		t.Fatalf("%d files were damaged, of %v", damaged, files)
	}
	if err := buf.Abort(context.Background()); err != nil {
		t.Fatal(err)
	}
	return x, id
}

// TestReplicaAtAFullNode: memory that is full of what can go to disk is no reason to have no replica.
func TestReplicaAtAFullNode(t *testing.T) {
	x := newCluster(t, 2, nil)
	for i := range 14 {
		x.put(1, fmt.Sprint("old ", i), noise(uint64(i), 4<<20), client.CreateOptions{})
	}
	want := noise(1, 4<<20)
	id := x.put(0, "new", want, client.CreateOptions{})
	full := x.all[0].meta.raft.Status().LastIndex
	await.Until(t, "what the other node said when it was full", func() bool {
		return x.all[0].alive(x.all[1].meta.node).LastIndex >= full
	})
	if s := x.replicate(0, "new", client.ReplicateOptions{Wanted: 2}); s.Have != 2 {
		t.Fatalf("%+v", s)
	}
	x.whole(1, id, want)
}

// TestReplicasWhoseNodesAreAway: what a node has of objects that no running node is listed for stays, and is looked at
// ever less often. That has the other replicas not looked at again, and one question to the leader serves many.
func TestReplicasWhoseNodesAreAway(t *testing.T) {
	var counts sync.Mutex
	steps := map[string]int{}
	count := func(step string) int { counts.Lock(); defer counts.Unlock(); return steps[step] }
	x := &clusterOf{t: t, ns: newNodes(t)}
	d := x.ns.startWith(aNode(t, "n0"), func(d *Daemon) {
		d.at = func(step string) { counts.Lock(); defer counts.Unlock(); steps[step]++ }
	})
	x.all, x.conns = append(x.all, d), append(x.conns, dial(t, d.cfg))
	tenant, far := fmt.Sprint("uid:", os.Getuid()), fsm.Node{ID: fsm.UUID{7}, Name: "far", Incarnation: fsm.UUID{1}}
	propose := func(cmd fsm.Command) uint64 {
		t.Helper()
		r, err := d.propose(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return r.Epoch
	}
	far.Epoch = propose(&fsm.PutNode{Node: far})
	const settled, away = 20, 30
	var lost []object.ID
	for i := range away {
		o := fsm.Object{ID: fsm.UUID{8, byte(i)}, Name: fmt.Sprint("away", i), Tenant: tenant, SizeBytes: 1,
			Class:    uint8(object.Named),
			Replicas: []fsm.Replica{{Node: far.ID, Incarnation: far.Incarnation}}}
		propose(&fsm.Publish{Object: o})
		lost = append(lost, object.ID(o.ID))
	}
	far.Incarnation = fsm.UUID{2} // it has started anew, with nothing
	propose(&fsm.PutNode{Node: far})
	for i := range settled {
		d.replicas.note(x.put(0, fmt.Sprint("here", i), noise(uint64(i), 100), client.CreateOptions{}), tenant, false)
	}
	for _, id := range lost {
		d.replicas.note(id, tenant, true)
	}
	await.Until(t, "those whose nodes are away are looked at again and again", func() bool {
		return count("looks at a replica")-count("finds a replica listed") >= 4*away
	})
	listed, asks := count("finds a replica listed"), count("asks how far the leader is")
	if listed > 2*settled || asks > away {
		t.Errorf("%d looks at %d replicas that are as they should be, %d questions to the leader of %d others", listed,
			settled, asks, away)
	}
	for _, id := range lost {
		if d.replicas.of(id).tenant == "" {
			t.Errorf("object %s is forgotten", id)
		}
	}
}

// TestPutOff: what the leader says otherwise of is looked at ever less often, what failed each second, and all at once
// when a node comes or goes.
func TestPutOff(t *testing.T) {
	unsure, failed, now := object.ID{1}, object.ID{2}, time.Unix(0, 0)
	p := putOff{}
	p.note(unsure, now, errUnsure)
	p.note(failed, now, object.ErrBusy)
	looks := map[object.ID]int{}
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(p.next(now)) {
		for _, id := range p.due(now) {
			looks[id]++
			p.note(id, now, map[object.ID]error{unsure: errUnsure, failed: object.ErrBusy}[id])
		}
	}
	if looks[unsure] < 20 || looks[unsure] > 25 || looks[failed] < 590 {
		t.Errorf("%d and %d looks in 10 minutes", looks[unsure], looks[failed])
	}
	p.hasten()
	if list := p.due(now); len(list) != 2 {
		t.Errorf("%v are due after a node came", list)
	}
	p.note(unsure, now, nil)
	p.note(failed, now, nil)
	if list := p.due(now.Add(time.Hour)); len(list) > 0 || p.next(now) != noPutOff {
		t.Errorf("%v are put off, and all is done", list)
	}
}

// TestReplicasSayWhatTheyAre: what a node has of published objects has no name there; each listing says what it is
// published under, to whom the object is.
func TestReplicasSayWhatTheyAre(t *testing.T) {
	x := newCluster(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.HTTP = "127.0.0.1:0"
		}
	})
	replica := x.put(0, "replica", []byte("replica"), client.CreateOptions{})
	x.replicate(0, "replica", client.ReplicateOptions{Wanted: 2})
	fetched := x.put(0, "fetched", []byte("fetched"), client.CreateOptions{})
	x.share()
	if _, err := x.get(1, "fetched"); err != nil {
		t.Fatal(err)
	}
	other, err := x.conns[1].Put(context.Background(), []byte("not published"), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	want := map[object.ID]string{replica: "replica false", fetched: "fetched true", other.ID(): " false"}
	told := func(o object.Info) string { return fmt.Sprint(o.Published, " ", o.Cached) }
	check := func(what string, list []object.Info) {
		t.Helper()
		got := map[object.ID]string{}
		for _, o := range list {
			got[o.ID] = told(o)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for _, q := range []client.Query{{}, {AllTenants: true}} {
		var list []object.Info
		for o, err := range x.conns[1].Objects(context.Background(), q) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, o)
		}
		check(fmt.Sprintf("%+v", q), list)
	}
	top, err := admin.Of(x.conns[1]).Top(context.Background(), 10)
	if err != nil {
		t.Fatal(err)
	}
	var largest, stats []object.Info
	for _, o := range top {
		largest = append(largest, o.Info)
		info, err := x.conns[1].Stat(context.Background(), o.ID)
		if err != nil {
			t.Fatal(err)
		}
		stats = append(stats, info)
	}
	check("top", largest)
	check("stat", stats)
	key := pageKeyOf(t, x.all[1], pageKey{all: true})
	check("HTTP", everyPage[object.Info](t, x.all[1], "/v1/objects?", key, 2))
	for id := range want {
		_, body, _ := asked(t, x.all[1], "/v1/objects/"+id.String(), key)
		var o object.Info
		if err := json.Unmarshal([]byte(body), &o); err != nil || told(o) != want[id] {
			t.Errorf("%s over HTTP: %s", id, body)
		}
	}
	if name, _, _ := x.all[1].Published("another", replica); name != "" {
		t.Errorf("another tenant hears %q", name)
	}
	if info, err := x.conns[0].Stat(context.Background(),
		replica); err != nil || info.Name != "" && info.Published != "" {
		t.Errorf("%+v, %v", info, err)
	}
}
