package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/transfer"
	"tendril/ipc"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// clusterOf is nodes of one cluster, each with a client. The first is n0, which alone votes at first.
type clusterOf struct {
	t     *testing.T
	ns    *nodes
	all   []*Daemon
	conns []*client.Conn
}

func newCluster(t *testing.T, n int, change func(i int, c *Config)) *clusterOf {
	t.Helper()
	x := &clusterOf{t: t, ns: newNodes(t)}
	var first Config
	for i := range n {
		c := aNode(t, fmt.Sprintf("n%d", i))
		c.Listen = freePort(t) // what a node tells the cluster of before the port is open
		if change != nil {
			change(i, &c)
		}
		d := x.ns.start(c)
		conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		x.all, x.conns = append(x.all, d), append(x.conns, conn)
		if i == 0 {
			first = c
		} else {
			join(t, first, x.all[0], d)
		}
	}
	for _, d := range x.all {
		await.Until(t, "every node knows all", func() bool { return len(clusterInfo(t, d).Nodes) == n })
	}
	return x
}

// end stops a node.
func (x *clusterOf) end(i int) {
	x.conns[i].Close()
	x.ns.end(x.all[i])
}

// share waits until all know what is published. A node knows what was published at it, and need not lead: the first one
// may hear of that later.
func (x *clusterOf) share() {
	x.t.Helper()
	want := uint64(0)
	for _, d := range x.all {
		want = max(want, d.meta.raft.Status().AppliedIndex)
	}
	for _, d := range x.all {
		await.Until(x.t, "every node knows what is published", func() bool {
			return d.meta.raft.Status().AppliedIndex >= want
		})
	}
}

// add says that a node has a replica.
func (x *clusterOf) add(id object.ID, node int) {
	x.t.Helper()
	var o fsm.Object
	d := x.all[node]
	d.meta.raft.View(func(s *fsm.State) { o, _ = s.Object(fsm.UUID(id)) })
	if _, err := d.propose(&fsm.AddReplica{ID: o.ID, Epoch: o.Epoch,
		Replica: fsm.Replica{Node: d.meta.node, Incarnation: d.meta.incarnation}}); err != nil {
		x.t.Fatal(err)
	}
}

// put makes a published object at node i.
func (x *clusterOf) put(i int, name string, b []byte, o client.CreateOptions) object.ID {
	x.t.Helper()
	o.Name = name
	if o.Class == object.Ephemeral {
		o.Class = object.Named
	}
	buf, err := x.conns[i].Create(context.Background(), uint64(len(b)), o)
	if err != nil {
		x.t.Fatal(err)
	}
	copy(buf.Bytes(), b)
	obj, err := buf.Seal(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	obj.Release()
	if _, err := x.conns[i].Publish(context.Background(), obj.ID(), "", false); err != nil {
		x.t.Fatal(err)
	}
	return obj.ID()
}

// get gets an object at node i and gives a copy of its bytes.
func (x *clusterOf) get(i int, name string) ([]byte, error) {
	obj, err := x.conns[i].GetByName(context.Background(), name, 0)
	if err != nil {
		return nil, err
	}
	defer obj.Release()
	return bytes.Clone(obj.Bytes()), nil
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	from := binary.LittleEndian.AppendUint64(make([]byte, 0, 32), seed)
	rand.NewChaCha8([32]byte(from[:32])).Read(b) // byte by byte the race detector takes ten times as long
	return b
}

// TestMetadataGoesToOtherNodesAsItIs: it is opaque, and may be no JSON, or as long as it can be.
func TestMetadataGoesToOtherNodesAsItIs(t *testing.T) {
	x := newCluster(t, 2, nil)
	for i, meta := range [][]byte{{1, 2, 3, 255, 0}, []byte(` { "a" :1 } `), noise(9, object.MaxMetaBytes), {}} {
		name := fmt.Sprint("meta", i)
		x.put(0, name, noise(1, 5000), client.CreateOptions{Meta: meta})
		x.share()
		obj, err := x.conns[1].GetByName(context.Background(), name, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(obj.Meta(), meta) {
			t.Errorf("%s: %.40q at the other node, not %.40q", name, obj.Meta(), meta)
		}
		obj.Release()
	}
}

func TestGetFromAnotherNode(t *testing.T) {
	x := newCluster(t, 2, nil)
	for _, size := range []int{0, 1, 4096, 70_000, 3<<20 + 17} {
		name, want := fmt.Sprint("size", size), noise(uint64(size), size)
		id := x.put(0, name, want, client.CreateOptions{Meta: []byte(`{"size":1}`)})
		x.share()
		info, err := x.conns[1].StatByName(context.Background(), name)
		if err != nil || info.ID != id || info.SizeBytes != uint64(size) || fmt.Sprint(info.Nodes) != "[n0]" {
			t.Fatalf("stat before: %+v, %v", info, err)
		}
		got, err := x.get(1, name)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %d bytes, %v", name, len(got), err)
		}
		obj, err := x.conns[1].Get(context.Background(), id, 0)
		if err != nil || !bytes.Equal(obj.Bytes(), want) || string(obj.Meta()) != `{"size":1}` {
			t.Fatalf("%s by id: %v", name, err)
		}
		obj.Release()
		if info, err := x.conns[1].Stat(context.Background(),
			id); err != nil || !info.Cached || info.Refs != 0 || len(info.Nodes) != 0 {
			t.Errorf("stat after: %+v, %v", info, err)
		}
	}
	if _, err := x.get(1, "nothing"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("what nobody has: %v", err)
	}
	x.end(0) // the copy is here
	if got, err := x.get(1, "size4096"); err != nil || !bytes.Equal(got, noise(4096, 4096)) {
		t.Errorf("after the node's end: %v", err)
	}
}

// TestGetOverBytesFromAnotherNode: Hold, ReadRange and Checksum bring an object, too.
func TestGetOverBytesFromAnotherNode(t *testing.T) {
	x := newCluster(t, 2, nil)
	want := noise(1, 100_000)
	for i, get := range []func(id object.ID) error{
		func(id object.ID) error {
			_, err := x.conns[1].Checksum(context.Background(), id)
			return err
		},
		func(id object.ID) error {
			b := make([]byte, 10)
			if err := x.conns[1].ReadAt(context.Background(), id, b, 5); err != nil || !bytes.Equal(b, want[5:15]) {
				return fmt.Errorf("%x: %v", b, err)
			}
			return nil
		},
	} {
		id := x.put(0, fmt.Sprint(i), want, client.CreateOptions{})
		x.share()
		if err := get(id); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestOneTransferForAll: however many want an object at once, it is brought once.
func TestOneTransferForAll(t *testing.T) {
	x := newCluster(t, 2, nil)
	want := noise(2, 8<<20)
	x.put(0, "once", want, client.CreateOptions{})
	x.share()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got, err := x.get(1, "once"); err != nil || !bytes.Equal(got, want) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	d := x.all[1]
	d.bringing.mu.Lock()
	rate := d.bringing.rates[x.all[0].meta.node]
	under := len(d.bringing.all)
	d.bringing.mu.Unlock()
	if rate <= 0 || under != 0 {
		t.Errorf("%v bytes a second, %d under way", rate, under)
	}
	if s := d.store.Status(); s.UsedBytes != 8<<20 {
		t.Errorf("%d bytes of objects here", s.UsedBytes)
	}
}

// holdBack holds what comes to a node by its connections for objects, behind what they begin with, until it is let go.
type holdBack struct {
	mu    sync.Mutex
	goOn  chan struct{} // closed where nothing is held
	going bool
}

func newHoldBack() *holdBack { return &holdBack{goOn: make(chan struct{})} }

// letGo holds nothing any more.
func (h *holdBack) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.going {
		h.going = true
		close(h.goOn)
	}
}

// hold holds again.
func (h *holdBack) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.going {
		h.going, h.goOn = false, make(chan struct{})
	}
}

func (h *holdBack) held() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.goOn
}

// beginning is more than a handshake takes, in bytes, and less than an object of these tests.
const beginning = 32 << 10

// heldConn is a connection of a node that is held.
type heldConn struct {
	net.Conn
	holder    *holdBack
	asked     bool
	transfers bool
	read      int // bytes
}

func (c *heldConn) Write(b []byte) (int, error) {
	if !c.asked && len(b) >= ipc.PrefaceBytes {
		c.asked, c.transfers = true, forObjects(b)
	}
	return c.Conn.Write(b)
}

func (c *heldConn) Read(b []byte) (int, error) {
	if c.transfers && c.read >= beginning {
		<-c.holder.held()
	} else if c.transfers {
		b = b[:min(len(b), beginning-c.read)]
	}
	n, err := c.Conn.Read(b)
	c.read += n
	return n, err
}

// dial is a nodeDial whose connections are held.
func (h *holdBack) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialTCP(ctx, address)
	if err != nil {
		return nil, err
	}
	return &heldConn{Conn: conn, holder: h}, nil
}

// TestGetJoinsATransfer: who comes while an object is on its way waits for it, whichever way it is asked for.
func TestGetJoinsATransfer(t *testing.T) {
	h := newHoldBack()
	x := twoDialing(t, h.dial)
	t.Cleanup(h.letGo)
	for how, get := range map[string]func(c *client.Conn, id object.ID, name string) ([]byte, error){
		"by name": func(c *client.Conn, _ object.ID, name string) ([]byte, error) {
			o, err := c.GetByName(t.Context(), name, 0)
			if err != nil {
				return nil, err
			}
			return o.Bytes(), nil
		},
		"by id": func(c *client.Conn, id object.ID, _ string) ([]byte, error) {
			o, err := c.Get(t.Context(), id, 0)
			if err != nil {
				return nil, err
			}
			return o.Bytes(), nil
		},
		"many": func(c *client.Conn, id object.ID, _ string) ([]byte, error) {
			list, err := c.GetMany(t.Context(), []client.Wanted{{ID: id}}, 5*time.Minute)
			if err != nil {
				return nil, err
			}
			return list[0].Bytes(), nil
		},
		"bytes": func(c *client.Conn, id object.ID, _ string) ([]byte, error) {
			b := make([]byte, 4<<20)
			return b, c.ReadAt(context.Background(), id, b, 0)
		},
	} {
		want := noise(14, 4<<20)
		h.hold()
		id := x.put(0, how, want, client.CreateOptions{})
		x.share()
		var first sync.WaitGroup
		first.Go(func() {
			if got, err := x.get(1, how); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: the first one: %v", how, err)
			}
		})
		await.Until(t, "the object is on its way", func() bool { return x.all[1].store.Status().OpenObjects > 0 })
		conn := dial(t, x.all[1].cfg)
		first.Go(func() {
			if got, err := get(conn, id, how); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: while it is on its way: %v", how, err)
			}
		})
		time.Sleep(100 * time.Millisecond) // Pause: it is asked for a second time. If not, the outcome is the same.
		h.letGo()
		first.Wait()
	}
}

// TestChunksAreBounded: other nodes' requests have a bounded part of a daemon's heap, and those beyond get their bytes
// all the same.
func TestChunksAreBounded(t *testing.T) {
	x := newCluster(t, 2, nil)
	b, want := x.all[0].bringing, noise(18, 4<<20)
	x.put(0, "read from a mapping", want, client.CreateOptions{})
	x.share()
	all := make([]heldObject, maxChunks+1)
	for i := range all {
		all[i].from = b
		if took := all[i].takeChunk(); took != (i < maxChunks) {
			t.Errorf("chunk %d: %v", i, took)
		}
	}
	if got, err := x.get(1, "read from a mapping"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("beyond the bound: %v", err)
	}
	for i := range all {
		all[i].giveChunk()
	}
	await.Until(t, "all are given back", func() bool { return b.reading.Load() == 0 })
}

// TestDeleteWhileItIsBrought: the node at which an object is deleted may be about to get a copy of it.
func TestDeleteWhileItIsBrought(t *testing.T) {
	h := newHoldBack()
	x := twoDialing(t, h.dial)
	t.Cleanup(h.letGo)
	id := x.put(0, "large", noise(15, 16<<20), client.CreateOptions{})
	x.share()
	got := make(chan error, 1)
	go func() { _, err := x.get(1, "large"); got <- err }()
	await.Until(t, "the object is on its way", func() bool { return x.all[1].store.Status().OpenObjects > 0 })
	conn := dial(t, x.all[1].cfg)
	info, err := conn.Stat(context.Background(), id)
	if err != nil || info.State != object.Sealed || !slices.Equal(info.Nodes, []string{"n0"}) {
		t.Errorf("stat while it is on its way: %+v, %v", info, err)
	}
	if err := conn.Delete(context.Background(), id); err != nil {
		t.Fatalf("delete while it is on its way: %v", err)
	}
	h.letGo()
	err = <-got
	if errors.Is(err, object.ErrBusy) { // this node's metadata has not come to the delete yet
		await.Until(t, "who asks again hears that it is gone", func() bool {
			_, err = x.get(1, "large")
			return !errors.Is(err, object.ErrBusy)
		})
	}
	if !errors.Is(err, object.ErrNotFound) {
		t.Errorf("who waited for it: %v", err)
	}
	for i := range x.all {
		await.Until(t, "no node has it", func() bool { return !x.has(i, id) })
	}
}

// TestFallsBackToAnotherReplica: where the best node does not run, and where its bytes are damaged.
func TestFallsBackToAnotherReplica(t *testing.T) {
	x := newCluster(t, 3, nil)
	want := noise(3, 5<<20)
	for _, name := range []string{"dead", "both dead"} {
		id := x.put(0, name, want, client.CreateOptions{})
		x.share()
		if _, err := x.get(1, name); err != nil {
			t.Fatal(err)
		}
		x.add(id, 1) // the copy counts as a replica from now on
	}
	x.share()
	x.end(0)
	got, err := x.get(2, "dead")
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("with one node left: %v", err)
	}
	x.end(1)
	_, err = x.get(2, "both dead")
	if err == nil || !strings.Contains(err.Error(), "n0") || !strings.Contains(err.Error(), "n1") {
		t.Errorf("with none left: %v", err)
	}
	if s := x.all[2].store.Status(); s.UsedBytes != 5<<20 {
		t.Errorf("%d bytes of objects: nothing of one that did not arrive is here", s.UsedBytes)
	}
}

// TestCopyMakesWay: a cached copy goes when memory is short, and comes back when it is wanted.
func TestCopyMakesWay(t *testing.T) {
	x := newCluster(t, 2, func(_ int, c *Config) {
		c.CapacityBytes, c.QuotaBytes, c.HighBytes, c.SpillBytes = 32<<20, 32<<20, 32<<20, -1
	})
	want := noise(4, 12<<20)
	id := x.put(0, "copy", want, client.CreateOptions{})
	x.share()
	if _, err := x.get(1, "copy"); err != nil {
		t.Fatal(err)
	}
	create := func(what string, size uint64) (buf *client.Buffer) {
		await.Until(t, what, func() (there bool) { // a process that just starts has the copy's memory for a moment
			var err error
			buf, err = x.conns[1].Create(context.Background(), size, client.CreateOptions{Own: true})
			if err != nil && !errors.Is(err, object.ErrFull) {
				t.Fatal(err)
			}
			return err == nil
		})
		return buf
	}
	buf := create("room for an object that needs the copy's memory", 24<<20)
	if info, err := x.conns[1].Stat(context.Background(), id); err != nil || info.Cached || len(info.Nodes) != 1 {
		t.Errorf("the copy: %+v, %v", info, err)
	}
	if err := buf.Abort(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := x.get(1, "copy"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("again: %v", err)
	}
	big := create("room for a large one", 28<<20)
	defer big.Abort(context.Background())
	if _, err := x.get(1, "copy"); !errors.Is(err, object.ErrFull) || !strings.Contains(err.Error(), "cannot be brought") {
		t.Errorf("without room: %v", err)
	}
}

// TestUnpublishReachesCopies: what is published no longer is gone everywhere, but for who holds it.
func TestUnpublishReachesCopies(t *testing.T) {
	x := newCluster(t, 2, nil)
	id := x.put(0, "gone", noise(5, 1<<20), client.CreateOptions{})
	kept := x.put(0, "kept", noise(6, 4096), client.CreateOptions{})
	x.share()
	for _, name := range []string{"gone", "kept"} {
		if _, err := x.get(1, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.conns[1].Bind(context.Background(), kept, "mine", false); err != nil {
		t.Fatal(err)
	}
	held, err := x.conns[1].Get(context.Background(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for _, name := range []string{"gone", "kept"} {
		if err := x.conns[0].Unpublish(context.Background(), name); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "the copy is gone", func() bool {
		_, err := x.conns[1].Stat(context.Background(), id)
		return errors.Is(err, object.ErrNotFound)
	})
	if !bytes.Equal(held.Bytes(), noise(5, 1<<20)) {
		t.Error("who holds it has other bytes")
	}
	if got, err := x.get(1, "mine"); err != nil || len(got) != 4096 {
		t.Errorf("one that got a name here: %v", err)
	}
}

// TestOnlyMembersGetObjects: a client's certificate does not do, nor a node's that is no member; and nodes get nothing
// that is not published, of another tenant, or of an earlier life of this node.
func TestOnlyMembersGetObjects(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	x := newCluster(t, 2, nil)
	a, b := x.all[0], x.all[1]
	want := noise(7, 10_000)
	id := x.put(0, "secret", want, client.CreateOptions{})
	private, err := x.conns[0].Create(context.Background(), 10_000, client.CreateOptions{Name: "private",
		Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := private.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	x.share()
	tenant := x.conns[0].Daemon().Tenant
	to := transfer.Source{Node: a.meta.node, Name: "n0", Incarnation: a.meta.incarnation}
	job := func() transfer.Job {
		return transfer.Job{ID: id, Tenant: tenant, Epoch: 1, SizeBytes: 10_000, Into: intoMemory{tempFile(t), 0},
			Sources: []transfer.Source{to}}
	}
	pull := func(change func(*transfer.Job)) error {
		j := job()
		change(&j)
		_, err := transfer.Pull(context.Background(), j, b.dialTransfer)
		return err
	}
	if err := pull(func(*transfer.Job) {}); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		change func(*transfer.Job)
		want   error
	}{
		"not published":    {func(j *transfer.Job) { j.ID = sealed.ID() }, object.ErrNotFound},
		"another tenant's": {func(j *transfer.Job) { j.Tenant = "uid:77" }, object.ErrNotFound},
		"another size":     {func(j *transfer.Job) { j.SizeBytes = 9_999 }, object.ErrStorage},
		"an earlier life":  {func(j *transfer.Job) { j.Sources[0].Incarnation[3] ^= 1 }, object.ErrPermission},
		"no node":          {func(j *transfer.Job) { j.Sources[0].Node[3] ^= 1 }, object.ErrBusy},
	} {
		if err := pull(x.change); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A client's certificate, with the nodes' protocol.
	token := newToken(t, x.conns[0], admin.TokenOptions{})
	in, err := login.Login(context.Background(), a.address(), token, "laptop")
	if err != nil {
		t.Fatal(err)
	}
	keyring, err := pki.OpenKeyring(t.Context(), filepath.Join(in.Dir, pki.ClientFile), "laptop",
		a.meta.authority.Load().authority.Load().Trust(), nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	forged := a.meta.now.Load()
	stranger := pki.Subject{Name: "x", Role: pki.Node, Node: object.NewID().String()}
	other, err := pki.OpenKeyring(t.Context(), filepath.Join(t.TempDir(), pki.NodeFile), "x",
		forged.authority.Load().Trust(), pki.IssueFrom(forged.authority.Load(), stranger, pki.NodeLife, nil), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for name, own := range map[string]*pki.Keyring{"a client": keyring, "a node that is no member": other} {
		j := job()
		_, err := transfer.Pull(t.Context(), j, func(ctx context.Context, s transfer.Source) (net.Conn, error) {
			raw, err := net.Dial("tcp", a.address())
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { raw.Close() })
			return shakeHands(ctx, raw, ipc.KindTransfer, pki.NodeConfig(own.Certificate, forged.verifier(),
				a.meta.node.String(), transfer.Protocol))
		})
		info, bad := j.Into.(intoMemory).file.Stat()
		if err == nil || bad != nil || info.Size() > 0 {
			t.Errorf("%s got an object as nodes do: %v, %v", name, err, bad)
		}
	}
	if err := pull(func(*transfer.Job) {}); err != nil {
		t.Errorf("a member, still: %v", err)
	}
}

func TestPlaceSaysWhy(t *testing.T) {
	x := newCluster(t, 3, nil)
	id := x.put(0, "here", noise(8, 1000), client.CreateOptions{})
	x.share()
	ask := func(node int, policy string) (s PlaceStatus, err error) {
		raw, err := admin.Of(x.conns[node]).Place(context.Background(), id, "", policy)
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		return s, err
	}
	s, err := ask(1, "near n2")
	if err != nil || len(s.Targets) != 3 || s.Targets[0].Node != "n2" || !s.Targets[0].Can || s.Targets[2].Node != "n0" ||
		s.Targets[2].Can || len(s.Sources) != 1 || s.Sources[0].Node != "n0" {
		t.Errorf("%+v, %v", s, err)
	}
	x.end(2)
	await.Until(t, "n1 knows that n2 is silent", func() bool { return !x.all[1].answers(x.all[2].meta.node) })
	if s, err = ask(1, "near n2"); err != nil || s.Targets[0].Node != "n1" || s.Targets[0].Why == "" {
		t.Errorf("without n2: %+v, %v", s, err)
	}
	for policy, want := range map[string]error{"near n9": object.ErrNotFound, "best": object.ErrInvalid} {
		if _, err := ask(1, policy); !errors.Is(err, want) {
			t.Errorf("%q: %v", policy, err)
		}
	}
	if _, err := admin.Of(x.conns[1]).Place(context.Background(), object.ID{}, "nothing", ""); !errors.Is(err,
		object.ErrNotFound) {
		t.Errorf("what is not published: %v", err)
	}
}

func tempFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "into")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
