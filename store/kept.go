package store

import (
	"fmt"
	"strings"
	"time"

	"tendril/store/handoff"
	"tendril/store/object"
	"tendril/store/segment"
)

// Memory that the store has given up is free when nobody has it any more, and not when a peer says so: a peer that
// says Forget and keeps the mapping, or hands a descriptor on, has the memory all the same. So what was ever shown to
// a peer stays charged until the kernel reports that it is free (segment.Watch). Who unmaps and then says Forget is
// charged no longer than before: the report is there when the Forget comes. Where the kernel cannot report it, a
// peer's word counts, and Status says so.
//
// Whose tenant the memory was made for pays, unless the store finds that others keep what was shared with them
// (judge.go).

// remnant is memory that was given up and that somebody still has. Guarded by Store.mu.
type remnant struct {
	tenant *tenant
	bytes  uint64
	g      *segmentState // nil: memory of an index, or of the daemon before this one
	number int32         // the kernel's, of its report
	used   bool          // not given up: who has it has it by right
	since  time.Time
	// users of other tenants that were shown it, and those tenants; never changed from here on
	foreign map[uint32]string
}

// fewRemnants is the least bound of a tenant's remnants, also where the machine does not say how many can be watched.
const fewRemnants = 1024

// remnantShare is how many tenants can keep as much as they may before the kernel watches no more.
const remnantShare = 8

// beginWatch makes what reports free memory, or takes over that of the daemon before. Before s is shared.
func (s *Store) beginWatch(h *handoff.State) {
	s.remnants = make(map[int32]*remnant)
	s.maxRemnants = max(fewRemnants, segment.WatchesAtMost()/remnantShare)
	if h != nil && h.Watch != nil {
		s.watch, h.Watch = h.Watch, nil
		return
	}
	if h != nil {
		h.Catalog.Remnants = nil // nobody would say when they are free
	}
	s.watch, s.watchFault = segment.NewWatch(s.opts.System)
}

// watchFreed uncharges what the kernel reports, at once. It ends with Close.
func (s *Store) watchFreed() {
	defer close(s.watched)
	if s.watch == nil {
		return
	}
	s.watch.Wait(func() (over bool) {
		s.mu.Lock()
		over = s.closed
		lost := !over && s.takeReports()
		s.mu.Unlock()
		if lost {
			s.recount()
		}
		return over
	})
}

// giveUp has memory that peers may have watched, and reports whether it will be uncharged by that; otherwise it is to
// be uncharged as peers say. The caller closes it after. mu is held.
func (s *Store) giveUp(m *segment.Memory, r remnant) bool {
	return s.watchMore(m.FD(), &r)
}

// watchMore notes a remnant, which is charged already; false: the kernel will not report it. mu is held.
func (s *Store) watchMore(memfd int, r *remnant) bool {
	if s.watch == nil || s.closed && !s.departing {
		return false
	}
	number, err := s.watch.Add(s.opts.System, memfd)
	if err != nil {
		s.unwatched++
		s.watchFault = err
		return false
	}
	r.number, r.since = number, time.Now()
	s.remnants[number] = r
	r.tenant.remnants++
	if !r.used {
		r.tenant.remnantBytes += r.bytes
	}
	s.lastRemnant = number
	return true
}

// Charge is memory that the store does not make and that a tenant pays for.
type Charge struct {
	s     *Store
	t     *tenant
	bytes uint64 // guarded by Store.mu; 0: nothing, or not here any more
}

// ChargeUntilFree charges a tenant for so many bytes that are about to be made, before the work is done. The
// caller must call Watch, Drop or both. It charges nothing where the kernel does not report what is free. Errors:
// ErrQuota, ErrFull.
func (s *Store) ChargeUntilFree(tenant string, bytes uint64) (*Charge, error) {
	s.mu.Lock()
	defer s.unlock()
	if s.watch == nil || s.closed {
		return &Charge{s: s}, nil
	}
	t := s.tenantOf(tenant)
	t.conns++ // it stays while mu is let go
	err := s.mayGiveUpMore(t)
	if err == nil {
		err = s.reserveRoom(t, bytes, nil)
	}
	t.conns--
	if err != nil {
		s.dropTenant(t)
		return nil, err
	}
	return &Charge{s: s, t: t, bytes: bytes}, nil
}

// Watch has the charge stay until nobody has the memory, a memfd, any more. The descriptor stays the caller's.
func (r *Charge) Watch(memfd int) {
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	if r.bytes > 0 && s.watchMore(memfd, &remnant{tenant: r.t, bytes: r.bytes, used: true}) {
		r.bytes = 0
	}
}

// Drop ends a charge that is not watched.
func (r *Charge) Drop() {
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	if r.bytes > 0 && !s.closed { // a store that is closed has counted everything out
		s.uncharge(r.t, r.bytes)
	}
	r.bytes = 0
}

// takeFreed notes what the kernel has reported. Where reports were dropped, it has watchFreed recount: what is taken
// here wakes nobody any more. mu is held; it takes a microsecond.
func (s *Store) takeFreed() {
	if s.takeReports() {
		s.watch.Again()
	}
}

// takeReports is takeFreed for watchFreed. lost: the kernel dropped reports, and recount has to follow. mu is held.
func (s *Store) takeReports() (lost bool) {
	if s.watch == nil {
		return false
	}
	numbers, lost := s.watch.Freed()
	for _, number := range numbers {
		s.isFree(s.remnants[number])
	}
	s.reportsLost = s.reportsLost || lost
	return s.reportsLost
}

// isFree uncharges a remnant; nil is none. mu is held.
func (s *Store) isFree(r *remnant) {
	if r == nil {
		return
	}
	delete(s.remnants, r.number)
	delete(s.disputed, r.number)
	r.tenant.remnants--
	if !r.used {
		r.tenant.remnantBytes -= r.bytes
	}
	close(s.freed)
	s.freed = make(chan struct{})
	if r.g == nil {
		s.uncharge(r.tenant, r.bytes)
		return
	}
	r.g.kept = nil
	s.settle(r.g)
}

// recount finds what is free by what the kernel still watches. mu is not held: it reads a line for each remnant.
func (s *Store) recount() {
	s.mu.Lock()
	s.reportsLost = false
	upTo := s.lastRemnant
	s.mu.Unlock()
	alive, err := s.watch.Alive()
	s.mu.Lock()
	defer s.unlock()
	if err != nil {
		s.watchFault, s.reportsLost = err, true
		return
	}
	steps := 0
	for number, r := range s.remnants {
		if _, there := alive[number]; !there && number <= upTo {
			s.isFree(r)
		}
		s.breathe(&steps)
	}
}

// mayGiveUpMore refuses new segments to a tenant that has too many remnants: each costs the kernel a watch. mu is
// held.
func (s *Store) mayGiveUpMore(t *tenant) error {
	if t.remnants < s.maxRemnants {
		return nil
	}
	s.takeFreed()
	if t.remnants < s.maxRemnants {
		return nil
	}
	return fmt.Errorf("%w: %s has freed %d segments that processes still have mapped or open, which is the limit: "+
		"unmap them, or end those processes",
		object.ErrQuota, t.name, t.remnants)
}

// freeingTime is how long memory that a peer has just let go of may take to be unmapped.
const freeingTime = 250 * time.Millisecond

// awaitFreed waits for a moment where a tenant was refused memory with why while some of its own, whose last holder
// has said that it unmaps it, is about to be free. false: it is of no use to ask again. mu is held, and let go
// meanwhile.
func (s *Store) awaitFreed(why error, t *tenant, until time.Time) bool {
	wait := time.Until(until)
	if wait <= 0 || !object.IsShort(why) || s.closed || t.remnants == 0 || time.Since(t.forgot) > freeingTime {
		return false
	}
	freed := s.freed
	s.unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-freed:
	case <-timer.C:
	}
	s.mu.Lock()
	return true
}

// keptNote says in a refusal what a tenant's processes keep of what was given up. mu is held.
func (t *tenant) keptNote() string {
	if t.remnantBytes == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d bytes of the tenant were freed, but are still mapped or open: see tendril status)",
		t.remnantBytes)
}

// handOffRemnants gives the next store what it needs to go on charging. watchFreed has ended. mu is held.
func (s *Store) handOffRemnants(h *handoff.State) {
	if s.watch == nil {
		return
	}
	for number, r := range s.remnants {
		left := handoff.Remnant{Tenant: r.tenant.name, Bytes: r.bytes, Number: number, Since: r.since}
		if s.disputed[number] != nil {
			left.Foreign = r.foreign
		}
		h.Catalog.Remnants = append(h.Catalog.Remnants, left)
	}
	if w, err := s.watch.Renew(); err == nil {
		h.Watch = w
	}
}

// inheritRemnants charges what the store before had given up and what is not free yet. Before s is shared.
func (s *Store) inheritRemnants(list []handoff.Remnant) {
	if s.watch == nil || len(list) == 0 {
		return
	}
	for _, o := range list {
		if s.remnants[o.Number] != nil || s.charged+o.Bytes < s.charged {
			continue
		}
		t := s.tenantOf(o.Tenant)
		r := &remnant{tenant: t, bytes: o.Bytes, number: o.Number, since: o.Since, foreign: fewForeign(o.Foreign)}
		s.remnants[o.Number] = r
		s.dispute(r)
		s.lastRemnant = max(s.lastRemnant, o.Number)
		s.charged += o.Bytes
		t.charged += o.Bytes
		t.remnants++
		t.remnantBytes += o.Bytes
	}
	s.recount() // some reports may have been read by a successor that came to nothing
}

// KeptUnknown says why memory counts as free as soon as those who had it say so; "" = the kernel is asked.
func (s *Store) KeptUnknown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whyUnwatched()
}

// whyUnwatched says what was done without. mu is held.
func (s *Store) whyUnwatched() string {
	switch {
	case s.watchFault == nil:
		return ""
	case s.watch == nil: // that it is done without says who asks
		return strings.TrimPrefix(s.watchFault.Error(), object.ErrUnsupported.Error()+": ")
	}
	return fmt.Sprintf("%d times: %v", s.unwatched, s.watchFault)
}
