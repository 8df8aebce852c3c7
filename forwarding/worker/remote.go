//go:build cgo

package worker

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// maxHandshakes bounds the connections that have shown a ticket and no certificate yet.
const maxHandshakes = 16

// remote is a session whose client comes over the network: the daemon hands
// over raw sockets, and TLS runs here, with a key that exists nowhere else. A
// connection whose TLS fails is closed and changes nothing.
type remote struct {
	control *control
	config  *tls.Config // nil: in the clear
	streams chan *link.Stream
	lanes   chan *link.Lane

	mu         sync.Mutex
	up         []bool
	handshakes int
}

// awaitRemote answers an assignment and waits for its control stream.
func (c *control) awaitRemote(m *clwire.AssignRemote) (link.Link, *remote, error) {
	if m.Lanes < 1 || m.Lanes > clwire.MaxLanes || len(m.ClientSHA256) != len(link.Fingerprint{}) {
		return nil, nil, fmt.Errorf("assignment of %d lanes and a fingerprint of %d bytes", m.Lanes, len(m.ClientSHA256))
	}
	id, err := link.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	r := &remote{control: c, up: make([]bool, m.Lanes), streams: make(chan *link.Stream, 1), lanes: make(chan *link.Lane, clwire.MaxLanes)}
	if !m.Plaintext {
		r.config = id.Config(link.Fingerprint(m.ClientSHA256))
	}
	own := id.Fingerprint()
	c.send(&clwire.WorkerMessage{RemoteReady: &clwire.RemoteReady{CertificateSHA256: own[:]}})
	go c.watch(r)
	return <-r.streams, r, nil
}

// accept takes a connection over. The handshake runs apart: a client that
// stalls keeps nobody waiting.
func (r *remote) accept(index int, f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if index < 0 || index >= len(r.up) || r.up[index] || r.handshakes >= maxHandshakes {
		f.Close()
		return
	}
	r.handshakes++
	go func() {
		defer f.Close()
		if index == 0 {
			if s, err := link.NewStream(link.Worker, f, r.config); r.ended(index, err) {
				r.streams <- s
			} else if err == nil {
				s.Close()
			}
			return
		}
		if l, err := link.NewLane(link.Worker, f, r.config); r.ended(index, err) {
			r.lanes <- l
		} else if err == nil {
			l.Close()
		}
	}()
}

// ended books a handshake and reports whether the lane is up now by it.
func (r *remote) ended(index int, err error) bool {
	r.mu.Lock()
	r.handshakes--
	first := err == nil && !r.up[index]
	if first {
		r.up[index] = true
	}
	r.mu.Unlock()
	if first {
		r.control.send(&clwire.WorkerMessage{LaneUp: &clwire.LaneUp{Index: index}})
	}
	return first
}

// feed hands lanes to the session as they come up; it ends with the process.
func (r *remote) feed(b *bulk) {
	for l := range r.lanes {
		b.addLane(l)
	}
}
