package raftnode

import (
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// network is raft's transport, with pipelines that cannot stop for ever and followers that are heard as soon as they
// are back.
//
// In raft 1.7 a leader sends entries to a follower by a pipeline: one goroutine sends, one reads the answers, and one
// takes these. The last ends at an answer that refuses entries. If the first sends once more before it notices, it
// waits for the second, which waits for the third. The follower then hears heartbeats and gets no entry until another
// node leads, and Shutdown waits for ever (hashicorp/raft issue 612).
//
// After each failure to send entries raft waits twice as long, up to 10 s, whatever heartbeats find out. A follower
// that has been away for some seconds is then back for up to 10 s without an entry; where another one dies meanwhile,
// the leader goes on to lead and nothing is committed. So entries are sent again here, until they arrive or the leader
// does not want that any more: raft counts no failure.
type network struct {
	*raft.NetworkTransport
	limit     time.Duration                                  // for one hand-over of a request
	wanted    func(term uint64, follower raft.ServerID) bool // this node leads that term, and has that follower
	committed func(index uint64) uint64                      // what followers may be told of raft's commit index
	over      <-chan struct{}                                // closed before raft ends
}

// stuckTime is how long a pipeline may take no request. One that a slow follower holds up so long is closed, too: raft
// goes on without it, and makes the next one when the follower has caught up.
const stuckTime = 2 * time.Second

// Pauses between two attempts to send a follower its entries.
const (
	leastResend = 10 * time.Millisecond
	mostResend  = 250 * time.Millisecond
)

// AppendEntries implements raft.Transport.
func (n *network) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	args.LeaderCommitIndex = n.committed(args.LeaderCommitIndex)
	send := func() error { return n.NetworkTransport.AppendEntries(id, target, args, resp) }
	if isHeartbeat(args) {
		return send()
	}
	return n.untilSent(args.Term, id, send)
}

// isHeartbeat tells raft's heartbeats, which it repeats soon enough itself, from what brings entries.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0
}

// InstallSnapshot implements raft.Transport. The snapshot can be read once, so a heartbeat asks first whether the
// follower is there.
func (n *network) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	beat := &raft.AppendEntriesRequest{RPCHeader: args.RPCHeader, Term: args.Term}
	err := n.untilSent(args.Term, id, func() error {
		return n.NetworkTransport.AppendEntries(id, target, beat, &raft.AppendEntriesResponse{})
	})
	if err != nil {
		return err
	}
	return n.NetworkTransport.InstallSnapshot(id, target, args, resp, data)
}

// untilSent repeats what fails for as long as it is wanted.
func (n *network) untilSent(term uint64, follower raft.ServerID, send func() error) error {
	for pause := leastResend; ; pause = min(2*pause, mostResend) {
		err := send()
		if err == nil || !n.wanted(term, follower) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-n.over:
			timer.Stop()
			return err
		}
	}
}

// AppendEntriesPipeline implements raft.Transport.
func (n *network) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := n.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &pipeline{p, n.limit, n.committed}, nil
}

type pipeline struct {
	raft.AppendPipeline
	limit     time.Duration
	committed func(index uint64) uint64
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture,
	error) {
	args.LeaderCommitIndex = p.committed(args.LeaderCommitIndex)
	stuck := time.AfterFunc(p.limit, func() { _ = p.Close() }) // which ends the wait
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}
