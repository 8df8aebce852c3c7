package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril/store/object"
	"tendril/store/order"
	"tendril/store/spill"
)

// A scrub compares objects with their sums: what lies in memory, where they are known, and what lies on disk. An object
// in memory whose sums are not known gets them. A pass goes in steps, one at a time in the whole store; between two of
// them it is a cursor, and nothing here.

const (
	scrubStepBytes   = 64 << 20 // after which a step ends
	scrubPacedBytes  = 4 << 20  // the same at a bounded rate: others wait for their step
	scrubStepObjects = 1024
)

// scrubbing is a step under way.
type scrubbing struct {
	s      *Store
	ctx    context.Context
	pace   func(n uint64) // waits where there is a bound to the rate; may be nil
	report object.ScrubReport
	bytes  uint64
}

// Scrub does the next step of a pass over the objects of c's tenant, or with all over everybody's: who may ask for that
// is the caller's to say. from is "" at first, then the report's Next. Errors: ErrInvalid (from), ErrTimeout (ctx).
func (c *Conn) Scrub(ctx context.Context, all bool, from string) (object.ScrubReport, error) {
	only := c.tenant.name
	if all {
		only = ""
	}
	return c.s.scrubStep(ctx, only, from, nil)
}

// NoteScrub tells the status of a pass over all objects that a peer had done in steps.
func (c *Conn) NoteScrub(p object.ScrubPass) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	p.By, p.Next = c.tenant.name, ""
	c.s.lastScrub = &p
}

// scrubStep does a step over one tenant's objects, or with only "" over all. It waits for the step of somebody else.
// pace may be nil.
func (s *Store) scrubStep(ctx context.Context, only, from string,
	pace func(uint64)) (report object.ScrubReport, err error) {
	name, at, err := parsePlace(from)
	if err != nil {
		return object.ScrubReport{}, err
	}
	if only != "" {
		name = only
	}
	select {
	case s.scrubTurn <- struct{}{}:
		defer func() { <-s.scrubTurn }()
	case <-ctx.Done():
		return object.ScrubReport{}, fmt.Errorf("%w: another scrub is running", object.ErrTimeout)
	}
	defer func() {
		for _, d := range report.Damaged {
			s.tellDamage(d)
		}
	}()
	w := &scrubbing{s: s, ctx: ctx, pace: pace,
		report: object.ScrubReport{Damaged: []object.Damage{}, TotalBytes: s.scrubBytes(only)}}
	limit := uint64(scrubStepBytes)
	if pace != nil {
		limit = scrubPacedBytes
	}
	for w.bytes < limit && w.report.Objects < scrubStepObjects {
		e, tenant := s.scrubNext(only, name, at)
		if e == nil {
			return w.report, nil
		}
		if err := w.look(e); err != nil {
			return w.report, err
		}
		name, at = tenant, e.Cursor()
	}
	w.report.Next = placeOf(at, name)
	return w.report, nil
}

// placeOf is a place among everybody's objects: a cursor, "@" and a tenant's name.
func placeOf(at order.Cursor, tenant string) string { return at.String() + "@" + tenant }

// parsePlace reads one.
func parsePlace(from string) (tenant string, at order.Cursor, err error) {
	cursor, tenant, _ := strings.Cut(from, "@")
	at, err = order.Parse(cursor)
	return tenant, at, err
}

// scrubNext gives the object behind a place: a tenant's next one or, where all are gone through, the first of the
// tenant whose name follows.
func (s *Store) scrubNext(only, name string, at order.Cursor) (*entry, string) {
	for {
		e, next := s.scrubNextOf(name, at)
		if e != nil {
			return e, name
		}
		if only != "" || next == "" {
			return nil, ""
		}
		name, at = next, order.Cursor{}
	}
}

// scrubNextOf gives a tenant's next object, or the name of the tenant that follows; "" = none does.
func (s *Store) scrubNextOf(name string, at order.Cursor) (e *entry, next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[name]; t != nil {
		if list := t.entries.After(nil, at, 1); len(list) > 0 {
			return list[0], ""
		}
	}
	return nil, s.tenantAfter(name)
}

// scrubBytes gives about how much a pass reads.
func (s *Store) scrubBytes(only string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[only]; t != nil {
		return t.charged + t.disk
	} else if only != "" {
		return 0
	}
	n := s.usedBytes - min(s.spilledBytes, s.usedBytes)
	if s.spill != nil {
		n += s.spill.TakenBytes()
	}
	return n
}

// count takes a chunk's bytes into account; true: the step is to end at once.
func (w *scrubbing) count(n uint64) bool {
	if w.pace != nil {
		w.pace(n)
	}
	w.bytes += n
	return w.ctx.Err() != nil || w.s.isClosed()
}

// look compares one object, wherever it is. An error is the end of the step.
func (w *scrubbing) look(e *entry) error {
	w.report.Objects++
	sound := w.lookInMemory(e)
	w.lookOnDisk(e, sound)
	if w.ctx.Err() != nil || w.s.isClosed() {
		return fmt.Errorf("%w: the scrub was ended", object.ErrTimeout)
	}
	return nil
}

// lookInMemory compares what memory has. sound: it is there, and as it was.
func (w *scrubbing) lookInMemory(e *entry) (sound bool) {
	s := w.s
	s.mu.Lock()
	view, memory, err := e.viewed()
	g, off := e.seg, e.off
	s.mu.Unlock()
	if err != nil {
		w.report.Unread++
	}
	if view == nil {
		return false
	}
	defer view.Unmap() // fails only for a mapping that is none
	have := sumsOf(memory, w.count)
	if have == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.state != object.Sealed || e.seg != g || e.off != off { // it went meanwhile, and its memory may be another's
		return false
	}
	w.report.MemoryBytes += e.size
	if e.sums == nil {
		e.sums = have
		w.report.New++
		return true
	}
	why := spill.Compare(e.id, have, e.sums)
	if why != nil {
		s.foundDamaged(e, why)
		w.report.Note(e.damaged(e.name, "memory", why))
	}
	return why == nil
}

// lookOnDisk compares what the disk has. A copy that is bad where the memory is sound is given up: it is written again
// when the time comes, and at once where the object is persisted.
func (w *scrubbing) lookOnDisk(e *entry, sound bool) {
	var why error
	for range 2 { // the first time it may have been written again meanwhile
		s := w.s
		s.mu.Lock()
		there, sums, id := w.onDisk(e), e.sums, e.id
		s.mu.Unlock()
		if !there {
			return
		}
		why = s.spill.For(e.tenant.name).Verify(id, sums, w.count)
		s.mu.Lock()
		there = w.onDisk(e)
		s.mu.Unlock()
		if why == nil {
			w.report.DiskBytes += e.size
			return
		}
		if !there || errors.Is(why, object.ErrTimeout) {
			return
		}
	}
	s := w.s
	s.mu.Lock()
	defer s.unlock()
	if !w.onDisk(e) {
		return
	}
	e.fault = why
	w.report.Note(e.damaged(e.name, "disk", why))
	if sound {
		s.writeAnew(e)
	}
}

// onDisk reports whether an object's file is there and nobody is about to change it. mu is held.
func (w *scrubbing) onDisk(e *entry) bool {
	return e.onDisk && !w.s.claimed(e) && e.state != object.Deleted && e.size > 0
}

// tellDamage tells who wants to hear of it. mu is not held.
func (s *Store) tellDamage(d object.Damage) {
	if s.opts.OnDamage != nil {
		s.opts.OnDamage(d)
	}
}

func (e *entry) damaged(name, where string, why error) object.Damage {
	return object.Damage{ID: e.id, Name: name, Tenant: e.tenant.name, SizeBytes: e.size, Where: where,
		Why: why.Error()}
}

// scrubber does a pass now and then, at a bounded rate. It ends with ctx, which Close ends.
func (s *Store) scrubber(ctx context.Context) {
	defer close(s.scrubbed)
	if s.opts.ScrubEvery == 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.opts.ScrubEvery):
		}
		pass := s.scrubAll(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.lastScrub = &pass
		s.mu.Unlock()
	}
}

// scrubAll is a pass over everything. ctx ends it early.
func (s *Store) scrubAll(ctx context.Context) object.ScrubPass {
	pass := object.ScrubPass{Began: time.Now().UTC(), By: "daemon"}
	s.scrubs.Store(true)
	defer s.scrubs.Store(false)
	pace := func(n uint64) {
		select {
		case <-time.After(time.Duration(float64(n) / float64(s.opts.ScrubRate) * float64(time.Second))):
		case <-ctx.Done():
		}
	}
	for from := ""; ; from = pass.Next {
		step, err := s.scrubStep(ctx, "", from, pace)
		pass.Add(step)
		if err != nil || step.Next == "" {
			pass.Ended, pass.Next, pass.TotalBytes = time.Now().UTC(), "", 0
			return pass
		}
	}
}

// scrubStatus is part of Status. mu is held.
func (s *Store) scrubStatus() object.ScrubStatus {
	st := object.ScrubStatus{Running: s.scrubs.Load() || len(s.scrubTurn) > 0, Last: s.lastScrub}
	if s.opts.ScrubEvery > 0 {
		st.IntervalSeconds = s.opts.ScrubEvery.Seconds()
	}
	return st
}

// writeAnew replaces a bad copy on disk of an object whose memory is sound. mu is held, and let go meanwhile.
func (s *Store) writeAnew(e *entry) {
	s.dropFile(e)
	if e.class != object.Persisted {
		return
	}
	s.unlock() // removes it
	s.mu.Lock()
	if e.state == object.Sealed && !s.closed {
		_ = s.persist(e, e.name, e.sealed) // the object says what was wrong, here and in the next line
		_ = s.syncRecord(e)                // it was changed meanwhile
		s.collect(e)
	}
}
