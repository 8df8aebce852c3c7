package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/pki"
	"tendril/daemon/audit"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/tools/e2e/await"
)

// everyPage asks for all of a list, limit things at a time.
func everyPage[T any](t *testing.T, d *Daemon, path, secret string, limit int) (all []T) {
	t.Helper()
	for after, more := "", true; more; {
		status, body, _ := asked(t, d, fmt.Sprintf("%slimit=%d&after=%s", path, limit, url.QueryEscape(after)), secret)
		var part struct {
			Items []T
			Next  string
		}
		if err := json.Unmarshal([]byte(body), &part); status != 200 || err != nil || len(part.Items) > limit {
			t.Fatalf("%s: %d %v %s", path, status, err, body)
		}
		all = append(all, part.Items...)
		after, more = part.Next, part.Next != ""
	}
	return all
}

// Tenants, tokens, certificates and the audit are over HTTP for whom the commands have them: root and the daemon's own
// user. Secrets are nowhere.
func TestAdministrationOverHTTP(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	c := aConfig(t)
	c.HTTP, c.Listen = "127.0.0.1:0", "127.0.0.1:0"
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	for _, m := range []wire.ChangeTenantRequest{{Name: "art", Change: wire.TenantCreate},
		{Name: "lab", Change: wire.TenantCreate}, {Name: "lab", Change: wire.TenantMap, Kind: 1, Member: "4242"}} {
		if err := admin.Of(conn).ChangeTenant(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	var tokens []string
	for _, tenant := range []string{"lab", "art", "lab"} {
		token, err := admin.Of(conn).CreateToken(context.Background(), admin.TokenOptions{Role: pki.User,
			Tenant: tenant,
			Life:   time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	for _, name := range []string{"laptop", "desk", "late"} {
		if _, err := login.Login(context.Background(), d.address(), tokens[0], name); err != nil {
			t.Fatal(err)
		}
	}
	scraper, err := admin.Of(conn).CreateToken(context.Background(), admin.TokenOptions{Role: pki.Metrics})
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the audit is written", func() bool {
		page, err := d.readAudit(wire.AuditRequest{}, "token.", nil)
		return err == nil && len(page.Events) == 7
	})
	all, own := pageKeyOf(t, d, pageKey{tenant: "boss", all: true}), pageKeyOf(t, d, pageKey{tenant: "lab"})
	visitor := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket+".http")
		}}}
	for _, path := range []string{"/v1/tenants", "/v1/tokens", "/v1/certificates", "/v1/audit"} {
		for _, x := range []struct {
			who, secret string
			want        int
		}{{"who administers the daemon", all, 200}, {"a tenant", own, 403}, {"a scraper", scraper, 403}, {"nobody", "", 401}} {
			status, body, _ := asked(t, d, path, x.secret)
			if status != x.want {
				t.Errorf("%s for %s: %d %.300s", path, x.who, status, body)
			}
			if status != 200 && strings.Contains(body, "art") {
				t.Errorf("%s tells %s: %s", path, x.who, body)
			}
			for _, secret := range append(tokens, scraper) {
				if _, hidden, _ := strings.Cut(secret, "_"); strings.Contains(body, secret) || hidden != "" &&
					strings.Contains(body, hidden) {
					t.Errorf("%s has a secret: %s", path, body)
				}
			}
		}
		answer, err := visitor.Get("http://tendril" + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Errorf("%s for the daemon's own user: %d", path, answer.StatusCode)
		}
	}
	l := (*look)(d)
	for _, v := range []inspect.Viewer{{Local: true, UID: 4242}, {Scraper: true}} {
		if _, err := l.Tokens(v, inspect.Page{Limit: 1}); err == nil {
			t.Errorf("%+v sees tokens", v)
		}
	}
	for limit := 1; limit < 4; limit++ {
		var tenants, roles, names, what []string
		for _, x := range everyPage[inspect.Tenant](t, d, "/v1/tenants?", all, limit) {
			tenants = append(tenants, fmt.Sprint(x.Name, len(x.Members)))
		}
		for _, x := range everyPage[inspect.Token](t, d, "/v1/tokens?", all, limit) {
			roles = append(roles, fmt.Sprint(x.Role, " ", x.Tenant, x.Certificates))
		}
		for _, x := range everyPage[inspect.Certificate](t, d, "/v1/certificates?prefix=la&", all, limit) {
			names = append(names, x.Name)
		}
		for _, x := range everyPage[audit.Event](t, d, "/v1/audit?prefix=token.&", all, limit) {
			what = append(what, x.What)
		}
		slices.Sort(names) // they come by serial number
		got := fmt.Sprint(tenants, roles, names, what)
		if want := "[art0 lab1] [user lab3 user art0 user lab0 metrics 0] [laptop late] " +
			"[token.create token.create token.create token.use token.use token.use token.create]"; got != want {
			t.Errorf("by %d: %s\nwant %s", limit, got, want)
		}
	}
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for query, want := range map[string]int{"?tenant=art&": 2, "?prefix=token.use&": 3, "?since=" + soon + "&": 0,
		"?since=2300-01-01T00:00:00Z&": 0, "?prefix=token.use&since=1600-01-01T00:00:00Z&": 3} {
		if events := everyPage[audit.Event](t, d, "/v1/audit"+query, all, 1); len(events) != want {
			t.Errorf("%s: %+v, want %d", query, events, want)
		}
	}
	for _, path := range []string{"/v1/tokens", "/v1/certificates"} {
		for _, place := range []string{"zz", "0", "0-", "0000000000000000-zz", strings.Repeat("f", 40)} {
			if status, body, _ := asked(t, d, path+"?after="+place, all); status != http.StatusBadRequest {
				t.Errorf("%s after %s: %d %s", path, place, status, body)
			}
		}
	}
	for _, place := range []string{"1", "1.2.3.4", "1.2.-3", "1.2.3x", "a.b.c"} {
		if status, body, _ := asked(t, d, "/v1/audit?after="+place, all); status != http.StatusBadRequest {
			t.Errorf("after %s: %d %s", place, status, body)
		}
	}
}
