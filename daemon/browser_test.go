package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/browser"
)

// chromium is a browser of one test.
type chromium struct {
	t *testing.T
	b *browser.Browser
}

// tab is one page in it, whose faults end the test.
type tab struct {
	*browser.Page
	t *testing.T
}

// openBrowser starts a Chromium that ends with the test; it skips where there is none.
func openBrowser(t *testing.T) *chromium {
	t.Helper()
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &chromium{t, b}
}

// open opens a node's page, with a key and what the fragment says besides.
func (b *chromium) open(d *Daemon, secret, fragment string) *tab {
	b.t.Helper()
	p, err := b.b.Open(fmt.Sprintf("http://%s/ui#token=%s%s", d.inspect.Load().Address(), secret, fragment))
	if err != nil {
		b.t.Fatal(err)
	}
	return &tab{p, b.t}
}

func (x *tab) eval(expression string) any {
	x.t.Helper()
	value, err := x.Eval(expression)
	if err != nil {
		x.t.Fatal(err)
	}
	return value
}

// until waits until a condition holds in the page.
func (x *tab) until(condition string) {
	x.t.Helper()
	if err := x.Until(condition); err != nil {
		x.t.Fatalf("%v\n%s\n%s", err, x.eval("document.body.innerText"), x.said())
	}
}

// has waits until a string is in the visible text.
func (x *tab) has(text string) {
	x.t.Helper()
	quoted, _ := json.Marshal(text)
	x.until("document.body.innerText.includes(" + string(quoted) + ")")
}

func (x *tab) key(name, code, text string) {
	x.t.Helper()
	if err := x.Key(name, code, text); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tab) markup() string { return fmt.Sprint(x.eval("document.documentElement.outerHTML")) }

func (x *tab) said() string { return strings.Join(x.Complaints(), "\n") }

func (x *tab) close() {
	x.t.Helper()
	if err := x.Close(); err != nil {
		x.t.Fatal(err)
	}
}

// screenshot writes a picture of the whole page for people to look at, where SCREENSHOTS names a folder.
func (x *tab) screenshot(name string, wide int, scheme string) {
	x.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	err := x.Scheme(scheme)
	var picture []byte
	if err == nil {
		picture, err = x.Screenshot(wide)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644)
	}
	if err != nil {
		x.t.Error(err)
	}
}
