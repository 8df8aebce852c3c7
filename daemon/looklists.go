package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tendril/cluster/fsm"
	"tendril/daemon/inspect"
	"tendril/daemon/leases"
	"tendril/store"
	"tendril/store/object"
)

// Leases implements inspect.Source: this node's, and those over nodes. A holder is its own tenant's to see.
func (l *look) Leases(v inspect.Viewer) ([]leases.Status, error) {
	d := (*Daemon)(l)
	list := slices.DeleteFunc(d.ownLeases(), func(x leases.Status) bool { return x.ID != "" })
	list = append(list, d.leasesOver()...)
	slices.SortStableFunc(list, func(a, b leases.Status) int { return cmp.Compare(a.Place, b.Place) })
	tenant, all := l.sees(v)
	for i := range list {
		if !all && list[i].Tenant != tenant {
			list[i].Holder = ""
		}
	}
	return list, nil
}

// Streams implements inspect.Source: by tenant and name. A place is "tenant/name", the tenant escaped.
func (l *look) Streams(v inspect.Viewer, p inspect.Page) (part inspect.Part[object.StreamInfo], err error) {
	tenant, all := l.sees(v)
	from, after, err := splitPlace(p.After)
	if err != nil {
		return part, err
	}
	for _, name := range l.store.Tenants() {
		if !all && name != tenant || name < from {
			continue
		}
		if name != from {
			after = ""
		}
		conn, err := l.store.Connect(store.Owner{Tenant: name, Name: "inspection"})
		if err != nil {
			return part, err // the store is closing
		}
		conn.EachStream(p.Prefix, after, func(s object.StreamInfo) bool {
			if len(part.Items) == p.Limit {
				last := part.Items[p.Limit-1]
				part.Next = joinPlace(last.Tenant, last.Name)
				return false
			}
			part.Items = append(part.Items, s)
			return true
		})
		conn.Close()
		if part.Next != "" {
			break
		}
	}
	return part, nil
}

// Links implements inspect.Source: to other nodes, of sessions, and between workers.
func (l *look) Links(v inspect.Viewer) ([]inspect.Link, error) {
	list := l.nodeLinks()
	var own []inspect.Link
	sessions := l.sessions.list()
	for _, s := range sessions {
		own = append(own, l.sessionLink(s))
	}
	tenants := map[uint64]string{}
	for _, s := range sessions {
		tenants[s.ID] = s.Tenant
	}
	for _, x := range l.peering.show(sessions) {
		link := inspect.Link{Kind: inspect.WorkerLink, With: x.With, Tenant: tenants[x.Session],
			Session: strconv.FormatUint(x.Session, 10), Up: x.Up, Transport: "directly", Why: x.Why}
		if !x.Up {
			link.Transport = "through the program"
		}
		own = append(own, link)
	}
	return append(list, mine(l, v, own, func(x inspect.Link) string { return x.Tenant })...), nil
}

// onlyTCP is why no link to another node or program elsewhere uses something better: there is nothing else.
const onlyTCP = "links between nodes use TCP; RDMA is not supported"

// nodeLinks are those that this node's objects and requests take to the others.
func (l *look) nodeLinks() (list []inspect.Link) {
	m := l.meta.now.Load()
	under := map[string]int{}
	for _, x := range l.bringing.list() {
		under[x.From]++
	}
	var nodes []fsm.Node
	l.meta.raft.View(func(s *fsm.State) { nodes = s.Nodes() })
	for _, n := range nodes {
		if n.ID == l.meta.node {
			continue
		}
		state := m.live.alive(n.ID)
		x := inspect.Link{Kind: inspect.NodeLink, With: n.ID.String(), Name: n.Name, Up: state.Answers,
			Since: state.Since, Transport: "TLS 1.3 over TCP", Why: cmp.Or(state.Why, onlyTCP),
			Latency: state.Latency.Seconds(), Bandwidth: l.bringing.rate(n.ID), Transfers: under[n.Name]}
		if len(n.Peer) > 0 {
			x.Address = n.Peer[0]
		}
		list = append(list, x)
	}
	return list
}

// sessionLink says how a program's data flows.
func (l *look) sessionLink(s SessionStatus) inspect.Link {
	x := inspect.Link{Kind: inspect.SessionLink, With: s.Program, Name: s.Program, Tenant: s.Tenant,
		Session: strconv.FormatUint(s.ID, 10), Address: s.Peer, Up: s.WaitsUntil.IsZero(), Since: s.Since,
		Transport: s.Transport}
	switch {
	case !x.Up:
		x.Why = "its connection was lost: it may come back until " + s.WaitsUntil.Format(time.TimeOnly)
	case s.Peer != "":
		x.Why = onlyTCP
	}
	return x
}

// Settings implements inspect.Source. There is no secret among them, but paths and who is which tenant.
func (l *look) Settings(v inspect.Viewer) (list []inspect.Setting, err error) {
	if _, all := l.sees(v); !all {
		return nil, fmt.Errorf("%w: only root and the daemon's own user may see the configuration", object.ErrPermission)
	}
	for _, s := range l.cfg.Show() {
		list = append(list, inspect.Setting(s))
	}
	return list, nil
}
