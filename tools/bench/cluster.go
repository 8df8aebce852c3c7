package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tendril/client"
	"tendril/store/object"
)

// Figures of a cluster of real daemons: make bench-cluster.

const (
	publishersAtOnce = 64
	bigObject        = 1 << 30
	restartObjects   = 100_000
)

// clusterBenchmarks are the figures over three voters.
func clusterBenchmarks(ctx context.Context, r *clusterRig) []benchmark {
	return []benchmark{
		{name: "cluster/publish/clients=1", unit: "ns", atMost: 1.3, rounds: 5,
			against: "k = 2 fsyncs and one round trip: the leader's, then the faster of two followers'",
			measure: func() (float64, float64, error) { return r.publishOne(ctx) }},
		{name: "cluster/publish/clients=1/follower", unit: "ns", atMost: 2, rounds: 5,
			against: "a publication at the leader, which a follower asks",
			measure: func() (float64, float64, error) { return r.publishAtFollower(ctx) }},
		{name: "cluster/publish/clients=64", unit: "1/s", atLeast: 20, rounds: 5, against: "one client",
			measure: func() (float64, float64, error) { return r.publishMany(ctx) }},
		{name: "cluster/get/size=1GiB", unit: "B/s", atLeast: 0.9, rounds: 3, against: "one TLS stream",
			measure: func() (float64, float64, error) { return r.getBig(ctx, true) }},
		{name: "cluster/get/size=1GiB/plaintext", unit: "B/s", atLeast: 0.95, rounds: 3,
			against: "one plaintext stream; nodes always use TLS",
			measure: func() (float64, float64, error) { return r.getBig(ctx, false) }},
		{name: "cluster/leader-killed", unit: "ns", atMost: 1, rounds: 3, against: "3 s without a write",
			measure: func() (float64, float64, error) { return r.leaderKilled(ctx) }},
		{name: "cluster/node-dies/seen", unit: "ns", atMost: 1, rounds: 2, against: "5 s until all others say so",
			measure: func() (float64, float64, error) { return r.nodeDies(ctx) }},
		{name: "cluster/node-dies/repaired", unit: "ns", atMost: 1, once: true,
			against: "15 s of patience and 1 GiB (64 objects) at a tenth of the TLS stream's rate",
			measure: func() (float64, float64, error) { return r.repaired(ctx) }},
		{name: "cluster/restart/objects=100000", unit: "ns", atMost: 1, once: true, against: "5 s to serve",
			measure: func() (float64, float64, error) { return r.restart(ctx) }},
	}
}

// putAll makes n small objects that nobody publishes yet.
func putAll(conn *client.Conn, n int) (list []*client.Object, err error) {
	for range n {
		o, err := conn.Put(context.Background(), []byte("published"), client.CreateOptions{})
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

func releaseAll(list []*client.Object) {
	for _, o := range list {
		o.Release()
	}
}

// publishAll publishes objects by one client, one after the other, and gives the median time of one.
func publishAll(conn *client.Conn, list []*client.Object) (time.Duration, error) {
	var took []time.Duration
	for _, o := range list {
		began := time.Now()
		if _, err := conn.Publish(context.Background(), o.ID(), "p"+o.ID().String(), false); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// deleteAll takes them out of the cluster again.
func deleteAll(conn *client.Conn, list []*client.Object) error {
	for _, o := range list {
		if err := conn.Delete(context.Background(), o.ID()); err != nil && !errors.Is(err, object.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (r *clusterRig) publishOne(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	took, err := publishAt(lead, 100)
	if err != nil {
		return 0, 0, err
	}
	chain, err := r.chain(lead, 100)
	return float64(took), float64(chain), err
}

func (r *clusterRig) publishAtFollower(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	there, err := publishAt(r.others(lead)[0], 100)
	if err != nil {
		return 0, 0, err
	}
	here, err := publishAt(lead, 100)
	return float64(there), float64(here), err
}

// publishAt has one client of a node publish n objects, and gives the median time of one.
func publishAt(x *clusterNode, n int) (time.Duration, error) {
	list, err := putAll(x.conn, n)
	if err != nil {
		return 0, err
	}
	defer releaseAll(list)
	took, err := publishAll(x.conn, list)
	return took, errors.Join(err, deleteAll(x.conn, list))
}

// chain does by hand what one publication cannot do without: 300 bytes to disk here, a message to two others, each of
// which has them on disk before it answers; the first answer counts. It gives the median.
func (r *clusterRig) chain(lead *clusterNode, n int) (time.Duration, error) {
	own, err := syncedFile(lead.path("fsync"))
	if err != nil {
		return 0, err
	}
	defer own.Close()
	answers := make(chan error, 2*n)
	var wires []net.Conn
	for _, to := range r.others(lead)[:2] {
		here, there, err := lead.wire(to)
		if err != nil {
			return 0, err
		}
		defer here.Close()
		defer there.Close()
		f, err := syncedFile(to.path("fsync"))
		if err != nil {
			return 0, err
		}
		defer f.Close()
		go follow(there, f)
		go func() {
			b := make([]byte, 8)
			for {
				_, err := io.ReadFull(here, b)
				if answers <- err; err != nil {
					return
				}
			}
		}()
		wires = append(wires, here)
	}
	record := make([]byte, 300)
	var took []time.Duration
	for range n {
		began := time.Now()
		if err := appendSynced(own, record); err != nil {
			return 0, err
		}
		for _, w := range wires {
			if _, err := w.Write(record); err != nil {
				return 0, err
			}
		}
		if err := <-answers; err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
		if err := <-answers; err != nil { // the slower one: not timed, and not there in the next turn
			return 0, err
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// follow answers each record once it is on disk.
func follow(conn net.Conn, f *os.File) {
	b := make([]byte, 300)
	for {
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		if appendSynced(f, b) != nil {
			return
		}
		if _, err := conn.Write(b[:8]); err != nil {
			return
		}
	}
}

// syncedFile makes a file whose room is allocated, as raft-wal's segments are.
func syncedFile(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, errors.Join(err, f.Sync())
}

func appendSynced(f *os.File, b []byte) error {
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}

func (r *clusterRig) publishMany(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	one, err := r.publishRate(lead, 1, 200)
	if err != nil {
		return 0, 0, err
	}
	many, err := r.publishRate(lead, publishersAtOnce, 60)
	return many, one, err
}

// publishRate has clients of one node publish at the same time, each its own objects.
func (r *clusterRig) publishRate(at *clusterNode, clients, each int) (rate float64, err error) {
	conns, lists := make([]*client.Conn, clients), make([][]*client.Object, clients)
	for i := range conns {
		if conns[i], err = client.Dial(context.Background(), client.Options{Socket: at.path("sock")}); err != nil {
			return 0, err
		}
		defer conns[i].Close()
		if lists[i], err = putAll(conns[i], each); err != nil {
			return 0, err
		}
	}
	var all sync.WaitGroup
	faults := make([]error, clients)
	began := time.Now()
	for i := range conns {
		all.Go(func() { _, faults[i] = publishAll(conns[i], lists[i]) })
	}
	all.Wait()
	took := time.Since(began)
	for i := range conns {
		all.Go(func() { faults[i] = errors.Join(faults[i], deleteAll(conns[i], lists[i])); releaseAll(lists[i]) })
	}
	all.Wait()
	return float64(clients*each) / took.Seconds(), errors.Join(faults...)
}

// getBig gets an object of 1 GiB from another node, and sends as much over a connection between the same two.
func (r *clusterRig) getBig(ctx context.Context, secure bool) (float64, float64, error) {
	if _, err := r.leader(ctx); err != nil {
		return 0, 0, err
	}
	from, to := r.nodes[0], r.nodes[1]
	rate, err := r.stream(from, to, secure)
	if err != nil {
		return 0, 0, err
	}
	b, err := from.conn.Create(ctx, bigObject, client.CreateOptions{})
	if err != nil {
		return 0, 0, err
	}
	data := b.Bytes()
	for i := 0; i < len(data); i += 4096 {
		data[i] = byte(i >> 12)
	}
	o, err := b.Seal(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer o.Release()
	name := "big" + o.ID().String()
	if _, err := from.conn.Publish(ctx, o.ID(), name, false); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	got, err := to.conn.GetByName(ctx, name, time.Minute)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	got.Release()
	return bigObject / took.Seconds(), rate, from.conn.Delete(ctx, o.ID())
}

// stream sends 1 GiB from one node's network to another's, and gives the rate.
func (r *clusterRig) stream(from, to *clusterNode, secure bool) (float64, error) {
	here, there, err := from.wire(to)
	if err != nil {
		return 0, err
	}
	defer here.Close()
	defer there.Close()
	if secure {
		own, err := selfSigned()
		if err != nil {
			return 0, err
		}
		//nolint:gosec // both ends are this program's
		here, there = tls.Server(here, own),
			tls.Client(there, &tls.Config{InsecureSkipVerify: true})
		go func() { _ = here.(*tls.Conn).Handshake() }()
		if err := there.(*tls.Conn).Handshake(); err != nil {
			return 0, err
		}
	}
	chunk := make([]byte, 1<<20)
	_, _ = rand.Read(chunk)
	into := make([]byte, 1<<20)
	began := time.Now()
	go func() {
		for range bigObject / len(chunk) {
			if _, err := here.Write(chunk); err != nil {
				return
			}
		}
	}()
	for range bigObject / len(into) {
		if _, err := io.ReadFull(there, into); err != nil {
			return 0, err
		}
	}
	return bigObject / time.Since(began).Seconds(), nil
}

// leaderKilled kills the leader (SIGKILL) while a client of another node publishes, and gives the longest time in which
// nothing was published.
func (r *clusterRig) leaderKilled(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	at := r.others(lead)[0]
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	var gap atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		publishUntil(stop, at.conn, func() {
			now := time.Now().UnixNano()
			gap.Store(max(gap.Load(), now-last.Swap(now)))
		})
	}()
	time.Sleep(200 * time.Millisecond) // some are published
	gap.Store(0)
	killed := time.Now().UnixNano()
	lead.kill()
	err = r.await(ctx, "something is published again", func() bool {
		return gap.Load() > 0 && last.Load() > killed+int64(time.Second)
	})
	close(stop)
	<-done
	if err != nil {
		return 0, 0, err
	}
	return float64(gap.Load()), 3e9, r.back(ctx, lead)
}

// publishUntil publishes and deletes, one after the other, and says so each time that it worked.
func publishUntil(stop <-chan struct{}, conn *client.Conn, published func()) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		o, err := conn.Put(context.Background(), []byte("x"), client.CreateOptions{})
		if err != nil {
			return
		}
		if _, err := conn.Publish(context.Background(), o.ID(), "u"+o.ID().String(), false); err == nil {
			published()
			_ = conn.Delete(context.Background(), o.ID())
		}
		o.Release()
	}
}

// back starts a node that was killed, and waits until all know it again and three vote.
func (r *clusterRig) back(ctx context.Context, x *clusterNode) error {
	if err := x.start(ctx); err != nil {
		return err
	}
	return r.await(ctx, "node "+x.name+" is a member again", func() bool {
		for _, n := range r.nodes {
			v := n.view()
			if !v.Entered || slices.ContainsFunc(v.Nodes, func(y memberView) bool { return !y.Answers }) {
				return false
			}
		}
		return true
	})
}

// nodeDies kills a follower, and gives the time until each other node says that it does not answer.
func (r *clusterRig) nodeDies(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	dead := r.others(lead)[1]
	dead.kill()
	began := time.Now()
	if err := r.awaitSilent(ctx, dead); err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	return float64(took), 5e9, r.back(ctx, dead)
}

func (r *clusterRig) awaitSilent(ctx context.Context, dead *clusterNode) error {
	return r.await(ctx, "every node misses "+dead.name, func() bool {
		for _, n := range r.others(dead) {
			for _, y := range n.view().Nodes {
				if y.Name == dead.name && y.Answers {
					return false
				}
			}
		}
		return true
	})
}

// repaired kills a node that has one of two replicas of 64 objects of 16 MiB, and gives the time until others do.
func (r *clusterRig) repaired(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	dead := r.others(lead)[1]
	rate, err := r.stream(lead, r.others(lead)[0], true)
	if err != nil {
		return 0, 0, err
	}
	var ids []object.ID
	for i := range 64 {
		b, err := lead.conn.Create(ctx, 16<<20, client.CreateOptions{})
		if err != nil {
			return 0, 0, err
		}
		b.Bytes()[0] = byte(i)
		o, err := b.Seal(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer o.Release()
		if _, err := lead.conn.Publish(ctx, o.ID(), fmt.Sprint("repair", i), false); err != nil {
			return 0, 0, err
		}
		to := client.ReplicateOptions{To: dead.name, Wanted: 2}
		if _, err := lead.conn.Replicate(ctx, o.ID(), "", to); err != nil {
			return 0, 0, err
		}
		ids = append(ids, o.ID())
	}
	have := func() (n int) {
		for _, id := range ids {
			raw, err := lead.conn.Replicate(ctx, id, "", client.ReplicateOptions{Wanted: 2})
			if err == nil && strings.Contains(string(raw), `"have":2`) {
				n++
			}
		}
		return n
	}
	if err := r.await(ctx, "all have two replicas", func() bool { return have() == len(ids) }); err != nil {
		return 0, 0, err
	}
	dead.kill()
	began := time.Now()
	if err := r.awaitSilent(ctx, dead); err != nil {
		return 0, 0, err
	}
	if err := r.await(ctx, "all have two replicas again", func() bool { return have() == len(ids) }); err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	for _, id := range ids {
		if err := lead.conn.Delete(ctx, id); err != nil {
			return 0, 0, err
		}
	}
	return float64(took), 15e9 + 64*(16<<20)/(rate/10)*1e9, r.back(ctx, dead)
}

// restart publishes 100,000 objects, kills a follower and gives the time until it serves
// and has entered its cluster again.
func (r *clusterRig) restart(ctx context.Context) (float64, float64, error) {
	lead, err := r.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	other := r.others(lead)[0]
	var all sync.WaitGroup
	faults := make([]error, publishersAtOnce)
	for i := range faults {
		all.Go(func() { faults[i] = publishPart(lead, restartObjects/publishersAtOnce+1) })
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		return 0, 0, err
	}
	other.kill()
	began := time.Now()
	if err := other.start(ctx); err != nil {
		return 0, 0, err
	}
	err = r.await(ctx, "the node has entered", func() bool { return other.view().Entered })
	return float64(time.Since(began)), 5e9, err
}

func publishPart(at *clusterNode, n int) error {
	conn, err := client.Dial(context.Background(), client.Options{Socket: at.path("sock")})
	if err != nil {
		return err
	}
	defer conn.Close()
	for range n {
		list, err := putAll(conn, 1)
		if err != nil {
			return err
		}
		_, err = publishAll(conn, list)
		releaseAll(list)
		if err != nil {
			return err
		}
	}
	return nil
}
