package link

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
	"tendril/tools/e2e/loopback"
)

// cutter is a pair of ends whose connections run through a wire that is cut after so many bytes, in either direction.
type cutter struct {
	t      testing.TB
	config [2]Options // client, worker
	wg     sync.WaitGroup
	cuts   atomic.Int64
}

func newCutter(t testing.TB, secure bool) *cutter {
	x := &cutter{t: t}
	client, worker := configs(t, secure)
	x.config = [2]Options{patient(client), patient(worker)}
	return x
}

// pair returns the two ends of a connection that is cut after limit bytes in all; 0: never. Cutting throws away what is
// under way.
func (x *cutter) pair(limit int64) (client, worker *os.File) {
	a, b := tcpFiles(x.t)
	c, d := tcpFiles(x.t)
	left := &atomic.Int64{}
	left.Store(limit)
	near, far := fileConn(x.t, b), fileConn(x.t, c)
	cut := sync.OnceFunc(func() {
		x.cuts.Add(1)
		for _, end := range []net.Conn{near, far} {
			if limit > 0 {
				end.(*net.TCPConn).SetLinger(0)
			}
			end.Close()
		}
	})
	pump := func(to, from net.Conn) {
		defer cut()
		buf := make([]byte, 8<<10)
		for {
			n, err := from.Read(buf)
			if limit > 0 {
				if over := -left.Add(int64(-n)); over > 0 {
					to.Write(buf[:max(0, n-int(over))]) // in the middle of whatever it is
					return
				}
			}
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	x.wg.Go(func() { pump(far, near) })
	x.wg.Go(func() { pump(near, far) })
	return a, d
}

func tcpFiles(t testing.TB) (a, b *os.File) {
	t.Helper()
	a, b, err := loopback.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func fileConn(t testing.TB, f *os.File) net.Conn {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// both runs one side's half each and returns their errors.
func both(client, worker func() error) error {
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = client() })
	wg.Go(func() { errs[1] = worker() })
	wg.Wait()
	return errors.Join(errs[:]...)
}

// streams opens both ends, and keeps resuming them over connections that next limits until stop.
func (x *cutter) streams(next func() int64) (client, worker *Stream, stop func()) {
	lost := make(chan struct{}, 16)
	for i := range x.config {
		x.config[i].Lost = func() {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
	}
	a, b := x.pair(0)
	err := both(func() (err error) { client, err = OpenStream(Client, a, x.config[0]); return },
		func() (err error) { worker, err = OpenStream(Worker, b, x.config[1]); return })
	if err != nil {
		x.t.Fatal(err)
	}
	a.Close()
	b.Close()
	stopping := x.keepUp(client, worker, lost, next)
	return client, worker, func() {
		close(stopping)
		client.Close()
		worker.Close()
		x.wg.Wait()
	}
}

// resumable is a Stream or a Lane.
type resumable interface {
	Lost() bool
	Resume(*os.File) error
}

// keepUp resumes both ends whenever lost says so, over connections that next limits, until the channel that it gives is
// closed.
func (x *cutter) keepUp(client, worker resumable, lost <-chan struct{}, next func() int64) (stopping chan struct{}) {
	stopping = make(chan struct{})
	x.wg.Go(func() {
		for {
			select {
			case <-stopping:
				return
			case <-lost:
			}
			for client.Lost() || worker.Lost() {
				select {
				case <-stopping:
					return
				default:
				}
				a, b := x.pair(next())
				// cut again: once more
				_ = both(func() error { return client.Resume(a) }, func() error { return worker.Resume(b) })
				a.Close()
				b.Close()
			}
		}
	})
	return stopping
}

// await takes records until n have come, each the n-th of send's making. It gives up when none comes for five minutes.
func (x *cutter) await(s *Stream, from uint64, n int) error {
	deadline := time.Now().Add(5 * time.Minute)
	for i := 0; i < n; {
		h, p, ok, err := s.Next()
		switch {
		case err != nil:
			return fmt.Errorf("record %d: %w", i, err)
		case ok:
			if want := record(from, i); h.Request != uint64(i+1) || !bytes.Equal(p, want.Append(nil)) {
				return fmt.Errorf("record %d of %d came as %d of %d bytes", i+1, len(want.Data), h.Request, len(p))
			}
			i++
			deadline = time.Now().Add(5 * time.Minute)
		case time.Now().After(deadline):
			return fmt.Errorf("%d of %d records came", i, n)
		default:
			if s.Arm(clwire.ConsumerAsleep) {
				if err := s.Block(-1, time.Second); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// record is the i-th record of a direction.
func record(from uint64, i int) *clwire.WriteInline {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, from+uint64(i)))
	n := int(sum[0]) << (sum[1] % 7)
	return &clwire.WriteInline{Buffer: uint64(i), Data: bytes.Repeat(sum[2:4], n/2)}
}

func send(s *Stream, from uint64, n int) error {
	for i := range n {
		var flags uint16
		if i%7 == 0 {
			flags = clwire.FlagUrgent
		}
		if err := s.Send(record(from, i), flags, uint64(i+1)); err != nil {
			return fmt.Errorf("record %d: %w", i+1, err)
		}
	}
	s.Kick()
	return nil
}

// Records go both ways while the connection is cut again and again: each comes once, in its order.
func TestStreamSurvivesItsConnections(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		before := openFiles(t)
		least := int64(1)
		if secure {
			least = 3000 // a handshake's
		}
		for seed := range uint64(3) {
			r := rand.New(rand.NewPCG(seed, 5))
			x := newCutter(t, secure)
			client, worker, stop := x.streams(func() int64 { return least + r.Int64N(1<<(8+r.IntN(12))) })
			const n = 600
			client.lose() // so that the first limited connection comes
			err := both(
				func() error {
					return both(func() error { return send(client, seed, n) },
						func() error { return x.await(client, seed+100, n) })
				},
				func() error {
					return both(func() error { return send(worker, seed+100, n) },
						func() error { return x.await(worker, seed, n) })
				})
			stop()
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if x.cuts.Load() < 3 {
				t.Errorf("seed %d: cut %d times", seed, x.cuts.Load())
			}
		}
		if after := openFiles(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Cut after every single byte of a short exchange, greeting and handshake included.
func TestStreamCutAtEveryByte(t *testing.T) {
	for limit := int64(1); limit < 350; limit++ {
		x := newCutter(t, false)
		first := true
		client, worker, stop := x.streams(func() int64 {
			if !first {
				return 0
			}
			first = false
			return limit
		})
		client.lose()
		err := both(
			func() error {
				return both(func() error { return sendShort(client) }, func() error { return awaitShort(client) })
			},
			func() error {
				return both(func() error { return sendShort(worker) }, func() error { return awaitShort(worker) })
			})
		stop()
		if err != nil {
			t.Fatalf("cut after %d bytes: %v", limit, err)
		}
	}
}

const short = 6

func sendShort(s *Stream) error {
	for i := range uint64(short) {
		if err := s.Send(&clwire.Flush{Queue: i}, clwire.FlagUrgent, 0); err != nil {
			return err
		}
	}
	return nil
}

func awaitShort(s *Stream) error {
	for i := uint64(0); i < short; {
		_, p, ok, err := s.Next()
		if err != nil {
			return err
		}
		if ok {
			var m clwire.Flush
			if err := m.Decode(p); err != nil || m.Queue != i {
				return fmt.Errorf("record %d came as %d: %v", i, m.Queue, err)
			}
			i++
		} else if s.Arm(clwire.ConsumerAsleep) {
			if err := s.Block(-1, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// A client without a connection queues so much and then waits; a worker fails.
func TestStreamWithoutConnectionIsBounded(t *testing.T) {
	x := newCutter(t, true)
	gate := make(chan struct{})
	client, worker, stop := x.streams(func() int64 { <-gate; return 0 })
	client.lose()
	sent := make(chan int, 1<<16)
	const n = 2 * lostKeeps / 30000
	done := make(chan error, 1)
	go func() {
		for i := range n {
			if err := client.Send(&clwire.Print{Data: make([]byte, 30000)}, 0, 0); err != nil {
				done <- err
				return
			}
			sent <- i
		}
		done <- nil
	}()
	full := func() bool { // a sender counts as waiting for a moment also when it need not
		client.tx.Lock()
		defer client.tx.Unlock()
		return len(client.tx.buf) > lostKeeps
	}
	for !full() {
		time.Sleep(time.Millisecond)
	}
	if got := len(sent); got < n/3 || got > n*2/3 {
		t.Errorf("%d of %d records were queued", got, n)
	}
	var err error
	for i := 0; i <= maxBacklogBytes/60000+1 && err == nil; i++ {
		err = worker.Send(&clwire.Print{Data: make([]byte, 60000)}, clwire.FlagUrgent, 0)
	}
	if !errors.Is(err, ErrBacklog) {
		t.Errorf("a worker whose client is away: %v", err)
	}
	client.Shutdown()
	if err := <-done; !errors.Is(err, ErrHangup) {
		t.Errorf("a waiting Send at the end: %v", err)
	}
	close(gate)
	stop()
}

// Two may sleep in Block at a time. Each hears of the next connection, whoever of them hears of it first. Who begins to
// sleep when it is there already sleeps on it, and hears of a record that comes by it.
func TestAllWhoSleepHearOfTheNextConnection(t *testing.T) {
	x := newCutter(t, false)
	client, worker, stop := x.streams(func() int64 { return 0 })
	defer stop()
	inside := func() int {
		client.parking.Lock()
		defer client.parking.Unlock()
		return client.blocked
	}
	for round := range 200 {
		client.rx.Lock()
		client.lose() // the test's keeper brings the next one behind a handshake
		client.rx.Unlock()
		var asleep sync.WaitGroup
		for range 2 {
			asleep.Go(func() {
				for client.Lost() {
					if err := client.Block(-1, -1); err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				}
			})
		}
		await.Until(t, "the next connection", func() bool { return !client.Lost() })
		awake := make(chan struct{})
		go func() { asleep.Wait(); close(awake) }()
		// Who asked before the next connection came, and lay down when the other had its word, waits for another one:
		// each is told. Who is deaf hears none of them.
		for told, heard := time.Now(), false; !heard; {
			if err := worker.Send(&clwire.Flush{Queue: 1}, clwire.FlagUrgent, 0); err != nil {
				t.Fatal(err)
			}
			select {
			case <-awake:
				heard = true
			case <-time.After(100 * time.Millisecond):
				if time.Since(told) > 5*time.Minute {
					t.Fatalf("round %d: %d still sleep on a connection that is gone", round, inside())
				}
			}
			next(t, client)
		}
	}
}

// An end that leaves is not waited for.
func TestLeavingEndsTheOther(t *testing.T) {
	x := newCutter(t, true)
	client, worker, stop := x.streams(func() int64 { return 0 })
	defer stop()
	if err := client.Send(&clwire.Flush{Queue: 3}, 0, 0); err != nil {
		t.Fatal(err)
	}
	client.Shutdown()
	if h, _ := next(t, worker); h.Type != clwire.TypeFlush {
		t.Fatalf("got %v", h.Type)
	}
	for {
		if _, _, _, err := worker.Next(); err != nil {
			if !errors.Is(err, ErrHangup) {
				t.Fatal(err)
			}
			break
		}
		if err := worker.Block(-1, time.Second); err != nil {
			break
		}
	}
	if worker.Lost() {
		t.Error("it waits for the one who left")
	}
}

// Positions that cannot be, in greetings and acknowledgements.
func TestImpossiblePositionsEndTheStream(t *testing.T) {
	open := func(t *testing.T) (*Stream, func(received uint64) *os.File) {
		a, b := tcpFiles(t)
		go func() {
			io.ReadFull(b, make([]byte, clwire.ResumeBytes))
			b.Write(clwire.AppendResume(nil, 0))
		}()
		s, err := OpenStream(Worker, a, Options{Lost: func() {}})
		a.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(); b.Close() })
		if err := s.Send(&clwire.Flush{Queue: 1}, clwire.FlagUrgent, 0); err != nil { // 24 bytes
			t.Fatal(err)
		}
		return s, func(received uint64) *os.File {
			c, d := tcpFiles(t)
			t.Cleanup(func() { c.Close(); d.Close() })
			d.Write(clwire.AppendResume(nil, received))
			return c
		}
	}
	t.Run("greeting", func(t *testing.T) {
		s, connection := open(t)
		if err := s.Resume(connection(24)); err != nil {
			t.Fatalf("all of it: %v", err)
		}
		if err := s.Resume(connection(25)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("more than was sent: %v", err)
		}
		if err := s.Send(&clwire.Flush{}, 0, 0); err == nil {
			t.Error("it goes on")
		}
	})
	t.Run("less than acknowledged", func(t *testing.T) {
		s, connection := open(t)
		if err := s.acknowledged(24); err != nil {
			t.Fatal(err)
		}
		if err := s.Resume(connection(23)); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
	t.Run("acknowledged", func(t *testing.T) {
		s, _ := open(t)
		if err := s.acknowledged(25); !errors.Is(err, ErrCorrupt) {
			t.Errorf("more than was sent: %v", err)
		}
		if err := s.own(clwire.TypeAck, (&clwire.Ack{Lane: 3, Received: 1}).Append(nil)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a lane that is none: %v", err)
		}
	})
	t.Run("no greeting", func(t *testing.T) {
		s, _ := open(t)
		c, d := tcpFiles(t)
		defer c.Close()
		defer d.Close()
		d.Write(bytes.Repeat([]byte{0xff}, clwire.ResumeBytes))
		if err := s.Resume(c); !errors.Is(err, clwire.ErrRecord) {
			t.Fatal(err)
		}
		if s.Hung() || !s.Lost() {
			t.Error("a connection of somebody else ended it")
		}
	})
}

// pattern is a Source whose bytes follow from the chunk's header.
type pattern struct{ again atomic.Int64 }

func (*pattern) bytes(h clwire.LaneHeader) []byte {
	b := make([]byte, h.Length)
	for i := range b {
		b[i] = byte(h.Offset + uint64(i)*7 + h.Op)
	}
	return b
}

func (p *pattern) Again(h clwire.LaneHeader, send func([]byte) error) error {
	p.again.Add(1)
	return send(p.bytes(h))
}

// Chunks both ways by a lane that is cut again and again.
func TestLaneSurvivesItsConnections(t *testing.T) {
	bothWays(t, func(t *testing.T, secure bool) {
		t.Run("plain", func(t *testing.T) { laneSurvives(t, secure, false) })
		t.Run("packed", func(t *testing.T) { laneSurvives(t, secure, true) })
	})
}

func laneSurvives(t *testing.T, secure, packed bool) {
	before := openFiles(t)
	r := rand.New(rand.NewPCG(7, 7))
	x := newCutter(t, secure)
	client, worker, stop := x.streams(func() int64 { return 0 })
	lost := make(chan struct{}, 16)
	a, b := x.pair(100 << 10)
	var near, far *Lane
	o := x.config
	for i := range o {
		if packed {
			o[i].Compression = &Compression{}
			o[i].Compression.Allow(clwire.GreatestPacking)
		}
		o[i].Lost = func() {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
	}
	if err := both(func() (err error) { near, err = OpenLane(Client, a, o[0]); return },
		func() (err error) { far, err = OpenLane(Worker, b, o[1]); return }); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	for _, l := range []*Lane{near, far} {
		if packed {
			l.packer.meter.known = 1
		}
	}
	client.Carry(near, 1)
	worker.Carry(far, 1)
	stopping := x.keepUp(near, far, lost, func() int64 { return 1 + r.Int64N(1<<20) })
	var over atomic.Bool
	for _, s := range []*Stream{client, worker} { // they carry the lanes' acknowledgements
		x.wg.Go(func() {
			for !over.Load() {
				if _, _, ok, err := s.Next(); err != nil {
					return
				} else if !ok {
					s.Block(-1, 10*time.Millisecond)
				}
			}
		})
	}
	const n = 300
	p := &pattern{}
	header := func(op uint64, i int) clwire.LaneHeader {
		return clwire.LaneHeader{Op: op, Offset: uint64(i) << 20, Length: uint32(1 + i*211), Skipped: i%50 == 7}
	}
	put := func(l *Lane, op uint64) error {
		for i := range n {
			h := header(op, i)
			var payload []byte
			if !h.Skipped {
				payload = p.bytes(h)
			}
			if err := l.Send(h, payload, p); err != nil {
				return err
			}
		}
		return nil
	}
	take := func(l *Lane, op uint64) error {
		for i := range n {
			h, err := l.Header()
			if err != nil {
				return err
			}
			if want := header(op, i); h.Op != want.Op || h.Offset != want.Offset || h.Length != want.Length ||
				h.Skipped != want.Skipped {
				return fmt.Errorf("chunk %d came as %+v", i, h)
			}
			if h.Skipped {
				continue
			}
			got := make([]byte, h.Length)
			if err := l.Read(got); err != nil {
				return err
			}
			if !bytes.Equal(got, p.bytes(h)) {
				return fmt.Errorf("chunk %d has other bytes", i)
			}
		}
		return nil
	}
	err := both(func() error {
		return both(func() error { return put(near, 1) },
			func() error { return take(near, 2) })
	},
		func() error { return both(func() error { return put(far, 2) }, func() error { return take(far, 1) }) })
	if err != nil {
		t.Error(err)
	}
	if p.again.Load() == 0 && !packed { // packed chunks are kept
		t.Error("nothing was sent again")
	}
	for i, c := range []*Compression{o[0].Compression, o[1].Compression} {
		if n := c.Counts(); packed && (n.SentWire > n.Sent/2 || n.TakenWire > n.Taken/2) {
			t.Errorf("end %d: %+v", i, n)
		}
	}
	if !packed && err == nil { // packed they are less than what is acknowledged at once
		await.Until(t, "chunks are acknowledged", func() bool {
			near.log.mu.Lock()
			defer near.log.mu.Unlock()
			return len(near.log.chunks) <= n/2
		})
	}
	over.Store(true)
	close(stopping)
	near.Close()
	far.Close()
	stop()
	kept := 0
	for _, x := range near.log.chunks {
		kept += len(x.packed)
	}
	if kept != near.log.keeps() {
		t.Errorf("%d bytes of packed chunks are kept, %d are in the books", kept, near.log.keeps())
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add(clwire.AppendResume(nil, 0))
	f.Add(clwire.AppendResume(nil, 1<<63))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		received, err := clwire.ParseResume(b)
		if err == nil && !bytes.Equal(clwire.AppendResume(nil, received), b) {
			t.Errorf("% x", b)
		}
	})
}
