package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/audit"
	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/forwarding/clwire"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Each node records what was asked for at it, in three series: what administrators and newcomers did, what tenants did
// with objects and devices, and what tenants and strangers were refused. So neither can push the first out by doing
// much, nor the second by asking for what they may not have.

const (
	auditFolder   = "audit" // in the state directory
	adminSeries   = "admin"
	dataSeries    = "data"
	refusedSeries = "refused"

	maxAudit     = 1000 // events in an answer
	auditAskTime = 5 * time.Second
)

// AuditPage is an answer to `tendril audit`.
type AuditPage struct {
	Events []audit.Event `json:"events"`
	Next   string        `json:"next"`   // cursor of what comes behind
	More   bool          `json:"more"`   // there is more now
	Silent []string      `json:"silent"` // nodes that did not answer, by name
	Lost   uint64        `json:"lost"`   // lines that could not be written since the daemons started

	Places map[string]uint64 `json:"places,omitempty"` // of a node's answer: where each series goes on
}

// auditLogs are this node's; nil: there are none.
type auditLogs map[string]*audit.Log

func (d *Daemon) openAudit() error {
	logs := auditLogs{}
	for _, series := range []string{adminSeries, dataSeries, refusedSeries} {
		l, err := audit.Open(filepath.Join(d.cfg.StateDir, auditFolder), series, audit.Options{
			Sync: series == adminSeries, Fault: func(err error) { d.auditFault(series, err) }})
		if err != nil {
			logs.close()
			return fmt.Errorf("audit log: %w", err)
		}
		logs[series] = l
	}
	d.audits.Store(&logs)
	return nil
}

func (d *Daemon) auditFault(series string, err error) {
	if err == nil {
		d.log.WithField("series", series).Info("the audit log is written again")
		return
	}
	d.log.WithField("series", series).WithError(err).Error("the audit log loses lines: they are counted, and work goes on")
}

func (d *Daemon) closeAudit() error {
	if logs := d.audits.Load(); logs != nil {
		return logs.close()
	}
	return nil
}

func (x auditLogs) close() error {
	var faults []error
	for _, l := range x {
		faults = append(faults, l.Close())
	}
	return errors.Join(faults...)
}

// record adds an event of this node; byAdmin: who administers it asked.
func (d *Daemon) record(e audit.Event, byAdmin bool, err error) {
	logs := d.audits.Load()
	if logs == nil {
		return
	}
	e.Node = d.identity.Name
	if err != nil {
		e.Error = err.Error()
	}
	(*logs)[seriesOf(e.What, byAdmin, err)].Add(e)
}

// seriesOf says where an event goes. What administrators do with objects comes as often as what tenants do.
func seriesOf(what string, byAdmin bool, err error) string {
	ofTenants := strings.HasPrefix(what, "object.") || strings.HasPrefix(what, "lease.")
	if what == "lease.end" && byAdmin {
		ofTenants = false
	}
	switch {
	case err != nil && (ofTenants || !byAdmin):
		return refusedSeries
	case ofTenants:
		return dataSeries
	}
	return adminSeries
}

// auditBy records what a connection asked for; err is why it was refused.
func (d *Daemon) auditBy(p frontdoor.Peer, what, tenant, of string, err error) {
	e := audit.Event{What: what, Tenant: cmp.Or(tenant, p.Tenant), Of: of, From: cmp.Or(p.Remote, "local")}
	if p.Remote == "" {
		e.Who = fmt.Sprintf("uid %d, pid %d", p.UID, p.PID)
	} else {
		e.Who = fmt.Sprintf("%s, certificate %s", p.Subject, p.Serial)
	}
	d.record(e, p.Admin, err)
}

// auditLease records a lease that a session asked for: one that began, with its devices at all nodes, one that it
// joined, or why there is none. That devices are taken is not recorded: who waits asks again and again. Nor is a place
// that is given up.
func (d *Daemon) auditLease(p frontdoor.Peer, asked *clwire.LeaseOptions, l *leases.Lease, err error) {
	what := "lease.take"
	if asked != nil && asked.Token != "" {
		what = "lease.join"
	}
	switch {
	case asked == nil || asked.Leave || errors.Is(err, object.ErrBusy):
	case err != nil:
		d.auditBy(p, what, p.Tenant, "", err)
	case what == "lease.join":
		d.auditBy(p, what, p.Tenant, d.leaseName(l), nil)
	default:
		of := append([]string{d.leaseName(l)}, l.Devices...)
		for _, x := range d.leasesOver() {
			if x.ID == l.ID {
				of = append(of[:1], x.Devices...)
			}
		}
		d.auditBy(p, what, p.Tenant, strings.Join(of, " "), nil)
	}
}

// leaseName is a lease as tendril leases names it: its id, or NODE/NUMBER where it is of this node alone.
func (d *Daemon) leaseName(l *leases.Lease) string {
	return cmp.Or(l.ID, fmt.Sprintf("%s/%d", d.identity.Name, l.Number))
}

// auditStranger records what somebody asked for who showed a token, which need not be a good one.
func (d *Daemon) auditStranger(remote, what, name, tenant, of string, err error) {
	d.record(audit.Event{What: what, Who: name, From: remote, Tenant: tenant, Of: of}, false, err)
}

// auditOf records what was asked for on this machine by who may: an administrator, or for an object its tenant.
func (d *Daemon) auditOf(what, tenant, of string, err error) {
	who := "administrator"
	if tenant != "" {
		who = "tenant " + tenant
	}
	d.record(audit.Event{What: what, Who: who, From: "local", Tenant: tenant, Of: of}, tenant == "", err)
}

var changeNames = map[wire.TenantChange]string{wire.TenantCreate: "create", wire.TenantRemove: "remove",
	wire.TenantDisable: "disable", wire.TenantEnable: "enable", wire.TenantMap: "map", wire.TenantUnmap: "unmap",
	wire.TenantQuota: "quota"}

// Audit implements frontdoor.Nodes.
func (d *Daemon) Audit(p frontdoor.Peer, m wire.AuditRequest) ([]byte, error) {
	places := map[string]map[string]uint64{} // by node's identifier and series
	if m.Cursor != "" {
		if err := json.Unmarshal([]byte(m.Cursor), &places); err != nil {
			return nil, fmt.Errorf("%w: a cursor that is none of an answer's", object.ErrInvalid)
		}
	}
	own := d.meta.node.String()
	if p.Role == pki.Node {
		page, err := d.readAudit(m, "", places[own])
		if err != nil {
			return nil, err
		}
		return json.Marshal(page)
	}
	page, err := d.allAudit(m, places)
	if err != nil {
		return nil, err
	}
	return json.Marshal(page)
}

func auditLimit(m wire.AuditRequest) int {
	if m.Limit == 0 || m.Limit > maxAudit {
		return maxAudit
	}
	return int(m.Limit)
}

// readAudit gives this node's events behind a place in each series, oldest first. Detail is the series. What they are
// of begins with prefix.
func (d *Daemon) readAudit(m wire.AuditRequest, prefix string, places map[string]uint64) (page AuditPage,
	err error) {
	page.Places = map[string]uint64{}
	since := time.Unix(0, int64(min(m.Since, math.MaxInt64)))
	want := func(e audit.Event) bool {
		return !e.Time.Before(since) && (m.Tenant == "" || e.Tenant == m.Tenant) && strings.HasPrefix(e.What, prefix)
	}
	logs := d.audits.Load()
	if logs == nil {
		return page, nil
	}
	limit := auditLimit(m)
	end := time.Time{} // of the series that has more: what is later in the other one comes with that
	lists := map[string][]audit.Event{}
	for series, l := range *logs {
		list, next, more, err := l.Read(places[series], limit, want)
		if err != nil {
			return page, err
		}
		page.Lost += l.Lost()
		page.Places[series], lists[series] = next, list
		if more { // a clock that was set back: the last event need not be the latest
			last := slices.MaxFunc(list, byTime).Time
			if end.IsZero() || last.Before(end) {
				end = last
			}
		}
		page.More = page.More || more
	}
	for series, list := range lists {
		if i := slices.IndexFunc(list, func(e audit.Event) bool { return page.More && e.Time.After(end) }); i >= 0 {
			page.Places[series], list = list[i].Number-1, list[:i]
		}
		for _, e := range list {
			e.Detail = cmp.Or(e.Detail, series)
			page.Events = append(page.Events, e)
		}
	}
	slices.SortStableFunc(page.Events, byTime)
	return page, nil
}

func byTime(a, b audit.Event) int { return a.Time.Compare(b.Time) }

// nodeAudit is what one node has answered.
type nodeAudit struct {
	id, name string
	page     AuditPage
	err      error
}

// allAudit asks all nodes, and puts their events in order: up to the time to which each of them has told all.
func (d *Daemon) allAudit(m wire.AuditRequest, places map[string]map[string]uint64) (all AuditPage, err error) {
	told, next, all, err := d.gatherAudit(m, places)
	for _, e := range told {
		all.Events = append(all.Events, e.Event)
	}
	if err != nil {
		return all, err
	}
	raw, err := json.Marshal(next)
	all.Next = string(raw)
	all.Events = notNil(all.Events)
	return all, err
}

// nodeEvent is an event of a node, by the node's identifier: a node may have had another name.
type nodeEvent struct {
	audit.Event
	node string
}

// gatherAudit is allAudit with the events' nodes. next is where each node and series goes on behind them.
func (d *Daemon) gatherAudit(m wire.AuditRequest, places map[string]map[string]uint64) (told []nodeEvent,
	next map[string]map[string]uint64, all AuditPage, err error) {
	found := d.askForAudit(m, places)
	end := time.Time{}
	for _, n := range found {
		switch {
		case n.err != nil && n.name == d.identity.Name:
			return nil, nil, all, n.err
		case n.err != nil:
			all.Silent = append(all.Silent, n.name)
		case n.page.More && len(n.page.Events) > 0:
			if last := n.page.Events[len(n.page.Events)-1].Time; end.IsZero() || last.Before(end) {
				end = last
			}
		}
	}
	next = map[string]map[string]uint64{}
	for _, n := range found {
		next[n.id] = places[n.id]
		if n.err != nil {
			continue
		}
		all.Lost, all.More = all.Lost+n.page.Lost, all.More || n.page.More
		if next[n.id] = n.page.Places; next[n.id] == nil {
			next[n.id] = map[string]uint64{} // it must not be, and would end this node
		}
		later := func(e audit.Event) bool { return !end.IsZero() && e.Time.After(end) }
		for _, e := range n.page.Events {
			if later(e) {
				next[n.id][e.Detail], all.More = min(next[n.id][e.Detail], e.Number-1), true
			}
		}
		for _, e := range n.page.Events {
			if e.Number <= next[n.id][e.Detail] {
				told = append(told, nodeEvent{e, n.id})
			}
		}
	}
	slices.SortFunc(told, func(a, b nodeEvent) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Detail, b.Detail),
			cmp.Compare(a.Number, b.Number))
	})
	all.Silent = notNil(all.Silent)
	return told, next, all, nil
}

func (d *Daemon) askForAudit(m wire.AuditRequest, places map[string]map[string]uint64) []nodeAudit {
	member := d.meta.now.Load()
	ctx, cancel := context.WithTimeout(member.ctx, auditAskTime+d.patience())
	defer cancel()
	var found []nodeAudit
	member.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			found = append(found, nodeAudit{id: n.ID.String(), name: n.Name})
		}
	})
	var asked sync.WaitGroup
	for i := range found {
		n := &found[i]
		if n.id == d.meta.node.String() {
			n.page, n.err = d.readAudit(m, "", places[n.id])
			continue
		}
		asked.Go(func() { n.page, n.err = d.askOneForAudit(ctx, member, n.id, m, places[n.id]) })
	}
	asked.Wait()
	return found
}

func (d *Daemon) askOneForAudit(ctx context.Context, member *membership, id string, m wire.AuditRequest,
	places map[string]uint64) (page AuditPage, err error) {
	node, err := parseUUID(id)
	if err != nil {
		return page, err
	}
	if !member.live.alive(node).Answers {
		return page, fmt.Errorf("%w: node %s does not answer", object.ErrTimeout, id)
	}
	cursor, err := json.Marshal(map[string]map[string]uint64{id: places})
	if err != nil {
		return page, err
	}
	m.Cursor = string(cursor)
	b, err := member.links.ask(ctx, node, wire.Audit, &m)
	if err == nil {
		err = json.Unmarshal(b, &page)
	}
	return page, err
}
