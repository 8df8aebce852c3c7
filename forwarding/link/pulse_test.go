package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// swallower is a wire that takes everything, as the kernels at both ends see it, and passes nothing on in the ways that
// are shut.
type swallower struct {
	t    testing.TB
	shut [2]atomic.Bool // to the worker, to the client
	wg   sync.WaitGroup

	mu      sync.Mutex
	last    [2]time.Time // when bytes passed in each way
	longest [2]time.Duration
}

// passed notes that bytes pass in a way, or only looks, and gives for how long none passed at most.
func (x *swallower) passed(way int, now time.Time, bytes bool) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	pause := now.Sub(x.last[way])
	if x.last[way].IsZero() {
		pause = 0
	}
	if bytes {
		x.last[way], x.longest[way] = now, max(pause, x.longest[way])
	}
	return max(pause, x.longest[way])
}

// wasSilent reports whether an end, or the wire itself, had no processor to say anything, so that who gives the
// connection up is right.
func (x *swallower) wasSilent() bool {
	now := time.Now()
	return max(x.passed(0, now, false), x.passed(1, now, false)) >= shortSilence-10*time.Millisecond
}

func (x *swallower) pair() (client, worker *os.File) {
	a, b := tcpFiles(x.t)
	c, d := tcpFiles(x.t)
	near, far := fileConn(x.t, b), fileConn(x.t, c)
	pump := func(to, from net.Conn, way int) {
		shut := &x.shut[way]
		defer to.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				if shut.Load() { // nor does it tell of an end
					_, _ = io.Copy(io.Discard, to)
				}
				return
			}
			if !shut.Load() {
				x.passed(way, time.Now(), true)
				if _, err = to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
	}
	x.wg.Go(func() { pump(far, near, 0) })
	x.wg.Go(func() { pump(near, far, 1) })
	return a, d
}

const shortSilence = pulsesASilence * leastPace

// pulsed are two ends of a stream and a lane that beat, and whose client reads its stream until its end.
type pulsed struct {
	client, worker *Stream
	near, far      *Lane
	lost           chan struct{} // the client gave a connection up
	ended          chan error    // its reader
	readers        sync.WaitGroup
	stream, lane   swallower
}

func newPulsed(t *testing.T, secure, survives bool) *pulsed {
	x := &pulsed{lost: make(chan struct{}, 16), ended: make(chan error, 1), stream: swallower{t: t},
		lane: swallower{t: t}}
	var config [2]Options
	config[0].TLS, config[1].TLS = configs(t, secure)
	config[0].Silence, config[1].Silence = shortSilence, time.Minute
	config[0].handshake, config[1].handshake = 5*time.Minute, 5*time.Minute
	if survives {
		config[0].Lost, config[1].Lost = func() { x.lost <- struct{}{} }, func() {}
	}
	a, b := x.stream.pair()
	c, d := x.lane.pair()
	err := both(func() (err error) {
		if x.client, err = OpenStream(Client, a, config[0]); err == nil {
			x.near, err = OpenLane(Client, c, config[0])
		}
		return
	}, func() (err error) {
		if x.worker, err = OpenStream(Worker, b, config[1]); err == nil {
			x.far, err = OpenLane(Worker, d, config[1])
		}
		return
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{a, b, c, d} {
		f.Close()
	}
	x.client.Carry(x.near, 1)
	x.worker.Carry(x.far, 1)
	x.readers.Go(func() { x.ended <- drain(x.client) })
	t.Cleanup(func() {
		x.client.Shutdown()
		x.worker.Shutdown()
		x.readers.Wait() // whoever reads on after Close may read the next test's connection
		x.near.Close()
		x.far.Close()
		x.client.Close()
		x.worker.Close()
		x.stream.wg.Wait()
		x.lane.wg.Wait()
	})
	return x
}

// drainWorker reads the worker's stream from now on.
func (x *pulsed) drainWorker() { x.readers.Go(func() { _ = drain(x.worker) }) }

// drain reads a stream until its end.
func drain(s *Stream) error {
	for {
		_, _, ok, err := s.Next()
		if err == nil && !ok && s.Arm(clwire.ConsumerAsleep) {
			err = s.Block(-1, -1)
		}
		if err != nil {
			return err
		}
	}
}

// beats waits until the client has heard the worker as often as it wants to.
func (x *pulsed) beats(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		x.client.pulse.mu.Lock()
		heard := x.client.pulse.told.PaceMillis == millis(leastPace)
		x.client.pulse.mu.Unlock()
		if heard {
			return
		}
		if time.Now().After(end) {
			x.client.pulse.mu.Lock()
			defer x.client.pulse.mu.Unlock()
			t.Fatalf("the client hears no pulse: it was told %+v at %v, its end by %d, lost %v, over %v; the worker is to speak every %v, lost %v, over %v",
				x.client.pulse.told, x.client.pulse.when, len(x.ended), x.client.Lost(), x.client.Hung(),
				time.Duration(x.worker.pulse.wanted.Load()), x.worker.Lost(), x.worker.Hung())
		}
	}
}

func (x *pulsed) isLost(t *testing.T, l interface{ Lost() bool }) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !l.Lost(); {
		select {
		case <-x.lost:
		case <-time.After(time.Until(end)):
			t.Fatal("the connection that passes nothing on is not given up")
		}
	}
}

// What takes all and passes nothing on is found out, in either way, though the kernel sees nothing wrong.
func TestSwallowedStreamIsGivenUp(t *testing.T) {
	for name, shut := range map[string][2]bool{"to the worker": {true, false}, "to the client": {false, true},
		"both": {true, true}} {
		for _, survives := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				x := newPulsed(t, survives, survives)
				x.drainWorker()
				x.beats(t)
				for i, v := range shut {
					x.stream.shut[i].Store(v)
				}
				if survives {
					x.isLost(t, x.client)
					return
				}
				select {
				case err := <-x.ended:
					if !errors.Is(err, ErrSilent) || !errors.Is(err, ErrHangup) {
						t.Errorf("%v", err)
					}
					x.ended <- nil
				case <-time.After(5 * time.Minute):
					t.Fatal("nobody says that nothing comes any more")
				}
			})
		}
	}
}

// A lane over which bytes are due is found out; its stream lives.
func TestSwallowedLaneIsGivenUp(t *testing.T) {
	for way, name := range []string{"to the worker", "to the client"} {
		t.Run(name, func(t *testing.T) {
			untilHeard(t, func(t *testing.T) bool { return swallowedLaneIsGivenUp(t, way) })
		})
	}
}

// untilHeard runs a test until it is over: it gives false where an end had no processor for so long that who gives its
// connection up is right.
func untilHeard(t *testing.T, test func(t *testing.T) (over bool)) {
	for began, over := time.Now(), false; !over; {
		if time.Since(began) > 10*time.Minute {
			t.Fatal("the ends never speak often enough")
		}
		t.Run("", func(t *testing.T) { over = test(t) || t.Failed() })
	}
}

func swallowedLaneIsGivenUp(t *testing.T, way int) (over bool) {
	x := newPulsed(t, true, true)
	x.drainWorker()
	from, to := x.near, x.far
	if way == 1 {
		from, to = to, from
	}
	got := make(chan struct{})
	go func() {
		defer close(got)
		for {
			if _, err := to.Header(); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { to.Shutdown(); <-got })
	h := clwire.LaneHeader{Op: 1, Length: 1, Skipped: true}
	if err := from.Send(h, nil, nil); err != nil {
		t.Fatal(err)
	}
	x.beats(t)
	x.lane.shut[way].Store(true)
	if err := from.Send(h, nil, nil); err != nil {
		t.Fatal(err)
	}
	// While the stream has no connection nobody judges the lane.
	await.Until(t, "the lane that passes nothing on is given up", func() bool { return x.near.Lost() || x.client.Lost() })
	if !x.client.Lost() {
		return true
	}
	if !x.stream.wasSilent() {
		t.Error("its stream was given up, too")
	}
	return false
}

// Ends that compute, and whose readers come to nothing meanwhile, are not called lost.
func TestBusyPeersAreWaitedFor(t *testing.T) { untilHeard(t, busyPeersAreWaitedFor) }

func busyPeersAreWaitedFor(t *testing.T) (over bool) {
	x := newPulsed(t, true, true) // nobody reads its lane at the worker
	knows := make(chan struct{})
	go func() {
		defer close(knows)
		for x.worker.pulse.wanted.Load() == 0 {
			_, _, _, _ = x.worker.Next()
		}
	}()
	<-knows // nor its stream, from now on
	x.beats(t)
	h := clwire.LaneHeader{Op: 1, Length: 1, Skipped: true}
	if err := x.near.Send(h, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.client.Send(&clwire.Flush{}, clwire.FlagUrgent, 0); err != nil {
		t.Fatal(err)
	}
	if !x.stays(t) {
		return false
	}
	x.drainWorker()
	if got, err := x.far.Header(); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	return x.stays(t)
}

// stays looks on for longer than a silent connection is kept; false: it was silent for that long.
func (x *pulsed) stays(t *testing.T) bool {
	t.Helper()
	select {
	case <-x.lost:
		if x.stream.wasSilent() {
			return false
		}
		t.Error("a connection was given up whose other end lives")
	case <-time.After(4 * shortSilence): // Pause: a silent connection is kept for less
	}
	return true
}

// A client that stood still gives what it awaits its time anew.
func TestStoppedClientDoesNotBlameOthers(t *testing.T) {
	untilHeard(t, stoppedClientDoesNotBlameOthers)
}

func stoppedClientDoesNotBlameOthers(t *testing.T) (over bool) {
	x := newPulsed(t, false, true)
	x.drainWorker()
	x.beats(t)
	b := &beating{s: x.client}
	now := time.Now()
	b.last = now
	if !b.look(now) {
		if x.stream.wasSilent() {
			return false
		}
		t.Fatal("no connection")
	}
	blame := func() { // as the worker's word from before would
		x.client.pulse.mu.Lock()
		defer x.client.pulse.mu.Unlock()
		x.client.pulse.told.Channels[0] = clwire.ChannelState{QuietMillis: 1 << 20}
		x.client.pulse.when = now
	}
	blame()
	b.mine.Channels[0].Sent = 10
	b.judge(now)
	blame()
	b.turn(now.Add(time.Hour))
	if x.client.Lost() {
		if x.stream.wasSilent() {
			return false
		}
		t.Error("it gave its connection up at once")
	}
	return true
}
