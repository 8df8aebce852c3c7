// Command soak runs daemons for long under clients that come, work, are killed or leave.
//
// One daemon has OpenCL sessions and clients of the store, and is looked at after each round: descriptors, mappings,
// threads, goroutines, children, private memory, files, bytes charged. The rounds have all ended when it looks, so
// whatever grows from round to round leaks, and the command fails. Sessions come over the socket and as from another
// machine, where their connections are cut now and then and they go on; killed ones leave kernels that never end, or
// have lost their worker. Beside it the store's trials run (tools/soak/trial), a daemon each, which are killed too and
// take over from each other; a wrong byte or a lost object fails.
//
// It trusts the binaries that it is given. It starts itself again as a client of the store; OpenCL sessions are the
// end-to-end tests' program, where there are a compiler and a driver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"tendril/tools/e2e/rig"
	"tendril/tools/soak/trial"
)

func main() {
	if trial.Client() {
		return
	}
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	duration := flag.Duration("duration", 10*time.Minute, "how long")
	round := flag.Duration("round", 30*time.Second, "how long clients work before the daemon is looked at")
	pause := flag.Duration("pause", 0, "between two clients of a lane: on a machine with other work to do")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of what the clients do")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := all(ctx, *bin, *duration, *round, *pause, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// all runs the sessions' daemon and the trials at once, until the time is over or one of them fails.
func all(ctx context.Context, bin string, duration, round, pause time.Duration, seed uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	begin := func(f func() error) {
		running.Go(func() {
			if err := f(); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	begin(func() error { return run(ctx, bin, duration, round, pause, seed) })
	for _, w := range trial.Worlds {
		w.Pause = pause
		o := trial.Options{Bin: bin, World: w, Seed: seed, Duration: duration, Round: round,
			Log: func(format string, args ...any) {
				fmt.Printf(time.Now().Format("15:04:05")+"  "+format+"\n", args...)
			}}
		begin(func() error { return trial.Run(ctx, o) })
	}
	running.Wait()
	return context.Cause(ctx)
}

// run does rounds until the time is over: at least three, the first of which only warms the pools.
func run(ctx context.Context, bin string, duration, round, pause time.Duration, seed uint64) (err error) {
	n, err := rig.Start(ctx, bin, "TENDRIL_CAPACITY=192MiB", "TENDRIL_QUOTA_OBJECTS=4000", "TENDRIL_LOG_LEVEL=warn",
		"TENDRIL_LISTEN=127.0.0.1:0",
		"TENDRIL_RESUME_TIME=16s") // of clients that were killed while their connection was cut; less than rig.RestLimit
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Fprintf(os.Stderr, "the daemon's log ends:\n%s\n", n.Log())
		}
		err = errors.Join(err, n.Stop())
	}()
	c, err := newChurn(ctx, n, pause, seed)
	if err != nil {
		return err
	}
	defer c.close()
	fmt.Printf("seed %d; sessions: %s\n", seed, c.sessions())
	var first *rig.Holdings
	for i, end := 0, time.Now().Add(duration); i < 3 || time.Now().Before(end); i++ {
		if err := c.round(ctx, round); err != nil {
			return err
		}
		rest, err := n.AtRest(ctx, nil)
		if err != nil {
			return err
		}
		if i == 1 {
			first = &rest
		}
		fmt.Printf("%s  round %3d  %s  %s\n", time.Now().Format("15:04:05"), i, c.counts(), rest)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	_, err = n.AtRest(ctx, first)
	return err
}
