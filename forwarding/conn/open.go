package conn

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
)

// Open asks the daemon for a worker and greets it. After an error the Conn is of no use, and nothing of it is left.
func (c *Conn) Open() error {
	open := c.openLocal
	if remote, ok := c.opt.Control.(Remote); ok {
		open = func() error { return c.openRemote(remote) }
	}
	if err := c.reader.prepare(c); err != nil {
		return err
	}
	if err := open(); err != nil {
		c.reader.discard()
		return fmt.Errorf("start a worker for %s: %w", c.opt.Name, err)
	}
	c.prepareTrace()
	c.reader.start()
	if err := c.greet(); err != nil {
		c.Close()
		return err
	}
	c.startTrace()
	if c.opt.Limits != (clwire.TimeLimits{}) {
		limits := c.opt.Limits
		c.SendOneWay(&limits)
	}
	return nil
}

// openLocal asks the node's daemon for a worker and maps its ring.
func (c *Conn) openLocal() error {
	began := c.opt.Tracer.Began()
	files, err := c.opt.Control.OpenWorker(c.opt.Platform)
	c.tripped(began, trace.CauseStartWorker, "")
	if err != nil {
		return err
	}
	l, err := link.New(link.Client, files.Ring, files.Socket)
	if err = errors.Join(err, files.Ring.Close(), files.Socket.Close()); err != nil {
		c.opt.Control.CloseWorker(files.ID)
		return err
	}
	c.id, c.link = files.ID, l
	return nil
}

func (c *Conn) greet() error {
	call, err := c.Ask(&clwire.Hello{Version: clwire.Version, SpinMicros: uint32(c.opt.Spin / time.Microsecond),
		Program: c.opt.Program})
	if err != nil {
		return fmt.Errorf("the worker does not answer: %w", err)
	}
	if c.Dead() {
		return fmt.Errorf("the worker does not answer: %w", ErrDead)
	}
	var reply clwire.HelloReply
	if call.Status != cl.SUCCESS {
		return fmt.Errorf("%w (status %d)", errVersion, call.Status)
	}
	if err := reply.Decode(call.Data); err != nil || reply.Version != clwire.Version {
		return fmt.Errorf("%w: it has %d, this library %d", errVersion, reply.Version, clwire.Version)
	}
	c.capabilities = reply.Capabilities
	c.bulk.allowCompression()
	return nil
}

// BulkLanes is how many lanes a worker gets: TLS keeps a core busy at each end of one.
func BulkLanes(configured int) int {
	if configured <= 0 {
		configured = runtime.NumCPU() / 4
	}
	return min(max(configured, 1), clwire.MaxLanes-1)
}

// openRemote asks a daemon of another machine for a worker and connects to it. The bulk lanes come up in the
// background.
func (c *Conn) openRemote(remote Remote) error {
	own, err := link.NewIdentity()
	if err != nil {
		return err
	}
	link.RaiseProcessors()
	n := BulkLanes(c.opt.Lanes)
	began := c.opt.Tracer.Began()
	worker, err := remote.OpenRemoteWorker(c.opt.Platform, own.Fingerprint(), 1+n, c.opt.Plaintext, c.opt.Resumes)
	c.tripped(began, trace.CauseStartWorker, "")
	if err != nil {
		return err
	}
	c.id = worker.ID
	if len(worker.Tickets) != 1+n {
		c.opt.Control.CloseWorker(c.id)
		return fmt.Errorf("the daemon gave %d tickets for %d connections", len(worker.Tickets), 1+n)
	}
	options := link.Options{Silence: c.opt.Silence}
	if !c.opt.Resumes && options.Silence > 0 {
		options.Silence += max(c.opt.Resume, 0) // there is no other connection: this one may come to life again
	}
	if !c.opt.Plaintext {
		options.TLS = own.Config(worker.Fingerprint)
	}
	if c.opt.Resumes {
		c.resumer = newResumer(c, remote)
		options.Lost = c.resumer.lossOf(0)
	}
	var stream *link.Stream
	err = c.insist(remote, 0, worker.Tickets[0], func(ticket [32]byte) (err error) {
		stream, err = dialStream(remote, ticket, options)
		return err
	})
	if err != nil {
		c.opt.Control.CloseWorker(c.id)
		return fmt.Errorf("connect to the worker: %w", err)
	}
	c.link, c.bulk = stream, newBulk(c)
	options.Compression = &c.bulk.compression
	if c.resumer != nil {
		c.resumer.open(stream)
	}
	for i, ticket := range worker.Tickets[1:] {
		number, o := 1+i, options
		if c.resumer != nil {
			o.Lost = c.resumer.lossOf(number)
		}
		c.bulk.work.Go(func() { c.bulk.connect(remote, ticket, number, o) })
	}
	return nil
}

// mostPatience bounds how long a lane's first connection is tried for.
const mostPatience = 60 * time.Second

// insist makes a lane's first connection. Where lost connections can be replaced it tries again, with new tickets.
func (c *Conn) insist(remote Remote, number int, ticket [32]byte, dial func(ticket [32]byte) error) error {
	for began, pause := time.Now(), resumePause; ; pause = min(2*pause, resumePauseMax) {
		err := dial(ticket)
		if err == nil || !c.opt.Resumes || errors.Is(err, ErrDead) || errors.Is(err, link.ErrPeer) ||
			time.Since(began) > min(c.opt.Resume, mostPatience) {
			return err
		}
		time.Sleep(pause)
		tickets, wrong := remote.ResumeWorker(c.id, []int{number})
		if workerGone(wrong) {
			return errors.Join(err, wrong)
		}
		if wrong == nil && len(tickets) == 1 {
			ticket = tickets[0]
		}
	}
}

func dialStream(remote Remote, ticket [32]byte, o link.Options) (*link.Stream, error) {
	f, err := remote.DialLane(ticket)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return link.OpenStream(link.Client, f, o)
}

// connect brings one lane up, of a number, and reads it until it ends.
func (b *bulk) connect(remote Remote, ticket [32]byte, number int, o link.Options) {
	c := b.c
	var l *link.Lane
	err := c.insist(remote, number, ticket, func(ticket [32]byte) error {
		if b.isClosed() {
			return ErrDead
		}
		f, err := remote.DialLane(ticket)
		if err != nil {
			return err
		}
		defer f.Close()
		l, err = link.OpenLane(link.Client, f, o)
		return err
	})
	if err == nil {
		c.link.(*link.Stream).Carry(l, number)
		c.resumer.add(l, number)
	}
	if err == nil && !b.add(l) {
		l.Close()
		return
	}
	if err == nil {
		link.GiveWay(func() { err = b.read(l) })
	}
	if !b.isClosed() {
		c.die(fmt.Errorf("a data connection ended: %w", err))
	}
}
