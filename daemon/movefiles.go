package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tendril/cluster/durable"
	"tendril/cluster/pki"
)

// A node changes from one cluster to another in three steps, so that a kill at any moment leaves a directory that
// starts, in the one or the other:
//
//	STATE/moving/   is filled with all that the new membership needs; a start removes it
//	STATE/moved/    it is called from the one moment on in which the move happens: a start finishes it
//	STATE/          each part takes its place; moved is removed when it is empty
//
// The log of the cluster that was left stays as raft.before, until the next move.
const (
	movingFolder   = "moving"
	movedFolder    = "moved"
	beforeFolder   = "raft.before"
	joiningFile    = "joining"        // in the log's folder: the node has not heard from its cluster yet
	foundingFile   = "founding"       // there, too: a log with no entry is to be made, that of a cluster of one
	leavingFile    = "leaving"        // the cluster is being told that the node leaves; what it has published there
	recoveringFile = "recovering"     // the node is to be a cluster of one, of what its log says
	republishFile  = "republish.json" // what was published in the cluster before, and is not yet in this one
)

// movedParts are what takes its place, in this order.
var movedParts = []string{pki.AuthorityFile, pki.NodeFile, membersFile, republishFile, recoveringFile}

// beginMove makes an empty folder to fill, with an empty log's folder in it.
func beginMove(stateDir string) (dir string, err error) {
	dir = filepath.Join(stateDir, movingFolder)
	err = errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, raftFolder), 0o700))
	return dir, err
}

// commitMove makes the move happen. What is in the folder is on disk before.
func commitMove(stateDir string) error {
	from := filepath.Join(stateDir, movingFolder)
	if err := errors.Join(durable.SyncDir(filepath.Join(from, raftFolder)), durable.SyncDir(from)); err != nil {
		return err
	}
	if err := os.Rename(from, filepath.Join(stateDir, movedFolder)); err != nil {
		return err
	}
	return durable.SyncDir(stateDir)
}

// abandonMove removes what was not committed.
func abandonMove(stateDir string) error { return os.RemoveAll(filepath.Join(stateDir, movingFolder)) }

// completeMove puts everything of a committed move where it belongs; it can be interrupted anywhere and begun again.
// Nobody may have the log open. at, which may be nil, is called between the steps.
func completeMove(stateDir string, at func(step string)) error {
	from := filepath.Join(stateDir, movedFolder)
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if at == nil {
		at = func(string) {}
	}
	if err := moveLog(stateDir, from, at); err != nil {
		return err
	}
	for _, part := range movedParts {
		to := filepath.Join(stateDir, part)
		err := os.Rename(filepath.Join(from, part), to)
		if errors.Is(err, fs.ErrNotExist) { // done, or the new cluster has no such part
			continue
		}
		if err != nil {
			return err
		}
		at("moved " + part)
	}
	if err := removeDurably(filepath.Join(stateDir, leavingFile)); err != nil {
		return err
	}
	if err := durable.SyncDir(stateDir); err != nil {
		return err
	}
	if err := os.Remove(from); err != nil {
		return fmt.Errorf("%s has parts that this release does not know: %w", from, err)
	}
	return durable.SyncDir(stateDir)
}

// moveLog puts the old log aside and the new one in its place.
func moveLog(stateDir, from string, at func(string)) error {
	next, now, before := filepath.Join(from, raftFolder), filepath.Join(stateDir, raftFolder),
		filepath.Join(stateDir, beforeFolder)
	if _, err := os.Lstat(next); errors.Is(err, fs.ErrNotExist) {
		return nil // done
	} else if err != nil {
		return err
	}
	if _, err := os.Lstat(now); err == nil {
		if err := os.RemoveAll(before); err != nil {
			return err
		}
		at("removed the log before the last")
		if err := os.Rename(now, before); err != nil {
			return err
		}
		at("put the log aside")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(next, now); err != nil {
		return err
	}
	at("put the new log in its place")
	return nil
}

// finishMove is the start-up step: a join or leave that was cut short is finished where it had happened, and forgotten
// where it had not.
func (d *Daemon) finishMove() error {
	if err := abandonMove(d.cfg.StateDir); err != nil {
		return err
	}
	return completeMove(d.cfg.StateDir, d.at)
}

// endJoining notes that the node has heard from its cluster: from now on its log must be there.
func (d *Daemon) endJoining() error {
	path := filepath.Join(d.cfg.StateDir, raftFolder, joiningFile)
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
