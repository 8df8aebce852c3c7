package frontdoor

import (
	"fmt"
	"net"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// Nodes is what the front door asks of the daemon for the other nodes of its cluster, and for who administers it. As
// Backend says.
type Nodes interface {
	// GiveRaft takes a connection of a certified node over, in any case; where the node is no member it closes it and
	// says why.
	GiveRaft(p pki.Peer, conn net.Conn) error
	// Join gives a certificate, and what else makes a node a member, for a token of role node. remote is for the log.
	Join(remote string, m wire.JoinRequest) (wire.JoinReply, error)
	// Propose does a member's command where this node leads. It may take seconds.
	Propose(p Peer, command []byte) (wire.ProposeReply, error)
	// ReadIndex says what a member's read waits for where this node leads. It may take seconds.
	ReadIndex(p Peer) (wire.ReadIndexReply, error)
	// Pulse says how this node is. It waits for nobody.
	Pulse() wire.PulseReply

	// JoinCluster makes this node a member of another cluster. It gives what became of it, as JSON.
	JoinCluster(m wire.JoinClusterRequest) ([]byte, error)
	// LeaveCluster takes this node out of its cluster, or says what has to be done before. It gives what became of it,
	// as JSON.
	LeaveCluster(m wire.LeaveClusterRequest) ([]byte, error)
	// RemoveNode takes another node out of the cluster. It gives what became of it, as JSON.
	RemoveNode(m wire.RemoveNodeRequest) ([]byte, error)
	// LogEnd gives the last entry of this node's log.
	LogEnd() wire.LogEndReply
	// RecoverCluster makes this node a cluster of one of what it knows, or says what would be lost. It gives what
	// became of it, as JSON.
	RecoverCluster(m wire.RecoverClusterRequest) ([]byte, error)
	// BackupCluster gives the metadata and the authority with its key, as JSON.
	BackupCluster() ([]byte, error)
	// Access gives p what it needs to come in at the cluster's other nodes. It may take seconds.
	Access(p Peer) (wire.AccessReply, error)
	// Audit gives who did what as JSON: at this node where a node asks, else in the cluster.
	Audit(p Peer, m wire.AuditRequest) ([]byte, error)
	// TakeDevices gives another node's lease devices of this one, as far as they are free. It may take seconds.
	TakeDevices(m wire.TakeDevicesRequest) (wire.TakeDevicesReply, error)
	// KeepDevices takes what is not named from it again. It waits for nobody.
	KeepDevices(m wire.KeepDevicesRequest) error
	// Leases lists the cluster's leases as p may see them, or to another node this one's, as JSON.
	Leases(p Peer) ([]byte, error)
	// EndLease ends a lease that p may end. It may take seconds.
	EndLease(p Peer, name string) error
	// ClusterStatus describes the cluster as JSON.
	ClusterStatus() ([]byte, error)
}

// nodes gives the other nodes' side; a front door without one answers ErrUnsupported.
func (c *connection) nodes() (Nodes, error) {
	if c.srv.opts.Nodes == nil {
		return nil, fmt.Errorf("%w: this daemon is in no cluster", object.ErrUnsupported)
	}
	return c.srv.opts.Nodes, nil
}

// forNodes runs a request that waits for the cluster, and holds no other of the connection up meanwhile. bytes is what
// it holds. mu is held.
func (c *connection) forNodes(f *ipc.Frame, bytes int, do func(Nodes) (ipc.Payload, error)) error {
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes+uint64(bytes), func() {
		p, err := do(nodes)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, p, err)
	})
}

func (c *connection) propose(f *ipc.Frame, m wire.ProposeRequest) error {
	command := append([]byte(nil), m.Command...) // the frame's
	return c.forNodes(f, len(command), func(nodes Nodes) (ipc.Payload, error) {
		reply, err := nodes.Propose(c.peerNow(), command)
		return &reply, err
	})
}

func (c *connection) readIndex(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		reply, err := nodes.ReadIndex(c.peerNow())
		return &reply, err
	})
}

func (c *connection) pulse(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		reply := nodes.Pulse()
		return &reply, nil
	})
}

func (c *connection) joinCluster(f *ipc.Frame, m wire.JoinClusterRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.JoinCluster(m)) })
}

func (c *connection) leaveCluster(f *ipc.Frame, m wire.LeaveClusterRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.LeaveCluster(m)) })
}

func (c *connection) removeNode(f *ipc.Frame, m wire.RemoveNodeRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.RemoveNode(m)) })
}

func (c *connection) logEnd(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		reply := nodes.LogEnd()
		return &reply, nil
	})
}

func (c *connection) recoverCluster(f *ipc.Frame, m wire.RecoverClusterRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.RecoverCluster(m)) })
}

func (c *connection) backupCluster(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.BackupCluster()) })
}

func (c *connection) clusterStatus(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.ClusterStatus()) })
}

func (c *connection) access(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		reply, err := nodes.Access(c.peerNow())
		return long(reply.Append(nil)), err
	})
}

func (c *connection) takeDevices(f *ipc.Frame, m wire.TakeDevicesRequest) error {
	return c.forNodes(f, len(m.Selector), func(nodes Nodes) (ipc.Payload, error) {
		reply, err := nodes.TakeDevices(m)
		return &reply, err
	})
}

func (c *connection) keepDevices(f *ipc.Frame, m wire.KeepDevicesRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return nil, nodes.KeepDevices(m) })
}

func (c *connection) leases(f *ipc.Frame, _ none) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) { return longOf(nodes.Leases(c.peerNow())) })
}

// audit is for who administers the daemon, and for the other nodes.
func (c *connection) audit(f *ipc.Frame, m wire.AuditRequest) error {
	if !c.peer.Admin && c.peer.Role != pki.Node {
		return fmt.Errorf("%w: only root and the daemon's own user may do this, on its machine", object.ErrPermission)
	}
	return c.forNodes(f, len(m.Cursor), func(nodes Nodes) (ipc.Payload, error) {
		return longOf(nodes.Audit(c.peerNow(), m))
	})
}

func (c *connection) endLease(f *ipc.Frame, m wire.EndLeaseRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		return nil, nodes.EndLease(c.peerNow(), m.Name)
	})
}

func longOf(b []byte, err error) (ipc.Payload, error) { return long(b), err }
