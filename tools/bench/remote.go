package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/slow"
)

// The slow link: half of its round trip each way.
const (
	slowTrip = time.Millisecond
	batch    = 1000 // kernels

	narrowRate = 100e6 / 8 // bytes a second: 100 Mbit/s
)

// remote is how programs reach the rig's daemon as if it were another
// machine's: over loopback, straight and by way of a proxy that delays. Each
// way is laid when its first program starts.
type remote struct {
	trip *program // TCP round trips

	door       func() (string, error) // the front door, logged in at
	tls, clear *program               // clbench there
	bare       *program               // the same without compression
	far        *program               // clbench over the slow link

	squeezed, wide *program // clbench over a link of narrowRate, with compression and without
}

func newRemote(ctx context.Context, r *rig) *remote {
	m := &remote{trip: r.plain(nil, "rtt", "tcp")}
	front := sync.OnceValues(func() (string, error) { return r.frontDoor(ctx) })
	m.door = sync.OnceValues(func() (string, error) { return r.loginAt(ctx, front, nil) })
	slowDoor := sync.OnceValues(func() (string, error) {
		return r.loginAt(ctx, front, func(p *slow.Proxy) error { return m.delay(ctx, p) })
	})
	narrowDoor := sync.OnceValues(func() (string, error) {
		return r.loginAt(ctx, front, func(p *slow.Proxy) error { p.SetRate(narrowRate); return nil })
	})
	at := func(door func() (string, error), flags ...string) *program {
		return r.program(func() (*reference, error) {
			addr, err := door()
			if err != nil {
				return nil, err
			}
			path, err := r.built("clbench")
			if err != nil {
				return nil, err
			}
			return r.begin(r.env(), r.tendril(),
				append(append([]string{"run", "--server", addr}, flags...), "--", path)...)
		})
	}
	m.tls, m.clear, m.bare = at(m.door), at(m.door, "--plaintext"), at(m.door, "--compress", "off")
	m.far = at(slowDoor)
	m.squeezed, m.wide = at(narrowDoor), at(narrowDoor, "--compress", "off")
	return m
}

// loginAt logs in at the front door, by way of a proxy of its own that lay has made a link of, unless lay is nil.
func (r *rig) loginAt(ctx context.Context, front func() (string, error), lay func(*slow.Proxy) error) (string, error) {
	at, err := front()
	if err != nil {
		return "", err
	}
	if lay != nil {
		p, err := slow.Start(at, 0)
		if err != nil {
			return "", err
		}
		r.atEnd(func() { _ = p.Close() })
		if err := lay(p); err != nil {
			return "", err
		}
		at = p.Addr()
	}
	token, err := r.verb(ctx, "token", "create", "--expires", "1h")
	if err != nil {
		return "", err
	}
	_, err = r.verb(ctx, "login", at, "--token", strings.TrimSpace(string(token)))
	return at, err
}

// tripPort is where the server of the round trips listens.
func (m *remote) tripPort() (string, error) {
	f, err := m.trip.begun()
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.TrimPrefix(f.ready, "ready")), nil
}

// delay makes the slow link, and says what such a proxy itself costs, with and without its delay.
func (m *remote) delay(ctx context.Context, link *slow.Proxy) error {
	link.SetDelay(slowTrip / 2)
	target, err := m.tripPort()
	if err != nil {
		return err
	}
	like, err := slow.Start("127.0.0.1:"+target, 0)
	if err != nil {
		return err
	}
	defer like.Close()
	_, port, _ := strings.Cut(like.Addr(), ":")
	straight, err := m.trip.reference("rtt")
	if err != nil {
		return err
	}
	through, err := m.trip.reference(port)
	if err != nil {
		return err
	}
	like.SetDelay(slowTrip / 2)
	delayed, err := m.trip.reference(port)
	fmt.Fprintf(os.Stderr,
		"  the slow link's proxy: a TCP round trip of %s becomes %s without delay, %s with %v a way\n",
		show(straight, "ns"), show(through, "ns"), show(delayed, "ns"), slowTrip/2)
	return errors.Join(err, ctx.Err())
}

// frontDoor is where the daemon waits for other machines.
func (r *rig) frontDoor(ctx context.Context) (string, error) {
	out, err := r.verb(ctx, "status", "--json")
	if err != nil {
		return "", err
	}
	var s struct {
		Node struct {
			Listen string `json:"listen"`
		} `json:"node"`
	}
	if err := json.Unmarshal(out, &s); err != nil || s.Node.Listen == "" {
		return "", fmt.Errorf("the daemon does not say where it listens: %w", errors.Join(err, errors.New(string(out))))
	}
	return s.Node.Listen, nil
}

// verb runs tendril with these arguments; the round trips of a program that it runs count as one step's.
func (r *rig) verb(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, r.tendril(), args...)
	if cmd.Env = r.env(); args[0] == "run" {
		var counters string
		cmd.Env, counters = r.counted(cmd.Env)
		defer func() { r.trips += tripsSoFar(counters) }()
	}
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("tendril %s: %w: %s", args[0], err, exit.Stderr)
	}
	return out, err
}

// remoteBenchmarks measures sessions of another machine over loopback, and what the front door does for them.
func remoteBenchmarks(ctx context.Context, r *rig) []benchmark {
	all := []benchmark{
		{name: "cluster/publish/nodes=1", unit: "ns", against: fmt.Sprintf("%d fsync of an append beside the log",
			publishSyncs), atMost: 1.3, measure: func() (float64, float64, error) { return publish(r) }},
	}
	m := r.remote
	// with measures one side of the remote programs and a reference.
	with := func(side *program, test string, against func() (float64, error)) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := against()
			if err != nil {
				return 0, 0, err
			}
			v, err := side.ask(test)
			return v, ref, err
		}
	}
	// plainly is a test of another program.
	plainly := func(side *program, test string) func() (float64, error) {
		return func() (float64, error) { return side.reference(test) }
	}
	// trips counts the round trips of one step of a test.
	trips := func(test string, limit float64) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			_, v, err := m.tls.round(test)
			r.trips += v
			return v, limit, err
		}
	}
	// native is the native side with TCP round trips, or ns, added.
	native := func(test string, trips, ns float64) func() (float64, error) {
		return func() (float64, error) {
			v, err := r.native.reference(test)
			if err != nil {
				return 0, fmt.Errorf("native: %w", err)
			}
			trip, err := m.trip.reference("rtt")
			return v + trips*trip + ns, err
		}
	}
	iperf := func() (float64, error) { return iperf3(ctx) }
	stream := func() (float64, error) { return goTLS() }
	small := func(path string, side *program) []benchmark {
		return []benchmark{
			{name: "opencl/write/size=4B/path=" + path, unit: "ns", against: "native + 1 TCP round trip", atMost: 1.3,
				measure: with(side, "write_4B", native("write_4B", 1, 0))},
			{name: "opencl/write+kernel+read/size=4KiB/path=" + path, unit: "ns",
				against: "native + 1 TCP round trip", atMost: 1.3,
				measure: with(side, "write_kernel_read_4KiB", native("write_kernel_read_4KiB", 1, 0))},
		}
	}
	all = append(append(all, small("tcp", m.clear)...), small("tls", m.tls)...)
	all = append(all,
		benchmark{name: "opencl/write/size=4B/trips", against: "1 round trip", atMost: 1,
			measure: trips("write_4B", 1)},
		benchmark{name: "opencl/write+kernel+read/size=4KiB/trips", against: "1 round trip", atMost: 1,
			measure: trips("write_kernel_read_4KiB", 1)},
		benchmark{name: "opencl/write+kernel/batch=100/read/trips", against: "3 round trips", atMost: 1,
			measure: trips("writes_kernels_read", 3)},
		benchmark{name: "opencl/write+kernel/batch=100/read/path=tls/rtt=1ms", unit: "ns",
			against: "native + 3 ms", atMost: 1,
			measure: with(m.far, "writes_kernels_read",
				native("writes_kernels_read", 0, 3*float64(slowTrip.Nanoseconds())))},
		benchmark{name: "opencl/create+release/buffers=100000/path=tls", unit: "ns", against: "1 µs", atMost: 1,
			measure: with(m.tls, "buffers_100000", func() (float64, error) { return 1e3, nil })},
		benchmark{name: "opencl/write+read/size=32MiB/data=text/link=100Mbit", rounds: 3, unit: "B/s",
			against: "the same with --compress off", atLeast: 1.5,
			measure: with(m.squeezed, "move_text", plainly(m.wide, "move_text"))},
		benchmark{name: "opencl/write+read/size=32MiB/data=field/link=100Mbit", rounds: 3, unit: "B/s",
			against: "the same with --compress off", atLeast: 1.1,
			measure: with(m.squeezed, "move_field", plainly(m.wide, "move_field"))},
		benchmark{name: "opencl/write+read/size=32MiB/data=text/path=tls", unit: "B/s",
			against: "the same with --compress off", atLeast: 0.95,
			measure: with(m.tls, "move_text", plainly(m.bare, "move_text"))},
	)
	return append(all,
		benchmark{name: "opencl/kernel+finish/path=tcp", unit: "ns", against: "native + 1 TCP round trip", atMost: 1.5,
			measure: with(m.clear, "kernel_finish", native("kernel_finish", 1, 0))},
		benchmark{name: "opencl/kernel+finish/path=tls", unit: "ns", against: "native + 1 TCP round trip", atMost: 1.5,
			measure: with(m.tls, "kernel_finish", native("kernel_finish", 1, 0))},
		benchmark{name: "opencl/kernel/batch=1000/path=tls", unit: "ns", against: "native", atMost: 1.5,
			measure: with(m.tls, "kernels_1000", native("kernels_1000", 0, 0))},
		benchmark{name: "opencl/kernel/batch=1000/path=tls/rtt=1ms", unit: "ns", against: "native + 2 ms a batch",
			atMost: 1.2, measure: with(m.far, "kernels_1000",
				native("kernels_1000", 0, 2*float64(slowTrip.Nanoseconds())/batch))},
		benchmark{name: "opencl/write/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95,
			measure: with(m.clear, "write_128MiB", iperf)},
		benchmark{name: "opencl/read/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95,
			measure: with(m.clear, "read_128MiB", iperf)},
		benchmark{name: "opencl/write/size=128MiB/path=tls", unit: "B/s", against: "a bare Go TLS stream", atLeast: 0.9,
			measure: with(m.tls, "write_128MiB", stream)},
		benchmark{name: "opencl/read/size=128MiB/path=tls", unit: "B/s", against: "a bare Go TLS stream", atLeast: 0.9,
			measure: with(m.tls, "read_128MiB", stream)},
		benchmark{name: "opencl/kernel+finish/p99/moving=1GiB/path=tcp", unit: "ns",
			against: "idle p99 + one chunk's time", atMost: 1,
			measure: with(m.clear, "kernel_finish_p99_loaded", idle(m.clear))},
		benchmark{name: "opencl/kernel+finish/p99/moving=1GiB/path=tls", unit: "ns",
			against: "idle p99 + one chunk's time", atMost: 1,
			measure: with(m.tls, "kernel_finish_p99_loaded", idle(m.tls))},
		benchmark{name: "opencl/first-kernel/path=unix", unit: "ns", against: "native + 100 ms", atMost: 1,
			measure: func() (float64, float64, error) { return r.firstKernels(ctx) }},
		benchmark{name: "opencl/first-kernel/path=tls", unit: "ns", against: "native + 100 ms", atMost: 1,
			measure: func() (float64, float64, error) {
				at, err := m.door()
				if err != nil {
					return 0, 0, err
				}
				return r.firstKernels(ctx, "--server", at)
			}},
		benchmark{name: "opencl/device-queries/trips", against: "1 round trip", atMost: 1,
			measure: func() (float64, float64, error) { return r.queryTrips(ctx) }},
	)
}

// idle is the last percent of a side with nothing else to do, and the time that one chunk takes on it.
func idle(side *program) func() (float64, error) {
	return func() (float64, error) {
		p99, err := side.reference("kernel_finish_p99")
		if err != nil {
			return 0, err
		}
		rate, err := side.reference("write_128MiB")
		return p99 + clwire.MaxChunk/rate*1e9, err
	}
}

// firstKernels times a program of its own, from its first call to its first kernel's end, forwarded and natively.
func (r *rig) firstKernels(ctx context.Context, args ...string) (v, reference float64, err error) {
	if err := r.awaitWarmWorker(ctx); err != nil {
		return 0, 0, err
	}
	clbench, err := r.built("clbench")
	if err != nil {
		return 0, 0, err
	}
	out, err := r.verb(ctx, append(append([]string{"run"}, args...), "--", clbench, "first")...)
	if err != nil {
		return 0, 0, err
	}
	native, err := exec.CommandContext(ctx, clbench, "first").Output()
	if err != nil {
		return 0, 0, fmt.Errorf("natively: %w", err)
	}
	if _, err := fmt.Sscan(string(out), &v); err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(native), &reference)
	return v, reference + float64((100 * time.Millisecond).Nanoseconds()), err
}

// queryTrips is how many round trips a program needs that asks for all that a device says of itself.
func (r *rig) queryTrips(ctx context.Context) (trips, reach float64, err error) {
	at, err := r.remote.door()
	if err != nil {
		return 0, 0, err
	}
	clbench, err := r.built("clbench")
	if err != nil {
		return 0, 0, err
	}
	before := r.trips
	_, err = r.verb(ctx, "run", "--server", at, "--", clbench, "queries")
	return r.trips - before, 1, err
}

// awaitWarmWorker lets the daemon start the next worker first: its start is no part of what a user waits for.
func (r *rig) awaitWarmWorker(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) &&
		ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		out, err := r.verb(ctx, "status", "--json")
		if err != nil {
			return err
		}
		var s struct {
			Workers []struct {
				State string `json:"state"`
			} `json:"workers"`
		}
		if err := json.Unmarshal(out, &s); err != nil {
			return err
		}
		for _, w := range s.Workers {
			if w.State == "warm" {
				return nil
			}
		}
	}
	return errors.Join(errors.New("no worker became warm within 30 s"), ctx.Err())
}
