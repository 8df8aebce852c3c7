package daemon

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A program of one node comes in at another one as its tenant, without a login; all programs of a tenant share one
// certificate, whose revocation ends that. Another node at the address is not taken for the one that is meant.
func TestAccessToOtherNodes(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, b := ns.start(ca), ns.start(cb)
	conn := dial(t, ca)
	if access, err := conn.Access(context.Background()); err != nil || len(access.Nodes) != 0 {
		t.Fatalf("a node that is alone: %+v, %v", access, err)
	}
	join(t, ca, a, b)
	var access *client.Access
	await.Until(t, "the other node is known", func() bool {
		var err error
		if access, err = conn.Access(context.Background()); err != nil {
			t.Fatal(err)
		}
		return len(access.Nodes) == 1
	})
	n := access.Nodes[0]
	far, err := access.DialNode(context.Background(), n, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if n.Name != "b" || !far.Remote() || far.Daemon().Tenant != conn.Daemon().Tenant {
		t.Errorf("%+v: tenant %q, here %q", n, far.Daemon().Tenant, conn.Daemon().Tenant)
	}
	again, err := far.Access(context.Background())
	if err != nil || len(again.Nodes) != 1 || again.Nodes[0].Name != "a" {
		t.Errorf("b leads back to a: %+v, %v", again, err)
	}
	wrong := n
	wrong.ID = object.NewID()
	if other, err := access.DialNode(context.Background(), wrong, client.Options{}); err == nil {
		other.Close()
		t.Error("another node than the one that is meant was taken for it")
	}
	issued := func() (list []fsm.Certificate) {
		a.meta.raft.View(func(s *fsm.State) {
			for _, c := range s.Certificates() {
				if c.Role == fsm.RoleUser {
					list = append(list, c)
				}
			}
		})
		return list
	}
	if _, err := dial(t, ca).Access(context.Background()); err != nil || len(issued()) != 1 {
		t.Fatalf("certificates: %v, %v", issued(), err)
	}
	request := requestFor(t)
	for _, d := range []*Daemon{a, b} { // whoever has carried the key off this machine asks in vain
		_, err := d.Renew(frontdoor.Peer{Subject: "x", Role: pki.User, Tenant: conn.Daemon().Tenant,
			Serial: pki.Serial(issued()[0].Serial)}, request)
		if !errors.Is(err, object.ErrPermission) {
			t.Errorf("renewed: %v", err)
		}
	}
	for _, x := range []struct {
		at    Config
		which admin.CertificateChoice
	}{{ca, admin.CertificateChoice{Serial: object.ID(issued()[0].Serial)}},
		{ca, admin.CertificateChoice{Tenant: conn.Daemon().Tenant}},
		{cb, admin.CertificateChoice{Node: "a"}}} {
		root := dial(t, x.at)
		if n, err := admin.Of(root).RevokeCertificates(context.Background(), x.which, "test"); err != nil || n != 1 {
			t.Fatalf("%+v: %d, %v", x.which, n, err)
		}
		await.Until(t, "b ends the connection", func() bool {
			_, err := admin.Of(far).Devices(context.Background())
			return errors.Is(err, client.ErrDisconnected)
		})
		if other, err := access.DialNode(context.Background(), n, client.Options{}); err == nil {
			other.Close()
			t.Errorf("%+v: b believes the certificate still", x.which)
		}
		await.Until(t, "a knows that it is revoked", func() bool {
			if access, err = conn.Access(context.Background()); err != nil {
				t.Fatal(err)
			}
			far.Close()
			far, err = access.DialNode(context.Background(), n, client.Options{})
			return err == nil
		})
	}
	if _, err := admin.Of(conn).RevokeCertificates(context.Background(), admin.CertificateChoice{Node: "nobody"},
		""); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	var list []inspect.Certificate
	for raw, err := range admin.Of(conn).EachCertificate(context.Background()) {
		var c inspect.Certificate
		if err != nil || json.Unmarshal(raw, &c) != nil {
			t.Fatal(err)
		}
		if c.Role == "user" && c.Node == "a" {
			list = append(list, c)
		}
	}
	revoked := func(c inspect.Certificate) bool { return c.State == "revoked" && c.Reason == "test" }
	if len(list) != 4 || len(slices.DeleteFunc(slices.Clone(list), revoked)) != 1 {
		t.Errorf("%+v", list)
	}
	if _, err := b.propose(&fsm.RemoveNode{Node: a.meta.node, Epoch: nodeEpoch(b, a.meta.node)}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "its programs' connections end with the node", func() bool {
		_, err := admin.Of(far).Devices(context.Background())
		return errors.Is(err, client.ErrDisconnected)
	})
}

func nodeEpoch(d *Daemon, id fsm.UUID) (epoch uint64) {
	d.meta.raft.View(func(s *fsm.State) {
		n, _ := s.Node(id)
		epoch = n.Epoch
	})
	return epoch
}

// What tenants of a machine are given is bounded, and what is of no use any more makes room.
func TestAccessIsBounded(t *testing.T) {
	var x accesses
	m := &membership{}
	good := access{m: m, cert: certificateUntil(time.Now().Add(accessLife))}
	old := access{m: m, cert: certificateUntil(time.Now())}
	for i := range maxAccessKept {
		a := good
		if i == 7 {
			a = old
		}
		if err := x.keep(tenantNumber(i), a); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.keep("one more", good); err != nil {
		t.Errorf("an old one was there to make room: %v", err)
	}
	if err := x.keep("another", good); !errors.Is(err, object.ErrLimit) {
		t.Errorf("%v", err)
	}
	if err := x.keep(tenantNumber(3), good); err != nil {
		t.Errorf("one that has one gets the next: %v", err)
	}
}

func requestFor(t *testing.T) []byte {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, "x")
	if err != nil {
		t.Fatal(err)
	}
	return request
}

func certificateUntil(end time.Time) *x509.Certificate { return &x509.Certificate{NotAfter: end} }

func tenantNumber(i int) string { return fmt.Sprint("uid:", i) }
