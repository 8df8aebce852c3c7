package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tendril/cluster"
	"tendril/cluster/durable"
	"tendril/cluster/pki"
	"tendril/store"
)

// A node that has started once never becomes a new one by itself. What a state directory lost (a volume that was not
// mounted, a restore of half of it) would be made again, and what it said be forgotten: without the log no certificate
// is revoked any more. So a first start notes that it is one, until everything is made; every other start wants
// everything to be there.

// firstStartFile stands in the state directory while a first start makes what belongs there.
const firstStartFile = "first-start"

// Folders in the state directory.
const (
	raftFolder    = "raft"    // the log's
	objectsFolder = "objects" // of objects on disk
)

// ErrIncomplete is returned, wrapped with what is missing, for a state directory that has lost a part of itself.
var ErrIncomplete = errors.New("some are missing")

// BootstrapAnyway lets the daemon start with a state directory that is not whole: what is missing is made again. Before
// Run.
func (d *Daemon) BootstrapAnyway() { d.anyway = true }

// statePart is what every start but the first one finds.
type statePart struct {
	path string
	what string
	lost string // what follows from making it again
	must bool
}

var stateParts = []statePart{
	{cluster.IdentityFile, "the node's identity", "this node is no longer a member of the cluster", true},
	{pki.AuthorityFile, "the authority's key", "every node and client has to join or log in again", true},
	{pki.NodeFile, "the node's certificate", "", false}, // it may be removed, to get another
	{raftFolder, "the log of the cluster's metadata",
		"tokens, tenants and published names are gone, and certificates that were revoked are good again", true},
}

// keptObjects is what a start finds where objects that have to last were put on disk: the store marks that.
var keptObjects = statePart{objectsFolder, "the persisted objects", "they are gone", true}

// lookAtState tells a first start from a later one, and refuses the latter where something is missing.
func (d *Daemon) lookAtState() error {
	if d.inherited != nil {
		return nil // the daemon before this one has it open
	}
	there, missing, err := d.partsOfState()
	if err != nil {
		return err
	}
	marker := filepath.Join(d.cfg.StateDir, firstStartFile)
	_, err = os.Lstat(marker)
	switch {
	case err == nil: // one that was cut short
		d.first = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case len(there) == 0:
		d.first = true
		return errors.Join(store.ForgoSpill(filepath.Join(d.cfg.StateDir, objectsFolder)), noteFirstStart(marker))
	case len(missing) > 0 && !d.anyway:
		return d.incomplete(there, missing)
	}
	if d.first {
		return nil
	}
	var faults []error
	for _, p := range missing {
		path := filepath.Join(d.cfg.StateDir, p.path)
		d.log.WithField("missing", path).Warnf("--bootstrap-anyway: creating %s again: %s", p.what, p.lost)
		if p == keptObjects {
			faults = append(faults, store.ForgoSpill(path))
		}
	}
	return errors.Join(faults...)
}

// partsOfState says what is there of the state directory's parts, and what of those that have to be is not.
func (d *Daemon) partsOfState() (there, missing []statePart, err error) {
	for _, p := range stateParts {
		has, err := hasState(filepath.Join(d.cfg.StateDir, p.path))
		switch {
		case err != nil:
			return nil, nil, err
		case has:
			there = append(there, p)
		case p.must:
			missing = append(missing, p)
		}
	}
	if d.cfg.SpillBytes < 0 || len(there) == 0 { // nobody looks there, or it is another node that put them there
		return there, missing, nil
	}
	lost, err := store.IsSpillMissing(filepath.Join(d.cfg.StateDir, objectsFolder))
	if lost {
		missing = append(missing, keptObjects)
	}
	return there, missing, err
}

// hasState says whether a file is there, or anything in a directory.
func hasState(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.IsDir() {
		return err == nil, err
	}
	entries, err := os.ReadDir(path)
	return len(entries) > 0, err
}

func (d *Daemon) incomplete(there, missing []statePart) error {
	var have, lost []string
	for _, p := range there {
		have = append(have, p.path)
	}
	for _, p := range missing {
		lost = append(lost, fmt.Sprintf("%s (%s; recreated, %s)", p.path, p.what, p.lost))
	}
	return fmt.Errorf("%w: %s has %s of an earlier node, but not %s. Is a volume not mounted, or was only a part restored? Restore the whole directory from a copy, or, "+
		"if that is meant, start once with --bootstrap-anyway", ErrIncomplete, d.cfg.StateDir, strings.Join(have, ", "),
		strings.Join(lost, "; nor "))
}

// noteFirstStart makes the marker, and sees that it is on disk before anything else is.
func noteFirstStart(marker string) error {
	f, err := os.OpenFile(marker, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), durable.SyncDir(filepath.Dir(marker)))
}

// endFirstStart notes that everything is made: from now on it has to be there.
func (d *Daemon) endFirstStart() error {
	if !d.first {
		return nil
	}
	d.first = false
	return errors.Join(os.Remove(filepath.Join(d.cfg.StateDir, firstStartFile)), durable.SyncDir(d.cfg.StateDir))
}
