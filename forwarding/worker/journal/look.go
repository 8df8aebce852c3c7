package journal

import (
	"cmp"
	"slices"
	"time"

	"tendril/forwarding/clwire"
)

func seconds(ns int64) float64 { return time.Duration(max(ns, 0)).Seconds() }

// kind is a command's in words.
func kind(l Label) string {
	if l.Type == 0 {
		return "not noted" // there were too many at a time
	}
	return l.Type.String()
}

// text is a kernel's name.
func (k *Kernel) text() string {
	if k == nil {
		return ""
	}
	return k.name
}

// Look gives what there is to tell, and has times kept for a while. running says of a queue and a command's number what
// the driver says of it; it is asked under the lock and must answer at once. It never waits for the driver.
func (j *Journal) Look(running func(queue, number uint64) bool) clwire.WorkerCommands {
	now := int64(time.Since(j.origin))
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.until.Load() <= now {
		j.from = now
	}
	j.until.Store(now + keptFor)
	l := look{j: j, now: now, flying: map[*sum]uint64{}}
	counts := l.counts() // before the queues: what is taken meanwhile has not ended
	for _, q := range j.queues {
		l.queue(q, running)
	}
	told := &l.told
	// Times are in ms, and queues come in no order. Of a queue the older stays first.
	slices.SortStableFunc(told.Flying, func(a, b clwire.CommandFlying) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Queue, b.Queue))
	})
	if over := len(told.Flying) - mostFlying; over > 0 {
		told.Flying, told.More = told.Flying[:mostFlying], told.More+uint64(over)
	}
	slices.SortStableFunc(told.Last, func(a, b clwire.CommandEnded) int {
		return cmp.Or(cmp.Compare(a.Ago, b.Ago), cmp.Compare(a.Queue, b.Queue))
	})
	told.Last = told.Last[:min(len(told.Last), mostLast)]
	l.sumUp(counts)
	l.callsNow()
	return l.told
}

// look is one look at a journal.
type look struct {
	j      *Journal
	now    int64
	flying map[*sum]uint64 // how many of a sum have not ended
	told   clwire.WorkerCommands
}

// sighted is a command in flight.
type sighted struct {
	number uint64
	what   what
}

// counts are what each sum has taken. j.mu is held.
func (l *look) counts() map[*sum]uint64 {
	counts := map[*sum]uint64{}
	for _, k := range l.j.kernels {
		counts[&k.sum] = k.sum.taken.Load()
	}
	for i := range l.j.types {
		counts[&l.j.types[i]] = l.j.types[i].taken.Load()
	}
	return counts
}

// sighted lists a queue's commands in flight, the oldest first, and says how many others are not noted. j.mu is held.
func (l *look) sighted(q *Queue) (all []sighted, more uint64) {
	first, ring := q.first.Load(), *q.ring.Load()
	taken, noted := q.missing.Load(), uint64(0)
	for i := range ring {
		x, n := ring[i].read()
		if x == 0 || n < first {
			continue
		}
		taken = max(taken, n)
		noted++
		if x.state() != ended {
			all = append(all, sighted{n, x})
		}
	}
	if q.order && taken+1 > first+noted { // of so many no more were noted
		more = taken + 1 - first - noted
	}
	slices.SortFunc(all, func(a, b sighted) int { return cmp.Compare(a.number, b.number) })
	return all, more
}

// giving is the command that the driver is being given: one that was held, or what the reader has just taken, if its
// record is what the reader is still at. number 0: none. since: for how long, in ns.
func (l *look) giving(q *Queue, all []sighted) (number uint64, since int64) {
	if n := q.calling.Load(); n != 0 {
		return n, l.now - q.since.Load()
	}
	if len(all) == 0 || l.j.giver.Load() != q.id {
		return 0, 0
	}
	x := all[len(all)-1]
	if x.what.state() != given || uint64(x.what.kind()) != l.j.doing.Load() || q.missing.Load() > x.number {
		return 0, 0
	}
	return x.number, x.what.age(l.now)
}

// queue adds a queue's commands: mostFlying of the oldest in flight, mostLast of the newest that ended. j.mu is held.
func (l *look) queue(q *Queue, running func(queue, number uint64) bool) {
	all, more := l.sighted(q)
	l.told.More += more
	l.flying[&l.j.types[0]] += more
	calling, _ := l.giving(q, all)
	for n, x := range all {
		label, state := l.j.labelOf(x.what), x.what.state()
		l.flying[l.j.sumOf(label)]++
		if n >= mostFlying {
			l.told.More++
			continue
		}
		c := clwire.CommandFlying{Queue: q.id, Device: q.device, Kind: kind(label), Kernel: label.Kernel.text(),
			State: clwire.CommandQueued, Seconds: seconds(x.what.age(l.now))}
		switch {
		case state == queued:
		case x.number == calling:
			c.State = clwire.CommandGiving
		case n == 0 && q.order || running(q.id, x.number):
			c.State = clwire.CommandRunning
		default:
			c.State = clwire.CommandSubmitted
		}
		l.told.Flying = append(l.told.Flying, c)
	}
	for i := range q.last {
		g := q.last[(q.oldest+len(q.last)-1-i)%len(q.last)]
		l.told.Last = append(l.told.Last, clwire.CommandEnded{Queue: q.id, Device: q.device, Kind: kind(g.label),
			Kernel: g.label.Kernel.text(), Status: g.status, Seconds: seconds(g.took), Ago: seconds(l.now - g.until)})
	}
}

// sumUp adds where the time went, the most first; what there is no room for goes into one line. j.mu is held.
func (l *look) sumUp(counts map[*sum]uint64) {
	told := &l.told
	add := func(label Label) {
		s := l.j.sumOf(label)
		if taken := counts[s]; taken > l.flying[s] {
			told.Sums = append(told.Sums, clwire.CommandSum{Kind: kind(label), Kernel: label.Kernel.text(),
				Count: taken - l.flying[s], Failed: s.failed.Load(), Timed: s.timed, Seconds: seconds(s.took)})
		}
	}
	for _, k := range l.j.kernels {
		add(Label{clwire.TypeNDRange, k})
	}
	for t := range l.j.types {
		add(Label{Type: clwire.Type(t)})
	}
	slices.SortFunc(told.Sums, func(a, b clwire.CommandSum) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Kernel, b.Kernel))
	})
	if len(told.Sums) > mostSums {
		rest := clwire.CommandSum{Kind: "others"}
		for _, s := range told.Sums[mostSums:] {
			rest.Count, rest.Failed, rest.Seconds = rest.Count+s.Count, rest.Failed+s.Failed, rest.Seconds+s.Seconds
			rest.Timed += s.Timed
		}
		told.Sums = append(told.Sums[:mostSums], rest)
	}
}

// callsNow adds the calls of the driver that are under way, the oldest first. j.mu is held.
func (l *look) callsNow() {
	told := &l.told
	for _, c := range l.j.calls {
		told.Calls = append(told.Calls, clwire.DriverCall{What: c.what, Seconds: seconds(l.now - c.since)})
	}
	doing := l.j.doing.Load()
	for _, q := range l.j.queues {
		all, _ := l.sighted(q)
		n, since := l.giving(q, all)
		if n == 0 {
			continue
		}
		if q.calling.Load() == 0 {
			doing = Sleeping // this is it
		}
		x := clwire.DriverCall{What: "enqueue", Queue: q.id, Seconds: seconds(since)}
		if i := slices.IndexFunc(all, func(x sighted) bool { return x.number == n }); i >= 0 {
			label := l.j.labelOf(all[i].what)
			x.What += " " + kind(label)
			if name := label.Kernel.text(); name != "" {
				x.What += " " + name
			}
		}
		told.Calls = append(told.Calls, x)
	}
	if doing != Sleeping && doing != Polling {
		told.Calls = append(told.Calls, clwire.DriverCall{What: "record " + clwire.Type(doing).String(),
			Seconds: seconds(l.now - l.j.clock.Load())})
	}
	told.Calls = slices.DeleteFunc(told.Calls, func(c clwire.DriverCall) bool { return c.Seconds < seconds(leastCall) })
	slices.SortFunc(told.Calls, func(a, b clwire.DriverCall) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.What, b.What))
	})
	told.Calls = told.Calls[:min(len(told.Calls), mostCalls)]
}
