package raftnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// tmpSuffix is how raft names the directory of a snapshot that is being written.
const tmpSuffix = ".tmp"

// snapshotStore is raft's, which leaves behind what it has written of a snapshot where the disk is full (raft 1.7:
// Create, and a sink's Cancel and Close), or where it was killed. It also knows why the last snapshot failed, which
// raft only logs.
type snapshotStore struct {
	*raft.FileSnapshotStore
	dir string // of the snapshots

	mu     sync.Mutex // a leaf
	fault  error      // of the last one that was written; nil: it is whole
	newest uint64     // the last entry in the newest; 0: there is none
}

// openSnapshots opens the store of a node's directory, and removes what a node that was killed had begun to write.
func openSnapshots(dir string, logger hclog.Logger) (*snapshotStore, error) {
	s := &snapshotStore{dir: filepath.Join(dir, "snapshots")}
	if err := s.removeBegun(); err != nil { // first: on a full disk it makes room
		return nil, err
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, logger)
	s.FileSnapshotStore = store
	return s, err
}

// removeBegun removes what there is of snapshots that were not finished. Nobody writes one meanwhile.
func (s *snapshotStore) removeBegun() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), tmpSuffix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

// Create implements raft.SnapshotStore.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err == nil {
		return &snapshotSink{SnapshotSink: sink, store: s, index: index}, nil
	}
	s.note(err)
	begun, _ := filepath.Glob(filepath.Join(s.dir, fmt.Sprintf("%d-%d-*%s", term, index, tmpSuffix)))
	for _, dir := range begun { // one at a time is written of an index
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return nil, err
}

// note notes what became of a snapshot.
func (s *snapshotStore) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
}

// failed says why the last snapshot is not there; nil: it is, or none was due.
func (s *snapshotStore) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// reached notes that there is a snapshot up to an entry.
func (s *snapshotStore) reached(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, index)
}

// last gives the last entry in the newest snapshot; 0: there is none.
func (s *snapshotStore) last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// snapshotSink is a snapshot that is being written, by one goroutine.
type snapshotSink struct {
	raft.SnapshotSink
	store *snapshotStore
	index uint64 // the last entry in it
	fault error
	over  bool
}

// Write implements raft.SnapshotSink.
func (k *snapshotSink) Write(b []byte) (int, error) {
	n, err := k.SnapshotSink.Write(b)
	if err != nil {
		k.fault = err
	}
	return n, err
}

// Close implements raft.SnapshotSink. Where it fails nothing of the snapshot is left.
func (k *snapshotSink) Close() error {
	if k.over {
		return nil
	}
	k.over = true
	err := k.SnapshotSink.Close()
	k.store.note(err)
	if err != nil {
		return errors.Join(err, k.remove())
	}
	k.store.reached(k.index)
	return nil
}

// Cancel implements raft.SnapshotSink. A connection that ended while a snapshot came over it is no fault of the disk.
func (k *snapshotSink) Cancel() error {
	if k.over {
		return nil
	}
	k.over = true
	if k.fault != nil {
		k.store.note(k.fault)
	}
	_ = k.SnapshotSink.Cancel() // where the disk is full it fails, and leaves everything
	return k.remove()
}

// remove removes what was written before the snapshot had its name.
func (k *snapshotSink) remove() error {
	return os.RemoveAll(filepath.Join(k.store.dir, k.ID()+tmpSuffix))
}
