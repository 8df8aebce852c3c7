package daemon

import (
	"time"

	"tendril/daemon/leases"
	"tendril/daemon/workers"
)

// leaseUse is what was last seen of a lease's use: how many commands its workers had ended, and since when no other
// one was seen.
type leaseUse struct {
	ended uint64
	since time.Time
	asked time.Time
}

// endIdleLeases ends the sessions of leases that nobody used for the configured time, until the daemon ends.
func (d *Daemon) endIdleLeases() {
	uses := map[*leases.Lease]leaseUse{}
	ask := func(session uint64) []workers.Commands { return d.pool.Commands(d.ctx, session) }
	for d.rest(max(leaseLook, d.cfg.LeaseIdle/20)) {
		for _, l := range d.idleLeases(uses, time.Now(), ask) {
			d.log.WithField("lease", l.Number).WithField("tenant", l.Tenant).Warnf(
				"a lease was not used for %v: its sessions are ended", d.cfg.LeaseIdle)
			for _, session := range d.sessions.of(l) {
				_ = d.door.Load().EndSession(session) // it may have ended meanwhile
			}
		}
	}
}

// idleLeases looks at each lease's workers, and gives the leases of which none had a command for the configured time.
// One without a worker may be used by a program that asks nobody here, and one over nodes at another node: neither is
// idle. Nor is one whose workers do not say what they do.
func (d *Daemon) idleLeases(uses map[*leases.Lease]leaseUse, now time.Time,
	ask func(session uint64) []workers.Commands) (idle []*leases.Lease) {
	all := d.sessions.leased()
	for l := range uses {
		if all[l] == nil {
			delete(uses, l)
		}
	}
	for l, sessions := range all {
		if l.ID != "" {
			continue
		}
		use, known := uses[l]
		ended, asked, used := uint64(0), 0, !known
		for _, session := range sessions {
			for _, w := range ask(session) {
				asked++
				used = used || w.Err != nil || w.Told.Unasked || len(w.Told.Flying) > 0 || w.Told.More > 0 ||
					len(w.Told.Calls) > 0
				for _, sum := range w.Told.Sums {
					ended += sum.Count
				}
				for _, last := range w.Told.Last { // sums of many kinds are not all told
					used = used || last.Ago < now.Sub(use.asked).Seconds()
				}
			}
		}
		if use.asked = now; used || asked == 0 || ended != use.ended {
			use.ended, use.since = ended, now
		}
		if uses[l] = use; now.Sub(use.since) >= d.cfg.LeaseIdle {
			idle = append(idle, l)
		}
	}
	return idle
}
