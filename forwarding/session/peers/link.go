package peers

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/node"
)

// patience is how long a link may take to come up. Its daemons give a connection 3 s.
const patience = 5 * time.Second

var (
	errOff     = errors.New("links between workers are off (TENDRIL_PEERS=off)")
	errSilence = fmt.Errorf("the workers did not meet within %v", patience)
	errMany    = fmt.Errorf("a worker had %d links already", clwire.MaxPeerLinks)
	errNone    = errors.New("a daemon connects no workers")
)

// Link is one link, or an attempt at one.
type Link struct {
	ID   uint64 // as the workers know it; immutable
	ends [2]Worker
	host Host

	mu      sync.Mutex // leaf
	up      [2]bool
	down    [2]bool
	why     error                   // not nil: it ended, or never will be up
	settled chan struct{}           // closed once it is up, or never will be
	open    map[uint64]*expectation // what is to come over it, by event
}

// expectation is an event that is to end by what comes over a link.
type expectation struct {
	at        Worker
	otherwise func()
}

// Expect notes that a worker's event ends by what comes over the link. If the link ends first, otherwise runs on the
// host's goroutine. over: it has ended already, and otherwise does not run.
func (l *Link) Expect(event uint64, at Worker, otherwise func()) (over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down[0] && l.ends[0] == at || l.down[1] && l.ends[1] == at {
		return true
	}
	if l.open == nil {
		l.open = map[uint64]*expectation{}
	}
	l.open[event] = &expectation{at, otherwise}
	return false
}

// Ended says that an event has ended that was expected.
func (l *Link) Ended(event uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, event)
}

func (t *Table) try(ends [2]Worker) (*Link, error) {
	if t.opt.Off {
		return nil, errOff
	}
	var controls [2]node.Peers
	for i, w := range ends {
		var ok bool
		if controls[i], ok = w.Control().(node.Peers); !ok {
			return nil, errNone
		}
	}
	var prints [2][32]byte
	if err := askPrints(ends, &prints); err != nil {
		return nil, err
	}
	if ends[0].Control() == ends[1].Control() {
		return t.attempt(ends, prints, true, func(id uint64, lanes int) error {
			return controls[0].PairPeers(ends[0].ID(), ends[1].ID(), id, lanes)
		})
	}
	link, err := t.meet(ends, prints, controls)
	if err == nil {
		return link, nil
	}
	back, other := t.meet([2]Worker{ends[1], ends[0]}, [2][32]byte{prints[1], prints[0]},
		[2]node.Peers{controls[1], controls[0]})
	if other == nil {
		return back, nil
	}
	return nil, fmt.Errorf("one way: %w; the other way: %w", err, other)
}

// meet has the first worker's node dial the second's.
func (t *Table) meet(ends [2]Worker, prints [2][32]byte, controls [2]node.Peers) (*Link, error) {
	return t.attempt(ends, prints, t.opt.Plaintext, func(id uint64, lanes int) error {
		offer, err := controls[1].OfferPeer(ends[1].ID(), id, lanes, t.opt.Plaintext)
		if err != nil {
			return err
		}
		return controls[0].DialPeer(ends[0].ID(), id, offer)
	})
}

// askPrints learns what the two workers show each other.
func askPrints(ends [2]Worker, prints *[2][32]byte) error {
	var calls [2]*conn.Call
	for i, w := range ends {
		c, request := w.Begin(nil)
		calls[i] = c
		if err := w.Send(&clwire.PeerOpen{}, clwire.FlagUrgent, request); err != nil {
			w.Forget(request)
			return err
		}
	}
	for i, w := range ends {
		c := calls[i]
		if !w.Wait(&c.Completion) {
			return conn.ErrDead
		}
		if c.Status != 0 || copy(prints[i][:], c.Data) != len(prints[i]) {
			return fmt.Errorf("%w: a worker answers %d and %d bytes", errNone, c.Status, len(c.Data))
		}
	}
	return nil
}

// attempt makes a link whose second end answers, and waits until both ends have it.
func (t *Table) attempt(ends [2]Worker, prints [2][32]byte, plaintext bool,
	connect func(id uint64, lanes int) error) (*Link, error) {
	l := &Link{ID: t.host.NewID(), ends: ends, host: t.host, settled: make(chan struct{})}
	if err := t.add(l); err != nil {
		return nil, err
	}
	lanes := 1 + conn.BulkLanes(t.opt.Lanes)
	packed := ends[0].Control() != ends[1].Control() && ends[0].Packs() && ends[1].Packs()
	for i, w := range ends {
		m := &clwire.PeerExpect{Link: l.ID, Answers: i == 1, Plaintext: plaintext, Packed: packed, Lanes: uint8(lanes),
			PeerSHA: prints[1-i]}
		if err := w.Send(m, clwire.FlagUrgent, 0); err != nil {
			return nil, err
		}
		w.Kick()
	}
	err := connect(l.ID, lanes)
	if err == nil {
		select {
		case <-l.settled:
			err = l.reason()
		case <-time.After(patience):
			err = errSilence
		}
	}
	if err == nil {
		return l, nil
	}
	l.end(err)
	return nil, err
}

// add counts a link. Errors: errMany where one of its workers was told of as many as it takes; conn.ErrDead.
func (t *Table) add(l *Link) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || l.ends[0].Dead() || l.ends[1].Dead() {
		return conn.ErrDead
	}
	if max(t.made[l.ends[0]], t.made[l.ends[1]]) >= clwire.MaxPeerLinks {
		return errMany
	}
	t.byID[l.ID] = l
	t.newest = max(t.newest, l.ID)
	t.made[l.ends[0]]++
	t.made[l.ends[1]]++
	return nil
}

func (l *Link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *Link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why == nil && l.up[0] && l.up[1]
}

// end gives the link up; both workers answer with its end.
func (l *Link) end(why error) {
	l.fail(why)
	for _, w := range l.ends {
		w.SendOneWay(&clwire.PeerClose{Link: l.ID})
		w.Kick()
	}
}

// fail notes the first reason. was: the link was up until then.
func (l *Link) fail(why error) (first, was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return false, false
	}
	l.why = why
	if !l.up[0] || !l.up[1] {
		close(l.settled)
		return true, false
	}
	return true, true
}

func (l *Link) nowUp(end int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil || l.up[end] {
		return
	}
	if l.up[end] = true; l.up[1-end] {
		close(l.settled)
	}
}

// nowDown: what this end waits for and has not reported will not come over the link any more.
func (l *Link) nowDown(end int, why error) {
	first, was := l.fail(why)
	lost := l.lost(end)
	l.host.Later(func() {
		if first {
			other := l.ends[1-end]
			other.SendOneWay(&clwire.PeerClose{Link: l.ID}) // it may not have noticed
			other.Kick()
		}
		if was {
			tell(l.ends, l.ID, why)
			l.host.Refused(l.ends, why)
		}
		for _, f := range lost {
			f()
		}
	})
}

// overWithout reports whether nothing more comes of the link where one end, w, says nothing more: its other end has
// said that it has the link no more, or is dead.
func (l *Link) overWithout(w Worker) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, end := range l.ends {
		if end != w && !l.down[i] && !end.Dead() {
			return false
		}
	}
	return true
}

// lost notes that an end has the link no more, and gives what is to be done for the events that it waits for.
func (l *Link) lost(end int) (lost []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down[end] = true
	for _, x := range l.open {
		if x.at == l.ends[end] {
			lost = append(lost, x.otherwise)
		}
	}
	return lost
}
