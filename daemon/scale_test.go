package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/placement"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// What a node sends and holds in clusters of up to 10,000 nodes: docs/design/scale.md. The bytes of one question, one
// heartbeat and one change are counted between two real daemons; how many of them there are, and when a dead node is
// missed, follows from the code that real nodes run, in virtual time.

// counted is what went over connections of one kind that a node dialed.
type counted struct {
	mu     sync.Mutex
	dialed int // of all kinds
	writes map[uint8]int
	bytes  map[uint8]int // both ways
}

// connections counts those that were dialed.
func (c *counted) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialed
}

func (c *counted) of(kind uint8) (writes, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes[kind], c.bytes[kind]
}

// packet is what TCP and IP add to what is said at once, and to its acknowledgement.
const packet = 2 * 52

func (c *counted) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialTCP(ctx, address)
	c.mu.Lock()
	c.dialed++
	c.mu.Unlock()
	return &countedConn{Conn: conn, c: c}, err
}

// countedConn finds its kind in what is written first, the preface.
type countedConn struct {
	net.Conn
	c     *counted
	mu    sync.Mutex
	begun bool
	kind  uint8
}

func (x *countedConn) Write(b []byte) (int, error) {
	n, err := x.Conn.Write(b)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.begun && n > 12 {
		x.begun, x.kind = true, b[12]
	}
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	x.c.writes[x.kind]++
	x.c.bytes[x.kind] += n + packet
	return n, err
}

func (x *countedConn) Read(b []byte) (int, error) {
	n, err := x.Conn.Read(b)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	x.c.bytes[x.kind] += n
	return n, err
}

// costs are the bytes that two real daemons sent, headers of TCP and IP included.
type costs struct {
	pulse     float64 // one question and its answer
	heartbeat float64 // a second of an idle leader and one follower
	change    float64 // one publication, to one follower
}

func measureCosts(t *testing.T) costs {
	c := &counted{writes: map[uint8]int{}, bytes: map[uint8]int{}}
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a := ns.startWith(ca, func(d *Daemon) { d.dialNode = c.dial })
	join(t, ca, a, ns.start(cb))
	putPublished(t, ca, "warm")
	joined := time.Now()
	await.Until(t, "what a new member asks is long over", func() bool { return time.Since(joined) > 3*pulseEvery })
	var x costs
	// on a busy machine a connection may be lost and made again, which costs as much as many questions
	await.Until(t, "time in which no connection is made", func() (undisturbed bool) {
		dialed := c.connections()
		x = c.rest(t)
		return c.connections() == dialed
	})
	const changes = 50
	_, before := c.of(kindRaft)
	began := time.Now()
	for i := range changes {
		putPublished(t, ca, fmt.Sprint("change ", i))
	}
	_, after := c.of(kindRaft)
	x.change = max(0, float64(after-before)-x.heartbeat*time.Since(began).Seconds()) / changes
	return x
}

// rest gives what two nodes send while nothing happens.
func (c *counted) rest(t *testing.T) costs {
	asked, askedBytes := c.of(kindControl)
	_, led := c.of(kindRaft)
	began := time.Now()
	await.Until(t, "some questions are asked", func() bool {
		n, _ := c.of(kindControl)
		return n >= asked+3 && time.Since(began) > 3*pulseEvery
	})
	n, bytes := c.of(kindControl)
	_, ledNow := c.of(kindRaft)
	return costs{pulse: float64(bytes-askedBytes) / float64(n-asked),
		heartbeat: float64(ledNow-led) / time.Since(began).Seconds()}
}

// missedAfter is when the last of the nodes misses one that died: each asks in rounds of its own.
func missedAfter(nodes int, random *rand.Rand) (last time.Duration) {
	every := (&liveness{}).every(nodes - 1)
	for range nodes - 1 {
		answered := -time.Duration(random.Int64N(int64(every))) // the last round before the death
		round := answered
		for round-answered <= silentAfter*every {
			round += every
		}
		last = max(last, round)
	}
	return last
}

func scaleID(kind byte, n int) (u fsm.UUID) {
	u[0] = kind
	binary.BigEndian.PutUint64(u[8:], uint64(n+1)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint32(u[1:], uint32(n))
	return u
}

// scaledState is a state with that many nodes and objects, as far as it takes them.
func scaledState(t *testing.T, nodes, objects int) (s *fsm.State, known []placement.Node) {
	t.Helper()
	s = fsm.New()
	number := 0
	do := func(cmd fsm.Command) error {
		raw, err := fsm.Encode(scaleID('r', number), cmd)
		if err != nil {
			t.Fatal(err)
		}
		number++
		result, err := s.Apply(raw)
		return errors.Join(err, result.Err())
	}
	for i := range nodes {
		n := fsm.Node{ID: scaleID('n', i), Name: fmt.Sprint("n", i), Incarnation: scaleID('i', i),
			Peer: []string{"node.cluster.example:7433"}}
		if err := do(&fsm.PutNode{Node: n}); errors.Is(err, object.ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		known = append(known, placement.Node{ID: n.ID, Name: n.Name, CapacityBytes: 64 << 30, FreeBytes: 48 << 30})
	}
	for i := range objects {
		o := fsm.Object{ID: scaleID('o', i), Tenant: "lab", Name: fmt.Sprintf("results/step%08d", i), SizeBytes: 1 << 20,
			Class: uint8(object.Named)}
		first := known[i%len(known)]
		o.Replicas = []fsm.Replica{{Node: first.ID, Incarnation: scaleID('i', i%len(known))}}
		if err := do(&fsm.Publish{Object: o}); err != nil {
			t.Fatal(err)
		}
	}
	return s, known
}

// spreadOf places the second replica of objects, and gives the most that one node got over the mean, and the time of
// one placement.
func spreadOf(known []placement.Node, objects int) (most float64, took time.Duration) {
	got := map[placement.ID]int{}
	began := time.Now()
	for i := range objects {
		first := known[i%len(known)].ID
		o := placement.Object{ID: scaleID('o', i), SizeBytes: 1 << 20, Replicas: []placement.ID{first}}
		got[placement.Targets(o, known, placement.Policy{})[0].Node]++
	}
	took = time.Since(began) / time.Duration(objects)
	for _, n := range got {
		most = max(most, float64(n))
	}
	return most * float64(len(known)) / float64(objects), took
}

func heapBytes() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// What issue and design want of a cluster, and up to how many nodes it is so.
const (
	wantedNodeRate   = 20e3 // bytes a second of a node
	wantedLeaderRate = 1e6  // of one that leads
	wantedMissed     = 5 * time.Second
	goodNodes        = 32
)

// TestScale prints what a node sends and holds, and fails where a cluster of goodNodes nodes is not as wanted.
// TENDRIL_SCALE=long takes more objects.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, which the race detector changes")
	}
	objects := 5000
	if os.Getenv("TENDRIL_SCALE") == "long" {
		objects = 1_000_000
	}
	c := measureCosts(t)
	t.Logf("a question and its answer: %.0f B; an idle follower: %.0f B/s; a publication: %.0f B a follower", c.pulse,
		c.heartbeat, c.change)
	before := heapBytes()
	s, _ := scaledState(t, 10, objects)
	each := (heapBytes() - before) / float64(objects)
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("an object: %.0f B of memory, %.0f B of a snapshot (%d objects); 10,000,000: %.1f GB and %.1f GB", each,
		float64(len(snap))/float64(objects), objects, each*1e7/1e9, float64(len(snap))/float64(objects)*1e7/1e9)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{10, goodNodes, 64, 100, 1000, 10_000} {
		every := (&liveness{}).every(n - 1).Seconds()
		node := c.pulse * float64(n-1) / every // it sends its questions, and answers to as many
		leader := node + c.heartbeat*float64(n-1)
		missed := missedAfter(n, random)
		_, known := scaledState(t, n, 0)
		most, took := spreadOf(known[:min(len(known), 250)], 1000)
		t.Logf("%6d nodes: a node sends %.1f kB/s, a leader %.0f kB/s and %.0f kB a publication; a dead node is missed "+
			"after %.0f s; %d connections; %d nodes fit", n, node/1e3, leader/1e3, c.change*float64(n-1)/1e3,
			missed.Seconds(), 2*(n-1), len(known))
		t.Logf("        of %d nodes a placement takes %v, and gives one %.1f times the mean", min(len(known), 250), took,
			most)
		if n == goodNodes && (node > wantedNodeRate || leader > wantedLeaderRate || missed > wantedMissed) {
			t.Errorf("%d nodes are too many already", n)
		}
	}
}
