// Package raftnode runs the replicated state machine (cluster/fsm) under hashicorp/raft, on disk from the first start:
// a single node is a cluster of one.
//
// What is on disk is believed only after it was read whole: every entry of the log has a checksum of its own, the
// newest snapshot is restored on trial, the log must reach from the snapshot to the highest index that was ever applied
// (high-water), and the vote must be there. What does not hold is refused with ErrDamaged and the way out; nothing is
// cut off, skipped or begun again in silence.
//
// Log store: hashicorp/raft-wal. Measured with 0.4.0 (200 appends of 256 bytes, strace -f, ext4 on a 2-core VM):
// raft-wal 1 fsync and 1 write an append, 88 µs; raft-boltdb/v2 2.3.1 2 fdatasync and 5 writes, 230 µs. (raft-boltdb
// 2.3.1 also did not build with the go-metrics of raft 1.8.) One Propose on a cluster of one costs k = 1 fsync; of
// several 2, the leader's and a follower's, at the same time (ahead). Term
// and vote are in a file of our own, allocated once, because raft panics when they cannot be saved and a database would
// need room on a full disk; the list of segments is in a checksummed file of our own, because raft-wal deletes
// segments that its list does not name.
//
// When the log cannot be written (disk full, I/O error) the proposer gets the error, reads of what is there go on
// (View), and the node closes the log and opens it again every RetryInterval until that works; raft-wal does not
// promise to be usable after a failed append. A proposer that got an error other than a refusal does not know whether
// the command was kept: it repeats it under the same request id.
//
// Trust: DIR belongs to the daemon's user. Peers are trusted members (the stream layer authenticates them), their
// commands are decoded like a stranger's.
//
// Goroutines: raft's own (joined by its Shutdown), raft-wal's rotation (ends with its Close), one supervisor, one that
// writes a leader's log, one for each follower that is told what is committed, for each read whose context can end and
// each proposal that takes long (all joined by Close), one for each answer of raft's that is waited for. The last stays
// where raft ends and forgets to answer (engine.outcome).
//
// Lock order: Node.mu before machine.mu; neither is held while raft is called. voteFile.mu comes before ahead.mu.
// proposals.mu, ahead.mu and teller.mu are leaves. engine.marking is held while a command is proposed.
package raftnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/sirupsen/logrus"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// ErrDamaged is returned, wrapped with the file, the fault and the way out, when what is on disk cannot be believed.
var ErrDamaged = errors.New("the cluster's metadata on disk is damaged")

// ErrLost is returned, wrapped, when a node stopped leading while a command of its was under way.
var ErrLost = fmt.Errorf("%w: another node leads the cluster now", object.ErrBusy)

// StreamLayer is what carries raft's connections.
type StreamLayer = raft.StreamLayer

// Options says how a node is run. Zero values mean the defaults that the comments name.
type Options struct {
	Dir     string // the node's own directory, made 0700 where it is not there
	ID      string // the node's identifier, for life
	Address string // where peers reach it; "" = the ID, which is enough for a cluster of one

	// Stream makes the layer that carries raft's connections to and from peers (mutual TLS). It is called again when
	// the node has to reopen its log. nil = a cluster of one that no peer reaches.
	Stream func() (raft.StreamLayer, error)
	// Join says that the node has not heard from its cluster yet: with an empty log it waits to be added by the leader,
	// where otherwise a first start makes a cluster of one.
	Join bool
	// Alone makes the node the only member and voter of what its log says, whoever the members were: all that stands in
	// its log counts as committed. For a cluster that has lost most of its voters for good.
	Alone bool
	// Known says that the node has been there before: a log without an entry is then ErrDamaged, and no first start.
	Known bool

	Log   logrus.FieldLogger // nil = no log
	Level logrus.Level       // what raft may say, at most; 0 (PanicLevel) = InfoLevel

	SnapshotEntries uint64        // a snapshot after so many commands; 0 = 8192
	SnapshotBytes   uint64        // or after so many bytes of commands; 0 = 64 MiB
	TrailingEntries uint64        // kept in the log behind a snapshot; 0 = 1024
	SegmentBytes    int           // size of a log segment, allocated ahead; 0 = 4 MiB
	RetryInterval   time.Duration // between attempts to reopen a log that failed; 0 = 5 s
	Clock           func() time.Time

	commitTimeout time.Duration // after which raft tells followers what is committed; 0 = its default, 50 ms
	// electionTimeout is how long a follower does without its leader, and the leader without most of its followers; 0 =
	// raft's defaults, 1 s and 500 ms.
	electionTimeout time.Duration
	lockTime        time.Duration // for tests; 0 = dyingTime
}

// retainSnapshots is how many snapshots stay on disk.
const retainSnapshots = 2

// Defaults fills the zero fields in.
func (o Options) Defaults() Options {
	if o.Address == "" {
		o.Address = o.ID
	}
	if o.Log == nil {
		o.Log = silent()
	}
	if o.Level == logrus.PanicLevel {
		o.Level = logrus.InfoLevel
	}
	o.SnapshotEntries = orDefault(o.SnapshotEntries, 8192)
	o.SnapshotBytes = orDefault(o.SnapshotBytes, 64<<20)
	o.TrailingEntries = orDefault(o.TrailingEntries, 1024)
	o.SegmentBytes = orDefault(o.SegmentBytes, 4<<20)
	o.RetryInterval = orDefault(o.RetryInterval, 5*time.Second)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return o
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Validate names every fault of options that Defaults has filled in.
func (o Options) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!filepath.IsAbs(o.Dir), "raft directory %q is not an absolute path", o.Dir)
	fault(o.ID == "" || len(o.ID) > maxCandidateBytes, "node id %q is empty or longer than %d bytes", o.ID,
		maxCandidateBytes)
	fault(o.SegmentBytes < 64<<10 || o.SegmentBytes > 1<<30, "log segments of %d bytes: want 64 KiB to 1 GiB",
		o.SegmentBytes)
	fault(o.RetryInterval < time.Millisecond ||
		o.RetryInterval > time.Hour, "retry interval %v is not between 1ms and 1h", o.RetryInterval)
	fault(o.Join && o.Stream == nil, "to join a cluster a stream layer is needed")
	return errors.Join(faults...)
}

// Node is a running member. All methods are safe for concurrent use.
type Node struct {
	opts Options
	lock *os.File
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // the supervisor and calls whose context can end

	mu     sync.Mutex
	engine *engine  // nil while the log is being reopened, and after Close
	last   *machine // never nil: what View reads
	fault  error    // why there is no engine
}

// Open starts a node on opts.Dir. A cluster of one leads it by the time Open returns. Errors: ErrBusy when another
// process has the directory, ErrDamaged when what is on disk cannot be believed, ErrVersion when a newer version wrote
// it, ErrTimeout when ctx ended first.
func Open(ctx context.Context, opts Options) (*Node, error) {
	opts = opts.Defaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrInvalid, err)
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, opts.Dir, orDefault(opts.lockTime, dyingTime))
	if err != nil {
		return nil, err
	}
	e, err := openSettled(ctx, opts)
	if err != nil {
		lock.Close()
		return nil, err
	}
	opts.Alone = false // it is: a log that is reopened later may have other members
	n := &Node{opts: opts, lock: lock, engine: e, last: e.machine}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.wg.Go(n.supervise)
	return n, nil
}

func openSettled(ctx context.Context, opts Options) (*engine, error) {
	e, err := openEngine(opts)
	if err != nil {
		return nil, err
	}
	if err := settle(ctx, opts, e); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// dyingTime bounds the wait for the lock of a daemon that was killed: its children have copies of its descriptors until
// they run a program of their own. The state directory's lock has been waited for before, and goes a moment before or
// after this one: a child that gets no processor between the two makes that a long one.
const dyingTime = 20 * time.Second

// lockDir takes the directory for this process. The lock goes with the descriptor, so also with a killed process, if
// not at once: it is waited for, until ctx ends.
func lockDir(ctx context.Context, dir string, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for errors.Is(err, syscall.EWOULDBLOCK) && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is in use by another daemon: stop that one, or use another directory",
				object.ErrBusy, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// settle waits until a node that is alone leads itself and has applied its whole log.
func settle(ctx context.Context, opts Options, e *engine) error {
	if !e.alone {
		return nil
	}
	for leads := false; !leads; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the node did not become the leader of its own cluster: %w",
				object.ErrTimeout, ctx.Err())
		case <-e.failed:
			return e.failure
		case leads = <-e.raft.LeaderCh():
		}
	}
	index, err := e.readIndex(opts.Clock)
	if err != nil {
		return err
	}
	return e.machine.await(ctx, index, e.failed)
}

// snapshotRetries is how many RetryIntervals pass before a snapshot that could not be written is tried again. raft's
// own next attempt comes after two to four minutes.
const snapshotRetries = 6

// supervise takes snapshots when enough bytes came, or the last one failed, and reopens a log that failed.
func (n *Node) supervise() {
	again := time.NewTicker(snapshotRetries * n.opts.RetryInterval)
	defer again.Stop()
	for {
		e, _ := n.current()
		if e == nil {
			if !n.reopen() {
				return
			}
			continue
		}
		select {
		case <-n.ctx.Done():
			return
		case <-e.machine.bulky:
			n.snapshot(e)
		case <-again.C:
			if e.snapshots.failed() != nil {
				n.snapshot(e)
			}
		case <-e.failed:
			n.opts.Log.WithError(e.failure).Error("the cluster's log failed; closing it and trying again")
			n.mu.Lock()
			n.engine, n.fault = nil, e.failure
			n.mu.Unlock()
			e.close()
		}
	}
}

// snapshot takes one. Where the log fails meanwhile a goroutine of raft's may have ended that would answer: then
// nothing is waited for.
func (n *Node) snapshot(e *engine) {
	done := make(chan error, 1)
	n.wg.Go(func() { done <- e.outcome(e.raft.Snapshot()) }) // at the latest when the engine is closed
	select {
	case err := <-done:
		if err != nil {
			n.opts.Log.WithError(err).Warn("cannot take a snapshot of the cluster's metadata; the log keeps growing")
		}
	case <-e.failed:
	}
}

// reopen tries once, after a pause; false = the node was closed.
func (n *Node) reopen() bool {
	pause := time.NewTimer(n.opts.RetryInterval)
	defer pause.Stop()
	select {
	case <-n.ctx.Done():
		return false
	case <-pause.C:
	}
	e, err := openSettled(n.ctx, n.opts)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.ctx.Err() != nil { // Close has come by already and saw no engine
		n.mu.Unlock()
		e.close()
		n.mu.Lock()
		return false
	}
	if err != nil {
		n.fault = err
		n.opts.Log.WithError(err).Error("the cluster's log cannot be opened again yet")
		return true
	}
	old := n.last
	n.engine, n.last, n.fault = e, e.machine, nil
	old.mu.Lock()
	old.wakeAll() // who waits looks at the new one from now on
	old.mu.Unlock()
	n.opts.Log.Info("the cluster's log is open again")
	return true
}

// current gives the engine, or why there is none.
func (n *Node) current() (*engine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine != nil {
		return n.engine, nil
	}
	if n.ctx.Err() != nil {
		return nil, fmt.Errorf("%w: the node is closed", object.ErrBusy)
	}
	return nil, fmt.Errorf("the cluster's log is not available, retrying every %v: %w", n.opts.RetryInterval, n.fault)
}

// Close ends the node: proposals under way get an error, every goroutine is joined, the directory is free. Idempotent.
func (n *Node) Close() error {
	n.stop()
	n.mu.Lock()
	e := n.engine
	n.engine = nil
	n.mu.Unlock()
	if e != nil {
		e.close()
	}
	n.wg.Wait()
	if err := n.lock.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// NotLeaderError says that another node must be asked. It is an ErrBusy: where there is no leader just now, try again.
type NotLeaderError struct {
	LeaderID, LeaderAddress string // "" = none is known
}

func (e *NotLeaderError) Error() string {
	if e.LeaderID == "" {
		return "the cluster has no leader just now: try again"
	}
	return fmt.Sprintf("node %s at %s leads the cluster: ask it", e.LeaderID, e.LeaderAddress)
}

// Unwrap gives ErrBusy.
func (e *NotLeaderError) Unwrap() error { return object.ErrBusy }

// Propose has the cluster do a command. It returns once the command is on disk at a majority and done here. request
// makes a repetition harmless (fsm.Encode).
//
// Errors: a refusal is the sentinel that the state machine gave, with its Result; *NotLeaderError; ErrFull or
// ErrInternal when the log could not be written; ctx's. After every error but the refusal and *NotLeaderError the
// command may have been kept all the same: repeat it under the same request id.
func (n *Node) Propose(ctx context.Context, request fsm.UUID, cmd fsm.Command) (fsm.Result, error) {
	raw, err := fsm.Encode(request, cmd)
	if err != nil {
		return fsm.Result{}, err
	}
	result, _, err := n.ProposeEncoded(ctx, raw)
	if err != nil {
		return result, err
	}
	return result, result.Err()
}

// ProposeEncoded is Propose for a command that another node forwarded, or that may be forwarded to one: a refusal is no
// error here, and index is the entry to wait for (Await) before what was done shows in another node's View. raw is
// stamped with this node's clock and belongs to the node afterwards.
func (n *Node) ProposeEncoded(ctx context.Context, raw []byte) (result fsm.Result, index uint64, err error) {
	if err := fsm.Stamp(raw, n.opts.Clock().UnixNano()); err != nil {
		return result, 0, err
	}
	e, err := n.current()
	if err != nil {
		return result, 0, err
	}
	if err := ctx.Err(); err != nil { // a node that ends is one, too: the one that asked goes on to the next leader
		return result, 0, fmt.Errorf("%w: nothing was proposed: %w", object.ErrTimeout, err)
	}
	return e.propose(ctx, raw)
}

// await runs f, and returns early where ctx ends; f then ends by itself, at the latest when the node is closed.
func await[T any](ctx context.Context, n *Node, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	n.mu.Lock()
	if n.ctx.Err() != nil {
		n.mu.Unlock()
		var zero T
		return zero, fmt.Errorf("%w: the node is closed", object.ErrBusy)
	}
	n.wg.Add(1)
	n.mu.Unlock()
	go func() {
		defer n.wg.Done()
		v, err := f()
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var zero T
		return zero, fmt.Errorf("%w: the cluster did not answer in time: %w", object.ErrTimeout, ctx.Err())
	}
}

// Read calls f with the state as it is now: every command that was done anywhere before Read was called is in it. f
// must not keep the state, alter it or block. Errors: *NotLeaderError; ctx's; what current says. f is not called then.
func (n *Node) Read(ctx context.Context, f func(*fsm.State)) error {
	index, err := n.ReadIndex(ctx)
	if err != nil {
		return err
	}
	if err := n.Await(ctx, index); err != nil {
		return err
	}
	n.View(f)
	return nil
}

// ReadIndex gives what a read that begins now has to wait for (Await), on this node or another. Errors: those of Read.
func (n *Node) ReadIndex(ctx context.Context) (uint64, error) {
	e, err := n.current()
	if err != nil {
		return 0, err
	}
	return await(ctx, n, func() (uint64, error) { return e.readIndex(n.opts.Clock) })
}

// Await waits until View shows what the entry index and all before it did.
func (n *Node) Await(ctx context.Context, index uint64) error {
	e, err := n.current()
	if err != nil {
		return err
	}
	return e.machine.await(ctx, index, e.failed)
}

// Tell has a node know soon that the entry index is committed, as it is: where this node leads, and that one follows.
// It waits for nobody.
func (n *Node) Tell(id string, index uint64) {
	if e, err := n.current(); err == nil && e.stream != nil && e.raft.State() == raft.Leader {
		e.teller.tell(raft.ServerID(id), index)
	}
}

// View calls f with the state as this node knows it, which may be behind the cluster's; it also works without a leader
// and while the log has failed. f must not keep the state, alter it or block.
func (n *Node) View(f func(*fsm.State)) {
	n.mu.Lock()
	m := n.last
	n.mu.Unlock()
	m.view(f)
}

// Written gives what the state would be if all that stands in this node's log were done: after a start without the
// others a node knows no better, for what of its log was committed it cannot tell. The state is the caller's own.
func (n *Node) Written() (*fsm.State, error) {
	e, err := n.current()
	if err != nil {
		return nil, err
	}
	image, from, err := e.machine.image()
	if err != nil {
		return nil, err
	}
	state, err := fsm.Restore(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	last, err := e.log.LastIndex()
	if err != nil {
		return nil, err
	}
	for i := from + 1; i <= last; i++ {
		var l raft.Log
		if err := readEntry(e.log.WAL, i, &l); err != nil {
			return nil, fmt.Errorf("entry %d of the log: %w", i, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		if _, err := state.Apply(l.Data); err != nil {
			return nil, fmt.Errorf("entry %d of the log: %w", i, err)
		}
	}
	return state, nil
}

// Changed gives a channel that is closed when the state that View shows is another one: get it, look, then wait.
func (n *Node) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last.changed()
}

// When gives a channel that is closed once holds says yes, perhaps at once, or View shows a state of another log or
// snapshot. Where it says no nobody is woken. holds is called with each new state: it must be quick, must not block,
// and reads nothing that others alter. stop ends the wait, and must be called.
func (n *Node) When(holds func(*fsm.State) bool) (there <-chan struct{}, stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last.when(func(s *fsm.State, _ uint64) bool { return holds(s) })
}

// Leads reports whether this node leads the cluster, as far as it knows.
func (n *Node) Leads() bool {
	e, err := n.current()
	return err == nil && e.raft.State() == raft.Leader
}

// LogEnd gives the term and the index of the last entry of the node's log; zeros while it is being reopened.
func (n *Node) LogEnd() (term, index uint64) {
	e, err := n.current()
	if err != nil {
		return 0, 0
	}
	stats := e.raft.Stats()
	fmt.Sscan(stats["last_log_term"], &term)
	fmt.Sscan(stats["last_log_index"], &index)
	return term, index
}

// InTouch reports whether the node leads, or has heard from its leader within that time: View is then not far behind.
func (n *Node) InTouch(within time.Duration) bool {
	e, err := n.current()
	if err != nil {
		return false
	}
	return e.raft.State() == raft.Leader || time.Since(e.raft.LastContact()) < within
}

// Wake wakes who waits for Changed or When: for those who look at another node from now on.
func (n *Node) Wake() {
	n.mu.Lock()
	m := n.last
	n.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakeAll()
}

// Status is what there is to see of a node.
type Status struct {
	ID            string   `json:"id"`
	State         string   `json:"state"` // Leader, Follower, Candidate, Failed
	Leader        string   `json:"leader"`
	LeaderAddress string   `json:"leader_address"`
	Term          uint64   `json:"term"`
	LastIndex     uint64   `json:"last_index"`
	CommitIndex   uint64   `json:"commit_index"`
	AppliedIndex  uint64   `json:"applied_index"`
	SnapshotIndex uint64   `json:"snapshot_index"`
	LogStore      string   `json:"log_store"`
	Members       []Member `json:"members"`
	Fault         string   `json:"fault,omitempty"`
	SnapshotFault string   `json:"snapshot_fault,omitempty"` // why the last snapshot could not be written
}

// Member is one node of raft's configuration.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
}

// Status describes the node. It waits for nobody.
func (n *Node) Status() Status {
	e, err := n.current()
	if err != nil {
		return Status{ID: n.opts.ID, State: "Failed", LogStore: "raft-wal", Members: []Member{}, Fault: err.Error()}
	}
	return e.status()
}

// Raft gives the library's own handle, for membership changes; nil while the log is being reopened.
func (n *Node) Raft() *raft.Raft {
	e, err := n.current()
	if err != nil {
		return nil
	}
	return e.raft
}
