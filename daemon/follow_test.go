package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/cluster/fsm"
	"tendril/daemon/changes"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/leases"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/events"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// follower is a client of /v1/events.
type follower struct {
	t     *testing.T
	lines *bufio.Scanner
	leave context.CancelFunc
	place string // the last id
	ended bool
}

func followed(t *testing.T, d *Daemon, secret, place string) (f *follower, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+d.inspect.Load().Address().String()+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+secret)
	if place != "" {
		request.Header.Set("Last-Event-ID", place)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	f = &follower{t: t, lines: bufio.NewScanner(answer.Body), leave: func() { cancel(); answer.Body.Close() }}
	t.Cleanup(f.leave)
	if answer.StatusCode == 200 {
		f.next() // its place
	}
	return f, answer.StatusCode
}

// next gives the kind and data of the next event: "" is a beat or a place; ended is set at the end.
func (f *follower) next() (kind string, ev inspect.Event) {
	f.t.Helper()
	for f.lines.Scan() {
		name, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch name {
		case "id":
			f.place = value
		case "event":
			kind = value
		case "data":
			if err := json.Unmarshal([]byte(value), &ev); err != nil {
				f.t.Fatal(err)
			}
		case "":
			return kind, ev
		}
	}
	if err := f.lines.Err(); err != nil && err != io.EOF {
		f.t.Errorf("the stream broke off: %v", err)
	}
	f.ended = true
	return "", ev
}

// until reads events until all that are wanted have come, in any order.
func (f *follower) until(want ...string) {
	f.t.Helper()
	var got []string
	for len(want) > 0 && !f.ended {
		kind, ev := f.next()
		text := fmt.Sprintf("%s %s %s", kind, ev.Change, ev.Name)
		got = append(got, text)
		want = slices.DeleteFunc(want, func(w string) bool { return w == text })
	}
	if len(want) > 0 {
		f.t.Errorf("no %q among %q", want, got)
	}
}

// TestEventsEndWithTheirTenant: who follows hears nothing more once the tenant is disabled, and can follow again later.
func TestEventsEndWithTheirTenant(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	key := pageKeyOf(t, d, pageKey{tenant: "other"})
	f, _ := followed(t, d, key, "")
	change := func(change wire.TenantChange) {
		other := wire.ChangeTenantRequest{Change: change, Name: "other"}
		if err := d.ChangeTenant(frontdoor.Peer{Admin: true}, other); err != nil {
			t.Fatal(err)
		}
	}
	change(wire.TenantCreate)
	change(wire.TenantDisable)
	for !f.ended {
		f.next()
	}
	change(wire.TenantEnable)
	await.Until(t, "it can follow again", func() bool {
		again, status := followed(t, d, key, "")
		defer again.leave()
		return status == http.StatusOK && !again.ended
	})
}

// Objects, names, sessions and leases are told of as they change, a tenant's to itself and to who sees everything; who
// comes back misses nothing; the daemon's end ends the streams in order, and nothing stays charged.
func TestEventsOverHTTP(t *testing.T) {
	c := withHTTP(t)
	d, stop := serve(t, c)
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	conn := dial(t, c)
	defer conn.Close()
	tenant := conn.Daemon().Tenant
	own, other := pageKeyOf(t, d, pageKey{tenant: tenant}), pageKeyOf(t, d, pageKey{tenant: "other"})
	mine, _ := followed(t, d, own, "")
	others, _ := followed(t, d, other, "")
	all, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: tenant, all: true}), "")
	_, err := conn.Put(context.Background(), []byte("x"), client.CreateOptions{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	mine.until("object sealed first")
	all.until("object sealed first")
	mine.leave()
	if err := conn.Rename(context.Background(), "first", "second", false); err != nil {
		t.Fatal(err)
	}
	_ = d.sessions.add(&session{peer: frontdoor.Peer{Tenant: tenant, Name: "solver"}, since: time.Now(),
		cancel: func() {}})
	if _, err := d.leases.Grant(leases.Request{Tenant: tenant, Devices: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	back, _ := followed(t, d, own, mine.place)
	back.until("name unnamed first", "name named second", "session open solver", "lease held ")
	d.sessions.remove(1)
	back.until("session gone solver")
	foreign, err := d.store.Connect(store.Owner{Tenant: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	h, err := foreign.Create(store.Spec{Class: object.Named, Name: "theirs"})
	if err == nil {
		err = foreign.Seal(h.ID, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	all.until("object sealed theirs")
	kind, ev := others.next()
	for kind == "" && !others.ended { // a beat: nothing came for 15 s
		kind, ev = others.next()
	}
	if ev.Name != "theirs" {
		t.Errorf("another tenant hears of %s %+v", kind, ev)
	}
	var leave []func()
	for i := range maxFollowers {
		f, status := followed(t, d, other, "")
		if status != map[bool]int{true: 503, false: 200}[i == maxFollowers-1] {
			t.Errorf("follower %d: %d", i+2, status)
		}
		leave = append(leave, f.leave)
	}
	for _, f := range leave {
		f()
	}
	others.leave()
	all.leave()
	var reading sync.WaitGroup
	reading.Go(func() {
		for !back.ended {
			back.next()
		}
		back.leave()
	})
	stopped = true
	stop()
	reading.Wait()
	if n := d.store.Status().RequestBytes; n != 0 {
		t.Errorf("%d bytes are charged after the end", n)
	}
	if f := &d.follows; f.names.state != nil || f.facts != nil {
		t.Error("what nobody follows is kept")
	}
}

// TestPublishedNamesOverHTTP: every node tells its followers which names are published in the cluster and which are no
// longer, in order, and a tenant of its own alone.
func TestPublishedNamesOverHTTP(t *testing.T) {
	x := newCluster(t, 2, func(i int, c *Config) {
		if i == 1 {
			c.HTTP = "127.0.0.1:0"
		}
	})
	d := x.all[1]
	own, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: x.conns[0].Daemon().Tenant}), "")
	all, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: "boss", all: true}), "")
	other, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: "other"}), "")
	first := x.put(0, "model", []byte("1"), client.CreateOptions{})
	second, err := x.conns[0].Put(context.Background(), []byte("22"), client.CreateOptions{Name: "draft"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.conns[0].Publish(context.Background(), second.ID(), "model", true); err != nil {
		t.Fatal(err)
	}
	if err := x.conns[0].Unpublish(context.Background(), "model"); err != nil {
		t.Fatal(err)
	}
	x.put(0, "gone", []byte("333"), client.CreateOptions{})
	if err := x.conns[0].DeleteByName(context.Background(), "gone"); err != nil {
		t.Fatal(err)
	}
	want := []string{"published model 1", "unpublished model 1", "published model 2", "unpublished model 2",
		"published gone 3", "unpublished gone 3"}
	for what, f := range map[string]*follower{"its tenant": own, "who sees all": all} {
		var got []string
		for len(got) < len(want) && !f.ended {
			if kind, ev := f.next(); kind == inspect.NameEvent && strings.HasSuffix(ev.Change, "published") {
				got = append(got, fmt.Sprint(ev.Change, " ", ev.Name, " ", ev.SizeBytes))
				if ev.At.IsZero() || ev.Tenant == "" || len(got) == 1 && ev.ID != first.String() {
					t.Errorf("%+v", ev)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s hears %q, want %q", what, got, want)
		}
	}
	d.follows.mu.Lock() // as after a snapshot
	d.follows.names.state = nil
	d.follows.mu.Unlock()
	all.until("missed missed ")
	h, err := d.store.Connect(store.Owner{Tenant: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	made, err := h.Create(store.Spec{Class: object.Named, Name: "theirs"})
	if err == nil {
		err = h.Seal(made.ID, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	for kind := ""; kind != inspect.ObjectEvent && !other.ended; {
		var ev inspect.Event
		if kind, ev = other.next(); ev.Name == "model" || ev.Name == "gone" {
			t.Errorf("another tenant hears of %s %+v", kind, ev)
		}
	}
}

// TestEventsOfNewTenants: who sees everything and follows is told to look when a tenant is new and has objects already.
func TestEventsOfNewTenants(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	f, _ := followed(t, d, pageKeyOf(t, d, pageKey{all: true}), "")
	conn, err := d.store.Connect(store.Owner{Tenant: "newcomer"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	put := func(name string) {
		h, err := conn.Create(store.Spec{Class: object.Named, Name: name})
		if err == nil {
			err = conn.Seal(h.ID, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	await.Until(t, "the tenant is watched", func() bool {
		d.follows.mu.Lock()
		defer d.follows.mu.Unlock()
		return d.follows.watches["newcomer"] != nil
	})
	put("second")
	f.until("missed missed ", "object sealed second")
	f.leave()
}

// TestPublishedNamesOfALoudTenant: a tenant that publishes more names at once than are remembered misses some of them;
// another tenant misses nothing. When nobody follows any more, nothing of the metadata is kept for it.
func TestPublishedNamesOfALoudTenant(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	loud, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: "loud"}), "")
	other, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: "other"}), "")
	all, _ := followed(t, d, pageKeyOf(t, d, pageKey{tenant: "boss", all: true}), "")
	publish := func(tenant, name string) {
		_, err := d.propose(&fsm.Publish{Object: fsm.Object{ID: fsm.UUID(object.NewID()), Tenant: tenant, Name: name,
			SizeBytes: 1, Replicas: []fsm.Replica{d.ownReplica()}}})
		if err != nil {
			t.Error(err)
		}
	}
	d.follows.mu.Lock() // all of it in one look
	publish("other", "first")
	var publishing sync.WaitGroup
	for i := range 64 {
		publishing.Go(func() {
			for k := range 18 {
				publish("loud", fmt.Sprint(i, "-", k))
			}
		})
	}
	publishing.Wait()
	publish("other", "last")
	d.follows.mu.Unlock()
	var got []string
	for len(got) < 2 && !other.ended {
		kind, ev := other.next()
		if kind != "" {
			got = append(got, fmt.Sprint(kind, " ", ev.Change, " ", ev.Name))
		}
	}
	if want := []string{"name published first", "name published last"}; !slices.Equal(got, want) {
		t.Errorf("another tenant hears %q, want %q", got, want)
	}
	all.until("missed missed ", "name published first", "name published last")
	loud.until("missed missed ")
	for _, f := range []*follower{loud, other, all} {
		f.leave()
	}
	await.Until(t, "nobody follows", func() bool {
		d.follows.mu.Lock()
		defer d.follows.mu.Unlock()
		d.follows.tell(inspect.NameEvent, inspect.Event{}) // a stream ends when it is written to
		for _, ring := range d.follows.rings {
			if ring.followers == 0 {
				ring.since = time.Time{} // as after followKeep
			}
		}
		return !d.follows.running
	})
	d.follows.mu.Lock()
	defer d.follows.mu.Unlock()
	if d.follows.names.state != nil || d.follows.facts != nil {
		t.Error("a state of the metadata is kept, and nobody follows")
	}
}

// TestObjectsOfALoudTenant: a tenant of which more objects come and go in a look than a ring holds costs who sees
// everything no change of another tenant, and itself none.
func TestObjectsOfALoudTenant(t *testing.T) {
	seers, own := changes.New(), changes.New()
	f := &follows{rings: map[string]*followedRing{"": {Ring: seers}, "loud": {Ring: own}}}
	all, loud := seers.From(""), own.From("")
	f.tellObject("quiet", events.Event{Kind: events.Sealed, Name: "quiet"})
	for i := range 2 * changes.MaxChanges {
		f.tellObject("loud", events.Event{Kind: events.Sealed, Name: "loud"})
		if i < changes.MaxChanges {
			if c, ok, _ := loud.Next(nil, 0); !ok || c.Kind == changes.Missed {
				t.Fatalf("the loud tenant's change %d: %q %v", i, c.Kind, ok)
			}
		}
	}
	told := map[string]int{}
	for c, ok, _ := all.Next(nil, 0); ok; c, ok, _ = all.Next(nil, 0) {
		var ev inspect.Event
		_ = json.Unmarshal(c.Data, &ev)
		told[c.Kind+" "+ev.Tenant]++
	}
	want := map[string]int{"object quiet": 1, "object loud": followObjects, "missed loud": 1}
	if !maps.Equal(told, want) {
		t.Fatalf("who sees everything was told %v, want %v", told, want)
	}
}
