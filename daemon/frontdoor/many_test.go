package frontdoor

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// knock connects and says Hello, and leaves the answer unread. It gives the client's descriptor.
func (d *door) knock(t testing.TB) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: d.socket})
	}
	hello := wire.HelloRequest{Magic: wire.Magic, Lowest: wire.Version, Highest: wire.Version, Program: "test"}
	if err == nil {
		_, err = unix.Write(fd, ipc.AppendFrame(nil, wire.Hello, 0, 1, &hello))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func openFDs(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// A connection that has said Hello takes one descriptor, and no goroutine; a process with many of them one descriptor
// more.
func TestManyConnectionsCostLittle(t *testing.T) {
	const n = 1000
	d := open(t, func(o *Options) { o.MaxConnections, o.TenantConnections, o.HelloTime = 2*n, n, patience })
	files, goroutines := openFDs(t), runtime.NumGoroutine()
	before := heap()
	var clients []int
	for range n {
		clients = append(clients, d.knock(t))
	}
	greeted := func() (all int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for c := range d.conns {
			c.stateMu.Lock()
			if c.store != nil {
				all++
			}
			c.stateMu.Unlock()
		}
		return all
	}
	waitFor(t, func() bool { return greeted() == n })
	t.Logf("%d bytes a connection", (heap()-before)/n)
	waitFor(t, func() bool { return runtime.NumGoroutine() <= goroutines })
	if more := openFDs(t) - files - n; more > n+1 {
		t.Errorf("%d connections of one process take %d descriptors", n, more)
	}
	for _, fd := range clients {
		unix.Close(fd)
	}
	waitFor(t, func() bool { return d.Connections() == 0 })
	waitFor(t, func() bool { return openFDs(t) <= files })
}

// Descriptors are counted: a tenant that takes as many as it may leaves some to others, and hears what is short.
func TestDescriptorsAreCounted(t *testing.T) {
	var tenant atomic.Value
	tenant.Store("loud")
	d := open(t, func(o *Options) {
		o.MaxConnections, o.TenantConnections, o.MaxFiles = 1000, 800, 64
		o.Tenant = func(uint32, uint32) string { return tenant.Load().(string) }
	})
	for range 64 - 8 - 2 { // the process takes one, and room for another is kept
		d.dial(t).hello()
	}
	p := d.dial(t)
	f, err := p.receive()
	if err != nil || f.Type != wire.Error || !strings.Contains(decodeError(t, f).Error(), "open files") {
		t.Errorf("%v %q, %v; want an error that names the limit", f.Type, f.Payload, err)
	}
	tenant.Store("quiet")
	d.dial(t).hello()
	if _, err := d.dial(t).hello().ask(wire.OpenIndex, nil); !errors.Is(err, object.ErrBusy) {
		t.Errorf("the index where descriptors are short: %v, want ErrBusy", err)
	}
}
