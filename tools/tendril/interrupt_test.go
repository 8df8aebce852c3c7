package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	fake "tendril/tools/e2e/answers"
)

// TestInterruptedVerbs: a signal ends a verb that waits for its daemon's answer, with a shell's exit code for it and
// no talk of contexts.
func TestInterruptedVerbs(t *testing.T) {
	// Below nohup, the verbs would ignore SIGHUP as well. They do not where it is caught here.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	info := `{"id":"` + object.ID{1}.String() + `","name":"x","size_bytes":4}`
	for _, x := range []struct {
		args   string
		waits  wire.Type // what is not answered
		signal syscall.Signal
	}{
		{"put --replace " + file, wire.Create, syscall.SIGINT},
		{"put --replace " + file, wire.Create, syscall.SIGTERM},
		{"get x --wait 1h -o out", wire.Get, syscall.SIGINT},
		{"publish x", wire.Publish, syscall.SIGINT},
		{"publish x --replicas 2", wire.Replicate, syscall.SIGINT},
		{"drain", wire.ClusterStatus, syscall.SIGINT},
		{"lease --wait -- true", wire.OpenSession, syscall.SIGINT},
		{"stream push s " + file, wire.Create, syscall.SIGINT},
		{"stream pop s --dir .", wire.StreamPop, syscall.SIGINT},
		{"scrub", wire.Scrub, syscall.SIGHUP},
	} {
		t.Run(x.args+" "+x.signal.String(), func(t *testing.T) {
			asked, over := make(chan struct{}), make(chan struct{})
			d := fake.New(t, wire.Version, func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
				switch kind {
				case x.waits:
					close(asked)
					<-over
				case wire.Stat:
					return kind | wire.ReplyBit, fake.Raw(info)
				case wire.Publish:
					return kind | wire.ReplyBit, &wire.Number{N: 1}
				case wire.StreamOpen:
					return kind | wire.ReplyBit, &wire.StreamOpenReply{Stream: 1, Frames: 4, Bytes: 1 << 20}
				}
				return wire.Error, &wire.ErrorReply{Code: object.ErrUnsupported.Code(), Text: "not in this test"}
			})
			defer close(over)
			cmd := exec.Command(filepath.Join(built, "tendril"), append(strings.Fields("--socket "+d.Socket),
				strings.Fields(x.args)...)...)
			cmd.Dir = t.TempDir()
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { cmd.Wait(); close(ended) }()
			select {
			case <-asked:
			case <-ended:
				t.Fatalf("it ended before: %v\n%s", cmd.ProcessState, &said)
			}
			signaled := time.Now()
			cmd.Process.Signal(x.signal)
			<-ended
			cut := time.Since(signaled) >= undoTime // it may not have said anything
			if code := cmd.ProcessState.ExitCode(); code != 128+int(x.signal) {
				t.Errorf("%v\n%s", cmd.ProcessState, &said)
			}
			half := strings.Contains(x.args, "replicas") // it says what is published all the same
			if strings.Contains(said.String(), "context") != half && !(half && cut) {
				t.Errorf("it says %s", &said)
			}
			if left, _ := os.ReadDir(cmd.Dir); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

// TestInterruptedSeal: who is interrupted while the daemon seals hears what came of it, however long that takes. With
// --replace the object then gets its name.
func TestInterruptedSeal(t *testing.T) {
	for _, args := range []string{"put file", "put --replace --persist file"} {
		t.Run(args, func(t *testing.T) { interruptedSeal(t, strings.Fields(args)) })
	}
}

func interruptedSeal(t *testing.T, args []string) {
	t.Helper()
	sealing, goOn := make(chan struct{}), make(chan struct{})
	d := fake.New(t, wire.Version, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
		switch kind {
		case wire.Create:
			return kind | wire.ReplyBit, &wire.CreateReply{ID: object.ID{1}}
		case wire.Seal:
			close(sealing)
			<-goOn
			return kind | wire.ReplyBit, nil
		case wire.Bind:
			return kind | wire.ReplyBit, nil
		case wire.Stat:
			if nth > 1 || slices.Contains(args, "--replace") { // else the first asks whether the name is taken
				return kind | wire.ReplyBit, fake.Raw(`{"id":"` + object.ID{1}.String() + `","name":"file"}`)
			}
		}
		return wire.Error, &wire.ErrorReply{Code: object.ErrNotFound.Code(), Text: "not in this test"}
	})
	put := exec.Command(filepath.Join(built, "tendril"), append([]string{"--socket", d.Socket}, args...)...)
	put.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(put.Dir, "file"), nil, 0o600); err != nil { // empty: it has no memory
		t.Fatal(err)
	}
	var said bytes.Buffer
	put.Stdout, put.Stderr = &said, &said
	if err := put.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- put.Wait() }()
	select {
	case <-sealing:
	case err := <-ended:
		t.Fatalf("it ended before: %v\n%s", err, &said)
	}
	put.Process.Signal(syscall.SIGTERM)
	time.Sleep(undoTime + time.Second) // Pause: what is not waited for has ended by then
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, &said)
	}
	if slices.Contains(args, "--replace") && d.Count(wire.Bind) != 1 {
		t.Errorf("it was named %d times", d.Count(wire.Bind))
	}
}

// TestNoSignalIsLost: one that comes while a verb's end is dealt with is known afterwards.
func TestNoSignalIsLost(t *testing.T) {
	guard := make(chan os.Signal, 1)
	signal.Notify(guard, syscall.SIGHUP)
	defer signal.Stop(guard)
	for i := range 300 {
		ctx, stop := untilSignal(t.Context())
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		<-guard
		stop()
		if by := (interrupted{}); !errors.As(context.Cause(ctx), &by) || by.signal != syscall.SIGHUP {
			t.Fatalf("round %d: the signal was lost: %v", i, context.Cause(ctx))
		}
	}
}

// TestNoSignalBehindTheEnd: between the end of a verb that did what is not undone and the end of its process, a signal
// does not end that process: its exit code would say that nothing was done.
func TestNoSignalBehindTheEnd(t *testing.T) {
	ctx, stop := untilSignal(t.Context())
	if err := beyondUndo(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cutShort(ctx, nil); err != nil {
		t.Error(err)
	}
}

// interruptible is a command line of a node that is to be interrupted.
type interruptible struct {
	*exec.Cmd
	in  io.WriteCloser
	out lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (n *node) begin(args ...string) *interruptible {
	n.t.Helper()
	x := &interruptible{Cmd: exec.Command(filepath.Join(built, "tendril"), args...)}
	x.Env, x.Dir = n.env, n.dir
	var err error
	if x.in, err = x.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	x.Stdout, x.Stderr = &x.out, &x.out
	if err := x.Start(); err != nil {
		n.t.Fatal(err)
	}
	return x
}

// interrupt interrupts it, and checks its exit code.
func (x *interruptible) interrupt(t *testing.T) {
	t.Helper()
	x.Process.Signal(syscall.SIGINT)
	x.Wait()
	if x.ProcessState.ExitCode() != 130 {
		t.Errorf("%v: %v\n%s", x.Args[1:], x.ProcessState, x.out.String())
	}
}

// TestInterruptedInput: put and stream push end while they wait for their standard input. put leaves nothing; readers
// of the stream get what came and are told that more was to come.
func TestInterruptedInput(t *testing.T) {
	n := startNode(t)
	put := n.begin("put", "-", "--name", "half")
	if _, err := put.in.Write(make([]byte, 1<<20)); err != nil { // more than a pipe takes: it reads
		t.Fatal(err)
	}
	put.interrupt(t)
	if out := n.want(exitOK, nil, "ls"); strings.Contains(out, "half") {
		t.Errorf("put left %s", out)
	}
	push := n.begin("stream", "push", "s", "--lines")
	if _, err := push.in.Write([]byte("first\n")); err != nil {
		t.Fatal(err)
	}
	n.await("1 of 16", "stream", "ls")
	push.interrupt(t)
	code, out, errs := n.run("", "stream", "pop", "s", "--lines")
	if code != exitFailure || out != "first\n" || !strings.Contains(errs, "ended without ending the stream") {
		t.Errorf("pop: %d %q %q", code, out, errs)
	}
}

// await runs a command line until it says text.
func (n *node) await(text string, args ...string) {
	n.t.Helper()
	for range 12_000 {
		if _, out, _ := n.run("", args...); strings.Contains(out, text) {
			return
		}
	}
	n.t.Fatalf("tendril %v never said %q", args, text)
}

// TestInterruptedPop: a reader that waits and is interrupted takes no frame with it.
func TestInterruptedPop(t *testing.T) {
	n := startNode(t)
	pop := n.begin("stream", "pop", "s", "--lines")
	n.await(`"waiting_readers": 1`, "stream", "ls", "--json")
	pop.interrupt(t)
	n.run("frame\n", "stream", "push", "s", "--lines")
	if out := n.want(exitOK, nil, "stream", "pop", "s", "--lines"); out != "frame\n" {
		t.Errorf("%q", out)
	}
}

// TestInterruptedWatch: Ctrl-C on a terminal.
func TestInterruptedWatch(t *testing.T) {
	n := startNode(t)
	w := n.onTerminal(80, nil, "watch")
	for range 12_000 { // it may not listen yet
		n.run("text", "put", "-", "--name", "x", "--replace")
		if strings.Contains(w.text(), "sealed") {
			break
		}
	}
	if _, err := w.master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if code, out := w.wait(); code != 130 || strings.Contains(out, "context") {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestInterruptedPut: an object that is there although its put was interrupted was not undone: whoever reads the exit
// code takes it for gone, and its name is taken. So a signal that comes when the object is whole comes too late.
func TestInterruptedPut(t *testing.T) {
	n := startNode(t)
	if err := os.WriteFile(filepath.Join(n.dir, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n.want(exitOK, nil, "put", "file", "--name", "whole", "--persist")
	whole := time.Since(began)
	codes := map[string]int{}
	for i := range 60 {
		name := fmt.Sprint("x", i)
		put := n.begin("put", "file", "--name", name, "--persist")
		time.Sleep(whole * time.Duration(40+i) / 100) // Pause: the signal comes at any moment
		put.Process.Signal(syscall.SIGINT)
		put.Wait()
		codes[name] = put.ProcessState.ExitCode()
	}
	n.run("", "put", "file", "--name", "last") // what is sent before is done
	list := n.want(exitOK, nil, "ls", "--json")
	for name, code := range codes {
		if is := strings.Contains(list, `"`+name+`"`); is != (code == exitOK) {
			t.Errorf("%s: exit code %d; it is there: %v", name, code, is)
		}
	}
}
