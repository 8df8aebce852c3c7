package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/forwarding/clwire"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Leases of devices of several nodes. The record is in the metadata: it says who came first, and without it no node
// keeps devices for a lease. Who has a device its node alone decides (daemon/leases).

// Times of leases over nodes.
const (
	leaseAskTime = 3 * time.Second // for one node to give devices, or to say why not
	recordTime   = 2 * time.Second // for a node to learn of a record that another one has just made
	leaseRounds  = 3               // that who does not wait asks, where others ask in the same moment
)

// Pauses of a lease that waits between two rounds of questions to the nodes. Its place in their lines is kept for
// leases.Patience. Who waits asks this node more often; what frees devices is seen at once where it is in the metadata,
// or here.
const (
	leastRound = 500 * time.Millisecond
	mostRound  = 4 * time.Second
)

// freeMark tells what this node knows to be free from a later time when it may be more.
type freeMark struct {
	state       *fsm.State
	ends, freed uint64
	answering   int    // nodes
	called      uint64 // how often a node has said that it has devices for the lease
}

func (d *Daemon) freeNow(m *membership, id fsm.UUID) freeMark {
	x := freeMark{freed: d.leases.Freed(), answering: len(d.othersAnswering(m)), called: d.wishes.calledFor(id)}
	d.meta.raft.View(func(s *fsm.State) { x.state, x.ends = s, s.LeaseEnds() })
	return x
}

// round is the last one of a lease that waits.
type round struct {
	mark  freeMark // before it
	until time.Time
	pause time.Duration
	err   error // what came of it: who has the devices
}

// wishes are the leases over nodes that programs of this node wait for, and those whose record is to end.
type wishes struct {
	patience time.Duration // how long a lease is kept that nobody asks for: leases.Patience. Tests have another

	mu     sync.Mutex            // a leaf
	asked  map[fsm.UUID]question // last
	calls  map[fsm.UUID]call     // of those in asked
	asking map[fsm.UUID]bool     // a request is under way: one at a time for each
	rounds map[fsm.UUID]round    // of those in asked that found too little
	ending map[fsm.UUID]bool
	more   chan struct{} // something is to end; capacity 1
}

// question says when somebody asked, and who.
type question struct {
	at time.Time
	by *leases.Asker
}

// call is what nodes have said of a lease that waits.
type call struct {
	count uint64
	woken chan struct{} // closed at the next one; nil: nobody waits for it
}

func newWishes() *wishes {
	return &wishes{patience: leases.Patience, asked: map[fsm.UUID]question{}, calls: map[fsm.UUID]call{},
		asking: map[fsm.UUID]bool{}, rounds: map[fsm.UUID]round{}, ending: map[fsm.UUID]bool{},
		more: make(chan struct{}, 1)}
}

// rests gives what came of a lease's last round, where the next one is not due; nil: it is.
func (w *wishes) rests(id fsm.UUID, now freeMark) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x, there := w.rounds[id]; there && x.mark == now && time.Now().Before(x.until) {
		return x.err
	}
	return nil
}

// found notes what came of a round. The pause doubles where nothing had changed before it.
func (w *wishes) found(id fsm.UUID, before freeMark, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := round{mark: before, pause: leastRound, err: err}
	if last, there := w.rounds[id]; there && last.mark == before {
		x.pause = min(2*last.pause, mostRound)
	}
	x.until = time.Now().Add(x.pause)
	w.rounds[id] = x
}

// begin begins a request for a lease, which answered ends; false: one is under way.
func (w *wishes) begin(id fsm.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asking[id] {
		return false
	}
	w.asking[id] = true
	return true
}

// answered ends what begin began.
func (w *wishes) answered(id fsm.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.asking, id)
}

// note says that somebody waits for a lease.
func (w *wishes) note(id fsm.UUID, by *leases.Asker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[id] = question{time.Now(), by}
}

// leave says that nobody waits for a lease any more, where by asked last, or is nil. A request that is under way leaves
// by itself, once it knows that it must wait on.
func (w *wishes) leave(id fsm.UUID, by *leases.Asker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, there := w.asked[id]; there && !w.asking[id] && (by == nil || by == last.by) {
		w.forget(id)
		w.ending[id] = true
		w.look()
	}
}

// knows reports whether somebody waits for a lease, or its record is to end.
func (w *wishes) knows(id fsm.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, asked := w.asked[id]
	return asked || w.ending[id]
}

// call notes that a node has devices for a lease.
func (w *wishes) call(id fsm.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, asked := w.asked[id]; !asked {
		return
	}
	x := w.calls[id]
	if x.woken != nil {
		close(x.woken)
	}
	w.calls[id] = call{count: x.count + 1}
}

// calledFor counts the calls for a lease.
func (w *wishes) calledFor(id fsm.UUID) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[id].count
}

// worth gives what is closed when it is worth asking again for a lease: after a call that the last round was not
// begun after. nil: nobody waits for it.
func (w *wishes) worth(id fsm.UUID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, asked := w.asked[id]; !asked {
		return nil
	}
	x := w.calls[id]
	if x.count != w.rounds[id].mark.called {
		over := make(chan struct{})
		close(over)
		return over
	}
	if x.woken == nil {
		x.woken = make(chan struct{})
		w.calls[id] = x
	}
	return x.woken
}

// forget forgets what is known of a lease that nobody waits for any more. mu is held.
func (w *wishes) forget(id fsm.UUID) {
	if x := w.calls[id]; x.woken != nil {
		close(x.woken)
	}
	delete(w.asked, id)
	delete(w.rounds, id)
	delete(w.calls, id)
}

// done says that nobody waits for it any more; end: its record is to go.
func (w *wishes) done(id fsm.UUID, end bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(id)
	if end {
		w.ending[id] = true
		w.look()
	}
}

// look has tendLeases look at once.
func (w *wishes) look() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// due lists the records that are to go, those among them that nobody has asked for any more.
func (w *wishes) due() []fsm.UUID {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, last := range w.asked {
		if !w.asking[id] && time.Since(last.at) > w.patience {
			w.forget(id)
			w.ending[id] = true
		}
	}
	return slices.Collect(maps.Keys(w.ending))
}

// gone says that a record is no more.
func (w *wishes) gone(id fsm.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ending, id)
}

// leaseOver gives a program of this node a lease of devices of all nodes.
func (d *Daemon) leaseOver(p frontdoor.Peer, o *clwire.SessionOptions, by *leases.Asker) (*leases.Lease, error) {
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	id := wishID(p, o.Lease)
	if !d.wishes.begin(id) {
		return nil, fmt.Errorf("%w: a request with this ticket is under way", object.ErrBusy)
	}
	defer d.wishes.answered(id)
	rec, err := d.wish(ctx, m, p, o.Lease, id, by)
	if errors.Is(err, object.ErrExists) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("a lease over nodes: %w; leases of this node alone (without --nodes) need no other node", err)
	}
	wait, mark := o.Lease.Ticket != "", d.freeNow(m, rec.ID)
	if err := d.wishes.rests(rec.ID, mark); err != nil {
		return nil, err
	}
	secret := leaseToken()
	got, err := d.collect(ctx, m, rec, secret, o.Selector, wait)
	for i := 1; i < leaseRounds && !wait && errors.Is(err, object.ErrBusy); i++ { // others may ask in the same moment
		time.Sleep(time.Duration(20+int(rec.ID[0])%60) * time.Millisecond)
		got, err = d.collect(ctx, m, rec, secret, o.Selector, wait)
	}
	if err != nil {
		if wait && errors.Is(err, object.ErrBusy) {
			d.wishes.found(rec.ID, mark, err)
		} else {
			d.wishes.done(rec.ID, true)
		}
		return nil, err
	}
	rec.Granted, rec.Devices = true, got
	_, err = m.propose(ctx, &fsm.PutLease{Lease: rec})
	if err != nil {
		d.wishes.done(rec.ID, true)
		return nil, err
	}
	l := d.leases.Open(leases.Request{ID: rec.ID.String(), Token: secret, Tenant: rec.Tenant, Holder: rec.Holder})
	d.wishes.done(rec.ID, false) // after Open: endStrays ends what neither knows
	if _, there := d.leaseRecord(rec.ID); !there {
		d.leases.Drop(l)
		d.leases.End(l.ID)
		return nil, fmt.Errorf("%w: the lease was ended as soon as it had begun", object.ErrNotFound)
	}
	d.log.WithField("lease", rec.ID).WithField("tenant", p.Tenant).WithField("devices", len(got)).Info("leased over nodes")
	return l, nil
}

// leaseToken is 128 random bits, in hexadecimal digits.
func leaseToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail: crypto/rand
	return hex.EncodeToString(b[:])
}

// wishID is the identifier of the lease that a request is for: its ticket's, or a new one.
func wishID(p frontdoor.Peer, o *clwire.LeaseOptions) (id fsm.UUID) {
	if o.Ticket == "" {
		return fsm.UUID(object.NewID())
	}
	sum := sha256.Sum256([]byte(p.Tenant + "\x00" + o.Ticket))
	copy(id[:], sum[:])
	return id
}

// wish enters a lease in the metadata, where it then waits in its place, or finds it there.
func (d *Daemon) wish(ctx context.Context, m *membership, p frontdoor.Peer, o *clwire.LeaseOptions,
	id fsm.UUID, by *leases.Asker) (fsm.Lease, error) {
	rec := fsm.Lease{ID: id, Tenant: p.Tenant, Holder: clip(p.Name), Node: d.meta.node,
		Incarnation: d.meta.incarnation, Count: uint32(o.Count), Whole: o.Whole}
	if old, there := d.leaseRecord(rec.ID); there {
		if err := d.mayGoOn(old); err != nil {
			return old, err
		}
		d.wishes.note(rec.ID, by)
		return old, nil
	}
	d.wishes.note(rec.ID, by)
	if _, err := m.propose(ctx, &fsm.PutLease{Lease: rec}); err != nil {
		d.wishes.done(rec.ID, !errors.Is(err, object.ErrExists)) // it may have been done all the same
		return rec, err
	}
	if entered, there := d.leaseRecord(rec.ID); there {
		return entered, nil
	}
	return rec, fmt.Errorf("%w: the lease was ended while it waited", object.ErrNotFound)
}

// mayGoOn says why a ticket's lease does not wait at this node.
func (d *Daemon) mayGoOn(old fsm.Lease) error {
	switch {
	case old.Node != d.meta.node:
		return fmt.Errorf("%w: this ticket's place in the line is at another node: ask that one, or with a new ticket",
			object.ErrExists)
	case old.Incarnation != d.meta.incarnation: // it goes as soon as the cluster knows of this run
		return fmt.Errorf("%w: this ticket is of the daemon's earlier run, which is being ended", object.ErrBusy)
	case old.Granted:
		return fmt.Errorf("%w: this ticket's lease has been granted: join it with its token, or ask with a new ticket",
			object.ErrExists)
	}
	return nil
}

func (d *Daemon) leaseRecord(id fsm.UUID) (rec fsm.Lease, there bool) {
	d.meta.raft.View(func(s *fsm.State) { rec, there = s.Lease(id) })
	return rec, there
}

// collect takes what a lease wants, at this node first. Where the nodes do not have enough that is free, it takes
// nothing: ErrBusy says who has it, or which node did not say what it has, ErrNoDevice that there is not as much.
func (d *Daemon) collect(ctx context.Context, m *membership, rec fsm.Lease, token, selector string,
	wait bool) (got []fsm.LeaseDevice, err error) {
	ask := wire.TakeDevicesRequest{Lease: object.ID(rec.ID), Wait: wait, Token: token, Selector: selector}
	var reasons []string
	var taken []fsm.UUID
	matching, unheard := uint32(0), false
	nodes := append([]wire.NodeAddresses{{Node: object.ID(d.meta.node), Name: d.identity.Name}},
		d.othersAnswering(m)...)
	for _, n := range nodes {
		if ask.Count = 0; rec.Count > 0 {
			ask.Count = rec.Count - uint32(len(got))
		}
		reply, err := d.takeAt(ctx, m, fsm.UUID(n.Node), ask)
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("node %s: %v", n.Name, err))
			unheard = unheard || !errors.Is(err, object.ErrInvalid) && !errors.Is(err, object.ErrUnsupported)
			continue
		}
		if matching += reply.Matching; reply.Why != "" {
			reasons = append(reasons, fmt.Sprintf("node %s: %s", n.Name, reply.Why))
		}
		if len(reply.Devices) > 0 {
			taken = append(taken, fsm.UUID(n.Node))
		}
		for _, x := range reply.Devices {
			got = append(got, fsm.LeaseDevice{Node: fsm.UUID(n.Node), Key: x.Key})
		}
		if rec.Count > 0 && uint32(len(got)) >= rec.Count || rec.Whole && len(got) > 0 {
			return got, nil
		}
	}
	if !rec.Whole && rec.Count == 0 && matching > 0 && uint32(len(got)) == matching {
		return got, nil
	}
	for _, node := range taken {
		d.keepAt(ctx, m, node, rec.ID)
	}
	if silent := d.silentMembers(m); wait && len(silent) > 0 {
		unheard = true // it may come back, and what it has with it
		reasons = append(reasons, "no answer from node "+strings.Join(silent, ", node "))
	}
	if matching < max(1, rec.Count) && !unheard {
		return nil, fmt.Errorf("%w; see: tendril devices --nodes",
			leases.Lacks(int(rec.Count), int(matching), "the nodes that answer have"))
	}
	return nil, leases.NotFree(int(rec.Count), len(got), reasons)
}

// silentMembers names the other members that do not answer and had devices.
func (d *Daemon) silentMembers(m *membership) (names []string) {
	m.raft.View(func(s *fsm.State) {
		for _, x := range s.Devices() {
			n, is := s.Node(x.Node)
			if is && n.ID != m.node && !slices.Contains(names, n.Name) && !m.live.alive(n.ID).Answers {
				names = append(names, n.Name)
			}
		}
	})
	return names
}

func (d *Daemon) takeAt(ctx context.Context, m *membership, node fsm.UUID,
	ask wire.TakeDevicesRequest) (reply wire.TakeDevicesReply, err error) {
	if node == d.meta.node {
		return d.TakeDevices(ask)
	}
	ctx, cancel := context.WithTimeout(ctx, orDefault(d.leaseAsk, leaseAskTime))
	defer cancel()
	b, err := m.links.ask(ctx, node, wire.TakeDevices, &ask)
	if err == nil {
		err = reply.Decode(b)
	}
	return reply, err
}

// keepAt takes all devices of a node from a lease that waits. Where the node cannot be told, it learns from the
// metadata what becomes of the lease.
func (d *Daemon) keepAt(ctx context.Context, m *membership, node, lease fsm.UUID) {
	none := wire.KeepDevicesRequest{Lease: object.ID(lease)}
	if node == d.meta.node {
		_ = d.KeepDevices(none) // it waits for nobody, and does not fail
		return
	}
	ctx, cancel := context.WithTimeout(ctx, orDefault(d.leaseAsk, leaseAskTime))
	defer cancel()
	if _, err := m.links.ask(ctx, node, wire.KeepDevices, &none); err != nil {
		d.log.WithError(err).WithField("lease", lease).Debug("a node cannot be told that a lease goes on waiting")
	}
}

// TakeDevices implements frontdoor.Nodes.
func (d *Daemon) TakeDevices(ask wire.TakeDevicesRequest) (reply wire.TakeDevicesReply, err error) {
	id := fsm.UUID(ask.Lease)
	d.at("is asked for devices")
	rec, err := d.awaitLease(id)
	if err != nil {
		return reply, err
	}
	platforms, err := d.platforms(d.ctx)
	if err != nil {
		return reply, err
	}
	keys, err := leasable(ask.Selector, platforms)
	if err != nil {
		return reply, err
	}
	keys = keys[:min(len(keys), wire.MaxTakenDevices)]
	reply.Matching = uint32(len(keys))
	devices, why, err := d.leases.Take(leases.Request{ID: id.String(), Token: ask.Token, Tenant: rec.Tenant,
		Holder: rec.Holder, Devices: keys, Count: int(ask.Count), Order: rec.Order}, ask.Wait)
	if err != nil {
		return reply, err
	}
	if _, there := d.leaseRecord(id); !there { // it ended meanwhile, and nobody else would end this
		d.endPart(id)
		return reply, fmt.Errorf("%w: the lease has ended", object.ErrNotFound)
	}
	for _, key := range devices {
		reply.Devices = append(reply.Devices, wire.NamedDevice{Key: key})
	}
	reply.Why = clip(why)
	return reply, nil
}

// awaitLease waits until this node knows of a lease's record.
func (d *Daemon) awaitLease(id fsm.UUID) (fsm.Lease, error) {
	late := time.NewTimer(recordTime + d.patience())
	defer late.Stop()
	for {
		changed := d.meta.raft.Changed()
		if rec, there := d.leaseRecord(id); there {
			return rec, nil
		}
		select {
		case <-changed:
		case <-late.C:
			return fsm.Lease{}, fmt.Errorf("%w: this node knows of no such lease, or not yet", object.ErrNotFound)
		case <-d.ctx.Done():
			return fsm.Lease{}, fmt.Errorf("%w: the daemon ends", object.ErrBusy)
		}
	}
}

// KeepDevices implements frontdoor.Nodes.
func (d *Daemon) KeepDevices(m wire.KeepDevicesRequest) error {
	var keys []string
	for _, x := range m.Devices {
		keys = append(keys, x.Key)
	}
	d.leases.Keep(fsm.UUID(m.Lease).String(), keys)
	return nil
}

// followLeases makes this node's parts of leases over nodes what the metadata says.
func (d *Daemon) followLeases() {
	all, _ := d.leases.Parts()
	for _, text := range all {
		id, err := parseUUID(text)
		if err != nil {
			continue
		}
		rec, there := d.leaseRecord(id)
		if !there {
			d.endPart(id)
			continue
		}
		if rec.Granted {
			var keys []string
			for _, x := range rec.Devices {
				if x.Node == d.meta.node {
					keys = append(keys, x.Key)
				}
			}
			d.leases.Settle(text, keys)
		}
	}
}

// Why a session is ended with its lease, as its program is told.
var (
	errLeaseOver  = errors.New("its lease over nodes has ended")
	errLeaseEnded = errors.New("its lease was ended with tendril leases end")
)

// endPart ends what a lease over nodes has here, and its sessions.
func (d *Daemon) endPart(id fsm.UUID) {
	l := d.leases.End(id.String())
	if l == nil {
		return
	}
	d.log.WithField("lease", id).WithField("tenant", l.Tenant).Info("a lease over nodes has ended: so do its sessions")
	d.endSessions(d.sessions.of(l), errLeaseOver)
}

// tendLeases ends records of leases over nodes until the daemon ends: those of this node's programs that have ended,
// and where this node leads, those of nodes that do not answer.
func (d *Daemon) tendLeases() {
	tick := time.NewTicker(leaseLook)
	defer tick.Stop()
	changes := uint64(0) // that endStrays has seen
	var now reign
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		case <-d.wishes.more:
		}
		d.followLeases()
		changes = d.endStrays(changes)
		_, abandoned := d.leases.Parts()
		for _, text := range abandoned {
			if id, err := parseUUID(text); err == nil {
				d.leases.End(text) // its devices here are free at once
				d.wishes.done(id, true)
			}
		}
		d.endRecords()
		if now = d.reigns(now); !now.since.IsZero() && time.Since(now.since) > silentAfter*pulseEvery {
			d.endLeasesOfSilent()
		}
	}
}

// DevicesFree implements frontdoor.Nodes.
func (d *Daemon) DevicesFree(lease object.ID) { d.wishes.call(fsm.UUID(lease)) }

// maxCalls is how many leases' nodes are told at once that there are devices.
const maxCalls = 64

// followCalls tells the nodes of leases that wait when there are devices for them here. A node that cannot be told asks
// again by itself, if later. It ends with d.ctx.
func (d *Daemon) followCalls() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.leases.Called():
		}
		ids := d.leases.Calls()
		for len(ids) > 0 {
			n := min(len(ids), maxCalls)
			var telling sync.WaitGroup
			for _, text := range ids[:n] {
				telling.Go(func() { d.tellFree(text) })
			}
			telling.Wait()
			ids = ids[n:]
		}
	}
}

// tellFree tells the node of one.
func (d *Daemon) tellFree(text string) {
	id, err := parseUUID(text)
	rec, there := d.leaseRecord(id)
	switch {
	case err != nil || !there || rec.Granted:
	case rec.Node == d.meta.node:
		d.wishes.call(id)
	default:
		m := d.meta.now.Load()
		ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.leaseAsk, leaseAskTime))
		defer cancel()
		if _, err := m.links.ask(ctx, rec.Node, wire.DevicesFree, &wire.IDMessage{ID: object.ID(id)}); err != nil {
			d.log.WithError(err).WithField("lease", id).Debug("a lease's node cannot be told that there are devices for it")
		}
	}
}

// endStrays has the records of this run end that nobody here waits for or has: proposals that were done after their
// requests were given up. It gives how often leases have changed, and looks only where they have since seen.
func (d *Daemon) endStrays(seen uint64) (changes uint64) {
	var own []fsm.UUID
	d.meta.raft.View(func(s *fsm.State) {
		if changes = s.LeaseChanges(); changes == seen {
			return
		}
		for _, l := range s.Leases() {
			if l.Node == d.meta.node && l.Incarnation == d.meta.incarnation {
				own = append(own, l.ID)
			}
		}
	})
	for _, id := range own {
		if !d.wishes.knows(id) && !d.leases.IsHome(id.String()) {
			d.wishes.done(id, true)
		}
	}
	return changes
}

// endRecords ends the records that are due, all with one command, as far as one takes them. Where a node of another
// release would stop at that one, each with its own, which all know.
func (d *Daemon) endRecords() {
	most := fsm.MaxEndedLeases
	if d.sameRelease() != nil {
		most = 1
	}
	for ids := range slices.Chunk(d.wishes.due(), most) {
		var cmd fsm.Command = &fsm.EndListedLeases{IDs: ids}
		if len(ids) == 1 {
			cmd = &fsm.EndLease{ID: ids[0]}
		}
		if _, err := d.propose(cmd); err != nil && !errors.Is(err, object.ErrNotFound) {
			d.log.WithError(err).Debugf("cannot end %s over nodes yet", object.Counted(len(ids), "lease"))
			return // all need the same leader
		}
		for _, id := range ids {
			d.wishes.gone(id)
		}
	}
}

// reign is the time for which this node has led the cluster; zero: it does not.
type reign struct {
	term  uint64
	since time.Time
}

// reigns gives the present reign, after the one that was seen last. What a node knew of the others before it led may be
// of a time when it was cut off.
func (d *Daemon) reigns(last reign) reign {
	raft := d.meta.now.Load().raft
	if !raft.Leads() {
		return reign{}
	}
	if term := raft.Status().Term; term != last.term || last.since.IsZero() {
		return reign{term, time.Now()}
	}
	return last
}

// endLeasesOfSilent ends the leases of programs whose nodes do not answer, while this node leads. It asks the other
// voters whether it still does, and proposes here alone: a leader that was paused may have been replaced, and what it
// remembers of the others is old.
func (d *Daemon) endLeasesOfSilent() {
	m := d.meta.now.Load()
	if !m.raft.Leads() || len(d.silentHomes(m)) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, proposeTime)
	defer cancel()
	if err := m.raft.Read(ctx, func(*fsm.State) {}); err != nil {
		d.log.WithError(err).Debug("this node is no longer the leader: it ends no leases of other nodes")
		return
	}
	if err := d.passGate(ctx); err != nil {
		return // the node goes to another cluster
	}
	defer d.meta.gate.RUnlock()
	for node, incarnation := range d.silentHomes(m) {
		_, err := m.raft.Propose(ctx, fsm.UUID(object.NewID()), &fsm.EndLeases{Node: node, Incarnation: incarnation})
		d.log.WithField("node", node).WithError(err).Warn("a node does not answer: the leases of its programs are ended")
	}
}

// silentHomes gives the nodes that have leases and do not answer, with the incarnations that have them.
func (d *Daemon) silentHomes(m *membership) map[fsm.UUID]fsm.UUID {
	homes := map[fsm.UUID]fsm.UUID{}
	m.raft.View(func(s *fsm.State) {
		for _, l := range s.Leases() {
			homes[l.Node] = l.Incarnation
		}
	})
	maps.DeleteFunc(homes, func(node, _ fsm.UUID) bool { return node == m.node || m.live.alive(node).Answers })
	return homes
}

// leaseNodes lists the other nodes where a lease has devices, or had when this node's part was opened.
func (d *Daemon) leaseNodes(l *leases.Lease) (list []string) {
	id, err := parseUUID(l.ID)
	if err != nil {
		return nil
	}
	rec, _ := d.leaseRecord(id)
	for _, x := range rec.Devices {
		if x.Node != d.meta.node && !slices.Contains(list, x.Node.String()) {
			list = append(list, x.Node.String())
		}
	}
	return list
}

// Leases implements frontdoor.Nodes.
func (d *Daemon) Leases(p frontdoor.Peer) ([]byte, error) {
	if p.Role == pki.Node {
		return json.Marshal(d.ownLeases())
	}
	list := d.allLeases()
	for i := range list {
		if !p.Admin && list[i].Tenant != p.Tenant {
			list[i].Holder = ""
		}
	}
	return json.Marshal(notNil(list))
}

func (d *Daemon) ownLeases() []leases.Status {
	list := notNil(d.leases.List())
	for i := range list {
		list[i].Node = d.identity.Name
	}
	return list
}

// allLeases asks all nodes that answer, and the metadata.
func (d *Daemon) allLeases() []leases.Status {
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.leaseAsk, leaseAskTime))
	defer cancel()
	others := d.othersAnswering(m)
	found := make([][]leases.Status, len(others))
	var asked sync.WaitGroup
	for i, n := range others {
		asked.Go(func() {
			b, err := m.links.ask(ctx, fsm.UUID(n.Node), wire.Leases, nil)
			if err == nil {
				err = json.Unmarshal(b, &found[i])
			}
			if err != nil {
				d.log.WithError(err).WithField("node", n.Name).Debug("cannot ask a node for its leases")
			}
		})
	}
	asked.Wait()
	var list []leases.Status
	sessions := map[string]int{}
	for _, x := range append(d.ownLeases(), slices.Concat(found...)...) {
		if x.ID == "" {
			list = append(list, x)
		}
		sessions[x.ID] += x.Sessions
	}
	over := d.leasesOver()
	for i := range over {
		over[i].Sessions = sessions[over[i].ID]
	}
	return append(list, over...)
}

// leasesOver lists the leases over nodes, those that wait in their order.
func (d *Daemon) leasesOver() (list []leases.Status) {
	d.meta.raft.View(func(s *fsm.State) {
		place := 0
		name := func(id fsm.UUID) string {
			if n, ok := s.Node(id); ok {
				return n.Name
			}
			return id.String()
		}
		for _, l := range s.Leases() {
			x := leases.Status{ID: l.ID.String(), Node: name(l.Node), Tenant: l.Tenant, Holder: l.Holder,
				Devices: []string{}, Count: int(l.Count), Since: at(l.Since)}
			for _, y := range l.Devices {
				x.Devices, x.Nodes = append(x.Devices, y.Key), append(x.Nodes, name(y.Node))
			}
			if l.Granted {
				x.Count = len(l.Devices)
			} else {
				place++
				x.Place = place
			}
			list = append(list, x)
		}
	})
	return list
}

// leastLeaseID is how many digits of a lease's id are enough.
const leastLeaseID = 4

// EndLease implements frontdoor.Nodes.
func (d *Daemon) EndLease(p frontdoor.Peer, name string) (err error) {
	tenant, of := "", name // the lease's
	defer func() { d.auditBy(p, "lease.end", tenant, of, err) }()
	if p.Role != pki.User && p.Role != pki.Node {
		return fmt.Errorf("%w: role %v ends no lease", object.ErrPermission, p.Role)
	}
	var found []leases.Status
	for _, x := range d.allLeases() {
		of := x.ID != "" && len(name) >= leastLeaseID && strings.HasPrefix(x.ID, name)
		if of || x.ID == "" && x.Number > 0 && name == fmt.Sprintf("%s/%d", x.Node, x.Number) {
			found = append(found, x)
		}
	}
	if len(found) == 1 {
		tenant, of = found[0].Tenant, cmp.Or(found[0].ID, name)
	}
	switch {
	case len(found) == 0:
		return fmt.Errorf("%w: no lease %.80q", object.ErrNotFound, name)
	case len(found) > 1:
		return fmt.Errorf("%w: %d leases begin with %.80q: write more of it", object.ErrInvalid, len(found), name)
	case !p.Admin && p.Role != pki.Node && found[0].Tenant != p.Tenant:
		return fmt.Errorf("%w: lease %s is of another tenant: its node's administrator may end it", object.ErrPermission,
			name)
	}
	x := found[0]
	d.log.WithField("lease", name).WithField("tenant", x.Tenant).WithField("by", p.Tenant).Info("a lease is ended on request")
	if x.ID != "" {
		id, err := parseUUID(x.ID)
		if err == nil {
			_, err = d.propose(&fsm.EndLease{ID: id})
		}
		return err
	}
	return d.endLeaseAt(x)
}

// endLeaseAt ends a lease of one node.
func (d *Daemon) endLeaseAt(x leases.Status) error {
	if x.Node == d.identity.Name {
		d.endSessions(d.sessions.numbered(x.Number), errLeaseEnded)
		return nil
	}
	m := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(m.ctx, orDefault(d.leaseAsk, leaseAskTime))
	defer cancel()
	for _, n := range d.othersAnswering(m) {
		if n.Name == x.Node {
			_, err := m.links.ask(ctx, fsm.UUID(n.Node), wire.EndLease,
				&wire.EndLeaseRequest{Name: fmt.Sprintf("%s/%d", x.Node, x.Number)})
			return err
		}
	}
	return fmt.Errorf("%w: node %s does not answer", object.ErrBusy, x.Node)
}
