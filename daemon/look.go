package daemon

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/workers"
	"tendril/store"
	"tendril/store/object"
	"tendril/store/order"
)

// Viewers over TCP show a secret that `tendril ui` gave them.
const (
	pageLife       = 24 * time.Hour
	maxPageKeys    = 4096
	maxTenantPages = 16 // one more ends the tenant's oldest
)

// pageKeys are the secrets that are out, by their hashes. Its mutex is a leaf. An attacker who times lookups in the map
// learns about hashes of 160 random bits, which is of no use to him.
type pageKeys struct {
	mu   sync.Mutex
	keys map[[32]byte]pageKey // guarded by mu
}

type pageKey struct {
	tenant  string
	all     bool // may see every tenant
	expires time.Time
}

func (k *pageKeys) add(hash [32]byte, key pageKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for h, old := range k.keys {
		if time.Now().After(old.expires) {
			delete(k.keys, h)
		}
	}
	k.makeRoom(key.tenant)
	if len(k.keys) >= maxPageKeys {
		return fmt.Errorf("%w: %d pages are open already; each ends after %v", object.ErrBusy, maxPageKeys, pageLife)
	}
	k.keys[hash] = key
	return nil
}

// makeRoom ends a tenant's oldest key where it has its share. mu is held.
func (k *pageKeys) makeRoom(tenant string) {
	var oldest [32]byte
	n, first := 0, time.Time{}
	for h, x := range k.keys {
		if x.tenant != tenant {
			continue
		}
		if n++; n == 1 || x.expires.Before(first) {
			oldest, first = h, x.expires
		}
	}
	if n >= maxTenantPages {
		delete(k.keys, oldest)
	}
}

func (k *pageKeys) find(hash [32]byte) (pageKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[hash]
	return key, ok && time.Now().Before(key.expires)
}

// openInspect serves HTTP on a unix socket beside the main one, and on TCP where that is configured.
// In a takeover a port that somebody has taken meanwhile does not end the start.
func (d *Daemon) openInspect() error {
	err := d.openInspectAt(d.cfg.HTTP)
	if errors.Is(err, object.ErrBusy) && d.cfg.HTTP != "" && d.inherited != nil {
		d.log.WithError(err).Warn("no inspection over TCP until the next start")
		err = d.openInspectAt("")
	}
	return err
}

func (d *Daemon) openInspectAt(tcp string) error {
	server, err := inspect.Start(inspect.Options{
		Unix: d.cfg.Socket + ".http", TCP: tcp, Hosts: d.cfg.HTTPHosts, Source: (*look)(d), Log: d.log,
		AllowUID: func(uid uint32) bool { return d.administers(uid) || os.Geteuid() == 0 },
		Bearer:   d.bearer, OpenMetrics: tcp != "" && d.cfg.HTTPMetrics == metricsOpen,
		Turn: func(v inspect.Viewer) func() {
			tenant, _ := (*look)(d).sees(v)
			return d.door.Load().PageTurn(tenant)
		},
	})
	if err == nil {
		d.inspect.Store(server)
	}
	return err
}

// closeInspect ends inspection, and then what follows changes for it: their context has ended.
func (d *Daemon) closeInspect() error {
	err := d.inspect.Load().Close()
	d.follows.goes.Wait()
	return err
}

// bearer says who shows a secret over TCP: a page's key, or a token of role metrics. A token that this node does not
// know yet is refused: strangers' guesses are not carried to the leader.
func (d *Daemon) bearer(text string) (v inspect.Viewer, err error) {
	hash := inspect.HashSecret(text)
	if _, ok := d.pages.find(hash); ok {
		return inspect.Viewer{Secret: hash}, nil
	}
	secret, err := pki.ParseToken(text)
	switch {
	case err != nil && strings.HasPrefix(strings.ToLower(text), "tdl_"): // it says how the token was mistyped
		return v, err
	case err != nil:
		return v, errUnknownKey
	}
	d.meta.raft.View(func(s *fsm.State) {
		id := fsm.UUID(secret.ID())
		check := checkToken(s, id, secret.SecretHash(), max(s.Now(), time.Now().UnixNano()))
		switch t, there := s.Token(id); {
		case check.Code != 0:
			err = check.Err()
		case !there || t.Role != fsm.RoleMetrics:
			err = fmt.Errorf("a token of role %v is for %s on another machine, and opens nothing over HTTP", pki.Role(t.Role),
				usedBy(t.Role))
		default:
			v = inspect.Viewer{Scraper: true, Tenant: t.Tenant}
		}
	})
	return v, err
}

// usedBy names the command that a token other than of role metrics is for.
func usedBy(role fsm.Role) string {
	if role == fsm.RoleNode {
		return "tendril cluster join"
	}
	return "tendril login"
}

// errUnknownKey is for a secret that is no token and no page's key, or none any more.
var errUnknownKey = errors.New("this node does not know the token: was it copied whole? The key of a page ends after " +
	"a day, or with the daemon")

// administers reports whether a local user may see and do everything: root, and whose daemon it is.
func (d *Daemon) administers(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// OpenPage implements frontdoor.Cluster.
func (d *Daemon) OpenPage(p frontdoor.Peer) (string, error) {
	server := d.inspect.Load()
	if server == nil || server.Address() == nil {
		return "", fmt.Errorf("%w: this daemon has no page: start it with --http 127.0.0.1:7434 (or ask %s.http, as curl --unix-socket does)", object.ErrUnsupported, d.cfg.Socket)
	}
	secret, hash, err := inspect.NewSecret()
	if err != nil {
		return "", err
	}
	if err := d.pages.add(hash,
		pageKey{p.Tenant, p.Remote == "" && d.administers(p.UID), time.Now().Add(pageLife)}); err != nil {
		return "", err
	}
	return server.URL(secret), nil
}

// look is the daemon as inspection sees it (inspect.Source).
type look Daemon

// sees gives what a viewer may see: everything, or one tenant's.
func (l *look) sees(v inspect.Viewer) (tenant string, all bool) {
	if v.Scraper {
		return v.Tenant, v.Tenant == ""
	}
	if !v.Local {
		key, _ := l.pages.find(v.Secret)
		return l.enabled(key.tenant, key.all)
	}
	d := (*Daemon)(l)
	return l.enabled(d.localTenant(v.UID, v.GID), d.administers(v.UID))
}

// nobodysTenant is what viewers of a disabled tenant are: there is none of this name.
const nobodysTenant = "node:"

func (l *look) enabled(tenant string, all bool) (string, bool) {
	if !all && (*Daemon)(l).meta.tenants.Load().Disabled(tenant) {
		tenant = nobodysTenant
	}
	return tenant, all
}

func mine[T any](l *look, v inspect.Viewer, list []T, tenantOf func(T) string) []T {
	tenant, all := l.sees(v)
	return slices.DeleteFunc(list, func(x T) bool { return !all && tenantOf(x) != tenant })
}

// Status implements inspect.Source.
func (l *look) Status(v inspect.Viewer) (inspect.Status, error) {
	st := l.store.Status()
	s := inspect.Status{
		Version: l.build.Version, Node: l.node.ID, Name: l.node.Name, Incarnation: l.node.Incarnation,
		Started:       l.node.Since,
		CapacityBytes: st.CapacityBytes, UsedBytes: st.ChargedBytes, Objects: st.Objects,
		Sessions: len(l.sessions.list()), Workers: len(l.pool.Workers()),
		Bounds: l.pool.Bounds(),
	}
	for _, f := range (*Daemon)(l).fallbacks() {
		s.Notes = append(s.Notes, f.What+": "+f.Why)
	}
	return s, nil
}

// Nodes implements inspect.Source.
func (l *look) Nodes(inspect.Viewer) (list []inspect.Node, err error) {
	leader := l.meta.raft.Status()
	l.meta.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			x := inspect.Node{
				ID: n.ID.String(), Name: n.Name, Incarnation: n.Incarnation.String(), Client: notNil(n.Client),
				Peer: notNil(n.Peer), Version: n.Version,
				Joined: at(n.Joined), Self: n.ID == l.meta.node, Leader: n.ID.String() == leader.Leader,
			}
			for _, m := range leader.Members {
				x.Voter = x.Voter || m.ID == x.ID && m.Voter
			}
			list = append(list, x)
		}
	})
	return list, nil
}

// Devices implements inspect.Source.
func (l *look) Devices(v inspect.Viewer) (list []inspect.Device, err error) {
	sessions, err := l.Sessions(v)
	if err != nil {
		return nil, err
	}
	shown := map[string]int{}
	for _, s := range sessions {
		for _, device := range s.Devices {
			shown[device]++
		}
	}
	owners := map[string]string{}
	for _, x := range append(l.leases.List(), (*Daemon)(l).leasesOver()...) {
		for _, device := range x.Devices {
			if x.Place == 0 {
				owners[device] = x.Tenant
			}
		}
	}
	l.meta.raft.View(func(s *fsm.State) {
		for _, x := range s.Devices() {
			list = append(list, inspect.Device{
				UUID: x.Key.UUID.String(), Node: x.Node.String(), Name: x.Name, Type: deviceType(x.Type),
				Vendor: x.Vendor, Driver: x.Key.Driver,
				Version: x.Version, MemoryBytes: x.MemoryBytes, Units: x.Units, Owner: owners[x.Key.UUID.String()],
				Sessions: shown[x.Key.UUID.String()],
			})
		}
	})
	return list, nil
}

func deviceType(t uint64) string {
	for i, name := range []string{"cpu", "gpu", "accelerator", "custom"} { // CL_DEVICE_TYPE_CPU is bit 1
		if t&(2<<i) != 0 {
			return name
		}
	}
	return "other"
}

// pageLook bounds the objects that are looked at for a page.
const pageLook = 16 << 10

// roomFor is how many bytes of JSON an object takes, or a little more. To write it down only to count them would double
// the cost of a page.
func roomFor(o *object.Info) int {
	n := 480 + len(o.Meta)
	for _, b := range o.Meta { // JSON already, and what HTML could take for its own is written as six bytes
		if b == '<' || b == '>' || b == '&' {
			n += 5
		} else if b == 0xe2 { // U+2028 and U+2029 begin with it
			n += 3
		}
	}
	for _, text := range []string{o.Name, o.Tenant, o.Creator, o.Fault, o.Published, o.CopiedFromNode} {
		n += quoted(text)
	}
	for key, value := range o.Labels {
		n += quoted(key) + quoted(value) + 6
	}
	for _, grant := range o.Grants {
		n += quoted(grant) + 3
	}
	for _, m := range o.Members {
		n += quoted(m.Name) + 60
	}
	for _, node := range o.Nodes {
		n += quoted(node) + 3
	}
	for _, rare := range []bool{o.Expires != nil, o.Moving != nil, o.Device != object.Device{}, o.Pinned || o.OnDisk ||
		o.Cached || o.Checksum || o.Fillers > 0, o.CopiedFromNode != "" || o.CopiedFrom != object.Host,
		len(o.Labels)+len(o.Grants)+len(o.Members)+len(o.Nodes) > 0} {
		if rare {
			n += 120
		}
	}
	return n
}

// quoted is what a text takes as JSON, at most.
func quoted(s string) (n int) {
	for i := range len(s) {
		switch b := s[i]; {
		case b < ' ' || strings.IndexByte(`"\<>&`, b) >= 0:
			n += 6
		case b >= 0x7f:
			n += 2 // U+2028 has three bytes, and six as JSON
		default:
			n++
		}
	}
	return n
}

// Objects implements inspect.Source: by tenant, oldest first. A place is "tenant/cursor".
func (l *look) Objects(v inspect.Viewer, p inspect.Page) (part inspect.Part[object.Info], err error) {
	tenant, all := l.sees(v)
	first, at := "", order.Cursor{}
	if p.After != "" {
		i := strings.LastIndexByte(p.After, '/')
		if i < 0 {
			return part, fmt.Errorf("%w: after %.60q: want `next` of the last answer", object.ErrInvalid, p.After)
		}
		if first = p.After[:i]; p.After[i+1:] != "" {
			if at, err = order.Parse(p.After[i+1:]); err != nil {
				return part, err
			}
		}
	}
	bytes, looks := 0, pageLook
	shown := func(name string) bool { return (all || name == tenant) && (p.Tenant == "" || name == p.Tenant) }
	if p.Prefix == "" && p.State == "" {
		part.Total = l.store.CountObjects(shown)
	}
	for _, name := range l.store.Tenants() {
		if !shown(name) || name < first {
			continue
		}
		if name != first {
			at = order.Cursor{}
		}
		conn, err := l.store.Connect(store.Owner{Tenant: name, Name: "inspection"})
		if err != nil {
			return part, err // the store is closing
		}
		next, more := conn.Walk(store.Query{Prefix: p.Prefix, All: true}, at, looks, func(o object.Info) bool {
			if p.State != "" && o.State.String() != p.State {
				return true
			}
			l.called(&o)
			if bytes += roomFor(&o); len(part.Items) == p.Limit || bytes > inspect.PageBytes && len(part.Items) > 0 {
				return false
			}
			part.Items = append(part.Items, o)
			return true
		})
		conn.Close()
		if more {
			part.Next = name + "/" + next.String()
			break
		}
	}
	return part, nil
}

// called tells of an object without a name here what it is published under, as the front door does.
func (l *look) called(o *object.Info) {
	if o.Name == "" {
		o.IsReplica((*Daemon)(l).Published(o.Tenant, o.ID))
	}
}

// joinPlace makes the place of something that has a tenant and a name.
func joinPlace(tenant, name string) string { return url.PathEscape(tenant) + "/" + name }

func splitPlace(place string) (tenant, name string, err error) {
	tenant, name, _ = strings.Cut(place, "/")
	if tenant, err = url.PathUnescape(tenant); err != nil {
		return "", "", fmt.Errorf("%w: after %.60q: want `next` of the last answer", object.ErrInvalid, place)
	}
	return tenant, name, nil
}

// Names implements inspect.Source: by tenant and name.
func (l *look) Names(v inspect.Viewer, p inspect.Page) (part inspect.Part[inspect.Name], err error) {
	tenant, all := l.sees(v)
	if !all && tenant == "" {
		return part, nil
	}
	from, after, err := splitPlace(p.After)
	if err != nil {
		return part, err
	}
	if !all && from != tenant {
		from, after = tenant, ""
	}
	if why := l.meta.now.Load().behind(); why != nil {
		part.Unsure = why.Error()
	}
	l.meta.raft.View(func(s *fsm.State) {
		list := s.ObjectsAfter(from, after, p.Prefix, !all, p.Limit+1)
		if len(list) > p.Limit {
			list = list[:p.Limit]
			part.Next = joinPlace(list[p.Limit-1].Tenant, list[p.Limit-1].Name)
		}
		for _, o := range list {
			x := inspect.Name{Tenant: o.Tenant, Name: o.Name, Object: o.ID.String(), SizeBytes: o.SizeBytes,
				Epoch: o.Epoch, Created: at(o.Created)}
			for _, r := range o.Replicas {
				x.Replicas = append(x.Replicas, r.Node.String())
			}
			part.Items = append(part.Items, x)
		}
	})
	return part, nil
}

// Sessions implements inspect.Source.
func (l *look) Sessions(v inspect.Viewer) ([]inspect.Session, error) {
	running := l.pool.Workers()
	var list []inspect.Session
	for _, s := range l.sessions.list() {
		x := inspect.Session{
			ID: strconv.FormatUint(s.ID, 10), Tenant: s.Tenant, Program: s.Program, PID: s.PID, Peer: s.Peer,
			Transport: s.Transport,
			Devices:   []string{}, Started: s.Since,
		}
		for _, p := range s.shown {
			for _, device := range p.Snapshot.Devices {
				x.Devices = append(x.Devices, device.UUID)
			}
		}
		x.Workers, x.Bytes = workersOf(running, s.ID)
		list = append(list, x)
	}
	return mine(l, v, list, func(s inspect.Session) string { return s.Tenant }), nil
}

// workersOf gives a session's workers, and what they have reserved of their devices' own memory, in bytes.
func workersOf(running []workers.Status, session uint64) (ids []string, bytes uint64) {
	ids = []string{}
	for _, w := range running {
		if w.Session == session {
			ids = append(ids, strconv.FormatUint(w.ID, 10))
			bytes += w.DeviceBytes
		}
	}
	return ids, bytes
}

// Workers implements inspect.Source.
func (l *look) Workers(v inspect.Viewer) ([]inspect.Worker, error) {
	running := mine(l, v, l.pool.Workers(), func(w workers.Status) string { return w.Tenant })
	var list []inspect.Worker
	for _, w := range running {
		x := inspect.Worker{PID: w.PID, Platform: w.Platform, State: w.State, Started: w.Since,
			DeviceBytes: w.DeviceBytes}
		if w.ID != 0 {
			x.ID, x.Session = strconv.FormatUint(w.ID, 10), strconv.FormatUint(w.Session, 10)
		}
		list = append(list, x)
	}
	return list, nil
}

// Segments implements inspect.Source.
func (l *look) Segments(v inspect.Viewer) ([]inspect.Segment, error) {
	tenant, all := l.sees(v)
	switch {
	case all:
		tenant = "" // every one's
	case tenant == "":
		return nil, nil
	}
	var list []inspect.Segment
	for _, g := range l.store.Segments(tenant) {
		list = append(list, inspect.Segment{
			ID: g.ID, Tenant: g.Tenant, Bytes: g.Bytes, UsedBytes: g.Used, Objects: g.Objects, Readers: g.Readers,
			Sealed:  g.Sealed,
			Session: g.Session, Idle: g.Idle, Leaving: g.Leaving,
		})
	}
	return list, nil
}

// Raft implements inspect.Source.
func (l *look) Raft(inspect.Viewer) (raftnode.Status, error) { return l.meta.raft.Status(), nil }

// reaching calls f with connections of the tenants whose objects a viewer may see, its own first, until one
// has the object: others answer ErrNotFound or ErrPermission. f has the connection where it succeeds.
func (l *look) reaching(v inspect.Viewer, f func(*store.Conn) error) error {
	own, all := l.sees(v)
	tenants := []string{own}
	if all {
		tenants = append(tenants, l.store.Tenants()...)
	}
	err := error(object.ErrNotFound)
	for _, tenant := range tenants {
		if tenant == "" {
			continue
		}
		conn, fault := l.store.Connect(store.Owner{Tenant: tenant, Name: "inspection"})
		if fault != nil {
			return fault // the store is closing
		}
		if err = f(conn); err == nil {
			return nil
		}
		conn.Close()
		if !errors.Is(err, object.ErrNotFound) && !errors.Is(err, object.ErrPermission) {
			return err
		}
	}
	return err
}

// Object implements inspect.Source.
func (l *look) Object(v inspect.Viewer, id object.ID) (info object.Info, err error) {
	err = l.reaching(v, func(conn *store.Conn) (err error) {
		if info, err = conn.Stat(id, ""); err == nil {
			conn.Close()
			l.called(&info)
		}
		return err
	})
	return info, err
}

// reading is an object that is read over HTTP (inspect.Data). Its tenant is charged for the mapping, and for a chunk
// where that is read from disk, or copied from the memory of a device.
type reading struct {
	conn    *store.Conn
	r       *store.Reading
	charged uint64
}

// readingBytes is what a mapping is charged, as the front door does for those that it reads for other machines.
const readingBytes = 8 << 10

// Open implements inspect.Source.
func (l *look) Open(v inspect.Viewer, id object.ID) (data inspect.Data, err error) {
	err = l.reaching(v, func(conn *store.Conn) error {
		r, err := conn.OpenAny(l.ctx, id, "")
		if err != nil {
			return err
		}
		x := &reading{conn, r, readingBytes}
		if !r.InMemory() {
			x.charged += inspect.ChunkBytes
		}
		if err := conn.ChargeRequest(x.charged); err != nil {
			r.Close()
			return err
		}
		data = x
		return nil
	})
	return data, err
}

func (x *reading) Size() uint64                        { return x.r.Size }
func (x *reading) Range(off, n uint64) ([]byte, error) { return x.r.Range(off, n) }
func (x *reading) Memory() (*os.File, uint64)          { return x.r.Memory() }

func (x *reading) Close() {
	x.r.Close()
	x.conn.UnchargeRequest(x.charged)
	x.conn.Close()
}

// Waiting implements inspect.Source.
func (l *look) Waiting() (list []string) {
	if l.door.Load() == nil {
		list = append(list, "the front door")
	}
	if l.meta.raft.Status().Leader == "" {
		list = append(list, "a leader of the cluster")
	}
	return list
}
