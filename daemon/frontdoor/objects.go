package frontdoor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

func (c *connection) hello(m wire.HelloRequest) (ipc.Payload, error) {
	if m.Magic != wire.Magic {
		return nil, fmt.Errorf("%w: Hello with magic 0x%x, want 0x%x", object.ErrProtocol, m.Magic, uint32(wire.Magic))
	}
	version := min(m.Highest, wire.Version)
	if m.Lowest > version || version < wire.LowestVersion {
		return nil, fmt.Errorf("%w: the client speaks versions %d to %d, this daemon %d to %d: use a client and a daemon of the same release", object.ErrVersion, m.Lowest, m.Highest, wire.LowestVersion, wire.Version)
	}
	if !c.greeting.Stop() {
		return nil, fmt.Errorf("%w: Hello after more than %v", object.ErrTimeout, c.srv.opts.HelloTime)
	}
	conn, err := c.srv.opts.Store.Connect(store.Owner{Tenant: c.peer.Tenant, PID: c.peer.PID, Name: m.Program,
		Principals: c.principals()})
	if err != nil {
		return nil, err
	}
	if version >= wire.VersionAcks {
		conn.Acknowledges()
	}
	c.stateMu.Lock()
	c.peer.Name, c.store = m.Program, conn
	c.stateMu.Unlock()
	c.version = version
	c.srv.orphans.returned(c.peer.PID)
	return &wire.HelloReply{
		Version: version, DaemonVersion: c.srv.opts.DaemonVersion, Incarnation: c.srv.opts.Incarnation,
		Tenant:    c.peer.Tenant,
		DaemonPID: uint32(os.Getpid()), CapacityBytes: c.srv.opts.Store.CapacityBytes(),
	}, nil
}

func (c *connection) create(f *ipc.Frame, m wire.CreateRequest) error {
	return c.createAs(f, store.Spec{SizeBytes: m.SizeBytes, Class: m.Class, Own: m.Flags&wire.CreateOwn != 0,
		Shared: m.Flags&wire.CreateShared != 0, Checksum: m.Flags&wire.CreateSummed != 0, Name: m.Name, Meta: m.Meta})
}

func (c *connection) createAs(f *ipc.Frame, spec store.Spec) error {
	h, err := c.acts().Create(spec)
	if err != nil {
		return err
	}
	c.scratch.create = wire.CreateReply{ID: h.ID, Ref: h.Ref}
	c.replyFD(f, &c.scratch.create, h.FD)
	return nil
}

func (c *connection) put(f *ipc.Frame, m wire.PutRequest) error {
	h, err := c.acts().Put(store.Spec{
		Class: m.Class, Name: m.Name, Meta: m.Meta, TTL: duration(m.TTLMS), Labels: m.Labels,
	}, m.Replace, m.Data)
	if err != nil {
		return err
	}
	c.scratch.create = wire.CreateReply{ID: h.ID, Ref: h.Ref}
	c.replyFD(f, &c.scratch.create, h.FD)
	return nil
}

func (c *connection) seal(m wire.SealRequest) error {
	return c.sealUpload(m.ID, func() error { return c.acts().Seal(m.ID, m.Strict) })
}

func (c *connection) get(f *ipc.Frame, m wire.GetRequest) error {
	return c.getOrWait(f, m, (*connection).giveGet)
}

// give answers a request for an object that is there, by name where id is zero. mu is held.
type give func(c *connection, f *ipc.Frame, id object.ID, name string) error

// getOrWait answers at once, or has a goroutine of its own wait: for the object, or for what comes from disk. mu is
// held.
func (c *connection) getOrWait(f *ipc.Frame, m wire.GetRequest, give give) error {
	err := give(c, f, m.ID, m.Name)
	if errors.Is(err, object.ErrNotFound) && c.srv.isEntering() {
		return c.getEntered(f.Header, m, give)
	}
	return c.getElsewhere(f, m, give, err)
}

// giveOrWait is getOrWait whether or not the node has entered its cluster. mu is held.
func (c *connection) giveOrWait(f *ipc.Frame, m wire.GetRequest, give give) error {
	return c.getElsewhere(f, m, give, give(c, f, m.ID, m.Name))
}

// getElsewhere goes on with a Get that found nothing in the store, or (nil) did. What this node does not know of waits
// for the cluster's word; a name that is waited for anyway ends its waiting as soon as it is known. mu is held.
func (c *connection) getElsewhere(f *ipc.Frame, m wire.GetRequest, give give, err error) error {
	m, err = c.lookElsewhere(f, m, give, err)
	if q := c.srv.missed(err); q != nil && (m.WaitMS == 0 || !m.ID.IsZero()) {
		return c.getCaughtUp(f, m, give, q)
	}
	return c.orWait(f, m, give, err)
}

// lookElsewhere looks for what a Get did not find in the store among what is published, as far as this node knows. It
// gives what to get from now on. mu is held.
func (c *connection) lookElsewhere(f *ipc.Frame, m wire.GetRequest, give give, err error) (wire.GetRequest, error) {
	if errors.Is(err, object.ErrNotFound) && m.ID.IsZero() && m.Name != "" {
		if id, published := c.resolve(m.Name, err); published == nil {
			if err = c.orElsewhere(id, give(c, f, id, "")); isAway(err) {
				m.ID = id // the name tells waitFor what it was found under
			}
		} else {
			err = published
		}
	} else if err != nil {
		if !m.ID.IsZero() {
			m.Name = "" // the ID counts
		}
		err = c.orElsewhere(m.ID, err)
	}
	return m, err
}

// orWait has a Get wait that failed with err, where that may mend it. mu is held.
func (c *connection) orWait(f *ipc.Frame, m wire.GetRequest, give give, err error) error {
	if err == nil || !isAway(err) && (m.WaitMS == 0 || !comes(err)) {
		return err
	}
	// apart, so that the request of a Get that need not wait stays on the stack
	return c.waitFor(f.Header, m, give, err)
}

// isAway reports whether an object comes as soon as somebody fetches it: from disk, or from another node.
func isAway(err error) bool {
	_, elsewhere := isElsewhere(err)
	return elsewhere || errors.Is(err, store.ErrAway)
}

// comes reports whether an object may still come.
func comes(err error) bool {
	return errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNotSealed)
}

// giveGet answers a Get.
func (c *connection) giveGet(f *ipc.Frame, id object.ID, name string) error {
	h, err := c.store.GetEither(id, name)
	if err != nil {
		return err
	}
	c.scratch.get = wire.GetReply{ID: h.ID, Ref: h.Ref, SizeBytes: h.Size, Class: h.Class, Meta: h.Meta}
	c.replyFD(f, &c.scratch.get, h.FD)
	return nil
}

func (c *connection) release(m wire.IDMessage) error {
	if h := c.holds[m.ID]; h != nil && c.polled && h.reading.Copies() {
		return store.ErrWouldWait
	}
	if c.releaseHold(m.ID) {
		return nil
	}
	if err := c.acts().Release(m.ID); err != nil {
		return err
	}
	c.endUpload(m.ID) // of what is not sealed it was an abort
	return nil
}

func (c *connection) abort(m wire.IDMessage) error {
	if err := c.acts().Abort(m.ID); err != nil {
		return err
	}
	c.endUpload(m.ID)
	return nil
}

func (c *connection) delete(m wire.NameMessage) error {
	id, err := c.idOf(m)
	if err != nil {
		return err
	}
	err = c.acts().Delete(id, "")
	cluster := c.srv.opts.Cluster
	if cluster == nil {
		return err
	}
	if !cluster.Concerns(id) {
		if q := c.srv.missed(err); q != nil { // not on the poller: there this would be store.ErrWouldWait
			err = LessSure(err, c.awaitCluster(q))
		}
	}
	if err == nil || errors.Is(err, object.ErrNotFound) || c.isComing(id, err) {
		was, dropErr := cluster.Dropped(c.peer.Tenant, id)
		if dropErr != nil || was { // deleted, though only a publication may have held it
			err = dropErr
		}
	}
	return err
}

// idOf finds the object that a message names by id, by a name of this node, or by a published one.
func (c *connection) idOf(m wire.NameMessage) (object.ID, error) {
	if !m.ID.IsZero() {
		return m.ID, nil
	}
	info, err := c.store.Stat(m.ID, m.Name)
	if errors.Is(err, object.ErrNotFound) {
		return c.resolveNow(m.Name, err)
	}
	return info.ID, err
}

// resolve finds an object by its published name; not is the error for a node without a cluster.
func (c *connection) resolve(name string, not error) (object.ID, error) {
	if c.srv.opts.Cluster == nil {
		return object.ID{}, not
	}
	id, err := c.srv.opts.Cluster.Resolve(c.peer.Tenant, name)
	if errors.Is(err, object.ErrNotFound) && !c.srv.hasEntered() {
		err = fmt.Errorf("%w: no object on this node is named %q: %s", object.ErrNotFound, name, NotEntered)
	}
	return id, err
}

// resolveNow is resolve with what the cluster knows where this node knows of nothing. mu is not held.
func (c *connection) resolveNow(name string, not error) (object.ID, error) {
	id, err, unsure := c.lookUp(name, not)
	return id, LessSure(err, unsure)
}

// lookUp is resolveNow; unsure says why what is not found may be published all the same.
func (c *connection) lookUp(name string, not error) (id object.ID, err, unsure error) {
	c.awaitEntry(c.srv.opts.EntryTime)
	id, err = c.resolve(name, not)
	if q := c.srv.missed(err); q != nil {
		unsure = c.awaitCluster(q)
		id, err = c.resolve(name, not)
	}
	return id, err, unsure
}

func (c *connection) bind(m wire.BindRequest) error { return c.store.Bind(m.ID, m.Name, m.Replace) }

func (c *connection) stat(f *ipc.Frame, m wire.NameMessage) error {
	info, err := c.store.Stat(m.ID, m.Name)
	if errors.Is(err, object.ErrNotFound) && c.srv.isEntering() {
		return c.statEntered(f.Header, m)
	}
	p, err := c.describe(m, info, err)
	if q := c.srv.missed(err); q != nil {
		return c.statCaughtUp(f, m, q)
	}
	if err == nil {
		c.reply(f, p)
	}
	return err
}

// statEntered is stat after the entry. mu is held.
func (c *connection) statEntered(h ipc.Header, m wire.NameMessage) error {
	return c.onceEntered(c.srv.opts.EntryTime, func() {
		info, err := c.store.Stat(m.ID, m.Name)
		p, err := c.describe(m, info, err)
		if q := c.srv.missed(err); q != nil {
			if err = c.statCaughtUp(&ipc.Frame{Header: h}, m, q); err == nil {
				return
			}
		}
		c.answer(&ipc.Frame{Header: h}, p, err)
	})
}

// statCaughtUp is stat with what the cluster knows. mu is held.
func (c *connection) statCaughtUp(f *ipc.Frame, m wire.NameMessage, q *CatchUp) error {
	h := f.Header
	return c.onceCaughtUp(f, q, func(unsure error) {
		info, err := c.store.Stat(m.ID, m.Name)
		p, err := c.describe(m, info, err)
		c.answer(&ipc.Frame{Header: h}, p, LessSure(err, unsure))
	})
}

// describe gives what the store says of an object, or where it says nothing the cluster.
func (c *connection) describe(m wire.NameMessage, info object.Info, err error) (ipc.Payload, error) {
	id := m.ID
	if errors.Is(err, object.ErrNotFound) && m.ID.IsZero() {
		if id, err = c.resolve(m.Name, err); err == nil {
			info, err = c.store.Stat(id, "")
		}
	}
	if err == nil && info.State == object.Open && c.isComing(id, object.ErrNotSealed) {
		err = object.ErrNotFound
	}
	if there := c.srv.opts.Elsewhere; there != nil && errors.Is(err, object.ErrNotFound) && !id.IsZero() {
		if known, unknown := there.Describe(c.peer.Tenant, id); unknown == nil {
			info, err = known, nil
		} else {
			err = c.unsure(err)
		}
	}
	if err != nil {
		return nil, err
	}
	c.called(&info)
	b, err := json.Marshal(info)
	return long(b), err
}

func (c *connection) forget(m wire.Number) error { return c.store.Forget(m.N) }

// maxSweep keeps a Sweep's reply within one frame; the next Sweep tells the rest.
const maxSweep = ipc.MaxPayload/8 - 1

func (c *connection) sweep(_ none) (ipc.Payload, error) {
	gone := c.store.Sweep()
	return &wire.SweepReply{Segments: gone[:min(len(gone), maxSweep)]}, nil
}

// byItself says that a request names by id an object of which the cluster need not be told: that would wait. A name may
// be one that was published.
func byItself(c *connection, m wire.NameMessage) bool {
	return !m.ID.IsZero() && (c.srv.opts.Cluster == nil || !c.srv.opts.Cluster.Concerns(m.ID))
}

// principals are who a peer is where others share with it: its user, its group, and the groups that its process had
// when it connected. From another machine a peer is its tenant's user, where that is a single one.
func (c *connection) principals() []string {
	p := c.peer
	local, is := c.link.(*ipc.Accepted)
	if !is {
		return slices.DeleteFunc([]string{p.Tenant}, func(t string) bool { return !strings.HasPrefix(t, "uid:") })
	}
	list := []string{fmt.Sprintf("uid:%d", p.UID), fmt.Sprintf("gid:%d", p.GID)}
	groups, _ := local.PeerGroups() // where the kernel does not say (before 4.13), its own group has to do
	for _, g := range groups {
		list = append(list, fmt.Sprintf("gid:%d", g))
	}
	return list
}

// duration reads ms from a peer; the longest is some 292 years.
func duration(ms uint64) time.Duration {
	const most = 1<<63/uint64(time.Millisecond) - 1
	return time.Duration(min(ms, most)) * time.Millisecond
}
