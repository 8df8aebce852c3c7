package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// laptop is the environment of another machine: no socket of the node, and a directory of its own for what a login
// brings.
func (d *demo) laptop() []string {
	return d.environment("TENDRIL_SOCKET="+d.path("nobody.sock"), "XDG_CONFIG_HOME="+d.path("laptop"),
		"PYTHONPATH="+d.python)
}

// far runs tendril as that machine would.
func (d *demo) far(ctx context.Context, stdin []byte, args ...string) (string, error) {
	return d.commandIn(ctx, d.laptop(), stdin, filepath.Join(d.bin, "tendril"), args...)
}

// login makes a token on the node and gets a certificate for it, as another machine would.
func (d *demo) login(ctx context.Context) error {
	title("6  another machine (TCP and TLS 1.3, here over loopback): a token, a login, the same program")
	out, err := d.tendril(ctx, "status", "--json")
	if err != nil {
		return err
	}
	var status struct {
		Node struct {
			Listen string `json:"listen"`
		} `json:"node"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Node.Listen == "" {
		return fmt.Errorf("the node does not say where it listens (%v): %s", err, out)
	}
	d.address = status.Node.Listen
	began := time.Now()
	token, err := d.tendril(ctx, "token", "create", "--once", "--expires", "10m")
	if err != nil {
		return err
	}
	line("token", began, "good for one login: tdl_… (%d characters)", len(strings.TrimSpace(token)))
	began = time.Now()
	said, err := d.far(ctx, []byte(token), "login", d.address, "--name", "laptop")
	if err != nil {
		return err
	}
	line("login", began, "%s", strings.TrimSpace(said))
	return nil
}

// remote filters the photograph on the node's device from there, and compares.
func (d *demo) remote(ctx context.Context) error {
	photo, err := d.photograph(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	result := d.path("remote.raw")
	said, err := d.far(ctx, photo, "run", "--server", d.address, "--", filepath.Join(d.bin, "demo-filter"),
		"-out", result)
	if err != nil {
		return err
	}
	line("remote", began, "%s (kernels compiled anew: the login is a tenant of its own)", strings.TrimSpace(said))
	a, err := os.ReadFile(d.path("native.raw"))
	if err != nil {
		return err
	}
	b, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return errors.New("native and remote results differ")
	}
	began = time.Now()
	if _, err = d.far(ctx, nil, "put", "--server", d.address, result, "--name", "from-laptop"); err != nil {
		return err
	}
	back, err := d.far(ctx, nil, "get", "--server", d.address, "from-laptop")
	if err != nil {
		return err
	}
	if back != string(a) {
		return errors.New("what was put over the network came back as other bytes")
	}
	line("put, get", began,
		"the same %d bytes as native; put into the node's store over the network and got back", len(a))
	return nil
}

// inspect shows what one HTTP request answers.
func (d *demo) inspect(ctx context.Context) error {
	title("7  one HTTP request")
	out, err := d.tendril(ctx, "ui")
	if err != nil {
		return err
	}
	base, key, ok := strings.Cut(strings.TrimSpace(out), "/ui#token=")
	if !ok {
		return errors.New("tendril ui printed no address with a key")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/status", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	began := time.Now()
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return err
	}
	line("GET", began, "%s → %s, %d bytes (curl -H \"Authorization: Bearer …\" %s)", "/v1/status", answer.Status,
		len(body), request.URL)
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, body, "    ", "  "); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", request.URL, answer.Status, body)
	}
	fmt.Println("    " + strings.TrimSpace(pretty.String()))
	return nil
}
