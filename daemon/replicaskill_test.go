package daemon

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// joinProcess starts a node in a process of its own, which dies at a step, and has it join.
func (x *clusterOf) joinProcess(dir, listen, name, kill string) (*nodeProcess, *client.Conn) {
	x.t.Helper()
	x.ns.gone.Store(true)
	p := startNodeProcess(x.t, dir, kill, false, "HANDOVER_LISTEN="+listen, "HANDOVER_NAME="+name)
	conn := p.soon(x.t, dir)
	if _, err := admin.Of(conn).JoinCluster(context.Background(), x.all[0].address(), nodeToken(x.t,
		x.all[0].cfg)); err != nil {
		x.t.Fatal(err)
	}
	await.Until(x.t, "the process is a member", func() bool { return infoOf(x.t, conn).Entered })
	return p, conn
}

// TestKilledWhileItTakesAReplica: the node is killed (SIGKILL) at each step. Another one takes the replica, and the
// killed one, when it is back, is listed no more until it is asked again.
func TestKilledWhileItTakesAReplica(t *testing.T) {
	for _, step := range []string{"pulled a replica", "kept a replica", "listed a replica"} {
		t.Run(step, func(t *testing.T) {
			x := newCluster(t, 2, nil)
			dir, listen := handoverDir(t), freePort(t)
			p, _ := x.joinProcess(dir, listen, "killed", step)
			want := noise(11, 2<<20)
			id := x.put(0, "dear", want, client.CreateOptions{})
			await.Until(t, "the node is asked to take it", func() bool {
				_, err := x.conns[0].Replicate(context.Background(), id, "", client.ReplicateOptions{To: "killed"})
				if err != nil && !errors.Is(err, object.ErrBusy) { // it may not answer in time, being killed or slow
					t.Fatal(err)
				}
				select {
				case <-p.ended:
					return true
				default: // what it takes may fail before the step, and is asked for again
					return false
				}
			})
			x.all[0].repairTime.Store(1)
			x.replicate(0, "dear", client.ReplicateOptions{To: "n1"})
			x.replicate(0, "dear", client.ReplicateOptions{Wanted: 2})
			x.share()
			x.whole(1, id, want)

			conn := startNodeProcess(t, dir, "", false, "HANDOVER_LISTEN="+listen, "HANDOVER_NAME=killed").soon(t, dir)
			await.Until(t, "the node is back", func() bool { return infoOf(t, conn).Entered })
			await.Until(t, "its old replica is listed no more", func() (gone bool) {
				x.all[0].meta.raft.View(func(s *fsm.State) {
					o, _ := s.Object(fsm.UUID(id))
					gone = len(o.Replicas) == 2
				})
				return gone
			})
			if list := x.listed(0, id); !slices.Equal(list, []string{"n0", "n1"}) {
				t.Errorf("on nodes %v", list)
			}
			if o, err := conn.GetByName(t.Context(), "dear", 0); err != nil || !bytes.Equal(o.Bytes(), want) {
				t.Errorf("a get at the node that is back: %v", err)
			}
		})
	}
}

// TestGiverIsKilled: what was acknowledged with two replicas is there after its publisher was killed.
func TestGiverIsKilled(t *testing.T) {
	x := newCluster(t, 2, nil)
	p, conn := x.joinProcess(handoverDir(t), freePort(t), "giver", "")
	want := noise(12, 3<<20+5)
	buf, err := conn.Create(context.Background(), uint64(len(want)), client.CreateOptions{Name: "dear",
		Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes(), want)
	o, err := buf.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Publish(context.Background(), o.ID(), "", false); err != nil {
		t.Fatal(err)
	}
	y := &clusterOf{t: t, conns: []*client.Conn{conn}}
	y.replicate(0, "dear", client.ReplicateOptions{Wanted: 2})
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	x.all[0].repairTime.Store(1)
	await.Until(t, "both nodes that are left have it", func() bool {
		list := x.listed(0, o.ID())
		return slices.Contains(list, "n0") && slices.Contains(list, "n1")
	})
	for i := range x.all {
		x.share()
		x.whole(i, o.ID(), want)
	}
}

// TestReplicasGoOver: what a node has for the cluster outlives a takeover, also where it is the only one that has it,
// and goes when it is deleted.
func TestReplicasGoOver(t *testing.T) {
	x := newCluster(t, 1, nil)
	dir, listen := handoverDir(t), freePort(t)
	p, conn := x.joinProcess(dir, listen, "taken", "")
	want := noise(13, 2<<20)
	moved := x.put(0, "moved", want, client.CreateOptions{})
	x.replicate(0, "moved", client.ReplicateOptions{Move: true, To: "taken"})
	await.Until(t, "it is only on the other node", func() bool { return !x.has(0, moved) })
	o, err := conn.Put(context.Background(), want, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Publish(context.Background(), o.ID(), "nobody's", false); err != nil {
		t.Fatal(err)
	}
	o.Release()
	conn.Close()

	for range 2 { // what was inherited is handed over again
		next := startNodeProcess(t, dir, "", true, "HANDOVER_LISTEN="+listen, "HANDOVER_NAME=taken")
		<-p.ended
		p, conn = next, next.soon(t, dir)
		await.Until(t, "the next daemon is known", func() bool { return infoOf(t, conn).Entered })
		for _, name := range []string{"moved", "nobody's"} {
			o, err := conn.GetByName(t.Context(), name, 0)
			if err != nil || !bytes.Equal(o.Bytes(), want) {
				t.Fatalf("%s: %v", name, err)
			}
			o.Release()
		}
		if list := x.listed(0, moved); !slices.Equal(list, []string{"taken"}) {
			t.Fatalf("on nodes %v", list)
		}
	}
	if got, err := x.get(0, "moved"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("from another node: %v", err)
	}
	x.share()
	for _, name := range []string{"moved", "nobody's"} {
		if err := x.conns[0].DeleteByName(context.Background(), name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	await.Until(t, "the node has nothing any more", func() bool {
		list, err := conn.List(context.Background(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 0
	})
}

// TestDeleteAtANodeThatKnowsLess: a node that was started anew has what it published before, and does not know yet that
// the cluster lists it. What is deleted there is deleted on all nodes all the same.
func TestDeleteAtANodeThatKnowsLess(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(2)
	persist(t, x.conns[1], "kept")
	x.replicate(1, "kept", client.ReplicateOptions{Wanted: 2})
	x.share()
	x.end(1)
	w.cutOff(1, 2)
	d := x.ns.startWith(x.all[1].cfg, func(d *Daemon) { d.dialNode = w.dial(1) })
	x.all[1], x.conns[1] = d, dial(t, d.cfg)
	info, err := x.conns[1].StatByName(context.Background(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- x.conns[1].Delete(context.Background(), info.ID) }()
	await.Until(t, "it is deleted here", func() bool { return !x.has(1, info.ID) })
	w.heal()
	if err = <-deleted; errors.Is(err, object.ErrTimeout) { // a node has 10 s to enter its cluster
		await.Until(t, "who asks again has it deleted", func() bool {
			err = x.conns[1].Delete(context.Background(), info.ID)
			if errors.Is(err, object.ErrNotFound) { // it was told after all
				err = nil
			}
			return !errors.Is(err, object.ErrTimeout)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	x.share()
	for i := range x.all {
		await.Until(t, "no node has it", func() bool { return !x.has(i, info.ID) })
		if _, err := x.get(i, "kept"); !errors.Is(err, object.ErrNotFound) {
			t.Errorf("node %d: %v", i, err)
		}
	}
}

// TestDeleteThatWaitsForTheCluster: a delete of a replica or of a copy, by id, waits until the cluster was told. Nobody
// else's requests wait with it.
func TestDeleteThatWaitsForTheCluster(t *testing.T) {
	for _, kind := range []string{"replica", "copy"} {
		t.Run(kind, func(t *testing.T) { deleteThatWaits(t, kind) })
	}
}

func deleteThatWaits(t *testing.T, kind string) {
	w := newNetwork(t)
	telling, goOn := make(chan struct{}), make(chan struct{})
	tell, letGo := sync.OnceFunc(func() { close(telling) }), sync.OnceFunc(func() { close(goOn) })
	w.at = func(node int, step string) {
		if node == 1 && step == "tells the cluster of a delete" {
			tell()
			<-goOn
		}
	}
	x := w.cluster(2)
	t.Cleanup(letGo) // before the nodes end
	id := x.put(0, "dear", noise(17, 1000), client.CreateOptions{})
	x.share()
	if kind == "replica" {
		x.replicate(0, "dear", client.ReplicateOptions{Wanted: 2})
		x.share()
	} else if _, err := x.get(1, "dear"); err != nil {
		t.Fatal(err)
	}
	other := dial(t, x.all[1].cfg)
	deleted := make(chan error, 1)
	go func() { deleted <- x.conns[1].Delete(context.Background(), id) }()
	select {
	case <-telling:
	case err := <-deleted:
		t.Fatalf("%s: the cluster was not told: %v", kind, err)
	}
	await.Until(t, "it is deleted here", func() bool { return !x.has(1, id) })
	for range 3 {
		o, err := other.Put(context.Background(), []byte("other"), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	select {
	case err := <-deleted:
		t.Fatalf("%s: the cluster was not told, and the delete has ended: %v", kind, err)
	default:
	}
	letGo()
	if err := <-deleted; err != nil {
		t.Errorf("%s: %v", kind, err)
	}
}

// TestDeletedWhileItIsPublished: another node deletes an object that the cluster lists, and whose publisher does not
// know yet that it does. The publisher deletes it all the same, without another change of the metadata.
func TestDeletedWhileItIsPublished(t *testing.T) {
	x := newCluster(t, 1, nil)
	listed, goOn := make(chan struct{}), make(chan struct{})
	c := aNode(t, "n1")
	c.Listen = freePort(t)
	d := x.ns.startWith(c, func(d *Daemon) {
		d.at = func(step string) {
			if step == "published" {
				close(listed)
				<-goOn
			}
		}
	})
	x.all, x.conns = append(x.all, d), append(x.conns, dial(t, c))
	join(t, x.all[0].cfg, x.all[0], d)
	o, err := x.conns[1].Put(context.Background(), noise(16, 1000), client.CreateOptions{Name: "short-lived",
		Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	id := o.ID()
	o.Release()
	published := make(chan error, 1)
	go func() { _, err := x.conns[1].Publish(context.Background(), id, "", false); published <- err }()
	<-listed
	x.share()
	if err := x.conns[0].Delete(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	x.share()
	// Pause: what follows the metadata looks at that change.
	time.Sleep(200 * time.Millisecond)
	close(goOn)
	<-published // it was, or was deleted
	await.Until(t, "the object is gone", func() bool { return !x.has(1, id) })
	await.Until(t, "no node is waited for", func() (gone bool) {
		x.all[0].meta.raft.View(func(s *fsm.State) { _, is := s.Deleted(fsm.UUID(id)); gone = !is })
		return gone
	})
}
