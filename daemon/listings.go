package daemon

import (
	"fmt"

	"tendril/daemon/frontdoor"
)

// EachSession implements frontdoor.Backend: by number. A peer sees its own tenant's, and the daemon's owner all.
func (d *Daemon) EachSession(p frontdoor.Peer, after string, f func(any, string) bool) error {
	for _, s := range d.sessions.list() {
		place := fmt.Sprintf("%016x", s.ID)
		if place > after && (p.Admin || s.Tenant == p.Tenant) && !f(s, place) {
			break
		}
	}
	return nil
}

// EachPeer implements frontdoor.Peers: by address.
func (d *Daemon) EachPeer(after string, f func(any, string) bool) error {
	for _, p := range d.peers() {
		if p.Address > after && !f(p, p.Address) {
			break
		}
	}
	return nil
}
