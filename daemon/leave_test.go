package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/raftnode"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// leave asks a node to leave until it has. Where one has ended before, a slow one may be taken for silent meanwhile.
func leave(t testing.TB, conn *client.Conn, anyway bool) (s LeaveStatus) {
	t.Helper()
	await.Until(t, "the node has left", func() bool {
		raw, err := admin.Of(conn).LeaveCluster(context.Background(), anyway)
		s = LeaveStatus{}
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		stuck := func(c Conflict) bool { return !strings.Contains(c.Why, "is away") }
		if err != nil || slices.ContainsFunc(s.Stuck, stuck) && !anyway {
			t.Fatalf("leave: %+v, %v", s, err)
		}
		return s.Done
	})
	return s
}

// remove takes a node out at another one.
func remove(t testing.TB, d *Daemon, node string, anyway bool) (r RemoveResult, err error) {
	t.Helper()
	raw, err := d.RemoveNode(wire.RemoveNodeRequest{Node: node, Anyway: anyway})
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	return r, err
}

// members are the nodes that a node knows, in order.
func (x *clusterOf) members(i int) []string { return nodeNamesOf(clusterInfo(x.t, x.all[i])) }

// A node that leaves takes nothing with it that the others need, whoever it is, and keeps what it has. The others go
// on, and it may come back.
func TestLeave(t *testing.T) {
	for _, who := range []string{"the leader", "another one"} {
		t.Run(who, func(t *testing.T) {
			x := newCluster(t, 3, nil)
			at := 0 // n0 leads: it was first
			if who != "the leader" {
				at = 2
			}
			other := (at + 1) % 3
			want, there := noise(3, 1<<20), noise(4, 1000)
			id := x.put(at, "alone", want, client.CreateOptions{})
			x.put(other, "elsewhere", there, client.CreateOptions{})
			x.share()
			authority := clusterInfo(t, x.all[at]).Authority
			s := leave(t, x.conns[at], false)
			if r := s.Result; !s.Told || r == nil || r.Republished != 1 || len(r.Conflicts) != 0 || !r.Entered {
				t.Errorf("the leave: %+v", s)
			}
			self := []string{x.all[at].identity.Name}
			if info := clusterInfo(t, x.all[at]); !slices.Equal(x.members(at), self) || info.Authority == authority ||
				!info.Entered || info.State != "leader" {
				t.Errorf("the node that left: %+v", info)
			}
			if got := x.all[at].publishedNames(); !slices.Equal(got, []string{"alone"}) {
				t.Errorf("the node that left publishes %v", got)
			}
			x.whole(at, id, want)
			for i := range x.all {
				if i == at {
					continue
				}
				await.Until(t, "the others have forgotten it", func() bool {
					return len(x.members(i)) == 2 && !slices.Contains(x.members(i), self[0])
				})
				if got, err := x.get(i, "alone"); err != nil || !bytes.Equal(got, want) {
					t.Errorf("node %d: what the node that left had published: %v", i, err)
				}
				tenant := &fsm.PutTenant{Tenant: fsm.Tenant{Name: x.all[i].identity.Name}}
				if _, err := x.all[i].propose(tenant); err != nil {
					t.Errorf("node %d: the others take no change: %v", i, err)
				}
			}
			putPublished(t, x.all[at].cfg, "later")
			again := join(t, x.all[other].cfg, x.all[other], x.all[at])
			if !again.Entered || again.Republished != 2 || len(again.Conflicts) != 0 || len(again.Nodes) != 3 {
				t.Errorf("it comes back: %+v", again)
			}
		})
	}
}

// A node that leaves may be gone as soon as it knows that it has left. The others need nothing more of it.
func TestLeaverIsGoneAtOnce(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		t.Run(fmt.Sprintf("nodes=%d", nodes), func(t *testing.T) {
			w := newNetwork(t)
			w.at = func(node int, step string) {
				if node == 0 && step == "removed" {
					w.cutOff(0, nodes)
				}
			}
			x := w.cluster(nodes)
			answered(t, x)
			if s := leave(t, x.conns[0], false); !s.Told {
				t.Errorf("the leave: %+v", s)
			}
			x.leader([]int{1, 2}[:nodes-1]...) // a change waits 10 s for one, which takes longer on a busy machine
			for _, d := range x.all[1:] {
				if _, err := d.propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: d.cfg.NodeName}}); err != nil {
					t.Errorf("%s takes no change: %v", d.cfg.NodeName, err)
				}
			}
		})
	}
}

// A leader that is removed at another node hands over first, and its vote goes with it.
func TestLeaderIsRemoved(t *testing.T) {
	x := newCluster(t, 3, nil)
	answered(t, x)
	if _, err := remove(t, x.all[1], "n0", true); err != nil {
		t.Fatal(err)
	}
	x.end(0)
	x.leader(1, 2) // as in TestLeaverIsGoneAtOnce
	for _, d := range x.all[1:] {
		if _, err := d.propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: d.cfg.NodeName}}); err != nil {
			t.Errorf("%s takes no change: %v", d.cfg.NodeName, err)
		}
	}
}

// Of three voters of which one is silent, none of the others gives its vote up.
func TestVoterThatIsNeededStays(t *testing.T) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	x := w.cluster(3)
	answered(t, x)
	await.Until(t, "all nodes vote", func() bool { return x.votersAt(0) == 3 })
	first := x.leader()
	silent, two := (first+2)%3, []int{first, (first + 1) % 3}
	w.cutOff(silent, 3)
	var lead int
	var refused error
	await.Until(t, "the answer of the one that leads", func() bool { // who gets no processor for a second leads no more
		lead = x.leader(two...)
		m, leaver := x.all[lead].meta.now.Load(), x.all[two[0]+two[1]-lead]
		if m.live.alive(x.all[silent].meta.node).Answers {
			return false
		}
		raw, err := fsm.Encode(fsm.UUID{1}, &fsm.RemoveNode{Node: leaver.meta.node})
		if err != nil {
			t.Fatal(err)
		}
		_, _, refused = m.proposeHere(t.Context(), raw)
		var another *raftnode.NotLeaderError
		return !errors.As(refused, &another) && !errors.Is(refused, raftnode.ErrLost)
	})
	if !errors.Is(refused, errTooFew) {
		t.Errorf("one of the two that answer is removed: %v", refused)
	}
	if x.votersAt(lead) != 3 {
		t.Error("it has lost its vote")
	}
}

// Of two nodes one votes. When that one leaves, the other one has the vote, and then all there is; each leaves as the
// last one of a cluster of two, and a cluster of one has nothing to leave.
func TestTheOnlyVoterLeaves(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	ca.Listen, cb.Listen = freePort(t), freePort(t)
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	putPublished(t, ca, "of a")
	if s := leave(t, dial(t, ca), false); !s.Told || s.Result.Republished != 1 {
		t.Errorf("a leaves: %+v", s)
	}
	await.Until(t, "b is alone and leads", func() bool {
		x := clusterInfo(t, b)
		return x.State == "leader" && slices.Equal(nodeNamesOf(x), []string{"b"})
	})
	if got := b.publishedNames(); !slices.Equal(got, []string{"of a"}) {
		t.Errorf("b has %v", got)
	}
	await.Until(t, "b knows that nobody else is there", func() bool { return !b.meta.now.Load().others() })
	ns.end(b)
	b = ns.start(cb)
	if s := leave(t, dial(t, cb), false); s.Result != nil || !s.Told {
		t.Errorf("b, which is alone, leaves: %+v", s)
	}
	join(t, ca, a, b) // b is free to go elsewhere
	if names := nodeNamesOf(clusterInfo(t, b)); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("b is with %v", names)
	}
}

// What no other node can take keeps a node in its cluster, unless it is told to leave all the same.
func TestALeaveThatWouldLose(t *testing.T) {
	x := newCluster(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.CapacityBytes, c.QuotaBytes, c.PinBytes, c.SpillBytes = 16<<20, 16<<20, 1<<20, -1
		}
	})
	want := noise(1, 30<<20)
	id := x.put(0, "large", want, client.CreateOptions{})
	var s LeaveStatus
	await.Until(t, "it is known that nobody can take it", func() bool {
		raw, err := admin.Of(x.conns[0]).LeaveCluster(context.Background(), false)
		s = LeaveStatus{}
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		if err != nil || s.Done {
			t.Fatalf("%+v, %v", s, err)
		}
		return len(s.Stuck) > 0
	})
	if s.LeftObjects != 1 || len(s.Stuck) != 1 || s.Stuck[0].Name != "large" ||
		!strings.Contains(s.Stuck[0].Why, "n1") {
		t.Errorf("%+v", s)
	}
	if got := x.members(0); len(got) != 2 {
		t.Fatalf("the node is with %v", got)
	}
	if s := leave(t, x.conns[0], true); !s.Told || s.LeftObjects != 1 || s.Result.Republished != 1 {
		t.Errorf("anyway: %+v", s)
	}
	x.whole(0, id, want)
	await.Until(t, "the cluster has lost it", func() bool { return len(x.all[1].publishedNames()) == 0 })
}

// TestALeaveWhoseHelperIsSilent: what another node has that does not answer keeps a node in its cluster, which says so;
// once the other one answers, the node leaves.
func TestALeaveWhoseHelperIsSilent(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(2)
	x.put(1, "shared", noise(2, 1000), client.CreateOptions{})
	x.replicate(1, "shared", client.ReplicateOptions{Wanted: 2})
	w.cutOff(0, 2)
	await.Until(t, "n0 is silent", func() bool { return !x.all[1].answers(x.all[0].meta.node) })
	s, err := x.all[1].leave(false)
	if err != nil || s.Done || len(s.Stuck) != 1 || !strings.Contains(s.Stuck[0].Why, "n0: it has a replica, but is away: ") {
		t.Errorf("%+v, %v", s, err)
	}
	w.heal()
	if s := leave(t, x.conns[1], false); !s.Told || s.LeftObjects != 0 {
		t.Errorf("%+v", s)
	}
}

// A node that its cluster does not answer leaves without a word, and is removed there. If it comes back as a member
// that was removed, it is refused, says so, and can go on by itself.
func TestADeadNodeIsRemoved(t *testing.T) {
	x := newCluster(t, 4, func(_ int, c *Config) { c.SpillBytes = 64 << 20 })
	id := x.put(3, "on disk", []byte("content"), client.CreateOptions{Class: object.Persisted})
	x.share()
	for _, name := range []string{"n0", "nobody", "n3"} {
		want := map[string]error{"n0": object.ErrInvalid, "nobody": object.ErrNotFound, "n3": object.ErrInvalid}[name]
		if _, err := remove(t, x.all[0], name, false); !errors.Is(err, want) {
			t.Errorf("%s is removed: %v", name, err)
		}
	}
	x.end(3)
	await.Until(t, "n3 is silent", func() bool {
		return slices.ContainsFunc(clusterInfo(t, x.all[1]).Nodes, func(n ClusterNode) bool {
			return n.Name == "n3" && !n.Answers
		})
	})
	if _, err := remove(t, x.all[1], "n3", false); !errors.Is(err, object.ErrInvalid) ||
		!strings.Contains(err.Error(), "on disk") {
		t.Errorf("it alone has an object: %v", err)
	}
	r, err := remove(t, x.all[1], "n3", true) // not at the leader
	if err != nil || r.Node != "n3" || r.LostObjects != 1 || r.Lost[0].Name != "on disk" {
		t.Errorf("%+v, %v", r, err)
	}
	await.Until(t, "it is no member", func() bool { return len(x.members(0)) == 3 })

	back := x.ns.start(x.all[3].cfg)
	conn := dial(t, back.cfg)
	await.Until(t, "it says that it was removed", func() bool {
		info := clusterInfo(t, back)
		return !info.Entered && strings.Contains(info.Why, "removed")
	})
	if _, err := admin.Of(conn).LeaveCluster(context.Background(), false); !errors.Is(err, object.ErrTimeout) ||
		!strings.Contains(err.Error(), "--anyway") {
		t.Errorf("a leave that asks the cluster: %v", err)
	}
	if s := leave(t, conn, true); !s.Told || s.Result.Republished != 1 {
		t.Errorf("it goes on by itself: %+v", s)
	}
	if got := back.publishedNames(); !slices.Equal(got, []string{"on disk"}) {
		t.Errorf("it publishes %v", got)
	}
	if o, err := conn.Get(t.Context(), id, 0); err != nil || string(o.Bytes()) != "content" {
		t.Errorf("its object: %v", err)
	}

	await.Until(t, "three nodes vote", func() bool { return x.votersAt(2) == 3 }) // else n2 may get the only vote
	x.ns.end(x.all[0], x.all[1])                                                  // n2 is left by the others
	await.Until(t, "nobody leads", func() bool { return clusterInfo(t, x.all[2]).Leader == "" })
	if s := leave(t, x.conns[2], true); s.Told || s.Why == "" || len(x.members(2)) != 1 {
		t.Errorf("a leave that nobody hears of: %+v", s)
	}
	putPublished(t, x.all[2].cfg, "by itself")
}

// leaveSteps are the steps of a leave at which a daemon can be killed, and whether the node has left then.
var leaveSteps = []struct {
	at   string
	left bool
}{
	{"yielded", false},
	{"leaving", false},
	{"removed", true},
	{"staged", true},
	{"committed", true},
	{"closed", true},
	{"put the log aside", true},
	{"put the new log in its place", true},
	{"moved authority.pem", true},
	{"moved republish.json", true},
	{"moved", true},
	{"registered", true},
}

// However a leave is cut short, the node starts, either as the member that it was or as a cluster of one, and what it
// had is there and published; the others go on.
func TestALeaveIsWholeWhereverItIsKilled(t *testing.T) {
	for _, step := range leaveSteps {
		t.Run(step.at, func(t *testing.T) {
			ns, ca := newNodes(t), aNode(t, "a")
			ca.Listen = freePort(t)
			a := ns.start(ca)
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
			b = startNodeProcess(t, dir, step.at, false, listen, "HANDOVER_NAME=b")
			conn = b.soon(t, dir)
			await.Until(t, "the leave is cut short", func() bool {
				_, err := admin.Of(conn).LeaveCluster(context.Background(), false)
				return errors.Is(err, client.ErrDisconnected)
			})
			<-b.ended
			if _, err := a.propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: "while b was away"}}); err != nil {
				t.Errorf("the cluster takes no change: %v", err)
			}

			conn = startNodeProcess(t, dir, "", false, listen, "HANDOVER_NAME=b").soon(t, dir)
			want := []string{"a", "b"}
			if step.left {
				want = []string{"b"}
			}
			await.Until(t, "the node is what it is to be", func() bool {
				x := infoOf(t, conn)
				return x.Entered && slices.Equal(nodeNamesOf(x), want)
			})
			if !step.left {
				leave(t, conn, false)
			}
			await.Until(t, "the other one is alone", func() bool { return len(nodeNamesOf(clusterInfo(t, a))) == 1 })
			if got := a.publishedNames(); !slices.Equal(got, []string{"kept"}) {
				t.Errorf("the cluster has %v", got)
			}
			await.Until(t, "what it had published is published", func() bool {
				x, err := publishedAt(conn)
				return err == nil && slices.Equal(x, []string{"kept"})
			})
			if o, err := conn.GetByName(t.Context(), "kept", 0); err != nil || string(o.Bytes()) != "content" {
				t.Errorf("the object: %v", err)
			}
		})
	}
}

// TestALeaveWaitsForWhatIsClaimed: a node that has started anew has entered its cluster a moment before it has told it
// what is still published here. A leave in that moment waits, and loses nothing.
func TestALeaveWaitsForWhatIsClaimed(t *testing.T) {
	x := newCluster(t, 2, nil)
	persist(t, x.conns[1], "kept")
	x.end(1)
	claim := make(chan struct{})
	d := x.ns.startWith(x.all[1].cfg, func(d *Daemon) {
		d.at = func(step string) {
			if step == "entered late" {
				select {
				case <-claim:
				case <-d.meta.now.Load().lateCtx.Done(): // the leave does not wait
				}
			}
		}
	})
	conn, over := dial(t, d.cfg), make(chan struct{})
	go func() {
		defer close(over)
		_, _ = admin.Of(conn).LeaveCluster(context.Background(), false) // asked again below
	}()
	await.Blocked(t, 1, "daemon.(*membership).awaitClaim")
	close(claim)
	<-over
	x.all[1], x.conns[1] = d, conn
	leave(t, conn, false)
	for i := range x.all {
		await.Until(t, "both nodes are alone, and both have it", func() bool {
			return len(x.members(i)) == 1 && slices.Equal(x.all[i].publishedNames(), []string{"kept"})
		})
	}
}

// TestWhatIsNotRefusedIsPublishedLater: what a node cannot publish again, because its new cluster was not asked, is no
// conflict: it stays on the list.
func TestWhatIsNotRefusedIsPublishedLater(t *testing.T) {
	ns, c := newNodes(t), aNode(t, "a")
	d := ns.start(c)
	left := republish{Objects: []fsm.Object{{ID: fsm.UUID{1}, Tenant: "t", Name: "kept"}}}
	path := filepath.Join(c.StateDir, republishFile)
	if err := left.keep(path); err != nil {
		t.Fatal(err)
	}
	m := d.meta.now.Load()
	ns.gone.Store(true)
	if err := m.raft.Close(); err != nil {
		t.Fatal(err)
	}
	done, conflicts, err := d.republish(m, left)
	if done != 0 || len(conflicts) != 0 || err == nil {
		t.Errorf("%d published, conflicts %+v, %v", done, conflicts, err)
	}
	if again, err := readRepublish(path); err != nil || len(again.Objects) != 1 {
		t.Errorf("the list: %+v, %v", again, err)
	}
}

// publishedAt lists what is published at a node, and there.
func publishedAt(conn *client.Conn) (names []string, err error) {
	for raw, err := range conn.EachPublished(context.Background(), "") {
		var o PublishedStatus
		if err == nil {
			err = json.Unmarshal(raw, &o)
		}
		if err != nil {
			return nil, err
		}
		if o.Here {
			names = append(names, o.Name)
		}
	}
	return names, nil
}
