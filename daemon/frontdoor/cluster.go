package frontdoor

import (
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// publish waits for the cluster, which takes no processor here: it ends its turn first, so that those of many
// connections come to the log together.
func (c *connection) publish(cluster Cluster, m wire.BindRequest) (ipc.Payload, error) {
	c.handOnTurn()
	epoch, err := cluster.Publish(c.peer, m.ID, m.Name, m.Replace)
	return &wire.Number{N: epoch}, err
}

func (c *connection) unpublish(cluster Cluster, m wire.NameMessage) (ipc.Payload, error) {
	c.handOnTurn()
	return nil, cluster.Unpublish(c.peer.Tenant, m.ID, m.Name)
}

func (c *connection) createToken(cluster Cluster, m wire.CreateTokenRequest) (ipc.Payload, error) {
	text, err := cluster.CreateToken(c.peer, m)
	return &wire.TextReply{Text: text}, err
}

func (c *connection) revokeToken(cluster Cluster, m wire.RevokeTokenRequest) (ipc.Payload, error) {
	return nil, cluster.RevokeToken(c.peer, m)
}

func (c *connection) revokeCertificates(cluster Cluster, m wire.RevokeCertificatesRequest) (ipc.Payload, error) {
	n, err := cluster.RevokeCertificates(c.peer, m)
	return &wire.Number{N: n}, err
}

func (c *connection) changeTenant(cluster Cluster, m wire.ChangeTenantRequest) (ipc.Payload, error) {
	return nil, cluster.ChangeTenant(c.peer, m)
}

func (c *connection) openPage(cluster Cluster, _ none) (ipc.Payload, error) {
	text, err := cluster.OpenPage(c.peer)
	return &wire.TextReply{Text: text}, err
}

// enrolled answers an Enroll on a connection that needs none; enroll serves the others.
func (c *connection) enrolled(*ipc.Frame) error {
	return fmt.Errorf("%w: Enroll is for clients with a token and no certificate yet: log in to HOST:PORT",
		object.ErrInvalid)
}

func (c *connection) renew(cluster Cluster, m wire.DERMessage) (ipc.Payload, error) {
	if c.peer.Remote == "" {
		return nil, fmt.Errorf("%w: a client on the unix socket has no certificate to renew", object.ErrInvalid)
	}
	der, err := cluster.Renew(c.peerNow(), m.DER)
	if err == nil {
		err = c.renewed(der)
	}
	return &wire.DERMessage{DER: der}, err
}

func (c *connection) openRemoteWorker(m wire.OpenRemoteWorkerRequest) (ipc.Payload, error) {
	if m.Lanes < 1 || m.Lanes > wire.MaxLanes {
		return nil, fmt.Errorf("%w: a worker with %d lanes, want 1 to %d", object.ErrInvalid, m.Lanes, wire.MaxLanes)
	}
	reply, err := c.srv.opts.Backend.OpenRemoteWorker(c.session, m)
	return &reply, err
}

func (c *connection) resumeWorker(m wire.ResumeWorkerRequest) (ipc.Payload, error) {
	tickets, err := c.srv.opts.Backend.ResumeWorker(c.session, m.Worker, wire.LanesOf(m.Lanes))
	return &wire.ResumeWorkerReply{Tickets: tickets}, err
}

// withCluster is answers for what needs the metadata.
func withCluster[M any, P request[M]](do func(*connection, Cluster, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) {
		cluster, err := c.cluster()
		if err != nil {
			return nil, err
		}
		return do(c, cluster, m)
	})
}
