package daemon

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium, which is told what to do over a pipe (Chrome DevTools Protocol).
type browser struct {
	t   *testing.T
	to  *os.File
	cmd *exec.Cmd

	mu      sync.Mutex // guards the rest
	last    int
	answers map[int]chan protocolMessage
	tabs    map[string]*tab // by session
}

// tab is one page in it.
type tab struct {
	b         *browser
	session   string
	target    string
	address   string   // of the node
	console   []string // what the page said, and what its policy refused; guarded by browser.mu
	elsewhere []string // requests to other places; the same
}

type protocolMessage struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// openBrowser starts a Chromium that ends with the test; it skips where there is none.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium on this machine: apt-get install chromium")
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := os.MkdirTemp("", "tendril-browser-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--user-data-dir="+profile, "--disable-background-networking", "--remote-debugging-pipe",
		"--window-size=1280,900",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, answers}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	answers.Close()
	b := &browser{t: t, to: to, cmd: cmd, answers: map[int]chan protocolMessage{}, tabs: map[string]*tab{}}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	t.Cleanup(func() {
		to.Close() // it ends with its pipe
		late := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		late.Stop()
		reading.Wait()
		from.Close()
		os.RemoveAll(profile)
	})
	return b
}

// read takes answers and what pages do until the browser ends.
func (b *browser) read(from *os.File) {
	for r := bufio.NewReader(from); ; {
		text, err := r.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			for id, answer := range b.answers {
				delete(b.answers, id)
				close(answer)
			}
			b.mu.Unlock()
			return
		}
		var m protocolMessage
		if json.Unmarshal(text[:len(text)-1], &m) == nil {
			if answer := b.answers[m.ID]; m.ID > 0 && answer != nil {
				delete(b.answers, m.ID)
				answer <- m
			} else if x := b.tabs[m.SessionID]; x != nil {
				x.notice(m)
			}
		}
		b.mu.Unlock()
	}
}

// notice notes what a page does that it should not. browser.mu is held.
func (x *tab) notice(m protocolMessage) {
	switch m.Method {
	case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		x.console = append(x.console, fmt.Sprintf("%.600s", m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(m.Params, &p) != nil || !strings.HasPrefix(p.Request.URL, "data:") &&
			!strings.HasPrefix(p.Request.URL, "http://"+x.address+"/") {
			x.elsewhere = append(x.elsewhere, p.Request.URL)
		}
	}
}

// do calls a method, and reads its result into into, which may be nil.
func (b *browser) do(session, method string, params, into any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan protocolMessage, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.answers[id] = answer
	b.mu.Unlock()
	text, err := json.Marshal(protocolMessage{ID: id, Method: method, SessionID: session, Params: raw})
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	if err != nil {
		return err
	}
	select {
	case m, ok := <-answer:
		if !ok || m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error)
		}
		if into != nil {
			return json.Unmarshal(m.Result, into)
		}
		return nil
	case <-time.After(90 * time.Second):
		return fmt.Errorf("%s: %w", method, context.DeadlineExceeded)
	}
}

// open opens a node's page, with a key and what the fragment says besides.
func (b *browser) open(d *Daemon, secret, fragment string) *tab {
	b.t.Helper()
	x := &tab{b: b, address: d.inspect.Load().Address().String()}
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	err := b.do("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	if err == nil {
		err = b.do("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	x.session, x.target = attached.SessionID, target.TargetID
	b.mu.Lock()
	b.tabs[x.session] = x
	b.mu.Unlock()
	for _, domain := range []string{"Runtime", "Log", "Network", "Page"} {
		x.must(domain+".enable", map[string]any{}, nil)
	}
	x.must("Page.navigate", map[string]any{"url": "http://" + x.address + "/ui#token=" + secret + fragment}, nil)
	return x
}

// close closes the page: all that are open share six connections to the node.
func (x *tab) close() {
	x.b.t.Helper()
	if err := x.b.do("", "Target.closeTarget", map[string]any{"targetId": x.target}, nil); err != nil {
		x.b.t.Fatal(err)
	}
}

func (x *tab) must(method string, params, into any) {
	x.b.t.Helper()
	if err := x.b.do(x.session, method, params, into); err != nil {
		x.b.t.Fatal(err)
	}
}

// eval gives the value of an expression, or of its promise.
func (x *tab) eval(expression string) (value any) {
	x.b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	x.must("Runtime.evaluate",
		map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		x.b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return r.Result.Value
}

// text is the document's visible text, and markup its source.
func (x *tab) text() string   { return fmt.Sprint(x.eval("document.body.innerText")) }
func (x *tab) markup() string { return fmt.Sprint(x.eval("document.documentElement.outerHTML")) }

// until waits until a condition holds in the page.
func (x *tab) until(condition string) {
	x.b.t.Helper()
	ok := x.eval(`new Promise(done => { const end = Date.now() + 60000, look = () => { let holds = false;
		try { holds = ` + condition + `; } catch {}
		if (holds || Date.now() > end) done(!!holds); else setTimeout(look, 20); }; look(); })`)
	if ok != true {
		x.b.t.Errorf("never: %s\n%s\n%s", condition, x.text(), x.said())
	}
}

// has waits until a string is in the visible text.
func (x *tab) has(text string) {
	x.b.t.Helper()
	quoted, _ := json.Marshal(text)
	x.until("document.body.innerText.includes(" + string(quoted) + ")")
}

// key presses a key.
func (x *tab) key(name, code string, text string) {
	x.b.t.Helper()
	x.must("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": name, "code": code, "text": text}, nil)
	x.must("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": code}, nil)
}

// said gives what the console said and which requests went elsewhere; neither should have happened.
func (x *tab) said() string {
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	return strings.Join(append(x.console, x.elsewhere...), "\n")
}

// screenshot writes a picture of the whole page for people to look at, where SCREENSHOTS names a folder.
func (x *tab) screenshot(name string, wide int, scheme string) {
	x.b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	x.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	x.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": wide, "height": 900, "deviceScaleFactor": 1,
		"mobile": false}, nil)
	x.eval("scrollTo({top: 0, behavior: 'instant'})")
	x.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
	var shot struct{ Data string }
	x.must("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	picture, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, url.PathEscape(name)+".png"), picture, 0o644)
	}
	if err != nil {
		x.b.t.Error(err)
	}
}
