package session

import (
	"errors"
	"sync"
	"time"

	"tendril/forwarding/trace"
)

const (
	peerPause  = time.Second // before a link is made anew; twice as long each time, up to peerPauses times
	peerPauses = 6
	peerTries  = 16 // of two workers
)

// peerPair is what two workers have: a link, or a reason why not.
type peerPair struct {
	first sync.Once // the first try, which all wait for

	mu     sync.Mutex
	link   *peerLink // nil: there is none
	tries  int
	trying bool
	final  bool      // there will be none
	again  time.Time // when the next try may be
}

// peerOf gives the link between two workers, made now if it is not there; nil: there is none. It waits for the first one.
func (d *Driver) peerOf(a, b *worker) *peerLink {
	if a == nil || b == nil || a == b || a.dead.Load() || b.dead.Load() {
		return nil
	}
	key := [2]*worker{a, b}
	if a.id > b.id || a.id == b.id && a.platform.handle > b.platform.handle {
		key = [2]*worker{b, a}
	}
	d.peers.mu.Lock()
	p := d.peers.byPair[key]
	if p == nil {
		p = &peerPair{}
		if d.peers.byPair == nil {
			d.peers.byPair, d.peers.byID, d.peers.made = map[[2]*worker]*peerPair{}, map[uint64]*peerLink{}, map[*worker]int{}
		}
		d.peers.byPair[key] = p
	}
	d.peers.mu.Unlock()
	p.first.Do(func() {
		began := d.began()
		d.connectPeers(p, key)
		d.tripped(began, trace.CausePeer, key[0], "")
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now := time.Now(); {
	case p.link != nil && p.link.usable():
		return p.link
	case p.trying || p.final:
	case p.link != nil: // it broke
		p.link, p.again = nil, now.Add(p.pauseLocked())
	case now.After(p.again):
		p.trying = true
		go d.connectPeers(p, key)
	}
	return nil
}

// pauseLocked is how long to wait for the next try.
func (p *peerPair) pauseLocked() time.Duration {
	return peerPause << min(max(p.tries-1, 0), peerPauses)
}

// connectPeers tries both directions, and tells the nodes.
func (d *Driver) connectPeers(p *peerPair, ends [2]*worker) {
	link, err := d.tryPeers(ends)
	id := uint64(0)
	if err == nil {
		id = link.id
	} else {
		id = d.newID()
	}
	p.mu.Lock()
	p.trying = false
	p.again = time.Now().Add(p.pauseLocked())
	p.tries++
	p.link = link
	p.final = p.tries == peerTries || errors.Is(err, errPeersOff) || errors.Is(err, errNoPeers) || errors.Is(err, errPeersMany)
	p.mu.Unlock()
	d.tellPeers(ends, id, err)
	d.tracedLink(ends, err)
}
