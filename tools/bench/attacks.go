package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tendril/client"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// What one tenant does must not slow another one down: each row is what root's create, seal and release take while
// another user, who is another tenant, attacks. The attacker is this program once more, as that user. Its process takes
// processor time, which the daemon can do nothing about: the reference is the same beside a process that takes as much
// and does not talk to the daemon. So the ratio is about the daemon. What they take on an idle machine stands beside
// it.

const (
	attackerID    = 64_123 // user and group: nobody's
	attackTime    = 700 * time.Millisecond
	attackConns   = 2000
	attackWaits   = 64 // of one connection: as many as there may be
	attackWaitMS  = 300
	attackObjects = 6000
	attackMany    = 1000 // connections that ask the same again and again
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
	"stats=64":           attackStats,
	"pages=32":           attackPages,
	"top-pages=1000":     attackOver(wire.TopPage, &wire.PageRequest{}),
	"list-pages=1000":    attackOver(wire.ListPage, &wire.ListPageRequest{}),
	"label-pages=1000":   attackOver(wire.ListPage, &wire.ListPageRequest{ListWhereRequest: nowhere}),
	"statuses=1000":      attackOver(wire.Status, nil),
}

// nowhere has a label that none of an attacker's objects has: a page of it looks at many and gives none.
var nowhere = wire.ListWhereRequest{Labels: map[string]string{"label1": "y"}}

// attackBenchmarks makes a row of each.
func attackBenchmarks(ctx context.Context, r *rig) (all []benchmark) {
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		var rounds []attackRound
		all = append(all, benchmark{
			name: "fair/create+seal+release/attack=" + name, unit: "ns", atMost: 2, rounds: 3,
			against: "the same beside a process that takes as much processor time elsewhere",
			note:    func() string { return attackNote(rounds) },
			measure: func() (float64, float64, error) {
				round, err := underAttack(ctx, r, name)
				rounds = append(rounds, round)
				return round.attacked, round.beside, err
			},
		})
	}
	return all
}

// attackRound is what create, seal and release took, in ns, and what the attacker took of the processors.
type attackRound struct{ attacked, beside, idle, processors float64 }

// attackNote says what the rounds showed besides; the first one warmed up.
func attackNote(rounds []attackRound) string {
	if len(rounds) > 1 {
		rounds = rounds[1:]
	}
	var ratios, processors []float64
	for _, r := range rounds {
		ratios, processors = append(ratios, r.attacked/r.idle), append(processors, r.processors)
	}
	return fmt.Sprintf("%.2f × an idle machine; the attacker took %.2f processors", median(ratios), median(processors))
}

// underAttack measures a round, each part on a daemon of its own: what an attack left to do is not the reference's.
func underAttack(ctx context.Context, r *rig, name string) (round attackRound, err error) {
	if os.Geteuid() != 0 {
		return round, &missingError{"only root can be two users"}
	}
	err = r.ownDaemon(ctx, func(socket string) (err error) {
		if round.idle, err = meanCost(socket); err == nil {
			round.attacked, round.processors, err = costBeside(ctx, name, socket)
		}
		return err
	})
	if err != nil {
		return round, err
	}
	return round, r.ownDaemon(ctx, func(socket string) (err error) {
		round.beside, _, err = costBeside(ctx, spinName+strconv.FormatFloat(round.processors, 'f', 3, 64), socket)
		return err
	})
}

// ownDaemon runs f with a daemon of its own, which other users can reach.
func (r *rig) ownDaemon(ctx context.Context, f func(socket string) error) error {
	own := &rig{dir: filepath.Join(r.dir, "attacked"), bin: r.bin}
	own.socket = filepath.Join(own.dir, "tendril.sock")
	if err := errors.Join(os.MkdirAll(own.dir, 0o711), os.Chmod(r.dir, 0o711), os.Chmod(own.dir, 0o711)); err != nil {
		return err
	}
	own.atEnd(func() { os.RemoveAll(own.dir) })
	defer own.close()
	if err := own.startDaemon(ctx); err != nil {
		return err
	}
	return f(own.socket)
}

// costBeside gives meanCost while an attack goes on, and how many processors the attacker's process took.
func costBeside(ctx context.Context, name, socket string) (cost, processors float64, err error) {
	attacker, err := startAttacker(ctx, name, socket)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = attacker.Process.Kill()
		_ = attacker.Wait() // killed
	}()
	began, before := time.Now(), processorTime(attacker.Process.Pid)
	cost, err = meanCost(socket)
	took := processorTime(attacker.Process.Pid) - before
	return cost, took.Seconds() / time.Since(began).Seconds(), err
}

// processorTime gives what a process has taken of the processors, all its threads together: the twelfth and thirteenth
// field behind the name in /proc/PID/stat, in ticks of 10 ms.
func processorTime(pid int) (sum time.Duration) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, field := range fields[min(11, len(fields)):min(13, len(fields))] {
		ticks, _ := strconv.Atoi(field)
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}

// startAttacker gives the attacker's process, once the attack is under way.
func startAttacker(ctx context.Context, name, socket string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-attack", name, "-socket", socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the attacker: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "begun" {
		_ = cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("the attacker ended: %q, %w", line, err), cmd.Wait())
	}
	return cmd, nil
}

// meanCost gives the mean time of create, seal and release of a small object: a median would hide a stall.
func meanCost(socket string) (float64, error) {
	// a daemon that ends is an error, not waited for
	conn, err := client.Dial(context.Background(), client.Options{Socket: socket, NoReconnect: true})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	n, began := 0, time.Time{}
	for warm := time.Now().Add(attackTime / 5); began.IsZero() || time.Since(began) < attackTime; n++ {
		if began.IsZero() && time.Now().After(warm) {
			n, began = 0, time.Now()
		}
		o, err := conn.Put(context.Background(), make([]byte, 64), client.CreateOptions{})
		if err != nil {
			return 0, err
		}
		o.Release()
	}
	return float64(time.Since(began).Nanoseconds()) / float64(n), nil
}

// runAttack is the attacker's process. It returns only when it fails.
func runAttack(name, socket string) error {
	attack := attacks[name]
	if share, is := strings.CutPrefix(name, spinName); is {
		processors, err := strconv.ParseFloat(share, 64)
		if err != nil {
			return fmt.Errorf("attack %q: %w", name, err)
		}
		attack = func(_ string, begun func()) error { return spin(processors, begun) }
	}
	if attack == nil {
		return fmt.Errorf("no attack is called %q", name)
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(attackerID, attackerID, attackerID),
		syscall.Setresuid(attackerID, attackerID, attackerID)); err != nil {
		return fmt.Errorf("become user %d: %w", attackerID, err)
	}
	var once sync.Once
	if err := attack(socket, func() { once.Do(func() { fmt.Println("begun") }) }); err != nil {
		return err
	}
	select {} // until it is killed
}

// spinName begins the name of what is no attack: a process that takes so many processors and talks to nobody.
const spinName = "spin="

// spinPeriod is in what time each thread of it takes its share.
const spinPeriod = 2 * time.Millisecond

func spin(processors float64, begun func()) error {
	threads := math.Ceil(processors)
	busy := time.Duration(processors / max(threads, 1) * float64(spinPeriod))
	for range int(threads) {
		go func() {
			for {
				began := time.Now()
				for time.Since(began) < busy {
				}
				time.Sleep(spinPeriod - busy)
			}
		}()
	}
	begun()
	return nil
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
			frames = ipc.AppendFrame(frames, wire.Get, 0, uint64(2+i),
				&wire.GetRequest{Name: "nothing", WaitMS: attackWaitMS})
		}
		conns := many(socket, attackConns/2, frames)
		begun()
		time.Sleep(2 * attackWaitMS * time.Millisecond)
		for _, c := range conns {
			c.Close()
		}
	}
}

// writeForEver writes the same frames until the connection ends.
func writeForEver(conn net.Conn, frames []byte) {
	for {
		if _, err := conn.Write(frames); err != nil {
			return
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
		go writeForEver(conn, frames)
	}
	begun()
	return nil
}

// putLabelled makes objects whose descriptions are long.
func putLabelled(socket string) error {
	conn, err := client.Dial(context.Background(), client.Options{Socket: socket})
	if err != nil {
		return err
	}
	for i := range attackObjects {
		labels := map[string]string{}
		for j := range 16 {
			labels[fmt.Sprint("label", j)] = strings.Repeat("x", 100)
		}
		o, err := conn.Create(context.Background(), 0, client.CreateOptions{Name: fmt.Sprint(i), Class: object.Named,
			Labels: labels})
		if err == nil {
			_, err = o.Seal(context.Background())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func attackLists(socket string, begun func()) error {
	if err := putLabelled(socket); err != nil {
		return err
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

// attackStats asks for the descriptions of nothing, over many connections, and hardly reads the answers.
func attackStats(socket string, begun func()) error {
	var frames []byte
	for range 2000 {
		frames = ipc.AppendFrame(frames, wire.Stat, 0, 7, &wire.NameMessage{Name: "nothing"})
	}
	for _, conn := range many(socket, 64, nil) {
		go func() {
			for b := make([]byte, 1<<16); ; time.Sleep(time.Millisecond) {
				if _, err := conn.Read(b); err != nil {
					return
				}
			}
		}()
		go writeForEver(conn, frames)
	}
	begun()
	return nil
}

// attackOver asks the same again and again over many connections, and reads the answers.
func attackOver(ask wire.Type, request ipc.Payload) attack {
	return func(socket string, begun func()) error {
		if err := putLabelled(socket); err != nil {
			return err
		}
		var frames []byte
		for range 10 {
			frames = ipc.AppendFrame(frames, ask, 0, 7, request)
		}
		for _, conn := range many(socket, attackMany, nil) {
			go io.Copy(io.Discard, conn)
			go writeForEver(conn, frames)
		}
		begun()
		return nil
	}
}

// attackPages asks for pages of many objects over HTTP, over as many connections as one user may have.
func attackPages(socket string, begun func()) error {
	if err := putLabelled(socket); err != nil {
		return err
	}
	request := []byte(strings.Repeat("GET /v1/objects?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n", 16))
	for range 32 {
		conn, err := net.Dial("unix", socket+".http")
		if err != nil {
			return err
		}
		go io.Copy(io.Discard, conn)
		go writeForEver(conn, request)
	}
	begun()
	return nil
}
