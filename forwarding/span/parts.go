package span

import "sync/atomic"

// write is a command that writes a range: one of session's events, kept until nothing of its result is the newest.
type write struct {
	member  int
	event   uintptr // session's; a reference is held
	queue   uintptr // session's, to be flushed before anybody waits for the event
	seq     uint64  // later commands of the context have larger ones
	inOrder bool    // the queue is
	refs    int     // parts that name it; guarded by Context.mu
}

// arrival is a move into a member that may still be under way: whoever uses the range there waits for it.
type arrival struct {
	member int
	event  uintptr // a user event of session's at that member; a reference is held
	behind uintptr // session's event that it begins behind; 0: none
	state  atomic.Int32
	refs   int // parts that name it, and plans that wait for it; guarded by Context.mu
}

// States of an arrival.
const (
	underWay int32 = iota
	arrived
	lost
)

// part is a byte range of a buffer whose bytes share one history.
type part struct {
	lo, hi   uint64
	valid    uint64 // members that hold the newest bytes; 0: nobody wrote any
	partial  uint64 // of those, members that got the buffer's content alone (content.go)
	writer   *write // of the newest bytes; nil: none, or known to have ended
	arrivals []*arrival
}

func (p *part) has(member int) bool { return p.valid>>member&1 != 0 }

// parts is a buffer's history: ranges in order, without gaps, from 0 to its size. Guarded by Context.mu.
type parts []part

// cut makes lo and hi borders between parts and returns the indices of those inside.
func (ps *parts) cut(lo, hi uint64) (from, to int) {
	ps.split(lo)
	ps.split(hi)
	list := *ps
	for from < len(list) && list[from].lo < lo {
		from++
	}
	for to = from; to < len(list) && list[to].hi <= hi; to++ {
	}
	return from, to
}

func (ps *parts) split(at uint64) {
	for i := range *ps {
		p := (*ps)[i]
		if at <= p.lo || at >= p.hi {
			continue
		}
		left, right := p, p
		left.hi, right.lo = at, at
		right.arrivals = append([]*arrival(nil), p.arrivals...)
		if p.writer != nil {
			p.writer.refs++
		}
		for _, a := range p.arrivals {
			a.refs++
		}
		*ps = append((*ps)[:i], append(parts{left, right}, (*ps)[i+1:]...)...)
		return
	}
}

// ends takes references of parts away; the event of what nobody names any more is given to event.
type ends struct {
	event func(h uintptr)
}

func (e ends) write(w *write) {
	if w == nil {
		return
	}
	if w.refs--; w.refs == 0 {
		e.event(w.event)
	}
}

func (e ends) arrival(a *arrival) {
	if a.refs--; a.refs == 0 {
		e.event(a.event)
	}
}

// wrote notes that w writes [lo, hi): its member alone has the newest bytes. Arrivals stay: a later use of the range at
// their member is still behind them.
func (ps *parts) wrote(lo, hi uint64, w *write, free ends) {
	from, to := ps.cut(lo, hi)
	for i := from; i < to; i++ {
		p := &(*ps)[i]
		free.write(p.writer)
		p.writer, p.valid, p.partial = w, 1<<w.member, 0
		w.refs++
	}
	ps.merge(free)
}

// trim forgets arrivals that have ended. A move that failed brought nothing: the next use of the range tries again.
func (p *part) trim(free ends) {
	kept := p.arrivals[:0]
	for _, a := range p.arrivals {
		switch a.state.Load() {
		case underWay:
			kept = append(kept, a)
			continue
		case lost:
			if p.valid != 1<<a.member {
				p.valid &^= 1 << a.member
				p.partial &^= 1 << a.member
			}
		}
		free.arrival(a)
	}
	clear(p.arrivals[len(kept):])
	p.arrivals = kept
}

// supersede forgets the arrivals at a member that a new one there waits for: whoever uses the range waits for that one.
func (p *part) supersede(member int, free ends) {
	kept := p.arrivals[:0]
	for _, a := range p.arrivals {
		if a.member == member {
			free.arrival(a)
		} else {
			kept = append(kept, a)
		}
	}
	clear(p.arrivals[len(kept):])
	p.arrivals = kept
}

// merge joins neighbours with the same history, so that a program which writes piece by piece does not leave a part for
// each.
func (ps *parts) merge(free ends) {
	list := *ps
	for i := range list {
		list[i].trim(free)
	}
	out := list[:1]
	for _, p := range list[1:] {
		last := &out[len(out)-1]
		if last.valid != p.valid || last.partial != p.partial || last.writer != p.writer || len(last.arrivals) > 0 ||
			len(p.arrivals) > 0 {
			out = append(out, p)
			continue
		}
		last.hi = p.hi
		free.write(p.writer)
	}
	clear(list[len(out):])
	*ps = out
}

// drop forgets everything.
func (ps *parts) drop(free ends) {
	for i := range *ps {
		p := &(*ps)[i]
		free.write(p.writer)
		for _, a := range p.arrivals {
			free.arrival(a)
		}
	}
	*ps = nil
}
