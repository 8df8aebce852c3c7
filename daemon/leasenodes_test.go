package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	programs "tendril/client/session"
	"tendril/cluster/fsm"
	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// fakePlatforms is a platform of n devices, called NODE-0 and so on.
func fakePlatforms(node string, n int) func(context.Context) ([]*workers.Platform, error) {
	p := &workers.Platform{}
	for i := range n {
		p.Snapshot.Devices = append(p.Snapshot.Devices, clwire.DeviceSnapshot{UUID: fmt.Sprintf("%s.%d", node, i)})
	}
	return func(context.Context) ([]*workers.Platform, error) { return []*workers.Platform{p}, nil }
}

// lessee is a program with sessions at one or more nodes.
type lessee struct {
	sessions []lesseeSession
	waits    *client.Conn // that has a place in the line
}

type lesseeSession struct {
	conn    *client.Conn
	devices []string
}

// lives reports whether the daemon has not ended the session.
func (s lesseeSession) lives() bool {
	_, _, err := programs.Of(s.conn).WorkerFate(context.Background(), 0)
	return errors.Is(err, object.ErrNotFound)
}

func (l *lessee) close() {
	for _, s := range l.sessions {
		s.conn.Close()
	}
}

func (l *lessee) devices() (list []string) {
	for _, s := range l.sessions {
		list = append(list, s.devices...)
	}
	return list
}

// leaseAt opens a session with a lease at a daemon, and at the other nodes where the lease has devices.
func leaseAt(t testing.TB, d *Daemon, o clwire.LeaseOptions) (*lessee, error) {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: d.cfg.Socket})
	if err != nil {
		return nil, err
	}
	l := &lessee{}
	snap, err := l.open(conn, o)
	if l.waits != nil { // its place goes with it
		t.Cleanup(func() { l.waits.Close() })
	}
	if err != nil {
		return nil, err
	}
	if len(snap.Lease.Nodes) == 0 {
		return l, nil
	}
	var access *client.Access
	var there []client.ClusterNode
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if access, err = conn.Access(context.Background()); err != nil {
			l.close()
			return nil, err
		}
		there = nil
		for _, n := range access.Nodes {
			if strings.Contains(fmt.Sprint(snap.Lease.Nodes), n.ID.String()) {
				there = append(there, n)
			}
		}
		// Pause: a node that was slow to answer is back soon; one that has ended is done without.
		if len(there) == len(snap.Lease.Nodes) || time.Now().After(until) {
			break
		}
	}
	for _, n := range there {
		far, err := access.DialNode(context.Background(), n, client.Options{})
		if err == nil {
			_, err = l.open(far, clwire.LeaseOptions{Token: snap.Lease.Token})
		}
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// open opens a session and notes its devices; it closes the connection where it fails.
func (l *lessee) open(conn *client.Conn, o clwire.LeaseOptions) (snap clwire.Snapshot, err error) {
	options, err := json.Marshal(clwire.SessionOptions{Protocol: clwire.Version, Lease: &o})
	if err == nil {
		var raw []byte
		if _, raw, err = programs.Of(conn).Open(context.Background(), "test", options); err == nil {
			err = json.Unmarshal(raw, &snap)
		}
	}
	if err != nil && o.Ticket != "" && errors.Is(err, object.ErrBusy) {
		l.waits = conn
	} else if err != nil {
		conn.Close()
	}
	if err != nil {
		return snap, err
	}
	s := lesseeSession{conn: conn}
	for _, p := range snap.Platforms {
		for _, x := range p.Devices {
			s.devices = append(s.devices, x.UUID)
		}
	}
	l.sessions = append(l.sessions, s)
	return snap, nil
}

func allLeasesAt(t testing.TB, d *Daemon) (list []leases.Status) {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: d.cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := admin.Of(conn).Leases(context.Background())
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func answered(t testing.TB, x *clusterOf) {
	for _, d := range x.all {
		await.Until(t, "all nodes answer", func() bool {
			return len(d.othersAnswering(d.meta.now.Load())) == len(x.all)-1
		})
	}
}

// Devices of all nodes are leased, first come, first served, whoever waits where; a lease ends with its program, when
// an administrator says so, and when its program's node does not answer.
func TestLeaseOverNodes(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.keepsPlaces = 2, true
	x := w.cluster(3)
	answered(t, x)
	a, b, c := x.all[0], x.all[1], x.all[2]
	over := clwire.LeaseOptions{Nodes: true, Count: 4}
	ann, err := leaseAt(t, a, over)
	if err != nil {
		t.Fatal(err)
	}
	defer ann.close()
	if got := ann.devices(); len(got) != 4 || len(ann.sessions) != 2 || got[0] != "n0.0" {
		t.Errorf("ann has %v by %d sessions", got, len(ann.sessions))
	}
	for _, d := range x.all {
		await.Until(t, d.cfg.NodeName+" lists ann's lease", func() bool { // a follower hears a little later
			list := allLeasesAt(t, d)
			return len(list) == 1 && list[0].Count == 4 && list[0].Node == "n0" && len(list[0].Nodes) == 4 &&
				list[0].Sessions == 2
		})
	}
	_, err = leaseAt(t, b, clwire.LeaseOptions{Nodes: true, Count: 3})
	if !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "has one since") {
		t.Errorf("bob, who does not wait: %v", err)
	}
	if _, err = leaseAt(t, b, clwire.LeaseOptions{Nodes: true, Count: 7}); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("more than there are: %v", err)
	}
	bobs := clwire.LeaseOptions{Nodes: true, Count: 3, Ticket: "bob"}
	if _, err := leaseAt(t, b, bobs); !errors.Is(err, object.ErrBusy) {
		t.Errorf("bob, who waits: %v", err)
	}
	free := c // the node whose two devices ann has not
	if strings.Contains(fmt.Sprint(ann.devices()), "n2.") {
		free = b
	}
	for _, later := range []clwire.LeaseOptions{{Count: 1}, {Count: 1, Nodes: true}} {
		if _, err := leaseAt(t, free, later); !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "waits") {
			t.Errorf("eve, who came after bob: %v", err)
		}
	}
	ann.close()
	var bob *lessee
	await.Until(t, "bob has what he waits for", func() bool { bob, err = leaseAt(t, b, bobs); return err == nil })
	defer bob.close()
	var eve *lessee
	await.Until(t, "eve has a whole node", func() bool { // what ann had at another node is free a moment later
		eve, err = leaseAt(t, c, clwire.LeaseOptions{Nodes: true, Whole: true})
		if err != nil && !errors.Is(err, object.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
	defer eve.close()
	if len(eve.devices()) != 2 {
		t.Fatalf("of a whole node eve has %q", eve.devices())
	}
	var list []leases.Status
	await.Until(t, "two leases", func() bool { // those in which eve was refused end a moment later
		list = allLeasesAt(t, c)
		return len(list) == 2
	})
	// Which node eve has depends on which of ann's devices were free when bob asked.
	hers := slices.IndexFunc(x.all, func(d *Daemon) bool {
		return strings.HasPrefix(eve.devices()[0], d.cfg.NodeName+".")
	})
	elsewhere := (hers + 1) % 3
	conn := x.conns[elsewhere]
	if err := admin.Of(conn).EndLease(context.Background(), list[1].ID[:8]); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "eve's sessions are ended", func() bool { return !eve.sessions[0].lives() })
	var joe *lessee // of one node alone, ended from another one
	await.Until(t, "joe has one of eve's", func() bool {
		joe, err = leaseAt(t, x.all[hers], clwire.LeaseOptions{Count: 1})
		return err == nil
	})
	defer joe.close()
	for _, l := range allLeasesAt(t, x.all[elsewhere]) {
		if l.ID == "" {
			if err := admin.Of(conn).EndLease(context.Background(), fmt.Sprintf("%s/%d", l.Node, l.Number)); err != nil {
				t.Fatal(err)
			}
		}
	}
	await.Until(t, "joe's session is ended", func() bool { return !joe.sessions[0].lives() })

	lead := 0
	for i, d := range x.all {
		if d.meta.now.Load().raft.Leads() {
			lead = i
		}
	}
	home := (lead + 1) % 3
	mia, err := leaseAt(t, x.all[home], clwire.LeaseOptions{Nodes: true, Count: 3})
	if err != nil {
		bob.close()
		await.Until(t, "mia has three devices", func() bool {
			mia, err = leaseAt(t, x.all[home], clwire.LeaseOptions{Nodes: true, Count: 3})
			return err == nil
		})
	}
	defer mia.close()
	w.cutOff(home, 3)
	await.Until(t, "the leases of a node that does not answer are ended", func() bool {
		for _, x := range allLeasesAt(t, x.all[lead]) {
			if x.Node == fmt.Sprintf("n%d", home) && x.ID != "" {
				return false
			}
		}
		return true
	})
	await.Until(t, "so are their sessions at other nodes", func() bool {
		for _, s := range mia.sessions[1:] {
			if s.lives() {
				return false
			}
		}
		return true
	})
	local, err := leaseAt(t, x.all[home], clwire.LeaseOptions{Count: 1})
	if err == nil {
		local.close()
	} else if !errors.Is(err, object.ErrBusy) { // mia's program runs, and has devices of its own node
		t.Errorf("a lease of its own devices, without the others: %v", err)
	}
	w.heal()
	await.Until(t, "its own part ends once it hears of that", func() bool { return !mia.sessions[0].lives() })
}

// holders notes who has which device, as programs see it.
type holders struct {
	mu     sync.Mutex
	has    map[string]lesseeSession
	leased int
	twice  []string
}

func (h *holders) begin(l *lessee) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leased++
	for _, s := range l.sessions {
		for _, device := range s.devices {
			if old, taken := h.has[device]; taken && old.lives() && s.lives() {
				h.twice = append(h.twice, device)
			}
			h.has[device] = s
		}
	}
}

// none reports whether nobody has had a device yet.
func (h *holders) none() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leased == 0
}

func (h *holders) end(l *lessee) {
	h.mu.Lock()
	for _, s := range l.sessions {
		for _, device := range s.devices {
			if h.has[device].conn == s.conn {
				delete(h.has, device)
			}
		}
	}
	h.mu.Unlock()
	l.close()
}

// Whatever shape the network falls into, no device has two programs. Afterwards nothing is leased, and all can be.
func TestNoDeviceIsLeasedTwiceOverNodes(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.voteTime, w.leaseAsk = 2, 200*time.Millisecond, leaseAskTime
	x := w.cluster(3)
	answered(t, x)
	h := &holders{has: map[string]lesseeSession{}}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i := range 6 {
		working.Go(func() {
			random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(i)))
			for ctx.Err() == nil {
				o := clwire.LeaseOptions{Nodes: random.IntN(3) > 0, Count: 1 + random.IntN(4)}
				if o.Count > 2 && !o.Nodes {
					o.Count = 0
				}
				if random.IntN(2) == 0 {
					o.Ticket = fmt.Sprint(i, random.IntN(2))
				}
				if l, err := leaseAt(t, x.all[i%3], o); err == nil {
					h.begin(l)
					// Pause: the program computes.
					time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
					h.end(l)
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	faults := 0
	end := time.Now().Add(soakTime(t, 6*time.Second)) // on a machine that is busy enough nobody has had any by then
	for ; time.Now().Before(end) || h.none() && time.Since(end) < 5*time.Minute; faults++ {
		// Pause: the time without a fault.
		time.Sleep(faultTime(random) / 2)
		if node := random.IntN(3); random.IntN(2) == 0 {
			w.cutOff(node, 3)
		} else {
			w.cut(node, random.IntN(3))
		}
		// Pause: the time of the fault.
		time.Sleep(faultTime(random) + time.Second)
		w.heal()
	}
	stop()
	working.Wait()
	t.Logf("%d leases, %d faults, %d devices leased twice", h.leased, faults, len(h.twice))
	if len(h.twice) > 0 || h.leased == 0 {
		t.Errorf("leased twice: %v (%d leases)", h.twice, h.leased)
	}
	await.Until(t, "nothing is leased", func() bool {
		for _, d := range x.all {
			if len(allLeasesAt(t, d)) > 0 {
				return false
			}
		}
		return true
	})
	answered(t, x)
	await.Until(t, "all devices are leased at once", func() bool { // a node may be slow to say what it has
		all, err := leaseAt(t, x.all[0], clwire.LeaseOptions{Nodes: true})
		if err == nil {
			defer all.close()
		}
		return err == nil && len(all.devices()) == 6
	})
}

// A leader that has been replaced and does not know it yet ends no lease, whatever it remembers of the others: not
// then, and not by the next leader either.
func TestOldLeaderEndsNoLeases(t *testing.T) {
	inEightTries(t, "a leader that was cut off knew that it leads no more", oldLeaderEndsNoLeases)
}

func oldLeaderEndsNoLeases(t *testing.T) (done bool) {
	w := newNetwork(t)
	w.devices, w.voteTime = 1, 200*time.Millisecond
	x := w.cluster(3)
	answered(t, x)
	for i := range x.all {
		await.Until(t, "all nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	leads := func(d *Daemon) bool { return d.meta.now.Load().raft.Leads() }
	lead := x.leader()
	old, home := x.all[lead], x.all[(lead+1)%3]
	ann, err := leaseAt(t, home, clwire.LeaseOptions{Nodes: true, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer ann.close()
	w.cutOff(lead, 3)
	live := &old.meta.now.Load().live
	live.mu.Lock()
	live.nodes[home.meta.node].silent = true
	live.mu.Unlock()
	if !leads(old) {
		return false
	}
	over := make(chan struct{})
	go func() { defer close(over); old.endLeasesOfSilent() }()
	await.Until(t, "another one leads", func() bool { return leads(home) || leads(x.all[(lead+2)%3]) })
	w.heal()
	<-over
	for _, d := range x.all {
		if list := allLeasesAt(t, d); len(list) != 1 {
			t.Errorf("%s lists %+v", d.cfg.NodeName, list)
		}
	}
	if !ann.sessions[0].lives() {
		t.Error("the lease of a healthy node's program was ended")
	}
	return true
}

// putRecords enters records of leases of a node's programs, whom somebody here waits for.
func putRecords(t testing.TB, d *Daemon, n int) (ids []fsm.UUID) {
	t.Helper()
	for range n {
		l := fsm.Lease{ID: fsm.UUID(object.NewID()), Tenant: "ann", Node: d.meta.node, Incarnation: d.meta.incarnation}
		d.wishes.note(l.ID, nil) // endStrays leaves it
		if _, err := d.propose(&fsm.PutLease{Lease: l}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, l.ID)
	}
	return ids
}

// letRecordsEnd has them end with the next endRecords.
func letRecordsEnd(d *Daemon, ids []fsm.UUID) {
	d.wishes.mu.Lock()
	defer d.wishes.mu.Unlock()
	for _, id := range ids {
		d.wishes.forget(id)
		d.wishes.ending[id] = true
	}
}

// entriesToEnd has records of n leases end, and gives how many entries of the log that took.
func entriesToEnd(t *testing.T, d *Daemon, n int) uint64 {
	t.Helper()
	ids := putRecords(t, d, n)
	last := func() uint64 { return d.meta.now.Load().raft.Status().LastIndex }
	before := last()
	letRecordsEnd(d, ids)
	await.Until(t, "all have ended", func() bool {
		d.endRecords() // tendLeases may do so in the same moment
		return len(allLeasesAt(t, d)) == 0
	})
	return last() - before
}

// The records of many leases end with one entry of the log, and not with one each.
func TestRecordsOfLeasesEndTogether(t *testing.T) {
	d := newNetwork(t).cluster(1).all[0]
	if n := entriesToEnd(t, d, 50); n > 10 {
		t.Errorf("50 leases ended with %d entries of the log", n)
	}
}

// A node of an earlier release stops at a command that it does not know. So as long as there is one the records of many
// leases end with one command each, which all know.
func TestRecordsOfLeasesEndOneByOneBesideAnotherRelease(t *testing.T) {
	d := newNetwork(t).cluster(1).all[0]
	var here fsm.Node
	d.meta.raft.View(func(s *fsm.State) { here, _ = s.Node(d.meta.node) })
	here.Version = "another"
	if _, err := d.propose(&fsm.PutNode{Node: here}); err != nil {
		t.Fatal(err)
	}
	if n := entriesToEnd(t, d, 50); n < 50 {
		t.Errorf("50 leases ended with %d entries of the log", n)
	}
}

// A ticket that is used again leaves its lease as it is.
func TestTicketOfALiveLease(t *testing.T) {
	w := newNetwork(t)
	w.devices = 1
	x := w.cluster(2)
	answered(t, x)
	over := clwire.LeaseOptions{Nodes: true, Count: 2, Ticket: "again"}
	var ann *lessee
	await.Until(t, "ann, who waits, has them", func() (granted bool) { // the other node may be slow to say what it has
		var err error
		if ann, err = leaseAt(t, x.all[0], over); err != nil && !errors.Is(err, object.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
	defer ann.close()
	for _, d := range x.all {
		if _, err := leaseAt(t, d, over); !errors.Is(err, object.ErrExists) || !strings.Contains(err.Error(), "ticket") {
			t.Errorf("the ticket again at %s: %v", d.cfg.NodeName, err)
		}
	}
	x.all[0].endRecords()
	for _, s := range ann.sessions {
		if !s.lives() {
			t.Error("a ticket that was used again has ended its lease")
		}
	}
}

// A node that is slow to say what it has does not end a lease that waits: it may have what is wanted.
func TestLeaseMeetsASlowNode(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.leaseAsk = 1, leaseAskTime
	var slow atomic.Bool
	answers := make(chan struct{})
	w.at = func(node int, step string) {
		if node == 1 && step == "is asked for devices" && slow.CompareAndSwap(true, false) {
			<-answers
		}
	}
	x := w.cluster(2)
	answered(t, x)
	defer close(answers)
	slow.Store(true)
	over := clwire.LeaseOptions{Nodes: true, Count: 2, Ticket: "patient"}
	await.Until(t, "who waits has both", func() bool {
		got, err := leaseAt(t, x.all[0], over)
		if err != nil && !errors.Is(err, object.ErrBusy) {
			t.Fatal(err)
		}
		if err == nil {
			defer got.close()
		}
		return err == nil && len(got.devices()) == 2
	})
	if slow.Load() {
		t.Error("the other node was not asked")
	}
}

// A record that comes after its request was given up does not wait for ever.
func TestLateRecordEnds(t *testing.T) {
	x := newCluster(t, 1, nil)
	d := x.all[0]
	late := fsm.Lease{ID: fsm.UUID{9}, Tenant: "ann", Node: d.meta.node, Incarnation: d.meta.incarnation, Count: 1}
	if _, err := d.propose(&fsm.PutLease{Lease: late}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the late record has gone", func() bool { _, there := d.leaseRecord(late.ID); return !there })
}

func TestBadLeases(t *testing.T) {
	for _, l := range []clwire.LeaseOptions{{Count: -1}, {Count: 1 << 32}, {Count: fsm.MaxLeaseDevices + 1},
		{Ticket: strings.Repeat("x", clwire.MaxLeaseText+1)}} {
		if err := checkLease(&l); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%.80v: %v", l, err)
		}
	}
	for _, l := range []*clwire.LeaseOptions{nil, {}, {Count: fsm.MaxLeaseDevices}} {
		if err := checkLease(l); err != nil {
			t.Error(err)
		}
	}
}

// A lease that waits does not ask the other nodes each time that its program asks; its place is kept all the same.
func TestWaitingAsksFewNodes(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.leaseHold, w.keepsPlaces = 1, 1, true
	var questions atomic.Int64
	w.at = func(node int, step string) {
		if node == 1 && step == "is asked for devices" {
			questions.Add(1)
		}
	}
	x := w.cluster(2)
	answered(t, x)
	a, b := x.all[0], x.all[1]
	joe, err := leaseAt(t, b, clwire.LeaseOptions{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	ann := clwire.LeaseOptions{Nodes: true, Count: 2, Ticket: "ann"}
	bob := clwire.LeaseOptions{Nodes: true, Count: 1, Ticket: "bob"}
	const asks = 200
	began := time.Now()
	saysWho := func(err error) bool { return err != nil && strings.Contains(err.Error(), "has one since") }
	told := false
	for range asks {
		_, err := leaseAt(t, a, ann)
		if told = told || saysWho(err); !errors.Is(err, object.ErrBusy) {
			t.Fatalf("ann, who waits: %v", err)
		}
	}
	if n := questions.Load(); n > max(asks/10, int64(time.Since(began)/leastRound)) {
		t.Errorf("%d questions to the other node, where the program asked %d times", n, asks)
	}
	if !told { // b was slow to answer
		await.Until(t, "ann is told who has one", func() bool { _, err := leaseAt(t, a, ann); return saysWho(err) })
	}
	joe.close()
	var first *lessee
	await.Until(t, "ann has what she waits for, and not bob", func() bool {
		if got, err := leaseAt(t, a, bob); err == nil {
			defer got.close()
			t.Fatal("bob, who came later, has one before ann")
		}
		first, err = leaseAt(t, a, ann)
		return err == nil
	})
	first.close()
	await.Until(t, "bob has one after her", func() bool {
		got, err := leaseAt(t, a, bob)
		if err == nil {
			got.close()
		}
		return err == nil
	})
}

// TestFreeDevicesAreToldOf: a node whose devices become free tells the node of the program that waits for them, whoever
// had them; a request that waits is answered then, and not when it asks the next time.
func TestFreeDevicesAreToldOf(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.leaseHold = 1, time.Hour
	x := w.cluster(3)
	answered(t, x)
	a, b := x.all[0], x.all[1]
	var others []*lessee
	for _, d := range x.all {
		l, err := leaseAt(t, d, clwire.LeaseOptions{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		others = append(others, l)
	}
	ann := clwire.LeaseOptions{Nodes: true, Count: 1, Ticket: "ann"}
	granted := make(chan error, 1)
	go func() {
		l, err := leaseAt(t, a, ann)
		if err == nil {
			l.close()
		}
		granted <- err
	}()
	id := wishID(frontdoor.Peer{Tenant: x.conns[0].Daemon().Tenant}, &ann)
	await.Until(t, "ann waits in the other node's line", func() bool {
		all, _ := b.leases.Parts()
		return slices.Contains(all, id.String())
	})
	told := make(chan struct{})
	a.wishes.mu.Lock()
	a.wishes.calls[id] = call{woken: told} // whoever is told
	a.wishes.mu.Unlock()
	others[1].close()
	select {
	case <-told:
	case <-time.After(5 * time.Minute):
		t.Error("the other node's device is free, and nobody was told")
	}
	if err := <-granted; err != nil {
		t.Errorf("ann: %v", err)
	}
	bob := clwire.LeaseOptions{Count: 1, Ticket: "bob"} // of one node alone
	go func() {
		l, err := leaseAt(t, x.all[2], bob)
		if err == nil {
			l.close()
		}
		granted <- err
	}()
	await.Until(t, "bob waits", func() bool { return len(x.all[2].leases.List()) == 2 })
	others[2].close()
	if err := <-granted; err != nil {
		t.Errorf("bob: %v", err)
	}
}

// A question that the daemon keeps, here for an hour, ends with the connection, and the place in the line with it. So
// does the place where its client says so.
func TestPlaceGoesWithItsClient(t *testing.T) {
	w := newNetwork(t)
	w.devices, w.leaseHold, w.keepsPlaces = 1, time.Hour, true
	x := w.cluster(2)
	answered(t, x)
	for _, d := range x.all {
		l, err := leaseAt(t, d, clwire.LeaseOptions{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
	}
	a := x.all[0]
	p := frontdoor.Peer{Tenant: x.conns[0].Daemon().Tenant, Name: "ann"}
	waits := func() (n int) {
		for _, x := range allLeasesAt(t, a) {
			n += min(x.Place, 1)
		}
		return n
	}
	for _, over := range []bool{false, true} {
		for _, says := range []bool{false, true} {
			o := clwire.SessionOptions{Lease: &clwire.LeaseOptions{Count: 1, Nodes: over,
				Ticket: fmt.Sprint("ann", over, says)}}
			platforms, err := a.platforms(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { _, err := a.lease(ctx, p, &o, platforms); ended <- err }()
			await.Until(t, "ann waits", func() bool { return waits() == 1 })
			hangUp()
			err = <-ended
			var place *frontdoor.Waiting
			if !errors.As(err, &place) || !errors.Is(err, object.ErrBusy) {
				t.Fatalf("a question that was given up: %v", err)
			}
			if says {
				leave := *o.Lease
				leave.Leave = true
				if _, err := leaseAt(t, a, leave); !errors.Is(err, object.ErrNotFound) {
					t.Errorf("a place that was given up: %v", err)
				}
			} else {
				if w := allLeasesAt(t, a); waits() != 1 {
					t.Errorf("ann's place went too early: %+v", w)
				}
				place.Leave()
			}
			a.wishes.mu.Lock()
			_, asked := a.wishes.asked[wishID(p, o.Lease)]
			a.wishes.mu.Unlock()
			if asked || !over && waits() > 0 {
				t.Errorf("over nodes %v, said %v: ann's place is kept", over, says)
			}
			await.Until(t, "nobody waits", func() bool { return waits() == 0 })
		}
	}
	_, err := admin.Of(x.conns[0]).RevokeCertificates(t.Context(), admin.CertificateChoice{Tenant: "lab"}, "")
	if !errors.Is(err, object.ErrNotFound) {
		t.Fatalf("no such certificate: %v", err)
	}
	await.Until(t, "what came later is written", func() (is bool) { // a place that is given up is no refusal
		pages, _ := auditAt(t, x.conns[0], admin.AuditQuery{})
		for _, e := range pages[0].Events {
			is = is || e.What == "certificate.revoke"
			if e.What == "lease.take" && e.Error != "" {
				t.Fatalf("written: %+v", e)
			}
		}
		return is
	})
}

// A lease that waits goes on to wait while a member does not answer that had devices: it may come back. Without a place
// in the line it is told at once that there are too few.
func TestLeaseWaitsForASilentMember(t *testing.T) {
	w := newNetwork(t)
	w.devices = 1
	var joined, told atomic.Bool
	end := make(chan struct{})
	defer close(end)
	w.at = func(node int, step string) {
		if node == 1 && step == "has told of its devices" && joined.Load() {
			told.Store(true)
			<-end // it has a device that no driver of its own has: it says so no more
		}
	}
	x := w.cluster(2)
	answered(t, x)
	a, b := x.all[0], x.all[1]
	joined.Store(true)
	b.Reload()
	await.Until(t, "it has told what its drivers have", told.Load)
	if _, err := b.propose(&fsm.PutDevices{Node: b.meta.node, Incarnation: b.meta.incarnation,
		Devices: []fsm.Device{{Key: fsm.DeviceKey{Driver: "d"}, Name: "b's"}}}); err != nil {
		t.Fatal(err)
	}
	w.cutOff(1, 2)
	await.Until(t, "one is silent", func() bool { return len(a.othersAnswering(a.meta.now.Load())) == 0 })
	over := clwire.LeaseOptions{Nodes: true, Count: 2}
	if _, err := leaseAt(t, a, over); !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("without a place in the line: %v", err)
	}
	over.Ticket = "patient"
	if _, err := leaseAt(t, a, over); !errors.Is(err, object.ErrBusy) ||
		!strings.Contains(err.Error(), "no answer from node n1") {
		t.Errorf("with a place in the line: %v", err)
	}
	w.heal()
	await.Until(t, "who waits has both", func() bool {
		got, err := leaseAt(t, a, over)
		if err == nil {
			defer got.close()
		}
		return err == nil && len(got.devices()) == 2
	})
}
