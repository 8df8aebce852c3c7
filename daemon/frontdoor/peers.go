package frontdoor

import (
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// Peers is what the front door asks of the daemon for links between workers. As Backend says; the sessions' numbers are of
// the connection that asks.
type Peers interface {
	// OfferPeer gives a signed offer (pki.Offer) of tickets to a worker.
	OfferPeer(session uint64, m wire.OfferPeerRequest) ([]byte, error)
	// DialPeer connects a worker to the node that made an offer, if that is a peer of this node. It may take seconds.
	DialPeer(session uint64, m wire.DialPeerRequest) error
	// PairPeers connects two workers of this node.
	PairPeers(session uint64, m wire.PairPeersRequest) error
	// TellPeer takes down what became of a link.
	TellPeer(session uint64, m wire.TellPeerRequest)
	// Peers lists this node's peers as JSON, its own authority with them.
	Peers() ([]byte, error)
	// EachPeer calls f with the peers behind a place in their order, and with the place behind each, until f answers false.
	EachPeer(after string, f func(item any, at string) bool) error
	SetPeer(m wire.SetPeerRequest) error
}

func (c *connection) peers() (Peers, error) {
	if c.srv.opts.Peers == nil {
		return nil, fmt.Errorf("%w: this daemon connects no workers", object.ErrUnsupported)
	}
	return c.srv.opts.Peers, nil
}

func (c *connection) offerPeer(f *ipc.Frame) error {
	var m wire.OfferPeerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	offer, err := peers.OfferPeer(c.session, m)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.OfferPeerReply{Offer: offer}) })
}

// dialPeer waits for another machine, and holds no other request of the connection up meanwhile. mu is held.
func (c *connection) dialPeer(f *ipc.Frame) error {
	var m wire.DialPeerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	m.Offer = append([]byte(nil), m.Offer...) // the frame's
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes+uint64(len(m.Offer)), func() {
		err := peers.DialPeer(c.session, m)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, nil, err)
	})
}

func (c *connection) pairPeers(f *ipc.Frame) error {
	var m wire.PairPeersRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	if err := peers.PairPeers(c.session, m); err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, nil) })
}

func (c *connection) tellPeer(f *ipc.Frame) error {
	var m wire.TellPeerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	peers.TellPeer(c.session, m)
	return c.replyLater(func() { c.reply(f, nil) })
}

func (c *connection) listPeers(f *ipc.Frame) error {
	peers, err := c.peers()
	if err != nil {
		return err
	}
	b, err := peers.Peers()
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.replyLong(f, b) })
}

func (c *connection) setPeer(f *ipc.Frame) error {
	var m wire.SetPeerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	if err := peers.SetPeer(m); err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, nil) })
}
