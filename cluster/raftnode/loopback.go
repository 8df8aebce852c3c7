package raftnode

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

var errNoPeers = errors.New("this node runs without a stream layer and reaches no peer")

// loopback is the transport of a cluster of one: it reaches nobody, and carries the one message that the node sends
// itself.
type loopback struct {
	address  raft.ServerAddress
	incoming chan raft.RPC
}

func newLoopback(address raft.ServerAddress) *loopback {
	return &loopback{address: address, incoming: make(chan raft.RPC, 1)}
}

// TimeoutNow has this node stand for election at once. It does not wait for the answer.
func (l *loopback) TimeoutNow(_ raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest,
	_ *raft.TimeoutNowResponse) error {
	if target != l.address {
		return errNoPeers
	}
	l.incoming <- raft.RPC{Command: args, RespChan: make(chan raft.RPCResponse, 1)}
	return nil
}

// Consumer gives what the node sent itself.
func (l *loopback) Consumer() <-chan raft.RPC { return l.incoming }

// LocalAddr is this node's address.
func (l *loopback) LocalAddr() raft.ServerAddress { return l.address }

// EncodePeer gives an address as bytes.
func (l *loopback) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }

// DecodePeer is the reverse.
func (l *loopback) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler is for transports that hear heartbeats.
func (l *loopback) SetHeartbeatHandler(func(raft.RPC)) {}

// AppendEntriesPipeline fails: there are no peers.
func (l *loopback) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, errNoPeers
}

// AppendEntries fails: there are no peers.
func (l *loopback) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest,
	*raft.AppendEntriesResponse) error {
	return errNoPeers
}

// RequestVote fails: there are no peers.
func (l *loopback) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest,
	*raft.RequestVoteResponse) error {
	return errNoPeers
}

// InstallSnapshot fails: there are no peers.
func (l *loopback) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest,
	*raft.InstallSnapshotResponse, io.Reader) error {
	return errNoPeers
}
