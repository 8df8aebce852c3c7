package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// network is two machines of a sort: network namespaces with a cable between them, the daemon in one, programs in the
// other.
type network struct {
	*rig.Node
	t           *testing.T
	here, there string // namespaces: the program's, the daemon's
	server      string
	config      string // XDG_CONFIG_HOME of the program's machine
}

const cableOf = "cable" // the interface in each namespace

// ip runs ip(8) and fails the test where that fails.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if _, err := rig.Output(exec.Command("ip", args...)); err != nil {
		t.Fatal(err)
	}
}

// patient has a machine ask for minutes who has an address at a cable's other end (arp(7), mcast_solicit). By default
// there is no route after 3 s without an answer, which the same busy machine gives.
func patient(ns, cable string) {
	const set = `echo 300 >/proc/sys/net/ipv4/neigh/"$0"/mcast_solicit`
	_ = exec.Command("ip", "netns", "exec", ns, "sh", "-c", set, cable).Run() // else it is as it was
}

// networks says why there can be no namespaces here.
func networks(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: network namespaces need root")
	}
	need(t, "ip", installed("ip"))
	name := fmt.Sprintf("tendril-%d-try-%s", os.Getpid(), t.Name())
	out, err := exec.Command("ip", "netns", "add", name).CombinedOutput()
	if err != nil {
		t.Skipf("skipped: this machine makes no network namespaces: %s", out)
	}
	exec.Command("ip", "netns", "del", name).Run()
}

// lay makes the namespaces and starts the daemon in one of them.
func lay(t *testing.T) *network {
	t.Helper()
	networks(t)
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	w := &network{t: t, config: t.TempDir(), server: "10.77.0.1:7433"}
	tag := fmt.Sprintf("tendril-%d-%s", os.Getpid(), strings.ToLower(t.Name()[4:min(len(t.Name()), 20)]))
	w.here, w.there = tag+"-h", tag+"-t"
	for _, ns := range []string{w.here, w.there} {
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		ip(t, "-n", ns, "link", "set", "lo", "up")
	}
	ip(t, "link", "add", cableOf, "netns", w.here, "type", "veth", "peer", "name", cableOf, "netns", w.there)
	ip(t, "-n", w.there, "addr", "add", "10.77.0.1/24", "dev", cableOf)
	ip(t, "-n", w.here, "addr", "add", "10.77.0.2/24", "dev", cableOf)
	patient(w.here, cableOf)
	patient(w.there, cableOf)
	w.link("up")
	w.Node = nodeInside(t, []string{"ip", "netns", "exec", w.there}, "TENDRIL_LISTEN="+w.server)
	n := w.Node
	token, err := n.Run(t.Context(), "token", "create", "--tenant", "lab")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // there is no route for as long as a busy machine answers no ARP
		login := w.far(t.Context(), n.Tendril(), "login", w.server)
		login.Stdin = strings.NewReader(token)
		_, err := rig.Output(login)
		return err
	})
	return w
}

// link sets the cable up or down, at both ends.
func (w *network) link(state string) {
	w.t.Helper()
	ip(w.t, "-n", w.here, "link", "set", cableOf, state)
	ip(w.t, "-n", w.there, "link", "set", cableOf, state)
}

// far is a command on the program's machine.
func (w *network) far(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", w.here}, argv...)...)
	cmd.Env = append(rig.Native(), "TENDRIL_SOCKET="+filepath.Join(w.config, "none"), "XDG_CONFIG_HOME="+w.config,
		"TENDRIL_STACKS="+w.config)
	cmd.WaitDelay = rig.LeftBehind
	return cmd
}

// program starts a session there.
func (w *network) program(flags ...string) *program {
	w.t.Helper()
	argv := append(append([]string{w.Tendril(), "run", "--server", w.server}, flags...), "--", session)
	p := begin(w.t, w.far(w.t.Context(), argv...))
	p.ready()
	return p
}

func TestNetworkPrograms(t *testing.T) {
	t.Parallel()
	w := lay(t)
	out, err := rig.Output(w.far(t.Context(), w.Tendril(), "run", "--server", w.server, "--", "clinfo", "--list"))
	if err != nil || !strings.Contains(out, "Tendril") {
		t.Errorf("clinfo: %s, %v", out, err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	put := w.far(t.Context(), w.Tendril(), "--server", w.server, "put", "-", "--name", "big")
	put.Stdin = bytes.NewReader(big)
	if _, err := rig.Output(put); err != nil {
		t.Error(err)
	}
	if out, err := rig.Output(w.far(t.Context(), w.Tendril(), "--server", w.server, "get", "big")); err != nil ||
		out != string(big) {
		t.Errorf("%d other bytes came back: %v", len(out), err)
	}
	runner := filepath.Join(t.TempDir(), "difftest")
	goBuild(t, runner, "tendril/tools/difftest")
	diff := w.far(t.Context(), runner, "-bin", bin, "-tests", "../difftest/tests", "-allow", "../difftest/allow.txt",
		"-server", w.server, "-only", "^(args_buffers|kernels|events)")
	said, complaint, err := rig.Said(diff, 2*limit) // several programs, each both ways
	if err != nil {
		t.Errorf("difftest: %v\n%s%s", err, said, complaint)
	}
	t.Logf("%s", said)
}

// A cable that is out for some seconds delays a session and nothing else.
func TestNetworkLinkDownAndUp(t *testing.T) {
	t.Parallel()
	w := lay(t)
	p := w.program()
	p.want("add 0", "add 5")
	w.link("down")
	back := time.AfterFunc(3*time.Second, func() { w.link("up") })
	defer back.Stop()
	p.want("good", "verify") // waits
	p.want("add 0", "add 6")
	p.want("good", "verify")
}

// The cable is out for so long that the connections are lost: what ran goes on, and where it is not to wait for so long
// it ends with an error.
func TestNetworkLinkDownForLong(t *testing.T) {
	t.Parallel()
	w := lay(t)
	p, hasty := w.program(), w.program("--on-loss", "1")
	p.want("add 0", "add 5")
	hasty.want("add 0", "add 5")
	w.link("down")
	down := time.Now()
	if got := hasty.ask("verify"); !strings.HasPrefix(got, "read -") {
		t.Errorf("one that waits 1 s: %q", got)
	}
	time.Sleep(time.Until(down.Add(18 * time.Second))) // Pause: the other one waits.
	w.link("up")
	p.want("good", "verify")
	p.want("add 0", "add 6")
	p.want("good", "verify")
}

// The client's address changes: what ran goes on from the new one, what is begun afterwards works. (That
// the daemon lets go within a minute is the sockets' doing: TestAcceptedSocketsNoticeSilence.)
func TestNetworkAddressChange(t *testing.T) {
	t.Parallel()
	w := lay(t)
	p := w.program()
	ip(t, "-n", w.here, "addr", "del", "10.77.0.2/24", "dev", cableOf)
	ip(t, "-n", w.here, "addr", "add", "10.77.0.3/24", "dev", cableOf)
	second := w.program()
	second.want("good", "verify")
	p.want("good", "verify")
	p.want("add 0", "add 6")
	p.want("good", "verify")
	second.want("good", "verify")
}

// A program or a daemon that sleeps for a while (a laptop's lid, a debugger) holds up itself alone.
func TestNetworkSleepers(t *testing.T) {
	t.Parallel()
	w := lay(t)
	asleep, awake := w.program(), w.program()
	stop := func(pid int, signal syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
	stop(asleep.cmd.Process.Pid, syscall.SIGSTOP)
	awake.want("add 0", "add 5")
	awake.want("good", "verify")
	stop(w.PID(), syscall.SIGSTOP)
	awake.want("add 0", "add 6") // the worker does it, without the daemon
	awake.want("good", "verify")
	time.Sleep(3 * time.Second) // Pause: nobody gives them up meanwhile
	stop(w.PID(), syscall.SIGCONT)
	stop(asleep.cmd.Process.Pid, syscall.SIGCONT)
	asleep.want("good", "verify")
	if _, err := w.Run(t.Context(), "status"); err != nil {
		t.Error(err)
	}
}

// A line of 50 Mbit/s: the results are the same.
func TestNetworkNarrowLine(t *testing.T) {
	t.Parallel()
	w := lay(t)
	need(t, "tc", installed("tc"))
	for _, ns := range []string{w.here, w.there} {
		if out, err := exec.Command("tc", "-n", ns, "qdisc", "add", "dev", cableOf, "root", "tbf", "rate", "50mbit",
			"burst", "64kb", "latency", "20ms").CombinedOutput(); err != nil {
			t.Skipf("skipped: this kernel limits no rate: %s", out)
		}
	}
	p := w.program()
	for range 5 {
		p.want("add 0", "add 3")
		p.want("good", "verify")
	}
}
