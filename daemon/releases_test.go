package daemon

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestReleasesThatDoNotFit: a node of another release is told at its join which one is older and what to install; a
// request or a change that a node does not know is refused with the same advice, and costs nobody anything.
func TestReleasesThatDoNotFit(t *testing.T) {
	x := newCluster(t, 2, nil)
	a, b := x.all[0], x.all[1].meta.now.Load()
	token, err := pki.ParseToken(newToken(t, x.conns[0], admin.TokenOptions{Role: pki.Node}))
	if err != nil {
		t.Fatal(err)
	}
	for says, levels := range map[string][2]uint16{
		`"another", is older than the cluster's, test`: {fsm.Level - 1, fsm.Level - 1},
		`"another", is newer than the cluster's, test`: {fsm.Level + 1, fsm.Level + 2},
	} {
		_, err := a.Join("somewhere", wire.JoinRequest{Token: token.ID(), SecretHash: token.SecretHash(),
			Node: object.NewID(), Name: "c", Version: "another", Lowest: levels[0], Highest: levels[1]})
		if !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "install release test on the node") {
			t.Errorf("levels %v: %v", levels, err)
		}
	}

	unknown := wire.Type(0x7ff0) // a request of a later release
	if _, err := b.links.ask(t.Context(), a.meta.node, unknown, nil); !errors.Is(err, object.ErrUnsupported) ||
		!strings.Contains(err.Error(), "its release is older") {
		t.Errorf("a request that the node does not know: %v", err)
	}
	raw, err := fsm.Encode(fsm.UUID(object.NewID()), &fsm.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(raw[2:], fsm.Level+1) // a change of a later release
	_, err = b.links.ask(t.Context(), a.meta.node, wire.Propose, &wire.ProposeRequest{Command: raw})
	if !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(), "node n0 (release test)") {
		t.Errorf("a change that the leader does not know: %v", err)
	}
	newToken(t, x.conns[1], admin.TokenOptions{}) // afterwards both work
}
