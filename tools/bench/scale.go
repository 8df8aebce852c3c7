package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
)

const (
	idleClients = 2000
	idleLimit   = 32 << 10

	// An hour of a writer that makes an object each 70 ms, in one go.
	churnWriters = 4
	churnObjects = 50000
	churnLive    = 64 // objects that a writer keeps at a time
	churnLargest = 4 << 20
)

// scaleBenchmarks measures what grows: with clients, with objects, with time.
func scaleBenchmarks(r *rig) []benchmark {
	all := []benchmark{
		{name: "store/idle-client/clients=2000", unit: "B", against: "32 KiB", atMost: 1, once: true,
			measure: func() (float64, float64, error) {
				v, err := idleCost(r)
				return v, idleLimit, err
			}},
		{name: "store/mapped÷used/random-sizes", unit: "", against: "1", atMost: 1.25, once: true,
			measure: func() (float64, float64, error) {
				v, err := fragmentation(r)
				return v, 1, err
			}},
	}
	for _, n := range []int{100_000, 1_000_000} {
		all = append(all, benchmark{
			name: fmt.Sprintf("store/create+get+delete/objects=%d", n), unit: "ns",
			against: "the same among 1,000 objects", atMost: 1.3, once: true,
			measure: func() (float64, float64, error) { return amongObjects(r, n) },
		})
	}
	return all
}

// idleCost gives what the daemon's resident memory grows by for each of many clients that have said Hello.
func idleCost(r *rig) (float64, error) {
	first, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer first.Close()
	pid := first.Daemon().PID
	before, err := residentBytes(pid)
	if err != nil {
		return 0, err
	}
	list := make([]*client.Conn, 0, idleClients)
	defer func() {
		for _, c := range list {
			c.Close()
		}
	}()
	for range idleClients {
		c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
		if err != nil {
			return 0, fmt.Errorf("client %d: %w", len(list)+1, err)
		}
		list = append(list, c)
	}
	after, err := residentBytes(pid)
	return max(float64(after)-float64(before), 1) / idleClients, err
}

// residentBytes reads a process's resident memory but for what it shares: the store's own.
func residentBytes(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon", pid)
}

// fragmentation lets writers make and drop objects of random sizes and gives what the store has mapped for them ÷ what
// is in use, while they hold on to what they have.
func fragmentation(r *rig) (float64, error) {
	conns := make([]*client.Conn, churnWriters)
	errs := make([]error, churnWriters)
	live := make([][]*client.Object, churnWriters)
	for i := range conns {
		var err error
		if conns[i], err = client.Dial(context.Background(), client.Options{Socket: r.socket}); err != nil {
			return 0, err
		}
		defer conns[i].Close()
	}
	var wait sync.WaitGroup
	for i, c := range conns {
		wait.Go(func() { live[i], errs[i] = churn(c, uint64(i)) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	time.Sleep(25 * time.Second) // what nobody needs goes back by itself: after 10 s, with the writer's next sweep
	raw, err := admin.Of(conns[0]).Status(context.Background())
	if err != nil {
		return 0, err
	}
	var status struct {
		Store struct {
			SegmentBytes uint64 `json:"segment_bytes"`
			UsedBytes    uint64 `json:"used_bytes"`
		} `json:"store"`
	}
	if err := json.Unmarshal(raw, &status); err != nil {
		return 0, err
	}
	for _, objects := range live {
		for _, o := range objects {
			o.Release()
		}
	}
	return float64(status.Store.SegmentBytes) / float64(status.Store.UsedBytes), nil
}

// churn makes objects, their sizes spread evenly over the powers of two, and drops a random one for each beyond
// churnLive.
func churn(c *client.Conn, seed uint64) (live []*client.Object, err error) {
	random := rand.New(rand.NewPCG(seed, 4))
	for range churnObjects {
		size := uint64(math.Exp2(6 + random.Float64()*(math.Log2(churnLargest)-6)))
		b, err := c.Create(context.Background(), size, client.CreateOptions{})
		if err != nil {
			return live, err
		}
		b.Bytes()[0] = 1
		o, err := b.Seal(context.Background())
		if err != nil {
			return live, err
		}
		if len(live) < churnLive {
			live = append(live, o)
			continue
		}
		i := random.IntN(len(live))
		live[i].Release()
		live[i] = o
	}
	return live, nil
}

// amongObjects gives the time of create, seal, get by name and delete among n objects, and among a thousand, measured
// before.
func amongObjects(r *rig, n int) (value, reference float64, err error) {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	have := 0
	grow := func(to int) error {
		for ; have < to; have++ {
			if _, err := c.Put(context.Background(), nil,
				client.CreateOptions{}); err != nil { // held by the connection until it closes
				return fmt.Errorf("object %d: %w", have, err)
			}
		}
		return nil
	}
	if err := grow(1000); err != nil {
		return 0, 0, err
	}
	if reference, err = lives(c); err != nil {
		return 0, 0, err
	}
	if err := grow(n); err != nil {
		return 0, 0, err
	}
	value, err = lives(c)
	return value, reference, err
}

// lives is the median time of one named object's life, the best of a few rounds.
func lives(c *client.Conn) (float64, error) {
	best := math.Inf(1)
	for range 5 {
		ns, err := perCall(calls, func() error {
			o, err := c.Put(context.Background(), []byte("x"), client.CreateOptions{Name: "bench", Class: object.Named})
			if err != nil {
				return err
			}
			o.Release()
			got, err := c.GetByName(context.Background(), "bench", 0)
			if err != nil {
				return err
			}
			got.Release()
			return c.DeleteByName(context.Background(), "bench")
		})
		if err != nil {
			return 0, err
		}
		best = min(best, ns)
	}
	return best, nil
}
