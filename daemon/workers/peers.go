package workers

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// maxPeerTickets bounds the tickets of one session's links that may be shown at a time.
const maxPeerTickets = 1024

// peerTickets let connections of links through to workers. Pool.mu guards them. Nothing here goes through those of
// other sessions.
type peerTickets struct {
	all map[[sha256.Size]byte]*peerTicket            // by the hash of the ticket
	of  map[uint64]map[[sha256.Size]byte]*peerTicket // those of a session, as all
}

func newPeerTickets() peerTickets {
	return peerTickets{map[[sha256.Size]byte]*peerTicket{}, map[uint64]map[[sha256.Size]byte]*peerTicket{}}
}

func (x peerTickets) add(key [sha256.Size]byte, t *peerTicket) {
	x.all[key] = t
	if x.of[t.session] == nil {
		x.of[t.session] = map[[sha256.Size]byte]*peerTicket{}
	}
	x.of[t.session][key] = t
}

// drop drops those of a session that which says.
func (x peerTickets) drop(session uint64, which func(*peerTicket) bool) {
	for key, t := range x.of[session] {
		if which(t) {
			delete(x.all, key)
			delete(x.of[session], key)
		}
	}
	if len(x.of[session]) == 0 {
		delete(x.of, session)
	}
}

// peerTicket is good for one lane of a link until its client says what became of the link, or its time is over: whoever
// has seen it on the wire can use it for nothing but an attempt at TLS with the worker.
type peerTicket struct {
	w               *worker
	session, worker uint64
	to              clwire.WorkerPeer
	may             func(remote string) error // nil: from anywhere
	expires         time.Time
	attempts        []time.Time
}

// OfferPeer draws the tickets of a link to a worker of a session: ticket i opens lane i. may (nil: always) says whether
// a connection from an address will do. Errors: ErrNotFound for a worker that is none of the session's, ErrBusy for too
// many links at a time.
func (p *Pool) OfferPeer(session, id, link uint64, lanes int, may func(remote string) error) ([][]byte, error) {
	s, err := p.find(session, id)
	if err != nil {
		return nil, err
	}
	list := make([][]byte, lanes)
	for i := range list {
		list[i] = make([]byte, sha256.Size)
		if _, err := rand.Read(list[i]); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving[id] != s { // it has ended meanwhile, and its tickets are dropped
		return nil, fmt.Errorf("%w: worker %d has ended", object.ErrNotFound, id)
	}
	now := time.Now()
	p.peers.drop(session, func(t *peerTicket) bool { return now.After(t.expires) })
	have := len(p.peers.of[session])
	if have+lanes > maxPeerTickets {
		return nil, fmt.Errorf("%w: %d connections of this session's links are awaited already", object.ErrBusy, have)
	}
	for i, secret := range list {
		p.peers.add(sha256.Sum256(secret), &peerTicket{
			w: s.w, session: session, worker: id, to: clwire.WorkerPeer{Link: link, Index: i}, may: may,
			expires: now.Add(TicketLife),
		})
	}
	return list, nil
}

// peerLane is Lane for a link's ticket; ours is false for one that is none.
func (p *Pool) peerLane(secret [sha256.Size]byte, remote string, fd int) (ours bool, err error) {
	p.mu.Lock()
	now := time.Now()
	t := p.peers.all[sha256.Sum256(secret[:])]
	if t == nil || now.After(t.expires) {
		p.mu.Unlock()
		return false, nil
	}
	t.attempts = slices.DeleteFunc(t.attempts, func(began time.Time) bool { return now.Sub(began) > attemptLife })
	busy := len(t.attempts) >= maxAttempts
	if !busy {
		t.attempts = append(t.attempts, now)
	}
	p.mu.Unlock()
	if busy {
		return true, fmt.Errorf("%w: %d connections show this ticket at a time", object.ErrBusy, maxAttempts)
	}
	if t.may != nil {
		if err := t.may(remote); err != nil {
			return true, err
		}
	}
	return true, t.w.givePeer(t.to, fd)
}

// GivePeer hands a worker of a session a connected socket of a link; fd stays the caller's.
func (p *Pool) GivePeer(session, id, link uint64, index, fd int) error {
	s, err := p.find(session, id)
	if err != nil {
		return err
	}
	return s.w.givePeer(clwire.WorkerPeer{Link: link, Index: index}, fd)
}

func (w *worker) givePeer(to clwire.WorkerPeer, fd int) error {
	raw, err := json.Marshal(clwire.DaemonMessage{Peer: &to})
	if err != nil {
		return err
	}
	return w.tell(raw, fd)
}

// SpendPeer ends the tickets of a link.
func (p *Pool) SpendPeer(session, id, link uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers.drop(session, func(t *peerTicket) bool { return t.worker == id && t.to.Link == link })
}
