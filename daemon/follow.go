package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/daemon/changes"
	"tendril/daemon/inspect"
	"tendril/store"
	"tendril/store/events"
	"tendril/store/object"
)

// What changes, for those who follow over HTTP. Nothing of it is there while nobody follows. Objects are the store's
// events; the rest is looked at once a followLook, and what differs is told.
const (
	followLook     = time.Second
	followKeep     = time.Minute // that a ring outlives its last follower, so that one who comes back misses nothing
	followRest     = 50 * time.Millisecond
	followBatch    = 64  // changes of a tenant's objects for each followRest; what is more may be missed
	followNames    = 256 // of a tenant's published names in a look, for those who see everything
	followObjects  = 256 // the same of its objects
	maxFollowers   = 16  // of one tenant, and of those who see everything
	followerBytes  = 16 << 10
	followingBytes = changes.MaxBytes + 64<<10 // a ring and its watch
)

// follows has a ring for each tenant that is followed, and one for those who see everything, whose name is "". What it
// takes is charged to the tenant that asked. mu comes before the store's.
type follows struct {
	mu      sync.Mutex
	rings   map[string]*followedRing
	watches map[string]context.CancelFunc // by tenant: ends hearing of its objects
	facts   map[factKey]fact              // as they were told
	names   nameMark                      // the same of published names
	loud    map[string]int                // changes of objects since the last look, by tenant
	running bool
	closed  bool

	goes sync.WaitGroup // goroutines; they end with the daemon's context
}

// followedRing is a ring and who pays for it.
type followedRing struct {
	*changes.Ring
	conn      *store.Conn // charged; nil: those who see everything and have no tenant
	followers int
	since     time.Time // there has been no follower
	shut      bool      // its tenant was disabled
}

// factKey is one thing that is looked at, and fact what is known of it.
type factKey struct{ kind, id string }

type fact struct{ state, name, tenant string }

// Changes implements inspect.Source.
func (l *look) Changes(v inspect.Viewer, place string) (*changes.Reader, func(), error) {
	tenant, all := l.sees(v)
	key := tenant
	if all {
		key = ""
	} else if tenant == "" {
		return nil, nil, fmt.Errorf("%w: no tenant's changes are yours", object.ErrPermission)
	}
	f := &l.follows
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, fmt.Errorf("%w: the daemon is shutting down", object.ErrBusy)
	}
	ring := f.rings[key]
	if ring == nil {
		var err error
		if ring, err = l.follow(key, tenant); err != nil {
			return nil, nil, err
		}
	}
	if ring.followers >= maxFollowers {
		return nil, nil, fmt.Errorf("%w: %d follow already", object.ErrBusy, maxFollowers)
	}
	if err := ring.charge(followerBytes); err != nil {
		return nil, nil, err
	}
	ring.followers++
	return ring.From(place), sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		ring.followers--
		ring.since = time.Now()
		ring.uncharge(followerBytes)
	}), nil
}

func (r *followedRing) charge(n uint64) error {
	if r.conn == nil {
		return nil
	}
	return r.conn.ChargeRequest(n)
}

func (r *followedRing) uncharge(n uint64) {
	if r.conn != nil {
		r.conn.UnchargeRequest(n)
	}
}

// follow makes a ring, which tenant pays for. follows.mu is held.
func (l *look) follow(key, tenant string) (*followedRing, error) {
	f, ring := &l.follows, &followedRing{Ring: changes.New(), since: time.Now()}
	if tenant != "" {
		conn, err := l.store.Connect(store.Owner{Tenant: tenant, Name: "inspection"})
		if err != nil {
			return nil, err
		}
		ring.conn = conn
	}
	if err := ring.charge(followingBytes); err != nil {
		ring.conn.Close()
		return nil, err
	}
	if f.rings == nil {
		f.rings, f.watches = map[string]*followedRing{}, map[string]context.CancelFunc{}
	}
	f.rings[key] = ring
	if !f.running {
		f.running, f.facts = true, l.factsNow()
		l.meta.raft.View(func(s *fsm.State) {
			_, now, _, _ := s.NameChanges(0)
			f.names = nameMark{s, now}
		})
		f.goes.Go(l.tellChanges)
	}
	return ring, l.watchTenants(key == "")
}

// tellChanges looks for changes until nobody follows, or the daemon ends.
func (l *look) tellChanges() {
	tick := time.NewTicker(followLook)
	defer tick.Stop()
	for l.tellOnce() {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
		}
	}
}

// tellOnce tells what has changed since the last time; false: that was the last time.
func (l *look) tellOnce() bool {
	f := &l.follows
	f.mu.Lock()
	defer f.mu.Unlock()
	ends := l.ctx.Err() != nil
	tenants := (*Daemon)(l).meta.tenants.Load()
	for key, ring := range f.rings {
		if !ring.shut && key != "" && tenants.Disabled(key) {
			ring.shut = true
			ring.Close() // its followers end; then it goes
		}
		if ends || ring.followers == 0 && (ring.shut || time.Since(ring.since) > followKeep) {
			ring.Close()
			ring.uncharge(followingBytes)
			if ring.conn != nil {
				ring.conn.Close()
			}
			delete(f.rings, key)
		}
	}
	f.closed = f.closed || ends
	if len(f.rings) == 0 {
		for tenant := range f.watches {
			f.unwatch(tenant)
		}
		f.running, f.facts, f.names = false, nil, nameMark{} // which would keep a state that raft has no more
		return false
	}
	if err := l.watchTenants(false); err != nil {
		l.log.WithError(err).Debug("changes cannot be followed")
	}
	clear(f.loud)
	f.tellFacts(l.factsNow())
	l.tellNames()
	return true
}

// watchTenants watches the tenants whose changes somebody follows, and no others. One that has nothing but the watch is
// let go. begins: the ring of those who see everything is new, and has missed nothing. follows.mu is held.
func (l *look) watchTenants(begins bool) error {
	f, wanted := &l.follows, map[string]bool{}
	if f.rings[""] != nil {
		for _, t := range l.store.Status().Tenants {
			wanted[t.Name] = f.watches[t.Name] == nil || t.Connections > 1 || t.Objects > 0
		}
	}
	for key := range f.rings {
		wanted[key] = key != "" || wanted[key]
	}
	var faults []error
	fresh := map[string]bool{}
	for tenant := range wanted {
		if wanted[tenant] && tenant != "" && f.watches[tenant] == nil {
			faults = append(faults, l.watchTenant(tenant))
			fresh[tenant] = true
		}
	}
	if f.rings[""] != nil && !begins && len(fresh) > 0 {
		for _, t := range l.store.Status().Tenants { // what came before its watch, and is still there, was not told
			if fresh[t.Name] && t.Objects > 0 {
				f.tell(changes.Missed, inspect.Event{Tenant: t.Name})
			}
		}
	}
	for tenant := range f.watches {
		if !wanted[tenant] {
			f.unwatch(tenant)
		}
	}
	return errors.Join(faults...)
}

// watchTenant begins to hear of a tenant's objects. follows.mu is held.
func (l *look) watchTenant(tenant string) error {
	conn, err := l.store.Connect(store.Owner{Tenant: tenant, Name: "inspection"})
	if err != nil {
		return err // the store is closing
	}
	f := &l.follows
	ctx, cancel := context.WithCancel(l.ctx)
	f.watches[tenant] = cancel
	w := conn.Watch("", nil)
	f.goes.Go(func() {
		defer conn.Close()
		defer w.Close()
		for n := 1; ; n++ {
			ev, err := w.Next(ctx)
			if err != nil {
				return
			}
			f.tellObject(tenant, ev)
			if n%followBatch == 0 {
				select {
				case <-time.After(followRest):
				case <-ctx.Done():
				}
			}
		}
	})
	return nil
}

// unwatch ends a watch. mu is held.
func (f *follows) unwatch(tenant string) {
	f.watches[tenant]()
	delete(f.watches, tenant)
}

// tellObject tells who may know of it.
func (f *follows) tellObject(tenant string, ev events.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch ev.Kind {
	case events.Published, events.Unpublished: // for those who watch; tellNames tells it here
		return
	case events.Lost:
		f.tell(changes.Missed, inspect.Event{Tenant: tenant})
		return
	}
	kind := inspect.ObjectEvent
	if ev.Kind == events.Named || ev.Kind == events.Unnamed {
		kind = inspect.NameEvent
	}
	if f.loud == nil {
		f.loud = map[string]int{}
	}
	if f.loud[tenant]++; f.loud[tenant] == followObjects+1 { // the others' changes stay in the ring
		f.tellSeers(changes.Missed, inspect.Event{Tenant: tenant})
	}
	f.tellSome(kind, inspect.Event{Change: ev.Kind, ID: ev.ID.String(), Name: ev.Name, Tenant: tenant,
		SizeBytes: ev.SizeBytes, At: ev.At}, f.loud[tenant] <= followObjects)
}

// tell adds an event to the rings of its tenant and of those who see everything; to all where it has no tenant. mu is
// held.
func (f *follows) tell(kind string, ev inspect.Event) { f.tellSome(kind, ev, true) }

// tellSome is tell; all: also those who see everything.
func (f *follows) tellSome(kind string, ev inspect.Event, all bool) {
	data, err := json.Marshal(ev)
	if err != nil {
		return // it has no such field
	}
	for key, ring := range f.rings {
		if key == "" && all || key != "" && (ev.Tenant == "" || ev.Tenant == key) {
			ring.Add(kind, data)
		}
	}
}

// tellSeers is tell for those alone who see everything. mu is held.
func (f *follows) tellSeers(kind string, ev inspect.Event) {
	if ring := f.rings[""]; ring != nil {
		data, _ := json.Marshal(ev) // it has no field that fails
		ring.Add(kind, data)
	}
}

// tellFacts tells what differs from the last time. mu is held.
func (f *follows) tellFacts(now map[factKey]fact) {
	at := time.Now().UTC()
	for key, x := range now {
		if f.facts[key] != x {
			f.tell(key.kind, inspect.Event{Change: x.state, ID: key.id, Name: x.name, Tenant: x.tenant, At: at})
		}
	}
	for key, x := range f.facts {
		if _, there := now[key]; !there {
			f.tell(key.kind, inspect.Event{Change: "gone", ID: key.id, Name: x.name, Tenant: x.tenant, At: at})
		}
	}
	f.facts = now
}

// tellNames tells which names were published since the last time, and which are no longer: as many as the metadata
// remembers. A tenant of which that is too much misses some, and no other one does. follows.mu is held.
func (l *look) tellNames() {
	f := &l.follows
	list, missed, all := f.names.advance(l.meta.raft.View)
	if all {
		f.tell(changes.Missed, inspect.Event{})
	}
	for _, tenant := range missed {
		f.tell(changes.Missed, inspect.Event{Tenant: tenant})
	}
	told := map[string]int{}
	for _, c := range list {
		ev := inspect.Event{Change: "unpublished", ID: c.ID.String(), Name: c.Name, Tenant: c.Tenant,
			SizeBytes: c.SizeBytes, At: at(c.At)}
		if c.Published {
			ev.Change = "published"
		}
		if told[c.Tenant]++; told[c.Tenant] == followNames+1 {
			f.tellSeers(changes.Missed, inspect.Event{Tenant: c.Tenant})
		}
		f.tellSome(inspect.NameEvent, ev, told[c.Tenant] <= followNames)
	}
}

// factsNow looks at sessions, leases, nodes and the leader. The cost is in proportion to how many there are.
func (l *look) factsNow() map[factKey]fact {
	facts := map[factKey]fact{}
	for _, s := range l.sessions.list() {
		state := "open"
		if !s.WaitsUntil.IsZero() {
			state = "away"
		}
		facts[factKey{inspect.SessionEvent, strconv.FormatUint(s.ID, 10)}] = fact{state, s.Program, s.Tenant}
	}
	list, _ := l.Leases(inspect.Viewer{}) // cannot fail; holders are left out
	for _, x := range list {
		id, state := x.ID, "held"
		if x.Place > 0 {
			state = "waits"
		}
		switch {
		case id == "" && x.Place > 0:
			id = "waits since " + x.Since.Format(time.RFC3339Nano)
		case id == "":
			id = x.Node + "/" + strconv.FormatUint(x.Number, 10)
		}
		facts[factKey{inspect.LeaseEvent, id}] = fact{state, "", x.Tenant}
	}
	l.nodeFacts(facts)
	return facts
}

// nodeFacts adds what is known of the cluster.
func (l *look) nodeFacts(facts map[factKey]fact) {
	m := l.meta.now.Load()
	var nodes []fsm.Node
	l.meta.raft.View(func(s *fsm.State) { nodes = s.Nodes() })
	leader := l.meta.raft.Status().Leader
	for _, n := range nodes {
		state := "answers"
		if !m.live.alive(n.ID).Answers {
			state = "silent"
		}
		if n.ID.String() == leader {
			facts[factKey{inspect.ClusterEvent, "leader"}] = fact{"leads", n.Name, ""}
		}
		facts[factKey{inspect.ClusterEvent, n.ID.String()}] = fact{state, n.Name, ""}
	}
}
