package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril/tools/e2e/await"
	"tendril/tools/e2e/rig"
)

// triangle is three machines of a sort, a cable between each two: a program's, and two nodes'.
type triangle struct {
	t      *testing.T
	ns     [3]string // namespaces: the program's, nodes 0 and 1
	nodes  [2]*rig.Node
	doors  [2]string // where the program reaches the nodes
	config string
}

// Ends of the cables: nodes' first.
const (
	toNode0, toNode1, between = "cable0", "cable1", "cable2"
)

func layTriangle(t *testing.T) *triangle {
	t.Helper()
	networks(t)
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	w := &triangle{t: t, config: t.TempDir()}
	for i, name := range []string{"p", "a", "b"} {
		w.ns[i] = fmt.Sprintf("tendril-%d-%s-%s", os.Getpid(),
			strings.ToLower(t.Name()[4:min(len(t.Name()), 16)]), name)
		ns := w.ns[i]
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		ip(t, "-n", ns, "link", "set", "lo", "up")
	}
	w.cable(toNode0, w.ns[0], w.ns[1], "10.78.0.")
	w.cable(toNode1, w.ns[0], w.ns[2], "10.78.1.")
	w.cable(between, w.ns[1], w.ns[2], "10.78.2.")
	for i := range w.nodes {
		w.start(i)
	}
	return w
}

// cable lays one, with addresses 1 and 2 of a net at its ends.
func (w *triangle) cable(name, a, b, net string) {
	w.t.Helper()
	ip(w.t, "link", "add", name, "netns", a, "type", "veth", "peer", "name", name, "netns", b)
	for i, ns := range []string{a, b} {
		ip(w.t, "-n", ns, "addr", "add", fmt.Sprintf("%s%d/24", net, i+1), "dev", name)
		patient(ns, name)
		ip(w.t, "-n", ns, "link", "set", name, "up")
	}
}

// start starts a node, and logs the program's machine in to it.
func (w *triangle) start(i int) {
	w.t.Helper()
	n := nodeInside(w.t, []string{"ip", "netns", "exec", w.ns[1+i]}, "TENDRIL_LISTEN=0.0.0.0:7433",
		"TENDRIL_PLAINTEXT_PEERS=10.78.0.0/16")
	w.nodes[i] = n
	token, err := n.Run(w.t.Context(), "token", "create", "--tenant", "lab")
	if err != nil {
		w.t.Fatal(err)
	}
	w.doors[i] = fmt.Sprintf("10.78.%d.2:7433", i)
	eventually(w.t, func() error { // there is no route for as long as a busy machine answers no ARP
		login := w.program("login", w.doors[i])
		login.Stdin = strings.NewReader(token)
		_, err := rig.Output(login)
		return err
	})
}

// program is a tendril command on the program's machine.
func (w *triangle) program(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), "ip",
		append([]string{"netns", "exec", w.ns[0], w.nodes[0].Tendril()}, args...)...)
	cmd.Env = append(rig.Native(), "TENDRIL_SOCKET="+filepath.Join(w.config, "none"), "XDG_CONFIG_HOME="+w.config,
		"TENDRIL_STACKS="+w.config)
	cmd.WaitDelay = rig.LeftBehind
	return cmd
}

// run is a program over both nodes' devices.
func (w *triangle) run(program ...string) *exec.Cmd {
	return w.program(append([]string{"run", "--server", w.doors[0], "--server", w.doors[1], "--"}, program...)...)
}

// carried is how many bytes have come and gone by a cable of a machine.
func (w *triangle) carried(ns, cable string) (n uint64) {
	w.t.Helper()
	for _, way := range []string{"rx_bytes", "tx_bytes"} {
		out, err := rig.Output(exec.Command("ip", "netns", "exec", ns, "cat",
			"/sys/class/net/"+cable+"/statistics/"+way))
		if err != nil {
			w.t.Fatal(err)
		}
		v, err := strconv.ParseUint(strings.TrimSpace(out), 10, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		n += v
	}
	return n
}

// spanning is the program of the benchmark, running: it answers a line with a number.
type spanning struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	err *strings.Builder
}

func (w *triangle) spanning(env ...string) *spanning {
	w.t.Helper()
	cmd := w.run(cProgram(w.t, "../bench/c/span.c"), "16")
	cmd.Env = append(cmd.Env, env...)
	return converse(w.t, cmd)
}

// converse starts the program.
func converse(t *testing.T, cmd *exec.Cmd) *spanning {
	t.Helper()
	s := &spanning{t: t, cmd: cmd, err: &strings.Builder{}}
	cmd.Stderr = s.err
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if got := s.next(); got != "ready 2" {
		t.Fatalf("the program says %q\n%s", got, s.err)
	}
	return s
}

func (s *spanning) next() string {
	s.t.Helper()
	watch := rig.WatchOver(s.cmd, limit)
	answered := s.out.Scan()
	if err := watch.End(); err != nil {
		s.t.Fatal(err)
	}
	if !answered {
		return "nothing"
	}
	return s.out.Text()
}

// ask does a test, which checks its own results.
func (s *spanning) ask(what string) string {
	s.t.Helper()
	fmt.Fprintln(s.in, what)
	got, _, _ := strings.Cut(s.next(), " ") // what follows is how often it did it
	if v, err := strconv.ParseFloat(got, 64); err != nil || v <= 0 {
		s.t.Fatalf("%s: %q\n%s", what, got, s.err)
	}
	return got
}

// linkStatus is what a node says of a link between workers.
type linkStatus struct {
	Up  bool   `json:"up"`
	Why string `json:"why"`
}

// awaitLinks waits for what a node says of its links: programs tell it a moment later.
func awaitLinks(t *testing.T, n *rig.Node, what string, is func([]linkStatus) bool) {
	t.Helper()
	for began := time.Now(); ; await.Rest(began) {
		l := links(t, n)
		if is(l) {
			return
		}
		if time.Since(began) > limit {
			t.Fatalf("a node does not say %s: %+v", what, l)
		}
	}
}

func links(t *testing.T, n *rig.Node) (list []linkStatus) {
	t.Helper()
	out, err := n.Run(t.Context(), "status", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Links json.RawMessage `json:"peer_links"`
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(s.Links, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// What goes between two nodes' workers takes the cable between them, and the program's own carries no byte of it; when
// that cable's link breaks, or was never there, the program's carries all, and the nodes say why, until there is
// another.
func TestPeersOfTwoNodes(t *testing.T) {
	t.Parallel()
	w := layTriangle(t)
	const bulk = 5 * 16 << 20
	straight := func(s *spanning, want bool) {
		t.Helper()
		before, own := w.carried(w.ns[1], between), w.carried(w.ns[0], toNode0)+w.carried(w.ns[0], toNode1)
		s.ask("push")
		across, through := w.carried(w.ns[1], between)-before,
			w.carried(w.ns[0], toNode0)+w.carried(w.ns[0], toNode1)-own
		t.Logf("a push of %d bytes: %d by the cable between the nodes, %d by the program's", bulk, across, through)
		if want != (across > bulk) || want != (through < bulk/20) {
			t.Errorf("%d bytes went between the nodes, %d by the program's cables", across, through)
		}
		s.ask("chain")
		s.ask("events")
	}
	s := w.spanning("TENDRIL_COMPRESS=off")
	straight(s, false)
	for _, n := range w.nodes {
		awaitLinks(t, n, "that there is none, and what to do", func(l []linkStatus) bool {
			return len(l) == 1 && !l[0].Up && strings.Contains(l[0].Why, "tendril peer add")
		})
	}
	peersOf(t, w.nodes[0], w.nodes[1], "10.78.2.2:7433")
	s = w.spanning("TENDRIL_PLAINTEXT=1", "TENDRIL_COMPRESS=off")
	straight(s, true)
	for _, n := range w.nodes {
		awaitLinks(t, n, "that it is up", func(l []linkStatus) bool { return len(l) == 2 && l[1].Up })
	}
	if _, err := w.nodes[0].Run(t.Context(), "peer", "rm", "10.78.2.2:7433"); err != nil { // else it is made anew
		t.Fatal(err)
	}
	out, err := rig.Output(exec.Command("ip", "netns", "exec", w.ns[1], "ss", "-K", "dst", "10.78.2.2"))
	if err != nil || !strings.Contains(out, "10.78.2.2") {
		t.Skipf("the link is not cut: this kernel ends no connections: %s%v", out, err)
	}
	straight(s, false)
	for _, n := range w.nodes {
		awaitLinks(t, n, "that it was cut", func(l []linkStatus) bool {
			return len(l) == 2 && !l[1].Up &&
				l[1].Why != ""
		})
	}
	peersOf(t, w.nodes[0], w.nodes[1], "10.78.2.2:7433")
	awaitLinks(t, w.nodes[0], "that there is another", func(l []linkStatus) bool {
		s.ask("events") // wants one
		return len(l) == 2 && l[1].Up
	})
	straight(s, true)
}

// A worker that is killed while others wait for what it would have sent ends their program's commands with an error,
// and nobody waits for ever.
func TestPeerKilled(t *testing.T) {
	t.Parallel()
	w := layTriangle(t)
	peersOf(t, w.nodes[0], w.nodes[1], "10.78.2.2:7433")
	for _, n := range w.nodes {
		s := w.spanning("TENDRIL_COMPRESS=off")
		s.ask("chain")
		awaitLinks(t, n, "that it is up",
			func(l []linkStatus) bool { return slices.ContainsFunc(l, func(x linkStatus) bool { return x.Up }) })
		for range 200 {
			fmt.Fprintln(s.in, "chain")
		}
		status, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		killed := false
		for _, x := range status.Workers {
			if x.State == "serving" {
				killed = syscall.Kill(x.PID, syscall.SIGKILL) == nil
			}
		}
		if !killed {
			t.Fatalf("no worker to kill: %+v", status.Workers)
		}
		fmt.Fprintln(s.in, "chain") // it may have done all the others by then, and notices nothing while it does nothing
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for s.out.Scan() {
			}
		}()
		select {
		case <-ended:
		case <-time.After(limit):
			t.Fatalf("the program waits for ever: %s", rig.Hung(s.cmd))
		}
	}
}
