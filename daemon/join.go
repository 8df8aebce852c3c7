package daemon

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Limits of a join.
const (
	joinTime  = 20 * time.Second // for the other cluster's node to answer
	enterTime = 20 * time.Second // for its leader to send what this node has to know
)

// MoveResult is the result of a join or leave.
type MoveResult struct {
	Cluster     string     `json:"cluster"` // the authority's fingerprint
	Nodes       []string   `json:"nodes"`   // names, this one's among them
	Republished int        `json:"republished"`
	Conflicts   []Conflict `json:"conflicts"` // what could not be published again
	Entered     bool       `json:"entered"`   // the cluster has answered; else it is told as soon as it does
	Why         string     `json:"why,omitempty"`
}

// Conflict is one object that was published before a join or leave and is not any more. It stays in this node's store.
type Conflict struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	ID     string `json:"id"`
	Why    string `json:"why"`
}

// JoinCluster implements frontdoor.Nodes.
func (d *Daemon) JoinCluster(m wire.JoinClusterRequest) (raw []byte, err error) {
	defer func() { d.auditOf("node.enter", "", m.Address, err) }()
	if !d.meta.moving.TryLock() {
		return nil, fmt.Errorf("%w: another join or leave of this node is under way", object.ErrBusy)
	}
	defer d.meta.moving.Unlock()
	token, err := pki.ParseToken(m.Token)
	if err != nil {
		return nil, err
	}
	if err := d.mayLeaveAlone(token); err != nil {
		return nil, err
	}
	d.wantsNodes.Store(true)
	defer d.wantsNodes.Store(false)
	if err := d.reachable(m.Address); err != nil {
		return nil, err
	}
	next, err := d.stageJoin(m.Address, token)
	if err != nil {
		return nil, errors.Join(err, abandonMove(d.cfg.StateDir))
	}
	result, err := d.move(next, func(now *membership) (republish, error) { return d.exportLeft(now), nil })
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// mayLeaveAlone says why this node cannot join another cluster, or not with that token.
func (d *Daemon) mayLeaveAlone(token pki.Token) error {
	now := d.meta.now.Load()
	var names []string
	now.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			if n.ID != d.meta.node {
				names = append(names, n.Name)
			}
		}
	})
	switch {
	case now.others():
		return fmt.Errorf("%w: this node is in a cluster already, with %s: first: tendril cluster leave", object.ErrExists,
			orDefault(strings.Join(names, ", "), "nodes that it has not heard from yet"))
	case token.Matches(pki.FingerprintOf(now.authority.Load().Certificate())):
		return fmt.Errorf("%w: the token is of this node's own cluster: make it on a node of the other one", object.ErrInvalid)
	}
	return nil
}

// reachable opens the front door for the nodes of a cluster that is reached at address.
func (d *Daemon) reachable(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: address %.60q, want HOST:PORT", object.ErrInvalid, address)
	}
	if d.cfg.Listen == "none" {
		return fmt.Errorf("%w: this node listens to no other machine, and the nodes of a cluster have to reach each other: "+
			"start its daemon with --listen :7433", object.ErrUnsupported)
	}
	ip := net.ParseIP(host)
	if Loopback(d.cfg.Listen) && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%w: this node listens at %s, where no other machine reaches it: start its daemon with "+
			"--listen :7433", object.ErrUnsupported, d.cfg.Listen)
	}
	if err := d.openTCP(); err != nil {
		return err
	}
	if why := d.whyClosed(); why != "" || len(d.advertised()) == 0 {
		return fmt.Errorf("%w: other nodes cannot reach this one: %s", object.ErrUnsupported,
			orDefault(why, "the machine has no address but loopback"))
	}
	return nil
}

// stageJoin gets a certificate with the token, and makes all that the new membership needs in the folder of a move.
func (d *Daemon) stageJoin(address string, token pki.Token) (*membership, error) {
	dir, err := beginMove(d.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, joinTime)
	defer cancel()
	raw, err := d.dialNode(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", object.ErrTimeout, address, err)
	}
	defer raw.Close()
	var trust pki.Trust
	secure, err := shakeHands(ctx, raw, kindControl, pki.JoinConfig(token, time.Now,
		func(t pki.Trust) { trust = t }))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, pki.Explain(err))
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	var reply wire.JoinReply
	_, err = pki.OpenKeyring(ctx, filepath.Join(dir, pki.NodeFile), d.identity.Name, trust,
		func(_ context.Context, request []byte) (*x509.Certificate, error) {
			if reply, err = d.askToJoin(ipc.NewStream(secure, raw), token, request); err != nil {
				return nil, err
			}
			return x509.ParseCertificate(reply.Certificate)
		}, time.Now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	next := d.newMembership()
	given, err := pki.AuthorityOf(trust.Authority, reply.AuthorityKey, time.Now)
	if err != nil {
		return nil, err
	}
	next.authority.Store(given.WithTrust(trust))
	d.at("asked")
	if err := next.authority.Load().Save(dir); err != nil {
		return nil, err
	}
	if err := keepAddresses(dir, reply, address); err != nil {
		return nil, err
	}
	return next, durable.Replace(filepath.Join(dir, raftFolder, joiningFile), nil)
}

// askToJoin is the one exchange that a token is good for.
func (d *Daemon) askToJoin(link *ipc.Stream, token pki.Token, request []byte) (reply wire.JoinReply, err error) {
	ask := wire.JoinRequest{Token: token.ID(), SecretHash: token.SecretHash(), Node: object.ID(d.meta.node),
		Lowest: fsm.Level, Highest: fsm.Level, Name: d.identity.Name, Version: clip(d.build.Version), Request: request}
	if err := link.Send(ipc.AppendFrame(nil, wire.Join, 0, 1, &ask), nil); err != nil {
		return reply, err
	}
	f, err := link.Receive()
	if err != nil {
		return reply, pki.Explain(err)
	}
	if f.Type == wire.Error {
		var m wire.ErrorReply
		if err := m.Decode(f.Payload); err != nil {
			return reply, err
		}
		return reply, object.FromCode(m.Code, m.Text)
	}
	if f.Type != wire.Join|wire.ReplyBit {
		return reply, fmt.Errorf("%w: %v to a Join", object.ErrProtocol, f.Type)
	}
	err = reply.Decode(f.Payload)
	reply.Certificate, reply.AuthorityKey = slices.Clone(reply.Certificate), slices.Clone(reply.AuthorityKey)
	return reply, err
}

// keepAddresses writes the address book of the new membership: where somebody answered comes first.
func keepAddresses(dir string, reply wire.JoinReply, address string) error {
	var list []bookEntry
	for _, n := range reply.Nodes {
		addresses := strings.Fields(n.Addresses)
		if n.Node == reply.Node && !slices.Contains(addresses, address) {
			addresses = append([]string{address}, addresses...)
		}
		list = append(list, bookEntry{ID: n.Node.String(), Name: n.Name, Addresses: addresses})
	}
	book := addressBook{path: filepath.Join(dir, membersFile)}
	return book.keep(list)
}

// republish is what was published in the cluster that the node leaves.
type republish struct {
	Objects []fsm.Object `json:"objects"`
	Earlier bool         `json:"-"` // of an earlier run of the node: some may be gone
}

// keep writes the list to a file.
func (left republish) keep(path string) error {
	raw, err := json.Marshal(left)
	if err != nil {
		return err
	}
	return durable.Replace(path, raw)
}

// move takes the node from its present membership to next, whose parts are in the folder of a move. leave takes leave
// of the present one, and gives what is to be published in the other one. Where move answers an error nothing has
// happened, but for what it says.
func (d *Daemon) move(next *membership, leave func(now *membership) (republish, error)) (MoveResult, error) {
	now := d.meta.now.Load()
	now.endLate()
	defer d.followTenants() // at the end: follow(next) passes over what comes before next is the present one
	d.meta.gate.Lock()      // nothing is proposed from here on
	defer d.meta.gate.Unlock()
	var left republish
	err := d.ctx.Err() // the daemon ends: nothing is opened any more
	if err == nil {
		left, err = leave(now)
	}
	if err == nil {
		err = left.keep(filepath.Join(d.cfg.StateDir, movingFolder, republishFile))
	}
	if err == nil {
		d.at("staged")
		err = commitMove(d.cfg.StateDir)
	}
	if err != nil {
		next.cancel()
		return MoveResult{}, errors.Join(err, abandonMove(d.cfg.StateDir))
	}
	d.at("committed")
	if err := d.openNext(now, next); err != nil {
		next.cancel()
		return MoveResult{}, fmt.Errorf("the node has moved to the other cluster, but cannot work in it: start its daemon "+
			"again: %w", err)
	}
	close(next.claimed) // what is published there this run publishes
	result := d.enterNext(next, left)
	d.meta.now.Store(next)
	d.meta.coming.Store(nil)
	now.raft.Wake()
	if door := d.door.Load(); door != nil {
		door.EndIf(func(p frontdoor.Peer) bool { return p.Remote != "" }, // of the other authority
			errors.New("the node has moved to another cluster"))
	}
	d.log.WithField("authority", result.Cluster).WithField("nodes", strings.Join(result.Nodes, ", ")).Info(
		"this node is in another cluster now")
	return result, nil
}

// openNext ends the part in the old cluster and opens that in the new one.
func (d *Daemon) openNext(now, next *membership) error {
	if err := now.close(); err != nil {
		d.log.WithError(err).Warn("closing the metadata of the cluster that the node leaves failed")
	}
	d.at("closed")
	if err := completeMove(d.cfg.StateDir, d.at); err != nil {
		return err
	}
	d.at("moved")
	if err := next.book.open(); err != nil {
		return err
	}
	if err := next.openRaft(d, false); err != nil {
		return err
	}
	if err := next.openKeyring(d); err != nil {
		return err
	}
	d.meta.coming.Store(next)
	d.serveCluster(next)
	return nil
}

// enterNext makes the node known to the new cluster, with what it has published, before anybody looks there.
func (d *Daemon) enterNext(next *membership, left republish) MoveResult {
	result := MoveResult{Cluster: pki.FingerprintOf(next.authority.Load().Certificate()).String(),
		Conflicts: []Conflict{}}
	err := d.register(next)
	if err == nil {
		d.entered(next)
		d.at("registered")
		result.Entered = true
		if left.Earlier {
			result.Republished, result.Conflicts, err = d.republishLeft(next)
		} else {
			result.Republished, result.Conflicts, err = d.republish(next, left)
		}
	} else {
		err = next.explainEntry(err)
		why := err.Error()
		next.refusal.Store(&why)
		next.running.Go(func() { d.enterLate(next) })
	}
	if err != nil {
		result.Why = err.Error()
		next.running.Go(func() { d.republishLate(next) })
	}
	next.running.Go(func() {
		select {
		case <-next.registered:
		case <-next.ctx.Done():
			return
		}
		if err := d.syncTenants(next); err != nil && next.ctx.Err() == nil {
			d.log.WithError(err).Warn("cannot tell the cluster of this node's tenants")
		}
		d.Reload() // the drivers are looked at again, and the cluster learns which devices there are
	})
	next.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			result.Nodes = append(result.Nodes, n.Name)
		}
	})
	return result
}

// exportPublished lists what this node has published. What is listed under an earlier run of it is not claimed yet.
func (d *Daemon) exportPublished(m *membership) (left republish) {
	m.raft.View(func(s *fsm.State) {
		for _, o := range s.Objects() {
			at := slices.IndexFunc(o.Replicas, func(r fsm.Replica) bool { return r.Node == d.meta.node })
			if o.Deleted || at < 0 {
				continue
			}
			left.Objects = append(left.Objects, o)
			left.Earlier = left.Earlier || o.Replicas[at] != d.ownReplica()
		}
	})
	return left
}

// republish publishes again what was in the cluster before. What is not to be, because another object has the name, is
// in the answer and in the log. The file goes when all is done.
func (d *Daemon) republish(m *membership, left republish) (done int, conflicts []Conflict, err error) {
	conflicts = []Conflict{}
	for _, o := range left.Objects {
		o.Epoch, o.Created = 0, 0
		o.Replicas = []fsm.Replica{d.ownReplica()}
		result, err := d.proposeIn(m, &fsm.Publish{Object: o})
		switch {
		case err == nil:
			done++
			d.replicas.note(object.ID(o.ID), o.Tenant, false)
			if o.Wanted > 1 {
				_, err = d.proposeIn(m, &fsm.SetReplicas{ID: o.ID, Tenant: o.Tenant, Wanted: o.Wanted})
			}
			if err != nil {
				return done, conflicts, err
			}
		case result.Err() == nil: // the cluster has not refused it: it was not asked, or its answer is not known
			return done, conflicts, err
		default:
			conflicts = append(conflicts, Conflict{Tenant: o.Tenant, Name: o.Name, ID: o.ID.String(), Why: err.Error()})
			d.log.WithError(err).WithField("tenant", o.Tenant).WithField("name", o.Name).WithField("object", o.ID).Warn(
				"an object is published no longer: the other cluster did not take it; it is in this node's store")
		}
	}
	return done, conflicts, removeDurably(filepath.Join(d.cfg.StateDir, republishFile))
}

// resumeRepublishing is the start-up step: it publishes what an earlier run of the node could not any more.
func (d *Daemon) resumeRepublishing() error {
	return d.whenEntered("publish again what was published before the node joined or left a cluster", func() error {
		_, _, err := d.republishLeft(d.meta.now.Load())
		return err
	})
}

// republishLate is republish for what an earlier attempt left.
func (d *Daemon) republishLate(m *membership) {
	select {
	case <-m.registered:
	case <-m.ctx.Done():
		return
	}
	for {
		_, _, err := d.republishLeft(m)
		if err == nil || m.ctx.Err() != nil {
			return
		}
		d.log.WithError(err).Warn("not everything that was published in the old cluster is published in this one yet; trying again")
		m.pause(enterAgain)
	}
}

// republishLeft publishes of what an earlier attempt left those objects that are still here.
func (d *Daemon) republishLeft(m *membership) (done int, conflicts []Conflict, err error) {
	left, err := readRepublish(filepath.Join(d.cfg.StateDir, republishFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, []Conflict{}, nil
	}
	if err != nil {
		return 0, nil, err
	}
	left.Objects = slices.DeleteFunc(left.Objects, func(o fsm.Object) bool {
		if err := d.holdOwn(o.Tenant, object.ID(o.ID)); err != nil {
			d.log.WithError(err).WithField("tenant", o.Tenant).WithField("name", o.Name).Warn(
				"an object that was published before the node changed its cluster is gone")
			return true
		}
		return false
	})
	done, conflicts, err = d.republish(m, left)
	for _, o := range left.Objects {
		d.settle(o.Tenant, object.ID(o.ID))
	}
	return done, conflicts, err
}

// readRepublish reads such a list; fs.ErrNotExist: there is none.
func readRepublish(path string) (left republish, err error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &left)
	}
	return left, err
}

func removeDurably(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
