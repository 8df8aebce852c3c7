package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/pki"
)

// clusterRig is a cluster of daemons on this machine, each in a network namespace of its own where root may make them,
// else all on loopback.
type clusterRig struct {
	dir   string // temporary; removed by close
	bin   string
	tag   string // what the namespaces' names begin with; "" = loopback
	nodes []*clusterNode
	ends  []func() // what close does, the last first
}

// clusterNode is one daemon of a clusterRig.
type clusterNode struct {
	rig     *clusterRig
	name    string
	space   string // its namespace; "" = none
	address string
	process *exec.Cmd
	conn    *client.Conn
}

// clusterView is what `tendril cluster status --json` says, as far as it is read here.
type clusterView struct {
	State   string       `json:"state"`
	Entered bool         `json:"entered"`
	Nodes   []memberView `json:"nodes"`
}

type memberView struct {
	Name    string `json:"name"`
	Voter   bool   `json:"voter"`
	Answers bool   `json:"answers"`
}

// open starts n nodes, where that has not been done, and waits until three of them vote.
func (r *clusterRig) open(ctx context.Context, n int) (err error) {
	if len(r.nodes) > 0 {
		return nil
	}
	if r.bin, err = filepath.Abs(r.bin); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "tendril-cluster-"); err != nil {
		return err
	}
	r.atEnd(func() { os.RemoveAll(r.dir) })
	return r.fill(ctx, n)
}

func (r *clusterRig) fill(ctx context.Context, n int) error {
	r.laySpaces(n)
	for i := range n {
		x := &clusterNode{rig: r, name: fmt.Sprint("n", i)}
		if r.tag != "" {
			x.space, x.address = r.tag+x.name, fmt.Sprintf("10.78.0.%d:7433", i+1)
		} else if l, err := net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		} else {
			x.address = l.Addr().String()
			l.Close()
		}
		r.nodes = append(r.nodes, x)
		if err := x.start(ctx); err != nil {
			return err
		}
		r.atEnd(x.kill)
		if i > 0 {
			token, err := admin.Of(r.nodes[0].conn).CreateToken(ctx, admin.TokenOptions{Role: pki.Node, Once: true})
			if err != nil {
				return err
			}
			if _, err := admin.Of(x.conn).JoinCluster(ctx, r.nodes[0].address, token); err != nil {
				return err
			}
		}
	}
	return r.await(ctx, "three nodes vote", func() bool {
		votes := 0
		for _, x := range r.nodes[0].view().Nodes {
			if x.Voter {
				votes++
			}
		}
		return votes == min(n, 3)
	})
}

// laySpaces makes a namespace a node, and one with a bridge between them. Where that cannot be, the nodes share this
// one.
func (r *clusterRig) laySpaces(n int) {
	tag := fmt.Sprintf("tdb%d", os.Getpid())
	hub := tag + "hub"
	r.atEnd(func() {
		if r.tag != "" {
			for i := range n {
				_ = exec.Command("ip", "netns", "del", fmt.Sprint(tag, "n", i)).Run()
			}
		}
		_ = exec.Command("ip", "netns", "del", hub).Run()
	})
	lines := fmt.Sprintf("netns add %[1]s\n-n %[1]s link add hub type bridge\n-n %[1]s link set hub up\n", hub)
	for i := range n {
		lines += fmt.Sprintf("netns add %[2]sn%[3]d\n-n %[2]sn%[3]d link set lo up\n"+
			"link add up%[3]d netns %[1]s type veth peer name cable netns %[2]sn%[3]d\n"+
			"-n %[1]s link set up%[3]d master hub up\n-n %[2]sn%[3]d addr add 10.78.0.%[4]d/24 dev cable\n"+
			"-n %[2]sn%[3]d link set cable up\n", hub, tag, i, i+1)
	}
	for line := range bytes.Lines([]byte(lines)) {
		if out, err := exec.Command("ip", stringFields(line)...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: no network namespaces (ip %s: %s): all nodes on loopback\n",
				bytes.TrimSpace(line), bytes.TrimSpace(out))
			return
		}
	}
	r.tag = tag
}

func stringFields(line []byte) (list []string) {
	for _, f := range bytes.Fields(line) {
		list = append(list, string(f))
	}
	return list
}

// atEnd has close call this, before all that it was told earlier.
func (r *clusterRig) atEnd(end func()) { r.ends = append(r.ends, end) }

func (r *clusterRig) close() {
	for i := len(r.ends) - 1; i >= 0; i-- {
		r.ends[i]()
	}
}

// await waits for a state of the cluster, two minutes at most.
func (r *clusterRig) await(ctx context.Context, what string, f func() bool) error {
	for deadline := time.Now().Add(2 * time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("within two minutes it was not so that %s", what)
		}
	}
	return nil
}

func (x *clusterNode) path(name string) string { return filepath.Join(x.rig.dir, x.name+"."+name) }

// launch starts the node's daemon.
func (x *clusterNode) launch() error {
	args := []string{filepath.Join(x.rig.bin, "tendril"), "daemon", "--name", x.name, "--listen", x.address,
		"--capacity", "3GiB", "--log-level", "warn", "--devices", "cpu"}
	if x.space != "" {
		args = append([]string{"ip", "netns", "exec", x.space}, args...)
	}
	log, err := os.OpenFile(x.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	x.process = exec.Command(args[0], args[1:]...) //nolint:gosec // the program that is measured
	x.process.Env = append(os.Environ(), "TENDRIL_SOCKET="+x.path("sock"), "TENDRIL_STATE_DIR="+x.path("state"),
		"XDG_CONFIG_HOME="+x.path("config"))
	x.process.Stdout, x.process.Stderr = log, log
	if err := x.process.Start(); err != nil {
		return fmt.Errorf("start a daemon (make build makes it): %w", err)
	}
	return nil
}

// start starts the node and waits until it answers a client.
func (x *clusterNode) start(ctx context.Context) error {
	if err := x.launch(); err != nil {
		return err
	}
	return x.rig.await(ctx, "node "+x.name+" serves (see "+x.path("log")+")", func() (up bool) {
		var err error
		x.conn, err = client.Dial(ctx, client.Options{Socket: x.path("sock")})
		return err == nil
	})
}

// kill kills the node (SIGKILL), and waits until it is gone.
func (x *clusterNode) kill() {
	if x.process == nil {
		return
	}
	if x.conn != nil {
		x.conn.Close()
	}
	_ = x.process.Process.Signal(syscall.SIGKILL)
	_ = x.process.Wait()
	x.process = nil
}

// view is what the node says of the cluster; zero where it does not answer.
func (x *clusterNode) view() (v clusterView) {
	if raw, err := admin.Of(x.conn).ClusterStatus(context.Background()); err == nil {
		_ = json.Unmarshal(raw, &v)
	}
	return v
}

// leader finds the node that leads.
func (r *clusterRig) leader(ctx context.Context) (x *clusterNode, err error) {
	if err := r.open(ctx, 3); err != nil {
		return nil, err
	}
	err = r.await(ctx, "a node leads", func() bool {
		for _, n := range r.nodes {
			if n.process != nil && n.view().State == "leader" {
				x = n
				return true
			}
		}
		return false
	})
	return x, err
}

// others gives the nodes but one.
func (r *clusterRig) others(x *clusterNode) (list []*clusterNode) {
	for _, n := range r.nodes {
		if n != x && n.process != nil {
			list = append(list, n)
		}
	}
	return list
}

// inside calls f on a thread that is in the node's namespace: sockets that f makes stay there.
func (x *clusterNode) inside(f func() error) error {
	if x.space == "" {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		file, err := os.Open("/run/netns/" + x.space)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			file.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// host is the node's address without the port of its daemon.
func (x *clusterNode) host() string {
	host, _, _ := net.SplitHostPort(x.address)
	return host
}

// wire makes a TCP connection from one node to another, outside their daemons.
func (x *clusterNode) wire(to *clusterNode) (here, there net.Conn, err error) {
	var l net.Listener
	if err = to.inside(func() (err error) { l, err = net.Listen("tcp", to.host()+":0"); return err }); err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if err = x.inside(func() (err error) { here, err = net.Dial("tcp", l.Addr().String()); return err }); err != nil {
		return nil, nil, err
	}
	there, err = l.Accept()
	return here, there, err
}
