package raftnode

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/store/object"
)

// Seed fills an empty directory with a state (a snapshot of cluster/fsm) that Open begins with, as the log of a cluster
// whose only member is the node id. Errors: ErrExists where the directory has a snapshot; those of fsm.Restore.
func Seed(dir, id string, state []byte) error {
	if _, err := fsm.Restore(bytes.NewReader(state)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, bridge(silent(), 0))
	if err != nil {
		return err
	}
	if list, err := store.List(); err != nil || len(list) > 0 {
		return errors.Join(err, fmt.Errorf("%w: %s has a log already", object.ErrExists, dir))
	}
	self := raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id), Suffrage: raft.Voter}
	sink, err := store.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{Servers: []raft.Server{self}}, 1,
		newLoopback(self.Address))
	if err != nil {
		return err
	}
	if err := persist(sink, state); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}
