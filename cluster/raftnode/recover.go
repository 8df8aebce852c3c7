package raftnode

import (
	"io"

	"github.com/hashicorp/raft"

	"tendril/cluster/fsm"
)

// recover writes a snapshot of all that stands in the log, with this node as the only member. raft has not begun. It
// may be cut short, and done again.
func (e *engine) recover(conf *raft.Config, disk *disk, trans raft.Transport) ([]raft.Server, error) {
	alone := []raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr(), Suffrage: raft.Voter}}
	last, err := e.log.LastIndex()
	if err != nil {
		return nil, err
	}
	if last == 0 && len(disk.servers) == 1 && disk.servers[0].ID == conf.LocalID { // it was cut short after that
		return disk.servers, nil
	}
	err = raft.RecoverCluster(conf, &replay{fsm.New(), nil}, e.log, e.vote, disk.snapshots, trans,
		raft.Configuration{Servers: alone})
	return alone, err
}

// replay is a state machine for the time of a recovery.
type replay struct {
	state *fsm.State
	fault error // of a command: nothing after it is done
}

// Apply does a command.
func (r *replay) Apply(log *raft.Log) any {
	if r.fault == nil {
		_, r.fault = r.state.Apply(log.Data)
	}
	return nil
}

// Snapshot gives the state, unless a command could not be done.
func (r *replay) Snapshot() (raft.FSMSnapshot, error) {
	if r.fault != nil {
		return nil, r.fault
	}
	return image{r.state.Freeze()}, nil
}

// Restore takes a snapshot's state.
func (r *replay) Restore(from io.ReadCloser) (err error) {
	defer from.Close()
	r.state, err = fsm.Restore(from)
	return err
}
