package frontdoor

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// publishingCluster has one tenant's published names.
type publishingCluster struct {
	fakeCluster
	mu       sync.Mutex
	ids      map[string]object.ID
	changed  chan struct{}
	resolved int // times that a name was found
}

func newPublishingCluster() *publishingCluster {
	return &publishingCluster{ids: make(map[string]object.ID), changed: make(chan struct{})}
}

func (c *publishingCluster) Resolve(tenant, name string) (object.ID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.ids[name]
	if !ok {
		return id, fmt.Errorf("%w: %q", object.ErrNotFound, name)
	}
	c.resolved++
	return id, nil
}

func (c *publishingCluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// publish replaces what is published under a name; with the zero id nothing is.
func (c *publishingCluster) publish(name string, id object.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids[name] = id; id.IsZero() {
		delete(c.ids, name)
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *publishingCluster) times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resolved
}

// sealed makes a sealed object.
func sealed(t *testing.T, c *store.Conn, class object.Class, name string) object.ID {
	t.Helper()
	h, err := c.Create(store.Spec{SizeBytes: 100, Class: class, Name: name})
	if err == nil {
		unix.Close(h.FD)
		err = c.Seal(h.ID, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h.ID
}

func connectTo(t *testing.T, s *store.Store) *store.Conn {
	t.Helper()
	c, err := s.Connect(store.Owner{Tenant: "t"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// awaited has a peer wait for a name.
func awaited(t *testing.T, d *door, name string) *peer {
	t.Helper()
	p := d.dial(t).hello()
	p.send(wire.Get, 5, &wire.GetRequest{Name: name, WaitMS: 1 << 30})
	waitFor(t, func() bool { return len(d.named.tenants()) == 1 })
	return p
}

func (p *peer) mustGet(want object.ID) {
	p.t.Helper()
	f, err := p.receive()
	if err != nil {
		p.t.Fatal(err)
	}
	f.CloseFDs()
	var m wire.GetReply
	if err := m.Decode(f.Payload); err != nil || f.Request != 5 || m.ID != want {
		p.t.Fatalf("%v %d, object %s, %v; want object %s", f.Type, f.Request, m.ID, err, want)
	}
}

// TestWhatWasPublishedIsGone: an object that is gone before who waits for its published name has it ends nobody's
// waiting, for an object of that name or for the next one that is published under it, and keeps nobody busy.
func TestWhatWasPublishedIsGone(t *testing.T) {
	for _, next := range []string{"put", "published"} {
		t.Run(next, func(t *testing.T) {
			cluster := newPublishingCluster()
			d := open(t, func(o *Options) { o.Cluster = cluster })
			p := awaited(t, d, "n")
			cluster.publish("n", object.NewID())
			waitFor(t, func() bool { return cluster.times() > 0 })
			c := connectTo(t, d.store)
			if next == "put" {
				p.mustGet(sealed(t, c, object.Named, "n"))
				return
			}
			id := sealed(t, c, object.Ephemeral, "")
			cluster.publish("n", id)
			p.mustGet(id)
		})
	}
}

// slowCluster takes its time to find a name, and counts.
type slowCluster struct {
	fakeCluster
	looks map[string]int // by tenant
}

func (c *slowCluster) Resolve(tenant, name string) (object.ID, error) {
	if c.looks[tenant]++; tenant == "loud" {
		time.Sleep(100 * time.Microsecond) // Pause: it stands for a machine with more to do
	}
	return object.ID{}, fmt.Errorf("%w: %q", object.ErrNotFound, name)
}

// A tenant that waits for many names delays nobody else's look at what was published, or at what is published next.
func TestManyNamesDelayTheirOwnTenant(t *testing.T) {
	cluster := &slowCluster{looks: map[string]int{}}
	s := &Server{opts: Options{Cluster: cluster}}
	loud := &connection{srv: s, peer: Peer{Tenant: "loud"}}
	quiet := &connection{srv: s, peer: Peer{Tenant: "quiet"}}
	const many = 20 * namesStep
	for i := range many {
		s.named.add(&pendingRequest{c: loud, wanted: []store.Wanted{{Name: fmt.Sprint(i)}}})
	}
	s.named.add(&pendingRequest{c: quiet, wanted: []store.Wanted{{Name: "n"}}})
	looks := map[string]*nameLook{}
	for change := 1; change <= 2; change++ {
		s.changed(looks)
		for end := time.Now().Add(5 * time.Minute); cluster.looks["quiet"] < change; {
			if s.lookOn(looks); time.Now().After(end) {
				t.Fatalf("after change %d nobody looks at the name: %v", change, cluster.looks)
			}
		}
	}
	if cluster.looks["loud"] >= many {
		t.Errorf("two looks at one name waited for %d at another tenant's %d", cluster.looks["loud"], many)
	}
	for len(looks["loud"].left) > 0 {
		s.lookOn(looks)
	}
	if n := cluster.looks["loud"]; n != many {
		t.Errorf("a look at %d names looked at %d", many, n)
	}
}

// TestWhatIsPublishedIsOnDisk: it comes back for who waits for its published name.
func TestWhatIsPublishedIsOnDisk(t *testing.T) {
	opts := store.Options{CapacityBytes: 64 << 20, SpillDir: t.TempDir()}
	s, err := store.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	id := sealed(t, connectTo(t, s), object.Persisted, "own")
	s.Close()
	if s, err = store.New(opts); err != nil { // all that it has is on disk
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cluster := newPublishingCluster()
	d := open(t, func(o *Options) { o.Cluster, o.Store = cluster, s })
	p := awaited(t, d, "published")
	cluster.publish("published", id)
	p.mustGet(id)
}

// TestNobodyWaitsForANamePublished: while nobody waits, a change of the metadata wakes nobody.
func TestNobodyWaitsForANamePublished(t *testing.T) {
	cluster := newPublishingCluster()
	s := &Server{opts: Options{Cluster: cluster}}
	s.named.first = make(chan struct{}, 1)
	looks := map[string]*nameLook{}
	if s.changed(looks) != nil {
		t.Fatal("the metadata's changes are waited for though nobody waits for a name")
	}
	r := &pendingRequest{c: &connection{srv: s, peer: Peer{Tenant: "t"}}, wanted: []store.Wanted{{Name: "n"}}}
	s.named.add(r)
	select {
	case <-s.named.first:
	default:
		t.Fatal("the first who waits was not told of")
	}
	if s.changed(looks) == nil || !looks["t"].due {
		t.Fatal("nobody looks at the name")
	}
	s.named.remove(r)
	if s.changed(looks) != nil {
		t.Fatal("the metadata's changes are waited for though nobody waits any longer")
	}
}
