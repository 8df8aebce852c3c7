// Package browser drives a headless Chromium over a pipe (Chrome DevTools Protocol), for the tests and the figures of
// the page that a daemon serves.
//
// Trust: the pages are ours; Chromium runs without a sandbox of its own, for root has none, with a profile that ends
// with it, and reaches this machine alone. Locks: Browser.mu is a leaf.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	answerTime = 90 * time.Second // for one answer
	holdTime   = 60 * time.Second // for a condition to hold
	endTime    = 10 * time.Second // to end by itself
)

// ErrMissing says that there is no Chromium on this machine.
var ErrMissing = errors.New("no chromium on this machine: apt-get install chromium")

// Browser is a Chromium. Made by Start; the caller must Close it.
type Browser struct {
	to      *os.File
	from    *os.File
	cmd     *exec.Cmd
	profile string
	reading sync.WaitGroup

	mu      sync.Mutex // guards the rest
	last    int
	answers map[int]chan message
	pages   map[string]*Page // by session
}

// Page is one page in it.
type Page struct {
	b               *Browser
	session, target string
	home            string // "http://host:port/"

	console   []string // guarded by Browser.mu
	elsewhere []string // the same
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// Start starts a Chromium. Errors: ErrMissing; what the system says.
func Start() (*Browser, error) {
	program, err := exec.LookPath("chromium")
	if err != nil {
		return nil, ErrMissing
	}
	b := &Browser{answers: map[int]chan message{}, pages: map[string]*Page{}}
	theirs, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	from, answers, err := os.Pipe()
	if err != nil {
		to.Close()
		return nil, err
	}
	defer answers.Close()
	b.to, b.from = to, from
	if b.profile, err = os.MkdirTemp("", "tendril-browser-"); err == nil {
		b.cmd = exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--no-first-run", "--user-data-dir="+b.profile, "--disable-background-networking",
			"--remote-debugging-pipe", "--window-size=1280,900",
			"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank")
		b.cmd.ExtraFiles = []*os.File{theirs, answers} // 3 and 4, where it looks for them
		err = b.cmd.Start()
	}
	if err != nil {
		to.Close()
		from.Close()
		os.RemoveAll(b.profile)
		return nil, err
	}
	b.reading.Go(b.read)
	return b, nil
}

// Close ends it, and removes its profile.
func (b *Browser) Close() {
	b.to.Close() // it ends with its pipe
	late := time.AfterFunc(endTime, func() { _ = b.cmd.Process.Kill() })
	_ = b.cmd.Wait()
	late.Stop()
	b.reading.Wait()
	b.from.Close()
	os.RemoveAll(b.profile)
}

// read takes answers and what pages do until the browser ends.
func (b *Browser) read() {
	for r := bufio.NewReader(b.from); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for id, answer := range b.answers {
				delete(b.answers, id)
				close(answer)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) == nil {
			b.take(m)
		}
	}
}

func (b *Browser) take(m message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if answer := b.answers[m.ID]; m.ID > 0 && answer != nil {
		delete(b.answers, m.ID)
		answer <- m
	} else if x := b.pages[m.SessionID]; x != nil {
		x.notice(m)
	}
}

// notice notes what a page says, and what it asks of others than its home. Browser.mu is held.
func (x *Page) notice(m message) {
	switch m.Method {
	case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		x.console = append(x.console, fmt.Sprintf("%.600s", m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(m.Params, &p) != nil || !strings.HasPrefix(p.Request.URL, "data:") &&
			!strings.HasPrefix(p.Request.URL, x.home) {
			x.elsewhere = append(x.elsewhere, p.Request.URL)
		}
	}
}

// do calls a method, and reads its result into into, which may be nil.
func (b *Browser) do(session, method string, params, into any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	if b.answers == nil {
		b.mu.Unlock()
		return fmt.Errorf("%s: the browser has ended", method)
	}
	b.last++
	id := b.last
	b.answers[id] = answer
	b.mu.Unlock()
	text, err := json.Marshal(message{ID: id, Method: method, SessionID: session, Params: raw})
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
	case <-time.After(answerTime):
		return fmt.Errorf("%s: no answer within %v", method, answerTime)
	}
}

// Open opens a page at an address "http://host:port/…", in a tab of its own.
func (b *Browser) Open(address string) (*Page, error) {
	var target struct{ TargetID string }
	if err := b.do("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	var attached struct{ SessionID string }
	err := b.do("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	if err != nil {
		return nil, err
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(address, "http://"), "/")
	x := &Page{b: b, session: attached.SessionID, target: target.TargetID, home: "http://" + host + "/"}
	b.mu.Lock()
	b.pages[x.session] = x
	b.mu.Unlock()
	for _, domain := range []string{"Runtime", "Log", "Network", "Page"} {
		if err := x.Do(domain+".enable", map[string]any{}, nil); err != nil {
			return nil, err
		}
	}
	return x, x.Do("Page.navigate", map[string]any{"url": address}, nil)
}

// Do calls a method of the protocol for this page, and reads its result into into, which may be nil.
func (x *Page) Do(method string, params, into any) error {
	return x.b.do(x.session, method, params, into)
}

// Close closes the page: all that are open share six connections to a place.
func (x *Page) Close() error {
	return x.b.do("", "Target.closeTarget", map[string]any{"targetId": x.target}, nil)
}

// Eval gives the value of an expression, or of its promise.
func (x *Page) Eval(expression string) (any, error) {
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	err := x.Do("Runtime.evaluate",
		map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if err == nil && r.ExceptionDetails != nil {
		err = fmt.Errorf("%.200s: %s", expression, r.ExceptionDetails)
	}
	return r.Result.Value, err
}

// Until waits until a condition holds in the page.
func (x *Page) Until(condition string) error {
	ok, err := x.Eval(fmt.Sprintf(`new Promise(done => { const end = Date.now() + %d, look = () => { let holds = false;
		try { holds = %s; } catch {}
		if (holds || Date.now() > end) done(!!holds); else setTimeout(look, 10); }; look(); })`,
		holdTime.Milliseconds(), condition))
	if err == nil && ok != true {
		err = fmt.Errorf("within %v not: %s", holdTime, condition)
	}
	return err
}

// Key presses a key: its name, its place on the keyboard, and the text that it makes.
func (x *Page) Key(name, code, text string) error {
	down := map[string]any{"type": "keyDown", "key": name, "code": code, "text": text}
	return errors.Join(x.Do("Input.dispatchKeyEvent", down, nil),
		x.Do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": code}, nil))
}

// Scheme makes the page light or dark.
func (x *Page) Scheme(scheme string) error {
	return x.Do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Widen makes the window as wide as wide pixels, and scrolls to the page's beginning.
func (x *Page) Widen(wide int) error {
	err := x.Do("Emulation.setDeviceMetricsOverride", map[string]any{"width": wide, "height": 900,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	if err == nil {
		_, err = x.Eval("scrollTo({top: 0, behavior: 'instant'}), " +
			"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
	}
	return err
}

// Screenshot gives a picture (PNG) of the whole page in a window as wide as wide pixels.
func (x *Page) Screenshot(wide int) ([]byte, error) {
	if err := x.Widen(wide); err != nil {
		return nil, err
	}
	var shot struct{ Data string }
	if err := x.Do("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(shot.Data)
}

// Complaints gives what the page's console said, what its policy refused, and what it asked of others than its home.
func (x *Page) Complaints() []string {
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	return append(append([]string(nil), x.console...), x.elsewhere...)
}
