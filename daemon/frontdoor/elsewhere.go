package frontdoor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Objects that are published on other nodes and are not here: who gets one has it brought, in a goroutine of its own.

// called tells of an object without a name here what it is published under: it is a replica, or a copy.
func (c *connection) called(o *object.Info) {
	if there := c.srv.opts.Elsewhere; there != nil && o.Name == "" {
		o.IsReplica(there.Published(o.Tenant, o.ID))
	}
}

// awayError says that an object is to be brought first.
type awayError struct{ id object.ID }

func (e *awayError) Error() string {
	return fmt.Sprintf("object %s is on other nodes of the cluster", e.id)
}

// Unwrap gives ErrUnsupported: what those get that do not bring it.
func (e *awayError) Unwrap() error { return object.ErrUnsupported }

// orElsewhere gives why an object with this id could not be had: it is on other nodes, or what err says.
func (c *connection) orElsewhere(id object.ID, err error) error {
	lost := errors.Is(err, object.ErrNotFound) ||
		errors.Is(err, object.ErrStorage) || // a damaged copy is got anew
		errors.Is(err, object.ErrNotSealed) // what is published is sealed: a copy is on its way here
	switch {
	case !lost || id.IsZero() || c.srv.opts.Elsewhere == nil:
		return err
	case !c.srv.opts.Elsewhere.Elsewhere(c.peer.Tenant, id):
		return c.unsure(err)
	}
	return &awayError{id}
}

// isComing reports whether what is not sealed yet is a copy on its way here: the object is whole on other nodes.
func (c *connection) isComing(id object.ID, err error) bool {
	return errors.Is(err, object.ErrNotSealed) && isAway(c.orElsewhere(id, err))
}

// isElsewhere reports whether err says that an object is to be brought first, and which.
func isElsewhere(err error) (id object.ID, is bool) {
	var away *awayError
	if errors.As(err, &away) {
		return away.id, true
	}
	return id, false
}

// bring brings what a request waits for, in a goroutine of its own, and goes on.
func (r *pendingRequest) bring(id object.ID) {
	release, err := r.c.srv.opts.Elsewhere.Bring(r.c.ctx, r.c.peer.Tenant, id)
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	defer r.c.survive()
	switch next := r.moved(id, err); {
	case err == nil:
		r.proceed(r, nil)
		release()
	case !next.IsZero():
		r.c.srv.named.find(r, next)
		r.proceed(r, nil)
	default:
		r.end(err)
	}
	r.c.flush() // a failure is met by serve
}

// maxMoves is how often a request follows a name under which one object after the other is published.
const maxMoves = 8

// moved gives what is published by now under the name of an object that could not be brought: it was replaced, and this
// node had not heard of that. Zero: there is no such object. connection.mu is held.
func (r *pendingRequest) moved(id object.ID, err error) (next object.ID) {
	if !errors.Is(err, object.ErrNotFound) || r.under == "" || r.moves >= maxMoves || r.c.srv.opts.Cluster == nil {
		return next
	}
	r.moves++
	if next, err = r.c.srv.opts.Cluster.Resolve(r.c.peer.Tenant, r.under); err != nil || next == id {
		return object.ID{}
	}
	return next
}

// broughtNamed is brought for who may name the object instead: by a name of this node, or a published one. Where what
// was published under that is gone when it is to be brought, the name is looked up again.
func broughtNamed[T any](c *connection, id object.ID, name string, do func(object.ID, string) (T, error)) (T, error) {
	if !id.IsZero() || name == "" {
		return brought(c, id, func() (T, error) { return do(id, name) })
	}
	v, err := do(id, name)
	if !errors.Is(err, object.ErrNotFound) {
		return v, err
	}
	id, none, unsure := c.lookUp(name, err)
	if none != nil {
		return v, LessSure(c.unsure(err), unsure)
	}
	for moves := 0; ; moves++ {
		v, err := brought(c, id, func() (T, error) { return do(id, "") })
		if !errors.Is(err, object.ErrNotFound) || moves == maxMoves {
			return v, err
		}
		next, none := c.resolve(name, err)
		if none != nil || next == id {
			return v, err
		}
		id = next
	}
}

// brought does something with an object, and once more where it had to be brought.
func brought[T any](c *connection, id object.ID, do func() (T, error)) (T, error) {
	v, err := do()
	if errors.Is(err, object.ErrNotFound) && c.srv.isEntering() {
		c.awaitEntry(c.srv.opts.EntryTime)
		v, err = do()
	}
	wanted, is := isElsewhere(c.orElsewhere(id, err))
	if !is && !id.IsZero() {
		if q := c.srv.missed(err); q != nil {
			err = LessSure(err, c.awaitCluster(q))
			wanted, is = isElsewhere(c.orElsewhere(id, err))
		}
	}
	if !is {
		return v, c.unsure(err)
	}
	release, err := c.srv.opts.Elsewhere.Bring(c.ctx, c.peer.Tenant, wanted)
	if err != nil {
		return v, err
	}
	defer release()
	return do()
}

func (c *connection) place(m wire.PlaceRequest) (ipc.Payload, error) {
	if c.srv.opts.Elsewhere == nil {
		return nil, fmt.Errorf("%w: this daemon has no cluster", object.ErrUnsupported)
	}
	if err := c.mustEnter(); err != nil {
		return nil, err
	}
	b, err := c.srv.opts.Elsewhere.Place(c.ctx, c.peer.Tenant, m)
	return long(b), err
}

func (c *connection) replicate(m wire.ReplicateRequest) (ipc.Payload, error) {
	if c.srv.opts.Elsewhere == nil {
		return nil, fmt.Errorf("%w: this daemon has no cluster", object.ErrUnsupported)
	}
	b, err := c.srv.opts.Elsewhere.Replicate(c.ctx, c.peer.Tenant, m)
	return long(b), err
}

// serveTransfers shakes hands with another node that wants objects, and lets it ask. who is no stranger from then on.
func (s *Server) serveTransfers(who *stranger) error {
	conn := who.conn
	if s.opts.Transfers == nil {
		return fmt.Errorf("%w: a connection of another node: this daemon serves none", object.ErrUnsupported)
	}
	if err := conn.SetDeadline(time.Now().Add(s.opts.StrangerTime)); err != nil {
		return err
	}
	secure := tls.Server(conn, s.opts.TransfersTLS)
	if err := secure.Handshake(); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	peer, known, err := pki.PeerOf(secure.ConnectionState())
	switch {
	case err != nil:
		return err
	case !known || peer.Role != pki.Node:
		return fmt.Errorf("%w: the certificate of %.60q is not a node's, and only nodes get objects like this",
			object.ErrPermission, peer.Name)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, leave, err := s.admitAsker(peer)
	if err != nil {
		return err
	}
	defer leave()
	s.part(who)
	return s.opts.Transfers(ctx, secure, peer)
}

// Bounds of nodes' connections: each may have an object open.
const (
	maxAskers  = 512
	maxOneNode = 64
)

// asker is a connection of another node that wants objects.
type asker struct {
	peer pki.Peer
	end  context.CancelFunc
}

// admitAsker counts a node's connection in, which ends with its certificate. leave is the reverse.
func (s *Server) admitAsker(peer pki.Peer) (ctx context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, n := range s.askers {
		if n.peer.Node == peer.Node {
			own++
		}
	}
	switch {
	case s.closed:
		return nil, nil, fmt.Errorf("%w: the daemon is stopping", object.ErrBusy)
	case own >= maxOneNode || len(s.askers) >= maxAskers:
		return nil, nil, fmt.Errorf("%w: %d connections of node %.60q are open, %d of all nodes", object.ErrBusy, own,
			peer.Name, len(s.askers))
	case s.void(peer.Leaf):
		return nil, nil, fmt.Errorf("%w: the certificate of node %.60q was revoked", object.ErrPermission, peer.Name)
	}
	ctx, cancel := context.WithDeadline(context.Background(), peer.Expires)
	n := &asker{peer: peer, end: cancel}
	s.askers = append(s.askers, n)
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.askers = slices.DeleteFunc(s.askers, func(other *asker) bool { return other == n })
	}, nil
}

// endAskersIf ends nodes' connections.
func (s *Server) endAskersIf(which func(Peer) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.askers {
		if which(Peer{Subject: n.peer.Name, Serial: n.peer.Serial, Role: n.peer.Role, Tenant: "node:" + n.peer.Node,
			Leaf: n.peer.Leaf}) {
			n.end()
		}
	}
}
