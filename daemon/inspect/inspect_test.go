package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril/cluster/raftnode"
	"tendril/daemon/audit"
	"tendril/daemon/changes"
	"tendril/daemon/leases"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestSegmentsArePaged: lists that sources give whole are cut into pages.
func TestSegmentsArePaged(t *testing.T) {
	s := &Server{opts: Options{Source: &fake{}}}
	seen, pages := 0, 0
	segments, _, _ := find("/v1/segments")
	for after := ""; ; pages++ {
		answer, err := segments.answer(s, Viewer{}, query{Page: Page{Limit: 10, After: after}})
		l, is := answer.(list[Segment])
		if err != nil || !is || len(l.Items) > 10 {
			t.Fatalf("%+v, %v", answer, err)
		}
		for _, g := range l.Items {
			if g.ID != uint64(seen)*7 {
				t.Fatalf("segment %d is number %d", g.ID, seen)
			}
			seen++
		}
		if after = l.Next; after == "" {
			break
		}
	}
	if seen != 25 || pages != 2 {
		t.Errorf("%d segments on %d pages", seen, pages+1)
	}
}

func TestMain(m *testing.M) { await.Main(m) }

// fake is a Source with little in it.
type fake struct {
	err     error
	n       int // objects
	data    *bytesOf
	waiting []string

	ring      *changes.Ring
	following atomic.Int32
}

func (f *fake) Status(v Viewer) (Status, error) {
	return Status{Version: "0.2", Name: "node-a", CapacityBytes: 8 << 30, UsedBytes: 3 << 30, Objects: f.n, Sessions: 1,
		Started: time.Unix(1790000000, 0), Notes: []string{fmt.Sprintf("local=%v uid=%d", v.Local, v.UID)}}, f.err
}
func (f *fake) Nodes(Viewer) ([]Node, error) {
	return []Node{{ID: "00112233445566778899", Name: "node-a", Self: true, Leader: true, Voter: true,
		Client: []string{"10.0.0.1:7654"}, Version: "0.2", Joined: time.Unix(1790000000, 0)},
		{ID: "ffee", Name: "node-b", Voter: true}}, f.err
}
func (f *fake) Devices(Viewer) ([]Device, error) {
	return []Device{{Name: "NVIDIA H200", Type: "gpu", MemoryBytes: 139 << 30, Units: 132, Driver: "580.159",
		Node: "00112233445566778899", Sessions: 1},
		{Name: "pthread-EPYC", Type: "cpu", MemoryBytes: 6 << 30, Units: 2, Driver: "PoCL 3.1"}}, f.err
}
func (f *fake) Objects(_ Viewer, p Page) (Part[object.Info], error) {
	var out []object.Info
	next := ""
	for i := range f.n {
		o := object.Info{Name: fmt.Sprintf("<img src=x onerror=alert(%d)>", i), State: object.Sealed,
			Class: object.Named, SizeBytes: 1 << (10 + i%20), Tenant: "uid:0", Refs: i}
		o.ID[0], o.ID[1] = byte(i>>8), byte(i)
		if o.ID.String() > p.After && strings.HasPrefix(o.Name, p.Prefix) {
			if len(out) == p.Limit {
				next = out[p.Limit-1].ID.String()
				break
			}
			out = append(out, o)
		}
	}
	return Part[object.Info]{Items: out, Next: next}, f.err
}
func (f *fake) Names(Viewer, Page) (Part[Name], error) { return Part[Name]{}, f.err }
func (f *fake) Sessions(Viewer) ([]Session, error) {
	return []Session{{ID: "1", Tenant: "uid:0", Program: "blur", PID: 42, Transport: "shared ring",
		Devices: []string{"NVIDIA H200"}, Bytes: 256 << 20, Started: time.Unix(1790000000, 0)}}, f.err
}
func (f *fake) Commands(_ Viewer, session uint64) (Commands, error) {
	return Commands{Session: strconv.FormatUint(session, 10)}, f.err
}
func (f *fake) Workers(Viewer) ([]Worker, error) { return nil, f.err }
func (f *fake) Segments(Viewer) (list []Segment, err error) {
	for i := range 25 {
		list = append(list, Segment{ID: uint64(i) * 7})
	}
	return list, f.err
}
func (f *fake) Raft(Viewer) (raftnode.Status, error) { return raftnode.Status{State: "Leader"}, f.err }
func (f *fake) Leases(Viewer) ([]leases.Status, error) {
	return []leases.Status{{Number: 1, Tenant: "uid:0", Devices: []string{"ab"}, Count: 1},
		{Tenant: "uid:1", Devices: []string{"ab"}, Count: 1, Place: 1}}, f.err
}
func (f *fake) Streams(Viewer, Page) (Part[object.StreamInfo], error) {
	return Part[object.StreamInfo]{}, f.err
}
func (f *fake) Links(Viewer) ([]Link, error)               { return []Link{{Kind: NodeLink, Name: "node-b"}}, f.err }
func (f *fake) Settings(Viewer) ([]Setting, error)         { return nil, f.err }
func (f *fake) Tenants(Viewer, Page) (Part[Tenant], error) { return Part[Tenant]{}, f.err }
func (f *fake) Tokens(Viewer, Page) (Part[Token], error)   { return Part[Token]{}, f.err }
func (f *fake) Certificates(Viewer, Page) (Part[Certificate], error) {
	return Part[Certificate]{}, f.err
}
func (f *fake) Audit(_ Viewer, p Page) (Part[audit.Event], error) {
	return Part[audit.Event]{Items: []audit.Event{{Time: p.Since, Tenant: p.Tenant, What: p.Prefix}}}, f.err
}
func (f *fake) History(Viewer) (History, error) { return History{Times: []time.Time{}}, f.err }
func (f *fake) Changes(_ Viewer, place string) (*changes.Reader, func(), error) {
	if f.ring == nil {
		f.ring = changes.New()
	}
	f.following.Add(1)
	return f.ring.From(place), func() { f.following.Add(-1) }, f.err
}
func (f *fake) Metrics(Viewer) ([]Metric, error) {
	return []Metric{{Name: "tendril_objects", Help: "objects\nhere",
		Samples: []Sample{{[]string{"tenant", "a\"\\\n\xff"}, 3}, {nil, 0.5}}}, {Name: "bad name"},
		{Name: "tendril_gets_total", Counter: true, Samples: []Sample{{nil, 1e9}}}}, f.err
}

// only lets the holder of one secret look, and "scraper" at metrics.
func only(hash [32]byte) func(string) (Viewer, error) {
	return func(text string) (Viewer, error) {
		switch {
		case text == "scraper":
			return Viewer{Scraper: true}, nil
		case HashSecret(text) != hash:
			return Viewer{}, fmt.Errorf("%w: the token is another's", object.ErrPermission)
		}
		return Viewer{Secret: hash}, nil
	}
}

// Who is refused hears what was wrong with what was shown, and what opens this path.
func TestRefusalsSayWhy(t *testing.T) {
	s, address, _ := start(t, func(o *Options) { o.AllowUID = func(uint32) bool { return false } })
	for _, x := range []struct{ network, to, path, header, detail, next string }{
		{"tcp", address, "/v1/status", "", "the request has no token", "tendril ui"},
		{"tcp", address, "/metrics", "", "the request has no token", "tendril token create --role metrics"},
		{"tcp", address, "/v1/status", "Authorization: Basic eA==", "has no Bearer token", "tendril ui"},
		{"tcp", address, "/v1/status", "Authorization: Bearer ", "has no Bearer token", "tendril ui"},
		{"tcp", address, "/v1/status", "Authorization: Bearer x", "the token is another's", "tendril ui"},
		{"tcp", address, "/metrics", "Authorization: Bearer x", "the token is another's", "--role metrics"},
		{"tcp", address, "/v1/status", "Authorization: Bearer scraper", "for /metrics and nothing else", "tendril ui"},
		{"unix", s.opts.Unix, "/v1/status", "", fmt.Sprintf("user %d may not", os.Getuid()), "ask as root"},
	} {
		headers := []string{}
		if x.header != "" {
			headers = append(headers, x.header)
		}
		r := raw(t, x.network, x.to, get(x.path, address, headers...))
		if r == nil {
			t.Fatalf("%+v: no answer", x)
		}
		var f failure
		if err := json.NewDecoder(r.Body).Decode(&f); err != nil || !strings.Contains(f.Detail, x.detail) ||
			!strings.Contains(f.Next, x.next) || strings.HasPrefix(f.Detail, object.ErrPermission.Error()) {
			t.Errorf("%s %s, %q: %d, %q, %q; %v", x.network, x.path, x.header, r.StatusCode, f.Detail, f.Next, err)
		}
	}
}

// A scrape token opens /metrics and nothing else, and metrics without a key are for loopback alone.
func TestScrapers(t *testing.T) {
	_, address, _ := start(t, nil)
	for _, r := range routes {
		r.path = pathOf(r)
		answer := raw(t, "tcp", address, get(r.path, address, "Authorization: Bearer scraper"))
		if r.scrape || r.open {
			if answer == nil || answer.StatusCode != 200 {
				t.Errorf("%s: %+v", r.path, answer)
			}
			continue
		}
		wantFailure(t, r.path+" with a scrape token", answer, 403)
	}
	_, address, _ = start(t, func(o *Options) { o.OpenMetrics = true })
	if r := raw(t, "tcp", address, get("/metrics", address)); r == nil || r.StatusCode != 200 {
		t.Errorf("/metrics without a key: %+v", r)
	}
	wantFailure(t, "status without a key", raw(t, "tcp", address, get("/v1/status", address)), 401)
	wantFailure(t, "metrics by another name", raw(t, "tcp", address, get("/metrics", "evil.example")), 421)
	wantFailure(t, "metrics from another site",
		raw(t, "tcp", address, get("/metrics", address, "Origin: http://evil.example")), 403)
	for _, tcp := range []string{":0", "10.0.0.1:0", "gpubox:0"} {
		o := Options{TCP: tcp, Bearer: only([32]byte{}), Source: &fake{}, OpenMetrics: true}
		if err := o.Validate(); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("metrics without a key on %s: %v", tcp, err)
		}
	}
}

func (f *fake) Object(_ Viewer, id object.ID) (object.Info, error) { return object.Info{ID: id}, f.err }
func (f *fake) Open(Viewer, object.ID) (Data, error)               { return f.data, f.err }
func (f *fake) Waiting() []string                                  { return f.waiting }

// bytesOf is a Data in memory.
type bytesOf struct {
	b      []byte
	file   *os.File // Memory's, or nil
	at     uint64
	small  []byte // what b is for whoever asks for no whole chunk; nil: b
	err    error  // Range's
	closed atomic.Int32
}

func (d *bytesOf) Size() uint64 { return uint64(len(d.b)) }
func (d *bytesOf) Range(off, n uint64) ([]byte, error) {
	if d.small != nil && n < ChunkBytes {
		return d.small[off:][:n], d.err
	}
	return d.b[off:][:n], d.err
}
func (d *bytesOf) Memory() (*os.File, uint64) { return d.file, d.at }
func (d *bytesOf) Close()                     { d.closed.Add(1) }

// pathOf is a route's path with an object's id in it, or a session's number.
func pathOf(r route) string {
	return strings.ReplaceAll(strings.ReplaceAll(r.path, "sessions/{id}", "sessions/7"), "{id}", "00112233445566778899aabbccddeeff")
}

func start(t *testing.T, change func(*Options)) (*Server, string, string) {
	t.Helper()
	secret, hash, err := NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{TCP: "127.0.0.1:0", Unix: filepath.Join(t.TempDir(), "inspect.sock"), Bearer: only(hash),
		Source: &fake{n: 3, data: &bytesOf{b: []byte("hello")}}, ReadTimeout: time.Minute}
	if change != nil {
		change(&o)
	}
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, s.Address().String(), secret
}

// raw sends bytes and gives the answer.
func raw(t *testing.T, network, address, request string) *http.Response {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	go io.WriteString(c, request)
	method, _, _ := strings.Cut(request, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return nil // the connection was closed without an answer
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	return r
}

func get(path, host string, headers ...string) string {
	head := ""
	for _, h := range headers {
		head += h + "\r\n"
	}
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + head + "\r\n"
}

// wantFailure checks status and form of an answer that is no success.
func wantFailure(t *testing.T, what string, r *http.Response, status int) {
	t.Helper()
	if r == nil {
		t.Errorf("%s: no answer, want %d", what, status)
		return
	}
	var f failure
	body, _ := io.ReadAll(r.Body)
	if r.StatusCode != status || json.Unmarshal(body, &f) != nil || f.Detail == "" || f.Next == "" ||
		f.Error != f.Detail || f.Status != status || r.Header.Get("Content-Type") != "application/problem+json" ||
		r.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: %d %s, want %d with error and next", what, r.StatusCode, body, status)
	}
	if r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%s: another origin is let in", what)
	}
}

func TestEveryPath(t *testing.T) {
	s, address, secret := start(t, nil)
	for _, r := range routes {
		if r.stream {
			continue // TestEvents
		}
		r.path = pathOf(r)
		for _, local := range []bool{false, true} {
			network, to, host := "tcp", address, address
			if local {
				network, to, host = "unix", s.opts.Unix, "anything"
			}
			x := raw(t, network, to, get(r.path, host, "Authorization: Bearer "+secret))
			if x == nil || x.StatusCode != 200 {
				t.Fatalf("%s local=%v: %+v", r.path, local, x)
			}
			body, _ := io.ReadAll(x.Body)
			if strings.HasPrefix(r.path, "/v1/") && !strings.HasSuffix(r.path, "/data") && !json.Valid(body) ||
				strings.Contains(string(body), `"items":null`) {
				t.Errorf("%s: %s", r.path, body)
			}
			if head := raw(t, network, to, strings.Replace(get(r.path, host, "Authorization: Bearer "+secret), "GET",
				"HEAD", 1)); head == nil || head.StatusCode != 200 {
				t.Errorf("HEAD %s: %+v", r.path, head)
			}
		}
		anonymous := raw(t, "tcp", address, get(r.path, address))
		if r.open && anonymous.StatusCode != 200 {
			t.Errorf("%s: %d", r.path, anonymous.StatusCode)
		}
		if !r.open {
			wantFailure(t, r.path+" without a token", anonymous, 401)
		}
	}
}

func TestWhoIsLetIn(t *testing.T) {
	_, address, secret := start(t, nil)
	port := address[strings.LastIndex(address, ":"):]
	bearer := "Authorization: Bearer " + secret
	for _, x := range []struct {
		what    string
		request string
		status  int
	}{
		{"wrong token", get("/v1/status", address, "Authorization: Bearer "+altered(secret)), 401},
		{"empty token", get("/v1/status", address, "Authorization: Bearer "), 401},
		{"basic", get("/v1/status", address, "Authorization: Basic "+secret), 401},
		{"token in the query", get("/v1/status?token="+secret, address), 401},
		{"localhost", get("/v1/status", "localhost"+port, bearer), 200},
		{"LOCALHOST", get("/v1/status", "LOCALHOST"+port, bearer), 200},
		{"rebinding", get("/v1/status", "evil.example"+port, bearer), 421},
		{"rebinding to the page", get("/ui", "evil.example"+port), 421},
		{"no port", get("/v1/status", "127.0.0.1", bearer), 421},
		{"another port", get("/v1/status", "127.0.0.1:1", bearer), 421},
		{"no host", "GET /v1/status HTTP/1.0\r\n" + bearer + "\r\n\r\n", 421},
		{"empty host", get("/v1/status", "", bearer), 400},
		{"a suffix", get("/v1/status", "localhost.evil.example"+port, bearer), 421},
		{"absolute request line", "GET http://evil.example/v1/status HTTP/1.1\r\nHost: " + address + "\r\n" + bearer +
			"\r\n\r\n", 421},
		{"cross-site fetch", get("/v1/status", address, bearer, "Sec-Fetch-Site: cross-site"), 403},
		{"same-site is not same-origin", get("/v1/status", address, bearer, "Sec-Fetch-Site: same-site"), 403},
		{"another origin", get("/v1/status", address, bearer, "Origin: http://evil.example"), 403},
		{"null origin", get("/v1/status", address, bearer, "Origin: null"), 403},
		{"own origin", get("/v1/status", address, bearer, "Origin: http://"+address,
			"Sec-Fetch-Site: same-origin"), 200},
		{"nothing there", get("/v1/secrets", address, bearer), 404},
		{"a path upwards", get("/v1/../../etc/passwd", address, bearer), 404},
		{"an encoded path upwards", get("/v1/%2e%2e/%2e%2e/etc/passwd", address, bearer), 404},
		{"limit 0", get("/v1/objects?limit=0", address, bearer), 400},
		{"limit too high", get("/v1/objects?limit=1001", address, bearer), 400},
		{"limit twice", get("/v1/objects?limit=1&limit=2", address, bearer), 400},
		{"unknown argument", get("/v1/objects?sort=x", address, bearer), 400},
		{"argument where none goes", get("/v1/status?limit=1", address, bearer), 400},
		{"state where none goes", get("/v1/names?state=sealed", address, bearer), 400},
		{"leases behind the first", get("/v1/leases?limit=1&after=00000000000000000001", address, bearer), 200},
		{"no object's id", get("/v1/objects/xyz", address, bearer), 404},
		{"an object's id and more", get("/v1/objects/"+strings.Repeat("0", 32)+"/data/more", address, bearer), 404},
		{"a pattern", get("/v1/objects/{id}", address, bearer), 404},
		{"a session's name", get("/v1/sessions/blur/commands", address, bearer), 404},
		{"a session", get("/v1/sessions/7", address, bearer), 404},
		{"a session of arguments", get("/v1/sessions/7/commands?limit=3", address, bearer), 400},
		{"an object without a token", get("/v1/objects/"+strings.Repeat("0", 32)+"/data", address), 401},
		{"long argument", get("/v1/objects?prefix="+strings.Repeat("x", maxArgumentBytes+1), address, bearer), 400},
	} {
		r := raw(t, "tcp", address, x.request)
		if x.status != 200 {
			wantFailure(t, x.what, r, x.status)
		} else if r == nil || r.StatusCode != 200 {
			t.Errorf("%s: %+v", x.what, r)
		}
	}
}

// Requests that come in one piece are judged one by one: a key counts for its own request.
func TestPipelinedRequests(t *testing.T) {
	_, address, secret := start(t, nil)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	good := get("/v1/status", address, "Authorization: Bearer "+secret)
	if _, err := io.WriteString(c, good+get("/v1/status", address)+good); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(5 * time.Minute))
	r := bufio.NewReader(c)
	for i, want := range []int{200, 401, 200} {
		answer, err := http.ReadResponse(r, nil)
		if i == 2 && err != nil { // closed after a request that was refused, which is as well
			break
		}
		if err != nil || answer.StatusCode != want {
			t.Fatalf("answer %d: %+v, %v; want %d", i, answer, err, want)
		}
		io.Copy(io.Discard, answer.Body)
	}
}

// altered is a secret of the same shape that is not the same one.
func altered(secret string) string {
	if secret[0] == 'x' {
		return "y" + secret[1:]
	}
	return "x" + secret[1:]
}

func TestMalformedRequests(t *testing.T) {
	_, address, secret := start(t, nil)
	_, hasty, _ := start(t, func(o *Options) { o.ReadTimeout = 300 * time.Millisecond }) // for what gets no answer
	bearer := "Authorization: Bearer " + secret
	for what, x := range map[string]struct {
		request string
		status  int // 0 = an answer that is no success, or none
	}{
		"POST": {"POST /v1/status HTTP/1.1\r\nHost: " + address +
			"\r\nContent-Length: 5\r\n\r\nhello", 405},
		"DELETE": {"DELETE /v1/objects HTTP/1.1\r\nHost: " + address + "\r\n\r\n", 405},
		"OPTIONS": {"OPTIONS /v1/objects HTTP/1.1\r\nHost: " + address +
			"\r\nOrigin: http://evil.example\r\nAccess-Control-Request-Method: GET\r\n\r\n", 405},
		"CONNECT":        {"CONNECT evil.example:443 HTTP/1.1\r\nHost: " + address + "\r\n\r\n", 405},
		"made-up method": {"BREW / HTTP/1.1\r\nHost: " + address + "\r\n\r\n", 405},
		"huge header":    {get("/v1/status", address, bearer, "X: "+strings.Repeat("a", 64<<10)), 431},
		"huge path":      {get("/"+strings.Repeat("a", 64<<10), address, bearer), 431},
		"many headers": {get("/v1/status", address,
			strings.TrimSuffix(strings.Repeat("A: b\r\n", 4000), "\r\n")), 431},
		"garbage":        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0},
		"only new lines": {"\r\n\r\n\r\n\r\n", 0},
		"no version":     {"GET /\r\n\r\n", 0},
		"no path":        {"GET  HTTP/1.1\r\nHost: " + address + "\r\n\r\n", 0},
		"a body on GET": {"GET /v1/status HTTP/1.1\r\nHost: " + address + "\r\n" + bearer +
			"\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000), 0},
		"negative length": {"GET /v1/status HTTP/1.1\r\nHost: " + address + "\r\nContent-Length: -1\r\n\r\n", 0},
		"a length of 2^63": {"GET /v1/status HTTP/1.1\r\nHost: " + address +
			"\r\nContent-Length: 9223372036854775808\r\n\r\n", 0},
		"length and chunked": {"GET /v1/status HTTP/1.1\r\nHost: " + address +
			"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
		"space before a colon": {"GET /v1/status HTTP/1.1\r\nHost : " + address + "\r\n\r\n", 0},
		"folded header":        {"GET /v1/status HTTP/1.1\r\nHost: x\r\n " + address + "\r\n\r\n", 0},
		"two hosts":            {"GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nHost: " + address + "\r\n\r\n", 0},
		"slow loris":           {"GET /v1/status HTTP/1.1\r\nHost: " + address + "\r\nX-a: b", 0},
		"silence":              {"", 0},
	} {
		to := address
		if x.status == 0 {
			to = hasty
		}
		r := raw(t, "tcp", to, x.request)
		switch {
		case x.status != 0:
			wantFailure(t, what, r, x.status)
		case r != nil:
			wantFailure(t, what, r, r.StatusCode)
			if r.StatusCode < 400 {
				t.Errorf("%s: %d", what, r.StatusCode)
			}
		}
	}
	if r := raw(t, "tcp", address, get("/v1/status", address, bearer)); r == nil || r.StatusCode != 200 {
		t.Errorf("after all that: %+v", r)
	}
}

// TestDrips sends one byte at a time: the request as a whole has to arrive in time, not each byte.
func TestDrips(t *testing.T) {
	_, address, _ := start(t, func(o *Options) { o.ReadTimeout = 200 * time.Millisecond })
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	closed := make(chan struct{})
	go func() { defer close(closed); io.Copy(io.Discard, c) }()
	for i := 0; ; i++ {
		select {
		case <-closed:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nX-Long: aaaa"[i%10 : i%10+1])); err != nil {
			return
		}
		if i > 1000 {
			t.Fatal("a byte each 20 ms keeps a connection for ever")
		}
	}
}

func TestUnixAsksTheKernel(t *testing.T) {
	var asked uint32
	s, _, _ := start(t, func(o *Options) {
		o.AllowUID = func(uid uint32) bool { asked = uid; return false }
	})
	wantFailure(t, "a user who may not", raw(t, "unix", s.opts.Unix, get("/v1/status", "x")), 401)
	if asked != uint32(os.Getuid()) {
		t.Errorf("asked for %d", asked)
	}
	if _, err := Start(Options{Unix: s.opts.Unix, Source: &fake{}}); !errors.Is(err, object.ErrBusy) {
		t.Errorf("a second server on the socket: %v", err)
	}
	if _, err := Start(Options{TCP: s.Address().String(), Source: &fake{},
		Bearer: only([32]byte{})}); !errors.Is(err, object.ErrBusy) {
		t.Errorf("a second server on the port: %v", err)
	}
}

func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	s, err := Start(Options{Unix: path, Source: &fake{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r := raw(t, "unix", path, get("/v1/status", "x")); r == nil || r.StatusCode != 200 {
		t.Error(r)
	}
}

func TestPages(t *testing.T) {
	_, address, secret := start(t, func(o *Options) { o.Source = &fake{n: 250} })
	after, seen := "", 0
	for range 10 {
		r := raw(t, "tcp", address, get("/v1/objects?limit=100&after="+after, address, "Authorization: bearer "+secret))
		var l list[object.Info]
		if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
			t.Fatal(err)
		}
		seen += len(l.Items)
		if after = l.Next; after == "" {
			break
		}
	}
	if seen != 250 {
		t.Errorf("%d of 250 objects over all pages", seen)
	}
}

// A path takes the arguments of its row and no others.
func TestArguments(t *testing.T) {
	s, _, _ := start(t, nil)
	for query, good := range map[string]bool{
		"/v1/audit?since=2026-01-31T12:00:00Z&tenant=lab&prefix=token.": true,
		"/v1/audit?since=yesterday":                                     false,
		"/v1/audit?state=sealed":                                        false,
		"/v1/objects?state=sealed&tenant=lab":                           true,
		"/v1/objects?since=2026-01-31T12:00:00Z":                        false,
		"/v1/tokens?tenant=lab":                                         false,
		"/v1/tokens?prefix=lab&limit=7":                                 true,
		"/v1/tokens?limit=7&limit=7":                                    false,
		"/v1/raft?limit=7":                                              false,
	} {
		r := raw(t, "unix", s.opts.Unix, get(query, "x"))
		if r == nil || good != (r.StatusCode == 200) || !good && r.StatusCode != 400 {
			t.Errorf("%s: %+v", query, r)
			continue
		}
		if body, _ := io.ReadAll(r.Body); strings.HasPrefix(query, "/v1/audit") && good &&
			!strings.Contains(string(body), `"time":"2026-01-31T12:00:00Z"`) {
			t.Errorf("%s: %s", query, body)
		}
	}
}

// An object is asked for by its ID. Who asks by the name is told how to find it.
func TestNothingAtAPath(t *testing.T) {
	for path, next := range map[string]string{
		"/v1/objects/a/b c":                                "GET /v1/objects?prefix=a%2Fb+c ",
		"/v1/objects/photo/data":                           "GET /v1/objects?prefix=photo ",
		"/v1/objects/" + strings.Repeat("0", 32) + "/more": "GET / ",
		"/v1/objects/":                                     "GET / ",
		"/v1/secrets":                                      "GET / ",
	} {
		if _, says := nothingAt(path); !strings.HasPrefix(says, next) {
			t.Errorf("%s: %q", path, says)
		}
	}
}

func TestSourceErrors(t *testing.T) {
	f := &fake{}
	s, _, _ := start(t, func(o *Options) { o.Source = f })
	for err, status := range map[error]int{object.ErrNotFound: 404, object.ErrPermission: 403, object.ErrBusy: 503,
		object.ErrTimeout: 503, object.ErrFull: 503, object.ErrNoDevice: 503, object.ErrInvalid: 400,
		object.ErrUnsupported: 501, io.ErrUnexpectedEOF: 500} {
		f.err = fmt.Errorf("%w: so", err)
		wantFailure(t, err.Error(), raw(t, "unix", s.opts.Unix, get("/v1/raft", "x")), status)
	}
}

func TestMetrics(t *testing.T) {
	s, _, _ := start(t, nil)
	body, _ := io.ReadAll(raw(t, "unix", s.opts.Unix, get("/metrics", "x")).Body)
	want := "# HELP tendril_objects objects\\nhere\n# TYPE tendril_objects gauge\ntendril_objects{tenant=\"a\\\"\\\\\\n?\"} 3\ntendril_objects 0.5\n# HELP tendril_gets_total \n# TYPE tendril_gets_total counter\ntendril_gets_total 1e+09\n"
	if !strings.HasPrefix(string(body), want) {
		t.Errorf("%s\nwant\n%s", body, want)
	}
}

func TestPageIsSelfContained(t *testing.T) {
	s, address, secret := start(t, nil)
	r := raw(t, "tcp", address, get("/ui", address))
	body, _ := io.ReadAll(r.Body)
	page, policy := string(body), r.Header.Get("Content-Security-Policy")
	for _, bad := range []string{"http://", "https://", "innerHTML", "eval(", "/*JS*/", "/*CSS*/",
		"style=", "onclick"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if strings.Contains(policy, "unsafe") || !strings.HasPrefix(policy, "default-src 'none'") ||
		strings.Contains(page, secret) {
		t.Error(policy)
	}
	if u := s.URL(secret); u != "http://"+address+"/ui#token="+secret {
		t.Error(u)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	s, address, _ := start(t, nil)
	var idle []net.Conn
	for range 5 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	io.WriteString(idle[0], get("/", address))
	io.WriteString(idle[1], "GET / HT")
	s.Close()
	s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, c := range idle {
		deadline, _ := ctx.Deadline()
		c.SetReadDeadline(deadline)
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("a connection is still open: %v", err)
		}
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Options{Unix: "rel", TCP: "nowhere", ReadTimeout: -1}.Validate()
	for _, want := range []string{"rel", "nowhere", "tokens", "source", "-1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if (Options{Source: &fake{}}).Validate() == nil {
		t.Error("nowhere to listen is fine")
	}
}

func TestConnectionsOfOneAddressAreBounded(t *testing.T) {
	s, address, _ := start(t, nil)
	t.Run("tcp", func(t *testing.T) { connectionsAreBounded(t, s, "tcp", address, address) })
	t.Run("unix", func(t *testing.T) { connectionsAreBounded(t, s, "unix", s.opts.Unix, "node") })
}

func connectionsAreBounded(t *testing.T, s *Server, network, address, host string) {
	var held []net.Conn
	for range maxConnectionsPeer {
		c, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
		c.SetDeadline(time.Now().Add(5 * time.Minute))
		io.WriteString(c, get("/", host))
		if _, err := c.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "the server has noted the answer's end, which is later than its bytes", s.answersNobody)
	}
	if r := raw(t, network, address, get("/", host)); r == nil || r.StatusCode != 200 {
		t.Fatalf("a newcomer to %d who ask for nothing: %+v", maxConnectionsPeer, r)
	}
	if _, err := io.Copy(io.Discard, held[0]); err != nil { // to its end
		t.Errorf("the oldest of them stays: %v", err)
	}
	last := held[len(held)-1]
	io.WriteString(last, get("/", host))
	if n, err := io.CopyN(io.Discard, last, 200); err != nil {
		t.Errorf("the newest of them: %d bytes, %v", n, err)
	}
}

// answersNobody reports whether no connection is being answered.
func (s *Server) answersNobody() bool {
	for _, d := range s.doors {
		d.way.mu.Lock()
		for v := range d.way.open {
			if v.given {
				d.way.mu.Unlock()
				return false
			}
		}
		d.way.mu.Unlock()
	}
	return true
}

// blocked is a Source whose status waits.
type blocked struct {
	fake
	asked  atomic.Int32
	answer chan struct{}
}

func (b *blocked) Status(v Viewer) (Status, error) {
	b.asked.Add(1)
	<-b.answer
	return b.fake.Status(v)
}

// Who is being answered keeps its place, for a while; and a newcomer takes one of who has most.
func TestWhoGivesItsPlaceUp(t *testing.T) {
	source := &blocked{answer: make(chan struct{})}
	s, _, _ := start(t, func(o *Options) { o.Source = source })
	var held []net.Conn
	for range maxConnectionsPeer {
		c, err := net.Dial("unix", s.opts.Unix)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
		io.WriteString(c, get("/v1/status", "x"))
	}
	for source.asked.Load() < maxConnectionsPeer {
		time.Sleep(time.Millisecond) // Pause: until all are being answered
	}
	way := s.doors[0].way
	few := &visitor{way: way, from: "another"}
	way.mu.Lock()
	for v := range way.open {
		v.since = time.Now().Add(time.Minute) // as if the machine were quick
	}
	refused := !way.evict(few.from) && !way.evict(way.greatest())
	for v := range way.open {
		v.since = time.Now().Add(-time.Minute)
	}
	most := way.greatest()
	taken := way.evict(most)
	way.mu.Unlock()
	if !refused || !taken || most == few.from || most == "" {
		t.Errorf("refused: %v; taken: %v, of %q", refused, taken, most)
	}
	close(source.answer)
	whole := 0
	for _, c := range held {
		c.SetDeadline(time.Now().Add(5 * time.Minute))
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && r.StatusCode == 200 {
			whole++
		}
	}
	if whole != maxConnectionsPeer-1 {
		t.Errorf("%d of %d got their answers, want all but one", whole, maxConnectionsPeer)
	}
}

// slow is a Source whose status takes its time.
type slow struct {
	fake
	asked, answer chan struct{}
}

func (s *slow) Status(v Viewer) (Status, error) {
	close(s.asked)
	<-s.answer
	return s.fake.Status(v)
}

func TestCloseLetsAnswersEnd(t *testing.T) {
	source := &slow{asked: make(chan struct{}), answer: make(chan struct{})}
	s, address, secret := start(t, func(o *Options) { o.Source, o.closeGrace = source, 10*time.Minute })
	got := make(chan *http.Response, 1)
	go func() { got <- raw(t, "tcp", address, get("/v1/status", address, "Authorization: Bearer "+secret)) }()
	<-source.asked
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); { // until nobody is let in any more
		c, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		c.Close()
	}
	close(source.answer)
	if r := <-got; r == nil || r.StatusCode != 200 {
		t.Errorf("%+v", r)
	}
	<-closed
}
