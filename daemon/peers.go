package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Links between workers of one program. This node dials for its workers, and no address that somebody else chose: only
// front doors that its operator named, with the authority of the node there, which has to sign each offer.

const (
	peerDialTime    = 3 * time.Second
	peerUserTimeout = time.Minute // TCP_USER_TIMEOUT, as at the front door
	maxPeerLinks    = 1024        // of one session, that are remembered
	peerLinksShown  = 16          // of them in the status
	peerKey         = "peer/"     // policies of the metadata: the address behind it, the authority as value
)

// PeerLinkStatus is one link of a session's workers in `tendril status`.
type PeerLinkStatus struct {
	Session uint64 `json:"session"`
	Worker  uint64 `json:"worker"`
	Link    uint64 `json:"link"`
	With    string `json:"with"`          // the other worker, as the program names it
	Up      bool   `json:"up"`            // false: what goes between the two passes the program
	Why     string `json:"why,omitempty"` // it is not up
}

// PeerStatus is one node that this one's workers may be connected to.
type PeerStatus struct {
	Address   string `json:"address"`
	Authority string `json:"authority"`
}

// PeersStatus is what `tendril peer ls` shows.
type PeersStatus struct {
	Authority string       `json:"authority"` // this node's own: what its peers name
	Peers     []PeerStatus `json:"peers"`
}

// peering is what is known of links. mu is a leaf.
type peering struct {
	mu    sync.Mutex
	links map[uint64]map[uint64]PeerLinkStatus // by session, by link
	// offers that were dialed, by their tickets, until they are too old anyway; in order, and how many each tenant has
	used  map[[sha256.Size]byte]struct{}
	queue []usedOffer
	has   map[string]int
}

// usedOffer is one of them.
type usedOffer struct {
	tickets [sha256.Size]byte
	tenant  string
	at      time.Time
}

const (
	offerMemory = time.Hour // longer than pki.OpenOffer takes one for young
	// maxOffers bounds what is remembered of one tenant's. An offer costs its program two round trips.
	maxOffers = 1 << 14
)

func newPeering() *peering {
	return &peering{links: map[uint64]map[uint64]PeerLinkStatus{}, used: map[[sha256.Size]byte]struct{}{},
		has: map[string]int{}}
}

// forget drops what is known of a session.
func (p *peering) forget(session uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, session)
}

// show gives the first peerLinksShown links of each session, those that are not up before the others, and notes in the
// session's status how many it has. The lock is held for one session's at a time.
func (p *peering) show(sessions []SessionStatus) (list []PeerLinkStatus) {
	for i := range sessions {
		links := p.of(sessions[i].ID)
		sessions[i].PeerLinks = len(links)
		slices.SortFunc(links, func(a, b PeerLinkStatus) int {
			return cmp.Or(cmp.Compare(btoi(a.Up), btoi(b.Up)), cmp.Compare(a.Link, b.Link))
		})
		list = append(list, links[:min(len(links), peerLinksShown)]...)
	}
	return list
}

// of gives a session's links, in no order.
func (p *peering) of(session uint64) []PeerLinkStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.links[session]))
}

// spend notes that an offer is dialed for a tenant, once: by its tickets, for its bytes can be written in other ways.
// Errors: ErrPermission (it was dialed before), ErrBusy.
func (p *peering) spend(o pki.Offer, tenant string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && now.Sub(p.queue[0].at) > offerMemory {
		old := p.queue[0]
		p.queue = p.queue[1:]
		delete(p.used, old.tickets)
		if p.has[old.tenant]--; p.has[old.tenant] == 0 {
			delete(p.has, old.tenant)
		}
	}
	sum := sha256.Sum256(slices.Concat(o.Tickets...))
	if _, again := p.used[sum]; again {
		return fmt.Errorf("%w: this offer was used before: ask for another", object.ErrPermission)
	}
	if p.has[tenant] >= maxOffers {
		return fmt.Errorf("%w: workers of %s were linked to other nodes' %d times within %v: wait", object.ErrBusy,
			tenant, maxOffers, offerMemory)
	}
	p.used[sum] = struct{}{}
	p.queue = append(p.queue, usedOffer{sum, tenant, now})
	p.has[tenant]++
	return nil
}

// OfferPeer implements frontdoor.Peers.
func (d *Daemon) OfferPeer(session uint64, m wire.OfferPeerRequest) ([]byte, error) {
	if !wire.CheckLanes(m.Lanes) {
		return nil, fmt.Errorf("%w: a link of %d connections, want 2 to %d", object.ErrInvalid, m.Lanes,
			wire.MaxPeerLanes)
	}
	door := d.door.Load()
	if door == nil || door.RemoteAddr() == nil {
		return nil, fmt.Errorf("%w: this node's front door is not open for other machines", object.ErrUnsupported)
	}
	var may func(string) error
	if m.Plaintext {
		may = func(remote string) error { _, err := d.plaintextFrom(remote); return err }
	}
	tickets, err := d.pool.OfferPeer(session, m.Worker, m.Link, int(m.Lanes), may)
	if err != nil {
		return nil, err
	}
	o := pki.Offer{Address: door.RemoteAddr().String(), Tickets: tickets, Plaintext: m.Plaintext, Issued: time.Now()}
	return o.Sign(d.meta.keyring.Certificate())
}

// peers gives the peers, by address.
func (d *Daemon) peers() (list []PeerStatus) {
	d.meta.raft.View(func(s *fsm.State) {
		for _, p := range s.Policies() {
			if address, ok := strings.CutPrefix(p.Key, peerKey); ok && len(p.Value) == len(pki.Fingerprint{}) {
				list = append(list, PeerStatus{Address: address, Authority: pki.Fingerprint(p.Value).String()})
			}
		}
	})
	return list
}

// DialPeer implements frontdoor.Peers.
func (d *Daemon) DialPeer(ctx context.Context, session uint64, m wire.DialPeerRequest) error {
	s, err := d.sessions.get(session)
	if err != nil {
		return err
	}
	peers, trust := d.peers(), d.meta.now.Load().authority.Load().Trust()
	inOwn := func(f pki.Fingerprint) bool {
		return f == pki.FingerprintOf(trust.Authority) || trust.Before != nil && f == pki.FingerprintOf(trust.Before)
	}
	known := func(f pki.Fingerprint) bool {
		return inOwn(f) || slices.ContainsFunc(peers, func(p PeerStatus) bool { return p.Authority == f.String() })
	}
	now := time.Now()
	offer, authority, err := pki.OpenOffer(m.Offer, known, now)
	if err != nil {
		return err
	}
	if err := d.peering.spend(offer, s.peer.Tenant, now); err != nil {
		return err
	}
	if inOwn(authority) { // what peer add named goes first
		peers = append(peers, d.nodeAsPeer(offer.Node, authority)...)
	}
	peers = slices.DeleteFunc(peers, func(p PeerStatus) bool { return p.Authority != authority.String() })
	slices.SortStableFunc(peers, func(a, b PeerStatus) int { // the address that the node itself names first
		return cmp.Compare(btoi(b.Address == offer.Address), btoi(a.Address == offer.Address))
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var faults []error
	for _, p := range peers {
		if err = d.connectPeer(ctx, s, m, offer, p.Address); err == nil {
			return nil
		}
		faults = append(faults, fmt.Errorf("%s: %w", p.Address, err))
	}
	if len(faults) == 0 {
		faults = []error{fmt.Errorf("node %s is no member of this cluster", printable(offer.Node))}
	}
	return fmt.Errorf("%w: %w", object.ErrUnsupported, errors.Join(faults...))
}

// nodeAsPeer says where another node of this cluster is reached, which needs nobody to name it.
func (d *Daemon) nodeAsPeer(node string, authority pki.Fingerprint) (list []PeerStatus) {
	id, err := parseUUID(node)
	if err != nil {
		return nil
	}
	for _, a := range d.meta.now.Load().addresses(id) {
		list = append(list, PeerStatus{Address: a, Authority: authority.String()})
	}
	return list
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// connectPeer makes a link's connections to one address.
func (d *Daemon) connectPeer(ctx context.Context, s *session, m wire.DialPeerRequest, offer pki.Offer,
	address string) error {
	for i, ticket := range offer.Tickets {
		if err := d.connectLane(ctx, s, m, offer, [ipc.TicketBytes]byte(ticket), i, address); err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemon) connectLane(ctx context.Context, s *session, m wire.DialPeerRequest, offer pki.Offer,
	ticket [ipc.TicketBytes]byte, index int, address string) error {
	dialer := net.Dialer{Timeout: peerDialTime, Control: func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
				int(peerUserTimeout/time.Millisecond))
		})
		return errors.Join(err, set)
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close() // the worker has it by then
	if offer.Plaintext {
		if _, err := d.plaintextFrom(conn.RemoteAddr().String()); err != nil {
			return err
		}
	}
	if err := conn.SetWriteDeadline(time.Now().Add(peerDialTime)); err != nil {
		return err
	}
	if _, err := conn.Write(ipc.NewPreface(ipc.KindTicket, ticket).Append(nil)); err != nil {
		return err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var given error
	err = raw.Control(func(fd uintptr) { given = d.pool.GivePeer(s.id, m.Worker, m.Link, index, int(fd)) })
	return errors.Join(err, given)
}

// PairPeers implements frontdoor.Peers.
func (d *Daemon) PairPeers(session uint64, m wire.PairPeersRequest) error {
	if !wire.CheckLanes(m.Lanes) || m.Workers[0] == m.Workers[1] {
		return fmt.Errorf("%w: a link of %d connections between workers %d and %d", object.ErrInvalid, m.Lanes,
			m.Workers[0], m.Workers[1])
	}
	for i := range int(m.Lanes) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socketpair: %w", err)
		}
		err = errors.Join(
			d.pool.GivePeer(session, m.Workers[0], m.Link, i, fds[0]),
			d.pool.GivePeer(session, m.Workers[1], m.Link, i, fds[1]),
			unix.Close(fds[0]), unix.Close(fds[1]))
		if err != nil {
			return err
		}
	}
	return nil
}

// TellPeer implements frontdoor.Peers.
func (d *Daemon) TellPeer(session uint64, m wire.TellPeerRequest) {
	d.pool.SpendPeer(session, m.Worker, m.Link)
	l := PeerLinkStatus{Session: session, Worker: m.Worker, Link: m.Link, With: printable(m.With), Up: m.Up,
		Why: printable(m.Text)}
	d.peering.mu.Lock()
	links := d.peering.links[session]
	if links == nil {
		links = map[uint64]PeerLinkStatus{}
		d.peering.links[session] = links
	}
	for id, old := range links { // the program tries again where there is none
		if !old.Up && old.Worker == l.Worker && old.With == l.With {
			delete(links, id)
		}
	}
	if _, known := links[m.Link]; known || len(links) < maxPeerLinks {
		links[m.Link] = l
	}
	d.peering.mu.Unlock()
	log := d.log.WithField("session", session).WithField("worker", m.Worker).WithField("with", l.With)
	if s, err := d.sessions.get(session); err != nil { // closed meanwhile, and forgotten before this was there
		d.peering.forget(session)
	} else {
		log = log.WithField("tenant", s.peer.Tenant)
	}
	if m.Up {
		log.Info("two workers are linked")
		return
	}
	log.WithField("why", l.Why).Info("no link between two workers: their data goes through the program")
}

// printable keeps a client's words from writing on an operator's terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Peers implements frontdoor.Peers.
func (d *Daemon) Peers() ([]byte, error) {
	return json.Marshal(PeersStatus{Authority: pki.FingerprintOf(d.meta.authority.Certificate()).String(),
		Peers: notNil(d.peers())})
}

// SetPeer implements frontdoor.Peers.
func (d *Daemon) SetPeer(p frontdoor.Peer, m wire.SetPeerRequest) (err error) {
	removed := m.Authority == [sha256.Size]byte{}
	what, of := "peer.add", printable(m.Address)+" "+pki.Fingerprint(m.Authority).String()
	if removed {
		what, of = "peer.remove", printable(m.Address)
	}
	defer func() { d.auditBy(p, what, "", of, err) }()
	if _, port, err := net.SplitHostPort(m.Address); err != nil || port == "" || printable(m.Address) != m.Address ||
		len(m.Address) > 255 {
		return fmt.Errorf("%w: address %.60q, want HOST:PORT", object.ErrInvalid, m.Address)
	}
	policy := fsm.Policy{Key: peerKey + m.Address, Value: m.Authority[:]}
	if removed {
		policy.Value = nil
	}
	var known bool
	d.meta.raft.View(func(s *fsm.State) {
		var old fsm.Policy
		old, known = s.Policy(policy.Key)
		policy.Epoch = old.Epoch
	})
	if policy.Value == nil && !known {
		return fmt.Errorf("%w: no peer %s", object.ErrNotFound, m.Address)
	}
	if _, err := d.propose(&fsm.SetPolicy{Policy: policy}); err != nil {
		return err
	}
	d.log.WithField("peer", m.Address).WithField("authority", pki.Fingerprint(m.Authority)).Info("peers changed")
	return nil
}
