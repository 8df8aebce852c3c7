package frontdoor

import (
	"sync"
	"time"

	"tendril/store/object"
)

// A Get by name also ends when an object of this node comes to be published under it. One goroutine looks for all that
// wait, once for each name, after the cluster's metadata changed.

// publishedName is a name as one tenant has it.
type publishedName struct{ tenant, name string }

// namedWaits are the Gets that wait for a name. Its lock is a leaf.
type namedWaits struct {
	mu  sync.Mutex
	all map[publishedName]map[*pendingRequest]struct{}
}

func (r *pendingRequest) publishedName() publishedName {
	return publishedName{r.c.peer.Tenant, r.wanted[0].Name}
}

// add begins to look for what r waits for.
func (x *namedWaits) add(r *pendingRequest) {
	key := r.publishedName()
	x.mu.Lock()
	if x.all == nil {
		x.all = make(map[publishedName]map[*pendingRequest]struct{})
	}
	if x.all[key] == nil {
		x.all[key] = make(map[*pendingRequest]struct{})
	}
	x.all[key][r] = struct{}{}
	x.mu.Unlock()
}

// remove is the reverse.
func (x *namedWaits) remove(r *pendingRequest) {
	key := r.publishedName()
	x.mu.Lock()
	defer x.mu.Unlock()
	if delete(x.all[key], r); len(x.all[key]) == 0 {
		delete(x.all, key)
	}
}

// found gives what is published under the name; zero: nothing yet.
func (x *namedWaits) found(r *pendingRequest) object.ID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return r.found
}

// forget has what was found count as not found.
func (x *namedWaits) forget(r *pendingRequest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.found = object.ID{}
}

// names gives those that somebody waits for.
func (x *namedWaits) names() []publishedName {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]publishedName, 0, len(x.all))
	for key := range x.all {
		list = append(list, key)
	}
	return list
}

// tell ends the waiting for a name.
func (x *namedWaits) tell(key publishedName, id object.ID) {
	x.mu.Lock()
	list := make([]*pendingRequest, 0, len(x.all[key]))
	for r := range x.all[key] {
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

// leastRest is how long followPublished rests between looks at least; a look at many names is followed by four times as
// long.
const leastRest = 5 * time.Millisecond

// followPublished looks whenever the cluster's metadata changed. It ends with Close.
func (s *Server) followPublished() {
	defer s.running.Done()
	for {
		changed := s.opts.Cluster.Changed()
		began := time.Now()
		for _, key := range s.named.names() {
			if id, err := s.opts.Cluster.Resolve(key.tenant, key.name); err == nil {
				s.named.tell(key, id)
			}
		}
		rest := time.NewTimer(max(leastRest, 4*time.Since(began)))
		select {
		case <-s.ended:
		case <-rest.C:
		}
		rest.Stop()
		select {
		case <-s.ended:
			return
		case <-changed:
		}
	}
}
