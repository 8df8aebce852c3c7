package raftnode

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestLogThatWasCut: a node that followed a leader cuts the end off its log where the next leader has other entries.
// The log opens again afterwards, whole.
func TestLogThatWasCut(t *testing.T) {
	opts := options(t.TempDir()).Defaults()
	n := open(t, opts)
	propose(t, n, 0, 20)
	n.Close()

	disk, err := checkDisk(opts, bridge(opts.Log, opts.Level))
	if err != nil {
		t.Fatal(err)
	}
	log := &logStore{WAL: disk.wal, fail: func(err error) { t.Error(err) }}
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var kept raft.Log
	if err := log.GetLog(last, &kept); err != nil {
		t.Fatal(err)
	}
	added := []*raft.Log{{Index: last + 1, Term: kept.Term, Type: raft.LogNoop},
		{Index: last + 2, Term: kept.Term, Type: raft.LogNoop}}
	if err := log.StoreLogs(added); err != nil {
		t.Fatal(err)
	}
	if err := log.DeleteRange(last+1, last+2); err != nil {
		t.Fatal(err)
	}
	if err := log.StoreLog(&raft.Log{Index: last + 1, Term: kept.Term + 1, Type: raft.LogNoop}); err != nil {
		t.Fatal(err)
	}
	disk.close()

	n = open(t, opts)
	defer n.Close()
	read(t, n, 20)
	propose(t, n, 20, 30)
	read(t, n, 30)
}
