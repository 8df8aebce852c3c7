package frontdoor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
)

// crowdArgument makes the test binary a process with many connections: it and the socket's path and their number.
const crowdArgument = "-crowd"

func init() {
	if len(os.Args) == 4 && os.Args[1] == crowdArgument {
		if err := crowd(os.Args[2], os.Args[3]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// crowd says Hello on many connections, then so on standard output, and keeps them until its input ends.
func crowd(socket, number string) error {
	n, err := strconv.Atoi(number)
	hello := wire.HelloRequest{Magic: wire.Magic, Lowest: wire.Version, Highest: wire.Version, Program: "crowd"}
	frame := ipc.AppendFrame(nil, wire.Hello, 0, 1, &hello)
	for ; n > 0 && err == nil; n-- {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			break
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err == nil {
			_, err = unix.Write(fd, frame)
		}
	}
	if err != nil {
		return fmt.Errorf("%d connections are missing: %w", n, err)
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// One user may have ten thousand connections, of a few processes. They take little, and another tenant still gets in.
func TestTenThousandConnections(t *testing.T) {
	const n, processes = 10_000, 4
	const files = n + 1000 // of this process: one a connection
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < files {
		t.Skipf("skipped: the limit of open files is %d, and %d are needed (ulimit -n): %v", limit.Cur, files, err)
	}
	var tenant atomic.Value
	tenant.Store("loud")
	d := open(t, func(o *Options) {
		o.MaxConnections, o.TenantConnections, o.HelloTime = n*8/7+16, n, patience
		o.Tenant = func(uint32, uint32) string { return tenant.Load().(string) }
	})
	before, goroutines := openFDs(t), runtime.NumGoroutine()
	var ends []io.Closer
	for range processes {
		c := exec.Command("/proc/self/exe", crowdArgument, d.socket, strconv.Itoa(n/processes))
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); c.Process.Kill(); c.Wait() })
		if said, err := bufio.NewReader(out).ReadString('\n'); said != "ready\n" {
			t.Fatal(said, err)
		}
		ends = append(ends, in)
	}
	waitFor(t, func() bool { return d.store.Status().Connections == n }) // each has been answered
	if more := openFDs(t) - before - n; more > 50 {
		t.Errorf("%d connections of %d processes take %d descriptors more than one each", n, processes, more)
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= goroutines+2*processes }) // of exec
	tenant.Store("quiet")
	d.dial(t).hello()
	for _, end := range ends {
		end.Close()
	}
	waitFor(t, func() bool { return d.Connections() <= 1 })
}
