package engine

import "time"

// FollowAll makes the engine follow every command from now on, also those whose end nobody asks for, so that Longest
// sees them. It costs a native event a command.
func (e *Engine) FollowAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = true
}

// Longest returns for how long the driver has been seen to run the command that has run longest: 0 when none runs. The
// first look at a command that runs starts its clock, so that who asks every so often is late by that much at most.
func (e *Engine) Longest(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	var longest time.Duration
	for _, q := range e.open {
		e.start(q)
		for at := 0; at < len(q.live); at += sweepChunk {
			chunk := q.live[at:min(at+sweepChunk, len(q.live))]
			if !q.outOfOrder {
				chunk = q.live[:1] // one runs at a time: the sweep takes it away when it ends
			}
			for i, status := range e.probe(chunk) {
				longest = max(longest, chunk[i].ran(status, now))
			}
			if !q.outOfOrder {
				break
			}
		}
	}
	return longest
}

// Running asks the driver which commands it runs, of the oldest of each queue that are followed, and calls f for each
// with its number in the queue's log.
func (e *Engine) Running(f func(queue, number uint64)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.open {
		part := q.live[:min(len(q.live), sweepChunk)]
		if len(part) == 0 {
			continue
		}
		for i, status := range e.probe(part) {
			if status == Running && part[i].number != 0 && !part[i].through {
				f(q.id, part[i].number)
			}
		}
	}
}

// ran is for how long the event's command has been seen to run.
func (ev *event) ran(status int32, now time.Time) time.Duration {
	switch {
	case status != Running:
		return 0
	case ev.since.IsZero():
		ev.since = now
	}
	return now.Sub(ev.since)
}
