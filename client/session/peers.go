package session

import (
	"context"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// OfferPeer asks this daemon for an offer by which another node's worker reaches worker, one of this session's: for
// DialPeer there. plaintext: without TLS, where both nodes allow it.
func (s Session) OfferPeer(ctx context.Context, worker, link uint64, lanes int, plaintext bool) ([]byte, error) {
	var m wire.OfferPeerReply
	err := conn.AskInto(ctx, s.c, wire.OfferPeer,
		&wire.OfferPeerRequest{Worker: worker, Link: link, Lanes: uint8(lanes), Plaintext: plaintext}, &m)
	return m.Offer, err
}

// DialPeer has this daemon connect worker to the node that made the offer. object.ErrPermission: that is no peer of
// this node.
func (s Session) DialPeer(ctx context.Context, worker, link uint64, offer []byte) error {
	return conn.Do(ctx, s.c, wire.DialPeer, &wire.DialPeerRequest{Worker: worker, Link: link, Offer: offer})
}

// PairPeers connects two workers of this session.
func (s Session) PairPeers(ctx context.Context, a, b, link uint64, lanes int) error {
	return conn.Do(ctx, s.c, wire.PairPeers, &wire.PairPeersRequest{Workers: [2]uint64{a, b}, Link: link,
		Lanes: uint8(lanes)})
}

// TellPeer says for the daemon's status how a link ended, soon.
func (s Session) TellPeer(worker, link uint64, up bool, with, why string) {
	clip := func(s string) string { return s[:min(len(s), wire.MaxPeerText)] }
	s.c.Post(0, wire.TellPeer,
		&wire.TellPeerRequest{Worker: worker, Link: link, Up: up, With: clip(with), Text: clip(why)})
}
