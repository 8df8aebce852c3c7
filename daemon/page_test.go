package daemon

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/store"
)

const markup = `<img src=x onerror="document.title='taken over'"><script>document.title='taken over'</script>`

// quiet checks that a page said nothing, asked nobody else, and shows no key.
func (x *tab) quiet(secret string) {
	x.t.Helper()
	if said := x.said(); said != "" {
		x.t.Errorf("the page complains, or asks elsewhere: %s", said)
	}
	if strings.Contains(x.markup(), secret) || x.eval("location.href.includes('token')") != false {
		x.t.Error("the key is in the document or its address")
	}
}

// whole checks that in a window as wide as wide pixels no column of these tables is cut.
func (x *tab) whole(wide int, tables ...string) {
	x.t.Helper()
	if err := x.Widen(wide); err != nil {
		x.t.Fatal(err)
	}
	for _, id := range tables {
		cut := x.eval(fmt.Sprintf("(e => e.scrollWidth - e.clientWidth)(document.getElementById(%q).closest('.scroll'))", id))
		if cut != 0.0 {
			x.t.Errorf("in a window of %d pixels %v of %s are cut", wide, cut, id)
		}
	}
}

// withPage is a node that serves its page and HTTP, and a client of it.
func withPage(t *testing.T) (*Daemon, *client.Conn) {
	t.Helper()
	c := withHTTP(t)
	d, stop := serve(t, c)
	t.Cleanup(stop)
	conn := dial(t, c)
	t.Cleanup(func() { conn.Close() })
	return d, conn
}

// furnished is a node with something of everything that a page shows.
func furnished(t *testing.T) (d *Daemon, conn *client.Conn, put func(name, meta string, data []byte) *client.Object) {
	t.Helper()
	d, conn = withPage(t)
	put = func(name, meta string, data []byte) *client.Object {
		o, err := conn.Put(context.Background(), data, client.CreateOptions{Name: name, Meta: []byte(meta)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Release)
		return o
	}
	tenant := conn.Daemon().Tenant
	for _, name := range []string{tenant, "red", "blue"} {
		of, err := d.store.Connect(store.Owner{Tenant: name, Name: "camera"})
		if err == nil {
			t.Cleanup(of.Close)
			_, err = of.OpenStream(store.StreamSpec{Name: "frames-" + name, Frames: 8, Writes: true})
		}
		for range 5 {
			if err == nil {
				_, err = of.Create(store.Spec{SizeBytes: 3 << 20})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = d.sessions.add(&session{peer: frontdoor.Peer{Tenant: tenant, Name: "solver", PID: 4711}, since: time.Now(),
		cancel: func() {}})
	if _, err := d.leases.Grant(leases.Request{Tenant: tenant, Holder: "trainer", Devices: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		s := (*look)(d).sample(time.Now().Add(time.Duration(i-60) * historyStep))
		for k := range s.kinds {
			s.kinds[k] *= 1 + math.Sin(float64(i+k)/6)/2
		}
		s.requests = uint64(i * i * 40)
		d.past.note(s)
	}
	return d, conn, put
}

func floats(n int) (b []byte) {
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(math.Sin(float64(i)/20))))
	}
	return b
}

// The page in a real browser, against a live node: everything that it shows, objects sorted, filtered and by keyboard,
// previews of tensors, events as they happen, names full of markup as text, and nothing that its own policy refuses.
func TestPageInABrowser(t *testing.T) {
	b := openBrowser(t)
	d, conn, put := furnished(t)
	wave := floats(500)
	picture := make([]byte, 60*90*3)
	for i := range picture {
		picture[i] = byte(i * 7 / (1 + i%3))
	}
	tenant := conn.Daemon().Tenant
	secret, everything := pageKeyOf(t, d, pageKey{tenant: tenant}), pageKeyOf(t, d, pageKey{tenant: tenant, all: true})
	put(markup, "", []byte("x"))
	for _, x := range []struct {
		what string
		o    *client.Object
		want string
	}{
		{"line", put("wave", `{"dtype":"<f4","shape":[500]}`, wave), "Line of 500 values, -"},
		{"image", put("picture", `{"dtype":"|u1","shape":[60,90,3]}`, picture), "Image of 90 × 60 pixels"},
		{"histogram", put("cube", `{"dtype":"<f4","shape":[5,10,10]}`, wave), "Histogram of 500 values"},
		{"text", put("text", "", []byte("<b>bold</b>")), "The first 11 bytes"},
		{"wrong", put("wrong", `{"dtype":"<f4","shape":"x"}`, wave), "The first 512 bytes"},
	} {
		page := b.open(d, secret, "&object="+x.o.ID().String())
		page.has(x.want)
		page.quiet(secret)
		page.screenshot("preview-"+x.what, 1280, "light")
		page.close()
	}

	page := b.open(d, everything, "&sort=-size")
	page.until("document.getElementById('state').textContent === 'Live' && document.querySelectorAll('figure').length > 5")
	page.eval("document.getElementById('settings').open = true")
	for _, want := range []string{"solver", "trainer", "frames-red", "frames-blue", "Memory by tenant", "state-dir",
		"blue"} {
		page.until(fmt.Sprintf("document.body.textContent.includes(%q)", want))
	}
	source := page.markup()
	before, behind := strings.Index(source, ">cube<"), strings.Index(source, ">text<")
	if before < 0 || behind < before ||
		!strings.Contains(source, `aria-sort="descending"`) {
		t.Errorf("cube at %d, text at %d", before, behind)
	}
	if page.eval("document.title") != d.node.Name+" – Tendril" || page.eval("document.images.length") != 0.0 ||
		!strings.Contains(source, "&lt;img src=x onerror=") {
		t.Error("a name is markup")
	}
	o := put("arrived", "", []byte("x"))
	page.until("document.getElementById('events').textContent.includes('object arrived sealed')")
	page.until("document.getElementById('objects').textContent.includes('arrived')")
	if err := conn.Delete(context.Background(), o.ID()); err != nil {
		t.Fatal(err)
	}
	page.until("document.getElementById('events').textContent.includes('object arrived gone')")
	page.eval("document.querySelector('#sessions button').click()")
	page.until("document.getElementById('flying').textContent === 'Nothing is in flight.'")
	page.eval("document.getElementById('x-close').click()")
	if page.eval("document.getElementById('session').hidden") != true {
		t.Error("a session's view does not close")
	}
	d.sessions.remove(1)
	page.until("!document.getElementById('sessions').textContent.includes('solver')")
	page.quiet(everything)
	page.whole(1200, "objects", "sessions", "workers", "leases", "streams", "names", "nodes", "devices", "links", "members")
	for _, scheme := range []string{"light", "dark"} {
		page.screenshot("page-"+scheme, 1280, scheme)
		page.screenshot("page-narrow-"+scheme, 390, scheme)
	}

	keys := b.open(d, secret, "&prefix=wa&state=sealed")
	keys.until("document.getElementById('objects').textContent.includes('wave')")
	if keys.eval("document.getElementById('objects').textContent.includes('cube')") != false {
		t.Error("a filter lets others through")
	}
	keys.key("/", "Slash", "/")
	if keys.eval("document.activeElement.id") != "prefix" {
		t.Error("the key / does not lead to the filter")
	}
	keys.eval("document.activeElement.select()")
	for _, c := range "cub" {
		keys.key(string(c), "Key"+strings.ToUpper(string(c)), string(c))
	}
	keys.key("Enter", "Enter", "\r")
	keys.until("document.querySelector('#objects tbody button').textContent === 'cube'")
	keys.eval("document.querySelector('#objects tbody button').focus()")
	keys.key("Enter", "Enter", "\r")
	keys.has("Histogram of 500 values")
	keys.key("Escape", "Escape", "")
	keys.until("document.getElementById('preview').hidden && document.activeElement.textContent === 'cube'")

	refused := b.open(d, "wrong", "")
	refused.has("this node does not know the token")
	refused.has("run: tendril ui")
}

// The page says which objects it shows, and how many there are.
func TestPageSaysHowMany(t *testing.T) {
	b := openBrowser(t)
	d, conn := withPage(t)
	for i := range 120 {
		o, err := conn.Put(context.Background(), nil, client.CreateOptions{Name: fmt.Sprintf("%03d", i)})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	page := b.open(d, pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant}), "")
	counts := func(want string) {
		t.Helper()
		page.until(fmt.Sprintf("document.getElementById('c-objects').textContent === %q", want))
	}
	counts("1–100 of 120")
	page.eval("document.activeElement.blur()")
	page.key("n", "KeyN", "n")
	counts("101–120 of 120")
	page.key("p", "KeyP", "p")
	counts("1–100 of 120")
	page.eval("document.getElementById('ostate').value = 'sealed', document.getElementById('filter').requestSubmit()")
	counts("1–100 and more")
	page.eval("document.getElementById('prefix').value = '11', document.getElementById('filter').requestSubmit()")
	counts("10")
}

// A node of a cluster draws the others, its links to them, and one that does not answer.
func TestPageOfACluster(t *testing.T) {
	b := openBrowser(t)
	x := newCluster(t, 3, func(_ int, c *Config) { c.HTTP = "127.0.0.1:0" })
	x.put(0, "far", noise(2, 8<<20), client.CreateOptions{})
	x.share()
	if _, err := x.get(1, "far"); err != nil {
		t.Fatal(err)
	}
	secret := pageKeyOf(t, x.all[1], pageKey{all: true})
	page := b.open(x.all[1], secret, "")
	page.until("document.querySelectorAll('#cluster .node').length === 3")
	page.until("document.querySelectorAll('#cluster .link:not(.away)').length === 2")
	page.until("/MiB\\/s|KiB\\/s|GiB\\/s/.test(document.getElementById('cluster').textContent)")
	page.has("far")
	page.screenshot("cluster", 1280, "light")
	page.whole(1200, "nodes", "devices", "links", "members")
	page.quiet(secret)
}

// What axe finds on the page, light and dark: nothing.
func TestPageIsAccessible(t *testing.T) {
	rules, err := os.ReadFile("../build/axe.min.js")
	if err != nil {
		t.Skip("no build/axe.min.js: make axe fetches it")
	}
	b := openBrowser(t)
	d, conn, put := furnished(t)
	o := put("wave", `{"dtype":"<f4","shape":[500]}`, floats(500))
	secret := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant, all: true})
	for _, scheme := range []string{"light", "dark"} {
		page := b.open(d, secret, "&object="+o.ID().String())
		if err := page.Scheme(scheme); err != nil {
			t.Fatal(err)
		}
		page.has("Line of 500 values")
		page.until("document.querySelectorAll('figure').length > 5")
		page.eval("document.getElementById('settings').open = true")
		page.eval(string(rules) + ";0")
		found, _ := page.eval(`axe.run({resultTypes: ["violations"]}).then(r => JSON.stringify(
			r.violations.map(v => [v.id, v.help, v.nodes.map(n => [n.html.slice(0, 120), n.failureSummary])])))`).(string)
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(found), &list); err != nil || len(list) > 0 {
			t.Errorf("%s: %v\n%s", scheme, err, found)
		}
	}
}

// The page is small, and its first answers are, whatever the store holds.
func TestPageIsSmall(t *testing.T) {
	d, conn := withPage(t)
	for i := range 2000 {
		o, err := conn.Put(context.Background(), nil, client.CreateOptions{Name: fmt.Sprintf("%04d-%s", i, strings.Repeat("n",
			60))})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	for i := range historyLength {
		d.past.note((*look)(d).sample(time.Now().Add(time.Duration(i) * time.Second)))
	}
	secret, sum := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant}), 0
	for _, path := range []string{"/ui", "/v1/status", "/v1/segments?limit=1000", "/v1/objects?limit=100", "/v1/nodes",
		"/v1/devices", "/v1/sessions", "/v1/workers", "/v1/links", "/v1/leases", "/v1/streams", "/v1/names", "/v1/raft",
		"/v1/history"} {
		status, body, _ := asked(t, d, path, secret)
		if status != 200 {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
		t.Logf("%s: %d bytes", path, len(body))
		sum += len(body)
	}
	if sum > 300<<10 {
		t.Errorf("the page and its first answers are %d bytes, want 300 KiB at most", sum)
	}
}
