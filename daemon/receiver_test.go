package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"tendril/client"
	"tendril/cluster/transfer"
	"tendril/ipc"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// cutter ends connections for objects after so many bytes have been read from them.
type cutter struct {
	mu   sync.Mutex
	next []int // of the next connections, in order; those behind them are whole
	cuts int
}

// cutConn is a connection that may be for objects: the first that is written to it says so.
type cutConn struct {
	net.Conn
	cutter *cutter
	asked  bool
	left   int // bytes; < 0: it is whole
}

// forObjects reports whether what a connection begins with says that it is for objects. b has a preface.
func forObjects(b []byte) bool {
	p, err := ipc.ParsePreface((*[ipc.PrefaceBytes]byte)(b))
	return err == nil && p.Kind == ipc.KindTransfer
}

func (c *cutConn) Write(b []byte) (int, error) {
	if !c.asked && len(b) >= ipc.PrefaceBytes {
		c.asked, c.left = true, -1
		if forObjects(b) {
			c.cutter.mu.Lock()
			if x := c.cutter; len(x.next) > 0 {
				c.left, x.next = x.next[0], x.next[1:]
				x.cuts++
			}
			c.cutter.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left < 0 || !c.asked {
		return c.Conn.Read(b)
	}
	if c.left == 0 {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// dial is a nodeDial whose connections are cut.
func (x *cutter) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialTCP(ctx, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: x}, nil
}

// cutCluster is a cluster of two whose second node's connections for objects are cut.
func cutCluster(t *testing.T) (*clusterOf, *cutter) {
	cut := &cutter{}
	return twoDialing(t, cut.dial), cut
}

// twoDialing is a cluster of two whose second node dials in a way of its own.
func twoDialing(t *testing.T, way nodeDial) *clusterOf {
	x := &clusterOf{t: t, ns: newNodes(t)}
	for i := range 2 {
		c := aNode(t, fmt.Sprintf("n%d", i))
		c.Listen = freePort(t)
		d := x.ns.startWith(c, func(d *Daemon) {
			if i == 1 {
				d.dialNode = way
			}
		})
		x.all, x.conns = append(x.all, d), append(x.conns, dial(t, c))
		if i > 0 {
			join(t, x.all[0].cfg, x.all[0], d)
		}
	}
	for _, d := range x.all {
		await.Until(t, "every node knows all", func() bool { return len(clusterInfo(t, d).Nodes) == 2 })
	}
	return x
}

// TestTransfersThatAreCut: connections between two daemons are cut in the midst of TLS's records, at each chunk, and
// around its ends: a get, a replica and a move bring every byte all the same, and leave nothing else behind.
func TestTransfersThatAreCut(t *testing.T) {
	const chunks = 4
	x, cut := cutCluster(t)
	want := noise(9, chunks*transfer.ChunkBytes-3)
	whole := func(what string, i int, id object.ID) {
		t.Helper()
		obj, err := x.conns[i].Get(t.Context(), id, 0)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer obj.Release()
		if !bytes.Equal(obj.Bytes(), want) {
			t.Errorf("%s: other bytes", what)
		}
	}
	n := 0
	for chunk := range chunks + 1 {
		for _, off := range []int{-700, 1, 900, 2500} {
			at := max(1, chunk*transfer.ChunkBytes+off+1)
			name := fmt.Sprint("cut ", at)
			id := x.put(0, name, want, client.CreateOptions{})
			x.share()
			cut.mu.Lock()
			cut.next = []int{at, at / 2}
			cut.mu.Unlock()
			switch n++; n % 3 {
			case 0:
				whole(name+", get", 1, id)
			case 1:
				x.replicate(0, name, client.ReplicateOptions{To: "n1"})
				whole(name+", replicate", 1, id)
			case 2:
				x.replicate(0, name, client.ReplicateOptions{Move: true, To: "n1"})
				whole(name+", migrate", 1, id)
				await.Until(t, "the giver has it no more", func() bool { return !x.has(0, id) })
			}
			cut.mu.Lock()
			cut.next = nil
			cut.mu.Unlock()
			if err := x.conns[0].Delete(context.Background(), id); err != nil && !errors.Is(err, object.ErrNotFound) {
				t.Fatal(err)
			}
			await.Until(t, "it is gone everywhere", func() bool { return !x.has(0, id) && !x.has(1, id) })
		}
	}
	if cut.cuts < n {
		t.Errorf("%d connections were cut in %d transfers", cut.cuts, n)
	}
	for i, d := range x.all {
		await.Until(t, "nothing is left", func() bool {
			s := d.store.Status()
			return s.Objects == 0 && len(d.bringing.list()) == 0
		})
		await.Until(t, fmt.Sprintf("node %d keeps account of no replica", i), func() bool {
			d.replicas.mu.Lock()
			defer d.replicas.mu.Unlock()
			return len(d.replicas.here) == 0
		})
	}
}

// TestReceiverWithoutRoomForTheTenant: where the tenant has no room at a node, whoever wants an object there is told,
// and nothing of it stays; what can go elsewhere goes elsewhere.
func TestReceiverWithoutRoomForTheTenant(t *testing.T) {
	x := newCluster(t, 3, func(i int, c *Config) {
		if i == 1 {
			c.QuotaBytes = 1 << 20
		}
	})
	want := noise(3, 2<<20)
	var ids []object.ID
	for i := range 6 {
		ids = append(ids, x.put(0, fmt.Sprint("o", i), want, client.CreateOptions{}))
	}
	x.share()
	if _, err := x.get(1, "o0"); !errors.Is(err, object.ErrQuota) {
		t.Errorf("get: %v", err)
	}
	ask := func(name string, o client.ReplicateOptions) (s ReplicateStatus, err error) {
		for {
			raw, err := x.conns[0].Replicate(t.Context(), object.ID{}, name, o)
			if err == nil {
				s = ReplicateStatus{}
				err = json.Unmarshal(raw, &s)
			}
			if err != nil || s.Done {
				return s, err
			}
			o.To, o.From = s.To, s.From
		}
	}
	if _, err := ask("o1", client.ReplicateOptions{To: "n1"}); !errors.Is(err, object.ErrQuota) {
		t.Errorf("replicate --to: %v", err)
	}
	if _, err := ask("o2", client.ReplicateOptions{Move: true, To: "n1"}); !errors.Is(err, object.ErrQuota) {
		t.Errorf("migrate: %v", err)
	}
	if s, err := ask("o3", client.ReplicateOptions{Wanted: 2}); err != nil || s.Have != 2 ||
		!slices.Equal(slices.Sorted(slices.Values(s.Nodes)), []string{"n0", "n2"}) { // they are in the order of IDs
		t.Errorf("replicate --replicas 2: %+v, %v", s, err)
	}
	if s, err := ask("o4", client.ReplicateOptions{Wanted: 3}); err != nil || s.Have != 2 ||
		!strings.Contains(s.Why, "quota") {
		t.Errorf("replicate --replicas 3: %+v, %v", s, err)
	}
	if _, err := ask("o3", client.ReplicateOptions{Move: true, From: "n0"}); !errors.Is(err, object.ErrQuota) {
		t.Errorf("a move that would leave too few: %v", err)
	}
	for i, id := range ids { // as tendril drain does
		if i == 3 || i == 4 {
			continue
		}
		await.Until(t, "it has moved", func() bool {
			_, err := ask(fmt.Sprint("o", i), client.ReplicateOptions{Move: true, From: "n0"})
			return err == nil
		})
		await.Until(t, "the giver has it no more", func() bool { return !x.has(0, id) })
		if !x.has(2, id) {
			t.Errorf("object %d is not at the node that has room", i)
		}
	}
	await.Until(t, "nothing stays where there is no room", func() bool { return x.all[1].store.Status().Objects == 0 })
}
