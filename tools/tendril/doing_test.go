package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"tendril/tools/e2e/await"
)

// sharedBuffer is a bytes.Buffer for several goroutines.
type sharedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// On a terminal the line moves, fits, and is gone afterwards; in a pipe there is none.
func TestDoing(t *testing.T) {
	var errs sharedBuffer
	c := &cli{term: terminal{err: &errs, isErr: true, errScreen: screen{columns: 30}}}
	done := c.doing("a device with a long name: its first kernel is built")
	await.Until(t, "the line moves", func() bool { return strings.Contains(errs.String(), "\r/ a device") })
	done()
	lines := strings.Split(errs.String(), "\r")
	if len(lines) < 5 || !strings.HasPrefix(lines[1], "| a device") || !strings.HasPrefix(lines[2], "/ a device") {
		t.Fatalf("%q", lines)
	}
	for _, l := range lines {
		if n := widths.StringWidth(l); n > 29 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	if last := lines[len(lines)-2:]; strings.TrimSpace(last[0]) != "" || last[1] != "" ||
		len(last[0]) < widths.StringWidth(lines[1]) {
		t.Errorf("it stays: %q", last)
	}
	var pipe bytes.Buffer
	(&cli{term: terminal{err: &pipe}}).doing("something")()
	if pipe.Len() > 0 {
		t.Errorf("%q", &pipe)
	}
}
