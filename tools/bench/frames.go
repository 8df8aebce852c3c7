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
	"time"

	"tendril/tools/e2e/lossy"
	nodes "tendril/tools/e2e/rig"
)

// Frames over a bad link: each is written, worked on by a kernel and read back.
const (
	pictureBytes = 64 << 10
	turnFrames   = 100 // frames of one side before it is the other's turn
	turns        = 10
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
		return benchmark{name: "opencl/frame/size=64KiB/link=5±3ms,1%/" + name, unit: "ns", against: "the same bytes over bare TCP", atMost: 1.2, once: true,
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

// measureFrames lays the link, starts a node at its other end, and takes turns.
func (r *rig) measureFrames(ctx context.Context) (_ *frameTimes, err error) {
	link, err := lossy.Lay(fmt.Sprintf("tb%d", os.Getpid()), badLink)
	if err != nil {
		return nil, &missingError{fmt.Sprintf("no such link on this machine: %v", err)}
	}
	defer func() { err = errors.Join(err, link.Close()) }()
	program, stop, err := r.frameProgram(ctx, link)
	if err != nil {
		return nil, err
	}
	defer stop()
	bare, err := connectBare(link)
	if err != nil {
		return nil, err
	}
	defer bare.Close()
	f := &frameTimes{}
	before := r.trips
	frame := make([]byte, pictureBytes)
	for range turns {
		for range turnFrames {
			v, err := program.ask("frame_64KiB")
			if err != nil {
				return nil, err
			}
			f.forwarded = append(f.forwarded, v)
		}
		for range turnFrames {
			start := time.Now()
			if _, err := bare.Write(frame); err != nil {
				return nil, err
			}
			if _, err := io.ReadFull(bare, frame); err != nil {
				return nil, err
			}
			f.bare = append(f.bare, float64(time.Since(start).Nanoseconds()))
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	f.trips = (r.trips - before) / float64(len(f.forwarded))
	slices.Sort(f.forwarded)
	slices.Sort(f.bare)
	passed, lost := link.Packets()
	fmt.Fprintf(os.Stderr, "  the bad link: %d packets arrived, %d were lost\n", passed, lost)
	return f, nil
}

// frameProgram is clbench at one end of the link, whose device is at the other. stop ends it and its node.
func (r *rig) frameProgram(ctx context.Context, link *lossy.Link) (_ *program, stop func(), err error) {
	at := lossy.There + ":7433"
	n, err := nodes.StartInside(ctx, link.InsideThere(), r.bin, "TENDRIL_LISTEN="+at)
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
	fail := func(err error) (*program, func(), error) { return nil, nil, errors.Join(err, n.Stop()) }
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
	child, err := r.begin(cmd.Env, cmd.Args[0], cmd.Args[1:]...)
	if err != nil {
		return fail(err)
	}
	return &program{rig: r, running: child}, func() {
		_ = child.stop() // its figures are in
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
