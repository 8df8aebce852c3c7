package workers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tendril/store/object"
)

// A tenant is charged for a worker from the moment it asks for one until the worker's process has ended. Of Options.Max
// an eighth, at least one, is for tenants that have none. Among the others, one that has its equal share already leaves
// a quarter free. Who finds no room waits for Options.Wait; when room comes, the tenant that has the fewest gets it.

// maxWaiting bounds the requests of one tenant that wait.
const maxWaiting = 64

// shares counts workers by tenant. Pool.mu guards it.
type shares struct {
	most    int
	total   int
	used    map[string]int
	waiting map[string][]*waiter // no empty list is kept
	arrived uint64
}

// waiter is one request for a worker. granted is closed, under Pool.mu, when it is charged for one.
type waiter struct {
	granted chan struct{}
	number  uint64 // in the order of arrival
}

func newShares(most int) shares {
	return shares{most: most, used: map[string]int{}, waiting: map[string][]*waiter{}}
}

// kept is how many workers are for tenants that have none.
func (s *shares) kept() int {
	if s.most < 2 {
		return 0
	}
	return max(1, s.most/8)
}

// leaves is how many a tenant that asks must leave free.
func (s *shares) leaves(tenant string) int {
	switch own := s.used[tenant]; {
	case own == 0:
		return 0
	case len(s.used) > 1 && own >= s.most/len(s.used):
		return max(s.kept(), s.most/4)
	}
	return s.kept()
}

// take charges tenant for a worker, if it may have one more.
func (s *shares) take(tenant string) bool {
	if s.most-s.total <= s.leaves(tenant) {
		return false
	}
	s.total++
	s.used[tenant]++
	return true
}

// give takes a charge back and lets others have it.
func (s *shares) give(tenant string) {
	s.total--
	if s.used[tenant]--; s.used[tenant] == 0 {
		delete(s.used, tenant)
	}
	for s.grant() {
	}
}

// grant lets one request through: of the tenant with the fewest workers, of those the first to have come. If that one
// finds no room, nobody does.
func (s *shares) grant() bool {
	next := ""
	for tenant, list := range s.waiting {
		if first := s.waiting[next]; len(first) == 0 || s.used[tenant] < s.used[next] ||
			s.used[tenant] == s.used[next] && list[0].number < first[0].number {
			next = tenant
		}
	}
	list := s.waiting[next]
	if len(list) == 0 || !s.take(next) {
		return false
	}
	close(list[0].granted)
	s.drop(next, list[0])
	return true
}

func (s *shares) enter(tenant string) *waiter {
	s.arrived++
	w := &waiter{granted: make(chan struct{}), number: s.arrived}
	s.waiting[tenant] = append(s.waiting[tenant], w)
	return w
}

func (s *shares) drop(tenant string, w *waiter) {
	list := slices.DeleteFunc(s.waiting[tenant], func(x *waiter) bool { return x == w })
	if s.waiting[tenant] = list; len(list) == 0 {
		delete(s.waiting, tenant)
	}
}

// why says that a tenant finds no room. It is said before anything is waited for: while a request waits nobody else's
// matters.
func (s *shares) why(tenant string, waited time.Duration) error {
	text := fmt.Sprintf("%d of %d workers serve (--max-workers), %d of them tenant %s's; %d are kept for tenants that have none or fewer",
		s.total, s.most, s.used[tenant], tenant, s.leaves(tenant))
	if waited > 0 {
		text += fmt.Sprintf("; none became free in %v (--worker-wait)", waited)
	}
	return fmt.Errorf("%w: %s: end a program that has one, or try again later", object.ErrBusy, text)
}

// charge charges tenant for a worker, and waits for one if it must. The charge is taken back with uncharge, or by the
// end of the worker that it is bound to.
func (p *Pool) charge(ctx context.Context, tenant string) error {
	p.mu.Lock()
	if p.shares.take(tenant) {
		p.mu.Unlock()
		return nil
	}
	if err := p.shares.why(tenant, 0); p.opts.Wait <= 0 || len(p.shares.waiting[tenant]) >= maxWaiting {
		p.mu.Unlock()
		return err
	}
	w := p.shares.enter(tenant)
	p.mu.Unlock()
	timer := time.NewTimer(p.opts.Wait)
	defer timer.Stop()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-timer.C:
	case <-p.ctx.Done():
		err = errClosed
	case <-ctx.Done():
		err = fmt.Errorf("%w: nobody waits for the worker any more: %w", object.ErrNoDevice, ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.granted: // just now
		if err != nil {
			p.shares.give(tenant)
		}
		return err
	default:
	}
	p.shares.drop(tenant, w)
	if err == nil {
		err = p.shares.why(tenant, p.opts.Wait)
	}
	return err
}

func (p *Pool) uncharge(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares.give(tenant)
}

// bind has a charge end with a worker, at once if that has ended.
func (p *Pool) bind(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.gone {
		p.shares.give(w.key.tenant)
		p.leave(w.platform, w.key.tenant)
		return
	}
	w.charged = true
}

// part takes back what a worker that has ended was charged.
func (p *Pool) part(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.gone = true
	if w.charged {
		w.charged = false
		p.shares.give(w.key.tenant)
		p.leave(w.platform, w.key.tenant)
	}
}
