package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// undoTime is how long what is under way may take to be undone once a signal has come.
const undoTime = 2 * time.Second

// undoing is asked before undoTime ends the process.
type undoing struct {
	mu   sync.Mutex
	over bool // what is under way is not undone any more: it is waited for
}

// undoingOf is the key of a context's undoing.
type undoingOf struct{}

// beyondUndo begins what is done to its end, whatever signals come: the process waits for it, or its exit code would
// say that it was not done. An error says that a signal came before, and that it is not to be begun.
func beyondUndo(ctx context.Context) error {
	u, is := ctx.Value(undoingOf{}).(*undoing)
	if !is {
		return ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	err := ctx.Err()
	u.over = err == nil
	return err
}

// exit ends the process, unless what is under way is not to be undone.
func (u *undoing) exit(code int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		os.Exit(code)
	}
}

func (u *undoing) isOver() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.over
}

// interrupted is why a context ended: a signal.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return i.signal.String() }

// ownSignals are the verbs that have a program below them or serve others: they mind signals themselves.
var ownSignals = []string{"daemon", "run", "trace", "lease", "env", "ui"}

// endBySignals has SIGINT, SIGTERM and SIGHUP end the context of each verb but those of ownSignals and hidden ones.
func endBySignals(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		if !below.Hidden && !slices.Contains(ownSignals, below.Name()) {
			endBySignals(below)
		}
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			cmd.SetContext(ctx)
			return cutShort(ctx, run(cmd, args))
		}
	}
}

// untilSignal gives a context that the first signal ends, unless it is ignored. From then on another one ends the
// process, and so does undoTime: what was not undone by then is undone by the daemon, when the connection breaks; but
// see beyondUndo. The caller calls stop: no signal came unless the context's cause says so then. Behind beyondUndo a
// signal that comes after stop does not end the process.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	late := &undoing{}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, undoingOf{}, late))
	signals := make(chan os.Signal, 1)
	for _, s := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	over := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-over:
		case s := <-signals:
			signal.Stop(signals)
			why := interrupted{s.(syscall.Signal)}
			cancel(why)
			select {
			case <-over:
			case <-time.After(undoTime):
				late.exit(why.exitCode())
				<-over
			}
		}
	})
	return ctx, func() {
		if !late.isOver() { // else the verb's exit code says that it was done, and no signal is to say otherwise
			signal.Stop(signals)
		}
		close(over)
		waiting.Wait()
		select {
		case s := <-signals: // it came beside the end, which was seen first
			cancel(interrupted{s.(syscall.Signal)})
		default:
			cancel(nil)
		}
	}
}

// exitCode is a shell's for a program that a signal ended.
func (i interrupted) exitCode() int { return 128 + int(i.signal) }

// cutShort makes an error of a verb whose context a signal ended the exit code for that. What was done all the same
// (halfway) is told; the rest the person knows.
func cutShort(ctx context.Context, err error) error {
	var by interrupted
	if err == nil || !errors.As(context.Cause(ctx), &by) {
		return err
	}
	var half halfway
	if errors.As(err, &half) {
		return ended{half.error, by.exitCode()}
	}
	return exitCode(by.exitCode())
}

// halfway is an error of a verb that has done something that stays.
type halfway struct{ error }

func (h halfway) Unwrap() error { return h.error }

// ended is an error with an exit code of its own.
type ended struct {
	error
	code int
}

func (e ended) Unwrap() error { return e.error }

// patient is a file that is read until ctx ends, also where nothing comes.
type patient struct {
	ctx context.Context
	*os.File
}

// lookEvery is how often a patient reader looks at its context.
const lookEvery = 50 * time.Millisecond

func (p patient) Read(b []byte) (int, error) {
	for {
		if err := p.ctx.Err(); err != nil {
			return 0, err
		}
		fds := []unix.PollFd{{Fd: int32(p.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(lookEvery.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) { // what is wrong the read says
			return p.File.Read(b)
		}
	}
}

// bounded is a writer that takes nothing once ctx has ended.
type bounded struct {
	ctx context.Context
	io.Writer
}

func (w bounded) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(b)
}
