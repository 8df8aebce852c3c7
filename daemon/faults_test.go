package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/tools/e2e/await"
)

// Times of faults, each drawn between the two.
const (
	faultLeast = 300 * time.Millisecond
	faultMost  = 4 * time.Second
)

func faultTime(random *rand.Rand) time.Duration {
	return faultLeast + time.Duration(random.Int64N(int64(faultMost-faultLeast)))
}

// partitions are the shapes in which a network of n nodes falls apart.
var partitions = map[string]func(w *network, leader, n int, random *rand.Rand){
	"the leader is cut off":  func(w *network, leader, n int, _ *rand.Rand) { w.cutOff(leader, n) },
	"another one is cut off": func(w *network, leader, n int, _ *rand.Rand) { w.cutOff((leader+1)%n, n) },
	"two parts": func(w *network, _, n int, random *rand.Rand) {
		part := random.Perm(n)
		for _, a := range part[:n/2] {
			for _, b := range part[n/2:] {
				w.cut(a, b)
				w.cut(b, a)
			}
		}
	},
	"the leader is not heard": func(w *network, leader, n int, _ *rand.Rand) {
		for i := range n {
			if i != leader {
				w.cut(leader, i)
			}
		}
	},
	"the leader hears nobody": func(w *network, leader, n int, _ *rand.Rand) {
		for i := range n {
			if i != leader {
				w.cut(i, leader)
			}
		}
	},
	"one way each, at random": func(w *network, _, n int, random *rand.Rand) {
		for range n {
			w.cut(random.IntN(n), random.IntN(n))
		}
	},
	"one node joins two parts": func(w *network, leader, n int, _ *rand.Rand) {
		for i := range n {
			for j := range n {
				if i != j && i != leader && j != leader {
					w.cut(i, j)
				}
			}
		}
	},
	"flapping": func(w *network, leader, n int, random *rand.Rand) {
		for range 5 {
			w.cutOff(leader, n)
			// Pause: as long as it takes to miss a leader, or not quite.
			time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
			w.heal()
			// Pause: long enough to be heard again, or not quite.
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
		w.cutOff(leader, n)
	},
	"a tenth is lost": func(w *network, _, _ int, _ *rand.Rand) { w.change(func() { w.tenth = true }) },
	"all is slow": func(w *network, _, _ int, random *rand.Rand) {
		w.change(func() { w.late = time.Duration(random.IntN(400)) * time.Millisecond })
	},
	"all are alone": func(w *network, _, n int, _ *rand.Rand) {
		for i := range n {
			w.cutOff(i, n)
		}
	},
}

// TestPartitions: whatever shape the network falls into, what clients of all nodes were told fits one order of what
// they did; afterwards all nodes know the same, and give byte for byte what clients were told is published.
func TestPartitions(t *testing.T) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	nodes := 3
	if os.Getenv("TENDRIL_SOAK") != "" {
		nodes = 5
	}
	x := w.cluster(nodes)
	for i := range x.all {
		await.Until(t, "all nodes vote", func() bool { return x.votersAt(i) == nodes })
	}
	ctx, stop := context.WithCancel(t.Context())
	h := newHistory()
	var working sync.WaitGroup
	for i := range 6 {
		working.Go(func() { newWorker(x.all[i%len(x.all)], i, true, h.note).run(ctx) })
	}
	told := &toldPublished{}
	for i, conn := range x.conns {
		working.Go(func() { told.work(ctx, conn, i) })
	}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	faults := 0
	var shapes []string
	for name := range partitions {
		shapes = append(shapes, name)
	}
	for end := time.Now().Add(soakTime(t, 12*time.Second)); time.Now().Before(end); faults++ {
		name := shapes[random.IntN(len(shapes))]
		partitions[name](w, max(x.leads(), 0), len(x.all), random)
		// Pause: the time of the fault.
		time.Sleep(faultTime(random))
		w.heal()
		// Pause: the time without one.
		time.Sleep(faultTime(random) / 2)
	}
	stop()
	working.Wait()
	x.sameEverywhere()
	told.check(t, x.conns)
	h.check(t, faults)
}

// sameEverywhere waits until all nodes know the same. What was proposed without an answer may still come.
func (x *clusterOf) sameEverywhere() {
	x.t.Helper()
	await.Until(x.t, "all nodes know the same", func() bool {
		var first string
		for i, d := range x.all {
			var have string
			d.meta.raft.View(func(s *fsm.State) { have = fmt.Sprint(s.Policies(), s.Objects()) })
			if i == 0 {
				first = have
			}
			if have != first {
				return false
			}
		}
		return true
	})
}

// workInProcess has a daemon that is a process of its own work as a client, once it is in a cluster with others, and
// write down what it did.
func workInProcess(d *Daemon) {
	client, err := strconv.Atoi(os.Getenv("CLUSTER_WORK"))
	if err != nil {
		return
	}
	note := func(op did) {
		line, err := json.Marshal(op)
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(append(line, '\n')) // in one system call: whole, or not at all
	}
	for i := range 2 {
		go func() {
			for !d.meta.now.Load().others() {
				// Pause: until the test has the node join.
				time.Sleep(10 * time.Millisecond)
			}
			newWorker(d, client*2+i, false, note).run(d.ctx)
		}()
	}
}

// killable is a cluster of processes.
type killable struct {
	t       *testing.T
	history *history
	dirs    []string
	listen  []string
	running []*nodeProcess
	conns   []*client.Conn
	lives   int
}

func newKillable(t *testing.T, n int) *killable {
	x := &killable{t: t, history: newHistory(), running: make([]*nodeProcess, n), conns: make([]*client.Conn, n)}
	for i := range n {
		x.dirs, x.listen = append(x.dirs, handoverDir(t)), append(x.listen, freePort(t))
		x.start(i)
		if i > 0 {
			token := newToken(t, x.conns[0], admin.TokenOptions{Role: pki.Node, Once: true})
			if _, err := admin.Of(x.conns[i]).JoinCluster(context.Background(), x.listen[0], token); err != nil {
				t.Fatal(err)
			}
		}
	}
	return x
}

// start starts a node, the first time or again.
func (x *killable) start(i int) {
	x.lives++
	x.running[i] = startNodeProcess(x.t, x.dirs[i], "", false, "HANDOVER_LISTEN="+x.listen[i],
		fmt.Sprint("HANDOVER_NAME=n", i), fmt.Sprint("CLUSTER_WORK=", x.lives), "CLUSTER_VOTE_TIME=200ms")
	await.Until(x.t, "the node serves", func() bool {
		select {
		case <-x.running[i].ended:
			x.t.Fatalf("node %d has ended: %v, %s", i, x.running[i].err, x.running[i].said.String())
		default:
		}
		conn, err := client.Dial(context.Background(), client.Options{Socket: filepath.Join(x.dirs[i], "s")})
		x.conns[i] = conn
		return err == nil
	})
	x.t.Cleanup(func() { x.conns[i].Close() })
}

// kill kills nodes (SIGKILL), all at once, and takes what they wrote down.
func (x *killable) kill(nodes ...int) {
	for _, i := range nodes {
		if err := x.running[i].cmd.Process.Signal(unix.SIGKILL); err != nil {
			x.t.Fatal(err)
		}
	}
	for _, i := range nodes {
		<-x.running[i].ended
		x.history.read(&x.running[i].said)
	}
}

// leader gives the node that leads, as one of them says.
func (x *killable) leader() (leader int) {
	await.Until(x.t, "a leader", func() bool {
		for i, conn := range x.conns {
			if info := infoOf(x.t, conn); info.State == "leader" {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// freeze stops nodes for a time: one that led goes on where it was, with clients who wait, while another one leads.
func (x *killable) freeze(t time.Duration, nodes ...int) {
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		for _, i := range nodes {
			if err := x.running[i].cmd.Process.Signal(sig); err != nil {
				x.t.Fatal(err)
			}
		}
		if sig == unix.SIGSTOP {
			// Pause: the time of the fault.
			time.Sleep(t)
		}
	}
}

// damage alters one byte of a node's log, which is not running, and sees that it does not start on that. Then it has
// the byte again.
func (x *killable) damage(i int) {
	x.t.Helper()
	logs, err := filepath.Glob(filepath.Join(x.dirs[i], "state", raftFolder, "log", "*.wal"))
	if err != nil || len(logs) == 0 {
		x.t.Fatalf("no log of node %d: %v", i, err)
	}
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	const at = 100 // in the first entries of the segment
	flip := func() {
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			x.t.Fatal(err)
		}
		b[0] ^= 0x10
		if _, err := f.WriteAt(b, at); err != nil {
			x.t.Fatal(err)
		}
	}
	flip()
	p := startNodeProcess(x.t, x.dirs[i], "", false, "HANDOVER_LISTEN="+x.listen[i])
	select {
	case <-p.ended:
	case <-time.After(5 * time.Minute):
		x.t.Fatal("a node runs whose log is damaged")
	}
	if !strings.Contains(p.said.String(), "damaged") {
		x.t.Errorf("a node whose log is damaged ends with %v: %s", p.err, p.said.String())
	}
	flip()
}

// TestKilledNodes: nodes are killed (SIGKILL) one, several and all at once, again and again, and stand still for a
// time. What their clients were told before fits what the cluster knows afterwards. One whose log is damaged does not
// start.
func TestKilledNodes(t *testing.T) {
	x := newKillable(t, 3)
	await.Until(t, "three nodes vote", func() bool {
		votes := 0
		for _, n := range infoOf(t, x.conns[0]).Nodes {
			votes += btoi(n.Voter)
		}
		return votes == 3
	})
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	faults := 0
	var led []int64 // when a leader was killed, and nobody else
	for end := time.Now().Add(soakTime(t, 10*time.Second)); time.Now().Before(end); faults++ {
		lead := x.leader()
		next := (lead + 1) % 3
		nodes := [][]int{{lead}, {next}, {lead, next}, {lead}, {0, 1, 2}, {next}, {lead}}[faults%7]
		switch kind := faults % 7; kind {
		case 3, 5:
			x.freeze(faultTime(random), nodes...)
		default:
			x.kill(nodes...)
			if len(nodes) == 1 && nodes[0] == lead {
				led = append(led, monotonic())
			}
			if kind == 1 {
				x.damage(next)
			}
			// Pause: the time of the fault.
			time.Sleep(faultTime(random))
			for _, i := range nodes {
				x.start(i)
			}
		}
		for _, conn := range x.conns {
			await.Until(t, "every node is known again", func() bool { return infoOf(t, conn).Entered })
		}
	}
	x.kill(0, 1, 2)
	for _, at := range led {
		t.Logf("a leader was killed: the next change was done after %v",
			x.history.doneAfter(at).Round(time.Millisecond))
	}
	x.history.check(t, faults)
}
