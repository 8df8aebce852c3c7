package login

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril/client/internal/front"
	"tendril/store/object"
)

// Servers names those that this user has logged in to, in order.
func Servers() ([]string, error) {
	dir, err := front.CredentialsDir("")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		name, is := strings.CutPrefix(e.Name(), "at-")
		if !is || !e.IsDir() {
			continue
		}
		if raw, err := os.ReadFile(filepath.Join(filepath.Dir(dir), e.Name(), front.NameFile)); err == nil {
			name = strings.TrimSpace(string(raw))
		} else if at := strings.LastIndexByte(name, '_'); at > 0 { // of a login with an earlier release
			name = name[:at] + ":" + name[at+1:]
		}
		list = append(list, name)
	}
	slices.Sort(list)
	return list, nil
}

// Logout forgets what Login keeps of a server: its authority, the certificate and the key. The certificate itself is
// good until it expires or is revoked there. object.ErrNotFound: there was no login.
func Logout(server string) error {
	full, err := front.WithPort(server)
	if err != nil {
		return fmt.Errorf("server %s: %w", server, err)
	}
	dir, err := front.CredentialsDir(full)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: not logged in to %s", object.ErrNotFound, full)
	}
	return os.RemoveAll(dir)
}

// CertificateUntil says until when the certificate for a server is good that this user has.
func CertificateUntil(server string) (time.Time, error) {
	full, err := front.WithPort(server)
	if err != nil {
		return time.Time{}, fmt.Errorf("server %s: %w", server, err)
	}
	keys, err := front.OpenCredentials(context.Background(), full, func(context.Context, []byte) ([]byte, error) {
		return nil, fmt.Errorf("%w: the certificate has expired or is missing", object.ErrPermission)
	})
	if err != nil {
		return time.Time{}, err
	}
	return keys.Ring.Certificate().Leaf.NotAfter, nil
}

// Reached says how far the way to a server's port leads.
type Reached struct {
	Addresses []string // of its name
	Port      string
	At        string        // the last address that was tried, with the port
	Took      time.Duration // to connect
}

// reachTime bounds the wait for one address to answer.
const reachTime = 5 * time.Second

// Reach looks a server's name up and connects to its port, without a word: HOST or HOST:PORT. It is for finding out why
// DialServer fails.
func Reach(ctx context.Context, server string) (r Reached, err error) {
	full, err := front.WithPort(server)
	if err != nil {
		return r, fmt.Errorf("server %s: %w", server, err)
	}
	host, port, _ := net.SplitHostPort(full) // front.WithPort made it
	r.Port = port
	if r.Addresses, err = net.DefaultResolver.LookupHost(ctx, host); err != nil {
		return r, err
	}
	for _, a := range r.Addresses {
		r.At = net.JoinHostPort(a, port)
		began := time.Now()
		var conn net.Conn
		if conn, err = (&net.Dialer{Timeout: reachTime}).DialContext(ctx, "tcp", r.At); err == nil {
			r.Took = time.Since(began)
			return r, conn.Close()
		}
	}
	return r, err
}
