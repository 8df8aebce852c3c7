package frontdoor

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// named is certificateFrom with another name and tenant.
func named(t testing.TB, a *pki.Authority, name, tenant string) *tls.Certificate {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, name)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.Issue(request, pki.Subject{Name: name, Role: pki.User, Tenant: tenant}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{issued.Certificate.Raw}, PrivateKey: key, Leaf: issued.Certificate}
}

// sessionOf reads the answer to a request for a session.
func sessionOf(t testing.TB, f ipc.Frame, err error) uint64 {
	t.Helper()
	var opened wire.OpenSessionReply
	if err == nil {
		err = opened.Decode(f.Payload)
	}
	if err != nil {
		t.Fatal(err)
	}
	return opened.Session
}

// keep opens a session that is kept and returns what it takes to come back.
func keep(t testing.TB, link *ipc.Remote, limit time.Duration) *wire.ResumeSessionRequest {
	t.Helper()
	f, err := ask(link, wire.OpenSession, &wire.OpenSessionRequest{Options: []byte("{}")})
	session := sessionOf(t, f, err)
	if f, err = ask(link, wire.KeepSession,
		&wire.KeepSessionRequest{Millis: uint32(limit.Milliseconds())}); err != nil {
		t.Fatal(err)
	}
	var kept wire.KeepSessionReply
	if err := kept.Decode(f.Payload); err != nil ||
		time.Duration(kept.Millis)*time.Millisecond != min(limit, patience) {
		t.Fatalf("%d ms, %v", kept.Millis, err)
	}
	return &wire.ResumeSessionRequest{Session: session, Secret: kept.Secret}
}

func (d *farDoor) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.away)
}

func (b *fakeBackend) isOpen(session uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[session]
}

func TestSessionComesBack(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	link, err := d.enter(t, own)
	if err != nil {
		t.Fatal(err)
	}
	m := keep(t, link, time.Hour)
	link.Shutdown()
	await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
	refused := func(name string, link *ipc.Remote, m wire.ResumeSessionRequest) {
		t.Helper()
		if _, err := ask(link, wire.ResumeSession, &m); !errors.Is(err, object.ErrPermission) {
			t.Errorf("%s: %v", name, err)
		}
	}
	again, err := d.enter(t, own)
	if err != nil {
		t.Fatal(err)
	}
	refused("a wrong secret", again, wire.ResumeSessionRequest{Session: m.Session, Secret: [32]byte{1}})
	refused("another session", again, wire.ResumeSessionRequest{Session: m.Session + 1, Secret: m.Secret})
	for who, cert := range map[string]*tls.Certificate{
		"another name":   named(t, d.cluster.authority, "other", "far"),
		"another tenant": named(t, d.cluster.authority, "client", "near"),
	} {
		stranger, err := d.enter(t, cert)
		if err != nil {
			t.Fatal(err)
		}
		refused(who, stranger, *m)
	}
	if _, err := ask(again, wire.ResumeSession, m); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(again, wire.ResumeWorker, &wire.ResumeWorkerRequest{Worker: 7, Lanes: 5}); err != nil {
		t.Errorf("its worker: %v", err)
	}
	if _, err := ask(again, wire.OpenSession, &wire.OpenSessionRequest{}); !errors.Is(err, object.ErrExists) {
		t.Errorf("a second session: %v", err)
	}
	// A connection that the daemon takes for alive lets go for the one that comes.
	third, err := d.enter(t, own)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(third, wire.ResumeSession, m); err != nil {
		t.Fatalf("from a connection that lives: %v", err)
	}
	if _, err := again.Receive(nil); err == nil {
		t.Error("the old connection goes on")
	}
	if !d.backend.isOpen(m.Session) || d.waiting() != 0 {
		t.Error("it was closed meanwhile, or still waits")
	}
	// Who takes leave is not waited for.
	if _, err := ask(third, wire.LeaveSession, nil); err != nil {
		t.Fatal(err)
	}
	third.Shutdown()
	await.Until(t, "its end", func() bool { return !d.backend.isOpen(m.Session) })
	refused("after its end", mustEnter(t, d, own), *m)
}

// What a broken connection still waits for does not keep its session from the one that comes.
func TestWaitsDoNotHoldAResumptionUp(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	link := mustEnter(t, d, own)
	m := keep(t, link, time.Hour)
	// the backend never answers this one
	if err := link.Send(ipc.AppendFrame(nil, wire.WorkerFate, 0, 9, &wire.Number{N: 7})); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(mustEnter(t, d, own), wire.ResumeSession, m); err != nil {
		t.Error(err)
	}
}

// A client whose connections break while it comes back has several that want its session at once: the last one alone
// lives, and must get it.
func TestManyComeBack(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	m := keep(t, mustEnter(t, d, own), time.Hour)
	for range 30 {
		links := make([]*ipc.Remote, 4)
		for i := range links {
			links[i] = mustEnter(t, d, own)
		}
		var tries sync.WaitGroup
		for _, link := range links {
			tries.Go(func() {
				// The others take the session from it: it may find its connection ended, and is never refused.
				if _, err := ask(link, wire.ResumeSession, m); errors.Is(err, object.ErrPermission) {
					t.Errorf("refused: %v", err)
				}
			})
		}
		tries.Wait()
	}
	if _, err := ask(mustEnter(t, d, own), wire.ResumeSession, m); err != nil {
		t.Error(err)
	}
}

func mustEnter(t testing.TB, d *farDoor, own *tls.Certificate) *ipc.Remote {
	t.Helper()
	link, err := d.enter(t, own)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestSessionsThatDoNotWait(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	t.Run("expired", func(t *testing.T) {
		link := mustEnter(t, d, own)
		m := keep(t, link, 50*time.Millisecond)
		link.Shutdown()
		await.Until(t, "its end", func() bool { return !d.backend.isOpen(m.Session) })
		if _, err := ask(mustEnter(t, d, own), wire.ResumeSession, m); !errors.Is(err, object.ErrPermission) {
			t.Error(err)
		}
	})
	t.Run("revoked", func(t *testing.T) {
		link := mustEnter(t, d, own)
		m := keep(t, link, patience)
		link.Shutdown()
		await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
		d.EndIf(func(p Peer) bool { return p.Subject == "client" }, ErrRevoked)
		if d.backend.isOpen(m.Session) || d.waiting() != 0 {
			t.Error("it still waits")
		}
	})
	t.Run("a broken rule", func(t *testing.T) {
		link := mustEnter(t, d, own)
		m := keep(t, link, patience)
		if _, err := ask(link, wire.LeaveSession, &wire.Number{N: 1}); !errors.Is(err, object.ErrProtocol) {
			t.Error(err)
		}
		await.Until(t, "its end", func() bool { return !d.backend.isOpen(m.Session) })
	})
	t.Run("the daemon's end", func(t *testing.T) {
		link := mustEnter(t, d, own)
		m := keep(t, link, patience)
		link.Shutdown()
		await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
		d.Close()
		if d.backend.isOpen(m.Session) {
			t.Error("its session is open")
		}
	})
}

// awayTeller says what it is told of sessions that wait, and holds up who tells it.
type awayTeller struct {
	Backend
	said     chan time.Time
	on, over chan struct{} // over: closed when nobody listens any more
}

func (b awayTeller) SessionAway(session uint64, until time.Time, remote string) {
	select {
	case b.said <- until:
		<-b.on
	case <-b.over:
	}
	b.Backend.SessionAway(session, until, remote)
}

// That a session waits is said before its client can be back: said after that it is back, it would be said for good.
func TestThatASessionWaitsIsSaidFirst(t *testing.T) {
	told := awayTeller{said: make(chan time.Time), on: make(chan struct{}), over: make(chan struct{})}
	d := openFar(t, func(o *Options) {
		told.Backend = o.Backend
		o.Backend = told
	})
	own := certificateFrom(t, d.cluster.authority, pki.User)
	link := mustEnter(t, d, own)
	m := keep(t, link, patience)
	link.Shutdown()
	if until := <-told.said; until.IsZero() || d.waiting() != 0 {
		t.Errorf("until %v, while %d sessions can be resumed", until, d.waiting())
	}
	back := make(chan error, 1)
	again := mustEnter(t, d, own)
	go func() {
		_, err := ask(again, wire.ResumeSession, m)
		back <- err
	}()
	told.on <- struct{}{}
	if until := <-told.said; !until.IsZero() {
		t.Errorf("its client is back, and it waits until %v", until)
	}
	told.on <- struct{}{}
	if err := <-back; err != nil {
		t.Error(err)
	}
	close(told.over)
}

// A client that wants to hear of it is told that its request is worked on, until it is answered.
func TestWorking(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask(wire.KeepSession, &wire.KeepSessionRequest{PulseMillis: 1}); err != nil {
		t.Fatal(err)
	}
	p.send(wire.OpenWorker, 77, &wire.OpenWorkerRequest{})
	for i := range 3 {
		f, err := p.Receive(nil)
		if err != nil || f.Type != wire.Working || f.Request != 77 || f.Length != 0 {
			t.Fatalf("%d: %v for request %d, %v", i, f.Type, f.Request, err)
		}
	}
	close(d.backend.release)
	for {
		f, err := p.Receive(nil)
		if err != nil {
			t.Fatal(err)
		}
		f.CloseFDs()
		if f.Type == wire.OpenWorker|wire.ReplyBit || f.Type == wire.Error {
			break
		}
		if f.Type != wire.Working {
			t.Fatalf("%v", f.Type)
		}
	}
	f, err := p.ask(wire.Hurry, nil) // nothing comes behind the answer
	if err != nil || f.Type != wire.Hurry|wire.ReplyBit {
		t.Errorf("%v, %v", f.Type, err)
	}
}

// What it takes to come back stands in no log, however much is logged and whoever tries it.
func TestSessionSecretIsInNoLog(t *testing.T) {
	var mu sync.Mutex
	var said bytes.Buffer
	log := logrus.New()
	log.SetLevel(logrus.TraceLevel)
	log.SetOutput(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(p)
	}))
	d := openFar(t, func(o *Options) { o.Log = log })
	own := certificateFrom(t, d.cluster.authority, pki.User)
	link := mustEnter(t, d, own)
	m := keep(t, link, patience)
	link.Shutdown()
	await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
	wrong := *m
	wrong.Session++
	if _, err := ask(mustEnter(t, d, named(t, d.cluster.authority, "other", "far")), wire.ResumeSession,
		m); !errors.Is(err, object.ErrPermission) {
		t.Error(err)
	}
	again := mustEnter(t, d, own)
	if _, err := ask(again, wire.ResumeSession, &wrong); !errors.Is(err, object.ErrPermission) {
		t.Error(err)
	}
	if _, err := ask(again, wire.ResumeSession, m); err != nil {
		t.Fatal(err)
	}
	again.Shutdown()
	await.Until(t, "it waits again", func() bool { return d.waiting() == 1 })
	d.Close()
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(said.String(), "is back") {
		t.Fatalf("no log of it:\n%s", said.String())
	}
	secret := m.Secret[:]
	for _, form := range []string{
		string(secret), hex.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret),
		base64.RawURLEncoding.EncodeToString(secret),
		strings.Trim(fmt.Sprint(secret), "[]"), fmt.Sprintf("%q", secret),
	} {
		if strings.Contains(said.String(), form[:min(len(form), 24)]) {
			t.Errorf("the secret is in the log as %q", form)
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
