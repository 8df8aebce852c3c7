package frontdoor

import (
	"context"
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// Peers is what the front door asks of the daemon for links between workers. As Backend says; the sessions' numbers are
// of the connection that asks.
type Peers interface {
	// OfferPeer gives a signed offer (pki.Offer) of tickets to a worker.
	OfferPeer(session uint64, m wire.OfferPeerRequest) ([]byte, error)
	// DialPeer connects a worker to the node that made an offer, if that is a peer of this node. It may take seconds,
	// and ends with ctx.
	DialPeer(ctx context.Context, session uint64, m wire.DialPeerRequest) error
	// PairPeers connects two workers of this node.
	PairPeers(session uint64, m wire.PairPeersRequest) error
	// TellPeer takes down what became of a link.
	TellPeer(session uint64, m wire.TellPeerRequest)
	// Peers lists this node's peers as JSON, its own authority with them.
	Peers() ([]byte, error)
	// EachPeer calls f with the peers behind a place in their order, and with the place behind each, until f answers
	// false.
	EachPeer(after string, f func(item any, at string) bool) error
	SetPeer(m wire.SetPeerRequest) error
}

func (c *connection) peers() (Peers, error) {
	if c.srv.opts.Peers == nil {
		return nil, fmt.Errorf("%w: this daemon connects no workers", object.ErrUnsupported)
	}
	return c.srv.opts.Peers, nil
}

func (c *connection) offerPeer(peers Peers, m wire.OfferPeerRequest) (ipc.Payload, error) {
	offer, err := peers.OfferPeer(c.session, m)
	return &wire.OfferPeerReply{Offer: offer}, err
}

// dialPeer waits for another machine, and holds no other request of the connection up meanwhile. mu is held.
func (c *connection) dialPeer(f *ipc.Frame, m wire.DialPeerRequest) error {
	peers, err := c.peers()
	if err != nil {
		return err
	}
	m.Offer = append([]byte(nil), m.Offer...) // the frame's
	header, session := ipc.Frame{Header: f.Header}, c.session
	return c.later(store.WaitBytes+uint64(len(m.Offer)), func() {
		err := peers.DialPeer(c.ctx, session, m)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, nil, err)
	})
}

func (c *connection) pairPeers(peers Peers, m wire.PairPeersRequest) (ipc.Payload, error) {
	return nil, peers.PairPeers(c.session, m)
}

func (c *connection) tellPeer(peers Peers, m wire.TellPeerRequest) (ipc.Payload, error) {
	peers.TellPeer(c.session, m)
	return nil, nil
}

func (c *connection) listPeers(peers Peers, _ none) (ipc.Payload, error) {
	b, err := peers.Peers()
	return long(b), err
}

func (c *connection) setPeer(peers Peers, m wire.SetPeerRequest) (ipc.Payload, error) {
	return nil, peers.SetPeer(m)
}

// withPeers is answers for what needs links between workers.
func withPeers[M any, P request[M]](do func(*connection, Peers, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) {
		peers, err := c.peers()
		if err != nil {
			return nil, err
		}
		return do(c, peers, m)
	})
}
