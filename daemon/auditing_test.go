package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/pki"
	"tendril/daemon/audit"
	"tendril/daemon/frontdoor"
	"tendril/forwarding/clwire"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func auditAt(t *testing.T, conn *client.Conn, q admin.AuditQuery) (all []AuditPage, what []string) {
	t.Helper()
	for more := true; more; {
		raw, err := admin.Of(conn).Audit(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		var page AuditPage
		if err := json.Unmarshal(raw, &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			what = append(what, e.Node+" "+e.What)
		}
		all, q.Cursor, more = append(all, page), page.Next, page.More
	}
	return all, what
}

const maxPlace = 5000 // bytes of an argument that are no place

// What is asked for at either node is in one list, in order, once, whatever the length of its pages; also what was
// refused.
func TestAudit(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	ca.HTTP = "127.0.0.1:0"
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	root := dial(t, ca)
	token, err := admin.Of(root).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User, Tenant: "lab",
		Once: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := login.Login(context.Background(), b.address(), token, "laptop"); (err == nil) != (i == 0) {
			t.Fatal(err)
		}
	}
	for range 3 {
		err := admin.Of(dial(t, cb)).ChangeTenant(context.Background(), wire.ChangeTenantRequest{Name: "nobody",
			Change: wire.TenantDisable})
		if !errors.Is(err, object.ErrNotFound) {
			t.Fatal(err)
		}
	}
	putPublished(t, cb, "x")
	want := []string{"a token.create", "b token.use", "b token.use", "b tenant.disable", "b tenant.disable",
		"b tenant.disable", "b object.publish"}
	behind := func(list []string) []string {
		return list[max(0, len(list)-len(want)):]
	}
	await.Until(t, "all is written", func() bool {
		_, what := auditAt(t, root, admin.AuditQuery{})
		return slices.Equal(behind(what), want)
	})
	pages, whole := auditAt(t, root, admin.AuditQuery{})
	if !slices.Contains(whole, "b node.enter") || !slices.Contains(whole, "a node.join") {
		t.Errorf("%q", whole)
	}
	for limit := 1; limit < 4; limit++ {
		if _, what := auditAt(t, root, admin.AuditQuery{Limit: limit}); !slices.Equal(what, whole) {
			t.Errorf("by %d: %q, want %q", limit, what, whole)
		}
	}
	var refused []string
	for _, e := range pages[0].Events {
		if e.Error != "" {
			refused = append(refused, e.What)
		}
		if e.Who == "" || e.From == "" || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if fmt.Sprint(refused) != "[token.use tenant.disable tenant.disable tenant.disable]" {
		t.Errorf("refused: %q", refused)
	}
	events, _, _, err := (*b.audits.Load())[adminSeries].Read(0, maxAudit, func(e audit.Event) bool {
		return e.What == "token.use" && e.Error != ""
	})
	if len(events) > 0 || err != nil { // else strangers push the administrators' lines out
		t.Errorf("among the administrators' lines: %+v, %v", events, err)
	}
	all, own := pageKeyOf(t, a, pageKey{tenant: "root", all: true}), pageKeyOf(t, a, pageKey{tenant: "lab"})
	for limit := 1; limit < 5; limit++ {
		var what []string
		for _, e := range everyPage[audit.Event](t, a, "/v1/audit?node=all&", all, limit) {
			what = append(what, e.Node+" "+e.What)
		}
		if !slices.Equal(what, whole) {
			t.Errorf("over HTTP by %d: %q, want %q", limit, what, whole)
		}
	}
	if list := everyPage[audit.Event](t, a, "/v1/audit?node=all&prefix=token.use&", all, 100); len(list) != 2 {
		t.Errorf("over HTTP with a prefix: %+v", list)
	}
	for path, want := range map[string]int{"/v1/audit?node=b": 400, "/v1/audit?node=all&after=1.2.3": 400,
		"/v1/audit?node=all&after=" + strings.Repeat("0", maxPlace): 400, "/v1/objects?node=all": 400} {
		if status, body, _ := asked(t, a, path, all); status != want {
			t.Errorf("%.60s: %d %s", path, status, body)
		}
	}
	if status, body, _ := asked(t, a, "/v1/audit?node=all", own); status != 403 {
		t.Errorf("for a tenant: %d %s", status, body)
	}
	if _, what := auditAt(t, root, admin.AuditQuery{Tenant: "lab"}); len(what) != 3 && len(what) != 2 {
		t.Errorf("of one tenant: %q", what)
	}
	if _, what := auditAt(t, root, admin.AuditQuery{Since: time.Now().Add(time.Hour)}); len(what) != 0 {
		t.Errorf("of the future: %q", what)
	}
	ns.end(b)
	await.Until(t, "the other node is said to be silent", func() bool {
		_, body, _ := asked(t, a, "/v1/audit?node=all", all)
		return strings.Contains(body, `"silent":["b"]`)
	})
}

// After a clock was set back an answer still goes on: each event comes once.
func TestAuditGoesOnWhereTheClockWasSetBack(t *testing.T) {
	d, now := &Daemon{}, time.Now()
	logs := auditLogs{}
	for _, series := range []string{adminSeries, dataSeries} {
		l, err := audit.Open(t.TempDir(), series, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		for i, minute := range []int{60, 61, 0, 1, 62, 2, 3} {
			l.Add(audit.Event{What: series, Of: fmt.Sprint(i), Time: now.Add(time.Duration(minute) * time.Minute)})
		}
		await.Until(t, "all is written", func() bool {
			list, _, _, err := l.Read(0, maxAudit, func(audit.Event) bool { return true })
			return err == nil && len(list) == 7
		})
		logs[series] = l
	}
	d.audits.Store(&logs)
	places, seen := map[string]uint64{}, map[string]int{}
	for range 20 {
		page, err := d.readAudit(wire.AuditRequest{Limit: 2}, "", places)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			seen[e.What+e.Of]++
		}
		if places = page.Places; !page.More {
			break
		}
	}
	for event, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", event, n)
		}
	}
	if len(seen) != 14 {
		t.Errorf("%d events of 14: %v", len(seen), seen)
	}
}

// What tenants and strangers are refused pushes out neither what administrators did nor what tenants did.
func TestRefusalsAreASeriesOfTheirOwn(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	root := dial(t, c)
	guess, err := d.meta.authority.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	newToken(t, root, admin.TokenOptions{})
	if _, err := login.Login(context.Background(), d.door.Load().RemoteAddr().String(), guess.Text(), "x"); err == nil {
		t.Fatal("a guessed token is good")
	}
	tenant := frontdoor.Peer{Tenant: "uid:1000", UID: 1000}
	if _, err := d.Publish(tenant, object.ID{}, "x", false); err == nil {
		t.Fatal("the zero id is published")
	}
	if err := admin.Of(root).EndLease(context.Background(), "0000"); err == nil {
		t.Fatal("a lease that is none is ended")
	}
	var got []string
	await.Until(t, "all is written", func() bool {
		got = nil
		list, _ := auditAt(t, root, admin.AuditQuery{})
		for _, page := range list {
			for _, e := range page.Events {
				got = append(got, e.Detail+" "+e.What)
			}
		}
		return len(got) == 4
	})
	slices.Sort(got)
	want := []string{"admin lease.end", "admin token.create", "refused object.publish", "refused token.use"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A line names what it is about: a lease, with its devices at all nodes, where it begins and where it is joined; why
// there is none; and a certificate only where one was named.
func TestAuditNamesWhatItIsAbout(t *testing.T) {
	w := newNetwork(t)
	w.devices = 2
	x := w.cluster(3)
	answered(t, x)
	ann, err := leaseAt(t, x.all[0], clwire.LeaseOptions{Nodes: true, Count: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer ann.close()
	if _, err := leaseAt(t, x.all[0], clwire.LeaseOptions{Nodes: true, Count: 7}); !errors.Is(err, object.ErrNoDevice) {
		t.Fatalf("more devices than there are: %v", err)
	}
	_, err = admin.Of(x.conns[0]).RevokeCertificates(context.Background(), admin.CertificateChoice{Tenant: "lab"}, "")
	if !errors.Is(err, object.ErrNotFound) {
		t.Fatalf("no such certificate: %v", err)
	}
	lease := allLeasesAt(t, x.all[0])[0]
	devices := slices.Sorted(slices.Values(lease.Devices))
	await.Until(t, "the leases are written", func() bool {
		var began, joined, refused, revoked bool
		pages, _ := auditAt(t, x.conns[0], admin.AuditQuery{})
		for _, e := range pages[0].Events {
			of := strings.Fields(e.Of)
			switch {
			case e.What == "lease.take" && e.Error == "":
				began = of[0] == lease.ID && slices.Equal(slices.Sorted(slices.Values(of[1:])), devices)
			case e.What == "lease.take":
				refused = e.Of == ""
			case e.What == "lease.join":
				joined = e.Of == lease.ID
			case e.What == "certificate.revoke":
				revoked = e.Of == ""
			}
		}
		return began && joined && refused && revoked
	})
	other := frontdoor.Peer{Role: pki.User, Tenant: "another", Admin: true}
	if err := x.all[0].EndLease(other, lease.ID[:8]); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the end of the lease is written, with the tenant that had it", func() bool {
		pages, _ := auditAt(t, x.conns[0], admin.AuditQuery{Tenant: lease.Tenant})
		return slices.ContainsFunc(pages[0].Events, func(e audit.Event) bool {
			return e.What == "lease.end" && e.Of == lease.ID
		})
	})
}

// Who names a peer, and who takes its name back, is on record.
func TestPeersAreOnRecord(t *testing.T) {
	c := aConfig(t)
	_, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	fingerprint := pki.Fingerprint{1}
	for _, f := range []pki.Fingerprint{fingerprint, {}} {
		if err := admin.Of(conn).SetPeer(context.Background(), "far.example:7433", f); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Of(conn).SetPeer(context.Background(), "nowhere", fingerprint); err == nil {
		t.Fatal("a peer has no port")
	}
	want := []string{"peer.add far.example:7433 " + fingerprint.String(), "peer.add nowhere " + fingerprint.String(),
		"peer.remove far.example:7433"}
	await.Until(t, "all is written", func() bool {
		var got []string
		pages, _ := auditAt(t, conn, admin.AuditQuery{})
		for _, e := range pages[0].Events {
			got = append(got, e.What+" "+e.Of)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}
