// Package placement says where things of the cluster should be: to which node the next replica of an object goes, and
// from which one a node gets it.
//
// It is pure: what it answers depends on its arguments alone, so that every node that knows the same answers the same,
// and that a person can be told why (Choice.Why). Nodes are compared by rendezvous hashing (Thaler and Ravishankar,
// 1998) among those that are equally good: a node that comes or goes moves only what is placed on it.
//
// It trusts its arguments, holds no state and takes no locks.
package placement

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"tendril/store/object"
)

// ID names a node or an object.
type ID = [16]byte

// Node is one member, as the node that places knows it.
type Node struct {
	ID   ID
	Name string
	// Away says why it is not to be used, for people: it does not answer, it is being drained. "" = it is.
	Away string
	// CapacityBytes and FreeBytes are of its store; FreeBytes is meaningless where CapacityBytes is 0: not known.
	CapacityBytes uint64
	FreeBytes     uint64
	// PlacedBytes is what the metadata has there.
	PlacedBytes uint64
	// Transfers are under way there.
	Transfers int
	// Latency and Rate (bytes a second) of the link to it, as they were measured; 0: not known.
	Latency time.Duration
	Rate    float64
}

// Object is what is to be placed or got.
type Object struct {
	ID        ID
	SizeBytes uint64
	Replicas  []ID // nodes that have it
}

// Kind says what a Policy prefers.
type Kind string

// The kinds of policies.
const (
	Spread Kind = "spread" // over the nodes, where memory is free
	Pack   Kind = "pack"   // onto few nodes: the fullest one that has room
	Near   Kind = "near"   // on one node, then on those that a short way leads to
)

// Policy says which of the nodes that have room is better. The zero Policy is Spread.
type Policy struct {
	Kind Kind
	Near ID // for Near
}

// ParsePolicy reads "spread", "pack" or "near NODE"; node finds a node by its name.
func ParsePolicy(s string, node func(name string) (ID, bool)) (Policy, error) {
	switch {
	case s == "" || s == string(Spread):
		return Policy{Kind: Spread}, nil
	case s == string(Pack):
		return Policy{Kind: Pack}, nil
	case len(s) > 5 && s[:5] == "near ":
		if id, ok := node(s[5:]); ok {
			return Policy{Kind: Near, Near: id}, nil
		}
		return Policy{}, fmt.Errorf("%w: policy %.60q: the cluster has no node of that name", object.ErrNotFound, s)
	}
	return Policy{}, fmt.Errorf("%w: policy %.60q: want spread, pack or near NODE", object.ErrInvalid, s)
}

// Choice is one node, and why it stands where it stands.
type Choice struct {
	Node ID
	Name string
	OK   bool   // false: it cannot be
	Full bool   // it cannot be for want of room
	Why  string // for people

	rank [4]int // the smaller, the better; compared in order
	hash float64
}

// reserve is what stays free on a node beside the object: an eighth of its store, so that its own programs find room.
func reserve(n *Node) uint64 { return n.CapacityBytes / 8 }

// hasRoom reports whether an object fits, and how much is free; a node of which nothing is known has room until it says
// that it has none.
func hasRoom(n *Node, size uint64) bool {
	return n.CapacityBytes == 0 || n.FreeBytes >= size && n.FreeBytes-size >= reserve(n)
}

// Targets ranks the nodes for the next replica of an object, best first; those that cannot be come last. It never names
// a node that has a replica as one that can be.
func Targets(o Object, nodes []Node, p Policy) []Choice {
	list := make([]Choice, 0, len(nodes))
	for i := range nodes {
		list = append(list, target(o, &nodes[i], p))
	}
	return order(list)
}

func target(o Object, n *Node, p Policy) Choice {
	c := Choice{Node: n.ID, Name: n.Name}
	switch {
	case slices.Contains(o.Replicas, n.ID):
		c.Why = "it has a replica"
		if n.Away != "" {
			c.Why += ", but is away: " + n.Away
		}
		return c
	case n.Away != "":
		c.Why = n.Away
		return c
	case !hasRoom(n, o.SizeBytes):
		c.Full = true
		c.Why = fmt.Sprintf("no room: %s, and an eighth is to stay free", freeText(n))
		return c
	}
	c.OK, c.hash = true, weighted(o.ID, n.ID, 1)
	switch p.Kind {
	case Pack:
		c.rank[0] = freeStep(n)
		c.Why = fmt.Sprintf("pack: %s", freeText(n))
	case Near:
		c.rank[0] = boolRank(n.ID == p.Near)
		c.rank[1] = latencyStep(n.Latency)
		c.Why = nearText(n, p)
	default:
		weight := 1.0
		if n.CapacityBytes > 0 { // in steps, so that what is written every second moves nothing
			weight = math.Exp2(float64(freeStep(n)))
		}
		c.hash = weighted(o.ID, n.ID, weight)
		c.Why = fmt.Sprintf("spread: %s", freeText(n))
	}
	return c
}

// freeStep is the power of two of a node's free bytes.
func freeStep(n *Node) int { return bits.Len64(n.FreeBytes) }

func freeText(n *Node) string {
	if n.CapacityBytes == 0 {
		return "its free memory is not known"
	}
	return fmt.Sprintf("%s of %s are free", humanize.IBytes(n.FreeBytes), humanize.IBytes(n.CapacityBytes))
}

func nearText(n *Node, p Policy) string {
	switch {
	case n.ID == p.Near:
		return "near: it is the node"
	case n.Latency == 0:
		return "near: the way to it was not measured"
	}
	return fmt.Sprintf("near: %v away", n.Latency.Round(time.Microsecond))
}

func boolRank(better bool) int {
	if better {
		return 0
	}
	return 1
}

// latencyStep is the power of two of a latency in steps of 16 µs; what is not known comes behind what is.
func latencyStep(d time.Duration) int {
	if d <= 0 {
		return 64
	}
	return bits.Len64(uint64(d / (16 * time.Microsecond)))
}

// Sources ranks the nodes that have an object, as the node self is to ask them: those that answer, then those that few
// others ask, over the faster link. A node that is away comes behind all others: it may answer all the same.
func Sources(o Object, nodes []Node, self ID) []Choice {
	var list []Choice
	for i := range nodes {
		n := &nodes[i]
		if n.ID == self || !slices.Contains(o.Replicas, n.ID) {
			continue
		}
		c := Choice{Node: n.ID, Name: n.Name, OK: true, hash: weighted(o.ID, mix(n.ID, self), 1)}
		c.rank = [4]int{boolRank(n.Away == ""), expected(o.SizeBytes, n)}
		c.Why = n.Away
		if c.Why == "" {
			c.Why = linkText(o.SizeBytes, n)
		}
		list = append(list, c)
	}
	return order(list)
}

// expected is the power of two of the time that a transfer will take, in steps of 100 µs. What was not measured counts
// as a link of 1 GB/s with 100 µs.
func expected(size uint64, n *Node) int {
	return bits.Len64(uint64(takes(size, n) / (100 * time.Microsecond)))
}

func takes(size uint64, n *Node) time.Duration {
	rate, latency := n.Rate, n.Latency
	if rate <= 0 {
		rate = 1e9
	}
	if latency <= 0 {
		latency = 100 * time.Microsecond
	}
	share := rate / float64(1+max(n.Transfers, 0))
	return latency + time.Duration(math.Min(float64(size)/share*float64(time.Second), float64(24*time.Hour)))
}

func linkText(size uint64, n *Node) string {
	measured := "not measured yet"
	if n.Rate > 0 {
		measured = fmt.Sprintf("%.0f MB/s", n.Rate/1e6)
	}
	return fmt.Sprintf("link %s, %d transfers there, expected %v", measured, n.Transfers,
		takes(size, n).Round(100*time.Microsecond))
}

// order sorts choices: by rank, then by the hash, then by the node's id.
func order(list []Choice) []Choice {
	slices.SortFunc(list, func(a, b Choice) int {
		return cmp.Or(boolRank(a.OK)-boolRank(b.OK), slices.Compare(a.rank[:], b.rank[:]), cmp.Compare(b.hash, a.hash),
			bytes.Compare(a.Node[:], b.Node[:]))
	})
	return list
}

// weighted is the rendezvous hash of an object on a node with a weight: the greatest wins, in proportion to the weight.
func weighted(object, node ID, weight float64) float64 {
	h := fnv.New64a()
	h.Write(object[:])
	h.Write(node[:])
	x := h.Sum64()
	x ^= x >> 33 // finalizer of MurmurHash3: FNV's upper bits depend little on the last bytes
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	u := (float64(x>>11) + 0.5) / (1 << 53)
	return -weight / math.Log(u)
}

// mix makes one id of two.
func mix(a, b ID) (id ID) {
	binary.LittleEndian.PutUint64(id[:], binary.LittleEndian.Uint64(a[:])+3*binary.LittleEndian.Uint64(b[:]))
	binary.LittleEndian.PutUint64(id[8:], binary.LittleEndian.Uint64(a[8:])+3*binary.LittleEndian.Uint64(b[8:]))
	return id
}
