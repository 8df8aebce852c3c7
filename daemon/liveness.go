package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Which of the other nodes answer. Each node asks each other one in turn how it is, over the connection that requests
// between the two go over anyway. What it learns is its own: nothing of it is in the metadata.

// Times of liveness.
const (
	pulseEvery   = time.Second     // between two questions to one node
	pulsesPerSec = 64              // of a node: with more nodes each is asked less often
	pulseTime    = 2 * time.Second // for one answer
	silentAfter  = 3               // pauses without an answer, after which a node is silent
	roundsLost   = 2               // pauses without a round, after which this node itself stood still
	pulseAge     = 2 * pulseEvery  // of an answer that is still news
	settleTime   = 2 * time.Second // for which somebody waits for news
)

// liveness is what this node knows of the others. mu is a leaf.
type liveness struct {
	m        *membership
	patience func() time.Duration // the daemon's

	mu    sync.Mutex
	nodes map[fsm.UUID]*pulse
	over  bool      // nothing is begun any more
	round time.Time // when the last round was looked at
	awake time.Time // since when this node has looked without a pause: nobody's silence counts from before
}

// pulse is one node's. Its fields are guarded by liveness.mu, and done is closed when a question has its outcome.
type pulse struct {
	done     chan struct{} // of the question that is under way; nil: none is
	asked    time.Time     // when the last outcome came; zero: there is none yet
	answered time.Time     // when the last answer came; before the first: when the node was first heard of
	since    time.Time     // since when it answers, or is silent
	silent   bool
	why      string // it did not answer
	latency  time.Duration
	state    wire.PulseReply
}

// nodeState is what is known of a node.
type nodeState struct {
	Answers         bool          // false: it has been silent for some time
	Since           time.Time     // since when; zero: nothing is known of it yet
	Why             string        // it does not answer
	Latency         time.Duration // one way, the least that was seen; 0: not known
	wire.PulseReply               // the last answer; zero: there was none
}

// alive says whether a node answers, and since when. One of which nothing is known counts as one that does; so does
// this one.
func (l *liveness) alive(node fsm.UUID) nodeState {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.nodes[node]
	if p == nil {
		return nodeState{Answers: true}
	}
	x := nodeState{Answers: !p.silent, Since: p.since, Latency: p.latency, PulseReply: p.state}
	if p.silent {
		x.Why = p.why
	}
	return x
}

// every is the pause between two questions to one node, in a cluster of that many others.
func (l *liveness) every(others int) time.Duration {
	return max(pulseEvery, time.Duration(others)*time.Second/pulsesPerSec)
}

// watch asks the other nodes until the membership ends.
func (l *liveness) watch() {
	for l.m.ctx.Err() == nil {
		var nodes []fsm.Node
		var changes uint64
		l.m.raft.View(func(s *fsm.State) { nodes, changes = s.Nodes(), s.NodeChanges() })
		every := l.every(len(nodes) - 1)
		l.forget(nodes)
		for _, n := range nodes {
			if n.ID != l.m.node {
				l.begin(n.ID)
			}
		}
		l.noteSilent(time.Now(), every)
		l.rest(every, len(nodes) < 2, changes)
	}
}

// rest waits for the next round. A node that is alone waits for others.
func (l *liveness) rest(every time.Duration, alone bool, changes uint64) {
	if !alone {
		l.m.pause(every)
		return
	}
	changed, stop := l.m.raft.When(func(s *fsm.State) bool { return s.NodeChanges() != changes })
	defer stop()
	select {
	case <-l.m.ctx.Done():
	case <-changed:
	}
}

// forget drops what is known of nodes that are no members any more.
func (l *liveness) forget(nodes []fsm.Node) {
	there := map[fsm.UUID]bool{}
	for _, n := range nodes {
		there[n.ID] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.nodes {
		if !there[id] {
			delete(l.nodes, id)
		}
	}
}

// begin asks a node, unless it is being asked. The channel is closed when there is an outcome.
func (l *liveness) begin(node fsm.UUID) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.nodes[node]
	if p == nil {
		p = &pulse{answered: time.Now()}
		l.nodes[node] = p
	}
	if l.over {
		over := make(chan struct{})
		close(over)
		return over
	}
	if p.done == nil {
		p.done = make(chan struct{})
		l.m.running.Go(func() { l.ask(node, p) })
	}
	return p.done
}

// ask asks one node once.
func (l *liveness) ask(node fsm.UUID, p *pulse) {
	ctx, cancel := context.WithTimeout(l.m.ctx, pulseTime)
	defer cancel()
	began := time.Now()
	var reply wire.PulseReply
	b, err := l.m.links.ask(ctx, node, wire.Pulse, nil)
	if err == nil {
		err = reply.Decode(b)
	}
	if err == nil && fsm.UUID(reply.Node) != node {
		err = fmt.Errorf("%w: node %s answers in its place", object.ErrProtocol, reply.Node)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	p.asked = now
	if err != nil && !errors.Is(err, object.ErrUnsupported) { // of a release without pulses, which answers all the same
		p.why = err.Error()
	} else {
		p.note(now, now.Sub(began), reply)
	}
	close(p.done)
	p.done = nil
}

// note enters an answer. liveness.mu is held.
func (p *pulse) note(now time.Time, took time.Duration, reply wire.PulseReply) {
	if p.silent || p.since.IsZero() || p.state.Incarnation != reply.Incarnation {
		p.since = now
	}
	p.silent, p.why, p.answered, p.state = false, "", now, reply
	if took /= 2; p.latency == 0 || took < p.latency {
		p.latency = took
	}
}

// noteSilent finds the nodes that have not answered for some pauses. Who waits for one of them is told so. Where this
// node itself stood still since the last round (SIGSTOP, a machine that slept), the pauses begin anew: the answers may
// lie unread.
func (l *liveness) noteSilent(now time.Time, every time.Duration) {
	var ended []fsm.UUID
	most := silentAfter*every + l.patience()
	l.mu.Lock()
	if now.Sub(l.round) > roundsLost*every {
		l.awake = now
	}
	l.round = now
	for id, p := range l.nodes {
		if !p.silent && now.Sub(latest(p.answered, l.awake)) > most {
			p.silent, p.since = true, latest(p.answered, l.awake)
			if p.why == "" {
				p.why = "it does not answer"
			}
			ended = append(ended, id)
		}
	}
	l.mu.Unlock()
	for _, id := range ended {
		l.m.links.drop(id)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// end lets nothing more begin. Who waits for the membership's goroutines then waits for all.
func (l *liveness) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// settle waits until something new is known of nodes, but not for long.
func (l *liveness) settle(ctx context.Context, nodes []fsm.Node) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	var outcomes []<-chan struct{}
	for _, n := range nodes {
		if n.ID != l.m.node && l.isOld(n.ID) {
			outcomes = append(outcomes, l.begin(n.ID))
		}
	}
	for _, done := range outcomes {
		select {
		case <-done:
		case <-l.m.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// isOld reports whether there is no news of a node. What a silent one says is not waited for.
func (l *liveness) isOld(node fsm.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.nodes[node]
	return p == nil || !p.silent && time.Since(p.answered) > pulseAge || p.asked.IsZero()
}

// Pulse implements frontdoor.Nodes.
func (d *Daemon) Pulse() wire.PulseReply {
	x := (*nodeServer)(d).Probe()
	st := d.meta.raft.Status()
	return wire.PulseReply{Node: object.ID(x.Node), Incarnation: object.ID(x.Incarnation),
		CapacityBytes: x.CapacityBytes, FreeBytes: x.FreeBytes, Transfers: x.Transfers, LastIndex: st.LastIndex,
		LogFailed: st.Fault != ""}
}

// alive says whether a node of the cluster answers, and since when. This one does.
func (d *Daemon) alive(node fsm.UUID) nodeState {
	if node == d.meta.node {
		return nodeState{Answers: true, Since: d.node.Since, PulseReply: d.Pulse()}
	}
	return d.meta.now.Load().live.alive(node)
}

// answers reports whether a node of the cluster answers.
func (d *Daemon) answers(node fsm.UUID) bool {
	return node == d.meta.node || d.meta.now.Load().live.alive(node).Answers
}

// answering gives the replicas whose nodes answer.
func (d *Daemon) answering(list []fsm.Replica) []fsm.Replica {
	return slices.DeleteFunc(list, func(r fsm.Replica) bool { return !d.answers(r.Node) })
}
