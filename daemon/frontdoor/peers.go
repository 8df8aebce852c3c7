package frontdoor

import (
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
)

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
	return nil, peers.SetPeer(c.peerNow(), m)
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
