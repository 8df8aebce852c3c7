package client

import (
	"context"
	"encoding/json"

	"tendril/ipc/wire"
)

// OfferPeer asks this daemon for an offer by which another node's worker reaches worker, one of this session's: for
// DialPeer there. plaintext: without TLS, where both nodes allow it.
func (c *Conn) OfferPeer(ctx context.Context, worker, link uint64, lanes int, plaintext bool) ([]byte, error) {
	k, err := c.roundTrip(ctx, wire.OfferPeer,
		&wire.OfferPeerRequest{Worker: worker, Link: link, Lanes: uint8(lanes), Plaintext: plaintext})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var m wire.OfferPeerReply
	err = m.Decode(k.payload)
	return append([]byte(nil), m.Offer...), err
}

// DialPeer has this daemon connect worker to the node that made the offer. object.ErrPermission: that is no peer of
// this node.
func (c *Conn) DialPeer(ctx context.Context, worker, link uint64, offer []byte) error {
	return c.simple(ctx, wire.DialPeer, &wire.DialPeerRequest{Worker: worker, Link: link, Offer: offer})
}

// PairPeers connects two workers of this session.
func (c *Conn) PairPeers(ctx context.Context, a, b, link uint64, lanes int) error {
	return c.simple(ctx, wire.PairPeers, &wire.PairPeersRequest{Workers: [2]uint64{a, b}, Link: link,
		Lanes: uint8(lanes)})
}

// TellPeer says for the daemon's status how a link ended, soon.
func (c *Conn) TellPeer(worker, link uint64, up bool, with, why string) {
	clip := func(s string) string { return s[:min(len(s), wire.MaxPeerText)] }
	c.post(0, wire.TellPeer,
		&wire.TellPeerRequest{Worker: worker, Link: link, Up: up, With: clip(with), Text: clip(why)})
}

// Peers describes the nodes that this one's workers may be connected to, and its own authority, as JSON.
func (c *Conn) Peers(ctx context.Context) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.Peers, nil, &raw)
	return raw, err
}

// SetPeer names a node that this one's workers may be connected to, HOST:PORT and its authority; the zero authority
// ends that.
func (c *Conn) SetPeer(ctx context.Context, address string, authority [32]byte) error {
	return c.simple(ctx, wire.SetPeer, &wire.SetPeerRequest{Authority: authority, Address: address})
}
