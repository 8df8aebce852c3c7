package trace

import (
	"cmp"
	"slices"
)

// place is where calls are looked for: one thread of a process, one object of it, or all of it.
type place struct {
	pid    uint32
	by     uint8
	number uint64
}

const (
	byThread = iota
	byObject
	byProcess
)

// join finds the call that each command and each trip belongs to.
func (b *builder) join() {
	index := map[place][]int{}
	for i := range b.Calls {
		c := &b.Calls[i]
		index[place{c.PID, byThread, uint64(c.Thread)}] = append(index[place{c.PID, byThread, uint64(c.Thread)}], i)
		index[place{c.PID, byProcess, 0}] = append(index[place{c.PID, byProcess, 0}], i)
		if c.Object != 0 {
			index[place{c.PID, byObject, c.Object}] = append(index[place{c.PID, byObject, c.Object}], i)
		}
	}
	for i := range b.Trips {
		t := &b.Trips[i]
		if at := b.enclosing(index[place{t.PID, byThread, uint64(t.Thread)}], t.Start, t.End); at >= 0 {
			b.Calls[at].Waited += t.End - t.Start
			b.Calls[at].Trips++
			t.Call = at
		}
	}
	b.findBuilds()
	for i := range b.Commands {
		c := &b.Commands[i]
		if c.Sent == 0 || c.Taken == 0 {
			b.Unmatched++
		}
		if c.Sent == 0 {
			continue
		}
		if c.handle != 0 {
			c.Call = b.enclosing(index[place{c.PID, byObject, c.handle}], c.Sent, c.Sent)
		}
		if c.Call < 0 {
			c.Call = b.enclosing(index[place{c.PID, byProcess, 0}], c.Sent, c.Sent)
		}
	}
}

// findBuilds finds the questions that mostly waited for a build, which began before them: a worker answers for a
// program when what builds it has ended. So the time is not theirs.
func (b *builder) findBuilds() {
	var builds []*Trip
	for i := range b.Trips {
		if b.Trips[i].Cause == CauseBuild {
			builds = append(builds, &b.Trips[i])
		}
	}
	for i := range b.Trips {
		q := &b.Trips[i]
		if q.Cause != CauseQuery {
			continue
		}
		for _, t := range builds {
			if t.PID == q.PID && t.Worker == q.Worker && t.Start <= q.Start &&
				min(t.End, q.End)-q.Start > (q.End-q.Start)/2 {
				q.Behind = "a build"
				if t.Detail != "" {
					q.Behind += " (" + t.Detail + ")"
				}
			}
		}
	}
}

// deepest is how many calls that began before are looked at: as many as may run at once.
const deepest = 64

// enclosing returns the latest call of a list, ordered by begin, that covers a span; −1: none.
func (b *builder) enclosing(list []int, start, end int64) int {
	n, _ := slices.BinarySearchFunc(list, start+1, func(i int, t int64) int { return cmp.Compare(b.Calls[i].Start, t) })
	for k := n - 1; k >= max(0, n-deepest); k-- {
		if b.Calls[list[k]].End >= end {
			return list[k]
		}
	}
	return -1
}
