package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/store/object"
)

// TestWhoMayChangeTheMetadata: nodes whose certificate is recorded may; a member without one may have its own recorded.
// What that takes does not grow with the cluster.
func TestWhoMayChangeTheMetadata(t *testing.T) {
	m := aloneIn(t)
	m.register(t)
	defer m.cancel()
	d := &Daemon{}
	propose := func(c fsm.Command) {
		t.Helper()
		if _, err := m.raft.Propose(context.Background(), fsm.UUID(object.NewID()), c); err != nil {
			t.Fatal(err)
		}
	}
	certificate := func(node fsm.UUID, serial byte) *fsm.RecordCertificate {
		return &fsm.RecordCertificate{Certificate: fsm.Certificate{Serial: fsm.UUID{serial}, Subject: "n",
			Role: fsm.RoleNode, Tenant: fsm.NodeTenant(node), Expires: 1 << 62}}
	}
	of := func(node fsm.UUID, serial byte) frontdoor.Peer {
		return frontdoor.Peer{Tenant: fsm.NodeTenant(node), Serial: pki.Serial{serial}}
	}
	propose(certificate(m.node, 1))
	stranger := fsm.UUID(object.NewID())
	for _, c := range []struct {
		who  frontdoor.Peer
		says fsm.Command
		want error
	}{
		{of(m.node, 1), &fsm.Nop{}, nil},
		{of(m.node, 2), &fsm.Nop{}, object.ErrPermission},
		{of(m.node, 2), certificate(m.node, 2), nil},
		{of(m.node, 2), certificate(stranger, 2), object.ErrPermission},
		{of(stranger, 2), certificate(stranger, 2), object.ErrPermission},
		{frontdoor.Peer{Tenant: "node:", Serial: pki.Serial{2}}, certificate(m.node, 2), object.ErrPermission},
	} {
		command, err := fsm.Encode(fsm.UUID{9}, c.says)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.maySpeak(m, c.who, command); !errors.Is(err, c.want) {
			t.Errorf("%s, %x, says %T: %v, want %v", c.who.Tenant, c.who.Serial, c.says, err, c.want)
		}
	}
	took := func() float64 {
		return testing.AllocsPerRun(100, func() { _ = d.maySpeak(m, of(m.node, 1), nil) })
	}
	before := took()
	for i := range 20 {
		propose(&fsm.PutNode{Node: fsm.Node{ID: fsm.UUID(object.NewID()), Name: fmt.Sprint("n", i),
			Incarnation: fsm.UUID(object.NewID())}})
	}
	if after := took(); after != before {
		t.Errorf("%.0f allocations with 21 nodes, %.0f with one", after, before)
	}
}
