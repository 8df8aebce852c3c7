package front_test

import (
	"errors"
	"testing"

	"tendril/client/internal/front"
	"tendril/store/object"
)

// The logins of a server, and handshakes with it, are tested in client/login and daemon. Here is what needs none.

// TestServerNames: what is no HOST or HOST:PORT is refused before anybody is asked.
func TestServerNames(t *testing.T) {
	for server, want := range map[string]string{
		"host": "host:7433", "host:1": "host:1", "[::1]": "[::1]:7433", "[::1]:5": "[::1]:5", "::1": "[::1]:7433",
		"192.0.2.1": "192.0.2.1:7433",
		"":          "", ":7433": "", "host:0": "", "host:65536": "", "host:x": "", "host:-1": "", "a/b": "", "u@host": "",
		"a b:1": "", "[a:1": "", "a]:1": "", "[a:1]": "", "[a:1]:80": "", "a:1:2": "", "[[::1]]": "", "::1]": "",
		"[fe80::1%eth0]:5": "[fe80::1%eth0]:5",
	} {
		got, err := front.WithPort(server)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%q: %q, %v; want %q", server, got, err, want)
		}
	}
}
