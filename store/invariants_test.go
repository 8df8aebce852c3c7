package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/store/order"
)

// invariants looks at every table of a store at one moment and gives what does not agree; "" where all does. They hold
// whenever mu is free, transfers under way or not, but for those about files: atRest says that there is no transfer but
// the janitor's, whose files are waited for: it sends objects to disk above the high-water mark. So is a look through
// the index in steps, which has records that stand nowhere else.
func (s *Store) invariants(atRest bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.looks() || atRest && len(s.claims) > 0 {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
	}
	i := inspection{s: s, refs: map[*entry]int{}, live: map[*segmentState]int{}, usable: map[*segmentState]int{},
		members: map[*entry]int{}, charges: map[*tenant]uint64{}, unacked: map[*stream]int{}}
	i.connections()
	i.streams()
	i.entries()
	i.segments()
	i.names()
	i.totals()
	if atRest {
		i.files()
	}
	return i.fault
}

// looks reports whether a look through a tenant's index is under way. mu is held.
func (s *Store) looks() bool {
	for _, t := range s.tenants {
		if t.index != nil && t.index.looking != nil {
			return true
		}
	}
	return false
}

type inspection struct {
	s       *Store
	fault   string
	refs    map[*entry]int
	live    map[*segmentState]int
	usable  map[*segmentState]int
	members map[*entry]int
	charges map[*tenant]uint64
	unacked map[*stream]int
	table   uint64
	opened  map[*tenant]int // segments that have memory
	total   int             // references of connections
	alive   map[*entry]bool
}

func (i *inspection) must(ok bool, format string, args ...any) {
	if !ok && i.fault == "" {
		i.fault = fmt.Sprintf(format, args...)
	}
}

func (i *inspection) connections() {
	i.alive = map[*entry]bool{}
	perTenant := map[*tenant]int{}
	for c := range i.s.conns {
		perTenant[c.tenant]++
		unacked := 0
		for id, r := range c.refs {
			i.must(r.count > 0 && r.e.id == id, "a connection holds %d of object %s as %s", r.count, r.e.id, id)
			i.refs[r.e] += r.count
			i.total += r.count
			i.alive[r.e] = true
			i.must(r.unackedFrames() <= r.count, "object %s has %d frames to be acknowledged and %d references", r.e.id,
				r.unackedFrames(), r.count)
			for u := r.unacked; u != nil; u = u.next {
				unacked++
				i.unacked[u.st]++
			}
		}
		i.must(unacked == c.unacked, "a connection counts %d frames to be acknowledged and has %d", c.unacked, unacked)
		for e := range c.open {
			i.must(e.creator == c &&
				e.state == object.Open, "object %s is open on a connection that does not fill it", e.id)
		}
		for id, e := range c.fills {
			_, there := e.fillers[c]
			i.must(there && e.id == id &&
				e.state == object.Open, "a connection fills object %s, which does not know it", id)
		}
		for id, g := range c.seen {
			_, there := g.seen[c]
			i.must(there && g.id == id &&
				i.s.segments[id] == g, "segment %d is seen by a connection that it does not know", id)
		}
		for id, g := range c.written {
			i.must(g.writer == c && g.id == id && i.s.segments[id] == g, "segment %d is not its writer's", id)
		}
		for id, end := range c.streams {
			_, there := end.st.ends[end]
			i.must(there && end.c == c, "stream end %d is not the stream's", id)
		}
	}
	for _, t := range i.s.tenants {
		i.must(t.conns == perTenant[t], "tenant %s counts %d connections and has %d", t.name, t.conns, perTenant[t])
		for _, list := range t.parting {
			for _, m := range list {
				i.members[m.e]++
				i.alive[m.e] = true
			}
		}
		for _, list := range t.dropping {
			for _, f := range list {
				i.refs[f.e]++
				i.alive[f.e] = true
			}
		}
		i.retired(t)
	}
}

// retired counts the references that records have which are out of a tenant's index and were not found to be nobody's.
func (i *inspection) retired(t *tenant) {
	lists := t.unheld
	if ix := t.index; ix != nil {
		lists = append(slices.Clone(lists), ix.fresh, ix.kept)
	}
	counts := map[*entry]int{}
	for _, list := range lists {
		for _, r := range list {
			counts[r.e]++
			i.refs[r.e]++
			i.alive[r.e] = true
		}
	}
	for e, n := range counts {
		i.must(int(e.retired) == n, "object %s has %d retired records and counts %d", e.id, n, e.retired)
	}
}

func (i *inspection) streams() {
	for _, t := range i.s.tenants {
		for name, st := range t.streams {
			i.must(st.name == name && st.tenant == t && !st.gone, "stream %q is elsewhere", name)
			i.table += st.charge
			i.charges[t] += st.charge
			var bytes, last uint64
			for _, f := range st.frames {
				i.refs[f.e]++
				i.alive[f.e] = true
				bytes += f.e.size
				i.must(f.number > last && f.number <= st.pushed, "stream %q: frame %d behind %d", name, f.number, last)
				last = f.number
			}
			i.must(bytes == st.bytes, "stream %q counts %d bytes and has %d", name, st.bytes, bytes)
			writers := 0
			for end := range st.ends {
				if end.writes {
					writers++
				}
			}
			i.must(i.unacked[st] == st.unacked, "stream %q counts %d frames to be acknowledged and has %d", name, st.unacked,
				i.unacked[st])
			i.must(writers == st.writers, "stream %q counts %d writers and has %d", name, st.writers, writers)
			i.must(st.poppers.Len() == 0 || len(st.frames) == 0, "stream %q: a pop waits beside %d frames", name,
				len(st.frames))
		}
	}
}

// entries looks at all that are in the table or held by somebody.
func (i *inspection) entries() {
	for id, e := range i.s.objects {
		i.alive[e] = true
		i.must(e.id == id && e.state != object.Deleted, "object %s is in the table as %s, %v", e.id, id, e.state)
		i.must(inOrder(&e.tenant.entries, e), "object %s is not where its tenant has it", id)
	}
	for grown := true; grown; { // composites that are held keep their members
		grown = false
		for e := range i.alive {
			for _, m := range e.members {
				if !i.alive[m.e] {
					i.alive[m.e], grown = true, true
				}
			}
		}
	}
	spilled, spilledBytes, open := 0, uint64(0), 0
	for e := range i.alive {
		for _, m := range e.members {
			i.members[m.e]++
		}
		i.charges[e.tenant] += e.charge
		i.table += e.charge
		i.must(e.charge > 0, "object %s is alive and not charged", e.id)
		switch e.state {
		case object.Spilled:
			spilled++
			spilledBytes += e.size
			i.must(e.onDisk && (e.seg == nil || e.moving != nil), "object %s is spilled and not on disk alone", e.id)
		case object.Open:
			open++
			i.must(e.creator != nil, "object %s is open and nobody's", e.id)
		default:
			i.must(e.seg != nil || e.size == 0 || e.gpu != nil && e.gpu.fd >= 0 || e.state == object.Deleted,
				"object %s of %d bytes is nowhere", e.id, e.size)
		}
		if e.seg != nil {
			i.live[e.seg]++
			if e.usable {
				i.usable[e.seg]++
			}
		}
		if e.shadow != nil && e.shadow.seg != nil {
			i.live[e.shadow.seg]++
		}
		for _, who := range e.grants {
			i.must(inOrder(i.s.shared[who], e), "object %s is granted to %s, who is not told", e.id, who)
		}
	}
	for e := range i.alive {
		i.must(e.refs >= i.refs[e], "object %s counts %d references and has %d", e.id, e.refs, i.refs[e])
		i.must(e.memberOf == i.members[e], "object %s counts %d composites and is in %d", e.id, e.memberOf,
			i.members[e])
		i.must(i.s.objects[e.id] == e ||
			e.state == object.Deleted, "object %s is alive, not deleted and not in the table", e.id)
	}
	i.must(spilled == i.s.spilled && spilledBytes == i.s.spilledBytes,
		"%d objects of %d bytes are spilled; counted %d of %d", spilled, spilledBytes, i.s.spilled, i.s.spilledBytes)
	i.must(open == i.s.openCount, "%d objects are open; counted %d", open, i.s.openCount)
	for who, list := range i.s.shared {
		i.must(list.Len() > 0, "%s is told of nothing", who)
		list.All(func(e *entry) {
			i.must(i.s.objects[e.id] == e, "%s is told of object %s, which is not there", who, e.id)
		})
	}
}

func (i *inspection) segments() {
	counts := map[*tenant]int{}
	for number, r := range i.s.remnants {
		i.must(r.number == number, "remnant %d stands at %d", r.number, number)
		i.must(r.g == nil || r.g.kept == r && r.g.mem == nil &&
			r.bytes == r.g.bytes, "remnant %d is not its segment's", number)
		counts[r.tenant]++
		if r.g == nil {
			i.charges[r.tenant] += r.bytes
		}
	}
	for _, t := range i.s.tenants {
		i.must(t.remnants == counts[t], "tenant %s counts %d remnants and has %d", t.name, t.remnants, counts[t])
	}
	idle, leaving, coldBytes := 0, uint64(0), uint64(0)
	own, promised := map[*tenant]uint64{}, map[*tenant]uint64{}
	i.opened = map[*tenant]int{}
	i.devices()
	for id, g := range i.s.segments {
		if g.mem != nil {
			i.opened[g.tenant]++
		}
		if g.payer != nil {
			i.charges[g.payer] += g.bytes
		} else {
			i.charges[g.tenant] += g.bytes
		}
		if g.idle {
			idle++
		}
		i.must(g.asker == nil || g.evicting || g.mem == nil, "segment %d goes for somebody, and stays", id)
		if g.leaving {
			leaving += g.bytes
			own[g.tenant] += g.bytes
			if g.asker != nil {
				promised[g.asker] += g.bytes
			}
			i.must(g.mem == nil, "segment %d leaves and has memory", id)
		}
		listed, used := 0, uint64(0)
		for e := g.first; e != nil; e = e.next {
			listed++
			used += e.size
			i.must(e.seg == g, "segment %d lists object %s, which lies elsewhere", id, e.id)
		}
		i.must(g.used == used, "segment %d counts %d bytes of objects and has %d", id, g.used, used)
		want := g.live
		if g.session {
			want--
		}
		i.must(listed == want, "segment %d counts %d objects and lists %d", id, g.live, listed)
		i.must(listed >= i.live[g], "segment %d lists %d objects, %d say they lie there", id, listed, i.live[g])
		i.must(g.usable == i.usable[g], "segment %d counts %d objects that may go and has %d", id,
			g.usable, i.usable[g])
		cold := g.live > 0 && g.usable == g.live && !g.session && !g.evicting
		i.must(cold == (g.ranked[0] != nil), "segment %d: cold %v, ranked %v", id, cold, g.ranked[0] != nil)
		if cold {
			coldBytes += g.bytes
		}
		i.must(g.mem != nil || g.live == 0, "segment %d has %d objects and no memory", id, g.live)
		i.must(g.mem == nil || g.live > 0 || g.writer != nil, "segment %d is nobody's and was not given up", id)
	}
	i.must(idle == i.s.idle.Len(), "%d segments are idle, %d listed", idle, i.s.idle.Len())
	i.must(coldBytes == i.s.coldBytes, "%d bytes are cold, %d counted", coldBytes, i.s.coldBytes)
	i.must(leaving == i.s.leavingBytes, "%d bytes leave, %d counted", leaving, i.s.leavingBytes)
	for _, t := range i.s.tenants {
		i.must(t.leavingBytes == own[t] && t.promisedBytes == promised[t],
			"tenant %s: %d bytes leave, %d for it of others', %d and %d counted", t.name, own[t], promised[t],
			t.leavingBytes, t.promisedBytes)
	}
}

// devices compares what is charged of GPUs' memory; what is being allocated may be charged, too.
func (i *inspection) devices() {
	all, own := make(deviceCharges), map[*tenant]deviceCharges{}
	for e := range i.s.onDevices {
		i.must((i.alive[e] || e.refs > 0 || e.moving != nil) && e.gpu != nil && e.gpu.fd >= 0 &&
			(e.seg == nil || e.moving != nil), "object %s has memory of a GPU and is not alive", e.id)
		i.opened[e.tenant]++
		if own[e.tenant] == nil {
			own[e.tenant] = make(deviceCharges)
		}
		own[e.tenant].add(e.gpu.device, e.gpu.bytes, 1)
		all.add(e.gpu.device, e.gpu.bytes, 1)
		i.charges[e.tenant] += e.gpu.twin
	}
	i.idleDevices(all, own)
	for d, x := range all {
		i.must(i.s.devices[d].objects == x.objects && i.s.devices[d].bytes >= x.bytes, "GPU %s: %v, and %v is counted", d, x,
			i.s.devices[d])
	}
	for t, m := range own {
		for d, x := range m {
			i.must(t.devices[d].objects == x.objects && t.devices[d].bytes >= x.bytes, "GPU %s: tenant %s has %v, and %v is counted",
				d, t.name, x, t.devices[d])
		}
	}
	i.coldDevices()
	for e := range i.alive {
		_, has := i.s.onDevices[e]
		i.must(has == (e.gpu != nil && e.gpu.fd >= 0), "object %s in the memory of a GPU is not counted", e.id)
	}
}

// coldDevices compares the lists of what nobody uses of GPUs' memory, and what is away from there.
func (i *inspection) coldDevices() {
	away, cold := map[*tenant]map[object.Device]int{}, map[*tenant]map[object.Device]int{}
	for e := range i.alive {
		if e.gpu == nil {
			continue
		}
		is := e.gpu.fd >= 0 && e.moving == nil && e.mayLeaveDevice()
		i.must(is == (e.gpu.ranked[0] != nil), "object %s: cold %v on its GPU, ranked %v", e.id, is, !is)
		of := cold
		if e.offDevice() {
			of = away
		} else if !is {
			continue
		}
		if of[e.tenant] == nil {
			of[e.tenant] = map[object.Device]int{}
		}
		of[e.tenant][e.gpu.device]++
	}
	for _, t := range i.s.tenants {
		for d, x := range t.devices {
			i.must(x.away == away[t][d], "tenant %s: %d objects are away from GPU %s, and %d are counted", t.name,
				away[t][d], d, x.away)
		}
		for d, n := range cold[t] {
			on := t.coldDevices[d]
			i.must(on != nil && on.list.Len() == n, "tenant %s has %d cold objects on GPU %s, and another list", t.name, n, d)
		}
		for d, on := range t.coldDevices {
			sum := uint64(0)
			for at := on.list.Front(); at != nil; at = at.Next() {
				sum += at.Value.(*entry).gpu.bytes
			}
			i.must(on.list.Len() == cold[t][d] && sum == on.bytes, "tenant %s counts %d cold bytes on GPU %s and has %d",
				t.name, on.bytes, d, sum)
		}
	}
}

// idleDevices compares what is kept of GPUs' memory with its lists, and adds it to what is charged.
func (i *inspection) idleDevices(all deviceCharges, own map[*tenant]deviceCharges) {
	kept := map[*tenant]deviceCharges{}
	for at := i.s.idleDevices.Front(); at != nil; at = at.Next() {
		x := at.Value.(*idleMemory)
		t := x.maker.tenant
		i.must(x.fd >= 0 && !x.maker.closed && slices.Contains(x.maker.idleDevices[fit{x.device, x.bytes}], x),
			"%d bytes of GPU %s are kept for nobody", x.bytes, x.device)
		for _, m := range []map[*tenant]deviceCharges{own, kept} {
			if m[t] == nil {
				m[t] = make(deviceCharges)
			}
			m[t].add(x.device, x.bytes, 0)
		}
		all.add(x.device, x.bytes, 0)
		i.opened[t]++
	}
	for _, t := range i.s.tenants {
		for d, on := range t.idleDevices {
			i.must(on.bytes == kept[t][d].bytes && on.bytes <= i.s.opts.IdleDeviceBytes,
				"tenant %s keeps %d bytes of GPU %s, and counts %d", t.name, kept[t][d].bytes, d, on.bytes)
		}
	}
}

func (i *inspection) names() {
	for _, t := range i.s.tenants {
		for name, e := range t.names {
			i.must(e.name == name && e.tenant == t &&
				i.s.objects[e.id] == e, "the name %q is not object %s's", name, e.id)
		}
		for name, e := range t.filling {
			i.must(e.state == object.Open && e.shared && e.name == name, "%q is being filled, and is not", name)
		}
		t.entries.All(func(e *entry) {
			i.must(i.s.objects[e.id] == e, "tenant %s lists object %s, which is gone", t.name, e.id)
			i.must(e.state == object.Open || e.name == "" || t.names[e.name] == e, "object %s believes to be named %q",
				e.id, e.name)
		})
	}
	for k, e := range i.s.expiries {
		i.must(e.expiryAt == k && i.s.objects[e.id] == e, "object %s expires and is not there", e.id)
	}
}

func (i *inspection) totals() {
	var sum, segments uint64
	opened := 0
	for _, t := range i.s.tenants {
		sum += t.charged
		opened += t.opened
		i.must(t.opened >= i.opened[t], "tenant %s: %d segments have memory, and %d are counted", t.name, i.opened[t],
			t.opened)
		if limit := i.s.opts.TenantBytes; limit > 0 {
			i.must(t.charged <= limit, "tenant %s is charged %d of %d bytes", t.name, t.charged, limit)
		}
	}
	for _, g := range i.s.segments {
		segments += g.bytes
	}
	i.must(opened == i.s.opened, "tenants have %d of %d segments with memory", opened, i.s.opened)
	i.must(sum == i.s.charged, "tenants are charged %d of %d bytes", sum, i.s.charged)
	i.must(i.s.charged <= i.s.opts.CapacityBytes, "%d bytes are charged, the capacity is %d", i.s.charged,
		i.s.opts.CapacityBytes)
	i.must(i.table <= i.s.tableBytes, "records of %d bytes are charged %d", i.table, i.s.tableBytes)
	i.must(segments+i.s.tableBytes <= i.s.charged, "%d bytes of segments and %d of records, but %d are charged",
		segments, i.s.tableBytes, i.s.charged)
	i.must(i.s.references == i.total, "%d references are counted, %d are there", i.s.references, i.total)
}

// files compares the directory with the table, and all charges exactly. Nobody is at work, and no file is claimed.
func (i *inspection) files() {
	s := i.s
	i.must(i.table == s.tableBytes, "records of %d bytes are charged %d", i.table, s.tableBytes)
	for _, t := range s.tenants {
		i.must(t.opened == i.opened[t], "tenant %s: %d segments have memory, and %d are counted", t.name, i.opened[t],
			t.opened)
		i.must(t.charged == i.charges[t], "tenant %s is charged %d bytes and has %d", t.name, t.charged, i.charges[t])
	}
	for e := range i.alive {
		i.must(e.refs == i.refs[e], "at rest object %s counts %d references and has %d", e.id, e.refs, i.refs[e])
	}
	if s.spill == nil {
		return
	}
	left, _ := filepath.Glob(filepath.Join(s.opts.SpillDir, "*.*")) // the mark of spill/mark.go has no dot
	there := make(map[string]bool, len(left))
	for _, path := range left {
		there[filepath.Base(path)] = true
	}
	for e := range i.alive {
		has := there[e.id.String()+".record"]
		i.must(e.onDisk == has, "object %s: on disk %v, its record is there: %v", e.id, e.onDisk, has)
		delete(there, e.id.String()+".record")
		delete(there, e.id.String()+".bytes")
	}
	for name := range there {
		i.must(false, "%s is on disk and belongs to nothing", name)
	}
}

// filesIn names the files of objects in a directory; the mark of spill/mark.go has no dot.
func filesIn(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// mustAgree fails the test where an invariant does not hold.
func mustAgree(t testing.TB, s *Store, atRest bool) {
	t.Helper()
	if fault := s.invariants(atRest); fault != "" {
		if names, err := os.ReadDir(s.opts.SpillDir); err == nil && len(names) < 40 {
			t.Logf("on disk: %v", names)
		}
		t.Fatal(fault)
	}
}

// inOrder reports whether a list has an object, among those that were made in the same moment.
func inOrder(l *order.List[*entry], e *entry) bool {
	before := object.ID(bytes.Repeat([]byte{0xff}, object.IDBytes))
	return slices.Contains(l.After(nil, order.At(e.created.Add(-1), before), 100), e)
}
