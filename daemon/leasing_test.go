package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/devices"
	"tendril/store/object"
)

// twoPlatforms are five devices of two drivers, two of which are one GPU. The second driver's first device is hidden.
func twoPlatforms() []*workers.Platform {
	list := func(uuids ...string) (p workers.Platform) {
		for _, uuid := range uuids {
			p.Snapshot.Devices = append(p.Snapshot.Devices, clwire.DeviceSnapshot{UUID: uuid})
		}
		return p
	}
	a, b := list("aaaaaaaa0", "bbbbbbbb1"), list("cccccccc2", "BBBB-BBBB1", "dddddddd3")
	b.Places = []int{1, 2, 3}
	return []*workers.Platform{&a, &b}
}

func seen(own []*workers.Platform, s clwire.Snapshot) string {
	var b strings.Builder
	for i, p := range own {
		fmt.Fprintf(&b, "[%v:", p.Places)
		for k, device := range p.Snapshot.Devices {
			fmt.Fprintf(&b, " %s#%d", device.UUID, s.Platforms[i].Devices[k].Number)
		}
		b.WriteString("]")
	}
	return fmt.Sprint(b.String(), " ", s.Leased)
}

// A session sees what nobody leases, or its own lease's devices alone: in the driver's places and by the node's
// numbers.
func TestWhatASessionSees(t *testing.T) {
	d := &Daemon{leases: leases.New(0, time.Now), sessions: newSessions()}
	all := twoPlatforms()
	own, s := d.visible(nil, all)
	want := "[[]: aaaaaaaa0#1 bbbbbbbb1#2][[1 2 3]: cccccccc2#3 BBBB-BBBB1#4 dddddddd3#5] 0"
	if got := seen(own, s); got != want || own[0] != all[0] || own[1] != all[1] {
		t.Error(got)
	}
	keys := []string{deviceKey(all[0], 1), deviceKey(all[1], 2)}
	ann, err := d.leases.Grant(leases.Request{Tenant: "ann", Devices: keys})
	if err != nil {
		t.Fatal(err)
	}
	own, s = d.visible(nil, all)
	if got := seen(own, s); got != "[[0]: aaaaaaaa0#1][[1]: cccccccc2#3] 3" {
		t.Error(got)
	}
	own, s = d.visible(ann, all)
	if got := seen(own, s); got != "[[1]: bbbbbbbb1#2][[2 3]: BBBB-BBBB1#4 dddddddd3#5] 0" ||
		s.Lease.Devices != 2 || s.Lease.Token != ann.Token {
		t.Error(got)
	}
	selector, err := devices.ParseSelector("4")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(selector.Select(&s)); got != "[{1 1}]" {
		t.Errorf("device 4 of the node is %s", got)
	}
}

// A session that began before a lease gets no worker on what is leased now; one that ends while it asks leaves nothing.
func TestSharingBesideALease(t *testing.T) {
	d := &Daemon{leases: leases.New(0, time.Now), sessions: newSessions()}
	all := twoPlatforms()
	s := &session{peer: frontdoor.Peer{Tenant: "bob"}, platforms: all, cancel: func() {}}
	if err := d.sessions.add(s); err != nil {
		t.Fatal(err)
	}
	ann, err := d.leases.Grant(leases.Request{Tenant: "ann", Devices: []string{deviceKey(all[0], 0)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.share(s, all[0]); !errors.Is(err, object.ErrBusy) {
		t.Error(err)
	}
	if err := d.share(s, all[1]); err != nil {
		t.Error(err)
	}
	d.leases.Drop(ann)
	d.sessions.remove(s.id)
	d.leases.Leave(s.id)
	if err := d.share(s, all[0]); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	if _, err := d.leases.Grant(leases.Request{Tenant: "ann", Devices: []string{deviceKey(all[0], 0)}}); err != nil {
		t.Error(err)
	}
}
