package login_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tendril/client"
	"tendril/client/internal/front"
	"tendril/client/login"
	"tendril/store/object"
)

// TestNoServer: what is no HOST or HOST:PORT is refused before anybody is asked.
func TestNoServer(t *testing.T) {
	for name, err := range map[string]error{
		"DialServer":       second(client.DialServer(context.Background(), "u@host", client.Options{})),
		"Logout":           login.Logout("u@host"),
		"CertificateUntil": second(login.CertificateUntil("u@host")),
		"Reach":            second(login.Reach(t.Context(), "u@host")),
	} {
		if !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := login.Login(context.Background(), "host", "no token", ""); err == nil {
		t.Error("logged in with what is no token")
	}
}

func second[T any](_ T, err error) error { return err }

// TestCredentials: who has not logged in, or whose files are damaged, is told what to do; a logout leaves nothing, and
// other servers' stay.
func TestCredentials(t *testing.T) {
	base := t.TempDir()
	t.Setenv("TENDRIL_CREDENTIALS", base)
	if list, err := login.Servers(); err != nil || len(list) != 0 {
		t.Errorf("at first: %v, %v", list, err)
	}
	if _, err := client.DialServer(context.Background(), "host", client.Options{}); !errors.Is(err, object.ErrPermission) {
		t.Errorf("without a login: %v", err)
	}
	if err := login.Logout("host"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a logout without a login: %v", err)
	}
	put := func(server, file, text string) {
		dir, err := front.CredentialsDir(server)
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("host:7433", front.AuthorityFile, "no certificate")
	put("host:7433", front.NameFile, "host:7433\n")
	put("old:1", front.AuthorityFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") // of an earlier release
	if err := os.WriteFile(filepath.Join(base, "at-a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := login.Servers(); err != nil || !slices.Equal(list, []string{"host:7433", "old:1"}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, server := range []string{"host", "old:1"} {
		_, dialErr := client.DialServer(context.Background(), server, client.Options{})
		_, untilErr := login.CertificateUntil(server)
		if dialErr == nil || untilErr == nil {
			t.Errorf("%s with a damaged authority: %v; %v", server, dialErr, untilErr)
		}
	}
	if err := login.Logout("host"); err != nil {
		t.Error(err)
	}
	if list, err := login.Servers(); err != nil || !slices.Equal(list, []string{"old:1"}) {
		t.Errorf("after a logout: %v, %v", list, err)
	}
}

// TestReach: the way to a port that answers is told, and to one that does not.
func TestReach(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	r, err := login.Reach(t.Context(), at)
	if err != nil || r.At != at || len(r.Addresses) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	l.Close()
	if r, err = login.Reach(t.Context(), at); err == nil || r.At != at {
		t.Errorf("when nobody listens: %+v, %v", r, err)
	}
}
