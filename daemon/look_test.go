package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
)

// flooded asks for the same page over many connections and reads the answers, until the returned function is called.
func flooded(t *testing.T, address, secret, path string, conns int, answers *atomic.Int64) (stop func()) {
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", path, address, secret)
	var all []net.Conn
	var running sync.WaitGroup
	for range conns {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
		running.Go(func() {
			for ahead := strings.Repeat(request, 16); ; {
				if _, err := io.WriteString(conn, ahead); err != nil {
					return
				}
			}
		})
		running.Go(func() {
			for r := bufio.NewReader(conn); ; answers.Add(1) {
				answer, err := http.ReadResponse(r, nil)
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil {
					return
				}
			}
		})
	}
	return func() {
		for _, conn := range all {
			conn.Close()
		}
		running.Wait()
	}
}

// Requests over HTTP take turns with everybody's: one tenant's pages do not keep the others from the daemon.
func TestPagesLeaveOthersTheirTurns(t *testing.T) {
	c := withHTTP(t)
	d, stop := serve(t, c)
	defer stop()
	loud, err := d.store.Connect(store.Owner{Tenant: "loud"})
	if err != nil {
		t.Fatal(err)
	}
	defer loud.Close()
	for i := range 3000 {
		h, err := loud.Create(store.Spec{Class: object.Named, Name: fmt.Sprint(i),
			Labels: map[string]string{"label": strings.Repeat("x", 120)}})
		if err == nil {
			err = loud.Seal(h.ID, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	secret, hash, err := inspect.NewSecret()
	if err == nil {
		err = d.pages.add(hash, pageKey{tenant: "loud", expires: time.Now().Add(time.Hour)})
	}
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, c)
	defer conn.Close()
	var pages atomic.Int64
	defer flooded(t, d.inspect.Load().Address().String(), secret, "/v1/objects?limit=1000", 32, &pages)()
	for pages.Load() < 32 {
		time.Sleep(time.Millisecond) // Pause: until all are at it
	}
	before, puts := pages.Load(), int64(0)
	for pages.Load() < before+64 {
		o, err := conn.Put(context.Background(), make([]byte, 64), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
		puts++
	}
	t.Logf("%d objects while %d pages were answered", puts, pages.Load()-before)
	if puts < 320 {
		t.Errorf("another tenant put %d objects while 64 pages were answered, want 5 for each at least", puts)
	}
}

// What a page's bound counts for an object is no less than what it takes, and not much more.
func TestRoomForObjects(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 0, 0, 123456789, time.UTC)
	full := object.Info{ID: object.NewID(), Name: "frame", Class: object.Persisted, State: object.Spilled, Tenant: "uid:0",
		SizeBytes: 1 << 60, Refs: 1 << 20, Segment: 1 << 60, Offset: 1 << 60, Created: at, Sealed: &at,
		CreatorPID: 1 << 22, Creator: "program"}
	list := []object.Info{{}, full}
	for _, name := range []string{strings.Repeat("<", 200), strings.Repeat("ü", 200), strings.Repeat("\u2028", 100), "\"\n"} {
		full.Name, full.Fault, full.Published = name, name, name
		list = append(list, full)
	}
	full.Labels, full.Grants = map[string]string{"kind": "raw", "year": "2026"}, []string{"uid:4242", "all"}
	full.Members = []object.Member{{Name: "left", ID: full.ID}, {Name: "right", ID: full.ID}}
	full.Expires, full.Pinned, full.OnDisk, full.Checksum, full.Cached = &at, true, true, true, true
	full.Nodes, full.Fillers, full.Moving = []string{"n0", "n1"}, 1<<20, &object.Transfer{To: "memory", DoneBytes: 1 << 60}
	full.Device = object.Device{1, 2, 3}
	full.CopiedFrom, full.CopiedFromNode = object.OpenCL, "n0, n1"
	full.Meta = json.RawMessage(`{"shape":[1000,1000],"dtype":"<f4"}`)
	list = append(list, full)
	full.Meta = json.RawMessage(`["` + strings.Repeat("<&>", 1000) + strings.Repeat("\u2028", 300) + `"]`)
	for _, o := range append(list, full) {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if room := roomFor(&o); room < len(b) || room > 2*len(b)+300 {
			t.Errorf("%d bytes are counted for %d: %s", room, len(b), b)
		}
	}
}

// Sessions say which devices they are shown and what their workers have reserved; devices count the sessions that a
// viewer may see.
func TestSessionsOfDevices(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	if _, err := admin.Of(conn).Devices(context.Background()); err != nil {
		// the first probe is over, and the metadata has what it found
		t.Fatal(err)
	}
	uuids := []string{strings.Repeat("ab", 16), strings.Repeat("cd", 16)}
	here := fsm.PutDevices{Node: d.meta.node, Incarnation: d.meta.incarnation}
	var platforms []*workers.Platform
	for _, text := range uuids {
		id, err := parseUUID(text)
		if err != nil {
			t.Fatal(err)
		}
		here.Devices = append(here.Devices, fsm.Device{Key: fsm.DeviceKey{Driver: "a driver", UUID: id}, Name: text})
		platforms = append(platforms, &workers.Platform{Snapshot: clwire.PlatformSnapshot{
			Devices: []clwire.DeviceSnapshot{{UUID: text}}}})
	}
	if _, err := d.propose(&here); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"red", "red", "blue"} {
		if err := d.sessions.add(&session{peer: frontdoor.Peer{Tenant: tenant}, platforms: platforms,
			cancel: func() {}}); err != nil {
			t.Fatal(err)
		}
	}
	l := (*look)(d)
	red := inspect.Viewer{Secret: inspect.HashSecret(pageKeyOf(t, d, pageKey{tenant: "red"}))}
	for what, x := range map[string]struct {
		v    inspect.Viewer
		want int
	}{"a tenant": {red, 2}, "the owner": {inspect.Viewer{Local: true, UID: uint32(os.Geteuid())}, 3}} {
		sessions, err := l.Sessions(x.v)
		if err != nil || len(sessions) != x.want || !slices.Equal(sessions[0].Devices, uuids) {
			t.Errorf("%s sees %+v, %v; the devices are %q", what, sessions, err, uuids)
		}
		devices, err := l.Devices(x.v)
		if err != nil || len(devices) != len(uuids) {
			t.Errorf("%s sees the devices %+v, %v", what, devices, err)
		}
		for _, device := range devices {
			if device.Sessions != x.want {
				t.Errorf("%s: %+v has %d sessions, want %d", what, device, device.Sessions, x.want)
			}
		}
	}
	for id := range uint64(3) {
		d.sessions.remove(id + 1)
	}
	ids, bytes := workersOf([]workers.Status{{ID: 7, Session: 1, DeviceBytes: 5}, {ID: 8, Session: 2, DeviceBytes: 50},
		{ID: 9, Session: 1, DeviceBytes: 500}}, 1)
	if !slices.Equal(ids, []string{"7", "9"}) || bytes != 505 {
		t.Errorf("%q, %d", ids, bytes)
	}
}
