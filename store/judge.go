package store

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Who shares an object pays for its memory, and would pay for a reader who keeps it after the object was deleted,
// whatever that reader says. So where others were shown memory that was given up and is not free, the store looks
// which processes have it. Where all of them run as users of tenants that it was shared with, such a tenant is
// charged instead, beyond its quota if need be. Otherwise the owner goes on paying: where one of its own processes
// has it, where the daemon may not look into the processes (it is not root), and where no process shows it (a message
// that nobody has read).

// maxForeign bounds whom a segment remembers that it was shown to.
const maxForeign = 64

// showForeign notes that another tenant's connection gets a descriptor. mu is held.
func (g *segmentState) showForeign(c *Conn) {
	for _, who := range c.owner.Principals {
		text, isUser := strings.CutPrefix(who, "uid:")
		uid, err := strconv.ParseUint(text, 10, 32)
		if !isUser || err != nil || len(g.foreign) >= maxForeign {
			continue
		}
		if g.foreign == nil {
			g.foreign = make(map[uint32]string)
		}
		g.foreign[uint32(uid)] = c.tenant.name
	}
}

// fewForeign is what another daemon says that a segment remembers, within this one's bound.
func fewForeign(said map[uint32]string) map[uint32]string {
	if len(said) > maxForeign {
		return nil
	}
	return said
}

// dispute has judge find out who is to pay for a remnant that others were shown. mu is held.
func (s *Store) dispute(r *remnant) {
	if len(r.foreign) == 0 {
		return
	}
	if s.disputed == nil {
		s.disputed = make(map[int32]*remnant)
	}
	s.disputed[r.number] = r
	if at := time.Now().Add(keptAfter); len(s.disputed) == 1 && at.After(s.judgeAt) {
		s.judgeAt = at
	}
	s.wakeJanitor()
}

// judgeInTime begins to judge when it is time, and says when that is. mu is held.
func (s *Store) judgeInTime(now time.Time) time.Duration {
	if len(s.disputed) == 0 || s.judging || s.closed {
		return keepAtMost
	}
	if wait := s.judgeAt.Sub(now); wait > 0 {
		return wait
	}
	s.judging = true
	s.transfers.Add(1)
	go func() {
		defer s.transfers.Done()
		s.judge()
	}()
	return keepAtMost
}

// judge looks once who has what is disputed. Looking through all processes takes some 0.1 ms each.
func (s *Store) judge() {
	defer func() {
		s.mu.Lock()
		s.judging, s.judgeAt = false, time.Now().Add(searchEvery)
		s.wakeJanitor()
		s.mu.Unlock()
	}()
	alive, err := s.watch.Alive()
	if err != nil {
		return
	}
	wanted := make(map[uint64]struct{})
	s.mu.Lock()
	limit, steps := cmp.Or(s.search.limit, searchTime), 0
	for number := range s.disputed {
		if inode, ok := alive[number]; ok {
			wanted[inode] = struct{}{}
		}
		s.breathe(&steps)
	}
	s.unlock()
	holders, whole := s.search.Find(wanted, limit)
	if !whole {
		return
	}
	users := make(map[uint64][]uint32) // who has it, by inode number
	for _, h := range holders {
		for inode := range h.Inodes {
			users[inode] = append(users[inode], h.UID)
		}
	}
	s.mu.Lock()
	defer s.unlock()
	for number, r := range s.disputed {
		if payer := payerAmong(r.foreign, users[alive[number]]); payer != "" {
			delete(s.disputed, number)
			s.chargeInstead(r, s.tenantOf(payer))
		}
		s.breathe(&steps)
	}
}

// payerAmong gives one of the tenants that memory was shared with where all who have it are theirs; "" otherwise.
func payerAmong(foreign map[uint32]string, users []uint32) (payer string) {
	for _, uid := range users {
		if payer = foreign[uid]; payer == "" {
			return ""
		}
	}
	return payer
}

// chargeInstead moves the charge for a remnant to another tenant. mu is held.
func (s *Store) chargeInstead(r *remnant, t *tenant) {
	from := r.tenant
	from.remnants--
	from.remnantBytes -= r.bytes
	from.charged -= r.bytes
	t.remnants++
	t.remnantBytes += r.bytes
	t.charged += r.bytes
	r.tenant = t
	if r.g != nil {
		r.g.payer = t
		s.backAgain(r.g) // not to whom it was charged: somebody keeps it
	}
	s.dropTenant(from)
}
