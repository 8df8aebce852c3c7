package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/inspect"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// rotate asks for a step of a rotation.
func rotate(t *testing.T, conn *client.Conn, finish, anyway bool) (s RotateStatus, err error) {
	t.Helper()
	raw, err := admin.Of(conn).RotateAuthority(context.Background(), finish, anyway)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	return s, err
}

// verifier believes certificates of the present cluster that were not revoked.
func (d *Daemon) verifier() *pki.Verifier { return d.meta.now.Load().verifier() }

// TestAuthorityIsRotated: a cluster gets another authority while a client works. Nobody is disconnected; at the end
// what the old one has signed is of no use.
func TestAuthorityIsRotated(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	w := newNetwork(t)
	x := w.cluster(3)
	a, b := x.all[0], x.all[1]
	before := a.meta.authority.Certificate()
	old := a.meta.now.Load().authority.Load()
	tokens := map[string]string{}
	for _, name := range []string{"runs", "idle", "never seen again"} {
		tokens[name] = newToken(t, x.conns[0], admin.TokenOptions{})
	}
	if _, err := login.Login(context.Background(), a.address(), tokens["runs"], "runs"); err != nil {
		t.Fatal(err)
	}
	runs, err := client.DialServer(context.Background(), a.address(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer runs.Close()
	if _, err := login.Login(context.Background(), b.address(), tokens["idle"], "idle"); err != nil {
		t.Fatal(err)
	}
	if _, err := rotate(t, x.conns[0], true, false); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("an end without a beginning: %v", err)
	}

	if r := clusterInfo(t, b).Rotation; r != nil {
		t.Errorf("a rotation that nobody began: %+v", r)
	}
	if _, err := rotate(t, x.conns[1], false, false); err != nil {
		t.Fatal(err)
	}
	if r := clusterInfo(t, b).Rotation; r == nil || len(r.Followed)+len(r.Waiting) != 3 || r.Authority == r.Before ||
		(r.Step == "nodes") != (len(r.Waiting) > 0) {
		t.Errorf("a rotation that has begun: %+v", r)
	}
	await.Until(t, "all nodes have followed", func() bool {
		s, err := rotate(t, x.conns[2], false, false)
		return err == nil && len(s.Waiting) == 0
	})
	for i, d := range x.all {
		if d.meta.authority.Certificate().Equal(before) || d.meta.now.Load().keyring.Outdated() {
			t.Errorf("node %d has a certificate of the old authority", i)
		}
	}
	await.Until(t, "the status says that clients are missing", func() bool {
		r := clusterInfo(t, b).Rotation
		return r.Step == "clients" && r.Clients == 2 && len(r.Followed) == 3 && len(r.Waiting) == 0
	})
	if _, err := admin.Of(runs).Devices(context.Background()); err != nil {
		t.Errorf("who is connected: %v", err)
	}
	s, err := rotate(t, x.conns[0], true, false)
	if !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "idle, runs have") {
		t.Errorf("an end that clients have not followed to: %+v, %v", s, err)
	}
	var renewing sync.WaitGroup
	for range 2 { // as it does every ten minutes, and as a program may
		renewing.Go(func() {
			if err := runs.Internal().Renew(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	renewing.Wait()
	readOnly(t, credentialsAt(b.address()), func() {
		again, err := client.DialServer(context.Background(), b.address(), client.Options{})
		if err != nil {
			t.Errorf("who comes back, and cannot keep what it hears: %v", err)
			return
		}
		again.Close()
	})
	again, err := client.DialServer(context.Background(), b.address(),
		client.Options{}) // knows the old authority alone
	if err != nil {
		t.Fatalf("who comes back: %v", err)
	}
	again.Close()
	if _, err := login.Login(context.Background(), x.all[2].address(), newToken(t, x.conns[2], admin.TokenOptions{}),
		"new"); err != nil {
		t.Errorf("a token of the new authority: %v", err)
	}
	if s, err = rotate(t, x.conns[0], false, false); err != nil || len(s.Clients) > 0 {
		t.Errorf("who has not followed: %+v, %v", s, err)
	}
	await.Until(t, "the status says that nothing is missing", func() bool {
		return clusterInfo(t, b).Rotation.Step == "finish"
	})
	x.ns.end(x.all[2]) // a node that has followed may be away at the end
	x.leader(0, 1)     // a rotation waits 10 s for one, which takes longer on a busy machine
	if s, err = rotate(t, x.conns[0], true, false); err != nil || !s.Finished {
		t.Fatalf("the end: %+v, %v", s, err)
	}
	await.Until(t, "the old authority is believed no more", func() bool {
		return a.verifier().Before == nil && b.verifier().Before == nil
	})
	if r := clusterInfo(t, b).Rotation; r != nil {
		t.Errorf("a rotation that is finished: %+v", r)
	}
	if _, err := admin.Of(runs).Devices(context.Background()); err != nil {
		t.Errorf("who is connected: %v", err)
	}
	if again, err = client.DialServer(context.Background(), b.address(), client.Options{}); err != nil {
		t.Fatalf("who comes back at the end: %v", err)
	}
	again.Close()
	if _, err := login.Login(context.Background(), b.address(), tokens["never seen again"], "late"); !errors.Is(err,
		object.ErrPermission) {
		t.Errorf("a token of the old authority: %v", err)
	}
	secret, err := pki.ParseToken(tokens["never seen again"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.goodToken(object.ID(secret.ID()), secret.SecretHash()); !errors.Is(err, object.ErrPermission) {
		t.Errorf("who shows a token of the old authority without looking whose it is: %v", err)
	}
	states := map[string]int{}
	for raw, err := range admin.Of(x.conns[0]).EachToken(context.Background()) {
		var token inspect.Token
		if err = errors.Join(err, json.Unmarshal(raw, &token)); err != nil {
			t.Fatal(err)
		}
		states[token.State]++
	}
	if states["void"] < 3 || states["good"] != 1 {
		t.Errorf("tokens at the end: %v, want one good one, and those of the old authority void", states)
	}
	gone := certificateOfNode(t, old, "gone", x.all[1].meta.node) // whoever has the old key can make that
	if err := strangerSpeaksRaft(t, a.address(), gone, a.meta.now.Load()); err == nil {
		t.Error("a node that has the old key comes in")
	}
	c := x.ns.startWith(x.all[2].cfg, func(d *Daemon) { d.dialNode, d.voteTime = w.dial(2), w.voteTime })
	await.Until(t, "the node that was away comes in, and has finished", func() bool {
		return clusterInfo(t, c).Entered && c.verifier().Before == nil
	})
	if s, err = rotate(t, x.conns[0], false, false); err != nil || s.Finished {
		t.Errorf("the next rotation: %+v, %v", s, err)
	}
	await.Until(t, "all nodes have followed again", func() bool {
		s, err := rotate(t, x.conns[1], false, false)
		return err == nil && len(s.Waiting) == 0
	})
}

// readOnly calls f where a folder cannot be written to, by root either.
func readOnly(t *testing.T, dir string, f func()) {
	t.Helper()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	var calling sync.WaitGroup
	calling.Go(func() {
		runtime.LockOSThread() // and the thread ends here
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		err := unix.Capget(&header, &has[0])
		has[0].Effective &^= 1 << unix.CAP_DAC_OVERRIDE
		if err = errors.Join(err, unix.Capset(&header, &has[0])); err != nil {
			t.Error(err)
			return
		}
		f()
	})
	calling.Wait()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestRaftsConnectionsEndWithTheirCertificate: raft's connection to a node ends when that node's certificate expires.
func TestRaftsConnectionsEndWithTheirCertificate(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(2)
	a, b := x.all[0].meta.now.Load(), x.all[1].meta.now.Load()
	secure, _, err := b.links.connect(t.Context(), a.node, kindRaft)
	if err != nil {
		t.Fatal(err)
	}
	var list raftConns
	expires := a.keyring.Certificate().Leaf.NotAfter
	later, err := list.add(secure, expires.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	other, _, err := b.links.connect(t.Context(), a.node, kindRaft)
	if err != nil {
		t.Fatal(err)
	}
	now, err := list.add(other, expires)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if _, err := now.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the certificate has expired, and the connection ends with %v", err)
	}
	if _, err := later.Write([]byte{1, 0x80}); err != nil { // as strangerSpeaksRaft does
		t.Error(err)
	}
	if _, err := later.Read(make([]byte, 1)); err != nil {
		t.Errorf("the certificate is good for an hour, and the connection ends with %v", err)
	}
}

// TestAnAuthorityThatCannotBeRead: what the metadata says of the authority may be of a later release. A node that
// cannot read it goes on, and ends when it is told to.
func TestAnAuthorityThatCannotBeRead(t *testing.T) {
	ns := newNodes(t)
	var log *logBuffer
	d := ns.startWith(aNode(t, "a"), func(d *Daemon) { log = loud(d) })
	if _, err := d.propose(&fsm.SetPolicy{Policy: fsm.Policy{Key: authorityPolicy, Value: []byte("later")}}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "it has tried to", func() bool { return strings.Contains(log.String(), "cannot follow the rotation") })
	ended := make(chan struct{})
	go func() {
		ns.end(d)
		close(ended)
	}()
	await.Until(t, "the node has ended", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// TestANodeThatWasTakenOutIsHeardNoMore: raft's connections to and from a node that was removed end, though it answers
// and its certificate has not expired.
func TestANodeThatWasTakenOutIsHeardNoMore(t *testing.T) {
	x := newCluster(t, 3, nil)
	gone := x.all[2].meta.node.String()
	secure, _, err := x.all[2].meta.now.Load().links.connect(t.Context(), x.all[1].meta.node, kindRaft)
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	heard := func(d *Daemon) bool {
		return slices.Contains(d.meta.now.Load().raftConns.nodes(), gone)
	}
	await.Until(t, "a connection of the node", func() bool { return heard(x.all[1]) })
	if _, err := remove(t, x.all[0], "n2", true); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "nobody hears the node any more", func() bool { return !heard(x.all[0]) && !heard(x.all[1]) })
}

// nodes names those at the other ends.
func (r *raftConns) nodes() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		if s, err := pki.SubjectOf(c.leaf); err == nil {
			list = append(list, s.Node)
		}
	}
	return list
}

// TestRotationFindsTheNextLeader: who asks for a rotation right after the leader has gone gets it from the next one.
func TestRotationFindsTheNextLeader(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	w := newNetwork(t)
	x := w.cluster(3)
	leader := x.leader()
	await.Until(t, "all nodes vote", func() bool { return x.votersAt((leader+1)%3) == 3 })
	w.cutOff(leader, 3)
	if s, err := rotate(t, x.conns[(leader+1)%3], false, false); err != nil || !s.Begun {
		t.Fatalf("%+v, %v", s, err)
	}
}

// TestTokenMeetsARotation: a token that is being made when a rotation begins would name the old authority, and be
// listed as good at the end. It is refused, and revoked; the next one is good to the end and beyond.
func TestTokenMeetsARotation(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	w := newNetwork(t)
	var due atomic.Bool
	var begin func()
	w.at = func(node int, step string) {
		if node == 1 && step == "a token is drawn" && due.CompareAndSwap(true, false) {
			begin()
		}
	}
	x := w.cluster(2)
	begin = func() {
		if s, err := rotate(t, x.conns[0], false, false); err != nil || !s.Begun {
			t.Errorf("%+v, %v", s, err)
		}
	}
	due.Store(true)
	_, err := admin.Of(x.conns[1]).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User})
	if !errors.Is(err, object.ErrBusy) {
		t.Errorf("a token of the old authority: %v", err)
	}
	states := func() (list []string) {
		err := x.all[1].EachToken("", func(v any, _ string) bool {
			if s := v.(inspect.Token); s.Role == "user" {
				list = append(list, s.State)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(list)
		return list
	}
	if list := states(); !slices.Equal(list, []string{"revoked"}) {
		t.Errorf("it is listed as %q", list)
	}
	var token string
	await.Until(t, "the node has followed", func() bool {
		var err error
		token, err = admin.Of(x.conns[1]).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User})
		return err == nil
	})
	await.Until(t, "the rotation ends", func() bool { _, err := rotate(t, x.conns[0], true, false); return err == nil })
	if list := states(); !slices.Contains(list, "good") {
		t.Errorf("a token of the new authority is listed as %q", list)
	}
	if _, err := login.Login(context.Background(), x.all[1].address(), token, "late"); err != nil {
		t.Errorf("a token that was made during the rotation: %v", err)
	}
}
