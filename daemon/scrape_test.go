package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// asked gives what HTTP over TCP answers to who shows a secret; "" is none.
func asked(t *testing.T, d *Daemon, path, secret string, headers ...string) (int, string, *http.Response) {
	t.Helper()
	request, err := http.NewRequest("GET", "http://"+d.inspect.Load().Address().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if secret != "" {
		request.Header.Set("Authorization", "Bearer "+secret)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	visitor := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := visitor.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all), answer
}

// A token of role metrics reads /metrics until it is revoked, and does nothing else; one of a tenant reads that
// tenant's samples.
func TestScrapeToken(t *testing.T) {
	c := withHTTP(t)
	d, stop := serve(t, c)
	defer stop()
	for _, tenant := range []string{"red", "blue"} {
		conn, err := d.store.Connect(store.Owner{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	root := dial(t, c)
	defer root.Close()
	if d.anyoneMayCome() {
		t.Fatal("somebody may come before there is a token")
	}
	make := func(tenant string) string {
		text, err := admin.Of(root).CreateToken(context.Background(), admin.TokenOptions{Role: pki.Metrics,
			Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	all, red := make(""), make("red")
	if d.anyoneMayCome() {
		t.Error("a scrape token opens the front door to the network")
	}
	if status, body, _ := asked(t, d, "/metrics", all); status != 200 || !strings.Contains(body, `tenant="red"`) ||
		!strings.Contains(body, `tenant="blue"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := asked(t, d, "/metrics", red); status != 200 || !strings.Contains(body, `tenant="red"`) ||
		strings.Contains(body, `tenant="blue"`) {
		t.Errorf("the token of red: %d %s", status, body)
	}
	for _, path := range []string{"/v1/status", "/v1/objects", "/v1/raft"} {
		if status, body, _ := asked(t, d, path, all); status != 403 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	secret, err := pki.ParseToken(all)
	if err != nil {
		t.Fatal(err)
	}
	enroll := wire.EnrollRequest{Token: secret.ID(), SecretHash: secret.SecretHash(), Name: "x"}
	if _, err := d.Enroll("", enroll); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a certificate for a scrape token: %v", err)
	}
	_, err = admin.Of(root).CreateToken(context.Background(), admin.TokenOptions{Role: pki.Metrics, Once: true})
	if !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a scrape token for one use: %v", err)
	}
	user, err := admin.Of(root).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Of(root).RevokeToken(context.Background(), secret.ID(), false); err != nil {
		t.Fatal(err)
	}
	unknown, err := d.meta.authority.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ what, text, says string }{
		{"revoked", all, `"the token was revoked at `}, {"of a user", user, "a token of role user is for tendril login"},
		{"none", "", "no token"}, {"mistyped", user[:len(user)-1], "instead of 60: was it copied completely?"}, {"no token of any cluster's", "abc", "this node does not know the token"},
		{"not in the metadata", unknown.Text(), "was it made by this cluster, and copied whole?"},
	} {
		if status, body, _ := asked(t, d, "/metrics", x.text); status != 401 || !strings.Contains(body, x.says) {
			t.Errorf("a token that is %s: %d %s", x.what, status, body)
		}
	}
}

// Nodes of an earlier release could not read a record of a role that they do not know.
func TestRolesWaitForEveryNode(t *testing.T) {
	d, stop := serve(t, aConfig(t))
	defer stop()
	if err := d.everybodyKnows(fsm.RoleMetrics); err != nil {
		t.Fatal(err)
	}
	later := fsm.Node{ID: fsm.UUID(object.NewID()), Name: "later", Incarnation: fsm.UUID(object.NewID()),
		Version: d.build.Version + "-later"}
	if _, err := d.propose(&fsm.PutNode{Node: later}); err != nil {
		t.Fatal(err)
	}
	if err := d.everybodyKnows(fsm.RoleMetrics); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("beside a node of another release: %v", err)
	}
	if err := d.everybodyKnows(fsm.RoleUser); err != nil {
		t.Error(err)
	}
}

func TestMetricsWithoutAKey(t *testing.T) {
	c := aConfig(t)
	c.HTTP, c.HTTPMetrics = "127.0.0.1:0", "open"
	d, stop := serve(t, c)
	defer stop()
	if status, body, _ := asked(t, d, "/metrics", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := asked(t, d, "/v1/objects", ""); status != 401 {
		t.Errorf("objects without a key: %d", status)
	}
	for _, http := range []string{":7434", "10.0.0.1:7434", ""} {
		c.HTTP = http
		if err := errors.Join(c.checkAddresses()...); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("metrics without a key at %q: %v", http, err)
		}
	}
}
