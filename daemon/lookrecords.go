package daemon

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tendril/cluster/fsm"
	"tendril/daemon/audit"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// mayAdminister is object.ErrPermission for viewers whom the front door's table would refuse the same as a command.
func (l *look) mayAdminister(v inspect.Viewer) error {
	if _, all := l.sees(v); !all || v.Scraper {
		return fmt.Errorf("%w: only root and the daemon's own user may see this", object.ErrPermission)
	}
	return nil
}

// room is what is left of a part's bounds.
type room struct{ entries, bytes int }

// takes has room for one thing more, or not. The first one has room in any case.
func (r *room) takes(thing any, first bool) bool {
	b, err := json.Marshal(thing)
	if err != nil || !first && (r.entries == 0 || r.bytes < len(b)) {
		return false
	}
	r.entries--
	r.bytes -= len(b)
	return true
}

func roomOf(p inspect.Page) *room { return &room{p.Limit, inspect.PageBytes} }

// recordsOf gives a part of what a listing of the front door has. nameOf is what prefixes are of.
func recordsOf[T any](l *look, v inspect.Viewer, p inspect.Page, each func(string, func(any, string) bool) error,
	nameOf func(T) string) (part inspect.Part[T], err error) {
	if err := l.mayAdminister(v); err != nil {
		return part, err
	}
	left, last := roomOf(p), ""
	err = each(p.After, func(thing any, at string) bool {
		x := thing.(T)
		if !strings.HasPrefix(nameOf(x), p.Prefix) {
			return true
		}
		if !left.takes(x, len(part.Items) == 0) {
			part.Next = last
			return false
		}
		part.Items, last = append(part.Items, x), at
		return true
	})
	return part, err
}

// Tenants implements inspect.Source.
func (l *look) Tenants(v inspect.Viewer, p inspect.Page) (inspect.Part[inspect.Tenant], error) {
	return recordsOf(l, v, p, (*Daemon)(l).EachTenant, func(x inspect.Tenant) string { return x.Name })
}

// Tokens implements inspect.Source.
func (l *look) Tokens(v inspect.Viewer, p inspect.Page) (inspect.Part[inspect.Token], error) {
	return recordsOf(l, v, p, (*Daemon)(l).EachToken, func(x inspect.Token) string { return x.Tenant })
}

// Certificates implements inspect.Source.
func (l *look) Certificates(v inspect.Viewer, p inspect.Page) (inspect.Part[inspect.Certificate], error) {
	return recordsOf(l, v, p, (*Daemon)(l).EachCertificate, func(x inspect.Certificate) string { return x.Name })
}

// seriesAsPlaces is the order in which a place over HTTP has those in the series.
var seriesAsPlaces = []string{adminSeries, dataSeries, refusedSeries}

// auditPlaces reads a place: three numbers. "" is the beginning.
func auditPlaces(text string) (map[string]uint64, error) {
	places := map[string]uint64{}
	if text == "" {
		return places, nil
	}
	var n [3]uint64
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &n[0], &n[1], &n[2]); err != nil || auditPlace(n[:]) != text {
		return nil, fmt.Errorf("%w: after %.60q: want `next` of the last answer", object.ErrInvalid, text)
	}
	for i, series := range seriesAsPlaces {
		places[series] = n[i]
	}
	return places, nil
}

func auditPlace(n []uint64) string { return fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2]) }

// Audit implements inspect.Source. Each node tells its own lines: a page does not wait for nodes that are silent.
func (l *look) Audit(v inspect.Viewer, p inspect.Page) (part inspect.Part[audit.Event], err error) {
	if err := l.mayAdminister(v); err != nil {
		return part, err
	}
	if p.AllNodes {
		return l.auditOfAll(p)
	}
	places, err := auditPlaces(p.After)
	if err != nil {
		return part, err
	}
	page, err := (*Daemon)(l).readAudit(auditRequest(p), p.Prefix, places)
	if err != nil {
		return part, err
	}
	left, full := roomOf(p), false
	until := page.Places // in each series, of what goes with this part
	for i, e := range page.Events {
		if full = full || !left.takes(e, i == 0); full {
			until[e.Detail] = min(until[e.Detail], e.Number-1)
		}
	}
	for _, e := range page.Events {
		if e.Number <= until[e.Detail] {
			part.Items = append(part.Items, e)
		}
	}
	if page.More || full {
		part.Next = seriesPlace(until)
	}
	return part, nil
}

// auditRequest is what a page asks a node for.
func auditRequest(p inspect.Page) wire.AuditRequest {
	m := wire.AuditRequest{Tenant: p.Tenant, Limit: uint32(p.Limit)}
	switch last := time.Unix(0, math.MaxInt64); {
	case p.Since.After(last): // UnixNano says nothing of such times, nor of those before 1678
		m.Since = math.MaxInt64
	case p.Since.After(time.Unix(0, 0)):
		m.Since = uint64(p.Since.UnixNano())
	}
	return m
}

func seriesPlace(of map[string]uint64) string {
	var n []uint64
	for _, series := range seriesAsPlaces {
		n = append(n, of[series])
	}
	return auditPlace(n)
}

// shownID is how much of a node's identifier stands in a place over all nodes: it has to fit into an address.
const shownID = 12

// auditOfAll gathers from all nodes. A place is that of each node, behind its identifier.
func (l *look) auditOfAll(p inspect.Page) (part inspect.Part[audit.Event], err error) {
	d := (*Daemon)(l)
	places, err := d.allAuditPlaces(p.After)
	if err != nil {
		return part, err
	}
	told, next, all, err := d.gatherAudit(auditRequest(p), places)
	if err != nil {
		return part, err
	}
	part.Silent = all.Silent
	left, full := roomOf(p), false
	var first []nodeEvent
	for _, e := range told {
		if !full && !strings.HasPrefix(e.What, p.Prefix) {
			continue
		}
		if full = full || !left.takes(e.Event, len(first) == 0); full {
			next[e.node][e.Detail] = min(next[e.node][e.Detail], e.Number-1)
			continue
		}
		first = append(first, e)
	}
	for _, e := range first {
		if e.Number <= next[e.node][e.Detail] {
			part.Items = append(part.Items, e.Event)
		}
	}
	if all.More || full {
		var list []string
		for node, of := range next {
			list = append(list, node[:min(shownID, len(node))]+"."+seriesPlace(of))
		}
		slices.Sort(list)
		part.Next = strings.Join(list, "_")
	}
	return part, nil
}

// allAuditPlaces reads a place over all nodes. One of a node that is no member any more is nothing.
func (d *Daemon) allAuditPlaces(text string) (map[string]map[string]uint64, error) {
	places := map[string]map[string]uint64{}
	if text == "" {
		return places, nil
	}
	given := map[string]map[string]uint64{}
	for of := range strings.SplitSeq(text, "_") {
		node, place, _ := strings.Cut(of, ".")
		at, err := auditPlaces(place)
		if err != nil || len(node) != shownID || place == "" {
			return nil, fmt.Errorf("%w: after %.60q: want `next` of the last answer", object.ErrInvalid, text)
		}
		given[node] = at
	}
	d.meta.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			if id := n.ID.String(); given[id[:shownID]] != nil {
				places[id] = given[id[:shownID]]
			}
		}
	})
	return places, nil
}
