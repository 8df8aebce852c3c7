//go:build cgo

package worker

import (
	"fmt"
	"os"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// movedEvery is how often the daemon hears what was compressed.
const movedEvery = 2 * time.Second

// maxHandshakes bounds the connections that have shown a ticket and no certificate yet.
const maxHandshakes = 16

// remote is a session whose client comes over the network: the daemon hands
// over raw sockets, and TLS runs here, with a key that exists nowhere else. A
// connection whose TLS fails is closed and changes nothing.
type remote struct {
	control  *control
	options  link.Options
	patience time.Duration // how long the session waits without a control stream
	lost     chan struct{} // the control stream lost its connection
	streams  chan *link.Stream
	lanes    chan carriedLane

	mu         sync.Mutex
	up         []resumable // nil: has not come up yet
	handshakes int
}

// resumable is a stream or a lane.
type resumable interface{ Resume(socket *os.File) error }

// carriedLane is a lane with its number.
type carriedLane struct {
	*link.Lane
	number int
}

// awaitRemote answers an assignment and waits for its control stream.
func (c *control) awaitRemote(m *clwire.AssignRemote) (link.Link, *remote, error) {
	if m.Lanes < 1 || m.Lanes > clwire.MaxLanes || len(m.ClientSHA256) != len(link.Fingerprint{}) {
		return nil, nil, fmt.Errorf("assignment of %d lanes and a fingerprint of %d bytes", m.Lanes,
			len(m.ClientSHA256))
	}
	id, err := link.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	r := &remote{control: c, up: make([]resumable, m.Lanes), streams: make(chan *link.Stream, 1),
		lanes: make(chan carriedLane, clwire.MaxLanes),
		lost:  make(chan struct{}, 1), patience: time.Duration(m.ResumeMillis) * time.Millisecond}
	r.options.Silence = time.Duration(m.SilenceMillis) * time.Millisecond
	if !m.Plaintext {
		r.options.TLS = id.Config(link.Fingerprint(m.ClientSHA256))
	}
	if !m.NoCompress {
		r.options.Compression = &link.Compression{}
	}
	if m.Resume {
		r.options.Lost = r.noteLoss
	}
	own := id.Fingerprint()
	c.send(&clwire.WorkerMessage{RemoteReady: &clwire.RemoteReady{CertificateSHA256: own[:]}})
	go c.watch(r)
	return <-r.streams, r, nil
}

func (r *remote) noteLoss() {
	select {
	case r.lost <- struct{}{}:
	default:
	}
}

// await ends the session when its control stream is without a connection for too long. A connection that is lost
// meanwhile was one: its client is there. It ends with the process.
func (r *remote) await(s *session, l *link.Stream) {
	for range r.lost {
		end := time.After(r.patience)
		for l.Lost() {
			select {
			case <-r.lost:
				end = time.After(r.patience)
			case <-time.After(100 * time.Millisecond):
			case <-end:
				s.fail(fmt.Errorf("%w: its client did not come back within %v", link.ErrHangup, r.patience))
				return
			}
		}
	}
}

// accept takes a connection over. The handshake runs apart: a client that
// stalls keeps nobody waiting.
func (r *remote) accept(index int, f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if index < 0 || index >= len(r.up) || r.up[index] != nil && r.options.Lost == nil || r.handshakes >= maxHandshakes {
		f.Close()
		return
	}
	r.handshakes++
	go func() {
		defer f.Close()
		if r.takeOver(index, f) {
			r.control.send(&clwire.WorkerMessage{LaneUp: &clwire.LaneUp{Index: index}})
		}
	}()
}

// takeOver makes a connection a lane's, or the next one of a lane, and reports whether it is.
func (r *remote) takeOver(index int, f *os.File) bool {
	r.mu.Lock()
	there := r.up[index]
	r.mu.Unlock()
	if there != nil {
		err := there.Resume(f)
		r.ended(index, nil)
		return err == nil
	}
	if index == 0 {
		s, err := link.OpenStream(link.Worker, f, r.options)
		if err != nil {
			r.ended(index, nil)
			return false
		}
		if !r.ended(index, s) { // the client made another connection while this one's handshake was under way
			s.Abandon()
			return false
		}
		r.streams <- s
		return true
	}
	l, err := link.OpenLane(link.Worker, f, r.options)
	if err != nil {
		r.ended(index, nil)
		return false
	}
	if !r.ended(index, l) {
		l.Close()
		return false
	}
	r.lanes <- carriedLane{l, index}
	return true
}

// ended books a handshake and reports whether the lane is up now by it. came is nil where it is not new.
func (r *remote) ended(index int, came resumable) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handshakes--
	first := came != nil && r.up[index] == nil
	if first {
		r.up[index] = came
	}
	return first
}

// tellMoved tells the daemon what was compressed, now and then, where there is anything. It ends with the process.
func (r *remote) tellMoved() {
	var told link.CompressionCounts
	for range time.Tick(movedEvery) {
		if n := r.options.Compression.Counts(); n.Packed() && n != told {
			told = n
			r.control.send(&clwire.WorkerMessage{Moved: &clwire.Moved{Sent: n.Sent, SentWire: n.SentWire,
				Taken: n.Taken, TakenWire: n.TakenWire}})
		}
	}
}

// feed hands lanes to the session as they come up; it ends with the process.
func (r *remote) feed(b *bulk, s *link.Stream) {
	for l := range r.lanes {
		s.Carry(l.Lane, l.number)
		b.addLane(l.Lane)
	}
}
