package workers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Request says what worker a session wants.
type Request struct {
	Session  uint64
	Platform *Platform
	Tenant   string
	Env      []string // from DriverEnv

	NoCompress bool // what lanes carry, and links to other nodes' workers, is never packed
}

// Opened is a worker at a session's service. Socket and Ring are the client's ends and the caller's to close.
type Opened struct {
	ID           uint64
	RingBytes    uint64
	Socket, Ring *os.File
}

// Open gives a session a worker: a warm one where there is one for this tenant and environment, a fresh one otherwise,
// which takes as long as the driver takes to load. The worker is ended with Release or ReleaseSession.
//
// Errors: ErrBusy when the tenant may have no more of the workers that this node runs, and waited for one; ErrNoDevice,
// with the reason, when the worker does not start; ctx's.
func (p *Pool) Open(ctx context.Context, r Request) (Opened, error) {
	w, err := p.acquire(ctx, r)
	if err != nil {
		return Opened{}, err
	}
	o, err := p.hand(w, r)
	if err != nil {
		p.discard(w)
		return Opened{}, err
	}
	p.nudge()
	return o, nil
}

// acquire gives a worker that is ready, and charged to its tenant.
func (p *Pool) acquire(ctx context.Context, r Request) (*worker, error) {
	if err := p.charge(ctx, r.Tenant); err != nil {
		return nil, err
	}
	if err := p.admit(ctx, r.Tenant, r.Platform); err != nil {
		p.uncharge(r.Tenant)
		return nil, err
	}
	w, err := p.pick(ctx, r)
	if err != nil {
		p.mu.Lock()
		p.leave(r.Platform, r.Tenant)
		p.mu.Unlock()
		p.uncharge(r.Tenant)
		return nil, err
	}
	p.bind(w)
	return w, nil
}

// pick finds or starts a worker and waits until it is ready.
func (p *Pool) pick(ctx context.Context, r Request) (*worker, error) {
	k := key{tenant: r.Tenant, env: strings.Join(r.Env, "\n")}
	w, fresh, err := p.take(r.Platform, k)
	if err != nil {
		return nil, err
	}
	err = w.await(ctx)
	if err != nil && !fresh && ctx.Err() == nil { // a warm one may have died in the meantime: once more, from the start
		p.discard(w)
		if w, err = p.startTracked(r.Platform, k); err != nil {
			return nil, err
		}
		err = w.await(ctx)
	}
	if err != nil {
		p.discard(w)
		return nil, err
	}
	return w, nil
}

// await waits until the worker is ready or never will be.
func (w *worker) await(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return fmt.Errorf("%w: nobody waits for the worker any more: %w", object.ErrNoDevice, ctx.Err())
	}
	if w.err != nil {
		return fmt.Errorf("%w: %w", object.ErrNoDevice, w.err)
	}
	if w.ended() {
		return fmt.Errorf("%w: the warm worker %s", object.ErrNoDevice, w.why())
	}
	return nil
}

// take finds a warm worker for k, or starts a fresh one. From now on warm workers are made for k's tenant.
func (p *Pool) take(pl *Platform, k key) (w *worker, fresh bool, err error) {
	p.mu.Lock()
	p.recent, p.wanted = k.tenant, time.Now()
	i := slices.IndexFunc(p.warm, func(w *worker) bool { return w.platform == pl && w.key == k && !w.ended() })
	if i >= 0 {
		w = p.warm[i]
		p.warm = slices.Delete(p.warm, i, i+1)
		p.mu.Unlock()
		return w, false, nil
	}
	p.mu.Unlock()
	w, err = p.startTracked(pl, k)
	return w, true, err
}

// home gives whom a tenant's workers run as, and their cache.
func (p *Pool) home(tenant string) (user, string, error) {
	u, err := p.user(tenant)
	if err != nil {
		return u, "", err
	}
	cache, err := p.tenantCache(tenant, u)
	return u, cache, err
}

// startTracked starts a worker that Close knows of, and a goroutine that sees it off.
func (p *Pool) startTracked(pl *Platform, k key) (*worker, error) {
	u, cache, err := p.home(k.tenant)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	p.joined.Add(1) // under mu, so that Close either sees it or was seen
	p.mu.Unlock()
	w, err := p.startWorker(pl, k, u, cache)
	if err != nil {
		p.joined.Done()
		return nil, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	if !p.track(w.process) { // Close began in the meantime
		w.kill()
	}
	go p.seeOff(w)
	return w, nil
}

// seeOff lives as long as a worker does.
func (p *Pool) seeOff(w *worker) {
	defer p.joined.Done()
	<-w.ready
	p.noteFallbacks(w.fallbacks)
	w.wait()
	p.untrack(w.process)
	p.part(w)
	p.logEnd(w)
	p.nudge()
}

// logEnd logs the end of a worker that was given to a session. Of a warm one, warm.go says what there is to say.
func (p *Pool) logEnd(w *worker) {
	p.mu.Lock()
	s := w.serves
	p.mu.Unlock()
	if s != nil {
		p.opts.Log.WithField("session", s.session).WithField("tenant", w.key.tenant).WithField("worker",
			s.id).WithField("pid", w.pid).WithField("fate", w.fate).Info("worker ended")
	}
}

// timeLimits is what every worker keeps, whatever its program asks for.
func (p *Pool) timeLimits() clwire.TimeLimits {
	return clwire.NewTimeLimits(p.opts.KernelTime, p.opts.BuildTime)
}

// hand connects a ready worker to its session.
func (p *Pool) hand(w *worker, r Request) (Opened, error) {
	client, theirs, err := streamPair()
	if err != nil {
		return Opened{}, err
	}
	defer theirs.Close()
	ring, err := newRing()
	if err != nil {
		client.Close()
		return Opened{}, err
	}
	id := p.enter(w, r.Session, false)
	err = w.assign(clwire.WorkerAssign{Session: r.Session, Worker: id, Tenant: r.Tenant, RingBytes: clwire.RingBytes,
		NoCompress:    r.NoCompress,
		DeviceLimited: p.mostOnDevices(r.Tenant) > 0, Limits: p.timeLimits()}, theirs, ring)
	if err != nil {
		p.mu.Lock()
		delete(p.serving, id)
		p.mu.Unlock()
		client.Close()
		ring.Close()
		return Opened{}, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	p.opts.Log.WithField("session", r.Session).WithField("tenant", r.Tenant).WithField("worker", id).WithField("pid",
		w.pid).Info("worker serves")
	return Opened{ID: id, RingBytes: clwire.RingBytes, Socket: client, Ring: ring}, nil
}

// enter numbers a worker that is given to a session. From then on the session's end ends it.
func (p *Pool) enter(w *worker, session uint64, plain bool) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	w.serves = &assigned{w: w, id: p.lastID, session: session, plain: plain}
	p.serving[p.lastID] = w.serves
	delete(p.pause, w.platform) // it got as far as a session, so its driver is well
	return p.lastID
}

// discard ends a worker and waits for its end.
func (p *Pool) discard(w *worker) {
	w.kill()
	if !w.waitFor(endLimit) {
		p.opts.Log.WithField("pid", w.pid).Errorf("a worker was killed and has not ended within %v: "+
			"its driver holds it in the kernel, or it gets no processor", endLimit)
		return
	}
	p.part(w) // before whoever waits for this goes on
}

// find gives the worker number id of session, or ErrNotFound.
func (p *Pool) find(session, id uint64) (*assigned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.serving[id]
	if s == nil || s.session != session {
		return nil, fmt.Errorf("%w: session %d has no worker %d", object.ErrNotFound, session, id)
	}
	return s, nil
}

// Fate says whether a worker is alive and how it ended otherwise. Since a client asks when its socket hung up, it waits
// up to a second for the end, or until ctx ends. ErrNotFound when the session has no such worker.
func (p *Pool) Fate(ctx context.Context, session, id uint64) (alive bool, text string, err error) {
	s, err := p.find(session, id)
	if err != nil {
		return false, "", err
	}
	select {
	case <-s.w.done:
		return false, s.w.fate, nil
	case <-time.After(fateLimit):
		return true, "", nil
	case <-ctx.Done():
		return true, "", nil
	case <-p.ctx.Done():
		return true, "", nil
	}
}

// Release ends one worker of a session and waits for its end. ErrNotFound when the session has no such worker.
func (p *Pool) Release(session, id uint64) error {
	s, err := p.find(session, id)
	if err != nil {
		return err
	}
	p.end(s)
	return nil
}

// ReleaseSession ends all workers of a session and waits for their end.
func (p *Pool) ReleaseSession(session uint64) {
	p.mu.Lock()
	var mine []*assigned
	for _, s := range p.serving {
		if s.session == session {
			mine = append(mine, s)
		}
	}
	p.mu.Unlock()
	for _, s := range mine {
		s.w.kill()
	}
	for _, s := range mine {
		p.end(s)
	}
}

func (p *Pool) end(s *assigned) {
	p.discard(s.w)
	p.mu.Lock()
	delete(p.serving, s.id)
	p.dropTickets(s.id)
	p.peers.drop(s.session, func(t *peerTicket) bool { return t.worker == s.id })
	p.mu.Unlock()
}
