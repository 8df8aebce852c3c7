package frontdoor

import (
	"fmt"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

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

func (c *connection) rotateAuthority(f *ipc.Frame, m wire.RotateAuthorityRequest) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		return longOf(nodes.RotateAuthority(c.peerNow(), m))
	})
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

func (c *connection) devicesFree(f *ipc.Frame, m wire.IDMessage) error {
	return c.forNodes(f, 0, func(nodes Nodes) (ipc.Payload, error) {
		nodes.DevicesFree(m.ID)
		return nil, nil
	})
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
