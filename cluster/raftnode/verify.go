package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// followers asks the other voters whether this node still leads, for reads. An answer counts only for reads that began
// before its question was sent. raft's own VerifyLeader takes an answer that was under way already: one that a leader
// finds unread when it wakes (SIGSTOP, a machine that slept) is of a time when another node did not lead yet
// (Raft dissertation §6.4: heartbeats after the read index was taken).
type followers struct {
	// ask sends a heartbeat, and reports whether the voter follows this node.
	ask     func(id raft.ServerID, address raft.ServerAddress, term uint64) bool
	running sync.WaitGroup // of calls of ask

	mu     sync.Mutex                  // a leaf
	closed bool                        // nobody is asked any more
	voters map[raft.ServerID]*follower // those that are being asked
}

// follower is one voter that is being asked. At most one question is under way at it: a voter that stands still costs
// one goroutine.
type follower struct {
	waiting []*reading // whose question has not been sent yet
}

// reading is a read that waits for a majority. Its fields are guarded by followers.mu.
type reading struct {
	term   uint64
	wanted int        // more voters that have to agree
	open   int        // that have not answered
	done   chan error // has room for the outcome
}

func newFollowers(ask func(raft.ServerID, raft.ServerAddress, uint64) bool) *followers {
	return &followers{ask: ask, voters: map[raft.ServerID]*follower{}}
}

// begin asks those of servers that vote, other than self. What is given has the outcome: nil once a majority of them,
// self counted, has answered to a question of now that it follows self in this term.
func (f *followers) begin(self raft.ServerID, servers []raft.Server, term uint64) <-chan error {
	r := &reading{term: term, done: make(chan error, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		r.done <- &NotLeaderError{}
		return r.done
	}
	voters, votes := 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == self {
			votes++
			continue
		}
		r.open++
		f.question(s, r)
	}
	r.wanted = voters/2 + 1 - votes
	r.settle()
	return r.done
}

// close waits until nobody is asked any more. The connections have been closed.
func (f *followers) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.running.Wait()
}

// question adds a read to those that the next question at a voter is for. It is called under mu.
func (f *followers) question(s raft.Server, r *reading) {
	v := f.voters[s.ID]
	if v == nil {
		v = &follower{}
		f.voters[s.ID] = v
		f.running.Go(func() { f.questions(s, v) })
	}
	v.waiting = append(v.waiting, r)
}

// questions asks a voter for as long as reads wait for it.
func (f *followers) questions(s raft.Server, v *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(v.waiting) > 0 {
		batch, term := v.waiting, v.waiting[len(v.waiting)-1].term
		v.waiting = nil
		f.mu.Unlock()
		follows := f.ask(s.ID, s.Address, term)
		f.mu.Lock()
		for _, r := range batch {
			r.open--
			if follows && r.term == term {
				r.wanted--
			}
			r.settle()
		}
	}
	delete(f.voters, s.ID) // it may vote no more, or be no member
}

// settle gives the outcome where there is one. It is called under followers.mu.
func (r *reading) settle() {
	var err error
	switch {
	case r.wanted <= 0:
	case r.open < r.wanted:
		err = &NotLeaderError{}
	default:
		return
	}
	select {
	case r.done <- err:
	default: // it has its outcome
	}
}

// heartbeat asks a follower whether it follows this node in a term, as raft's own heartbeats do.
func heartbeat(trans raft.Transport, h raft.RPCHeader, id raft.ServerID, address raft.ServerAddress, term uint64) bool {
	var answer raft.AppendEntriesResponse
	err := trans.AppendEntries(id, address,
		&raft.AppendEntriesRequest{RPCHeader: h, Term: term}, &answer)
	return err == nil && answer.Success && answer.Term == term
}

// verify proves that this node leads the cluster in a term, at some moment after the call.
func (e *engine) verify(term uint64) error {
	conf := e.raft.GetConfiguration()
	if err := conf.Error(); err != nil {
		return e.proposalError(err)
	}
	if e.raft.State() != raft.Leader { // its heartbeats would keep the others from electing one
		return e.proposalError(raft.ErrNotLeader)
	}
	agreed := e.followers.begin(raft.ServerID(e.id), conf.Configuration().Servers, term)
	// raft's own proof is not enough, but it ends at once where this node stops leading.
	if err := e.outcome(e.raft.VerifyLeader()); err != nil {
		return e.proposalError(err)
	}
	select {
	case err := <-agreed:
		return err
	case <-e.over:
		return e.proposalError(raft.ErrRaftShutdown)
	}
}
