package daemon

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"time"

	"tendril/daemon/frontdoor"
	"tendril/daemon/keeper"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store"
)

// Status is what `tendril status --json` shows. Fields are only ever added.
type Status struct {
	Node      NodeStatus             `json:"node"`
	Store     store.Status           `json:"store"`
	Drivers   []workers.DriverStatus `json:"drivers"`
	Sessions  []SessionStatus        `json:"sessions"`
	Leases    []leases.Status        `json:"leases"` // of devices, and who waits for one
	Workers   []workers.Status       `json:"workers"`
	Bounds    workers.Bounds         `json:"bounds"`                   // of workers and tenants
	Hidden    []workers.Hidden       `json:"hidden_devices,omitempty"` // by --devices
	Fallbacks []clwire.Fallback      `json:"fallbacks"`
	PeerLinks []PeerLinkStatus       `json:"peer_links"`       // some of each session whose contexts span workers
	Kept      []store.Kept           `json:"kept"`             // who has memory that was given up, a tenant each
	Keeper    *keeper.Status         `json:"keeper,omitempty"` // nil: none was needed so far
	// of memory of OpenCL devices that are no GPUs of the CUDA driver's
	OpenCLKeepers []*keeper.Status `json:"opencl_keepers,omitempty"`
	Transfers     []TransferStatus `json:"transfers"` // objects on their way here from other nodes

	Others *OthersStatus `json:"others,omitempty"` // what is not shown: other tenants'. nil: everything is
}

// NodeStatus is the daemon itself.
type NodeStatus struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Incarnation string    `json:"incarnation"`
	Version     string    `json:"version"`
	PID         int       `json:"pid"`
	UID         int       `json:"uid"`
	Since       time.Time `json:"since"`
	Socket      string    `json:"socket"`
	StateDir    string    `json:"state_dir"`
	CacheDir    string    `json:"cache_dir"`
	FileLimit   uint64    `json:"file_limit"`       // descriptors that the daemon may hold
	Listen      string    `json:"listen,omitempty"` // where the front door waits for other machines
	HTTP        string    `json:"http,omitempty"`   // where inspection answers over TCP
	Goroutines  int       `json:"goroutines"`       // of the daemon now; one that only grows is a leak
}

// SessionStatus is one OpenCL program.
type SessionStatus struct {
	ID       uint64    `json:"id"`
	PID      int       `json:"pid"`
	UID      uint32    `json:"uid"`
	Tenant   string    `json:"tenant"`
	Program  string    `json:"program"` // what it calls itself
	Selector string    `json:"selector,omitempty"`
	Library  string    `json:"library_version"`
	Since    time.Time `json:"since"`

	Peer      string `json:"peer,omitempty"` // address, of a program on another machine
	Transport string `json:"transport"`
	Lease     uint64 `json:"lease,omitempty"` // whose devices it uses; 0: it shares those that nobody leases

	PeerLinks int `json:"peer_links,omitempty"` // between its workers and others; Status.PeerLinks has the first 16

	WaitsUntil time.Time `json:"waits_until,omitzero"` // its client's connection was lost, and may come back until then

	shown []*workers.Platform // what its program sees of this node
}

// status gathers everything; it waits for nothing.
func (d *Daemon) status() Status {
	sessions := notNil(d.sessions.list())
	return Status{
		Node:      d.nodeStatus(),
		Store:     d.store.Status(),
		Drivers:   notNil(d.pool.Drivers()),
		Sessions:  sessions,
		Leases:    d.leaseStatus(""),
		Workers:   notNil(d.pool.Workers()),
		Bounds:    d.pool.Bounds(),
		Hidden:    d.pool.Hidden(),
		Fallbacks: notNil(d.fallbacks()),
		PeerLinks: notNil(d.peering.show(sessions)),
		Kept:      notNil(d.store.Kept()),
		Keeper:    d.keeper.Status(), OpenCLKeepers: d.devices.Status(),
		Transfers: notNil(d.bringing.list()),
	}
}

// notNil makes JSON show an empty list as [] and not as null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// fallbacks joins what the start found with what workers and probes reported.
func (d *Daemon) fallbacks() []clwire.Fallback {
	list := append(slices.Clone(d.startFallbacks), d.pool.Fallbacks()...)
	if why := d.whyClosed(); why != "" {
		list = append(list, clwire.Fallback{What: "front door for other machines", Why: why})
	}
	if why := d.store.KeptUnknown(); why != "" {
		list = append(list, clwire.Fallback{What: "charging memory until it is free",
			Why: why + ": memory that a process keeps after it was freed is charged to nobody"})
	}
	for _, v := range workers.Visible() {
		list = append(list, clwire.Fallback{What: "devices that the daemon's environment hides",
			Why: v + ": drivers show workers no other devices; start the daemon without it, or with another value"})
	}
	meta := d.meta.raft.Status()
	if meta.Fault != "" {
		list = append(list, clwire.Fallback{What: "changes to the cluster's metadata", Why: meta.Fault})
	}
	if meta.SnapshotFault != "" {
		list = append(list, clwire.Fallback{What: "snapshots of the cluster's metadata", Why: meta.SnapshotFault})
	}
	slices.SortStableFunc(list, func(a, b clwire.Fallback) int { return strings.Compare(a.What, b.What) })
	return list
}

// nodeStatus adds what opens later than the node.
func (d *Daemon) nodeStatus() NodeStatus {
	n := d.node
	n.Goroutines = runtime.NumGoroutine()
	if door := d.door.Load(); door != nil && door.RemoteAddr() != nil {
		n.Listen = door.RemoteAddr().String()
	}
	if server := d.inspect.Load(); server != nil && server.Address() != nil {
		n.HTTP = server.Address().String()
	}
	return n
}

// Status implements frontdoor.Backend. Root and the daemon's user see everything, others what their tenant has.
func (d *Daemon) Status(p frontdoor.Peer) ([]byte, error) {
	s := d.status()
	s.Store.For(p.Tenant)
	if !p.Admin {
		s.only(p.Tenant)
		s.Leases = d.leaseStatus(p.Tenant)
	}
	return json.Marshal(s)
}

// OthersStatus counts what a status leaves out: what other tenants have.
type OthersStatus struct {
	Sessions  int `json:"sessions"`
	Workers   int `json:"workers"`
	PeerLinks int `json:"peer_links"`
	Damaged   int `json:"damaged"` // files, whose names tell of objects
}

// only leaves out what other tenants have, and counts it. The store's totals stay: they say how much room there is.
func (s *Status) only(tenant string) {
	own := map[uint64]bool{}
	o := OthersStatus{Damaged: len(s.Store.Damaged)}
	for _, x := range s.Sessions {
		if own[x.ID] = x.Tenant == tenant; !own[x.ID] {
			o.PeerLinks += x.PeerLinks
		}
	}
	s.Sessions, o.Sessions = keep(s.Sessions, func(x SessionStatus) bool { return x.Tenant == tenant })
	s.Workers, o.Workers = keep(s.Workers, func(x workers.Status) bool { return x.Tenant == tenant })
	s.PeerLinks, _ = keep(s.PeerLinks, func(x PeerLinkStatus) bool { return own[x.Session] })
	s.Kept, _ = keep(s.Kept, func(x store.Kept) bool { return x.Tenant == tenant })
	s.Transfers, _ = keep(s.Transfers, func(x TransferStatus) bool { return x.Tenant == tenant })
	s.Store.Tenants, _ = keep(s.Store.Tenants, func(x store.TenantStatus) bool { return x.Name == tenant })
	s.Store.Damaged = nil
	s.Others = &o
}

// keep gives what may be seen of a list, and how much may not.
func keep[T any](list []T, mine func(T) bool) (kept []T, others int) {
	kept = []T{}
	for _, x := range list {
		if mine(x) {
			kept = append(kept, x)
		}
	}
	return kept, len(list) - len(kept)
}
