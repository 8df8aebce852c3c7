package frontdoor

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/cluster/pki"
	"tendril/forwarding/link"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// fakeCluster has one token and signs for who shows it.
type fakeCluster struct {
	authority *pki.Authority
	token     pki.Token
	enrolled  atomic.Int32
	renewed   atomic.Pointer[pki.Serial] // the certificate in whose place the last one came
}

func (c *fakeCluster) Publish(Peer, object.ID, string, bool) (uint64, error) { return 5, nil }
func (c *fakeCluster) Unpublish(string, object.ID, string) error             { return nil }
func (c *fakeCluster) EachPublished(tenant, prefix, after string, _ error, f func(any, string) bool) error {
	return nil
}
func (c *fakeCluster) EachToken(after string, f func(any, string) bool) error { return nil }
func (c *fakeCluster) Concerns(object.ID) bool                                { return false }
func (c *fakeCluster) Dropped(string, object.ID) (bool, error)                { return false, nil }
func (c *fakeCluster) CreateToken(Peer, wire.CreateTokenRequest) (string, error) {
	return c.token.Text(), nil
}
func (c *fakeCluster) RevokeToken(Peer, wire.RevokeTokenRequest) error      { return nil }
func (c *fakeCluster) EachCertificate(string, func(any, string) bool) error { return nil }
func (c *fakeCluster) RevokeCertificates(Peer, wire.RevokeCertificatesRequest) (uint64, error) {
	return 0, nil
}
func (c *fakeCluster) EachTenant(string, func(any, string) bool) error   { return nil }
func (c *fakeCluster) ChangeTenant(Peer, wire.ChangeTenantRequest) error { return nil }
func (c *fakeCluster) OpenPage(Peer) (string, error)                     { return "http://x", nil }
func (c *fakeCluster) Renew(p Peer, request []byte) ([]byte, error) {
	c.renewed.Store(&p.Serial)
	return c.sign(request, p.Role)
}
func (c *fakeCluster) Resolve(tenant, name string) (object.ID, error) {
	return object.ID{}, fmt.Errorf("%w: %q", object.ErrNotFound, name)
}

func (c *fakeCluster) Changed() <-chan struct{} { return nil }

func (c *fakeCluster) CatchUp() *CatchUp { return nil }

// entered is closed.
var entered = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

func (c *fakeCluster) Entered() <-chan struct{} { return entered }

func (c *fakeCluster) Enroll(_ string, m wire.EnrollRequest) ([]byte, error) {
	if m.Token != object.ID(c.token.ID()) || m.SecretHash != c.token.SecretHash() {
		return nil, fmt.Errorf("%w: no such token here", object.ErrPermission)
	}
	c.enrolled.Add(1)
	return c.sign(m.Request, pki.User)
}

func (c *fakeCluster) sign(request []byte, role pki.Role) ([]byte, error) {
	issued, err := c.authority.Issue(request, pki.Subject{Name: "client", Role: role, Tenant: "far"}, time.Hour)
	if err != nil {
		return nil, err
	}
	return issued.Certificate.Raw, nil
}

// farDoor is a front door that is open to other machines.
type farDoor struct {
	*door
	cluster *fakeCluster
	address string
	revoked sync.Map                         // pki.Serial → true
	meet    atomic.Pointer[func(pki.Serial)] // called between handshake and admission
}

func openFar(t testing.TB, change ...func(*Options)) *farDoor {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.OpenAuthority(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	node := pki.IssueFrom(authority, pki.Subject{Name: "node", Role: pki.Node, Node: "1"}, time.Hour, nil)
	ring, err := pki.OpenKeyring(t.Context(), filepath.Join(dir, pki.NodeFile), "node", authority.Trust(),
		node, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	token, err := authority.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	far := &farDoor{cluster: &fakeCluster{authority: authority, token: token}}
	verifier := &pki.Verifier{Trust: authority.Trust(), Now: time.Now,
		Revoked: func(s pki.Serial) bool { _, is := far.revoked.Load(s); return is }}
	far.door = open(t, func(o *Options) {
		o.Cluster, o.TLS = far.cluster, pki.ServerConfig(ring.Certificate, verifier)
		o.Admin = func(uid uint32) bool { return int(uid) == os.Getuid() }
		o.ResumeTime = patience
		o.Void = func(leaf *x509.Certificate) bool {
			serial, err := pki.SerialOf(leaf)
			return err != nil || verifier.Revoked(serial) || verifier.Issuer(leaf) == nil
		}
		o.Remote = func(p pki.Peer) Peer {
			if meet := far.meet.Load(); meet != nil {
				(*meet)(p.Serial)
			}
			return Peer{Tenant: p.Tenant, Subject: p.Name, Serial: p.Serial, Role: p.Role, Leaf: p.Leaf}
		}
		for _, f := range change {
			f(o)
		}
	})
	address, err := far.ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	far.address = address.String()
	return far
}

// knock connects and shows a control preface.
func (d *farDoor) knock(t testing.TB) *ipc.Socket {
	t.Helper()
	s, err := ipc.DialTCP(context.Background(), d.address, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.SetDeadline(time.Now().Add(patience))
	if _, err := s.Write(ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	return s
}

// certificate gives one of the cluster's, or of another authority.
func certificateFrom(t testing.TB, a *pki.Authority, role pki.Role) *tls.Certificate {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, "client")
	if err != nil {
		t.Fatal(err)
	}
	s := pki.Subject{Name: "client", Role: role, Tenant: "far"}
	if role == pki.Node {
		s.Node = "9"
	}
	issued, err := a.Issue(request, s, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{issued.Certificate.Raw}, PrivateKey: key, Leaf: issued.Certificate}
}

// enter comes in with a certificate and says Hello; the error is the first that it met.
func (d *farDoor) enter(t testing.TB, own *tls.Certificate) (*ipc.Remote, error) {
	t.Helper()
	s := d.knock(t)
	config := pki.ClientConfig(func() *tls.Certificate { return own },
		&pki.Verifier{Trust: d.cluster.authority.Trust(), Now: time.Now})
	secure := tls.Client(s, config)
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	link := ipc.NewRemote(secure, s)
	_, err := ask(link, wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 1, Program: "far"})
	return link, err
}

// ask is a round trip.
func ask(link *ipc.Remote, kind wire.Type, m ipc.Payload) (ipc.Frame, error) {
	if err := link.Send(ipc.AppendFrame(nil, kind, 0, 9, m)); err != nil {
		return ipc.Frame{}, err
	}
	f, err := link.Receive(nil)
	if err == nil && f.Type == wire.Error {
		var e wire.ErrorReply
		if err = e.Decode(f.Payload); err == nil {
			err = object.FromCode(e.Code, e.Text)
		}
	}
	return f, err
}

func TestFarClientIsServedWithoutDescriptors(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(link, wire.List, &wire.ListRequest{}); err != nil {
		t.Errorf("list: %v", err)
	}
	id := object.ID{1}
	for kind, m := range map[wire.Type]ipc.Payload{
		wire.Create: &wire.CreateRequest{SizeBytes: 10}, wire.Get: &wire.GetRequest{ID: id},
		wire.Sweep: nil, wire.Forget: &wire.Number{N: 1}, wire.OpenWorker: &wire.OpenWorkerRequest{},
		wire.AllocSegment:   &wire.Number{N: 4096},
		wire.PublishSegment: &wire.PublishSegmentRequest{}, wire.FreeSegment: &wire.Number{N: 1}, wire.OpenPage: nil,
	} {
		if _, err := ask(link, kind, m); !errors.Is(err, object.ErrUnsupported) {
			t.Errorf("%v from another machine: %v", kind, err)
		}
	}
	for _, kind := range []wire.Type{wire.CreateToken, wire.Tokens, wire.RevokeToken, wire.RotateAuthority,
		wire.BackupCluster} {
		payload := map[wire.Type]ipc.Payload{wire.CreateToken: &wire.CreateTokenRequest{Role: 1},
			wire.RotateAuthority: &wire.RotateAuthorityRequest{},
			wire.RevokeToken:     &wire.RevokeTokenRequest{ID: id}}[kind]
		if _, err := ask(link, kind, payload); !errors.Is(err, object.ErrPermission) {
			t.Errorf("%v from another machine: %v", kind, err)
		}
	}
	if _, err := ask(link, wire.OpenSession, &wire.OpenSessionRequest{Options: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	f, err := ask(link, wire.OpenRemoteWorker, &wire.OpenRemoteWorkerRequest{Lanes: 3, ClientSHA256: [32]byte{4}})
	var reply wire.OpenRemoteWorkerReply
	if err == nil {
		err = reply.Decode(f.Payload)
	}
	if err != nil || reply.Worker != 7 || len(reply.Tickets) != 3 || reply.WorkerSHA256 != [32]byte{4} {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, lanes := range []uint8{0, 9} {
		if _, err := ask(link, wire.OpenRemoteWorker, &wire.OpenRemoteWorkerRequest{Lanes: lanes}); !errors.Is(err,
			object.ErrInvalid) {
			t.Errorf("%d lanes: %v", lanes, err)
		}
	}
}

func TestFrameWithADescriptorEndsAFarConnection(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Send(ipc.AppendFrame(nil, wire.List, ipc.FlagFD, 3, &wire.ListRequest{})); err != nil {
		t.Fatal(err)
	}
	if f, err := link.Receive(nil); err != nil || f.Type != wire.Error {
		t.Errorf("got %v, %v; want an error frame", f.Type, err)
	}
	if _, err := link.Receive(nil); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}

// TestRefusalsNameNoMessages: what a user may not do is refused in the user's words. The names of messages are for who
// reads ipc/PROTOCOL.md, after a breach of it.
func TestRefusalsNameNoMessages(t *testing.T) {
	d := openFar(t)
	for role, refused := range map[pki.Role]func(r row) bool{
		pki.User:     func(r row) bool { return r.local || r.admin || r.node || r.session },
		pki.ReadOnly: func(r row) bool { return r.mutates },
	} {
		link, err := d.enter(t, certificateFrom(t, d.cluster.authority, role))
		if err != nil {
			t.Fatal(err)
		}
		kinds := []wire.Type{0x7ff0} // of a later release
		for kind, r := range rows {
			if refused(r) {
				kinds = append(kinds, kind)
			}
		}
		for _, kind := range kinds {
			_, err := ask(link, kind, nil)
			if err == nil || errors.Is(err, object.ErrProtocol) {
				t.Errorf("%v as %v: %v", kind, role, err)
				continue
			}
			for named := range rows {
				if regexp.MustCompile(`\b` + named.String() + `\b`).MatchString(err.Error()) {
					t.Errorf("%v as %v: %v", kind, role, err)
				}
			}
		}
	}
}

func TestRolesThatOnlyLook(t *testing.T) {
	d := openFar(t)
	for _, role := range []pki.Role{pki.ReadOnly, pki.Node} {
		link, err := d.enter(t, certificateFrom(t, d.cluster.authority, role))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(link, wire.List, &wire.ListRequest{}); err != nil {
			t.Errorf("%v: list: %v", role, err)
		}
		for kind, m := range map[wire.Type]ipc.Payload{
			wire.OpenSession: &wire.OpenSessionRequest{}, wire.Delete: &wire.NameMessage{Name: "n"},
			wire.Bind:    &wire.BindRequest{Name: "n"},
			wire.Publish: &wire.BindRequest{Name: "n"}, wire.Unpublish: &wire.NameMessage{Name: "n"},
		} {
			if _, err := ask(link, kind, m); !errors.Is(err, object.ErrPermission) {
				t.Errorf("%v: %v: %v", role, kind, err)
			}
		}
	}
}

func TestWhoIsNotLetIn(t *testing.T) {
	d := openFar(t)
	other, err := pki.OpenAuthority(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	revoked := certificateFrom(t, d.cluster.authority, pki.User)
	serial, err := pki.SerialOf(revoked.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	d.revoked.Store(serial, true)
	identity, err := link.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	self := identity.Config(identity.Fingerprint()).Certificates[0]
	stolen := *certificateFrom(t, d.cluster.authority, pki.User)
	stolen.PrivateKey = self.PrivateKey.(*ecdsa.PrivateKey)
	for name, c := range map[string]*tls.Certificate{
		"another authority's": certificateFrom(t, other, pki.User), "revoked": revoked, "made up": &self,
		"without its key": &stolen, "none": {},
	} {
		if _, err := d.enter(t, c); err == nil {
			t.Errorf("a certificate that is %s is let in", name)
		}
	}
	await.Until(t, "no connection is counted", func() bool { return d.Connections() == 0 })
}

func TestRevokedConnectionsEnd(t *testing.T) {
	d := openFar(t)
	good, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	bad := certificateFrom(t, d.cluster.authority, pki.User)
	link, err := d.enter(t, bad)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := pki.SerialOf(bad.Leaf)
	d.EndIf(func(p Peer) bool { return p.Serial == serial }, ErrRevoked)
	if _, err := link.Receive(nil); err == nil {
		t.Error("the connection of a revoked certificate goes on")
	}
	if _, err := ask(good, wire.List, &wire.ListRequest{}); err != nil {
		t.Errorf("another connection was ended, too: %v", err)
	}
}

// A certificate that is revoked while its holder is at the door: TLS let it in, and the revocation found no connection
// to end.
func TestRevokedDuringTheHandshake(t *testing.T) {
	d := openFar(t)
	meet := func(serial pki.Serial) {
		d.revoked.Store(serial, true)
		d.EndIf(func(p Peer) bool { return p.Serial == serial }, ErrRevoked)
	}
	d.meet.Store(&meet)
	if _, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User)); !errors.Is(err, object.ErrPermission) ||
		!strings.Contains(err.Error(), "revoked") {
		t.Errorf("it is let in: %v", err)
	}
	await.Until(t, "no connection is counted", func() bool { return d.Connections() == 0 })
}

// TestRotatedDuringTheHandshake: the same where the cluster's authority becomes another one meanwhile.
func TestRotatedDuringTheHandshake(t *testing.T) {
	var old atomic.Bool
	d := openFar(t, func(o *Options) { o.Void = func(*x509.Certificate) bool { return old.Load() } })
	meet := func(pki.Serial) {
		old.Store(true)
		d.EndIf(func(p Peer) bool { return p.Leaf != nil }, ErrRevoked)
	}
	d.meet.Store(&meet)
	if _, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User)); !errors.Is(err, object.ErrPermission) {
		t.Errorf("it is let in: %v", err)
	}
}

func TestStrangersHearNothingOfTheInside(t *testing.T) {
	inside := fmt.Errorf("%w: open /var/lib/tendril/raft/log: no space left on device", object.ErrInternal)
	if text := forStrangers(inside).Error(); strings.Contains(text, "/var") ||
		!errors.Is(forStrangers(inside), object.ErrInternal) {
		t.Error(text)
	}
	if err := forStrangers(object.ErrPermission); !errors.Is(err, object.ErrPermission) {
		t.Error(err)
	}
}

// join shakes hands without a certificate.
func (d *farDoor) join(t testing.TB, token pki.Token) (*ipc.Remote, error) {
	t.Helper()
	s := d.knock(t)
	secure := tls.Client(s, pki.JoinConfig(token, time.Now, func(pki.Trust) {}))
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	return ipc.NewRemote(secure, s), nil
}

func TestEnrollAndNothingElse(t *testing.T) {
	d := openFar(t)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, "me")
	if err != nil {
		t.Fatal(err)
	}
	token := d.cluster.token
	good := wire.EnrollRequest{Token: token.ID(), SecretHash: token.SecretHash(), Name: "me", Request: request}
	wrong := good
	wrong.SecretHash[3]++
	for name, x := range map[string]struct {
		kind wire.Type
		m    ipc.Payload
		want error
	}{
		"a good token":   {wire.Enroll, &good, nil},
		"a wrong secret": {wire.Enroll, &wrong, object.ErrPermission},
		"Hello": {wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: 1},
			object.ErrProtocol},
		"Status":             {wire.Status, nil, object.ErrProtocol},
		"half an Enroll":     {wire.Enroll, raw(good.Append(nil)[:60]), object.ErrProtocol},
		"an endless request": {wire.Enroll, raw(make([]byte, enrollMax+1)), object.ErrProtocol},
	} {
		link, err := d.join(t, token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(link, x.kind, x.m); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		if _, err := ask(link, wire.Status, nil); err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
	}
	if n := d.cluster.enrolled.Load(); n != 1 {
		t.Errorf("%d certificates were given, want 1", n)
	}
	foreign, err := pki.OpenAuthority(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	strange, _ := foreign.NewToken()
	if _, err := d.join(t, strange); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a token of another cluster is shown to this one: %v", err)
	}
}

func TestPrefacesThatAreNone(t *testing.T) {
	d := openFar(t)
	good := ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil)
	ticket := ipc.NewPreface(ipc.KindTicket, [32]byte{1}).Append(nil)
	altered := func(at int, v byte) []byte { b := slices.Clone(good); b[at] = v; return b }
	for name, b := range map[string][]byte{
		"HTTP":            []byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0 (X11)\r\n\r\n"),
		"zeros":           make([]byte, 48),
		"another version": binary.LittleEndian.AppendUint16(slices.Clone(good[:8]), 2),
		"other words":     altered(13, 4),
		"other order":     altered(14, 1),
		"another kind":    altered(12, 2),
		"control, ticket": altered(47, 1),
		"no ticket":       altered(12, 1),
		"unknown ticket":  ticket,
	} {
		c, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, make([]byte, max(0, 48-len(b)))...)
		c.Write(b)
		c.SetReadDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(c); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: answered %q, %v; want the end", name, got, err)
		}
		c.Close()
	}
}

// flood is silent connections from as many addresses of this machine as there are in 127.1.0.0/16, n of them.
func flood(t *testing.T, address string, n int, first []byte) (open []net.Conn) {
	t.Helper()
	t.Cleanup(func() {
		for _, c := range open {
			c.Close()
		}
	})
	for i := range n {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i))},
			Timeout: 5 * time.Minute}
		c, err := dialer.Dial("tcp", address)
		switch {
		case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EADDRINUSE):
		case err != nil:
			t.Fatal(err)
		default:
			c.Write(first)
			open = append(open, c)
			if len(open) >= 1000 { // those before were reset already
				open[0].Close()
				open = open[1:]
			}
		}
	}
	return open
}

// Ten thousand half-open connections: who is known is served, who has a certificate comes in, and every descriptor
// comes back.
func TestTenThousandHalfOpenConnections(t *testing.T) {
	d := openFar(t)
	known, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	for _, first := range [][]byte{nil, []byte("TEN"), ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil)} {
		silent := flood(t, d.address, 10_000/3, first)
		if _, err := ask(known, wire.List, &wire.ListRequest{}); err != nil {
			t.Errorf("a known client is not served among strangers: %v", err)
		}
		link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
		if err != nil {
			t.Errorf("the door is full of those who sent %q: %v", first, err)
		} else {
			link.Close()
		}
		d.mu.Lock()
		if n := len(d.strangers.all); n > maxStrangers {
			t.Errorf("%d strangers", n)
		}
		d.mu.Unlock()
		for _, c := range silent {
			c.Close()
		}
	}
	await.Until(t, "no more descriptors than before", func() bool { return descriptors(t) <= before })
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Silent connections of one address do not keep that address out, and end by themselves.
func TestStrangersAreCountedAndSentAway(t *testing.T) {
	d := openFar(t)
	var silent []net.Conn
	for range 3 * maxFromOne {
		c, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	if _, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User)); err != nil {
		t.Errorf("nobody else of that address comes in: %v", err)
	}
	d.mu.Lock()
	if n := len(d.strangers.all); n > maxFromOne {
		t.Errorf("%d strangers of one address", n)
	}
	d.mu.Unlock()
	hasty := openFar(t, func(o *Options) { o.StrangerTime = 100 * time.Millisecond })
	c, err := net.Dial("tcp", hasty.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d.Close() // and with it those that are left
	for i, c := range append(silent, c) {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent connection %d was not ended: %v", i, err)
		}
	}
}

// A preface that comes in pieces gets no more time than another.
func TestPrefaceInPiecesIsNotWaitedFor(t *testing.T) {
	d := openFar(t, func(o *Options) { o.StrangerTime = time.Second })
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	good := ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil)
	c.SetReadDeadline(time.Now().Add(patience))
	ended := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
	for _, b := range good { // 48 of them: the door does not wait for the last
		c.Write([]byte{b})
		select {
		case err := <-ended:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it was not sent away")
			}
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
	t.Error("a preface that took 14 s was waited for")
}

func TestTwoDoorsOnOnePort(t *testing.T) {
	d := openFar(t)
	if _, err := d.ListenTCP("127.0.0.1:0"); !errors.Is(err, object.ErrBusy) {
		t.Errorf("opened twice: %v", err)
	}
	second := openFar(t)
	_ = second
	other := open(t, func(o *Options) {
		o.Cluster, o.TLS, o.Remote = d.cluster, &tls.Config{}, func(pki.Peer) Peer { return Peer{} }
	})
	if _, err := other.ListenTCP(d.address); !errors.Is(err, object.ErrBusy) {
		t.Errorf("the port is taken: %v", err)
	}
}

// TestTicketOverTheUnixSocket: a data connection may come there too, and nothing behind its preface is read.
func TestTicketOverTheUnixSocket(t *testing.T) {
	got := make(chan [ipc.TicketBytes]byte, 1)
	worker := make(chan *os.File, 1)
	d := open(t, nil)
	d.backend.mu.Lock()
	d.backend.lane = func(ticket [ipc.TicketBytes]byte, fd int) error {
		got <- ticket
		theirs, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		worker <- os.NewFile(uintptr(theirs), "worker")
		return err
	}
	d.backend.mu.Unlock()
	s, err := ipc.DialUnix(d.socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetDeadline(time.Now().Add(patience))
	b := ipc.NewPreface(ipc.KindTicket, [32]byte{5, 31: 6}).Append(nil)
	for _, part := range [][]byte{b[:3], b[3:20], append(slices.Clone(b[20:]), "hello"...)} {
		if _, err := s.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	ticket, theirs := <-got, <-worker
	defer theirs.Close()
	// the door has no part in it any more
	await.Until(t, "the connection is not the door's", func() bool { return d.Connections() == 0 })
	hello := make([]byte, 5)
	if _, err := io.ReadFull(theirs, hello); err != nil || string(hello) != "hello" {
		t.Errorf("the worker reads %q, %v", hello, err)
	}
	if _, err := theirs.Write([]byte("worker")); err != nil {
		t.Error(err)
	}
	if err := unix.Shutdown(int(theirs.Fd()), unix.SHUT_WR); err != nil {
		t.Error(err)
	}
	answer, err := io.ReadAll(s)
	if ticket != [32]byte{5, 31: 6} || !bytes.Equal(answer, []byte("worker")) {
		t.Errorf("ticket %x, answer %q, %v", ticket, answer, err)
	}
}

// What the door accepts must notice a peer that went to sleep, also while bytes are on their way, and also in a
// worker's hands.
func TestAcceptedSocketsNoticeSilence(t *testing.T) {
	d := openFar(t)
	got := make(chan [3]int, 1)
	d.backend.mu.Lock()
	d.backend.lane = func(_ [ipc.TicketBytes]byte, fd int) error {
		var options [3]int
		for i, x := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}} {
			v, err := unix.GetsockoptInt(fd, x[0], x[1])
			if err != nil {
				t.Error(err)
			}
			options[i] = v
		}
		got <- options
		return nil
	}
	d.backend.mu.Unlock()
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(ipc.NewPreface(ipc.KindTicket, [32]byte{5}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	if o := <-got; o != [3]int{60_000, 1, 15} {
		t.Errorf("user timeout, keep-alive, idle: %v", o)
	}
}

// FuzzHandshake: whatever comes behind a good preface, the door answers the next one.
func FuzzHandshake(f *testing.F) {
	d := openFar(f)
	hello := clientHello(f)
	f.Add(hello)
	for _, n := range []int{1, 5, 9, 43, len(hello) - 1} {
		f.Add(hello[:n])
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0x16, 3, 1, 0xFF, 0xFF, 1, 0xFF, 0xFF, 0xFF})
	own := certificateFrom(f, d.cluster.authority, pki.User)
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := d.knock(t)
		_, _ = s.Write(raw)
		s.Close()
		if _, err := d.enter(t, own); err != nil {
			t.Fatal(err)
		}
	})
}

// clientHello gives what a client of ours says first.
func clientHello(t testing.TB) []byte {
	near, far := net.Pipe()
	defer far.Close()
	go func() { // ends with far
		defer near.Close()
		_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{pki.Protocol},
			MinVersion: tls.VersionTLS13}).Handshake()
	}()
	buf := make([]byte, 4096)
	n, err := far.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func FuzzPreface(f *testing.F) {
	f.Add(ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil))
	f.Add(ipc.NewPreface(ipc.KindTicket, [32]byte{1}).Append(nil))
	f.Add(make([]byte, 48))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != ipc.PrefaceBytes {
			return
		}
		p, err := ipc.ParsePreface((*[ipc.PrefaceBytes]byte)(b))
		if err == nil && !bytes.Equal(p.Append(nil), b) {
			t.Errorf("%x is read as %+v", b, p)
		}
	})
}

// TestCloseEndsHandshakes: the door closes while strangers are at every stage.
func TestCloseEndsHandshakes(t *testing.T) {
	d := openFar(t)
	for range 20 {
		c, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(ipc.NewPreface(ipc.KindControl, [32]byte{}).Append(nil))
	}
	if _, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User)); err != nil {
		t.Fatal(err)
	}
	done, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	go func() { d.Close(); cancel() }()
	<-done.Done()
	if errors.Is(done.Err(), context.DeadlineExceeded) {
		t.Error("Close hangs")
	}
}
