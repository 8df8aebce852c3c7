package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/tools/e2e/lossy"
	nodes "tendril/tools/e2e/rig"
)

// Frames over a bad link: each is written, worked on by a kernel and read back.
const (
	pictureBytes = 64 << 10
	frameLinks   = 4   // at a time, so that there are enough frames for their slowest thousandth in a minute
	turnFrames   = 100 // frames of one side before it is the other's turn
	turns        = 5
)

var badLink = lossy.Quality{Delay: 5 * time.Millisecond, Jitter: 3 * time.Millisecond, Loss: 0.01}

// frameTimes are what each frame took, in ns, ascending.
type frameTimes struct {
	forwarded, bare []float64
	trips           float64 // round trips a frame
}

// frameBenchmarks hold the frames of a program that is forwarded over TLS against the same bytes over one bare TCP
// connection of the same link. Both sides' segments are lost and overtake each other by themselves.
func frameBenchmarks(ctx context.Context, r *rig) []benchmark {
	row := func(name string, part float64) benchmark {
		return benchmark{name: "opencl/frame/size=64KiB/link=5±3ms,1%/" + name, unit: "ns",
			against: "the same bytes over bare TCP", atMost: 1.2, once: true,
			measure: func() (float64, float64, error) {
				if r.frames == nil {
					f, err := r.measureFrames(ctx)
					if err != nil {
						return 0, 0, err
					}
					r.frames = f
				}
				r.trips = r.frames.trips
				return percentile(r.frames.forwarded, part), percentile(r.frames.bare, part), nil
			}}
	}
	return []benchmark{row("p50", 0.5), row("p99", 0.99), row("p99.9", 0.999)}
}

// percentile is the value of sorted, ascending, that this part of them does not exceed.
func percentile(sorted []float64, part float64) float64 {
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// measureFrames lays links, starts a node at the other end of each, and takes turns on all of them.
func (r *rig) measureFrames(ctx context.Context) (_ *frameTimes, err error) {
	ends := make([]*frameEnds, frameLinks)
	defer func() {
		for _, e := range ends {
			if e != nil {
				err = errors.Join(err, e.close())
			}
		}
	}()
	for i := range ends {
		if ends[i], err = r.openFrames(ctx, i); err != nil {
			return nil, err
		}
	}
	var work sync.WaitGroup
	errs := make([]error, len(ends))
	for i, e := range ends {
		work.Go(func() { errs[i] = e.measure(ctx) })
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := &frameTimes{}
	var passed, lost uint64
	for _, e := range ends {
		all.forwarded, all.bare = append(all.forwarded, e.times.forwarded...), append(all.bare, e.times.bare...)
		all.trips += e.times.trips / frameLinks
		p, l := e.link.Packets()
		passed, lost = passed+p, lost+l
	}
	slices.Sort(all.forwarded)
	slices.Sort(all.bare)
	fmt.Fprintf(os.Stderr, "  the bad links: %d packets arrived, %d were lost\n", passed, lost)
	return all, nil
}

// frameEnds is one bad link and what uses it.
type frameEnds struct {
	link    *lossy.Link
	program *reference // clbench at one end, its device at the other
	stop    func()     // ends it and its node
	bare    net.Conn
	times   frameTimes
}

// openFrames gives what there is to close also with an error.
func (r *rig) openFrames(ctx context.Context, i int) (e *frameEnds, err error) {
	e = &frameEnds{}
	if e.link, err = lossy.Lay(fmt.Sprintf("t%c%d", 'a'+i, os.Getpid()), badLink); err != nil {
		e.link = nil
		return e, &missingError{fmt.Sprintf("no such link on this machine: %v", err)}
	}
	if e.program, e.stop, err = r.frameProgram(ctx, e.link); err != nil {
		return e, err
	}
	e.bare, err = connectBare(e.link)
	return e, err
}

func (e *frameEnds) close() error {
	if e.bare != nil {
		e.bare.Close()
	}
	if e.stop != nil {
		e.stop()
	}
	if e.link == nil {
		return nil
	}
	return e.link.Close()
}

// measure takes turns.
func (e *frameEnds) measure(ctx context.Context) error {
	frame := make([]byte, pictureBytes)
	before := tripsSoFar(e.program.counters)
	for range turns {
		for range turnFrames {
			v, _, err := e.program.ask("frame_64KiB")
			if err != nil {
				return err
			}
			e.times.forwarded = append(e.times.forwarded, v)
		}
		for range turnFrames {
			start := time.Now()
			if _, err := e.bare.Write(frame); err != nil {
				return err
			}
			if _, err := io.ReadFull(e.bare, frame); err != nil {
				return err
			}
			e.times.bare = append(e.times.bare, float64(time.Since(start).Nanoseconds()))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	e.times.trips = (tripsSoFar(e.program.counters) - before) / float64(len(e.times.forwarded))
	return nil
}

// frameProgram is clbench at one end of the link, whose device is at the other. stop ends it and its node.
func (r *rig) frameProgram(ctx context.Context, link *lossy.Link) (_ *reference, stop func(), err error) {
	at := lossy.There + ":7433"
	n, err := nodes.StartWith(ctx, r.bin, nodes.Options{Inside: link.InsideThere(), Env: []string{"TENDRIL_LISTEN=" + at}})
	if err != nil {
		return nil, nil, err
	}
	config := n.Dir + "/far"
	here := func(args ...string) *exec.Cmd {
		argv := append(link.InsideHere(), append([]string{n.Tendril()}, args...)...)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(nodes.Native(), "XDG_CONFIG_HOME="+config)
		return cmd
	}
	fail := func(err error) (*reference, func(), error) { return nil, nil, errors.Join(err, n.Stop()) }
	token, err := n.Run(ctx, "token", "create", "--expires", "1h")
	if err != nil {
		return fail(err)
	}
	if _, err := nodes.Output(here("login", at, "--token", strings.TrimSpace(token))); err != nil {
		return fail(err)
	}
	clbench, err := r.built("clbench")
	if err != nil {
		return fail(err)
	}
	cmd := here("run", "--server", at, "--", clbench, "frames")
	program, err := r.begin(cmd.Env, cmd.Args[0], cmd.Args[1:]...)
	if err != nil {
		return fail(err)
	}
	return program, func() {
		_ = program.stop() // its figures are in
		_ = n.Stop()
	}, nil
}

// connectBare is a connection across the link to somebody who sends back each frame once it is whole.
func connectBare(link *lossy.Link) (near net.Conn, err error) {
	var at net.Listener
	if err := link.AtThere(func() (err error) { at, err = net.Listen("tcp", lossy.There+":0"); return }); err != nil {
		return nil, err
	}
	defer at.Close()
	if err := link.AtHere(func() (err error) { near, err = net.Dial("tcp", at.Addr().String()); return }); err != nil {
		return nil, err
	}
	far, err := at.Accept()
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	go func() { // ends with the connection
		defer far.Close()
		frame := make([]byte, pictureBytes)
		for {
			if _, err := io.ReadFull(far, frame); err != nil {
				return
			}
			if _, err := far.Write(frame); err != nil {
				return
			}
		}
	}()
	return near, nil
}
