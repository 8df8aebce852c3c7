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

// peerTickets let connections of links through to workers. Pool.mu guards them.
type peerTickets map[[sha256.Size]byte]*peerTicket

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
	now, have := time.Now(), 0
	for key, t := range p.peers {
		if now.After(t.expires) {
			delete(p.peers, key)
		} else if t.session == session {
			have++
		}
	}
	if have+lanes > maxPeerTickets {
		return nil, fmt.Errorf("%w: %d connections of this session's links are awaited already", object.ErrBusy, have)
	}
	if p.peers == nil {
		p.peers = peerTickets{}
	}
	for i, secret := range list {
		p.peers[sha256.Sum256(secret)] = &peerTicket{
			w: s.w, session: session, worker: id, to: clwire.WorkerPeer{Link: link, Index: i}, may: may,
			expires: now.Add(TicketLife),
		}
	}
	return list, nil
}

// peerLane is Lane for a link's ticket; ours is false for one that is none.
func (p *Pool) peerLane(secret [sha256.Size]byte, remote string, fd int) (ours bool, err error) {
	p.mu.Lock()
	now := time.Now()
	t := p.peers[sha256.Sum256(secret[:])]
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
	for key, t := range p.peers {
		if t.session == session && t.worker == id && t.to.Link == link {
			delete(p.peers, key)
		}
	}
}
