package workers

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestMain makes the test binary stand in for `tendril probe` and `tendril worker`, which the pool starts as -fake.
// What goes wrong is said by the library's name in the .icd file.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "-fake" {
		fake(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "-numbers" {
		if err := numbers(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "-daemon" {
		fakeDaemon(os.Args[2])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fake(verb string, args []string) {
	if verb == guardVerb {
		if err := Guard(os.Stdin); err != nil {
			os.Exit(1)
		}
		return
	}
	flags := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		flags[args[i]] = args[i+1]
	}
	raw, err := os.ReadFile(flags["--icd"])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mode := strings.TrimSpace(string(raw))
	if verb == "probe" {
		if slices.Contains(args, "--import") {
			fakeImport(mode, flags["--import"])
		} else {
			fakeProbe(mode)
		}
		return
	}
	fakeWorker(mode, flags["--cache"], flags["--only"])
}

func fakeImport(mode, uuid string) {
	memory := make([]byte, 32)
	if n, _ := os.NewFile(4, "memory").ReadAt(memory, 0); string(memory[:n]) != uuid {
		fmt.Fprintf(os.Stderr, "memory %q for %q\n", memory[:n], uuid)
		os.Exit(1)
	}
	switch mode {
	case "gpus-that-die":
		os.Exit(128 + int(unix.SIGSEGV)) // as the first process of a PID namespace ends by it
	case "gpus-that-talk":
		fmt.Fprintln(os.Stderr, strings.Repeat("a long tale ", 30))
		os.Exit(1)
	}
}

func fakeProbe(mode string) {
	out := os.NewFile(3, "answer")
	switch mode {
	case "probe-dies":
		fmt.Fprintln(os.Stderr, "the driver is about to die")
		os.Exit(9)
	case "probe-hangs":
		time.Sleep(time.Hour) // Pause: until it is killed
	case "probe-fails":
		fmt.Fprintln(os.Stderr, "no such library")
		os.Exit(1)
	case "probe-babbles":
		out.WriteString(`{"platforms":`)
		return
	case "probe-floods":
		for range 17 {
			out.Write(make([]byte, 1<<20))
		}
		return
	}
	devices := []clwire.DeviceSnapshot{{UUID: "00112233-4455-6677-8899-AABBCCDDEEFF"}, {UUID: "none"}}
	if strings.HasPrefix(mode, "gpus") { // of 1 GiB each
		for i := range devices {
			devices[i].Info = map[uint32][]byte{cl.DEVICE_NAME: []byte("GPU\x00"),
				cl.DEVICE_EXTENSIONS:      []byte("a " + externalMemory + "\x00"),
				cl.DEVICE_TYPE:            binary.LittleEndian.AppendUint64(nil, cl.DEVICE_TYPE_GPU),
				cl.DEVICE_GLOBAL_MEM_SIZE: binary.LittleEndian.AppendUint64(nil, gpuBytes)}
			if mode == "gpus-exclusive" || mode == "gpus-prohibited" && i == 0 {
				devices[i].Mode = clwire.ComputeMode(strings.TrimPrefix(mode, "gpus-"))
			}
		}
	}
	platforms := 1
	if mode == "gpus-twice" { // one GPU, and a second platform that shows it, by its place alone, and again
		devices[0].Info[cl.DEVICE_PCI_BUS_INFO_KHR] = make([]byte, 16)
		devices[1] = clwire.DeviceSnapshot{Info: devices[0].Info}
		platforms = 2
	}
	p := clwire.PlatformSnapshot{Info: map[uint32][]byte{cl.PLATFORM_NAME: []byte("Fake " + mode + "\x00")},
		Devices: devices}
	r := clwire.ProbeResult{Platforms: []clwire.PlatformSnapshot{p}}
	if platforms == 2 {
		r.Platforms[0].Devices = devices[:1]
		second := p
		second.Index, second.Devices = 1, []clwire.DeviceSnapshot{devices[1], devices[1]}
		r.Platforms = append(r.Platforms, second)
	}
	json.NewEncoder(out).Encode(r)
}

func fakeWorker(mode, cache, only string) {
	switch mode {
	case "start-dies":
		fmt.Fprintln(os.Stderr, "cannot go on")
		os.Exit(7)
	case "start-hangs":
		time.Sleep(time.Hour) // Pause: until it is killed
	case "chatty":
		for i := range 10 * lineBurst {
			fmt.Fprintln(os.Stderr, "line", i)
		}
	}
	c, err := net.FileConn(os.NewFile(3, "control"))
	if err != nil {
		panic(err)
	}
	control := c.(*net.UnixConn)
	if mode == "start-refuses" {
		send(control, clwire.WorkerMessage{Failed: &clwire.WorkerFailed{Error: "no\x1b device"}})
		os.Exit(1)
	}
	send(control, clwire.WorkerMessage{Ready: &clwire.WorkerReady{PID: ownPID(),
		Fallbacks: []clwire.Fallback{{What: "sandbox", Why: "a fake"}}}})
	if strings.HasPrefix(mode, "remote") {
		fakeRemote(control, mode)
		return
	}
	a, files := receive(control)
	socket := os.NewFile(uintptr(files[0]), "socket")
	facts := fmt.Sprintf("pid=%d uid=%d tenant=%s cache=%s only=%s env=%s\n", ownPID(), os.Getuid(), a.Tenant, cache, only,
		strings.Join(os.Environ(), ","))
	if err := os.WriteFile(cache+"/pocl/probe", nil, 0o600); err != nil {
		facts = err.Error() + "\n"
	}
	if mode == "escapes" {
		if err := escape(os.NewFile(uintptr(files[1]), "ring")); err != nil {
			facts = err.Error() + "\n"
		}
	}
	if err := start(mode); err != nil {
		facts = err.Error() + "\n"
	}
	socket.WriteString(facts)
	var b [1]byte
	if n, _ := socket.Read(b[:]); n == 1 && b[0] == 'k' {
		os.Exit(9)
	}
}

// ownPID is this process's number outside its namespace.
func ownPID() int {
	said, _ := os.Readlink("/proc/self")
	pid, _ := strconv.Atoi(said)
	return pid
}

// start takes what a mode takes, in processes of its own.
func start(mode string) error {
	script := map[string]string{
		"stays": "sleep 600 & sleep 600 & sleep 600",
		"bomb":  "for i in $(seq 100); do sleep 600 & done; wait",
		"herd":  "for i in 1 2 3 4; do (x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 600; :) & done; wait",
		"forks": "x=$(head -c 30000000 /dev/zero | tr '\\0' a); for i in 1 2 3 4 5 6; do (sleep 600; :) & done; echo; wait",
	}[mode]
	if script == "" {
		return nil
	}
	c := exec.Command("/bin/sh", "-c", script)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil && mode == "forks" {
		_, err = out.Read(make([]byte, 1)) // it has them
	}
	return err
}

// escape leaves a process of another session and group behind, whose parent is gone, with what the session shares.
func escape(ring *os.File) error {
	c := exec.Command("/bin/sh", "-c", "sleep 600 & sleep 600 & exit 0")
	c.ExtraFiles = []*os.File{ring}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c.Run()
}

func send(c *net.UnixConn, m clwire.WorkerMessage) {
	raw, err := json.Marshal(m)
	if err == nil {
		_, err = c.Write(raw)
	}
	if err != nil {
		panic(err)
	}
}

func receive(c *net.UnixConn) (clwire.WorkerAssign, []int) {
	buf, oob := make([]byte, clwire.MaxControlBytes), make([]byte, unix.CmsgSpace(8))
	n, on, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		os.Exit(0) // the daemon is gone
	}
	var m clwire.DaemonMessage
	if err := json.Unmarshal(buf[:n], &m); err != nil || m.Assign == nil {
		panic(fmt.Sprint("not an assignment: ", string(buf[:n]), err))
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(cmsgs) != 1 {
		panic(fmt.Sprint("descriptors: ", cmsgs, err))
	}
	files, err := unix.ParseUnixRights(&cmsgs[0])
	if err != nil || len(files) != 2 {
		panic(fmt.Sprint("descriptors: ", files, err))
	}
	var st unix.Stat_t
	if unix.Fstat(files[1], &st) != nil || uint64(st.Size) != m.Assign.RingBytes {
		panic(fmt.Sprint("the ring has ", st.Size, " bytes, not ", m.Assign.RingBytes))
	}
	return *m.Assign, files
}
