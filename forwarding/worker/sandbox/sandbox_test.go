package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary enter the sandbox and be hostile there.
func TestMain(m *testing.M) {
	switch os.Getenv("SANDBOX_TEST_ROLE") {
	case "enter":
		enter()
	case "hostile":
		hostile()
	default:
		os.Exit(m.Run())
	}
}

// victims is what the hostile child goes for.
type victims struct {
	Cache, Secret, Socket, Abstract string
	PID                             int
}

func enter() {
	runtime.LockOSThread()
	var v victims
	if err := json.Unmarshal([]byte(os.Getenv("SANDBOX_TEST_VICTIMS")), &v); err != nil {
		fatal(err)
	}
	fallbacks, err := Apply(ForDriver(v.Cache))
	if err != nil {
		fatal(err)
	}
	for _, f := range fallbacks {
		fmt.Printf("fallback %s: %s\n", f.What, f.Why)
	}
	fatal(unix.Exec("/proc/self/exe", os.Args,
		[]string{"SANDBOX_TEST_ROLE=hostile", "SANDBOX_TEST_VICTIMS=" + os.Getenv("SANDBOX_TEST_VICTIMS")}))
}

func fatal(err error) {
	fmt.Println("fatal", err)
	os.Exit(1)
}

// hostile tries what must not work, and what must, and prints one line each.
func hostile() {
	var v victims
	if err := json.Unmarshal([]byte(os.Getenv("SANDBOX_TEST_VICTIMS")), &v); err != nil {
		fatal(err)
	}
	say := func(what string, err error) {
		if err == nil {
			fmt.Println("did", what)
			return
		}
		fmt.Println("refused", what, "-", err)
	}
	read := func(path string) error { _, err := os.ReadFile(path); return err }
	list := func(path string) error { _, err := os.ReadDir(path); return err }
	say("read a secret", read(v.Secret))
	say("read /etc/shadow", read("/etc/shadow"))
	say("list /root", list("/root"))
	say("list /home", list("/home"))
	say("list the root", list("/"))
	say("write to /usr", os.WriteFile("/usr/tendril-sandbox-test", nil, 0o600))
	say("write beside the cache", os.WriteFile(filepath.Join(filepath.Dir(v.Cache), "x"), nil, 0o600))
	say("open another's memory", openMemory(v.PID))
	say("read another's environment", read(fmt.Sprintf("/proc/%d/environ", v.PID)))
	say("trace another", unix.PtraceAttach(v.PID))
	say("signal another", syscall.Kill(v.PID, 0))
	say("connect to the socket", dial("unix", v.Socket))
	say("connect to the abstract socket", dial("unix", "@"+v.Abstract))
	say("connect by TCP", dial("tcp", "127.0.0.1:1"))
	_, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	say("make a socket", err)
	say("make a user namespace", unix.Unshare(unix.CLONE_NEWUSER))
	say("mount", unix.Mount("none", v.Cache, "tmpfs", 0, ""))
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	say("use io_uring", nonzero(errno))
	_, _, errno = unix.Syscall(unix.SYS_BPF, 0, 0, 0)
	say("use bpf", nonzero(errno))
	// These must work.
	say("write in the cache", os.WriteFile(filepath.Join(v.Cache, "x"), nil, 0o600))
	say("read a library", list("/usr/lib"))
	say("run a program", exec.Command("/usr/bin/true").Run())
	say("make a memfd", memfd())
	say("give a thread a directory of its own", ownDirectory(v.Cache))
}

// ownDirectory changes the directory of one thread, which then ends.
func ownDirectory(dir string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- errors.Join(unix.Unshare(unix.CLONE_FS), os.Chdir(dir))
	}()
	return <-done
}

func nonzero(e syscall.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

func openMemory(pid int) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func dial(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	return c.Close()
}

func memfd() error {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func TestHostileChild(t *testing.T) {
	dir := t.TempDir()
	v := victims{Cache: filepath.Join(dir, "cache"), Secret: filepath.Join(dir, "secret"),
		Socket:   filepath.Join(dir, "socket"),
		Abstract: fmt.Sprintf("tendril-sandbox-test-%d", os.Getpid()), PID: os.Getpid()}
	if err := errors.Join(os.Mkdir(v.Cache, 0o700), os.WriteFile(v.Secret, []byte("s"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{v.Socket, "@" + v.Abstract} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	// The binary must lie where the sandbox lets a program be executed from: it allows its own file.
	cmd := exec.Command(exe)
	cmd.Env = []string{"SANDBOX_TEST_ROLE=enter", "SANDBOX_TEST_VICTIMS=" + string(said)}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	judge(t, string(out))
}

// judge knows what must work; all else must be refused. A kernel that lacks
// something says so as a fallback, and that much is let pass.
func judge(t *testing.T, out string) {
	t.Log(out)
	must := map[string]bool{"write in the cache": true, "read a library": true, "run a program": true,
		"make a memfd": true, "give a thread a directory of its own": true}
	weak := strings.Contains(out, "fallback ")
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if what, ok := strings.CutPrefix(line, "did "); ok {
			if !must[what] && !weak {
				t.Errorf("it could %s", what)
			}
			delete(must, what)
		}
	}
	for what := range must {
		t.Errorf("it could not %s", what)
	}
	if !strings.Contains(out, "refused ") {
		t.Error("nothing was refused")
	}
}

// TestFilterDecides runs the assembled filter on a virtual machine.
func TestFilterDecides(t *testing.T) {
	for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64} {
		vm, err := bpf.NewVM(program(arch))
		if err != nil {
			t.Fatal(err)
		}
		decide := func(number, arch uint32, arg0 uint32) uint32 {
			// The virtual machine reads packets, big-endian; the kernel hands seccomp its own order.
			data := make([]byte, 64)
			binary.BigEndian.PutUint32(data[offNumber:], number)
			binary.BigEndian.PutUint32(data[offArch:], arch)
			binary.BigEndian.PutUint32(data[offArg0:], arg0)
			v, err := vm.Run(data)
			if err != nil {
				t.Fatal(err)
			}
			return uint32(v)
		}
		check := func(what string, got, want uint32) {
			if got != want {
				t.Errorf("arch %#x: %s: %#x, want %#x", arch, what, got, want)
			}
		}
		for _, n := range denied {
			check(fmt.Sprint("denied ", n), decide(n, arch, 0), refuse)
		}
		for _, n := range []uint32{unix.SYS_READ, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_MMAP, unix.SYS_EXECVE,
			unix.SYS_FUTEX, unix.SYS_PPOLL} {
			check(fmt.Sprint("allowed ", n), decide(n, arch, 0), allow)
		}
		check("clone of a thread", decide(unix.SYS_CLONE, arch, unix.CLONE_VM|unix.CLONE_THREAD), allow)
		check("clone of a namespace", decide(unix.SYS_CLONE, arch, unix.CLONE_NEWUSER), refuse)
		check("unshare of the directory", decide(unix.SYS_UNSHARE, arch, unix.CLONE_FS), allow)
		check("unshare of a namespace", decide(unix.SYS_UNSHARE, arch, unix.CLONE_FS|unix.CLONE_NEWUSER), refuse)
		check("own limits", decide(unix.SYS_PRLIMIT64, arch, 0), allow)
		check("another's limits", decide(unix.SYS_PRLIMIT64, arch, 4711), refuse)
		check("another name", decide(unix.SYS_PRCTL, arch, unix.PR_SET_NAME), allow)
		check("life after the daemon", decide(unix.SYS_PRCTL, arch, unix.PR_SET_PDEATHSIG), refuse)
		check("clone3", decide(unix.SYS_CLONE3, arch, 0), notThere)
		check("x32", decide(unix.SYS_READ|x32Bit, arch, 0), refuse)
		check("another architecture", decide(unix.SYS_READ, arch^1, 0), unix.SECCOMP_RET_KILL_PROCESS)
	}
}

func TestEveryLandlockVersionNamesWhatItLacks(t *testing.T) {
	for abi, want := range map[int]int{1: 5, 2: 4, 3: 3, 4: 2, 5: 1, 6: 0, 7: 0, 99: 0} {
		r := rulesetFor(abi)
		if len(r.fallbacks) != want {
			t.Errorf("version %d: %v, want %d fallbacks", abi, r.fallbacks, want)
		}
		if (r.attr.Scoped != 0) != (r.attrBytes >= 24) || (r.attr.Handled_access_net != 0) != (r.attrBytes >= 16) {
			t.Errorf("version %d: %d bytes for %+v", abi, r.attrBytes, r.attr)
		}
	}
}
