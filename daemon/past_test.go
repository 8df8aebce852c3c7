package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/inspect"
	"tendril/daemon/leases"
	"tendril/store"
	"tendril/store/object"
)

// answer asks for a path and reads its JSON.
func answer[T any](t *testing.T, d *Daemon, path, secret string) (x T) {
	t.Helper()
	status, body, _ := asked(t, d, path, secret)
	if err := json.Unmarshal([]byte(body), &x); status != 200 || err != nil {
		t.Fatalf("%s: %d %v %.300s", path, status, err, body)
	}
	return x
}

// The ring holds an hour, and works out how many requests came a second.
func TestPastHour(t *testing.T) {
	var h pastHour
	start := time.Unix(1_800_000_000, 0)
	for i := range historyLength + 5 {
		h.note(sample{at: start.Add(time.Duration(i) * 2 * time.Second), requests: uint64(i * 10)})
	}
	ring := h.samples()
	if len(ring) != historyLength || !ring[0].at.Equal(start.Add(10*time.Second)) {
		t.Fatalf("%d samples from %v on", len(ring), ring[0].at)
	}
	for _, s := range ring {
		if got := s.totals[len(s.totals)-1]; got != 5 {
			t.Fatalf("%v requests a second, want 5", got)
		}
	}
}

// Of the last hour a viewer sees the node's curves and those of its own tenant.
func TestHistoryOverHTTP(t *testing.T) {
	c := withHTTP(t)
	d, stop := serve(t, c)
	defer stop()
	for i, tenant := range []string{"red", "blue"} {
		conn, err := d.store.Connect(store.Owner{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range i + 1 {
			if _, err := conn.Create(store.Spec{SizeBytes: 1 << 20}); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.past.note((*look)(d).sample(time.Now()))
	last := func(h inspect.History) map[string]float64 {
		values := map[string]float64{}
		for _, s := range h.Series {
			if len(s.Values) != len(h.Times) {
				t.Fatalf("%d values at %d times", len(s.Values), len(h.Times))
			}
			values[strings.TrimSpace(s.Name+" "+s.Label)] = s.Values[len(s.Values)-1]
		}
		return values
	}
	all := last(answer[inspect.History](t, d, "/v1/history", pageKeyOf(t, d, pageKey{all: true})))
	if all["objects"] != 3 || all["objects red"] != 1 || all["objects blue"] != 2 || all["memory_bytes objects"] < 3<<20 ||
		all["charged_bytes blue"] < 2<<20 || all["capacity_bytes"] != float64(c.CapacityBytes) {
		t.Errorf("%v", all)
	}
	red := last(answer[inspect.History](t, d, "/v1/history", pageKeyOf(t, d, pageKey{tenant: "red"})))
	if _, sees := red["objects blue"]; sees || red["objects red"] != 1 || red["objects"] != 3 {
		t.Errorf("red sees %v", red)
	}
}

// Who waits for a lease is listed behind who has one, and holders are their own tenants' to see.
func TestLeasesOverHTTP(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	if _, err := d.leases.Grant(leases.Request{Tenant: "red", Holder: "trainer", Devices: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.leases.Grant(leases.Request{Tenant: "blue", Holder: "waiter", Devices: []string{"a"},
		Ticket: "x"}); err == nil {
		t.Fatal("a device is leased twice")
	}
	type page struct{ Items []leases.Status }
	for secret, want := range map[string]string{
		pageKeyOf(t, d, pageKey{all: true}):      "red trainer 0, blue waiter 1",
		pageKeyOf(t, d, pageKey{tenant: "blue"}): "red  0, blue waiter 1",
	} {
		var got []string
		for _, x := range answer[page](t, d, "/v1/leases", secret).Items {
			got = append(got, fmt.Sprintf("%s %s %d", x.Tenant, x.Holder, x.Place))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Streams come in pages, a tenant's to itself; so do the configuration and sessions' links.
func TestStreamsOverHTTP(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	for _, tenant := range []string{"red", "red/blue"} {
		conn, err := d.store.Connect(store.Owner{Tenant: tenant, Name: "camera"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for i := range 3 {
			spec := store.StreamSpec{Name: fmt.Sprint("s/", i), Frames: 4, Writes: true}
			if _, err := conn.OpenStream(spec); err != nil {
				t.Fatal(err)
			}
		}
	}
	type page struct {
		Items []object.StreamInfo
		Next  string
	}
	all, red := pageKeyOf(t, d, pageKey{all: true}), pageKeyOf(t, d, pageKey{tenant: "red"})
	for secret, want := range map[string]string{
		all: "red s/0, red s/1, red s/2, red/blue s/0, red/blue s/1, red/blue s/2", red: "red s/0, red s/1, red s/2",
	} {
		var got []string
		for after := ""; ; {
			p := answer[page](t, d, "/v1/streams?limit=2&prefix=s&after="+after, secret)
			for _, s := range p.Items {
				got = append(got, s.Tenant+" "+s.Name)
			}
			if after = strings.ReplaceAll(p.Next, "%", "%25"); after == "" || len(got) > 10 {
				break
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if status, _, _ := asked(t, d, "/v1/streams?after=%25zz", all); status != 400 {
		t.Errorf("a place that is none: %d", status)
	}
}

// The configuration is its owner's to see, with where each value came from.
func TestConfigOverHTTP(t *testing.T) {
	c := withHTTP(t)
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	if status, body, _ := asked(t, d, "/v1/config", pageKeyOf(t, d, pageKey{tenant: "red"})); status != 403 ||
		strings.Contains(body, c.StateDir) {
		t.Errorf("another tenant's: %d %s", status, body)
	}
	if _, err := conn.Put(context.Background(), nil, client.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	type page struct{ Items []inspect.Setting }
	for _, s := range answer[page](t, d, "/v1/config", pageKeyOf(t, d, pageKey{all: true})).Items {
		if s.Key == "state-dir" && s.Value == c.StateDir && s.Origin == "default" {
			return
		}
	}
	t.Error("no state-dir")
}

// A link to another node says what it goes over, why nothing better is in use, and how fast it was.
func TestLinksOverHTTP(t *testing.T) {
	x := newCluster(t, 2, func(_ int, c *Config) { c.HTTP = "127.0.0.1:0" })
	x.put(0, "far", noise(2, 8<<20), client.CreateOptions{})
	x.share()
	if _, err := x.get(1, "far"); err != nil {
		t.Fatal(err)
	}
	type page struct{ Items []inspect.Link }
	list := answer[page](t, x.all[1], "/v1/links", pageKeyOf(t, x.all[1], pageKey{tenant: "red"})).Items
	if len(list) != 1 || list[0].Kind != inspect.NodeLink || list[0].With != x.all[0].node.ID || !list[0].Up ||
		list[0].Bandwidth <= 0 || list[0].Why != onlyTCP || list[0].Address == "" {
		t.Errorf("%+v", list)
	}
}
