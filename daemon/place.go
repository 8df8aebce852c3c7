package daemon

import (
	"context"
	"encoding/json"
	"slices"

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

// Place implements frontdoor.Elsewhere.
func (d *Daemon) Place(ctx context.Context, tenant string, m wire.PlaceRequest) ([]byte, error) {
	o, nodes, err := d.publishedNow(ctx, tenant, m.ID, m.Name)
	if err != nil {
		return nil, err
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
	d.meta.now.Load().live.settle(ctx, nodes)
	known := d.placeable(nodes)
	s := PlaceStatus{ID: object.ID(o.ID), Name: o.Name, SizeBytes: o.SizeBytes, Policy: string(policy.Kind),
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

// sourceOf is a node as it is dialed.
func sourceOf(n fsm.Node) transfer.Source {
	return transfer.Source{Node: n.ID, Name: n.Name, Incarnation: n.Incarnation}
}
