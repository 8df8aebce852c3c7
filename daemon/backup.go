package daemon

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"tendril/cluster"
	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/store"
	"tendril/store/object"
)

// backupFormat is the version of a backup's layout.
const backupFormat = 1

// Backup is what a cluster is made of, but for its objects. It is a secret: the key lets anybody in.
type Backup struct {
	Format    int       `json:"format"`
	Taken     time.Time `json:"taken"`
	Node      string    `json:"node"`    // the name of the one that gave it
	Cluster   string    `json:"cluster"` // the authority's fingerprint
	Authority []byte    `json:"authority"`
	Key       []byte    `json:"key"`
	State     []byte    `json:"state"`
}

// BackupCluster implements frontdoor.Nodes: all that the cluster knew when it was called is in it.
func (d *Daemon) BackupCluster() (raw []byte, err error) {
	defer func() { d.auditOf("cluster.backup", "", "", err) }()
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	b := Backup{Format: backupFormat, Taken: time.Now().UTC(), Node: d.identity.Name,
		Cluster:   pki.FingerprintOf(m.authority.Load().Certificate()).String(),
		Authority: m.authority.Load().Certificate().Raw}
	if b.Key, err = m.authority.Load().Key(); err != nil {
		return nil, err
	}
	var fault error
	if err := m.readAgain(ctx, func(s *fsm.State) { b.State, fault = s.Snapshot() }); err != nil || fault != nil {
		return nil, errors.Join(err, fault)
	}
	d.log.WithField("bytes", len(b.State)).Info("a backup of the cluster's metadata and its authority's key was taken")
	return json.Marshal(b)
}

// RestoreResult is what a restored node begins with.
type RestoreResult struct {
	Node        string    `json:"node"`    // the one that has it now
	Cluster     string    `json:"cluster"` // the authority's fingerprint
	Taken       time.Time `json:"taken"`
	Dropped     []string  `json:"dropped"`      // nodes that have to join again
	LostObjects int       `json:"lost_objects"` // published ones of which this node had no replica
}

// Restore makes the node of a state directory, whose daemon does not run, a cluster of one with a backup's metadata and
// authority. The node keeps its identity and its objects; name is that of a new one ("": the host's). With anyway a
// node that is there loses its own part in a cluster for it. Errors: ErrLocked; object.ErrExists for what anyway is
// needed; object.ErrInvalid and object.ErrVersion for a backup that cannot be read.
func Restore(stateDir, name string, b Backup, anyway bool) (RestoreResult, error) {
	authority, err := b.check()
	if err != nil {
		return RestoreResult{}, err
	}
	if err := isOwn(stateDir); err != nil {
		return RestoreResult{}, err
	}
	lock, err := openStateDir(stateDir)
	if err != nil {
		return RestoreResult{}, err
	}
	defer lock.Close()
	if err := errors.Join(abandonMove(stateDir), completeMove(stateDir, nil)); err != nil {
		return RestoreResult{}, err
	}
	has, err := hasState(filepath.Join(stateDir, raftFolder))
	if err != nil {
		return RestoreResult{}, err
	}
	if has && !anyway {
		return RestoreResult{}, fmt.Errorf("%w: %s has a node already, whose part in its cluster would be replaced: if "+
			"that is meant, add --anyway", object.ErrExists, stateDir)
	}
	if !has {
		if err := store.ForgoSpill(filepath.Join(stateDir, objectsFolder)); err != nil {
			return RestoreResult{}, err
		}
	}
	id, err := cluster.LoadIdentity(stateDir, name)
	if err != nil {
		return RestoreResult{}, err
	}
	if err := b.stage(stateDir, id, authority); err != nil {
		return RestoreResult{}, errors.Join(err, abandonMove(stateDir))
	}
	if err := errors.Join(commitMove(stateDir), completeMove(stateDir, nil)); err != nil {
		return RestoreResult{}, err
	}
	return b.result(id), nil
}

// check says why a backup cannot be used.
func (b *Backup) check() (*pki.Authority, error) {
	if b.Format != backupFormat {
		return nil, fmt.Errorf("%w: the backup has format %d, this release reads %d", object.ErrVersion, b.Format,
			backupFormat)
	}
	if _, err := fsm.Restore(bytes.NewReader(b.State)); err != nil {
		return nil, fmt.Errorf("the backup's metadata: %w", err)
	}
	cert, err := x509.ParseCertificate(b.Authority)
	if err != nil {
		return nil, fmt.Errorf("%w: the backup's authority: %w", object.ErrInvalid, err)
	}
	return pki.AuthorityOf(cert, b.Key, time.Now)
}

// isOwn refuses the state directory of another user: its daemon could not read what is put there.
func isOwn(stateDir string) error {
	info, err := os.Stat(stateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d: restore as that user", object.ErrPermission, stateDir, st.Uid)
	}
	return nil
}

// stage makes all that the node needs in the folder of a move.
func (b *Backup) stage(stateDir string, id cluster.Identity, authority *pki.Authority) error {
	dir, err := beginMove(stateDir)
	if err != nil {
		return err
	}
	if err := authority.Save(dir); err != nil {
		return err
	}
	subject := pki.Subject{Name: id.Name, Role: pki.Node, Node: id.Node.String()}
	issue := pki.IssueFrom(authority, subject, pki.NodeLife, nil)
	if _, err := pki.OpenKeyring(context.Background(), filepath.Join(dir, pki.NodeFile), id.Name,
		authority.Trust(), issue, time.Now); err != nil {
		return err
	}
	return errors.Join(raftnode.Seed(filepath.Join(dir, raftFolder), id.Node.String(), b.State),
		durable.Replace(filepath.Join(dir, membersFile), []byte("[]")),
		durable.Replace(filepath.Join(dir, recoveringFile), []byte("\n"))) // the other nodes are dropped at the start
}

func (b *Backup) result(id cluster.Identity) RestoreResult {
	r := RestoreResult{Node: id.Name, Cluster: b.Cluster, Taken: b.Taken, Dropped: []string{}}
	state, err := fsm.Restore(bytes.NewReader(b.State))
	if err != nil { // it was read before
		return r
	}
	self := fsm.UUID(id.Node)
	for _, n := range state.Nodes() {
		if n.ID != self && n.Name != id.Name { // of this name is this machine, which has lost its disk
			r.Dropped = append(r.Dropped, n.Name)
		}
	}
	for _, o := range state.Objects() {
		if !o.Deleted && !slices.ContainsFunc(o.Replicas, func(x fsm.Replica) bool { return x.Node == self }) {
			r.LostObjects++
		}
	}
	return r
}
