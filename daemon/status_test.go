package daemon

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/workers"
	"tendril/ipc/wire"
	"tendril/store"
)

// A status that is not for the daemon's owner tells nothing of other tenants but how much they have in all.
func TestStatusShowsATenantItsOwn(t *testing.T) {
	full := func() Status {
		return Status{
			Sessions: []SessionStatus{
				{ID: 1, PID: 111, Tenant: "mine", Program: "my-program", Peer: "192.0.2.1:1"},
				{ID: 2, PID: 222, Tenant: "theirs", Program: "secret-program", Peer: "198.51.100.2:2",
					Selector: "secret-selector", PeerLinks: 20},
			},
			Workers: []workers.Status{{ID: 1, Session: 1, Tenant: "mine", Platform: "my-platform"},
				{ID: 2, PID: 333, Session: 2, Tenant: "theirs", Platform: "secret-platform"}},
			PeerLinks: []PeerLinkStatus{{Session: 1, With: "my-peer"}, {Session: 2, With: "secret-peer"}},
			Kept:      []store.Kept{{Tenant: "mine", Bytes: 1}, {Tenant: "theirs", Bytes: 99999}},
			Store: store.Status{
				Objects: 5, Tenants: []store.TenantStatus{{Name: "mine"}, {Name: "theirs", Objects: 4}},
				Damaged: []string{"secret-file"},
			},
		}
	}
	s := full()
	s.only("mine")
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"theirs", "secret", "222", "333", "198.51", "99999"} {
		if strings.Contains(string(raw), secret) {
			t.Errorf("%q is told: %s", secret, raw)
		}
	}
	for _, own := range []string{"my-program", "my-platform", "my-peer", "192.0.2.1"} {
		if !strings.Contains(string(raw), own) {
			t.Errorf("%q is missing: %s", own, raw)
		}
	}
	if *s.Others != (OthersStatus{Sessions: 1, Workers: 1, PeerLinks: 20, Damaged: 1}) || s.Store.Objects != 5 {
		t.Errorf("totals: %+v, %d objects", s.Others, s.Store.Objects)
	}
}

// A session of many links fills neither the status nor the lock: some are shown, those first that are not up, and their
// number.
func TestStatusShowsSomePeerLinks(t *testing.T) {
	d, stop := serve(t, aConfig(t))
	defer stop()
	s := &session{peer: frontdoor.Peer{PID: 1, Tenant: "uid:1"}, cancel: func() {}}
	if err := d.sessions.add(s); err != nil {
		t.Fatal(err)
	}
	defer d.sessions.remove(s.id)
	for i := range uint64(2 * maxPeerLinks) {
		d.TellPeer(s.id, wire.TellPeerRequest{Worker: 1, Link: i, With: fmt.Sprint("worker ", i), Up: i != 1000})
	}
	st := d.status()
	if len(st.PeerLinks) != peerLinksShown || st.PeerLinks[0].Link != 1000 || st.PeerLinks[1].Link != 0 {
		t.Errorf("%d links are shown, %+v first", len(st.PeerLinks), st.PeerLinks[:min(2, len(st.PeerLinks))])
	}
	if n := st.Sessions[0].PeerLinks; n != maxPeerLinks {
		t.Errorf("the session has %d links, want %d", n, maxPeerLinks)
	}
	if st.only("uid:2"); st.Others.PeerLinks != maxPeerLinks || len(st.PeerLinks) != 0 {
		t.Errorf("another tenant sees %d links, and that there are %d", len(st.PeerLinks), st.Others.PeerLinks)
	}
}

// The front door's peers get that status, but for the daemon's owner: local ones and certificates of every role.
func TestStatusOfAPeer(t *testing.T) {
	d, stop := serve(t, aConfig(t))
	defer stop()
	if err := d.sessions.add(&session{peer: frontdoor.Peer{PID: 1, Tenant: "theirs", Name: "secret-program"},
		cancel: func() {}}); err != nil {
		t.Fatal(err)
	}
	defer d.sessions.remove(1)
	for _, x := range []struct {
		peer  frontdoor.Peer
		shown bool
	}{
		{frontdoor.Peer{Tenant: "mine"}, false},
		{frontdoor.Peer{Tenant: "mine", Remote: "192.0.2.1:1", Role: pki.ReadOnly}, false},
		{frontdoor.Peer{Tenant: "theirs", Remote: "192.0.2.1:1", Role: pki.ReadOnly}, true},
		{frontdoor.Peer{Tenant: "mine", Admin: true}, true},
	} {
		raw, err := d.Status(x.peer)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "secret-program") != x.shown {
			t.Errorf("to %+v: %s", x.peer, raw)
		}
		if !strings.Contains(string(raw), `"tenant_leaving_bytes":0`) {
			t.Errorf("to %+v nothing is said of the tenant's own memory: %s", x.peer, raw)
		}
	}
}
