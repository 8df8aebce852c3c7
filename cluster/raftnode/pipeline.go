package raftnode

import (
	"time"

	"github.com/hashicorp/raft"
)

// network is raft's transport, with pipelines that cannot stop for ever.
//
// In raft 1.7 a leader sends entries to a follower by a pipeline: one goroutine sends, one reads the answers, and one
// takes these. The last ends at an answer that refuses entries. If the first sends once more before it notices, it
// waits for the second, which waits for the third. The follower then hears heartbeats and gets no entry until another
// node leads, and Shutdown waits for ever (hashicorp/raft issue 612).
type network struct {
	*raft.NetworkTransport
	limit time.Duration // for one hand-over of a request
}

// stuckTime is how long a pipeline may take no request. One that a slow follower holds up so long is closed, too: raft
// goes on without it, and makes the next one when the follower has caught up.
const stuckTime = 2 * time.Second

// AppendEntriesPipeline implements raft.Transport.
func (n *network) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := n.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &pipeline{p, n.limit}, nil
}

type pipeline struct {
	raft.AppendPipeline
	limit time.Duration
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture,
	error) {
	stuck := time.AfterFunc(p.limit, func() { _ = p.Close() }) // which ends the wait
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}
