// Package slow is a TCP proxy that makes a link of its own kind out of loopback: every byte arrives later, or not at
// all any more. It stands for netem where the kernel has no such queueing discipline; it needs no rights.
//
// It trusts both sides, and keeps up to 32 MiB a direction under way, so that only time is lost and no bandwidth. Each
// direction has two goroutines on threads of their own in plain system calls: Go's timers and netpoller would add up to
// a millisecond. With a rate all connections share it, each way, and little is under way. Proxy.mu and the directions'
// are leaves; Close joins everything.
package slow

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pieceBytes = 64 << 10
	underWay   = 512 // pieces a direction

	queueTime  = 5 * time.Millisecond // what a link with a rate keeps of what it was given
	ratedBytes = 256 << 10            // of its sockets' buffers
)

// Proxy passes connections on to one target.
type Proxy struct {
	target   string
	each     atomic.Int64 // ns, one way
	rate     atomic.Int64 // bytes a second each way, 0: as many as come
	ways     [2]direction // to the target, and back
	listener net.Listener

	mu     sync.Mutex
	pairs  map[*pair]struct{}
	closed bool
	work   sync.WaitGroup
}

// pair is one connection of a client and the one to the target that belongs to it. The files are closed once, by the
// last of its goroutines; until then cut ends their system calls.
type pair struct {
	client, server *os.File
}

func (p *pair) cut() {
	for _, f := range []*os.File{p.client, p.server} {
		// Whatever is under way is lost, and both ends see a reset, as of a link whose state a router forgot.
		_ = unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR)
	}
}

// Start listens on a port of loopback and passes what comes on to target (HOST:PORT), each way later by each.
// The caller closes it.
func Start(target string, each time.Duration) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("slow link: %w", err)
	}
	p := &Proxy{target: target, listener: l, pairs: map[*pair]struct{}{}}
	p.each.Store(int64(each))
	p.work.Go(p.accept)
	return p, nil
}

// Addr is where clients connect, as HOST:PORT.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetDelay changes the delay of what comes from now on, one way.
func (p *Proxy) SetDelay(each time.Duration) { p.each.Store(int64(each)) }

// Cut ends every connection that is up; new ones are welcome.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.cut()
	}
}

// SetRate bounds what goes each way from now on, in bytes a second; 0: not at all. Connections that are up keep their
// buffers.
func (p *Proxy) SetRate(bytes int64) { p.rate.Store(bytes) }

// Passed is how many bytes have come so far, both ways.
func (p *Proxy) Passed() int64 { return p.ways[0].came.Load() + p.ways[1].came.Load() }

// direction is a way with a rate.
type direction struct {
	came atomic.Int64 // bytes

	mu   sync.Mutex
	free time.Time // when what was taken so far has gone
}

// depart books n bytes and returns when they have gone.
func (d *direction) depart(n int, rate int64) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Duration(float64(n) / float64(rate) * 1e9))
	return d.free
}

// Connections returns how many are up.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Close ends everything and waits for it.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.target)
		if err != nil {
			c.Close()
			continue
		}
		if p.rate.Load() != 0 {
			for _, end := range []net.Conn{c, s} {
				_ = end.(*net.TCPConn).SetReadBuffer(ratedBytes) // more would only be a longer queue
				_ = end.(*net.TCPConn).SetWriteBuffer(ratedBytes)
			}
		}
		if pair, err := newPair(c, s); err == nil {
			p.serve(pair)
		}
	}
}

// newPair takes both connections over, as blocking files.
func newPair(c, s net.Conn) (*pair, error) {
	defer c.Close()
	defer s.Close()
	client, err := blocking(c)
	if err != nil {
		return nil, err
	}
	server, err := blocking(s)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &pair{client, server}, nil
}

func blocking(c net.Conn) (*os.File, error) {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	f.Fd() // from here on it blocks
	return f, nil
}

func (p *Proxy) serve(l *pair) {
	p.mu.Lock()
	p.pairs[l] = struct{}{}
	if p.closed {
		l.cut()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(l.client, l.server, &p.ways[0]) })
	both.Go(func() { p.pass(l.server, l.client, &p.ways[1]) })
	p.work.Go(func() {
		both.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pairs, l)
		l.client.Close()
		l.server.Close()
	})
}

// piece is what one read brought, and when it goes on.
type piece struct {
	bytes []byte
	due   time.Time
}

// pass carries one direction until its end, which it passes on as well.
func (p *Proxy) pass(from, to *os.File, way *direction) {
	pieces := make(chan piece, underWay)
	var reader sync.WaitGroup
	reader.Go(func() { p.read(from, pieces, way) })
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sharpen()
	alive := true
	for x := range pieces {
		pause(time.Until(x.due))
		if alive && !writeAll(int(to.Fd()), x.bytes) {
			alive = false
			_ = unix.Shutdown(int(from.Fd()), unix.SHUT_RD)
		}
	}
	_ = unix.Shutdown(int(to.Fd()), unix.SHUT_WR)
	reader.Wait()
}

func (p *Proxy) read(from *os.File, pieces chan<- piece, way *direction) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(pieces)
	buf := make([]byte, pieceBytes)
	for {
		n, err := unix.Read(int(from.Fd()), buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		way.came.Add(int64(n))
		gone := time.Now()
		if rate := p.rate.Load(); rate > 0 {
			gone = way.depart(n, rate)
		}
		pieces <- piece{append([]byte(nil), buf[:n]...), gone.Add(time.Duration(p.each.Load()))}
		pause(time.Until(gone) - queueTime)
	}
}

// sharpen makes the thread's sleeps end when they should, not up to 50 µs later (prctl(2), PR_SET_TIMERSLACK).
func sharpen() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

func pause(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(d.Nanoseconds())
		for unix.Nanosleep(&t, &t) == unix.EINTR { // the runtime may signal the thread just before
		}
	}
}

func writeAll(fd int, b []byte) bool {
	for len(b) > 0 {
		n, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}
