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
)

// Links of the spanning figures, one way: a hop between two nodes, and a client that is far from both.
const (
	nodeHop   = 100 * time.Microsecond
	clientFar = 10 * time.Millisecond
	chainLong = 100 // steps, as c/span.c has it
)

// spanning is two nodes beside the rig's daemon, and programs whose context spans them.
type spanning struct {
	nodes [2]*nodes.Node
	// c/delay.c: client to node 0 and 1, node 0 to node 1, one to the round-trip server, one to the second half of hand
	links  *program
	ports  [5]string // of links
	doors  [2]string
	clear  *program // in the clear, without delays
	far    *program // by way of the links
	native *program
	hand   *program // c/byhand.c
	failed error

	authority string // node 1's
	routed    string // where node 0 reaches node 1
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
	if err := s.lay(r); err != nil {
		return err
	}
	return s.programs(ctx, r)
}

// lay makes the links.
func (s *spanning) lay(r *rig) error {
	tripPort, err := r.remote.tripPort()
	if err != nil {
		return err
	}
	s.hand = r.plain(nil, "byhand")
	hand, err := s.hand.begun()
	if err != nil {
		return err
	}
	var near [2]string
	for i, door := range s.doors {
		_, near[i], _ = strings.Cut(door, ":")
	}
	s.links = r.plain(nil, "delay", near[0], near[1], near[1], tripPort, strings.Fields(hand.ready)[1])
	links, err := s.links.begun()
	if err != nil {
		return err
	}
	if n := copy(s.ports[:], strings.Fields(links.ready)[1:]); n != len(s.ports) {
		return fmt.Errorf("the links' program says %q", links.ready)
	}
	for i := range s.ports {
		if err := s.delay(i, nodeHop); err != nil {
			return err
		}
	}
	return nil
}

// delay sets how much later arrives what goes over a link from now on, one way.
func (s *spanning) delay(link int, d time.Duration) error {
	_, err := s.links.reference(fmt.Sprint(link, d.Nanoseconds()))
	return err
}

// at is where a link begins.
func (s *spanning) at(link int) string { return "127.0.0.1:" + s.ports[link] }

// oneHop is half a round trip between two processes in blocking system calls, over such a link: ns.
func (s *spanning) oneHop(r *rig) (float64, error) {
	trip, err := r.remote.trip.reference(s.ports[3])
	return trip / 2, err
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
		return s.program(ctx, r, s.at(2), "", s.at(0), s.at(1))
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
			hop, err := s.oneHop(r)
			if err != nil {
				return 0, 0, err
			}
			v, err := s.far.ask(test)
			return v, native + hop, err
		}
	}
	hand := func(test string) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			s, err := r.openSpanning(ctx)
			if err != nil {
				return 0, 0, err
			}
			ref, err := s.hand.reference(s.ports[4] + " " + test)
			if err != nil {
				return 0, 0, err
			}
			v, err := s.far.ask(test)
			return v, ref, err
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
		delay := func(d time.Duration) error { return errors.Join(s.delay(0, d), s.delay(1, d)) }
		if err := delay(clientFar); err != nil {
			return 0, 0, err
		}
		v, err := s.far.ask("chain")
		err = errors.Join(err, delay(nodeHop))
		return v, near + 2*float64(clientFar-nodeHop)/chainLong, err
	}
	return []benchmark{
		{name: "opencl/span/push/size=128MiB/path=tcp", unit: "B/s", against: "iperf3, one stream", atLeast: 0.95,
			best: true, measure: push},
		{name: "opencl/span/chain/hop=0.1ms", unit: "ns", against: "native + 1 hop", atMost: 1.5,
			measure: chain("chain")},
		{name: "opencl/span/events/hop=0.1ms", unit: "ns", against: "native + 1 hop", atMost: 1.5,
			measure: chain("events")},
		{name: "opencl/span/chain/hop=0.1ms/byhand", unit: "ns", against: "two native programs and a socket",
			atMost: 1.5, measure: hand("chain")},
		{name: "opencl/span/events/hop=0.1ms/byhand", unit: "ns", against: "two native programs and a socket",
			atMost: 1.5, measure: hand("events")},
		{name: "opencl/span/chain/hop=0.1ms/client=10ms", unit: "ns",
			against: "the same with a near client + 1 round trip of the far one a chain", atMost: 1.1,
			measure: farClient},
	}
}
