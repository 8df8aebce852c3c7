package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tendril/cluster/fsm"
	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/devices"
	"tendril/store/object"
)

// deviceKey is what a device is called in leases: a GPU that two drivers show is one device.
func deviceKey(p *workers.Platform, i int) string {
	if uuid := p.Snapshot.Devices[i].UUID; uuid != "" {
		return strings.ToLower(strings.ReplaceAll(uuid, "-", ""))
	}
	return fmt.Sprintf("%s, platform %d, device %d", p.Snapshot.ICD, p.Snapshot.Index, i)
}

// checkLease says what is wrong with a request for a lease, which may be nil.
func checkLease(l *clwire.LeaseOptions) error {
	switch {
	case l == nil:
		return nil
	case l.Count < 0 || l.Count > fsm.MaxLeaseDevices:
		return fmt.Errorf("%w: a lease of %d devices: want 1 to %d, or 0 for all", object.ErrInvalid, l.Count,
			fsm.MaxLeaseDevices)
	case max(len(l.Ticket), len(l.Token)) > clwire.MaxLeaseText:
		return fmt.Errorf("%w: a lease's ticket of %d bytes, and a token of %d: want at most %d each", object.ErrInvalid,
			len(l.Ticket), len(l.Token), clwire.MaxLeaseText)
	}
	return nil
}

// Times of a session's request that waits for a lease.
const (
	leaseHold  = time.Second           // after which it is told to ask again: its process may be gone
	leaseAgain = 10 * time.Millisecond // at least between two attempts, whatever happens
)

// lease gives a session that asks for one its lease, and nil to others. Who waits is answered as soon as it has its
// devices, or after a while that it has to ask again.
//
// A place in the line goes with the connection that asked for it last, ctx, and where its client says so.
func (d *Daemon) lease(ctx context.Context, p frontdoor.Peer, o *clwire.SessionOptions,
	all []*workers.Platform) (*leases.Lease, error) {
	if o.Lease != nil && o.Lease.Leave {
		d.leaveLine(p, o.Lease, nil)
		return nil, fmt.Errorf("%w: the place in the line is given up", object.ErrNotFound)
	}
	by := new(leases.Asker)
	l, err := d.awaitDevices(ctx, p, o, all, by)
	if err != nil && o.Lease.Ticket != "" && errors.Is(err, object.ErrBusy) {
		err = &frontdoor.Waiting{Err: err, Leave: func() { d.leaveLine(p, o.Lease, by) }}
	}
	return l, err
}

// leaveLine gives up the place of a ticket, where by asked for it last; by nil: whoever did.
func (d *Daemon) leaveLine(p frontdoor.Peer, o *clwire.LeaseOptions, by *leases.Asker) {
	if o.Ticket == "" {
		return
	}
	d.leases.GiveUp(o.Ticket, p.Tenant, by)
	d.wishes.leave(wishID(p, o), by)
}

func (d *Daemon) awaitDevices(ctx context.Context, p frontdoor.Peer, o *clwire.SessionOptions,
	all []*workers.Platform, by *leases.Asker) (*leases.Lease, error) {
	l, err := d.leaseNow(p, o, all, by)
	if err == nil || o.Lease.Ticket == "" || !errors.Is(err, object.ErrBusy) {
		return l, err
	}
	late := time.NewTimer(orDefault(d.leaseHold, leaseHold))
	defer late.Stop()
	for errors.Is(err, object.ErrBusy) {
		look := time.NewTimer(leastRound) // a node that has come asks nobody
		select {
		case <-d.leaseWorth(p, o.Lease):
		case <-look.C:
		case <-late.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-d.ctx.Done():
			return nil, err
		}
		look.Stop()
		d.rest(leaseAgain)
		l, err = d.leaseNow(p, o, all, by)
	}
	return l, err
}

// leaseWorth gives what is closed when it is worth asking again.
func (d *Daemon) leaseWorth(p frontdoor.Peer, o *clwire.LeaseOptions) <-chan struct{} {
	if o.Nodes && d.meta.now.Load().others() {
		return d.wishes.worth(wishID(p, o))
	}
	return d.leases.Worth(o.Ticket, p.Tenant)
}

// leaseNow is awaitDevices without waiting.
func (d *Daemon) leaseNow(p frontdoor.Peer, o *clwire.SessionOptions, all []*workers.Platform,
	by *leases.Asker) (*leases.Lease, error) {
	switch {
	case o.Lease == nil:
		return nil, nil
	case o.Lease.Token != "":
		return d.leases.Join(o.Lease.Token, p.Tenant)
	case o.Lease.Nodes && d.meta.now.Load().others():
		return d.leaseOver(p, o, by)
	}
	keys, err := leasable(o.Selector, all)
	if err != nil {
		return nil, err
	}
	l, err := d.leases.Grant(leases.Request{Tenant: p.Tenant, Holder: p.Name, Devices: keys, Count: o.Lease.Count,
		Ticket: o.Lease.Ticket, By: by, Most: int(d.quotaOf(p.Tenant).Devices)})
	if err == nil {
		d.log.WithField("lease", l.Number).WithField("tenant", p.Tenant).WithField("devices", l.Devices).Info("leased")
	}
	return l, err
}

// leasable gives the keys of the devices that a selector matches, the best first.
func leasable(text string, all []*workers.Platform) (keys []string, err error) {
	selector, err := devices.ParseSelector(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrInvalid, err)
	}
	s := clwire.Snapshot{}
	for _, pl := range all {
		s.Platforms = append(s.Platforms, pl.Snapshot)
	}
	for _, c := range selector.Select(&s) {
		if key := deviceKey(all[c.Platform], c.Device); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// visible gives the platforms as a session sees them: what its lease has, or what nobody leases. A platform of which it
// sees all is the node's own, whose workers may be warm.
func (d *Daemon) visible(l *leases.Lease, all []*workers.Platform) (own []*workers.Platform, s clwire.Snapshot) {
	s.Platforms = []clwire.PlatformSnapshot{}
	if l != nil {
		s.Lease = &clwire.LeaseSnapshot{Number: l.Number, Token: l.Token, Devices: len(l.Devices)}
		if l.ID != "" {
			s.Lease.Nodes = notNil(d.leaseNodes(l))
		}
	}
	number := 0
	for _, p := range all {
		part := *p
		part.Snapshot.Devices, part.Places = nil, []int{}
		for i, device := range p.Snapshot.Devices {
			number++
			key := deviceKey(p, i)
			if l != nil && !l.Has(key) {
				continue
			}
			if l == nil && d.leases.Taken(key) != "" {
				s.Leased++
				continue
			}
			place := i
			if p.Places != nil {
				place = p.Places[i]
			}
			device.Number = number
			part.Snapshot.Devices, part.Places = append(part.Snapshot.Devices, device), append(part.Places, place)
		}
		if len(part.Places) == 0 {
			continue
		}
		s.Platforms = append(s.Platforms, part.Snapshot)
		if len(part.Places) == len(p.Snapshot.Devices) {
			own = append(own, p)
		} else {
			own = append(own, &part)
		}
	}
	return own, s
}

// share notes that a session without a lease uses a platform's devices from now on.
func (d *Daemon) share(s *session, p *workers.Platform) error {
	if s.lease != nil {
		return nil
	}
	var keys []string
	for i := range p.Snapshot.Devices {
		keys = append(keys, deviceKey(p, i))
	}
	if err := d.leases.Share(s.id, s.peer.Tenant, keys); err != nil {
		return err
	}
	if _, err := d.sessions.get(s.id); err != nil { // it ended meanwhile, and nobody would end this
		d.leases.Leave(s.id)
		return err
	}
	return nil
}

// leaseLook is how often the daemon looks whether a lease's longest time is over.
const leaseLook = time.Second

// endLeases ends the sessions of leases whose longest time is over, until the daemon ends.
func (d *Daemon) endLeases() {
	told := map[*leases.Lease]bool{} // of those whose time is over
	for d.rest(leaseLook) {
		over := d.leases.Over()
		maps.DeleteFunc(told, func(l *leases.Lease, _ bool) bool { return !slices.Contains(over, l) })
		for _, l := range over {
			if !told[l] {
				d.sayOver(l)
			}
			told[l] = true
			d.endSessions(d.sessions.of(l), fmt.Errorf(
				"the longest time of a lease, %v, is over (tendril daemon --lease-time)", d.cfg.LeaseTime))
		}
	}
}

func (d *Daemon) sayOver(l *leases.Lease) {
	d.log.WithField("lease", l.Number).WithField("tenant", l.Tenant).Warnf(
		"a lease's longest time, %v, is over: its sessions are ended", d.cfg.LeaseTime)
}

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
			d.endSessions(d.sessions.of(l), fmt.Errorf("its lease was not used for %v (tendril daemon --lease-idle)",
				d.cfg.LeaseIdle))
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

// leaseStatus is the list as a tenant may see it, or with "" as an administrator.
func (d *Daemon) leaseStatus(tenant string) []leases.Status {
	list := notNil(d.leases.List())
	for i := range list {
		if tenant != "" && list[i].Tenant != tenant {
			list[i].Holder = ""
		}
	}
	return list
}
