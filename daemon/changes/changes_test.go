package changes

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// said reads what is there.
func said(r *Reader) string {
	var list []string
	for {
		c, ok, _ := r.Next(nil, 0)
		if !ok {
			return strings.Join(list, " ")
		}
		list = append(list, c.Kind+string(c.Data))
	}
}

// A reader goes on where it was, and is told what it cannot have.
func TestPlaces(t *testing.T) {
	r := New()
	r.Add("a", []byte("1"))
	now := r.From("")
	r.Add("a", []byte("2"))
	r.Add("b", []byte("3"))
	first := r.From(now.Place())
	c, _, _ := first.Next(nil, 0)
	for place, want := range map[string]string{
		now.Place(): "a2 b3", c.Place: "b3", first.Place(): "b3", r.name + ".0": "a1 a2 b3", "": "",
		r.name + ".3": "", r.name + ".4": Missed, r.name + ".x": Missed, "elsewhere.1": Missed, "nothing": Missed,
		r.name + ".18446744073709551615": Missed, r.name + ".-1": Missed,
	} {
		if got := said(r.From(place)); got != want {
			t.Errorf("from %q: %q, want %q", place, got, want)
		}
	}
	if got := said(now); got != "a2 b3" {
		t.Errorf("who waited from the beginning: %q", got)
	}
}

// The ring is bounded in number and in bytes, and who is slow is told once that it missed some.
func TestBounds(t *testing.T) {
	for size, most := range map[int]int{10: MaxChanges, 10 << 10: MaxBytes / (10<<10 + changeBytes), MaxBytes * 2: 1} {
		r := New()
		slow := r.From("")
		for i := range MaxChanges * 3 {
			r.Add("", []byte(fmt.Sprintf("%0*d", size, i)))
			if r.bytes > MaxBytes && len(r.list) > 1 || len(r.list) > MaxChanges {
				t.Fatalf("%d changes of %d bytes in all", len(r.list), r.bytes)
			}
			if size > MaxBytes && i == 3 {
				break
			}
		}
		missed, n := 0, 0
		for {
			c, ok, _ := slow.Next(nil, 0)
			if !ok {
				break
			}
			if n++; c.Kind == Missed {
				missed++
			}
		}
		if missed != 1 || n != most+1 {
			t.Errorf("of %d bytes: %d changes, %d times missed, want %d and 1", size, n-missed, missed, most)
		}
	}
}

// Who waits is woken by a change, by stop and by the ring's end; readers and writers run at once.
func TestWaiting(t *testing.T) {
	r := New()
	var running sync.WaitGroup
	for range 4 {
		reader := r.From("")
		running.Go(func() {
			for last := -1; ; {
				c, ok, over := reader.Next(nil, time.Minute)
				if over {
					return
				}
				n := 0
				if fmt.Sscan(string(c.Data), &n); !ok || c.Kind == "" && n <= last {
					t.Errorf("%d after %d, %v", n, last, ok)
					return
				}
				last = max(n, last)
			}
		})
	}
	for i := range 5000 {
		r.Add("", []byte(fmt.Sprint(i)))
	}
	stopped := make(chan struct{})
	waiting := r.From("")
	time.AfterFunc(time.Millisecond, func() { close(stopped) })
	if _, ok, over := waiting.Next(stopped, time.Minute); ok || over {
		t.Error("stop gave a change, or the end")
	}
	time.Sleep(time.Millisecond) // Pause: so that some wait
	running.Go(r.Close)
	running.Wait()
	r.Add("", nil)
	r.Close()
	if got := said(r.From("")); got != "" {
		t.Errorf("after the end: %q", got)
	}
}
