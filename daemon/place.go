package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/placement"
	"tendril/cluster/transfer"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// PlaceStatus is what `tendril place` shows.
type PlaceStatus struct {
	ID        object.ID     `json:"id"`
	Name      string        `json:"name"`
	SizeBytes uint64        `json:"size_bytes"`
	Policy    string        `json:"policy"`
	Targets   []PlaceChoice `json:"targets"` // for the next replica, the best first
	Sources   []PlaceChoice `json:"sources"` // for a get at this node, the best first; none where it is here
}

// PlaceChoice is one node, and why it stands where it stands.
type PlaceChoice struct {
	Node string `json:"node"`
	Can  bool   `json:"can"`
	Why  string `json:"why"`
}

// What is known of other nodes is asked for anew when it is older.
const (
	probeAge  = 5 * time.Second
	probeTime = 2 * time.Second
)

// Place implements frontdoor.Elsewhere.
func (d *Daemon) Place(ctx context.Context, tenant string, m wire.PlaceRequest) ([]byte, error) {
	id, err := m.ID, error(nil)
	if id.IsZero() {
		if id, err = d.Resolve(tenant, m.Name); err != nil {
			return nil, err
		}
	}
	o, nodes, ok := d.publishedAs(tenant, id)
	if !ok {
		return nil, fmt.Errorf("%w: object %s is not published", object.ErrNotFound, id)
	}
	policy, err := placement.ParsePolicy(m.Policy, func(name string) (placement.ID, bool) {
		i := slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.Name == name })
		if i < 0 {
			return placement.ID{}, false
		}
		return nodes[i].ID, true
	})
	if err != nil {
		return nil, err
	}
	d.probe(ctx, nodes)
	known := d.placeable(nodes)
	s := PlaceStatus{ID: id, Name: o.Name, SizeBytes: o.SizeBytes, Policy: string(policy.Kind),
		Targets: choices(placement.Targets(placed(o), known, policy)), Sources: []PlaceChoice{}}
	if !d.isHere(o) {
		s.Sources = choices(placement.Sources(placed(o), known, d.meta.node))
	}
	return json.Marshal(s)
}

// placed is an object as placement knows it.
func placed(o fsm.Object) placement.Object {
	x := placement.Object{ID: o.ID, SizeBytes: o.SizeBytes}
	for _, r := range o.Replicas {
		x.Replicas = append(x.Replicas, r.Node)
	}
	return x
}

func choices(list []placement.Choice) []PlaceChoice {
	out := make([]PlaceChoice, len(list))
	for i, c := range list {
		out[i] = PlaceChoice{Node: c.Name, Can: c.OK, Why: c.Why}
	}
	return out
}

// probe asks the nodes of which nothing new is known, all at once, and waits for them, but not for long.
func (d *Daemon) probe(ctx context.Context, nodes []fsm.Node) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range nodes {
		if n.ID == d.meta.node {
			d.bringing.says(n.ID, (*nodeServer)(d).Probe())
		} else if d.bringing.isOld(n.ID) {
			all.Go(func() { d.probeOne(ctx, n) })
		}
	}
	all.Wait()
}

func (d *Daemon) probeOne(ctx context.Context, n fsm.Node) {
	conn, err := d.dialTransfer(ctx, sourceOf(n))
	if err != nil {
		if ctx.Err() != nil { // dialNode does not say so of a time that is over
			d.bringing.missed(n.ID, "it does not answer")
		}
		return
	}
	defer conn.Close()
	s, err := transfer.Probe(ctx, conn)
	if err != nil {
		d.bringing.missed(n.ID, err.Error())
		return
	}
	d.bringing.says(n.ID, s)
}

// sourceOf is a node as it is dialed.
func sourceOf(n fsm.Node) transfer.Source {
	return transfer.Source{Node: n.ID, Name: n.Name, Incarnation: n.Incarnation}
}

// isOld reports whether a node is to be asked how it is.
func (b *bringings) isOld(node fsm.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.links[node]
	return time.Since(l.asked) > probeAge && time.Since(l.away) > probeAge
}

// says notes what a node said of itself.
func (b *bringings) says(node fsm.UUID, s transfer.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.links[node]
	l.state, l.asked, l.away, l.why = s, time.Now(), time.Time{}, ""
	b.links[node] = l
}
