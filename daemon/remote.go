package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/tenancy"
	"tendril/daemon/workers"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// openRemoteDoor is the start-up step: a port that was asked for and is taken ends the start, the default one does not,
// and none does in a takeover: anybody can take a port in the moment between two daemons, and the objects matter more.
func (d *Daemon) openRemoteDoor() error {
	err := d.openTCP()
	if errors.Is(err, object.ErrBusy) && (d.cfg.Origin("listen") == "default" || d.inherited != nil) {
		return nil // whyClosed shows it
	}
	return err
}

// openTCP opens the door for other machines unless that is not wanted, done, or too early: beyond this machine it opens
// once somebody has a token to come in with.
func (d *Daemon) openTCP() error {
	d.opening.Lock()
	defer d.opening.Unlock()
	door := d.door.Load()
	if d.cfg.Listen == "none" || door == nil || door.RemoteAddr() != nil {
		return nil
	}
	if !Loopback(d.cfg.Listen) && !d.anyoneMayCome() {
		d.closedDoor = fmt.Sprintf("%s is opened to the network once there is a token: tendril token create",
			d.cfg.Listen)
		d.log.WithField("listen", d.cfg.Listen).Info("the front door for other machines opens with the first token")
		return nil
	}
	address, err := door.ListenTCP(d.cfg.Listen)
	if err != nil {
		d.closedDoor = err.Error()
		d.log.WithError(err).Warn("the front door is not open for other machines")
		return err
	}
	d.closedDoor = ""
	if _, port, err := net.SplitHostPort(d.cfg.Listen); err == nil && port == anyPort {
		d.tellAddress()
	}
	if Loopback(address.String()) {
		d.log.WithField("listen", address).Info("the front door is open for TLS from this machine only")
		return nil
	}
	d.log.WithField("listen", address).Info("the front door is open for other machines")
	return nil
}

// whyClosed says why other machines find no door here; "" when they do, or are not wanted.
func (d *Daemon) whyClosed() string {
	d.opening.Lock()
	defer d.opening.Unlock()
	return d.closedDoor
}

// remotePeer says who a certified peer is here.
func remotePeer(p pki.Peer) frontdoor.Peer {
	tenant := p.Tenant
	if p.Role == pki.Node {
		tenant = "node:" + p.Node
	}
	uid, gid := tenancy.UserOf(tenant)
	return frontdoor.Peer{UID: uid, GID: gid, Tenant: tenant, Subject: p.Name, Serial: p.Serial, Expires: p.Expires,
		Leaf: p.Leaf, Role: p.Role}
}

// checkSandbox refuses programs of other machines where nothing keeps a worker from the rest of this one.
func (d *Daemon) checkSandbox(p frontdoor.Peer) error {
	if p.Remote == "" || d.cfg.TrustRemote {
		return nil
	}
	for _, f := range d.pool.Fallbacks() {
		if f.What == "landlock" || f.What == "seccomp" {
			return fmt.Errorf("%w: this node has no sandbox for programs of other machines (%s: %s): fix that, or start the daemon with --trust-remote true",
				object.ErrPermission, f.What, f.Why)
		}
	}
	return nil
}

// OpenRemoteWorker implements frontdoor.Backend.
func (d *Daemon) OpenRemoteWorker(id uint64, m wire.OpenRemoteWorkerRequest) (wire.OpenRemoteWorkerReply, error) {
	var reply wire.OpenRemoteWorkerReply
	s, request, err := d.workerRequest(id, m.Platform)
	if err != nil {
		return reply, err
	}
	r := workers.RemoteRequest{
		Request: request, ClientSHA256: m.ClientSHA256, Lanes: int(m.Lanes), Plaintext: m.Plaintext,
		Resume: m.Resume, ResumeTime: max(0, d.cfg.ResumeTime), Silence: d.cfg.Deadline,
	}
	if m.Plaintext {
		if r.From, err = d.plaintextFrom(d.sessions.from(s)); err != nil {
			return reply, err
		}
	}
	w, err := d.pool.OpenRemote(s.ctx, r)
	if err != nil {
		d.log.WithError(err).WithField("session", id).WithField("tenant",
			s.peer.Tenant).Warn("cannot give a session a worker")
		return reply, err
	}
	// closed meanwhile, and its workers released before this one was there
	if _, err := d.sessions.get(id); err != nil {
		d.pool.ReleaseSession(id)
		return reply, err
	}
	reply.Worker, reply.WorkerSHA256, reply.Tickets = w.ID, w.WorkerSHA256, w.Tickets
	return reply, nil
}

// ResumeWorker implements frontdoor.Backend.
func (d *Daemon) ResumeWorker(id, worker uint64, lanes []int) ([][ipc.TicketBytes]byte, error) {
	s, err := d.sessions.get(id)
	if err != nil {
		return nil, err
	}
	from := ""
	if d.pool.Plain(id, worker) { // the new address, too, must be one that may do without TLS
		if from, err = d.plaintextFrom(d.sessions.from(s)); err != nil {
			return nil, err
		}
	}
	return d.pool.Tickets(id, worker, lanes, from)
}

// SessionAway implements frontdoor.Backend.
func (d *Daemon) SessionAway(id uint64, until time.Time, remote string) {
	d.sessions.away(id, until, remote)
}

// plaintextFrom checks that a peer may do without TLS, and gives the host that its data must come from: for a process
// of this machine workers.ThisMachine.
func (d *Daemon) plaintextFrom(remote string) (string, error) {
	if remote == "" {
		return workers.ThisMachine, nil
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return "", err
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return "", err
	}
	if address.Unmap().IsLoopback() {
		return host, nil
	}
	for _, p := range d.cfg.PlaintextPeers {
		if prefix, err := parsePrefix(p); err == nil && prefix.Contains(address.Unmap()) {
			return host, nil
		}
	}
	return "", fmt.Errorf("%w: plaintext is only for this machine and named peers: name %s in the daemon's --plaintext-peers, or omit --plaintext", object.ErrPermission, host)
}

// AttachSegment implements frontdoor.Backend.
func (d *Daemon) AttachSegment(session, worker, bytes uint64, device object.Device, fd int) (uint64, error) {
	return d.pool.Attach(session, worker, bytes, device, fd)
}

// Lane implements frontdoor.Backend.
func (d *Daemon) Lane(ticket [ipc.TicketBytes]byte, remote string, fd int) error {
	return d.pool.Lane(ticket, remote, fd)
}
