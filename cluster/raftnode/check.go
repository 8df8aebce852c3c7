package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/store/object"
)

// wayOut is what a person can do about a directory that cannot be believed.
const wayOut = "restore the whole directory from a copy; or, in a cluster of several, move it away and join again; or, alone, move it away and start once with --bootstrap-anyway to begin again (what was published, tokens and tenants are then gone, and revoked certificates good again)"

func damaged(path, fault, out string) error {
	return fmt.Errorf("%w: %s: %s; nothing was altered: %s", ErrDamaged, path, fault, out)
}

// disk is what checkDisk found, opened. It is given on to the engine.
type disk struct {
	water         *highWater
	vote          *voteFile
	wal           *wal.WAL
	snapshots     *snapshotStore
	id            raft.ServerID
	snapshotIndex uint64
	checked       checkedLog    // what follows the snapshot
	servers       []raft.Server // of the last configuration
	member        bool          // this node is in one of the configurations
	fresh         bool          // nothing was ever written
}

func (d *disk) close() {
	if d.wal != nil {
		d.wal.Close()
	}
	if d.vote != nil {
		d.vote.Close()
	}
	if d.water != nil {
		d.water.Close()
	}
}

// checkDisk opens and reads everything before raft runs: raft itself falls back to an older snapshot, and raft-wal cuts
// a log off where it cannot read on, both without a word to the caller.
func checkDisk(opts Options, logger hclog.Logger) (*disk, error) {
	d := &disk{id: raft.ServerID(opts.ID)}
	if err := d.open(opts, logger); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *disk) open(opts Options, logger hclog.Logger) (err error) {
	var waterFound, voteFound bool
	if d.water, waterFound, err = openWater(opts.Dir); err != nil {
		return err
	}
	list := &segmentList{}
	segments, err := findSegments(opts.Dir)
	if err != nil {
		return err
	}
	if _, err := list.Load(logDir(opts.Dir)); err != nil {
		return err
	}
	if !list.found && (d.water.index > 0 || segments > 0) {
		return damaged(list.path,
			fmt.Sprintf("the list of log segments is gone (%d segments are there, entry %d was reached)", segments,
				d.water.index), wayOut)
	}
	if d.vote, voteFound, err = openVote(opts.Dir); err != nil {
		return err
	}
	if !voteFound && waterFound && d.water.index > 0 {
		os.Remove(filepath.Join(opts.Dir, "vote"))
		return damaged(filepath.Join(opts.Dir, "vote"), "it is gone, and with it what this node voted for", wayOut)
	}
	if d.snapshots, err = d.checkSnapshots(opts.Dir, logger); err != nil {
		return err
	}
	if err := durable.SyncDir(opts.Dir); err != nil {
		return err
	}
	if err := d.openLog(opts, list, logger); err != nil {
		return err
	}
	return d.checkOwner(opts)
}

// findSegments makes the log's directory where it is not there, and counts what is in it.
func findSegments(dir string) (int, error) {
	if err := os.MkdirAll(logDir(dir), 0o700); err != nil {
		return 0, err
	}
	names, err := filepath.Glob(filepath.Join(logDir(dir), "*.wal"))
	return len(names), err
}

// checkSnapshots restores the newest snapshot on trial.
func (d *disk) checkSnapshots(dir string, logger hclog.Logger) (*snapshotStore, error) {
	store, err := openSnapshots(dir, logger)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(store.dir)
	if err != nil {
		return nil, err
	}
	listed, err := store.List()
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, m := range listed {
		known[m.ID] = true
	}
	whole := 0
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), tmpSuffix) {
			continue
		}
		if whole++; !known[e.Name()] && whole <= retainSnapshots {
			return nil, damaged(filepath.Join(store.dir, e.Name()), "this snapshot's description cannot be read", wayOut)
		}
	}
	if len(listed) == 0 {
		return store, nil
	}
	return store, d.tryRestore(store, listed[0])
}

func (d *disk) tryRestore(store *snapshotStore, meta *raft.SnapshotMeta) error {
	path := filepath.Join(store.dir, meta.ID)
	_, r, err := store.Open(meta.ID)
	if err == nil {
		_, err = fsm.Restore(r)
		r.Close()
	}
	if errors.Is(err, object.ErrVersion) {
		return fmt.Errorf("snapshot %s: %w", meta.ID, err)
	}
	if err != nil {
		return damaged(path, "this snapshot, the newest, cannot be read: "+err.Error(), wayOut)
	}
	// The description has no checksum of its own; the directory's name says the same once more.
	if name := fmt.Sprintf("%d-%d-", meta.Term, meta.Index); !strings.HasPrefix(meta.ID, name) ||
		meta.Version != raft.SnapshotVersionMax || len(meta.Configuration.Servers) == 0 {
		return damaged(path, "this snapshot's description contradicts itself", wayOut)
	}
	d.snapshotIndex, d.servers = meta.Index, meta.Configuration.Servers
	d.lookFor(d.servers)
	return nil
}

// lookFor notes whether this node is in a configuration.
func (d *disk) lookFor(servers []raft.Server) {
	d.member = d.member || slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == d.id })
}

// openLog opens raft-wal and reads every entry.
func (d *disk) openLog(opts Options, list *segmentList, logger hclog.Logger) error {
	dir := logDir(opts.Dir)
	if err := openWAL(d, dir, opts, list, logger); err != nil {
		return err
	}
	first, err := d.wal.FirstIndex()
	if err != nil {
		return err
	}
	last, err := d.wal.LastIndex()
	if err != nil {
		return err
	}
	if reached := max(last, d.snapshotIndex); reached < d.water.index {
		return damaged(dir, fmt.Sprintf("the log and the snapshots reach entry %d, but entry %d was applied once: the log lost its end", reached, d.water.index), wayOut)
	}
	if first > d.snapshotIndex+1 {
		return damaged(dir, fmt.Sprintf("the log begins at entry %d, the newest snapshot ends at %d: the entries between are lost", first, d.snapshotIndex), wayOut)
	}
	for i := first; i != 0 && i <= last; i++ {
		if err := d.checkEntry(i); errors.Is(err, object.ErrVersion) {
			return fmt.Errorf("entry %d of %s: %w", i, dir, err)
		} else if err != nil {
			return damaged(dir, fmt.Sprintf("entry %d of %d to %d: %v", i, first, last, err), wayOut)
		}
	}
	if err := d.dropCovered(first, last); err != nil {
		return err
	}
	if d.fresh = last == 0 && d.snapshotIndex == 0; d.fresh && opts.Known && !opts.Join {
		return damaged(dir, "the log has no entry, but this node was there before: it is lost", wayOut)
	}
	return nil
}

// dropCovered empties a log that ends before the newest snapshot does. A follower that was killed, or whose disk was
// full, between the snapshot that its leader sent and the removal of its old log has such a one: raft goes on behind
// the snapshot, and raft-wal refuses an entry that does not follow its last one, for ever.
func (d *disk) dropCovered(first, last uint64) error {
	if last == 0 || last >= d.snapshotIndex {
		return nil
	}
	d.checked = checkedLog{}
	return d.wal.DeleteRange(first, last)
}

// openWAL opens raft-wal; whatever it says or panics with, about files that are there, is damage, but for a full disk.
func openWAL(d *disk, dir string, opts Options, list *segmentList, logger hclog.Logger) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = damaged(dir, fmt.Sprint(r), wayOut)
		}
	}()
	had := list.found
	if err := finishSeal(dir, list); err != nil && !isSystem(err) && !errors.Is(err, ErrDamaged) {
		return damaged(dir, err.Error(), wayOut)
	} else if err != nil {
		return err
	}
	d.wal, err = wal.Open(dir, wal.WithLogger(logger), wal.WithMetaStore(list), wal.WithSegmentSize(opts.SegmentBytes))
	if err != nil && had && !isSystem(err) {
		return damaged(dir, err.Error(), wayOut)
	}
	return err
}

// isSystem reports whether the kernel refused something, as against content that makes no sense.
func isSystem(err error) bool {
	var path *os.PathError
	return errors.As(err, &path) && !errors.Is(err, os.ErrNotExist)
}

// checkEntry reads one entry and what is in it.
func (d *disk) checkEntry(index uint64) (err error) {
	defer func() {
		if r := recover(); r != nil { // raft.DecodeConfiguration's way of saying so
			err = fmt.Errorf("%v", r)
		}
	}()
	var l raft.Log
	if err := readEntry(d.wal, index, &l); err != nil {
		return err
	}
	if index > d.snapshotIndex {
		d.checked.keep(&l)
	}
	switch l.Type {
	case raft.LogCommand:
		_, err = fsm.Decode(l.Data)
	case raft.LogConfiguration:
		conf := raft.DecodeConfiguration(l.Data)
		if index > d.snapshotIndex {
			d.servers = conf.Servers
		}
		d.lookFor(conf.Servers)
	}
	return err
}

// checkOwner refuses the directory of another node: two nodes with one history would both believe that they are it. A
// node that was taken out of a cluster of two finds its own ID in an earlier configuration.
func (d *disk) checkOwner(opts Options) error {
	if opts.Join { // the first entries that it gets are of the time before it
		return nil
	}
	if len(d.servers) == 1 && string(d.servers[0].ID) != opts.ID && !d.member {
		return damaged(opts.Dir, fmt.Sprintf("it belongs to the cluster of node %s; this is node %s", d.servers[0].ID,
			opts.ID), "give the node its own identity back, or move the directory away")
	}
	return nil
}
