package daemon

import (
	"context"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"tendril/cluster/fsm"
)

// lookups find the numbers that names of users and groups have on this machine. The machine may ask another one for
// them (NSS: LDAP, SSSD), for as long as it likes: so one goroutine looks, and whoever needs a number has the one that
// was found last. It is looked for again each time that the records of tenants change.
type lookups struct {
	look  func(lookup) (uint32, bool) // may block
	again func()                      // called when a number is another one than before

	mu      sync.Mutex // a leaf
	found   map[lookup][]uint32
	wanted  []lookup      // still to be looked for, each once
	settled chan struct{} // nil: nobody looks; closed when nothing is wanted any more
}

// lookup is a name that somebody is mapped by.
type lookup struct {
	kind fsm.MemberKind // user or group
	name string
}

// lookTime is how long a change of tenants, and a start, wait for numbers: what is found later counts from then on.
const lookTime = 2 * time.Second

// lookNow asks the machine.
func lookNow(x lookup) (uint32, bool) {
	var number string
	var err error
	if x.kind == fsm.MemberUser {
		var u *user.User
		if u, err = user.Lookup(x.name); err == nil {
			number = u.Uid
		}
	} else {
		var g *user.Group
		if g, err = user.LookupGroup(x.name); err == nil {
			number = g.Gid
		}
	}
	n, bad := strconv.ParseUint(number, 10, 32)
	return uint32(n), err == nil && bad == nil
}

// numbers gives what is known of names, forgets others, and has all of them looked for again: in a goroutine that ends
// with ctx, which start starts.
func (l *lookups) numbers(ctx context.Context, names []lookup, start func(func())) map[lookup][]uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := map[lookup][]uint32{}
	for _, x := range names {
		known[x] = l.found[x]
	}
	l.found, l.wanted = known, slices.Clone(names)
	if len(names) > 0 && l.settled == nil && ctx.Err() == nil {
		l.settled = make(chan struct{})
		start(func() { l.run(ctx) })
	}
	return maps.Clone(known)
}

// run looks for all that is wanted.
func (l *lookups) run(ctx context.Context) {
	changed := false
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil || len(l.wanted) == 0 && !changed:
			close(l.settled)
			l.settled = nil
			return
		case len(l.wanted) == 0:
			changed = false
			l.mu.Unlock()
			l.again()
			l.mu.Lock()
			continue
		}
		x := l.wanted[0]
		l.wanted = l.wanted[1:]
		l.mu.Unlock()
		now, answered := l.ask(ctx, x)
		l.mu.Lock()
		if was, wanted := l.found[x]; answered && wanted && !slices.Equal(was, now) {
			l.found[x], changed = now, true
		}
	}
}

// ask looks for one name. The goroutine that does outlives ctx where the machine does not answer.
func (l *lookups) ask(ctx context.Context, x lookup) (numbers []uint32, answered bool) {
	answer := make(chan []uint32, 1)
	go func() {
		if n, ok := l.look(x); ok {
			answer <- []uint32{n}
			return
		}
		answer <- nil
	}()
	select {
	case numbers = <-answer:
		return numbers, true
	case <-ctx.Done():
		return nil, false
	}
}

// await waits until all has been looked for, or lookTime is over.
func (l *lookups) await() {
	l.mu.Lock()
	settled := l.settled
	l.mu.Unlock()
	if settled == nil {
		return
	}
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	}
}
