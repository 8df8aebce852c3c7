package session

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
)

// Server is one daemon that a process was pointed to, in place of its own node's.
type Server struct {
	Name string // HOST:PORT or ssh://…, for the person at the terminal
	Dial func() (Control, error)
}

// RemoteControl is the connection to a daemon on another machine: no memory is shared with it, so that AllocSegment and
// what belongs to it fail.
type RemoteControl interface {
	Control
	// OpenRemoteWorker starts a worker whose lanes this process will dial, each with a ticket, within 30 s. own is the
	// fingerprint of the certificate shown on them.
	// With resume the connections can be replaced.
	OpenRemoteWorker(platform uint32, own link.Fingerprint, lanes int, plaintext, resume bool) (RemoteWorker, error)
	// DialLane connects once more and shows a ticket. The caller owns the socket, from which nothing was read.
	DialLane(ticket [32]byte) (*os.File, error)
	// KeepSession makes the session outlive this connection, for limit at most; it returns for how long, 0: not at all.
	KeepSession(limit time.Duration) (time.Duration, error)
	// ResumeWorker gives tickets for new connections in the place of a worker's lanes that were lost, in ascending order.
	ResumeWorker(worker uint64, lanes []int) ([][32]byte, error)
}

// RemoteWorker is what OpenRemoteWorker gives.
type RemoteWorker struct {
	ID          uint64
	Fingerprint link.Fingerprint // of the worker's certificate
	Tickets     [][32]byte       // one a lane; lane 0 is the control stream
}

// bulkLanes is how many lanes a worker gets: TLS keeps a core busy at each end of one.
func bulkLanes(configured int) int {
	if configured <= 0 {
		configured = runtime.NumCPU() / 4
	}
	return min(max(configured, 1), clwire.MaxLanes-1)
}

// openRemote asks a daemon of another machine for a worker and connects to it. The bulk lanes come up in the background.
func (p *Platform) openRemote(control RemoteControl, w *worker) error {
	own, err := link.NewIdentity()
	if err != nil {
		return err
	}
	link.RaiseProcessors()
	n := bulkLanes(p.d.cfg.Lanes)
	began := p.d.began()
	keeps := p.d.keepsSession(control)
	remote, err := control.OpenRemoteWorker(p.index, own.Fingerprint(), 1+n, p.d.cfg.Plaintext, keeps)
	p.d.tripped(began, trace.CauseStartWorker, nil, "")
	if err != nil {
		return err
	}
	w.id = remote.ID
	if len(remote.Tickets) != 1+n {
		control.CloseWorker(w.id)
		return fmt.Errorf("the daemon gave %d tickets for %d connections", len(remote.Tickets), 1+n)
	}
	options := link.Options{Silence: p.d.cfg.Silence}
	if !keeps && options.Silence > 0 {
		options.Silence += max(p.d.cfg.Resume, 0) // there is no other connection: this one may come to life again
	}
	if !p.d.cfg.Plaintext {
		options.TLS = own.Config(remote.Fingerprint)
	}
	var r *resumer
	if keeps {
		r = newResumer(w, control)
		options.Lost = r.noteLoss
	}
	var stream *link.Stream
	err = p.d.insist(control, w.id, 0, remote.Tickets[0], keeps, func(ticket [32]byte) (err error) {
		stream, err = dialStream(control, ticket, options)
		return err
	})
	if err != nil {
		control.CloseWorker(w.id)
		return fmt.Errorf("connect to the worker: %w", err)
	}
	w.link, w.bulk = stream, newBulk(w)
	options.Compression = &w.bulk.compression
	if r != nil {
		w.resumer = r
		r.start(stream)
	}
	for i, ticket := range remote.Tickets[1:] {
		w.bulk.work.Go(func() { w.bulk.connect(control, ticket, 1+i, options) })
	}
	return nil
}

func dialStream(control RemoteControl, ticket [32]byte, o link.Options) (*link.Stream, error) {
	f, err := control.DialLane(ticket)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return link.OpenStream(link.Client, f, o)
}

// connect brings one lane up, of a number, and reads it until it ends.
func (b *bulk) connect(control RemoteControl, ticket [32]byte, number int, o link.Options) {
	var l *link.Lane
	err := b.w.d.insist(control, b.w.id, number, ticket, b.w.resumer != nil, func(ticket [32]byte) error {
		if b.isClosed() {
			return errDead
		}
		f, err := control.DialLane(ticket)
		if err != nil {
			return err
		}
		defer f.Close()
		l, err = link.OpenLane(link.Client, f, o)
		return err
	})
	if err == nil {
		b.w.link.(*link.Stream).Carry(l, number)
		b.w.resumer.carry(l, number)
	}
	if err == nil && !b.add(l) {
		l.Close()
		return
	}
	if err == nil {
		link.GiveWay(func() { err = b.read(l) })
	}
	if !b.isClosed() {
		b.w.die(fmt.Errorf("a data connection ended: %w", err))
	}
}

// errNoShared is what a remote daemon's Control answers where memory would be shared.
var errNoShared = errors.New("no memory is shared with another machine")
