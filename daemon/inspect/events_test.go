package inspect

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"tendril/daemon/changes"
)

// stream is a client of /v1/events.
type stream struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	head *http.Response
}

func openStream(t *testing.T, address, secret string, headers ...string) *stream {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	io.WriteString(c, get("/v1/events", address, append(headers, "Authorization: Bearer "+secret)...))
	r := bufio.NewReader(c)
	head, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &stream{t, c, bufio.NewReader(head.Body), head}
}

// block gives the next block of lines; "" at the end.
func (s *stream) block() string {
	s.t.Helper()
	var lines []string
	for {
		line, err := s.r.ReadString('\n')
		if err != nil && err != io.EOF {
			s.t.Fatalf("the stream broke off: %v", err)
		}
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			return strings.Join(lines, "|")
		}
		lines = append(lines, line)
	}
}

// Events come as they happen; a client that comes back goes on where it was; a beat says that the node is there; Close
// ends the stream in order, and nothing is held for who has gone.
func TestEvents(t *testing.T) {
	source := &fake{ring: changes.New()}
	s, address, secret := start(t, func(o *Options) {
		o.Source, o.Beat, o.closeGrace = source, 50*time.Millisecond, 10*time.Minute
	})
	first := openStream(t, address, secret)
	if first.head.StatusCode != 200 || first.head.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%+v", first.head)
	}
	place, ok := strings.CutPrefix(first.block(), "retry: 1000|id: ")
	if !ok {
		t.Fatal("no place at the beginning")
	}
	if got := first.block(); got != ":" {
		t.Errorf("a beat: %q", got)
	}
	source.ring.Add(ObjectEvent, []byte(`{"n":1}`))
	source.ring.Add(NameEvent, []byte(`{"n":2}`))
	want := []string{"event: object|data: {\"n\":1}", "event: name|data: {\"n\":2}"}
	events := func(c *stream) (list []string) {
		for len(list) < 2 {
			if b := c.block(); strings.HasPrefix(b, "id: ") {
				_, b, _ = strings.Cut(b, "|")
				list = append(list, b)
			} else if b == "" {
				break
			}
		}
		return list
	}
	if got := events(first); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	first.conn.Close()
	second := openStream(t, address, secret, "Last-Event-ID: "+place)
	second.block()
	if got := events(second); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("back again: %q, want %q", got, want)
	}
	elsewhere := openStream(t, address, secret, "Last-Event-ID: 0123456789abcdef.7")
	elsewhere.block()
	if got := elsewhere.block(); !strings.Contains(got, `|event: missed|data: {"change":"missed","look":["/v1/objects"`) {
		t.Errorf("at a place that is none: %q", got)
	}
	for _, x := range []struct {
		what, request string
		status        int
	}{
		{"no token", get("/v1/events", address), 401},
		{"an argument", get("/v1/events?limit=1", address, "Authorization: Bearer "+secret), 400},
	} {
		wantFailure(t, x.what, raw(t, "tcp", address, x.request), x.status)
	}
	head := raw(t, "tcp", address, strings.Replace(get("/v1/events", address, "Authorization: Bearer "+secret), "GET",
		"HEAD", 1))
	if head == nil || head.StatusCode != 200 || head.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: %+v", head)
	}
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	for second.block() != "" { // Fatal where the stream breaks off
	}
	<-closed
	if n := source.following.Load(); n != 0 {
		t.Errorf("%d follow after the end", n)
	}
}

// A client that reads slowly is told what it missed, once, and gets the last event; others do not wait for it.
func TestEventsForTheSlow(t *testing.T) {
	source := &fake{ring: changes.New()}
	_, address, secret := start(t, func(o *Options) { o.Source = source })
	slow := openStream(t, address, secret)
	slow.block()
	for i := range 3 * changes.MaxChanges {
		source.ring.Add(ObjectEvent, []byte(fmt.Sprintf(`{"n":%d,"fill":%q}`, i, strings.Repeat("x", 1000))))
	}
	quick := openStream(t, address, secret)
	quick.block()
	source.ring.Add(ObjectEvent, []byte(`{"last":true}`))
	if got := quick.block(); !strings.Contains(got, `{"last":true}`) {
		t.Errorf("another client: %.100q", got)
	}
	missed := 0
	for {
		b := slow.block()
		if strings.Contains(b, "|event: missed|") {
			missed++
		}
		if strings.Contains(b, `{"last":true}`) || b == "" {
			break
		}
	}
	if missed == 0 {
		t.Error("a slow client is not told that it missed some")
	}
}
