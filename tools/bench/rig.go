package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"tendril/client"
	"tendril/store/object"
)

// rig is what the figures run on: a daemon of its own, the C references, and
// the OpenCL program twice. All but the daemon starts when a figure first asks for it.
type rig struct {
	dir    string // temporary; removed by close
	bin    string
	socket string
	ends   []func() // what close does, the last first

	rtt, memory       *program
	c, python         *program    // the C and the Python client, at work
	small             *program    // Python beside Redis
	redis             *redis      // the Go client beside it; nil until needed
	cIndexed          *program    // the C client, through the index
	native, forwarded *program    // clbench
	rows              [2]*program // clrows: natively, forwarded
	traced            *program    // clbench under tendril trace
	counters          int         // how many files there are in which forwarded programs count their round trips
	trips             float64     // round trips of the measured programs' steps, in this row so far
	remote            *remote
	spanning          *spanning    // nil until openSpanning
	frames            *frameTimes  // nil until they were measured
	filler            *client.Conn // keeps a 1 GiB segment warm; nil until needed
	content           []byte       // 1 GiB of touched memory

	viaIndex *client.Conn // gets through the index; nil until needed
	objects  []object.ID
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
	r.atEnd(func() { os.RemoveAll(dir) })
	if err = r.startDaemon(ctx); err != nil {
		r.close()
		return nil, err
	}
	r.rtt, r.memory = r.plain(nil, "rtt"), r.plain(nil, "membw")
	r.c, r.cIndexed = r.plain(r.env(), "store"), r.plain(r.env("TENDRIL_INDEX=on"), "store")
	r.python = r.program(func() (*reference, error) { return r.startPython("store.py", "Python with NumPy") })
	r.small = r.program(func() (*reference, error) {
		return r.startPython("small.py", "Redis (Debian's redis-server and python3-redis)")
	})
	r.native, r.forwarded = r.plain(nil, "clbench"), r.under("clbench", "run")
	r.rows = [2]*program{r.plain(nil, "clrows"), r.under("clrows", "run")}
	// The summary is nobody's to read: as JSON it goes where the figures went, unread.
	r.traced = r.under("clbench", "trace", "--json", "-o", filepath.Join(dir, "trace.json"))
	r.remote = newRemote(ctx, r)
	return r, nil
}

// atEnd has close call this, before all that it was told earlier.
func (r *rig) atEnd(end func()) { r.ends = append(r.ends, end) }

func (r *rig) close() {
	for _, end := range slices.Backward(r.ends) {
		end()
	}
}

// built is where a C program of this directory is: in bin/bench, for a machine without a compiler, or compiled when it
// is first asked for.
func (r *rig) built(name string) (string, error) {
	if made := filepath.Join(r.bin, "bench", name); isFile(made) {
		return made, nil
	}
	path := filepath.Join(r.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	libs := map[string][]string{
		"store":   {"-I" + filepath.Join(r.bin, "include"), filepath.Join(r.bin, "lib", "libtendril.a"), "-pthread"},
		"clbench": {"-lOpenCL"}, "clrows": {"-lOpenCL"}, "span": {"-lOpenCL"}, "byhand": {"-lOpenCL"}, "delay": {"-pthread"},
	}
	args := append([]string{"-O2", "-o", path, filepath.Join("tools/bench/c", name+".c")}, libs[name]...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s.c (run from the repository's root, after make deps): %w\n%s", name, err, out)
	}
	return path, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (r *rig) env(more ...string) []string {
	return append(append(os.Environ(), "TENDRIL_SOCKET="+r.socket, "TENDRIL_STATE_DIR="+filepath.Join(r.dir, "state"),
		"TENDRIL_LISTEN=127.0.0.1:0", "XDG_CONFIG_HOME="+filepath.Join(r.dir, "config"),
		"TENDRIL_CUDA_DRIVER="+r.fakeCUDA()), more...)
}

func (r *rig) tendril() string { return filepath.Join(r.bin, "tendril") }

func (r *rig) startDaemon(ctx context.Context) error {
	log, err := os.Create(filepath.Join(r.dir, "daemon.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	daemon := exec.Command(r.tendril(), "daemon", "--http", "127.0.0.1:0")
	daemon.Env, daemon.Stdout, daemon.Stderr = r.env(), log, log
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("start the daemon (make build makes it): %w", err)
	}
	r.atEnd(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	})
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

func (r *rig) startPython(program, needs string) (*reference, error) {
	path := r.env("PYTHONPATH=" + filepath.Join("client", "python"))
	f, err := r.begin(path, pythonOf(), filepath.Join("tools", "bench", "python", program))
	if err != nil {
		return nil, &missingError{fmt.Sprintf("no %s: %v", needs, err)}
	}
	return f, nil
}

// noDevice says why there is nothing to compare OpenCL figures with, or nothing.
func (r *rig) noDevice() error {
	_, err := r.native.begun()
	return err
}

// pythonOf is the system's python3, which has the system's NumPy, or the one that is found.
func pythonOf() string {
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return "python3"
}
