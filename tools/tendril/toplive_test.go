package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A live top shows what comes, sorts, follows the terminal's size, and leaves the terminal as it was.
func TestTopIsLive(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "large", n.file("large", pattern(100_000)))
	n.want(0, nil, "put", "--name", "aaa-small", n.file("small", pattern(10)))
	s := n.onTerminal(80, nil, "top", "--interval", "100ms")
	at := s.until("objects by size", 0)
	n.want(0, nil, "put", "--name", "another", n.file("new", pattern(5)))
	at = s.until("another", at-1)
	if _, err := s.master.WriteString("n"); err != nil {
		t.Fatal(err)
	}
	at = s.until("objects by name", at)
	at = s.until("another", at) // the next look, in this order
	at = s.until(toTop, at)     // it is whole
	pages := strings.Split(s.text()[:at], toTop)
	page := pages[len(pages)-2]
	if a, l := strings.Index(page, "aaa-small"), strings.Index(page, "large"); a < 0 || l >= 0 && l < a {
		t.Errorf("not by name: %q", page)
	}
	resize(t, s.master, 40, 10)
	at = s.until("there is more below", at)
	s.until("there is more below", at)
	screens := strings.Split(s.text()[at:], toTop)
	last := strings.NewReplacer("\r", "", restOfLine, "", restBelow, "").Replace(screens[len(screens)-2])
	fitted(t, "top", 40, last)
	if lines := strings.Count(last, "\n"); lines > 9 {
		t.Errorf("%d lines in 10: %q", lines+1, last)
	}
	state, err := unix.IoctlGetTermios(int(s.master.Fd()), unix.TCGETS)
	if err != nil || state.Lflag&unix.ICANON != 0 {
		t.Errorf("keys come by lines: %v", err)
	}
	if _, err := s.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	code, out := s.wait()
	if code != 0 || !strings.HasSuffix(out, leaveScreen) || !strings.HasPrefix(out, enterScreen) {
		t.Errorf("%d, %q", code, out)
	}
	if state, err := unix.IoctlGetTermios(int(s.master.Fd()), unix.TCGETS); err != nil || state.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

// Where nobody could press a key, top prints once; and so it does where that is asked for.
func TestTopOnce(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "x", n.file("x", pattern(10)))
	for _, args := range [][]string{{"top", "--once"}, {"top", "-n", "3"}, {"top", "--json"}} {
		if code, out := n.onTerminal(80, nil, args...).wait(); code != 0 || strings.Contains(out, toTop) ||
			!strings.Contains(out, "x") {
			t.Errorf("%v: %d %q", args, code, out)
		}
	}
	n.want(0, []string{"HELD BY"}, "top")
	n.want(2, []string{"--number 0"}, "top", "-n", "0")
	n.want(2, []string{"--interval"}, "top", "--interval", "1ms")
}
