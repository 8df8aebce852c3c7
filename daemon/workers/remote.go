package workers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Limits of tickets.
const (
	// TicketLife is how long a ticket waits for its connection.
	TicketLife = 30 * time.Second
	// attemptLife is how long a connection may take for TLS with the worker, which closes it then.
	attemptLife = 5 * time.Second
	// maxAttempts is how many connections with one ticket may be at it at a time: somebody who saw the ticket on the
	// wire can use it for nothing, but must not be able to keep the worker busy.
	maxAttempts = 8
	// packetsATicket bounds what the daemon hears from a worker that tenant code may run in.
	packetsATicket = 8
)

// ThisMachine stands for every address of this machine's own that no other one can have.
const ThisMachine = "this machine"

// RemoteRequest says what worker a session on another machine wants.
type RemoteRequest struct {
	Request
	ClientSHA256 [sha256.Size]byte // of the client's certificate
	Lanes        int               // 1 to 8, checked by the caller
	Plaintext    bool              // no TLS: the ticket is all
	From         string            // host that connections must come from, or ThisMachine; "" = any
	Resume       bool              // its connections can be replaced: Tickets
	ResumeTime   time.Duration     // how long the worker waits for its client
	Silence      time.Duration     // how long its client's machine may say nothing; 0: as the kernel has it
}

// OpenedRemote says how its client reaches a worker: ticket i opens lane i.
type OpenedRemote struct {
	ID           uint64
	WorkerSHA256 [sha256.Size]byte
	Tickets      [][sha256.Size]byte
}

// ticket lets one connection through to a worker. Pool.mu guards it.
type ticket struct {
	w        *worker
	worker   uint64 // number
	lane     int
	from     string
	expires  time.Time
	attempts []time.Time // when those that are at it began
}

// opened is a worker's answer to one request, by the certificate that the client made for it alone.
type opened struct{ client, worker [sha256.Size]byte }

// OpenRemote gives a session on another machine a worker, as Open does. The worker is ended with Release or
// ReleaseSession. A request whose answer was lost with its connection, and that comes again, gets the same worker.
func (p *Pool) OpenRemote(ctx context.Context, r RemoteRequest) (OpenedRemote, error) {
	if o, ok := p.openedBefore(r); ok {
		var err error
		o.Tickets, err = p.Tickets(r.Session, o.ID, lanesTo(r.Lanes), r.From)
		return o, err
	}
	w, err := p.acquire(ctx, r.Request)
	if err != nil {
		return OpenedRemote{}, err
	}
	id := p.enter(w, r.Session, r.Plaintext)
	stop := context.AfterFunc(ctx, w.kill) // where the session ended before it had the worker
	o, err := p.handRemote(w, id, r)
	stop()
	if err != nil {
		p.discard(w)
		p.mu.Lock()
		delete(p.serving, id)
		p.dropTickets(id)
		p.mu.Unlock()
		return OpenedRemote{}, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	if r.Resume {
		p.mu.Lock()
		if s := p.serving[id]; s != nil {
			s.remote = &opened{r.ClientSHA256, o.WorkerSHA256}
		}
		p.mu.Unlock()
	}
	p.nudge()
	return o, nil
}

// openedBefore finds the worker that an earlier request with the same certificate was given.
func (p *Pool) openedBefore(r RemoteRequest) (o OpenedRemote, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.serving {
		if r.Resume && s.session == r.Session && s.remote != nil && s.remote.client == r.ClientSHA256 {
			return OpenedRemote{ID: id, WorkerSHA256: s.remote.worker}, true
		}
	}
	return OpenedRemote{}, false
}

func lanesTo(n int) []int {
	lanes := make([]int, n)
	for i := range lanes {
		lanes[i] = i
	}
	return lanes
}

func (p *Pool) handRemote(w *worker, id uint64, r RemoteRequest) (OpenedRemote, error) {
	o := OpenedRemote{ID: id}
	assign := clwire.AssignRemote{
		Session: r.Session, Worker: id, Tenant: r.Tenant, ClientSHA256: r.ClientSHA256[:], Lanes: r.Lanes,
		Plaintext: r.Plaintext, NoCompress: r.NoCompress,
		DeviceLimited: p.mostOnDevices(r.Tenant) > 0, Limits: p.timeLimits(),
		Resume: r.Resume, ResumeMillis: r.ResumeTime.Milliseconds(), SilenceMillis: r.Silence.Milliseconds(),
	}
	raw, err := json.Marshal(clwire.DaemonMessage{AssignRemote: &assign})
	if err == nil {
		err = w.tell(raw)
	}
	if err != nil {
		return o, err
	}
	if o.WorkerSHA256, err = w.hearRemoteReady(r.Plaintext, p.opts.StartTimeout); err != nil {
		return o, err
	}
	if o.Tickets, err = p.issueTickets(w, id, lanesTo(r.Lanes), r.From); err != nil {
		return o, err
	}
	if !p.listen(w, id) {
		return o, errClosed
	}
	w.questions.heard()
	p.opts.Log.WithField("session", r.Session).WithField("tenant", r.Tenant).WithField("worker", id).WithField("pid",
		w.pid).Info("worker serves another machine")
	return o, nil
}

// hearRemoteReady waits for the worker's certificate, as long as for its start: it computes one, and may have to wait
// for a processor. The session's end ends the worker, and the wait.
func (w *worker) hearRemoteReady(plaintext bool, limit time.Duration) (sum [sha256.Size]byte, err error) {
	_ = w.control.SetReadDeadline(time.Now().Add(limit))
	m, err := w.hearPacket()
	if err != nil {
		return sum, fmt.Errorf("worker %d does not get ready for another machine: %w", w.pid, err)
	}
	if m.RemoteReady == nil {
		return sum, fmt.Errorf("worker %d answered an assignment with something else", w.pid)
	}
	if plaintext {
		return sum, nil
	}
	if n := len(m.RemoteReady.CertificateSHA256); n != len(sum) {
		return sum, fmt.Errorf("worker %d: the hash of its certificate has %d bytes, want %d", w.pid, n, len(sum))
	}
	return [sha256.Size]byte(m.RemoteReady.CertificateSHA256), nil
}

// hearPacket reads one packet. io.EOF: the worker has closed its end.
func (w *worker) hearPacket() (m clwire.WorkerMessage, err error) {
	raw, err := readPacket(w.control)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("a packet of %d bytes is not one of the protocol: %w", len(raw), err)
	}
	return m, nil
}

// Tickets gives a worker's client new ones for connections in the place of those that it lost, one a lane; earlier ones
// for these lanes are void. from is as in RemoteRequest. Errors: ErrNotFound where the session has no such worker,
// ErrNoDevice, with its fate, for one that has ended.
func (p *Pool) Tickets(session, id uint64, lanes []int, from string) ([][sha256.Size]byte, error) {
	s, err := p.find(session, id)
	if err != nil {
		return nil, err
	}
	if s.w.ended() {
		return nil, fmt.Errorf("%w: the worker %s", object.ErrNoDevice, s.w.why())
	}
	for _, lane := range lanes {
		p.spend(id, lane)
	}
	return p.issueTickets(s.w, id, lanes, from)
}

// Plain says whether a session's worker talks to its client without TLS.
func (p *Pool) Plain(session, id uint64) bool {
	s, err := p.find(session, id)
	return err == nil && s.plain
}

// issueTickets draws tickets for a worker's lanes.
func (p *Pool) issueTickets(w *worker, id uint64, lanes []int, from string) ([][sha256.Size]byte, error) {
	list := make([][sha256.Size]byte, len(lanes))
	for i := range list {
		if _, err := rand.Read(list[i][:]); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for key, t := range p.tickets {
		if now.After(t.expires) {
			delete(p.tickets, key)
		}
	}
	for i, t := range list {
		p.tickets[sha256.Sum256(t[:])] = &ticket{w: w, worker: id, lane: lanes[i], from: from,
			expires: now.Add(TicketLife)}
	}
	w.grant(packetsATicket * len(lanes))
	return list, nil
}

// grant lets the daemon hear so many more packets of the worker.
func (w *worker) grant(packets int) {
	w.packets.Add(int64(packets))
	select {
	case w.granted <- struct{}{}:
	default:
	}
}

// dropTickets forgets a worker's tickets. mu is held.
func (p *Pool) dropTickets(worker uint64) {
	for key, t := range p.tickets {
		if t.worker == worker {
			delete(p.tickets, key)
		}
	}
}

// Lane hands a connection that showed a ticket to the ticket's worker; fd stays the caller's. The ticket is not spent
// by that: the worker says so when TLS succeeds, for whoever has only seen the ticket must not be able to burn it.
// Errors: ErrPermission for a ticket that is none (any more), ErrBusy where too many are at it.
func (p *Pool) Lane(secret [sha256.Size]byte, remote string, fd int) error {
	if ours, err := p.peerLane(secret, remote, fd); ours {
		return err
	}
	w, lane, err := p.claim(secret, remote)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(clwire.DaemonMessage{Lane: &clwire.WorkerLane{Index: lane}})
	if err != nil {
		return err
	}
	return w.tell(raw, fd)
}

func (p *Pool) claim(secret [sha256.Size]byte, remote string) (*worker, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	t := p.tickets[sha256.Sum256(secret[:])]
	if t == nil || now.After(t.expires) {
		return nil, 0, fmt.Errorf("%w: no such ticket: each is good for one connection within %v",
			object.ErrPermission, TicketLife)
	}
	if host, _, _ := net.SplitHostPort(remote); !isFrom(t.from, host) {
		return nil, 0, fmt.Errorf("%w: a ticket of %s was shown by %s", object.ErrPermission, t.from, host)
	}
	t.attempts = slices.DeleteFunc(t.attempts, func(began time.Time) bool { return now.Sub(began) > attemptLife })
	if len(t.attempts) >= maxAttempts {
		return nil, 0, fmt.Errorf("%w: %d connections show this ticket at a time", object.ErrBusy, len(t.attempts))
	}
	t.attempts = append(t.attempts, now)
	return t.w, t.lane, nil
}

// isFrom reports whether a connection of host, which is "" on a unix socket, is one of those that a ticket is for.
func isFrom(from, host string) bool {
	if from != ThisMachine {
		return from == "" || from == host
	}
	address, err := netip.ParseAddr(host)
	return host == "" || err == nil && address.Unmap().IsLoopback()
}

// listen hears which lanes are up and what the worker was asked for, and no more: tenant code may run in it. It reports
// false where the pool is closing.
func (p *Pool) listen(w *worker, id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	_ = w.control.SetReadDeadline(time.Time{})
	p.joined.Add(1)
	go func() { // ends with the worker
		defer p.joined.Done()
		for w.mayHear() {
			m, err := w.hearPacket()
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) ||
				errors.Is(err, syscall.ECONNRESET) {
				return
			}
			if err == nil && m.LaneUp != nil {
				p.spend(id, m.LaneUp.Index)
			}
			if err == nil && m.Commands != nil {
				w.questions.answered(m.Commands)
			}
			if err == nil && m.Moved != nil {
				p.addMoved(w.moved.Swap(m.Moved), m.Moved)
			}
		}
	}()
	return true
}

// mayHear waits until the worker may say something: after so many packets not before there are new tickets, or a second
// is over. false: it has ended.
func (w *worker) mayHear() bool {
	for {
		if w.packets.Add(-1) >= 0 {
			return true
		}
		w.packets.Add(1)
		select {
		case <-w.granted:
		case <-time.After(time.Second):
			return true
		case <-w.done:
			return false
		}
	}
}

// spend ends the ticket of one lane.
func (p *Pool) spend(worker uint64, lane int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, t := range p.tickets {
		if t.worker == worker && t.lane == lane {
			delete(p.tickets, key)
		}
	}
}
