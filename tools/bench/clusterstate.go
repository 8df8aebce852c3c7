package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/raftnode"
	"tendril/store/object"
)

// Figures of the replicated state machine, in this process: its memory, its snapshot, its look-ups.

const (
	stateObjects = 1_000_000
	lookupNames  = 100_000
)

func stateBenchmarks() []benchmark {
	filled := &filledState{}
	return []benchmark{
		{name: "state/objects=1000000/memory", unit: "B", atMost: 1, once: true, against: "400 B an object",
			measure: filled.memory},
		{name: "state/objects=1000000/snapshot-pause", unit: "ns", atMost: 1, rounds: 2,
			against: "10 ms: for so long the snapshot holds up commands and reads", measure: filled.pause},
		{name: "state/objects=1000000/snapshot", unit: "ns", atMost: 1, rounds: 2,
			against: "10 s: until all is encoded, beside commands", measure: filled.snapshot},
		{name: "state/lookup", unit: "ns", atMost: 1, rounds: 2,
			against: "5 µs, by a follower's own copy, beside 1000 commands a second", measure: lookup},
	}
}

// filledState is a state with objects of 20 tenants, each with one replica and a name of 24 bytes.
type filledState struct {
	state *fsm.State
	nodes []fsm.Node
}

func numbered(kind byte, n int) (u fsm.UUID) {
	u[0] = kind
	binary.BigEndian.PutUint64(u[8:], uint64(n)*0x9e3779b97f4a7c15) // in no order
	binary.BigEndian.PutUint32(u[1:], uint32(n))
	return u
}

// do has a state do a command, as a log's reader does: by way of its bytes.
func do(s *fsm.State, request int, cmd fsm.Command) error {
	raw, err := fsm.Encode(numbered('r', request), cmd)
	if err != nil {
		return err
	}
	result, err := s.Apply(raw)
	return errors.Join(err, result.Err())
}

func publishing(i int, node fsm.Node) *fsm.Publish {
	return &fsm.Publish{Object: fsm.Object{ID: numbered('o', i), Tenant: fmt.Sprint("tenant-", i%20),
		Name: fmt.Sprintf("results/2026/step%08d", i), Class: uint8(object.Named), SizeBytes: 1 << 20,
		Replicas: []fsm.Replica{{Node: node.ID, Incarnation: node.Incarnation}}}}
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func (x *filledState) fill(objects int) error {
	x.state = fsm.New()
	for i := range 100 {
		n := fsm.Node{ID: numbered('n', i), Name: fmt.Sprint("n", i), Incarnation: numbered('i', i)}
		if err := do(x.state, objects+i, &fsm.PutNode{Node: n}); err != nil {
			return err
		}
		x.nodes = append(x.nodes, n)
	}
	for i := range objects {
		if err := do(x.state, i, publishing(i, x.nodes[i%len(x.nodes)])); err != nil {
			return err
		}
	}
	return nil
}

func (x *filledState) memory() (float64, float64, error) {
	before := heap()
	if err := x.fill(stateObjects); err != nil {
		return 0, 0, err
	}
	return (heap() - before) / stateObjects, 400, nil
}

func (x *filledState) pause() (float64, float64, error) {
	began := time.Now()
	x.state.Freeze()
	return float64(time.Since(began)), 10e6, nil
}

func (x *filledState) snapshot() (float64, float64, error) {
	began := time.Now()
	_, err := x.state.Snapshot()
	return float64(time.Since(began)), 10e9, err
}

// lookup finds names in a node's copy while commands change it, and gives the mean time of one.
func lookup() (float64, float64, error) {
	dir, err := os.MkdirTemp("", "tendril-lookup-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n, err := raftnode.Open(ctx, raftnode.Options{Dir: filepath.Join(dir, "raft"), ID: "bench"})
	if err != nil {
		return 0, 0, err
	}
	defer n.Close()
	own := fsm.Node{ID: numbered('n', 0), Name: "n0", Incarnation: numbered('i', 0)}
	if _, err := n.Propose(ctx, fsm.UUID{}, &fsm.PutNode{Node: own}); err != nil {
		return 0, 0, err
	}
	// The state may not be altered by who looks at it; here nobody else does yet.
	n.View(func(s *fsm.State) {
		for i := range lookupNames {
			err = errors.Join(err, do(s, i, publishing(i, own)))
		}
	})
	if err != nil {
		return 0, 0, err
	}
	go func() {
		for i := lookupNames; ctx.Err() == nil; i++ {
			_, _ = n.Propose(ctx, fsm.UUID{}, publishing(i, own))
			time.Sleep(time.Millisecond)
		}
	}()
	random := rand.New(rand.NewPCG(1, 1))
	var took []time.Duration
	for range 20 {
		began := time.Now()
		for range 10_000 {
			i := random.IntN(lookupNames)
			n.View(func(s *fsm.State) {
				if _, ok := s.ObjectByName(fmt.Sprint("tenant-", i%20), fmt.Sprintf("results/2026/step%08d", i)); !ok {
					err = fmt.Errorf("object %d is not there", i)
				}
			})
		}
		took = append(took, time.Since(began)/10_000)
	}
	slices.Sort(took)
	return float64(took[len(took)/2]), 5e3, err
}
