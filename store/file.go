package store

import (
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// An object's file is written, gets another record and is removed without mu. Whoever does one of these has claimed the
// file under mu before, and nobody else touches it until the claim ends. So what was decided about a file under mu
// still holds when it is done: without that, a removal that was decided first would meet the file that another
// goroutine wrote next. A claim is for an id, not for an entry: the copy of another node's object has that object's id,
// and may come again while the file of the copy before it is being removed. Who holds claims on several files
// (newEviction) waits only for holders of one, and those wait for nobody; reading needs none.

// claimFile begins a claim. mu is held, and nobody has one.
func (s *Store) claimFile(id object.ID) { s.claims[id] = make(chan struct{}) }

// claimed reports whether somebody has the file's claim. mu is held.
func (s *Store) claimed(e *entry) bool { return s.claims[e.id] != nil }

// endClaim is the reverse of claimFile. mu is held.
func (s *Store) endClaim(id object.ID) {
	close(s.claims[id])
	delete(s.claims, id)
}

// yieldFile ends a claim. What was deleted meanwhile takes its file with it, also while the store ends: it must not be
// there again afterwards. mu is held; who had the claim counts as a transfer.
func (s *Store) yieldFile(e *entry) {
	s.endClaim(e.id)
	if e.onDisk && e.state == object.Deleted {
		s.trashFile(e)
	}
	s.dropShadow(e)
	s.dropTenant(e.tenant)
}

// awaitFile waits until nobody has the file's claim. mu is held, and let go meanwhile.
func (s *Store) awaitFile(e *entry) {
	for s.claimed(e) {
		ended := s.claims[e.id]
		s.unlock()
		<-ended
		s.mu.Lock()
	}
}

// dropFile takes an object off the disk; unlock does it. What the store's end forgets stays there, and so does what is
// on disk alone. A file that somebody has claimed stays, too, or goes when the claim ends. mu is held.
func (s *Store) dropFile(e *entry) {
	if e.onDisk && !s.claimed(e) && !s.closed && e.state != object.Spilled {
		s.trashFile(e)
	}
}

// trashFile takes the file of an object that is on disk, whoever asks. mu is held, and nobody has the claim.
func (s *Store) trashFile(e *entry) {
	e.onDisk = false
	s.claimFile(e.id)
	s.transfers.Add(1)
	s.trash = append(s.trash, e)
}

// What a disk refused is tried again: files of deleted objects that it let nobody remove (undead), and records that
// it did not take (behind). Until then a crash would bring back what they say.
const (
	diskAgainEvery = 10 * time.Second
	diskFailures   = 16 // in a row, after which a round ends: the others would fare alike
)

// diskAgain tries again when it is time to, and says when the next time is. mu is held, and let go meanwhile.
func (s *Store) diskAgain(now time.Time) (next time.Duration) {
	if len(s.undead)+len(s.behind) == 0 || s.spill == nil || s.closed {
		return keepAtMost
	}
	if wait := s.diskTime.Sub(now); wait > 0 {
		return wait
	}
	s.transfers.Add(1)
	s.removeAgain()
	s.writeAgain()
	s.transfers.Done()
	s.diskTime = now.Add(diskAgainEvery)
	return diskAgainEvery
}

func (s *Store) removeAgain() {
	steps := 0
	for id := range s.undead { // goes on with those that are there then
		switch {
		case s.closed:
			return
		case s.claims[id] != nil: // it is about to be written over
		case !s.removedNow(id):
			return
		}
		s.breathe(&steps)
	}
}

// removedNow removes the file of a deleted object, which nobody has claimed. mu is held, and let go meanwhile.
func (s *Store) removedNow(id object.ID) bool {
	s.claimFile(id)
	s.unlock()
	err := s.spill.RemoveAgain(id)
	s.mu.Lock()
	s.endClaim(id)
	if err == nil {
		delete(s.undead, id)
	}
	return err == nil
}

func (s *Store) writeAgain() {
	failures, steps := 0, 0
	for e := range s.behind { // goes on with those that are there then
		if s.closed || failures == diskFailures {
			return
		}
		switch {
		case !e.stale || !e.onDisk || e.state == object.Deleted:
			delete(s.behind, e)
		case s.claimed(e): // the next time
		case s.rewriteRecord(e) != nil:
			failures++
		}
		s.breathe(&steps)
	}
}

// isBehind notes that the record of an object on disk is not what it should be; err, if not nil, is why. mu is held.
func (s *Store) isBehind(e *entry, err error) {
	if len(s.behind) == 0 {
		s.wakeJanitor()
	}
	s.behind[e] = err
}

// isWritten notes the reverse. mu is held.
func (s *Store) isWritten(e *entry) {
	err, was := s.behind[e]
	if !was {
		return
	}
	delete(s.behind, e)
	if err != nil && e.fault == err { //nolint:errorlint // the very one that was put there
		e.fault = nil
	}
}

// emptyTrash removes files that are claimed. mu is not held.
func (s *Store) emptyTrash(trash []*entry) {
	if len(trash) == 0 {
		return
	}
	stay := make([]bool, len(trash))
	for i, e := range trash {
		stay[i] = s.spill.Remove(e.id, e.size) != nil
	}
	s.mu.Lock()
	for i, e := range trash {
		if stay[i] && e.state == object.Deleted { // one that is written again is no longer what stayed
			s.undead[e.id] = struct{}{}
			s.wakeJanitor()
		}
		e.tenant.disk -= spill.RoomFor(e.size)
		s.yieldFile(e)
		s.transfers.Done()
	}
	s.unlock() // a claim's end may let memory go
}
