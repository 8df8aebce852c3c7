package store

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/order"
)

const (
	walkStep = 256 // objects that a listing looks at in one hold of the lock
	lookStep = 32  // and that it describes in one
)

// List describes the tenant's objects whose name begins with prefix, oldest first: sealed ones and c's own unsealed
// ones, with all also other connections'. It is not a snapshot: what comes or goes meanwhile may be in it or not.
func (c *Conn) List(prefix string, all bool) []object.Info {
	return c.ListWhere(Query{Prefix: prefix, All: all})
}

// Query says which objects ListWhere describes.
type Query struct {
	Prefix string            // of the name
	All    bool              // other connections' unsealed ones, too
	Labels map[string]string // all of these
	Shared bool              // other tenants' that may be read, instead of the own ones
}

// ListWhere is List with more conditions. Its answer takes memory in proportion to the tenant's objects: what a peer
// asks for is answered with Walk.
func (c *Conn) ListWhere(q Query) (infos []object.Info) {
	c.Walk(q, order.Cursor{}, math.MaxInt, func(info object.Info) bool {
		infos = append(infos, info)
		return true
	})
	return infos
}

// Walk calls f with the descriptions of objects that ListWhere describes, from behind a cursor on, until f answers
// false, which leaves the last one for the next call, or so many were looked at. It gives where the next Walk is to go
// on; more is false where there was nothing behind that. The store is not locked while f runs. The cost is in
// proportion to what was looked at.
func (c *Conn) Walk(q Query, from order.Cursor, atMost int, f func(object.Info) bool) (next order.Cursor, more bool) {
	return c.walk(q, c.owner.Tenant, from, atMost, f)
}

// WalkAll is Walk over every tenant's objects, whoever asks: one tenant's at a time, in the order of their names. A
// place is where the next WalkAll is to go on; "" is the beginning, and the end. Error: ErrInvalid, for a place that is
// none.
func (c *Conn) WalkAll(q Query, from string, atMost int,
	f func(info object.Info, place string) bool) (next string, err error) {
	whose, at, err := parsePlace(from)
	if err != nil {
		return "", err
	}
	at, more := c.walk(q, whose, at, atMost, func(o object.Info) bool {
		return f(o, placeOf(order.At(o.Created, o.ID), whose))
	})
	if more {
		return placeOf(at, whose), nil
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if whose = c.s.tenantAfter(whose); whose == "" {
		return "", nil
	}
	return placeOf(order.Cursor{}, whose), nil
}

// tenantAfter gives the tenant whose name follows; "" = none does. mu is held.
func (s *Store) tenantAfter(name string) (next string) {
	for other := range s.tenants {
		if other > name && (next == "" || other < next) {
			next = other
		}
	}
	return next
}

// walk is Walk over one tenant's objects.
func (c *Conn) walk(q Query, whose string, from order.Cursor, atMost int,
	f func(object.Info) bool) (next order.Cursor, more bool) {
	slots := make(slotRefs)
	for atMost > 0 {
		found, end := c.glance(q, whose, from, min(atMost, walkStep))
		found = slices.DeleteFunc(found, func(x glance) bool { return !hasLabels(x.labels, q.Labels) })
		for step := range slices.Chunk(found, lookStep) { // no more than f wants are described
			seen := c.lookAt(q, step)
			slots.add(c.s, seen)
			for _, x := range seen {
				if !f(x.describe()) {
					return from, true
				}
				from = x.e.Cursor()
			}
		}
		if end == nil {
			return from, false
		}
		from, atMost = *end, atMost-walkStep
	}
	return from, true
}

// endStep lets go of the lock at the end of a step that others may follow: who waits has it before the next step. The
// processor, too, goes to who is ready: where it is lost in the middle of a step, all wait who want the lock. mu is
// held.
func (s *Store) endStep() {
	s.pauses++
	s.mu.Unlock()
	unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
	runtime.Gosched()                           // or the next step's Lock would be faster than who waits
}

// lookAt describes those objects that a listing is still about. Whoever loses the processor while it has the lock has
// all others wait, so it does little under that.
func (c *Conn) lookAt(q Query, found []glance) []sight {
	seen := make([]sight, 0, len(found))
	c.s.mu.Lock()
	defer c.s.endStep()
	for _, x := range found {
		if c.lists(q, x.e) {
			seen = append(seen, c.s.sightOf(x.e))
		}
	}
	return seen
}

// glance is an object that a listing is about, but for its labels: those that it had.
type glance struct {
	e      *entry
	labels map[string]string // never changed in place
}

// glance finds what a listing is about among up to n objects behind a cursor; end is the place of the last of them,
// nil where there was none.
func (c *Conn) glance(q Query, whose string, from order.Cursor, n int) (found []glance, end *order.Cursor) {
	s, list := c.s, make([]*entry, 0, n)
	found = make([]glance, 0, n)
	s.mu.Lock()
	defer s.endStep()
	if q.Shared {
		list = c.sharedWith(from, n)
	} else if t := s.tenants[whose]; t != nil {
		list = t.entries.After(list, from, n)
	}
	for _, e := range list {
		if c.lists(q, e) {
			found = append(found, glance{e, e.labels})
		}
	}
	if len(list) > 0 {
		at := list[len(list)-1].Cursor()
		end = &at
	}
	return found, end
}

// lists reports whether a listing is about e, as far as its labels do not say. mu is held.
func (c *Conn) lists(q Query, e *entry) bool {
	open := e.state == object.Open && (q.All || e.creator == c)
	return (open || e.state == object.Sealed || e.state == object.Spilled) && (!q.Shared || e.tenant != c.tenant) &&
		strings.HasPrefix(e.name, q.Prefix)
}

// Stat describes one object of the tenant, sealed or not; by name where id is zero.
func (c *Conn) Stat(id object.ID, name string) (object.Info, error) {
	c.s.mu.Lock()
	e, err := c.readable(id, name)
	if err != nil {
		c.s.mu.Unlock()
		return object.Info{}, err
	}
	x := []sight{c.s.sightOf(e)}
	c.s.mu.Unlock()
	make(slotRefs).add(c.s, x)
	return x[0].describe(), nil
}

// Meta gives a sealed object's metadata as its creator gave it, where Stat shows it as JSON. It is immutable. Error:
// object.ErrNotFound.
func (s *Store) Meta(id object.ID) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.objects[id]
	if e == nil {
		return nil, fmt.Errorf("%w: no object %s", object.ErrNotFound, id)
	}
	return e.meta, nil
}

// sight is what a look at an object under the lock found: its description, but for what can be made without the lock of
// what is never changed in place.
type sight struct {
	e       *entry
	info    object.Info
	meta    []byte
	members []member
}

// describe gives the whole description.
func (x *sight) describe() object.Info {
	info := x.info
	info.Meta = object.MetaJSON(x.meta)
	for _, m := range x.members {
		info.Members = append(info.Members, object.Member{Name: m.name, ID: m.e.id})
	}
	return info
}

// sightOf begins a description. mu is held.
func (s *Store) sightOf(e *entry) sight {
	ref := e.ref()
	info := object.Info{
		ID: e.id, Name: e.name, Kind: s.kind(e), Class: e.class, State: e.state, SizeBytes: e.size,
		Tenant: e.tenant.name,
		Refs:   e.refs - int(e.retired), Segment: ref.Segment, Offset: ref.Offset, Created: e.created.UTC(),
		CreatorPID: e.creatorPID, Creator: e.creatorName, Strict: e.strict,
	}
	if e.gpu != nil {
		info.Device = e.gpu.device
	}
	if e.offDevice() {
		info.State = object.Spilled // in host memory or on disk: as far from who gets it
	}
	if e.state != object.Open {
		sealed := e.sealed.UTC()
		info.Sealed = &sealed
	}
	info.Fillers, info.Cached = len(e.fillers), e.isCopy()
	e.describeStorage(&info)
	return sight{e, info, e.meta, e.members}
}

// Status is the store in numbers; the JSON is part of the daemon's status.
type Status struct {
	Objects     int `json:"objects"`
	OpenObjects int `json:"open_objects"`
	References  int `json:"references"`
	Connections int `json:"connections"`
	Segments    int `json:"segments"`
	// of them those that have memory, each a descriptor of the daemon's, and how many may have; 0 = no limit
	OpenSegments       int    `json:"open_segments"`
	SegmentLimit       int    `json:"segment_limit"`
	TenantSegmentLimit int    `json:"tenant_segment_limit"` // of one tenant's
	CapacityBytes      uint64 `json:"capacity_bytes"`
	ChargedBytes       uint64 `json:"charged_bytes"` // segments and table
	SegmentBytes       uint64 `json:"segment_bytes"` // segments alone, real size
	UsedBytes          uint64 `json:"used_bytes"`    // what creators asked for
	WarmBytes          uint64 `json:"warm_bytes"`    // populated, for whom comes next
	IdleBytes          uint64 `json:"idle_bytes"`    // empty, kept for their writers
	// of no use, but given up just now, or by a process whose connection has ended just now, so that its users may
	// still be unmapping it; or on its way to disk
	LeavingBytes uint64 `json:"leaving_bytes"`
	// TenantLeavingBytes is how much of that is charged to the tenant that asks; nil: whoever asks is none.
	TenantLeavingBytes *uint64 `json:"tenant_leaving_bytes,omitempty"`
	// given up by all who say what they have, and still in somebody's hands
	KeptBytes    uint64 `json:"kept_bytes"`
	SessionBytes uint64 `json:"session_bytes"` // sessions' segments
	TableBytes   uint64 `json:"table_bytes"`   // the records themselves
	HugeBytes    uint64 `json:"huge_bytes"`    // of segments, in reserved huge pages
	// the machine has little memory left: what is kept for nobody goes back
	MachineShort bool `json:"machine_short"`
	// of the daemon's own memory, that requests hold while they wait or lie unread
	RequestBytes uint64         `json:"request_bytes"`
	RequestLimit uint64         `json:"request_limit"`     // what they may hold; a tenant's a quarter
	Tenants      []TenantStatus `json:"tenants"`           // by name
	Index        IndexStatus    `json:"index"`             // in shared memory
	Devices      []DeviceStatus `json:"devices,omitempty"` // memory of GPUs in objects

	// KeptUnknown says why memory counted as free as soon as those who had it said so; "" = the kernel was asked.
	KeptUnknown string `json:"kept_unknown,omitempty"`

	SpilledObjects  int      `json:"spilled_objects"` // on disk alone
	SpilledBytes    uint64   `json:"spilled_bytes"`   // their sizes
	DiskBytes       uint64   `json:"disk_bytes"`      // what files take
	DiskBytesAtMost uint64   `json:"disk_bytes_at_most"`
	DiskWaiting     int      `json:"disk_waiting"`      // transfers that wait for others: tenants take turns
	Damaged         []string `json:"damaged,omitempty"` // files that could not be read at the start
	FilesLeft       int      `json:"files_left"`        // of deleted objects: the disk let none be removed; tried again
	RecordsBehind   int      `json:"records_behind"`    // of objects: the disk did not take the last change; tried again

	Scrub object.ScrubStatus `json:"scrub"`
}

// TenantStatus is one tenant in numbers.
type TenantStatus struct {
	Name         string `json:"name"`
	Objects      int    `json:"objects"`
	Connections  int    `json:"connections"`
	OpenSegments int    `json:"open_segments"`
	ChargedBytes uint64 `json:"charged_bytes"`
	LeavingBytes uint64 `json:"leaving_bytes"` // of it, as Status.LeavingBytes
	KeptBytes    uint64 `json:"kept_bytes"`    // of it, as Status.KeptBytes
	DiskBytes    uint64 `json:"disk_bytes"`
	RequestBytes uint64 `json:"request_bytes"`

	Devices []DeviceStatus `json:"devices,omitempty"` // memory of GPUs in its objects
}

// Status counts. The cost is in proportion to the segments, tenants and slots in use, not to the objects.
func (s *Store) Status() Status {
	inIndex := s.indexStatus()
	s.mu.Lock()
	defer s.unlock()
	s.takeFreed()
	s.dropEndedIPC()
	st := Status{
		Objects: len(s.objects), OpenObjects: s.openCount, References: s.references, Connections: len(s.conns),
		Segments: len(s.segments), OpenSegments: s.opened, SegmentLimit: s.opts.Segments,
		CapacityBytes: s.opts.CapacityBytes, ChargedBytes: s.charged, UsedBytes: s.usedBytes, TableBytes: s.tableBytes,
		WarmBytes: uint64(len(s.warm)) * s.opts.SegmentBytes, Tenants: make([]TenantStatus, 0, len(s.tenants)),
	}
	st.MachineShort, st.RequestBytes, st.RequestLimit = s.short, s.requests.Total(), s.requests.Limit()
	if st.SegmentLimit > 0 {
		st.TenantSegmentLimit = s.opts.TenantSegments
	}
	st.KeptUnknown, st.Devices = s.whyUnwatched(), s.devices.list()
	st.SpilledObjects, st.SpilledBytes, st.Damaged = s.spilled, s.spilledBytes, s.damaged
	st.FilesLeft, st.RecordsBehind = len(s.undead), len(s.behind)
	if s.spill != nil {
		st.DiskBytes, st.DiskBytesAtMost = s.spill.TakenBytes(), s.spill.LimitBytes()
		st.DiskWaiting = s.spill.Waiting()
	}
	st.Index, st.Scrub = inIndex, s.scrubStatus()
	st.References += st.Index.References
	leaves := make(map[*tenant]uint64)
	leaving := func(g *segmentState) {
		st.LeavingBytes += g.bytes
		leaves[g.charged()] += g.bytes
	}
	steps := 0
	for _, g := range s.segments {
		s.breathe(&steps)
		st.SegmentBytes += g.bytes
		if g.mem != nil && g.mem.Huge() {
			st.HugeBytes += g.bytes
		}
		switch {
		case g.mem == nil: // who has not unmapped it by then may never do so, and it is KeptBytes alone
			if time.Since(g.left) < leavingTime || len(g.seen) == 0 && time.Since(g.ended) < leavingTime {
				leaving(g)
			}
		case g.evicting:
			leaving(g)
		case g.session && g.writer != nil && g.writer.stopped.Load(): // the session's workers are being ended
			leaving(g)
		case g.session:
			st.SessionBytes += g.bytes
		case g.idle:
			st.IdleBytes += g.bytes
		}
	}
	keeps := make(map[*tenant]uint64)
	for _, r := range s.remnants {
		s.breathe(&steps)
		if !r.used && (r.g == nil || len(r.g.seen) == 0) {
			keeps[r.tenant] += r.bytes
			st.KeptBytes += r.bytes
		}
	}
	for _, t := range s.tenants {
		st.Tenants = append(st.Tenants, TenantStatus{
			Name: t.name, Objects: t.entries.Len(), Connections: t.conns, ChargedBytes: t.charged, KeptBytes: keeps[t],
			LeavingBytes: leaves[t], DiskBytes: t.disk, OpenSegments: t.opened, RequestBytes: s.requests.Held(t.name),
			Devices: t.devices.list(),
		})
	}
	sort.Slice(st.Tenants, func(i, j int) bool { return st.Tenants[i].Name < st.Tenants[j].Name })
	return st
}

// For makes it the status that a tenant asked for.
func (st *Status) For(tenant string) {
	st.TenantLeavingBytes = new(uint64)
	at := sort.Search(len(st.Tenants), func(i int) bool { return st.Tenants[i].Name >= tenant })
	if at < len(st.Tenants) && st.Tenants[at].Name == tenant {
		*st.TenantLeavingBytes = st.Tenants[at].LeavingBytes
	}
}

// Tenants gives the names of those that have something, in order.
func (s *Store) Tenants() []string {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.tenants))
	s.mu.Unlock()
	slices.Sort(names)
	return names
}

// CountObjects gives how many objects there are of the tenants that of chooses, unsealed ones too.
func (s *Store) CountObjects(of func(tenant string) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.tenants {
		if of(name) {
			n += t.entries.Len()
		}
	}
	return n
}

// CapacityBytes gives the bound of all memory.
func (s *Store) CapacityBytes() uint64 { return s.opts.CapacityBytes }

// Counts gives what happened so far.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	c := s.counts
	s.unlock()
	c.Writes, c.Reads = s.writes.Read(), s.reads.Read()
	return c
}

// maxHolders bounds those that are listed of one object.
const maxHolders = 256
