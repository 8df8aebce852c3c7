package rig

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Way is a direction through a Proxy.
type Way int

// The ways.
const (
	ToServer Way = iota
	ToClient
)

// Lane is what kind of connection a fault is for; a connection's preface says which it is (ipc/PROTOCOL.md).
type Lane int

// The kinds: a preface's, and any.
const (
	Control Lane = iota
	Data
	Any
)

// Fault is what a Proxy does to the bytes of connections of one kind and way, once so many have passed.
type Fault struct {
	Lane  Lane
	Way   Way
	After int64 // bytes, from the connection's beginning
	// One of these.
	Cut    bool          // end the connection, in both ways
	Flip   bool          // alter the next byte
	Drop   bool          // leave the next 64 bytes out
	Double bool          // send the next 64 bytes twice
	Swap   bool          // exchange the next 64 bytes and the 64 behind
	Stall  bool          // let nothing pass any more, and say nothing
	Delay  time.Duration // hold each piece back so long, from here on

	Once bool // the first connection that comes to it alone
}

// Proxy is somebody in the middle between a client and a server. Safe for concurrent use. Close joins its goroutines.
type Proxy struct {
	target   string // immutable
	listener net.Listener

	running sync.WaitGroup
	mu      sync.Mutex // guards the rest
	fault   *Fault
	thieves int
	struck  int
	tickets [][]byte
	conns   map[net.Conn]struct{}
	closed  bool
	outage  outage
}

// NewProxy listens on a port of this machine and passes all to target. The caller must Close.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, conns: map[net.Conn]struct{}{},
		outage: outage{pairs: map[*pair]struct{}{}, ended: make(chan struct{})}}
	p.running.Go(p.accept)
	return p, nil
}

// Address is where clients connect.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Set gives the fault for connections from now on, nil = none, and forgets how often it struck.
func (p *Proxy) Set(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.struck = f, 0
}

// Steal has so many strangers show each ticket that passes before its owner does: half of them then talk nonsense, the
// others keep silent.
func (p *Proxy) Steal(strangers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thieves = strangers
}

// Tickets gives the tickets that came by, 32 bytes each.
func (p *Proxy) Tickets() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tickets)
}

func (p *Proxy) see(ticket []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(ticket) == 32 {
		p.tickets = append(p.tickets, slices.Clone(ticket))
	}
}

// steal shows a ticket.
func (p *Proxy) steal(preface []byte) {
	p.mu.Lock()
	n := p.thieves
	p.mu.Unlock()
	for i := range n {
		c, err := net.Dial("tcp", p.target)
		if err != nil || !p.keep(c) {
			return
		}
		p.strike()
		_, _ = c.Write(preface)
		if i%2 == 0 {
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		}
	}
}

// Struck says how often the fault was committed.
func (p *Proxy) Struck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

// Close ends all.
func (p *Proxy) Close() {
	p.listener.Close()
	p.CutAll()
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.outage.ended)
	}
	p.mu.Unlock()
	p.CutAll()
	p.running.Wait()
}

// CutAll ends every connection, as a link that goes down for good.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) forget(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// serve passes one connection on.
func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	x := p.enter()
	if x == nil {
		return
	}
	defer p.leave(x)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(client) || !p.keep(server) {
		return
	}
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	first := make([]byte, 48)
	n, err := io.ReadFull(client, first)
	lane := Control
	if n > 16 && first[12] == 1 {
		lane = Data
		p.see(first[16:n])
		p.steal(first[:n])
	}
	var both sync.WaitGroup
	may := func(way Way) func(int) bool { return func(n int) bool { return p.passing(x, lane, way, n) } }
	both.Go(func() {
		p.pass(server, client, fault.on(lane, ToServer), may(ToServer), first[:n], err, server, client)
	})
	both.Go(func() { p.pass(client, server, fault.on(lane, ToClient), may(ToClient), nil, nil, server, client) })
	both.Wait()
}

// on gives the fault where it is for such a connection.
func (f *Fault) on(lane Lane, way Way) *Fault {
	if f == nil || f.Way != way || f.Lane != Any && f.Lane != lane {
		return nil
	}
	return f
}

// pass copies one way, what may. both are ended by a cut.
func (p *Proxy) pass(to io.Writer, from io.Reader, fault *Fault, may func(bytes int) bool, first []byte, err error,
	both ...net.Conn) {
	cut := func() {
		for _, c := range both {
			c.Close()
		}
	}
	var passed int64
	buf := make([]byte, 256<<10)
	pending := copy(buf, first)
	for {
		if !may(pending) {
			pending = 0
			if err != nil {
				return // nobody hears of its end
			}
		}
		if pending > 0 {
			send := p.damage(fault, buf[:pending], passed)
			passed += int64(pending)
			if send == nil {
				cut()
				return
			}
			if _, writeErr := to.Write(send); writeErr != nil {
				cut()
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				if w, ok := to.(*net.TCPConn); ok {
					_ = w.CloseWrite()
				}
				return
			}
			cut()
			return
		}
		pending, err = from.Read(buf)
	}
}

// damage commits the fault where its place is in b, which begins after passed bytes; nil ends the connection.
func (p *Proxy) damage(f *Fault, b []byte, passed int64) []byte {
	if f == nil || passed+int64(len(b)) <= f.After {
		return b
	}
	if f.Delay > 0 {
		p.strike()
		time.Sleep(f.Delay)
		return b
	}
	at := f.After - passed
	if at >= 0 && f.Once && p.Struck() > 0 {
		return b
	}
	if at < 0 { // committed before
		if f.Stall {
			return []byte{}
		}
		return b
	}
	p.strike()
	const piece = 64
	head, rest := b[:at], b[at:]
	next := rest[:min(piece, len(rest))]
	join := func(parts ...[]byte) (all []byte) {
		all = []byte{}
		for _, x := range append([][]byte{head}, parts...) {
			all = append(all, x...)
		}
		return all
	}
	switch {
	case f.Cut:
		return nil
	case f.Stall:
		return join()
	case f.Flip:
		return join([]byte{rest[0] ^ 0x20}, rest[1:])
	case f.Drop:
		return join(rest[len(next):])
	case f.Double:
		return join(next, rest)
	default: // Swap
		second := rest[len(next):min(2*piece, len(rest))]
		if len(second) == 0 { // there is nothing behind: the next piece's halves
			half := len(next) / 2
			return join(next[half:], next[:half], rest[len(next):])
		}
		return join(second, next, rest[len(next)+len(second):])
	}
}

func (p *Proxy) strike() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.struck++
}
