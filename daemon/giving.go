package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tendril/cluster/transfer"
	"tendril/store/object"
)

// givings counts other nodes' requests for objects while they are opened, and as long as they hold copies (of what is
// in a device's memory), which the objects' tenant is charged for: a node that asks for more than it takes would use up
// another one's memory, and the tenant's quota. The lock is a leaf.
type givings struct {
	most int           // immutable
	wait time.Duration // immutable

	mu     sync.Mutex
	of     map[givingKey]int
	change chan struct{} // closed when one ends
}

type givingKey struct {
	node   transfer.ID
	tenant string
}

func newGivings(most int, wait time.Duration) *givings {
	return &givings{most: most, wait: wait, of: map[givingKey]int{}, change: make(chan struct{})}
}

// begin waits until a node may have one more request for a tenant's objects. The caller calls end, once.
func (g *givings) begin(ctx context.Context, node transfer.ID, tenant string) (end func(), err error) {
	key := givingKey{node, tenant}
	patience := time.NewTimer(g.wait)
	defer patience.Stop()
	for {
		g.mu.Lock()
		if g.of[key] < g.most {
			g.of[key]++
			g.mu.Unlock()
			return func() { g.end(key) }, nil
		}
		change := g.change
		g.mu.Unlock()
		select {
		case <-change:
			continue
		case <-ctx.Done():
		case <-patience.C:
		}
		return nil, fmt.Errorf("%w: %d requests of your node for objects of tenant %.60q are under way, as many as may be",
			object.ErrBusy, g.most, tenant)
	}
}

func (g *givings) end(key givingKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of[key]--; g.of[key] == 0 {
		delete(g.of, key)
	}
	close(g.change)
	g.change = make(chan struct{})
}
