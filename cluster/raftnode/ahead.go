package raftnode

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// ahead is what a leader has handed to its followers and is still writing to its own disk. Raft appends to the leader's
// log, and only then sends: two writes to disks one after the other. Here the leader writes while its followers do
// (Raft dissertation §10.2.1), so that a change takes the longer of the two.
//
// Raft counts the leader's own copy once StoreLogs returns, which is too early. So until an entry is on this disk,
//
//   - no state machine does it: neither this node's (machine.ApplyBatch waits), nor a follower's (network and pipeline
//     say of no such entry that it is committed). So nobody is told that it was kept, and it may be lost.
//   - this node saves no vote and no later term (voteFile): who follows another leader says what it has on disk. A node
//     that runs still knows the entry, and votes for none that lacks it; one that has crashed has not answered for it.
//
// All else waits until everything is written: what is no command (a change of the members takes effect at once), what a
// follower appends, what is cut off.
type ahead struct {
	write func([]*raft.Log) error // durably
	first atomic.Uint64           // index of the first entry that is not on disk; 0: all are

	mu      sync.Mutex // a leaf
	moved   sync.Cond  // entries came, were written, or it ends
	entries []*raft.Log
	bytes   int
	started bool
	broken  bool // a write failed: no entry is written any more
	closed  bool
	writer  sync.WaitGroup
}

// A leader is so far ahead of its disk at most: raft then waits for it.
const (
	mostAhead      = 256
	mostAheadBytes = 4 << 20
)

func newAhead(write func([]*raft.Log) error) *ahead {
	a := &ahead{write: write}
	a.moved.L = &a.mu
	return a
}

// add takes entries to write, and returns at once unless too many wait; false: they will not be.
func (a *ahead) add(ls []*raft.Log) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.broken && !a.closed && (len(a.entries) >= mostAhead || a.bytes >= mostAheadBytes) {
		a.moved.Wait()
	}
	if a.broken || a.closed {
		return false
	}
	if !a.started {
		a.started = true
		a.writer.Go(a.run)
	}
	a.entries = append(a.entries, ls...)
	a.bytes += dataBytes(ls)
	a.first.Store(a.entries[0].Index)
	a.moved.Broadcast()
	return true
}

func dataBytes(ls []*raft.Log) (n int) {
	for _, l := range ls {
		n += len(l.Data)
	}
	return n
}

// run writes what waits, all of it at a time.
func (a *ahead) run() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		for len(a.entries) == 0 && !a.closed {
			a.moved.Wait()
		}
		if len(a.entries) == 0 {
			return
		}
		batch := slices.Clone(a.entries)
		a.mu.Unlock()
		err := a.write(batch)
		a.mu.Lock()
		if err != nil {
			a.broken = true
			a.moved.Broadcast()
			return
		}
		a.entries = slices.Delete(a.entries, 0, len(batch))
		a.bytes -= dataBytes(batch)
		if len(a.entries) > 0 {
			a.first.Store(a.entries[0].Index)
		} else {
			a.first.Store(0)
		}
		a.moved.Broadcast()
	}
}

// written waits until the entry index and all before it are on disk. Where they cannot be written the calling
// goroutine, one of raft's, ends: the engine has failed, and nothing may be said any more.
func (a *ahead) written(index uint64) {
	if first := a.first.Load(); first == 0 || first > index {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for first := a.first.Load(); first != 0 && first <= index; first = a.first.Load() {
		if a.broken {
			runtime.Goexit()
		}
		a.moved.Wait()
	}
}

// all waits until everything is on disk, as written does.
func (a *ahead) all() { a.written(^uint64(0)) }

// committed gives what followers may be told of a commit index.
func (a *ahead) committed(index uint64) uint64 {
	if first := a.first.Load(); first != 0 {
		return min(index, first-1)
	}
	return index
}

// get gives an entry that is not on disk yet.
func (a *ahead) get(index uint64, l *raft.Log) bool {
	if first := a.first.Load(); first == 0 || index < first {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.entries {
		if x.Index == index {
			*l = *x
			return true
		}
	}
	return false
}

// close writes the rest. Raft has ended.
func (a *ahead) close() {
	a.mu.Lock()
	a.closed = true
	a.moved.Broadcast()
	a.mu.Unlock()
	a.writer.Wait()
}
