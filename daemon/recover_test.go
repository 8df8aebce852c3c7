package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/daemon/audit"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// recoverAt recovers the cluster at a node, or asks what that would lose.
func recoverAt(d *Daemon, do bool) (s RecoverStatus, err error) {
	raw, err := d.RecoverCluster(wire.RecoverClusterRequest{Do: do})
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	return s, err
}

// Two of three voters are gone. The third says what would be lost, goes on by itself, and listens to the old ones no
// more when they come back; they come to it as new members, with what they have.
func TestRecover(t *testing.T) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	x := w.cluster(3)
	for i := range x.all {
		await.Until(t, "three nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	x.put(0, "on both", []byte("both"), client.CreateOptions{})
	x.replicate(0, "on both", client.ReplicateOptions{Wanted: 3})
	x.put(2, "of n2", []byte("two"), client.CreateOptions{})
	x.put(1, "of n1", []byte("one"), client.CreateOptions{})
	x.share()
	if _, err := recoverAt(x.all[0], true); !errors.Is(err, object.ErrUnsupported) ||
		!strings.Contains(err.Error(), "leader") {
		t.Fatalf("a cluster that is well is recovered: %v", err)
	}
	for _, i := range []int{1, 2} { // for n0 they are gone; they are well
		w.cut(0, i)
		w.cut(i, 0)
	}
	lead := x.leader(1, 2)
	if _, err := x.all[lead].propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: "after the loss"}}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "n0 has no leader", func() bool { return clusterInfo(t, x.all[0]).Leader == "" })
	s, err := recoverAt(x.all[0], false)
	if err != nil || s.Done || len(s.Nodes) != 2 || s.LostObjects != 2 || s.Index == 0 {
		t.Fatalf("what would be lost: %+v, %v", s, err)
	}
	if x.all[0].meta.now.Load().raft.Leads() {
		t.Fatal("the question has recovered the cluster")
	}
	if s, err = recoverAt(x.all[0], true); err != nil || !s.Done {
		t.Fatalf("%+v, %v", s, err)
	}
	if info := clusterInfo(t, x.all[0]); info.State != "leader" || !info.Entered || !slices.Equal(x.members(0),
		[]string{"n0"}) {
		t.Fatalf("the recovered cluster: %+v", info)
	}
	if got := x.all[0].publishedNames(); !slices.Equal(got, []string{"on both"}) {
		t.Errorf("published: %v", got)
	}
	putPublished(t, x.all[0].cfg, "after the recovery")
	await.Until(t, "what was asked is on record: one was refused, and one done", func() bool {
		done, _, _, err := (*x.all[0].audits.Load())[adminSeries].Read(0, maxAudit, func(e audit.Event) bool {
			return e.What == "cluster.recover"
		})
		if err != nil || len(done) > 2 {
			t.Fatalf("on record: %v, %v", done, err)
		}
		return len(done) == 2 && done[0].Error != "" && done[1].Error == ""
	})

	w.heal() // the old majority comes back, and is refused
	term := clusterInfo(t, x.all[0]).Term
	for _, i := range []int{1, 2} {
		await.Until(t, "the old nodes are told no", func() bool {
			n := x.nodeOf(i, 0)
			return !n.Answers && strings.Contains(n.Why, "certificate")
		})
	}
	if _, err := x.all[lead].propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: "by the old ones"}}); err != nil {
		t.Errorf("the old nodes are a cluster without it: %v", err)
	}
	if info := clusterInfo(t, x.all[0]); info.Term != term || info.State != "leader" ||
		!slices.Equal(x.members(0), []string{"n0"}) {
		t.Errorf("the old nodes have changed the recovered cluster: %+v", info)
	}
	x.all[0].meta.raft.View(func(st *fsm.State) {
		if tenants := st.Tenants(); len(tenants) != 0 {
			t.Errorf("what the old nodes did has come here: %v", tenants)
		}
	})

	// The other old one ends first: n1's vote is needed there, so n1 leaves without a word, and n2 would go on to take
	// it for a member (docs/design/cluster.md).
	x.end(2)
	leave(t, x.conns[1], true)
	again := join(t, x.all[0].cfg, x.all[0], x.all[1])
	if !again.Entered || again.Republished < 2 || len(again.Conflicts) != 0 {
		t.Errorf("n1 comes back: %+v", again)
	}
	if got, err := x.get(0, "of n1"); err != nil || string(got) != "one" {
		t.Errorf("what n1 has is there again: %v", err)
	}
}

// TestRecoverAfterAStart: a survivor that was started anew meanwhile could not tell the cluster what is still published
// here, and what a join could not publish. It does so in the one that it has recovered.
func TestRecoverAfterAStart(t *testing.T) {
	x := newCluster(t, 2, nil)
	persist(t, x.conns[1], "kept")
	persist(t, x.conns[1], "pending")
	var pending republish
	x.all[1].meta.raft.View(func(s *fsm.State) {
		for _, o := range s.Objects() {
			if o.Name == "pending" {
				pending.Objects = append(pending.Objects, o)
			}
		}
	})
	if err := x.conns[1].Unpublish(t.Context(), "pending"); err != nil {
		t.Fatal(err)
	}
	x.end(1) // before n0, which would give it the only vote: then it leads, and there is nothing to recover
	x.end(0)
	if err := pending.keep(filepath.Join(x.all[1].cfg.StateDir, republishFile)); err != nil {
		t.Fatal(err)
	}
	d := x.ns.start(x.all[1].cfg)
	if s, err := recoverAt(d, true); err != nil || !s.Done {
		t.Fatalf("%+v, %v", s, err)
	}
	conn := dial(t, d.cfg)
	await.Until(t, "it is published here again", func() bool {
		names, err := publishedAt(conn)
		slices.Sort(names)
		return err == nil && slices.Equal(names, []string{"kept", "pending"})
	})
}

// recoverSteps are the steps of a recovery at which a daemon can be killed.
var recoverSteps = []string{"recovering", "closed", "alone", "dropped another node", "registered"}

// However a recovery is cut short, once it is begun the next start goes on with it.
func TestARecoveryIsWholeWhereverItIsKilled(t *testing.T) {
	for _, step := range recoverSteps {
		t.Run(step, func(t *testing.T) {
			ns, ca, cc := newNodes(t), aNode(t, "a"), aNode(t, "c")
			ca.Listen = freePort(t)
			a, c := ns.start(ca), ns.start(cc)
			ns.gone.Store(true)
			dir, listen := handoverDir(t), "HANDOVER_LISTEN="+freePort(t)
			b := startNodeProcess(t, dir, "", false, listen, "HANDOVER_NAME=b")
			conn := b.soon(t, dir)
			persist(t, conn, "kept")
			if _, err := admin.Of(conn).JoinCluster(context.Background(), a.address(), nodeToken(t, ca)); err != nil {
				t.Fatal(err)
			}
			b.cmd.Process.Kill()
			<-b.ended
			b = startNodeProcess(t, dir, step, false, listen, "HANDOVER_NAME=b")
			conn = b.soon(t, dir)
			join(t, ca, a, c)
			await.Until(t, "b is one of three that vote", func() bool { // either of two may end, and the other goes on
				x := infoOf(t, conn)
				votes := 0
				for _, n := range x.Nodes {
					votes += btoi(n.Voter)
				}
				return x.Entered && votes == 3
			})
			ns.end(a, c)
			if _, err := admin.Of(conn).RecoverCluster(context.Background(), true); !errors.Is(err,
				client.ErrDisconnected) {
				t.Fatalf("the recovery was not cut short: %v", err)
			}
			<-b.ended
			conn = startNodeProcess(t, dir, "", false, listen, "HANDOVER_NAME=b").soon(t, dir)
			await.Until(t, "the node is a cluster of one", func() bool {
				x := infoOf(t, conn)
				return x.Entered && x.State == "leader" && slices.Equal(nodeNamesOf(x), []string{"b"})
			})
			await.Until(t, "what it had published is published", func() bool {
				names, err := publishedAt(conn)
				return err == nil && slices.Equal(names, []string{"kept"})
			})
		})
	}
}
