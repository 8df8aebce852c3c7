package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

const traceLong = `Run an unmodified OpenCL program as tendril run does, and write down where its time goes: its OpenCL calls, what they wait
for, the records and bytes on the wire, and when each command was given to the driver, started and ended on its device, all
on one clock. Times that are known only to some µs (of another machine, of a
device) carry their error in the trace.

The file is for https://ui.perfetto.dev (open it there, nothing is sent) or chrome://tracing. When the program has ended, a
summary is printed on standard error, or with --json on standard output, as JSON. The exit code is the program's. How to
read both, with an example: docs/TRACE.md. --svg draws what the file shows as one picture; use it with a short --last.

The program writes into a buffer of this process, so that one that crashes or is killed leaves a trace too. SIGUSR1 to this
process writes what there is so far. Commands run as usual, but with profiling on, which makes some
drivers slower.`

const traceExample = `  tendril trace -o out.json -- clpeak
  tendril trace --last 10s -o end.json -- ./a-long-run --with arguments   # the last ten seconds before it ends
  tendril trace --server gpu7:7433 -- python3 train.py
  tendril trace --last 20ms --svg end.svg -- ./program
  tendril trace --json -- ./program >/dev/null`

// maxTraceSize bounds --max-size: a viewer takes no more.
const maxTraceSize = 16 << 30

// traceOptions are what `trace` adds to `run`.
type traceOptions struct {
	launchOptions
	out     string
	last    time.Duration
	maxSize string
	picture string
}

func (c *cli) traceVerb() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:     "trace [flags] -- PROGRAM [ARGS…]",
		Short:   "Run an OpenCL program and write a trace of where its time goes",
		Long:    traceLong,
		Example: traceExample,
		GroupID: "opencl",
		Args:    needsProgram,
		RunE:    func(cmd *cobra.Command, args []string) error { return c.trace(cmd.Context(), &o, args) },
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is PROGRAM's
	cmd.Flags().StringVarP(&o.out, "output", "o", "trace.json", "the file to write")
	cmd.Flags().DurationVar(&o.last, "last", 0, "keep only the end of the run, such as 10s (default: as much as fits)")
	cmd.Flags().StringVar(&o.maxSize, "max-size", "64MiB",
		"most bytes of the file; memory is used in proportion. The oldest events are dropped, and the summary says so")
	cmd.Flags().StringVar(&o.picture, "svg", "", "also draw the trace as a picture, into this file")
	_ = cmd.MarkFlagFilename("output", "json") // fails only for a flag that is not there
	_ = cmd.MarkFlagFilename("svg", "svg")
	o.flags(cmd)
	return c.jsonFlag(cmd)
}

// tracer is one run of `tendril trace`.
type tracer struct {
	c        *cli
	o        *traceOptions
	maxBytes uint64
	buffer   *os.File
}

func (c *cli) trace(ctx context.Context, o *traceOptions, args []string) error {
	maxBytes, err := humanize.ParseBytes(o.maxSize)
	if err != nil || maxBytes < 1<<20 || maxBytes > maxTraceSize {
		return usagef("--max-size %q: want a size from 1MiB to 16GiB", o.maxSize)
	}
	if o.last < 0 {
		return usagef("--last %v: want a time, e.g. 10s", o.last)
	}
	program, err := runnable(args[0])
	if err != nil {
		return err
	}
	vars, err := c.environment(ctx, o.launchOptions)
	if err != nil {
		return err
	}
	for flag, file := range map[string]string{"output": o.out, "svg": o.picture} { // "" is in the working directory
		if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
			return ended{fmt.Errorf("--%s %s: no such directory", flag, file), exitNotFound}
		}
	}
	// A record makes three or four times its size of JSON.
	buffer, err := trace.Create(maxBytes / 4)
	if err != nil {
		return err
	}
	defer buffer.Close()
	t := &tracer{c: c, o: o, maxBytes: maxBytes, buffer: buffer}
	vars["TENDRIL_TRACE"] = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), buffer.Fd())
	ended, err := runChild(program, args, mergeEnv(os.Environ(), vars), nil, t.onSignal)
	if err != nil {
		return err
	}
	t.settle()
	summary, err := t.write()
	if err != nil {
		return err
	}
	if err := t.report(summary); err != nil {
		return err
	}
	return childExit(ended)
}

// onSignal writes what there is at SIGUSR1.
func (t *tracer) onSignal(s os.Signal) bool {
	if s != syscall.SIGUSR1 {
		return false
	}
	if _, err := t.write(); err != nil {
		fmt.Fprintf(t.c.term.err, "tendril: %v\n", err)
	} else {
		fmt.Fprintf(t.c.term.err, "tendril: wrote %s; the program goes on\n", t.o.out)
	}
	return true
}

const (
	settled   = 30 * time.Millisecond  // workers look for what has ended every 10 ms
	settlesAt = 500 * time.Millisecond // the latest
)

// settle waits until nobody appends any more: workers have a last word when their program is gone.
func (t *tracer) settle() {
	last := uint64(0)
	for began := time.Now(); time.Since(began) < settlesAt; time.Sleep(settled) {
		n, err := trace.Recorded(t.buffer)
		if err != nil || n == last {
			return
		}
		last = n
	}
}

// write makes the file of what the buffer holds, in one step.
func (t *tracer) write() (*trace.Summary, error) {
	capture, err := trace.Read(t.buffer)
	if err != nil {
		return nil, err
	}
	line := trace.NewTimeline(capture, func(code uint16) string { return clwire.Type(code).String() }, t.o.last)
	summary := line.Summary()
	err = replaceFile(t.o.out, 0o644, func(w io.Writer) (err error) {
		summary.Dropped, err = line.WritePerfetto(w, int(t.maxBytes))
		return err
	})
	if err == nil && t.o.picture != "" {
		err = replaceFile(t.o.picture, 0o644, line.WriteSVG)
	}
	return summary, err
}

// replaceFile writes a file beside path and renames it, so that nobody sees half of it.
func replaceFile(path string, mode os.FileMode, fill func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errnoOf(err))
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err = fill(f); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = f.Chmod(mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// childExit is the program's exit code, or 128 and the signal's number as a shell has it.
func childExit(p *os.ProcessState) error {
	status, ok := p.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return exitCode(128 + int(status.Signal()))
	}
	if code := p.ExitCode(); code != 0 {
		return exitCode(code)
	}
	return nil
}
