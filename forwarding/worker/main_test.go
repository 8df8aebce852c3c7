//go:build cgo

package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// These tests reach 76 % of the package in this process, and 82 % of forwarding/opencl, which only this package calls
// ("go test -short -coverpkg=./forwarding/opencl,./forwarding/worker ./forwarding/worker"). What is missing is counted
// elsewhere: a worker's and a probe's process (process.go, remote.go) in those that TestMain makes, which are inside
// the sandbox and so write no counts; built-in kernels, intermediate languages and files of sources in make difftest
// (unknown, linking), which compares every line with the driver's own answer.

// TestMain lets the test binary be a worker or a probe.
func TestMain(m *testing.M) {
	role, icd, _ := strings.Cut(os.Getenv("TENDRIL_TEST_ROLE"), ":")
	o := Options{ICD: icd, CacheDir: os.Getenv("TENDRIL_TEST_CACHE")}
	if role != "" {
		o.Control = os.NewFile(3, "control")
	}
	var err error
	switch role {
	case "worker":
		err = Main(context.Background(), o)
	case "probe":
		err = Probe(context.Background(), o)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is a worker of its own, sandboxed, as the daemon starts it.
type process struct {
	*client
	cmd     *exec.Cmd
	control int
	ready   clwire.WorkerReady
	said    strings.Builder // on standard error; to be read after wait
}

func command(t testing.TB, role string, control *os.File) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "TENDRIL_TEST_ROLE="+role+":"+driverFile(t), "TENDRIL_TEST_CACHE="+t.TempDir())
	cmd.ExtraFiles = []*os.File{control}
	cmd.Stderr = os.Stderr
	return cmd
}

func startProcess(t testing.TB) *process {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	p := &process{cmd: command(t, "worker", theirs), control: fds[0]}
	p.cmd.Stderr = io.MultiWriter(os.Stderr, &p.said)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		unix.Close(p.control)
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	buf := make([]byte, clwire.MaxControlBytes)
	n, err := unix.Read(p.control, buf)
	if err != nil || n == 0 {
		t.Fatalf("control: %d bytes, %v", n, err)
	}
	var m clwire.WorkerMessage
	if err := json.Unmarshal(buf[:n], &m); err != nil || m.Ready == nil {
		t.Fatalf("control: %s, %v", buf[:n], err)
	}
	p.ready = *m.Ready
	p.assign(t)
	return p
}

func (p *process) assign(t testing.TB) {
	t.Helper()
	ring, sockets := linkEnds(t)
	b, err := json.Marshal(clwire.DaemonMessage{Assign: &clwire.WorkerAssign{Session: 1, Worker: 1, Tenant: "test",
		RingBytes: clwire.RingBytes}})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(p.control, b, unix.UnixRights(int(sockets[1].Fd()), int(ring.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	sockets[1].Close()
	p.client = newClient(t, ring, sockets[0])
	p.hello()
}

// wait returns how the process ended.
func (p *process) wait(t testing.TB) string {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
		return p.cmd.ProcessState.String()
	case <-time.After(5 * time.Minute):
		t.Fatal("the worker lives on")
		return ""
	}
}

func TestProcessRunsKernelsInTheSandbox(t *testing.T) {
	p := startProcess(t)
	t.Logf("fallbacks: %v", p.ready.Fallbacks)
	f := newFixture(p.client, 0)
	b, bytes := f.buffer(64)
	f.send(run1(clwire.Cmd{Queue: f.queue}, f.kernel("add"), 16, argMem(0, b), argInt(1, 7)))
	f.finish(f.queue, 0)
	f.expect("sum", bytes, 7)
	p.link.Shutdown()
	if how := p.wait(t); how != "exit status 0" {
		t.Errorf("after the client: %s", how)
	}
}

func TestWildStoreKillsTheWorkerAlone(t *testing.T) {
	p := startProcess(t)
	f := newFixture(p.client, 0)
	b, _ := f.buffer(64)
	f.send(run1(clwire.Cmd{Queue: f.queue}, f.kernel("wild"), 1, argMem(0, b),
		clwire.Arg{Index: 1, Kind: clwire.ArgBytes, Data: nativeOrder.AppendUint64(nil, 1<<45)}))
	done := f.ask(&clwire.Finish{Queue: f.queue})
	if !f.inPlace {
		f.until("an error", func() bool { return f.hung || f.replies[done] != nil })
		if r := f.replies[done]; r != nil && (r.Status >= 0 || len(f.faults) == 0) {
			t.Errorf("the store was let pass: %+v, faults %+v", r, f.faults)
		}
		return
	}
	f.until("a hang-up", func() bool { return f.hung })
	if how := p.wait(t); !strings.Contains(how, "segmentation fault") {
		t.Errorf("ended by %q", how)
	}
}

func TestWorkerDiesWithTheDaemon(t *testing.T) {
	p := startProcess(t)
	unix.Shutdown(p.control, unix.SHUT_RDWR)
	if how := p.wait(t); how != "exit status 0" {
		t.Errorf("ended by %q", how)
	}
}

func TestPrintfComesBeforeTheEnd(t *testing.T) {
	p := startProcess(t)
	f := newFixture(p.client, 0)
	f.build(`kernel void say(int n) { printf("n is %d\n", n); }`)
	f.send(run1(clwire.Cmd{Queue: f.queue}, f.kernel("say"), 1, argInt(0, 42)))
	f.call(&clwire.Finish{Queue: f.queue})
	if string(f.printed) != "n is 42\n" {
		t.Errorf("printed %q", f.printed)
	}
}

func TestProbe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command(t, "probe", w)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var result clwire.ProbeResult
	if err := json.NewDecoder(bufio.NewReader(r)).Decode(&result); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(result.Platforms) == 0 || len(result.Platforms[0].Devices) == 0 {
		t.Fatalf("%+v", result)
	}
	d := result.Platforms[0].Devices[0]
	t.Logf("%s: %d + %d answers, in place %v %s", answers.Text(result.Platforms[0].Info[cl.PLATFORM_NAME]),
		len(result.Platforms[0].Info), len(d.Info), d.InPlace, d.InPlaceReason)
	if d.InPlace != (d.InPlaceReason == "") || len(d.Info) < 80 {
		t.Errorf("in place %v (%s), %d answers", d.InPlace, d.InPlaceReason, len(d.Info))
	}
	if _, ok := d.Info[cl.DEVICE_PLATFORM]; ok {
		t.Error("a handle is in the snapshot")
	}
}
