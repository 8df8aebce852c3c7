package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	nodes "tendril/tools/e2e/rig"
	"tendril/tools/e2e/slow"
)

// Links of the spanning figures, one way: a hop between two nodes, and a client that is far from both.
const (
	nodeHop   = 100 * time.Microsecond
	clientFar = 10 * time.Millisecond
	chainLong = 100 // steps, as c/span.c has it
)

// spanning is two nodes beside the rig's daemon, and programs whose context spans them.
type spanning struct {
	nodes   [2]*nodes.Node
	proxies []*slow.Proxy // client to node 0 and 1, node 0 to node 1, and one to the round-trip server
	doors   [2]string
	clear   *program // in the clear, without delays
	far     *program // by way of the proxies
	native  *program
	failed  error

	authority string  // node 1's
	routed    string  // where node 0 reaches node 1
	hop       float64 // ns, measured
}

func (r *rig) openSpanning(ctx context.Context) (*spanning, error) {
	if r.spanning == nil {
		s := &spanning{}
		r.spanning = s
		r.atEnd(s.close)
		s.failed = s.open(ctx, r)
	}
	return r.spanning, r.spanning.failed
}

func (s *spanning) open(ctx context.Context, r *rig) error {
	for i := range s.nodes {
		n, err := nodes.Start(ctx, r.bin, "TENDRIL_LISTEN=127.0.0.1:0")
		if err != nil {
			return err
		}
		s.nodes[i] = n
		status, err := n.Status(ctx)
		if err != nil {
			return err
		}
		s.doors[i] = status.Node.Listen
	}
	tripPort, err := r.remote.tripPort()
	if err != nil {
		return err
	}
	for _, target := range []string{s.doors[0], s.doors[1], s.doors[1], "127.0.0.1:" + tripPort} {
		p, err := slow.Start(target, nodeHop)
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, p)
	}
	_, port, _ := strings.Cut(s.proxies[3].Addr(), ":")
	trip, err := r.remote.trip.reference(port)
	if err != nil {
		return err
	}
	s.hop = trip / 2
	return s.programs(ctx, r)
}

// programs makes ready one program whose workers are linked straight, and one whose are by way of a proxy.
func (s *spanning) programs(ctx context.Context, r *rig) (err error) {
	s.native = r.plain(nil, "span")
	if s.authority, err = s.authorityOf(ctx); err != nil {
		return err
	}
	s.clear = r.program(func() (*reference, error) {
		return s.program(ctx, r, s.doors[1], "--plaintext", s.doors[0], s.doors[1])
	})
	s.far = r.program(func() (*reference, error) {
		return s.program(ctx, r, s.proxies[2].Addr(), "", s.proxies[0].Addr(), s.proxies[1].Addr())
	})
	return nil
}

// route has node 0 reach node 1 at this address. Links that there are stay.
func (s *spanning) route(ctx context.Context, to string) error {
	if s.routed == to {
		return nil
	}
	if s.routed != "" {
		if _, err := s.nodes[0].Run(ctx, "peer", "rm", s.routed); err != nil {
			return err
		}
	}
	s.routed = to
	_, err := s.nodes[0].Run(ctx, "peer", "add", to, "--ca", s.authority)
	return err
}

func (s *spanning) authorityOf(ctx context.Context) (string, error) {
	out, err := s.nodes[1].Run(ctx, "peer", "ls", "--json")
	if err != nil {
		return "", err
	}
	var own struct {
		Authority string `json:"authority"`
	}
	return own.Authority, json.Unmarshal([]byte(out), &own)
}

// program logs in at two addresses, starts the spanning program over both and has their workers linked by way of link.
func (s *spanning) program(ctx context.Context, r *rig, link, flag string, doors ...string) (*reference, error) {
	path, err := r.built("span")
	if err != nil {
		return nil, err
	}
	if err := s.route(ctx, link); err != nil {
		return nil, err
	}
	env := append(nodes.Native(), "TENDRIL_SOCKET="+r.dir+"/none", "XDG_CONFIG_HOME="+r.dir+"/span-config")
	args := []string{"run"}
	if flag != "" {
		args = append(args, flag)
	}
	for i, door := range doors {
		token, err := s.nodes[i].Run(ctx, "token", "create", "--expires", "1h")
		if err != nil {
			return nil, err
		}
		login := exec.CommandContext(ctx, r.tendril(), "login", door, "--token", strings.TrimSpace(token))
		login.Env = env
		if _, err := nodes.Output(login); err != nil {
			return nil, err
		}
		args = append(args, "--server", door)
	}
	p, err := r.begin(env, r.tendril(), append(args, "--", path)...)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(p.ready) != "ready 2" {
		return nil, errors.Join(fmt.Errorf("the spanning program says %q", p.ready), p.stop())
	}
	if _, _, err := p.ask("events"); err != nil { // links the workers
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (s *spanning) close() {
	for _, p := range s.proxies {
		_ = p.Close()
	}
	for _, n := range s.nodes {
		if n != nil {
			_ = n.Stop()
		}
	}
}

// spanBenchmarks measure what goes from worker to worker, of one context over two nodes.
func spanBenchmarks(ctx context.Context, r *rig) []benchmark {
	push := func() (float64, float64, error) {
		s, err := r.openSpanning(ctx)
		if err != nil {
			return 0, 0, err
		}
		ref, err := iperf3(ctx)
		if err != nil {
			return 0, 0, err
		}
		v, err := s.clear.ask("push")
		return v, ref, err
	}
	chain := func(test string) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			s, err := r.openSpanning(ctx)
			if err != nil {
				return 0, 0, err
			}
			native, err := s.native.reference(test)
			if err != nil {
				return 0, 0, err
			}
			v, err := s.far.ask(test)
			return v, native + s.hop, err
		}
	}
	farClient := func() (float64, float64, error) {
		s, err := r.openSpanning(ctx)
		if err != nil {
			return 0, 0, err
		}
		near, err := s.far.reference("chain")
		if err != nil {
			return 0, 0, err
		}
		delay := func(d time.Duration) { s.proxies[0].SetDelay(d); s.proxies[1].SetDelay(d) }
		delay(clientFar)
		defer delay(nodeHop)
		v, err := s.far.ask("chain")
		return v, near + 2*float64(clientFar-nodeHop)/chainLong, err
	}
	return []benchmark{
		{name: "opencl/span/push/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95, best: true, measure: push},
		{name: "opencl/span/chain/hop=0.1ms", unit: "ns", against: "native + 1 hop", atMost: 1.5, measure: chain("chain")},
		{name: "opencl/span/events/hop=0.1ms", unit: "ns", against: "native + 1 hop", atMost: 1.5, measure: chain("events")},
		{name: "opencl/span/chain/hop=0.1ms/client=10ms", unit: "ns", against: "the same with a near client + 1 round trip of the far one a chain", atMost: 1.1, measure: farClient},
	}
}
