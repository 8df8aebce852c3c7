package frontdoor

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"tendril/store/object"
)

// A Get by name also ends when an object of this node comes to be published under it. One goroutine looks for all that
// wait, once for each name, after the cluster's metadata changed.

// publishedName is a name as one tenant has it.
type publishedName struct{ tenant, name string }

// namedWaits are the Gets that wait for a name. Its lock is a leaf, which the poller takes: it is held for some names
// at a time.
type namedWaits struct {
	mu    sync.Mutex
	all   map[string]map[string]map[*pendingRequest]struct{} // by tenant and name
	first chan struct{}                                      // has one where somebody waits, and nobody did
}

func (r *pendingRequest) publishedName() publishedName {
	return publishedName{r.c.peer.Tenant, r.wanted[0].Name}
}

// add begins to look for what r waits for.
func (x *namedWaits) add(r *pendingRequest) {
	key := r.publishedName()
	x.mu.Lock()
	if x.all == nil {
		x.all = make(map[string]map[string]map[*pendingRequest]struct{})
	}
	if len(x.all) == 0 {
		select {
		case x.first <- struct{}{}:
		default:
		}
	}
	if x.all[key.tenant] == nil {
		x.all[key.tenant] = make(map[string]map[*pendingRequest]struct{})
	}
	own := x.all[key.tenant]
	if own[key.name] == nil {
		own[key.name] = make(map[*pendingRequest]struct{})
	}
	own[key.name][r] = struct{}{}
	x.mu.Unlock()
}

// remove is the reverse.
func (x *namedWaits) remove(r *pendingRequest) {
	key := r.publishedName()
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.all[key.tenant]
	if delete(own[key.name], r); len(own[key.name]) == 0 {
		delete(own, key.name)
	}
	if len(own) == 0 {
		delete(x.all, key.tenant)
	}
}

// found gives what is published under the name; zero: nothing yet.
func (x *namedWaits) found(r *pendingRequest) object.ID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return r.found
}

// find has an object count as found.
func (x *namedWaits) find(r *pendingRequest, id object.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.found = id
}

// forget has what was found count as not found.
func (x *namedWaits) forget(r *pendingRequest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.found = object.ID{}
}

// tenants gives those that wait for some name.
func (x *namedWaits) tenants() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.all))
}

// namesStep is how many names are gone through in one hold of the lock.
const namesStep = 128

// names gives those that a tenant waits for.
func (x *namedWaits) names(tenant string) (list []publishedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.all[tenant] { // goes on with those that are there then
		if list = append(list, publishedName{tenant, name}); len(list)%namesStep == 0 {
			x.mu.Unlock()
			runtime.Gosched()
			x.mu.Lock()
		}
	}
	return list
}

// tell ends the waiting for a name.
func (x *namedWaits) tell(key publishedName, id object.ID) {
	x.mu.Lock()
	waiting := x.all[key.tenant][key.name]
	list := make([]*pendingRequest, 0, len(waiting))
	for r := range waiting {
		if r.found.IsZero() {
			r.found = id
			list = append(list, r)
		}
	}
	x.mu.Unlock()
	for _, r := range list {
		r.look()
	}
}

// look ends r's waiting in the store.
func (r *pendingRequest) look() {
	x := &r.c.asleep
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, waits := x.pending[r]; waits {
		r.p.Look()
	}
}

// leastRest is how long a tenant's names rest between looks at least; a look at many is followed by four times as long.
const leastRest = 5 * time.Millisecond

// nameLook is how far the look at one tenant's names is.
type nameLook struct {
	due   bool            // the metadata changed since it began
	left  []publishedName // not looked at yet
	took  time.Duration   // so far
	rests time.Time       // when the next one may begin
}

// followPublished looks whenever the cluster's metadata changed and somebody waits: at some names of each tenant in
// turn, so that one that waits for many delays its own alone. It ends with Close.
func (s *Server) followPublished() {
	defer s.running.Done()
	looks := make(map[string]*nameLook)
	for changed := s.changed(looks); ; {
		wait, more := s.lookOn(looks)
		timer := time.NewTimer(wait)
		rested := timer.C
		if !more {
			rested = nil
		}
		select {
		case <-s.ended:
			timer.Stop()
			return
		case <-changed:
			changed = s.changed(looks)
		case <-s.named.first:
			changed = s.changed(looks)
		case <-rested:
		}
		timer.Stop()
	}
}

// changed has a look at all names begin, and gives what is closed when the metadata changes once more; nil where nobody
// waits, whom each change would wake.
func (s *Server) changed(looks map[string]*nameLook) <-chan struct{} {
	if len(s.named.tenants()) == 0 {
		return nil
	}
	next := s.opts.Cluster.Changed() // before the first look
	for _, tenant := range s.named.tenants() {
		if looks[tenant] == nil {
			looks[tenant] = &nameLook{}
		}
		looks[tenant].due = true
	}
	return next
}

// lookOn goes on with each look, by some names. It says after what time there is more to do, if there is.
func (s *Server) lookOn(looks map[string]*nameLook) (wait time.Duration, more bool) {
	for tenant, x := range looks {
		began := time.Now()
		if len(x.left) == 0 && x.due && !x.rests.After(began) {
			x.due, x.took, x.left = false, 0, s.named.names(tenant)
		}
		some := x.left[:min(len(x.left), namesStep)]
		for _, key := range some {
			if id, err := s.opts.Cluster.Resolve(key.tenant, key.name); err == nil {
				s.named.tell(key, id)
			}
		}
		now, rest := time.Now(), time.Duration(0)
		if x.took += now.Sub(began); len(some) > 0 {
			x.left = x.left[len(some):]
			x.rests = now.Add(max(leastRest, 4*x.took))
		}
		switch {
		case len(x.left) > 0:
		case x.due:
			rest = max(0, x.rests.Sub(now))
		default:
			if !x.rests.After(now) {
				delete(looks, tenant)
			}
			continue
		}
		if !more || rest < wait {
			wait, more = rest, true
		}
	}
	return wait, more
}
