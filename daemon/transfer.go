package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/placement"
	"tendril/cluster/transfer"
	"tendril/ipc"
	"tendril/store"
	"tendril/store/object"
)

// Objects of other nodes: who gets one that is published and not here has it brought, once for all that want it. What
// was brought stays as a cached copy (store/copies.go), until it is published no longer or memory is short.

// Bounds of transfers to this node.
const (
	maxBringing       = 8           // objects at a time
	maxTenantBringing = 4           // of one tenant
	knowTime          = time.Second // for the metadata here to know what the asking node knows
	linkShare         = 1.0 / 4     // of a measurement in the mean
	linkBytes         = 1 << 20     // from which on one counts
)

// Bounds of what another node gets at a time. A node of this release asks with no more requests at a time (Bring,
// transfer.Pull). It seems to where it has lost connections that this node still writes to.
const (
	maxGiven  = maxTenantBringing * transfer.MaxStreams // requests of one node for one tenant's objects
	giveWait  = 10 * time.Second                        // for one of them to end
	maxChunks = 32                                      // requests of all nodes that have a chunk in the heap
)

// bringings is what is known of transfers to this node, and from it. mu is a leaf.
type bringings struct {
	turns *shares[string] // of tenants: objects that come

	mu     sync.Mutex
	all    map[bringKey]*bringing
	copies map[object.ID]broughtCopy
	came   chan struct{}        // has one where a copy came
	rates  map[fsm.UUID]float64 // bytes a second from other nodes, a moving mean

	follower *store.Follower // of copies; set before the front door opens
	serving  atomic.Int32    // chunks' requests of other nodes
	chunks   sync.Pool       // of *[]byte: a chunk of an object that is read for one of those
	reading  atomic.Int32    // those that have one
	// other nodes' requests for objects while they are opened, and as long as they hold copies (of what is in a
	// device's memory), which the objects' tenant is charged for: a node that asks for more than it takes would use
	// up another one's memory, and the tenant's quota
	giving   *shares[givingKey]
	giveWait time.Duration // for one of them to end
}

type givingKey struct {
	node   transfer.ID
	tenant string
}

// broughtCopy is an object that was brought here.
type broughtCopy struct {
	tenant string
	from   string // names of the nodes that gave it; "": it has no bytes
}

type bringKey struct {
	tenant string
	id     object.ID
}

// bringing is one object on its way here.
type bringing struct {
	key    bringKey
	cancel context.CancelFunc
	done   chan struct{} // closed when err is there
	err    error
	began  time.Time
	bytes  uint64 // the object's
	name   string
	from   atomic.Pointer[string]
	givers string // names of the nodes that gave bytes; fetch's
	have   atomic.Uint64

	waiting int         // who still needs it; guarded by bringings.mu
	conn    *store.Conn // keeps it until then; set before done
}

func newBringings() *bringings {
	return &bringings{turns: newShares[string](maxTenantBringing, maxBringing), all: map[bringKey]*bringing{},
		came: make(chan struct{}, 1), copies: map[object.ID]broughtCopy{}, rates: map[fsm.UUID]float64{},
		giving: newShares[givingKey](maxGiven, math.MaxInt), giveWait: giveWait,
		chunks: sync.Pool{New: func() any { return new(make([]byte, transfer.ChunkBytes)) }}}
}

// TransferStatus is one object on its way to this node, in `tendril status`.
type TransferStatus struct {
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	SizeBytes uint64    `json:"size_bytes"`
	DoneBytes uint64    `json:"done_bytes"`
	From      string    `json:"from"` // nodes, as they are asked
	Since     time.Time `json:"since"`
	Waiting   int       `json:"waiting"` // requests that wait for it
}

func (b *bringings) list() (list []TransferStatus) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, x := range b.all {
		s := TransferStatus{ID: key.id, Name: x.name, Tenant: key.tenant, SizeBytes: x.bytes, DoneBytes: x.have.Load(),
			Since: x.began, Waiting: x.waiting}
		if from := x.from.Load(); from != nil {
			s.From = *from
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b TransferStatus) int { return a.Since.Compare(b.Since) })
	return list
}

// publishedAs finds a published object of a tenant, as this node's metadata has it, with the cluster's nodes.
func (d *Daemon) publishedAs(tenant string, id object.ID) (o fsm.Object, nodes []fsm.Node, ok bool) {
	d.meta.raft.View(func(s *fsm.State) {
		if o, ok = s.Object(fsm.UUID(id)); ok && o.Tenant == tenant {
			nodes = s.Nodes()
		} else {
			ok = false
		}
	})
	return o, nodes, ok
}

// isHere reports whether this node has a replica, as the metadata says.
func (d *Daemon) isHere(o fsm.Object) bool {
	return slices.Contains(o.Replicas, d.ownReplica())
}

// Elsewhere implements frontdoor.Elsewhere.
func (d *Daemon) Elsewhere(tenant string, id object.ID) (is bool) {
	d.meta.raft.View(func(s *fsm.State) {
		o, ok := s.Object(fsm.UUID(id))
		is = ok && o.Tenant == tenant &&
			slices.ContainsFunc(o.Replicas, func(r fsm.Replica) bool { return r.Node != d.meta.node })
	})
	return is
}

// Published implements frontdoor.Elsewhere.
func (d *Daemon) Published(tenant string, id object.ID) (name string, kind object.Kind, from string) {
	d.meta.raft.View(func(s *fsm.State) {
		if o, ok := s.Object(fsm.UUID(id)); ok && o.Tenant == tenant {
			name, kind = o.Name, object.Kind(o.Kind)
		}
	})
	d.bringing.mu.Lock()
	defer d.bringing.mu.Unlock()
	if x := d.bringing.copies[id]; x.tenant == tenant {
		from = x.from
	}
	return name, kind, from
}

// Describe implements frontdoor.Elsewhere.
func (d *Daemon) Describe(tenant string, id object.ID) (object.Info, error) {
	o, _, ok := d.publishedAs(tenant, id)
	if !ok {
		return object.Info{}, fmt.Errorf("%w: object %s is not published", object.ErrNotFound, id)
	}
	created := at(o.Created)
	info := object.Info{ID: id, Name: o.Name, Kind: object.Kind(o.Kind), Class: object.Class(o.Class),
		State: object.Sealed, SizeBytes: o.SizeBytes, Tenant: o.Tenant, Created: created, Sealed: &created,
		Meta: object.MetaJSON(o.Meta)}
	d.meta.raft.View(func(s *fsm.State) { info.Nodes = nodeNames(s, o) })
	return info, nil
}

// Bring implements frontdoor.Elsewhere.
func (d *Daemon) Bring(ctx context.Context, tenant string, id object.ID) (release func(), err error) {
	b := d.bringing
	key := bringKey{tenant, id}
	b.mu.Lock()
	x := b.all[key]
	for x != nil && x.waiting == 0 { // given up by all who wanted it, and ending
		b.mu.Unlock()
		select {
		case <-x.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", object.ErrTimeout, context.Cause(ctx))
		}
		b.mu.Lock()
		x = b.all[key]
	}
	if x == nil {
		own, cancel := context.WithCancel(d.ctx)
		x = &bringing{key: key, cancel: cancel, done: make(chan struct{}), began: time.Now()}
		b.all[key] = x
		d.joined.Go(func() { d.bring(own, x) })
	}
	x.waiting++
	b.mu.Unlock()
	release = func() { d.leaveBringing(x) }
	select {
	case <-x.done:
		err = x.err
	case <-ctx.Done():
		err = fmt.Errorf("%w: object %s is on its way from another node: %w", object.ErrTimeout, id,
			context.Cause(ctx))
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// leaveBringing is called by each that waited. The last one ends what is still under way, and lets the copy be.
func (d *Daemon) leaveBringing(x *bringing) {
	b := d.bringing
	b.mu.Lock()
	x.waiting--
	last := x.waiting == 0
	b.mu.Unlock()
	if !last {
		return
	}
	x.cancel()
	<-x.done
	if x.conn != nil {
		x.conn.Close()
	}
}

// bring gets the object, and says so.
func (d *Daemon) bring(ctx context.Context, x *bringing) {
	conn, err := d.fetch(ctx, x)
	d.bringing.mu.Lock()
	if d.bringing.all[x.key] == x { // who wants it from here on looks into the store again
		delete(d.bringing.all, x.key)
	}
	d.bringing.mu.Unlock()
	x.conn, x.err = conn, err
	close(x.done)
}

// fetch gives a connection that holds the object, which is whole in the store then.
func (d *Daemon) fetch(ctx context.Context, x *bringing) (*store.Conn, error) {
	o, nodes, ok := d.publishedAs(x.key.tenant, x.key.id)
	if !ok {
		return nil, fmt.Errorf("%w: object %s is not published", object.ErrNotFound, x.key.id)
	}
	d.bringing.mu.Lock()
	x.bytes, x.name = o.SizeBytes, o.Name
	d.bringing.mu.Unlock()
	over, err := d.bringing.turns.take(ctx, o.Tenant)
	if err != nil {
		return nil, fmt.Errorf("%w: other objects are being brought: %w", object.ErrTimeout, err)
	}
	defer over()
	conn, err := d.store.Connect(store.Owner{Tenant: o.Tenant, PID: os.Getpid(), Name: "transfer"})
	if err != nil {
		return nil, err
	}
	conn.Bare() // receive writes it into the segment's file, which makes the pages
	stop := context.AfterFunc(ctx, conn.Stop)
	defer stop()
	if err := d.fetchInto(ctx, conn, o, nodes, x); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// fetchInto makes the object in the store. Where it fails nothing of it is there.
func (d *Daemon) fetchInto(ctx context.Context, conn *store.Conn, o fsm.Object, nodes []fsm.Node, x *bringing) error {
	id := object.ID(o.ID)
	switch err := holdHere(ctx, conn, id); {
	case err == nil: // it came meanwhile
		return nil
	case errors.Is(err, object.ErrStorage):
		if gone := d.dropDamaged(o.Tenant, id); gone != nil {
			return fmt.Errorf("%w: %v", err, gone)
		}
	case !errors.Is(err, object.ErrNotFound):
		return err
	}
	h, err := conn.Create(store.Spec{ID: id, SizeBytes: o.SizeBytes, Own: true, Cached: true, Meta: o.Meta})
	if err != nil {
		return fmt.Errorf("%q is on other nodes, and cannot be brought here: %w", o.Name, err)
	}
	var sums []byte
	if o.SizeBytes > 0 {
		file := os.NewFile(uintptr(h.FD), "transfer")
		sums, err = d.receive(ctx, conn, file, h, o, nodes, x)
		file.Close()
	}
	if err == nil {
		err = conn.SealCopy(id, sums)
	}
	if err != nil {
		return errors.Join(err, ignoreNotFound(conn.Abort(id)))
	}
	d.noteCopy(o, x.givers)
	if _, _, still := d.publishedAs(o.Tenant, id); !still { // who forgets copies may have looked before
		return errors.Join(fmt.Errorf("%w: %q was unpublished while it was brought here", object.ErrNotFound, o.Name),
			d.dropCopy(o.Tenant, id))
	}
	return nil
}

// holdHere has a connection hold an object that the store has, in memory or on disk. Errors: ErrNotFound; ErrStorage:
// it is damaged.
func holdHere(ctx context.Context, conn *store.Conn, id object.ID) error {
	for {
		h, err := conn.Get(id)
		if err == nil && h.FD >= 0 {
			unix.Close(h.FD)
		}
		if !errors.Is(err, store.ErrAway) {
			return err
		}
		if err := conn.BringBack(ctx, id, ""); err != nil {
			return err
		}
	}
}

// dropDamaged deletes what this node has of an object whose bytes here are damaged, where it came from other nodes and
// one of them has it. A replica is listed here no more before: that one goes is otherwise the end of all.
func (d *Daemon) dropDamaged(tenant string, id object.ID) error {
	if !d.isCopy(id) && !d.replicas.of(id).taken {
		return fmt.Errorf("%w: it was made at this node", object.ErrUnsupported)
	}
	for try := 0; ; try++ {
		o, _, ok := d.publishedAs(tenant, id)
		if !ok || !d.isHere(o) {
			break
		}
		if !d.isElsewhere(o) {
			return fmt.Errorf("%w: no other node has it", object.ErrNotFound)
		}
		_, err := d.propose(&fsm.RemoveReplica{ID: o.ID, Epoch: o.Epoch, Replica: d.ownReplica()})
		if err != nil && (!errors.Is(err, object.ErrBusy) || try >= busyTries) {
			return err
		}
	}
	d.replicas.forget(id)
	return d.dropCopy(tenant, id)
}

// maxDamaged is how many damaged objects wait for followDamage.
const maxDamaged = 64

// followDamage gives up replicas that a scrub found damaged, so that the leader has others made. It ends with d.ctx.
func (d *Daemon) followDamage() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case x := <-d.damaged:
			if _, _, published := d.publishedAs(x.Tenant, x.ID); !published {
				continue
			}
			if err := d.dropDamaged(x.Tenant, x.ID); err != nil && d.ctx.Err() == nil {
				d.log.WithError(err).WithField("object", x.ID).Warn("a damaged replica stays")
			}
		}
	}
}

// isElsewhere reports whether another node's present run has a replica, as far as the cluster knows.
func (d *Daemon) isElsewhere(o fsm.Object) (is bool) {
	d.meta.raft.View(func(s *fsm.State) {
		is = slices.ContainsFunc(runningReplicas(s, o), func(r fsm.Replica) bool { return r.Node != d.meta.node })
	})
	return is
}

func ignoreNotFound(err error) error {
	if errors.Is(err, object.ErrNotFound) {
		return nil
	}
	return err
}

// receive fills the object's memory from its replicas.
func (d *Daemon) receive(ctx context.Context, conn *store.Conn, file *os.File, h store.Handle, o fsm.Object,
	nodes []fsm.Node, x *bringing) ([]byte, error) {
	sources := d.sourcesOf(o, nodes)
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: no node that runs has %q: %s", object.ErrNotFound, o.Name,
			"the nodes that the cluster lists for it have restarted since")
	}
	result, err := transfer.Pull(ctx, transfer.Job{ID: o.ID, Tenant: o.Tenant, Epoch: o.Epoch, SizeBytes: o.SizeBytes,
		Into: intoMemory{file, int64(h.Ref.Offset)}, Sources: sources, Rate: d.transferRate,
		Progress: func(done uint64) {
			x.have.Store(done)
			conn.Written(done)
		},
	}, func(ctx context.Context, s transfer.Source) (net.Conn, error) {
		x.from.Store(&s.Name)
		return d.dialTransfer(ctx, s)
	})
	log := d.log.WithField("object", x.key.id).WithField("tenant", o.Tenant).WithField("name", o.Name)
	for _, fault := range result.Faults {
		log.WithError(fault).Info("a node did not give an object")
	}
	d.bringing.measured(result)
	x.givers = namesOf(sources, result.Bytes)
	if err != nil {
		return nil, d.notGiven(o, err)
	}
	log.WithField("bytes", o.SizeBytes).WithField("seconds", result.Took.Seconds()).Debug("an object was brought here")
	return result.Sums, nil
}

// namesOf gives the names of those that gave bytes, in order.
func namesOf(sources []transfer.Source, bytes map[transfer.ID]uint64) string {
	var names []string
	for _, s := range sources {
		if bytes[s.Node] > 0 {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// intoMemory is an object's place in a segment's file.
type intoMemory struct {
	file *os.File
	off  int64
}

// WriteAt implements io.WriterAt: a machine without memory is object.ErrFull.
func (m intoMemory) WriteAt(b []byte, at int64) (int, error) {
	n, err := m.file.WriteAt(b, m.off+at)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		err = fmt.Errorf("%w: no memory for %d bytes of an object: %w", object.ErrFull, len(b), err)
	}
	return n, err
}

// notGiven is the error where no node gave an object. A node that was restarted, or does not know of the object yet,
// refuses what this node asks in good faith: as long as it is published, that is no answer about the object.
func (d *Daemon) notGiven(o fsm.Object, err error) error {
	if _, _, still := d.publishedAs(o.Tenant, object.ID(o.ID)); !still {
		return fmt.Errorf("%w: %q was unpublished while it was brought here: %v", object.ErrNotFound, o.Name, err)
	}
	if code := object.CodeOf(err); code == object.ErrNotFound.Code() || code == object.ErrPermission.Code() {
		return fmt.Errorf("%w: %q: what this node and others know of the object differs: try again: %v", object.ErrBusy,
			o.Name, err)
	}
	return fmt.Errorf("%q: %w", o.Name, err)
}

// measured notes what a transfer says about links.
func (b *bringings) measured(r transfer.Result) {
	if r.Took <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for node, bytes := range r.Bytes {
		if bytes < linkBytes {
			continue
		}
		rate := float64(bytes) / r.Took.Seconds()
		if before := b.rates[node]; before > 0 {
			rate = before*(1-linkShare) + rate*linkShare
		}
		b.rates[node] = rate
	}
}

// rate gives the bytes a second that came from a node lately; 0: not known.
func (b *bringings) rate(node fsm.UUID) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rates[node]
}

// sourcesOf gives the nodes that have an object, the best first.
func (d *Daemon) sourcesOf(o fsm.Object, nodes []fsm.Node) (sources []transfer.Source) {
	current := map[fsm.UUID]fsm.Replica{}
	for _, n := range nodes {
		i := slices.IndexFunc(o.Replicas, func(r fsm.Replica) bool { return r.Node == n.ID })
		if i >= 0 && o.Replicas[i].Incarnation == n.Incarnation { // an earlier one has no memory any more
			current[n.ID] = o.Replicas[i]
		}
	}
	asked := placement.Object{ID: o.ID, SizeBytes: o.SizeBytes}
	for id := range current {
		asked.Replicas = append(asked.Replicas, id)
	}
	for _, c := range placement.Sources(asked, d.placeable(nodes), d.meta.node) {
		n := nodes[slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == c.Node })]
		sources = append(sources, sourceOf(n))
	}
	return sources
}

// placeable is what placement is told of the cluster's nodes.
func (d *Daemon) placeable(nodes []fsm.Node) []placement.Node {
	states := make([]nodeState, len(nodes))
	for i, n := range nodes {
		states[i] = d.alive(n.ID)
	}
	b := d.bringing
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]placement.Node, len(nodes))
	for i, n := range nodes {
		x := states[i]
		list[i] = placement.Node{ID: n.ID, Name: n.Name, CapacityBytes: x.CapacityBytes, FreeBytes: x.FreeBytes,
			Transfers: int(x.Transfers), Latency: x.Latency, Rate: b.rates[n.ID], Away: x.Why}
	}
	return list
}

// dialTransfer connects to a node for transfers. The connection's other end is that node.
func (d *Daemon) dialTransfer(ctx context.Context, s transfer.Source) (net.Conn, error) {
	conn, _, err := d.meta.now.Load().links.connect(ctx, s.Node, ipc.KindTransfer)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrBusy, err)
	}
	return conn, nil
}

// transfersTLS is the front door's for other nodes' transfers: that of the present cluster.
func (d *Daemon) transfersTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config,
		error) {
		m := d.meta.now.Load()
		c := pki.ServerConfig(m.keyring.Certificate, m.verifier())
		c.NextProtos, c.GetConfigForClient = []string{transfer.Protocol}, nil
		return c, nil
	}}
}

// serveTransfers implements frontdoor.Transfers: only members are answered, as far as the cluster knows.
func (d *Daemon) serveTransfers(ctx context.Context, conn net.Conn, peer pki.Peer) error {
	id, err := parseUUID(peer.Node)
	if err != nil {
		return err
	}
	is, unsure := d.meta.now.Load().knows(ctx, func(s *fsm.State) bool { _, is := s.Node(id); return is })
	if !is {
		return noMember(peer, unsure)
	}
	if err := transfer.Serve(ctx, conn, id, (*nodeServer)(d)); err != nil && ctx.Err() == nil {
		d.log.WithError(err).WithField("node", peer.Name).Info("another node's connection ended")
	}
	return nil
}

// nodeServer gives what this node has: transfer.Holder.
type nodeServer Daemon

// heldObject is a published object that another node reads.
type heldObject struct {
	*store.Reading
	conn  *store.Conn
	end   func()
	chunk *[]byte // of what is in memory; nil: none was read
	from  *bringings
}

// Size implements transfer.Object.
func (h *heldObject) Size() uint64 { return h.Reading.Size }

// Range implements transfer.Object. A request beyond those that may have a chunk in the heap reads from a mapping. That
// takes more processor time, and no memory but the object's.
func (h *heldObject) Range(off, n uint64) ([]byte, error) {
	if h.Copies() || !h.InMemory() || n > transfer.ChunkBytes || h.chunk == nil && !h.takeChunk() {
		return h.Reading.Range(off, n)
	}
	b := (*h.chunk)[:n]
	return b, h.Read(b, off)
}

func (h *heldObject) takeChunk() bool {
	if h.from.reading.Add(1) > maxChunks {
		h.from.reading.Add(-1)
		return false
	}
	h.chunk = h.from.chunks.Get().(*[]byte)
	return true
}

func (h *heldObject) giveChunk() {
	if h.chunk != nil {
		h.from.chunks.Put(h.chunk)
		h.from.reading.Add(-1)
	}
}

// Close implements transfer.Object.
func (h *heldObject) Close() {
	h.giveChunk()
	h.Reading.Close()
	h.conn.Close()
	h.end()
}

// Open implements transfer.Holder: nothing is given but what is published, and of this incarnation.
func (h *nodeServer) Open(ctx context.Context, from transfer.ID, r transfer.Request) (transfer.Object, error) {
	d := (*Daemon)(h)
	if r.Incarnation != d.meta.incarnation {
		return nil, fmt.Errorf("%w: this node was restarted: what it had before is gone", object.ErrPermission)
	}
	if err := d.knows(ctx, r); err != nil {
		return nil, err
	}
	patience, cancel := context.WithTimeout(ctx, d.bringing.giveWait)
	defer cancel()
	end, err := d.bringing.giving.take(patience, givingKey{from, r.Tenant})
	if err != nil {
		return nil, fmt.Errorf("%w: %d requests of your node for objects of tenant %.60q are under way, as many as may be",
			object.ErrBusy, d.bringing.giving.each, r.Tenant)
	}
	held, err := d.openPart(ctx, r)
	if err != nil || !held.Copies() {
		end()
		end = func() {}
	}
	if err != nil {
		return nil, err
	}
	d.bringing.serving.Add(1)
	held.end = func() { d.bringing.serving.Add(-1); end() }
	return held, nil
}

// openPart opens what a request is for.
func (d *Daemon) openPart(ctx context.Context, r transfer.Request) (*heldObject, error) {
	conn, err := d.store.Connect(store.Owner{Tenant: r.Tenant, Name: "transfer"})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, conn.Stop)
	defer stop()
	off, n := r.Bytes()
	reading, err := conn.OpenPart(ctx, object.ID(r.ID), off, n)
	if errors.Is(err, store.ErrDevicesEnded) {
		<-ctx.Done() // the daemon ends: the other node asks the one that takes over
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &heldObject{Reading: reading, conn: conn, from: d.bringing}, nil
}

// knows checks that an object is published, and waits a little for metadata that the asking node has already.
func (d *Daemon) knows(ctx context.Context, r transfer.Request) error {
	ctx, cancel := context.WithTimeout(ctx, knowTime)
	defer cancel()
	for {
		changed := d.meta.raft.Changed()
		o, _, ok := d.publishedAs(r.Tenant, object.ID(r.ID))
		if ok && o.Epoch >= r.Epoch {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if ok {
				return fmt.Errorf("%w: the cluster's metadata here is at epoch %d of object %x, not yet at %d",
					object.ErrBusy, o.Epoch, r.ID, r.Epoch)
			}
			return fmt.Errorf("%w: object %x of tenant %.60q is not published", object.ErrNotFound, r.ID, r.Tenant)
		}
	}
}

// Probe implements transfer.Holder.
func (h *nodeServer) Probe() transfer.State {
	d := (*Daemon)(h)
	capacity, free := d.store.Room()
	d.bringing.mu.Lock()
	under := len(d.bringing.all)
	d.bringing.mu.Unlock()
	return transfer.State{Node: d.meta.node, Incarnation: d.meta.incarnation, CapacityBytes: capacity,
		FreeBytes: free, Transfers: uint32(under) + uint32(max(d.bringing.serving.Load(), 0))}
}

// Take implements transfer.Holder.
func (h *nodeServer) Take(_ transfer.ID, n transfer.Named) error { return (*Daemon)(h).take(n) }

// Drop implements transfer.Holder: nodes learn what they are to delete from the metadata.
func (h *nodeServer) Drop(from transfer.ID, n transfer.Named) error {
	return fmt.Errorf("%w: this daemon deletes nothing on request", object.ErrUnsupported)
}

// noteCopy remembers a cached copy.
func (d *Daemon) noteCopy(o fsm.Object, from string) {
	b, id := d.bringing, object.ID(o.ID)
	b.mu.Lock()
	b.copies[id] = broughtCopy{o.Tenant, from}
	select {
	case b.came <- struct{}{}:
	default:
	}
	b.mu.Unlock()
	if !b.follower.Add(id) {
		b.forget(id)
	}
}

func (b *bringings) forget(id object.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.copies, id)
}

func (d *Daemon) isCopy(id object.ID) bool {
	d.bringing.mu.Lock()
	defer d.bringing.mu.Unlock()
	_, is := d.bringing.copies[id]
	return is
}

// dropCopy deletes a cached copy, unless somebody made it more than that here.
func (d *Daemon) dropCopy(tenant string, id object.ID) error {
	conn, err := d.store.Connect(store.Owner{Tenant: tenant, Name: "transfer"})
	if err != nil {
		return err
	}
	defer conn.Close()
	return ignoreNotFound(conn.DropCopy(id))
}

// followCopies forgets cached copies that go. It ends with d.ctx.
func (d *Daemon) followCopies() {
	for {
		gone, err := d.bringing.follower.Next(d.ctx)
		if err != nil {
			return
		}
		for _, id := range gone {
			d.bringing.forget(id)
		}
	}
}

// leastRest is how long dropUnpublished rests between looks at least; a long look is followed by four times as long.
const leastRest = 10 * time.Millisecond

// dropUnpublished deletes copies of what is published no longer, and lets go of what this node published itself,
// whenever the metadata has lost something, or a copy came. It ends with d.ctx.
func (d *Daemon) dropUnpublished() {
	for {
		began, now := time.Now(), d.lossesNow()
		d.dropUnpublishedOnce()
		rest := time.NewTimer(max(leastRest, 4*time.Since(began)))
		select {
		case <-d.ctx.Done():
		case <-rest.C:
		}
		rest.Stop()
		changed, stop := d.meta.raft.When(now.differs)
		select {
		case <-d.ctx.Done():
		case <-changed:
		case <-d.bringing.came:
		}
		if stop(); d.ctx.Err() != nil {
			return
		}
	}
}

func (d *Daemon) dropUnpublishedOnce() {
	for id, tenant := range d.bringing.unpublished(d.isPublished) {
		if err := d.dropCopy(tenant, id); err != nil && d.ctx.Err() == nil {
			d.log.WithError(err).WithField("object", id).Warn("a copy of what is published no longer stays")
		}
		d.bringing.forget(id)
	}
	for _, tenant := range d.published.names() {
		d.published.review(tenant, d.isListedHere)
	}
}

// unpublished gives the cached copies of what is published no longer.
func (b *bringings) unpublished(published func(object.ID) bool) map[object.ID]string {
	b.mu.Lock()
	all := make(map[object.ID]string, len(b.copies))
	for id, x := range b.copies {
		all[id] = x.tenant
	}
	b.mu.Unlock()
	for id := range all {
		if published(id) {
			delete(all, id)
		}
	}
	return all
}

// names gives the tenants of which something is published here.
func (p *publications) names() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for tenant := range p.tenants {
		list = append(list, tenant)
	}
	return list
}
