package peers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/node"
)

const (
	pause  = time.Second // before a link is made anew; twice as long each time, up to pauses times
	pauses = 6
	tries  = 16 // of two workers
)

// Worker is an end of a link. Two of them are the same worker where == says so.
type Worker interface {
	ID() uint64
	Dead() bool
	Packs() bool // its lanes may carry packed payload
	Control() node.Control
	Name() string  // of its platform, for people
	Order() uint64 // what tells workers of two nodes apart whose IDs are the same

	Begin(then func(*conn.Call)) (*conn.Call, uint64)
	Forget(request uint64)
	Wait(it *conn.Completion) bool
	Send(m clwire.Message, flags uint16, request uint64) error
	SendOneWay(m clwire.Message)
	Kick()
}

// Host is the session that the links are for.
type Host interface {
	NewID() uint64
	// Later runs f soon, on a goroutine that holds no lock.
	Later(f func())
	// Connecting is called before a caller waits for a link's first attempt, and what it returns afterwards.
	Connecting(ends [2]Worker) (done func())
	// Refused says that there is no link, or that it ended, and why.
	Refused(ends [2]Worker, why error)
}

// Options say how links are made.
type Options struct {
	Off       bool // there are none
	Plaintext bool // between nodes without TLS, where both allow it
	Lanes     int  // as for the lanes to a worker; 0: by the number of cores
}

// Table is a session's links.
type Table struct {
	host Host
	opt  Options

	running sync.WaitGroup // tries that nobody waits for; added to under mu while not closed

	mu     sync.Mutex // leaf
	closed bool
	byPair map[[2]Worker]*pair
	byID   map[uint64]*Link // until both ends have said that they have it no more, or died
	newest uint64           // the largest of those IDs that was ever given
	made   map[Worker]int   // links that a worker was ever told of
}

// New returns a table without links.
func New(host Host, opt Options) *Table {
	return &Table{host: host, opt: opt, byPair: map[[2]Worker]*pair{}, byID: map[uint64]*Link{},
		made: map[Worker]int{}}
}

// pair is what two workers have: a link, or a reason why not.
type pair struct {
	first sync.Once // the first try, which all wait for

	mu     sync.Mutex
	link   *Link // nil: there is none
	tries  int
	trying bool
	final  bool      // there will be none
	again  time.Time // when the next try may be
}

// Of gives the link between two workers that live, made now if it is not there; nil: there is none. It waits for the
// first attempt.
func (t *Table) Of(a, b Worker) *Link {
	key := [2]Worker{a, b}
	if a.ID() > b.ID() || a.ID() == b.ID() && a.Order() > b.Order() {
		key = [2]Worker{b, a}
	}
	p := t.pair(key)
	if p == nil {
		return nil
	}
	p.first.Do(func() {
		done := t.host.Connecting(key)
		t.connect(p, key)
		done()
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
		p.trying = t.begin(func() { t.connect(p, key) })
	}
	return nil
}

// begin runs f on a goroutine that Close joins; false: the table is closed.
func (t *Table) begin(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.running.Go(f)
	}
	return !t.closed
}

// Close ends the tries that are under way and joins them. No link is made any more. The workers must have ended, so
// that no try waits for one.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	links := slices.Collect(maps.Values(t.byID))
	t.mu.Unlock()
	for _, l := range links {
		l.fail(conn.ErrDead)
	}
	t.running.Wait()
}

// Forget drops what is known of a worker that is dead. A link of its stays until its other end has said that it has it
// no more: what came over it may be on the way still.
func (t *Table) Forget(w Worker) {
	t.mu.Lock()
	delete(t.made, w)
	for key := range t.byPair {
		if key[0] == w || key[1] == w {
			delete(t.byPair, key)
		}
	}
	var links []*Link
	for _, l := range t.byID {
		if l.ends[0] == w || l.ends[1] == w {
			links = append(links, l)
		}
	}
	t.mu.Unlock()
	for _, l := range links {
		l.fail(conn.ErrDead) // a try that waits for it ends
		t.forgetIfOver(l, w)
	}
}

// forgetIfOver drops a link of which one end, w, says nothing more, unless the other one may.
func (t *Table) forgetIfOver(l *Link, w Worker) {
	if l.overWithout(w) {
		t.mu.Lock()
		delete(t.byID, l.ID)
		t.mu.Unlock()
	}
}

// pair gives what two workers have; nil: one of them is dead, and was forgotten, or is about to be.
func (t *Table) pair(key [2]Worker) *pair {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key[0].Dead() || key[1].Dead() {
		return nil
	}
	p := t.byPair[key]
	if p == nil {
		p = &pair{}
		t.byPair[key] = p
	}
	return p
}

// pauseLocked is how long to wait for the next try.
func (p *pair) pauseLocked() time.Duration { return pause << min(max(p.tries-1, 0), pauses) }

// connect tries both directions, and tells the nodes.
func (t *Table) connect(p *pair, ends [2]Worker) {
	link, err := t.try(ends)
	id := uint64(0)
	if err == nil {
		id = link.ID
	} else {
		id = t.host.NewID()
	}
	p.mu.Lock()
	p.trying = false
	p.again = time.Now().Add(p.pauseLocked())
	p.tries++
	p.link = link
	p.final = p.tries == tries || errors.Is(err, errOff) || errors.Is(err, errNone) || errors.Is(err, errMany)
	p.mu.Unlock()
	tell(ends, id, err)
	if err != nil {
		t.host.Refused(ends, err)
	}
}

// tell says for both nodes' status what became of a link.
func tell(ends [2]Worker, id uint64, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	for i, w := range ends {
		if c, ok := w.Control().(node.Peers); ok {
			with := ends[1-i]
			c.TellPeer(w.ID(), id, err == nil, fmt.Sprintf("worker %d of %s", with.ID(), with.Name()), why)
		}
	}
}

// State takes what a worker says of a link. An error is the worker's fault.
func (t *Table) State(w Worker, m *clwire.PeerState) error {
	t.mu.Lock()
	l, was := t.byID[m.Link], m.Link <= t.newest
	t.mu.Unlock()
	if l == nil && was {
		return nil // it is forgotten: its other end has died
	}
	if l == nil || l.ends[0] != w && l.ends[1] != w {
		return fmt.Errorf("%w: no link %d", clwire.ErrRecord, m.Link)
	}
	end := 0
	if l.ends[1] == w {
		end = 1
	}
	if m.Up {
		l.nowUp(end)
		return nil
	}
	l.nowDown(end, errors.New(m.Text))
	t.forgetIfOver(l, w)
	return nil
}
