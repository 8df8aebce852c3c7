package daemon

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/tenancy"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// logBuffer is everything that a daemon says.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// loud makes a daemon log all that it has to say into the buffer.
func loud(d *Daemon) *logBuffer {
	log, out := logrus.New(), &logBuffer{}
	log.SetOutput(out)
	log.SetLevel(logrus.TraceLevel)
	d.log = log
	return out
}

func dial(t *testing.T, c Config) *client.Conn {
	t.Helper()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// newToken makes a token through the front door.
func newToken(t testing.TB, conn *client.Conn, o admin.TokenOptions) string {
	t.Helper()
	if o.Role == 0 {
		o.Role = pki.User
	}
	text, err := admin.Of(conn).CreateToken(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tokensAt describes a node's tokens as one JSON array.
func tokensAt(conn *client.Conn) ([]byte, error) {
	var all []json.RawMessage
	for raw, err := range admin.Of(conn).EachToken(context.Background()) {
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return json.Marshal(all)
}

func tokenID(t *testing.T, text string) object.ID {
	t.Helper()
	token, err := pki.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token.ID()
}

func TestLoginAndWhatEndsIt(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	at := d.door.Load().RemoteAddr().String()
	if _, err := client.DialServer(context.Background(), at, client.Options{}); !errors.Is(err, object.ErrPermission) ||
		!strings.Contains(err.Error(), "tendril login") {
		t.Errorf("without a login: %v", err)
	}
	local, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	token := newToken(t, local, admin.TokenOptions{Tenant: "lab"})
	in, err := login.Login(context.Background(), at, token, "laptop")
	if err != nil || in.Tenant != "lab" || in.Name != "laptop" || in.Role != pki.User {
		t.Fatalf("%+v, %v", in, err)
	}
	key, err := os.Stat(filepath.Join(in.Dir, pki.ClientFile))
	if err != nil || key.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", key.Mode(), err)
	}
	far, err := client.DialServer(context.Background(), at, client.Options{Program: "far"})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if far.Daemon().Tenant != "lab" || !far.Remote() {
		t.Errorf("%+v", far.Daemon())
	}
	if _, err := admin.Of(far).Devices(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := far.Create(context.Background(), 10, client.CreateOptions{}); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("create from another machine: %v", err)
	}
	if _, err := admin.Of(far).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User}); !errors.Is(err,
		object.ErrPermission) {
		t.Errorf("a token from another machine: %v", err)
	}
	// A second login with the same token, then the token and all that it paid for are revoked.
	if _, err := login.Login(context.Background(), at, token, ""); err != nil {
		t.Fatal(err)
	}
	if err := admin.Of(local).RevokeToken(context.Background(), tokenID(t, token), true); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Of(far).Devices(context.Background()); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("a revoked connection goes on: %v", err)
	}
	if _, err := client.DialServer(context.Background(), at, client.Options{}); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a revoked certificate: %v", err)
	}
}

func TestTokensThatAreNoGood(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	other, stopOther := serve(t, aConfig(t))
	defer stopOther()
	at := d.door.Load().RemoteAddr().String()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	once := newToken(t, conn, admin.TokenOptions{Once: true})
	if _, err := login.Login(context.Background(), at, once, ""); err != nil {
		t.Fatal(err)
	}
	revoked := newToken(t, conn, admin.TokenOptions{})
	if err := admin.Of(conn).RevokeToken(context.Background(), tokenID(t, revoked), false); err != nil {
		t.Fatal(err)
	}
	short := newToken(t, conn, admin.TokenOptions{Life: time.Second})
	time.Sleep(1100 * time.Millisecond) // Pause: no token lives for less than a second
	never, err := d.meta.authority.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ name, token, at, want string }{
		{"used", once, at, "one use"},
		{"revoked", revoked, at, "revoked"},
		{"expired", short, at, "expired"},
		{"never made", never.Text(), at, "no such token"},
		{"mistyped", once[:10] + "zz" + once[12:], at, ""},
		{"of another cluster", once, other.door.Load().RemoteAddr().String(), "another authority"},
		{"no token", "hello", at, "begins with"},
	} {
		if _, err := login.Login(context.Background(), x.at, x.token, ""); err == nil || !strings.Contains(err.Error(),
			x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	if far, err := client.DialServer(context.Background(), at, client.Options{}); err != nil {
		t.Errorf("logins that failed took the good one away: %v", err)
	} else {
		far.Close()
	}
	raw, err := tokensAt(conn)
	var list []inspect.Token
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil || len(list) != 3 {
		t.Fatalf("%s, %v", raw, err)
	}
	for _, x := range list {
		if x.State == "good" {
			t.Errorf("%+v", x)
		}
	}
}

func TestRestartKeepsWhatItShould(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	c.Listen = freePort(t) // where the client logs in, and comes back
	c.Tenants = []tenancy.Tenant{{Name: "lab", Users: []uint32{uint32(os.Getuid())}, Certificates: []string{"bench"}}}
	d, stop := serve(t, c)
	at := d.door.Load().RemoteAddr().String()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	if conn.Daemon().Tenant != "lab" {
		t.Errorf("tenant %q", conn.Daemon().Tenant)
	}
	token := newToken(t, conn, admin.TokenOptions{Tenant: "lab"})
	elsewhere := newToken(t, conn, admin.TokenOptions{Tenant: "garden"})
	if _, err := login.Login(context.Background(), at, elsewhere, "bench"); !errors.Is(err, object.ErrPermission) ||
		!strings.Contains(err.Error(), "reserved for a tenant") {
		t.Errorf("a reserved name: %v", err)
	}
	if _, err := login.Login(context.Background(), at, token, "bench"); err != nil {
		t.Fatal(err)
	}
	publish(t, conn, "fleeting", []byte("bytes"))
	buf, err := conn.Create(context.Background(), 4, client.CreateOptions{Class: object.Persisted, Name: "stays"})
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes(), "disk")
	kept, err := buf.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Publish(context.Background(), kept.ID(), "lasting", false); err != nil {
		t.Fatal(err)
	}
	kept.Release()
	id, certificate := d.node.ID, d.meta.keyring.Certificate().Leaf.SerialNumber
	conn.Close()
	stop()

	d, stop = serve(t, c)
	defer stop()
	if d.node.ID != id || d.meta.keyring.Certificate().Leaf.SerialNumber.Cmp(certificate) != 0 {
		t.Error("the node is another one")
	}
	far, err := client.DialServer(context.Background(), at, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if far.Daemon().Tenant != "lab" {
		t.Errorf("tenant %q", far.Daemon().Tenant)
	}
	if raw, err := far.Published(context.Background(), ""); err != nil || strings.Contains(string(raw), "fleeting") ||
		!strings.Contains(string(raw), "lasting") {
		t.Errorf("published by a daemon that is gone: %s, %v", raw, err)
	}
	again := dial(t, c)
	defer again.Close()
	if obj, err := again.GetByName(t.Context(), "lasting", 0); err != nil || string(obj.Bytes()) != "disk" {
		t.Errorf("a persisted object after a restart: %v", err)
	} else {
		obj.Release()
	}
	if raw, err := tokensAt(again); err != nil || !strings.Contains(string(raw), tokenID(t,
		token).String()) {
		t.Errorf("tokens: %s, %v", raw, err)
	}
}

// publish makes a named object and publishes it.
func publish(t *testing.T, conn *client.Conn, name string, content []byte) object.ID {
	t.Helper()
	buf, err := conn.Create(context.Background(), uint64(len(content)), client.CreateOptions{Class: object.Ephemeral})
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes(), content)
	obj, err := buf.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Release()
	if _, err := conn.Publish(context.Background(), obj.ID(), name, true); err != nil {
		t.Fatal(err)
	}
	return obj.ID()
}

func TestPublishedObjectsOutliveWhoMadeThem(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	maker, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	first := publish(t, maker, "result", []byte("first"))
	maker.Close()
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	get := func() string {
		obj, err := conn.GetByName(t.Context(), "result", 0)
		if err != nil {
			return err.Error()
		}
		defer obj.Release()
		return string(obj.Bytes())
	}
	if got := get(); got != "first" {
		t.Errorf("got %q", got)
	}
	if info, err := conn.StatByName(context.Background(), "result"); err != nil || info.ID != first {
		t.Errorf("%+v, %v", info, err)
	}
	second := publish(t, conn, "result", []byte("second"))
	if got := get(); got != "second" {
		t.Errorf("replaced: %q", got)
	}
	if _, err := conn.Stat(context.Background(), first); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("the replaced object is still there: %v", err)
	}
	if _, err := conn.Publish(context.Background(), object.NewID(), "other", false); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	if _, err := conn.Publish(context.Background(), second, "", false); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("without a name: %v", err)
	}
	if err := conn.DeleteByName(context.Background(), "result"); err != nil {
		t.Error(err)
	}
	if got := get(); !strings.Contains(got, "not found") {
		t.Errorf("deleted: %q", got)
	}
	third := publish(t, conn, "third", []byte("3"))
	if err := conn.Unpublish(context.Background(), "third"); err != nil {
		t.Error(err)
	}
	if _, err := conn.Stat(context.Background(), third); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("nothing holds it any more: %v", err)
	}
	d.published.mu.Lock()
	defer d.published.mu.Unlock()
	if n := len(d.published.tenants); n != 0 {
		t.Errorf("%d tenants are held", n)
	}
}

// A get that waits is also answered by what is published under the name, and what goes is published no longer.
func TestPublishedNamesComeAndGo(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	conn, waiter := dial(t, c), dial(t, c)
	got := make(chan error, 1)
	go func() {
		obj, err := waiter.GetByName(t.Context(), "late", 5*time.Minute)
		if err == nil {
			defer obj.Release()
			if string(obj.Bytes()) != "published" {
				err = errors.New("other bytes")
			}
		}
		got <- err
	}()
	publish(t, conn, "another", []byte("x")) // a change that is not it
	late := publish(t, conn, "late", []byte("published"))
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, err := waiter.GetByName(t.Context(), "never", 20*time.Millisecond); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("a name that does not come: %v", err)
	}
	life := 200 * time.Millisecond
	await.Until(t, "an object is published before its time is over", func() bool {
		obj, err := conn.Put(context.Background(), []byte("x"), client.CreateOptions{Class: object.TTL, TTL: life})
		if err == nil {
			_, err = conn.Publish(context.Background(), obj.ID(), "short", false)
			obj.Release()
		}
		if err != nil && !errors.Is(err, object.ErrNotFound) {
			t.Fatal(err)
		}
		life *= 2
		return err == nil
	})
	names := func() []string {
		raw, err := conn.Published(context.Background(), "")
		var list []PublishedStatus
		if err == nil {
			err = json.Unmarshal(raw, &list)
		}
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, x := range list {
			names = append(names, x.Name)
		}
		slices.Sort(names)
		return names
	}
	await.Until(t, "it is published no longer", func() bool { return !slices.Contains(names(), "short") })
	if got := names(); !slices.Equal(got, []string{"another", "late"}) {
		t.Errorf("published: %v", got)
	}
	// The object goes behind the cluster's back, as one does whose tenant deletes it in another room.
	held, err := d.store.Connect(store.Owner{Tenant: conn.Daemon().Tenant, Name: "test"})
	if err == nil {
		err = held.Delete(late, "")
		held.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "one name is left", func() bool { return len(names()) == 1 })
}

// A tenant publishes no more than its share, and replaces what it has published also then.
func TestPublishedObjectsHaveAShare(t *testing.T) {
	c := aConfig(t)
	newNodes(t).startWith(c, func(d *Daemon) { d.publishMost = fsm.Usage{Objects: 2, Bytes: 1 << 20} })
	conn := dial(t, c)
	defer conn.Close()
	publish(t, conn, "a", nil)
	first := publish(t, conn, "b", nil)
	o, err := conn.Put(context.Background(), nil, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	if _, err := conn.Publish(context.Background(), o.ID(), "c", true); !errors.Is(err, object.ErrQuota) {
		t.Errorf("a third of two: %v", err)
	}
	if _, err := conn.Publish(context.Background(), first, "b", false); err != nil {
		t.Errorf("what is published, again: %v", err)
	}
	if _, err := conn.Publish(context.Background(), o.ID(), "a", true); err != nil {
		t.Errorf("in another one's place: %v", err)
	}
}

func TestManyPublishAtOnce(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for range 20 {
				buf, err := conn.Create(context.Background(), 5, client.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				obj, err := buf.Seal(context.Background())
				if err == nil {
					_, err = conn.Publish(context.Background(), obj.ID(), "shared", true)
				}
				if err == nil && i%2 == 0 {
					if err := conn.Unpublish(context.Background(), "shared"); err != nil && !errors.Is(err,
						object.ErrNotFound) {
						t.Error(err)
					}
				}
				if err != nil {
					t.Error(err)
				}
				obj.Release()
			}
		})
	}
	all.Wait()
	if err := d.Unpublish(d.localTenant(uint32(os.Getuid()), uint32(os.Getgid())), object.ID{}, "shared"); err != nil &&
		!errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	// clients' releases are on their way
	await.Until(t, "no reference is left", func() bool { return d.store.Status().References == 0 })
}

func TestDoorToTheNetworkWaitsForAToken(t *testing.T) {
	c := aConfig(t)
	c.Listen = "0.0.0.0:0"
	d, stop := serve(t, c)
	defer stop()
	if a := d.door.Load().RemoteAddr(); a != nil {
		t.Errorf("open at %v before there is a token", a)
	}
	if why := d.whyClosed(); !strings.Contains(why, "tendril token create") {
		t.Errorf("status says %q", why)
	}
	conn := dial(t, c)
	defer conn.Close()
	newToken(t, conn, admin.TokenOptions{})
	if d.door.Load().RemoteAddr() == nil || d.whyClosed() != "" {
		t.Errorf("not open with a token: %s", d.whyClosed())
	}
}

func TestPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := aConfig(t)
	c.Listen = l.Addr().String()
	c.came("listen", "flag --listen")
	if err := newDaemon(t, c).Run(t.Context()); !errors.Is(err, object.ErrBusy) ||
		!strings.Contains(err.Error(), "--listen") {
		t.Errorf("a port that was asked for is taken: %v", err)
	}
	c.origins = nil // the default's
	d, stop := serve(t, c)
	defer stop()
	if why := d.whyClosed(); !strings.Contains(why, "in use") {
		t.Errorf("status says %q", why)
	}
}

func TestDamagedMetadataEndsTheStart(t *testing.T) {
	c := aConfig(t)
	_, stop := serve(t, c)
	conn := dial(t, c)
	newToken(t, conn, admin.TokenOptions{})
	conn.Close()
	stop()
	files, err := filepath.Glob(filepath.Join(c.StateDir, "raft", "log", "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw[:2048] {
		if i >= 64 && raw[i] != 0 {
			raw[i] ^= 0x55
		}
	}
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	err = newDaemon(t, c).Run(t.Context())
	if !errors.Is(err, raftnode.ErrDamaged) || !strings.HasPrefix(err.Error(), "cluster metadata: ") ||
		!strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("got %v", err)
	}
	after, err := os.ReadFile(files[0])
	if err != nil || !bytes.Equal(after, raw) {
		t.Error("the damaged log was altered")
	}
}

func TestKeysThatCannotBeBelieved(t *testing.T) {
	for _, file := range []string{pki.AuthorityFile, pki.NodeFile} {
		c := aConfig(t)
		_, stop := serve(t, c)
		stop()
		if err := os.WriteFile(filepath.Join(c.StateDir, file), []byte("-----BEGIN"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := newDaemon(t, c).Run(t.Context()); !errors.Is(err, pki.ErrDamaged) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// SIGHUP takes another certificate into use, or makes one, and nobody who is connected notices.
func TestReloadTakesTheCertificateAnew(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	at := d.door.Load().RemoteAddr().String()
	if _, err := login.Login(context.Background(), at, newToken(t, dial(t, c), admin.TokenOptions{}),
		""); err != nil {
		t.Fatal(err)
	}
	far, err := client.DialServer(context.Background(), at, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	serial := func() string { return d.meta.keyring.Certificate().Leaf.SerialNumber.String() }
	path := filepath.Join(c.StateDir, pki.NodeFile)
	first := serial()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(want func() bool) {
		t.Helper()
		d.Reload()
		await.Until(t, "the certificate is the one that is wanted; the first was "+first, want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	reload(func() bool { return serial() != first })
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	reload(func() bool { return serial() == first })
	if err := os.WriteFile(path, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.meta.keyring.Reload(t.Context()); !errors.Is(err, pki.ErrDamaged) || serial() != first {
		t.Errorf("a damaged file: %v, %s", err, serial())
	}
	// a good pair that is somebody else's
	if raw, err := os.ReadFile(filepath.Join(c.StateDir, pki.AuthorityFile)); err == nil {
		err = os.WriteFile(path, raw, 0o600)
		if err := errors.Join(err, d.meta.keyring.Reload(t.Context())); !errors.Is(err, pki.ErrDamaged) ||
			serial() != first {
			t.Errorf("somebody else's: %v, %s", err, serial())
		}
	}
	if _, err := admin.Of(far).Devices(context.Background()); err != nil {
		t.Errorf("who was connected: %v", err)
	}
	again, err := client.DialServer(context.Background(), at, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// A disk that is full while the metadata's log grows: the one who changes something is told, all else goes on, and so
// does this when there is room again.
func TestFullDiskStopsChangesAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: the log is opened again every 5 s, and elections come on top")
	}
	c := aConfig(t)
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tendril-test", c.StateDir, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("skipped: a small file system needs root: %v", err)
	}
	defer unix.Unmount(c.StateDir, unix.MNT_DETACH)
	d, stop := serve(t, c)
	conn := dial(t, c)
	token := newToken(t, conn, admin.TokenOptions{})
	filler := filepath.Join(c.StateDir, "filler")
	var err error
	for i := 0; i < 200_000 && err == nil; i++ {
		if i == 50 {
			_ = os.WriteFile(filler, make([]byte, 8<<20), 0o600) // as much as there is room for
		}
		_, err = d.propose(&fsm.Sweep{})
	}
	if !errors.Is(err, object.ErrFull) {
		t.Fatalf("the disk is full: %v", err)
	}
	if _, err := admin.Of(conn).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User}); !errors.Is(err,
		object.ErrFull) &&
		!errors.Is(err, object.ErrBusy) {
		t.Errorf("a token on a full disk: %v", err)
	}
	obj, err := conn.Put(context.Background(), []byte("memory"), client.CreateOptions{Name: "n", Class: object.Named})
	if err != nil {
		t.Fatalf("the store needs no disk: %v", err)
	}
	obj.Release()
	if raw, err := tokensAt(conn); err != nil || !strings.Contains(string(raw), tokenID(t,
		token).String()) {
		t.Errorf("reading: %s, %v", raw, err)
	}
	if _, err := admin.Of(conn).Status(context.Background()); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "a token, for there is room again", func() bool {
		_, err = admin.Of(conn).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User})
		return err == nil
	})
	conn.Close()
	stop()
	_, stop = serve(t, c)
	defer stop()
	if raw, err := tokensAt(dial(t, c)); err != nil || !strings.Contains(string(raw),
		tokenID(t,
			token).String()) {
		t.Errorf("after a restart: %s, %v", raw, err)
	}
}

func TestNoSecretInAnyLog(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := withHTTP(t)
	d := newDaemon(t, c)
	out := loud(d)
	ctx, cancel := context.WithCancel(t.Context())
	up, down := make(chan struct{}), make(chan error, 1)
	d.OnReady(func() { close(up) })
	go func() { down <- d.Run(ctx) }()
	<-up
	conn := dial(t, c)
	text := newToken(t, conn, admin.TokenOptions{Once: true})
	at := d.door.Load().RemoteAddr().String()
	for range 2 { // good, then used
		_, err := login.Login(context.Background(), at, text, "")
		t.Log(err)
	}
	far, err := client.DialServer(context.Background(), at, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	page, err := admin.Of(conn).OpenPage(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	base, key1, _ := strings.Cut(page, "/ui#token=")
	for _, url := range []string{base + "/v1/status?token=" + key1, base + "/" + key1, base + "/ui?" + key1} {
		if answer, err := http.Get(url); err != nil {
			t.Error(err)
		} else {
			answer.Body.Close()
		}
	}
	far.Close()
	conn.Close()
	cancel()
	if err := <-down; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	token, err := pki.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	hash := token.SecretHash()
	key, err := os.ReadFile(filepath.Join(c.StateDir, pki.NodeFile))
	if err != nil {
		t.Fatal(err)
	}
	_, secret, found := strings.Cut(page, "token=")
	said := out.String()
	if !found || !strings.Contains(said, "token created") {
		t.Fatalf("page %q, log:\n%s", page, said)
	}
	for name, s := range map[string]string{"the token": text, "its digits": text[4:40],
		"its hash": hex.EncodeToString(hash[:]), "the page's key": secret,
		"the node's key": string(key[len(key)-120 : len(key)-60])} {
		if strings.Contains(said, s) {
			t.Errorf("%s is in the log:\n%s", name, said)
		}
	}
}

func TestInspectionShowsEachItsOwn(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	publish(t, conn, "mine", []byte("x"))
	own, stranger := inspect.Viewer{Local: true, UID: uint32(os.Geteuid())}, inspect.Viewer{Local: true, UID: 4242}
	l := (*look)(d)
	for who, want := range map[inspect.Viewer]int{own: 1, stranger: 0} {
		objects, err := l.Objects(who, inspect.Page{Limit: 10})
		names, err2 := l.Names(who, inspect.Page{Limit: 10})
		segments, err3 := l.Segments(who)
		if err := errors.Join(err, err2, err3); err != nil || len(objects.Items) != want || len(names.Items) != want ||
			len(segments) != want {
			t.Errorf("user %d sees %v, %v, %v, %v", who.UID, objects, names, segments, err)
		}
	}
	if page, err := l.Objects(own, inspect.Page{Limit: 10, After: "z/"}); err != nil || len(page.Items) != 0 ||
		page.Next != "" {
		t.Errorf("after the last: %v, %v", page, err)
	}
	if page, err := l.Objects(own, inspect.Page{Limit: 10, After: "x"}); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("after no place: %v, %v", page, err)
	}
	seen := map[object.ID]int{}
	for i := range 25 {
		if _, err := conn.Put(context.Background(), []byte{byte(i)},
			client.CreateOptions{Class: object.Named, Name: "page" + strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for after, more := "", true; more; {
		page, err := l.Objects(own, inspect.Page{Limit: 10, After: after, Prefix: "page"})
		if err != nil || len(page.Items) > 10 {
			t.Fatal(page, err)
		}
		for _, o := range page.Items {
			seen[o.ID]++
		}
		after, more = page.Next, page.Next != ""
	}
	if len(seen) != 25 || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("25 objects came as %v", seen)
	}
	nodes, err := l.Nodes(own)
	if err != nil || len(nodes) != 1 || !nodes[0].Self || !nodes[0].Leader || !nodes[0].Voter {
		t.Errorf("%+v, %v", nodes, err)
	}
	if metrics, err := l.Metrics(own); err != nil || len(metrics) < 10 {
		t.Errorf("%d metrics, %v", len(metrics), err)
	}
}

// A user's number is no group's: what a group's tenant has is for who is in the group.
func TestInspectionAsksForTheGroup(t *testing.T) {
	c := aConfig(t)
	c.Tenants = []tenancy.Tenant{{Name: "lab", Groups: []uint32{4242}}}
	d, stop := serve(t, c)
	defer stop()
	l := (*look)(d)
	for who, want := range map[inspect.Viewer]string{
		{Local: true, UID: 4242, GID: 7}: "uid:4242", {Local: true, UID: 7, GID: 4242}: "lab",
	} {
		if got, _ := l.sees(who); got != want {
			t.Errorf("%+v sees what %s has, not %s", who, got, want)
		}
	}
}

func TestPagesOfOneTenantAreBounded(t *testing.T) {
	k := pageKeys{keys: map[[32]byte]pageKey{}}
	hash := func(n int) [32]byte { return [32]byte{byte(n), byte(n >> 8)} }
	until := time.Now().Add(time.Hour)
	if err := k.add(hash(9999), pageKey{tenant: "other", expires: until}); err != nil {
		t.Fatal(err)
	}
	for n := range maxPageKeys + 10 {
		if err := k.add(hash(n), pageKey{tenant: "t", expires: until.Add(time.Duration(n) * time.Second)}); err != nil {
			t.Fatal(n, err)
		}
	}
	_, others := k.find(hash(9999))
	_, newest := k.find(hash(maxPageKeys + 9))
	_, oldest := k.find(hash(0))
	if !others || !newest || oldest || len(k.keys) != maxTenantPages+1 {
		t.Errorf("another tenant's %v, the newest %v, the oldest %v, %d in all", others, newest, oldest, len(k.keys))
	}
}

// A guess costs its maker a handshake, and the node nothing on disk.
func TestGuessedTokensWriteNothing(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	guess, err := d.meta.authority.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	used := newToken(t, dial(t, c), admin.TokenOptions{Once: true})
	at := d.door.Load().RemoteAddr().String()
	if _, err := login.Login(context.Background(), at, used, ""); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the cluster knows where it listens", func() bool {
		var n fsm.Node
		d.meta.raft.View(func(s *fsm.State) { n, _ = s.Node(d.meta.node) })
		return len(n.Peer) > 0
	})
	// its devices have been told to the cluster, or are about to be
	if _, err := d.pool.Platforms(t.Context()); err != nil {
		t.Fatal(err)
	}
	certificates := func() (n int) {
		d.meta.raft.View(func(s *fsm.State) { n = len(s.Certificates()) })
		return n
	}
	before, applied := certificates(), d.meta.raft.Status().AppliedIndex
	for range 20 {
		for _, text := range []string{guess.Text(), used} {
			if _, err := login.Login(context.Background(), at, text, ""); !errors.Is(err, object.ErrPermission) {
				t.Fatal(err)
			}
		}
	}
	if now := d.meta.raft.Status().AppliedIndex; certificates() != before || now > applied+1 {
		t.Errorf("%d certificates, then %d; entry %d, then %d", before, certificates(), applied, now)
	}
}

func TestNoSandboxNoStrangers(t *testing.T) {
	options, err := json.Marshal(clwire.SessionOptions{Protocol: clwire.Version})
	if err != nil {
		t.Fatal(err)
	}
	far, near := frontdoor.Peer{Tenant: "lab", Remote: "192.0.2.7:4"}, frontdoor.Peer{Tenant: "lab"}
	for _, x := range []struct {
		found string
		trust bool
		peer  frontdoor.Peer
		want  error
	}{
		{noPlatform, false, far, nil}, {noSandbox, false, far, object.ErrPermission}, {noSandbox, true, far, nil},
		{noSandbox, false, near, nil},
	} {
		c := aConfig(t)
		c.TrustRemote = x.trust
		d, stop := serveWith(t, c, x.found)
		id, _, err := d.OpenSession(context.Background(), x.peer, "test", options)
		if !errors.Is(err, x.want) || x.want != nil && !strings.Contains(err.Error(), "--trust-remote") {
			t.Errorf("%+v: %v", x, err)
		}
		if err == nil {
			d.CloseSession(id)
		}
		stop()
	}
}

func TestPlaintextIsForNamedPeers(t *testing.T) {
	c := aConfig(t)
	c.PlaintextPeers = []string{"10.1.0.0/16", "fd00::7"}
	d := newDaemon(t, c)
	for remote, want := range map[string]bool{
		"": true, "127.0.0.1:4": true, "[::1]:4": true, "10.1.2.3:4": true, "[::ffff:10.1.2.3]:4": true,
		"[fd00::7]:4": true,
		"10.2.0.1:4":  false, "[fd00::8]:4": false, "192.168.0.1:4": false, "nonsense": false,
	} {
		if _, err := d.plaintextFrom(remote); (err == nil) != want {
			t.Errorf("%q: %v", remote, err)
		}
	}
	if from, err := d.plaintextFrom(""); from != workers.ThisMachine || err != nil {
		t.Errorf("data of a program here may come from %q, %v", from, err)
	}
}
