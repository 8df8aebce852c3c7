package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
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
// machine's: over loopback, straight and by way of a proxy that delays.
type remote struct {
	trip           *reference // TCP round trips
	tripPort       string
	proxy, noProxy *slow.Proxy // the second before trip's port
	at             string      // the front door
	tls, clear     *reference  // clbench there
	far            *reference  // clbench over the slow link
	narrow         *slow.Proxy // before the front door, with narrowRate
	squeezed, wide *reference  // clbench there, with compression and without
	bare           *reference  // clbench at the front door, without
}

// openRemote logs in and starts the programs, once.
func (r *rig) openRemote(ctx context.Context) (*remote, error) {
	if r.remote != nil {
		return r.remote, nil
	}
	m := &remote{}
	r.remote = m // close ends what there is
	if err := m.open(ctx, r); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *remote) open(ctx context.Context, r *rig) (err error) {
	if m.trip, err = r.start(nil, r.dir+"/rtt", "tcp"); err != nil {
		return err
	}
	m.tripPort = strings.TrimSpace(strings.TrimPrefix(m.trip.ready, "ready"))
	if m.noProxy, err = slow.Start("127.0.0.1:"+m.tripPort, 0); err != nil {
		return err
	}
	if m.at, err = r.frontDoor(ctx); err != nil {
		return err
	}
	if m.proxy, err = slow.Start(m.at, slowTrip/2); err != nil {
		return err
	}
	if m.narrow, err = slow.Start(m.at, 0); err != nil {
		return err
	}
	m.narrow.SetRate(narrowRate)
	if err := r.login(ctx, m.at, m.proxy.Addr(), m.narrow.Addr()); err != nil {
		return err
	}
	for _, x := range []struct {
		program **reference
		args    []string
	}{
		{&m.tls, []string{"--server", m.at}}, {&m.clear, []string{"--server", m.at, "--plaintext"}}, {&m.far, []string{"--server", m.proxy.Addr()}},
		{&m.squeezed, []string{"--server", m.narrow.Addr()}}, {&m.wide, []string{"--server", m.narrow.Addr(), "--compress", "off"}},
		{&m.bare, []string{"--server", m.at, "--compress", "off"}},
	} {
		args := append(append([]string{"run"}, x.args...), "--", r.dir+"/clbench")
		if *x.program, err = r.start(r.env(), r.tendril(), args...); err != nil {
			return err
		}
	}
	return m.stateProxy(ctx)
}

// stateProxy says what the proxy itself costs, with and without its delay.
func (m *remote) stateProxy(ctx context.Context) error {
	_, port, _ := strings.Cut(m.noProxy.Addr(), ":")
	straight, err := m.trip.ask("rtt")
	if err != nil {
		return err
	}
	through, err := m.trip.ask(port)
	if err != nil {
		return err
	}
	m.noProxy.SetDelay(slowTrip / 2)
	delayed, err := m.trip.ask(port)
	fmt.Fprintf(os.Stderr, "  the slow link's proxy: a TCP round trip of %s becomes %s without delay, %s with %v a way\n",
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

func (r *rig) login(ctx context.Context, servers ...string) error {
	token, err := r.verb(ctx, "token", "create", "--expires", "1h")
	if err != nil {
		return err
	}
	for _, s := range servers {
		if _, err := r.verb(ctx, "login", s, "--token", strings.TrimSpace(string(token))); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) verb(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, r.tendril(), args...)
	if cmd.Env = r.env(); args[0] == "run" {
		cmd.Env, _ = r.counted(cmd.Env)
	}
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("tendril %s: %w: %s", args[0], err, exit.Stderr)
	}
	return out, err
}

func (m *remote) close() {
	for _, f := range []*reference{m.bare, m.wide, m.squeezed, m.far, m.clear, m.tls, m.trip} {
		if f != nil {
			_ = f.stop() // its figures are in; how it leaves changes nothing
		}
	}
	for _, p := range []*slow.Proxy{m.proxy, m.noProxy, m.narrow} {
		if p != nil {
			_ = p.Close()
		}
	}
}

// remoteBenchmarks measures sessions of another machine over loopback, and what the front door does for them.
func remoteBenchmarks(ctx context.Context, r *rig) []benchmark {
	all := []benchmark{
		{name: "cluster/publish/nodes=1", unit: "ns", against: fmt.Sprintf("%d fsync of an append beside the log", publishSyncs), atMost: 1.3, measure: func() (float64, float64, error) { return publish(r) }},
	}
	// with measures one side of the remote programs and a reference.
	with := func(side func(*remote) *reference, test string, against func(*remote) (float64, error)) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			m, err := r.openRemote(ctx)
			if err != nil {
				return 0, 0, err
			}
			ref, err := against(m)
			if err != nil {
				return 0, 0, err
			}
			v, err := side(m).ask(test)
			return v, ref, err
		}
	}
	clear := func(m *remote) *reference { return m.clear }
	tls := func(m *remote) *reference { return m.tls }
	far := func(m *remote) *reference { return m.far }
	squeezed := func(m *remote) *reference { return m.squeezed }
	wide := func(m *remote) *reference { return m.wide }
	bare := func(m *remote) *reference { return m.bare }
	// plainly is a test of another program.
	plainly := func(side func(*remote) *reference, test string) func(*remote) (float64, error) {
		return func(m *remote) (float64, error) { return side(m).ask(test) }
	}
	// trips counts the round trips of one step of a test of n.
	trips := func(test string, n, limit float64) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			m, err := r.openRemote(ctx)
			if err != nil {
				return 0, 0, err
			}
			v, err := m.tls.trips(test, n)
			return v, limit, err
		}
	}
	// native is the native side with TCP round trips, or ns, added.
	native := func(test string, trips, ns float64) func(*remote) (float64, error) {
		return func(m *remote) (float64, error) {
			v, err := r.native.ask(test)
			if err != nil {
				return 0, fmt.Errorf("native: %w", err)
			}
			trip, err := m.trip.ask("rtt")
			return v + trips*trip + ns, err
		}
	}
	iperf := func(*remote) (float64, error) { return iperf3(ctx) }
	stream := func(*remote) (float64, error) { return goTLS() }
	small := func(path string, side func(*remote) *reference) []benchmark {
		return []benchmark{
			{name: "opencl/write/size=4B/path=" + path, unit: "ns", against: "native + 1 TCP round trip", atMost: 1.3,
				measure: with(side, "write_4B", native("write_4B", 1, 0))},
			{name: "opencl/write+kernel+read/size=4KiB/path=" + path, unit: "ns", against: "native + 1 TCP round trip", atMost: 1.3,
				measure: with(side, "write_kernel_read_4KiB", native("write_kernel_read_4KiB", 1, 0))},
		}
	}
	all = append(append(all, small("tcp", clear)...), small("tls", tls)...)
	all = append(all,
		benchmark{name: "opencl/write/size=4B/trips", against: "1 round trip", atMost: 1, measure: trips("write_4B", 1000, 1)},
		benchmark{name: "opencl/write+kernel+read/size=4KiB/trips", against: "1 round trip", atMost: 1, measure: trips("write_kernel_read_4KiB", 500, 1)},
		benchmark{name: "opencl/write+kernel/batch=100/read/trips", against: "3 round trips", atMost: 1, measure: trips("writes_kernels_read", 5, 3)},
		benchmark{name: "opencl/write+kernel/batch=100/read/path=tls/rtt=1ms", unit: "ns", against: "native + 3 ms", atMost: 1,
			measure: with(far, "writes_kernels_read", native("writes_kernels_read", 0, 3*float64(slowTrip.Nanoseconds())))},
		benchmark{name: "opencl/create+release/buffers=100000/path=tls", unit: "ns", against: "1 µs", atMost: 1,
			measure: with(tls, "buffers_100000", func(*remote) (float64, error) { return 1e3, nil })},
		benchmark{name: "opencl/write+read/size=32MiB/data=text/link=100Mbit", unit: "B/s", against: "the same with --compress off", atLeast: 1.5,
			measure: with(squeezed, "move_text", plainly(wide, "move_text"))},
		benchmark{name: "opencl/write+read/size=32MiB/data=field/link=100Mbit", unit: "B/s", against: "the same with --compress off", atLeast: 1.1,
			measure: with(squeezed, "move_field", plainly(wide, "move_field"))},
		benchmark{name: "opencl/write+read/size=32MiB/data=text/path=tls", unit: "B/s", against: "the same with --compress off", atLeast: 0.95,
			measure: with(tls, "move_text", plainly(bare, "move_text"))},
	)
	return append(all,
		benchmark{name: "opencl/kernel+finish/path=tcp", unit: "ns", against: "native + 1 TCP round trip", atMost: 1.5, measure: with(clear, "kernel_finish", native("kernel_finish", 1, 0))},
		benchmark{name: "opencl/kernel+finish/path=tls", unit: "ns", against: "native + 1 TCP round trip", atMost: 1.5, measure: with(tls, "kernel_finish", native("kernel_finish", 1, 0))},
		benchmark{name: "opencl/kernel/batch=1000/path=tls", unit: "ns", against: "native", atMost: 1.5, measure: with(tls, "kernels_1000", native("kernels_1000", 0, 0))},
		benchmark{name: "opencl/kernel/batch=1000/path=tls/rtt=1ms", unit: "ns", against: "native + 2 ms a batch", atMost: 1.2, measure: with(far, "kernels_1000", native("kernels_1000", 0, 2*float64(slowTrip.Nanoseconds())/batch))},
		benchmark{name: "opencl/write/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95, measure: with(clear, "write_128MiB", iperf)},
		benchmark{name: "opencl/read/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95, measure: with(clear, "read_128MiB", iperf)},
		benchmark{name: "opencl/write/size=128MiB/path=tls", unit: "B/s", against: "a bare Go TLS stream", atLeast: 0.9, measure: with(tls, "write_128MiB", stream)},
		benchmark{name: "opencl/read/size=128MiB/path=tls", unit: "B/s", against: "a bare Go TLS stream", atLeast: 0.9, measure: with(tls, "read_128MiB", stream)},
		benchmark{name: "opencl/kernel+finish/p99/moving=1GiB/path=tcp", unit: "ns", against: "idle p99 + one chunk's time", atMost: 1, measure: with(clear, "kernel_finish_p99_loaded", idle(clear))},
		benchmark{name: "opencl/kernel+finish/p99/moving=1GiB/path=tls", unit: "ns", against: "idle p99 + one chunk's time", atMost: 1, measure: with(tls, "kernel_finish_p99_loaded", idle(tls))},
		benchmark{name: "opencl/first-kernel/path=unix", unit: "ns", against: "native + 100 ms", atMost: 1, measure: func() (float64, float64, error) { return r.firstKernels(ctx) }},
		benchmark{name: "opencl/first-kernel/path=tls", unit: "ns", against: "native + 100 ms", atMost: 1,
			measure: func() (float64, float64, error) {
				m, err := r.openRemote(ctx)
				if err != nil {
					return 0, 0, err
				}
				return r.firstKernels(ctx, "--server", m.at)
			}},
		benchmark{name: "opencl/device-queries/trips", against: "1 round trip", atMost: 1, measure: func() (float64, float64, error) { return r.queryTrips(ctx) }},
	)
}

// idle is the last percent of a side with nothing else to do, and the time that one chunk takes on it.
func idle(side func(*remote) *reference) func(*remote) (float64, error) {
	return func(m *remote) (float64, error) {
		p99, err := side(m).ask("kernel_finish_p99")
		if err != nil {
			return 0, err
		}
		rate, err := side(m).ask("write_128MiB")
		return p99 + clwire.MaxChunk/rate*1e9, err
	}
}

// firstKernels times a program of its own, from its first call to its first kernel's end, forwarded and natively.
func (r *rig) firstKernels(ctx context.Context, args ...string) (v, reference float64, err error) {
	if err := r.awaitWarmWorker(ctx); err != nil {
		return 0, 0, err
	}
	out, err := r.verb(ctx, append(append([]string{"run"}, args...), "--", r.dir+"/clbench", "first")...)
	if err != nil {
		return 0, 0, err
	}
	native, err := exec.CommandContext(ctx, r.dir+"/clbench", "first").Output()
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
	m, err := r.openRemote(ctx)
	if err != nil {
		return 0, 0, err
	}
	before := r.roundTrips()
	_, err = r.verb(ctx, "run", "--server", m.at, "--", r.dir+"/clbench", "queries")
	return float64(r.roundTrips() - before), 1, err
}

// awaitWarmWorker lets the daemon start the next worker first: its start is no part of what a user waits for.
func (r *rig) awaitWarmWorker(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
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
