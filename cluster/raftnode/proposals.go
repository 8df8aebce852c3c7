package raftnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// proposals are the commands of this node that raft has. Who proposes one is told by the state machine that it is done,
// on the goroutine that has done it: to ask raft's future would take a goroutine of its own for each command, because a
// future cannot be waited for beside a context, and knows nothing of raft's end. Raft's future is only asked where that
// takes long, or this node does not lead: it alone knows why a command was not taken.
//
// A command is known by its bytes' place in memory: what raft reads back from its log is elsewhere, and then the future
// says what became of it. mu is a leaf.
type proposals struct {
	mu       sync.Mutex
	all      map[*byte]*proposal
	watching bool // look is due
	closed   bool // no future is asked any more
	asking   sync.WaitGroup
}

// proposal is one command. Its fields but over are guarded by proposals.mu until over is closed.
type proposal struct {
	future  raft.ApplyFuture // nil: raft has not taken it yet
	since   time.Time
	asked   bool // somebody waits for the future
	settled bool
	over    chan struct{} // closed once the fields below are set

	result fsm.Result
	index  uint64
	err    error
}

// slowTime is after what time raft's future is asked. A leader that is about to hand over refuses a command so, and one
// that loses its leadership.
const slowTime = 20 * time.Millisecond

var errEnded = fmt.Errorf("%w: this node's log is closed, or is being opened again: try again", object.ErrBusy)

// mostInline is how many commands raft takes at once without a wait: raft.Config.MaxAppendEntries, whose queue it is.
const mostInline = 64

// enter begins a proposal. room: raft takes it at once.
func (x *proposals) enter(raw []byte) (p *proposal, room bool) {
	p = &proposal{since: time.Now(), over: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		p.err = errEnded
		x.settle(&raw[0], p)
		return p, false
	}
	if x.all == nil {
		x.all = map[*byte]*proposal{}
	}
	x.all[&raw[0]] = p
	return p, len(x.all) <= mostInline
}

// done tells who has proposed what was applied.
func (x *proposals) done(logs []*raft.Log, results []any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.all) == 0 {
		return
	}
	for i, log := range logs {
		if len(log.Data) == 0 {
			continue
		}
		if p := x.all[&log.Data[0]]; p != nil {
			p.result, p.index = results[i].(fsm.Result), log.Index
			x.settle(&log.Data[0], p)
		}
	}
}

// settle ends a proposal, once. mu is held.
func (x *proposals) settle(key *byte, p *proposal) {
	if !p.settled {
		p.settled = true
		close(p.over)
	}
	delete(x.all, key)
}

// propose hands raft a command and waits until it is done, or ctx ends; it goes on then, and nobody knows the outcome.
func (e *engine) propose(ctx context.Context, raw []byte) (fsm.Result, uint64, error) {
	x := &e.machine.proposals
	p, room := x.enter(raw)
	if room {
		e.handOver(raw, p)
	} else { // which may wait for raft
		x.mu.Lock()
		e.ask(func() { e.handOver(raw, p) })
		x.mu.Unlock()
	}
	select {
	case <-p.over:
		return p.result, p.index, p.err
	case <-ctx.Done():
		return fsm.Result{}, 0, fmt.Errorf("%w: the cluster did not answer in time: %w", object.ErrTimeout, ctx.Err())
	}
}

// handOver hands a command to raft.
func (e *engine) handOver(raw []byte, p *proposal) {
	future := e.raft.Apply(raw, 0)
	leads := e.raft.State() == raft.Leader
	x := &e.machine.proposals
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.future = future; p.settled {
		return
	}
	if !leads {
		e.askFuture(&raw[0], p)
		return
	}
	if !x.watching {
		x.watching = true
		time.AfterFunc(slowTime, e.lookAtProposals)
	}
}

// lookAtProposals asks the futures of those that take long, for as long as there are proposals.
func (e *engine) lookAtProposals() {
	x := &e.machine.proposals
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, p := range x.all {
		if p.future != nil && !p.asked && time.Since(p.since) >= slowTime {
			e.askFuture(key, p)
		}
	}
	if x.watching = len(x.all) > 0 && !x.closed; x.watching {
		time.AfterFunc(slowTime, e.lookAtProposals)
	}
}

// ask runs f beside, unless the engine ends: then what is proposed ends, too. proposals.mu is held.
func (e *engine) ask(f func()) {
	if x := &e.machine.proposals; !x.closed {
		x.asking.Go(f)
	}
}

// askFuture waits for a future beside. proposals.mu is held.
func (e *engine) askFuture(key *byte, p *proposal) {
	p.asked = true
	e.ask(func() {
		err := e.outcome(p.future)
		result, ok := fsm.Result{}, false
		if err == nil {
			if result, ok = p.future.Response().(fsm.Result); !ok { // the machine stopped instead of applying
				err = raft.ErrRaftShutdown
			}
		}
		e.answer(key, p, result, err)
	})
}

// answer settles a proposal by what raft's future says.
func (e *engine) answer(key *byte, p *proposal, result fsm.Result, err error) {
	x := &e.machine.proposals
	if err != nil {
		err = e.proposalError(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !p.settled {
		if p.result, p.err = result, err; err == nil {
			p.index = p.future.Index()
		}
		x.settle(key, p)
	}
}

// endProposals ends those that nobody answers any more, once raft has ended.
func (e *engine) endProposals() {
	x := &e.machine.proposals
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.asking.Wait()
	err := e.proposalError(raft.ErrRaftShutdown)
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, p := range x.all {
		p.err = err
		x.settle(key, p)
	}
}
