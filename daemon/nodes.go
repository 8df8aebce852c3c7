package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"tendril/cluster"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/daemon/frontdoor"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// What the front door hands on for the other nodes of the cluster, and what a node does for them.

// giveTime is how long raft may take to accept a connection.
const giveTime = 5 * time.Second

// doorTLS is the front door's TLS: that of the present cluster. While the node changes from one cluster to another,
// the new one's nodes already speak raft with it.
func (d *Daemon) doorTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config,
		error) {
		m := d.meta.now.Load()
		if coming := d.meta.coming.Load(); coming != nil && slices.Contains(hello.SupportedProtos, pki.ProtocolRaft) {
			m = coming
		}
		c := pki.ServerConfig(m.keyring.Certificate, m.verifier())
		if other, err := c.GetConfigForClient(hello); other != nil || err != nil {
			return other, err
		}
		return c, nil
	}}
}

// GiveRaft implements frontdoor.Nodes.
func (d *Daemon) GiveRaft(p pki.Peer, conn net.Conn) error {
	m := d.meta.now.Load()
	if coming := d.meta.coming.Load(); coming != nil {
		m = coming
	}
	if err := m.checkRaft(p, conn); err != nil {
		conn.Close()
		return err
	}
	kept, err := m.keepRaft(conn.(*tls.Conn)) // checkRaft has seen that it is one
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.ctx, giveTime)
	defer cancel()
	return m.layer.Load().Give(ctx, kept)
}

// checkRaft looks once more at a node that shook hands: perhaps as a member of the cluster that this node was in
// before.
func (m *membership) checkRaft(p pki.Peer, conn net.Conn) error {
	secure, ok := conn.(*tls.Conn)
	if !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
		return fmt.Errorf("%w: a node without a certificate", object.ErrPermission)
	}
	if _, err := m.verifier().Verify(secure.ConnectionState().PeerCertificates, false); err != nil {
		return err
	}
	return m.admits(m.ctx, p)
}

// Join implements frontdoor.Nodes: the token pays for a node's certificate.
func (d *Daemon) Join(remote string, m wire.JoinRequest) (reply wire.JoinReply, err error) {
	defer func() { d.auditStranger(remote, "node.join", m.Name, "", m.Node.String(), err) }()
	if err := d.mayJoin(m); err != nil { // before anything is signed or written: anybody can come as far as this
		return reply, err
	}
	subject := pki.Subject{Name: m.Name, Role: pki.Node, Node: m.Node.String()}
	cert, err := d.certificateDER(m.Request, subject, pki.NodeLife, func(c fsm.Certificate) error {
		_, err := d.propose(&fsm.SpendToken{ID: fsm.UUID(m.Token), SecretHash: m.SecretHash, Certificate: c})
		return err
	})
	if err != nil {
		return reply, err
	}
	now := d.meta.now.Load()
	key, err := now.authority.Load().Key()
	if err != nil {
		return reply, err
	}
	d.log.WithField("remote", remote).WithField("name", subject.Name).WithField("node",
		subject.Node).Info("a node has a certificate of this cluster")
	return wire.JoinReply{Node: object.ID(d.meta.node), Certificate: cert.Raw, AuthorityKey: key,
		Nodes: now.nodeAddresses()}, nil
}

// mayJoin says why a node may not become a member.
func (d *Daemon) mayJoin(m wire.JoinRequest) error {
	token, err := d.goodToken(m.Token, m.SecretHash)
	if err != nil {
		return err
	}
	var taken string
	d.meta.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			switch {
			case n.ID == fsm.UUID(m.Node):
				taken = fmt.Sprintf("node %s (%q) is a member already: if it is not this machine's, its state directory "+
					"was copied; if this machine left without a word, first: tendril cluster remove %s", n.ID, n.Name, n.Name)
			case n.Name == m.Name && taken == "":
				taken = fmt.Sprintf("node %s is called %q already: start this node's daemon with another --name", n.ID,
					n.Name)
			}
		}
	})
	switch err := cluster.CheckName(m.Name); {
	case token.Role != fsm.RoleNode:
		return fmt.Errorf("%w: this token is for clients (tendril login): make one with: tendril token create --role node",
			object.ErrPermission)
	case m.Highest < fsm.Level:
		return fmt.Errorf("%w: the node's release, %.60q, is older than the cluster's, %s, and knows its metadata up to level "+
			"%d of %d: install release %[3]s on the node", object.ErrVersion, m.Version, d.build.Version, m.Highest, fsm.Level)
	case m.Lowest > fsm.Level:
		return fmt.Errorf("%w: the node's release, %.60q, is newer than the cluster's, %s, and knows its metadata from level "+
			"%d on, where the cluster has %d: upgrade the cluster's nodes first, or install release %[3]s on the node",
			object.ErrVersion, m.Version, d.build.Version, m.Lowest, fsm.Level)
	case err != nil || m.Name == "" || m.Node.IsZero():
		return fmt.Errorf("%w: a node %q with id %s: %w", object.ErrInvalid, m.Name, m.Node,
			errors.Join(err, errors.New("want both")))
	case taken != "":
		return fmt.Errorf("%w: %s", object.ErrExists, taken)
	}
	return nil
}

// nodeAddresses says where the nodes are reached: voters first, as many as a message holds.
func (m *membership) nodeAddresses() (list []wire.NodeAddresses) {
	votes := map[string]bool{}
	for _, x := range m.raft.Status().Members {
		votes[x.ID] = x.Voter
	}
	m.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			list = append(list, wire.NodeAddresses{Node: object.ID(n.ID), Name: n.Name,
				Addresses: strings.Join(n.Peer, " ")})
		}
	})
	slices.SortStableFunc(list, func(a, b wire.NodeAddresses) int {
		return btoi(votes[b.Node.String()]) - btoi(votes[a.Node.String()])
	})
	return list[:min(len(list), wire.MaxNodeAddresses)]
}

// Propose implements frontdoor.Nodes.
func (d *Daemon) Propose(p frontdoor.Peer, command []byte) (wire.ProposeReply, error) {
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	if err := d.maySpeak(ctx, m, p, command); err != nil {
		return wire.ProposeReply{}, err
	}
	result, index, err := m.proposeHere(ctx, command)
	if leader, is := elsewhere(err); is {
		return wire.ProposeReply{Leader: object.ID(leader)}, nil
	}
	if errors.Is(err, object.ErrVersion) { // the node that is told may be the newer one
		err = fmt.Errorf("node %s (release %s): %w", d.identity.Name, d.build.Version, err)
	}
	if err == nil {
		m.tell(p, index)
	}
	return wire.ProposeReply{Code: result.Code, Text: result.Text, Epoch: result.Epoch, Index: index}, err
}

// tell has the node that asked know soon what it waits for.
func (m *membership) tell(p frontdoor.Peer, index uint64) {
	if node, is := fsm.NodeOfTenant(p.Tenant); is {
		m.raft.Tell(node, index)
	}
}

// elsewhere gives the leader that an error names.
func elsewhere(err error) (fsm.UUID, bool) {
	var other *raftnode.NotLeaderError
	if !errors.As(err, &other) {
		return fsm.UUID{}, false
	}
	if id, err := parseUUID(other.LeaderID); err == nil {
		return id, true
	}
	return noLeader, true
}

// maySpeak says why a node may not change the metadata: the cluster must have recorded its certificate. A member that
// was away for so long that it made itself a new one may have that recorded. A leader that was elected a moment ago, or
// has just started, may have yet to do what was committed before: it looks again before it refuses.
func (d *Daemon) maySpeak(ctx context.Context, m *membership, p frontdoor.Peer, command []byte) error {
	var recorded, member bool
	look := func(s *fsm.State) {
		if _, recorded = s.Certificate(fsm.UUID(p.Serial)); recorded {
			return
		}
		if node, is := fsm.NodeOfTenant(p.Tenant); is {
			id, err := parseUUID(node)
			_, known := s.Node(id)
			member = err == nil && known
		}
	}
	if m.raft.View(look); recorded {
		return nil
	}
	e, decodeErr := fsm.Decode(command)
	if decodeErr == nil && !m.raft.Leads() { // the leader may know more than this node
		return nil
	}
	d.at("does not know who wants to change the metadata")
	if err := m.raft.Read(ctx, look); err != nil {
		if _, is := elsewhere(err); is && decodeErr == nil {
			return nil
		}
		return err
	}
	record, is := e.Command.(*fsm.RecordCertificate)
	if recorded || decodeErr == nil && member && is && record.Certificate.Tenant == p.Tenant {
		return nil
	}
	return fmt.Errorf("%w: the cluster does not know the certificate of %.60q", object.ErrPermission, p.Subject)
}

// ReadIndex implements frontdoor.Nodes.
func (d *Daemon) ReadIndex(p frontdoor.Peer) (wire.ReadIndexReply, error) {
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	index, err := m.raft.ReadIndex(ctx)
	if leader, is := elsewhere(err); is {
		return wire.ReadIndexReply{Leader: object.ID(leader)}, nil
	}
	if err == nil {
		m.tell(p, index)
	}
	return wire.ReadIndexReply{Index: index}, err
}

// read calls f with the metadata as it is now: what was done anywhere in the cluster before is in it. f must not keep
// the state, alter it or block.
func (m *membership) read(ctx context.Context, f func(*fsm.State)) error {
	err := m.raft.Read(ctx, f)
	var other *raftnode.NotLeaderError
	if !errors.As(err, &other) {
		return err
	}
	var reply wire.ReadIndexReply
	if err := m.askLeader(ctx, other.LeaderID, wire.ReadIndex, nil, func(b []byte) (fsm.UUID, error) {
		err := reply.Decode(b)
		return fsm.UUID(reply.Leader), err
	}); err != nil {
		return err
	}
	if err := m.raft.Await(ctx, reply.Index); err != nil {
		return err
	}
	m.raft.View(f)
	return nil
}

// CatchUp implements frontdoor.Cluster.
func (d *Daemon) CatchUp() *frontdoor.CatchUp { return d.meta.now.Load().catchUp() }

// askCluster waits until this node's copy of the metadata shows what the cluster knew at the call, but not for long.
func (d *Daemon) askCluster(m *membership) error {
	ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.catchUpTime, catchUpTime))
	defer cancel()
	d.at("asks how far its cluster is")
	err := m.readAgain(ctx, func(*fsm.State) {})
	if err == nil || errors.Is(err, errRemoved) {
		return err
	}
	d.log.WithError(err).Debug("the cluster did not say how far it is")
	return frontdoor.ErrUnanswered
}

// advertised says where other nodes and clients reach this node: what it listens on, at each of the machine's
// addresses where that is all of them. Empty: it listens to nobody.
func (d *Daemon) advertised() (list []string) {
	if d.cfg.Listen == "none" {
		return nil
	}
	listen := d.cfg.Listen
	if door := d.door.Load(); door != nil && door.RemoteAddr() != nil {
		listen = door.RemoteAddr().String()
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == anyPort { // the door is not open yet: tellAddress follows
		return nil
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return []string{clip(listen)}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		n, ok := a.(*net.IPNet)
		if ok && n.IP.IsGlobalUnicast() && len(list) < fsm.MaxAddresses {
			list = append(list, net.JoinHostPort(n.IP.String(), port))
		}
	}
	return list
}

// anyPort is the port of --listen that leaves the choice to the kernel.
const anyPort = "0"

// tellAddress tells the cluster where this node listens, which it did not know when it entered.
func (d *Daemon) tellAddress() {
	m := d.meta.now.Load()
	m.running.Go(func() {
		for d.putNode(m) != nil && m.ctx.Err() == nil {
			m.pause(enterAgain)
		}
	})
}

// serveCluster starts what a member does for its cluster. It ends with the membership.
func (d *Daemon) serveCluster(m *membership) {
	m.running.Go(func() { d.follow(m) })
	m.running.Go(func() { m.govern() })
	m.running.Go(m.live.watch)
	m.running.Go(func() { d.repair(m) })
	m.running.Go(func() { d.keepAuthority(m) })
}

// followPause is how long changes of the metadata are let pass before somebody looks what they were.
const followPause = 20 * time.Millisecond

// follow does what changes of the metadata ask of this node: who is revoked leaves, the address book is kept.
func (d *Daemon) follow(m *membership) {
	var seen followMark
	noted := false
	for {
		changed, stop := m.raft.Changed(), func() {} // before the look
		now := followMark{}
		m.raft.View(func(s *fsm.State) { now = followMarkOf(s) })
		other := now.state != seen.state
		moved := !noted || other || now.nodes != seen.nodes
		revoked, leased := other || now.revocations != seen.revocations, other || now.leases != seen.leases
		renamed := other || now.tenants != seen.tenants
		seen = now
		if moved {
			noted = d.noteNodes(m)
		}
		if revoked && d.meta.now.Load() == m {
			d.endRevoked()
		}
		if renamed && d.meta.now.Load() == m {
			d.followTenants()
		}
		if leased && d.meta.now.Load() == m {
			d.followLeases()
		}
		if noted { // else any change may be what it takes
			changed, stop = m.raft.When(func(s *fsm.State) bool { return followMarkOf(s) != now })
		}
		select {
		case <-m.ctx.Done():
			stop()
			return
		case <-changed:
			stop()
			m.pause(followPause)
		}
	}
}

// followMark tells one state of the metadata from a later one of which follow has to do something.
type followMark struct {
	state                               *fsm.State
	nodes, revocations, leases, tenants uint64
}

func followMarkOf(s *fsm.State) followMark {
	return followMark{s, s.NodeChanges(), s.Revocations(), s.LeaseChanges(), s.TenantChanges()}
}

// noteNodes writes the address book again, and notes that the node has heard from its cluster. False: not yet.
func (d *Daemon) noteNodes(m *membership) (noted bool) {
	var list []bookEntry
	self := false
	m.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			list = append(list, bookEntry{ID: n.ID.String(), Name: n.Name, Addresses: n.Peer})
			self = self || n.ID == m.node
		}
	})
	if !self || len(list) < 2 && !m.knowsAll() { // it knows less than the book yet
		return false
	}
	if err := m.book.keep(list); err != nil {
		d.log.WithError(err).Warn("cannot note where the other nodes are")
		return false
	}
	// Before its own membership is in the log, that looks like another node's.
	own := func(x raftnode.Member) bool { return x.ID == m.node.String() }
	if !slices.ContainsFunc(m.raft.Status().Members, own) {
		return false
	}
	if err := d.endJoining(); err != nil {
		d.log.WithError(err).Warn("cannot note that the node has heard from its cluster")
		return false
	}
	m.joining.Store(false)
	return true
}

// knowsAll reports whether this node leads, and has told the cluster of this run: what it knows is all that there is.
func (m *membership) knowsAll() bool {
	select {
	case <-m.registered:
		return m.raft.Leads()
	default:
		return false
	}
}

// yieldTime is how long a node that ends tries to have another one lead.
const yieldTime = 2 * time.Second

// yield has another node lead the cluster, where this one does and there is another that votes and answers. Else the
// others would miss it first, and take no change meanwhile.
func (d *Daemon) yield() error {
	m := d.meta.now.Load()
	if d.leaving == nil && m.canStepAside() { // who takes over starts at once
		return d.stepAside(m)
	}
	if !m.raft.Leads() {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.endTime, yieldTime))
	defer cancel()
	if err := m.handOver(ctx); err != nil {
		d.log.WithError(err).Warn("this node leads the cluster, and no other one could take over: the others elect one")
	}
	return nil
}

// asideTime is how long a node that ends tries to give its vote away.
const asideTime = 5 * time.Second

// canStepAside reports whether this node has one of at most two votes, and another node answers that could have the
// only one. Where three or more vote, those that stay are a majority, or too many have ended: none is given up then,
// for each change would lie on fewer disks.
func (m *membership) canStepAside() bool {
	votes, own, other := 0, false, false
	for _, x := range m.raft.Status().Members {
		id, err := parseUUID(x.ID)
		switch {
		case err != nil:
		case id == m.node:
			own = x.Voter
		default:
			state := m.live.alive(id)
			other = other || state.Answers && !state.LogFailed
		}
		if x.Voter {
			votes++
		}
	}
	return own && other && votes <= 2
}

// stepAside has another node lead, with the only vote: it goes on alone, and this one follows it when it is back. The
// new leader takes this node's vote, as it does of any second one (raftnode.Votes).
func (d *Daemon) stepAside(m *membership) error {
	ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.endTime, asideTime))
	defer cancel()
	err := m.beginGoverning(ctx) // else this node takes the other one's vote again
	if err == nil {
		err = m.yieldFor(ctx)
		m.endGoverning()
	}
	self := m.node.String()
	votes := func() bool {
		isVoter := func(x raftnode.Member) bool { return x.ID == self && x.Voter }
		return slices.ContainsFunc(m.raft.Status().Members, isVoter)
	}
	for err == nil && votes() {
		if err = ctx.Err(); err == nil {
			m.pause(proposeAgain)
		}
	}
	if err != nil {
		d.log.WithError(err).Warn("this node ends with a vote that the cluster needs: until it is back nothing can be changed")
	}
	return nil
}

// handOver has another node lead. It is no error that no other one votes.
func (m *membership) handOver(ctx context.Context) error {
	var last error
	for _, x := range m.raft.Status().Members {
		id, err := parseUUID(x.ID)
		if err != nil || !x.Voter || id == m.node || !m.live.alive(id).Answers {
			continue
		}
		if last = m.raft.HandOver(ctx, x.ID); last == nil {
			return nil
		}
	}
	return last
}

// governEvery is how often a leader looks whether raft's members are the cluster's.
const governEvery = 500 * time.Millisecond

// govern has raft's members follow the metadata's, while this node leads.
func (m *membership) govern() {
	for {
		var nodes uint64
		m.raft.View(func(s *fsm.State) { nodes = s.NodeChanges() })
		if m.raft.Leads() && !m.leaving.Load() {
			if err := m.arrange(); err != nil && m.ctx.Err() == nil {
				m.log.WithError(err).Debug("the cluster's list of voters is not as it should be yet")
			}
		}
		changed, stop := m.raft.When(func(s *fsm.State) bool { return s.NodeChanges() != nodes })
		timer := time.NewTimer(governEvery)
		select {
		case <-m.ctx.Done():
		case <-timer.C:
		case <-changed:
			m.pause(followPause)
		}
		stop()
		if timer.Stop(); m.ctx.Err() != nil {
			return
		}
	}
}

// arrange makes the changes that are due.
func (m *membership) arrange() error {
	ctx, cancel := context.WithTimeout(m.ctx, proposeTime)
	defer cancel()
	for {
		changed, err := m.arrangeOne(ctx)
		if err != nil || !changed {
			return err
		}
	}
}

// arrangeOne makes one change, if one is due.
func (m *membership) arrangeOne(ctx context.Context) (changed bool, err error) {
	if err := m.beginGoverning(ctx); err != nil {
		return false, err
	}
	defer m.endGoverning()
	var nodes []fsm.Node
	if err := m.raft.Read(ctx, func(s *fsm.State) { nodes = s.Nodes() }); err != nil {
		return false, err
	}
	if !slices.ContainsFunc(nodes, func(n fsm.Node) bool { return n.ID == m.node }) {
		return false, nil // the node has just begun
	}
	return m.raft.SetMembers(ctx, m.voters(nodes))
}

// beginGoverning waits until nobody else changes raft's members or takes a node out; endGoverning lets the next one.
func (m *membership) beginGoverning(ctx context.Context) error {
	select {
	case m.governing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: the cluster's members are being changed: %w", object.ErrTimeout, ctx.Err())
	}
}

func (m *membership) endGoverning() { <-m.governing }

// Times after which votes change hands, unless a test says otherwise.
const (
	stableTime = 10 * time.Second // for which a node has to answer before it votes
	goneTime   = 15 * time.Second // of silence, after which another one takes its place
	maxBehind  = 250              // entries that a node's log may be behind the leader's before it votes
)

// voters says who of the nodes is to vote.
func (m *membership) voters(nodes []fsm.Node) map[string]bool {
	st := m.raft.Status()
	votes := map[string]bool{}
	for _, x := range st.Members {
		votes[x.ID] = x.Voter
	}
	members := map[string]raftnode.Prospect{}
	for _, n := range nodes {
		id := n.ID.String()
		members[id] = m.prospect(m.live.alive(n.ID), votes[id], st.LastIndex)
	}
	return raftnode.Votes(m.node.String(), members)
}

// prospect is what is known of a node as raftnode.Votes wants it.
func (m *membership) prospect(x nodeState, votes bool, last uint64) raftnode.Prospect {
	lasts := !x.Since.IsZero() && time.Since(x.Since) >= orDefault(m.voteTime, stableTime)
	return raftnode.Prospect{
		Votes: votes, Answers: x.Answers && !x.LogFailed,
		Stable: x.Answers && !x.LogFailed && lasts && x.LastIndex+maxBehind >= last,
		Gone:   !x.Answers && time.Since(x.Since) >= orDefault(m.voteTime, goneTime),
	}
}

// ClusterNode is one node in `tendril cluster status`.
type ClusterNode struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Self      bool      `json:"self"`
	Leader    bool      `json:"leader"`
	Voter     bool      `json:"voter"`
	Answers   bool      `json:"answers"`
	Since     time.Time `json:"since"`         // since when it answers, or is silent; zero: not known yet
	Why       string    `json:"why,omitempty"` // it does not answer
	Addresses []string  `json:"addresses"`
	Devices   []string  `json:"devices"`
	Version   string    `json:"version"`
	Joined    time.Time `json:"joined"`
}

// ClusterInfo is `tendril cluster status`.
type ClusterInfo struct {
	Node      string        `json:"node"`
	Name      string        `json:"name"`
	Authority string        `json:"authority"`
	State     string        `json:"state"` // of this node in raft: leader, follower, candidate, failed
	Leader    string        `json:"leader"`
	Term      uint64        `json:"term"`
	Applied   uint64        `json:"applied_index"`
	Commit    uint64        `json:"commit_index"`
	Entered   bool          `json:"entered"`       // the cluster knows of this run of the node
	Why       string        `json:"why,omitempty"` // it does not, or the node was removed from the cluster
	Fault     string        `json:"fault,omitempty"`
	Nodes     []ClusterNode `json:"nodes"`

	SnapshotFault string           `json:"snapshot_fault,omitempty"` // why this node's log keeps growing
	Rotation      *ClusterRotation `json:"rotation,omitempty"`       // of the authority; nil: none is under way
}

// ClusterRotation says how far a rotation of the authority is, as this node knows.
type ClusterRotation struct {
	Step      string   `json:"step"`      // what is missing: nodes, clients, or finish
	Authority string   `json:"authority"` // the new one's fingerprint
	Before    string   `json:"before"`
	Followed  []string `json:"followed"` // nodes that sign with the new one
	Waiting   []string `json:"waiting"`  // nodes that do not yet
	Clients   int      `json:"clients"`  // that have good certificates of the old one alone
}

// rotationIn gives the rotation that is under way, if one is.
func rotationIn(s *fsm.State, now int64) *ClusterRotation {
	p, _ := s.Policy(authorityPolicy)
	var last pki.Succession
	if json.Unmarshal(p.Value, &last) != nil || last.Finished { // none: an error; a look at every certificate costs
		return nil
	}
	x, err := successionIn(s, now)
	if err != nil {
		return nil
	}
	status := x.status()
	r := &ClusterRotation{Step: "finish", Authority: status.Authority, Before: status.Before, Followed: []string{},
		Waiting: status.Waiting, Clients: len(x.clients)}
	switch {
	case len(x.waiting) > 0:
		r.Step = "nodes"
	case len(x.clients) > 0:
		r.Step = "clients"
	}
	for _, n := range s.Nodes() {
		if !slices.Contains(x.waiting, n.Name) {
			r.Followed = append(r.Followed, n.Name)
		}
	}
	return r
}

// ClusterStatus implements frontdoor.Nodes.
func (d *Daemon) ClusterStatus() ([]byte, error) {
	m := d.meta.now.Load()
	st := m.raft.Status()
	x := ClusterInfo{Node: d.meta.node.String(), Name: d.identity.Name,
		Authority: pki.FingerprintOf(m.authority.Load().Certificate()).String(), State: strings.ToLower(st.State),
		Leader: st.Leader, Term: st.Term, Applied: st.AppliedIndex, Commit: st.CommitIndex, Fault: st.Fault,
		SnapshotFault: st.SnapshotFault, Nodes: []ClusterNode{}}
	select {
	case <-m.registered:
		x.Entered = true
	default:
		if why := m.refusal.Load(); why != nil {
			x.Why = *why
		}
	}
	m.raft.View(func(s *fsm.State) {
		x.Rotation = rotationIn(s, max(s.Now(), d.clock().UnixNano()))
		devices := map[fsm.UUID][]string{}
		for _, dev := range s.Devices() {
			devices[dev.Node] = append(devices[dev.Node], dev.Name)
		}
		for _, n := range s.Nodes() {
			id, state := n.ID.String(), m.live.alive(n.ID)
			if n.ID == m.node {
				state.Since = d.node.Since
			}
			votes := func(v raftnode.Member) bool { return v.ID == id && v.Voter }
			x.Nodes = append(x.Nodes, ClusterNode{ID: id, Name: n.Name, Self: n.ID == d.meta.node,
				Leader: id == st.Leader, Voter: slices.ContainsFunc(st.Members, votes), Answers: state.Answers,
				Since: state.Since, Why: state.Why, Addresses: notNil(n.Peer),
				Devices: notNil(devices[n.ID]), Version: n.Version, Joined: at(n.Joined)})
		}
		if _, member := s.Node(m.node); x.Entered && !member {
			x.Why = "this node was removed from the cluster; to make it a cluster of one: tendril cluster leave --anyway"
		}
	})
	return json.Marshal(x)
}
