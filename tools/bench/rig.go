package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tendril/client"
	"tendril/forwarding/trace"
	"tendril/store/object"
)

// rig is what the figures run on: a daemon of its own, the C references, and
// the OpenCL program twice.
type rig struct {
	dir    string // temporary; removed by close
	bin    string
	socket string
	daemon *exec.Cmd

	rtt, memory       *reference
	c, python         *reference // the C and the Python client, at work
	noPython          string     // why there is no Python figure
	native, forwarded *reference
	traced            *reference   // nil until tracedCall
	counters          []string     // files in which forwarded programs count their round trips
	remote            *remote      // nil until openRemote
	spanning          *spanning    // nil until openSpanning
	frames            *frameTimes  // nil until they were measured
	filler            *client.Conn // keeps a 1 GiB segment warm; nil until needed
	content           []byte       // 1 GiB of touched memory
	noDevice          string       // why there are no OpenCL figures, "" when there are

	viaIndex, maker *client.Conn // get through the index; holds objects; both nil until needed
	objects         []object.ID
	cIndexed        *reference // the C client, through the index; nil until needed
}

// reference is a child that answers each line on its standard input with one number.
type reference struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ready string // its first line

	counters string // where a forwarded program counts its round trips; "": it does not
}

func newRig(ctx context.Context, bin string) (r *rig, err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tendril-bench-")
	if err != nil {
		return nil, err
	}
	r = &rig{dir: dir, bin: bin, socket: filepath.Join(dir, "tendril.sock")}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, step := range []func(context.Context) error{r.compile, r.startDaemon, r.startReferences} {
		if err = step(ctx); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r *rig) compile(ctx context.Context) error {
	library := []string{"-I" + filepath.Join(r.bin, "include"), filepath.Join(r.bin, "lib", "libtendril.a"), "-pthread"}
	for name, libs := range map[string][]string{"rtt": nil, "membw": nil, "store": library, "clbench": {"-lOpenCL"}, "span": {"-lOpenCL"}} {
		args := append([]string{"-O2", "-o", filepath.Join(r.dir, name), filepath.Join("tools/bench/c", name+".c")}, libs...)
		if out, err := exec.CommandContext(ctx, "cc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("compile %s.c (run from the repository's root, after make deps): %w\n%s", name, err, out)
		}
	}
	return nil
}

func (r *rig) env(more ...string) []string {
	return append(append(os.Environ(), "TENDRIL_SOCKET="+r.socket, "TENDRIL_STATE_DIR="+filepath.Join(r.dir, "state"),
		"TENDRIL_LISTEN=127.0.0.1:0", "XDG_CONFIG_HOME="+filepath.Join(r.dir, "config")), more...)
}

func (r *rig) tendril() string { return filepath.Join(r.bin, "tendril") }

func (r *rig) startDaemon(ctx context.Context) error {
	log, err := os.Create(filepath.Join(r.dir, "daemon.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	r.daemon = exec.Command(r.tendril(), "daemon")
	r.daemon.Env, r.daemon.Stdout, r.daemon.Stderr = r.env(), log, log
	if err := r.daemon.Start(); err != nil {
		return fmt.Errorf("start the daemon (make build makes it): %w", err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status := exec.CommandContext(ctx, r.tendril(), "status")
		status.Env = r.env()
		if status.Run() == nil {
			return nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the daemon does not answer within 30 s:\n%s", text)
		}
	}
}

func (r *rig) startReferences(context.Context) (err error) {
	if r.rtt, err = r.start(nil, filepath.Join(r.dir, "rtt")); err != nil {
		return err
	}
	if r.memory, err = r.start(nil, filepath.Join(r.dir, "membw")); err != nil {
		return err
	}
	if r.c, err = r.start(r.env(), filepath.Join(r.dir, "store")); err != nil {
		return err
	}
	path := r.env("PYTHONPATH=" + filepath.Join("client", "python"))
	if r.python, err = r.start(path, pythonOf(), filepath.Join("tools", "bench", "python", "store.py")); err != nil {
		r.noPython = fmt.Sprintf("no Python with NumPy: %v", err)
	}
	return nil
}

// startOpenCL starts the OpenCL program natively and forwarded; where there is no device, noDevice says why.
func (r *rig) startOpenCL() (err error) {
	clbench := filepath.Join(r.dir, "clbench")
	if r.native, err = r.start(nil, clbench); err != nil {
		r.noDevice = fmt.Sprintf("no native OpenCL device to compare with: %v", err)
		return nil
	}
	r.forwarded, err = r.start(r.env(), r.tendril(), "run", "--", clbench)
	return err
}

// pythonOf is the system's python3, which has the system's NumPy, or the one that is found.
func pythonOf() string {
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return "python3"
}

// start runs a reference and reads its first line, which says that it is ready.
func (r *rig) start(env []string, name string, args ...string) (*reference, error) {
	cmd := exec.Command(name, args...)
	var counters string
	cmd.Env, counters = r.counted(env)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ref := &reference{cmd: cmd, in: in, out: bufio.NewReader(out), counters: counters}
	if ref.ready, err = ref.out.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not start: %w", filepath.Base(args0(name, args)), err), ref.stop())
	}
	return ref, nil
}

func args0(name string, args []string) string {
	if len(args) > 0 {
		return args[len(args)-1]
	}
	return name
}

// ask runs one round of a test.
func (f *reference) ask(test string) (float64, error) {
	if _, err := fmt.Fprintln(f.in, test); err != nil {
		return 0, fmt.Errorf("%s: %w", test, err)
	}
	line, err := f.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("%s: the measuring program ended: %w", test, err)
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%s: answer %q", test, line)
	}
	return v, nil
}

// trips runs one round of a test of n steps and returns the round trips a step.
func (f *reference) trips(test string, n float64) (float64, error) {
	before, err := trace.ReadCounters(f.counters)
	if err != nil {
		return 0, err
	}
	if _, err := f.ask(test); err != nil {
		return 0, err
	}
	after, err := trace.ReadCounters(f.counters)
	return float64(trace.Total(after)-trace.Total(before)) / n, err
}

func (f *reference) stop() error {
	f.in.Close()
	return f.cmd.Wait()
}

func (r *rig) close() {
	if r.filler != nil {
		r.filler.Close()
	}
	for _, c := range []*client.Conn{r.viaIndex, r.maker} {
		if c != nil {
			c.Close()
		}
	}
	if r.spanning != nil {
		r.spanning.close()
	}
	if r.remote != nil {
		r.remote.close()
	}
	for _, f := range []*reference{r.traced, r.cIndexed, r.forwarded, r.native, r.python, r.c, r.memory, r.rtt} {
		if f != nil {
			_ = f.stop() // its figures are in; how it leaves changes nothing
		}
	}
	if r.daemon != nil && r.daemon.Process != nil {
		_ = r.daemon.Process.Signal(syscall.SIGTERM)
		_ = r.daemon.Wait()
	}
	os.RemoveAll(r.dir)
}
