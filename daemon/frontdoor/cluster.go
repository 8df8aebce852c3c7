package frontdoor

import (
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// cluster gives the metadata's side; a front door without one answers ErrUnsupported.
func (c *connection) cluster() (Cluster, error) {
	if c.srv.opts.Cluster == nil {
		return nil, fmt.Errorf("%w: this daemon keeps no metadata", object.ErrUnsupported)
	}
	return c.srv.opts.Cluster, nil
}

func (c *connection) publish(f *ipc.Frame) error {
	var m wire.BindRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	epoch, err := cluster.Publish(c.peer, m.ID, m.Name, m.Replace)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.Number{N: epoch}) })
}

func (c *connection) unpublish(f *ipc.Frame) error {
	var m wire.NameMessage
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	if err := cluster.Unpublish(c.peer.Tenant, m.ID, m.Name); err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, nil) })
}

func (c *connection) listPublished(f *ipc.Frame) error {
	var m wire.ListRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	return c.replyList(f, publishedOf(cluster, c.peer.Tenant, m.Prefix))
}

func (c *connection) createToken(f *ipc.Frame) error {
	var m wire.CreateTokenRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	text, err := cluster.CreateToken(c.peer, m)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.TextReply{Text: text}) })
}

func (c *connection) tokens(f *ipc.Frame) error {
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	return c.replyList(f, tokensOf(cluster))
}

func (c *connection) revokeToken(f *ipc.Frame) error {
	var m wire.RevokeTokenRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	if err := cluster.RevokeToken(m); err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, nil) })
}

func (c *connection) openPage(f *ipc.Frame) error {
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	text, err := cluster.OpenPage(c.peer)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.TextReply{Text: text}) })
}

// enrolled answers an Enroll on a connection that needs none; enroll serves the others.
func (c *connection) enrolled(*ipc.Frame) error {
	return fmt.Errorf("%w: Enroll is for those who have a token and no certificate yet: log in to a HOST:PORT", object.ErrInvalid)
}

func (c *connection) renew(f *ipc.Frame) error {
	var m wire.DERMessage
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	if c.peer.Remote == "" {
		return fmt.Errorf("%w: who comes over the unix socket has no certificate to renew", object.ErrInvalid)
	}
	der, err := cluster.Renew(c.peer, m.DER)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.DERMessage{DER: der}) })
}

func (c *connection) openRemoteWorker(f *ipc.Frame) error {
	var m wire.OpenRemoteWorkerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if m.Lanes < 1 || m.Lanes > wire.MaxLanes {
		return fmt.Errorf("%w: a worker with %d lanes, want 1 to %d", object.ErrInvalid, m.Lanes, wire.MaxLanes)
	}
	reply, err := c.srv.opts.Backend.OpenRemoteWorker(c.session, m)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &reply) })
}

func (c *connection) resumeWorker(f *ipc.Frame) error {
	var m wire.ResumeWorkerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	tickets, err := c.srv.opts.Backend.ResumeWorker(c.session, m.Worker, wire.LanesOf(m.Lanes))
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.ResumeWorkerReply{Tickets: tickets}) })
}
