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
	d := &Daemon{at: func(string) {}}
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
		if err := d.maySpeak(t.Context(), m, c.who, command); !errors.Is(err, c.want) {
			t.Errorf("%s, %x, says %T: %v, want %v", c.who.Tenant, c.who.Serial, c.says, err, c.want)
		}
	}
	took := func() float64 {
		return allocations(func() { _ = d.maySpeak(context.Background(), m, of(m.node, 1), nil) })
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

// A leader that was elected a moment ago has yet to do what was committed before: it refuses nobody for what it does
// not know yet.
func TestNewLeaderLooksAgain(t *testing.T) {
	m := aloneIn(t)
	m.register(t)
	defer m.cancel()
	d := &Daemon{at: func(step string) {
		if step != "does not know who wants to change the metadata" {
			return
		}
		c := fsm.Certificate{Serial: fsm.UUID{1}, Subject: "n", Role: fsm.RoleNode, Tenant: fsm.NodeTenant(m.node),
			Expires: 1 << 62}
		if _, err := m.raft.Propose(context.Background(), fsm.UUID(object.NewID()),
			&fsm.RecordCertificate{Certificate: c}); err != nil {
			t.Error(err)
		}
	}}
	command, err := fsm.Encode(fsm.UUID{9}, &fsm.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	p := frontdoor.Peer{Tenant: fsm.NodeTenant(m.node), Serial: pki.Serial{1}}
	if err := d.maySpeak(t.Context(), m, p, command); err != nil {
		t.Errorf("a node whose certificate was recorded meanwhile: %v", err)
	}
}
