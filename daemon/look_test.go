package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/inspect"
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
	c := aConfig(t)
	c.HTTP = "127.0.0.1:0"
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
		o, err := conn.Put(make([]byte, 64), client.CreateOptions{})
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
	full.Meta = json.RawMessage(`{"shape":[1000,1000],"dtype":"<f4"}`)
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
