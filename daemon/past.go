package daemon

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril/daemon/inspect"
	"tendril/store"
)

// The last hour is kept as samples in a ring, which is all of it that there is: a node that starts anew begins anew.
const (
	historyStep    = 20 * time.Second
	historyLength  = 180 // samples: an hour
	historyTenants = 64  // of a sample: those that are charged most
)

// sample is the node at one moment. It is immutable.
type sample struct {
	at       time.Time
	kinds    [len(memoryKinds)]float64 // of memory, bytes
	totals   [len(totalCurves)]float64
	tenants  []tenantSample
	requests uint64 // ever
}

type tenantSample struct {
	name   string
	values [len(tenantCurves)]float64
}

// tenantCurves are the curves of each tenant.
var tenantCurves = [...]string{"charged_bytes", "objects", "disk_bytes", "device_bytes"}

// memoryKinds are what the store's memory is used for: objects and what is left of their segments, OpenCL programs'
// memory, what is ready or kept for writers, what some process has not let go, and the table.
var memoryKinds = [...]string{"objects", "sessions", "ready", "leaving", "table"}

// totalCurves are the curves of the whole node.
var totalCurves = [...]string{"capacity_bytes", "charged_bytes", "disk_bytes", "device_bytes", "objects", "sessions",
	"workers", "requests_per_second"}

// pastHour is the ring. mu is a leaf.
type pastHour struct {
	mu   sync.Mutex
	ring []sample // the oldest first, historyLength at most
}

// note adds a sample, and works out from the one before how many requests came a second.
func (h *pastHour) note(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.ring); n > 0 {
		before := h.ring[n-1]
		if took := s.at.Sub(before.at).Seconds(); took > 0 && s.requests >= before.requests {
			s.totals[len(s.totals)-1] = float64(s.requests-before.requests) / took
		}
	}
	if len(h.ring) == historyLength {
		h.ring = slices.Delete(h.ring, 0, 1)
	}
	h.ring = append(h.ring, s)
}

// samples gives those of now. They are immutable.
func (h *pastHour) samples() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ring)
}

// startHistory has samples taken until the daemon ends.
func (d *Daemon) startHistory() error {
	l := (*look)(d)
	l.past.note(l.sample(time.Now().UTC()))
	d.joined.Go(func() {
		tick := time.NewTicker(historyStep)
		defer tick.Stop()
		for {
			select {
			case at := <-tick.C:
				l.past.note(l.sample(at.UTC()))
			case <-d.ctx.Done():
				return
			}
		}
	})
	return nil
}

func (l *look) sample(at time.Time) sample {
	st, running := l.store.Status(), l.pool.Workers()
	s := sample{at: at, kinds: kindsOf(st)}
	device, total := map[string]float64{}, 0.0
	for _, w := range running {
		device[w.Tenant] += float64(w.DeviceBytes)
	}
	for _, t := range st.Tenants {
		for _, m := range t.Devices {
			device[t.Name] += float64(m.Bytes)
		}
	}
	for _, n := range device {
		total += n
	}
	s.tenants = tenantSamples(st.Tenants, device)
	s.totals = [...]float64{float64(st.CapacityBytes), float64(st.ChargedBytes), float64(st.DiskBytes), total,
		float64(st.Objects), float64(len(l.sessions.list())), float64(len(running)), 0}
	if door := l.door.Load(); door != nil {
		for _, t := range door.Tallies() {
			s.requests += t.Took.Number()
		}
	}
	return s
}

// kindsOf divides the store's memory as memoryKinds says.
func kindsOf(st store.Status) [len(memoryKinds)]float64 {
	objects := st.SegmentBytes
	for _, others := range []uint64{st.SessionBytes, st.IdleBytes, st.LeavingBytes, st.KeptBytes} {
		objects -= min(objects, others)
	}
	return [...]float64{float64(objects), float64(st.SessionBytes), float64(st.WarmBytes + st.IdleBytes),
		float64(st.LeavingBytes + st.KeptBytes), float64(st.TableBytes)}
}

// tenantSamples gives those of the tenants that are charged most. device is what each has of devices' memory.
func tenantSamples(all []store.TenantStatus, device map[string]float64) []tenantSample {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b store.TenantStatus) int { return cmp.Compare(b.ChargedBytes, a.ChargedBytes) })
	var list []tenantSample
	for _, t := range all[:min(len(all), historyTenants)] {
		list = append(list, tenantSample{t.Name, [...]float64{float64(t.ChargedBytes), float64(t.Objects),
			float64(t.DiskBytes), device[t.Name]}})
	}
	return list
}

// shownTenants are those in an answer that shows all: the page draws no more.
const shownTenants = 16

// tenantsIn gives the tenants of samples, those first that had most at one time.
func tenantsIn(ring []sample) []string {
	most := map[string]float64{}
	for _, s := range ring {
		for _, t := range s.tenants {
			most[t.name] = max(most[t.name], t.values[0])
		}
	}
	names := slices.Sorted(maps.Keys(most))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(most[b], most[a]) })
	return names
}

// of gives a tenant's curve at a moment: 0 where it had too little to be in the sample.
func (s *sample) of(tenant string, curve int) float64 {
	for i := range s.tenants {
		if s.tenants[i].name == tenant {
			return s.tenants[i].values[curve]
		}
	}
	return 0
}

// History implements inspect.Source: the node's curves, and those of the tenants that the viewer may see.
func (l *look) History(v inspect.Viewer) (inspect.History, error) {
	ring := l.past.samples()
	h := inspect.History{StepSeconds: historyStep.Seconds(), Times: []time.Time{}, Series: []inspect.Series{}}
	for _, s := range ring {
		h.Times = append(h.Times, s.at)
	}
	curve := func(name, by, label string, of func(*sample) float64) {
		x := inspect.Series{Name: name, By: by, Label: label, Values: make([]float64, len(ring))}
		for i := range ring {
			x.Values[i] = of(&ring[i])
		}
		h.Series = append(h.Series, x)
	}
	for i, name := range totalCurves {
		curve(name, "", "", func(s *sample) float64 { return s.totals[i] })
	}
	for i, kind := range memoryKinds {
		curve("memory_bytes", "kind", kind, func(s *sample) float64 { return s.kinds[i] })
	}
	tenants := mine(l, v, tenantsIn(ring), func(name string) string { return name })
	for _, tenant := range tenants[:min(len(tenants), shownTenants)] {
		for i, name := range tenantCurves {
			curve(name, "tenant", tenant, func(s *sample) float64 { return s.of(tenant, i) })
		}
	}
	return h, nil
}
