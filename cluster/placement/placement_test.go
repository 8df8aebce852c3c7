package placement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"tendril/store/object"
)

func id(n uint64) (x ID) {
	binary.LittleEndian.PutUint64(x[:], n*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(x[8:], n)
	return x
}

func nodeNamed(n uint64, change func(*Node)) Node {
	x := Node{ID: id(n), Name: fmt.Sprintf("n%d", n), CapacityBytes: 1 << 30, FreeBytes: 1 << 29}
	if change != nil {
		change(&x)
	}
	return x
}

func names(list []Choice) (ok, not []string) {
	for _, c := range list {
		if c.OK {
			ok = append(ok, c.Name)
		} else {
			not = append(not, c.Name)
		}
	}
	return ok, not
}

func TestTargetsByPolicy(t *testing.T) {
	nodes := []Node{
		nodeNamed(1, func(n *Node) { n.FreeBytes = 900 << 20; n.Latency = 5 * time.Millisecond }),
		nodeNamed(2, func(n *Node) { n.FreeBytes = 300 << 20; n.Latency = 100 * time.Microsecond }),
		nodeNamed(3, func(n *Node) { n.FreeBytes = 130 << 20 }), // an eighth has to stay
		nodeNamed(4, func(n *Node) { n.Away = "it does not answer" }),
		nodeNamed(5, nil),
		nodeNamed(6, func(n *Node) { n.Away = "it does not answer" }),
	}
	o := Object{ID: id(77), SizeBytes: 64 << 20, Replicas: []ID{id(5), id(6)}}
	for _, x := range []struct {
		policy Policy
		want   []string
	}{
		{Policy{Kind: Pack}, []string{"n2", "n1"}},
		{Policy{Kind: Near, Near: id(2)}, []string{"n2", "n1"}},
		{Policy{Kind: Near, Near: id(1)}, []string{"n1", "n2"}},
		{Policy{Kind: Near, Near: id(4)}, []string{"n2", "n1"}}, // away: the shortest way
	} {
		ok, not := names(Targets(o, nodes, x.policy))
		if !slices.Equal(ok, x.want) || len(not) != 4 {
			t.Errorf("%+v: %v, cannot be: %v; want %v", x.policy, ok, not, x.want)
		}
	}
	for _, c := range Targets(o, nodes, Policy{}) {
		if c.Why == "" {
			t.Errorf("%s: no reason", c.Name)
		}
		if c.Name == "n1" && c.Why != "spread: 900 MiB of 1.0 GiB are free" {
			t.Errorf("%s: %s", c.Name, c.Why)
		}
		if c.Name == "n6" && c.Why != "it has a replica, but is away: it does not answer" {
			t.Errorf("%s: %s", c.Name, c.Why)
		}
		if c.Full != (c.Name == "n3") {
			t.Errorf("%s: full is %v: %s", c.Name, c.Full, c.Why)
		}
	}
}

// TestSpreadFollowsFreeMemory: a node with four times the free memory gets about four times the replicas.
func TestSpreadFollowsFreeMemory(t *testing.T) {
	nodes := []Node{
		nodeNamed(1, func(n *Node) { n.CapacityBytes, n.FreeBytes = 1<<34, 12<<30 }),
		nodeNamed(2, func(n *Node) { n.CapacityBytes, n.FreeBytes = 1<<34, 3<<30 }),
	}
	var got [2]int
	const objects = 4000
	for i := range objects {
		first := Targets(Object{ID: id(uint64(i)), SizeBytes: 1}, nodes, Policy{Kind: Spread})
		got[slices.IndexFunc(nodes, func(n Node) bool { return n.ID == first[0].Node })]++
	}
	if got[0] < 3*objects/4-objects/20 || got[1] < objects/10 {
		t.Errorf("%v of %d, want about 4 to 1", got, objects)
	}
}

// TestTargetsHoldForRandomClusters: the properties that placement promises.
func TestTargetsHoldForRandomClusters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		nodes := make([]Node, 1+r.IntN(20))
		for i := range nodes {
			nodes[i] = nodeNamed(uint64(i+1), func(n *Node) {
				n.CapacityBytes = uint64(r.IntN(3)) << 30
				n.FreeBytes = r.Uint64N(n.CapacityBytes + 1)
				n.Latency = time.Duration(r.IntN(3)) * time.Millisecond
				if r.IntN(4) == 0 {
					n.Away = "away"
				}
			})
		}
		o := Object{ID: id(r.Uint64()), SizeBytes: r.Uint64N(1 << 31)}
		for _, n := range nodes {
			if r.IntN(3) == 0 {
				o.Replicas = append(o.Replicas, n.ID)
			}
		}
		p := Policy{Kind: []Kind{Spread, Pack, Near}[r.IntN(3)], Near: nodes[r.IntN(len(nodes))].ID}
		list := Targets(o, nodes, p)
		if len(list) != len(nodes) {
			t.Fatalf("%d choices of %d nodes", len(list), len(nodes))
		}
		seenBad := false
		for _, c := range list {
			n := nodes[slices.IndexFunc(nodes, func(n Node) bool { return n.ID == c.Node })]
			can := !slices.Contains(o.Replicas, n.ID) && n.Away == "" &&
				(n.CapacityBytes == 0 || n.FreeBytes >= o.SizeBytes+n.CapacityBytes/8)
			if c.OK != can {
				t.Fatalf("%+v for %+v: %+v", c, o, n)
			}
			if c.OK && seenBad {
				t.Fatalf("a node that cannot be stands before %s", c.Name)
			}
			seenBad = seenBad || !c.OK
		}
		shuffled := slices.Clone(nodes)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := Targets(o, shuffled, p); !reflect.DeepEqual(again, list) {
			t.Fatalf("another order of the nodes, another answer:\n%+v\n%+v", list, again)
		}
	}
}

// TestOneNodeMovesLittle: where a node goes, only what was on it is placed anew; where one comes, what moves goes to
// it.
func TestOneNodeMovesLittle(t *testing.T) {
	var nodes []Node
	for i := range uint64(10) {
		nodes = append(nodes, nodeNamed(i+1, nil))
	}
	first := func(o Object, nodes []Node) ID { return Targets(o, nodes, Policy{})[0].Node }
	moved := 0
	const objects = 2000
	for i := range uint64(objects) {
		o := Object{ID: id(1000 + i), SizeBytes: 1 << 20}
		before, after := first(o, nodes), first(o, nodes[1:])
		if before != after && before != nodes[0].ID {
			t.Fatalf("object %d moved from a node that stayed", i)
		}
		if before != after {
			moved++
		}
	}
	if moved == 0 || moved > objects/5 {
		t.Errorf("%d of %d moved as one of ten nodes went", moved, objects)
	}
}

func TestSourcesByLink(t *testing.T) {
	self := id(9)
	nodes := []Node{
		nodeNamed(1, func(n *Node) { n.Rate, n.Latency = 1e8, time.Millisecond }),
		nodeNamed(2, func(n *Node) { n.Rate, n.Latency = 5e9, 50*time.Microsecond }),
		nodeNamed(3, func(n *Node) { n.Rate, n.Latency, n.Away = 5e9, 50*time.Microsecond, "it does not answer" }),
		nodeNamed(4, func(n *Node) { n.Rate, n.Latency, n.Transfers = 5e9, 50*time.Microsecond, 20 }),
		nodeNamed(5, nil), // has none
		nodeNamed(9, nil),
	}
	o := Object{ID: id(3), SizeBytes: 1 << 30, Replicas: []ID{id(1), id(2), id(3), id(4), self}}
	ok, _ := names(Sources(o, nodes, self))
	if !slices.Equal(ok, []string{"n2", "n4", "n1", "n3"}) {
		t.Errorf("%v", ok)
	}
	if got := Sources(Object{ID: id(1)}, nodes, self); len(got) != 0 {
		t.Errorf("nobody has it: %v", got)
	}
}

// TestSourcesAreShared: nodes that ask for one object do not all ask the same of two that are equally good.
func TestSourcesAreShared(t *testing.T) {
	nodes := []Node{nodeNamed(1, nil), nodeNamed(2, nil)}
	o := Object{ID: id(1), SizeBytes: 1 << 20, Replicas: []ID{id(1), id(2)}}
	asked := map[ID]int{}
	for i := range uint64(200) {
		asked[Sources(o, nodes, id(100+i))[0].Node]++
	}
	if asked[id(1)] < 60 || asked[id(2)] < 60 {
		t.Errorf("%d and %d of 200", asked[id(1)], asked[id(2)])
	}
}

func TestParsePolicy(t *testing.T) {
	find := func(name string) (ID, bool) { return id(1), name == "a b" }
	for text, want := range map[string]Policy{"": {Kind: Spread}, "spread": {Kind: Spread}, "pack": {Kind: Pack},
		"near a b": {Kind: Near, Near: id(1)}} {
		if got, err := ParsePolicy(text, find); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]error{"near": object.ErrInvalid, "near x": object.ErrNotFound,
		"far": object.ErrInvalid} {
		if _, err := ParsePolicy(text, find); !errors.Is(err, want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
