package raftnode

import (
	"fmt"
	"reflect"
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
	log := newLogStore(disk.wal, func(err error) { t.Error(err) }, func() bool { return false })
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

// TestCheckedEntries: what was read before raft runs is what the log has, as long as nothing is cut off, and until raft
// has read the last of it.
func TestCheckedEntries(t *testing.T) {
	opts := options(t.TempDir()).Defaults()
	n := open(t, opts)
	propose(t, n, 0, 20)
	n.Close()

	disk, err := checkDisk(opts, bridge(opts.Log, opts.Level))
	if err != nil {
		t.Fatal(err)
	}
	defer disk.close()
	log := newLogStore(disk.wal, func(err error) { t.Error(err) }, func() bool { return false })
	log.checked.Store(&disk.checked)
	first, last := disk.checked.entries[0].Index, uint64(0)
	if last, err = log.LastIndex(); err != nil || first != 1 || int(last) != len(disk.checked.entries) || last < 20 {
		t.Fatalf("%d entries from %d on are kept of %d: %v", len(disk.checked.entries), first, last, err)
	}
	all := func() {
		t.Helper()
		for i := first; i <= last; i++ {
			var have, want raft.Log
			if err := log.GetLog(i, &have); err != nil {
				t.Fatal(err)
			}
			if err := readEntry(disk.wal, i, &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(have, want) {
				t.Errorf("entry %d: %+v, want %+v", i, have, want)
			}
		}
	}
	all()
	if log.checked.Load() == nil {
		t.Error("the entries are forgotten before raft runs")
	}
	if err := log.DeleteRange(last, last); err != nil {
		t.Fatal(err)
	}
	if err := log.StoreLog(&raft.Log{Index: last, Term: 77, Type: raft.LogNoop}); err != nil {
		t.Fatal(err)
	}
	all()
	log.checked.Store(&disk.checked)
	log.armed.Store(true)
	var l raft.Log
	for i, kept := range []bool{true, false} {
		if err := log.GetLog(last-1+uint64(i), &l); err != nil || (log.checked.Load() != nil) != kept {
			t.Errorf("entry %d of %d: %v; kept %v", last-1+uint64(i), last, err, !kept)
		}
	}
	if err := log.GetLog(last+1, &l); err == nil {
		t.Error("an entry that is not there was given")
	}
}

// TestCheckedEntriesAreBounded: too many are not kept, nor those behind a gap; the log has them.
func TestCheckedEntriesAreBounded(t *testing.T) {
	var c checkedLog
	data := make([]byte, maxCheckedBytes/4)
	for i := uint64(5); i < 15; i++ {
		c.keep(&raft.Log{Index: i, Data: data})
	}
	var l raft.Log
	for i := uint64(0); i < 20; i++ {
		found, last := c.give(i, &l)
		if want := i >= 5 && i < 8; found != want || last != (i == 7) || found && l.Index != i {
			t.Error(fmt.Sprint("entry ", i, ": ", found, last, l.Index))
		}
	}
}
