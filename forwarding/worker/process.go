//go:build cgo

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
	"tendril/forwarding/stacks"
	"tendril/forwarding/worker/include"
	"tendril/forwarding/worker/sandbox"
	"tendril/forwarding/worker/snapshot"
)

// stageVariable says that the sandbox is on, and holds its fallbacks as JSON.
const stageVariable = "TENDRIL_WORKER_STAGE2"

// Main is the process `tendril worker`. Its first stage enters the sandbox and
// executes itself again with the same arguments; the second loads the driver,
// reports to the daemon, serves one session and returns when it is over: nil
// when the client, the daemon or ctx ended it.
func Main(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if _, inside := os.LookupEnv(stageVariable); !inside {
		return enter(&o)
	}
	// A descriptor of its own: no finalizer of the caller's file can close it.
	fd, err := unix.FcntlInt(o.Control.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("control descriptor: %w", err)
	}
	o.Control.Close()
	c := control{fd: fd, memory: newDeviceMemory()}
	err = serve(ctx, &o, &c)
	if over := (limitError{}); errors.As(err, &over) {
		fmt.Fprintln(os.Stderr, over)
		os.Exit(over.status)
	}
	if err != nil && !errors.Is(err, errOver) {
		c.send(&clwire.WorkerMessage{Failed: &clwire.WorkerFailed{Error: err.Error()}})
		return err
	}
	return nil
}

// errOver says that the daemon closed the control socket before a session began.
var errOver = errors.New("the daemon is gone")

// enter is stage one. It returns only if it fails.
func enter(o *Options) error {
	runtime.LockOSThread()
	if err := os.MkdirAll(filepath.Join(o.CacheDir, "tmp"), 0o700); err != nil {
		return fmt.Errorf("cache directory: %w", err)
	}
	sweepCache(filepath.Join(o.CacheDir, "pocl"), time.Now())
	limited, err := takeLimits()
	if err != nil {
		return err
	}
	extra := []string{filepath.Dir(o.ICD)}
	if library, err := libraryDir(o.ICD); err == nil {
		extra = append(extra, library)
	}
	fallbacks, err := sandbox.Apply(sandbox.ForDriver(o.CacheDir, extra...))
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	said, err := json.Marshal(append(limited, fallbacks...))
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(o.Control.Fd(), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("control descriptor: %w", err)
	}
	env := append(environment(os.Environ(), o.CacheDir), stageVariable+"="+string(said))
	err = unix.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("execute itself in the sandbox: %w", err)
}

// takeLimits bounds this process as the daemon says.
func takeLimits() ([]sandbox.Fallback, error) {
	var l clwire.WorkerLimits
	if said := os.Getenv(clwire.WorkerLimitsVariable); said != "" {
		if err := json.Unmarshal([]byte(said), &l); err != nil {
			return nil, fmt.Errorf("%s %q: %w", clwire.WorkerLimitsVariable, said, err)
		}
	}
	return sandbox.Limits(l).Take(), nil
}

// libraryDir is where a driver named by an absolute path lies: it may be
// outside the system's directories.
func libraryDir(icd string) (string, error) {
	text, err := os.ReadFile(icd)
	if err != nil {
		return "", err
	}
	path := strings.TrimSpace(string(text))
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is found by the dynamic linker", path)
	}
	return filepath.Dir(path), nil
}

// environment leaves out what would lead the driver to other drivers, or to
// directories it may not write, and points it to the cache.
func environment(from []string, cache string) []string {
	var env []string
	set := map[string]string{
		"HOME": cache, "TMPDIR": filepath.Join(cache, "tmp"), "XDG_CACHE_HOME": cache,
		"POCL_CACHE_DIR": filepath.Join(cache, "pocl"), "CUDA_CACHE_PATH": filepath.Join(cache, "cuda"),
		"TENDRIL_WORKER": "1",
	}
	for _, kv := range from {
		name, _, _ := strings.Cut(kv, "=")
		if _, ours := set[name]; ours || strings.HasPrefix(name, "OCL_ICD_") || strings.HasPrefix(name, "OPENCL_") ||
			name == stageVariable {
			continue
		}
		env = append(env, kv)
	}
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}

// sandboxFallbacks is what stage one could not have.
func sandboxFallbacks() ([]clwire.Fallback, error) {
	var found []sandbox.Fallback
	if err := json.Unmarshal([]byte(os.Getenv(stageVariable)), &found); err != nil {
		return nil, fmt.Errorf("%s: %w", stageVariable, err)
	}
	var out []clwire.Fallback
	for _, f := range found {
		out = append(out, clwire.Fallback(f))
	}
	return out, nil
}

// harden is what has to happen after the last execve.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	return nil
}

// serve is stage two.
func serve(ctx context.Context, o *Options, c *control) error {
	if err := harden(); err != nil {
		return err
	}
	fallbacks, err := sandboxFallbacks()
	if err != nil {
		return err
	}
	out, err := redirect()
	if err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	d, err := load(*o)
	if err != nil {
		return err
	}
	c.send(&clwire.WorkerMessage{Ready: &clwire.WorkerReady{PID: stacks.PID(), Fallbacks: fallbacks}})
	l, r, err := c.awaitSession()
	if err != nil {
		return err
	}
	if r == nil {
		go c.watch(nil)
	}
	// Events make small garbage at a high rate; collecting it takes a core from
	// the driver's threads. 40 MiB more is little beside a compiler.
	debug.SetGCPercent(1000)
	if r != nil {
		link.RaiseProcessors()
	}
	stop := context.AfterFunc(ctx, l.Shutdown)
	defer stop()
	s := newSession(l, d.platform, d.devices, d.inPlace, d.blocks, out)
	s.deviceMemory = c.memory
	s.files.store = include.NewStore(o.CacheDir)
	s.attached = &c.attached
	s.peers.sockets = &c.sockets
	s.bound(c.limits)
	s.compression = c.compression
	c.serving.Store(s)
	if r != nil {
		s.bulk, s.compression = newBulk(s), r.options.Compression
		stream := l.(*link.Stream)
		go r.feed(s.bulk, stream)
		go r.await(s, stream)
		if s.compression != nil {
			go r.tellMoved()
		}
	}
	return s.run()
}

// driver is one loaded platform.
type driver struct {
	platform opencl.Platform
	devices  []opencl.Device
	inPlace  bool // every device computes on segments
	blocks   bool // clEnqueue… may block
}

func load(o Options) (*driver, error) {
	index, noInPlace := o.Platform, o.NoInPlace
	lib, err := opencl.Open(o.ICD)
	if err != nil {
		return nil, err
	}
	platforms, err := lib.Platforms()
	if err != nil {
		return nil, err
	}
	if index >= len(platforms) {
		return nil, fmt.Errorf("driver %s has %d platforms, not one of number %d", lib.Path(), len(platforms), index)
	}
	d := &driver{platform: platforms[index]}
	name, _ := d.platform.Info(cl.PLATFORM_NAME)
	pocl := answers.Text(name) == "Portable Computing Language"
	d.blocks = noInPlace || !pocl // PoCL's enqueue hands over to its own threads
	if pocl {
		return d, withPatientThreads(func() error { return d.start(noInPlace, o.Only) })
	}
	return d, d.start(noInPlace, o.Only)
}

// start makes the driver start its devices.
func (d *driver) start(noInPlace bool, only []int) (err error) {
	if d.devices, err = d.platform.Devices(); err != nil {
		return err
	}
	if only != nil {
		all := d.devices
		d.devices = nil
		for _, place := range only {
			if place < 0 || place >= len(all) {
				return fmt.Errorf("the driver has %d devices, and not one of number %d: it had when it was probed", len(all), place)
			}
			d.devices = append(d.devices, all[place])
		}
	}
	d.inPlace = len(d.devices) > 0 && !noInPlace
	for _, dev := range d.devices {
		if d.inPlace {
			d.inPlace, _ = snapshot.InPlace(d.platform, dev)
		}
	}
	return nil
}

// control is the daemon's end of a worker's life: a SOCK_SEQPACKET socket.
type control struct {
	fd       int
	attached attachments
	memory   *deviceMemory
	sockets  peerSockets
	limits   clwire.TimeLimits // of the assignment
	serving  atomic.Pointer[session]
	asking   atomic.Bool // the driver is asked what it runs

	// of a session of this node: only what goes to another node's worker is packed; nil: nothing is
	compression *link.Compression
}

// send is best effort: a daemon that is gone is noticed by watch.
func (c *control) send(m *clwire.WorkerMessage) {
	b, err := json.Marshal(m)
	if err != nil {
		return
	}
	_ = unix.Sendmsg(c.fd, b, nil, nil, unix.MSG_NOSIGNAL)
}

// awaitSession waits for the assignment and opens its link; remote is nil for a client on this node.
func (c *control) awaitSession() (link.Link, *remote, error) {
	buf, oob := make([]byte, clwire.MaxControlBytes), make([]byte, 256)
	m, files, err := c.message(buf, oob)
	defer closeAll(files)
	switch {
	case err != nil:
		return nil, nil, err
	case m.AssignRemote != nil && len(files) == 0:
		c.memory.bound(m.AssignRemote.DeviceLimited)
		c.limits = m.AssignRemote.Limits
		return c.awaitRemote(m.AssignRemote)
	case m.Assign == nil || len(files) != 2:
		return nil, nil, fmt.Errorf("control message with %d descriptors: expected an assignment with a socket and a ring", len(files))
	}
	c.memory.bound(m.Assign.DeviceLimited)
	c.limits = m.Assign.Limits
	if !m.Assign.NoCompress {
		c.compression = &link.Compression{}
	}
	l, err := link.New(link.Worker, files[1], files[0])
	return l, nil, err
}

// message receives one packet of the daemon; the caller owns the files, also with an error.
func (c *control) message(buf, oob []byte) (m clwire.DaemonMessage, files []*os.File, err error) {
	n, oobn, err := c.receive(buf, oob)
	if err != nil || n == 0 {
		return m, nil, errOver
	}
	if files, err = filesOf(oob[:oobn]); err != nil {
		return m, files, err
	}
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return m, files, fmt.Errorf("control message %.200q: %w", buf[:n], err)
	}
	return m, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (c *control) receive(buf, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR && err != unix.EAGAIN {
			return n, oobn, err
		}
		if err == unix.EAGAIN {
			p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, -1) // what it finds, Recvmsg reports
		}
	}
}

func filesOf(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message's descriptors: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "assigned"))
		}
	}
	return files, nil
}

// watch ends the process when the daemon is gone, and takes the lanes of a
// remote session. Nothing is worth waiting for: the driver's destructors may
// hang, and the kernel takes all back.
func (c *control) watch(r *remote) {
	buf, oob := make([]byte, clwire.MaxControlBytes), make([]byte, 256)
	for {
		m, files, err := c.message(buf, oob)
		if errors.Is(err, errOver) {
			os.Exit(0)
		}
		if err == nil && m.Ask != nil {
			c.tellCommands(m.Ask.Question)
		}
		if err == nil && m.DeviceLimit != nil {
			c.memory.setLimit(m.DeviceLimit.Bytes)
		}
		if err == nil && r != nil && m.Lane != nil && len(files) == 1 {
			r.accept(m.Lane.Index, files[0])
			continue
		}
		if err == nil && m.Peer != nil && len(files) == 1 {
			c.sockets.put(m.Peer, files[0])
			continue
		}
		if err == nil && m.Attach != nil && len(files) == 1 {
			c.attached.put(m.Attach, files[0])
			continue
		}
		closeAll(files)
	}
}
