package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// tenantsAt lists the records as a node has them.
func tenantsAt(t *testing.T, c Config) map[string]inspect.Tenant {
	t.Helper()
	found := map[string]inspect.Tenant{}
	for raw, err := range admin.Of(dial(t, c)).EachTenant(context.Background()) {
		var x inspect.Tenant
		if err != nil || json.Unmarshal(raw, &x) != nil {
			t.Fatal(err)
		}
		found[x.Name] = x
	}
	return found
}

// TestNamesThatAreNotAnswered: a machine that does not answer what number a user has keeps a node from nothing else
// that the metadata says. When it answers, the user is who the record says.
func TestNamesThatAreNotAnswered(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	answer := make(chan struct{})
	a := ns.start(ca)
	b := ns.startWith(cb, func(d *Daemon) {
		d.lookups.look = func(x lookup) (uint32, bool) {
			<-answer
			return uint32(os.Getuid()), x.name == "somebody"
		}
	})
	join(t, ca, a, b)
	change := func(tenant string, m wire.ChangeTenantRequest) {
		t.Helper()
		m.Name = tenant
		if err := admin.Of(dial(t, ca)).ChangeTenant(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	change("lab", wire.ChangeTenantRequest{Change: wire.TenantCreate})
	change("lab", wire.ChangeTenantRequest{Change: wire.TenantMap, Kind: uint8(fsm.MemberUser), Member: "somebody",
		Node: "b"})
	change("other", wire.ChangeTenantRequest{Change: wire.TenantCreate})
	change("other", wire.ChangeTenantRequest{Change: wire.TenantDisable})
	await.Until(t, "the other tenant is disabled at b", func() bool {
		return b.meta.tenants.Load().Disabled("other")
	})
	close(answer)
	await.Until(t, "who connects is lab", func() bool { return dial(t, cb).Daemon().Tenant == "lab" })
}

// TestALateAnswerDisables: a user of a disabled tenant comes in before the machine says which number the user has, and
// is refused as soon as it does.
func TestALateAnswerDisables(t *testing.T) {
	ns, c := newNodes(t), aNode(t, "a")
	answer := make(chan struct{})
	d := ns.startWith(c, func(d *Daemon) {
		d.lookups.look = func(lookup) (uint32, bool) { <-answer; return 4242, true }
	})
	for _, m := range []wire.ChangeTenantRequest{{Change: wire.TenantCreate},
		{Change: wire.TenantMap, Kind: uint8(fsm.MemberUser), Member: "somebody"}, {Change: wire.TenantDisable}} {
		m.Name = "lab"
		if err := d.ChangeTenant(frontdoor.Peer{Admin: true}, m); err != nil {
			t.Fatal(err)
		}
	}
	came := frontdoor.Peer{UID: 4242, GID: 4242, Tenant: d.localTenant(4242, 4242)}
	if d.refuses(came) {
		t.Error("nobody knows yet who that is")
	}
	close(answer)
	await.Until(t, "the user is refused", func() bool { return d.refuses(came) })
}

// A user is the same tenant at each node where a record says so, whatever the user's number there; what the tenant has
// is the same tenant's everywhere, and stays when it is disabled, which ends its connections at all nodes.
func TestTenantsOfTheCluster(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	root, me := dial(t, ca), fmt.Sprint(os.Getuid())
	before := root.Daemon().Tenant
	change := func(c Config, m wire.ChangeTenantRequest, want error) {
		t.Helper()
		m.Name = "lab"
		if err := admin.Of(dial(t, c)).ChangeTenant(context.Background(), m); !errors.Is(err, want) {
			t.Fatalf("%+v: %v, want %v", m, err, want)
		}
	}
	user := func(node, name string, change wire.TenantChange) wire.ChangeTenantRequest {
		return wire.ChangeTenantRequest{Change: change, Kind: uint8(fsm.MemberUser), Member: name, Node: node}
	}
	isAt := func(c Config, tenant string) {
		t.Helper()
		await.Until(t, "who connects is "+tenant, func() bool { return dial(t, c).Daemon().Tenant == tenant })
	}
	change(ca, user("", me, wire.TenantMap), object.ErrNotFound)
	change(ca, wire.ChangeTenantRequest{Change: wire.TenantCreate}, nil)
	change(cb, wire.ChangeTenantRequest{Change: wire.TenantCreate}, object.ErrExists)
	change(ca, user("b", me, wire.TenantMap), nil)
	isAt(cb, "lab")
	isAt(ca, before)
	change(ca, user("nowhere", me, wire.TenantMap), object.ErrNotFound)
	change(ca, user("a", "root", wire.TenantMap), nil)
	change(ca, user("a", "nobody-has-this-name", wire.TenantMap), nil)
	if os.Getuid() != 0 {
		change(ca, user("a", me, wire.TenantMap), nil)
	}
	isAt(ca, "lab")

	putPublished(t, ca, "x")
	token, err := admin.Of(root).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User, Tenant: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	door := b.door.Load().RemoteAddr().String()
	if _, err := login.Login(context.Background(), door, token, "laptop"); err != nil {
		t.Fatal(err)
	}
	far, err := client.DialServer(context.Background(), door, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if far.Daemon().Tenant != "lab" {
		t.Fatalf("a client of the token is %s", far.Daemon().Tenant)
	}
	hasX := func(c *client.Conn) error { _, err := c.StatByName(context.Background(), "x"); return err }
	await.Until(t, "the object is found at b", func() bool { return hasX(far) == nil })

	change(ca, wire.ChangeTenantRequest{Change: wire.TenantDisable}, nil)
	await.Until(t, "b ends the connection", func() bool {
		return errors.Is(hasX(far), client.ErrDisconnected) || errors.Is(hasX(far), object.ErrPermission)
	})
	if _, err := client.DialServer(context.Background(), door, client.Options{}); !errors.Is(err,
		object.ErrPermission) {
		t.Errorf("while it is disabled: %v", err)
	}
	if _, err := login.Login(context.Background(), door, token, "other"); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a token while it is disabled: %v", err)
	}
	if err := hasX(dial(t, cb)); err != nil {
		t.Errorf("the daemon's own user is kept out: %v", err)
	}
	if x := tenantsAt(t, cb)["lab"]; x.State != "disabled" || x.PublishedObjects != 1 || x.PublishedBytes != 1 {
		t.Errorf("%+v", x)
	}
	change(cb, wire.ChangeTenantRequest{Change: wire.TenantEnable}, nil)
	await.Until(t, "it is let in again, and has its object", func() bool {
		c, err := client.DialServer(context.Background(), door, client.Options{})
		if err != nil {
			return false
		}
		defer c.Close()
		return hasX(c) == nil
	})

	change(ca, wire.ChangeTenantRequest{Change: wire.TenantRemove}, object.ErrBusy)
	change(ca, wire.ChangeTenantRequest{Change: wire.TenantRemove, Anyway: true}, nil)
	isAt(cb, before)
	isAt(ca, before)
	if _, err := client.DialServer(context.Background(), door, client.Options{}); !errors.Is(err,
		object.ErrPermission) {
		t.Errorf("with a certificate of a tenant that was removed: %v", err)
	}
}

// A tenant's quota holds on each node, on the one that has its own, and in the whole cluster; a restart keeps it.
func TestQuotasOfTenants(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	cb.Listen = freePort(t)
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	tenant := dial(t, ca).Daemon().Tenant
	quota := func(m wire.ChangeTenantRequest) error {
		m.Name, m.Change = tenant, wire.TenantQuota
		return admin.Of(dial(t, ca)).ChangeTenant(context.Background(), m)
	}
	if err := admin.Of(dial(t, ca)).ChangeTenant(context.Background(), wire.ChangeTenantRequest{Name: tenant,
		Change: wire.TenantCreate}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []wire.ChangeTenantRequest{{}, {Fields: wire.QuotaObjects, Objects: 1},
		{Fields: wire.QuotaDisk, Whole: true}, {Fields: wire.QuotaMemory, Whole: true, Node: "b"}} {
		if err := quota(m); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	const mib = 1 << 20
	for _, m := range []wire.ChangeTenantRequest{{Fields: wire.QuotaMemory, Memory: 4 * mib},
		{Fields: wire.QuotaMemory | wire.QuotaDevices, Memory: 16 * mib, Devices: 3, Node: "b"},
		{Fields: wire.QuotaObjects, Objects: 1, Whole: true}} {
		if err := quota(m); err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
	}
	fits := func(c Config, size uint64) bool {
		t.Helper()
		conn := dial(t, c)
		defer conn.Close()
		w, err := conn.Create(context.Background(), size, client.CreateOptions{})
		if err == nil {
			w.Abort(context.Background())
			return true
		}
		if !errors.Is(err, object.ErrQuota) {
			t.Fatal(err)
		}
		return false
	}
	// b hears of one change after the other, and the first alone would leave it 4 MiB
	await.Until(t, "b's own quota holds there", func() bool { return !fits(cb, 20*mib) && fits(cb, 8*mib) })
	if fits(ca, 8*mib) || !fits(ca, mib) {
		t.Errorf("at a 8 MiB %v, 1 MiB %v", fits(ca, 8*mib), fits(ca, mib))
	}
	if q := b.quotaOf(tenant); q.Devices != 3 {
		t.Errorf("%+v", q)
	}
	conn := dial(t, ca)
	for i := range 2 {
		name := fmt.Sprint("p", i)
		_, err := conn.Publish(context.Background(), put(t, ca, name), name, false)
		if i == 0 && err != nil || i == 1 && !errors.Is(err, object.ErrQuota) {
			t.Errorf("published object %d: %v", i, err)
		}
	}
	ns.end(b)
	ns.start(cb)
	await.Until(t, "the quota holds after a restart", func() bool { return !fits(cb, 20*mib) && fits(cb, 8*mib) })
	if err := quota(wire.ChangeTenantRequest{Fields: wire.QuotaMemory | wire.QuotaDevices, Node: "b"}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "b has what all nodes have", func() bool { return !fits(cb, 8*mib) })
}

// A node that joins has the cluster's tenants at once, though nothing changes afterwards, and one that leaves has them
// no more.
func TestTenantsComeAndGoWithTheCluster(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, b := ns.start(ca), ns.start(cb)
	for _, m := range []wire.ChangeTenantRequest{{Change: wire.TenantCreate},
		{Change: wire.TenantMap, Kind: uint8(fsm.MemberUser), Member: fmt.Sprint(os.Getuid())},
		{Change: wire.TenantQuota, Fields: wire.QuotaMemory, Memory: 5 << 20}} {
		m.Name = "lab"
		if err := admin.Of(dial(t, ca)).ChangeTenant(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	own := dial(t, cb).Daemon().Tenant
	join(t, ca, a, b)
	await.Until(t, "who connects is lab", func() bool { return dial(t, cb).Daemon().Tenant == "lab" })
	await.Until(t, "lab has its quota, which came later", func() bool { return b.quotaOf("lab").MemoryBytes == 5<<20 })
	leave(t, dial(t, cb), false)
	await.Until(t, "who connects is itself", func() bool { return dial(t, cb).Daemon().Tenant == own })
}
