package raftnode

import (
	"context"
	"errors"
	"runtime/metrics"
	"testing"
	"time"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// created counts the goroutines that this process has ever made.
func created() uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// TestProposingMakesNoGoroutines: who proposes is told by the state machine. The least of some rounds counts: of what
// takes long raft's future is asked, so that rounds with such a proposal prove nothing. Every slowTime a goroutine
// looks for these; it is not counted.
func TestProposingMakesNoGoroutines(t *testing.T) {
	n := open(t, options(t.TempDir()))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	const rounds, each = 20, 20
	least := int64(1 << 60)
	for i, quick := 0, 0; least > each/2; i++ {
		before, slowest, start := created(), time.Duration(0), time.Now()
		for k := range each {
			began := time.Now()
			if _, err := n.Propose(ctx, request(i*each+k), set(i*each+k)); err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(began))
		}
		looks := int64(time.Since(start)/slowTime) + 1
		least = min(least, int64(created()-before)-looks)
		if slowest < slowTime {
			quick++
		}
		if least > each/2 && quick == rounds {
			t.Fatalf("%d proposals made %d goroutines at least", each, least)
		}
	}
	x := &n.engine.machine.proposals
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.all) != 0 {
		t.Fatalf("%d proposals are kept", len(x.all))
	}
}

// TestProposalsBeyondRaftsQueue: more at once than raft takes without a wait all come to their end.
func TestProposalsBeyondRaftsQueue(t *testing.T) {
	n := open(t, options(t.TempDir()))
	const many = 5 * mostInline
	faults := make(chan error, many)
	for i := range many {
		go func() {
			_, err := n.Propose(context.Background(), request(i), set(i))
			faults <- err
		}()
	}
	for range many {
		if err := <-faults; err != nil {
			t.Fatal(err)
		}
	}
	read(t, n, many)
}

// TestProposalOfAnEndedNode: it is refused, and nobody waits for it.
func TestProposalOfAnEndedNode(t *testing.T) {
	n := open(t, options(t.TempDir()))
	e, err := n.current()
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	raw, err := fsm.Encode(request(1), set(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.propose(context.Background(), raw); !errors.Is(err, object.ErrBusy) {
		t.Fatalf("%v, want ErrBusy", err)
	}
}

// TestWhenWakesForNothingElse: who waits for one kind of change is woken by no other one, and by a new state.
func TestWhenWakesForNothingElse(t *testing.T) {
	n := open(t, options(t.TempDir()))
	nodes := uint64(0)
	n.View(func(s *fsm.State) { nodes = s.NodeChanges() })
	other := func(s *fsm.State) bool { return s.NodeChanges() != nodes }
	woken, stop := n.When(other)
	defer stop()
	left, leave := n.When(other)
	leave()
	propose(t, n, 0, 10)
	select {
	case <-woken:
		t.Fatal("a policy woke who waits for nodes")
	default:
	}
	node := fsm.Node{ID: request(77), Name: "b", Incarnation: request(78)}
	if _, err := n.Propose(context.Background(), request(11), &fsm.PutNode{Node: node}); err != nil {
		t.Fatal(err)
	}
	<-woken
	select {
	case <-left:
		t.Fatal("who waits no longer was woken")
	default:
	}
	at, stop := n.When(other)
	defer stop()
	<-at // it holds already
	n.View(func(s *fsm.State) { nodes = s.NodeChanges() })
	again, stop := n.When(func(*fsm.State) bool { return false })
	defer stop()
	n.Wake()
	<-again
}
