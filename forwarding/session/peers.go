package session

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
)

// Links between two workers of this process, on one node or two: bytes and ends of events go from worker to worker, and this
// process hears that they arrived. Each link is made when something first has to go between the two; where it does not come
// up, or ends, package span carries what goes between them through this process, and the nodes' status says why. It is made
// anew behind a pause, when something has to go between the two again.
//
// Locks: peerPair.mu > peerLink.mu; peerTable.mu and peerLink.mu are leaves, taken under Event.mu and the reader's lock too.

// PeerControl is a Control whose daemon connects workers.
type PeerControl interface {
	Control
	// OfferPeer makes the daemon let another node's worker come to one of this session's, soon: for DialPeer there.
	OfferPeer(worker, link uint64, lanes int, plaintext bool) (offer []byte, err error)
	DialPeer(worker, link uint64, offer []byte) error
	// PairPeers connects two workers of this session.
	PairPeers(a, b, link uint64, lanes int) error
	// TellPeer says for the node's status what became of a link.
	TellPeer(worker, link uint64, up bool, with, why string)
}

// peerPatience is how long a link may take to come up. Its daemons give a connection 3 s.
const peerPatience = 5 * time.Second

var (
	errPeersOff    = errors.New("links between workers are off (TENDRIL_PEERS=off)")
	errPeerSilence = fmt.Errorf("the workers did not meet within %v", peerPatience)
	errPeersMany   = fmt.Errorf("a worker had %d links already", clwire.MaxPeerLinks)
	errNoPeers     = errors.New("a daemon connects no workers")
)

// peerTable is a process's links.
type peerTable struct {
	mu     sync.Mutex
	byPair map[[2]*worker]*peerPair
	byID   map[uint64]*peerLink
	made   map[*worker]int // links that a worker was ever told of
}

// peerLink is one link, or an attempt at one.
type peerLink struct {
	d    *Driver
	id   uint64
	ends [2]*worker

	mu      sync.Mutex
	up      [2]bool
	down    [2]bool
	why     error             // not nil: it ended, or never will be up
	settled chan struct{}     // closed once it is up, or never will be
	open    map[*Event]func() // that have not ended yet, and what brings each about otherwise
}

func (d *Driver) tryPeers(ends [2]*worker) (*peerLink, error) {
	if d.cfg.NoPeers {
		return nil, errPeersOff
	}
	var controls [2]PeerControl
	for i, w := range ends {
		var ok bool
		if controls[i], ok = w.platform.control.(PeerControl); !ok {
			return nil, errNoPeers
		}
	}
	var prints [2][32]byte
	if err := askPrints(ends, &prints); err != nil {
		return nil, err
	}
	if ends[0].platform.control == ends[1].platform.control {
		return d.attempt(ends, prints, true, func(id uint64, lanes int) error {
			return controls[0].PairPeers(ends[0].id, ends[1].id, id, lanes)
		})
	}
	link, err := d.meet(ends, prints, controls)
	if err == nil {
		return link, nil
	}
	back, other := d.meet([2]*worker{ends[1], ends[0]}, [2][32]byte{prints[1], prints[0]}, [2]PeerControl{controls[1], controls[0]})
	if other == nil {
		return back, nil
	}
	return nil, fmt.Errorf("one way: %w; the other way: %w", err, other)
}

// meet has the first worker's node dial the second's.
func (d *Driver) meet(ends [2]*worker, prints [2][32]byte, controls [2]PeerControl) (*peerLink, error) {
	return d.attempt(ends, prints, d.cfg.Plaintext, func(id uint64, lanes int) error {
		offer, err := controls[1].OfferPeer(ends[1].id, id, lanes, d.cfg.Plaintext)
		if err != nil {
			return err
		}
		return controls[0].DialPeer(ends[0].id, id, offer)
	})
}

// askPrints learns what the two workers show each other.
func askPrints(ends [2]*worker, prints *[2][32]byte) error {
	var calls [2]*call
	for i, w := range ends {
		c, request := w.begin(nil)
		calls[i] = c
		if err := w.send(&clwire.PeerOpen{}, clwire.FlagUrgent, request); err != nil {
			w.forget(request)
			return err
		}
	}
	for i, w := range ends {
		c := calls[i]
		if !w.reader.wait(&c.completion, w.spin) {
			return errDead
		}
		if c.status != Success || copy(prints[i][:], c.data) != len(prints[i]) {
			return fmt.Errorf("%w: a worker answers %d and %d bytes", errNoPeers, c.status, len(c.data))
		}
	}
	return nil
}

// attempt makes a link whose second end answers, and waits until both ends have it.
func (d *Driver) attempt(ends [2]*worker, prints [2][32]byte, plaintext bool, connect func(id uint64, lanes int) error) (*peerLink, error) {
	l := &peerLink{d: d, id: d.newID(), ends: ends, settled: make(chan struct{}), open: map[*Event]func(){}}
	d.peers.mu.Lock()
	full := max(d.peers.made[ends[0]], d.peers.made[ends[1]]) >= clwire.MaxPeerLinks
	if !full {
		d.peers.byID[l.id] = l
		d.peers.made[ends[0]]++
		d.peers.made[ends[1]]++
	}
	d.peers.mu.Unlock()
	if full {
		return nil, errPeersMany
	}
	lanes := 1 + bulkLanes(d.cfg.Lanes)
	packed := ends[0].platform.control != ends[1].platform.control && ends[0].packs() && ends[1].packs()
	for i, w := range ends {
		m := &clwire.PeerExpect{Link: l.id, Answers: i == 1, Plaintext: plaintext, Packed: packed, Lanes: uint8(lanes), PeerSHA: prints[1-i]}
		if err := w.send(m, clwire.FlagUrgent, 0); err != nil {
			return nil, err
		}
		w.link.Kick()
	}
	err := connect(l.id, lanes)
	if err == nil {
		select {
		case <-l.settled:
			err = l.reason()
		case <-time.After(peerPatience):
			err = errPeerSilence
		}
	}
	if err == nil {
		return l, nil
	}
	l.end(err)
	return nil, err
}

func (l *peerLink) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *peerLink) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why == nil && l.up[0] && l.up[1]
}

// end gives the link up; both workers answer with its end.
func (l *peerLink) end(why error) {
	l.fail(why)
	for _, w := range l.ends {
		w.tell(&clwire.PeerClose{Link: l.id})
		w.link.Kick()
	}
}

// fail notes the first reason.
func (l *peerLink) fail(why error) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return false
	}
	l.why = why
	if !l.up[0] || !l.up[1] {
		close(l.settled)
	}
	return true
}

// onPeerState takes what a worker says of a link. It runs under the reader's lock.
func (w *worker) onPeerState(payload []byte) error {
	var m clwire.PeerState
	if err := m.Decode(payload); err != nil {
		return err
	}
	w.d.peers.mu.Lock()
	l := w.d.peers.byID[m.Link]
	w.d.peers.mu.Unlock()
	if l == nil || l.ends[0] != w && l.ends[1] != w {
		return fmt.Errorf("%w: no link %d", clwire.ErrRecord, m.Link)
	}
	end := 0
	if l.ends[1] == w {
		end = 1
	}
	if m.Up {
		l.nowUp(end)
	} else {
		l.nowDown(end, errors.New(m.Text))
	}
	return nil
}

func (l *peerLink) nowUp(end int) {
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
func (l *peerLink) nowDown(end int, why error) {
	w := l.ends[end]
	was := l.usable()
	first := l.fail(why)
	l.mu.Lock()
	l.down[end] = true
	var lost []func()
	for e, otherwise := range l.open {
		if e.ctx.bound() == w {
			lost = append(lost, otherwise)
		}
	}
	l.mu.Unlock()
	l.d.callbacks.run(func() {
		if first {
			other := l.ends[1-end]
			other.tell(&clwire.PeerClose{Link: l.id}) // it may not have noticed
			other.link.Kick()
		}
		if first && was {
			l.d.tellPeers(l.ends, l.id, why)
			l.d.tracedLink(l.ends, why)
		}
		for _, f := range lost {
			f()
		}
	})
}

// tellPeers says for both nodes' status what became of a link.
func (d *Driver) tellPeers(ends [2]*worker, id uint64, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	for i, w := range ends {
		if c, ok := w.platform.control.(PeerControl); ok {
			with := ends[1-i]
			c.TellPeer(w.id, id, err == nil, fmt.Sprintf("worker %d of %s", with.id, text(with.platform.info[platformName])), why)
		}
	}
}

// event makes an event of ctx that ends by what comes over the link; nil: there is no memory for one. lost runs, on the callbacks'
// goroutine, if the link ends first, and ended once the event has, however.
func (l *peerLink) event(ctx *Context, lost func(e *Event), ended func(e *Event)) *Event {
	e, status := l.d.shownEvent(ctx, nil, cmdUser)
	if status != Success {
		return nil
	}
	e.foreign = true
	e.remote.Store(true)
	e.refs.Retain() // until it ends
	e.whenEnded = func() {
		l.mu.Lock()
		delete(l.open, e)
		l.mu.Unlock()
		l.d.callbacks.run(func() {
			ended(e)
			l.d.ReleaseEvent(e.handle)
		})
	}
	w := ctx.bound()
	l.mu.Lock()
	l.open[e] = func() { lost(e) }
	over := l.down[0] && l.ends[0] == w || l.down[1] && l.ends[1] == w
	l.mu.Unlock()
	ctx.settle(nil, func(*unwaited) { // from here on writes are waited for: see watched
		w.mu.Lock()
		w.events[e.id] = e
		w.mu.Unlock()
	})
	switch {
	case w.dead.Load():
		e.fail(OutOfResources)
	case over:
		l.d.callbacks.run(func() { lost(e) })
	}
	return e
}

// Push is a range of a buffer or image that goes from a worker to another one's.
type Push struct {
	Src, Dst  uintptr   // buffers, or images of the same shape, of contexts of different workers
	Off, Size uint64    // bytes, of both; of images whole rows, counted row by row through all slices without gaps
	After     []uintptr // events of Src's context: the bytes are there
	Before    []uintptr // events of Dst's context: nobody writes there any more
	Content   PushContent
	// Lost is called where the link ends before the push did: the caller has to bring the bytes otherwise, and then to end
	// the event with SetUserEventStatus. Ended is called once the event has ended. Both run on the callbacks' goroutine.
	Lost  func(event uintptr)
	Ended func(status int32)
}

// PushContent is what says how much of a push means something: see clwire.PeerContent. Size 0: all does, as where the number cannot be had.
type PushContent struct {
	Size   uintptr // a buffer of the source's context
	Origin uint64  // bytes
	After  []uintptr
}

// Push starts a push and gives the event of Dst's context, with a reference, that ends with it. ok false: there is no way from worker to
// worker for it, and nothing was done.
func (d *Driver) Push(p Push) (event uintptr, ok bool) {
	src, dst := d.buffers.Get(p.Src), d.buffers.Get(p.Dst)
	if src == nil || dst == nil || (src.image == nil) != (dst.image == nil) || src.special.Load() || dst.special.Load() {
		return 0, false
	}
	from, to := src.ctx.bound(), dst.ctx.bound()
	if d.nearer(src, dst) {
		return 0, false
	}
	l := d.peerOf(from, to)
	if l == nil {
		return 0, false
	}
	after, fine := d.peerWaits(src.ctx, from, p.After)
	before, well := d.peerWaits(dst.ctx, to, p.Before)
	if !fine || !well || src.ensureRemote(from) != Success || dst.ensureRemote(to) != Success {
		return 0, false
	}
	began, lost := d.began(), new(atomic.Bool)
	e := l.event(dst.ctx, func(e *Event) { lost.Store(true); p.Lost(e.handle) }, func(e *Event) {
		d.tracedPush(began, from, to, to.tookPushed(e.id, p.Size), e.status.Load(), lost.Load())
		p.Ended(e.status.Load())
	})
	if e == nil {
		return 0, false
	}
	_ = to.send(clwire.NewPeerPull(l.id, e.id, dst.id.Load(), p.Off, p.Size, before), 0, 0) // a failure ends the worker, and so the event
	push := clwire.NewPeerPush(l.id, e.id, src.id.Load(), p.Off, p.Size, after)
	push.Content = d.pushContent(src.ctx, from, p.Content)
	_ = from.send(push, 0, 0) // as does this one, through the link
	return e.handle, true
}

// pushContent is a push's content as its worker knows it.
func (d *Driver) pushContent(ctx *Context, w *worker, c PushContent) (content clwire.PeerContent) {
	size := d.buffers.Get(c.Size)
	if size == nil || size.image != nil || size.special.Load() {
		return content
	}
	wait, ok := d.peerWaits(ctx, w, c.After)
	if !ok || len(wait) > clwire.MaxContentWait || size.ensureRemote(w) != Success {
		return content
	}
	return clwire.PeerContent{Size: size.id.Load(), Origin: c.Origin, Wait: wait}
}

// onPushed hears that a push to this worker is over with its first bytes. It runs under the reader's lock.
func (w *worker) onPushed(m *clwire.BulkLength) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.events[m.Op]; e == nil || !e.foreign || w.d.trace == nil {
		return // it counts for the trace alone
	}
	if w.pushed == nil {
		w.pushed = map[uint64]uint64{}
	}
	w.pushed[m.Op] = m.Bytes
}

// tookPushed is how many bytes of a push came, which has ended.
func (w *worker) tookPushed(id, size uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.pushed[id]; ok {
		delete(w.pushed, id)
		return n
	}
	return size
}

// nearer says that memory which this process shares with a worker of this node is the shorter way.
func (d *Driver) nearer(src, dst *Buffer) bool {
	return src.ctx.platform.control == dst.ctx.platform.control && (src.bytes() != nil || dst.bytes() != nil)
}

// peerWaits gives a worker's numbers of events that are not known to have completed.
func (d *Driver) peerWaits(ctx *Context, w *worker, list []uintptr) (ids []uint64, ok bool) {
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil || e.ctx != ctx:
			return nil, false
		case e.status.Load() == 0:
			continue
		case e.id == 0 || e.ensureRemote(w) != nil:
			return nil, false
		}
		ids = append(ids, e.id)
	}
	return ids, len(ids) <= clwire.MaxWait
}

// BridgeEvent makes an event of a context that ends as a command's event of another worker's does, told from worker to worker. The
// caller owns the handle. ok false: there is no such way, and nothing was done.
func (d *Driver) BridgeEvent(event, context uintptr) (bridge uintptr, ok bool) {
	x, ctx := d.events.Get(event), d.contexts.Get(context)
	if x == nil || ctx == nil || x.queue == nil || x.id == 0 {
		return 0, false
	}
	from, to := x.ctx.bound(), ctx.bound()
	l := d.peerOf(from, to)
	if l == nil || !x.refs.Retain() {
		return 0, false
	}
	e := l.event(ctx, func(e *Event) { d.followHere(event, e.handle) }, func(*Event) { d.ReleaseEvent(event) })
	if e == nil {
		d.ReleaseEvent(event)
		return 0, false
	}
	_ = to.send(&clwire.PeerEvent{Link: l.id, ID: e.id}, 0, 0)                    // a failure ends the worker, and so the event
	_ = from.send(&clwire.PeerSignal{Link: l.id, Event: x.id, There: e.id}, 0, 0) // as does this one, through the link
	return e.handle, true
}

// followHere ends an event as another does, through this process.
func (d *Driver) followHere(event, follower uintptr) {
	end := func(status int32) { d.SetUserEventStatus(follower, min(status, 0)) }
	if status := d.SetEventCallback(event, 0, end); status != Success {
		end(int32(status))
	}
}

// endForeign is SetUserEventStatus of an event that waits for another worker, after the link's end.
func (e *Event) endForeign(status int32) Status {
	if w := e.ctx.bound(); w != nil {
		w.tell(&clwire.SetUserEvent{ID: e.id, Status: status})
		w.link.Kick()
	}
	e.advance(status)
	return Success
}

func (c *daemonControl) OfferPeer(worker, link uint64, lanes int, plaintext bool) ([]byte, error) {
	return c.conn.OfferPeer(worker, link, lanes, plaintext)
}

func (c *daemonControl) DialPeer(worker, link uint64, offer []byte) error {
	return c.conn.DialPeer(worker, link, offer)
}

func (c *daemonControl) PairPeers(a, b, link uint64, lanes int) error {
	return c.conn.PairPeers(a, b, link, lanes)
}

func (c *daemonControl) TellPeer(worker, link uint64, up bool, with, why string) {
	c.conn.TellPeer(worker, link, up, with, why)
}
