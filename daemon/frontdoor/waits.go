package frontdoor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/events"
	"tendril/store/object"
)

// Gets and AwaitManys that wait, and watches, have no goroutine: the store's attendant of their tenant calls when there
// is something to do for one, and does it for the tenant's others only then. So a tenant keeps one goroutine busy,
// however many of them end at once.

// turnTime is how long the attendant waits for one of them, whose peer may not be reading, before it goes on to the
// next.
const turnTime = time.Millisecond

// asleep has a connection's requests that wait without a goroutine. Its lock is taken under connection.mu, and the
// store's under it.
type asleep struct {
	mu      sync.Mutex
	ended   bool
	pending map[*pendingRequest]struct{}
	over    []overRequest // answered together with the next one
	watches []*watch
}

// overRequest is a request whose waiting is over, and how it went.
type overRequest struct {
	r   *pendingRequest
	err error
}

// pendingRequest waits for objects. Its connection counts it among waits.
type pendingRequest struct {
	c       *connection // immutable, as what follows
	f       ipc.Frame   // the header alone
	bytes   uint64      // charged
	until   time.Time   // zero: for ever
	named   bool        // it may come to be published, too
	wanted  []store.Wanted
	proceed func(r *pendingRequest, err error) // goes on: under connection.mu, with nil when all are there
	under   string                             // the published name that wanted was found under; "": none

	moves int            // how often something else was published under it meanwhile; guarded by connection.mu
	p     *store.Pending // guarded by asleep.mu
	found object.ID      // what is published under the name; guarded by namedWaits.mu
}

// beginWaiting counts a request that waits, and charges bytes: what it holds. doneWaiting is the reverse.
func (c *connection) beginWaiting(bytes uint64) error {
	if c.waiting.Add(1) > maxWaits {
		c.waiting.Add(-1)
		return fmt.Errorf("%w: %d requests of this connection are waiting already", object.ErrBusy, maxWaits)
	}
	if err := c.store.ChargeRequest(bytes); err != nil {
		c.waiting.Add(-1)
		return err
	}
	c.waits.Add(1)
	return nil
}

func (c *connection) doneWaiting(bytes uint64) {
	c.waiting.Add(-1)
	c.store.UnchargeRequest(bytes)
	c.waits.Done()
}

// endWaits ends what waits without a goroutine, before the connection joins the rest.
func (c *connection) endWaits() {
	x := &c.asleep
	x.mu.Lock()
	x.ended = true
	pending, watches := x.pending, x.watches
	x.pending, x.watches = nil, nil
	x.mu.Unlock()
	for r := range pending {
		if r.p.Cancel() {
			r.over()
		}
	}
	for _, w := range watches {
		w.end()
	}
}

// over gives up what a request holds.
func (r *pendingRequest) over() {
	if r.named {
		r.c.srv.named.remove(r)
	}
	r.c.doneWaiting(r.bytes)
}

// wait has the request wait; false, and err, where that is over at once. connection.mu is held.
func (r *pendingRequest) wait() (waits bool, err error) {
	x := &r.c.asleep
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return false, errEnded
	}
	if r.p, err = r.c.store.Later(r.wanted, r.until, r.wake); r.p == nil {
		return false, err
	}
	if x.pending == nil {
		x.pending = make(map[*pendingRequest]struct{})
	}
	x.pending[r] = struct{}{}
	if r.named && !r.c.srv.named.found(r).IsZero() {
		r.p.Look()
	}
	return true, nil
}

var errEnded = fmt.Errorf("%w: the connection has ended", object.ErrInvalid)

// wake is called by the attendant: the waiting is over. Those that end together are answered with one send.
func (r *pendingRequest) wake(err error, more bool) {
	x := &r.c.asleep
	x.mu.Lock()
	delete(x.pending, r)
	list := append(x.over, overRequest{r, err})
	if x.over = nil; more {
		x.over = list
	}
	x.mu.Unlock()
	if more {
		return
	}
	r.c.inTurn(func() {
		for _, one := range list {
			one.r.proceed(one.r, one.err)
		}
		r.c.flush() // a failure is met by serve
	})
}

// inTurn runs what may send, under connection.mu, for the attendant: there and then where the peer takes some KiB, in a
// goroutine of its own otherwise, which it waits for, but not for long. What runs counts among waits.
func (c *connection) inTurn(run func()) {
	if c.mu.TryLock() {
		if local, is := c.link.(*ipc.Accepted); is && len(c.out) <= answerBytes && len(c.unsent) == 0 &&
			local.Writable() {
			defer c.mu.Unlock()
			defer c.survive()
			run()
			return
		}
		c.mu.Unlock()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.mu.Lock()
		defer c.mu.Unlock()
		defer c.survive()
		run()
	}()
	patience := time.NewTimer(turnTime)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// waitFor has a Get wait that failed with err, which waiting may mend. mu is held.
func (c *connection) waitFor(h ipc.Header, m wire.GetRequest, give give, err error) error {
	if err := c.beginWaiting(store.PendingBytes); err != nil {
		return err
	}
	r := &pendingRequest{
		c: c, f: ipc.Frame{Header: h}, bytes: store.PendingBytes, named: m.ID.IsZero() && m.Name != "" &&
			c.srv.opts.Cluster != nil,
	}
	if r.under = m.Name; !m.ID.IsZero() {
		m.Name = ""
	}
	r.wanted = []store.Wanted{{ID: m.ID, Name: m.Name}}
	if m.WaitMS > 0 {
		r.until = time.Now().Add(time.Duration(m.WaitMS) * time.Millisecond)
	}
	r.proceed = func(r *pendingRequest, err error) { r.give(m, give, err) }
	if r.named {
		c.srv.named.add(r)
		if id, err := c.srv.opts.Cluster.Resolve(c.peer.Tenant, m.Name); err == nil { // it came before add
			c.srv.named.tell(r.publishedName(), id)
		}
	}
	r.again(m, err)
	return nil
}

// give answers a Get whose waiting is over. connection.mu is held.
func (r *pendingRequest) give(m wire.GetRequest, give give, err error) {
	id, name := m.ID, m.Name
	found := r.c.srv.named.found(r)
	if !found.IsZero() {
		id, name, err = found, "", nil
	}
	switch {
	case err != nil:
		r.end(err)
	case r.c.ctx.Err() != nil:
		r.end(errEnded)
	default:
		if err = r.c.orElsewhere(id, give(r.c, &r.f, id, name)); err != nil {
			if !found.IsZero() && comes(err) {
				r.lose(found)
			}
			r.again(m, err)
			return
		}
		r.end(nil)
	}
}

// lose goes on looking for what is published under the name: what was found is gone, though the metadata may say so
// later only.
func (r *pendingRequest) lose(found object.ID) {
	r.c.srv.named.forget(r)
	id, err := r.c.srv.opts.Cluster.Resolve(r.c.peer.Tenant, r.wanted[0].Name)
	if err == nil && id != found { // it changed before forget
		r.c.srv.named.tell(r.publishedName(), id)
	}
}

// again goes on after a Get that failed with err: with waiting, where that may mend it. connection.mu is held.
func (r *pendingRequest) again(m wire.GetRequest, err error) {
	id, elsewhere := isElsewhere(err)
	switch {
	case errors.Is(err, store.ErrAway):
		go r.fetch()
		return
	case elsewhere:
		go r.bring(id)
		return
	case m.WaitMS > 0 && comes(err):
		waits, err := r.wait()
		switch {
		case waits:
		case err == nil: // it came between the two
			go r.wake(nil, false)
		default:
			r.end(err)
		}
		return
	}
	r.end(err)
}

// fetch brings an object back from disk, what is published under the name where that was found, in a goroutine of its
// own, and goes on: to other nodes where the file is damaged and they have the object.
func (r *pendingRequest) fetch() {
	ctx, cancel := r.c.ctx, context.CancelFunc(func() {})
	if !r.until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, r.until)
	}
	defer cancel()
	id, name := r.wanted[0].ID, r.wanted[0].Name
	if found := r.c.srv.named.found(r); !found.IsZero() {
		id, name = found, ""
	}
	err := r.c.store.BringBack(ctx, id, name)
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	defer r.c.survive()
	err = r.c.orElsewhere(id, err)
	switch other, elsewhere := isElsewhere(err); {
	case err == nil:
		r.proceed(r, nil)
	case elsewhere: // its file is damaged
		go r.bring(other)
		return
	default:
		r.end(err)
	}
	r.c.flush() // a failure is met by serve
}

// end ends the request, with err in place of an answer where it is one. connection.mu is held, and who holds it sends.
func (r *pendingRequest) end(err error) {
	if err != nil {
		r.c.out = errorFrame(r.c.out, r.c.version, r.f.Request, err)
	}
	r.over()
}

func (c *connection) awaitMany(f *ipc.Frame, m wire.AwaitManyRequest) error {
	bytes := store.PendingBytes + uint64(len(f.Payload)+len(m.Wanted)*wantedBytes)
	if err := c.beginWaiting(bytes); err != nil {
		return err
	}
	r := &pendingRequest{c: c, f: ipc.Frame{Header: f.Header}, bytes: bytes,
		until: time.Now().Add(time.Duration(m.WaitMS) * time.Millisecond)}
	r.wanted = make([]store.Wanted, len(m.Wanted))
	for i, w := range m.Wanted {
		r.wanted[i] = store.Wanted{ID: w.ID, Name: w.Name}
	}
	r.proceed = func(r *pendingRequest, err error) {
		if err == nil {
			c.reply(&r.f, nil)
		}
		r.end(err)
	}
	if waits, err := r.wait(); !waits {
		r.proceed(r, err)
	}
	return nil
}

// wantedBytes is what an object of an AwaitMany takes besides its name.
const wantedBytes = 2 * (object.IDBytes + 16)

// watch is a Watch: its reply is an event a frame.
type watch struct {
	c *connection
	f ipc.Frame // the header alone
	w *events.Watcher

	stop func() // no published names any more
}

// watch answers with an event a frame, FlagMore in each, until the connection ends. The first frame is empty: listening
// has begun.
func (c *connection) watch(f *ipc.Frame, m wire.WatchRequest) error {
	if err := c.beginWaiting(events.WatchBytes); err != nil {
		return err
	}
	w := &watch{c: c, f: ipc.Frame{Header: f.Header}, stop: func() {}}
	if names, ok := c.srv.opts.Cluster.(NameTeller); ok {
		w.stop = names.TellNames()
	}
	c.appendRaw(&w.f, ipc.FlagMore, nil) // before the first event: mu is held
	c.asleep.mu.Lock()
	defer c.asleep.mu.Unlock()
	w.w = c.store.Watch(m.Prefix, w.wake)
	c.asleep.watches = append(c.asleep.watches, w)
	return nil
}

// end stops listening.
func (w *watch) end() {
	w.w.Close()
	w.stop()
	w.c.doneWaiting(events.WatchBytes)
}

// wake is called by the attendant: there are events.
func (w *watch) wake() {
	w.c.asleep.mu.Lock()
	ended := w.c.asleep.ended
	if !ended {
		w.c.waits.Add(1)
	}
	w.c.asleep.mu.Unlock()
	if ended {
		return
	}
	w.c.inTurn(func() {
		defer w.c.waits.Done()
		w.send()
	})
}

// send sends the events that wait. connection.mu is held.
func (w *watch) send() {
	c := w.c
	for ev, ok := w.w.TryNext(); ok; ev, ok = w.w.TryNext() {
		b, err := json.Marshal(ev)
		if err != nil {
			return
		}
		c.appendRaw(&w.f, ipc.FlagMore, b)
		if len(c.out) >= flushBytes && c.flush() != nil {
			return
		}
	}
	c.flush() // a failure is met by serve
}

// later runs a request that waits in a goroutine of its own, which the connection's end joins. bytes are charged
// meanwhile: what it holds. mu is held.
func (c *connection) later(bytes uint64, run func()) error {
	if err := c.beginWaiting(bytes); err != nil {
		return err
	}
	go func() {
		defer c.doneWaiting(bytes)
		defer c.survive()
		run()
	}()
	return nil
}

// answerBytes is how much may wait to be sent for answerSoon to send it: lazy replies.
const answerBytes = 4 << 10
