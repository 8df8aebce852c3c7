// Package leases decides who uses which of this node's devices alone.
//
// A lease is some devices, for one tenant, from its grant until the last session that uses it ends; the daemon ends
// those of a lease whose longest time is over. Sessions without a lease share the devices that are not leased. Table is
// the whole: a pure table in memory, with the clock it is given.
//
// A lease over several nodes has a part here, which is taken and ended as the cluster's metadata says (parts.go). This
// node alone decides who has its devices, so that no device is leased twice, whatever the others know.
//
// First come, first served: who waits has a ticket, and comes back with it. A place in the line is kept for as long as
// Patience after its owner asked last, so one that died holds nobody up for longer. As long as somebody waits for a
// device, nobody who comes later gets it, shared or alone.
//
// Trust: tickets and tokens are a client's bytes, compared and never interpreted; a tenant's waiters are bounded.
// Locks: Table.mu is a leaf.
package leases

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/store/object"
)

// Patience is how long a place in the line is kept for who does not ask again.
const Patience = 10 * time.Second

// MaxWaiters bounds the places that one tenant has in the line.
const MaxWaiters = 1024

// Request asks for devices.
type Request struct {
	Tenant  string
	Holder  string   // the program that asks, for its own tenant's eyes
	Devices []string // keys of those that would do, the best first, each once
	Count   int      // of them; 0: all
	Ticket  string   // of the place in the line; "": who cannot be served now does not wait
	By      *Asker   // who asks; nil: nobody gives the place up
	Most    int      // devices that the tenant may have leased here in all; 0: no bound

	// Of a lease over nodes: its identifier, what sessions join it with, and its place among such leases.
	ID, Token string
	Order     uint64
}

// Lease is some devices that one tenant has. It is immutable but for its sessions.
type Lease struct {
	Number  uint64
	ID      string // of a lease over nodes, of which this is the part here; "": it is of this node alone
	Token   string // who knows it may join
	Tenant  string
	Holder  string
	Devices []string
	Since   time.Time
	Until   time.Time // its longest time is over; zero: it has none

	uses  int  // sessions, and the record of a lease over nodes; guarded by Table.mu
	home  bool // of a lease over nodes: its program is this node's; guarded by Table.mu
	ended bool // of a lease over nodes: its record is gone; guarded by Table.mu
}

// sessions counts those that use it. Table.mu is held.
func (l *Lease) sessions() int {
	if l.ID != "" && !l.ended {
		return l.uses - 1
	}
	return l.uses
}

// Has reports whether a device is among the lease's. A nil lease has none.
func (l *Lease) Has(device string) bool { return l != nil && slices.Contains(l.Devices, device) }

// Table is a node's leases.
type Table struct {
	now     func() time.Time // immutable, as is
	longest time.Duration    // of a lease; 0: no bound

	mu     sync.Mutex // guards the rest; a leaf
	last   uint64
	freed  uint64 // how often devices, or places in the line, became free
	leases []*Lease
	shared map[uint64]*share // by session
	line   []*waiter
	calls  calls
}

// share is what a session without a lease uses.
type share struct {
	tenant  string
	devices []string
}

type waiter struct {
	Request
	since, asked time.Time
	woken        chan struct{} // closed when it is worth asking again; nil: nobody waits for that
}

// New makes an empty table whose leases last as long as longest, at most; 0: no bound. now is time.Now.
func New(longest time.Duration, now func() time.Time) *Table {
	return &Table{now: now, longest: longest, shared: map[uint64]*share{}, calls: calls{more: make(chan struct{}, 1)}}
}

// heldLocked counts the devices that a tenant has.
func (t *Table) heldLocked(tenant string) (n int) {
	for _, l := range t.leases {
		if l.Tenant == tenant {
			n += len(l.Devices)
		}
	}
	return n
}

// Grant gives a lease, which Drop ends; the caller counts as its first session. A request whose devices are not free
// is ErrBusy, which says who has them; with a ticket its place in the line is kept then. ErrNoDevice: there are fewer
// devices than it wants, whoever has them.
func (t *Table) Grant(r Request) (*Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	want := r.Count
	if want == 0 {
		want = len(r.Devices)
	}
	if want == 0 || want > len(r.Devices) {
		return nil, Lacks(want, len(r.Devices), "this node has")
	}
	if mine := t.heldLocked(r.Tenant); r.Most > 0 && mine+want > r.Most {
		return nil, fmt.Errorf("%w: tenant %s has %d of %s of this node leased, and wants %d more", object.ErrQuota,
			r.Tenant, mine, object.Counted(r.Most, "device"), want)
	}
	place := t.placeLocked(&r)
	before := t.line[:place]
	var free, reasons []string
	for _, device := range r.Devices {
		if why := t.busyLocked(device, before); why != "" {
			reasons = append(reasons, why)
		} else if len(free) < want {
			free = append(free, device)
		}
	}
	if len(free) < want {
		if err := t.waitLocked(r, place); err != nil {
			return nil, err
		}
		slices.Sort(reasons)
		return nil, NotFree(want, len(free), slices.Compact(reasons))
	}
	if place < len(t.line) {
		t.line = slices.Delete(t.line, place, place+1)
	}
	t.last++
	l := &Lease{Number: t.last, Token: token(), Tenant: r.Tenant, Holder: r.Holder, Devices: free, Since: t.now(),
		uses: 1}
	if t.longest > 0 {
		l.Until = l.Since.Add(t.longest)
	}
	t.leases = append(t.leases, l)
	return l, nil
}

// Lacks is ErrNoDevice: a lease wants more devices than match. who has them, as "this node has". want 0 is all that
// match, and so one at least.
func Lacks(want, match int, who string) error {
	return fmt.Errorf("%w: the lease wants %s, and %s %s", object.ErrNoDevice, object.Counted(max(want, 1), "device"),
		who, thoseThat(match, "that matches", "that match"))
}

// NotFree is ErrBusy: so many of the devices that a lease wants are free, and why the others are not.
func NotFree(want, free int, reasons []string) error {
	return fmt.Errorf("%w: the lease wants %s, and %s free: %s", object.ErrBusy, object.Counted(max(want, 1), "device"),
		thoseThat(free, "is", "are"), strings.Join(reasons, "; "))
}

// thoseThat is how many do something: "none is", "1 is", "2 are".
func thoseThat(n int, does, do string) string {
	switch n {
	case 0:
		return "none " + does
	case 1:
		return "1 " + does
	}
	return fmt.Sprintf("%d %s", n, do)
}

// token is 128 random bits, in hexadecimal digits.
func token() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail: crypto/rand
	return hex.EncodeToString(b[:])
}

// placeLocked finds a request's place in the line; len(line): it has none.
func (t *Table) placeLocked(r *Request) int {
	if i := slices.IndexFunc(t.line, func(w *waiter) bool {
		return r.Ticket != "" && w.Ticket == r.Ticket && w.Tenant == r.Tenant
	}); i >= 0 {
		return i
	}
	if i := slices.IndexFunc(t.line, func(w *waiter) bool { return r.Order > 0 && w.Order > r.Order }); i >= 0 {
		return i // leases over nodes have one order at all nodes, so that no two wait for each other
	}
	return len(t.line)
}

// waitLocked keeps a place, where a ticket asks for one.
func (t *Table) waitLocked(r Request, place int) error {
	if r.Ticket == "" {
		return nil
	}
	now := t.now()
	if place < len(t.line) && t.line[place].Ticket == r.Ticket && t.line[place].Tenant == r.Tenant {
		w := t.line[place]
		w.Request, w.asked = r, now
		return nil
	}
	waits := 0
	for _, w := range t.line {
		if w.Tenant == r.Tenant {
			waits++
		}
	}
	if waits >= MaxWaiters {
		return fmt.Errorf("%w: tenant %s waits for %d leases already, which is the limit", object.ErrLimit,
			r.Tenant, waits)
	}
	t.line = slices.Insert(t.line, place, &waiter{Request: r, since: now, asked: now})
	return nil
}

// busyLocked says why a device cannot be leased now; "": it can. before are those who came first.
func (t *Table) busyLocked(device string, before []*waiter) string {
	if why := t.leasedLocked(device, nil); why != "" {
		return why
	}
	for number, s := range t.shared {
		if slices.Contains(s.devices, device) {
			return fmt.Sprintf("session %d of %s shares one, until it ends", number, s.tenant)
		}
	}
	for _, w := range before {
		if slices.Contains(w.Devices, device) {
			return fmt.Sprintf("%s waits for one since %s", w.Tenant, stamp(w.since))
		}
	}
	return ""
}

// leasedLocked says who else has a device.
func (t *Table) leasedLocked(device string, own *Lease) string {
	for _, l := range t.leases {
		if l != own && l.Has(device) {
			return fmt.Sprintf("%s has one since %s", l.Tenant, stamp(l.Since))
		}
	}
	return ""
}

func stamp(at time.Time) string { return at.Format("2006-01-02 15:04:05") }

// Join lets another session of the same tenant use a lease. ErrNotFound: the token is of none that lives.
func (t *Table) Join(token, tenant string) (*Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.leases {
		if l.Token == token && l.Tenant == tenant && !l.ended && !l.over(t.now()) {
			l.uses++
			return l, nil
		}
	}
	return nil, fmt.Errorf("%w: the lease that TENDRIL_LEASE names has ended", object.ErrNotFound)
}

func (l *Lease) over(now time.Time) bool { return !l.Until.IsZero() && !now.Before(l.Until) }

// Over lists the leases whose longest time is over.
func (t *Table) Over() (list []*Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.leases {
		if l.over(t.now()) {
			list = append(list, l)
		}
	}
	return list
}

// Drop ends one session's use of a lease, which may be nil; with the last the lease ends.
func (t *Table) Drop(l *Lease) {
	if l == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(l)
}

// dropLocked is Drop. It reports whether the lease has ended.
func (t *Table) dropLocked(l *Lease) bool {
	if l.uses--; l.uses > 0 {
		return false
	}
	t.leases = slices.DeleteFunc(t.leases, func(x *Lease) bool { return x == l })
	t.freedLocked()
	return true
}

// Freed counts how often devices, or places in the line, became free: who found none need not look before it changes.
func (t *Table) Freed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	return t.freed
}

// Share notes that a session without a lease uses devices from now on, until Leave. ErrBusy: one is leased, or somebody
// waits for it.
func (t *Table) Share(session uint64, tenant string, devices []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	s := t.shared[session]
	for _, device := range devices {
		if s != nil && slices.Contains(s.devices, device) {
			continue
		}
		if why := t.awaitedLocked(device); why != "" {
			return fmt.Errorf("%w: this session's devices are leased: %s", object.ErrBusy, why)
		}
	}
	if s == nil {
		s = &share{tenant: tenant}
		t.shared[session] = s
	}
	for _, device := range devices {
		if !slices.Contains(s.devices, device) {
			s.devices = append(s.devices, device)
		}
	}
	return nil
}

// Leave ends what Share noted, if it did.
func (t *Table) Leave(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared[session] != nil {
		delete(t.shared, session)
		t.freedLocked()
	}
}

// Taken says who has a device for himself, or waits for it; "": a session without a lease may share it.
func (t *Table) Taken(device string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	return t.awaitedLocked(device)
}

func (t *Table) awaitedLocked(device string) string {
	if why := t.leasedLocked(device, nil); why != "" {
		return why
	}
	for _, w := range t.line {
		if slices.Contains(w.Devices, device) {
			return fmt.Sprintf("%s waits for one since %s", w.Tenant, stamp(w.since))
		}
	}
	return ""
}

// Asker is one request for a lease, by its address: who asked last for a place may give it up.
type Asker struct{ _ byte }

// GiveUp takes a ticket out of the line, where by asked for it last, or is nil.
func (t *Table) GiveUp(ticket, tenant string, by *Asker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLocked(func(w *waiter) bool {
		return w.Ticket == ticket && w.Tenant == tenant && (by == nil || by == w.By)
	})
}

// forgetLocked takes those out of the line who have not asked for long.
func (t *Table) forgetLocked() {
	now := t.now()
	t.leaveLocked(func(w *waiter) bool { return now.Sub(w.asked) > Patience })
}

// leaveLocked takes some out of the line.
func (t *Table) leaveLocked(gone func(*waiter) bool) {
	before := len(t.line)
	t.line = slices.DeleteFunc(t.line, func(w *waiter) bool {
		is := gone(w)
		if is {
			w.wake() // whoever asks for it begins anew
		}
		return is
	})
	if len(t.line) < before {
		t.freedLocked()
	}
}

// Status is one lease in `tendril leases`, or one who waits.
type Status struct {
	ID       string    `json:"id,omitempty"`     // of a lease over nodes
	Number   uint64    `json:"number,omitempty"` // of a lease of one node; 0: it waits
	Node     string    `json:"node,omitempty"`   // whose it is, or where the program of a lease over nodes is
	Tenant   string    `json:"tenant"`
	Holder   string    `json:"holder,omitempty"` // its program, which its own tenant and an administrator see
	Devices  []string  `json:"devices"`          // UUIDs; of one who waits, those that would do
	Nodes    []string  `json:"nodes,omitempty"`  // of a lease over nodes: where each of Devices is
	Count    int       `json:"count"`            // devices that it has, or wants
	Since    time.Time `json:"since"`            // it has them, or waits
	Until    time.Time `json:"until,omitzero"`   // its longest time is over
	Sessions int       `json:"sessions"`         // that use it
	Place    int       `json:"place,omitempty"`  // in the line, from 1
}

// List gives the leases, and then the line.
func (t *Table) List() (list []Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	for _, l := range t.leases {
		list = append(list, Status{ID: l.ID, Number: l.Number, Tenant: l.Tenant, Holder: l.Holder,
			Devices: slices.Clone(l.Devices), Count: len(l.Devices), Since: l.Since, Until: l.Until,
			Sessions: l.sessions()})
	}
	for i, w := range t.line {
		count := w.Count
		if count == 0 {
			count = len(w.Devices)
		}
		list = append(list, Status{ID: w.ID, Tenant: w.Tenant, Holder: w.Holder, Devices: slices.Clone(w.Devices),
			Count: count, Since: w.since, Place: i + 1})
	}
	return list
}
