package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril/client"
	"tendril/ipc"
	"tendril/ipc/wire"
	stored "tendril/store/object"
	"tendril/tools/e2e/rig"
)

// One user takes as much as it can get, and another one, who comes later, has a part of it all the same. Both talk to a
// real daemon, as their own programs do.

const (
	greedyUser = 54331 // and group: nobody's
	modestUser = 54332
	thirdUser  = 54333
)

// They have the test's binary take something as the greedy user, instead of being a test: what, and of which daemon.
const takeWhat, takeOf = "TENDRIL_E2E_TAKE", "TENDRIL_E2E_TAKE_OF"

// grabs are what can be taken, each until the process is killed. A line of output is one that it got, or why it got no
// more.
var grabs = map[string]func(socket string) error{
	"connections": takeConnections,
	"disk":        takeDisk,
	"log":         takeLog,
}

// take is the greedy user's process. It returns where it failed.
func take(what, socket string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(greedyUser, greedyUser, greedyUser),
		syscall.Setresuid(greedyUser, greedyUser, greedyUser)); err != nil {
		return err
	}
	if err := grabs[what](socket); err != nil {
		return err
	}
	select {}
}

func takeConnections(socket string) error {
	var all []*client.Conn // kept
	for {
		c, err := client.Dial(context.Background(), client.Options{Socket: socket, NoReconnect: true})
		if err != nil {
			fmt.Printf("refused after %d: %v\n", len(all), err)
			return nil
		}
		all = append(all, c)
	}
}

// diskTakers persist at a time, takenBytes each.
const (
	diskTakers = 64
	takenBytes = 4 << 20
)

func takeDisk(socket string) error {
	fault := make(chan error)
	for range diskTakers {
		go func() {
			c, err := client.Dial(context.Background(), client.Options{Socket: socket})
			for err == nil {
				var o *client.Object
				if o, err = c.Put(context.Background(), make([]byte, takenBytes),
					client.CreateOptions{Class: stored.Persisted}); err == nil {
					id := o.ID()
					o.Release()
					err = c.Delete(context.Background(), id)
					fmt.Println("persisted")
				}
			}
			fault <- err
		}()
	}
	return <-fault
}

// takeLog has connections break a rule, each of which the daemon would say something about in its log.
func takeLog(socket string) error {
	for range 4 {
		go func() {
			for {
				if conn, err := breakRule(socket); err == nil {
					_, _ = io.Copy(io.Discard, conn)
					conn.Close()
				}
				fmt.Println("broken")
			}
		}()
	}
	return nil
}

// breakRule says Hello twice.
func breakRule(socket string) (net.Conn, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	hello := wire.HelloRequest{Magic: wire.Magic, Lowest: wire.Version, Highest: wire.Version, Program: "breaks a rule"}
	b := ipc.AppendFrame(nil, wire.Hello, 0, 1, &hello)
	if _, err := conn.Write(ipc.AppendFrame(b, wire.Hello, 0, 2, &hello)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// taking is such a process: how many lines it has said, and the last one.
type taking struct {
	lines atomic.Int64
	last  atomic.Value // string
}

// takesFrom starts one, and waits for its first line.
func takesFrom(t *testing.T, n *rig.Node, what string) *taking {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can be several users")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), takeWhat+"="+what, takeOf+"="+n.Socket())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	taker, read := &taking{}, make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); taker.lines.Add(1) {
			taker.last.Store(lines.Text())
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait() // killed
	})
	eventually(t, func() error {
		if taker.lines.Load() == 0 {
			return fmt.Errorf("the greedy user got nothing of %s", what)
		}
		return nil
	})
	return taker
}

// opensAs has a user's program open a session; why it could not otherwise.
func opensAs(t *testing.T, n *rig.Node, uid uint32) (p *program, why string) {
	t.Helper()
	cmd := n.Command(t.Context(), "run", "--", session)
	cmd.Dir = "/"
	cmd.Env = append(cmd.Env, "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	p = begin(t, cmd)
	fmt.Fprintln(p.in, "open")
	watch := rig.WatchOver(p.cmd, limit)
	answered := p.out.Scan()
	if err := watch.End(); err != nil {
		t.Fatal(err)
	}
	if answered && strings.HasPrefix(p.out.Text(), "ready") {
		return p, ""
	}
	said := p.out.Text()
	p.ends()
	return p, said + p.err.String()
}

// TestAUserLeavesOthersWorkers: who takes every worker it can get leaves one for each who comes, and hears what to do.
func TestAUserLeavesOthersWorkers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can start programs as other users")
	}
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n := node(t, "TENDRIL_MAX_WORKERS=4", "TENDRIL_WARM_WORKERS=-1", "TENDRIL_WORKER_WAIT=1ms")
	if _, err := rig.Output(exec.Command("chmod", "-R", "a+rX", strings.TrimSuffix(session, "/session"))); err != nil {
		t.Fatal(err)
	}
	refused := func(who, why string, want ...string) {
		t.Helper()
		for _, word := range append(want, "--max-workers", "end a program that has one, or try again later") {
			if !strings.Contains(why, word) {
				t.Errorf("%s reads nothing of %q: %s", who, word, why)
			}
		}
	}
	var all []*program
	why := ""
	for len(all) < 5 && why == "" {
		p, reason := opensAs(t, n, greedyUser)
		if why = reason; why == "" {
			all = append(all, p)
		}
	}
	if len(all) != 3 {
		t.Errorf("one user has %d of 4 workers", len(all))
	}
	refused("the greedy user", why, fmt.Sprintf("%d of them tenant uid:%d's", len(all), greedyUser), "1 are kept")
	modest, why := opensAs(t, n, modestUser)
	if why != "" {
		t.Fatalf("another user gets no worker: %s", why)
	}
	modest.want("add 0", "add 4")
	modest.want("good", "verify")
	_, why = opensAs(t, n, thirdUser)
	refused("who comes when all serve", why, "4 of 4 workers")
	all[0].cmd.Process.Kill()
	eventually(t, func() error {
		third, why := opensAs(t, n, thirdUser)
		if why != "" {
			return errors.New(why)
		}
		third.want("add 0", "add 4")
		third.want("good", "verify")
		return nil
	})
	modest.want("good", "verify")
}

// TestAUserLeavesOthersConnections: the same of connections.
func TestAUserLeavesOthersConnections(t *testing.T) {
	t.Parallel()
	n := node(t, "TENDRIL_MAX_CONNECTIONS=640", "TENDRIL_TENANT_CONNECTIONS=560")
	taker := takesFrom(t, n, "connections")
	said, _ := taker.last.Load().(string)
	for _, word := range []string{"close some, or give tenants more (--tenant-connections)", "uid:54331 has 560"} {
		if !strings.Contains(said, word) {
			t.Errorf("the greedy user reads nothing of %q: %s", word, said)
		}
	}
	got := 0
	for range 640 / 64 { // which is what few are
		c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket(), NoReconnect: true})
		if err != nil {
			t.Errorf("another user has %d connections: %v", got, err)
			break
		}
		defer c.Close()
		if o, err := c.Put(context.Background(), []byte("x"), client.CreateOptions{}); err != nil {
			t.Error(err)
		} else {
			o.Release()
		}
		got++
	}
	if out, err := as(t, n, modestUser, "", "ls"); err != nil {
		t.Errorf("a third user: %v %s", err, out)
	}
}

// TestAUserLeavesOthersTheDisk: many writes of one user to disk do not keep another's waiting for all of them.
func TestAUserLeavesOthersTheDisk(t *testing.T) {
	t.Parallel()
	n := node(t, "TENDRIL_CAPACITY=1GiB", "TENDRIL_SPILL=1GiB")
	c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	taker := takesFrom(t, n, "disk")
	const writes = 20
	began := time.Now()
	var others []int64 // the other's writes beside each
	for i := range writes {
		before := taker.lines.Load()
		o, err := c.Put(context.Background(), []byte("modest"), client.CreateOptions{Name: fmt.Sprint(i),
			Class: stored.Persisted})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
		others = append(others, taker.lines.Load()-before)
	}
	t.Logf("%d writes in %v, beside %d of the greedy user", writes, time.Since(began), others)
	slices.Sort(others)
	if most := others[writes/2]; most > diskTakers/4 { // some were done while this process had no processor
		t.Errorf("%d of the other's objects were written beside one of a user that asks for one at a time", most)
	}
}

// TestAUserLeavesOthersTheLog: what one user has the daemon say hides nothing of what another one has it say.
func TestAUserLeavesOthersTheLog(t *testing.T) {
	t.Parallel()
	n, began := node(t), time.Now()
	taker := takesFrom(t, n, "log")
	eventually(t, func() error {
		if done := taker.lines.Load(); done < 2000 {
			return fmt.Errorf("%d rules are broken", done)
		}
		return nil
	})
	conn, err := breakRule(n.Socket())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn)
	conn.Close()
	lines := func(who string) (count int) {
		for line := range strings.Lines(n.Log()) {
			if strings.Contains(line, "connection ended") && strings.Contains(line, who) {
				count++
			}
		}
		return count
	}
	eventually(t, func() error {
		if lines("tenant=\"uid:0\"") == 0 {
			return fmt.Errorf("nothing is said of another's broken rule:\n%.3000s", n.Log())
		}
		return nil
	})
	most := 100 + 20*int(time.Since(began)/(10*time.Second)) // of each ten seconds some lines are written
	if loud := lines(fmt.Sprintf("tenant=\"uid:%d\"", greedyUser)); loud == 0 || loud > most {
		t.Errorf("%d lines of the %d rules that the greedy user has broken, at most %d", loud, taker.lines.Load(), most)
	}
}
