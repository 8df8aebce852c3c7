package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"tendril/client"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// What one tenant does must not slow another one down: each row is what root's create, seal and release take while another user, who is
// another tenant, attacks, against what they take when it does not. The attacker is this program once more, as that user.

const (
	attackerID    = 64_123 // user and group: nobody's
	attackTime    = time.Second
	attackConns   = 2000
	attackWaits   = 64 // of one connection: as many as there may be
	attackWaitMS  = 300
	attackObjects = 6000
)

// attack is what the attacker does once it is its user: begun says when it is under way. It ends with its process.
type attack func(socket string, begun func()) error

// attacks are all of them, by name. It is never changed.
var attacks = map[string]attack{
	"watches=128000":     attackWatches,
	"ending-gets=64000":  attackWaiting,
	"floods=4":           attackFloods,
	"unread-lists":       attackLists,
	"connections=2000":   attackConnections,
	"broken-connections": attackBroken,
}

// attackBenchmarks makes a row of each.
func attackBenchmarks(ctx context.Context, r *rig) (all []benchmark) {
	for _, name := range []string{"watches=128000", "ending-gets=64000", "floods=4", "unread-lists", "connections=2000", "broken-connections"} {
		all = append(all, benchmark{
			name: "fair/create+seal+release/attack=" + name, unit: "ns", against: "the same without the attack", atMost: 2, rounds: 3,
			measure: func() (float64, float64, error) { return underAttack(ctx, r, name) },
		})
	}
	return all
}

// underAttack measures both sides on a daemon of their own.
func underAttack(ctx context.Context, r *rig, name string) (attacked, alone float64, err error) {
	if os.Geteuid() != 0 {
		return 0, 0, &missingError{"only root can be two users"}
	}
	own := &rig{dir: filepath.Join(r.dir, "attacked"), bin: r.bin}
	own.socket = filepath.Join(own.dir, "tendril.sock")
	if err := errors.Join(os.MkdirAll(own.dir, 0o711), os.Chmod(r.dir, 0o711), os.Chmod(own.dir, 0o711)); err != nil {
		return 0, 0, err
	}
	own.atEnd(func() { os.RemoveAll(own.dir) })
	defer own.close()
	if err := own.startDaemon(ctx); err != nil {
		return 0, 0, err
	}
	if alone, err = meanCost(own.socket); err != nil {
		return 0, 0, err
	}
	end, err := startAttacker(ctx, name, own.socket)
	if err != nil {
		return 0, 0, err
	}
	attacked, err = meanCost(own.socket)
	return attacked, alone, errors.Join(err, end())
}

// startAttacker gives what ends the attack, once it is under way.
func startAttacker(ctx context.Context, name, socket string) (end func() error, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-attack", name, "-socket", socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the attacker: %w", err)
	}
	end = func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		return nil
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "begun" {
		return nil, errors.Join(fmt.Errorf("the attacker ended: %q, %w", line, err), end())
	}
	return end, nil
}

// meanCost gives the mean time of create, seal and release of a small object: a median would hide a stall.
func meanCost(socket string) (float64, error) {
	conn, err := client.DialOptions(client.Options{Socket: socket, NoReconnect: true}) // a daemon that ends is an error, not waited for
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	n, began := 0, time.Time{}
	for warm := time.Now().Add(attackTime / 5); began.IsZero() || time.Since(began) < attackTime; n++ {
		if began.IsZero() && time.Now().After(warm) {
			n, began = 0, time.Now()
		}
		o, err := conn.Put(make([]byte, 64), client.CreateOptions{})
		if err != nil {
			return 0, err
		}
		o.Release()
	}
	return float64(time.Since(began).Nanoseconds()) / float64(n), nil
}

// runAttack is the attacker's process.
func runAttack(name, socket string) error {
	attack := attacks[name]
	if attack == nil {
		return fmt.Errorf("no attack is called %q", name)
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(attackerID, attackerID, attackerID), syscall.Setresuid(attackerID, attackerID, attackerID)); err != nil {
		return fmt.Errorf("become user %d: %w", attackerID, err)
	}
	var once sync.Once
	if err := attack(socket, func() { once.Do(func() { fmt.Println("begun") }) }); err != nil {
		return err
	}
	select {} // until it is killed
}

// raw is a connection whose replies nobody looks at.
func raw(socket string, more ...[]byte) (net.Conn, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	hello := wire.HelloRequest{Magic: wire.Magic, Lowest: wire.Version, Highest: wire.Version, Program: "attacker"}
	b := ipc.AppendFrame(nil, wire.Hello, 0, 1, &hello)
	for _, frames := range more {
		b = append(b, frames...)
	}
	if _, err := conn.Write(b); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// many opens connections until it is refused, and has each send some frames.
func many(socket string, n int, frames []byte) (list []net.Conn) {
	for range n {
		conn, err := raw(socket, frames)
		if err != nil {
			return list
		}
		list = append(list, conn)
	}
	return list
}

func attackWatches(socket string, begun func()) error {
	var frames []byte
	for i := range attackWaits {
		frames = ipc.AppendFrame(frames, wire.Watch, 0, uint64(2+i), &wire.WatchRequest{})
	}
	conns := many(socket, attackConns, frames)
	time.Sleep(time.Second) // the daemon acts on them
	begun()
	for _, c := range conns {
		go io.Copy(io.Discard, c)
	}
	return nil
}

func attackWaiting(socket string, begun func()) error {
	for {
		var frames []byte
		for i := range attackWaits {
			frames = ipc.AppendFrame(frames, wire.Get, 0, uint64(2+i), &wire.GetRequest{Name: "nothing", WaitMS: attackWaitMS})
		}
		conns := many(socket, attackConns/2, frames)
		begun()
		time.Sleep(2 * attackWaitMS * time.Millisecond)
		for _, c := range conns {
			c.Close()
		}
	}
}

func attackFloods(socket string, begun func()) error {
	var frames []byte
	for range 1000 {
		frames = ipc.AppendFrame(frames, wire.Get, 0, 7, &wire.GetRequest{Name: "nothing"})
	}
	for range 4 {
		conn, err := raw(socket)
		if err != nil {
			return err
		}
		go io.Copy(io.Discard, conn)
		go func() {
			for {
				if _, err := conn.Write(frames); err != nil {
					return
				}
			}
		}()
	}
	begun()
	return nil
}

func attackLists(socket string, begun func()) error {
	conn, err := client.Dial(socket)
	if err != nil {
		return err
	}
	for i := range attackObjects {
		labels := map[string]string{}
		for j := range 16 {
			labels[fmt.Sprint("label", j)] = strings.Repeat("x", 100)
		}
		o, err := conn.Create(0, client.CreateOptions{Name: fmt.Sprint(i), Class: object.Named, Labels: labels})
		if err == nil {
			_, err = o.Seal()
		}
		if err != nil {
			return err
		}
	}
	list := ipc.AppendFrame(nil, wire.List, 0, 7, &wire.ListRequest{})
	for {
		conns := many(socket, 12, append(list, list...))
		begun()
		time.Sleep(500 * time.Millisecond)
		for _, c := range conns {
			c.Close()
		}
	}
}

func attackConnections(socket string, begun func()) error {
	for {
		conns := many(socket, attackConns, nil)
		begun()
		for _, c := range conns {
			c.Close()
		}
	}
}

// attackBroken opens connections that break a rule, each of which the daemon would say something about in its log.
func attackBroken(socket string, begun func()) error {
	for range 4 {
		go func() {
			for {
				if conn, err := raw(socket, ipc.AppendFrame(nil, wire.Hello, 0, 2, &wire.HelloRequest{})); err == nil {
					io.Copy(io.Discard, conn)
					conn.Close()
				}
			}
		}()
	}
	begun()
	return nil
}
