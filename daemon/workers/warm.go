package workers

import (
	"slices"
	"time"
)

// nudge makes the warmer look again; it never blocks.
func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// keepWarm is the goroutine that starts warm workers, until Close. It sleeps unless it is nudged or a pause runs out.
func (p *Pool) keepWarm() {
	defer p.joined.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next := p.warmUp(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// warmUp drops warm workers that died or are of no use any more, starts what is missing, and returns when to look again
// (zero: when nudged).
func (p *Pool) warmUp(now time.Time) (next time.Time) {
	p.dropWarm(now)
	p.mu.Lock()
	if p.opts.WarmTime > 0 {
		if next = p.wanted.Add(p.opts.WarmTime); !now.Before(next) {
			p.mu.Unlock()
			return time.Time{} // dropWarm has ended them, and the next session starts its own
		}
	}
	tenant := p.recent
	type gap struct {
		pl *Platform
		n  int
	}
	var gaps []gap
	for _, pl := range p.platforms {
		n := p.opts.Warm
		for _, w := range p.warm {
			if w.platform == pl {
				n--
			}
		}
		if b := p.pause[pl]; n > 0 && b != nil && now.Before(b.until) {
			if next.IsZero() || b.until.Before(next) {
				next = b.until
			}
			continue
		}
		gaps = append(gaps, gap{pl, n})
	}
	p.mu.Unlock()
	for _, g := range gaps {
		for range g.n {
			p.warmOne(g.pl, tenant)
		}
	}
	return next
}

// dropWarm forgets warm workers that died, with a pause for their platform, and ends those made for somebody else, and
// all where no session wanted one for Options.WarmTime.
func (p *Pool) dropWarm(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.opts.WarmTime > 0 && now.Sub(p.wanted) >= p.opts.WarmTime
	p.warm = slices.DeleteFunc(p.warm, func(w *worker) bool {
		if w.ended() {
			p.failed(w.platform, now, w)
			return true
		}
		if w.key.tenant != p.recent || idle {
			w.kill()
			return true
		}
		return false
	})
}

// failed lengthens a platform's pause after a warm worker ended by itself. p.mu is held.
func (p *Pool) failed(pl *Platform, now time.Time, w *worker) {
	b := p.pause[pl]
	if b == nil {
		b = &backoff{}
		p.pause[pl] = b
	}
	wait := min(firstBackoff<<min(b.failures, 16), maxBackoff)
	b.failures++
	b.until = now.Add(wait)
	log := p.opts.Log.WithField("platform", pl.Name).WithField("failures", b.failures).WithField("next_try_in", wait)
	log.Warn("a warm worker ended: " + w.explain())
}

// warmOne starts one warm worker. A start that fails counts like a worker that died.
func (p *Pool) warmOne(pl *Platform, tenant string) {
	w, err := p.startTracked(pl, key{tenant: tenant})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.opts.Log.WithError(err).Warn("a warm worker could not be started")
		p.pause[pl] = &backoff{until: time.Now().Add(maxBackoff)}
		return
	}
	p.warm = append(p.warm, w)
}
