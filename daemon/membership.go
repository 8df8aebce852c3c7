package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/daemon/frontdoor"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// membership is this node's part in one cluster: the authority that it believes, its certificate, its copy of the
// metadata, and the connections to the other nodes. A node is always in exactly one, if of itself alone; when it joins
// or leaves one, another membership takes the place of the present one (join.go). Fields are set before it is shown to
// anybody.
type membership struct {
	authority atomic.Pointer[pki.Authority] // another one when it is rotated (certificates.go)
	keyring   *pki.Keyring
	raft      *raftnode.Node
	layer     atomic.Pointer[raftnode.Layer] // raft's connections; another one each time that the log is reopened
	links     nodeLinks
	raftConns raftConns
	live      liveness
	catchUps  catchUps
	book      addressBook
	log       logrus.FieldLogger
	node      fsm.UUID
	voteTime  time.Duration // 0 = stableTime and goneTime

	governing chan struct{} // capacity 1: full while raft's members are changed, or a node is taken out

	joining atomic.Bool // the node has not heard from its cluster yet: it knows what the join has told it, and no more
	named   sync.Map    // identifiers (text) of nodes that members have named as their leader meanwhile

	leaving atomic.Bool            // another node is to lead, and this one to be no member: nobody governs meanwhile
	removed atomic.Bool            // the cluster does not believe this node's certificate, and said so
	refusal atomic.Pointer[string] // why the cluster does not know of this run of the node yet; nil: it does

	opened     chan struct{} // closed when the fields above are set: raft asks for other nodes before
	registered chan struct{} // closed once the cluster knows of this run of the node
	claimed    chan struct{} // closed once it lists under this run what is still here of what earlier runs published

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup

	lateCtx    context.Context // ends with endLate
	cancelLate context.CancelFunc
	late       sync.WaitGroup // see whenEntered
}

// current is the membership that holds. The methods of its views are those of the part that they stand for.
type current struct{ atomic.Pointer[membership] }

// authorityNow is the authority of the present cluster.
type authorityNow struct{ *current }

// keyringNow is the node's certificate of the present cluster.
type keyringNow struct{ *current }

// raftNow is the metadata of the present cluster.
type raftNow struct{ *current }

// NewToken is pki's.
func (a authorityNow) NewToken() (pki.Token, error) { return a.Load().authority.Load().NewToken() }

// Certificate is pki's.
func (a authorityNow) Certificate() *x509.Certificate { return a.Load().authority.Load().Certificate() }

// Issue is pki's.
func (a authorityNow) Issue(request []byte, s pki.Subject, life time.Duration) (pki.Issued, error) {
	return a.Load().authority.Load().Issue(request, s, life)
}

// Certificate gives the node's certificate.
func (k keyringNow) Certificate() *tls.Certificate { return k.Load().keyring.Certificate() }

// Reload is pki's.
func (k keyringNow) Reload(ctx context.Context) error { return k.Load().keyring.Reload(ctx) }

// View is raftnode's.
func (r raftNow) View(f func(*fsm.State)) { r.Load().raft.View(f) }

// Changed is raftnode's.
func (r raftNow) Changed() (changed <-chan struct{}) {
	r.beginWait(func(n *raftnode.Node) { changed = n.Changed() })
	return changed
}

// When is raftnode's.
func (r raftNow) When(holds func(*fsm.State) bool) (there <-chan struct{}, stop func()) {
	stop = func() {}
	r.beginWait(func(n *raftnode.Node) {
		stop()
		there, stop = n.When(holds)
	})
	return there, stop
}

// beginWait begins to wait for the metadata of the present cluster. That of a cluster which the node leaves at this
// moment may have woken already who waited (Wake), and wakes nobody any more.
func (r raftNow) beginWait(begin func(*raftnode.Node)) {
	for m := r.Load(); ; {
		begin(m.raft)
		now := r.Load()
		if now == m {
			return
		}
		m = now
	}
}

// Status is raftnode's.
func (r raftNow) Status() raftnode.Status { return r.Load().raft.Status() }

// newMembership makes one that has nothing yet.
func (d *Daemon) newMembership() *membership {
	m := &membership{log: d.log, node: fsm.UUID(d.identity.Node), opened: make(chan struct{}),
		governing: make(chan struct{}, 1), registered: make(chan struct{}), claimed: make(chan struct{}),
		voteTime: d.voteTime}
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	m.lateCtx, m.cancelLate = context.WithCancel(m.ctx)
	m.links = nodeLinks{m: m, dial: d.dialNode, program: "node " + d.identity.Name, links: map[fsm.UUID]*nodeLink{}}
	m.live = liveness{m: m, patience: d.patience, nodes: map[fsm.UUID]*pulse{}}
	m.catchUps = catchUps{ask: func() error { return d.askCluster(m) },
		heard: func(since time.Time) bool { return m.raft.InTouch(time.Since(since)) }}
	m.book = addressBook{path: filepath.Join(d.cfg.StateDir, membersFile)}
	return m
}

// openRaft opens the metadata in the state directory. known: the node was there before.
func (m *membership) openRaft(d *Daemon, known bool) (err error) {
	ctx, cancel := context.WithTimeout(d.ctx, raftStart)
	defer cancel()
	dir := filepath.Join(d.cfg.StateDir, raftFolder)
	joining, err := hasState(filepath.Join(dir, joiningFile))
	if err != nil {
		return err
	}
	founding, err := hasState(filepath.Join(dir, foundingFile))
	if err != nil {
		return err
	}
	alone, err := hasState(filepath.Join(d.cfg.StateDir, recoveringFile))
	if err != nil {
		return err
	}
	m.joining.Store(joining)
	m.raft, err = raftnode.Open(ctx, raftnode.Options{
		Alone: alone, Clock: d.clock, SegmentBytes: d.segmentBytes,
		Dir: dir, ID: m.node.String(), Known: known && !founding, Join: joining, Log: d.log.WithField("part", "raft"),
		Level: logrus.WarnLevel,
		Stream: func() (raft raftnode.StreamLayer, err error) {
			layer := raftnode.NewLayer(m.node.String(), m.dialRaft)
			m.layer.Store(layer)
			return layer, nil
		},
	})
	if err == nil && founding {
		err = removeDurably(filepath.Join(dir, foundingFile))
	}
	if err == nil && alone {
		err = m.dropOthers(ctx, d)
	}
	return err
}

// openKeyring gets the node's certificate and keeps it renewed until close.
func (m *membership) openKeyring(d *Daemon) (err error) {
	subject := pki.Subject{Name: d.identity.Name, Role: pki.Node, Node: m.node.String()}
	record := func(ctx context.Context, i pki.Issued) error {
		if m.keyring == nil { // the first one here, without which nobody can be asked: recordOwn sees to it
			return nil
		}
		_, err := m.propose(ctx, &fsm.RecordCertificate{Certificate: certificateOf(i, subject)})
		return err
	}
	issue := func(ctx context.Context, request []byte) (*x509.Certificate, error) {
		return pki.IssueFrom(m.authority.Load(), subject, pki.NodeLife, record)(ctx, request)
	}
	path := filepath.Join(d.cfg.StateDir, pki.NodeFile)
	m.keyring, err = pki.OpenKeyring(m.ctx, path, d.identity.Name, m.authority.Load().Trust(), issue, time.Now)
	if err != nil {
		return err
	}
	close(m.opened)
	m.running.Go(func() { m.keyring.Run(m.ctx, d.notRenewed) })
	return nil
}

// close ends the membership's part in the cluster; its copy of the metadata can still be looked at.
func (m *membership) close() error {
	var err error
	if m.raft != nil {
		err = m.raft.Close()
	}
	m.cancel()
	m.live.end()
	m.links.close()
	m.catchUps.close()
	m.running.Wait()
	m.late.Wait()
	return err
}

// endLate ends what waits to be done once the node has entered, or is at it. It proposes as the node's clients do, so
// nobody may wait for it who has shut the gate.
func (m *membership) endLate() {
	m.cancelLate()
	m.late.Wait()
}

// verifier believes certificates of this cluster that were not revoked.
func (m *membership) verifier() *pki.Verifier {
	return &pki.Verifier{Trust: m.authority.Load().Trust(), Now: time.Now, Revoked: m.revoked}
}

func (m *membership) revoked(s pki.Serial) (revoked bool) {
	m.raft.View(func(st *fsm.State) { revoked = st.Revoked(fsm.UUID(s)) })
	return revoked
}

// void reports whether a certificate that was good is so no more: revoked, or of an authority whose rotation has ended.
func (m *membership) void(leaf *x509.Certificate) bool {
	serial, err := pki.SerialOf(leaf)
	return err != nil || m.authority.Load().Trust().Issuer(leaf) == nil || m.revoked(serial)
}

// others reports whether there are other nodes in the cluster, as far as is known.
func (m *membership) others() bool {
	there := false
	m.raft.View(func(s *fsm.State) { there = s.NodeCount() > 1 })
	if there {
		return true
	}
	// The book of a node that has just joined does not have the node itself.
	self := m.node.String()
	return slices.ContainsFunc(m.book.list(), func(e bookEntry) bool { return e.ID != self })
}

// catchUp has this node learn what its cluster knew at the call. nil: there is nobody to learn from.
func (m *membership) catchUp() *frontdoor.CatchUp {
	if !m.others() {
		return nil
	}
	return m.catchUps.join()
}

// learn waits for the cluster's word, and says why it is not there.
func (m *membership) learn(ctx context.Context) error {
	q := m.catchUp()
	if q == nil {
		return nil
	}
	select {
	case <-q.Done:
		return q.Err
	case <-ctx.Done():
		return frontdoor.ErrUnanswered
	}
}

// knows reports whether the metadata has something. The cluster is asked before the answer is no; unsure says why it
// may have it all the same.
func (m *membership) knows(ctx context.Context, has func(*fsm.State) bool) (is bool, unsure error) {
	look := func(s *fsm.State) { is = has(s) }
	if m.raft.View(look); is {
		return true, nil
	}
	unsure = m.learn(ctx)
	m.raft.View(look)
	return is, unsure
}

// behind says why the node's copy of the metadata may be further behind its cluster's than a change takes to get here;
// nil: it hears from its leader. Nobody is asked.
func (m *membership) behind() error {
	if !m.others() {
		return nil
	}
	select {
	case <-m.registered:
	default:
		return errors.New(frontdoor.NotEntered)
	}
	if !m.raft.InTouch(touchTime) {
		return frontdoor.ErrUnanswered
	}
	return nil
}

// touchTime is how long ago a follower may have heard from its leader to say that it knows what the cluster knows.
const touchTime = 3 * time.Second

// admits says why a certified node may not speak raft here. Where this node knows what the cluster knows, the cluster
// must know the certificate and its node. A copy of the metadata may be behind, for seconds after a start: the cluster
// is asked before a node is refused. Nobody asks about the node that leads here, which alone brings what is missing.
func (m *membership) admits(ctx context.Context, p pki.Peer) error {
	if !m.raft.InTouch(touchTime) {
		return m.believes(p)
	}
	if p.Node != m.node.String() && p.Node == m.raft.Status().Leader {
		return nil
	}
	is, unsure := m.knows(ctx, func(s *fsm.State) bool {
		id, err := parseUUID(p.Node)
		_, member := s.Node(id)
		_, recorded := s.Certificate(fsm.UUID(p.Serial))
		return err == nil && member && recorded
	})
	switch {
	case is:
		return nil
	case unsure != nil && !m.raft.InTouch(catchUpTime): // the leader is gone
		return m.believes(p)
	}
	return noMember(p, unsure)
}

// noMember refuses a node that the cluster does not know; unsure says why it may be a member all the same.
func noMember(p pki.Peer, unsure error) error {
	err := fmt.Errorf("%w: node %s (%.60q) is no member of this cluster", object.ErrPermission, p.Node, p.Name)
	if unsure != nil {
		err = fmt.Errorf("%w, as far as this node knows: %v", err, unsure)
	}
	return err
}

// believes says why a node may not speak raft to one that does not hear from its cluster. One that has just joined
// knows of no revocation: until it has heard from the cluster it believes only nodes that the join has named, and who
// of these say that it leads. One that has been away knows less than the others and can learn it from them alone,
// perhaps from one that joined meanwhile: it believes every certificate of the authority that it does not know to be
// revoked.
func (m *membership) believes(p pki.Peer) error {
	if m.joining.Load() && !m.wasNamed(p.Node) {
		return fmt.Errorf("%w: node %s (%.60q) is none of those that this node was told of when it joined",
			object.ErrPermission, p.Node, p.Name)
	}
	return nil
}

// wasNamed reports whether members of the cluster have told this node, which has just joined, of that one.
func (m *membership) wasNamed(node string) bool {
	_, named := m.named.Load(node)
	return named || slices.ContainsFunc(m.book.list(), func(e bookEntry) bool { return e.ID == node })
}

// dialRaft reaches a node for raft.
func (m *membership) dialRaft(ctx context.Context, node string) (net.Conn, error) {
	id, err := parseUUID(node)
	if err != nil {
		return nil, err
	}
	select {
	case <-m.opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	secure, _, err := m.links.connect(ctx, id, kindRaft)
	if err != nil {
		return nil, err
	}
	return m.keepRaft(secure)
}

// keepRaft takes a connection whose handshake was good, and looks once more whether the certificate still is: from here
// on endIf finds it. conn is closed on an error.
func (m *membership) keepRaft(conn *tls.Conn) (*raftConn, error) {
	c, err := m.raftConns.add(conn, time.Now())
	if err != nil {
		conn.Close()
		return nil, err
	}
	if m.void(c.leaf) {
		c.Close()
		return nil, errVoid
	}
	return c, nil
}

// errVoid is why a connection ends that was made just before its certificate was void.
var errVoid = fmt.Errorf("%w: the other node's certificate has been revoked, or is of the old authority",
	object.ErrPermission)

// proposeAgain is the pause before a command is proposed once more.
const proposeAgain = 50 * time.Millisecond

// propose has the cluster do a command, wherever its leader is, and waits until this node's View shows it. Errors: a
// refusal is the sentinel that the state machine gave, with its Result; ErrTimeout where ctx ended before there was an
// answer: then nobody knows whether the command was done. ErrTimeout with a Result that is done: it was, and View does
// not show it yet.
func (m *membership) propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	result, index, err := m.send(ctx, cmd)
	if err != nil {
		return result, err
	}
	err = m.raft.Await(ctx, index) // also where it is refused: who reads why, and tries again, needs the state of then
	if result.Err() != nil {
		return result, result.Err()
	}
	if err != nil {
		return result, fmt.Errorf("%w: the change was made, but this node does not show it yet: %w", object.ErrTimeout, err)
	}
	return result, nil
}

// send is propose without the wait: a refusal is no error here.
func (m *membership) send(ctx context.Context, cmd fsm.Command) (fsm.Result, uint64, error) {
	raw, err := fsm.Encode(fsm.UUID(object.NewID()), cmd)
	if err != nil {
		return fsm.Result{}, 0, err
	}
	for {
		result, index, err := m.proposeOnce(ctx, raw)
		if err == nil || !worthAnother(err) {
			return result, index, err
		}
		pause := time.NewTimer(proposeAgain)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fsm.Result{}, 0, fmt.Errorf("%w: the cluster did not take a change in time: %w", object.ErrTimeout, err)
		case <-pause.C:
		}
	}
}

// worthAnother reports whether a command may be proposed again: it was not done, or its request id keeps it from being
// done twice.
func worthAnother(err error) bool {
	var elsewhere *raftnode.NotLeaderError
	if errors.Is(err, errRemoved) {
		return false
	}
	return errors.As(err, &elsewhere) || errors.Is(err, errNoAnswer) || errors.Is(err, raftnode.ErrLost) ||
		errors.Is(err, errTooFew)
}

// proposeOnce proposes here, or at the leader.
func (m *membership) proposeOnce(ctx context.Context, raw []byte) (fsm.Result, uint64, error) {
	result, index, err := m.proposeHere(ctx, slices.Clone(raw))
	var elsewhere *raftnode.NotLeaderError
	if !errors.As(err, &elsewhere) {
		return result, index, err
	}
	var reply wire.ProposeReply
	if err := m.askLeader(ctx, elsewhere.LeaderID, wire.Propose, &wire.ProposeRequest{Command: raw},
		func(b []byte) (fsm.UUID, error) { err := reply.Decode(b); return fsm.UUID(reply.Leader), err }); err != nil {
		return fsm.Result{}, 0, err
	}
	return fsm.Result{Code: reply.Code, Text: reply.Text, Epoch: reply.Epoch}, reply.Index, nil
}

// askLeader asks the node that leads; where that is not known, those that may know. decode gives the leader that an
// answer names instead of being one.
func (m *membership) askLeader(ctx context.Context, leader string, kind wire.Type, p payload,
	decode func([]byte) (fsm.UUID, error)) (err error) {
	var candidates []fsm.UUID
	if id, err := parseUUID(leader); err == nil {
		candidates = append(candidates, id)
	} else {
		candidates = m.otherNodes()
	}
	var refused, answered bool
	defer func() {
		if err != nil && refused && !answered { // who does answer does not take this node for a member
			err = fmt.Errorf("%w: %w", errRemoved, err)
		}
	}()
	last := error(&raftnode.NotLeaderError{})
	asked := map[fsm.UUID]bool{m.node: true}
	for len(candidates) > 0 && ctx.Err() == nil {
		id := candidates[0]
		candidates = candidates[1:]
		if asked[id] {
			continue
		}
		asked[id] = true
		b, err := m.links.ask(ctx, id, kind, p)
		if errors.Is(err, object.ErrBusy) || errors.Is(err, object.ErrTimeout) { // it ends, or has lost the others
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		if err != nil {
			refused = refused || errors.Is(err, errCertificate)
			if last = err; !worthAnother(err) {
				return err
			}
			continue
		}
		answered = true
		next, err := decode(b)
		if err != nil || next.IsZero() {
			return err
		}
		if next != noLeader {
			if m.joining.Load() {
				m.named.Store(next.String(), nil)
			}
			candidates = append([]fsm.UUID{next}, candidates...)
		}
	}
	return last
}

// noLeader is what a node answers that neither leads nor knows who does.
var noLeader = fsm.UUID{0: 0xff, 15: 0xff}

// otherNodes lists the other nodes that are known of.
func (m *membership) otherNodes() (list []fsm.UUID) {
	m.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			list = append(list, n.ID)
		}
	})
	for _, e := range m.book.list() {
		if id, err := parseUUID(e.ID); err == nil && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return slices.DeleteFunc(list, func(id fsm.UUID) bool { return id == m.node })
}

// addresses says where a node is reached: as the cluster knows, then as this node has noted.
func (m *membership) addresses(node fsm.UUID) (list []string) {
	m.raft.View(func(s *fsm.State) {
		if n, ok := s.Node(node); ok {
			list = slices.Clone(n.Peer)
		}
	})
	for _, e := range m.book.list() {
		if e.ID == node.String() {
			for _, a := range e.Addresses {
				if !slices.Contains(list, a) {
					list = append(list, a)
				}
			}
		}
	}
	return list
}

func parseUUID(text string) (id fsm.UUID, err error) {
	x, err := object.ParseID(text)
	return fsm.UUID(x), err
}

// membersFile is where a node notes who is in its cluster: after a start it knows no more of the metadata than its last
// snapshot says, until another node tells it, and it may have to reach that one first.
const membersFile = "members.json"

// addressBook is what stands in that file. Nothing but addresses rests on it: who answers there has to prove itself.
type addressBook struct {
	path string

	mu    sync.Mutex
	nodes []bookEntry
}

// bookEntry is one node in it.
type bookEntry struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
}

// maxBook bounds what is read of the file.
const maxBook = 4 << 20

// open reads the file. One that is not there, or makes no sense, is an empty one: it is a help, and no record.
func (b *addressBook) open() error {
	raw, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(raw) > maxBook {
		return errors.Join(err, fmt.Errorf("%s has %d bytes", b.path, len(raw)))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return json.Unmarshal(raw, &b.nodes)
}

func (b *addressBook) list() []bookEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes
}

// keep replaces the content, where it is another one.
func (b *addressBook) keep(nodes []bookEntry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	raw, err := json.Marshal(nodes)
	if err != nil {
		return err
	}
	if old, err := json.Marshal(b.nodes); err == nil && string(old) == string(raw) {
		return nil
	}
	if err := durable.Replace(b.path, raw); err != nil {
		return err
	}
	b.nodes = nodes
	return nil
}
