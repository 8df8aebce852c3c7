package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// pageKeyOf gives a key as tendril ui prints it.
func pageKeyOf(t *testing.T, d *Daemon, key pageKey) string {
	t.Helper()
	secret, hash, err := inspect.NewSecret()
	key.expires = time.Now().Add(time.Hour)
	if err == nil {
		err = d.pages.add(hash, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// strictly forbids what a schema does not name: an answer's field that the document forgot is a fault.
func strictly(schema any) {
	switch x := schema.(type) {
	case map[string]any:
		if _, is := x["properties"]; is {
			x["additionalProperties"] = false
		}
		for _, part := range x {
			strictly(part)
		}
	case []any:
		for _, part := range x {
			strictly(part)
		}
	}
}

// What the OpenAPI document says of each path is what a node answers.
func TestAnswersFitTheirDocument(t *testing.T) {
	d, conn := withPage(t)
	o, err := conn.Put(context.Background(), []byte("hello"), client.CreateOptions{Name: "greeting",
		Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	if _, err := admin.Of(conn).CreateToken(context.Background(), admin.TokenOptions{Role: pki.Metrics}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []wire.ChangeTenantRequest{{Name: "lab", Change: wire.TenantCreate},
		{Name: "lab", Change: wire.TenantMap, Kind: 1, Member: "4242"}} {
		if err := admin.Of(conn).ChangeTenant(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	session := &session{peer: frontdoor.Peer{Tenant: "lab"}, since: time.Now(), cancel: func() {}}
	if err := d.sessions.add(session); err != nil {
		t.Fatal(err)
	}
	defer d.sessions.remove(session.id)
	secret := pageKeyOf(t, d, pageKey{all: true})
	status, text, _ := asked(t, d, "/v1/openapi.json", "")
	var document map[string]any
	if err := json.Unmarshal([]byte(text), &document); status != 200 || err != nil || document["openapi"] != "3.1.0" {
		t.Fatalf("%d %v %s", status, err, text)
	}
	strictly(document)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("mem:///openapi.json", document); err != nil {
		t.Fatal(err)
	}
	fits := func(pointer, path, body string) {
		schema, err := compiler.Compile("mem:///openapi.json#" + pointer)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s: %v in %s", path, err, body)
		}
	}
	checked := 0
	for path, entry := range document["paths"].(map[string]any) {
		if path == "/v1/events" {
			continue // TestEventsOverHTTP
		}
		good := entry.(map[string]any)["get"].(map[string]any)["responses"].(map[string]any)["200"].(map[string]any)
		status, body, _ := asked(t, d, strings.ReplaceAll(strings.ReplaceAll(path, "sessions/{id}",
			fmt.Sprint("sessions/", session.id)), "{id}", o.ID().String()), secret)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
		if good["content"] == nil {
			continue
		}
		checked++
		place := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
		fits("/paths/"+place+"/get/responses/200/content/application~1json/schema", path, body)
	}
	for tenant, want := range map[string]int{"lab": 200, "other": 403} {
		path := fmt.Sprintf("/v1/sessions/%d/commands", session.id)
		if status, body, _ := asked(t, d, path, pageKeyOf(t, d, pageKey{tenant: tenant})); status != want {
			t.Errorf("%s for tenant %s: %d %s", path, tenant, status, body)
		}
	}
	if checked < 10 {
		t.Errorf("%d paths with a schema", checked)
	}
	_, body, _ := asked(t, d, "/v1/objects/"+object.NewID().String(), secret)
	fits("/components/schemas/Problem", "an object that is not there", body)
}

// Who may not get an object does not get its bytes over HTTP either, and a reading that has ended is charged to nobody.
func TestDataOverHTTP(t *testing.T) {
	d, conn := withPage(t)
	want := strings.Repeat("0123456789", 300_000)
	o, err := conn.Put(context.Background(), []byte(want), client.CreateOptions{Name: "digits"})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	tenant := conn.Daemon().Tenant
	path := fmt.Sprintf("/v1/objects/%s/data", o.ID())
	own, all := pageKeyOf(t, d, pageKey{tenant: tenant}), pageKeyOf(t, d, pageKey{tenant: "boss", all: true})
	for what, secret := range map[string]string{"its tenant": own, "who sees all": all} {
		if status, body, _ := asked(t, d, path, secret); status != 200 || body != want {
			t.Errorf("%s: %d, %d bytes", what, status, len(body))
		}
	}
	if status, body, _ := asked(t, d, path, own, "Range", "bytes=1000001-1000003"); status != 206 || body != "123" {
		t.Errorf("a range: %d %q", status, body)
	}
	other := pageKeyOf(t, d, pageKey{tenant: "other"})
	for _, p := range []string{path, strings.TrimSuffix(path, "/data")} {
		if status, body, _ := asked(t, d, p, other); status != 403 || strings.Contains(body, "digits") {
			t.Errorf("%s of another tenant: %d %.200s", p, status, body)
		}
	}
	open, err := d.store.Connect(store.Owner{Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	h, err := open.Create(store.Spec{SizeBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := asked(t, d, fmt.Sprintf("/v1/objects/%s/data", h.ID), own); status != 409 {
		t.Errorf("an object that is not sealed: %d", status)
	}
	// an answer's last byte comes before its end
	await.Until(t, "nothing is charged after the last answer", func() bool { return d.store.Status().RequestBytes == 0 })
}

// What is being downloaded goes on coming as it was while it is deleted and its maker puts another object.
func TestADownloadOutlivesItsObject(t *testing.T) {
	const size = 24 << 20
	d, conn := withPage(t)
	ctx := context.Background()
	put := func(b byte) *client.Object {
		o, err := conn.Put(ctx, bytes.Repeat([]byte{b}, size), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := put(1)
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/v1/objects/%s/data", d.inspect.Load().Address(),
		first.ID()), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant}))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	if err := conn.Delete(ctx, first.ID()); err != nil {
		t.Fatal(err)
	}
	first.Release()
	next := put(2)
	defer next.Release()
	got, err := io.ReadAll(answer.Body)
	if n := bytes.Count(got, []byte{1}); err != nil || n != size || len(got) != size {
		t.Errorf("%d bytes, %d of them the object's: %v", len(got), n, err)
	}
}

// Filters choose objects by state and tenant, and never show another tenant's.
func TestObjectsAreSieved(t *testing.T) {
	d, stop := serve(t, withHTTP(t))
	defer stop()
	for _, tenant := range []string{"red", "blue"} {
		conn, err := d.store.Connect(store.Owner{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Create(store.Spec{Class: object.Named, Name: tenant + "-open", SizeBytes: 1}); err != nil {
			t.Fatal(err)
		}
		h, err := conn.Create(store.Spec{Class: object.Named, Name: tenant + "-sealed"})
		if err == nil {
			err = conn.Seal(h.ID, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all, red := pageKeyOf(t, d, pageKey{all: true}), pageKeyOf(t, d, pageKey{tenant: "red"})
	for _, x := range []struct {
		secret, query, want string
		total               int
	}{
		{all, "", "blue-open blue-sealed red-open red-sealed", 4},
		{all, "?limit=1", "blue-open", 4},
		{all, "?state=sealed", "blue-sealed red-sealed", 0},
		{all, "?tenant=red", "red-open red-sealed", 2},
		{all, "?tenant=red&state=open&prefix=red", "red-open", 0},
		{red, "", "red-open red-sealed", 2},
		{red, "?tenant=blue", "", 0},
	} {
		_, body, _ := asked(t, d, "/v1/objects"+x.query, x.secret)
		var list struct {
			Items []object.Info
			Total int
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, o := range list.Items {
			names = append(names, o.Name)
		}
		if got := strings.Join(names, " "); got != x.want || list.Total != x.total {
			t.Errorf("%q: %q of %d, want %q of %d", x.query, got, list.Total, x.want, x.total)
		}
	}
}
