package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// aNode is aConfig with a name.
func aNode(t testing.TB, name string) Config {
	c := aConfig(t)
	c.NodeName = name
	return c
}

// nodes are daemons of a test, which end with it, before it is looked whether they left a goroutine.
type nodes struct {
	t    testing.TB
	stop map[*Daemon]func()
	gone atomic.Bool // one has ended, or may be killed or cut off; so it stays to the end of the test. See patience
}

func newNodes(t testing.TB) *nodes {
	ns := &nodes{t: t, stop: map[*Daemon]func(){}}
	leaks := goleak.IgnoreCurrent()
	t.TempDir() // cleanups run in reverse: the folders are removed once the daemons have ended
	t.Cleanup(func() {
		var ending sync.WaitGroup
		for d := range ns.stop {
			ending.Go(func() { ns.stop[d]() })
		}
		ending.Wait()
		noneLeft(t, leaks)
	})
	return ns
}

// start runs a daemon and waits until it serves.
func (ns *nodes) start(c Config) *Daemon {
	ns.t.Helper()
	return ns.startWith(c, func(*Daemon) {})
}

// startWith is start for a daemon that is changed before it runs.
func (ns *nodes) startWith(c Config, change func(*Daemon)) *Daemon {
	ns.t.Helper()
	d := newDaemon(ns.t, c)
	d.patience = ns.patience
	change(d)
	ctx, cancel := context.WithCancel(context.Background())
	up, down := make(chan struct{}), make(chan error, 1)
	d.OnReady(func() { close(up) })
	go func() { down <- d.Run(ctx) }()
	select {
	case <-up:
	case err := <-down:
		cancel()
		ns.t.Fatal(err)
	}
	ns.stop[d] = sync.OnceFunc(func() {
		ns.gone.Store(true)
		cancel()
		if err := <-down; err != nil {
			ns.t.Error(err)
		}
	})
	return d
}

// patience is the daemons': before one is gone, a slow node counts as silent after 63 s, has 62 s to say that it takes
// a replica or to hear of a lease, 63 s for a connection or for what it knows of a token, and 65 s for its part of the
// audit log; a change of the metadata has 70 s. From then on the product's own times hold, which are 60 s less; but
// what was asked before keeps its time.
func (ns *nodes) patience() time.Duration {
	if ns.gone.Load() {
		return 0
	}
	return time.Minute
}

// end stops daemons, all at once. Were two of three voters stopped in turn, and the second one late, the vote of the
// first, silent for 18 s by then, would be taken from it, and the third one could go on alone.
func (ns *nodes) end(list ...*Daemon) {
	var ending sync.WaitGroup
	for _, d := range list {
		ending.Go(ns.stop[d])
	}
	ending.Wait()
}

func (d *Daemon) address() string { return d.door.Load().RemoteAddr().String() }

// nodeToken makes a token that lets a node in.
func nodeToken(t testing.TB, c Config) string {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return newToken(t, conn, admin.TokenOptions{Role: pki.Node, Once: true})
}

// join makes b's node a member of a's cluster.
func join(t testing.TB, a Config, at *Daemon, b *Daemon) MoveResult {
	t.Helper()
	raw, err := b.JoinCluster(wire.JoinClusterRequest{Address: at.address(), Token: nodeToken(t, a)})
	if err != nil {
		t.Fatal(err)
	}
	var result MoveResult
	if err := json.Unmarshal(raw, &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func clusterInfo(t testing.TB, d *Daemon) (x ClusterInfo) {
	t.Helper()
	raw, err := d.ClusterStatus()
	if err == nil {
		err = json.Unmarshal(raw, &x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func nodeNamesOf(x ClusterInfo) (names []string) {
	for _, n := range x.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// put makes a named object of one byte.
func put(t testing.TB, c Config, name string) object.ID {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b, err := conn.Create(context.Background(), 1, client.CreateOptions{Name: name, Class: object.Named})
	if err != nil {
		t.Fatal(err)
	}
	o, err := b.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	return b.ID()
}

func putPublished(t testing.TB, c Config, name string) {
	t.Helper()
	id := put(t, c, name)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Publish(context.Background(), id, name, false); err != nil {
		t.Fatal(err)
	}
}

// published lists the published names that a daemon knows.
func (d *Daemon) publishedNames() (names []string) {
	d.meta.raft.View(func(s *fsm.State) {
		for _, o := range s.Objects() {
			names = append(names, o.Name)
		}
	})
	slices.Sort(names)
	return names
}

// asAt has a client show at another server what it got by logging in at one.
func asAt(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(credentialsAt(from), credentialsAt(to)); err != nil {
		t.Fatal(err)
	}
}

func credentialsAt(server string) string {
	return filepath.Join(os.Getenv("TENDRIL_CREDENTIALS"), "at-"+strings.ReplaceAll(server, ":", "_"))
}

func TestTwoNodesBecomeOneCluster(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, b := ns.start(ca), ns.start(cb)
	putPublished(t, ca, "of-a")
	putPublished(t, ca, "both")
	putPublished(t, cb, "of-b")
	putPublished(t, cb, "both")

	result := join(t, ca, a, b)
	slices.Sort(result.Nodes)
	if !result.Entered || !slices.Equal(result.Nodes, []string{"a", "b"}) || result.Republished != 1 ||
		len(result.Conflicts) != 1 || result.Conflicts[0].Name != "both" {
		t.Fatalf("join: %+v", result)
	}
	for _, d := range []*Daemon{a, b} {
		await.Until(t, "both nodes are known", func() bool {
			return slices.Equal(nodeNamesOf(clusterInfo(t, d)), []string{"a", "b"})
		})
		await.Until(t, "what both have published is known", func() bool {
			return slices.Equal(d.publishedNames(), []string{"both", "of-a", "of-b"})
		})
	}
	putPublished(t, cb, "later") // forwarded to a, and seen here at once
	if names := b.publishedNames(); !slices.Contains(names, "later") {
		t.Errorf("b does not see what it has published: %v", names)
	}
	if names := a.publishedNames(); !slices.Contains(names, "later") {
		t.Errorf("a does not see what b has published: %v", names)
	}

	// A client that logged in at a comes in at b, until it is revoked at a.
	conn := dial(t, ca)
	token := newToken(t, conn, admin.TokenOptions{Tenant: "lab"})
	if _, err := login.Login(context.Background(), a.address(), token, "laptop"); err != nil {
		t.Fatal(err)
	}
	if _, err := login.Login(context.Background(), b.address(), newToken(t, conn, admin.TokenOptions{}),
		"at once"); err != nil {
		t.Errorf("a token that the other node has just made: %v", err)
	}
	os.RemoveAll(credentialsAt(b.address()))
	asAt(t, a.address(), b.address())
	far, err := client.DialServer(context.Background(), b.address(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if err := admin.Of(conn).RevokeToken(context.Background(), tokenID(t, token), true); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "b ends the connection", func() bool {
		_, err := admin.Of(far).Devices(context.Background())
		return errors.Is(err, client.ErrDisconnected)
	})
	if other, err := client.DialServer(context.Background(), b.address(), client.Options{}); !errors.Is(err,
		object.ErrPermission) {
		t.Errorf("b lets a revoked client in: %v", err)
		if err == nil {
			other.Close()
		}
	}
}

// TestANewNodeStartsAgainElsewhere: a node that has joined, and is started anew before its cluster could tell it
// anything, comes in also where it listens at another port. The cluster does not know where it is then, and it does not
// know what the cluster has noted of it.
func TestANewNodeStartsAgainElsewhere(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	first := freePort(t)
	cb.Listen = first
	a := ns.startWith(ca, func(d *Daemon) {
		d.dialNode = func(ctx context.Context, address string) (net.Conn, error) {
			if address == first {
				return nil, errNoAnswer
			}
			return dialTCP(ctx, address)
		}
	})
	b := ns.start(cb)
	token := nodeToken(t, ca)
	joined := make(chan error, 1)
	go func() {
		_, err := b.JoinCluster(wire.JoinClusterRequest{Address: a.address(), Token: token})
		joined <- err
	}()
	await.Until(t, "the cluster knows of the new node", func() bool { return len(clusterInfo(t, a).Nodes) == 2 })
	ns.end(b)
	<-joined
	cb.Listen = "127.0.0.1:0"
	b = ns.start(cb)
	await.Until(t, "the node has entered", func() bool { return clusterInfo(t, b).Entered })
}

// A daemon that is ended while its node moves to another cluster ends what the move has opened, and its locks are free.
func TestEndWhileTheNodeMoves(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, moved, goOn := ns.start(ca), make(chan struct{}), make(chan struct{})
	b := ns.startWith(cb, func(d *Daemon) {
		d.at = func(step string) {
			if step == "moved" {
				close(moved)
				<-goOn
			}
		}
	})
	token := nodeToken(t, ca)
	joined, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		// its answer depends on how far the end is
		_, _ = b.JoinCluster(wire.JoinClusterRequest{Address: a.address(), Token: token})
	}()
	<-moved
	go func() {
		defer close(ended)
		ns.end(b)
	}()
	select {
	case <-ended:
		t.Error("the daemon has ended, and its node still moves")
	case <-time.After(time.Second): // Pause: an end that does not wait for the move is over by then
	}
	close(goOn)
	<-joined
	<-ended
	b = ns.start(cb)
	await.Until(t, "the node has entered", func() bool { return clusterInfo(t, b).Entered })
}

// TestJoinerWhoseOnlyMemberIsGone: a node that has joined, and whose only other member is gone before they have spoken,
// says whom it knows and what to do about it; that way it comes into another cluster, with what it has.
func TestJoinerWhoseOnlyMemberIsGone(t *testing.T) {
	ns, ca, cb, cc := newNodes(t), aNode(t, "a"), aNode(t, "b"), aNode(t, "c")
	a, c := ns.start(ca), ns.start(cc)
	b := ns.startWith(cb, func(d *Daemon) {
		d.at = func(step string) {
			if step == "committed" {
				ns.end(a)
			}
		}
	})
	putPublished(t, cb, "of-b")
	result := join(t, ca, a, b)
	for what, why := range map[string]string{"the join": result.Why, "the status": clusterInfo(t, b).Why} {
		if result.Entered || !strings.Contains(why, "no other members than a ") ||
			!strings.Contains(why, "tendril cluster leave --anyway") {
			t.Errorf("%s says %q", what, why)
		}
	}
	raw, err := b.LeaveCluster(wire.LeaveClusterRequest{Anyway: true})
	var left LeaveStatus
	if err == nil {
		err = json.Unmarshal(raw, &left)
	}
	if err != nil || !left.Done || left.Result == nil || left.Result.Republished != 1 {
		t.Fatalf("leave --anyway: %s, %v", raw, err)
	}
	if result := join(t, cc, c, b); !result.Entered || result.Republished != 1 {
		t.Errorf("into another cluster: %+v", result)
	}
}

// Either node may be started again, or both at once; what the cluster knows stays.
func TestNodesOfAClusterStartAgain(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	ca.Listen, cb.Listen = freePort(t), freePort(t)
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	ns.end(b)
	putPublished(t, ca, "while b was away")
	b = ns.start(cb)
	await.Until(t, "b is told what it missed", func() bool { return slices.Contains(b.publishedNames(), "while b was away") })
	entered := func(d *Daemon) func() bool { return func() bool { return clusterInfo(t, d).Entered } }
	await.Until(t, "b is known", entered(b))
	ns.end(a)
	ns.end(b)
	b = ns.start(cb) // it serves, although nobody leads
	if id := put(t, cb, "local"); id.IsZero() {
		t.Error("no object")
	}
	a = ns.start(ca)
	await.Until(t, "b is known again", entered(b))
	putPublished(t, cb, "by b")
	await.Until(t, "a is told", func() bool { return slices.Contains(a.publishedNames(), "by b") }) // b may lead now
}

// freePort gives an address for a daemon that has to have the same one again. It is the test's until its end: a socket
// that is bound to it and does not listen keeps the kernel from giving it to anybody who asks for any port, and is in
// no listener's way (SO_REUSEADDR, which Go's listeners have too).
func freePort(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, nameErr := unix.Getsockname(fd)
	if err = errors.Join(err, nameErr); err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*unix.SockaddrInet4).Port)).String()
}

// TestFreePortStaysFree: nobody else gets the address before its daemon starts, or between two of its lives.
func TestFreePortStaysFree(t *testing.T) {
	at := freePort(t)
	strict := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		}), err)
	}}
	for life := range 2 {
		if l, err := strict.Listen(t.Context(), "tcp", at); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("life %d: somebody else's %v, %v", life, l, err)
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		l.Close()
		c.Close()
		if c, err := net.Dial("tcp", at); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("life %d: where nobody listens: %v, %v", life, c, err)
		}
	}
}

func TestJoinsThatAreRefused(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	ns, ca, cb, cc := newNodes(t), aNode(t, "a"), aNode(t, "b"), aNode(t, "c")
	a, b, c := ns.start(ca), ns.start(cb), ns.start(cc)
	again := aNode(t, "a")
	named := ns.start(again)
	conn := dial(t, ca)
	used := nodeToken(t, ca)
	if _, err := c.JoinCluster(wire.JoinClusterRequest{Address: a.address(), Token: used}); err != nil {
		t.Fatal(err)
	}
	revoked := nodeToken(t, ca)
	if err := admin.Of(conn).RevokeToken(context.Background(), tokenID(t, revoked), false); err != nil {
		t.Fatal(err)
	}
	silent := freePort(t)
	for _, x := range []struct {
		name, token, at string
		d               *Daemon
		is              error
		want            string
	}{
		{"a client's token", newToken(t, conn, admin.TokenOptions{}), a.address(), b, object.ErrPermission, "--role node"},
		{"used", used, a.address(), b, object.ErrPermission, "one use"},
		{"revoked", revoked, a.address(), b, object.ErrPermission, "revoked"},
		{"of another cluster", nodeToken(t, again), a.address(), b, object.ErrPermission, "another authority"},
		{"of its own cluster", nodeToken(t, cb), a.address(), b, object.ErrInvalid, "own cluster"},
		{"no token", "hello", a.address(), b, object.ErrInvalid, "begins with"},
		{"no address", nodeToken(t, ca), "nowhere", b, object.ErrInvalid, "HOST:PORT"},
		{"nobody there", nodeToken(t, ca), silent, b, object.ErrTimeout, silent},
		{"another machine", nodeToken(t, ca), "192.0.2.1:7433", b, object.ErrUnsupported, "--listen"},
		{"a name that is taken", nodeToken(t, ca), a.address(), named, object.ErrExists, "--name"},
		{"a member", nodeToken(t, again), named.address(), c, object.ErrExists, "leave"},
		{"a member of the same", nodeToken(t, ca), a.address(), c, object.ErrExists, "with a"},
	} {
		before := clusterInfo(t, x.d)
		_, err := x.d.JoinCluster(wire.JoinClusterRequest{Address: x.at, Token: x.token})
		if !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
		if after := clusterInfo(t, x.d); after.Authority != before.Authority ||
			!slices.Equal(nodeNamesOf(after), nodeNamesOf(before)) {
			t.Errorf("%s: the node was in %v, and is in %v", x.name, before, after)
		}
		if _, err := os.Stat(filepath.Join(x.d.cfg.StateDir, movingFolder)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something is left: %v", x.name, err)
		}
	}
	putPublished(t, cb, "b goes on")
}

// A node with the identity of another one, from a state directory that was copied, is refused.
func TestACopiedIdentityIsRefused(t *testing.T) {
	ns, ca, cb, twin := newNodes(t), aNode(t, "a"), aNode(t, "b"), aNode(t, "twin")
	b := ns.start(cb)
	ns.end(b)
	if err := os.CopyFS(twin.StateDir, os.DirFS(cb.StateDir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pki.AuthorityFile, pki.NodeFile} {
		if err := os.Chmod(filepath.Join(twin.StateDir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b, other := ns.start(ca), ns.start(cb), ns.start(twin)
	join(t, ca, a, b)
	_, err := other.JoinCluster(wire.JoinClusterRequest{Address: a.address(), Token: nodeToken(t, ca)})
	if !errors.Is(err, object.ErrExists) || !strings.Contains(err.Error(), "copied") {
		t.Errorf("the copy: %v", err)
	}
}

// strangerSpeaksRaft has somebody with a certificate speak raft with a node; what comes back says why it is refused.
// nil: raft answers.
func strangerSpeaksRaft(t *testing.T, to string, own *tls.Certificate, of *membership) error {
	t.Helper()
	raw, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	secure, err := shakeHands(ctx, raw, kindRaft, pki.NodeConfig(func() *tls.Certificate { return own }, of.verifier(),
		of.node.String(), pki.ProtocolRaft))
	if err != nil {
		return err
	}
	// The server's word comes with the first read. A vote that is asked for is answered: raft's number of that, and an
	// empty request.
	raw.SetDeadline(time.Now().Add(5 * time.Minute))
	if _, err := secure.Write([]byte{1, 0x80}); err != nil {
		return err
	}
	_, err = secure.Read(make([]byte, 1))
	return err
}

// certificateOfNode signs a certificate that no node has recorded.
func certificateOfNode(t *testing.T, authority *pki.Authority, name string, node fsm.UUID) *tls.Certificate {
	t.Helper()
	s := pki.Subject{Name: name, Role: pki.Node, Node: node.String()}
	k, err := pki.OpenKeyring(t.Context(), filepath.Join(t.TempDir(), pki.NodeFile), name, authority.Trust(),
		pki.IssueFrom(authority, s, pki.NodeLife, nil), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return k.Certificate()
}

// TestANewNodeHearsThoseThatItWasTold: a node that has joined, and has not heard from the cluster yet, knows of no
// revocation. A node that was removed before cannot tell it what the cluster is, however good its certificate's date.
func TestANewNodeHearsThoseThatItWasTold(t *testing.T) {
	w := newNetwork(t)
	entering, asked := make(chan struct{}), make(chan struct{})
	w.at = func(node int, step string) {
		if node == 2 && step == "moved" { // it has the certificate and the authority, and nobody has spoken raft with it
			close(entering)
			<-asked
		}
	}
	x := w.cluster(2)
	w.node(x, 2)
	gone := certificateOfNode(t, x.all[0].meta.now.Load().authority.Load(), "gone", fsm.UUID{1: 7})
	member := x.all[1].meta.keyring.Certificate()
	joined := make(chan error, 1)
	token := nodeToken(t, x.all[0].cfg)
	go func() {
		_, err := x.all[2].JoinCluster(wire.JoinClusterRequest{Address: x.all[0].address(), Token: token})
		joined <- err
	}()
	<-entering
	w.cutOff(2, 3)
	close(asked)
	await.Until(t, "it is open for its new cluster", func() bool { return x.all[2].meta.coming.Load() != nil })
	coming := x.all[2].meta.coming.Load()
	err := strangerSpeaksRaft(t, x.all[2].address(), gone, coming)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a node that nobody has named: raft listens (%v)", err)
	}
	if err := strangerSpeaksRaft(t, x.all[2].address(), member, coming); err != nil {
		t.Errorf("a member that the join has named: %v", err)
	}
	w.heal()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	await.Until(t, "it has entered", func() bool { return clusterInfo(t, x.all[2]).Entered })
}

// Raft speaks with members alone.
func TestStrangersToACluster(t *testing.T) {
	ns, ca, cb := newNodes(t), aNode(t, "a"), aNode(t, "b")
	a, b := ns.start(ca), ns.start(cb)
	join(t, ca, a, b)
	other, forged := ns.start(aNode(t, "other")), b.meta.now.Load()
	certificate := func(authority *pki.Authority, s pki.Subject) *tls.Certificate {
		path := filepath.Join(t.TempDir(), pki.NodeFile)
		k, err := pki.OpenKeyring(t.Context(), path, s.Name, authority.Trust(),
			pki.IssueFrom(authority, s, pki.NodeLife, nil), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		return k.Certificate()
	}
	id := other.meta.node.String()
	for _, x := range []struct {
		name string
		own  *tls.Certificate
	}{
		{"of another cluster", other.meta.keyring.Certificate()},
		{"a client's", certificate(forged.authority.Load(), pki.Subject{Name: "client", Role: pki.User, Tenant: "lab"})},
		{"a node's that is no member", certificate(forged.authority.Load(), pki.Subject{Name: "x", Role: pki.Node, Node: id})},
		{"of a member, but not recorded",
			certificate(forged.authority.Load(), pki.Subject{Name: "b", Role: pki.Node, Node: b.meta.node.String()})},
	} {
		raw, err := net.Dial("tcp", a.address())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		own := func() *tls.Certificate { return x.own }
		secure, err := shakeHands(ctx, raw, kindRaft, pki.NodeConfig(own, forged.verifier(), a.meta.node.String(),
			pki.ProtocolRaft))
		if err == nil { // the server's word comes with the first read
			raw.SetDeadline(time.Now().Add(5 * time.Minute))
			if _, err = secure.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: raft listens", x.name)
			}
		}
		if err == nil {
			t.Errorf("%s: raft answers", x.name)
		}
	}
}
