package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/session"
	"tendril/forwarding/clwire"
	"tendril/tools/browser"
)

const (
	httpObjects  = 1_000_000
	httpSessions = 200
	httpPages    = 2000
	httpDownload = 256 << 20
	slowReaders  = 2000
	paintObjects = 10_000
)

// httpBenchmarks measures inspection over HTTP.
func httpBenchmarks(r *rig) []benchmark {
	const ms = 1e6
	limited := func(name string, limit float64, against string, measure func(*rig) (float64, error)) benchmark {
		return benchmark{name: name, unit: "ns", against: against, atMost: 1, once: true,
			measure: func() (float64, float64, error) {
				v, err := measure(r)
				return v, limit, err
			}}
	}
	memory := limited("http/slow-connections=2000", 64<<20, "64 MiB", slowMemory)
	memory.unit = "B"
	followers := limited("http/slow-followers=2000", 64<<20, "64 MiB", slowFollowers)
	followers.unit = "B"
	paint := limited("http/first-paint/objects=10000", 1000*ms, "1 s", firstPaint)
	few := 0.0
	pages := limited("http/page=100/objects=1000000/p99", 5*ms, "5 ms", func(r *rig) (v float64, err error) {
		v, few, err = pageOfMany(r)
		return v, err
	})
	pages.note = func() string { return fmt.Sprintf("%.2f ms among 1,000 objects", few/ms) }
	return []benchmark{
		pages,
		limited("http/metrics/objects=100000/sessions=200/p99", 10*ms, "10 ms", scrapeOfMany),
		{name: "http/get-under-scrapes=10Hz", unit: "ns", against: "the same without", atMost: 1.1,
			measure: func() (float64, float64, error) { return getUnderScrapes(r) }},
		{name: "http/download/size=256MiB", unit: "B/s", against: "sendfile of the same bytes over loopback",
			atLeast: 0.9, best: true, measure: func() (float64, float64, error) { return download(r) }},
		memory,
		followers,
		paint,
	}
}

// visitor asks the daemon over its unix socket.
func (r *rig) visitor() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.socket+".http")
		}}}
}

// fetch reads an answer whole.
func fetch(c *http.Client, path string) ([]byte, error) {
	answer, err := c.Get("http://node" + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", path, answer.Status, body)
	}
	return body, err
}

// manyObjects makes n empty objects, which the connection holds.
func manyObjects(c *client.Conn, n int) error {
	for range n {
		if _, err := c.Put(context.Background(), nil, client.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// slowest is the 99th percentile of n calls.
func slowest(n int, f func() error) (float64, error) {
	took := make([]float64, n)
	for i := range took {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		took[i] = float64(time.Since(start).Nanoseconds())
	}
	slices.Sort(took)
	return took[n*99/100], nil
}

// pageOfMany turns pages of a list of a million objects, and of a thousand before.
func pageOfMany(r *rig) (many, few float64, err error) {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	if err := manyObjects(c, 1000); err != nil {
		return 0, 0, err
	}
	if few, err = turnPages(r); err != nil {
		return 0, 0, err
	}
	if err := manyObjects(c, httpObjects); err != nil {
		return 0, 0, err
	}
	many, err = turnPages(r)
	return many, few, err
}

// turnPages begins again at the end of the list.
func turnPages(r *rig) (float64, error) {
	visitor, next := r.visitor(), ""
	defer visitor.CloseIdleConnections()
	return slowest(httpPages, func() error {
		body, err := fetch(visitor, "/v1/objects?limit=100&after="+url.QueryEscape(next))
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(body[max(len(body)-300, 0):]), `"next":"`)
		next, _, _ = strings.Cut(rest, `"`)
		return nil
	})
}

func scrapeOfMany(r *rig) (float64, error) {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := manyObjects(c, httpObjects/10); err != nil {
		return 0, err
	}
	options, err := json.Marshal(clwire.SessionOptions{Protocol: clwire.Version})
	if err != nil {
		return 0, err
	}
	for range httpSessions {
		s, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
		if err != nil {
			return 0, err
		}
		defer s.Close()
		if _, _, err := session.Of(s).Open(context.Background(), "bench", options); err != nil {
			return 0, err
		}
	}
	scraper := r.visitor()
	defer scraper.CloseIdleConnections()
	return slowest(500, func() error {
		_, err := fetch(scraper, "/metrics")
		return err
	})
}

// getUnderScrapes gives a get's median time while somebody scrapes ten times a second, and while nobody does.
func getUnderScrapes(r *rig) (value, reference float64, err error) {
	if reference, err = getRelease(r); err != nil {
		return 0, 0, err
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		scraper := r.visitor()
		defer scraper.CloseIdleConnections()
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			if _, err := fetch(scraper, "/metrics"); err != nil {
				ended <- err
				return
			}
			select {
			case <-stop:
				tick.Stop()
				ended <- nil
				return
			case <-tick.C:
			}
		}
	}()
	value, err = getRelease(r)
	close(stop)
	return value, reference, errors.Join(err, <-ended)
}

// download gives how fast an object comes over loopback, and as many bytes of a file in memory with sendfile(2).
func download(r *rig) (value, reference float64, err error) {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	content := make([]byte, httpDownload)
	for i := range content {
		content[i] = byte(i >> 12)
	}
	o, err := c.Put(context.Background(), content, client.CreateOptions{})
	if err != nil {
		return 0, 0, err
	}
	defer o.Release()
	page, err := admin.Of(c).OpenPage(context.Background())
	if err != nil {
		return 0, 0, err
	}
	address, key, _ := strings.Cut(strings.TrimPrefix(page, "http://"), "/ui#token=")
	request := fmt.Sprintf("GET /v1/objects/%s/data HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n",
		o.ID(), address, key)
	if value, err = received(address, request); err != nil {
		return 0, 0, err
	}
	file, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, 0, err
	}
	f := os.NewFile(uintptr(file), "bench")
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return 0, 0, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	sent := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = f.Seek(0, io.SeekStart)
			_, err = conn.(*net.TCPConn).ReadFrom(f) // sendfile
			conn.Close()
		}
		sent <- err
	}()
	reference, err = received(l.Addr().String(), "")
	l.Close()
	return value, reference, errors.Join(err, <-sent)
}

// received gives bytes a second of what a server sends.
func received(address, request string) (float64, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	buffer, got, start := make([]byte, 1<<20), 0, time.Now()
	if _, err := io.WriteString(conn, request); err != nil {
		return 0, err
	}
	for got < httpDownload {
		n, err := conn.Read(buffer)
		if got += n; err != nil && got < httpDownload {
			return 0, fmt.Errorf("after %d bytes: %w: %.300s", got, err, buffer[:n])
		}
	}
	return float64(httpDownload) / time.Since(start).Seconds(), nil
}

// slowMemory gives what the daemon's memory grows by while many begin a request and do not end it.
func slowMemory(r *rig) (float64, error) {
	return memoryWith(r, func(conn net.Conn, _ *client.Conn, _, _ string) error {
		_, _ = io.WriteString(conn, "GET /v1/objects HTTP/1.1\r\nX-Slow: ") // it may have given its place up already
		return nil
	})
}

// memoryWith gives what the daemon's memory grows by with many connections, each of which begins what ask says and
// reads nothing. c is a client of the daemon's; address and key are its page's.
func memoryWith(r *rig, ask func(conn net.Conn, c *client.Conn, address, key string) error) (float64, error) {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	page, err := admin.Of(c).OpenPage(context.Background())
	if err != nil {
		return 0, err
	}
	address, key, _ := strings.Cut(strings.TrimPrefix(page, "http://"), "/ui#token=")
	before, err := residentBytes(c.Daemon().PID)
	if err != nil {
		return 0, err
	}
	most := before
	for i := range slowReaders {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		if err := ask(conn, c, address, key); err != nil {
			return 0, fmt.Errorf("others: %w", err)
		}
		if i%100 == 99 {
			now, err := residentBytes(c.Daemon().PID)
			if err != nil {
				return 0, err
			}
			most = max(most, now)
		}
	}
	others := r.visitor()
	defer others.CloseIdleConnections()
	if _, err := fetch(others, "/v1/status"); err != nil {
		return 0, fmt.Errorf("others: %w", err)
	}
	return max(float64(most)-float64(before), 1), nil
}

// firstPaint gives how long a page with 10,000 objects takes from its address to the first objects that people can
// read: the page of a node that has just been asked for, in a Chromium that runs already.
func firstPaint(r *rig) (float64, error) {
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		return 0, &missingError{err.Error()}
	}
	if err != nil {
		return 0, err
	}
	defer b.Close()
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := manyObjects(c, paintObjects); err != nil {
		return 0, err
	}
	address, err := admin.Of(c).OpenPage(context.Background())
	if err != nil {
		return 0, err
	}
	var took []float64
	for range 5 {
		page, err := b.Open(address)
		if err != nil {
			return 0, err
		}
		if err := page.Until("performance.getEntriesByName('objects').length > 0"); err != nil {
			return 0, err
		}
		ms, err := page.Eval("performance.getEntriesByName('objects')[0].startTime")
		v, is := ms.(float64)
		if err = errors.Join(err, page.Close()); err != nil || !is {
			return 0, errors.Join(err, fmt.Errorf("the page says %v", ms))
		}
		took = append(took, v*1e6)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// slowFollowers gives what the daemon's memory grows by while many follow its events and read none of them, and much
// changes. Most give their places up to those that come later.
func slowFollowers(r *rig) (float64, error) {
	return memoryWith(r, func(conn net.Conn, c *client.Conn, address, key string) error {
		fmt.Fprintf(conn, "GET /v1/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", address, key)
		o, err := c.Put(context.Background(), nil, client.CreateOptions{})
		if err == nil {
			o.Release()
		}
		return err
	})
}
