package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
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

	mu      sync.RWMutex
	state   *fsm.State
	applied uint64        // index of the last entry that was applied
	moved   chan struct{} // closed and replaced when applied rises; nil = nobody waits
	bytes   uint64        // of commands since the last snapshot
}

func newMachine(d *disk, snapBytes uint64, fail func(error)) *machine {
	newest := func() (uint64, error) {
		list, err := d.snapshots.List()
		if err != nil || len(list) == 0 {
			return 0, fmt.Errorf("list the snapshots: %w", errors.Join(err, object.ErrInternal))
		}
		return list[0].Index, nil
	}
	return &machine{fail: fail, bulky: make(chan struct{}, 1), snapBytes: snapBytes, water: d.water, newest: newest,
		state: fsm.New(), applied: d.snapshotIndex}
}

// Apply does a committed command. One that cannot be decoded ends the goroutine and the engine: to skip it would make
// this node's state differ from the others'.
func (m *machine) Apply(log *raft.Log) any {
	m.mu.Lock()
	result, err := m.state.Apply(log.Data)
	if err == nil {
		m.advance(log.Index)
		m.bytes += uint64(len(log.Data))
		if m.bytes >= m.snapBytes {
			m.bytes = 0
			select {
			case m.bulky <- struct{}{}:
			default:
			}
		}
	}
	m.mu.Unlock()
	if err == nil {
		err = m.water.raise(log.Index)
	}
	if err != nil {
		m.fail(fmt.Errorf("entry %d: %w", log.Index, err))
		runtime.Goexit()
	}
	return result
}

// StoreConfiguration notes that an entry that changes the membership was committed.
func (m *machine) StoreConfiguration(index uint64, _ raft.Configuration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(index)
}

// advance is called under mu.
func (m *machine) advance(index uint64) {
	m.applied = index
	m.wake()
}

// wake tells who waits for the next entry. It is called under mu.
func (m *machine) wake() {
	if m.moved != nil {
		close(m.moved)
		m.moved = nil
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
	for {
		moved := m.changed()
		if m.index() >= index {
			return nil
		}
		select {
		case <-moved:
		case <-failed:
			return fmt.Errorf("%w: the cluster's log failed while a read waited for entry %d", object.ErrBusy, index)
		case <-ctx.Done():
			return fmt.Errorf("%w: entry %d was not applied in time: %w", object.ErrTimeout, index, ctx.Err())
		}
	}
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
	m.state = state
	m.advance(max(m.applied, index))
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
