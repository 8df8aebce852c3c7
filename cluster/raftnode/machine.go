package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// machine is raft's view of the state machine, and the lock around it.
type machine struct {
	fail      func(error)
	bulky     chan struct{} // holds one token when a snapshot is due by size
	snapBytes uint64
	water     *highWater
	newest    func() (uint64, error) // index of the newest snapshot on disk
	written   func(index uint64)     // waits until an entry is on this node's disk

	proposals proposals // of this node, that raft has

	mu      sync.RWMutex
	state   *fsm.State
	applied uint64        // index of the last entry that was applied
	moved   chan struct{} // closed and replaced when applied rises; nil = nobody waits
	waiting []*waiter     // for what only some entries bring
	bytes   uint64        // of commands since the last snapshot
}

// waiter is somebody who waits for what one entry brings, and is woken by no other. Its fields are guarded by
// machine.mu.
type waiter struct {
	holds func(s *fsm.State, applied uint64) bool
	there chan struct{} // closed once holds has said yes, or the state is another one
}

func newMachine(d *disk, snapBytes uint64, fail func(error), written func(uint64)) *machine {
	newest := func() (uint64, error) {
		list, err := d.snapshots.List()
		if err != nil || len(list) == 0 {
			return 0, fmt.Errorf("list the snapshots: %w", errors.Join(err, object.ErrInternal))
		}
		return list[0].Index, nil
	}
	return &machine{fail: fail, bulky: make(chan struct{}, 1), snapBytes: snapBytes, water: d.water, newest: newest,
		written: written,
		state:   fsm.New(), applied: d.snapshotIndex}
}

// Apply implements raft.FSM. raft hands entries over by ApplyBatch.
func (m *machine) Apply(log *raft.Log) any { return m.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch does committed commands, in order. One that cannot be decoded ends the goroutine and the engine: to skip
// it would make this node's state differ from the others'. Who has proposed one is told here, and not by raft's future:
// nobody else need run in between.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	m.written(logs[len(logs)-1].Index)
	results := make([]any, 0, len(logs))
	var err error
	for _, log := range logs {
		var result fsm.Result
		if result, err = m.applyOne(log); err != nil {
			err = fmt.Errorf("entry %d: %w", log.Index, err)
			break
		}
		results = append(results, result)
	}
	if n := len(results); n > 0 {
		if err1 := m.water.raise(logs[n-1].Index); err1 != nil {
			m.stop(fmt.Errorf("entry %d: %w", logs[n-1].Index, err1))
		}
		m.mu.Lock()
		m.wake()
		m.mu.Unlock()
		m.proposals.done(logs[:n], results)
	}
	if err != nil {
		m.stop(err)
	}
	return results
}

func (m *machine) stop(err error) {
	m.fail(err)
	runtime.Goexit()
}

// applyOne does one entry, and wakes nobody.
func (m *machine) applyOne(log *raft.Log) (fsm.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if log.Type == raft.LogConfiguration { // the membership changes, and the state does not
		m.applied = log.Index
		return fsm.Result{}, nil
	}
	result, err := m.state.Apply(log.Data)
	if err != nil {
		return result, err
	}
	m.applied = log.Index
	if m.bytes += uint64(len(log.Data)); m.bytes >= m.snapBytes {
		m.bytes = 0
		select {
		case m.bulky <- struct{}{}:
		default:
		}
	}
	return result, nil
}

// wake tells who waits for the next entry, or for what the last ones brought. It is called under mu.
func (m *machine) wake() {
	if m.moved != nil {
		close(m.moved)
		m.moved = nil
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(w *waiter) bool {
		holds := w.holds(m.state, m.applied)
		if holds {
			close(w.there)
		}
		return holds
	})
}

// wakeAll also wakes those whose time has not come: the state is another one. It is called under mu.
func (m *machine) wakeAll() {
	m.wake()
	for _, w := range m.waiting {
		close(w.there)
	}
	m.waiting = nil
}

// when gives what is closed once holds says yes, or the state is another one. holds is called under mu, after each
// batch of entries: it must be quick, and read nothing that others alter. stop ends the wait.
func (m *machine) when(holds func(*fsm.State, uint64) bool) (there <-chan struct{}, stop func()) {
	w := &waiter{holds, make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if holds(m.state, m.applied) {
		close(w.there)
		return w.there, func() {}
	}
	m.waiting = append(m.waiting, w)
	return w.there, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting = slices.DeleteFunc(m.waiting, func(x *waiter) bool { return x == w })
	}
}

// changed gives what is closed when the next entry was applied.
func (m *machine) changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moved == nil {
		m.moved = make(chan struct{})
	}
	return m.moved
}

// await waits until index was applied.
func (m *machine) await(ctx context.Context, index uint64, failed <-chan struct{}) error {
	for m.index() < index {
		there, stop := m.when(func(_ *fsm.State, applied uint64) bool { return applied >= index })
		select {
		case <-there:
		case <-failed:
			stop()
			return fmt.Errorf("%w: the cluster's log failed while a read waited for entry %d", object.ErrBusy, index)
		case <-ctx.Done():
			stop()
			return fmt.Errorf("%w: entry %d was not applied in time: %w", object.ErrTimeout, index, ctx.Err())
		}
	}
	return nil
}

func (m *machine) view(f func(*fsm.State)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	f(m.state)
}

func (m *machine) index() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.applied
}

// Snapshot freezes the state as it is now; Persist encodes and writes it while commands go on.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes = 0
	return image{m.state.Freeze()}, nil
}

// image encodes the state, and gives the last entry that is in it.
func (m *machine) image() ([]byte, uint64, error) {
	m.mu.Lock()
	frozen, applied := m.state.Freeze(), m.applied
	m.mu.Unlock()
	raw, err := frozen.Encode()
	return raw, applied, err
}

// Restore replaces the state by a snapshot's: the newest one on disk, where raft puts what a leader sends before it
// calls. raft does not say which index that is, and who waits for an entry that the snapshot covers waits for it.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	state, err := fsm.Restore(r)
	if err != nil {
		return err
	}
	index, err := m.newest()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.applied = state, max(m.applied, index)
	m.wakeAll()
	return nil
}

// image is a state on its way to disk.
type image struct{ *fsm.Frozen }

// Persist encodes the state, writes it and closes the sink, or cancels it.
func (i image) Persist(sink raft.SnapshotSink) error {
	raw, err := i.Encode()
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return persist(sink, raw)
}

// persist writes a snapshot and closes the sink, or cancels it.
func persist(sink raft.SnapshotSink, raw []byte) error {
	if _, err := sink.Write(raw); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release has nothing to release.
func (i image) Release() {}
