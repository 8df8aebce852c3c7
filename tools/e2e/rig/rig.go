// Package rig starts real daemons for tests and tools: each in a temporary
// directory of its own, with a socket that no other process knows. It trusts
// the binaries it is given. A Node belongs to one goroutine; Run may be called
// from several.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/forwarding/clwire"
)

const startLimit = 5 * time.Minute

// Node is a running daemon. The caller must Stop it.
type Node struct {
	Bin string // directory of tendril and libtendril_opencl.so
	Dir string // temporary; removed by Stop

	// Inside is put before the daemon's command line and its verbs', such as ip netns exec NAME.
	Inside []string

	// Config is the configuration directory (XDG_CONFIG_HOME) of whoever runs verbs; "" is the caller's own.
	Config string

	extra  []string // environment, of every daemon of this node
	cmd    *exec.Cmd
	exited chan struct{} // closed once the daemon was reaped
}

// Options of a node. The zero value has none.
type Options struct {
	Inside  []string // Node.Inside
	Env     []string // NAME=value, over the caller's
	Kernels string   // a directory that SaveKernels has filled, or ""
}

// Start starts a daemon with extra environment and waits until it answers.
func Start(ctx context.Context, bin string, extra ...string) (*Node, error) {
	return StartWith(ctx, bin, Options{Env: extra})
}

// StartWith is Start with options.
func StartWith(ctx context.Context, bin string, o Options) (*Node, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"tendril", "libtendril_opencl.so"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return nil, fmt.Errorf("%w (make build makes it)", err)
		}
	}
	dir, err := os.MkdirTemp("", "tendril-rig-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // workers run as other users and reach their caches through it
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	n := &Node{Bin: bin, Dir: dir, Inside: o.Inside, extra: o.Env}
	if o.Kernels != "" {
		err = n.giveKernels(o.Kernels)
	}
	if err == nil {
		err = n.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return n, nil
}

// Restart starts the node's daemon, which has ended, on the directory that it left, and waits until it answers.
func (n *Node) Restart(ctx context.Context) (err error) {
	if n.cmd, n.exited, err = n.spawn(); err != nil {
		return err
	}
	if err := n.await(ctx); err != nil {
		n.Kill()
		return err
	}
	return nil
}

// spawn starts a daemon of this node. exited is closed once it was reaped.
func (n *Node) spawn(args ...string) (cmd *exec.Cmd, exited chan struct{}, err error) {
	log, err := os.OpenFile(filepath.Join(n.Dir, "daemon.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	argv := append(append(slices.Clone(n.Inside), n.Tendril(), "daemon"), args...)
	cmd = exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(n.Env("TENDRIL_STATE_DIR="+filepath.Join(n.Dir, "state")), n.extra...)
	cmd.Stdout, cmd.Stderr = log, log
	// It ends with us, whatever becomes of us; an interrupt on the terminal is ours to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	exited = make(chan struct{})
	go func() { // ends with the daemon, which Stop ends
		cmd.Wait()
		close(exited)
	}()
	return cmd, exited, nil
}

// Death says whom TakeOver kills while one daemon hands over to the next.
type Death int

// Whom TakeOver kills.
const (
	Nobody Death = iota
	Predecessor
	Successor
)

// TakeOver has another daemon take the node over and waits until it answers. Unless death is Nobody one of the two is
// killed so long after the start; then the other one is the node's, and TakeOver waits until that answers.
func (n *Node) TakeOver(ctx context.Context, death Death, after time.Duration) error {
	cmd, exited, err := n.spawn("--takeover")
	if err != nil {
		return err
	}
	if death != Nobody {
		select {
		case <-n.exited: // it was faster
		case <-time.After(after):
		}
	}
	if death == Successor {
		select {
		case <-n.exited: // there is nobody else any more
		default:
			cmd.Process.Kill()
			<-exited
			err := n.await(ctx)
			select {
			case <-n.exited: // it had handed everything over just before, and nobody is there any more
				return n.Restart(ctx)
			default:
				return err
			}
		}
	}
	if death == Predecessor {
		n.cmd.Process.Kill()
	}
	select {
	case <-n.exited:
	case <-exited:
		return fmt.Errorf("the next daemon, process %d, ended and did not take over from %d:\n%s", cmd.Process.Pid,
			n.PID(), n.Log())
	case <-time.After(startLimit):
		cmd.Process.Kill()
		<-exited
		return fmt.Errorf("no handover within %v:\n%s", startLimit, n.Log())
	}
	n.cmd, n.exited = cmd, exited
	return n.await(ctx)
}

func (n *Node) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		_, err := n.Status(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-n.exited:
			return fmt.Errorf("the daemon, process %d, ended at once:\n%s", n.PID(), n.Log())
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not answer: %w\n%s", err, n.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Tendril is the path of the binary.
func (n *Node) Tendril() string { return filepath.Join(n.Bin, "tendril") }

// Socket is where the daemon listens.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "tendril.sock") }

// PID is the daemon's.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Exited is closed once the daemon has ended.
func (n *Node) Exited() <-chan struct{} { return n.exited }

// Env is the caller's environment without the variables that steer OpenCL loaders and Tendril, with this node's socket.
func (n *Node) Env(extra ...string) []string {
	env := append(Native(), "TENDRIL_SOCKET="+n.Socket(), "TENDRIL_STACKS="+n.Dir)
	if n.Config != "" {
		env = append(env, "XDG_CONFIG_HOME="+n.Config)
	}
	return append(env, extra...)
}

// Native is the environment in which OpenCL programs meet the machine's own drivers.
func Native() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDRIL_") && !strings.HasPrefix(v, "OCL_ICD_") && !strings.HasPrefix(v, "OPENCL_") {
			env = append(env, v)
		}
	}
	return env
}

// Run runs a verb and returns its standard output; the error carries what it complained of and, by errors.As, its
// *exec.ExitError.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	return Output(n.Command(ctx, args...))
}

// Command is a verb that the caller starts.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	argv := append(append(slices.Clone(n.Inside), n.Tendril()), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = n.Env()
	cmd.WaitDelay = LeftBehind
	return cmd
}

// Output runs cmd and returns its standard output; the error carries its standard error. It may be silent for as long
// as Limit.
func Output(cmd *exec.Cmd) (string, error) {
	return OutputWithin(cmd, Limit)
}

// OutputWithin is Output with another limit.
func OutputWithin(cmd *exec.Cmd, limit time.Duration) (string, error) {
	out, complaint, err := Said(cmd, limit)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint))
	}
	return out, err
}

// Status is the part of the daemon's status that tests and tools look at.
type Status struct {
	Node struct {
		Listen     string `json:"listen"`
		Goroutines int    `json:"goroutines"`
	} `json:"node"`
	Store struct {
		Objects      int    `json:"objects"`
		OpenObjects  int    `json:"open_objects"`
		References   int    `json:"references"`
		Connections  int    `json:"connections"`
		ChargedBytes uint64 `json:"charged_bytes"`
		SessionBytes uint64 `json:"session_bytes"`
	} `json:"store"`
	Sessions []struct {
		ID         uint64    `json:"id"`
		PID        int       `json:"pid"`
		WaitsUntil time.Time `json:"waits_until"`
	} `json:"sessions"`
	Workers []struct {
		PID     int           `json:"pid"`
		State   string        `json:"state"`
		Session uint64        `json:"session"`
		Moved   *clwire.Moved `json:"moved"`
	} `json:"workers"`
}

// Status asks the daemon, as tendril status does. Tests ask again and again until a state is there, and a process for
// each question would take most of a core: so this one asks, unless the node's verbs run as somebody else.
func (n *Node) Status(ctx context.Context) (s Status, err error) {
	var text []byte
	if len(n.Inside) == 0 {
		text, err = n.statusHere()
	} else {
		var out string
		out, err = n.Run(ctx, "status", "--json")
		text = []byte(out)
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// Idle says what the node still has of sessions: them, serving workers, session memory. nil: nothing.
func (n *Node) Idle(ctx context.Context) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if len(s.Sessions) > 0 || s.Store.SessionBytes > 0 || s.Store.OpenObjects > 0 {
		return fmt.Errorf("still there: sessions %v, store %+v", s.Sessions, s.Store)
	}
	for _, w := range s.Workers {
		if w.State == "serving" {
			return fmt.Errorf("worker %d still serves", w.PID)
		}
	}
	return nil
}

// AwaitIdle waits until Idle says nil; if it does not within Limit, AwaitIdle returns what it said last.
func (n *Node) AwaitIdle(ctx context.Context) error {
	for end := time.Now().Add(Limit); ; time.Sleep(10 * time.Millisecond) {
		err := n.Idle(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// statusHere asks over a connection of this process's.
func (n *Node) statusHere() ([]byte, error) {
	return n.soon(func() ([]byte, error) {
		c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket()})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return admin.Of(c).Status(context.Background())
	})
}

// soon gives what a question to the daemon brings. A daemon that does not answer within Limit is said to hang.
func (n *Node) soon(ask func() ([]byte, error)) ([]byte, error) {
	type answer struct {
		text []byte
		err  error
	}
	asked := make(chan answer, 1)
	go func() {
		text, err := ask()
		asked <- answer{text, err}
	}()
	select {
	case a := <-asked:
		return a.text, a.err
	case <-time.After(Limit):
		return nil, fmt.Errorf("%w: the daemon's status took more than %v\n%s", ErrHung, Limit, Where(n.PID()))
	}
}

// Log is what the daemon wrote, the last of it if that is more than 1 MiB.
func (n *Node) Log() string {
	b, err := os.ReadFile(filepath.Join(n.Dir, "daemon.log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-1<<20):]))
}

// Kill ends the daemon with SIGKILL and reaps it.
func (n *Node) Kill() {
	n.cmd.Process.Kill()
	<-n.exited
}

// Stop ends the daemon, waits for it and removes its directory. It reports a daemon that did not end by itself.
func (n *Node) Stop() error {
	var late error
	n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
	case <-time.After(Limit): // it waits twice 10 s for a killed worker that gets no processor
		late = fmt.Errorf("the daemon did not end within %v of SIGTERM:\n%s\n%s", Limit, n.Log(),
			Where(n.cmd.Process.Pid))
		n.Kill()
	}
	return errors.Join(late, os.RemoveAll(n.Dir))
}
