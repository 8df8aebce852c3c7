package frontdoor

import (
	"maps"
	"slices"
	"testing"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
)

// slowNodes answers a proposal when leave is closed.
type slowNodes struct {
	Nodes
	asked chan Peer
	leave chan struct{}
}

func (n slowNodes) Propose(p Peer, _ []byte) (wire.ProposeReply, error) {
	n.asked <- p
	<-n.leave
	return wire.ProposeReply{}, nil
}

// A proposal under way reads its peer while the connection ends. The race detector finds what the two do unguarded.
func TestAProposalMeetsTheEndOfItsConnection(t *testing.T) {
	nodes := slowNodes{asked: make(chan Peer), leave: make(chan struct{})}
	d := openFar(t, func(o *Options) {
		o.Nodes = nodes
		remote := o.Remote
		o.Remote = func(p pki.Peer) Peer {
			peer := remote(p)
			peer.Expires = time.Now().Add(time.Hour)
			return peer
		}
	})
	own := certificateFrom(t, d.cluster.authority, pki.Node)
	link := mustEnter(t, d, own)
	d.mu.Lock()
	conns := slices.Collect(maps.Keys(d.conns))
	d.mu.Unlock()
	if len(conns) != 1 {
		t.Fatalf("%d connections, want 1", len(conns))
	}
	request := &wire.ProposeRequest{Command: []byte("x")}
	if err := link.Send(ipc.AppendFrame(nil, wire.Propose, 0, 9, request)); err != nil {
		t.Fatal(err)
	}
	if p := <-nodes.asked; p.Serial == (pki.Serial{}) || p.Role != pki.Node {
		t.Errorf("the proposal is by %+v", p)
	}
	link.Close()
	<-conns[0].departed // and no lock of the connection, which would order the two
	close(nodes.leave)
}
