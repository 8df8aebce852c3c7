package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
	"tendril/forwarding/cuda/fakecuda"
)

// rig is a keeper in this process, over a fake driver, and the daemon's end of its socket. It sets this process's
// oom_score_adj as it does its own.
type rig struct {
	t      *testing.T
	driver string
	log    string
	socket int        // the daemon's end
	ended  chan error // what Main returned
	copies uint64
}

// begin builds a driver of the test's own, whose counts begin at 0. The environment is the driver's.
func begin(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, driver: fakecuda.Build(t), log: filepath.Join(t.TempDir(), "log")}
	t.Setenv("CUDA_FAKE_LOG", r.log)
	t.Setenv("CUDA_FAKE_WATCH", "0") // this process would take an instance of inotify for each keeper
	return r
}

// start starts a keeper. The one before it must have ended.
func (r *rig) start(o Options) {
	r.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	limit := unix.Timeval{Sec: 5 * 60}
	if err := unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		r.t.Fatal(err)
	}
	o.Control, o.Driver = os.NewFile(uintptr(pair[1]), "control"), r.driver
	if text, err := os.ReadFile(r.driver); err == nil { // a copy has a state of its own, as in a process of its own
		o.Driver = filepath.Join(r.t.TempDir(), "libfakecuda.so")
		if err := os.WriteFile(o.Driver, text, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	r.socket, r.ended = pair[0], make(chan error, 1)
	ended := r.ended
	go func() { ended <- Main(context.Background(), o) }()
}

// end closes the socket and gives what Main returned.
func (r *rig) end() error {
	unix.Close(r.socket)
	return <-r.ended
}

// ask sends a request and gives the reply. The caller owns made, −1 where none came. Where the keeper ended instead of
// a reply, the reply says so.
func (r *rig) ask(m any, files ...int) (reply *clwire.KeeperReply, made int) {
	r.t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if err := unix.Sendmsg(r.socket, raw, rights, nil, unix.MSG_NOSIGNAL); errors.Is(err, unix.EPIPE) {
		return &clwire.KeeperReply{Error: "the keeper has ended"}, -1
	} else if err != nil {
		r.t.Fatal(err)
	}
	packet, control := make([]byte, clwire.MaxControlBytes), make([]byte, unix.CmsgSpace(4*4))
	n, nc, _, _, err := unix.Recvmsg(r.socket, packet, control, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) { // it has a time limit, and so does not go on by itself
		n, nc, _, _, err = unix.Recvmsg(r.socket, packet, control, unix.MSG_CMSG_CLOEXEC)
	}
	if err == nil && n == 0 || errors.Is(err, unix.ECONNRESET) {
		return &clwire.KeeperReply{Error: "the keeper has ended"}, -1
	}
	if err != nil {
		r.t.Fatal(err)
	}
	reply, made = &clwire.KeeperReply{}, -1
	if err := json.Unmarshal(packet[:n], reply); err != nil {
		r.t.Fatalf("%q: %v", packet[:n], err)
	}
	if got := received(control[:nc]); len(got) == 1 {
		made = got[0]
	} else if len(got) > 1 {
		r.t.Fatalf("%d descriptors with %+v", len(got), reply)
	}
	return reply, made
}

// settled is counted after the keeper has tidied up behind its last reply.
func (r *rig) settled() (calls, left int) {
	r.t.Helper()
	r.ask(&clwire.KeeperRequest{List: &clwire.KeeperList{}})
	return r.counted()
}

// counted gives the driver's calls so far, and what was not given back.
func (r *rig) counted() (calls, left int) {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("%s.%d", r.log, os.Getpid()))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "calls %d left %d", &calls, &left); err != nil {
		r.t.Fatalf("%q: %v", text, err)
	}
	return calls, left
}

// spot is memory of a test, with its descriptor.
type spot struct {
	clwire.KeeperPlace
	fd int
}

// gpu is the UUID of a fake device.
func gpu(n int) string { return fmt.Sprintf("%s%02x", strings.Repeat("fa", 15), n) }

// host is a memfd with bytes in it.
func (r *rig) host(b []byte) spot {
	r.t.Helper()
	fd, err := unix.MemfdCreate("host", unix.MFD_CLOEXEC)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Pwrite(fd, b, 0); err != nil {
		r.t.Fatal(err)
	}
	return spot{clwire.KeeperPlace{Bytes: uint64(len(b))}, fd}
}

// contents reads a memfd, or the memory of a fake device, which is one.
func (r *rig) contents(s spot, n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	if got, err := unix.Pread(s.fd, b, 0); err != nil || got != n {
		r.t.Fatalf("%d of %d bytes: %v", got, n, err)
	}
	return b
}

// allocate makes memory of a device; the caller closes its descriptor.
func (r *rig) allocate(n int, size uint64) (spot, error) {
	r.t.Helper()
	reply, fd := r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: gpu(n), Bytes: size}})
	if reply.Error != "" {
		if fd >= 0 {
			r.t.Errorf("a descriptor with %+v", reply)
			unix.Close(fd)
		}
		return spot{}, errors.New(reply.Error)
	}
	if fd < 0 || reply.Bytes < size {
		r.t.Fatalf("descriptor %d, %+v", fd, reply)
	}
	return spot{clwire.KeeperPlace{Device: gpu(n), Bytes: reply.Bytes}, fd}, nil
}

// used has the keeper use both devices: their contexts stay.
func (r *rig) used() {
	r.t.Helper()
	for i := range 2 {
		s, err := r.allocate(i, 1)
		if err != nil {
			r.t.Fatal(err)
		}
		unix.Close(s.fd)
	}
}

// device is memory of a device that lasts as long as the test.
func (r *rig) device(n int, size uint64) spot {
	r.t.Helper()
	s, err := r.allocate(n, size)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// copy copies in one step.
func (r *rig) copy(to, from spot, n uint64) *clwire.KeeperReply {
	r.t.Helper()
	r.copies++
	reply, _ := r.ask(&clwire.KeeperRequest{Copy: &clwire.KeeperCopy{ID: r.copies, To: to.KeeperPlace,
		From: from.KeeperPlace, Bytes: n, Last: true}}, to.fd, from.fd)
	return reply
}

// pattern is bytes that repeat after 251.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// TestAllocationsAreZeroed: sizes are rounded up, memory is zeroed from end to end, and what cannot be had is named by
// its sort.
func TestAllocationsAreZeroed(t *testing.T) {
	r := begin(t)
	r.start(Options{})
	listed, _ := r.ask(&clwire.KeeperRequest{List: &clwire.KeeperList{}})
	if len(listed.Devices) != 2 || listed.Devices[1].UUID != gpu(1) || listed.Devices[1].Index != 1 ||
		!listed.Devices[0].Shares || listed.Devices[0].Bytes != 64<<20 {
		t.Errorf("%+v", listed)
	}
	s := r.device(1, 2<<20+1)
	if s.Bytes != 4<<20 || !bytes.Equal(r.contents(s, 4<<20), make([]byte, 4<<20)) {
		t.Errorf("%d bytes, or not zeroed", s.Bytes)
	}
	for _, x := range []struct {
		device string
		bytes  uint64
		fault  clwire.KeeperFault
		says   string
	}{
		{gpu(0), 0, clwire.KeeperFailed, "an allocation of 0 bytes"},
		{gpu(0), ^uint64(0), clwire.KeeperFailed, "an allocation of"},
		{gpu(0), 128 << 20, clwire.KeeperFull, "CUDA_ERROR_OUT_OF_MEMORY"},
		{gpu(2), 1, clwire.KeeperNoDevice, "it shows 2"},
		{"", 1, clwire.KeeperNoDevice, "it shows 2"},
	} {
		reply, fd := r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: x.device, Bytes: x.bytes}})
		if fd >= 0 || reply.Fault != x.fault || !strings.Contains(reply.Error, x.says) {
			t.Errorf("%d bytes of %q: descriptor %d, %+v", x.bytes, x.device, fd, reply)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestComputeModes: a GPU that its administrator gives to one process, or to none, has no objects, and the answer says
// why. No context is made there: it would be the one process.
func TestComputeModes(t *testing.T) {
	for mode, word := range map[string]clwire.ComputeMode{"0": "", "2": "prohibited", "3": "exclusive"} {
		r := begin(t)
		t.Setenv("CUDA_FAKE_MODE", mode)
		r.start(Options{})
		listed, _ := r.ask(&clwire.KeeperRequest{List: &clwire.KeeperList{}})
		if d := listed.Devices; len(d) != 2 || d[0].Mode != word || d[0].Shares != (word == "") {
			t.Errorf("mode %s: %+v", mode, d)
		}
		before, _ := r.settled()
		reply, fd := r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: gpu(0), Bytes: 1}})
		if fd >= 0 {
			unix.Close(fd)
		}
		calls, _ := r.settled()
		refused := reply.Fault == clwire.KeeperNoDevice && strings.Contains(reply.Error, "in compute mode "+string(word))
		if refused != (word != "") || refused == (fd >= 0) || refused != (calls == before) {
			t.Errorf("mode %s: descriptor %d, %+v, %d calls", mode, fd, reply, calls-before)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestRequestsThatAreNone: what the keeper does not understand is refused, and the next request is served. Descriptors
// that come with it are closed.
func TestRequestsThatAreNone(t *testing.T) {
	r := begin(t)
	r.start(Options{})
	x := r.host(pattern(10))
	r.device(0, 1) // makes the context
	open := func() int {
		r.settled()
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := open()
	for what, m := range map[string]any{
		"nothing":                 &clwire.KeeperRequest{},
		"no object":               3,
		"a copy with one file":    &clwire.KeeperRequest{Copy: &clwire.KeeperCopy{ID: 1, Last: true}},
		"a request of the future": map[string]any{"defragment": map[string]int{}},
	} {
		reply, _ := r.ask(m, x.fd)
		if reply.Error == "" || reply.Fault != clwire.KeeperFailed {
			t.Errorf("%s: %+v", what, reply)
		}
		if now := open(); now != before {
			t.Errorf("%s: %d descriptors, before %d", what, now, before)
		}
	}
	// More than any request has: the kernel passes on what fits, and the rest is closed.
	if reply, _ := r.ask(&clwire.KeeperRequest{Copy: &clwire.KeeperCopy{ID: 2, Last: true}}, x.fd, x.fd, x.fd, x.fd,
		x.fd, x.fd); reply.Error == "" {
		t.Errorf("six descriptors: %+v", reply)
	}
	if now := open(); now != before {
		t.Errorf("%d descriptors, before %d", now, before)
	}
	if reply, _ := r.ask(&clwire.KeeperRequest{End: &clwire.KeeperEnd{ID: 99}}); reply.Error != "" {
		t.Errorf("the end of a copy that is not known: %+v", reply)
	}
	unknown := &clwire.KeeperForget{Memory: []clwire.HostMemory{{Inode: 1}}}
	if reply, _ := r.ask(&clwire.KeeperRequest{Forget: unknown}); reply.Error != "" {
		t.Errorf("memory that is not pinned: %+v", reply)
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestStepsThatDoNotFit: a step that does not fit to its copy or to its memory is refused, and the copy is over:
// nothing of it stays mapped.
func TestStepsThatDoNotFit(t *testing.T) {
	r := begin(t)
	r.start(Options{})
	const size = 4 << 20
	a, b, h, h2 := r.device(0, size), r.device(0, size), r.host(pattern(size)), r.host(pattern(size))
	if reply := r.copy(a, h, size); reply.Error != "" { // what stays is made
		t.Fatal(reply.Error)
	}
	at := func(s spot, offset uint64) spot {
		s.Offset = offset
		return s
	}
	sized := func(s spot, n uint64) spot {
		s.Bytes = n
		return s
	}
	_, before := r.settled()
	for what, x := range map[string]struct {
		to, from spot
		n        uint64
		says     string
	}{
		"host to host":                {h, h2, 1, "between two places in host memory"},
		"beyond the host's end":       {a, at(h, size-1), 2, "of host memory"},
		"a host's offset that wraps":  {a, at(h, ^uint64(0)), 2, "of host memory"},
		"to beyond the host's end":    {at(h, size), a, 1, "of host memory"},
		"beyond the device's end":     {at(a, size-1), h, 2, "of a mapping"},
		"from beyond a device's end":  {h, at(a, size), 1, "of a mapping"},
		"within a device, beyond":     {at(a, 1), b, size, "of a mapping"},
		"from within a device beyond": {a, at(b, 1), size, "of a mapping"},
		"more host memory than is":    {a, sized(h, size+1), 1, "which is said to have"},
		"no host memory":              {a, sized(h, 0), 0, "which is said to have"},
		"no such device": {spot{clwire.KeeperPlace{Device: gpu(7), Bytes: size}, a.fd}, h, 1,
			"shows no device"},
		"host memory as a device's": {spot{clwire.KeeperPlace{Device: gpu(0), Bytes: size}, h.fd}, h2, 1,
			"CUDA_ERROR_INVALID_VALUE"},
	} {
		if reply := r.copy(x.to, x.from, x.n); !strings.Contains(reply.Error, x.says) {
			t.Errorf("%s: %+v, want %q", what, reply, x.says)
		}
		reply, _ := r.ask(&clwire.KeeperRequest{Copy: &clwire.KeeperCopy{ID: r.copies, To: x.to.KeeperPlace,
			From: x.from.KeeperPlace, Bytes: 1}})
		if reply.Fault != clwire.KeeperUnknown {
			t.Errorf("%s: the next step: %+v", what, reply)
		}
		if _, left := r.settled(); left != before {
			t.Errorf("%s: %d things of the driver's, before %d", what, left, before)
		}
	}
	for what, x := range map[string]struct {
		to    clwire.KeeperPlace
		files []int
		says  string
	}{
		"other places":       {clwire.KeeperPlace{Device: gpu(0), Bytes: size - 1}, nil, "between other places"},
		"a second beginning": {a.KeeperPlace, []int{a.fd, h.fd}, "begins twice"},
	} {
		step := &clwire.KeeperCopy{ID: 1000, To: a.KeeperPlace, From: h.KeeperPlace, Bytes: 1}
		if reply, _ := r.ask(&clwire.KeeperRequest{Copy: step}, a.fd, h.fd); reply.Error != "" {
			t.Fatal(reply.Error)
		}
		step.To = x.to
		if reply, _ := r.ask(&clwire.KeeperRequest{Copy: step}, x.files...); !strings.Contains(reply.Error, x.says) {
			t.Errorf("%s: %+v", what, reply)
		}
		if reply, _ := r.ask(&clwire.KeeperRequest{End: &clwire.KeeperEnd{ID: 1000}}); reply.Error != "" {
			t.Errorf("%s: %+v", what, reply)
		}
		if _, left := r.settled(); left != before {
			t.Errorf("%s: %d things of the driver's, before %d", what, left, before)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestWaysBetweenGPUs: bytes get from one device to the other whether or not these reach each other, and whether or not
// host memory can be pinned for the way between.
func TestWaysBetweenGPUs(t *testing.T) {
	const size = 9<<20 + 1
	data := pattern(size)
	for _, x := range []struct {
		peers, pin string
		way        clwire.KeeperWay
	}{{"1", "", clwire.KeeperPeer}, {"0", "", clwire.KeeperStaged}, {"0", "0", clwire.KeeperPlain}} {
		r := begin(t)
		t.Setenv("CUDA_FAKE_PEERS", x.peers)
		t.Setenv("CUDA_FAKE_PIN", x.pin)
		r.start(Options{})
		a, b := r.device(0, size), r.device(1, size)
		if reply := r.copy(a, r.host(data), size); reply.Error != "" {
			t.Fatal(reply.Error)
		}
		reply := r.copy(b, a, size)
		if reply.Error != "" || reply.Way != x.way || (reply.Why == "") != (x.way == clwire.KeeperPeer) {
			t.Errorf("peers %q, pin %q: %+v", x.peers, x.pin, reply)
		} else if !bytes.Equal(r.contents(b, size), data) {
			t.Errorf("peers %q, pin %q: the bytes differ", x.peers, x.pin)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
}

// names gives how often each function of the driver was called since the last time.
func (r *rig) names() map[string]int {
	r.t.Helper()
	path := fmt.Sprintf("%s.%d", os.Getenv("CUDA_FAKE_NAMES"), os.Getpid())
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Truncate(path, 0)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	n := map[string]int{}
	for _, name := range strings.Fields(string(text)) {
		n[name]++
	}
	return n
}

// TestCallsOfACopyBetweenGPUs: each device has its own side mapped, and nothing else. What lasts is made once: the
// windows for each destination, and queue and events for each device.
func TestCallsOfACopyBetweenGPUs(t *testing.T) {
	const size = 4 << 20
	r := begin(t)
	t.Setenv("CUDA_FAKE_NAMES", filepath.Join(t.TempDir(), "names"))
	r.start(Options{})
	a, b := r.device(0, size), r.device(1, size)
	for i, x := range [][2]spot{{b, a}, {b, a}, {a, b}} {
		r.settled()
		r.names()
		if reply := r.copy(x[0], x[1], size); reply.Error != "" || reply.Way != clwire.KeeperPeer {
			t.Fatalf("copy %d: %+v", i, reply)
		}
		r.settled()
		got := r.names()
		delete(got, "cuCtxSetCurrent")
		delete(got, "cuDeviceGet")
		want := map[string]int{"cuMemImportFromShareableHandle": 2, "cuMemAddressReserve": 2, "cuMemMap": 2,
			"cuMemSetAccess": 2, "cuMemRelease": 2, "cuMemcpyDtoDAsync_v2": 4, "cuEventRecord": 4, "cuStreamWaitEvent": 2,
			"cuStreamSynchronize": 2, "cuMemUnmap": 2, "cuMemAddressFree": 2}
		if i == 0 {
			want["cuStreamCreate"], want["cuEventCreate"] = 2, 2*windowCount
		}
		if i != 1 {
			want["cuDeviceCanAccessPeer"], want["cuMemCreate"], want["cuMemGetAllocationGranularity"] = 1, 1, 1
			for name, more := range map[string]int{"cuMemAddressReserve": 1, "cuMemMap": 1, "cuMemSetAccess": 2, "cuMemRelease": 1} {
				want[name] += more
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("copy %d: %v, want %v", i, got, want)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestManyPartsBetweenGPUs: each window is filled again and again, whichever device does its work sooner.
func TestManyPartsBetweenGPUs(t *testing.T) {
	const window = 2 << 20 // the fake's granule: its devices have little memory
	const size = 5*windowCount*window + window/2 + 1
	data := pattern(size)
	for _, eager := range []string{"0", "1", "2", "3"} {
		t.Setenv("CUDA_FAKE_EAGER", eager)
		r := begin(t)
		r.start(Options{})
		a, b := r.device(0, size), r.device(1, size)
		for _, x := range [][2]spot{{a, r.host(data)}, {b, a}} {
			if reply := r.copy(x[0], x[1], size); reply.Error != "" {
				t.Fatal(reply.Error)
			}
		}
		if !bytes.Equal(r.contents(b, size), data) {
			t.Errorf("eager devices %s: the bytes differ", eager)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestStepsBetweenGPUs: a step takes its own bytes to its own place, and no others change; two copies go on at
// once between three devices.
func TestStepsBetweenGPUs(t *testing.T) {
	const size, step, from, to = 16 << 20, 5<<20 + 3, 4097, 12289
	data, before := pattern(size), bytes.Repeat([]byte{0xee}, size)
	r := begin(t)
	t.Setenv("CUDA_FAKE_DEVICES", "3")
	t.Setenv("CUDA_FAKE_BYTES", strconv.Itoa(256<<20))
	r.start(Options{})
	source := r.device(0, size)
	targets := []spot{r.device(1, size), r.device(2, size)}
	for i, s := range append([]spot{source}, targets...) {
		if reply := r.copy(s, r.host([][]byte{data, before, before}[i]), size); reply.Error != "" {
			t.Fatal(reply.Error)
		}
	}
	for i := range uint64(2) {
		for n, s := range targets {
			m := &clwire.KeeperCopy{ID: 900 + uint64(n), To: s.KeeperPlace, From: source.KeeperPlace, Bytes: step,
				Last: i == 1}
			m.From.Offset, m.To.Offset = from+i*step, to+i*step
			files := []int{s.fd, source.fd}[:2-2*i]
			reply, _ := r.ask(&clwire.KeeperRequest{Copy: m}, files...)
			if reply.Way != clwire.KeeperPeer || reply.Error != "" {
				t.Fatalf("step %d: %+v", i, reply)
			}
		}
	}
	want := slices.Concat(before[:to], data[from:][:2*step], before[to+2*step:])
	for n, s := range targets {
		if !bytes.Equal(r.contents(s, size), want) {
			t.Errorf("device %d: the bytes differ", n+1)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestNoWindowsBetweenGPUs: where the destination has no room for windows, or the driver maps none for the source, the
// bytes go through host memory, and the reply says why. That holds for the one copy: the next one asks again.
func TestNoWindowsBetweenGPUs(t *testing.T) {
	const size = 9<<20 + 1
	data := pattern(size)
	for _, x := range []struct{ variable, value, again, why string }{
		{"CUDA_FAKE_BYTES", strconv.Itoa(12 << 20), strconv.Itoa(64 << 20), "OUT_OF_MEMORY"},
		{"CUDA_FAKE_ALLOW", "801", "0", "cuMemSetAccess"},
	} {
		r := begin(t)
		t.Setenv("CUDA_FAKE_WATCH", "1")
		t.Setenv(x.variable, x.value)
		r.start(Options{})
		a, b := r.device(0, size), r.device(1, size)
		if reply := r.copy(a, r.host(data), size); reply.Error != "" {
			t.Fatal(reply.Error)
		}
		for _, want := range []clwire.KeeperWay{clwire.KeeperStaged, clwire.KeeperStaged, clwire.KeeperPeer} {
			if want == clwire.KeeperPeer {
				t.Setenv(x.variable, x.again)
			}
			reply := r.copy(b, a, size)
			said := strings.Contains(reply.Why, x.why)
			if reply.Error != "" || reply.Way != want || said != (want == clwire.KeeperStaged) {
				t.Errorf("%s: %+v, want %s", x.variable, reply, want)
			}
			if !bytes.Equal(r.contents(b, size), data) {
				t.Errorf("%s: the bytes differ", x.variable)
			}
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
		t.Setenv(x.variable, x.again)
	}
}

// TestWindowsMakeRoom: who asks for memory of a full GPU, for an object or a copy to be lent, gets what its windows
// take. A copy that goes on meanwhile takes another way, and later ones have windows again.
func TestWindowsMakeRoom(t *testing.T) {
	const size = 4 << 20
	data := pattern(size)
	for _, lends := range []bool{false, true} {
		r := begin(t)
		t.Setenv("CUDA_FAKE_WATCH", "1")
		t.Setenv("CUDA_FAKE_BYTES", strconv.Itoa(2*size+2<<20))
		r.start(Options{})
		a, b := r.device(0, size), r.device(1, size)
		if reply := r.copy(a, r.host(data), size); reply.Error != "" {
			t.Fatal(reply.Error)
		}
		part := func(i uint64, files ...int) *clwire.KeeperReply {
			m := &clwire.KeeperCopy{ID: 700, To: b.KeeperPlace, From: a.KeeperPlace, Bytes: size / 4, Last: i == 3}
			m.To.Offset, m.From.Offset = i*size/4, i*size/4
			reply, _ := r.ask(&clwire.KeeperRequest{Copy: m}, files...)
			return reply
		}
		if reply := part(0, b.fd, a.fd); reply.Error != "" || reply.Way != clwire.KeeperPeer {
			t.Fatalf("%+v", reply)
		}
		var taken spot
		var err error
		if lends {
			lend := &clwire.KeeperRequest{Lend: &clwire.KeeperLend{ID: 1, From: b.KeeperPlace, Bytes: size}}
			if reply, _ := r.ask(lend, b.fd); reply.Error != "" {
				t.Fatal(reply.Error)
			}
		} else if taken, err = r.allocate(1, size+2<<20); err != nil {
			t.Fatal(err)
		}
		more := &clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: gpu(1), Bytes: size}}
		if reply, _ := r.ask(more); reply.Fault != clwire.KeeperFull {
			t.Errorf("no windows, and no memory: %+v", reply)
		}
		reply := part(1)
		if reply.Error != "" || reply.Way != clwire.KeeperStaged || !strings.Contains(reply.Why, "OUT_OF_MEMORY") {
			t.Errorf("it goes on: %+v", reply)
		}
		if lends {
			r.ask(&clwire.KeeperRequest{Free: &clwire.KeeperFree{IDs: []uint64{1}}})
		} else {
			unix.Close(taken.fd)
		}
		for i := range uint64(2) {
			if reply := part(2 + i); reply.Error != "" || reply.Way != clwire.KeeperStaged {
				t.Errorf("it goes on: %+v", reply)
			}
		}
		if !bytes.Equal(r.contents(b, size), data) {
			t.Error("the bytes differ")
		}
		if reply := r.copy(b, a, size); reply.Error != "" || reply.Way != clwire.KeeperPeer {
			t.Errorf("afterwards: %+v", reply)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestPinnedWhileItIsCopied: what is forgotten while a copy has it stays until that has ended, and makes no way for
// others. What is pinned for reading is not written through.
func TestPinnedWhileItIsCopied(t *testing.T) {
	r := begin(t)
	r.start(Options{PinBytes: 4 << 20})
	const size = 3 << 20
	a, h, h2, back := r.device(0, size), r.host(pattern(size)), r.host(pattern(size)), r.host(make([]byte, size))
	for i, want := range []clwire.KeeperWay{clwire.KeeperStaged, clwire.KeeperPinned} {
		if reply := r.copy(a, h, size); reply.Error != "" || reply.Way != want {
			t.Fatalf("copy %d: %+v", i, reply)
		}
	}
	first := &clwire.KeeperCopy{ID: 500, To: a.KeeperPlace, From: h.KeeperPlace, Bytes: 1 << 20}
	if reply, _ := r.ask(&clwire.KeeperRequest{Copy: first}, a.fd, h.fd); reply.Way != clwire.KeeperPinned {
		t.Fatalf("%+v", reply)
	}
	for range 2 { // another segment finds no room
		if reply := r.copy(a, h2, size); reply.Error != "" || reply.Way != clwire.KeeperStaged || reply.Why == "" {
			t.Errorf("%+v", reply)
		}
	}
	// The segment of the copy is written meanwhile: by a mapping of its own, for the one that is pinned only reads.
	if reply := r.copy(h, a, size); reply.Error != "" || reply.Way == clwire.KeeperPinned {
		t.Errorf("%+v", reply)
	}
	key, err := keyOf(h.fd)
	if err != nil {
		t.Fatal(err)
	}
	forget := &clwire.KeeperRequest{Forget: &clwire.KeeperForget{Memory: []clwire.HostMemory{key}}}
	if reply, _ := r.ask(forget); reply.Error != "" {
		t.Fatal(reply.Error)
	}
	first.To.Offset, first.From.Offset = 1<<20, 1<<20
	reply, _ := r.ask(&clwire.KeeperRequest{Copy: first})
	if reply.Error != "" || reply.Way != clwire.KeeperPinned {
		t.Errorf("the copy goes on: %+v", reply)
	}
	if reply, _ := r.ask(&clwire.KeeperRequest{End: &clwire.KeeperEnd{ID: 500}}); reply.Error != "" {
		t.Error(reply.Error)
	}
	for range 2 {
		reply = r.copy(back, a, size)
	}
	if reply.Error != "" || reply.Way != clwire.KeeperPinned || reply.Pinned == nil || len(reply.Pinned.Memory) != 1 ||
		reply.Pinned.Memory[0] == key {
		t.Errorf("%+v, %+v", reply, reply.Pinned)
	}
	if !bytes.Equal(r.contents(back, size), pattern(size)) {
		t.Error("the bytes differ")
	}
	// What is pinned for writing is read, too.
	if reply := r.copy(a, back, size); reply.Error != "" || reply.Way != clwire.KeeperPinned {
		t.Errorf("%+v", reply)
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestHostMemoryThatIsCutOff: pages that are not there any more are an error of that step; the keeper lives.
func TestHostMemoryThatIsCutOff(t *testing.T) {
	r := begin(t)
	r.start(Options{})
	const size = 8 << 20
	a, h := r.device(0, size), r.host(pattern(size))
	for name, x := range map[string][2]spot{"from": {a, h}, "to": {h, a}} {
		r.copies++
		m := &clwire.KeeperCopy{ID: r.copies, To: x[0].KeeperPlace, From: x[1].KeeperPlace, Bytes: size}
		if reply, _ := r.ask(&clwire.KeeperRequest{Copy: m}, x[0].fd, x[1].fd); reply.Way != clwire.KeeperStaged {
			t.Fatalf("%s: %+v", name, reply)
		}
		if err := unix.Ftruncate(h.fd, size/2); err != nil {
			t.Fatal(err)
		}
		reply, _ := r.ask(&clwire.KeeperRequest{Copy: m})
		if reply.Fault != clwire.KeeperFailed || !strings.Contains(reply.Error, "could not be touched") {
			t.Errorf("%s: %+v", name, reply)
		}
		if err := unix.Ftruncate(h.fd, size); err != nil {
			t.Fatal(err)
		}
		if reply := r.copy(x[0], x[1], size); reply.Error != "" {
			t.Errorf("%s, afterwards: %+v", name, reply)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// life is what a keeper does for a while: memory of two devices is made, filled, copied by every way, and read again.
// It gives the first error, or what was wrong.
func (r *rig) life(data []byte) error {
	n := uint64(len(data))
	from, back := r.host(data), r.host(make([]byte, n))
	var places [2]spot
	for i := range places {
		s, err := r.allocate(i, n)
		if err != nil {
			return err
		}
		defer unix.Close(s.fd)
		places[i] = s
	}
	a, b := places[0], places[1]
	for _, x := range [][2]spot{{a, from}, {a, from}, {b, a}, {back, b}, {back, b}} {
		if reply := r.copy(x[0], x[1], n); reply.Error != "" {
			return errors.New(reply.Error)
		}
	}
	if !bytes.Equal(r.contents(back, len(data)), data) {
		r.t.Error("the bytes differ")
	}
	for _, s := range []spot{from, back} {
		key, err := keyOf(s.fd)
		if err != nil {
			return err
		}
		forget := &clwire.KeeperRequest{Forget: &clwire.KeeperForget{Memory: []clwire.HostMemory{key}}}
		if reply, _ := r.ask(forget); reply.Error != "" {
			return errors.New(reply.Error)
		}
	}
	return nil
}

// step is how many calls of the driver lie between two that fail: all of them take a minute.
const step = 4

// failing runs a life in a new keeper, which it leaves running, the call-th call of the driver failing with code; 0:
// none. It gives the driver's calls, and what it kept. Where that cannot be had, the keeper has ended.
func (r *rig) failing(data []byte, call int, code string) (calls, kept int, err error) {
	r.t.Helper()
	r.start(Options{PinBytes: 64 << 20})
	r.used() // the contexts, which stay
	base, before := r.settled()
	if call > 0 {
		r.t.Setenv("CUDA_FAKE_FAIL", fmt.Sprintf("%d:%s", base+call, code))
	}
	err = r.life(data)
	now, left := r.settled()
	r.t.Setenv("CUDA_FAKE_FAIL", "")
	return now - base, left - before, err
}

// TestEveryCallOfTheDriverFails: each call fails once, with an error that does not last: that is one request's error,
// or the bytes go another way. The keeper serves on, no byte is wrong, and nothing stays taken. Where the call was to
// wait for the device, or to give something back, the keeper ends, which does so.
func TestEveryCallOfTheDriverFails(t *testing.T) {
	data := pattern(2<<20 + 123)
	for first, peers := range []string{"1", "0"} {
		r := begin(t)
		t.Setenv("CUDA_FAKE_PEERS", peers)
		calls, stays, err := r.failing(data, 0, "") // what stays is the staging memory and its queues
		if err := errors.Join(err, r.end()); err != nil || calls < 60 {
			t.Fatalf("%d calls, %v", calls, err)
		}
		failed := 0
		for i := 1 + first; i <= calls; i += step {
			_, kept, err := r.failing(data, i, "800")
			if err != nil {
				failed++
			}
			again := r.life(data)
			ended := r.end()
			switch {
			case ended != nil && errors.Is(ended, cuda.ErrLasts):
				r.start(Options{PinBytes: 64 << 20}) // the next keeper does not have what is in doubt
				again = r.life(data)
				ended = r.end()
			case err != nil && strings.Contains(err.Error(), "Synchronize"):
				t.Errorf("peers %s: call %d of %d: the keeper lives after %v", peers, i, calls, err)
			case kept > stays+2: // what is pinned until it is forgotten
				t.Errorf("peers %s: call %d of %d: %d things of the driver's stay, %v", peers, i, calls, kept, err)
			}
			if err := errors.Join(again, ended); err != nil {
				t.Errorf("peers %s: call %d of %d failed, and afterwards: %v", peers, i, calls, err)
			}
		}
		if failed < calls/step/3 {
			t.Errorf("peers %s: %d of every %d of %d calls failed a request", peers, failed, step, calls)
		}
	}
}

// TestAnErrorThatLastsEndsTheKeeper: after it every request would fail, and the next process begins anew.
func TestAnErrorThatLastsEndsTheKeeper(t *testing.T) {
	r := begin(t)
	data := pattern(2<<20 + 123)
	calls, _, err := r.failing(data, 0, "")
	if err := errors.Join(err, r.end()); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= calls; i += step {
		_, _, err := r.failing(data, i, "700")
		if ended := r.end(); ended == nil || !strings.Contains(ended.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
			t.Errorf("call %d of %d: %v, and the keeper ended with %v", i, calls, err, ended)
		}
	}
}

// TestCheck: another process that has the memory finds there what was written.
func TestCheck(t *testing.T) {
	r := begin(t)
	r.start(Options{})
	s := r.device(1, 1)
	check := func(o CheckOptions) (found Checked, err error) {
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		o.Memory = os.NewFile(uintptr(fd), "memory")
		if o.Driver == "" {
			o.Driver = r.driver
		}
		if o.Bytes == 0 {
			o.Device, o.Bytes = s.Device, s.Bytes
		}
		var out bytes.Buffer
		if err := Check(o, &out); err != nil {
			if out.Len() > 0 {
				t.Errorf("%q, and %v", out.Bytes(), err)
			}
			return found, err
		}
		return found, json.Unmarshal(out.Bytes(), &found)
	}
	if found, err := check(CheckOptions{Write: "written here"}); err != nil || found.Text != "" || found.ImportNS <= 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := check(CheckOptions{Read: 12}); err != nil || found.Text != "written here" {
		t.Errorf("%+v, %v", found, err)
	}
	for what, o := range map[string]CheckOptions{
		"less than nothing":        {Read: -1},
		"too much":                 {Read: mostRead + 1},
		"beyond the end":           {Write: strings.Repeat("x", 2<<20+1)},
		"no driver":                {Driver: "/nonexistent/libcuda.so.1"},
		"no device":                {Device: gpu(9), Bytes: 2 << 20},
		"another size than it has": {Device: gpu(1), Bytes: 4 << 20},
	} {
		if found, err := check(o); err == nil {
			t.Errorf("%s: %+v", what, found)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestNoDriver: a keeper without a driver says so at every request, and looks again at the next.
func TestNoDriver(t *testing.T) {
	r := begin(t)
	driver := r.driver
	r.driver = filepath.Join(t.TempDir(), "libcuda.so.1")
	r.start(Options{})
	for range 2 {
		if reply, _ := r.ask(&clwire.KeeperRequest{List: &clwire.KeeperList{}}); reply.Fault != clwire.KeeperNoDevice {
			t.Errorf("%+v", reply)
		}
	}
	if err := os.Symlink(driver, r.driver); err != nil {
		t.Fatal(err)
	}
	if reply, _ := r.ask(&clwire.KeeperRequest{List: &clwire.KeeperList{}}); len(reply.Devices) != 2 {
		t.Errorf("%+v", reply)
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}
