package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// engine is raft and its files, opened once. It is closed whole and replaced by another when its log fails.
type engine struct {
	id      string
	raft    *raft.Raft
	started atomic.Pointer[raft.Raft] // raft, for its own goroutines: they may run before that is set
	log     *logStore
	vote    *voteFile
	machine *machine
	stream  *trackedLayer // nil for a cluster of one without peers
	alone   bool          // the only voter: nobody else can lead

	snapshots *snapshotStore

	failOnce sync.Once
	failed   chan struct{} // closed by fail
	failure  error         // set before failed is closed

	closeOnce sync.Once
	over      chan struct{} // closed once raft has ended

	marking   sync.Mutex
	markedFor uint64 // the term that has its Nop

	followers *followers

	cache   raft.LogStore // the last entries, in front of log
	network *network      // nil for a cluster of one without peers
	teller  *teller
}

// openEngine checks what is on disk, then starts raft on it.
func openEngine(opts Options) (e *engine, err error) {
	e = &engine{id: opts.ID, failed: make(chan struct{}), over: make(chan struct{})}
	logger := bridge(opts.Log, opts.Level)
	disk, err := checkDisk(opts, logger)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			disk.close()
		}
	}()
	e.vote, e.snapshots = disk.vote, disk.snapshots
	e.vote.fail = e.fail
	e.log = newLogStore(disk.wal, e.fail, e.leadsOthers)
	e.vote.ahead = e.log.ahead
	checked := disk.checked // a copy: disk stays
	e.log.checked.Store(&checked)
	disk.checked = checkedLog{}
	e.machine = newMachine(disk, opts.SnapshotBytes, e.fail, e.log.ahead.written)
	trans, err := e.transport(opts, logger)
	if err != nil {
		return nil, err
	}
	if err := e.start(opts, logger, disk, trans); err != nil {
		closeTransport(trans)
		return nil, err
	}
	return e, nil
}

func (e *engine) start(opts Options, logger hclog.Logger, disk *disk, trans raft.Transport) (err error) {
	conf := raft.DefaultConfig()
	conf.PreVoteDisabled = opts.Stream == nil // there is nobody to ask, and raft would warn of it at each start
	conf.LocalID = raft.ServerID(opts.ID)
	conf.Logger = logger
	conf.SnapshotThreshold = opts.SnapshotEntries
	conf.TrailingLogs = opts.TrailingEntries
	conf.BatchApplyCh, conf.MaxAppendEntries = true, mostInline // its queue has room for so many
	conf.CommitTimeout = orDefault(opts.commitTimeout, conf.CommitTimeout)
	conf.HeartbeatTimeout = orDefault(opts.electionTimeout, conf.HeartbeatTimeout)
	conf.ElectionTimeout = orDefault(opts.electionTimeout, conf.ElectionTimeout)
	conf.LeaderLeaseTimeout = orDefault(opts.electionTimeout, conf.LeaderLeaseTimeout)
	conf.NoLegacyTelemetry = true
	conf.ShutdownOnRemove = false
	cache, err := raft.NewLogCache(512, e.log)
	if err != nil {
		return err
	}
	e.cache = cache
	servers := disk.servers
	if disk.fresh && !opts.Join {
		servers = []raft.Server{{ID: conf.LocalID, Address: raft.ServerAddress(opts.Address), Suffrage: raft.Voter}}
		if err := raft.BootstrapCluster(conf, cache, e.vote, disk.snapshots, trans,
			raft.Configuration{Servers: servers}); err != nil {
			return e.explain(fmt.Errorf("begin the cluster: %w", err))
		}
	}
	if opts.Alone {
		if servers, err = e.recover(conf, disk, trans); err != nil {
			return e.explain(fmt.Errorf("recover the cluster: %w", err))
		}
	}
	if e.raft, err = raft.NewRaft(conf, e.machine, cache, e.vote, disk.snapshots, trans); err != nil {
		return e.explain(err)
	}
	// Stats makes twenty strings: too many for a status, which the leader asks for four times a second.
	restored, _ := strconv.ParseUint(e.raft.Stats()["last_snapshot_index"], 10, 64) // the library's own number
	disk.snapshots.reached(restored)
	e.started.Store(e.raft)
	e.log.armed.Store(true)
	e.vote.armed.Store(true)
	h := header(conf, trans)
	e.followers = newFollowers(func(id raft.ServerID, address raft.ServerAddress, term uint64) bool {
		return heartbeat(trans, h, id, address, term)
	})
	e.teller = &teller{over: e.failed, told: map[raft.ServerID]uint64{},
		send: func(id raft.ServerID, index uint64) bool { return e.tellOnce(h, id, index) }}
	e.alone = soleVoter(servers, conf.LocalID)
	if e.alone {
		// Nobody else could be elected: do not sit the election timeout out.
		_ = trans.TimeoutNow(conf.LocalID, trans.LocalAddr(), &raft.TimeoutNowRequest{RPCHeader: header(conf, trans)},
			&raft.TimeoutNowResponse{})
	}
	return nil
}

// soleVoter reports whether nobody but id votes.
func soleVoter(servers []raft.Server, id raft.ServerID) bool {
	votes := 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		if votes++; s.ID != id {
			return false
		}
	}
	return votes == 1
}

func header(conf *raft.Config, trans raft.Transport) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: conf.ProtocolVersion, ID: []byte(conf.LocalID),
		Addr: trans.EncodePeer(conf.LocalID, trans.LocalAddr())}
}

// transport makes raft's transport over the stream layer, or the one of a cluster of one.
func (e *engine) transport(opts Options, logger hclog.Logger) (raft.Transport, error) {
	if opts.Stream == nil {
		return newLoopback(raft.ServerAddress(opts.Address)), nil
	}
	layer, err := opts.Stream()
	if err != nil {
		return nil, err
	}
	e.stream = track(layer)
	e.network = &network{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: e.stream, MaxPool: 3,
		Timeout: 10 * time.Second, Logger: logger}), stuckTime, e.leads, e.log.ahead.committed, e.failed}
	return e.network, nil
}

// leadsOthers reports whether this node leads, and others vote. Raft's main goroutine asks, which alone can alter that.
func (e *engine) leadsOthers() bool {
	r := e.started.Load()
	return r != nil && r.State() == raft.Leader &&
		!soleVoter(r.GetConfiguration().Configuration().Servers, raft.ServerID(e.id))
}

// leads reports whether this node leads that term, and has that follower.
func (e *engine) leads(term uint64, follower raft.ServerID) bool {
	r := e.started.Load()
	if r == nil || r.State() != raft.Leader || r.CurrentTerm() != term {
		return false
	}
	return slices.ContainsFunc(r.GetConfiguration().Configuration().Servers,
		func(s raft.Server) bool { return s.ID == follower })
}

func closeTransport(t raft.Transport) {
	if c, ok := t.(io.Closer); ok {
		c.Close()
	}
}

// fail says that the engine cannot go on. Only the first fault counts.
func (e *engine) fail(err error) {
	e.failOnce.Do(func() {
		e.failure = e.explain(err)
		close(e.failed)
	})
}

// explain adds the sentinel and what to do to an error of the log.
func (e *engine) explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: no disk space for the cluster's log: %w: free some; the node then continues by itself",
			object.ErrFull, err)
	case errors.Is(err, object.ErrVersion):
		return err
	}
	return fmt.Errorf("%w: the cluster's log: %w", object.ErrInternal, err)
}

// explainSnapshot says what a snapshot that could not be written means.
func explainSnapshot(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Sprintf("no disk space for a snapshot of the cluster's metadata, and its log keeps growing: %v: free "+
			"some; the node then takes one by itself", err)
	}
	return fmt.Sprintf("no snapshot of the cluster's metadata can be written, and its log keeps growing: %v", err)
}

// close joins raft's goroutines and closes its files. A leader that others can follow hands over first, so that they
// need not wait until they miss it. Idempotent: a log can fail while the node is closed.
func (e *engine) close() { e.closeOnce.Do(e.end) }

func (e *engine) end() {
	e.yield()
	e.fail(errors.New("closed"))
	_ = e.raft.Shutdown().Error() // never fails; the connections end with it
	close(e.over)
	e.endProposals()
	e.followers.close()
	e.teller.close()
	if e.stream != nil {
		e.stream.serving.Wait()
	}
	e.log.ahead.close()
	e.log.Close()
	e.vote.Close()
	e.machine.water.Close()
}

// yield has another node lead, where this one does; else the others elect one. A fault may have ended the goroutine of
// raft that would answer, in the midst of leading: then nothing is waited for.
func (e *engine) yield() {
	select {
	case <-e.failed:
		return
	default:
	}
	if e.raft.State() != raft.Leader || e.lastVoter() {
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = e.outcome(e.raft.LeadershipTransfer()) // bounded by the election timeout
	}()
	select {
	case <-over:
	case <-e.failed: // the goroutine ends with raft
	}
}

// lastVoter reports whether nobody but this node votes now.
func (e *engine) lastVoter() bool {
	f := e.raft.GetConfiguration()
	return f.Error() == nil && soleVoter(f.Configuration().Servers, raft.ServerID(e.id))
}

// outcome waits for a future, or until raft has ended. Raft 1.7 never answers those that are queued in its verifyCh and
// fsmMutateCh then; their goroutines stay.
func (e *engine) outcome(f raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- f.Error() }()
	select {
	case err := <-answer:
		return err
	case <-e.over:
	}
	select {
	case err := <-answer:
		return err
	default:
		return raft.ErrRaftShutdown
	}
}

func (e *engine) proposalError(err error) error {
	const unknown = "it is not known whether the change was kept: repeat it under the same request id"
	select {
	case <-e.failed:
		return fmt.Errorf("%w; %s", e.failure, unknown)
	default:
	}
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		address, id := e.raft.LeaderWithID()
		return &NotLeaderError{LeaderID: string(id), LeaderAddress: string(address)}
	}
	if errors.Is(err, raft.ErrLeadershipLost) {
		return fmt.Errorf("%w; %s", ErrLost, unknown)
	}
	return fmt.Errorf("%w; %s", e.explain(err), unknown)
}

// readIndex gives the index that a read which begins now must have applied: the commit index, once this node has proven
// that it leads and that the commit index is of its own term.
func (e *engine) readIndex(clock func() time.Time) (uint64, error) {
	term, err := e.mark(clock)
	if err != nil {
		return 0, err
	}
	commit := e.raft.CommitIndex()
	if err := e.verify(term); err != nil {
		return 0, err
	}
	if e.raft.CurrentTerm() != term {
		return 0, &NotLeaderError{}
	}
	return commit, nil
}

// mark makes sure that a command of this term is applied: before, a new leader's commit index may be behind its
// predecessor's, and entries that never reach the state machine (raft's own no-op) could be the last that are
// committed.
func (e *engine) mark(clock func() time.Time) (uint64, error) {
	e.marking.Lock()
	defer e.marking.Unlock()
	term := e.raft.CurrentTerm()
	if e.markedFor == term {
		return term, nil
	}
	raw, err := fsm.Encode(fsm.UUID{}, &fsm.Nop{})
	if err != nil {
		return 0, err
	}
	if err := fsm.Stamp(raw, clock().UnixNano()); err != nil {
		return 0, err
	}
	if _, _, err := e.propose(context.Background(), raw); err != nil {
		return 0, err
	}
	e.markedFor = term
	return term, nil
}

// tellOnce sends a follower one message that says that index is committed; false: that cannot be said yet, or it has
// not got that entry.
func (e *engine) tellOnce(h raft.RPCHeader, id raft.ServerID, index uint64) (told bool) {
	term := e.raft.CurrentTerm()
	var entry raft.Log
	if !e.leads(term, id) || e.cache.GetLog(index, &entry) != nil {
		return true // there is nothing to tell, or nobody
	}
	if e.log.ahead.committed(e.raft.CommitIndex()) < index {
		return false
	}
	var answer raft.AppendEntriesResponse
	err := e.network.NetworkTransport.AppendEntries(id, e.addressOf(id), &raft.AppendEntriesRequest{RPCHeader: h,
		Term: term, PrevLogEntry: index, PrevLogTerm: entry.Term, LeaderCommitIndex: index}, &answer)
	return err != nil || answer.Success || answer.Term > term
}

// addressOf gives a member's address; "" where it is none.
func (e *engine) addressOf(id raft.ServerID) raft.ServerAddress {
	for _, s := range e.raft.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s.Address
		}
	}
	return ""
}

func (e *engine) status() Status {
	address, id := e.raft.LeaderWithID()
	s := Status{ID: e.id, State: e.raft.State().String(), Leader: string(id), LeaderAddress: string(address),
		Term:      e.raft.CurrentTerm(),
		LastIndex: e.raft.LastIndex(), CommitIndex: e.raft.CommitIndex(), AppliedIndex: e.machine.index(),
		SnapshotIndex: e.snapshots.last(), LogStore: "raft-wal", Members: []Member{}}
	if err := e.snapshots.failed(); err != nil {
		s.SnapshotFault = explainSnapshot(err)
	}
	if conf := e.raft.GetConfiguration(); conf.Error() == nil {
		for _, x := range conf.Configuration().Servers {
			s.Members = append(s.Members, Member{string(x.ID), string(x.Address), x.Suffrage == raft.Voter})
		}
	}
	return s
}

func logDir(dir string) string { return filepath.Join(dir, "log") }

var _ raft.LogStore = (*logStore)(nil)
var _ raft.MonotonicLogStore = (*wal.WAL)(nil)
