package daemon

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/leases"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

// network carries what the nodes of a test say to each other, and loses it where it is told to: in one direction, or
// both. What is under way when it is cut arrives when it is healed, as with TCP, unless an end gave up meanwhile.
type network struct {
	t        *testing.T
	voteTime time.Duration // of the nodes
	devices  int           // that each has, of a driver that is none
	at       func(node int, step string)
	clock    func(node int) func() time.Time

	segmentBytes int
	leaseHold    time.Duration
	keepsPlaces  bool // in the lines for leases, of who does not ask for longer than leases.Patience, too
	leaseAsk     time.Duration
	catchUpTime  time.Duration

	ns *nodes // of its cluster

	mu      sync.Mutex
	nodes   map[string]int // by address
	lost    map[[2]int]bool
	tenth   bool          // of what is said is lost once, and comes when TCP sends it again
	late    time.Duration // everything comes so late
	changed chan struct{} // closed when lost is another one
	over    chan struct{} // closed with the test
	running sync.WaitGroup
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, nodes: map[string]int{}, lost: map[[2]int]bool{}, changed: make(chan struct{}),
		over: make(chan struct{}), leaseAsk: time.Minute}
}

// cluster starts n nodes that reach each other over the network, as one cluster.
func (w *network) cluster(n int) *clusterOf {
	w.t.Helper()
	w.t.Cleanup(func() { close(w.over); w.running.Wait() }) // once the nodes have ended
	x := &clusterOf{t: w.t, ns: newNodes(w.t)}
	w.ns = x.ns
	w.t.Cleanup(w.heal)
	for i := range n {
		w.node(x, i)
		if i > 0 {
			join(w.t, x.all[0].cfg, x.all[0], x.all[i])
		}
	}
	for _, d := range x.all {
		await.Until(w.t, "every node knows all", func() bool { return len(clusterInfo(w.t, d).Nodes) == n })
	}
	return x
}

// node starts a node.
func (w *network) node(x *clusterOf, i int) {
	w.t.Helper()
	c := aNode(w.t, fmt.Sprintf("n%d", i))
	c.Listen = freePort(w.t)
	w.mu.Lock()
	w.nodes[c.Listen] = i
	w.mu.Unlock()
	d := x.ns.startWith(c, func(d *Daemon) {
		d.dialNode, d.voteTime = w.dial(i), w.voteTime
		d.segmentBytes, d.leaseHold, d.catchUpTime = w.segmentBytes, w.leaseHold, w.catchUpTime
		d.leaseAsk = w.leaseAsk
		if w.keepsPlaces {
			began := time.Now()
			d.leases = leases.New(0, func() time.Time { return began })
			d.wishes.patience = time.Hour
		}
		if w.clock != nil {
			d.clock = w.clock(i)
		}
		if w.at != nil {
			d.at = func(step string) { w.at(i, step) }
		}
		if w.devices > 0 {
			d.platforms = fakePlatforms(c.NodeName, w.devices)
		}
	})
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	x.all, x.conns = append(x.all, d), append(x.conns, conn)
}

// cutOff loses all that a node says and all that is said to it.
func (w *network) cutOff(node, nodes int) {
	for i := range nodes {
		if i != node {
			w.cut(i, node)
			w.cut(node, i)
		}
	}
}

// cut loses what one node says to another.
func (w *network) cut(from, to int) {
	w.ns.gone.Store(true)
	w.change(func() { w.lost[[2]int{from, to}] = true })
}

// heal loses nothing any more.
func (w *network) heal() { w.change(func() { clear(w.lost); w.tenth, w.late = false, 0 }) }

// resendTime is how long TCP takes at least until it sends again what was lost.
const resendTime = 200 * time.Millisecond

// delayed is how long something takes that is said now.
func (w *network) delayed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := w.late
	for w.tenth && rand.IntN(10) == 0 {
		late += resendTime
	}
	return late
}

func (w *network) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// pass waits until what one node says to another is not lost. False: the context has ended, or the test.
func (w *network) pass(ctx context.Context, from, to int) bool {
	for {
		w.mu.Lock()
		lost, changed := w.lost[[2]int{from, to}], w.changed
		w.mu.Unlock()
		if !lost {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-w.over:
			return false
		}
	}
}

// dial is a node's nodeDial.
func (w *network) dial(from int) nodeDial {
	return func(ctx context.Context, address string) (net.Conn, error) {
		w.mu.Lock()
		to, known := w.nodes[address]
		w.mu.Unlock()
		if !known || from == to {
			return dialTCP(ctx, address)
		}
		if !w.pass(ctx, from, to) || !w.pass(ctx, to, from) {
			return nil, fmt.Errorf("dial %s: %w", address, context.DeadlineExceeded)
		}
		far, err := dialTCP(ctx, address)
		if err != nil {
			return nil, err
		}
		near, here, err := loopback.Conns()
		if err != nil {
			far.Close()
			return nil, err
		}
		w.carry(here, far, from, to)
		return near, nil
	}
}

// carry moves bytes between the two ends of a connection until one of them closes it.
func (w *network) carry(near, far net.Conn, from, to int) {
	ctx, cancel := context.WithCancel(context.Background())
	end := func() { cancel(); near.Close(); far.Close() }
	w.running.Go(func() { defer end(); w.pump(ctx, far, near, from, to) })
	w.running.Go(func() { defer end(); w.pump(ctx, near, far, to, from) })
	w.running.Go(func() {
		select {
		case <-w.over:
			end()
		case <-ctx.Done():
		}
	})
}

func (w *network) pump(ctx context.Context, into io.Writer, out io.Reader, from, to int) {
	b := make([]byte, 64<<10)
	for {
		n, err := out.Read(b)
		if err == nil {
			// Pause: the network's fault.
			time.Sleep(w.delayed())
		}
		if err != nil || !w.pass(ctx, from, to) {
			return
		}
		if _, err := into.Write(b[:n]); err != nil {
			return
		}
	}
}
